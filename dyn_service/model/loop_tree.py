"""A tree together with the joints that close its loops, as compiled kernels see it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.tree import Tree

UNRELATED = 1e-8
"""Share of the motions of joints outside a loop in the size of its motion: with the tolerances, their rounding errors.
"""


@dataclass(frozen=True, eq=False)
class LoopFrames:
    """The two frames of a loop joint.

    parent, child: indices of the bodies. parent_rotation, child_rotation: (3, 3), parent_xyz, child_xyz: (3,) m, the
    frame in the axes of each body. blocked: (6, m) G^, for velocities in rad/s and lengths/s. subspace: (6, nv) G.
    length: m, of the loop.
    """

    parent: int
    child: int
    parent_rotation: Matrix
    parent_xyz: Vector
    child_rotation: Matrix
    child_xyz: Vector
    blocked: Matrix
    subspace: Matrix
    length: float


@dataclass(frozen=True, eq=False)
class LoopTree(Tree):
    """A tree, one body per link, with its loop joints.

    loops: their frames; None of them is threaded. unit: (nv,) 1 rad/s, or lengths of a loop per second. pivots: of J_c,
    (entry of v, row), in the order of elimination; the other entries of v are independent.
    """

    loops: tuple[LoopFrames, ...] = ()
    unit: Vector = field(default_factory=lambda: np.zeros(0))
    pivots: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, tree: Tree, loops: Sequence[LoopFrames], unit: Vector, pivots: Sequence[tuple[int, int]]) -> LoopTree:
        """Returns a tree with loop joints."""
        numbers = {field.name: getattr(tree, field.name) for field in fields(Tree)}
        return cls(**numbers, loops=tuple(loops), unit=unit, pivots=tuple(pivots))

    @cached_property
    def independent(self) -> tuple[int, ...]:
        """The entries of v without a pivot."""
        return tuple(sorted(set(range(self.nv)) - {entry for entry, _ in self.pivots}))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the tree, its loops and the pivots: 32 hexadecimal digits."""
        tree = Tree(**{field.name: getattr(self, field.name) for field in fields(Tree)})
        digest = hashlib.sha256(f"{tree.fingerprint} {self.unit.tolist()} {self.pivots}".encode())
        for loop in self.loops:
            for part in fields(loop):
                digest.update(np.asarray(getattr(loop, part.name), dtype="<f8").tobytes() + b"\0")
        return digest.hexdigest()[:32]
