"""The meaning of an input is its kind, not its name: a new row of the table may name its inputs freely."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest

from dyn_service import Client, Server
from dyn_service.api import queries, spec
from dyn_service.api.arguments import (
    Acceleration,
    EffortResult,
    FirstPosition,
    Gravity,
    Position,
    Velocity,
    Wrench,
    Wrenches,
)
from dyn_service.api.spec import WITH_WRENCHES
from dyn_service.dynamics import newton_euler
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.kernels.certify import drawn_states
from dyn_service.kernels.signature import signature_of
from tests.conftest import URDF


def other_names(tree: Any, q_goal: Any, rate: Any, speeding_up: Any, weight: Any, pushes: Any = None) -> Any:
    """Inverse dynamics under other names."""
    return newton_euler.inverse_dynamics(tree, q_goal, rate, speeding_up, weight, pushes)


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Iterator[spec.Query]:
    """A row whose inputs have unusual names; its position is `q_goal`."""
    monkeypatch.setattr(newton_euler, "other_names", other_names, raising=False)
    saved_rows = dict(spec._QUERIES)

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
        result: EffortResult = self._ask("under_other_names", (q_goal, rate, speeding_up), (weight, pushes))
        return result

    monkeypatch.setattr(queries.RobotQueries, "under_other_names", under_other_names, raising=False)
    yield queries.QUERIES["under_other_names"]
    # The table is one for the whole process: a row that stayed would be in every later test's loops.
    spec._QUERIES.clear()
    spec._QUERIES.update(saved_rows)


def test_answers_are_those_of_the_row_with_the_usual_names(row: spec.Query) -> None:
    arm = Robot.from_urdf(URDF / "double_pendulum.urdf", root="floating")
    rng = np.random.default_rng(0)
    q, v, a = arm.random_configuration(seed=4), *rng.normal(size=(2, arm.nv))
    push = Wrench("lower_bar", force=(1.0, 2.0, 3.0), point=(0.1, 0.0, 0.2), frame="upper_bar")
    for wrenches in (None, push):
        inputs = {"q_goal": q, "rate": v, "speeding_up": a, "pushes": wrenches}
        tau = arm.under_other_names(q, v, a, pushes=wrenches)  # type: ignore[attr-defined]
        assert (tau == arm.evaluate("under_other_names", inputs)["tau"]).all()
        assert (tau == arm.inverse_dynamics(q, v, a, wrenches=wrenches)).all()
    weightless = arm.evaluate("under_other_names", {"q_goal": q, "rate": v, "speeding_up": a, "weight": np.zeros(3)})
    assert (weightless["tau"] == arm.inverse_dynamics(q, v, a, gravity=np.zeros(3))).all()


def test_certificates_draw_positions_as_positions(row: spec.Query) -> None:
    panda = Robot.from_urdf(URDF / "panda.urdf", root="floating")
    usual, other = (
        drawn_states(signature_of(query, "", panda.sizes, WITH_WRENCHES), panda.tree)
        for query in (queries.QUERIES["inverse_dynamics"], row)
    )
    for array, same in zip(usual[0], other[0], strict=True):
        assert (array == same).all()


@pytest.fixture
def server(row: spec.Query) -> Iterator[Server]:
    pendulum = Robot.from_urdf(URDF / "double_pendulum.urdf", root="floating")
    with Server([pendulum], endpoints=["tcp://127.0.0.1:0"]) as serving:
        yield serving


def test_a_server_answers_it(row: spec.Query, server: Server) -> None:
    """Local and remote answers are equal bit by bit: one state and batches, with and without wrenches, both paths."""
    local = server.service.robots["double_pendulum"]
    push = Wrench(local.link_names[-1], force=(1.0, 2.0, 3.0))
    with Client(server.endpoints[0], timeout_s=240.0) as client:
        remote = client.robot("double_pendulum")
        for lead in ((), (), (3,)):  # the second request takes the fast path
            q = np.broadcast_to(local.random_configuration(seed=4), (*lead, local.nq))
            v, a = np.random.default_rng(0).normal(size=(2, *lead, local.nv))
            for wrenches in (None, push):
                expected = local.inverse_dynamics(q, v, a, wrenches=wrenches)
                assert (remote.under_other_names(q, v, a, pushes=wrenches) == expected).all()  # type: ignore[attr-defined]


def test_a_server_says_what_is_wrong_by_its_names(row: spec.Query, server: Server) -> None:
    local = server.service.robots["double_pendulum"]
    q, v = local.neutral(), np.zeros(local.nv)
    q_far = q.copy()
    q_far[-1] = 1e300
    with Client(server.endpoints[0], timeout_s=240.0) as client:
        ask = client.robot("double_pendulum").under_other_names  # type: ignore[attr-defined]
        ask(q, v, v)  # further requests take the fast path
        for arguments, path, words in (
            ((2 * q, v, v), "inputs.q_goal", "q_goal of joint 'root_joint' has a quaternion of length 2"),
            ((q_far, v, v), "inputs.q_goal", "q_goal of joint 'joint_2' is 1e\\+300 rad"),
            ((q, v + np.inf, v), "inputs.rate", "rate must be finite"),
            ((q, v, 1e200 * v[:3]), "inputs.speeding_up", r"speeding_up has shape \(3,\)"),
        ):
            with pytest.raises(InvalidArgumentError, match=words) as error:
                ask(*arguments)
            assert error.value.path == path


def late(self: Any, q: Position, *, weight: Gravity = None, v: Velocity) -> EffortResult:
    """A required input after an optional one."""


def may_be_left_out(self: Any, q: Position, v: Velocity = 0.0) -> EffortResult:
    """An optional input whose kind has no default."""


def option_unread_by_kernels(self: Any, q: Position, *, colour: Literal["red", "blue"] = "red") -> EffortResult:
    """An option that no kernel reads."""


def second(self: Any, q: Position, *, way: Literal["b", "a"] = "b") -> EffortResult:
    """The option's default is the second kernel."""


def input_renamed_on_wire(self: Any, q0: FirstPosition) -> EffortResult:
    """An input that has another name on the wire."""


@pytest.mark.parametrize(
    ("method", "kernel", "rule"),
    [
        (late, "m.f", "required inputs precede"),
        (may_be_left_out, "m.f", "optional inputs need a default"),
        (option_unread_by_kernels, "m.f", "no kernel reads the options colour"),
        (second, {"a": "m.f", "b": "m.g"}, "the first kernel is the option's default"),
        (late, {"a": "m.f", "b": "m.g"}, "several kernels need one option with their names"),
        (input_renamed_on_wire, "m.f", "have the names of the parameters"),
    ],
)
def test_a_row_that_could_not_be_answered_is_refused(method: Any, kernel: Any, rule: str) -> None:
    with pytest.raises(TypeError, match=f"the row {method.__name__}: .*{rule}"):
        spec.query(equation="-", kernel=kernel)(method)
    assert method.__name__ not in queries.QUERIES
