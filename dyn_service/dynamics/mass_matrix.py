"""Mass matrix, and forward dynamics through it.

    M = G^T Psi_D^T M Psi_D G + I_r                  (18c), I_r: armature of the joints, `passive.py`
    a = M^-1 (tau - C - p)                           (19a)

Psi_D^T M Psi_D is carried by composite inertias: C_i = M_i + sum over children of D_k^T C_k D_k is the inertia of
branch i as one rigid body, and M_ij = G_j^T D_.. ^T .. D_i^T C_i G_i for j <= i; other entries are zero unless one
body is in the branch of the other. With mimic joints, an entry is the sum over all pairs of bodies that are driven by
its two velocities. Cost: O(N d) with depth d, at most O(N^2). Factored as L^T D L, which keeps these zeros (except a
few with mimic joints), in O(N d^2), at most O(N^3). Source: Newton-Euler document; L^T D L on a tree: Featherstone,
Rigid Body Dynamics Algorithms, 2008, 6.5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import passive
from dyn_service.dynamics.kinematics import independent_values, influences, joint_values, motion_subspaces, zero_locked
from dyn_service.dynamics.newton_euler import inertias, inverse_dynamics
from dyn_service.dynamics.rolled_tree import RolledTree, Walk
from dyn_service.dynamics.spatial import Mat, constant
from dyn_service.dynamics.sweeps import PerBody, walk
from dyn_service.model.tree import Tree

Entries = dict[tuple[int, int], Mat]
"""The entries (i, j), j <= i in the tree, of a symmetric matrix over the velocities."""


def entries(tree: Tree, q: Mat) -> Entries | Walk:
    """The entries of the mass matrix that do not vanish by structure."""
    blocks = _blocks(tree, q)
    if isinstance(blocks, Walk):
        return blocks
    entries_of_M: Entries = {}
    for (i, j), block in blocks.items():
        for n, column in enumerate(_entries(tree, j)):
            for k, row in enumerate(_entries(tree, i)):
                if j != i or column <= row:
                    _add(entries_of_M, row, column, 2 * block[n, k] if j != i and row == column else block[n, k])
    return entries_of_M if tree.free is None else _of_free(entries_of_M, constant(tree.free))


def _blocks(tree: Tree, q: Mat) -> dict[tuple[int, int], Mat] | Walk:
    """Blocks (nv_j, nv_i) of the mass matrix, for each body i and its ancestors j."""
    D, G, rotor = influences(tree, q), motion_subspaces(tree), passive.armatures(tree)
    C = tree.inward(inertias(tree), lambda i, C_i: D[i].congruence(C_i))

    def start(i: int) -> tuple[Mat, Mat | None]:
        F = C[i] @ G[i]
        passed_on = tree.inboard[i].nv and not tree.parent[i] < 0
        return G[i].T @ F + rotor[i], D[i].T @ F if passed_on else None

    def step(j: int, F: Mat) -> tuple[Mat, Mat | None]:
        return G[j].T @ F, None if tree.parent[j] < 0 else D[j].T @ F

    return free_blocks(tree, start, step)


@singledispatch
def free_blocks(
    tree: Tree,
    start: Callable[[int], tuple[Mat, Mat | None]],
    step: Callable[[int, Mat], tuple[Mat, Mat | None]],
) -> dict[tuple[int, int], Mat] | Walk:
    """Returns the blocks of M by walks to the ancestors; a recorded walk has the identity for locked joints."""
    return walk(tree, start, step, outward=False)


@free_blocks.register(RolledTree)
def _free_blocks_in_loops(
    tree: RolledTree,
    start: Callable[[int], tuple[Mat, Mat | None]],
    step: Callable[[int, Mat], tuple[Mat, Mat | None]],
) -> Walk:
    if tree.free is None:
        return tree.walk(start, step, outward=False)
    # Locked joints are masked here, block by block: entries of a recorded walk cannot be changed afterwards.
    free = [entries[0] if entries.shape[0] else ex.matrix(0.0) for entries in joint_values(tree, constant(tree.free))]

    def start_free(i: int) -> tuple[Mat, Mat | None]:
        (block, state), locked = start(i), 0 if tree.follows[i] else 1 - free[i]
        return free[i] * block + locked * ex.eye(block.shape[0]), None if state is None else free[i] * state

    def step_free(j: int, F: Mat) -> tuple[Mat, Mat | None]:
        block, state = step(j, F)
        return free[j] * block, state

    return tree.walk(start_free, step_free, outward=False)


def _of_free(entries: Entries, free: Mat) -> Entries:
    """Those of the joints that are not locked; of the others those of the identity, so that all has an inverse."""
    return {
        (i, j): free[i] * value + (1 - free[i]) if i == j else free[i] * free[j] * value
        for (i, j), value in entries.items()
    }


def _add(entries: Entries, row: int, column: int, value: Mat) -> None:
    """Adds to an entry of the symmetric matrix; with mimic joints, several pairs of bodies have the same entry."""
    place = (max(row, column), min(row, column))
    entries[place] = entries[place] + value if place in entries else value


def _entries(tree: Tree, i: int) -> range:
    """Indices in v of the velocities of body i's joint."""
    return range(tree.in_v[i].start, tree.in_v[i].stop)


def mass_matrix(tree: Tree, q: Mat) -> Mat:
    """M, (18c), (nv, nv)."""
    entries_of_M = entries(tree, q)
    if isinstance(entries_of_M, Walk):
        return entries_of_M
    M = ex.zeros(tree.nv, tree.nv)
    for (i, j), value in entries_of_M.items():
        M[i, j] = value
        M[j, i] = value
    return M


def forward_dynamics(tree: Tree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None) -> Mat:
    """a, (19a)."""
    C = inverse_dynamics(tree, q, v, ex.zeros(tree.nv, 1), gravity, wrenches)
    return solve(tree, entries(tree, q), zero_locked(tree, tau) - C)


def solve(tree: Tree, M: Entries | Walk, x: Mat) -> Mat:
    """M^-1 x by M = L^T D L, leaves before roots, where L has the pattern of the tree and ones on its diagonal.

    D is the R of (19b), so the two solutions exist for the same robots, impossible inertias included.
    """
    if isinstance(M, Walk):
        return _solved(tree, M, x)
    L, inverse, columns = factored(tree, M)
    y = _halfway(tree, L, columns, x)
    for k in range(tree.nv):
        y[k] = y[k] * inverse[k]
        for i in columns[k]:
            y[k] = y[k] - L[k, i] * y[i]
    solution = dict(zip(tree.parent_first_entries, y, strict=True))
    return ex.vertcat(*(solution[k] for k in range(tree.nv)))


def _solved(tree: Tree, M: Walk, x: Mat) -> Mat:
    """M^-1 x in a kernel as loops, x (nv, k)."""
    return ex.vertcat(*M.loops.shared(independent_values(tree, x), M))


def mobility(tree: Tree, M: Entries | Walk, J: Mat) -> Mat:
    """J M^-1 J^T, by the same factors: its halves are L^-T J^T. J: (k, nv)."""
    halves: Mat
    if isinstance(M, Walk):
        # A follower shares the entries of its leader, which would count twice in the sum over bodies.
        halves, joints = _solved(tree, M, J.T), zip(tree.in_v, tree.follows, strict=True)
        parts = [(J[:, part] @ halves[part, :] * float(not follower),) for part, follower in joints]
        return ex.triu2symm(ex.triu(tree.total(parts, ex.zeros(J.shape[0], J.shape[0]))))
    L, inverse, columns = factored(tree, M)
    halves = ex.horzcat(*(ex.vertcat(*_halfway(tree, L, columns, row.T)) for row in ex.vertsplit(J)))
    # Half of the product, since rounding would make the other half differ.
    return ex.triu2symm(ex.triu(halves.T @ (ex.vertcat(*inverse) * halves)))


def _halfway(tree: Tree, L: Entries, columns: list[list[int]], x: Mat) -> list[Mat]:
    """L^-T x, in the order of the factors."""
    y = [x[k, :] for k in tree.parent_first_entries]
    for k in range(tree.nv - 1, -1, -1):
        for i in columns[k]:
            y[i] = y[i] - L[k, i] * y[k]
    return y


def factored(tree: Tree, M: Entries) -> tuple[Entries, list[Mat], list[list[int]]]:
    """Returns the factors of M = L^T D L, D^-1, and for each row of L its columns with entries, from right to left.

    L is stored below the diagonal, D on it; rows and columns have the order of `Tree.parent_first_entries`. Without
    mimic joints, the columns of a row are the velocities of the ancestors. A row of a mimicked joint has those of the
    ancestors of all its bodies, and fill-in from the rows eliminated before it.
    """
    position = {entry: k for k, entry in enumerate(tree.parent_first_entries)}
    L: Entries = {}
    for (i, j), value in M.items():
        # Leaves are eliminated first, which creates no entries outside the tree's pattern (Featherstone, 6.5).
        L[max(position[i], position[j]), min(position[i], position[j])] = value
    inverse: list[Mat] = [ex.zeros(1, 1)] * tree.nv
    columns: list[set[int]] = [set() for _ in range(tree.nv)]
    for row, column in L:
        if column < row:
            columns[row].add(column)
    for k in range(tree.nv - 1, -1, -1):
        inverse[k], leftward = 1 / L[k, k], sorted(columns[k], reverse=True)
        for n, i in enumerate(leftward):
            share = L[k, i] * inverse[k]
            for j in leftward[n:]:
                L[i, j] = L.get((i, j), 0) - share * L[k, j]
            # Fill-in; without mimic joints these entries exist already.
            columns[i].update(leftward[n + 1 :])
            # Last, because the products above need the entry before its division.
            L[k, i] = share
    return L, inverse, [sorted(rows, reverse=True) for rows in columns]
