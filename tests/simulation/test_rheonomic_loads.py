"""Gravity, external wrenches and efforts in rheonomic motions: against the driven pendulum's equation by SciPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from dyn_service.api.queries import Wrench
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.simulation.rheonomic import RheonomicRobot, forward_dynamics
from tests.conftest import URDF
from tests.phrases import unnamed


def shaken(t: float) -> tuple[float, float, float]:
    return 0.1 * np.sin(7 * t), 0.7 * np.cos(7 * t), -4.9 * np.sin(7 * t)


@pytest.fixture(scope="module")
def cart() -> Robot:
    return Robot.from_urdf(URDF / "cart_pendulum.urdf")


def end(
    cart: Robot, gravity: Any, force: Callable[[float, float, float], Any], tau: Callable[..., float], steps: int
) -> Any:
    """theta, theta-dot after 0.3 s of (I + m L^2) theta-ddot = L [cos, sin] . (m g + F - m x-ddot) + tau.

    F and tau are held through each of `steps` steps.
    """
    body = cart.tree.inertia[cart.link_names.index("pendulum")]
    m, L, I = body.mass, -float(body.com[2]), float(body.about_com[1, 1])

    def rates(t: float, x: np.ndarray, F: np.ndarray, effort: float) -> list[float]:
        q, v = x
        pull = m * np.array([gravity[0], gravity[2]]) + F[[0, 2]] - m * np.array([shaken(t)[2], 0.0])
        return [v, (L * pull @ [np.cos(q), np.sin(q)] + effort) / (I + m * L**2)]

    state, times = np.array([0.4, -1.0]), np.linspace(0.2, 0.5, steps + 1)
    for span in pairwise(times):
        loads = np.asarray(force(span[0], *state), dtype=float), tau(span[0], *state)
        state = solve_ivp(rates, span, state, method="DOP853", rtol=1e-12, atol=1e-13, args=loads).y[:, -1]
    return state


PUSH = (3.0, 0.0, -2.0)


@pytest.mark.parametrize("gravity", [None, (2.0, 0.0, -3.7), (0.0, 0.0, 0.0)])
@pytest.mark.parametrize("wrenches", ["none", "constant", "function"])
@pytest.mark.parametrize("efforts", ["none", "function"])
def test_what_acts_is_held_through_each_step(cart: Robot, gravity: Any, wrenches: str, efforts: str) -> None:
    def force(t: float, q: float, v: float) -> Any:
        return {"none": (0, 0, 0), "constant": PUSH, "function": (3 * np.cos(9 * t), 0, 2 * v * np.sin(q))}[wrenches]

    def tau(t: float, q: float, v: float) -> float:
        return 0.0 if efforts == "none" else np.cos(11 * t) - 0.3 * v

    com = cart.tree.inertia[cart.link_names.index("pendulum")].com

    def pushed(t: float, q: np.ndarray, v: np.ndarray) -> Wrench:
        return Wrench("pendulum", force=force(t, q[0], v[0]), point=com)

    wrench_argument: Any = {"none": None, "constant": Wrench("pendulum", force=PUSH, point=com), "function": pushed}[
        wrenches
    ]
    weight = (0.0, 0.0, -9.81) if gravity is None else gravity
    effort_argument: Any = 0.0 if efforts == "none" else lambda t, q, v: [tau(t, q[0], v[0])]
    moving = RheonomicRobot(cart, {"cart_slide": shaken})
    errors = []
    for steps in (30, 60):
        motion = moving.simulate(
            [0.4],
            [-1.0],
            effort_argument,
            dt=0.3 / steps,
            steps=steps,
            t0=0.2,
            gravity=gravity,
            wrenches=wrench_argument,
        )
        np.testing.assert_allclose(motion.q[:, 0], [shaken(t)[0] for t in motion.t], rtol=0, atol=1e-15)
        errors.append(np.abs([motion.q[-1, 1], motion.v[-1, 1]] - end(cart, weight, force, tau, steps)).max())
    assert errors[0] < 1e-6  # (dt w)^4 with w about 10 rad/s; a value of another time acts 1e-3 otherwise
    assert errors[1] < errors[0] / 8  # order 4 is 16, less where the terms of the error cancel at one of the two
    # What is recorded is the motion's: the efforts found make it, under all that acts.
    last = cart.inverse_dynamics(
        motion.q[-1],
        motion.v[-1],
        motion.a[-1],
        gravity=gravity,
        wrenches=pushed(motion.t[-2], motion.q[-2, 1:], motion.v[-2, 1:]),
    )
    np.testing.assert_allclose(motion.tau[-1], last, rtol=0, atol=1e-11)  # roundings of forces of 10 N


def test_efforts_are_asked_once_a_step(cart: Robot) -> None:
    times: list[float] = []

    def tau(t: float, q: np.ndarray, v: np.ndarray) -> list[float]:
        times.append(t)
        return [0.0]

    RheonomicRobot(cart, {"cart_slide": shaken}).simulate([0.4], [-1.0], tau, dt=0.5, steps=2)
    assert times == [0.0, 0.5]
    times.clear()
    cart.simulate_rheonomic({"cart_slide": shaken}, [0.4], [-1.0], tau, dt=0.5, steps=2)
    assert times == [0.0, 0.5]


def test_a_function_of_the_state_is_one_law_in_every_simulation() -> None:
    """Held through a step, it makes each integrator first order; `adaptive` asks it at every stage."""
    arm = Robot.from_urdf(URDF / "double_pendulum.urdf")
    k, d, q0, v0 = np.array([8.0, 3.0]), np.array([0.4, 0.1]), [0.3, -0.2], [0.0, 0.5]

    def law(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        return -k * q - d * v

    def at_rest(t: float) -> tuple[float, float, float]:
        return 0.0, 0.0, 0.0

    def rates(t: float, x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[2:], arm.forward_dynamics(x[:2], x[2:], law(t, x[:2], x[2:]))])

    exact = solve_ivp(rates, (0.0, 0.5), [*q0, *v0], method="DOP853", rtol=1e-12, atol=1e-13).y[:2, -1]
    ends = [arm.simulate(q0, v0, law, dt=0.5 / n, steps=n).q[-1] for n in (100, 200)]
    errors = np.abs(np.array(ends) - exact).max(axis=1)
    assert 1.8 < errors[0] / errors[1] < 2.2
    adaptive = arm.simulate(q0, v0, law, dt=0.5, steps=1, integrator="adaptive").q[-1]
    np.testing.assert_allclose(adaptive, exact, rtol=0, atol=1e-7)  # its own tolerance, and the law's stages

    first = arm.joint_names[0]
    free: Any = lambda t, q, v: law(t, np.array([0.0, q[0]]), np.array([0.0, v[0]]))[1:]
    by_class = RheonomicRobot(arm, {first: at_rest}).simulate([-0.2], [0.5], free, dt=0.01, steps=50)
    by_query = arm.simulate_rheonomic({first: at_rest}, [-0.2], [0.5], free, dt=0.01, steps=50)
    for field_by_class, other in zip(by_class, by_query, strict=True):
        np.testing.assert_allclose(field_by_class, other, rtol=0, atol=1e-12)


def test_one_step_is_enough_and_an_endless_one_too_much(cart: Robot) -> None:
    rheonomic = RheonomicRobot(cart, {cart.joint_names[0]: shaken})
    assert len(rheonomic.simulate([0.1], [0.0], dt=1e-3, steps=1).t) == 2
    for dt in (np.inf, np.nan, 0.0):
        with pytest.raises(InvalidArgumentError, match="dt must be a positive time in s"):
            rheonomic.simulate([0.1], [0.0], dt=dt, steps=1)


def test_free_joints_with_more_positions_than_velocities() -> None:
    """An arm on a base that floats: its quaternion stays one, and the motion is the undriven robot's under the efforts
    that were found.
    """
    floating = Robot.from_urdf(URDF / "scara.urdf", root="floating")
    rheonomic = RheonomicRobot(floating, {floating.joint_names[3]: shaken})
    names = tuple(name for k, name in enumerate(floating.joint_names) if k != 3)
    assert rheonomic.free_joints == names
    q0 = np.concatenate([floating.neutral()[:7], [0.4, -0.3, 0.2]])
    v0 = np.array([0.1, 0.2, 0.3, 0.5, -0.6, 0.7, -1.0, 0.5, 0.3])
    ends = []
    for steps in (10, 20, 80):
        motion = rheonomic.simulate(q0, v0, 0.5, dt=0.1 / steps, steps=steps)
        ends.append(motion.q[-1])
        np.testing.assert_allclose(np.linalg.norm(motion.q[:, 3:7], axis=1), 1.0, rtol=0, atol=1e-15)
        free = [k for k in range(floating.nv) if k != 8]
        np.testing.assert_array_equal(motion.tau[:, free], 0.5)
        undriven = floating.forward_dynamics(motion.q, motion.v, motion.tau)
        # Rounding times the condition of the mass matrix: a quill's inertia against the whole robot's.
        np.testing.assert_allclose(undriven, motion.a, rtol=1e-8, atol=1e-8)
    coarse, fine = (np.abs(end - ends[2]).max() for end in ends[:2])
    assert coarse > 8 * fine > 0  # order 4 is 16
    with pytest.raises(InvalidArgumentError) as refusal:
        rheonomic.simulate(q0[1:], v0, dt=0.1, steps=1)
    expected = f"q0 has shape (9,), expected (..., 10): those of the free joints ({', '.join(names)})"
    assert str(refusal.value) == expected


@pytest.mark.parametrize("states_batched", [0, 1])
def test_what_is_spread_over_a_batch(cart: Robot, states_batched: int) -> None:
    """States, or efforts alone, with a leading axis: each member as if alone; the driven part is the same in all."""
    moving = RheonomicRobot(cart, {"cart_slide": shaken})
    q, v, tau = np.array([[0.4], [1.0], [-0.3]]), np.array([[-1.0], [0.0], [2.0]]), np.array([[0.1], [0.5], [-0.7]])
    starts = (q, v) if states_batched else (q[0], v[0])
    batch = moving.simulate(*starts, tau, dt=0.01, steps=7, t0=0.3)
    assert batch.q.shape == batch.v.shape == batch.a.shape == batch.tau.shape == (3, 8, 2)
    np.testing.assert_allclose(batch.t, 0.3 + 0.01 * np.arange(8), rtol=1e-15)
    for k in range(3):
        single = moving.simulate(
            *((x[k] for x in starts) if states_batched else starts), tau[k], dt=0.01, steps=7, t0=0.3
        )
        for name in ("q", "v", "a", "tau"):
            np.testing.assert_allclose(getattr(batch, name)[k], getattr(single, name), rtol=0, atol=1e-12)


def test_a_motion_that_leaves_the_numbers_is_told_with_step_and_time(cart: Robot) -> None:
    moving = RheonomicRobot(cart, {"cart_slide": shaken})

    def push(t: float, q: np.ndarray, v: np.ndarray) -> list[float]:
        return [1.7e308 if t > 0.34 else 0.0]

    with pytest.raises(FailedPreconditionError) as refusal:
        moving.simulate([0.4], [0.0], push, dt=0.01, steps=10, t0=0.3)
    # The later stages of the step from 0.34 s are not finite: seen where the next one begins.
    assert unnamed(refusal.value, "step 5", "t = 0.35 s", "accelerations", "dt = 0.01 s") == []


def test_arguments_of_another_shape_are_refused_by_name(cart: Robot) -> None:
    state = {"q": np.zeros(2), "v": np.zeros(2), "tau": np.zeros(2)}
    for name in state:
        for wrong, description in ((0.0, "float 0.0"), (np.zeros(1), "shape (1,)"), (np.zeros((2, 3)), "shape (2, 3)")):
            with pytest.raises(InvalidArgumentError) as refusal:
                forward_dynamics(cart, **{**state, name: wrong}, prescribed={"cart_slide": 0.0})
            assert str(refusal.value).startswith(f"{name} must be (..., 2) numbers, found {description}")
            assert refusal.value.path == name
    with pytest.raises(InvalidArgumentError, match=r"q \(2,\) and prescribed.cart_slide \(3,\) do not broadcast"):
        forward_dynamics(cart, np.zeros((2, 2)), np.zeros(2), np.zeros(2), {"cart_slide": np.zeros(3)})
    moving = RheonomicRobot(cart, {"cart_slide": shaken})
    for name, arguments in (
        ("q", (0.0, [0.0], [0.0])),
        ("v", ([0.0], 0.0, [0.0])),
        ("tau", ([0.0], [0.0], [0.0, 0.0])),
    ):
        with pytest.raises(InvalidArgumentError) as refusal:
            moving.forward_dynamics(0.1, *arguments)
        shape = np.shape(dict(zip(state, arguments, strict=True))[name])
        expected = f"{name} has shape {shape}, expected (..., 1): one entry per free joint (hinge)"
        assert (str(refusal.value), refusal.value.path) == (expected, name)
