"""The longest stable steps of a robot with damping, friction or springs, and the integrator chosen by them.

Near rest a robot moves as M x'' = -D x' - K x, with D = d + f / w the steepest slope of damping and smoothed friction,
and K the stiffness of its springs. For a mode u, x = u exp(lambda t),

    lambda^2 + k lambda + w^2 = 0,    k = u* D u / u* M u,    w^2 = u* K u / u* M u

and k and w^2 are at most the largest eigenvalues of M^-1 D and M^-1 K. So a step of length h is stable in all modes if

    h lambda_max(M^-1 D) <= 2.785,  h^2 lambda_max(M^-1 K) <= 8      rk4
    h lambda_max(M^-1 (D + h K / 2)) <= 2                            semi-implicit Euler, used for explicit Euler too

Near both limits at once rk4 is stable up to 0.92 of that of springs only. Not checked: explicit Euler is unstable for
springs without damping at any length; its motions grow by h^2 w^2 / 2 in a step.

Beyond the limits a motion grows until friction bounds it, or without bound: its numbers are finite and wrong. The
slope at rest counts, the steepest one, because an unstable motion moves away from rest. M changes along a motion, so a
motion is checked at its begin and end, and whenever a coordinate has moved by `SPACING` in between. The default is
chosen for random configurations of the robot, and checked in the same way. `stick_slip` evaluates damping and friction
at the end of the step, springs at its middle or end, and is stable for all of them.

A stable step may still be too long for a fast motion, such as that of a finger without a motor that falls and turns by
0.3 rad in a step. The default also compares fast steps with two of half their length, and refuses if they differ.
Source of the limits: E. Hairer, G. Wanner, Solving Ordinary Differential Equations II (1996), IV.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from dyn_service.api.queries import Array, Integrator, RobotQueries
from dyn_service.errors import FailedPreconditionError
from dyn_service.simulation.divergence import DivergedError
from dyn_service.simulation.integrators.stick_slip import passive_forces_of
from dyn_service.simulation.task import Motion, Task

Advance = Callable[[Array, Array], tuple[Array, Array]]


class _Limits(NamedTuple):
    """damping: largest h k; spring: largest h w, None if h K / 2 is added to D instead."""

    damping: float
    spring: float | None


LIMITS: Mapping[str, _Limits] = MappingProxyType(
    {
        "rk4": _Limits(2.785293563405282, 8.0**0.5),
        "semi_implicit_euler": _Limits(2.0, None),
        "explicit_euler": _Limits(2.0, None),
    }
)
"""Damping: 1 - x + x^2/2 - x^3/6 + x^4/24 = 1 for RK4, 1 - x = -1 for Euler; springs: the same with x = i y."""

DAMPED, WITH_DAMPING = 0.6, 0.92
"""The region of RK4 does not contain the corner of both limits: above `DAMPED` of the limit of damping, springs are
stable up to `WITH_DAMPING` of theirs, below up to all of it.
"""

SPACING = 0.05
"""rad | m that a coordinate moves between two checks of a motion. The inertia that a joint moves changes with the sines
of angles, so by some percent.
"""

_SEEDS = range(64)
"""Seeds of the configurations, besides the neutral one, in which a default step has to be stable."""

RESERVE = 1.25
"""Factor on the substeps of a default step, for configurations that were not drawn."""

MOST_SUBSTEPS = 64
"""Most parts of a default step of rk4: 64 cost about as much as one step of `stick_slip`."""

RESOLVED = 2e-7
"""rad | m, largest allowed change of a position if a default step is halved. In motions of 60 robot files that are
within 1e-3 of `adaptive`, positions change by at most 1e-7; in others by 4e-6 and more somewhere, in few steps.
"""

FAST = 0.05
"""rad | m in a step, summed over joints, above which steps are compared: errors of slower turns are below 1e-8."""

_APART = (8, 32)
"""Fewest and most steps from one comparison to the next; between these bounds, as many as there are members. A
comparison costs three steps. Those of few members are computed together, which is faster than one by one.
"""

_NUMBERS = 1 << 18
"""Numbers in the mass matrices that are checked at once: 2 MB."""

_SPEED = 1e-12
"""rad/s | m/s, far below any width of friction."""


@dataclass(frozen=True, eq=False)
class Slopes:
    """D and K of a robot, (..., nv) each, never negative."""

    damping: Array
    stiffness: Array

    def share(self, mobility: Array, dt: float, integrator: str) -> Array:
        """Returns dt (s) over the longest stable step, (...), for the mobility (..., nv, nv) of `mobility_of`."""
        limits = LIMITS[integrator]
        if limits.spring is None:
            return _largest(mobility, (self.damping + dt / 2.0 * self.stiffness) * dt / limits.damping)
        by_damping = _largest(mobility, self.damping * dt / limits.damping)
        by_spring = np.sqrt(_largest(mobility, self.stiffness * (dt / limits.spring) ** 2))
        return np.maximum(by_damping, by_spring / np.where(by_damping > DAMPED, WITH_DAMPING, 1.0))


_SLOPES: WeakKeyDictionary[RobotQueries, tuple[Slopes, Array] | None] = WeakKeyDictionary()


def mobility_of(robot: RobotQueries, q: Array, free: list[int] | None = None) -> Array:
    """Returns the accelerations by efforts (..., n, n) at positions (..., nq): M^-1, or with closed loops the part of
    it that keeps them closed. It is zero where a massless branch moves, which the equation of motion reports.

    free: the entries of v that move freely; None: all.
    """
    if robot.closed_motion is not None:
        return robot.closed_motion.mobility(q)
    M = robot.mass_matrix(q)
    M = M if free is None else M[..., free, :][..., :, free]
    try:
        return np.asarray(np.linalg.inv(M), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.zeros(M.shape)


def mobility_samples(robot: RobotQueries) -> Array:
    """Returns the mobility (samples, ..., nv, nv) in the neutral and in random configurations, or in closed ones."""
    if robot.closed_motion is None:
        q = np.stack([robot.configuration.neutral, *(robot.random_configuration(seed=seed) for seed in _SEEDS)])
    else:
        q = robot.closed_motion.samples
    lead = (1,) * (robot.mass_matrix(q[0]).ndim - 2)
    return mobility_of(robot, q.reshape(len(q), *lead, robot.nq))


def longest_held_step(robot: RobotQueries, damping: Array) -> tuple[float, int]:
    """Returns the longest step, s, through which efforts -damping v (nv,) can be held without turning a motion around,
    in sampled configurations, and the entry of v that moves most easily against its damping; infinite without damping.
    """
    if not damping.any():
        return math.inf, 0
    mobility, dt = mobility_samples(robot), 1.0
    # Euler with held efforts is stable up to twice this step, but oscillates in the second half.
    share = 2.0 * Slopes(damping, np.zeros_like(damping)).share(mobility, dt, "explicit_euler").max(initial=0.0)
    rates = damping * np.diagonal(mobility, axis1=-2, axis2=-1).max(axis=0)
    return (dt / share if share > 0.0 else math.inf), int(np.argmax(rates))


def slopes_of(robot: RobotQueries) -> tuple[Slopes, Array] | None:
    """Returns D and K of a robot, and its mobility (samples, ..., nv, nv) in the neutral and in random configurations,
    or in random closed ones; None if the robot has neither damping nor friction nor springs.
    """
    if robot not in _SLOPES:
        if not {"damping", "friction", "springs"} & {*robot.description.passive}:
            _SLOPES[robot] = None
            return None
        neutral, free = robot.configuration.neutral, robot.free
        passive_forces = passive_forces_of(robot)
        rest = passive_forces(neutral, _SPEED * free)
        displaced = robot.configuration.integrate(neutral, free, 1.0)
        # slopes at rest, where friction is steepest and from where an unstable motion moves away
        stiffness = passive_forces(displaced, 0.0 * free).springs - rest.springs
        slopes = Slopes(*(np.maximum(x, 0.0) for x in ((rest.damping + rest.friction) / _SPEED, stiffness)))
        mobility = mobility_samples(robot)
        _SLOPES[robot] = (slopes, mobility) if slopes.damping.any() or slopes.stiffness.any() else None
    return _SLOPES[robot]


def chosen(robot: RobotQueries, dt: float, max_substeps: int = MOST_SUBSTEPS) -> tuple[Integrator, int]:
    """Returns the default integrator for steps of dt (s), and in how many parts it makes each: rk4 in as many as are
    stable in sampled configurations, with a reserve; if these are more than `max_substeps`, stick_slip in one part.
    """
    # By robot and step alone, so that a motion in parts has the bits of a whole one.
    numbers = slopes_of(robot)
    if numbers is None:
        return "rk4", 1
    share = float(numbers[0].share(numbers[1], dt, "rk4").max(initial=0.0))
    substeps = max(1, math.ceil(RESERVE * share)) if math.isfinite(share) else max_substeps + 1
    return ("rk4", substeps) if substeps <= max_substeps else ("stick_slip", 1)


class StabilityCheck:
    """Checks the steps of one motion.

    robot: None if no passive forces act. parts: of a step. free: the entries of v that move freely; None: all.
    """

    def __init__(
        self, robot: RobotQueries | None, task: Motion, integrator: str, parts: int = 1, free: list[int] | None = None
    ) -> None:
        numbers = slopes_of(robot) if robot is not None and integrator in LIMITS else None
        self.active = numbers is not None
        self._robot, self._task, self._integrator, self._free = robot, task, integrator, free
        self._dt = task.dt / parts
        if numbers is not None:
            slopes = numbers[0]
            self._slopes = slopes if free is None else Slopes(slopes.damping[..., free], slopes.stiffness[..., free])
        self._q: Array | None = None
        self._path_length = 0.0

    def states(self, k: int, stride: int, rows: Array) -> None:
        """Checks positions (rows, ..., nq) of all joints after steps k + every, k + 2 every, .. of this part.

        Raises:
            FailedPreconditionError: The steps are too long in one of them.
        """
        if not self.active or not rows.size:
            return
        if self._q is None:
            to_check = [0]
        else:
            changes = np.abs(np.diff(np.concatenate([self._q[None], rows]), axis=0)).reshape(len(rows), -1).max(axis=-1)
            path_length = (self._path_length + np.cumsum(changes)) / SPACING
            is_last = k + stride * len(rows) >= self._task.last
            is_due = np.floor(path_length) > np.floor(np.append(self._path_length / SPACING, path_length[:-1]))
            is_due[-1] |= is_last
            to_check = np.flatnonzero(is_due).tolist()
            self._path_length = float(path_length[-1] * SPACING)
        self._q = rows[-1]
        # A state that is not finite is reported as a divergence, not as a step that is too long.
        to_check = [row for row in to_check if np.isfinite(rows[row]).all()]
        size = max(_NUMBERS // (rows[0].size * rows.shape[-1]), 1)
        for first in range(0, len(to_check), size):
            batch = to_check[first : first + size]
            self._check([k + stride * (row + 1) for row in batch], rows[batch])

    def _check(self, steps: list[int], rows: Array) -> None:
        assert self._robot is not None
        task, mobility = self._task, mobility_of(self._robot, rows, self._free)
        shares = self._slopes.share(mobility, self._dt, self._integrator)
        unstable_rows = np.flatnonzero(~(shares <= 1.0).reshape(len(rows), -1).all(axis=-1))
        if not unstable_rows.size:
            return
        k, mobility, share = (x[unstable_rows[0]] for x in (steps, mobility, shares))
        joints = self._robot.configuration.velocity_joints
        names = joints if self._free is None else [joints[entry] for entry in self._free]
        place = f" in step {task.first_step + k + 1} (t = {task.time(k):g} s)"
        raise _refusal(
            names, self._slopes, mobility, share, self._integrator, self._dt, place, sticks=self._free is None
        )


class ResolutionCheck:
    """Compares fast steps of one motion, without efforts and wrenches, with two of half their length.

    length: of a step, s. step, halves: (q, v) of any leading axes -> (q, v) after the length, in one and in two steps.
    """

    def __init__(self, task: Task, length: float, step: Advance, halves: Advance) -> None:
        self._task, self._length, self._step, self._halves = task, length, step, halves
        self._spacing = int(np.clip(task.q.size // max(task.configuration.nq, 1), *_APART))
        self._span = -1
        self._pending: list[tuple[Any, Array, Array]] = []

    def states(self, k: int, stride: int, q: Array, v: Array) -> None:
        """Checks states (rows, ..., n) after steps k + every, k + 2 every, .. of this part, together with later ones.

        Raises:
            DivergedError: The steps are too long in one of them.
        """
        ways = self._length * np.abs(v).sum(axis=-1).reshape(len(v), -1).max(axis=-1, initial=0.0)
        rows = np.flatnonzero(ways > FAST)
        steps = k + stride * (rows + 1)
        spans, first = np.unique(steps // self._spacing, return_index=True)
        rows = rows[first[spans > self._span]]
        if rows.size:
            self._span = spans[-1]
            self._pending.append((k + stride * (rows + 1), q[rows], v[rows]))
        is_last = k + stride * len(q) >= self._task.last
        if self._pending and (is_last or sum(len(x) for x, _, _ in self._pending) >= _APART[1]):
            steps, *state = map(np.concatenate, zip(*self._pending, strict=True))
            self._pending.clear()
            self._check(steps, *state)

    def _check(self, steps: Any, q: Array, v: Array) -> None:
        configuration, (q_whole, _), (q_halves, _) = self._task.configuration, self._step(q, v), self._halves(q, v)
        change = np.abs(configuration.difference(q_whole, q_halves))
        too_large = np.argwhere((change > RESOLVED).any(axis=-1))
        if not too_large.size:
            return
        row = tuple(too_large[0])
        entry = int(np.argmax(change[row]))
        # The error of a step of rk4 has order 5.
        longest = 0.9 * self._length * (RESOLVED / change[row][entry]) ** 0.2
        raise DivergedError(
            f"steps of {self._length:g} s of rk4 are too long for the motion in step "
            f"{self._task.first_step + steps[row[0]] + 1} (t = {self._task.time(steps[row[0]]):g} s): half of the step "
            f"changes joint '{configuration.velocity_joints[entry]}', at {v[row][entry]:.3g} rad/s | m/s, by "
            f"{change[row][entry]:.1e} rad | m, allowed {RESOLVED:g}; use integrator='adaptive', or steps of at most "
            f"{longest:.2g} s"
        )


def check_step(robot: RobotQueries, dt: float, integrator: str) -> None:
    """Checks steps of dt (s) in sampled configurations of a robot, without a motion.

    Raises:
        FailedPreconditionError: The steps of this integrator are too long in one of them.
    """
    numbers = slopes_of(robot) if integrator in LIMITS else None
    if numbers is not None and not ((share := numbers[0].share(numbers[1], dt, integrator)) <= 1.0).all():
        raise _refusal(robot.configuration.velocity_joints, *numbers, share, integrator, dt, "", sticks=True)


def _refusal(
    names: Sequence[str],
    slopes: Slopes,
    mobility: Array,
    share: Array,
    integrator: str,
    h: float,
    place: str,
    *,
    sticks: bool,
) -> FailedPreconditionError:
    """Returns the error for the worst of mobilities (..., nv, nv). sticks: whether `stick_slip` is a remedy."""
    worst, shape = np.unravel_index(int(np.argmax(share)), share.shape), mobility.shape[:-1]
    mobility = np.diagonal(mobility[worst], axis1=-2, axis2=-1)
    damping, stiffness = (np.broadcast_to(x, shape)[worst] for x in (slopes.damping, slopes.stiffness))
    rates = np.stack([damping * mobility, np.sqrt(stiffness * np.abs(mobility))])
    kind, entry = np.unravel_index(int(np.argmax(rates)), rates.shape)
    remedy = "use integrator='stick_slip', or steps" if sticks else "use steps"
    joint, cause, longest = names[int(entry)], ("damping and friction", "spring")[kind], 0.99 * h / float(share[worst])
    return FailedPreconditionError(
        f"steps of {h:g} s of {integrator} are unstable{place}: joint '{joint}' is too light for its {cause}; "
        f"{remedy} of at most {longest:.2g} s, or add the inertia of its motor (armature)"
    )


def _largest(inverse: Array, slopes: Array) -> Array:
    """Returns the largest eigenvalue (...) of M^-1 diag(slopes), from M^-1 (..., n, n); exact only where it matters:
    where the sum of all eigenvalues is at most 1, this sum.
    """
    entries = np.flatnonzero(slopes.reshape(-1, slopes.shape[-1]).any(axis=0))
    if not entries.size:
        return np.zeros(inverse.shape[:-2])
    root = np.sqrt(slopes[..., entries])
    similar = root[..., :, None] * inverse[..., entries, :][..., :, entries] * root[..., None, :]
    total = np.asarray(np.trace(similar, axis1=-2, axis2=-1))
    inexact = ~(total <= 1.0) & np.isfinite(similar).all(axis=(-2, -1))
    if inexact.any():
        total[inexact] = np.linalg.eigvalsh(similar[inexact])[..., -1]
    return total
