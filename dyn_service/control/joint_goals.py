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

Without times is: all are 0. A first point at time 0 among others with times, as planners write it, says where the goal
thinks that the robot is: it is held against that, and the motion begins where the reference is. Joints that a goal may
leave out stay where they are. Source of the splines: de Boor, A Practical Guide to Splines (1978), IV; of the last row:
Berscheid and Kroeger, Jerk-limited real-time trajectory generation, RSS 2021, whose library it is.


How far a robot may be off while it follows a goal, and at the goal's end.

A goal may bring tolerances of its own, as `control_msgs/JointTolerance` has them: 0 says nothing, and the follower's
own holds; a negative number is any. Fields are ROS's.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.trajectory import Piecewise, Reference
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.builtin_interfaces import Duration
from dyn_service.messages.trajectory_msgs import JointTrajectory
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.support.optional import load

MAX_POINTS = 2000
"""Of a goal with times: it is planned within a control period or two, which the plant waits through."""
MAX_POINTS_UNTIMED = 100
"""Of one without: each is a search for the quickest way."""
_SHARES = np.linspace(0.0, 1.0, 17)
"""Of a piece's time, at which it is held against the limits."""
_POWERS = np.arange(6)
_BASES = [
    np.stack([math.perm(k, order) * _SHARES ** max(k - order, 0) for k in _POWERS.tolist()], axis=1)
    for order in range(3)
]
"""(17, 6) each: 1, x, .., x^5 at these shares x, and their first and second derivatives."""
_HAIR = (1.0, 1.0 - 1e-6)
"""Of the limit of acceleration: where the way is the very one on which it is just reached, to rounding, ruckig finds
none, and a hair below it does.
"""
_ROUNDING = 1e-9
"""Of a limit: what a motion that goes up to it may be beyond. In s: what is no time for a motion."""


class GoalError(InvalidArgumentError):
    """A goal is refused; the sentence says why."""


class GoalJointsError(GoalError):
    """Its joints are not the robot's."""


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
    """The goal in the robot's order. time: (k,) s or None. position, and velocity, acceleration or None: (k, n). begin:
    (n,) where its first point, at time 0, has the robot, which is none of the k; or None. Of joints that it leaves out
    positions are NaN, velocities and accelerations 0.
    """

    time: Array | None
    position: Array
    velocity: Array | None
    acceleration: Array | None
    begin: Array | None = None

    def starting_at(self, start: Reference, near: Array | float, names: Sequence[str]) -> Points:
        """The points from where the reference is: joints that are left out stay there.

        Raises:
            GoalError: The goal begins somewhere else.
        """
        if self.begin is not None:
            off = np.abs(self.begin - start.q)
            beyond = np.flatnonzero(off > near)
            if beyond.size:
                k = int(beyond[0])
                raise GoalError(
                    f"points[0], of time 0, is {off[k]:.3g} off from where joint '{names[k]}' is to be now, the "
                    f"tolerance of its path is {np.broadcast_to(near, off.shape)[k]:.3g}"
                )
        return replace(self, position=np.where(np.isnan(self.position), start.q, self.position))


def plan(
    goal: JointTrajectory,
    start: Reference,
    on: Configuration,
    limits: MotionLimits,
    *,
    near: Array | float = np.inf,
    partial: bool = False,
) -> Piecewise:
    """The motion of the goal from the start on.

    Args:
        goal: Its joints are the robot's, in any order.
        start: Where the reference is, how fast and under which acceleration, (n,) each.
        on: The joints.
        limits: What the motion keeps to.
        near: (n,) rad | m, or one number; how far a first point of time 0 may be from the start.
        partial: Whether joints may be left out, which stay where they are.

    Raises:
        GoalError: The goal is refused; the sentence says why.
        FailedPreconditionError: It has no times, and the library that finds them is not there.
    """
    points = read(goal, on, partial=partial).starting_at(start, near, on.names)
    with np.errstate(invalid="ignore", over="ignore"):
        motion = _optimal(points, start, limits) if points.time is None else _timed(points, start)
    _within(motion, on.names, limits)
    return motion


def read(goal: JointTrajectory, on: Configuration, *, partial: bool = False) -> Points:
    """The goal's points, in the robot's order. partial: whether joints may be left out.

    Raises:
        GoalError: Its joints are not the robot's, it has too many points, a point has too few or too many numbers, NaN
            among them, or its times do not grow.
    """
    names = list(goal.joint_names)
    some = partial and names and set(names) <= set(on.names) and len(set(names)) == len(names)
    if not some and sorted(names) != sorted(on.names):
        raise GoalJointsError(
            f"a goal's joints must be {'some of ' if partial else ''}the robot's, {', '.join(on.names)}, found "
            f"{', '.join(names) or 'none'}"
        )
    if not goal.points:
        raise GoalError("a goal must have points, found none")
    if len(goal.points) > MAX_POINTS:
        raise GoalError(f"a goal must have at most {MAX_POINTS} points, found {len(goal.points)}")
    where = [on.names.index(name) for name in names]
    rows: dict[str, Array | None] = {}
    for what in ("positions", "velocities", "accelerations"):
        given = [list(getattr(point, what)) for point in goal.points]
        sizes = {len(row) for row in given}
        if sizes == {0} and what != "positions":
            rows[what] = None
            continue
        wrong = next((k for k, row in enumerate(given) if len(row) != len(names)), None)
        if wrong is not None:
            raise GoalError(f"points[{wrong}].{what} must be {len(names)} numbers, found {len(given[wrong])}")
        table = np.array(given, dtype=np.float64)
        if not np.isfinite(table).all():
            bad = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
            raise GoalError(f"points[{bad}].{what} must be finite numbers")
        whole = np.full((len(given), on.nq), np.nan if what == "positions" else 0.0)
        whole[:, where] = table
        rows[what] = whole
    position, velocity, acceleration = rows["positions"], rows["velocities"], rows["accelerations"]
    assert position is not None  # or refused above
    if acceleration is not None and velocity is None:
        raise GoalError("points with accelerations must have velocities too")
    time: Array | None = np.array([point.time_from_start.seconds() for point in goal.points])
    assert time is not None
    if not has_times(goal):
        time = None
        if len(goal.points) > MAX_POINTS_UNTIMED:
            raise GoalError(
                f"a goal without times must have at most {MAX_POINTS_UNTIMED} points, found {len(goal.points)}"
            )
    elif time[0] < 0.0 or (np.diff(time) <= 0.0).any():
        raise GoalError(f"times of points must grow from 0 or above, or all be 0, found {_times(time)} s")
    if velocity is not None and velocity[-1].any():
        raise GoalError("the last point's velocities must be 0: the motion ends there")
    if time is None or time[0] > 0.0:
        return Points(time, position, velocity, acceleration)
    velocity, acceleration = (None if each is None else each[1:] for each in (velocity, acceleration))
    return Points(time[1:], position[1:], velocity, acceleration, position[0])


def _times(time: Array) -> str:
    """The first that do not grow, with one before and after them, or the few that there are."""
    wrong = int(np.argmax(np.diff(time, prepend=-0.0) <= 0.0))
    chosen = time if time.size <= 6 else time[max(0, wrong - 1) : wrong + 2]
    return ", ".join(f"{t:g}" for t in chosen)


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
    """Velocities at the knots with which cubics have no jump of acceleration: the first given, the last 0.

    Row k of the equations is after v[k-1] + 2 (before + after) v[k] + before v[k+1]: tridiagonal, with a diagonal that
    outweighs the others. Solved by cyclic reduction, all rows at once: Golub and Van Loan, Matrix Computations, 4.5.
    """
    slope = np.diff(q, axis=0) / h
    lower, upper, diagonal = np.zeros((len(q), 1)), np.zeros((len(q), 1)), np.ones((len(q), 1))
    right = np.zeros_like(q)
    right[0] = first
    lower[1:-1], upper[1:-1], diagonal[1:-1] = h[1:], h[:-1], 2.0 * (h[:-1] + h[1:])
    right[1:-1] = 3.0 * (h[1:] * slope[:-1] + h[:-1] * slope[1:])
    apart = 1
    while apart < len(q):  # each row loses its neighbours so far apart, and gets those twice as far
        above, below = -lower[apart:] / diagonal[:-apart], -upper[:-apart] / diagonal[apart:]
        before = lower, upper, diagonal, right
        lower, upper, diagonal, right = np.zeros_like(lower), np.zeros_like(upper), diagonal.copy(), right.copy()
        diagonal[apart:] += above * before[1][:-apart]
        diagonal[:-apart] += below * before[0][apart:]
        right[apart:] += above * before[3][:-apart]
        right[:-apart] += below * before[3][apart:]
        lower[apart:], upper[:-apart] = above * before[0][:-apart], below * before[1][apart:]
        apart *= 2
    return np.asarray(right / diagonal)


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
        asked.max_velocity, asked.max_jerk = limits.velocity.tolist(), limits.jerk.tolist()
        for share in _HAIR:
            asked.max_acceleration = (share * limits.acceleration).tolist()
            found = ruckig.Trajectory(n)
            with contextlib.suppress(ruckig.RuckigError):
                ruckig.Ruckig(n).calculate(asked, found)
                break
        else:
            raise GoalError(
                f"points[{k}] cannot be reached within the limits of velocity, acceleration and jerk from where the "
                "motion is before it"
            )
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
        MissingLibraryError: It is not installed.
    """
    return load("a goal without times", "ruckig")


def has_times(goal: JointTrajectory) -> bool:
    """Whether the goal says when it is to be where; where it does not, `library` plans it."""
    return any(point.time_from_start.seconds() for point in goal.points)


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
    """Refuses a motion that leaves the limits of position or velocity, or that no number can say."""
    h = np.diff(motion.knots)[:, None, None]
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = motion.coefficients * h ** _POWERS[:, None]  # of 1, x, .., x^5 with x the share of a piece's time
        found = [basis @ (scaled / h**order) for order, basis in enumerate(_BASES)]
    if not all(np.isfinite(value).all() for value in found):
        raise GoalError("its points are too far apart for their times: the motion would not be finite")
    times = (motion.knots[:-1, None] + h[..., 0] * _SHARES).ravel()
    q, v, _ = (value.reshape(-1, len(names)) for value in found)
    room = _ROUNDING * (1.0 + np.abs(q))
    for what, unit, value, low, high in (
        ("position", "", q, limits.lower - room, limits.upper + room),
        ("velocity", "/s", v, -limits.velocity * (1.0 + _ROUNDING), limits.velocity * (1.0 + _ROUNDING)),
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


class JointTolerance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one joint. position: rad | m. velocity: rad/s | m/s. acceleration: is not measured, and has none."""

    name: str
    position: float = 0.0
    velocity: float = 0.0
    acceleration: float = 0.0


class GoalTolerances(msgspec.Struct, frozen=True):
    """What a goal itself says: of joints on its way, at its end, and how long after its end it may come there."""

    path: Sequence[JointTolerance] = ()
    goal: Sequence[JointTolerance] = ()
    time: Duration = Duration()


NO_TOLERANCES = GoalTolerances()


@dataclass(frozen=True, eq=False)
class Tolerances:
    """The largest errors; infinite is any. path, goal: (n,) rad | m, on the way and at the end. goal_time_s: so long
    after its end a goal may be reached. path_velocity, goal_velocity: (n,) rad/s | m/s, or one number.
    """

    path: Array
    goal: Array
    goal_time_s: float
    path_velocity: Array | float = np.inf
    goal_velocity: Array | float = np.inf

    def of_goal(self, said: GoalTolerances, on: Configuration) -> Tolerances:
        """Those of a goal that says some itself.

        Raises:
            GoalError: It names a joint that is not the robot's, or twice, or a number that is none.
        """
        path, path_velocity = _said("path_tolerance", said.path, on, self.path, self.path_velocity)
        goal, goal_velocity = _said("goal_tolerance", said.goal, on, self.goal, self.goal_velocity)
        after_s = said.time.seconds()
        return replace(
            self,
            path=path,
            goal=goal,
            goal_time_s=self.goal_time_s if after_s == 0.0 else after_s if after_s > 0.0 else np.inf,
            path_velocity=path_velocity,
            goal_velocity=goal_velocity,
        )

    def broken(self, error: Array, rate: Array, over_s: float, names: Sequence[str]) -> str:
        """Which joint is beyond them, in words; empty where none is.

        Args:
            error: (n,) rad | m, from the robot to the reference.
            rate: (n,) rad/s | m/s, the same of velocities.
            over_s: How long ago the goal's end was; negative on the way.
            names: Of the joints.
        """
        under_way = over_s < 0.0
        for unit, off, most in (
            ("", np.abs(error), self.path if under_way else self.goal),
            ("/s", np.abs(rate), self.path_velocity if under_way else self.goal_velocity),
        ):
            allowed = np.broadcast_to(most, off.shape)
            if not (off <= allowed).all():  # what is no number is beyond
                k = int(np.argmax(off - np.where(np.isfinite(allowed), allowed, np.inf)))
                where = "on the way" if under_way else f"{over_s:.3g} s after its end"
                return f"joint '{names[k]}' is {off[k]:.3g}{unit} off {where}, the tolerance is {allowed[k]:.3g}{unit}"
        return ""


def _said(
    what: str, given: Sequence[JointTolerance], on: Configuration, position: Array, velocity: Array | float
) -> tuple[Array, Array]:
    positions, velocities = (np.broadcast_to(values, (on.nv,)).copy() for values in (position, velocity))
    seen: set[str] = set()
    for one in given:
        if one.name not in on.names or one.name in seen:
            found = f"'{one.name}'{' twice' if one.name in seen else ''}"
            raise GoalError(f"{what}: expected joints of the robot, {', '.join(on.names)}, each once, found {found}")
        seen.add(one.name)
        if not np.isfinite([one.position, one.velocity]).all():
            raise GoalError(f"{what} of '{one.name}' must be finite numbers, negative for any")
        if one.acceleration > 0.0 or np.isnan(one.acceleration):
            raise GoalError(f"{what} of '{one.name}': accelerations are not measured, expected 0 or less")
        k = on.names.index(one.name)
        for values, value in ((positions, one.position), (velocities, one.velocity)):
            if value:
                values[k] = value if value > 0.0 else np.inf
    return positions, velocities
