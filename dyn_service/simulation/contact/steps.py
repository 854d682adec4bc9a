"""Steps of a motion with limits and contacts, and their account of forces and energy.

    E' - E + stored' - stored = work - dissipated        of each step, to the order of the step

E is the robot's energy, springs of its joints among it. Explicit steps take the forces of `supports.py` at each of
their stages, and the powers by the same weights, so that the account is as good as the motion: RK4's closes to the
fourth order where no contact begins or ends. A step of `stick_slip` finds velocities and forces together (`steps.py`),
and its own loss, (v' - v)^T M (v' - v) / 2, is an entry of the account. What no step accounts for is how M and the
gaps turn within it: it goes to zero with the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.simulation.contact import steps
from dyn_service.simulation.contact.supports import Pushing, Supported, Supports, heavy
from dyn_service.simulation.divergence import diverged
from dyn_service.simulation.integrators.explicit import INTEGRATORS
from dyn_service.simulation.integrators.stick_slip import Equation, Sticking, moved
from dyn_service.simulation.task import Task

_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "rk4": (1 / 6, 1 / 3, 1 / 3, 1 / 6),
    "semi_implicit_euler": (1.0,),
    "explicit_euler": (1.0,),
}
"""Of each stage in its step."""

_MOST_PASSES, _SAME_PUSH = 10, 1e-3
"""How often a step of `stick_slip` is solved at most, for friction to be bounded by what the planes push with in it;
and the share of a push within which it is the same as before.
"""


class Share(NamedTuple):
    """What acts in a stage or a step. contacts: (..., nc, 3) N. stops: (..., nv). work: (..., 2), dissipated: (..., 4)
    W in a stage, J in a step; as in `Trajectory`.
    """

    contacts: Array
    stops: Array
    work: Array
    dissipated: Array


class Solved(NamedTuple):
    """A step of `stick_slip`. v: (..., nv) at its end. Impulses: pushed (..., n), rubbed (..., nc, 2), held
    (..., nr, 3).
    """

    equation: Equation
    on: Supported
    v: Array
    pushed: Array
    rubbed: Array
    held: Array


class StickSlipSteps:
    """Steps of `stick_slip` with supports. sticking: what they solve without.

    Raises:
        FailedPreconditionError: The mass matrix is singular.
    """

    def __init__(self, robot: RobotQueries, task: Task, supports: Supports) -> None:
        self._task, self._supports = task, supports
        self.sticking = Sticking(robot, task)

    def solved(
        self,
        k: int,
        q: Array,
        v: Array,
        tau: Array,
        acting: list[Wrench] | None,
        on: Supported | None = None,
        braked: Array | None = None,
    ) -> Solved:
        """Step k of this part. on: the supports there, where they are known. braked: (nv,) velocities that brakes bring
        joints to, NaN where there is no brake; None is none at all.

        Raises:
            FailedPreconditionError: M is singular, or no velocities fit.
        """
        supports, sticking = self._supports, self.sticking
        equation, on = sticking.equation(q, v, tau, acting), supports.at(q, v) if on is None else on
        if braked is not None:
            equation = _braked(equation, braked)
        pushed = np.zeros(on.pushing.load.shape)
        rubbed = np.zeros((*v.shape[:-1], len(supports.points), 2))
        held = np.zeros((*v.shape[:-1], len(supports.rigid), 3))
        if on.pushing.load.shape[-1] + len(supports.rigid) == 0:
            reached = sticking.solved(k, equation)
        else:
            reached = np.empty(v.shape)
            for index in np.ndindex(v.shape[:-1]):
                try:
                    one = self._least(index, equation, v, on)
                except np.linalg.LinAlgError:
                    raise sticking.singular(k) from None
                if one is None:
                    raise sticking.lost(k)
                reached[index], pushed[index], rubbed[index] = one.v, one.pushing, one.rubbing
                held[index] = one.held.reshape(-1, 3)
        if braked is not None:
            reached = np.where(np.isnan(braked), reached, braked)
        return Solved(equation, on, reached, pushed, rubbed, held)

    def forces(self, found: Solved) -> Array:
        """(..., nc, 3) N of the contacts, mean over the step."""
        supports, dt = self._supports, self._task.dt
        soft = supports.forces(found.pushed[..., supports.joints :], found.rubbed)
        return supports.in_order(soft / dt, found.held / dt)

    def _least(self, index: tuple[int, ...], equation: Equation, v: Array, on: Supported) -> steps.Found | None:
        """The velocities of one state, with those of sticking joints exactly zero; None where they are not found.

        What each contact rubs with at most is what it pushes with, and that is found with the velocities: so they are
        found again, each time with the pushes of the time before, until these stay.
        """
        dt, nv, sticking, supports = self._task.dt, self._task.at.nv, self.sticking, self._supports
        friction = np.broadcast_to(sticking.friction, v.shape)[index]
        rubbing = np.flatnonzero(friction)
        pairs = np.zeros((len(rubbing), 2, nv))
        pairs[np.arange(len(rubbing)), 0, rubbing] = 1.0
        rows = np.concatenate([pairs, on.tangents[index]])
        pushing = Pushing(*(x[index] for x in on.pushing))
        pushers = steps.Pushers(pushing.rows, dt * pushing.load, dt * (pushing.damping + dt * pushing.stiffness))
        held = steps.HeldRows(
            on.held.J[index].reshape(3 * len(supports.rigid), nv),
            np.ravel(-on.held.gap[index][:, None] / supports.time * supports.rigid.normal),
        )
        joints, start = len(rubbing), v[index]
        bound = supports.bound(dt * pushing.forces(pushing.rows @ start))
        for _ in range(_MOST_PASSES):
            limits = np.concatenate([dt * friction[rubbing], bound])
            found = steps.velocities(
                equation.A[index], equation.r[index], start, pushers, steps.Rubbing(rows, limits), held
            )
            if found is None:
                return None
            before, bound, start = bound, supports.bound(found.pushing), found.v
            holds = found.sticks[joints:] & (np.sum(found.rubbing[joints:] ** 2, axis=-1) <= bound**2)
            if np.all(holds | (np.abs(bound - before) <= _SAME_PUSH * bound)):
                break
        assert found is not None
        found.v[rubbing[found.sticks[:joints]]] = 0.0
        return found._replace(rubbing=found.rubbing[joints:])


class SupportedSteps:
    """The steps of one motion, from its first state on.

    Raises:
        NotFoundError: A contact's link does not exist.
        InvalidArgumentError: No joint moves it.
        FailedPreconditionError: The mass matrix is singular.
    """

    def __init__(self, robot: RobotQueries, task: Task) -> None:
        self._robot, self._task = robot, task
        self._supports = Supports(robot, task)
        self._formula = INTEGRATORS.get(task.integrator)
        self._held_by = StickSlipSteps(robot, task, self._supports) if self._formula is None else None
        self._most = robot.limits.efforts if task.effort_limits else np.full(task.at.nv, np.inf)
        self._records: list[dict[str, Array]] = []
        self._share: Share | None = None
        self._seen: tuple[Array, Array, Supported] | None = None
        self._begin(task.v)

    def begin(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> None:
        """Takes down the first record, under what acts in the first step."""
        _, self._share = self._evaluated(q, v, np.clip(tau, -self._most, self._most), acting)
        self.record(-1, q, v)

    def step(self, k: int, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Array]:
        """The state after step k of this part, under those efforts, cut, and wrenches."""
        cut = np.clip(tau, -self._most, self._most)
        self._clamped += cut != tau
        if self._held_by is None:
            q, v, share = self._explicit(q, v, cut, acting)
        else:
            q, v, share = self._implicit(k, q, v, cut, acting, self._held_by)
        self._work += share.work
        self._dissipated += share.dissipated
        self._share = share
        return q, v

    def record(self, k: int, q: Array, v: Array) -> None:
        """Takes down what acted up to the end of step k, at that state.

        Raises:
            FailedPreconditionError: A force or an energy is no longer finite.
        """
        assert self._share is not None
        stored = self._supports.stored(self._at(q, v))
        found: dict[str, Array] = {
            "contact_forces": self._share.contacts,
            "stop_efforts": np.broadcast_to(self._share.stops, v.shape),
            "clamped": self._clamped,
            "work": self._work,
            "stored": np.broadcast_to(stored, (*v.shape[:-1], 2)),
            "dissipated": self._dissipated,
        }
        for name, array in found.items():
            if not np.isfinite(array).all() and np.isfinite(q).all() and np.isfinite(v).all():
                task = self._task
                end = (task.first_step + k + 1) * task.dt
                raise diverged(task.first_step + k + 1, end, f"{name.replace('_', ' ')} are no longer finite")
        self._records.append(found)
        self._begin(v)

    def account(self) -> dict[str, Array]:
        """The records, as fields of a `Trajectory`."""
        task = self._task
        wanted = {
            "contact_forces": bool(task.contacts),
            "stop_efforts": task.position_limits or task.velocity_limits,
            "clamped": task.effort_limits,
        }
        axes = {"contact_forces": -3}
        return {
            name: np.stack([record[name] for record in self._records], axis=axes.get(name, -2))
            for name in ("contact_forces", "stop_efforts", "clamped", "work", "stored", "dissipated")
            if wanted.get(name, True)
        }

    def _at(self, q: Array, v: Array) -> Supported:
        """Where the supports are; a step begins where a record was."""
        if self._seen is None or self._seen[0] is not q or self._seen[1] is not v:
            self._seen = q, v, self._supports.at(q, v)
        return self._seen[2]

    def _begin(self, v: Array) -> None:
        """A new record."""
        lead = v.shape[:-1]
        self._clamped, self._work, self._dissipated = np.zeros(v.shape), np.zeros((*lead, 2)), np.zeros((*lead, 4))

    def _evaluated(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Share]:
        """Accelerations at a state, and what acts."""
        robot, task, supports = self._robot, self._task, self._supports
        on = self._at(q, v)
        doing = supports.acting(on, v)
        efforts = tau + doing.efforts
        a = robot.forward_dynamics(q, v, efforts, gravity=task.gravity, wrenches=acting, method=task.method)
        taken, rigid = np.zeros(v.shape[:-1]), np.zeros((0, 3))
        if len(supports.rigid):
            a, rigid, taken = supports.holding(on, q, v, a)
        lost = [robot.passive_forces(q, v).dissipated, doing.lost[..., 0], doing.lost[..., 1] + taken, 0.0 * taken]
        share = Share(
            supports.in_order(doing.contacts, rigid),
            doing.stops,
            self._power(q, v, tau, acting),
            np.stack(np.broadcast_arrays(*lost), axis=-1),
        )
        return a, share

    def _power(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None, at: Array | None = None) -> Array:
        """(..., 2) W of efforts and of external wrenches, at velocities `at`, or v."""
        moved = v if at is None else at
        of_efforts = np.sum(tau * moved, axis=-1)
        if not acting:
            return np.stack([of_efforts, np.zeros_like(of_efforts)], axis=-1)
        gravity, still = self._task.gravity, np.zeros(self._task.at.nv)
        alone = self._robot.inverse_dynamics(q, v, still, gravity=gravity)
        pushed = self._robot.inverse_dynamics(q, v, still, gravity=gravity, wrenches=acting)
        return np.stack(np.broadcast_arrays(of_efforts, np.sum((alone - pushed) * moved, axis=-1)), axis=-1)

    def _explicit(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Array, Share]:
        """A step whose forces are those of its stages."""
        task = self._task
        stages: list[Share] = []

        def acceleration(q: Array, v: Array) -> Array:
            a, share = self._evaluated(q, v, tau, acting)
            stages.append(share)
            return a

        assert self._formula is not None
        q, v = self._formula(acceleration, q, v, task.dt, on=task.at)
        parts = zip(*stages, strict=True)
        weights = _WEIGHTS[task.integrator]
        mean = [sum(w * x for w, x in zip(weights, part, strict=True)) for part in parts]
        contacts, stops, work, dissipated = (np.asarray(x) for x in mean)
        return q, v, Share(contacts, stops, task.dt * work, task.dt * dissipated)

    def _implicit(
        self, k: int, q: Array, v: Array, tau: Array, acting: list[Wrench] | None, steps: StickSlipSteps
    ) -> tuple[Array, Array, Share]:
        """A step whose forces are those of its end."""
        task, dt, sticking, n = self._task, self._task.dt, steps.sticking, self._supports.joints
        found = steps.solved(k, q, v, tau, acting, self._at(q, v))
        equation, on, reached, pushed, rubbed, held = found
        pushing = on.pushing
        x = np.einsum("...mn,...n->...m", pushing.rows, reached)
        gained = pushing.stored(pushing.depth - dt * x) - pushing.stored(pushing.depth)
        lost = -pushed * x - gained
        across = np.einsum("...ckn,...n->...ck", on.tangents, reached)
        drifting = np.einsum("...cin,...n->...ci", on.held.J, reached)
        of_contacts = lost[..., n:].sum(axis=-1) - np.sum(rubbed * across, axis=(-2, -1))
        of_contacts = of_contacts - np.sum(held * drifting, axis=(-2, -1))
        change = reached - v
        dissipated = [
            dt * np.sum(sticking.damping * reached**2 + sticking.friction * np.abs(reached), axis=-1),
            lost[..., :n].sum(axis=-1),
            of_contacts,
            np.sum(change * np.einsum("...ij,...j->...i", equation.M, change), axis=-1) / 2.0,
        ]
        share = Share(
            steps.forces(found),
            np.einsum("...mn,...m->...n", pushing.rows[..., :n, :], pushed[..., :n]) / dt,
            dt * self._power(q, v, tau, acting, at=reached),
            np.stack(dissipated, axis=-1),
        )
        return *moved(task.at, q, reached, dt), share


def _braked(equation: Equation, braked: Array) -> Equation:
    """With brakes as inertia beside which nothing else counts, and which comes to these velocities."""
    more = heavy(equation.M, braked)
    return equation._replace(A=equation.A + more, r=equation.r + more @ np.nan_to_num(braked))


_YIELD = 1e-6
"""R of a held direction, as a share of what one unit of impulse moves it by."""

_MOST_ITERATIONS = 200
_MOST_TRIES = 40
"""Along one step."""

_SETTLED = 1e-22
"""Share of the step's energy below which what an iteration changes is rounding: of velocities 1e-11."""

_ROUNDED = 1e4
"""How much above that an iteration may end that changes no less than one before."""

_ENOUGH = 0.1
"""Share of the slope at which a search along a step ends."""

_TINY = 1e-300


class Pushers(NamedTuple):
    """rows: (m, n). most: (m,) l, impulses at x = 0. slope: (m,) K, more than 0."""

    rows: Array
    most: Array
    slope: Array

    def impulses(self, x: Array) -> Array:
        """(m,) at velocities x."""
        return np.maximum(self.most - self.slope * x, 0.0)


class Rubbing(NamedTuple):
    """rows: (p, 2, n). bound: (p,) g, impulses, at least 0."""

    rows: Array
    bound: Array


class HeldRows(NamedTuple):
    """rows: (s, n). target: (s,) velocities x_0."""

    rows: Array
    target: Array


class Found(NamedTuple):
    """v: (n,). pushing: (m,), rubbing: (p, 2), held: (s,) impulses on the robot along the rows. sticks: (p,)."""

    v: Array
    pushing: Array
    rubbing: Array
    held: Array
    sticks: NDArray[np.bool_]


def velocities(A: Array, r: Array, start: Array, push: Pushers, rub: Rubbing, held: HeldRows) -> Found | None:
    """v' of this module's docstring for one state, and the impulses; None where it is not found.

    Args:
        A: (n, n), symmetric, positive definite.
        r: (n,) N m s | N s.
        start: (n,) where to look first.
        push: What pushes one way.
        rub: What rubs.
        held: What is held.

    Raises:
        np.linalg.LinAlgError: A is singular.
    """
    everything = (A, r, start, *push, *rub, *held)
    if not isfinite(sum(float(x.sum()) for x in everything)):  # a motion that diverges
        sizes = (r.shape, push.most.shape, rub.rows.shape[:2], held.target.shape)
        v, pushing, rubbing, holding = (np.full(size, np.nan) for size in sizes)
        return Found(v, pushing, rubbing, holding, np.zeros(len(rub.bound), dtype=bool))
    inverse = np.asarray(np.linalg.inv(A), dtype=np.float64)
    laws = _Laws.of(inverse, push, rub, held)
    enough = _SETTLED * float(r @ inverse @ r)
    v, least = laws.guess(A, r, laws.rows @ start), np.inf
    for _ in range(_MOST_ITERATIONS):
        x = laws.rows @ v
        g = A @ v - r - laws.impulses(x) @ laws.rows
        p = -np.linalg.solve(A + laws.curvature(x), g)
        left = -float(g @ p)
        if left <= enough or (left >= least and left <= _ROUNDED * enough):
            return laws.found(v, x)
        least = min(least, left)
        v = v + _along(laws, x, laws.rows @ p, float(p @ (A @ v - r)), float(p @ A @ p), left) * p
    return None


@dataclass(frozen=True, eq=False)
class _Laws:
    """All rows, one below the other: pushers, the pairs' first and second rows, held ones; and their impulses."""

    rows: Array
    push: Pushers
    bound: Array
    epsilon: Array
    stiff: Array
    target: Array

    @classmethod
    def of(cls, inverse: Array, push: Pushers, rub: Rubbing, held: HeldRows) -> _Laws:
        rows = np.concatenate([push.rows, rub.rows[:, 0], rub.rows[:, 1], held.rows])
        ease = np.sum((rows @ inverse) * rows, axis=-1)
        m, p = len(push.most), len(rub.bound)
        of_pairs = (ease[m : m + p] + ease[m + p : m + 2 * p]) / 2.0
        epsilon = np.maximum(_YIELD * of_pairs * rub.bound, _TINY)
        return cls(rows, push, rub.bound, epsilon, 1.0 / np.maximum(_YIELD * ease[m + 2 * p :], _TINY), held.target)

    def parts(self, x: Array) -> tuple[Array, Array, Array]:
        """Of velocities along the rows, those of pushers, of pairs, (2, p), and of what is held."""
        m, p = len(self.push.most), len(self.bound)
        return x[:m], x[m : m + 2 * p].reshape(2, p), x[m + 2 * p :]

    def impulses(self, x: Array) -> Array:
        """On the robot, along each row."""
        away, across, off = self.parts(x)
        rubbing = -across * (self.bound / np.maximum(_lengths(across), self.epsilon))
        return np.concatenate([self.push.impulses(away), rubbing.ravel(), -self.stiff * (off - self.target)])

    def guess(self, A: Array, r: Array, x: Array) -> Array:
        """v' if what pushes, and what is too fast to be held by one step, were the same as at velocities x."""
        away, across, _ = self.parts(x)
        speed = _lengths(across)
        slides = speed > self.epsilon / _YIELD
        stick = np.where(slides, 0.0, self.bound / self.epsilon)
        rubbing = -across * np.where(slides, self.bound / np.maximum(speed, _TINY), 0.0)
        pushes = self.push.impulses(away) > 0.0
        slopes = np.concatenate([np.where(pushes, self.push.slope, 0.0), stick, stick, self.stiff])
        most = np.concatenate([np.where(pushes, self.push.most, 0.0), rubbing.ravel(), self.stiff * self.target])
        found: Array = np.linalg.solve(A + (self.rows.T * slopes) @ self.rows, r + most @ self.rows)
        return found

    def curvature(self, x: Array) -> Array:
        """(n, n), how the impulses change with the velocities, in those of the joints; with the sign of A."""
        away, across, _ = self.parts(x)
        m, p = len(self.push.most), len(self.bound)
        diagonal = np.empty(len(x))
        diagonal[:m] = np.where(self.push.impulses(away) > 0.0, self.push.slope, 0.0)
        diagonal[m + 2 * p :] = self.stiff
        speed = _lengths(across)
        slope = self.bound / np.maximum(speed, self.epsilon)
        slides = speed > self.epsilon
        first, second = np.where(slides, across / np.maximum(speed, self.epsilon), 0.0)
        diagonal[m : m + p], diagonal[m + p : m + 2 * p] = slope * (1.0 - first**2), slope * (1.0 - second**2)
        mixed = (self.rows[m : m + p].T * (slope * first * second)) @ self.rows[m + p : m + 2 * p]
        found: Array = (self.rows.T * diagonal) @ self.rows - mixed - mixed.T
        return found

    def found(self, v: Array, x: Array) -> Found:
        pushing, rubbing, held = self.parts(self.impulses(x))
        _, across, _ = self.parts(x)
        return Found(v, pushing, rubbing.T, held, _lengths(across) <= self.epsilon)


def _along(laws: _Laws, x: Array, dx: Array, linear: float, square: float, left: float) -> float:
    """How far to go from velocities x along dx: where the slope is near zero, by false position with bisection.

    Args:
        laws: The impulses.
        x: Along the rows.
        dx: Their change.
        linear: The slope of what is no impulse, where the search begins.
        square: How it changes.
        left: The slope there, its sign changed.
    """

    def slope(share: float) -> float:
        return linear + share * square - float(laws.impulses(x + share * dx) @ dx)

    low, high, at_low, at_high = 0.0, 1.0, -left, slope(1.0)
    if at_high <= _ENOUGH * left:
        return 1.0
    for k in range(_MOST_TRIES):
        middle = (low * at_high - high * at_low) / (at_high - at_low) if k % 3 else 0.5 * (low + high)
        at_middle = slope(middle)
        if abs(at_middle) <= _ENOUGH * left:
            return middle
        if at_middle < 0.0:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return high if low == 0.0 else low


def _lengths(across: Array) -> Array:
    """(p,), of (2, p)."""
    return np.asarray(np.sqrt(across[0] ** 2 + across[1] ** 2))
