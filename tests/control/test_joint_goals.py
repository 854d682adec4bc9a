"""Goals as motions: what they pass, what they keep to, why they are refused; and what becomes of them on the way."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from dyn_service.control.dry_runs import dry_run
from dyn_service.control.joint_goals import GoalError, MotionLimits, Tolerances, motion_limits, plan
from dyn_service.control.law import RobotState
from dyn_service.control.laws.computed_torque import ComputedTorque, gains
from dyn_service.control.laws.trajectory_following import KEPT, TrajectoryFollowing
from dyn_service.control.trajectory import Piecewise, Reference, from_wire
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.nodes.controllers.trajectory_following import goals_of
from dyn_service.messages.builtin_interfaces import Duration
from dyn_service.messages.dyn_service_msgs import GoalStatus
from dyn_service.messages.trajectory_msgs import JointTrajectory, JointTrajectoryPoint
from tests.conftest import URDF
from tests.phrases import naming, unnamed

FREE = np.full(2, np.inf)
LIMITS = MotionLimits(-3.0 * np.ones(2), 3.0 * np.ones(2), np.array([1.0, 2.0]), 4.0 * np.ones(2), 40.0 * np.ones(2))
START = Reference(np.array([0.1, -0.2]), np.array([0.2, -0.1]), np.array([0.5, -0.4]))
REST = Reference(np.zeros(2), np.zeros(2), np.zeros(2))
POSITIONS = np.array([[0.4, 0.1], [0.2, 0.5], [-0.1, 0.3]])
TIMES = (0.6, 1.1, 1.9)
VELOCITIES = np.array([[0.1, 0.4], [-0.3, 0.2], [0.0, 0.0]])
ACCELERATIONS = np.array([[-0.2, 0.3], [0.1, -0.5], [0.6, -0.7]])


def coarse_run(law, robot: Robot, seconds: float, **options):
    """A dry run of as many steps of the plant as of the law."""
    return dry_run(law, robot, seconds, plant_rate_hz=500.0, **options)


def goal(names, positions, times=None, velocities=None, accelerations=None) -> JointTrajectory:
    points = []
    for k, position in enumerate(positions):
        points.append(
            JointTrajectoryPoint(
                list(position),
                [] if velocities is None else list(velocities[k]),
                [] if accelerations is None else list(accelerations[k]),
                time_from_start=Duration() if times is None else Duration.from_seconds(times[k]),
            )
        )
    return JointTrajectory(joint_names=list(names), points=points)


def timed(arm: Robot, *, velocities=None, accelerations=None) -> Piecewise:
    timed_goal = goal(arm.joint_names, POSITIONS, TIMES, velocities, accelerations)
    return plan(timed_goal, START, arm.configuration, LIMITS)


def jumps(motion: Piecewise) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest steps of q, v, a at the inner knots."""
    left, right = (motion.sample(motion.knots[1:-1] + offset) for offset in (-1e-10, 1e-10))
    return tuple(np.abs(b - a).max() for b, a in zip(left, right, strict=True))


def is_one_motion(motion: Piecewise) -> None:
    """Velocity and acceleration are the derivatives of position and velocity, by differences of 1e-4 s."""
    t = np.linspace(0.01, motion.duration_s - 0.01, 57)
    t = t[np.abs(t[:, None] - motion.knots).min(axis=1) > 2e-4]
    ahead, behind_by_h, middle = motion.sample(t + 1e-4), motion.sample(t - 1e-4), motion.sample(t)
    np.testing.assert_allclose((ahead.q - behind_by_h.q) / 2e-4, middle.v, atol=1e-6)
    np.testing.assert_allclose((ahead.v - behind_by_h.v) / 2e-4, middle.a, atol=1e-5)


@pytest.mark.parametrize(
    ("velocities", "accelerations"), [(None, None), (VELOCITIES, None), (VELOCITIES, ACCELERATIONS)]
)
def test_a_timed_goal_passes_its_points_when_it_should(arm: Robot, velocities, accelerations) -> None:
    motion = timed(arm, velocities=velocities, accelerations=accelerations)
    is_one_motion(motion)
    start, points = motion.sample(0.0), motion.sample(np.array(TIMES) - 1e-12)
    np.testing.assert_allclose(start.q, START.q, atol=1e-12)
    np.testing.assert_allclose(start.v, START.v, atol=1e-12)
    np.testing.assert_allclose(points.q, POSITIONS, atol=1e-10)
    np.testing.assert_allclose(points.v[-1], 0.0, atol=1e-10)
    if velocities is not None:
        np.testing.assert_allclose(points.v, VELOCITIES, atol=1e-10)
    if accelerations is not None:
        np.testing.assert_allclose(start.a, START.a, atol=1e-12)
        np.testing.assert_allclose(points.a, ACCELERATIONS, atol=1e-9)
    step_q, step_v, step_a = jumps(motion)
    assert max(step_q, step_v) < 1e-8
    assert (step_a < 1e-7) == (velocities is None or accelerations is not None)  # cubics of given speeds do jump
    end = motion.sample(5.0)
    assert np.array_equal(np.stack(end[1:]), np.zeros((2, 2)))
    np.testing.assert_allclose(end.q, POSITIONS[-1], atol=1e-12)


def test_order_of_joints_is_by_name_and_the_wire_keeps_all(arm: Robot) -> None:
    reversed_goal = goal(arm.joint_names[::-1], POSITIONS[:, ::-1], TIMES, VELOCITIES[:, ::-1])
    motion, plain = plan(reversed_goal, START, arm.configuration, LIMITS), timed(arm, velocities=VELOCITIES)
    t = np.linspace(0.0, 2.0, 9)
    read = from_wire(motion.to_wire()).sample(t)
    assert all(np.array_equal(a, b) for a, b in zip(read, plain.sample(t), strict=True))


def test_without_times_it_takes_the_least_time_within_its_limits(arm: Robot) -> None:
    """Far enough to come to each limit: T = d/v + v/a + a/j, the jerk-limited move from rest to rest."""
    motion = plan(goal(arm.joint_names, [[2.0, 0.5]]), REST, arm.configuration, LIMITS)
    assert motion.duration_s == pytest.approx(2.0 / 1.0 + 1.0 / 4.0 + 4.0 / 40.0, rel=1e-9)
    is_one_motion(motion)
    jerks = np.abs(6.0 * motion.coefficients[:, 3])
    assert jerks.max() == pytest.approx(40.0, rel=1e-9)
    times = np.linspace(0.0, motion.duration_s, 500)
    samples = motion.sample(times)
    assert (np.abs(samples.v).max(axis=0) <= LIMITS.velocity * (1.0 + 1e-9)).all()
    assert (np.abs(samples.a).max(axis=0) <= LIMITS.acceleration * (1.0 + 1e-9)).all()
    assert np.abs(samples.v[:, 0]).max() == pytest.approx(1.0, rel=1e-9)
    np.testing.assert_allclose(motion.sample(9.0).q, [2.0, 0.5], atol=1e-9)


def test_a_way_on_which_the_acceleration_is_just_reached_is_found(arm: Robot) -> None:
    """d = 2 a^3 / j^2, less a rounding: at the border of two kinds of profile ruckig finds none."""
    limits = MotionLimits(LIMITS.lower, LIMITS.upper, 10.0 * np.ones(2), 5.0 * np.ones(2), 50.0 * np.ones(2))
    begin = Reference(np.full(2, 0.4000000000000001), np.zeros(2), np.zeros(2))
    motion = plan(goal(arm.joint_names, [[0.3, 0.3]]), begin, arm.configuration, limits)
    assert motion.duration_s == pytest.approx(4.0 * 5.0 / 50.0, rel=1e-6)  # four times to full acceleration, or from it
    np.testing.assert_allclose(motion.sample(9.0).q, 0.3, atol=1e-9)


@pytest.mark.parametrize("next_points", [[], [[0.3, 0.2]]])
def test_a_goal_that_is_where_it_stands_is_reached(arm: Robot, next_points: list) -> None:
    motion = plan(goal(arm.joint_names, [[0.0, 0.0], *next_points]), REST, arm.configuration, LIMITS)
    np.testing.assert_allclose(motion.sample(5.0).q, next_points[0] if next_points else [0.0, 0.0], atol=1e-12)
    assert (motion.duration_s > 0.1) is bool(next_points)
    assert np.isfinite(np.stack(motion.sample(np.linspace(0.0, 1.0, 9)))).all()


def test_points_without_times_are_stopped_at_or_passed(arm: Robot) -> None:
    stopping = plan(goal(arm.joint_names, POSITIONS), START, arm.configuration, LIMITS)
    is_one_motion(stopping)
    np.testing.assert_allclose(np.stack(stopping.sample(0.0)), np.stack(START), atol=1e-9)
    nearest = np.abs(stopping.sample(stopping.knots).q[:, None] - POSITIONS).max(axis=2).argmin(axis=0)
    assert np.abs(stopping.sample(stopping.knots[nearest]).v).max() < 1e-9
    step_q, step_v, step_a = jumps(stopping)
    assert max(step_q, step_v) < 1e-8
    assert step_a < 1e-7
    passing = plan(goal(arm.joint_names, POSITIONS, None, VELOCITIES), START, arm.configuration, LIMITS)
    nearest = np.abs(passing.sample(passing.knots).q[:, None] - POSITIONS).max(axis=2).argmin(axis=0)
    np.testing.assert_allclose(passing.sample(passing.knots[nearest] - 1e-12).v, VELOCITIES, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"names": ["hinge"]}, ["{joints}"]),
        ({"positions": []}, ["goal", "points", "none"]),
        ({"positions": [[0.0]]}, ["points[0].positions", "2", "1"]),
        ({"positions": [[], [], []]}, ["points[0].positions", "2", "found 0"]),
        ({"positions": [[0.0, np.nan]]}, ["points[0].positions", "finite"]),
        ({"velocities": [[0.1], [], []]}, ["points[0].velocities", "2", "1"]),
        ({"accelerations": ACCELERATIONS}, ["accelerations", "velocities"]),
        ({"times": (0.5, 0.5, 0.9)}, ["times", "0.5, 0.5, 0.9 s"]),
        ({"times": (-0.1, 0.5, 0.9)}, ["times", "-0.1, 0.5, 0.9 s"]),
        ({"times": (0.0, 0.5, 0.9)},
         ["points[0]", "0", "0.3", "'{first}'", "0.05"]),
        ({"velocities": [*VELOCITIES[:2], [0.1, 0.0]]}, ["0", "velocities", "motion"]),
        ({"positions": [[3.5, 0.0]], "times": (9.0,)},
         ["6.75", "'{first}'", "3.053", "-3", "3"]),
        ({"positions": [[2.5, 0.0]], "times": (2.0,)},
         ["0.375", "'{first}'", "1.168", "/s", "-1", "1"]),
        # no number can say such a motion, and what is no number is beyond no limit
        ({"positions": [[1e308, 0.0]], "times": (1.0,)},
         ["points", "motion"]),
        ({"positions": [[0.0, 0.0]] * 2001, "times": range(1, 2002)},
         ["2000", "2001"]),
        ({"positions": [[0.0, 0.0]] * 101, "times": None},
         ["100", "101"]),
        ({"times": None, "velocities": [[5.0, 0.0], *VELOCITIES[1:]]},
         ["points[0]", "acceleration"]),
    ],
)  # fmt: skip
def test_goals_that_are_refused(arm: Robot, changes: dict, values: list[str]) -> None:
    fields = {"names": arm.joint_names, "positions": POSITIONS, "times": TIMES, **changes}
    start = fields.pop("start", START)
    with pytest.raises(GoalError) as excinfo:
        plan(goal(**fields), start, arm.configuration, LIMITS, start_tolerance=0.05)
    texts = {"joints": ", ".join(arm.joint_names), "first": arm.joint_names[0]}
    assert unnamed(excinfo.value, *(value.format(**texts) for value in values)) == []


def test_a_spline_through_many_points_solves_its_equations(arm: Robot) -> None:
    random = np.random.default_rng(5)
    for count in (2, 3, 4, 5, 8, 9, 301):
        q, first = random.normal(size=(count, 2)), np.array([0.3, -0.2])
        times = np.round(np.cumsum(random.uniform(1e-3, 10.0, count - 1)), 9)  # whole nanoseconds
        limits = MotionLimits(-FREE, FREE, FREE, FREE, FREE)
        motion = plan(goal(arm.joint_names, q[1:], times), Reference(q[0], first, first), arm.configuration, limits)
        h = np.diff(motion.knots)[:, None]
        matrix, right = np.eye(count), np.zeros_like(q)
        right[0] = first
        slope = np.diff(q, axis=0) / h
        for k in range(1, count - 1):
            h_left, h_right = h[k - 1, 0], h[k, 0]
            matrix[k, k - 1 : k + 2] = h_right, 2.0 * (h_left + h_right), h_left
            right[k] = 3.0 * (h_right * slope[k - 1] + h_left * slope[k])
        expected = np.linalg.solve(matrix, right)
        # the diagonal is twice the sum of the others: rounding does not grow from row to row
        speeds = motion.sample(motion.knots).v
        np.testing.assert_allclose(speeds, expected, rtol=0.0, atol=1e-13 * np.abs(slope).max())


def test_limits_are_for_joints_with_one_way_to_move(arm: Robot) -> None:
    flying = Robot.from_urdf(URDF / "pendulum.urdf", root="floating")
    with pytest.raises(InvalidArgumentError, match=r"goals need joints .*: 'root_joint'"):
        motion_limits(flying.configuration, flying.limits, 0.5, FREE, FREE)
    with pytest.raises(InvalidArgumentError, match=naming("velocity_share", "1.5")):
        motion_limits(arm.configuration, arm.limits, 1.5, FREE, FREE)
    limits = motion_limits(arm.configuration, arm.limits, 0.5, FREE, FREE)
    assert np.array_equal(limits.velocity, 0.5 * arm.limits.speeds)


def following(arm: Robot, *goals, path=0.05, end=0.01, late_s=0.2) -> TrajectoryFollowing:
    inner_law = ComputedTorque(arm, *gains(40.0, 1.0, 2))
    tolerances = Tolerances(np.full(2, path), np.full(2, end), late_s)
    return TrajectoryFollowing(inner_law, arm.configuration, LIMITS, tolerances, goals)


def test_the_error_that_is_shown_is_from_the_robot_to_the_reference(arm: Robot) -> None:
    """Whose sign says where the robot lags."""
    law = following(arm)
    at_rest = np.zeros(2)
    law.reset(RobotState(0.0, at_rest, at_rest, at_rest))
    law.update(RobotState(0.01, np.array([0.02, -0.01]), at_rest, at_rest), Reference(at_rest, at_rest, at_rest), 0.01)
    np.testing.assert_allclose(law.signals()["error"], [-0.02, 0.01], rtol=1e-12)


def test_goals_are_followed_one_after_the_other(arm: Robot) -> None:
    first = goal(arm.joint_names, [[0.3, -0.2]])
    second = goal(arm.joint_names, [[0.1, 0.2]], (0.5,))
    law = following(arm, first, second)
    run = dry_run(law, arm, 2.2)
    assert [queued.state for queued in law.goals] == ["succeeded", "succeeded"]
    assert law.notes() == ["goal 1 succeeded", "goal 2 succeeded"]
    assert law.notes() == []
    np.testing.assert_allclose(run.q[-1], [0.1, 0.2], atol=1e-4)
    assert np.abs(run.error).max() < 2e-3  # jerk that jumps, through 2 ms
    goals, progress = run.signals["goal"], run.signals["progress"]
    assert sorted(set(goals)) == [0.0, 1.0, 2.0]
    assert (np.diff(progress[goals == 1.0]) >= 0.0).all()
    assert progress[goals == 1.0].max() > 0.99
    # the reference is the goal's own motion, from the state at which it began
    first_motion = plan(first, REST, arm.configuration, LIMITS)
    begin_s = run.t[run.updated[int(np.argmax(goals == 1.0))]]
    np.testing.assert_allclose(run.reference[100], first_motion.sample(run.t[100] - begin_s).q, atol=1e-9)


class Interrupted(TrajectoryFollowing):
    """One that gets another goal while it moves."""

    def update(self, state, reference, dt):
        if self.next_goal is not None and state.measured.t >= 0.3:
            next_goal, self.next_goal = self.next_goal, None
            with contextlib.suppress(GoalError):
                self.offer(next_goal)
        return super().update(state, reference, dt)


def test_another_goal_takes_over_without_a_jump(arm: Robot) -> None:
    law = following(arm, goal(arm.joint_names, [[1.5, -0.5]]), goal(arm.joint_names, [[1.0, 1.0]]))
    law.__class__ = Interrupted
    law.next_goal = goal(arm.joint_names, [[-0.2, 0.3]])
    run = dry_run(law, arm, 2.5)
    assert [queued.state for queued in law.goals] == ["preempted", "preempted", "succeeded"]
    assert law.notes() == [*(f"goal {k} preempted: another goal arrived" for k in (1, 2)), "goal 3 succeeded"]
    np.testing.assert_allclose(run.q[-1], [-0.2, 0.3], atol=1e-4)
    # in 1 ms positions move by velocity, velocities by acceleration, no more
    steps = np.diff(run.reference, axis=0)
    assert np.abs(steps).max() < 1.01e-3 * 2.0
    assert np.abs(np.diff(steps, axis=0)).max() < 1.01e-6 * 4.0 + 1e-7


def test_a_goal_that_is_none_leaves_the_one_that_is_followed(arm: Robot) -> None:
    law = following(arm, goal(arm.joint_names, [[0.3, 0.0]]))
    dry_run(law, arm, 0.1)
    with pytest.raises(GoalError, match="a goal's joints must be the robot's"):
        law.offer(goal(["x", "y"], [[0.0, 0.0]]))
    assert [queued.state for queued in law.goals] == ["following"]
    unreachable = following(arm, goal(arm.joint_names, [[9.0, 0.0]], (9.0,)))
    run = dry_run(unreachable, arm, 0.2)
    assert unreachable.goals[0].state == "aborted"  # of the file, taken before it was known from where it begins
    assert unreachable.goals[0].reason.endswith("its limits are -3 and 3")
    assert np.abs(run.q).max() < 1e-9


def test_a_goal_beyond_the_limits_puts_nothing_aside(arm: Robot) -> None:
    """What is followed is followed on, watched, to its end; what waits comes after it."""
    first, second = ([[0.1, -0.05]], (0.5,)), ([[0.05, 0.05]], (0.3,))
    law = following(arm, goal(arm.joint_names, *first), goal(arm.joint_names, *second))
    law.__class__ = Interrupted
    law.next_goal = goal(arm.joint_names, [[9.0, 0.0]], (9.0,))
    run = coarse_run(law, arm, 0.95)
    assert [queued.state for queued in law.goals] == ["succeeded", "succeeded"]
    (rejection,) = [queued for queued in law.events() if queued.state == "rejected"]
    assert (rejection.number, rejection.error_code) == (0, GoalStatus.INVALID_GOAL)
    assert rejection.error_string.endswith("its limits are -3 and 3")
    np.testing.assert_allclose(run.q[-1], [0.05, 0.05], atol=1e-3)


def test_goals_may_come_all_day(arm: Robot) -> None:
    law = following(arm)
    state = RobotState(0.0, np.zeros(2), np.zeros(2), np.zeros(2))
    law.reset(state)
    law.update(state, REST, 1e-3)
    for k in range(3 * KEPT):
        law.offer(goal(arm.joint_names, [[0.1, 0.0]], (9.0,)))
        if k % 2:
            law.update(state, REST, 1e-3)
    assert len(law.goals) <= KEPT + 2
    assert (law.goals[-1].number, law.goals[-1].state) == (3 * KEPT, "following")
    assert law.signals()["goal"] == 1.5 * KEPT


def test_a_goal_that_needs_a_library_that_is_not_there_ends_nothing(
    arm: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = following(arm, goal(arm.joint_names, [[0.3, 0.0]], (2.0,)))
    dry_run(law, arm, 0.1)
    monkeypatch.setitem(sys.modules, "ruckig", None)
    with pytest.raises(FailedPreconditionError, match=naming("'ruckig'")):
        law.offer(goal(arm.joint_names, [[0.1, 0.0]]))
    assert [queued.state for queued in law.goals] == ["following"]


def test_an_error_that_is_no_number_reaches_no_goal(arm: Robot) -> None:
    law = following(arm, goal(arm.joint_names, [[0.1, 0.0]], (0.5,)))
    zero = np.zeros(2)
    law.reset(RobotState(0.0, zero, zero, zero))
    for t in (0.0, 0.1, 0.2):
        law.update(RobotState(t, zero, zero, zero), REST, 0.1)
    with np.errstate(invalid="ignore"):
        law.update(RobotState(0.9, np.array([np.nan, 0.0]), zero, zero), REST, 0.1)
    assert [queued.state for queued in law.goals] == ["aborted"]


def test_a_push_on_the_way_aborts_and_it_stands_there(arm: Robot) -> None:
    law = following(arm, goal(arm.joint_names, [[1.0, 0.0]]), path=0.02)
    run = coarse_run(law, arm, 2.2, push=lambda t, q, v: [120.0 * (0.4 < t < 0.6), 0.0])
    aborted = law.goals[0]
    assert aborted.state == "aborted"
    assert re.fullmatch(r"joint 'joint_[12]' is 0.02\d+ off on the way, the tolerance is 0.02", aborted.reason)
    assert np.abs(run.v[-1]).max() < 1e-3
    assert run.q[-1, 0] < 0.9


def test_a_goal_that_is_not_reached_in_time_is_said(arm: Robot) -> None:
    law = following(arm, goal(arm.joint_names, [[0.3, 0.0]]), path=np.inf, end=0.001)
    coarse_run(law, arm, 1.6, push=lambda t, q, v: [10.0, 0.0])
    late = law.goals[0]
    assert late.state == "aborted"
    match = re.search(r"([0-9.]+) s after its end, the tolerance is 0.001", late.reason)
    assert match is not None, late.reason
    assert 0.2 < float(match[1]) < 0.2 + 2 * 0.002  # the first update after the time it has


def test_a_goal_has_its_time_to_the_last_of_it(arm: Robot) -> None:
    """Begun at 0.25 s, over at 0.75 s; within another 0.25 s it may still come, that moment too."""
    law = following(arm, goal(arm.joint_names, [[0.3, 0.0]], (0.5,)), path=np.inf, end=0.01, late_s=0.25)
    states = []
    for k in range(6):
        state = RobotState(0.25 * k, np.zeros(2), np.zeros(2), np.zeros(2))
        if k == 0:
            law.reset(state)
        law.update(state, REST, 0.25)
        states.append(law.goals[0].state)
    assert states == ["waiting", "following", "following", "following", "following", "aborted"]
    assert unnamed(law.goals[0].reason, f"'{arm.joint_names[0]}'", "0.3", "0.5 s", "0.01") == []


def test_the_joint_that_is_beyond_its_tolerance_is_named_though_another_that_may_is_farther_off(arm: Robot) -> None:
    law = following(arm, goal(arm.joint_names, [[0.3, 0.0]]), path=np.inf, end=0.01, late_s=0.0)
    law.tolerances.goal[:] = [np.inf, 0.001]
    coarse_run(law, arm, 1.6, push=lambda t, q, v: [60.0, 10.0])
    assert np.abs(law.error[0]) > np.abs(law.error[1])
    assert re.fullmatch(
        rf"joint '{arm.joint_names[1]}' is [0-9.]+ off [0-9.]+ s after its end, the tolerance is 0.001",
        law.goals[0].reason,
    )


def test_one_that_was_never_reset_stays_where_the_robot_is(arm: Robot) -> None:
    state = RobotState(0.5, np.array([0.3, -0.2]), np.zeros(2), np.zeros(2))
    law = following(arm)
    law.update(state, Reference(state.q, state.v, state.v), 0.002)
    assert not law.error.any()
    assert law.motion() is None


def test_after_an_outage_goals_begin_anew(arm: Robot) -> None:
    law = following(arm, goal(arm.joint_names, [[0.6, 0.0]]))
    coarse_run(law, arm, 0.2)
    (interrupted,) = law.goals
    run = coarse_run(law, arm, 2.0, q=[0.1, 0.0])
    assert (interrupted.state, interrupted.reason) == ("aborted", "the robot was not under command")
    assert [queued.state for queued in law.goals] == ["succeeded"]
    other = law.offer(goal(arm.joint_names, [[0.2, 0.1]]))
    coarse_run(law, arm, 0.1)
    assert (other.state, other.reason) == ("aborted", "the robot was not under command")
    np.testing.assert_allclose(run.q[-1], [0.6, 0.0], atol=1e-4)


def test_goals_of_a_file(arm: Robot, tmp_path: Path) -> None:
    first, second = arm.joint_names
    path = tmp_path / "goals.yaml"
    text = (
        f"- joint_names: [{first}, {second}]\n  points:\n    - {{positions: [0.1, 0], time_from_start: {{sec: 2}}}}\n"
    )
    path.write_text(text, "utf-8")
    (file_goal,) = goals_of(path, arm.configuration)
    assert file_goal.points[0].time_from_start.seconds() == 2.0
    path.write_text(text + "- joint_names: [x]\n  points: []\n", "utf-8")
    with pytest.raises(InvalidArgumentError, match=naming("goals.yaml:4", "joints")):
        goals_of(path, arm.configuration)


def test_what_becomes_of_goals_goes_out_in_ros_words(arm: Robot) -> None:
    law = following(arm, goal(arm.joint_names, [[0.3, -0.2]]))
    coarse_run(law, arm, 1.5)
    events = law.events()
    # the first goal is reported at each state at which the robot is armed: once before, once at the first of the run
    assert [(event.number, event.state) for event in events][-3:] == [
        (1, "accepted"),
        (1, "executing"),
        (1, "succeeded"),
    ]
    assert {event.error_code for event in events} == {GoalStatus.SUCCESSFUL}
    took_s = events[-1].header.stamp.seconds() - events[-2].header.stamp.seconds()
    assert took_s == pytest.approx(law._motion[0].duration_s, abs=0.003)  # a period and its rounding
    assert law.events() == []
    with pytest.raises(GoalError):
        law.offer(goal(("q1", "elsewhere"), [[0.0, 0.0]]))
    with pytest.raises(GoalError):
        law.offer(goal(arm.joint_names, []))
    with pytest.raises(GoalError, match="its limits are -3 and 3"):
        law.offer(goal(arm.joint_names, [[9.0, 0.0]]))
    dry_run_on(law, arm)
    assert [(event.number, event.state, event.error_code) for event in law.events()] == [
        (0, "rejected", GoalStatus.INVALID_JOINTS),
        (0, "rejected", GoalStatus.INVALID_GOAL),
        (0, "rejected", GoalStatus.INVALID_GOAL),
    ]
    law._has_updated = False  # as after the plant was taken over: from where it begins is not known yet
    law.offer(goal(arm.joint_names, [[9.0, 0.0]]))
    for _ in range(2):
        dry_run_on(law, arm)
    assert [(event.number, event.state, event.error_code) for event in law.events()] == [
        (2, "accepted", GoalStatus.SUCCESSFUL),
        (2, "aborted", GoalStatus.INVALID_GOAL),
    ]


def dry_run_on(law: TrajectoryFollowing, arm: Robot) -> None:
    """One more update, where it stands."""
    motion, begun_s = law._motion
    reference = motion.sample(10.0)
    law.update(RobotState(begun_s + 10.0, reference.q, reference.v, np.zeros(2)), reference, 0.002)


class Canceled(TrajectoryFollowing):
    """One that is asked to end its goals while it moves."""

    canceled_numbers: list[int] | None = None

    def update(self, state, reference, dt):
        if self.canceled_numbers is None and state.measured.t >= 0.3:
            self.canceled_numbers = self.cancel()
        return super().update(state, reference, dt)


def test_canceled_goals_end_and_the_robot_comes_to_rest_under_command(arm: Robot) -> None:
    """All of them, with their numbers; the reference goes on from where it is, with its velocity."""
    law = following(arm, goal(arm.joint_names, [[1.5, -0.5]]), goal(arm.joint_names, [[1.0, 1.0]]))
    law.__class__ = Canceled
    run = dry_run(law, arm, 2.0)
    assert law.canceled_numbers == [1, 2]
    assert [queued.state for queued in law.goals] == ["canceled", "canceled"]
    assert law.notes()[-2:] == ["goal 1 canceled: requested", "goal 2 canceled: requested"]
    moving = run.v[np.searchsorted(run.t, 0.3)]
    assert np.abs(moving).max() > 0.1
    assert np.abs(run.v[-1]).max() < 1e-3
    assert np.abs(np.diff(run.reference, axis=0)).max() < 3e-3  # a step of 1 ms, of joints at up to 2 rad/s: no jump
    assert np.abs(run.error).max() < 5e-3
    assert law.cancel() == []


def pushed(t: float, q: np.ndarray, v: np.ndarray) -> list[float]:
    return [40.0 * (0.3 < t < 0.4), 0.0]


@pytest.mark.parametrize(("push", "outcome"), [(None, "succeeded"), (pushed, "aborted")])
def test_the_reason_of_an_abort_has_its_number(arm: Robot, push, outcome: str) -> None:
    law = following(arm, goal(arm.joint_names, [[0.5, -0.4]]))
    coarse_run(law, arm, 1.5, push=push)
    last = law.events()[-1]
    assert last.state == outcome
    assert last.error_code == (GoalStatus.PATH_TOLERANCE_VIOLATED if push else GoalStatus.SUCCESSFUL)
    assert ("off on the way, the tolerance is 0.05" in last.error_string) is (push is not None)
