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

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.rolled_tree import RolledTree, Walk
from dyn_service.dynamics.spatial import Mat, constant
from dyn_service.model.joints import Joint
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

    def step(i: int, z_p: Mat | None) -> Mat:
        inherited = world if z_p is None else z_p
        return x[i] if inherited is None else A[i] @ inherited + x[i]

    return PerBody(outward_recursion(tree, step))


def outward_recursion(tree: Tree, step: Callable[[int, T | None], T]) -> list[T]:
    """The outward recursion itself: z_i = step(i, z_ip), where z_ip of bodies on the ground is None."""
    if isinstance(tree, RolledTree):
        return tree.loops.outward(tree.grounded, step)
    z: list[T] = []
    for i, parent in enumerate(tree.parent):
        z.append(step(i, None if parent < 0 else z[parent]))
    return z


def of_parent(tree: Tree, x: Sequence[Mat], ground: Mat) -> list[Mat]:
    """Returns for each body the x of its parent, or `ground` for bodies on the ground."""
    if isinstance(tree, RolledTree):
        return tree.loops.from_parent(x, tree.grounded, ground)
    return [ground if parent < 0 else x[parent] for parent in tree.parent]


def inward(tree: Tree, A: Sequence[Any], x: Sequence[Mat]) -> PerBody:
    """z = Psi_A^T x."""
    return PerBody(inward_recursion(tree, x, lambda i, z_i: A[i].T @ z_i))


def from_children(tree: Tree, A: Sequence[Any], x: Sequence[Mat], start: Sequence[Mat] | None = None) -> PerBody:
    """z = start + Phi_A^T x, (P2): the sum of A_k^T x_k over the children k of each body, not over later generations.

    start: initial z_i of each body; None is 0, of the shape of x_i.
    """
    z: list[Mat] = [ex.zeros(*x_i.shape) for x_i in x] if start is None else list(start)
    if isinstance(tree, RolledTree):
        given = [None if ground else A[i].T @ x[i] for i, ground in enumerate(tree.grounded)]
        return PerBody(tree.loops.from_children(z, given))
    for i, parent in enumerate(tree.parent):
        if parent >= 0:
            z[parent] = z[parent] + A[i].T @ x[i]
    return PerBody(z)


def inward_recursion(tree: Tree, x: Sequence[T], carry: Callable[[int, T], T]) -> list[T]:
    """The inward recursion itself: z_i = x_i + sum of carry(k, z_k) over the children k of i."""
    if isinstance(tree, RolledTree):
        return tree.loops.inward(x, carry, tree.grounded)
    z = list(x)
    for i in range(len(tree) - 1, -1, -1):
        parent = tree.parent[i]
        if parent >= 0:
            z[parent] = z[parent] + carry(i, z[i])  # type: ignore[operator]
    return z


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
    if isinstance(tree, RolledTree):
        return tree.loops.walk(start, step, tree.grounded, outward=outward)
    found: dict[tuple[int, int], Mat] = {}
    for a in range(len(tree)):
        found[a, a], state = start(a)
        passed = {a: state}
        for b in tree.branch(a)[1:] if outward else tree.ancestors(a)[1:]:
            if state is not None:
                found[a, b], passed[b] = step(b, passed[tree.parent[b]] if outward else state)
                state = state if outward else passed[b]
    return found


def total(tree: Tree, terms: Sequence[Sequence[Mat]], start: Mat) -> Mat:
    """start + the sum of all terms of all bodies, in their order."""
    if isinstance(tree, RolledTree):
        return start + tree.loops.total([sum(of[1:], of[0]) for of in terms])
    return sum((term for of in terms for term in of), start)


def kept(tree: Tree, x: Sequence[T]) -> PerBody:
    """Returns x. In a kernel as loops, x is computed once and stored, not again in each pass that reads it."""
    return PerBody(tree.loops.kept(x) if isinstance(tree, RolledTree) else x)


def of_joints(tree: Tree, f: Callable[[Joint], Any]) -> PerBody:
    """A constant array for each body, from its joint."""
    if isinstance(tree, RolledTree):
        return PerBody(constant(tree.loops.array(k, lambda i: f(tree.loops.joints[i]))) for k in range(len(tree)))
    return PerBody(constant(f(joint)) for joint in tree.inboard)
