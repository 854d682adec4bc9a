"""Systems given by their energies: Lagrange's equations, sorted into the matrices of M q'' = C + G + Q + E.

    d/dt dL/dq' - dL/dq = Q + E,    L = T(q, q') - V(q)
    M = d^2 T / dq'^2               C = dT/dq - d/dq (dT/dq') q'               G = - dV/dq
    q'' = M^-1 (C + G + Q + E)

The user gives T and V as expressions of any generalised coordinates, the rest comes by differentiation. It is the way
that the matrix document's Problem 1 asks for, and a derivation of the equations of motion that shares nothing with the
Newton-Euler ones. Cost: O(n^2) expressions for n coordinates, O(n^3) for q''.

Source: Matrix Formalism document, Problem 1; EOM with Hamilton's Equations, (3)-(5).
Checked by tests/theory/test_problems.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.arrays import broadcast
from dyn_service.api.results import EquationTerms
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError

Array = NDArray[np.float64]
Kinetic = Callable[[Any, Any], Any]
"""T: (q (n,), q' (n,)) as CasADi SX to joule."""
Potential = Callable[[Any], Any]
"""V: q (n,) as CasADi SX to joule."""


class Expressions(NamedTuple):
    """The equation's terms as CasADi SX, to look at or to go on with: q, q', M (n, n), C (n,), G (n,)."""

    q: Any
    q_dot: Any
    mass_matrix: Any
    velocity_forces: Any
    gravity_forces: Any


class LagrangianSystem:
    """A system of n generalised coordinates with kinetic energy T(q, q') and potential energy V(q).

    Args:
        kinetic: T, see `Kinetic`; of second degree in q'.
        potential: V, see `Potential`.
        nq: n.

    Raises:
        InvalidArgumentError: An energy is not one number, depends on anything but its arguments, or T is not of second
            degree in q'; names it.
    """

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
            raise InvalidArgumentError(
                "kinetic is not of second degree in the rates: its second derivative still depends on them",
                path="kinetic",
            )
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
        given = {"q": q, "q_dot": q_dot, "tau": tau, "external": external}
        vectors = {name: self._vector(name, x, name in ("tau", "external")) for name, x in given.items()}
        lead = broadcast({name: x.shape[:-1] for name, x in vectors.items()})
        position, rate, efforts, pushes = (np.broadcast_to(x, (*lead, self.nq)) for x in vectors.values())
        M, C, G, _, _ = self._function(*(x.reshape(-1, self.nq).T for x in (position, rate)))
        n = self.nq
        columns: tuple[Array, ...] = tuple(np.array(x).T for x in (M, C, G))
        mass_matrix, velocity, weight = columns
        return EquationTerms(
            mass_matrix.reshape(*lead, n, n),
            velocity.reshape(*lead, n),
            weight.reshape(*lead, n),
            efforts,
            pushes,
            np.zeros_like(efforts),
        )

    def energies(self, q: ArrayLike, q_dot: ArrayLike) -> tuple[Array, Array]:
        """T and V, (...,) J each."""
        position, rate = self._vector("q", q), self._vector("q_dot", q_dot)
        lead = broadcast({"q": position.shape[:-1], "q_dot": rate.shape[:-1]})
        columns = [np.broadcast_to(x, (*lead, self.nq)).reshape(-1, self.nq).T for x in (position, rate)]
        *_, T, V = self._function(*columns)
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
        try:
            solved: Array = np.asarray(np.linalg.solve(t.mass_matrix, right[..., None])[..., 0], dtype=np.float64)
        except np.linalg.LinAlgError:
            raise FailedPreconditionError(
                "the mass matrix is singular: at this q there is a direction of q' without kinetic energy"
            ) from None
        return solved

    def inverse_dynamics(self, q: ArrayLike, q_dot: ArrayLike, q_ddot: ArrayLike, external: ArrayLike = 0.0) -> Array:
        """Q = M q'' - C - G - E, (..., n)."""
        t, a = self.terms(q, q_dot, 0.0, external), self._vector("q_ddot", q_ddot)
        inertial = np.einsum("...ab,...b->...a", t.mass_matrix, a)
        Q: Array = inertial - t.velocity_forces - t.gravity_forces - t.external_forces
        return Q

    def _vector(self, name: str, value: ArrayLike, scalar: bool = False) -> Array:
        array = np.asarray(value, dtype=np.float64)
        if scalar and not array.ndim:
            array = np.full(self.nq, array)
        if array.ndim < 1 or array.shape[-1] != self.nq:
            raise InvalidArgumentError(f"{name} has shape {array.shape}, expected (..., {self.nq})", path=name)
        return array


def _energy(name: str, given: Any, arguments: Any) -> Any:
    energy = ca.SX(given)
    if energy.shape != (1, 1):
        raise InvalidArgumentError(
            f"{name} gives {energy.shape[0]} x {energy.shape[1]} numbers, expected one", path=name
        )
    strangers = [str(s) for s in ca.symvar(energy) if not ca.depends_on(arguments, s)]
    if strangers:
        raise InvalidArgumentError(f"{name} depends on {', '.join(strangers)}, not on its arguments alone", path=name)
    return energy
