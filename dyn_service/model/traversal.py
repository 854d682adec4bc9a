"""The ways in which algorithms visit the bodies of a tree. Everything else about a tree's shape is in `tree.py`.

A tree visits each of its bodies. A tree of kinds (`dynamics/rolled_tree.py`) overrides these methods: it records loops
over bodies instead, so that an algorithm does not know in which of the two forms it is compiled. Values are anything
with the operators that an algorithm uses: numbers, arrays, expressions. Cost: O(N) operations, `walk` O(N depth).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from dyn_service.model.joints import Joint

T = TypeVar("T")


class Traversal:
    """Bodies in parent-first order.

    parent: the parent of each, -1 for the ground. inboard: the joint of each. driven_bodies: for each independent
    joint, the bodies that its velocities move.
    """

    parent: tuple[int, ...]
    inboard: tuple[Joint, ...]
    driven_bodies: Any

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """For each body i the bodies whose parent is i."""
        children: list[list[int]] = [[] for _ in self.parent]
        for i, parent in enumerate(self.parent):
            if parent >= 0:
                children[parent].append(i)
        return tuple(map(tuple, children))

    def ancestors(self, i: int) -> tuple[int, ...]:
        """{j <= i}: body i, its parent, and so on to the root."""
        chain = []
        while i >= 0:
            chain.append(i)
            i = self.parent[i]
        return tuple(chain)

    def branch(self, i: int) -> tuple[int, ...]:
        """{j >= i}: body i and its descendants."""
        end = i + 1
        # In depth-first order a branch is a range of indices.
        while end < len(self.parent) and self.parent[end] >= i:
            end += 1
        return tuple(range(i, end))

    def outward(self, step: Callable[[int, T | None], T]) -> list[T]:
        """Returns z_i = step(i, z of the parent of i), from the roots to the leaves; on the ground step(i, None)."""
        z: list[T] = []
        for i, parent in enumerate(self.parent):
            z.append(step(i, None if parent < 0 else z[parent]))
        return z

    def inward(self, x: Sequence[T], carry: Callable[[int, T], T]) -> list[T]:
        """Returns z_i = x_i + sum of carry(k, z_k) over the children k of i, from the leaves to the roots."""
        z: list[Any] = list(x)
        # Children have larger indices, so z_i is complete when it is carried.
        for i in range(len(self.parent) - 1, -1, -1):
            parent = self.parent[i]
            if parent >= 0:
                z[parent] = z[parent] + carry(i, z[i])
        return z

    def of_parent(self, x: Sequence[T], ground: T) -> list[T]:
        """Returns for each body the x of its parent, or `ground` for bodies on the ground."""
        return [ground if parent < 0 else x[parent] for parent in self.parent]

    def from_children(self, start: Sequence[T], carry: Callable[[int], T]) -> list[T]:
        """Returns z_i = start_i + sum of carry(k) over the children k of i."""
        z: list[Any] = list(start)
        for i, parent in enumerate(self.parent):
            if parent >= 0:
                z[parent] = z[parent] + carry(i)
        return z

    def walk(
        self,
        start: Callable[[int], tuple[T, T | None]],
        step: Callable[[int, T], tuple[T, T | None]],
        *,
        outward: bool,
    ) -> Any:
        """Returns a block for each pair of a body and one of its descendants or ancestors; see `dynamics/sweeps.py`."""
        blocks: dict[tuple[int, int], T] = {}
        for a in range(len(self.parent)):
            blocks[a, a], state = start(a)
            states = {a: state}
            for b in self.branch(a)[1:] if outward else self.ancestors(a)[1:]:
                if state is not None:
                    inherited: Any = states[self.parent[b]] if outward else state
                    blocks[a, b], states[b] = step(b, inherited)
                    state = state if outward else states[b]
        return blocks

    def total(self, terms: Sequence[Sequence[T]], start: T) -> T:
        """Returns start + the sum of all terms of all bodies, in their order."""
        # In the order of bodies, because the order of a sum determines its last bits.
        whole: Any = start
        for term in chain.from_iterable(terms):
            whole = whole + term
        result: T = whole
        return result

    def kept(self, x: Sequence[T]) -> list[T]:
        """Returns x. In a kernel as loops, x is computed once and stored, not again in each pass that reads it."""
        return list(x)

    def joint_arrays(self, f: Callable[[Joint], Any]) -> list[Any]:
        """Returns a constant array for each body, from its joint."""
        return [f(joint) for joint in self.inboard]

    def driven_sums(self, x: Sequence[T]) -> list[T]:
        """Returns for each independent joint the sum of x over the bodies that it drives."""
        terms: list[list[Any]] = [[x[i] for i in bodies] for bodies in self.driven_bodies]
        return [sum(rest, first) for first, *rest in terms]

    def branch_sums(self, x: Sequence[Any]) -> list[Any]:
        """Returns for each body the sum of x over its branch."""
        return [sum(x[k] for k in self.branch(i)) for i in range(len(self.parent))]

    def need_bodies(self, reason: str) -> None:
        """Does nothing; raises on a tree of kinds, for algorithms that cannot be loops over bodies."""
