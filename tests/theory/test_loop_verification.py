"""The self-check of robots with closed loops: right answers agree, and a wrong one is seen by what compares it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.formulations import loop_verification
from dyn_service.formulations.verification import residuals, survey
from dyn_service.formulations.world_equations import WorldEquations
from tests.conftest import URDF
from tests.loops import Mechanism, random_mechanism, with_drives
from tests.theory.test_verification import AGREE, all_nan, disagreeing, slightly_off, with_wrong
from tests.wide import one_in, wide

SEEN_BY = {
    # Not by the accelerations, which are compared under whatever efforts act.
    ("inverse_dynamics", ""): {"inverse_dynamics"},
    ("forward_dynamics", "articulated"): {"forward_dynamics"},
    ("bias_forces", ""): {"bias_forces"},
    ("independent_motion", "jacobian"): {"independent_motion"},
    ("independent_motion", "mass_matrix"): {"independent_motion"},
    ("independent_motion", "bias_accelerations"): {"bias_forces"},
    ("independent_motion", "freedom"): set(),
    ("constraint_forces", "wrench"): {"constraint_forces"},
    ("constraint_forces", "actuation"): set(),
    ("momentum", ""): {"momentum"},
    ("energy", "kinetic"): {"energy"},
    ("energy", "potential"): set(),
}
"""(query, the field of its result) -> the residuals that detect an error in it."""


@pytest.fixture(scope="module")
def crank() -> Robot:
    return Robot.from_urdf(URDF / "four_bar.urdf")


@pytest.fixture(scope="module")
def state(crank: Robot) -> np.ndarray:
    q = crank.assemble([0.5, -0.7, -0.1], fixed=["crank_joint"])
    v = crank.independent_motion(q, np.zeros(3)).jacobian @ [7.0]
    motion = crank.independent_motion(q, v)
    return np.array([q, v, motion.jacobian @ [30.0] + motion.bias_accelerations])


@pytest.mark.parametrize(
    "name", wide(["four_bar", "linkage_gripper", "delta", "parallel_ankle_leg"], {"four_bar", "delta"}.__contains__)
)
def test_shipped_mechanisms_agree(name: str) -> None:
    report = survey(Robot.from_urdf(URDF / f"{name}.urdf"), states=4)
    assert report["states"] == 4
    assert report["worst"] < AGREE


@pytest.mark.parametrize("seed", wide([0, 1, 2, 3, 4, 6], one_in(3)))
def test_random_mechanisms_agree(seed: int) -> None:
    """One to four loops, planar and spatial ones, with drives at the independent joints; bases that float have none."""
    m = random_mechanism(seed)
    loops = m.robot.evaluator.closed_loops
    assert loops is not None
    assert loops.freedom is not None
    names = [loops.configuration.velocity_joints[k] for k in loops.freedom.independent]
    robot = Robot(with_drives(m.description, names))
    gravity = np.array([0.3, 1.0, -3.7])
    residual_of = residuals(robot, m.q, *Mechanism(robot, m.q).motion(seed), gravity=gravity)
    assert disagreeing(residual_of) == set()
    assert ("inverse_dynamics" in residual_of) == ("root_joint" not in names)


@pytest.mark.parametrize(("query", "part"), SEEN_BY, ids=["-".join(filter(None, key)) for key in SEEN_BY])
def test_a_wrong_answer_is_seen(
    monkeypatch: pytest.MonkeyPatch, crank: Robot, state: np.ndarray, query: str, part: str
) -> None:
    assert disagreeing(residuals(crank, *state)) == set()
    with monkeypatch.context() as patch:
        with_wrong(patch, crank, query, part, slightly_off)
        if query == "inverse_dynamics":  # an effort at a passive joint is refused: the driven one alone is off
            right = type(crank).inverse_dynamics
            patch.setattr(crank, query, lambda *x, **options: 1.001 * right(crank, *x, **options))
        assert disagreeing(residuals(crank, *state)) == SEEN_BY[query, part]
    if part:
        with_wrong(monkeypatch, crank, query, part, all_nan)
        assert SEEN_BY[query, part] <= disagreeing(residuals(crank, *state))


def test_every_residual_is_seen_by_an_answer_or_by_the_rows(
    monkeypatch: pytest.MonkeyPatch, crank: Robot, state: np.ndarray
) -> None:
    assert set().union(*SEEN_BY.values()) | {"closed"} == set(residuals(crank, *state))
    for part in ("velocity", "acceleration"):
        right = getattr(WorldEquations, part)
        wrong = (
            (lambda self, a, right=right: slightly_off(right(self, a)))
            if part == "acceleration"
            else property(lambda self, right=right: slightly_off(right.func(self)))
        )
        with monkeypatch.context() as patch:
            patch.setattr(loop_verification, "WorldEquations", type("Wrong", (WorldEquations,), {part: wrong}))
            assert "closed" in disagreeing(residuals(crank, *state))


def test_joint_forces_and_a_consistent_answer_that_opens_loops(
    monkeypatch: pytest.MonkeyPatch, crank: Robot, state: np.ndarray
) -> None:
    """Damping and springs are in C. A mass matrix that is that of a wrong G agrees with it, and G opens the loop."""
    joint = '<joint name="rocker_joint" type="continuous">'
    text = (URDF / "four_bar.urdf").read_text("utf-8").replace(joint, f'{joint}<dynamics damping="0.1"/>')
    damped = Robot.from_text(text)
    assert disagreeing(residuals(damped, *state)) == set()
    right = type(crank).independent_motion

    def wrong(q: np.ndarray, v: np.ndarray, **options: Any) -> Any:
        motion = right(crank, q, v, **options)
        G = motion.jacobian * [[1.0], [1.001], [1.0]]
        return replace(motion, jacobian=G, mass_matrix=np.swapaxes(G, -1, -2) @ crank.mass_matrix(q) @ G)

    monkeypatch.setattr(crank, "independent_motion", wrong)
    assert disagreeing(residuals(crank, *state)) == {"independent_motion"}


def test_batches_and_refusals(crank: Robot, state: np.ndarray) -> None:
    q, v, a = state
    batch = residuals(crank, np.stack([q, q]), np.stack([v, 0.0 * v]), np.stack([a, 0.0 * a]))
    assert {residual.shape for residual in batch.values()} == {(2,)}
    single = residuals(crank, q, v, a)
    for name, residual in batch.items():
        assert residual[0] == pytest.approx(single[name], abs=1e-14)
    assert crank.verify(q, v, a).keys() == single.keys()
    with pytest.raises(InvalidArgumentError, match="leaves the loop of joint 'pin' open"):
        crank.verify(q + 0.1, v, a)
    text = (URDF / "four_bar.urdf").read_text("utf-8")
    undriven = Robot.from_text(text[: text.index("<transmission")] + "</robot>", joints=None)
    unknown = undriven.verify(q, v, a)
    assert unknown.keys() == single.keys() - {"inverse_dynamics", "bias_forces"}
    assert disagreeing(unknown) == set()
