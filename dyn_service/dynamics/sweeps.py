"""The outward and inward recursions that all O(N) algorithms use.

    outward   z = Psi_A x     solves z = Phi_A z + x       z_i = A_i z_ip + x_i                root to leaves
    inward    z = Psi_A^T x   solves z = Phi_A^T z + x     z_ip := z_ip + A_i^T z_i            leaves to root

Newton-Euler document, Def. 1, 2, Prop. 1, 2 and the algorithms after (P4). `A` is one operator per body: the influence
D of a parent on its child, beta where joints yield (19b), or any matrix: anything with `@` and `.T`. Bodies may have
vectors of different lengths, x_i (k_i, n) with A_i (k_i, k_ip), and n columns are swept at once: G in place of x gives
J = Psi_D G. How bodies are visited is a method of the tree: `model/traversal.py`. Cost: O(N) per column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.rolled_tree import Walk
from dyn_service.dynamics.spatial import Mat, constant
from dyn_service.model.joints import Joint
from dyn_service.model.tree import Tree


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

    def step(i: int, z_p: Mat | None) -> Mat:
        inherited = world if z_p is None else z_p
        return x[i] if inherited is None else A[i] @ inherited + x[i]

    return PerBody(tree.outward(step))


def inward(tree: Tree, A: Sequence[Any], x: Sequence[Mat]) -> PerBody:
    """z = Psi_A^T x."""
    return PerBody(tree.inward(x, lambda i, z_i: A[i].T @ z_i))


def from_children(tree: Tree, A: Sequence[Any], x: Sequence[Mat], start: Sequence[Mat] | None = None) -> PerBody:
    """z = start + Phi_A^T x, (P2): the sum of A_k^T x_k over the children k of each body, not over later generations.

    start: initial z_i of each body; None is 0, of the shape of x_i.
    """
    z = [ex.zeros(*x_i.shape) for x_i in x] if start is None else start
    return PerBody(tree.from_children(z, lambda i: A[i].T @ x[i]))


def walk(
    tree: Tree,
    start: Callable[[int], tuple[Mat, Mat | None]],
    step: Callable[[int, Mat], tuple[Mat, Mat | None]],
    *,
    outward: bool,
) -> dict[tuple[int, int], Mat] | Walk:
    """Walks from each body a to its descendants (outward) or its ancestors b, with a block for each pair (a, b).

    Args:
        tree: The bodies.
        start: Returns the block (a, a), and the state that is passed on; None if there is nothing to pass.
        step: Returns the block (a, b), and the state that b passes on, from b and the state it gets.
        outward: Whether to walk to the descendants.

    Returns:
        The blocks; on a tree of kinds the recorded walk.
    """
    blocks: dict[tuple[int, int], Mat] | Walk = tree.walk(start, step, outward=outward)
    return blocks


def kept(tree: Tree, x: Sequence[Any]) -> PerBody:
    """Returns x, stored in a kernel as loops if a later pass reads it."""
    return PerBody(tree.kept(x))


def of_joints(tree: Tree, f: Callable[[Joint], Any]) -> PerBody:
    """A constant array for each body, from its joint."""
    return PerBody(map(constant, tree.joint_arrays(f)))
