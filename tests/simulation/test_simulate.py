"""The solution loop: every integrator and solution, efforts of every form, batches, divergence, progress."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from tests.conftest import URDF
from tests.phrases import naming, unnamed


@pytest.fixture(scope="module")
def arm() -> Robot:
    return Robot.from_urdf(URDF / "scara.urdf")


def start(robot: Robot, *lead: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(0.2 * rng.normal(size=(2, *lead, robot.nv)))


def exact(robot: Robot, tau: Any, seconds: float = 0.2) -> np.ndarray:
    return robot.simulate(*start(robot), tau, dt=seconds, steps=1, integrator="adaptive").q[-1]


@pytest.mark.parametrize("method", ["articulated", "mass_matrix"])
@pytest.mark.parametrize(
    ("integrator", "order"), [("semi_implicit_euler", 1), ("explicit_euler", 1), ("rk4", 4), ("implicit_midpoint", 2)]
)
def test_order_of_convergence(arm: Robot, integrator: str, order: int, method: str) -> None:
    tau = np.array([1.0, -0.5, 40.0, 0.1])
    goal = exact(arm, tau)
    counts = (8, 16, 32)
    errors = [
        np.abs(
            arm.simulate(*start(arm), tau, dt=0.2 / n, steps=n, integrator=integrator, method=method).q[-1] - goal
        ).max()
        for n in counts
    ]
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), order, atol=0.35)


def test_the_two_solutions_agree(arm: Robot) -> None:
    runs = [arm.simulate(*start(arm), dt=1e-3, steps=100, method=m) for m in ("articulated", "mass_matrix")]
    np.testing.assert_allclose(runs[0].q, runs[1].q, atol=1e-12)


def test_a_batch_is_its_members_to_the_last_bit(arm: Robot) -> None:
    q, v = start(arm, 5)
    for integrator in ("rk4", "semi_implicit_euler", "explicit_euler", "implicit_midpoint"):
        batch = arm.simulate(q, v, dt=1e-3, steps=40, integrator=integrator)
        single = arm.simulate(q[3], v[3], dt=1e-3, steps=40, integrator=integrator)
        np.testing.assert_array_equal(batch.q[3], single.q)
        np.testing.assert_array_equal(batch.v[3], single.v)


def test_efforts_of_every_form_are_the_same_efforts(arm: Robot) -> None:
    constant = np.array([1.0, 2.0, 30.0, 0.1])
    forms: list[Any] = [constant, np.tile(constant, (50, 1)), lambda t, q, v: constant, constant.tolist()]
    runs = [arm.simulate(*start(arm), tau, dt=1e-3, steps=50).q for tau in forms]
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])


def test_samples_act_one_step_each(arm: Robot) -> None:
    tau = np.zeros((3, arm.nv))
    tau[1, 0] = 100.0
    run = arm.simulate(*start(arm), tau, dt=1e-3, steps=3)
    free = arm.simulate(*start(arm), dt=1e-3, steps=3)
    np.testing.assert_array_equal(run.q[1], free.q[1])
    assert np.abs(run.v[2] - free.v[2]).max() > 1e-3


def test_a_function_of_time_and_state_is_feedback(arm: Robot) -> None:
    """A computed torque that holds the arm where it is."""
    q0, _ = start(arm)
    zeros = np.zeros(arm.nv)

    def hold(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        return arm.computed_torque(q, v, q0, zeros, zeros, kp=100.0, kd=20.0)

    run = arm.simulate(q0 + 0.05, zeros, hold, dt=1e-3, steps=1500, every=1500)
    np.testing.assert_allclose(run.q[-1], q0, atol=1e-5)


def test_grid_of_output(arm: Robot) -> None:
    run = arm.simulate(*start(arm, 2), dt=1e-3, steps=25, every=10)
    np.testing.assert_allclose(run.t, [0.0, 0.01, 0.02])
    assert run.q.shape == run.v.shape == (2, 3, arm.nv)
    full = arm.simulate(*start(arm, 2), dt=1e-3, steps=25)
    np.testing.assert_array_equal(run.q, full.q[:, [0, 10, 20]])


def test_progress_goes_from_nothing_to_all(arm: Robot) -> None:
    seen: list[float] = []
    arm.simulate(*start(arm), dt=1e-3, steps=5000, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 2


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "explicit_euler", "implicit_midpoint"])
def test_divergence_is_told_in_words(arm: Robot, integrator: str) -> None:
    with pytest.raises(
        FailedPreconditionError,
        match=naming(re.compile(r"diverged in step \d+ \(t = [\d.]+ s\)"), re.compile(r"'\w+'")),
    ):
        arm.simulate(*start(arm), lambda t, q, v: 1e6 * q, dt=0.5, steps=2000, integrator=integrator)


def test_divergence_of_the_adaptive_steps_ends(arm: Robot) -> None:
    with pytest.raises(FailedPreconditionError, match=naming("diverged", "step 1")):
        arm.simulate(*start(arm), lambda t, q, v: 1e6 * v, dt=1.0, steps=3, integrator="adaptive")


def test_midpoint_that_is_not_found_is_told(arm: Robot) -> None:
    q, v = start(arm)
    with pytest.raises(FailedPreconditionError, match=r"the midpoint of step 1 .* was not found|diverged in step 1"):
        arm.simulate(q, 50.0 + v, dt=1.0, steps=2, integrator="implicit_midpoint")


@pytest.mark.parametrize("integrator", [None, "rk4", "semi_implicit_euler", "implicit_midpoint", "adaptive"])
def test_every_record_has_unit_quaternions(integrator: Any) -> None:
    """The first one too, and the motion is that from the unit ones."""
    robot = Robot.from_urdf(URDF / "scara.urdf", root="floating")
    q, v = robot.random_configuration(seed=1), np.full(robot.nv, 0.1)
    longer = np.concatenate([q[:3], 2.0 * q[3:7], q[7:]])

    def motion(q0: np.ndarray) -> Any:
        if integrator is None:
            keep = [k for k in range(robot.nv) if k != 6]
            prescribed = {robot.joint_names[1]: np.zeros((3, 3))}
            return robot.simulate_rheonomic(prescribed, np.delete(q0, 7), v[keep], dt=1e-3, steps=2)
        return robot.simulate(q0, v, dt=1e-3, steps=2, integrator=integrator)

    normalised, expected = motion(longer), motion(q)
    np.testing.assert_allclose(np.linalg.norm(normalised.q[:, 3:7], axis=-1), 1.0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(normalised.q, expected.q, rtol=0, atol=1e-14)  # roundings of a first position of 1 m
    longer[3:7] = 0.0
    with pytest.raises(InvalidArgumentError, match=naming("q0", "'root_joint'", "quaternion", "0")):
        motion(longer)


FAULTS: list[tuple[str, Callable[[Robot], Any], list[str]]] = [
    ("dt", lambda r: r.simulate(*start(r), dt=0.0, steps=1), ["dt", "0.0"]),
    ("dt", lambda r: r.simulate(*start(r), dt=np.nan, steps=1), ["dt", "nan"]),
    ("steps", lambda r: r.simulate(*start(r), dt=1.0, steps=0), ["steps", "1", "0"]),
    ("integrator", lambda r: r.simulate(*start(r), dt=1.0, steps=1, integrator="euler"),
     ["integrator", "rk4, semi_implicit_euler, explicit_euler, implicit_midpoint, adaptive, stick_slip", "'euler'"]),
    ("q0", lambda r: r.simulate([0.0], [0.0] * 4, dt=1.0, steps=1), ["q0", "(..., 4)", "[0.0]"]),
    ("method", lambda r: r.simulate(*start(r), dt=1.0, steps=1, method="magic", integrator="implicit_midpoint"),
     ["method", "articulated, mass_matrix", "'magic'"]),
    ("steps", lambda r: r.simulate(*start(r), dt=1.0, steps="3"), ["steps", "1", "'3'"]),
    ("v0", lambda r: r.simulate([0.0] * 4, "fast", dt=1.0, steps=1), ["v0", "(..., 4)", "'fast'"]),
    ("inputs", lambda r: r.simulate(np.zeros((2, 4)), np.zeros((3, 4)), dt=1.0, steps=1), ["q0 (2,)", "v0 (3,)"]),
    ("tau", lambda r: r.simulate(*start(r), np.zeros((7, 4)), dt=1.0, steps=3),
     ["tau", "(7, 4)", "(4,)", "(..., 3, 4)"]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "ask", "values"), FAULTS)
def test_faults(arm: Robot, path: str, ask: Callable[[Robot], Any], values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        ask(arm)
    assert (refusal.value.path, unnamed(refusal.value, *values)) == (path, [])
