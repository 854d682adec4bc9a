"""Goals as planners send them: hundreds of timed points, the first of them where the robot stands, of some joints."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.interpolate import BPoly, CubicHermiteSpline, CubicSpline

from dyn_service.control.dry_runs import ClosedLoop
from dyn_service.control.joint_goals import (
    GoalError,
    GoalJointsError,
    GoalTolerances,
    JointTolerance,
    MotionLimits,
    plan,
)
from dyn_service.engine.robot import Robot
from dyn_service.graph.nodes.controllers.controller_kind import commander
from dyn_service.graph.nodes.controllers.trajectory_following import NODE, TrajectoryFollowingParameters
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from tests.conftest import URDF
from tests.control.test_joint_goals import ACCELERATIONS, LIMITS, POSITIONS, REST, START, TIMES, VELOCITIES, goal
from tests.phrases import naming, unnamed

FREE = MotionLimits(*(sign * np.full(2, np.inf) for sign in (-1, 1, 1, 1, 1)))


@pytest.mark.parametrize("kind", ["positions", "velocities", "accelerations"])
def test_five_hundred_points_are_the_splines_of_scipy(arm: Robot, kind: str) -> None:
    """Positions, velocities and accelerations at 5000 times, from a start that moves."""
    random = np.random.default_rng(7)
    steps = np.round(random.uniform(0.01, 0.05, 500), 9)  # whole nanoseconds, as messages have them
    times = np.cumsum(steps)
    q, v, a = (random.normal(size=(500, 2)) for _ in range(3))
    v[-1] = 0.0
    with_v, with_a = kind != "positions", kind == "accelerations"
    timed_goal = goal(arm.joint_names, q, times, v if with_v else None, a if with_a else None)
    motion = plan(timed_goal, START, arm.configuration, FREE)
    knots, positions = np.append(0.0, times), np.vstack([START.q, q])
    rates, bends = np.vstack([START.v, v]), np.vstack([START.a, a])
    if kind == "positions":
        spline = CubicSpline(knots, positions, bc_type=((1, START.v), (1, np.zeros(2))))
    elif kind == "velocities":
        spline = CubicHermiteSpline(knots, positions, rates)
    else:
        spline = BPoly.from_derivatives(knots, np.stack([positions, rates, bends], axis=1))
    t = np.linspace(0.0, times[-1] - 1e-9, 5000)
    for order, samples in enumerate(motion.sample(t)):
        expected = spline(t) if order == 0 else spline.derivative(order)(t)
        # differences of positions are divided by steps of 0.01 s, once per order: what is rounded grows as its values
        np.testing.assert_allclose(samples, expected, rtol=0.0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("velocities", "accelerations"), [(None, None), (VELOCITIES, None), (VELOCITIES, ACCELERATIONS)]
)
def test_a_first_point_of_time_0_is_where_the_goal_begins(arm: Robot, velocities, accelerations) -> None:
    """Near the reference it changes nothing: the motion begins at the reference itself, as without it."""
    first_point = START.q + np.array([0.004, -0.004])
    goal_with_point = goal(
        arm.joint_names,
        [first_point, *POSITIONS],
        (0.0, *TIMES),
        None if velocities is None else [[0.0, 0.0], *velocities],
        None if accelerations is None else [[0.0, 0.0], *accelerations],
    )
    plain_goal = goal(arm.joint_names, POSITIONS, TIMES, velocities, accelerations)
    motion = plan(goal_with_point, START, arm.configuration, LIMITS, start_tolerance=np.array([0.005, 0.005]))
    expected = plan(plain_goal, START, arm.configuration, LIMITS)
    assert np.array_equal(motion.knots, expected.knots)
    assert np.array_equal(motion.coefficients, expected.coefficients)
    with pytest.raises(GoalError) as excinfo:
        plan(goal_with_point, START, arm.configuration, LIMITS, start_tolerance=np.array([0.005, 0.003]))
    assert unnamed(excinfo.value, "points[0]", "time 0", "0.004", f"'{arm.joint_names[1]}'", "0.003") == []


@pytest.mark.parametrize("times", [TIMES, None])
def test_joints_that_a_goal_leaves_out_stay(arm: Robot, times) -> None:
    first, second = arm.joint_names
    partial_goal = goal([second], POSITIONS[:, 1:], times, VELOCITIES[:, 1:])
    motion = plan(partial_goal, REST, arm.configuration, LIMITS, partial=True)
    t = np.linspace(0.0, motion.duration_s, 200)
    samples = motion.sample(t)
    assert not samples.q[:, 0].any()
    assert not samples.v[:, 0].any()
    assert samples.q[-1, 1] == pytest.approx(POSITIONS[-1, 1], abs=1e-9)
    if times is not None:
        whole = plan(goal([second, first], POSITIONS[:, ::-1] * [1, 0], times, VELOCITIES[:, ::-1] * [1, 0]), REST,
                     arm.configuration, LIMITS)  # fmt: skip
        assert np.array_equal(samples.q, whole.sample(t).q)
    with pytest.raises(GoalJointsError, match=naming(f"{first}, {second}", f"found {second}")):
        plan(partial_goal, REST, arm.configuration, LIMITS)
    for names in ((), ("elsewhere",), (second, second)):
        with pytest.raises(GoalJointsError, match="must be some of the robot's"):
            plan(goal(names, np.zeros((1, len(names)))), REST, arm.configuration, LIMITS, partial=True)


def test_times_that_do_not_grow_are_shown_where_they_do_not(arm: Robot) -> None:
    times = [0.01 * (k + 1) for k in range(300)]
    times[200] = times[199]
    with pytest.raises(GoalError, match=r"all be 0, found 2, 2, 2\.02 s$"):
        plan(goal(arm.joint_names, np.zeros((300, 2)), times), REST, arm.configuration, LIMITS)


def test_one_look_at_a_motion_of_many_points_is_as_small_as_at_one(arm: Robot) -> None:
    """What an update at 1 kHz costs does not grow with the goal: by the memory that it takes, which is no timing."""
    peaks = []
    for count in (1, 2000):
        times = 0.01 * np.arange(1, count + 1)
        motion = plan(goal(arm.joint_names, np.zeros((count, 2)), times), REST, arm.configuration, LIMITS)
        motion.sample(np.array([0.0, 0.001]))
        tracemalloc.start()
        motion.sample(np.array([0.004, 0.005]))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= peaks[0] + 256  # bytes; the motion itself has 192 000


def test_a_planners_goal_for_the_arm_alone_is_followed_at_1_khz() -> None:
    """500 points of seven of the Panda's joints, the first at time 0, 2 mrad from the robot's position."""
    panda = Robot.from_urdf(URDF / "panda.urdf")
    initial = {"panda_joint4": -1.2, "panda_joint6": 1.6}
    names = [name for name in panda.joint_names if "finger" not in name]
    home = np.array([initial.get(name, 0.0) for name in names])
    duration = 0.5
    s = np.linspace(0.0, 1.0, 501)[:, None]
    distance = np.linspace(0.02, 0.05, 7)
    # a minimum-jerk move: 10 s^3 - 15 s^4 + 6 s^5
    q = home + distance * (10 * s**3 - 15 * s**4 + 6 * s**5)
    v = distance / duration * 30 * s**2 * (1 - s) ** 2
    a = distance / duration**2 * 60 * s * (1 - s) * (1 - 2 * s)
    q[0] += 0.002
    timed_goal = goal(names, q, duration * s[:, 0], v, a)
    p = PlantParameters(robot="-", control_rate_hz=1000.0, initial_position=initial)
    plant = make_plant(panda, p, session=1)
    parameters = TrajectoryFollowingParameters(rate_hz=1000.0, allow_partial_joints_goal=True, velocity_share=1.0)
    controller = commander(NODE.spec, parameters, panda, number=1, restarted=False)
    loop = ClosedLoop(plant, controller.answer)
    loop.run(0.05)
    law = controller.law
    queued_goal = law.offer(timed_goal, GoalTolerances(goal=[JointTolerance(names[0], position=1e-4)]))
    loop.run(0.6)
    assert (queued_goal.state, queued_goal.reason) == ("succeeded", "")
    np.testing.assert_allclose(plant.q[[panda.joint_names.index(name) for name in names]], q[-1], atol=1e-5)
    # efforts held through 1 ms, as docs/controllers.md has them for 2: 2.5e-5 rad at 5 rad/s^2
    assert controller.following.tracking.maximum < 2.5e-5
    assert sum(plant.safety.counters.refused.values()) == 0
