"""The pose of each body, and the motion that its joint allows.

    R_PC = R_PJ R_JB(q),  p_PC = p_PJ + R_PJ p_JB(q)     joint frame on the parent, then the joint's own pose
    D_i, G_i                                             influence of the parent and motion subspace of body i, both in
                                                         the axes of body i                       Newton-Euler (4)

`model/joints/` defines what each joint type does with q. The documents write G for revolute joints only: one unit
vector, angular; here it has one column for each degree of freedom. A mimic joint reads q and v of the mimicked joint,
and its G is multiplied by the ratio: `model/tree.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.rolled_tree import RolledTree
from dyn_service.dynamics.spatial import SYMBOLS, Mat, RigidTransform, constant, row_by_row, summed
from dyn_service.dynamics.sweeps import PerBody, kept, of_joints
from dyn_service.model.joints.rotations import shorter
from dyn_service.model.tree import Tree


def joint_values(tree: Tree, x: Mat) -> PerBody:
    """One column per body, (nv_i, 1), from a vector over the velocities; 0x1 at fixed joints."""
    return PerBody(x[part] if part.stop > part.start else ex.zeros(0, 1) for part in tree.in_v)


def independent_values(tree: Tree, x: Mat) -> list[Mat]:
    """One block (nv_i, k) per body from x (nv, k); 0 for joints that follow others."""
    joints = zip(tree.in_v, tree.follows, strict=True)
    empty = ex.zeros(0, x.shape[1])
    return [x[part, :] * float(not follower) if part.stop > part.start else empty for part, follower in joints]


def joint_vector(tree: Tree, x: PerBody) -> Mat:
    """The vector over the velocities from one column per body: sums over driven bodies, 0 for locked joints."""
    return zero_locked(tree, sum_over_driven_bodies(tree, x))


def joint_columns(tree: Tree, blocks: Sequence[Mat]) -> Mat:
    """`joint_vector` of columns: (6, nv) from one block (6, nv_i) per body."""
    if not tree.nv:
        return ex.zeros(6, 0)
    return joint_vector(tree, PerBody(block.T for block in blocks)).T


def sum_over_driven_bodies(tree: Tree, x: Sequence[Mat]) -> Mat:
    """Sums over the bodies that each independent joint drives, (nv, k), from (nv_i, k) per body."""
    return ex.vertcat(*tree.driven_sums(x))


def zero_locked(tree: Tree, x: Mat) -> Mat:
    """A vector over the velocities, with 0 for locked joints."""
    return x if tree.free is None else constant(tree.free) * x


def free_selector(tree: Tree) -> Mat:
    """Selector of the free velocities, (nv, nv): a column for each, 0 where a joint is locked."""
    return ex.eye(tree.nv) if tree.free is None else ex.diag(constant(tree.free))


def locked_diagonal(tree: Tree) -> Mat:
    """The diagonal entries of the mass matrix for locked joints, (nv, nv)."""
    return ex.zeros(tree.nv, tree.nv) if tree.free is None else ex.eye(tree.nv) - free_selector(tree)


def motion_subspaces(tree: Tree) -> PerBody:
    """G, one constant (6, nv_i) per body."""
    return of_joints(tree, lambda joint: joint.subspace)


@singledispatch
def dot(tree: Tree, x: Mat, y: Mat, *, rates: bool = False) -> Mat:
    """x . y of two vectors over the velocities, or over the rates of all joints."""
    return ex.dot(x, y)


@dot.register(RolledTree)
def _dot_in_loops(tree: RolledTree, x: Mat, y: Mat, *, rates: bool = False) -> Mat:
    products = zip(joint_values(tree, x * y), tree.follows, strict=True)
    # Velocities of a mimic joint are those of its leader, and count once; its rate is its own.
    terms = [(ex.sum1(product) * float(rates or not follower),) for product, follower in products]
    return tree.total(terms, ex.matrix(0.0))


def position_rates(tree: Tree, q: Mat, v: Mat) -> Mat:
    """q-dot = N(q) v."""
    return (
        v
        if tree.configuration.flat
        else _joint_by_joint(
            tree, lambda joint, *entries: joint.rate(*entries, SYMBOLS), (q, tree.in_q), (v, tree.in_v)
        )
    )


def normalised(tree: Tree, q: Mat) -> Mat:
    """The same positions, quaternions of unit length."""
    return (
        q
        if tree.configuration.flat
        else _joint_by_joint(tree, lambda joint, *entries: joint.normalised(*entries, SYMBOLS), (q, tree.in_q))
    )


def integrate(tree: Tree, q: Mat, v: Mat, dt: Mat) -> Mat:
    """The position after dt s with constant v: along each joint's own exponential map."""
    if tree.configuration.flat:
        return q + dt * v
    return _joint_by_joint(
        tree, lambda joint, *entries: joint.integrate(*entries, SYMBOLS), (q, tree.in_q), (dt * v, tree.in_v)
    )


def difference(tree: Tree, q: Mat, q_to: Mat) -> Mat:
    """The constant v that moves q to q_to in 1 s: the inverse of `integrate`."""
    if tree.configuration.flat:
        return q_to - q
    return _joint_by_joint(
        tree, lambda joint, *entries: joint.difference(*entries, SYMBOLS), (q, tree.in_q), (q_to, tree.in_q)
    )


def error(tree: Tree, q: Mat, q_to: Mat) -> Mat:
    """Returns the error of a control law: `difference`, less the whole turns of continuous joints."""
    entries = difference(tree, q, q_to)
    wraps = tree.configuration.wraps
    if not wraps.size:
        return entries
    return ex.vertcat(*(shorter(x, SYMBOLS) if k in wraps else x for k, x in enumerate(ex.vertsplit(entries))))


def _joint_by_joint(tree: Tree, of_joint: Callable[..., list[Mat]], *vectors: tuple[Mat, tuple[slice, ...]]) -> Mat:
    """Concatenates a function of each joint and its entries of the vectors, given with the slices of the bodies."""
    return ex.vertcat(
        *(
            entry
            for i in tree.independent_bodies
            for entry in of_joint(tree.inboard[i], *(ex.vertsplit(x[slices[i]]) for x, slices in vectors))
        )
    )


def placements(tree: Tree, q: Mat) -> list[tuple[Mat, Mat]]:
    """R_PC and p_PC of every body at q."""
    poses = []
    for i, joint in enumerate(tree.inboard):
        R_PJ, p_PJ = constant(tree.rotation[i]), constant(tree.origin[i])
        entries = ex.vertsplit(q[tree.in_q[i]]) if joint.nq else ()
        rotation_terms, translation_terms = joint.rotation(entries, SYMBOLS), joint.translation(entries, SYMBOLS)
        p = p_PJ + summed(translation_terms, left=R_PJ) if translation_terms else p_PJ
        poses.append((R_PJ @ summed(rotation_terms) if rotation_terms else R_PJ, p))
    # Only rotations are stored in loops: positions are cheaper to compute again than to load.
    return list(zip(kept(tree, [R for R, _ in poses]), (p for _, p in poses), strict=True))


def influences(tree: Tree, q: Mat) -> PerBody:
    """D, one operator per body, (4)."""
    return PerBody(RigidTransform(R.T, p) for R, p in placements(tree, q))


def link_poses(tree: Tree, q: Mat) -> dict[str, Mat]:
    """R_WB and p_WB of every body: `rotation` (N, 3, 3), row by row, and `position` (N, 3)."""
    rotations, steps = in_world(tree, q)
    return {
        "rotation": ex.vertcat(*map(row_by_row, rotations)),
        "position": ex.vertcat(*map(ex.densify, along(tree, steps))),
    }


def in_world(tree: Tree, q: Mat) -> tuple[list[Mat], list[Mat]]:
    """R_WB of every body, and in world axes the vector from its parent's origin to its own."""
    poses = placements(tree, q)
    rotations = tree.outward(lambda i, R_WP: poses[i][0] if R_WP is None else R_WP @ poses[i][0])
    inherited = tree.of_parent(rotations, _NO_TURN)
    return rotations, [
        p if parent < 0 else R_WP @ p for parent, R_WP, (_, p) in zip(tree.parent, inherited, poses, strict=True)
    ]


_NO_TURN = ex.eye(3)


def along(tree: Tree, steps: list[Mat]) -> list[Mat]:
    """Psi_e of the steps, their sums from the world to every body: p_WB."""
    return tree.outward(lambda i, sum_p: steps[i] if sum_p is None else sum_p + steps[i])
