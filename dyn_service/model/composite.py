"""Poses, total inertia and mass matrix of a tree, computed with NumPy.

Used where no kernel is compiled: certificates, import reports, detection of singular mass matrices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
                    coupling = tree.inboard[j].subspace.T @ F
                    M[..., tree.in_v[j], tree.in_v[i]] += coupling
                    if j != i:
                        M[..., tree.in_v[i], tree.in_v[j]] += coupling.mT
                F = D[j].mT @ F
    M[..., range(tree.nv), range(tree.nv)] += tree.reflected(tree.passive.armature)
    return M if tree.free is None else M * np.outer(tree.free, tree.free) + np.diag(1.0 - tree.free)


def _influence(tree: Tree, i: int, q: Vector) -> Matrix:
    """Returns D_i, (..., 6, 6), in body axes: Newton-Euler document, (4)."""
    R, p = pose(tree, i, q)
    D = np.zeros((*q.shape[:-1], 6, 6))
    D[..., :3, :3] = D[..., 3:, 3:] = R.mT
    D[..., 3:, :3] = R.mT @ np.cross(np.eye(3), p[..., None, :]).mT  # -R p~
    return D


Array = NDArray[np.float64]

SINGULAR = 1e-13
"""A branch inertia below this fraction of the rigid inertia counts as zero; the subtraction rounds to 1e-15."""


def massless_joint(bodies: Tree) -> str | None:
    """Returns the movable joint nearest the leaves whose branch has no inertia along it, or None.

    Args:
        bodies: The tree of moving bodies; with leading axes, one robot without inertia is enough.
    """
    # An arbitrary configuration: branch inertias are analytic in q, so zero here means zero everywhere.
    moved = np.random.default_rng(0).uniform(-1.0, 1.0, bodies.nv)
    at = bodies.configuration
    return singular_joint(bodies, np.asarray(at.integrate(at.neutral, moved)))


def singular_joint(bodies: Tree, q: Array) -> str | None:
    """Returns the movable joint nearest the leaves whose branch has no inertia along it at `q`; None if M(q) is
    regular.

    Args:
        bodies: As for `massless_joint`.
        q: (nq,) positions, small enough that nothing overflows.
    """
    left = _left(bodies, q)
    bare = np.flatnonzero((left <= SINGULAR).any(axis=tuple(range(left.ndim - 1))))
    return bodies.configuration.velocity_joints[bare.max()] if bare.size else None


def _left(bodies: Tree, q: Array) -> Array:
    """Returns (..., nv): the inertia along each joint with free outward joints, divided by that with locked ones; NaN
    if that is not finite.
    """
    order = list(bodies.entries_outward)
    M = mass_matrix(bodies, q)[..., order, :][..., order]
    held = np.abs(np.diagonal(M, axis1=-2, axis2=-1))
    left, share = np.array(M), np.zeros(held.shape)
    for k in range(bodies.nv - 1, -1, -1):
        with np.errstate(divide="ignore", invalid="ignore"):
            pivot = left[..., k, k]
            share[..., k] = np.where(held[..., k] > 0.0, np.abs(pivot) / held[..., k], held[..., k])
            yields = np.where(share[..., k, None] > SINGULAR, left[..., k, :k] / pivot[..., None], 0.0)
        left[..., :k, :k] -= yields[..., :, None] * left[..., k, None, :k]
    found = np.empty(held.shape)
    found[..., order] = share
    return found
