"""Poses, total inertia and mass matrix of a tree, computed with NumPy.

Used where no kernel is compiled: certificates, import reports, detection of singular mass matrices.
"""

from __future__ import annotations

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.inertia import BodyInertia, combine
from dyn_service.model.joints import NUMBERS, summed
from dyn_service.model.tree import Tree


def poses_at_zero(tree: Tree) -> tuple[tuple[Matrix, Vector], ...]:
    """Returns R_WB, p_WB of every body at q = 0."""
    poses: list[tuple[Matrix, Vector]] = []
    for i, parent in enumerate(tree.parent):
        rotation, origin = (np.eye(3), np.zeros(3)) if parent < 0 else poses[parent]
        poses.append((rotation @ tree.rotation[i], origin + rotation @ tree.origin[i]))
    return tuple(poses)


def total_inertia(tree: Tree) -> BodyInertia:
    """Returns the inertia of the whole robot at q = 0 in the world frame."""
    return combine(inertia.placed(*at) for inertia, at in zip(tree.inertia, poses_at_zero(tree), strict=True))


def pose(tree: Tree, i: int, q: Vector) -> tuple[Matrix, Vector]:
    """Returns R_PB (..., 3, 3) and p_PB (..., 3) of body i at q (..., nq)."""
    joint, entries = tree.inboard[i], [q[..., k] for k in range(tree.in_q[i].start, tree.in_q[i].stop)]
    R, p = tree.rotation[i], tree.origin[i]
    turned, shifted = joint.rotation(entries, NUMBERS), joint.translation(entries, NUMBERS)
    moved = p + summed(shifted, 1) @ R.T if shifted else np.broadcast_to(p, (*q.shape[:-1], 3))
    return (R @ summed(turned, 2) if turned else np.broadcast_to(R, (*q.shape[:-1], 3, 3))), moved


def mass_matrix(tree: Tree, q: Vector) -> Matrix:
    """Returns M(q), (..., nv, nv), with armature, by composite bodies: Newton-Euler document, (18c). q: (..., nq)."""
    M = np.zeros((*np.broadcast_shapes(q.shape[:-1], tree.lead), tree.nv, tree.nv))
    D = [_influence(tree, i, q) for i in range(len(tree))]
    C: list[Matrix] = [body.matrix for body in tree.inertia]
    for i in range(len(tree) - 1, -1, -1):
        if tree.parent[i] >= 0:
            C[tree.parent[i]] = C[tree.parent[i]] + D[i].mT @ C[i] @ D[i]
        if tree.inboard[i].nv:
            F = C[i] @ tree.inboard[i].subspace
            for j in tree.ancestors(i):
                if tree.inboard[j].nv:
                    felt = tree.inboard[j].subspace.T @ F
                    M[..., tree.in_v[j], tree.in_v[i]] += felt
                    if j != i:
                        M[..., tree.in_v[i], tree.in_v[j]] += felt.mT
                F = D[j].mT @ F
    M[..., range(tree.nv), range(tree.nv)] += tree.felt(tree.passive.armature)
    return M if tree.free is None else M * np.outer(tree.free, tree.free) + np.diag(1.0 - tree.free)


def _influence(tree: Tree, i: int, q: Vector) -> Matrix:
    """Returns D_i, (..., 6, 6), in body axes: Newton-Euler document, (4)."""
    R, p = pose(tree, i, q)
    D = np.zeros((*q.shape[:-1], 6, 6))
    D[..., :3, :3] = D[..., 3:, 3:] = R.mT
    D[..., 3:, :3] = R.mT @ np.cross(np.eye(3), p[..., None, :]).mT  # -R p~
    return D
