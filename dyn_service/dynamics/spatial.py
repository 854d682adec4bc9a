"""Six-vectors, and how a body's motion and load pass between a parent and its child.

A motion is V = [omega; v], a load F = [torque; force], angular part first, each in its own body's axes at its own
body's origin (which is its joint). With R = R_CP, which turns parent axes into child axes, and d = p_PC in parent
axes, the influence of a parent on its child, (4) of the Newton-Euler document in body axes, is

    D = [ R        0 ]        D V = [ R omega                  ]       D^T F = [ R^T torque + d x R^T force ]
        [ -R d~    R ]              [ R (v + omega x d)        ]               [ R^T force                  ]

Everything here works on matrices of `expressions.py`, of symbols or numbers. Their zeros are structural, so a term that
is known to vanish costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.model.inertia import BodyInertia
from dyn_service.model.joints import Arithmetic, Terms

Mat = Any
"""An `expressions.Matrix`; what NumPy arrays and numbers become in operations with one."""


def constant(array: Any) -> Mat:
    """Numbers with exact zeros as structural ones. Matrices with symbols stay as they are."""
    if isinstance(array, ex.Matrix):
        return array
    return ex.sparsify(array)


def dense(array: Any) -> Mat:
    """Numbers, zeros too; what has symbols as `constant`."""
    return constant(array) if isinstance(array, ex.Matrix) or _has_symbols(array) else ex.matrix(array)


def _has_symbols(array: Any) -> bool:
    """Whether it is a NumPy array of objects: of numbers and 1 x 1 matrices."""
    return isinstance(array, np.ndarray) and array.dtype.kind == "O"


def cross(a: Mat, b: Mat) -> Mat:
    """a x b."""
    return ex.cross(a, b)


def join(angular: Mat, linear: Mat) -> Mat:
    """[angular; linear]."""
    return ex.vertcat(angular, linear)


def angular(V: Mat) -> Mat:
    """The first three entries: angular velocity or acceleration, or torque."""
    return V[:3]


def linear(V: Mat) -> Mat:
    """The last three entries: linear velocity or acceleration, or force."""
    return V[3:]


def skew(a: Mat) -> Mat:
    """a~, with a~ b = a x b."""
    return ex.skew(a)


def upper_triangle(S: Mat) -> Mat:
    """The six entries of the upper triangle of a symmetric matrix (3, 3), row by row, as a column."""
    full = ex.matrix(S)
    return ex.vertcat(*(full[i, j] for i in range(3) for j in range(i, 3)))


def of_upper_triangle(entries: Mat) -> Mat:
    """The inverse of `upper_triangle`."""
    a, b, c, d, e, f = ex.vertsplit(entries)
    return ex.blockcat([[a, b, c], [b, d, e], [c, e, f]])


def moment_rate(a: Mat, b: Mat) -> Mat:
    """2 (a . b) - a b^T - b a^T, the rate of the moment of inertia at a as it moves with b."""
    x, y, z = (a[k] * b[k] for k in range(3))
    xy, xz, yz = (-(a[i] * b[j] + a[j] * b[i]) for i, j in ((0, 1), (0, 2), (1, 2)))
    return ex.blockcat([[2 * (y + z), xy, xz], [xy, 2 * (x + z), yz], [xz, yz, 2 * (x + y)]])


SYMBOLS = Arithmetic(
    ex.sin,
    ex.cos,
    ex.sqrt,
    ex.fabs,
    ex.atan2,
    ex.copysign,
    lambda a, b, x, y: ex.if_else(a < b, x, y),
)
"""How the functions of `model/joints/` are computed here."""


def summed(terms: Terms, left: Mat | None = None) -> Mat:
    """A sum of scalars times constant arrays, each multiplied by `left` from the left where that is given."""
    total = None
    for scalar, array in terms:
        factor = constant(array) if left is None else left @ constant(array)
        term = factor if scalar is None else factor * scalar
        total = term if total is None else total + term
    return total


def pivots(S: Mat, adjusted: Callable[[int, Mat], Mat] | None = None) -> tuple[list[list[Mat]], list[Mat]]:
    """Rows of L below its diagonal of ones, and D, of S = L D L^T; S (k, k) is symmetric.

    adjusted: What to go on with in place of the pivot of a number; None is the pivot.
    """
    L: list[list[Mat]] = []
    D: list[Mat] = []
    for i in range(S.shape[0]):
        row: list[Mat] = []
        for j in range(i):
            row.append((S[i, j] - sum(row[k] * L[j][k] * D[k] for k in range(j))) / D[j])
        pivot = S[i, i] - sum(row[k] * row[k] * D[k] for k in range(i))
        D.append(pivot if adjusted is None else adjusted(i, pivot))
        L.append(row)
    return L, D


def inverse(S: Mat, adjusted: Callable[[int, Mat], Mat] | None = None) -> Mat:
    """S^-1 of a symmetric S, (k, k): a number's, or by L D L^T, leaving out no pivot. adjusted: as of `pivots`."""
    if S.shape[0] == 1:
        return 1 / S
    L, D = pivots(S, adjusted)
    columns = []
    for n in range(len(D)):
        x: list[Mat] = [ex.matrix(0.0) if i < n else ex.matrix(1.0) for i in range(len(D))]
        for i in range(n + 1, len(D)):
            x[i] = -sum(L[i][k] * x[k] for k in range(n, i))
        x = [x_i / d for x_i, d in zip(x, D, strict=True)]
        for i in range(len(D) - 1, -1, -1):
            for k in range(i):
                x[k] = x[k] - L[i][k] * x[i]
        columns.append(ex.vertcat(*x))
    return ex.triu2symm(ex.triu(ex.horzcat(*columns)))


def row_by_row(matrix: Mat) -> Mat:
    """The entries of a matrix as a column, row by row, as NumPy counts them."""
    return ex.vec(ex.densify(matrix).T)


_Product = Callable[[Any, Mat], Mat]


def column_by_column(product: _Product) -> _Product:
    """An operator's product with one six-vector, made to take (6, k): its columns are k six-vectors."""

    @wraps(product)
    def of_columns(operator: Any, X: Mat) -> Mat:
        if X.shape[1] == 1:
            return product(operator, X)
        if X.shape[1] == 0:
            return ex.zeros(6, 0)
        return ex.horzcat(*(product(operator, column) for column in ex.horzsplit(X)))

    return of_columns


@dataclass(frozen=True, eq=False)
class RigidTransform:
    """D, from a parent to its child. rotation: R_CP. offset: p_PC in parent axes."""

    rotation: Mat
    offset: Mat

    @column_by_column
    def __matmul__(self, V: Mat) -> Mat:
        """Motion of the child's origin, where the child moves with its parent as one."""
        turn = angular(V)
        return join(self.rotation @ turn, self.rotation @ (linear(V) + cross(turn, self.offset)))

    @property
    def T(self) -> _Transposed:
        """D^T: a load of the child in the parent's axes at the parent's origin."""
        return _Transposed(self)

    @column_by_column
    def transposed_matmul(self, F: Mat) -> Mat:
        """D^T F."""
        force = self.rotation.T @ linear(F)
        return join(self.rotation.T @ angular(F) + cross(self.offset, force), force)

    def congruence(self, J: Inertia) -> Inertia:
        """D^T J D: the child's inertia in the parent's axes at the parent's origin."""
        return J.turned(self.rotation).moved(self.offset)


@dataclass(frozen=True, eq=False)
class _Transposed:
    operator: Any

    def __matmul__(self, F: Mat) -> Mat:
        return self.operator.transposed_matmul(F)


@dataclass(frozen=True, eq=False)
class Inertia:
    """A symmetric 6x6 inertia [I, H; H^T, m], blocks in body axes at the body's origin.

    A rigid body's is (16) of the Newton-Euler document: I = I_c - m s~ s~, H = m s~, m = m e. A branch's articulated
    inertia has full blocks. What is known to be symmetric is computed once.
    """

    I: Mat
    H: Mat
    m: Mat

    @classmethod
    def of(cls, body: BodyInertia) -> Inertia:
        """M_i, (16)."""
        return cls(
            constant(body.about_origin),
            constant(ex.skew(body.moment)),
            constant(body.mass * ex.eye(3)),
        )

    @column_by_column
    def __matmul__(self, V: Mat) -> Mat:
        return join(self.I @ angular(V) + self.H @ linear(V), self.H.T @ angular(V) + self.m @ linear(V))

    def __add__(self, other: Inertia) -> Inertia:
        return Inertia(self.I + other.I, self.H + other.H, self.m + other.m)

    def minus_outer(self, W: Mat, U: Mat) -> Inertia:
        """J - W U^T for W U^T known to be symmetric, (6, k) each."""
        k, n = U[:3, :], U[3:, :]
        return Inertia(
            # Symmetric blocks are computed by their upper triangles, which saves operations and keeps J symmetric.
            self.I - _symmetric(W[:3, :], k),
            self.H - W[:3, :] @ n.T,
            self.m - _symmetric(W[3:, :], n),
        )

    def turned(self, rotation: Mat) -> Inertia:
        """Blocks in the axes that `rotation` (R_CP) turns into the present ones."""
        return Inertia(
            _symmetric_turn(rotation, self.I),
            rotation.T @ self.H @ rotation,
            _symmetric_turn(rotation, self.m),
        )

    def moved(self, d: Mat) -> Inertia:
        """Blocks moved to a point; d is the vector from that point to the present origin."""
        # [e, d~; 0, e] [I, H; H^T, m] [e, 0; -d~, e]
        s = skew(d)
        H = self.H + s @ self.m
        return Inertia(mirrored(self.I - self.H @ s + s @ H.T), H, self.m)


def _symmetric(a: Mat, b: Mat) -> Mat:
    """a b^T, known to be symmetric: the upper triangle, mirrored."""
    return mirrored(a @ b.T)


def mirrored(full: Mat) -> Mat:
    """A square matrix, known to be symmetric: its upper triangle, mirrored."""
    return ex.triu2symm(ex.triu(full)) if full.shape[0] > 1 else full


def _symmetric_turn(rotation: Mat, S: Mat) -> Mat:
    return mirrored(rotation.T @ (S @ rotation))
