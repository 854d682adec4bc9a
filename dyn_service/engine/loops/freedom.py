"""What the loops of a robot leave free, found at random closed positions: rank of J_c, independent joints, pivots.

Checked by tests/engine/test_loop_freedom.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.engine.loops.joints import CLOSED, LoopState, Tangent
from dyn_service.engine.loops.kernels import elimination_order
from dyn_service.engine.loops.mechanism import Mechanism
from dyn_service.engine.rows import ask
from dyn_service.model.description import ROOT_JOINT


class Freedom(NamedTuple):
    """What the loops of a robot leave free, from random configurations in which they are closed.

    rank: of J_c. redundant: rows of J_c that depend on the others. independent: entries of v that determine all others,
    driven ones first. undetermined: entries of v of passive joints that move while all drives stand still; empty if the
    description states no drives. pivots: see `kernels.elimination_order`; none unless J_c has this rank
    everywhere.
    """

    rank: int
    redundant: int
    independent: tuple[int, ...]
    undetermined: tuple[int, ...] = ()
    pivots: tuple[tuple[int, int], ...] = ()


def random_freedom(loops: Mechanism) -> Freedom | None:
    """Returns what the loops of a robot leave free, from random configurations; None if none could be closed."""
    _, state = closed_positions(loops, _ENOUGH)
    if not len(state.rows):
        return None
    tangent = Tangent.of(state, loops.unit)
    freedom = freedom_of(loops, tangent)
    rows = state.rows[tangent.rank == freedom.rank] * loops.unit
    return freedom._replace(pivots=elimination_order(rows, freedom.independent, freedom.rank))


def closed_positions(loops: Mechanism, enough: int | None = None) -> tuple[Array, LoopState]:
    """Returns random positions (n, nq) in which the loops are closed, and their loop joints.

    Of `SAMPLES` random positions all that close, or the first ones, at least `enough`; n is 0 if none closes.
    """
    parts = []
    for first in range(0, SAMPLES, _GROUP):
        q, state = random_positions(loops, range(first, first + _GROUP))
        closed = loops.gaps(state).max(axis=-1) <= CLOSED
        parts.append((q[closed], *(x[closed] for x in state)))
        if enough is not None and sum(len(part[0]) for part in parts) >= enough:
            break
    q, *fields = map(np.concatenate, zip(*parts, strict=True))
    return q, LoopState(*fields)


def random_positions(loops: Mechanism, seeds: Iterable[int]) -> tuple[Array, LoopState]:
    """Returns the positions (n, nq) with the smallest gaps near random ones, and their loop joints."""
    starts = np.stack([ask(loops.kinematics, "random_configuration", seed=seed) for seed in seeds])
    q = loops.assembly(()).close(starts)[0]
    return q, loops.joints.state(q, np.zeros(loops.nv))


def freedom_of(loops: Mechanism, tangent: Tangent) -> Freedom:
    """Returns the freedom that the loops leave at some states: that of the largest rank."""
    nv, m = loops.nv, tangent.U.shape[-1]
    free = tangent.free.reshape(-1, nv)
    best = int(np.argmin(free.sum(axis=-1)))
    rank = nv - int(free[best].sum())
    basis = tangent.V.reshape(-1, nv, nv)[best] * free[best]
    N = basis.copy()
    independent: list[int] = []
    drives = np.zeros(nv) if loops.driven is None else loops.driven
    for _ in range(nv - rank):
        # The row of N across all that were chosen with the largest size; of passive joints only if no drive is left.
        sizes = np.linalg.norm(basis, axis=-1)
        preferred = np.where(drives > 0.0, sizes, 0.0)
        k = int(np.argmax(preferred if preferred.max() > _PREFERRED * sizes.max() else sizes))
        independent.append(k)
        direction = basis[k] / sizes[k]
        basis -= np.outer(basis @ direction, direction)
    return Freedom(rank, m - rank, tuple(sorted(independent)), undetermined=_undetermined(loops, N))


def _undetermined(loops: Mechanism, N: Array) -> tuple[int, ...]:
    """Returns the entries of v of passive joints that move while all drives stand still. N: (nv, nv), the velocities
    that keep the loops closed in units of `Mechanism.unit`, with columns of zeros for the others. The root's motion
    in the world, which has no drive, is not counted.
    """
    if loops.driven is None:
        return ()
    roots = np.array([name == ROOT_JOINT for name in loops.configuration.velocity_joints])
    stationary = (loops.driven > 0.0) | roots
    # N and directions that it lacks, which are no motions either.
    blocked = np.concatenate([N[stationary], np.diag((~N.any(axis=0)).astype(float))])
    _, s, Vt = np.linalg.svd(blocked)
    free = Vt[int((s > _PREFERRED).sum()) :]
    sizes = np.linalg.norm(N @ free.T, axis=-1)
    return tuple(np.flatnonzero((sizes > _PREFERRED) & ~stationary).tolist())


SAMPLES, _GROUP, _ENOUGH = 24, 8, 4
"""Random configurations that are closed to find the freedom of a robot, at most; as many at once; and the closed ones
after which no more follow."""

_PREFERRED = 1e-3
"""Smallest relative size of a drive's motion across those of the others, to count as independent."""
