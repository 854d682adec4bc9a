"""Systems given by expressions of any generalised coordinates: by the places of their particles, or by their energies.

The rest comes by differentiation. Neither derivation shares anything with the Newton-Euler equations.

**Constrained particles**, scleronomic or rheonomic, projected on their generalised coordinates. The user gives f_c:

    x     = f_c(q, t)                                     places of the particles, inertial axes
    x'    = J_f q' + df/dt                                J_f = df/dq
    x''   = J_f q'' + sigma                               sigma: what is left of x'' at q'' = 0
    M q'' - f - g = tau                                   EOM, for a system of N particles

    M     =   sum of J_f,i^T m_i J_f,i
    f     = - sum of J_f,i^T m_i sigma_i                  centrifugal, Coriolis and, in rheonomic systems, driving terms
    g     =   sum of J_f,i^T F_g,i                        F_g,i = m_i gravity

sigma holds every term without q'', those of explicit time too:

    sigma = J_f' q' + d/dt (df/dt) = (d^2 f / dq^2) q' q' + 2 (d^2 f / dq dt) q' + d^2 f / dt^2

What acts on a particle besides its weight is F_c,i = m_i x''_i - F_g,i. Its virtual power, sum of J_f,i^T F_c,i, is
tau: the constraints' part of it is zero. In a rheonomic system the constraints still do real work, F_c . df/dt.

Cost: O(n nq^2) for n particles. Source: Multi Body Dynamics document, 5.2, 5.3, 5.6.

**Energies**: Lagrange's equations, sorted into the matrices of M q'' = C + G + Q + E. The user gives T and V:

    d/dt dL/dq' - dL/dq = Q + E,    L = T(q, q') - V(q)
    M = d^2 T / dq'^2               C = dT/dq - d/dq (dT/dq') q'               G = - dV/dq
    q'' = M^-1 (C + G + Q + E)

Cost: O(n^2) expressions for n coordinates, O(n^3) for q''. Source: Matrix Formalism document, Problem 1; EOM with
Hamilton's Equations, (3)-(5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.arrays import broadcast
from dyn_service.api.results import EquationTerms
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.support.optional import missing

try:
    import casadi as ca
except ModuleNotFoundError as fault:
    # Only this module needs CasADi, which has its own extra.
    text = missing("a system given by its energies or positions", "casadi")
    raise ModuleNotFoundError(text, name="casadi") from fault

Array = NDArray[np.float64]
Positions = Callable[[Any, Any], Any]
"""f_c: (q (nq,), t) as CasADi SX to the coordinates x_1, y_1, (z_1,) x_2, ... as SX, or a list of expressions."""
Kinetic = Callable[[Any, Any], Any]
"""T: (q (n,), q' (n,)) as CasADi SX to joule."""
Potential = Callable[[Any], Any]
"""V: q (n,) as CasADi SX to joule."""


class _System:
    """A system of nq generalised coordinates."""

    nq: int
    _unmoved: str
    """What a direction of q' without inertia lacks, for errors."""

    def _vector(self, name: str, value: ArrayLike, scalar: bool = False) -> Array:
        array = np.asarray(value, dtype=np.float64)
        if scalar and not array.ndim:
            array = np.full(self.nq, array)
        if array.ndim < 1 or array.shape[-1] != self.nq:
            raise InvalidArgumentError(f"{name} has shape {array.shape}, expected (..., {self.nq})", path=name)
        return array

    def _columns(self, lead: tuple[int, ...], *vectors: Array) -> list[Array]:
        """Vectors (..., nq) over common leading axes, as columns for a CasADi function."""
        return [np.broadcast_to(x, (*lead, self.nq)).reshape(-1, self.nq).T for x in vectors]

    def _solved(self, mass_matrix: Array, right: Array) -> Array:
        try:
            return np.asarray(np.linalg.solve(mass_matrix, right[..., None])[..., 0], dtype=np.float64)
        except np.linalg.LinAlgError:
            text = f"the mass matrix is singular: at this q there is a direction of q' {self._unmoved}"
            raise FailedPreconditionError(text) from None


def _refuse_strangers(name: str, expression: Any, arguments: Any, expected: str) -> None:
    strangers = [str(s) for s in ca.symvar(expression) if not ca.depends_on(arguments, s)]
    if strangers:
        raise InvalidArgumentError(f"{name} depends on {', '.join(strangers)}, not on {expected}", path=name)


@dataclass(frozen=True, eq=False)
class ParticleTerms:
    """M q'' - f - g = tau at a state, and its terms. Particle k is row k; leading axes are states.

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


class ParticleSystem(_System):
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

    _unmoved = "that moves no particle"

    def __init__(
        self, masses: ArrayLike, positions: Positions, nq: int, *, dimension: int = 3, gravity: ArrayLike | None = None
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
            text = f"gravity has shape {self.gravity.shape}, expected ({dimension},)"
            raise InvalidArgumentError(text, path="gravity")
        self.nq, self.dimension = nq, dimension
        self._function = self._differentiated(positions)

    def _differentiated(self, positions: Positions) -> Any:
        """(q, q', t) -> x, J_f row by row, df/dt, sigma, as columns."""
        q, q_dot, t = (ca.SX.sym(name, size) for name, size in (("q", self.nq), ("q_dot", self.nq), ("t", 1)))
        coordinates = positions(q, t)
        x = ca.vertcat(*coordinates) if isinstance(coordinates, list | tuple) else ca.SX(coordinates)
        size = self.masses.size * self.dimension
        if x.shape != (size, 1):
            raise InvalidArgumentError(
                f"positions gives {x.shape[0]} x {x.shape[1]} coordinates, expected {size} x 1: {self.masses.size} "
                f"particles of dimension {self.dimension}",
                path="positions",
            )
        _refuse_strangers("positions", x, ca.vertcat(q, t), "q and t")
        J, drift = ca.jacobian(x, q), ca.jacobian(x, t)
        velocity = J @ q_dot + drift
        bias = ca.jtimes(velocity, q, q_dot) + ca.jacobian(velocity, t)
        # Dense, because sparse outputs would have other shapes.
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
        lead = broadcast({"q": position.shape[:-1], "q_dot": rate.shape[:-1], "t": time.shape})
        n, d, nq = self.masses.size, self.dimension, self.nq
        outputs = self._function(*self._columns(lead, position, rate), np.broadcast_to(time, lead).reshape(1, -1))
        shapes = ((n, d), (n, d, nq), (n, d), (n, d))
        x, J, drift, bias = (np.array(y).T.reshape(*lead, *core) for y, core in zip(outputs, shapes, strict=True))
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
        """q'' = M^-1 (f + g + tau), (..., nq), 5.5 b; tau: (..., nq) active generalised forces, or one number for all.

        Raises:
            FailedPreconditionError: M is singular there: a coordinate moves no particle.
        """
        equation = self.terms(q, q_dot, t)
        right = equation.velocity_forces + equation.gravity_forces + np.asarray(tau, dtype=np.float64)
        return self._solved(equation.mass_matrix, right)

    def inverse_dynamics(self, q: ArrayLike, q_dot: ArrayLike, q_ddot: ArrayLike, t: ArrayLike = 0.0) -> Array:
        """tau = M q'' - f - g, (..., nq), 5.5 a."""
        equation, a = self.terms(q, q_dot, t), self._vector("q_ddot", q_ddot)
        inertial = np.einsum("...ab,...b->...a", equation.mass_matrix, a)
        return np.asarray(inertial - equation.velocity_forces - equation.gravity_forces)

    def accelerations(self, q: ArrayLike, q_dot: ArrayLike, q_ddot: ArrayLike, t: ArrayLike = 0.0) -> Array:
        """x'' = J_f q'' + sigma of each particle, (..., n, dimension) m/s^2."""
        equation, a = self.terms(q, q_dot, t), self._vector("q_ddot", q_ddot)
        return np.asarray(np.einsum("...nda,...a->...nd", equation.jacobian, a) + equation.bias)

    def constraint_forces(self, q: ArrayLike, q_dot: ArrayLike, q_ddot: ArrayLike, t: ArrayLike = 0.0) -> Array:
        """F_c = m x'' - F_g of each particle, (..., n, dimension) N: all that acts on it besides its weight.

        With the q'' of `forward_dynamics` under tau = 0 these are the constraints' forces alone, and their virtual
        power, the sum of J_f^T F_c, is zero. Under efforts it is tau.
        """
        x_ddot = self.accelerations(q, q_dot, q_ddot, t)
        return np.asarray(self.masses[:, None] * (x_ddot - self.gravity))


class Expressions(NamedTuple):
    """The equation's terms as CasADi SX, to read or to compute with: q, q', M (n, n), C (n,), G (n,)."""

    q: Any
    q_dot: Any
    mass_matrix: Any
    velocity_forces: Any
    gravity_forces: Any


class LagrangianSystem(_System):
    """A system of n generalised coordinates with kinetic energy T(q, q') and potential energy V(q).

    Args:
        kinetic: T, see `Kinetic`; of second degree in q'.
        potential: V, see `Potential`.
        nq: n.

    Raises:
        InvalidArgumentError: An energy is not one number, depends on anything but its arguments, or T is not of second
            degree in q'; names it.
    """

    _unmoved = "without kinetic energy"

    def __init__(self, kinetic: Kinetic, potential: Potential, nq: int) -> None:
        if isinstance(nq, bool) or not isinstance(nq, int) or nq < 1:
            raise InvalidArgumentError(f"nq must be a whole number, at least 1, found {nq!r}", path="nq")
        self.nq = nq
        q, v = ca.SX.sym("q", nq), ca.SX.sym("q_dot", nq)
        T = _energy("kinetic", kinetic(q, v), ca.vertcat(q, v))
        V = _energy("potential", potential(q), q)
        p = ca.gradient(T, v)
        M = ca.jacobian(p, v)
        if ca.depends_on(M, v):
            text = "kinetic is not of second degree in the rates: its second derivative still depends on them"
            raise InvalidArgumentError(text, path="kinetic")
        C, G = ca.gradient(T, q) - ca.jtimes(p, q, v), -ca.gradient(V, q)
        self.expressions = Expressions(q, v, M, C, G)
        self._function = ca.Function("lagrangian", [q, v], [ca.densify(x) for x in (ca.vec(M), C, G, T, V)])

    def terms(self, q: ArrayLike, q_dot: ArrayLike, tau: ArrayLike = 0.0, external: ArrayLike = 0.0) -> EquationTerms:
        """M, C, G, Q and E at a state, with the forces given.

        Args:
            q: (..., n) generalised coordinates; all broadcast against each other.
            q_dot: (..., n) their rates.
            tau: (..., n) Q, what drives the coordinates, or one number for all.
            external: (..., n) E, generalised forces from outside, or one number for all.

        Raises:
            InvalidArgumentError: An array's shape does not fit; names it.
        """
        inputs = {"q": q, "q_dot": q_dot, "tau": tau, "external": external}
        vectors = {name: self._vector(name, x, name in ("tau", "external")) for name, x in inputs.items()}
        lead = broadcast({name: x.shape[:-1] for name, x in vectors.items()})
        position, rate, efforts, pushes = (np.broadcast_to(x, (*lead, self.nq)) for x in vectors.values())
        n = self.nq
        M, C, G, _, _ = (np.array(x).T for x in self._function(*self._columns(lead, position, rate)))
        matrix, velocity, weight = M.reshape(*lead, n, n), C.reshape(*lead, n), G.reshape(*lead, n)
        return EquationTerms(matrix, velocity, weight, efforts, pushes, np.zeros_like(efforts))

    def energies(self, q: ArrayLike, q_dot: ArrayLike) -> tuple[Array, Array]:
        """T and V, (...,) J each."""
        position, rate = self._vector("q", q), self._vector("q_dot", q_dot)
        lead = broadcast({"q": position.shape[:-1], "q_dot": rate.shape[:-1]})
        *_, T, V = self._function(*self._columns(lead, position, rate))
        return np.array(T).reshape(lead), np.array(V).reshape(lead)

    def forward_dynamics(
        self, q: ArrayLike, q_dot: ArrayLike, tau: ArrayLike = 0.0, external: ArrayLike = 0.0
    ) -> Array:
        """q'' = M^-1 (C + G + Q + E), (..., n); arguments as those of `terms`.

        Raises:
            FailedPreconditionError: M is singular there: a coordinate moves no mass.
        """
        t = self.terms(q, q_dot, tau, external)
        right = t.velocity_forces + t.gravity_forces + t.efforts + t.external_forces
        return self._solved(t.mass_matrix, right)

    def inverse_dynamics(self, q: ArrayLike, q_dot: ArrayLike, q_ddot: ArrayLike, external: ArrayLike = 0.0) -> Array:
        """Q = M q'' - C - G - E, (..., n)."""
        t, a = self.terms(q, q_dot, 0.0, external), self._vector("q_ddot", q_ddot)
        inertial = np.einsum("...ab,...b->...a", t.mass_matrix, a)
        return np.asarray(inertial - t.velocity_forces - t.gravity_forces - t.external_forces)


def _energy(name: str, expression: Any, arguments: Any) -> Any:
    energy = ca.SX(expression)
    if energy.shape != (1, 1):
        description = f"{energy.shape[0]} x {energy.shape[1]} numbers"
        raise InvalidArgumentError(f"{name} gives {description}, expected one", path=name)
    _refuse_strangers(name, energy, arguments, "its arguments alone")
    return energy
