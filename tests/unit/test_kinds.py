"""A new row of the table works whatever its inputs are called: what they mean is their kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dyn_service.api import queries, spec
from dyn_service.api.queries import Acceleration, EffortResult, Gravity, Position, Velocity, Wrench, Wrenches
from dyn_service.dynamics import newton_euler
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.kernels.certify import drawn_states
from dyn_service.kernels.signature import signature_of
from dyn_service.server.plan import Plan
from tests.conftest import URDF


def other_names(tree: Any, q_goal: Any, rate: Any, speeding_up: Any, weight: Any, pushes: Any = None) -> Any:
    """Inverse dynamics under other names."""
    return newton_euler.inverse_dynamics(tree, q_goal, rate, speeding_up, weight, pushes)


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Iterator[spec.Query]:
    """A row as another author would write it, its position called q_goal."""
    monkeypatch.setattr(newton_euler, "other_names", other_names, raising=False)
    before = dict(spec._QUERIES)

    @queries.query(equation="-", kernel="newton_euler.other_names")
    def under_other_names(
        self: Any,
        q_goal: Position,
        rate: Velocity,
        speeding_up: Acceleration,
        *,
        weight: Gravity = None,
        pushes: Wrenches = None,
    ) -> EffortResult:
        """Inverse dynamics under other names."""
        return self._ask("under_other_names", (q_goal, rate, speeding_up), (weight, pushes))

    monkeypatch.setattr(queries.RobotQueries, "under_other_names", under_other_names, raising=False)
    yield spec.QUERIES["under_other_names"]
    spec._QUERIES.clear()
    spec._QUERIES.update(before)


def test_answers_are_those_of_the_row_with_the_usual_names(row: spec.Query) -> None:
    panda = Robot.from_urdf(URDF / "panda.urdf", root="floating")
    rng = np.random.default_rng(0)
    q, v, a = panda.random_configuration(seed=4), *rng.normal(size=(2, panda.nv))
    push = Wrench("panda_hand", force=(1.0, 2.0, 3.0), point=(0.1, 0.0, 0.2), frame="panda_link3")
    for acting in (None, push):
        given = {"q_goal": q, "rate": v, "speeding_up": a, "pushes": acting}
        found = panda.under_other_names(q, v, a, pushes=acting)  # type: ignore[attr-defined]
        assert (found == panda.evaluate("under_other_names", given)["tau"]).all()
        assert (found == panda.inverse_dynamics(q, v, a, wrenches=acting)).all()
    weightless = panda.evaluate("under_other_names", {"q_goal": q, "rate": v, "speeding_up": a, "weight": np.zeros(3)})
    assert (weightless["tau"] == panda.inverse_dynamics(q, v, a, gravity=np.zeros(3))).all()


def test_certificates_draw_positions_as_positions(row: spec.Query) -> None:
    panda = Robot.from_urdf(URDF / "panda.urdf", root="floating")
    usual, other = (
        drawn_states(signature_of(each, "", panda.sizes, wrenches=True), panda.tree)
        for each in (spec.QUERIES["inverse_dynamics"], row)
    )
    for one, same in zip(usual[0], other[0], strict=True):
        assert (one == same).all()


def test_a_server_reads_them(row: spec.Query) -> None:
    pendulum = Robot.from_urdf(URDF / "double_pendulum.urdf", root="floating")
    plan = Plan.__new__(Plan)
    plan._row, plan._robot, plan._sizes = row, pendulum, pendulum.sizes
    plan._paths = {name: f"inputs.{name}" for name in row.inputs}
    plan._required = row.inputs.keys() - row.optional
    v = {"dtype": "<f8", "shape": [pendulum.nv], "data": np.ones(pendulum.nv).tobytes()}
    q = {"dtype": "<f8", "shape": [pendulum.nq], "data": pendulum.neutral().tobytes()}
    read = plan.read_inputs({"q_goal": q, "rate": v, "speeding_up": v, "pushes": [{"link": pendulum.link_names[0]}]})
    assert isinstance(read["pushes"][0], Wrench)
    assert plan.wrenches(read) == 1
    twice = {**q, "data": (2 * pendulum.neutral()).tobytes()}
    with pytest.raises(InvalidArgumentError, match="q_goal of joint 'root_joint' has a quaternion of length 2"):
        plan.read_inputs({"q_goal": twice, "rate": v, "speeding_up": v})
