"""Steps of a simulation with limits and contacts, with the record of forces and the energy balance.

    E' - E + stored' - stored = work - dissipated        of each step, to the order of the step

E is the robot's energy, including springs of its joints. Explicit steps evaluate the forces of `supports.py` at each
stage and weight powers like accelerations, so that the balance has the order of the motion: fourth for RK4, if no
contact begins or ends. A step of `stick_slip` solves for velocities and forces together; its numerical loss,
(v' - v)^T M (v' - v) / 2 - h^2 v'^T k v / 2, is an entry of the balance. The change of M and of the gaps within a step
is not accounted for; it vanishes with the step.

`stick_slip` with contacts solves one convex minimisation per state and step (`velocities`):

    v' = argmin  v^T A v / 2 - v^T r                                       A, r: see `stick_slip.py`
                 + sum over one-sided supports of  (l - K x)+^2 / (2 K)    x = rows v: impulse (l - K x)+
                 + sum over friction pairs of  g |x|                       impulse g x / |x|, or sticking
                 + sum over held rows of  (x - x_0)^2 / (2 R)

Each term is convex, so v' is unique; it is found by Newton's method with line search. A friction pair is the two
tangents of a contact, or a joint; |x| is smoothed below R g, with R = 1e-6 of the pair's inverse inertia: sticking
points creep by 1e-6 of the velocity that one step would give them alone (nanometres per second), and redundant contacts
have a unique solution. The bound g = mu times the normal impulse is part of the solution, so steps are solved
repeatedly until both agree.

Cost: O(n^3) per iteration, 2 to 10 iterations per step, in NumPy: some 0.1 ms per state. Source: A. M. Castro, F. N.
Permenter, X. Han, 2022; for the bound of friction A. M. Castro et al., 2023, 'lagged'. Checked by
tests/simulation/test_cones.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.model.steps import STEPS, WEIGHTS
from dyn_service.simulation.contact.supports import Pushing, Supported, Supports, heavy
from dyn_service.simulation.divergence import diverged
from dyn_service.simulation.integrators.stick_slip import Equation, Sticking, moved
from dyn_service.simulation.task import Task

_MAX_PASSES, _SAME_PUSH = 10, 1e-3
"""Maximum number of solutions of a `stick_slip` step, until friction bounds match the normal forces, and the relative
tolerance of normal forces.
"""


class Share(NamedTuple):
    """Forces and powers of a stage or a step. contacts: (..., nc, 3) N. stops: (..., nv). work: (..., 2), dissipated:
    (..., 4), W in a stage, J in a step; as in `Trajectory`.
    """

    contacts: Array
    stops: Array
    work: Array
    dissipated: Array


class Solved(NamedTuple):
    """The solution of a `stick_slip` step. v: (..., nv) at its end. Impulses: pushed (..., n) of one-sided supports,
    rubbed (..., nc, 2) of friction, held (..., nr, 3) of rigid contacts.
    """

    equation: Equation
    on: Supported
    v: Array
    pushed: Array
    rubbed: Array
    held: Array


class StickSlipSteps:
    """Steps of `stick_slip` with supports. sticking: the steps without supports."""

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
        """Returns the solution of step k of this part; errors as `Sticking.step`.

        on: the supports at its start, if known. braked: (nv,) velocities that brakes enforce, NaN for joints without a
        brake; None: no brake.
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
        """Returns the contact forces (..., nc, 3) N, averaged over the step."""
        supports, dt = self._supports, self._task.dt
        soft = supports.forces(found.pushed[..., supports.joints :], found.rubbed)
        return supports.in_order(soft / dt, found.held / dt)

    def _least(self, index: tuple[int, ...], equation: Equation, v: Array, on: Supported) -> Found | None:
        """Returns the velocities of one state, with exactly zero for sticking joints; None if the iteration fails.

        Friction is bounded by normal forces, which are part of the solution: the step is solved repeatedly with the
        normal forces of the previous solution until they no longer change.
        """
        dt, nv, sticking, supports = self._task.dt, self._task.at.nv, self.sticking, self._supports
        friction = np.broadcast_to(sticking.friction, v.shape)[index]
        rubbing = np.flatnonzero(friction)
        pairs = np.zeros((len(rubbing), 2, nv))
        pairs[np.arange(len(rubbing)), 0, rubbing] = 1.0
        rows = np.concatenate([pairs, on.tangents[index]])
        pushing = Pushing(*(x[index] for x in on.pushing))
        pushers = Pushers(pushing.rows, dt * pushing.load, dt * (pushing.damping + dt * pushing.stiffness))
        held = HeldRows(
            on.held.J[index].reshape(3 * len(supports.rigid), nv),
            np.ravel(-on.held.gap[index][:, None] / supports.time * supports.rigid.normal),
        )
        joints, start = len(rubbing), v[index]
        bound = supports.bound(dt * pushing.forces(pushing.rows @ start))
        for _ in range(_MAX_PASSES):
            limits = np.concatenate([dt * friction[rubbing], bound])
            found = velocities(equation.A[index], equation.r[index], start, pushers, Rubbing(rows, limits), held)
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
    """The steps of one simulation; errors as `Supports`."""

    def __init__(self, robot: RobotQueries, task: Task) -> None:
        self._robot, self._task = robot, task
        self._supports = Supports(robot, task)
        self._formula = STEPS.get(task.integrator)
        self._held_by = StickSlipSteps(robot, task, self._supports) if self._formula is None else None
        self._most = robot.limits.efforts if task.effort_limits else np.full(task.at.nv, np.inf)
        self._records: list[dict[str, Array]] = []
        self._share: Share | None = None
        self._seen: tuple[Array, Array, Supported] | None = None
        self._begin(task.v)

    def begin(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> None:
        """Records the initial state, under the loads of the first step."""
        _, self._share = self._evaluated(q, v, np.clip(tau, -self._most, self._most), acting)
        self.record(-1, q, v)

    def step(self, k: int, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Array]:
        """Returns the state after step k of this part, under limited efforts and wrenches."""
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
        """Records the forces up to the end of step k, at the given state.

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
        """Returns the records as fields of a `Trajectory`."""
        task = self._task
        wanted = {
            "contact_forces": bool(task.contacts),
            "stop_efforts": task.position_limits or task.velocity_limits,
            "clamped": task.effort_limits,
        }
        return {
            name: np.stack([record[name] for record in self._records], axis=-3 if name == "contact_forces" else -2)
            for name in self._records[0]
            if wanted.get(name, True)
        }

    def _at(self, q: Array, v: Array) -> Supported:
        """Returns the supports at a state; a step may start at a recorded state."""
        if self._seen is None or self._seen[0] is not q or self._seen[1] is not v:
            self._seen = q, v, self._supports.at(q, v)
        return self._seen[2]

    def _begin(self, v: Array) -> None:
        """Starts a new record."""
        lead = v.shape[:-1]
        self._clamped, self._work, self._dissipated = np.zeros(v.shape), np.zeros((*lead, 2)), np.zeros((*lead, 4))

    def _evaluated(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Share]:
        """Returns accelerations at a state, with forces and powers."""
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
        """Returns the powers (..., 2) W of efforts and external wrenches, at velocities `at`, or v."""
        moved = v if at is None else at
        of_efforts = np.sum(tau * moved, axis=-1)
        if not acting:
            return np.stack([of_efforts, np.zeros_like(of_efforts)], axis=-1)
        gravity, still = self._task.gravity, np.zeros(self._task.at.nv)
        alone = self._robot.inverse_dynamics(q, v, still, gravity=gravity)
        pushed = self._robot.inverse_dynamics(q, v, still, gravity=gravity, wrenches=acting)
        return np.stack(np.broadcast_arrays(of_efforts, np.sum((alone - pushed) * moved, axis=-1)), axis=-1)

    def _explicit(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Array, Share]:
        """Makes a step with the forces at its stages."""
        task = self._task
        stages: list[Share] = []

        def acceleration(q: Array, v: Array) -> Array:
            a, share = self._evaluated(q, v, tau, acting)
            stages.append(share)
            return a

        assert self._formula is not None
        q, v = self._formula(acceleration, q, v, task.dt, on=task.at)
        weights = WEIGHTS[task.integrator]
        parts = zip(*stages, strict=True)
        mean = Share(*(np.asarray(sum(w * x for w, x in zip(weights, part, strict=True))) for part in parts))
        return q, v, mean._replace(work=task.dt * mean.work, dissipated=task.dt * mean.dissipated)

    def _implicit(
        self, k: int, q: Array, v: Array, tau: Array, acting: list[Wrench] | None, steps: StickSlipSteps
    ) -> tuple[Array, Array, Share]:
        """Makes a step with the forces at its end."""
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
        change, pulled = reached - v, dt**2 * sticking.stiffness * reached * v
        dissipated = [
            dt * np.sum(sticking.damping * reached**2 + sticking.friction * np.abs(reached), axis=-1),
            lost[..., :n].sum(axis=-1),
            of_contacts,
            np.sum(change * np.einsum("...ij,...j->...i", equation.M, change) - pulled, axis=-1) / 2.0,
        ]
        share = Share(
            steps.forces(found),
            np.einsum("...mn,...m->...n", pushing.rows[..., :n, :], pushed[..., :n]) / dt,
            dt * self._power(q, v, tau, acting, at=reached),
            np.stack(dissipated, axis=-1),
        )
        return *moved(task.at, q, reached, dt), share


def _braked(equation: Equation, braked: Array) -> Equation:
    """Adds brakes as a dominating inertia with prescribed velocities."""
    more = heavy(equation.M, braked)
    return equation._replace(A=equation.A + more, r=equation.r + more @ np.nan_to_num(braked))


_YIELD = 1e-6
"""Regularisation of a held direction, relative to its inverse inertia."""

_MAX_ITERATIONS, _MAX_TRIES = 200, 40
"""Maximum number of iterations, and of those of the line search."""

_SETTLED, _ROUNDED = 1e-22, 1e4
"""Fraction of the step's energy below which a change is rounding: 1e-11 of the velocities; and the factor on it within
which an iteration may stop if it no longer improves.
"""

_ENOUGH = 0.1
"""Relative slope at which a line search ends."""

_TINY = 1e-300


class Pushers(NamedTuple):
    """rows: (m, n). most: (m,) l, impulses at x = 0. slope: (m,) K, more than 0."""

    rows: Array
    most: Array
    slope: Array

    def impulses(self, x: Array) -> Array:
        """Returns the impulses (m,) at velocities x."""
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
    """Returns v' of this module's docstring for one state, and the impulses; None if the iteration fails.

    A: (n, n), symmetric, positive definite. r: (n,) N m s | N s. start: (n,) initial guess.

    Raises:
        np.linalg.LinAlgError: A is singular.
    """
    everything = (A, r, start, *push, *rub, *held)
    if not isfinite(sum(float(x.sum()) for x in everything)):  # the motion diverges
        sizes = (r.shape, push.most.shape, rub.rows.shape[:2], held.target.shape)
        v, pushing, rubbing, holding = (np.full(size, np.nan) for size in sizes)
        return Found(v, pushing, rubbing, holding, np.zeros(len(rub.bound), dtype=bool))
    inverse = np.asarray(np.linalg.inv(A), dtype=np.float64)
    laws = _Laws.of(inverse, push, rub, held)
    enough = _SETTLED * float(r @ inverse @ r)
    v, least = laws.guess(A, r, laws.rows @ start), np.inf
    for _ in range(_MAX_ITERATIONS):
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
    """All rows, stacked: one-sided supports, first and second rows of friction pairs, held directions; and their
    impulses.
    """

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
        """Splits velocities along the rows into those of supports, of pairs (2, p), and of held directions."""
        m, p = len(self.push.most), len(self.bound)
        return x[:m], x[m : m + 2 * p].reshape(2, p), x[m + 2 * p :]

    def impulses(self, x: Array) -> Array:
        """Returns the impulses on the robot along each row."""
        away, across, off = self.parts(x)
        rubbing = -across * (self.bound / np.maximum(_lengths(across), self.epsilon))
        return np.concatenate([self.push.impulses(away), rubbing.ravel(), -self.stiff * (off - self.target)])

    def guess(self, A: Array, r: Array, x: Array) -> Array:
        """Returns v' for fixed active supports and sliding pairs, those at velocities x."""
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
        """Returns (n, n), the negative derivative of the impulses with respect to joint velocities."""
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
    """Returns the step length along dx at which the slope is near zero, by false position with bisection.

    x: velocities along the rows. linear, square: the slope of the quadratic part at the start, and its change. left:
    the negative slope at the start.
    """

    def slope(share: float) -> float:
        return linear + share * square - float(laws.impulses(x + share * dx) @ dx)

    low, high, at_low, at_high = 0.0, 1.0, -left, slope(1.0)
    if at_high <= _ENOUGH * left:
        return 1.0
    for k in range(_MAX_TRIES):
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
    """Returns the lengths (p,) of (2, p)."""
    return np.asarray(np.sqrt(across[0] ** 2 + across[1] ** 2))
