"""Least contact forces within friction cones: one state's cone program, solved by Clarabel.

The extra `contacts` installs it: a Rust library with wheels and no dependencies beyond NumPy and SciPy, Apache 2.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.errors import FailedPreconditionError
from dyn_service.support.optional import load

RANK = 1e-9
"""As in `ground_reactions`: fraction below which a direction counts as not pushed."""

_TOLERANCES = ((1e-12, 1e-9), (1e-9, 1e-6))
"""Tolerance of the solver for numbers of order 1, the tolerance accepted if rounding prevents it, and the one tried
last.
"""

_SOFT = 1e-9
"""Weight of forces relative to the residual, if the contacts cannot produce the motion."""

_TIES = 1e-9
"""Weight of forces relative to efforts, which selects the least of all forces with the same efforts."""


@dataclass(frozen=True)
class Cone:
    """The friction cone |f_t| <= friction f_n of the contact with this index."""

    contact: int
    friction: float

    def outside(self, force: Array, normal: Array) -> float:
        """Returns the distance of a force from the cone, N; 0 inside."""
        along = float(force @ normal)
        across = float(np.sqrt(np.sum((force - along * normal) ** 2)))
        return max(across - self.friction * along, -along)


def least_in_cones(
    A: Array, b: Array, normals: Array, cones: Sequence[Cone], efforts: tuple[Array, Array] | None
) -> Array:
    """Returns the forces (n,) in their cones with A f = b that minimise |f|, or the efforts |c - B f|.

    If there are none, returns the forces in their cones with the least residual.

    Args:
        A: (nu, n), for one state, like the following arguments.
        b: (nu,).
        normals: (n / 3, 3), of length 1.
        cones: The cones of the contacts that are not rigid, at least one.
        efforts: B and c, to minimise efforts.

    Raises:
        FailedPreconditionError: The solver is not installed, or fails.
    """
    size = float(np.sqrt(np.sum(b**2))) or 1.0
    b = b / size
    rows, right = _independent(A, b)
    n = A.shape[1]
    P, linear = np.eye(n), np.zeros(n)
    if efforts is not None:
        B, c = efforts
        gram = B.T @ B
        weight = float(np.trace(gram))  # the solver's tolerances are absolute, for numbers of order 1
        if weight > RANK**2 * np.trace(
            A.T @ A
        ):  # otherwise no effort depends on the forces, and the forces are minimised
            P = gram / weight + _TIES * np.eye(n)
            linear = -B.T @ c / (size * weight)
    f = _solved(P, linear, (rows, right), normals, cones)
    if f is not None:  # the solver's residual, about 1e-12, is corrected in the forces
        return (f + rows.T @ (right - rows @ f)) * size
    P = A.T @ A
    f = _solved(P + _SOFT * max(float(np.trace(P)), 1e-300) * np.eye(n), -A.T @ b, None, normals, cones)
    if f is None:
        raise FailedPreconditionError("ground_reactions: the solver finds no forces within the friction cones")
    return f * size


def _independent(A: Array, b: Array) -> tuple[Array, Array]:
    """Returns the equations without dependent or contradictory rows, with orthonormal rows."""
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    kept = s > RANK * s.max(initial=0.0)
    return Vt[kept], (U.T @ b)[kept] / s[kept]


def _solved(
    P: Array, linear: Array, equations: tuple[Array, Array] | None, normals: Array, cones: Sequence[Cone]
) -> Array | None:
    """Returns the minimum of f^T P f / 2 + linear f, or None if the solver fails."""
    clarabel, sparse = _solver()
    n = len(linear)
    rows, right, kinds = [], [], []
    if equations is not None and len(equations[1]):
        rows.append(equations[0])
        right.append(equations[1])
        kinds.append(clarabel.ZeroConeT(len(equations[1])))
    for cone in cones:
        normal = normals[cone.contact]
        across = np.linalg.svd(normal[None, :])[2][1:]
        place = slice(3 * cone.contact, 3 * cone.contact + 3)
        if cone.friction > 0.0:
            parts = [(np.vstack([cone.friction * normal, across]), clarabel.SecondOrderConeT(3))]
        else:
            parts = [(normal[None, :], clarabel.NonnegativeConeT(1)), (across, clarabel.ZeroConeT(2))]
        for block, kind in parts:
            row = np.zeros((len(block), n))
            row[:, place] = -block  # s = 0 - row f
            rows.append(row)
            right.append(np.zeros(len(block)))
            kinds.append(kind)
    upper = sparse.triu(sparse.csc_matrix(P)).tocsc()
    held = sparse.csc_matrix(np.vstack(rows))
    for asked, taken in _TOLERANCES:
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_threads = 1
        for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas"):
            setattr(settings, name, asked)
            setattr(settings, f"reduced_{name}", taken)
        solution = clarabel.DefaultSolver(upper, linear, held, np.concatenate(right), kinds, settings).solve()
        status, f = str(solution.status), np.array(solution.x)
        if status in ("Solved", "AlmostSolved") and np.isfinite(f).all():
            return f
        if "Infeasible" in status:
            break
    return None


def _solver() -> tuple[Any, Any]:
    from scipy import sparse

    return load("a contact whose friction cone binds, unlike one with rigid=True,", "clarabel"), sparse
