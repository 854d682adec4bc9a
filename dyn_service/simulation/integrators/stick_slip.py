"""Exact Coulomb friction of joints: full friction on a moving joint, sticking at rest.

A semi-implicit Euler step with friction and damping d at the velocities of its end, and springs k half way to them:

    A v' = r - h p,   A = M + h d + h^2 k / 2,   r = (M + h^2 k / 2) v + h (tau - C - g - springs)

    |p_i| <= f_i,   p_i v'_i = f_i |v'_i|

A joint either sticks, v'_i = 0 with |p_i| <= f_i, or slides with p_i = f_i against v'_i. If M is symmetric and positive
definite, v' is unique: the minimum of v^T A v / 2 - v^T r + h sum f_i |v_i|. The set of sticking joints is
found by iteration: all wrong joints are changed at once, or one by one if that does not reduce their number (this
terminates, because M is a P-matrix). Velocities of sticking joints are exactly zero. Friction and damping of any
size only brake, so that steps of 1 ms suffice for joints with too much of them for their inertia. Springs of any
stiffness are stable too, and neither lose nor gain energy: with h^2 k / 2 their frequency is at most sqrt(2) / h.
Each state of a batch is solved alone. Order 1; the default integrator extrapolates to order 2.

Cost: O(n^3) per iteration, few iterations per step, in NumPy: tens of microseconds per state. Source: J. J. Moreau's
time stepping after D. E. Stewart and J. C. Trinkle, 1996, for joints; iterations after J. J. Judice and F. M. Pires,
1994, and K. G. Murty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.api.results import PassiveForces
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.task import Task

_FAR = 1e9
"""rad/s | m/s, far above any friction width."""

_WITHOUT_PROGRESS = 4
"""Iterations that change all wrong joints at once without progress, before one joint is changed at a time."""

_ROUNDING = 1e-12
"""Fraction of the largest effort or velocity below which a difference is rounding."""


class Equation(NamedTuple):
    """M, A: (..., n, n). r: (..., n). N: (..., n, n), of robots with closed loops: v' = N y; None without loops."""

    M: Array
    A: Array
    r: Array
    N: Array | None = None


class Sticking:
    """The steps of one motion. damping, friction, stiffness: (..., nv) d, f and k.

    parts: each step is made in so many; more than one for `ExtrapolatedSticking`, with springs at the end of the step.
    """

    def __init__(self, robot: RobotQueries, task: Task, parts: int | None = None) -> None:
        self._robot, self._task = robot, task
        self.dt, self._half = task.dt / (parts or 1), parts is None
        # From the efforts at velocities of 1 and far above any width; negative values, which would drive, become 0.
        passive_forces, neutral, free = passive_forces_of(robot), task.configuration.neutral, robot.free
        slow, fast = (passive_forces(neutral, speed * free) for speed in (1.0, _FAR))
        self.damping, self.friction = np.maximum(slow.damping, 0.0), np.maximum(fast.friction, 0.0)
        displaced = passive_forces(task.configuration.integrate(neutral, free, 1.0), free)
        self.stiffness = np.maximum(displaced.springs - slow.springs, 0.0)

    def equation(self, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> Equation:
        """Returns the equation of a step from a state."""
        robot, task, loops, N = self._robot, self._task, self._robot.closed_motion, None
        a = straight(task.configuration, v)
        if loops is None:
            bias = robot.inverse_dynamics(q, v, a, gravity=task.gravity, wrenches=wrenches)
        else:
            N, bias = loops.bias(q, v, a, gravity=task.gravity, wrenches=wrenches)
        passive = passive_forces_of(robot)(q, v)
        braking = np.where(self.damping > 0.0, passive.damping, 0.0)
        braking = braking + np.where(self.friction > 0.0, passive.friction, 0.0)
        if loops is None:
            robot.check_inertia("simulate", q)
        M = robot.mass_matrix(q) if loops is None else loops.tree_inertia(q)
        dt, spring = self.dt, self.dt**2 * self.stiffness
        r = np.einsum("...ij,...j->...i", M, v) + dt * (tau - bias + braking)
        if self._half:
            spring = spring / 2.0
            r = r + spring * v
        return Equation(M, M + (dt * self.damping + spring)[..., None] * np.eye(task.configuration.nv), r, N)

    def step(self, k: int, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> tuple[Array, Array]:
        """Returns the state after step k of this part.

        Raises:
            FailedPreconditionError: M is singular, or the iteration fails.
        """
        return after_step(self._task.configuration, q, self.solve(k, self.equation(q, v, tau, wrenches)), self.dt)

    def solve(self, k: int, equation: Equation) -> Array:
        """Returns v' of a step."""
        try:
            solution = velocities(equation.A, equation.r, self.dt * self.friction)
        except np.linalg.LinAlgError:
            raise self.singular(k) from None
        if solution is None:
            raise self.not_converged(k)
        return solution

    def singular(self, k: int) -> FailedPreconditionError:
        """Returns the error for a singular mass matrix."""
        return FailedPreconditionError(f"the mass matrix is singular in {self._step(k)}: a massless branch moves")

    def not_converged(self, k: int) -> FailedPreconditionError:
        """Returns the error for an iteration that failed."""
        return FailedPreconditionError(f"the sticking joints in {self._step(k)} were not found; try another dt")

    def _step(self, k: int) -> str:
        return f"step {self._task.first_step + k + 1} (t = {self._task.time(k):g} s)"


class StickingStep(Protocol):
    """Steps of one motion with a fixed length."""

    def step(self, k: int, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> tuple[Array, Array]:
        """Returns the state after step k of this part; errors as `Sticking.step`."""


class ExtrapolatedSticking:
    """Steps of order 2 for `auto`: twice the result of two halves of a step, less that of the whole step.

    Joints that stick in all of them stand still to the last bit. whole, half: steps in one part and in two.
    """

    def __init__(self, configuration: Configuration, whole: StickingStep, half: StickingStep) -> None:
        self._configuration, self._whole, self._half = configuration, whole, half

    @classmethod
    def of(cls, robot: RobotQueries, task: Task) -> ExtrapolatedSticking:
        """Returns the steps of a robot without loops."""
        return cls(task.configuration, Sticking(robot, task, 1), Sticking(robot, task, 2))

    def step(self, k: int, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> tuple[Array, Array]:
        """Returns the state after step k of this part; errors as `Sticking.step`."""
        q_whole, v_whole = self._whole.step(k, q, v, tau, wrenches)
        for _ in range(2):
            q, v = self._half.step(k, q, v, tau, wrenches)
        q = self._configuration.integrate(q, self._configuration.difference(q_whole, q), 1.0)
        return q, 2.0 * v - v_whole


def passive_forces_of(robot: RobotQueries) -> Callable[[Array, Array], PassiveForces]:
    """Returns (q, v) -> the passive forces of joints, of robots with closed loops also where these are open."""
    return robot.passive_forces if robot.closed_motion is None else robot.closed_motion.passive_forces


def straight(configuration: Configuration, v: Array) -> Array:
    """Returns (..., nv), the change of body-axes velocities that are constant in the world, due to rotation."""
    if configuration.flat:
        return np.zeros(configuration.nv)
    shifting = np.where(configuration.turns, 0.0, v)
    return -np.where(configuration.turns, 0.0, configuration.turning(v, shifting))


def after_step(configuration: Configuration, q: Array, v: Array, dt: float) -> tuple[Array, Array]:
    """Returns q and v after a step with velocities v (..., nv) in the body axes at its start.

    Linear velocities keep their direction in the world. An Euler step would keep them in the turning axes, which adds
    energy and bends the path.
    """
    if configuration.flat:
        return configuration.integrate(q, v, dt), v
    # Rotated like a force: kept in the turning axes, linear velocities let a rolling ball gain a quarter.
    in_world = configuration.momentum_on_parent(q, np.where(configuration.turns, 0.0, v))
    halfway = configuration.momentum_on_body(configuration.integrate(q, v, dt / 2), in_world)
    q = configuration.integrate(q, np.where(configuration.turns, v, halfway), dt)
    return q, np.where(configuration.turns, v, configuration.momentum_on_body(q, in_world))


def velocities(M: Array, r: Array, limit: Array) -> Array | None:
    """Returns v' (..., n) of this module's docstring; None if the iteration fails. NaN if M or r is not finite, because
    the motion diverges.

    M: (..., n, n), symmetric, positive definite: A. r: (..., n) N m s | N s. limit: (..., n) h f, at least 0.

    Raises:
        np.linalg.LinAlgError: M is singular for the sliding joints.
    """
    lead = np.broadcast_shapes(M.shape[:-2], r.shape[:-1])
    M, r = np.broadcast_to(M, (*lead, *M.shape[-2:])), np.broadcast_to(r, (*lead, r.shape[-1]))
    limit = np.broadcast_to(limit, r.shape)
    v_end = np.empty(r.shape)
    for index in np.ndindex(lead):
        v = _velocities_of_state(M[index], r[index], limit[index])
        if v is None:
            return None
        v_end[index] = v
    return v_end


def _velocities_of_state(M: Array, r: Array, limit: Array) -> Array | None:
    n = len(r)
    if not (np.isfinite(r).all() and np.isfinite(M).all()):
        return np.full(n, np.nan)
    has_friction = limit > 0.0
    sign = np.zeros(n)  # sign of the velocity of sliding joints; 0: sticking
    fewest, remaining = n + 1, _WITHOUT_PROGRESS
    small = _ROUNDING * float(np.abs(r).max(initial=0.0))
    for _ in range(100 + n * n):
        moves = ~has_friction | (sign != 0.0)
        v = np.zeros(n)
        v[moves] = np.linalg.solve(M[np.ix_(moves, moves)], (r - sign * limit)[moves])
        p = r - M @ v
        slow = _ROUNDING * float(np.abs(v).max(initial=0.0))
        breaks_loose = ~moves & (np.abs(p) > limit + small)
        turns_back = sign * v < -slow
        wrong = breaks_loose | turns_back
        if not wrong.any():
            v[has_friction & (sign * v <= 0.0)] = 0.0
            return v
        count = int(wrong.sum())
        if count < fewest:
            fewest, remaining = count, _WITHOUT_PROGRESS
        elif remaining:
            remaining -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        sign = np.where(wrong, np.where(breaks_loose, np.sign(p), 0.0), sign)
    return None
