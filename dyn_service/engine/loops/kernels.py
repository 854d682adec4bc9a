"""Compiled dynamics of robots with closed loops, for states that are closed and regular (`dynamics/loops.py`).

The order of elimination is found once, at random closed positions: of the pivots that are large at nearly all of them,
the one that changes the fewest entries of J_c. States at which a pivot is small, or which may be open, are for the
singular values of `closed_loops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array
from dyn_service.engine.loops.joints import CLOSED, TEARING, LoopJoints
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.signature import Operand, Signature
from dyn_service.model.loop_tree import LoopFrames, LoopTree
from dyn_service.model.tree import Tree

MAX_BODIES, MAX_ROWS, MAX_PRODUCTS = 40, 36, 16_000
"""Largest number of links, of rows of J_c, and of products in G^T M G, of a robot with kernels: they are straight-line
code, which compiles in some seconds at these sizes.
"""

_OF_QUERIES = ("efforts", "independent_motion", "accelerations")
"""Kernels by which queries are answered; `closing` is for simulations."""

MAX_QUOTIENT = 1e3
"""Largest quotient of an elimination at regular states: it may magnify rounding by as much."""

REGULAR = np.array([CLOSED / 2.0, TEARING / 6.0, TEARING / 6.0, MAX_QUOTIENT])
"""Largest shares of `dynamics.loops.efforts`, and quotients, at regular states. Each is at most what the check of all
states allows: gaps there may be a tenth too small, and the largest entry of J_c in the axes of a loop joint is at most
sqrt(6) times that of J_C and J_P in world axes, and squared for accelerations.
"""

_USUAL, _LARGE, _ZERO = 0.1, 0.1, 1e-12
"""Share of the random positions at which a pivot may be smaller than its size; smallest size of a pivot relative to the
largest one; largest size of entries that are zero.
"""


@dataclass(frozen=True, eq=False)
class LoopKernels:
    """The ufuncs of `dynamics.loops`, each made on first use.

    tree: with one body per link. joints: the loop joints. pivots: see `elimination_order`.
    """

    tree: Tree
    joints: LoopJoints
    pivots: tuple[tuple[int, int], ...]

    @property
    def exist(self) -> bool:
        """Whether the robot has kernels: it moves, with few links and loops, none of which is closed by a screw."""
        nv, nu = self.tree.nv, self.tree.nv - len(self.pivots)
        small = len(self.tree) <= MAX_BODIES and len(self.joints.joint_of_row) <= MAX_ROWS
        moves = bool(self.pivots) and 0 < nv**2 * nu <= MAX_PRODUCTS
        return small and moves and not any(joint.moves.threaded for joint in self.joints.joints)

    @cached_property
    def independent(self) -> list[int]:
        """The independent entries of v."""
        return sorted(set(range(self.tree.nv)) - {entry for entry, _ in self.pivots})

    @cached_property
    def efforts(self) -> np.ufunc:
        """q, v, a, h -> tau, shares."""
        return self._library.kernel(self._signatures["efforts"])

    @cached_property
    def independent_motion(self) -> np.ufunc:
        """q, v -> G, a_p, shares."""
        return self._library.kernel(self._signatures["independent_motion"])

    @cached_property
    def accelerations(self) -> np.ufunc:
        """M, G, a_p, f -> a, quotient."""
        return self._library.kernel(self._signatures["accelerations"])

    @cached_property
    def closing(self) -> np.ufunc:
        """q, v -> dq, dv, gap, quotient."""
        return self._library.kernel(self._signatures["closing"])

    def closed_state(self, q: Array, v: Array, steps: int, rounded: float) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Returns the nearest closed position, by Newton's method, v without its part across the loops, and whether a
        state (...) is closed and regular.

        Args:
            q: (..., nq).
            v: (..., nv).
            steps: The largest number of iterations.
            rounded: The gap, rad and lengths of the loop, that counts as rounding.
        """
        previous, regular = np.inf, np.ones((), dtype=bool)
        with np.errstate(all="ignore"):
            for _ in range(steps):
                dq, dv, gap, quotient = self.closing(q, v)
                size, regular = gap[..., 0], regular & (quotient[..., 0] <= MAX_QUOTIENT)
                # Of large distances the rounding is larger: a step that no longer halves the gap ends the iteration.
                is_open = regular & (size > rounded) & ((size < 0.5 * previous) | (size > CLOSED))
                if not is_open.any():
                    break
                closer = self.tree.configuration.integrate(q, dq)
                q, previous = np.where(is_open[..., None], closer, q), size
        return q, v + dv, regular & (size <= CLOSED)

    def prepare(self, *, make: bool) -> None:
        """Loads the kernels of queries from the store. make: whether missing ones are compiled."""
        for name in _OF_QUERIES:
            if make or self._library.load(self._signatures[name]):
                getattr(self, name)

    @property
    def are_prepared(self) -> bool:
        """Whether all kernels of queries are in memory."""
        return all(name in self.__dict__ for name in _OF_QUERIES)

    @cached_property
    def _signatures(self) -> dict[str, Signature]:
        nv, nu = self.tree.nv, self.tree.nv - len(self.pivots)
        q, v = Operand("q", (self.tree.nq,), "position"), Operand("v", (nv,), "velocity")
        a, h = Operand("a", (nv,), "acceleration"), Operand("h", (nv,), "effort")
        M, G, shares = Operand("M", (nv, nv)), Operand("jacobian", (nv, nu)), Operand("shares", (4,))
        a_p, f = Operand("a_p", (nv,)), Operand("f", (nv,))
        operands = {
            "efforts": ((q, v, a, h), (Operand("tau", (nv,)), shares)),
            "independent_motion": ((q, v), (G, Operand("acceleration", (nv,)), shares)),
            "accelerations": ((M, G, a_p, f), (Operand("a", (nv,)), Operand("quotient", (1,)))),
            "closing": (
                (q, v),
                (Operand("dq", (nv,)), Operand("dv", (nv,)), Operand("gap", (1,)), Operand("quotient", (1,))),
            ),
        }
        return {
            name: Signature(f"loops-{name}", f"loops.{name}", "links", inputs, outputs, padded={})
            for name, (inputs, outputs) in operands.items()
        }

    @cached_property
    def _library(self) -> KernelLibrary:
        return KernelLibrary(self.links)

    @cached_property
    def links(self) -> LoopTree:
        """The tree with its loop joints."""
        index = {name: i for i, name in enumerate(self.tree.links)}
        loops = [
            LoopFrames(
                index[joint.parent],
                index[joint.child],
                joint.parent_rotation,
                joint.parent_xyz,
                joint.child_rotation,
                joint.child_xyz,
                blocked,
                joint.moves.subspace,
                float(length),
            )
            for joint, blocked, length in zip(self.joints.joints, self.joints.blocked, self.joints.sizes, strict=True)
        ]
        return LoopTree.of(self.tree, loops, self.joints.unit(self.tree.configuration.turns), self.pivots)


def elimination_order(rows: Array, independent: Sequence[int], rank: int) -> tuple[tuple[int, int], ...]:
    """Returns the pivots (entry of v, row) that eliminate the dependent velocities from J_c.

    Args:
        rows: (states, m, nv) J_c in units of rad and lengths at closed positions.
        independent: Entries of v that are kept.
        rank: The number of pivots.
    """
    if not rank:
        return ()
    J = rows / np.abs(rows).max(axis=(-2, -1), keepdims=True)
    rows_left, entries_left = np.ones(J.shape[-2], dtype=bool), np.ones(J.shape[-1], dtype=bool)
    dependent = entries_left.copy()
    dependent[list(independent)] = False
    order = []
    for _ in range(rank):
        sizes = np.abs(J) * (rows_left[:, None] & entries_left)
        nonzero = (sizes > _ZERO).any(axis=0)
        usual = np.quantile(sizes / np.maximum(sizes.max(axis=(-2, -1), keepdims=True), _ZERO), _USUAL, axis=0)
        usual *= dependent & entries_left
        fill_in = (nonzero.sum(axis=1, keepdims=True) - 1) * (nonzero.sum(axis=0) - 1)
        r, c = np.unravel_index(np.argmin(np.where(usual > _LARGE * usual.max(), fill_in - usual, np.inf)), usual.shape)
        if not usual[r, c] > 0.0:
            return ()
        J = J[J[:, r, c] != 0.0]
        J = J - J[:, :, c, None] * (J[:, r, None, :] / J[:, r, None, c, None])
        rows_left[r] = entries_left[c] = False
        order.append((int(c), int(r)))
    return tuple(order)
