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
"""As in `ground_reactions`."""

_TOLERANCES = ((1e-12, 1e-9), (1e-9, 1e-6))
"""Asked of the solver, of numbers that are about 1, and taken where rounding lets it come no nearer; and what is tried
where it comes not even that near.
"""

_SOFT = 1e-9
"""What forces count beside what is left, where the contacts cannot make the motion."""

_TIES = 1e-9
"""What forces count beside efforts, so that of those that need the same efforts the least are taken."""


@dataclass(frozen=True)
class Cone:
    """Friction at one of the contacts, by number: |f_t| <= friction f_n."""

    contact: int
    friction: float

    def outside(self, force: Array, normal: Array) -> float:
        """How far a force is out of it, N."""
        along = float(force @ normal)
        across = float(np.sqrt(np.sum((force - along * normal) ** 2)))
        return max(across - self.friction * along, -along)


def least_in_cones(
    A: Array, b: Array, normals: Array, cones: Sequence[Cone], efforts: tuple[Array, Array] | None
) -> Array:
    """The forces (n,) with A f = b in their cones, least by themselves, or by the efforts c - B f.

    Where there are none: those in their cones that come nearest to it.

    Args:
        A: (nu, n), of one state, like all that follow.
        b: (nu,).
        normals: (n / 3, 3), of length 1.
        cones: Of the contacts that are not rigid, one at least.
        efforts: B and c, where these are to be least.

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
        felt = B.T @ B
        weight = float(np.trace(felt))  # the solver's tolerances are of numbers that are about 1
        if weight > RANK**2 * np.trace(A.T @ A):  # otherwise no effort depends on the forces, and these are least
            P = felt / weight + _TIES * np.eye(n)
            linear = -B.T @ c / (size * weight)
    f = _solved(P, linear, (rows, right), normals, cones)
    if f is not None:  # what the solver leaves of the equations, 1e-12 or so, goes to the forces
        return (f + rows.T @ (right - rows @ f)) * size
    P = A.T @ A
    f = _solved(P + _SOFT * max(float(np.trace(P)), 1e-300) * np.eye(n), -A.T @ b, None, normals, cones)
    if f is None:
        raise FailedPreconditionError("ground_reactions: the solver finds no forces within the friction cones")
    return f * size


def _independent(A: Array, b: Array) -> tuple[Array, Array]:
    """The same equations without those that follow from others, or contradict them; their rows orthonormal."""
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    kept = s > RANK * s.max(initial=0.0)
    return Vt[kept], (U.T @ b)[kept] / s[kept]


def _solved(
    P: Array, linear: Array, equations: tuple[Array, Array] | None, normals: Array, cones: Sequence[Cone]
) -> Array | None:
    """The least f^T P f / 2 + linear f; None where there is none."""
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
