"""Coulomb friction as it is, without a width: a joint that moves is braked by all of it, one at rest stays at rest.

A step of semi-implicit Euler whose friction and damping are those of the velocities at its end, not of those before it:

    (M + h d) v' = r - h p,   r = M v + h (tau - C - g - springs)        |p_i| <= f_i,   p_i v'_i = f_i |v'_i|

For each joint either v'_i = 0 and p_i is what holds it, or v'_i has a sign and p_i = f_i against it. With M symmetric
and positive definite there is exactly one such v', the least of v^T (M + h d) v / 2 - v^T r + h sum f_i |v_i|: which
joints stick is found by trying, all wrong ones changed at once, and one by one where that does not get nearer (which
ends, M being a P-matrix). Velocities of joints that stick are zeros, to the last bit. However stiff they are, friction
and damping only brake: steps of a millisecond do for joints whose file damps a gram as if it were a kilogram. Each
state of a batch by itself. Order 1.

Cost: O(n^3) a try, few tries a step, in NumPy: tens of microseconds a state. Source: J. J. Moreau's time stepping, as
of D. E. Stewart and J. C. Trinkle, 1996, for joints; the tries are J. J. Judice's and F. M. Pires', 1994, with K. G.
Murty's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.task import Task

_FAR = 1e9
"""rad/s | m/s, far beyond the width of any friction."""

_PATIENCE = 4
"""Tries that change all wrong joints at once, without fewer of them, before one is changed at a time."""

_ROUNDING = 1e-12
"""Share of the largest effort, or velocity, that is rounding beside it."""


class Equation(NamedTuple):
    """M: (..., n, n) without h d, A: with it. r: (..., n)."""

    M: Array
    A: Array
    r: Array


class Sticking:
    """The steps of one motion. damping, friction: (..., nv) d and f."""

    def __init__(self, robot: RobotQueries, task: Task) -> None:
        self._robot, self._task = robot, task
        # From what acts at a velocity of 1 and far beyond any width; where negative, 0: it drives.
        slow, fast = (robot.passive_forces(task.at.neutral, speed * robot.free) for speed in (1.0, _FAR))
        self.damping, self.friction = np.maximum(slow.damping, 0.0), np.maximum(fast.friction, 0.0)

    def equation(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> Equation:
        """What a step from that state solves."""
        robot, task = self._robot, self._task
        held = robot.inverse_dynamics(q, v, straight(task.at, v), gravity=task.gravity, wrenches=acting)
        own = robot.passive_forces(q, v)
        braked = np.where(self.damping > 0.0, own.damping, 0.0) + np.where(self.friction > 0.0, own.friction, 0.0)
        M = robot.mass_matrix(q)
        r = np.einsum("...ij,...j->...i", M, v) + task.dt * (tau - held + braked)
        return Equation(M, M + task.dt * (self.damping[..., None] * np.eye(task.at.nv)), r)

    def step(self, k: int, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Array]:
        """The state after step k of this part.

        Raises:
            FailedPreconditionError: M is singular, or no try fits.
        """
        return moved(self._task.at, q, self.solved(k, self.equation(q, v, tau, acting)), self._task.dt)

    def solved(self, k: int, equation: Equation) -> Array:
        """v' of that step."""
        try:
            found = velocities(equation.A, equation.r, self._task.dt * self.friction)
        except np.linalg.LinAlgError:
            raise self.singular(k) from None
        if found is None:
            raise self.lost(k)
        return found

    def singular(self, k: int) -> FailedPreconditionError:
        """Of a step whose mass matrix has no inverse."""
        return FailedPreconditionError(f"the mass matrix is singular in {self._step(k)}: a massless branch moves")

    def lost(self, k: int) -> FailedPreconditionError:
        """Of a step that was not found."""
        return FailedPreconditionError(
            f"which joints stick in {self._step(k)} was not found; try a step of another length"
        )

    def _step(self, k: int) -> str:
        return f"step {self._task.first_step + k + 1} (t = {self._task.time(k):g} s)"


def straight(at: Configuration, v: Array) -> Array:
    """(..., nv), how velocities in the axes of bodies that turn change while nothing accelerates them in the world."""
    if at.flat:
        return np.zeros(at.nv)
    shifting = np.where(at.turns, 0.0, v)
    return -np.where(at.turns, 0.0, at.turning(v, shifting))


def moved(at: Configuration, q: Array, v: Array, dt: float) -> tuple[Array, Array]:
    """q and v after a step with velocities v (..., nv) in the axes of its beginning.

    Those that shift a body keep their direction in the world: taken as they are in axes that turn, as a step of Euler
    has it, they would grow, and their path bend aside.
    """
    if at.flat:
        return at.integrate(q, v, dt), v
    in_world = at.momentum_on_parent(q, np.where(at.turns, 0.0, v))  # turned like a force
    halfway = at.momentum_on_body(at.integrate(q, v, dt / 2), in_world)
    q = at.integrate(q, np.where(at.turns, v, halfway), dt)
    return q, np.where(at.turns, v, at.momentum_on_body(q, in_world))


def velocities(M: Array, r: Array, limit: Array) -> Array | None:
    """v' (..., n) of this module's docstring; None where no try fits.

    Args:
        M: (..., n, n), symmetric, positive definite: with h d, where joints are damped.
        r: (..., n) N m s | N s. Where it or M is not finite, as of a motion that diverges, v' is NaN.
        limit: (..., n) h f, at least 0.

    Raises:
        np.linalg.LinAlgError: M is singular where joints move.
    """
    lead = np.broadcast_shapes(M.shape[:-2], r.shape[:-1])
    M, r = np.broadcast_to(M, (*lead, *M.shape[-2:])), np.broadcast_to(r, (*lead, r.shape[-1]))
    limit = np.broadcast_to(limit, r.shape)
    found = np.empty(r.shape)
    for index in np.ndindex(lead):
        one = _of_one(M[index], r[index], limit[index])
        if one is None:
            return None
        found[index] = one
    return found


def _of_one(M: Array, r: Array, limit: Array) -> Array | None:
    n = len(r)
    if not (np.isfinite(r).all() and np.isfinite(M).all()):
        return np.full(n, np.nan)
    rubbing = limit > 0.0
    sign = np.zeros(n)  # of the velocity of those that slide; 0 is at rest
    fewest, patience = n + 1, _PATIENCE
    small = _ROUNDING * float(np.abs(r).max(initial=0.0))
    for _ in range(100 + n * n):
        moves = ~rubbing | (sign != 0.0)
        v = np.zeros(n)
        v[moves] = np.linalg.solve(M[np.ix_(moves, moves)], (r - sign * limit)[moves])
        p = r - M @ v
        slow = _ROUNDING * float(np.abs(v).max(initial=0.0))
        breaks_loose = ~moves & (np.abs(p) > limit + small)
        turns_back = sign * v < -slow
        wrong = breaks_loose | turns_back
        if not wrong.any():
            v[rubbing & (sign * v <= 0.0)] = 0.0
            return v
        count = int(wrong.sum())
        if count < fewest:
            fewest, patience = count, _PATIENCE
        elif patience:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        sign = np.where(wrong, np.where(breaks_loose, np.sign(p), 0.0), sign)
    return None
