"""`JointTrajectory` goals: their checks, their motions and their tolerances.

A goal's motion begins at the reference's present position, velocity and acceleration, so that it never jumps when one
goal preempts another:

| The goal's points have | Motion between them |
|---|---|
| times and positions | cubic spline, twice continuously differentiable, at rest at the end |
| times, positions, velocities | one cubic each |
| times, positions, velocities, accelerations | one quintic each |
| positions, no times (all are 0) | time-optimal within limits of velocity, acceleration and jerk, point to point |

The last kind stops at each point, or passes it at the point's velocity if it has one.

A first point at time 0 before points with times, as planners write it, is where the planner assumes the robot: it is
compared with the reference, and the motion begins at the reference. Joints that a goal leaves out do not move.

A goal may have its own tolerances, with the fields of `control_msgs/JointTolerance`: 0 selects the follower's own
tolerance, a negative number means unlimited.

Splines are SciPy's. Source of time-optimal motions: Berscheid and Kroeger,
Jerk-limited real-time trajectory generation, RSS 2021, by their library ruckig.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.trajectory import Piecewise, Reference, splines
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.builtin_interfaces import Duration
from dyn_service.messages.trajectory_msgs import JointTrajectory
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.support.optional import load

MAX_POINTS = 2000
"""Limit for goals with times, which are planned within one or two control periods."""
MAX_POINTS_UNTIMED = 100
"""Limit for goals without times, which need one search per point."""
_SHARES = np.linspace(0.0, 1.0, 17)
"""Shares of a piece's time at which it is compared with the limits."""
_HAIR = (1.0, 1.0 - 1e-6)
"""Shares of the acceleration limit: at the limit itself ruckig may fail by rounding, and succeeds slightly below it."""
_ROUNDING = 1e-9
"""Relative excess over a limit that is accepted as rounding; also the duration, s, below which a motion is empty."""


class GoalError(InvalidArgumentError):
    """Raised for an invalid goal."""


class GoalJointsError(GoalError):
    """Raised for a goal whose joints are not the robot's."""


@dataclass(frozen=True, eq=False)
class MotionLimits:
    """Limits of motions. lower, upper: (n,) rad | m. velocity, acceleration, jerk: (n,), per s, s^2, s^3, positive."""

    lower: Array
    upper: Array
    velocity: Array
    acceleration: Array
    jerk: Array


@dataclass(frozen=True, eq=False)
class Points:
    """Points of a goal, in the order of the robot's joints.

    time: (k,) s or None. position: (k, n). velocity, acceleration: (k, n) or None. begin: (n,), a first point at time
    0, which is not one of the k, or None. Joints that the goal leaves out have position NaN and are at rest.
    """

    time: Array | None
    position: Array
    velocity: Array | None
    acceleration: Array | None
    begin: Array | None = None

    def starting_at(self, start: Reference, tolerance: Array | float, names: Sequence[str]) -> Points:
        """Returns the points with omitted joints at the reference's position.

        Raises:
            GoalError: The goal begins at another position.
        """
        if self.begin is not None:
            offsets = np.abs(self.begin - start.q)
            violations = np.flatnonzero(offsets > tolerance)
            if violations.size:
                k = int(violations[0])
                offset = f"{offsets[k]:.3g} from the reference of joint '{names[k]}'"
                limit = np.broadcast_to(tolerance, offsets.shape)[k]
                raise GoalError(f"points[0], at time 0, is {offset}, the path tolerance is {limit:.3g}")
        return replace(self, position=np.where(np.isnan(self.position), start.q, self.position))


def plan(
    goal: JointTrajectory,
    start: Reference,
    configuration: Configuration,
    limits: MotionLimits,
    *,
    start_tolerance: Array | float = np.inf,
    partial: bool = False,
) -> Piecewise:
    """Plans the motion of the goal, whose joints are the robot's, in any order.

    start: the reference's position, velocity and acceleration, (n,) each. start_tolerance: (n,) rad | m, or one
    number; largest distance of a first point at time 0 from the start. partial: whether joints may be left out, which
    then do not move.

    Raises:
        GoalError: The goal is invalid, or leaves the limits.
        MissingLibraryError: SciPy, or for a goal without times ruckig, is not installed.
    """
    points = read(goal, configuration, partial=partial).starting_at(start, start_tolerance, configuration.names)
    # An overflow is reported by `_within`, as a motion that is not finite.
    with np.errstate(invalid="ignore", over="ignore"):
        motion = _optimal(points, start, limits) if points.time is None else _timed(points, start)
    _within(motion, configuration.names, limits)
    return motion


def read(goal: JointTrajectory, configuration: Configuration, *, partial: bool = False) -> Points:
    """Returns the goal's points in the order of the robot's joints. partial: whether joints may be left out.

    Raises:
        GoalError: The joints are not the robot's, there are too many points, a point has a wrong number of values or
            one that is not finite, or the times do not increase.
    """
    names = list(goal.joint_names)
    is_partial = partial and names and set(names) <= set(configuration.names) and len(set(names)) == len(names)
    if not is_partial and sorted(names) != sorted(configuration.names):
        form = f"{'some of ' if partial else ''}the robot's, {', '.join(configuration.names)}"
        raise GoalJointsError(f"a goal's joints must be {form}; found {', '.join(names) or 'none'}")
    if not goal.points:
        raise GoalError("a goal must have points, found none")
    if len(goal.points) > MAX_POINTS:
        raise GoalError(f"a goal must have at most {MAX_POINTS} points, found {len(goal.points)}")
    columns = [configuration.names.index(name) for name in names]
    rows: dict[str, Array | None] = {}
    for quantity in ("positions", "velocities", "accelerations"):
        point_rows = [list(getattr(point, quantity)) for point in goal.points]
        sizes = {len(row) for row in point_rows}
        if sizes == {0} and quantity != "positions":
            rows[quantity] = None
            continue
        wrong = next((k for k, row in enumerate(point_rows) if len(row) != len(names)), None)
        if wrong is not None:
            raise GoalError(f"points[{wrong}].{quantity} must be {len(names)} numbers, found {len(point_rows[wrong])}")
        table = np.array(point_rows, dtype=np.float64)
        if not np.isfinite(table).all():
            bad = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
            raise GoalError(f"points[{bad}].{quantity} must be finite numbers")
        # NaN means the reference's position, which is known when the goal begins.
        whole = np.full((len(point_rows), configuration.nq), np.nan if quantity == "positions" else 0.0)
        whole[:, columns] = table
        rows[quantity] = whole
    position, velocity, acceleration = rows["positions"], rows["velocities"], rows["accelerations"]
    assert position is not None  # or refused above
    if acceleration is not None and velocity is None:
        raise GoalError("points with accelerations must have velocities too")
    time: Array | None = np.array([point.time_from_start.seconds() for point in goal.points])
    assert time is not None
    if not has_times(goal):
        time = None
        if len(goal.points) > MAX_POINTS_UNTIMED:
            raise GoalError(f"a goal without times has at most {MAX_POINTS_UNTIMED} points, found {len(goal.points)}")
    elif time[0] < 0.0 or (np.diff(time) <= 0.0).any():
        raise GoalError(f"times of points must grow from 0 or above, or all be 0, found {_times(time)} s")
    if velocity is not None and velocity[-1].any():
        raise GoalError("the last point's velocities must be 0: the motion ends there")
    if time is None or time[0] > 0.0:
        return Points(time, position, velocity, acceleration)
    velocity, acceleration = (None if table is None else table[1:] for table in (velocity, acceleration))
    return Points(time[1:], position[1:], velocity, acceleration, position[0])


def _times(time: Array) -> str:
    """The first times that do not increase, with their neighbours; or all, if there are at most 6."""
    wrong = int(np.argmax(np.diff(time, prepend=-0.0) <= 0.0))
    shown_times = time if time.size <= 6 else time[max(0, wrong - 1) : wrong + 2]
    return ", ".join(f"{time_s:g}" for time_s in shown_times)


def _timed(points: Points, start: Reference) -> Piecewise:
    assert points.time is not None
    knots = np.concatenate([[0.0], points.time])
    h = np.diff(knots)[:, None]
    q = np.vstack([start.q, points.position])
    if points.velocity is None or points.acceleration is None:
        if points.velocity is None:
            spline = splines().CubicSpline(knots, q, bc_type=((1, start.v), (1, np.zeros_like(start.v))))
        else:
            spline = splines().CubicHermiteSpline(knots, q, np.vstack([start.v, points.velocity]))
        return Piecewise(knots, np.pad(np.moveaxis(spline.c[::-1], 0, 1), ((0, 0), (0, 2), (0, 0))))
    v, a = np.vstack([start.v, points.velocity]), np.vstack([start.a, points.acceleration])
    rest = np.diff(q, axis=0) - v[:-1] * h - 0.5 * a[:-1] * h**2
    rate = v[1:] - v[:-1] - a[:-1] * h
    bend = a[1:] - a[:-1]
    parts = [
        q[:-1],
        v[:-1],
        0.5 * a[:-1],
        10.0 * rest / h**3 - 4.0 * rate / h**2 + 0.5 * bend / h,
        -15.0 * rest / h**4 + 7.0 * rate / h**3 - bend / h**2,
        6.0 * rest / h**5 - 3.0 * rate / h**4 + 0.5 * bend / h**3,
    ]
    return Piecewise(knots, np.stack(parts, axis=1))


def _optimal(points: Points, start: Reference, limits: MotionLimits) -> Piecewise:
    ruckig = library()
    n = start.q.size
    begin_s, knots, parts = 0.0, [np.zeros(1)], []
    begin = start
    for k, target in enumerate(points.position):
        problem = ruckig.InputParameter(n)
        problem.current_position, problem.current_velocity, problem.current_acceleration = (x.tolist() for x in begin)
        problem.target_position = target.tolist()
        problem.target_velocity = [0.0] * n if points.velocity is None else points.velocity[k].tolist()
        problem.max_velocity, problem.max_jerk = limits.velocity.tolist(), limits.jerk.tolist()
        for share in _HAIR:
            problem.max_acceleration = (share * limits.acceleration).tolist()
            trajectory = ruckig.Trajectory(n)
            with contextlib.suppress(ruckig.RuckigError):
                ruckig.Ruckig(n).calculate(problem, trajectory)
                break
        else:
            raise GoalError(f"points[{k}] cannot be reached within the limits of velocity, acceleration and jerk")
        if trajectory.duration <= _ROUNDING:  # already there
            continue
        times, cubics = _cubics(trajectory)
        knots.append(begin_s + times[1:])
        parts.append(cubics)
        # Ruckig knows states, not paths: each point is a problem of its own, which begins where the last one ended.
        begin_s += trajectory.duration
        begin = Reference(target, np.array(problem.target_velocity), np.zeros(n))
    if not parts:
        return Piecewise(np.array([0.0, _ROUNDING]), np.concatenate([[start.q], np.zeros((5, n))])[None])
    return Piecewise(np.concatenate(knots), np.concatenate(parts))


def library() -> Any:
    """Imports ruckig, which plans goals without times, or raises `MissingLibraryError`; slow, not for a loop."""
    return load("a goal without times", "ruckig")


def has_times(goal: JointTrajectory) -> bool:
    """Whether the goal has times; if not, ruckig plans it."""
    return any(point.time_from_start.seconds() for point in goal.points)


def _cubics(trajectory: Any) -> tuple[Array, Array]:
    """Times (k + 1,) s at which a jerk changes, and the coefficients (k, 6, n) of the pieces between them."""
    changes = {0.0, trajectory.duration}
    for profile in trajectory.profiles[0]:
        phases = [*profile.brake.t, *profile.t, *profile.accel.t]
        changes.update(np.cumsum(phases).tolist())
    times = np.array(sorted(t for t in changes if 0.0 <= t <= trajectory.duration))
    times = times[np.concatenate([[True], np.diff(times) > 1e-9])]  # times equal up to rounding are one change
    # Between two changes the jerk is constant, so that their states determine the cubic.
    states = [np.array(trajectory.at_time(t)) for t in times]
    parts = []
    for k, (q, v, a) in enumerate(states[:-1]):
        h = times[k + 1] - times[k]
        jerk = (states[k + 1][2] - a) / h
        parts.append(np.stack([q, v, 0.5 * a, jerk / 6.0, 0.0 * q, 0.0 * q]))
    return times, np.array(parts)


def _within(motion: Piecewise, names: Sequence[str], limits: MotionLimits) -> None:
    """Raises for a motion that leaves the limits of position or velocity, or is not finite."""
    times = (motion.knots[:-1, None] + np.diff(motion.knots)[:, None] * _SHARES).ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        q, v, a = motion.sample(times)
    if not all(np.isfinite(value).all() for value in (q, v, a)):
        raise GoalError("its points are too far apart for their times: the motion would not be finite")
    room = _ROUNDING * (1.0 + np.abs(q))
    for quantity, unit, value, low, high in (
        ("position", "", q, limits.lower - room, limits.upper + room),
        ("velocity", "/s", v, -limits.velocity * (1.0 + _ROUNDING), limits.velocity * (1.0 + _ROUNDING)),
    ):
        violations = (value < low) | (value > high)
        if violations.any():
            row, k = (int(x) for x in np.argwhere(violations)[0])
            raise GoalError(
                f"at {times[row]:.3g} s joint '{names[k]}' would have the {quantity} {value[row, k]:.4g}{unit}, "
                f"its limits are {np.broadcast_to(low, value.shape)[row, k]:.4g} and "
                f"{np.broadcast_to(high, value.shape)[row, k]:.4g}"
            )


def motion_limits(
    configuration: Configuration, limits: Limits, velocity: float, acceleration: Array, jerk: Array
) -> MotionLimits:
    """Returns the limits of goals' motions: the robot's, with this share of its velocity limits.

    acceleration, jerk: (n,) per s^2 and s^3; the robot's own limits apply too.

    Raises:
        InvalidArgumentError: The share is not in (0, 1], or a joint has several degrees of freedom.
    """
    if not 0.0 < velocity <= 1.0:
        raise InvalidArgumentError(f"velocity_share must be above 0 and at most 1, found {velocity:g}")
    joints = zip(configuration.names, configuration.joints, strict=True)
    if several := [name for name, joint in joints if not joint.single_dof]:
        raise InvalidArgumentError(f"goals need joints with one degree of freedom: '{several[0]}' has several")
    acceleration, jerk = np.minimum(acceleration, limits.acceleration), np.minimum(jerk, limits.jerk)
    return MotionLimits(limits.lower, limits.upper, velocity * limits.speeds, acceleration, jerk)


class JointTolerance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tolerance of one joint. position: rad | m. velocity: rad/s | m/s. acceleration: must be 0, it is not measured."""

    name: str
    position: float = 0.0
    velocity: float = 0.0
    acceleration: float = 0.0


class GoalTolerances(msgspec.Struct, frozen=True):
    """A goal's own tolerances: of joints on the way and at the end, and the time after the end to reach it."""

    path: Sequence[JointTolerance] = ()
    goal: Sequence[JointTolerance] = ()
    time: Duration = Duration()


NO_TOLERANCES = GoalTolerances()


@dataclass(frozen=True, eq=False)
class Tolerances:
    """Largest errors; infinite is unlimited. path, goal: (n,) rad | m, on the way and at the end. goal_time_s: time
    after the end in which a goal may be reached. path_velocity, goal_velocity: (n,) rad/s | m/s, or one number.
    """

    path: Array
    goal: Array
    goal_time_s: float
    path_velocity: Array | float = np.inf
    goal_velocity: Array | float = np.inf

    def of_goal(self, overrides: GoalTolerances, configuration: Configuration) -> Tolerances:
        """Returns these tolerances with a goal's own applied.

        Raises:
            GoalError: The goal names an unknown joint, one twice, or a number that is not finite.
        """
        path, path_velocity = _with_overrides("path", overrides.path, configuration, self.path, self.path_velocity)
        goal, goal_velocity = _with_overrides("goal", overrides.goal, configuration, self.goal, self.goal_velocity)
        after_s = overrides.time.seconds()
        # As ROS defines it: 0 is the default, and a negative time never ends.
        after_s = self.goal_time_s if after_s == 0.0 else after_s if after_s > 0.0 else np.inf
        return Tolerances(path, goal, after_s, path_velocity, goal_velocity)

    def broken(self, error: Array, rate: Array, over_s: float, names: Sequence[str]) -> str:
        """Returns a message on the joint that exceeds its tolerance most, or an empty string.

        error, rate: (n,) from the robot to the reference. over_s: s since the goal's end; negative on the way.
        """
        under_way = over_s < 0.0
        for unit, deviations, tolerance in (
            ("", np.abs(error), self.path if under_way else self.goal),
            ("/s", np.abs(rate), self.path_velocity if under_way else self.goal_velocity),
        ):
            tolerances = np.broadcast_to(tolerance, deviations.shape)
            # Negated, so that NaN exceeds its tolerance.
            if not (deviations <= tolerances).all():
                k = int(np.argmax(deviations - np.where(np.isfinite(tolerances), tolerances, np.inf)))
                phase = "on the way" if under_way else f"{over_s:.3g} s after its end"
                size, tolerance_text = f"{deviations[k]:.3g}{unit}", f"{tolerances[k]:.3g}{unit}"
                return f"joint '{names[k]}' is {size} off {phase}, the tolerance is {tolerance_text}"
        return ""


def _with_overrides(
    part: str, overrides: Sequence[JointTolerance], configuration: Configuration, q: Array, v: Array | float
) -> tuple[Array, Array]:
    """Returns the tolerances of positions and velocities. q, v: those without overrides."""
    positions, velocities = (np.broadcast_to(values, (configuration.nv,)).copy() for values in (q, v))
    field_name, seen = f"{part}_tolerance", set[str]()
    for override in overrides:
        if override.name not in configuration.names or override.name in seen:
            fault = f"'{override.name}'{' twice' if override.name in seen else ''}"
            form = f"joints of the robot, {', '.join(configuration.names)}, each once"
            raise GoalError(f"{field_name}: expected {form}, found {fault}")
        seen.add(override.name)
        if not np.isfinite([override.position, override.velocity]).all():
            raise GoalError(f"{field_name} of '{override.name}' must be finite numbers, negative for any")
        if override.acceleration > 0.0 or np.isnan(override.acceleration):
            raise GoalError(f"{field_name} of '{override.name}': accelerations are not measured, expected 0 or less")
        k = configuration.names.index(override.name)
        for values, value in ((positions, override.position), (velocities, override.velocity)):
            if value:
                values[k] = value if value > 0.0 else np.inf
    return positions, velocities
