"""The outward and inward recursions that all O(N) algorithms use.

    outward   z = Psi_A x     solves z = Phi_A z + x       z_i = A_i z_ip + x_i                root to leaves
    inward    z = Psi_A^T x   solves z = Phi_A^T z + x     z_ip := z_ip + A_i^T z_i            leaves to root

Newton-Euler document, Def. 1, 2, Prop. 1, 2 and the algorithms after (P4). `A` is one operator per body: the influence
D of a parent on its child, beta where joints yield (19b), or any matrix: anything with `@` and `.T`. Bodies may have
vectors of different lengths, x_i (k_i, n) with A_i (k_i, k_ip), and n columns are swept at once: G in place of x gives
J = Psi_D G. Cost: O(N) per column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import casadi as ca

from dyn_service.dynamics.spatial import Mat
from dyn_service.model.tree import Tree

T = TypeVar("T")


class PerBody(tuple[Any, ...]):
    """A stacked vector or block diagonal matrix: one entry per body. Operators act body by body."""

    __slots__ = ()

    def __add__(self, other: Any) -> PerBody:
        return PerBody(a + b for a, b in zip(self, other, strict=True))

    def __sub__(self, other: Any) -> PerBody:
        return PerBody(a - b for a, b in zip(self, other, strict=True))

    def __matmul__(self, other: Any) -> PerBody:
        return PerBody(a @ b for a, b in zip(self, other, strict=True))

    @property
    def T(self) -> PerBody:
        """Each entry transposed."""
        return PerBody(a.T for a in self)


def outward(tree: Tree, A: Sequence[Any], x: Sequence[Mat], *, world: Mat | None = None) -> PerBody:
    """z = Psi_A x. `world` is the z of the ground on which the root bodies stand; None is zero."""
    z: list[Mat] = []
    for i, parent in enumerate(tree.parent):
        inherited = world if parent < 0 else z[parent]
        z.append(x[i] if inherited is None else A[i] @ inherited + x[i])
    return PerBody(z)


def from_parent(tree: Tree, A: Sequence[Any], x: Sequence[Mat]) -> PerBody:
    """z = Phi_A x, (P1): what each body's parent hands it, one step and no further. z_i has the shape of x_i."""
    return PerBody(ca.DM(*x[i].shape) if parent < 0 else A[i] @ x[parent] for i, parent in enumerate(tree.parent))


def inward(tree: Tree, A: Sequence[Any], x: Sequence[Mat]) -> PerBody:
    """z = Psi_A^T x."""
    return PerBody(gather(tree, x, lambda i, z_i: A[i].T @ z_i))


def from_children(tree: Tree, A: Sequence[Any], x: Sequence[Mat]) -> PerBody:
    """z = Phi_A^T x, (P2): what each body's children hand it, one step and no further. z_i has the shape of x_i."""
    z: list[Mat] = [ca.DM(*x_i.shape) for x_i in x]
    for i, parent in enumerate(tree.parent):
        if parent >= 0:
            z[parent] = z[parent] + A[i].T @ x[i]
    return PerBody(z)


def gather(tree: Tree, x: Sequence[T], carry: Callable[[int, T], T]) -> list[T]:
    """The inward recursion itself: z_i = x_i + sum of carry(k, z_k) over the children k of i."""
    z = list(x)
    for i in range(len(tree) - 1, -1, -1):
        parent = tree.parent[i]
        if parent >= 0:
            z[parent] = z[parent] + carry(i, z[i])  # type: ignore[operator]
    return z
