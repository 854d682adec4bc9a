"""Poses, total inertia and mass matrix of a tree, computed with NumPy.

Used where no kernel is compiled: certificates, import reports, detection of singular mass matrices.

`weld` merges links that are connected by fixed joints into one body: the tree of queries about moving bodies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Note
from dyn_service.model.inertia import BodyInertia, combine, skew
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
    return combine(inertia.transformed(*at) for inertia, at in zip(tree.inertia, poses_at_zero(tree), strict=True))


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


def diagonal(tree: Tree, q: Vector) -> Vector:
    """Returns the diagonal of M(q), (..., nv), in O(N). q: (..., nq)."""
    found = np.zeros((*np.broadcast_shapes(q.shape[:-1], tree.lead), tree.nv))
    C: list[Matrix] = [body.matrix for body in tree.inertia]
    for i in range(len(tree) - 1, -1, -1):
        G = tree.inboard[i].subspace
        found[..., tree.in_v[i]] += np.einsum("ij,...ik,kj->...j", G, C[i], G)
        if tree.parent[i] >= 0:
            D = _influence(tree, i, q)
            C[tree.parent[i]] = C[tree.parent[i]] + D.mT @ C[i] @ D
    found += tree.reflected(tree.passive.armature)
    return found if tree.free is None else np.where(tree.free > 0.0, found, 1.0)


def _influence(tree: Tree, i: int, q: Vector) -> Matrix:
    """Returns D_i, (..., 6, 6), in body axes: Newton-Euler document, (4)."""
    R, p = pose(tree, i, q)
    D = np.zeros((*q.shape[:-1], 6, 6))
    D[..., :3, :3] = D[..., 3:, 3:] = R.mT
    D[..., 3:, :3] = -R.mT @ skew(p)
    return D


Array = NDArray[np.float64]

SINGULAR = 1e-13
"""A branch inertia below this fraction of the rigid inertia counts as zero; the subtraction rounds to 1e-15."""


def massless_joint(bodies: Tree) -> str | None:
    """Returns the movable joint nearest the leaves whose branch has no inertia along it, or None. Of many robots, one
    without inertia is enough.
    """
    # An arbitrary configuration: branch inertias are analytic in q, so zero here means zero everywhere.
    moved = np.random.default_rng(0).uniform(-1.0, 1.0, bodies.nv)
    at = bodies.configuration
    return singular_joint(bodies, np.asarray(at.integrate(at.neutral, moved)))


def singular_joint(bodies: Tree, q: Array) -> str | None:
    """As `massless_joint`, at q (nq,); None if M(q) is regular. q must be so small that nothing overflows."""
    left = _inertia_shares(bodies, q)
    bare = np.flatnonzero((left <= SINGULAR).any(axis=tuple(range(left.ndim - 1))))
    return bodies.configuration.velocity_joints[bare.max()] if bare.size else None


def _inertia_shares(bodies: Tree, q: Array) -> Array:
    """Returns (..., nv): the inertia along each joint with free outward joints, divided by that with locked ones; NaN
    if that is not finite.
    """
    if bodies.has_mimics:
        return _inertia_shares_by_mass_matrix(bodies, q)
    # Branch inertias: Newton-Euler document, (19b). Those of locked joints are the composite ones.
    held = np.abs(diagonal(bodies, q))
    share = np.zeros(held.shape)
    J: list[Matrix] = [body.matrix for body in bodies.inertia]
    for i in range(len(bodies) - 1, -1, -1):
        G, at = bodies.inboard[i].subspace, bodies.in_v[i]
        for n in reversed(range(G.shape[1])):
            k = at.start + n
            if bodies.free is not None and not bodies.free[k]:
                share[..., k] = 1.0
                continue
            U = J[i] @ G[:, n]
            pivot = U @ G[:, n] + bodies.passive.armature[..., k]
            share[..., k], yields = _shared(pivot, held[..., k], U)
            J[i] = J[i] - yields[..., :, None] * U[..., None, :]
        if bodies.parent[i] >= 0:
            D = _influence(bodies, i, q)
            J[bodies.parent[i]] = J[bodies.parent[i]] + D.mT @ J[i] @ D
    return share


def _inertia_shares_by_mass_matrix(bodies: Tree, q: Array) -> Array:
    """Returns the same by eliminating the joints from the mass matrix, in O(N^3)."""
    order = list(bodies.parent_first_entries)
    left = mass_matrix(bodies, q)[..., order, :][..., order]
    held = np.abs(np.diagonal(left, axis1=-2, axis2=-1)).copy()
    share = np.zeros(held.shape)
    for k in range(bodies.nv - 1, -1, -1):
        share[..., k], yields = _shared(left[..., k, k], held[..., k], left[..., k, :k])
        left[..., :k, :k] -= yields[..., :, None] * left[..., k, None, :k]
    found = np.empty(held.shape)
    found[..., order] = share
    return found


def _shared(pivot: Array, held: Array, row: Array) -> tuple[Array, Array]:
    """Returns |pivot| / held, and row / pivot; 0 for a pivot that counts as zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(held > 0.0, np.abs(pivot) / held, held)
        return share, np.where(share[..., None] > SINGULAR, row / pivot[..., None], 0.0)


@dataclass(frozen=True, eq=False)
class Weld:
    """The moving bodies of a tree, and where each link of the full tree went.

    tree: one body per movable joint. body: per link of the full tree, the body it moves with, -1 if it never moves.
    rotation, origin: per link, R_BL and p_BL in that body (in the world for -1).
    """

    tree: Tree
    body: tuple[int, ...]
    rotation: tuple[Matrix, ...]
    origin: tuple[Vector, ...]

    def with_numbers(self, full: Tree, changed: Collection[int]) -> Weld:
        """Returns the weld with the numbers of another tree of the same links.

        Args:
            full: That tree, one body per link.
            changed: The links whose inertia differs.
        """
        bodies = frozenset(self.body[i] for i in changed)
        links = _links(self.body, len(self.tree))
        inertia = tuple(
            _welded_inertia(full, links[b], self.rotation, self.origin) if b in bodies else own
            for b, own in enumerate(self.tree.inertia)
        )
        tree = replace(self.tree, name=full.name, inertia=inertia, passive=full.passive, free=full.free)
        return replace(self, tree=tree)


def _welded_inertia(
    full: Tree, links: Iterable[int], rotation: Sequence[Matrix], origin: Sequence[Vector]
) -> BodyInertia:
    """Returns the inertia of the links that move with a body, in its frame; rotation, origin: as in `Weld`."""
    return combine(full.inertia[i].transformed(rotation[i], origin[i]) for i in links)


def _links(bodies: Sequence[int], count: int) -> list[list[int]]:
    """Returns per body the links that move with it."""
    found: list[list[int]] = [[] for _ in range(count)]
    for i, body in enumerate(bodies):
        if body >= 0:
            found[body].append(i)
    return found


def weld(full: Tree) -> Weld:
    """Joins every link behind a fixed joint to the body it moves with. Inertia on unmoving links is the world's.

    In the arithmetic of the tree's numbers, doubles or decimals.
    """
    kind = full.origin[0].dtype
    unturned, nowhere = np.eye(3, dtype=kind), np.zeros(3, dtype=kind)
    body: list[int] = []
    rotation: list[Matrix] = []
    origin: list[Vector] = []
    moving: list[int] = []
    placement: list[tuple[int, Matrix, Vector]] = []
    for i, parent in enumerate(full.parent):
        carrier, R, p = (-1, unturned, nowhere) if parent < 0 else (body[parent], rotation[parent], origin[parent])
        R_BL, p_BL = R @ full.rotation[i], p + R @ full.origin[i]
        if full.inboard[i].nv:
            placement.append((carrier, R_BL, p_BL))
            carrier, R_BL, p_BL = len(moving), unturned, nowhere
            moving.append(i)
        body.append(carrier)
        rotation.append(R_BL)
        origin.append(p_BL)
    tree = Tree(
        name=full.name,
        links=tuple(full.links[i] for i in moving),
        joints=tuple(full.joints[i] for i in moving),
        parent=tuple(carrier for carrier, _, _ in placement),
        inboard=tuple(full.inboard[i] for i in moving),
        rotation=tuple(R for _, R, _ in placement),
        origin=tuple(p for _, _, p in placement),
        inertia=tuple(_welded_inertia(full, links, rotation, origin) for links in _links(body, len(moving))),
        limits=full.limits,
        passive=full.passive,
        mimic=full.mimic,
        free=full.free,
    )
    return Weld(tree, tuple(body), tuple(rotation), tuple(origin))


def welding_notes(full: Tree, welded: Weld) -> tuple[Note, ...]:
    """One note per link that a fixed joint joined to a moving body or to the world."""
    notes = []
    for i, carrier in enumerate(welded.body):
        if full.joints[i] and not full.inboard[i].nv:
            to = "the world" if carrier < 0 else f"the body of link '{welded.tree.links[carrier]}'"
            notes.append(Note("merged", f"link '{full.links[i]}'", f"welded by fixed joint '{full.joints[i]}' to {to}"))
    return tuple(notes)
