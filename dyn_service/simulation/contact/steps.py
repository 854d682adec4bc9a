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
from dyn_service.simulation.contact.supports import Pushing, Supports, SupportState, heavy
from dyn_service.simulation.divergence import diverged
from dyn_service.simulation.integrators.stick_slip import (
    Equation,
    ExtrapolatedSticking,
    Sticking,
    StickingStep,
    after_step,
    passive_forces_of,
)
from dyn_service.simulation.task import Task

_DEPENDENT = 1e-9
"""Smallest singular value, relative to the largest, of the rows of sticking joints that are held."""

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


class StepSolution(NamedTuple):
    """The solution of a `stick_slip` step. v: (..., nv) at its end. Impulses: normal (..., n) of one-sided supports,
    friction (..., nc, 2), rigid (..., nr, 3) of rigid contacts.
    """

    equation: Equation
    support: SupportState
    v: Array
    normal: Array
    friction: Array
    rigid: Array


class StickSlipSteps:
    """Steps of `stick_slip` with supports, or of robots with closed loops. sticking: the steps without them.

    parts: as for `Sticking`.
    """

    def __init__(self, robot: RobotQueries, task: Task, supports: Supports, parts: int | None = None) -> None:
        self._task, self._supports = task, supports
        self.sticking = Sticking(robot, task, parts)
        self._dt = self.sticking.dt

    def solve(
        self,
        k: int,
        q: Array,
        v: Array,
        tau: Array,
        wrenches: list[Wrench] | None,
        support: SupportState | None = None,
        brakes: Array | None = None,
    ) -> StepSolution:
        """Returns the solution of step k of this part; errors as `Sticking.step`.

        support: the supports at its start, if known. brakes: (nv,) velocities that brakes enforce, NaN for joints
        without a brake; None: no brake.
        """
        supports, sticking = self._supports, self.sticking
        equation = sticking.equation(q, v, tau, wrenches)
        support = supports.state(q, v) if support is None else support
        if brakes is not None:
            # a dominating inertia whose velocity is prescribed: the equation keeps its size and its matrix its symmetry
            inertia = heavy(equation.M, brakes)
            equation = equation._replace(A=equation.A + inertia, r=equation.r + inertia @ np.nan_to_num(brakes))
        normal = np.zeros(support.pushing.load.shape)
        friction = np.zeros((*v.shape[:-1], len(supports.points), 2))
        rigid = np.zeros((*v.shape[:-1], len(supports.rigid), 3))
        if support.pushing.load.shape[-1] + len(supports.rigid) == 0 and equation.N is None:
            v_end = sticking.solve(k, equation)
        else:
            v_end = np.empty(v.shape)
            for index in np.ndindex(v.shape[:-1]):
                try:
                    solution = self._solution(index, equation, v, support)
                except np.linalg.LinAlgError:
                    raise sticking.singular(k) from None
                if solution is None:
                    raise sticking.not_converged(k)
                v_end[index], normal[index], friction[index] = solution.v, solution.normal, solution.friction
                rigid[index] = solution.rigid.reshape(-1, 3)
        if brakes is not None:
            v_end = np.where(np.isnan(brakes), v_end, brakes)
        return StepSolution(equation, support, v_end, normal, friction, rigid)

    def forces(self, solution: StepSolution) -> Array:
        """Returns the contact forces (..., nc, 3) N, averaged over the step."""
        supports, dt = self._supports, self._dt
        soft = supports.forces(solution.normal[..., supports.joints :], solution.friction)
        return supports.in_order(soft / dt, solution.rigid / dt)

    def _solution(self, index: tuple[int, ...], equation: Equation, v: Array, support: SupportState) -> Solution | None:
        """Returns the velocities of one state, with exactly zero for sticking joints; None if the iteration fails.

        Friction is bounded by normal forces, which are part of the solution: the step is solved repeatedly with the
        normal forces of the previous solution until they no longer change.
        """
        dt, nv, sticking, supports = self._dt, self._task.configuration.nv, self.sticking, self._supports
        friction = np.broadcast_to(sticking.friction, v.shape)[index]
        rubbing = np.flatnonzero(friction)
        pairs = np.zeros((len(rubbing), 2, nv))
        pairs[np.arange(len(rubbing)), 0, rubbing] = 1.0
        rows = np.concatenate([pairs, support.tangents[index]])
        pushing = Pushing(*(x[index] for x in support.pushing))
        pushers = OneSided(pushing.rows, dt * pushing.load, dt * (pushing.damping + dt * pushing.stiffness))
        drift = -support.rigid.gap[index][:, None] / supports.time * supports.rigid.normal
        rigid = HeldRows(support.rigid.J[index].reshape(3 * len(supports.rigid), nv), np.ravel(drift))
        A, r, n_joints, v_guess = equation.A[index], equation.r[index], len(rubbing), v[index]
        N = None if equation.N is None else equation.N[index]
        if N is not None:  # the same in y, with v' = N y
            N = N[:, N.any(axis=0)]
            A, r, v_guess = N.T @ A @ N, N.T @ r, np.linalg.lstsq(N, v_guess, rcond=None)[0]
            rows, rigid = rows @ N, rigid._replace(rows=rigid.rows @ N)
            pushing = pushing._replace(rows=pushing.rows @ N)
            pushers = pushers._replace(rows=pushing.rows)
        limit = supports.friction_limit(dt * pushing.forces(pushing.rows @ v_guess))
        # the bound of the step's beginning alone would let an impact rub with 0.98 of its normal impulse at mu = 0.8
        for _ in range(_MAX_PASSES):
            sliding = FrictionPairs(rows, np.concatenate([dt * friction[rubbing], limit]))
            solution = velocities(A, r, v_guess, pushers, sliding, rigid)
            if solution is None:
                return None
            previous, limit, v_guess = limit, supports.friction_limit(solution.normal), solution.v
            consistent = solution.sticks[n_joints:] & (np.sum(solution.friction[n_joints:] ** 2, axis=-1) <= limit**2)
            if np.all(consistent | (np.abs(limit - previous) <= _SAME_PUSH * limit)):
                break
        assert solution is not None
        sticks = solution.sticks[:n_joints]
        v_end = solution.v
        if N is not None:
            # Sticking joints creep; the motion without their creeping keeps the loops closed.
            held = rows[:n_joints][sticks, 0]
            y = v_end - np.linalg.pinv(held, rcond=_DEPENDENT) @ (held @ v_end)
            at_rest = np.abs(y).max(initial=0.0) <= _DEPENDENT * np.abs(v_end).max(initial=0.0)
            v_end = np.zeros(nv) if at_rest else N @ y
        v_end[rubbing[sticks]] = 0.0
        return solution._replace(v=v_end, friction=solution.friction[n_joints:])


class _ClosedSticking:
    """Steps of `stick_slip` of a robot with closed loops and without supports. parts: as for `Sticking`."""

    def __init__(self, robot: RobotQueries, task: Task, parts: int | None) -> None:
        self._robot, self._configuration = robot, task.configuration
        self._steps = StickSlipSteps(robot, task, Supports(robot, task), parts)

    def step(self, k: int, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> tuple[Array, Array]:
        loops, dt = self._robot.closed_motion, self._steps.sticking.dt
        assert loops is not None
        loops.check_efforts(tau)
        return loops.closed_state(*after_step(self._configuration, q, self._steps.solve(k, q, v, tau, wrenches).v, dt))


def closed_sticking(robot: RobotQueries, task: Task) -> StickingStep:
    """Returns the steps of `stick_slip` of a robot with closed loops; extrapolated if the task has two substeps."""
    if task.substeps == 1:
        return _ClosedSticking(robot, task, None)
    whole, half = (_ClosedSticking(robot, task, parts) for parts in (1, 2))
    return ExtrapolatedSticking(task.configuration, whole, half)


class SupportedSteps:
    """The steps of one simulation; errors as `Supports`."""

    def __init__(self, robot: RobotQueries, task: Task) -> None:
        self._robot, self._task = robot, task
        self._supports = Supports(robot, task)
        self._formula = STEPS.get(task.integrator)
        self._stick_slip = StickSlipSteps(robot, task, self._supports) if self._formula is None else None
        self._effort_limit = robot.limits.efforts if task.effort_limits else np.full(task.configuration.nv, np.inf)
        self._records: list[dict[str, Array]] = []
        self._share: Share | None = None
        self._support_cache: tuple[Array, Array, SupportState] | None = None
        self._start_record(task.v)

    def begin(self, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> None:
        """Records the initial state, under the loads of the first step."""
        _, self._share = self._evaluate(q, v, np.clip(tau, -self._effort_limit, self._effort_limit), wrenches)
        self.record(-1, q, v)

    def step(self, k: int, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> tuple[Array, Array]:
        """Returns the state after step k of this part, under limited efforts and wrenches."""
        limited = np.clip(tau, -self._effort_limit, self._effort_limit)
        self._clamped += limited != tau
        if self._stick_slip is None:
            q, v, share = self._explicit(q, v, limited, wrenches)
        else:
            q, v, share = self._implicit(k, q, v, limited, wrenches, self._stick_slip)
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
        energy = self._supports.stored_energy(self._support_state(q, v))
        values: dict[str, Array] = {
            "contact_forces": self._share.contacts,
            "stop_efforts": np.broadcast_to(self._share.stops, v.shape),
            "clamped": self._clamped,
            "work": self._work,
            "stored": np.broadcast_to(energy, (*v.shape[:-1], 2)),
            "dissipated": self._dissipated,
        }
        for name, array in values.items():
            if not np.isfinite(array).all() and np.isfinite(q).all() and np.isfinite(v).all():
                task = self._task
                end_s = (task.first_step + k + 1) * task.dt
                raise diverged(task.first_step + k + 1, end_s, f"{name.replace('_', ' ')} are no longer finite")
        self._records.append(values)
        self._start_record(v)

    def account(self) -> dict[str, Array]:
        """Returns the records as fields of a `Trajectory`."""
        task = self._task
        requested = {
            "contact_forces": bool(task.contacts),
            "stop_efforts": task.position_limits or task.velocity_limits,
            "clamped": task.effort_limits,
        }
        return {
            name: np.stack([record[name] for record in self._records], axis=-3 if name == "contact_forces" else -2)
            for name in self._records[0]
            if requested.get(name, True)
        }

    def _support_state(self, q: Array, v: Array) -> SupportState:
        """Returns the supports at a state; a step may start at a recorded state."""
        if self._support_cache is None or self._support_cache[0] is not q or self._support_cache[1] is not v:
            self._support_cache = q, v, self._supports.state(q, v)
        return self._support_cache[2]

    def _start_record(self, v: Array) -> None:
        """Starts a new record."""
        lead = v.shape[:-1]
        self._clamped, self._work, self._dissipated = np.zeros(v.shape), np.zeros((*lead, 2)), np.zeros((*lead, 4))

    def _evaluate(self, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> tuple[Array, Share]:
        """Returns accelerations at a state, with forces and powers."""
        robot, task, supports = self._robot, self._task, self._supports
        if robot.closed_motion is not None:
            robot.closed_motion.check_efforts(tau)
            q, v = robot.closed_motion.closed_state(q, v)
        support = self._support_state(q, v)
        forces = supports.evaluate(support, v)
        efforts = tau + forces.efforts
        if robot.closed_motion is not None:
            a = robot.closed_motion.accelerations(q, v, efforts, gravity=task.gravity, wrenches=wrenches)
        else:
            a = robot.forward_dynamics(q, v, efforts, gravity=task.gravity, wrenches=wrenches, method=task.method)
        rigid_loss, rigid = np.zeros(v.shape[:-1]), np.zeros((0, 3))
        if len(supports.rigid):
            a, rigid, rigid_loss = supports.with_rigid(support, q, v, a)
        joint_loss, (stop_loss, contact_loss) = (
            passive_forces_of(robot)(q, v).dissipated,
            np.moveaxis(forces.loss, -1, 0),
        )
        losses = [joint_loss, stop_loss, contact_loss + rigid_loss, 0.0 * rigid_loss]
        dissipated, power = np.stack(np.broadcast_arrays(*losses), axis=-1), self._power(q, v, tau, wrenches, v)
        share = Share(supports.in_order(forces.contacts, rigid), forces.stops, power, dissipated)
        return a, share

    def _power(self, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None, speeds: Array) -> Array:
        """Returns the powers (..., 2) W of efforts and external wrenches at a state, weighted with `speeds`."""
        effort_power = np.sum(tau * speeds, axis=-1)
        if not wrenches:
            return np.stack([effort_power, np.zeros_like(effort_power)], axis=-1)
        if self._robot.closed_motion is not None:
            wrench_power = np.sum(self._robot.closed_motion.efforts_of(q, wrenches) * speeds, axis=-1)
            return np.stack(np.broadcast_arrays(effort_power, wrench_power), axis=-1)
        gravity, no_acceleration = self._task.gravity, np.zeros(self._task.configuration.nv)
        unloaded = self._robot.inverse_dynamics(q, v, no_acceleration, gravity=gravity)
        loaded = self._robot.inverse_dynamics(q, v, no_acceleration, gravity=gravity, wrenches=wrenches)
        return np.stack(np.broadcast_arrays(effort_power, np.sum((unloaded - loaded) * speeds, axis=-1)), axis=-1)

    def _explicit(self, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> tuple[Array, Array, Share]:
        """Makes a step with the forces at its stages."""
        task = self._task
        stages: list[Share] = []

        def acceleration(q: Array, v: Array) -> Array:
            a, share = self._evaluate(q, v, tau, wrenches)
            stages.append(share)
            return a

        assert self._formula is not None
        q, v = self._formula(acceleration, q, v, task.dt, on=task.configuration)
        weights = WEIGHTS[task.integrator]
        parts = zip(*stages, strict=True)
        mean = Share(*(np.asarray(sum(w * x for w, x in zip(weights, part, strict=True))) for part in parts))
        return q, v, mean._replace(work=task.dt * mean.work, dissipated=task.dt * mean.dissipated)

    def _implicit(
        self, k: int, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None, steps: StickSlipSteps
    ) -> tuple[Array, Array, Share]:
        """Makes a step with the forces at its end."""
        task, dt, sticking, n = self._task, self._task.dt, steps.sticking, self._supports.joints
        solution = steps.solve(k, q, v, tau, wrenches, self._support_state(q, v))
        equation, support, v_end, normal, friction, rigid = solution
        pushing = support.pushing
        x = np.einsum("...mn,...n->...m", pushing.rows, v_end)
        stored_change = pushing.stored_energy(pushing.depth - dt * x) - pushing.stored_energy(pushing.depth)
        loss = -normal * x - stored_change
        tangential_v = np.einsum("...ckn,...n->...ck", support.tangents, v_end)
        rigid_v = np.einsum("...cin,...n->...ci", support.rigid.J, v_end)
        contact_loss = loss[..., n:].sum(axis=-1) - np.sum(friction * tangential_v, axis=(-2, -1))
        contact_loss = contact_loss - np.sum(rigid * rigid_v, axis=(-2, -1))
        change, spring_work = v_end - v, dt**2 * sticking.stiffness * v_end * v
        dissipated = [
            dt * np.sum(sticking.damping * v_end**2 + sticking.friction * np.abs(v_end), axis=-1),
            loss[..., :n].sum(axis=-1),
            contact_loss,
            np.sum(change * np.einsum("...ij,...j->...i", equation.M, change) - spring_work, axis=-1) / 2.0,
        ]
        share = Share(
            steps.forces(solution),
            np.einsum("...mn,...m->...n", pushing.rows[..., :n, :], normal[..., :n]) / dt,
            dt * self._power(q, v, tau, wrenches, v_end),
            np.stack(dissipated, axis=-1),
        )
        return *after_step(task.configuration, q, v_end, dt), share


_YIELD = 1e-6
"""Regularisation of a held direction, relative to its inverse inertia."""

_MAX_ITERATIONS, _MAX_LINE_SEARCH = 200, 40
"""Maximum number of iterations, and of those of the line search."""

_SMALLEST_SHARE, _ROUNDING_FACTOR = 1e-22, 1e4
"""Fraction of the step's energy below which a change is rounding: 1e-11 of the velocities; and the factor on it within
which an iteration may stop if it no longer improves.
"""

_SLOPE_SHARE = 0.1
"""Relative slope at which a line search ends."""

_TINY = 1e-300


class OneSided(NamedTuple):
    """rows: (m, n). at_rest: (m,) l, impulses at x = 0. slope: (m,) K, more than 0."""

    rows: Array
    at_rest: Array
    slope: Array

    def impulses(self, x: Array) -> Array:
        """Returns the impulses (m,) at velocities x."""
        return np.maximum(self.at_rest - self.slope * x, 0.0)


class FrictionPairs(NamedTuple):
    """rows: (p, 2, n). limit: (p,) g, impulses, at least 0."""

    rows: Array
    limit: Array


class HeldRows(NamedTuple):
    """rows: (s, n). target: (s,) velocities x_0."""

    rows: Array
    target: Array


class Solution(NamedTuple):
    """v: (n,). normal: (m,), friction: (p, 2), rigid: (s,) impulses on the robot along the rows. sticks: (p,)."""

    v: Array
    normal: Array
    friction: Array
    rigid: Array
    sticks: NDArray[np.bool_]


def velocities(
    A: Array, r: Array, start: Array, supports: OneSided, friction: FrictionPairs, rigid: HeldRows
) -> Solution | None:
    """Returns v' of this module's docstring for one state, and the impulses; None if the iteration fails.

    A: (n, n), symmetric, positive definite. r: (n,) N m s | N s. start: (n,) initial guess.

    Raises:
        np.linalg.LinAlgError: A is singular.
    """
    numbers = (A, r, start, *supports, *friction, *rigid)
    # The motion diverges: without this, the iteration would run to its end on NaN.
    if not isfinite(sum(float(x.sum()) for x in numbers)):
        sizes = (r.shape, supports.at_rest.shape, friction.rows.shape[:2], rigid.target.shape)
        v, pushing, rubbing, holding = (np.full(size, np.nan) for size in sizes)
        return Solution(v, pushing, rubbing, holding, np.zeros(len(friction.limit), dtype=bool))
    inverse = np.asarray(np.linalg.inv(A), dtype=np.float64)
    laws = _Laws.of(inverse, supports, friction, rigid)
    rounding = _SMALLEST_SHARE * float(r @ inverse @ r)
    v, smallest = laws.guess(A, r, laws.rows @ start), np.inf
    for _ in range(_MAX_ITERATIONS):
        x = laws.rows @ v
        g = A @ v - r - laws.impulses(x) @ laws.rows
        p = -np.linalg.solve(A + laws.curvature(x), g)
        decrement = -float(g @ p)
        if decrement <= rounding or (decrement >= smallest and decrement <= _ROUNDING_FACTOR * rounding):
            return laws.solution(v, x)
        smallest = min(smallest, decrement)
        v = v + _step_length(laws, x, laws.rows @ p, float(p @ (A @ v - r)), float(p @ A @ p), decrement) * p
    return None


@dataclass(frozen=True, eq=False)
class _Laws:
    """All rows, stacked: supports, first and second rows of friction pairs, held directions; and their impulses."""

    rows: Array
    push: OneSided
    limit: Array
    epsilon: Array
    stiff: Array
    target: Array

    @classmethod
    def of(cls, inverse: Array, supports: OneSided, friction: FrictionPairs, rigid: HeldRows) -> _Laws:
        rows = np.concatenate([supports.rows, friction.rows[:, 0], friction.rows[:, 1], rigid.rows])
        mobility = np.sum((rows @ inverse) * rows, axis=-1)
        m, p = len(supports.at_rest), len(friction.limit)
        pair_mobility = (mobility[m : m + p] + mobility[m + p : m + 2 * p]) / 2.0
        epsilon = np.maximum(_YIELD * pair_mobility * friction.limit, _TINY)
        stiff = 1.0 / np.maximum(_YIELD * mobility[m + 2 * p :], _TINY)
        return cls(rows, supports, friction.limit, epsilon, stiff, rigid.target)

    def parts(self, x: Array) -> tuple[Array, Array, Array]:
        """Splits velocities along the rows into those of supports, of pairs (2, p), and of held directions."""
        m, p = len(self.push.at_rest), len(self.limit)
        return x[:m], x[m : m + 2 * p].reshape(2, p), x[m + 2 * p :]

    def impulses(self, x: Array) -> Array:
        """Returns the impulses on the robot along each row."""
        separating, tangential, rigid_v = self.parts(x)
        friction = -tangential * (self.limit / np.maximum(_lengths(tangential), self.epsilon))
        return np.concatenate([self.push.impulses(separating), friction.ravel(), -self.stiff * (rigid_v - self.target)])

    def guess(self, A: Array, r: Array, x: Array) -> Array:
        """Returns v' for fixed active supports and sliding pairs, those at velocities x."""
        separating, tangential, _ = self.parts(x)
        speed = _lengths(tangential)
        slides = speed > self.epsilon / _YIELD
        sticking_slope = np.where(slides, 0.0, self.limit / self.epsilon)
        sliding = -tangential * np.where(slides, self.limit / np.maximum(speed, _TINY), 0.0)
        pushes = self.push.impulses(separating) > 0.0
        slopes = np.concatenate([np.where(pushes, self.push.slope, 0.0), sticking_slope, sticking_slope, self.stiff])
        offsets = np.concatenate([np.where(pushes, self.push.at_rest, 0.0), sliding.ravel(), self.stiff * self.target])
        v: Array = np.linalg.solve(A + (self.rows.T * slopes) @ self.rows, r + offsets @ self.rows)
        return v

    def curvature(self, x: Array) -> Array:
        """Returns (n, n), the negative derivative of the impulses with respect to joint velocities."""
        separating, tangential, _ = self.parts(x)
        m, p = len(self.push.at_rest), len(self.limit)
        diagonal = np.empty(len(x))
        diagonal[:m] = np.where(self.push.impulses(separating) > 0.0, self.push.slope, 0.0)
        diagonal[m + 2 * p :] = self.stiff
        speed = _lengths(tangential)
        slope = self.limit / np.maximum(speed, self.epsilon)
        slides = speed > self.epsilon
        first, second = np.where(slides, tangential / np.maximum(speed, self.epsilon), 0.0)
        diagonal[m : m + p], diagonal[m + p : m + 2 * p] = slope * (1.0 - first**2), slope * (1.0 - second**2)
        mixed = (self.rows[m : m + p].T * (slope * first * second)) @ self.rows[m + p : m + 2 * p]
        hessian: Array = (self.rows.T * diagonal) @ self.rows - mixed - mixed.T
        return hessian

    def solution(self, v: Array, x: Array) -> Solution:
        normal, friction, rigid = self.parts(self.impulses(x))
        _, tangential, _ = self.parts(x)
        return Solution(v, normal, friction.T, rigid, _lengths(tangential) <= self.epsilon)


def _step_length(laws: _Laws, x: Array, dx: Array, linear: float, square: float, decrement: float) -> float:
    """Returns the step length along dx at which the slope is near zero, by false position with bisection.

    x: velocities along the rows. linear, square: the slope of the quadratic part at the start, and its change.
    decrement: the negative slope at the start.
    """

    def slope(share: float) -> float:
        return linear + share * square - float(laws.impulses(x + share * dx) @ dx)

    low, high, low_slope, high_slope = 0.0, 1.0, -decrement, slope(1.0)
    if high_slope <= _SLOPE_SHARE * decrement:
        return 1.0
    for k in range(_MAX_LINE_SEARCH):
        # every third one a bisection, since false position alone can keep one end for ever
        share = (low * high_slope - high * low_slope) / (high_slope - low_slope) if k % 3 else 0.5 * (low + high)
        step_slope = slope(share)
        if abs(step_slope) <= _SLOPE_SHARE * decrement:
            return share
        if step_slope < 0.0:
            low, low_slope = share, step_slope
        else:
            high, high_slope = share, step_slope
    return high if low == 0.0 else low


def _lengths(pairs: Array) -> Array:
    """Returns the lengths (p,) of (2, p)."""
    return np.asarray(np.sqrt(pairs[0] ** 2 + pairs[1] ** 2))
