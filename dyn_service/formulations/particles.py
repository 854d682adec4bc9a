"""Systems of constrained particles, scleronomic or rheonomic, projected on their generalised coordinates.

    x     = f_c(q, t)                                     places of the particles, inertial axes
    x'    = J_f q' + df/dt                                J_f = df/dq
    x''   = J_f q'' + sigma                               sigma: what is left of x'' at q'' = 0
    M q'' - f - g = tau                                   EOM, for a system of N particles

    M     =   sum of J_f,i^T m_i J_f,i
    f     = - sum of J_f,i^T m_i sigma_i                  centrifugal, Coriolis and, in rheonomic systems, driving terms
    g     =   sum of J_f,i^T F_g,i                        F_g,i = m_i gravity

The user gives f_c as an expression; J_f, df/dt and sigma come by differentiation. sigma holds every term without q'',
those of explicit time too:

    sigma = J_f' q' + d/dt (df/dt) = (d^2 f / dq^2) q' q' + 2 (d^2 f / dq dt) q' + d^2 f / dt^2

What acts on a particle besides its weight is F_c,i = m_i x''_i - F_g,i. Its virtual power, sum of J_f,i^T F_c,i, is
tau: the constraints' part of it is zero. In a rheonomic system the constraints still do real work, F_c . df/dt.

Cost: O(n nq^2) for n particles. Source: Multi Body Dynamics document, 5.2, 5.3, 5.6.
Checked by tests/theory/test_particles.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError

Array = NDArray[np.float64]
Positions = Callable[[Any, Any], Any]
"""f_c: (q (nq,), t) as CasADi SX to the coordinates x_1, y_1, (z_1,) x_2, ... as SX, or a list of expressions."""


@dataclass(frozen=True, eq=False)
class ParticleTerms:
    """M q'' - f - g = tau at a state, and what it is made of. Particle k is row k; leading axes are states.

    mass_matrix: (..., nq, nq) M. velocity_forces: (..., nq) f. gravity_forces: (..., nq) g.
    jacobian: (..., n, dimension, nq) J_f. position, velocity: (..., n, dimension) x, m, and x', m/s.
    drift: (..., n, dimension) df/dt, m/s. bias: (..., n, dimension) sigma, m/s^2.
    """

    mass_matrix: Array
    velocity_forces: Array
    gravity_forces: Array
    jacobian: Array
    drift: Array
    bias: Array
    position: Array
    velocity: Array


class ParticleSystem:
    """Particles whose places are given functions of generalised coordinates and time.

    Args:
        masses: (n,) kg, positive.
        positions: f_c, see `Positions`; m, inertial axes.
        nq: Number of generalised coordinates.
        dimension: Coordinates per particle: 3, or 2 for a plane whose second axis points up.
        gravity: (dimension,) m/s^2; None is 9.81 along the last axis, downwards.

    Raises:
        InvalidArgumentError: A mass is not positive, a size does not fit, or `positions` gives the wrong number of
            coordinates or depends on anything but q and t; names it.
    """

    def __init__(
        self,
        masses: ArrayLike,
        positions: Positions,
        nq: int,
        *,
        dimension: int = 3,
        gravity: ArrayLike | None = None,
    ) -> None:
        self.masses: Array = np.array(masses, dtype=np.float64)
        if self.masses.ndim != 1 or not self.masses.size or not np.all(np.isfinite(self.masses) & (self.masses > 0.0)):
            raise InvalidArgumentError(f"masses must be n positive numbers in kg, found {masses!r}", path="masses")
        if dimension not in (2, 3):
            raise InvalidArgumentError(f"dimension must be 2 or 3, found {dimension!r}", path="dimension")
        if nq < 1:
            raise InvalidArgumentError(f"nq must be at least 1, found {nq!r}", path="nq")
        downwards = [0.0] * (dimension - 1) + [-9.81]
        self.gravity: Array = np.array(downwards if gravity is None else gravity, dtype=np.float64)
        if self.gravity.shape != (dimension,):
            raise InvalidArgumentError(
                f"gravity has shape {self.gravity.shape}, expected ({dimension},)", path="gravity"
            )
        self.nq, self.dimension = nq, dimension
        self._function = self._differentiated(positions)

    def _differentiated(self, positions: Positions) -> Any:
        """(q, q', t) -> x, J_f row by row, df/dt, sigma, as columns."""
        q, q_dot, t = (ca.SX.sym(name, size) for name, size in (("q", self.nq), ("q_dot", self.nq), ("t", 1)))
        given = positions(q, t)
        x = ca.vertcat(*given) if isinstance(given, list | tuple) else ca.SX(given)
        size = self.masses.size * self.dimension
        if x.shape != (size, 1):
            raise InvalidArgumentError(
                f"positions gives {x.shape[0]} x {x.shape[1]} coordinates, expected {size} x 1: {self.masses.size} "
                f"particles of dimension {self.dimension}",
                path="positions",
            )
        strangers = [str(s) for s in ca.symvar(x) if not ca.depends_on(ca.vertcat(q, t), s)]
        if strangers:
            raise InvalidArgumentError(f"positions depends on {', '.join(strangers)}, not on q and t", path="positions")
        J, drift = ca.jacobian(x, q), ca.jacobian(x, t)
        velocity = J @ q_dot + drift
        bias = ca.jtimes(velocity, q, q_dot) + ca.jacobian(velocity, t)
        columns = [ca.densify(column) for column in (x, ca.vec(J.T), drift, bias)]
        return ca.Function("particles", [q, q_dot, t], columns)

    def terms(self, q: ArrayLike, q_dot: ArrayLike, t: ArrayLike = 0.0) -> ParticleTerms:
        """The equation of motion term by term.

        Args:
            q: (..., nq) generalised coordinates; the three broadcast against each other.
            q_dot: (..., nq) their rates.
            t: (...) s.

        Raises:
            InvalidArgumentError: An array's shape does not fit; names it.
        """
        position, rate = self._vector("q", q), self._vector("q_dot", q_dot)
        time = np.asarray(t, dtype=np.float64)
        lead = _broadcast(q=position.shape[:-1], q_dot=rate.shape[:-1], t=time.shape)
        columns = [np.broadcast_to(x, (*lead, self.nq)).reshape(-1, self.nq).T for x in (position, rate)]
        n, d, nq = self.masses.size, self.dimension, self.nq
        found = self._function(*columns, np.broadcast_to(time, lead).reshape(1, -1))
        x, J, drift, bias = (
            np.array(column).T.reshape(*lead, *core)
            for column, core in zip(found, ((n, d), (n, d, nq), (n, d), (n, d)), strict=True)
        )
        m = self.masses
        return ParticleTerms(
            mass_matrix=np.einsum("n,...nda,...ndb->...ab", m, J, J),
            velocity_forces=-np.einsum("n,...nda,...nd->...a", m, J, bias),
            gravity_forces=np.einsum("n,...nda,d->...a", m, J, self.gravity),
            jacobian=J,
            drift=drift,
            bias=bias,
            position=x,
            velocity=np.einsum("...nda,...a->...nd", J, np.broadcast_to(rate, (*lead, nq))) + drift,
        )

    def forward_dynamics(self, q: ArrayLike, q_dot: ArrayLike, tau: ArrayLike = 0.0, t: ArrayLike = 0.0) -> Array:
        """q'' = M^-1 (f + g + tau), (..., nq), 5.5 b.

        Args:
            q: (..., nq).
            q_dot: (..., nq).
            tau: (..., nq) active generalised forces, or one number for all.
            t: (...) s.

        Raises:
            FailedPreconditionError: M is singular there: a coordinate moves no particle.
        """
        found = self.terms(q, q_dot, t)
        right = found.velocity_forces + found.gravity_forces + np.asarray(tau, dtype=np.float64)
        try:
            solved: Array = np.asarray(np.linalg.solve(found.mass_matrix, right[..., None])[..., 0], dtype=np.float64)
        except np.linalg.LinAlgError:
            raise FailedPreconditionError(
                "the mass matrix is singular: at this q there is a direction of q' that moves no particle"
            ) from None
        return solved

    def inverse_dynamics(self, q: ArrayLike, q_dot: ArrayLike, q_ddot: ArrayLike, t: ArrayLike = 0.0) -> Array:
        """tau = M q'' - f - g, (..., nq), 5.5 a."""
        found, a = self.terms(q, q_dot, t), self._vector("q_ddot", q_ddot)
        tau: Array = np.einsum("...ab,...b->...a", found.mass_matrix, a) - found.velocity_forces - found.gravity_forces
        return tau

    def accelerations(self, q: ArrayLike, q_dot: ArrayLike, q_ddot: ArrayLike, t: ArrayLike = 0.0) -> Array:
        """x'' = J_f q'' + sigma of each particle, (..., n, dimension) m/s^2."""
        found, a = self.terms(q, q_dot, t), self._vector("q_ddot", q_ddot)
        x_ddot: Array = np.einsum("...nda,...a->...nd", found.jacobian, a) + found.bias
        return x_ddot

    def constraint_forces(self, q: ArrayLike, q_dot: ArrayLike, q_ddot: ArrayLike, t: ArrayLike = 0.0) -> Array:
        """F_c = m x'' - F_g of each particle, (..., n, dimension) N: all that acts on it besides its weight.

        With the q'' of `forward_dynamics` under tau = 0 these are the constraints' forces alone, and their virtual
        power, the sum of J_f^T F_c, is zero. Under efforts it is tau.
        """
        x_ddot = self.accelerations(q, q_dot, q_ddot, t)
        forces: Array = self.masses[:, None] * (x_ddot - self.gravity)
        return forces

    def _vector(self, name: str, value: ArrayLike) -> Array:
        array = np.asarray(value, dtype=np.float64)
        if array.ndim < 1 or array.shape[-1] != self.nq:
            raise InvalidArgumentError(f"{name} has shape {array.shape}, expected (..., {self.nq})", path=name)
        return array


def _broadcast(**leads: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*leads.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in leads.items())
        raise InvalidArgumentError(f"the leading axes of {listed} do not broadcast against each other") from None
