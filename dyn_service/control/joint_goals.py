"""`JointTrajectory` goals: whether one can be followed, and the motion that does.

From where the reference is when the goal comes, with its velocity and acceleration, so that a goal that takes another
one's place never jumps:

| The goal's points have | Motion between them |
|---|---|
| times and positions | a cubic spline, twice continuously differentiable, at rest at the end |
| times, positions, velocities | a cubic each |
| times, positions, velocities, accelerations | a quintic each |
| positions, no times | time-optimal within limits of velocity, acceleration and jerk, from point to point |

The last stops at each point, or passes it at its velocity where it has one.

Without times is: all are 0. Source of the splines: de Boor, A Practical Guide to Splines (1978), IV; of the last row:
Berscheid and Kroeger, Jerk-limited real-time trajectory generation, RSS 2021, whose library it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.trajectory import Piecewise, Reference
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.messages.trajectory_msgs import JointTrajectory
from dyn_service.model.configuration import Configuration, Limits

_CHECKS = 16
"""A piece is held against the limits at so many times."""
_ROUNDING = 1e-9
"""Of a limit: what a motion that goes up to it may be beyond. In s: what is no time for a motion."""


class GoalError(InvalidArgumentError):
    """A goal is refused; the sentence says why."""


@dataclass(frozen=True, eq=False)
class MotionLimits:
    """lower, upper (n,) rad | m. velocity, acceleration, jerk (n,), per s, s^2, s^3, each positive."""

    lower: Array
    upper: Array
    velocity: Array
    acceleration: Array
    jerk: Array


@dataclass(frozen=True, eq=False)
class Points:
    """The goal in the robot's order. time: (k,) s or None. position, and velocity, acceleration or None: (k, n)."""

    time: Array | None
    position: Array
    velocity: Array | None
    acceleration: Array | None


def plan(goal: JointTrajectory, start: Reference, on: Configuration, limits: MotionLimits) -> Piecewise:
    """The motion of the goal from the start on.

    Args:
        goal: Its joints are the robot's, in any order.
        start: Where the reference is, how fast and under which acceleration, (n,) each.
        on: The joints.
        limits: What the motion keeps to.

    Raises:
        GoalError: The goal is refused; the sentence says why.
        FailedPreconditionError: It has no times, and the library that finds them is not there.
    """
    points = read(goal, on)
    motion = _optimal(points, start, limits) if points.time is None else _timed(points, start)
    _within(motion, on.names, limits)
    return motion


def read(goal: JointTrajectory, on: Configuration) -> Points:
    """The goal's points, in the robot's order.

    Raises:
        GoalError: Its joints are not the robot's, a point has too few or too many numbers, NaN among them, or its times
            do not grow.
    """
    names = list(goal.joint_names)
    if sorted(names) != sorted(on.names):
        raise GoalError(
            f"a goal's joints must be the robot's, {', '.join(on.names)}, found {', '.join(names) or 'none'}"
        )
    if not goal.points:
        raise GoalError("a goal must have points, found none")
    order = [names.index(name) for name in on.names]
    rows: dict[str, Array | None] = {}
    for what in ("positions", "velocities", "accelerations"):
        given = [list(getattr(point, what)) for point in goal.points]
        sizes = {len(row) for row in given}
        if sizes == {0} and what != "positions":
            rows[what] = None
            continue
        wrong = next((k for k, row in enumerate(given) if len(row) != on.nq), None)
        if wrong is not None:
            raise GoalError(f"points[{wrong}].{what} must be {on.nq} numbers, found {len(given[wrong])}")
        table = np.array(given, dtype=np.float64)[:, order]
        if not np.isfinite(table).all():
            bad = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
            raise GoalError(f"points[{bad}].{what} must be finite numbers")
        rows[what] = table
    position, velocity, acceleration = rows["positions"], rows["velocities"], rows["accelerations"]
    assert position is not None  # or refused above
    if acceleration is not None and velocity is None:
        raise GoalError("points with accelerations must have velocities too")
    time: Array | None = np.array([point.time_from_start.seconds() for point in goal.points])
    assert time is not None
    if not time.any():
        time = None
    elif time[0] <= 0.0 or (np.diff(time) <= 0.0).any():
        raise GoalError(
            f"times of points must grow from above 0, or all be 0, found {', '.join(f'{t:g}' for t in time)} s"
        )
    if velocity is not None and velocity[-1].any():
        raise GoalError("the last point's velocities must be 0: the motion ends there")
    return Points(time, position, velocity, acceleration)


def _timed(points: Points, start: Reference) -> Piecewise:
    assert points.time is not None
    knots = np.concatenate([[0.0], points.time])
    h = np.diff(knots)[:, None]
    q = np.vstack([start.q, points.position])
    v = _spline_rates(q, h, start.v) if points.velocity is None else np.vstack([start.v, points.velocity])
    step = np.diff(q, axis=0)
    zero = np.zeros_like(step)
    if points.acceleration is None:
        third = (v[:-1] + v[1:]) / h**2 - 2.0 * step / h**3
        second = 3.0 * step / h**2 - (2.0 * v[:-1] + v[1:]) / h
        parts = [q[:-1], v[:-1], second, third, zero, zero]
    else:
        a = np.vstack([start.a, points.acceleration])
        rest = step - v[:-1] * h - 0.5 * a[:-1] * h**2
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


def _spline_rates(q: Array, h: Array, first: Array) -> Array:
    """Velocities at the knots with which cubics have no jump of acceleration: the first given, the last 0."""
    count = len(q)
    matrix, right = np.eye(count), np.zeros_like(q)
    right[0] = first
    slope = np.diff(q, axis=0) / h
    for k in range(1, count - 1):
        before, after = h[k - 1, 0], h[k, 0]
        matrix[k, k - 1 : k + 2] = after, 2.0 * (before + after), before
        right[k] = 3.0 * (after * slope[k - 1] + before * slope[k])
    return np.asarray(np.linalg.solve(matrix, right))


def _optimal(points: Points, start: Reference, limits: MotionLimits) -> Piecewise:
    ruckig = library()
    n = start.q.size
    begun, knots, parts = 0.0, [np.zeros(1)], []
    here = start
    for k, there in enumerate(points.position):
        asked = ruckig.InputParameter(n)
        asked.current_position, asked.current_velocity, asked.current_acceleration = (x.tolist() for x in here)
        asked.target_position = there.tolist()
        asked.target_velocity = [0.0] * n if points.velocity is None else points.velocity[k].tolist()
        asked.max_velocity, asked.max_acceleration = limits.velocity.tolist(), limits.acceleration.tolist()
        asked.max_jerk = limits.jerk.tolist()
        found = ruckig.Trajectory(n)
        try:
            ruckig.Ruckig(n).calculate(asked, found)
        except ruckig.RuckigError:
            raise GoalError(
                f"points[{k}] cannot be reached within the limits of velocity, acceleration and jerk from where the "
                "motion is before it"
            ) from None
        if found.duration <= _ROUNDING:  # it is there
            continue
        times, cubics = _cubics(found)
        knots.append(begun + times[1:])
        parts.append(cubics)
        begun += found.duration
        here = Reference(there, np.array(asked.target_velocity), np.zeros(n))
    if not parts:
        return Piecewise(np.array([0.0, _ROUNDING]), np.concatenate([[start.q], np.zeros((5, n))])[None])
    return Piecewise(np.concatenate(knots), np.concatenate(parts))


def library() -> Any:
    """What plans goals without times; the import takes its time, so ask for it before a loop begins.

    Raises:
        FailedPreconditionError: It is not installed.
    """
    try:
        import ruckig
    except ModuleNotFoundError:
        raise FailedPreconditionError(
            "goals without times need the library ruckig: pip install 'dyn_service[trajectories]'"
        ) from None
    return ruckig


def _cubics(found: Any) -> tuple[Array, Array]:
    """Where the jerk of any joint changes (k + 1,) s, and the coefficients (k, 6, n) in between."""
    changes = {0.0, found.duration}
    for profile in found.profiles[0]:
        phases = [*profile.brake.t, *profile.t, *profile.accel.t]
        changes.update(np.cumsum(phases).tolist())
    times = np.array(sorted(t for t in changes if 0.0 <= t <= found.duration))
    times = times[np.concatenate([[True], np.diff(times) > 1e-9])]  # what differs by rounding alone is one change
    states = [np.array(found.at_time(t)) for t in times]
    parts = []
    for k, (q, v, a) in enumerate(states[:-1]):
        h = times[k + 1] - times[k]
        jerk = (states[k + 1][2] - a) / h
        parts.append(np.stack([q, v, 0.5 * a, jerk / 6.0, 0.0 * q, 0.0 * q]))
    return times, np.array(parts)


def _within(motion: Piecewise, names: Sequence[str], limits: MotionLimits) -> None:
    """Refuses a motion that leaves the limits of position or velocity."""
    pieces = [np.linspace(a, b, _CHECKS, endpoint=False) for a, b in zip(motion.knots, motion.knots[1:], strict=False)]
    times = np.append(np.concatenate(pieces), motion.knots[-1])
    found = motion.sample(times)
    room = _ROUNDING * (1.0 + np.abs(found.q))
    for what, unit, value, low, high in (
        ("position", "", found.q, limits.lower - room, limits.upper + room),
        ("velocity", "/s", found.v, -limits.velocity * (1.0 + _ROUNDING), limits.velocity * (1.0 + _ROUNDING)),
    ):
        beyond = (value < low) | (value > high)
        if beyond.any():
            row, k = (int(x) for x in np.argwhere(beyond)[0])
            raise GoalError(
                f"at {times[row]:.3g} s joint '{names[k]}' would have the {what} {value[row, k]:.4g}{unit}, "
                f"its limits are {np.broadcast_to(low, value.shape)[row, k]:.4g} and "
                f"{np.broadcast_to(high, value.shape)[row, k]:.4g}"
            )


def motion_limits(on: Configuration, of: Limits, velocity: float, acceleration: Array, jerk: Array) -> MotionLimits:
    """The limits that motions keep to.

    Args:
        on: The joints.
        of: The robot's limits.
        velocity: The share of its limits of velocity.
        acceleration: (n,) per s^2.
        jerk: (n,) per s^3.

    Raises:
        InvalidArgumentError: The share is not in (0, 1], or a joint has several ways to move.
    """
    if not 0.0 < velocity <= 1.0:
        raise InvalidArgumentError(f"velocity_share must be above 0 and at most 1, found {velocity:g}")
    several = [name for name, joint in zip(on.names, on.joints, strict=True) if not joint.adds_up]
    if several:
        raise InvalidArgumentError(f"goals are for joints with one way to move: '{several[0]}' has several")
    return MotionLimits(of.lower, of.upper, velocity * of.speeds, acceleration, jerk)
