"""Poses, total inertia and mass matrix of a tree, computed with NumPy.

Used where no kernel is compiled: certificates, import reports, detection of singular mass matrices.

`weld` merges links that are connected by fixed joints into one body: the tree of queries about moving bodies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Note
from dyn_service.model.inertia import BodyInertia, combine, eigenvalues_exceed, skew
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
    return combine(
        inertia.transformed(*placement) for inertia, placement in zip(tree.inertia, poses_at_zero(tree), strict=True)
    )


def pose(tree: Tree, i: int, q: Vector) -> tuple[Matrix, Vector]:
    """Returns R_PB (..., 3, 3) and p_PB (..., 3) of body i at q (..., nq)."""
    joint, entries = tree.inboard[i], [q[..., k] for k in range(tree.in_q[i].start, tree.in_q[i].stop)]
    R, p = tree.rotation[i], tree.origin[i]
    joint_rotation, joint_translation = joint.rotation(entries, NUMBERS), joint.translation(entries, NUMBERS)
    position = p + summed(joint_translation, 1) @ R.T if joint_translation else np.broadcast_to(p, (*q.shape[:-1], 3))
    return (R @ summed(joint_rotation, 2) if joint_rotation else np.broadcast_to(R, (*q.shape[:-1], 3, 3))), position


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
    diagonal_entries = np.zeros((*np.broadcast_shapes(q.shape[:-1], tree.lead), tree.nv))
    C: list[Matrix] = [body.matrix for body in tree.inertia]
    for i in range(len(tree) - 1, -1, -1):
        G = tree.inboard[i].subspace
        diagonal_entries[..., tree.in_v[i]] += np.einsum("ij,...ik,kj->...j", G, C[i], G)
        if tree.parent[i] >= 0:
            D = _influence(tree, i, q)
            C[tree.parent[i]] = C[tree.parent[i]] + D.mT @ C[i] @ D
    diagonal_entries += tree.reflected(tree.passive.armature)
    return diagonal_entries if tree.free is None else np.where(tree.free > 0.0, diagonal_entries, 1.0)


def _influence(tree: Tree, i: int, q: Vector) -> Matrix:
    """Returns D_i, (..., 6, 6), in body axes: Newton-Euler document, (4)."""
    R, p = pose(tree, i, q)
    D = np.zeros((*q.shape[:-1], 6, 6))
    D[..., :3, :3] = D[..., 3:, 3:] = R.mT
    D[..., 3:, :3] = -R.mT @ skew(p)
    return D


Array = NDArray[np.float64]

SINGULAR = 1e-13
"""A branch inertia below this fraction of the inertia that it is computed from counts as zero: it has no digit beyond
rounding, which is 1e-15.
"""


THINNEST = 1e-8
"""m, a radius of gyration below that of any link: files with lost exponents have 1e-10, slender rods 1e-5."""


def massless_joint(bodies: Tree) -> str | None:
    """Returns the movable joint nearest the leaves whose branch has no inertia along it, or None. Of many robots, one
    without inertia is enough.
    """
    # An arbitrary configuration: branch inertias are analytic in q, so zero here means zero everywhere.
    step = np.random.default_rng(0).uniform(-1.0, 1.0, bodies.nv)
    configuration = bodies.configuration
    branch, size = branch_inertias(bodies, np.asarray(configuration.integrate(configuration.neutral, step)))
    return _nearest_the_leaves(bodies, lacks_inertia(np.abs(branch), size))


def singular_joint(bodies: Tree, q: Array) -> str | None:
    """As `massless_joint`, at q (nq,); None if M(q) is positive definite. q must be so small that nothing overflows."""
    return _nearest_the_leaves(bodies, lacks_inertia(*branch_inertias(bodies, q)))


def _nearest_the_leaves(bodies: Tree, lacking: Array) -> str | None:
    bare = np.flatnonzero(lacking.any(axis=tuple(range(lacking.ndim - 1))))
    return bodies.configuration.velocity_joints[bare.max()] if bare.size else None


def is_possible(inertia: BodyInertia) -> bool:
    """Returns whether no motion gives the body a negative kinetic energy, beyond rounding, for all leading axes.

    If this holds for each body, M(q) is positive semidefinite at all q.
    """
    size = np.abs(inertia.about_origin).max(axis=(-2, -1))
    moments = eigenvalues_exceed(inertia.about_com, -SINGULAR * size) | (size == 0.0)
    return bool(np.all(np.asarray(inertia.mass) >= 0.0) and np.all(moments))


def lacks_inertia(branch: Array, size: Array) -> Array:
    """Returns where a branch inertia is zero or negative; False for NaN. branch, size: from `branch_inertias`."""
    return np.asarray((branch <= SINGULAR * size) & np.isfinite(size))


def branch_inertias(bodies: Tree, q: Array) -> tuple[Array, Array]:
    """Returns the inertia along each joint with free outward joints, (..., nv), and the size of the numbers from which
    it is computed; M(q) is positive definite if all are positive.

    The size is the inertia with locked outward joints, and for turns the branch's mass at the longest lever of the
    robot too: a smaller moment of inertia has no digit left when its body is seen in other axes.
    """
    with np.errstate(all="ignore"):
        size = _at_longest_lever(bodies)
        if bodies.has_mimics:
            return _branch_inertias_by_mass_matrix(bodies, q, size)
        # Branch inertias: Newton-Euler document, (19b). Those of locked joints are the composite ones.
        size = size + np.abs(diagonal(bodies, q))
        branch = np.zeros(size.shape)
        J: list[Matrix] = [body.matrix for body in bodies.inertia]
        for i in range(len(bodies) - 1, -1, -1):
            G, in_v = bodies.inboard[i].subspace, bodies.in_v[i]
            for n in reversed(range(G.shape[1])):
                k = in_v.start + n
                if bodies.free is not None and not bodies.free[k]:
                    branch[..., k] = size[..., k] = 1.0
                    continue
                U = J[i] @ G[:, n]
                branch[..., k] = U @ G[:, n] + bodies.passive.armature[..., k]
                J[i] = J[i] - _yields(branch[..., k], size[..., k], U)[..., :, None] * U[..., None, :]
            if bodies.parent[i] >= 0:
                D = _influence(bodies, i, q)
                J[bodies.parent[i]] = J[bodies.parent[i]] + D.mT @ J[i] @ D
        return branch, size


def _branch_inertias_by_mass_matrix(bodies: Tree, q: Array, size: Array) -> tuple[Array, Array]:
    """Returns the same by eliminating the joints from the mass matrix, in O(N^3)."""
    order = list(bodies.parent_first_entries)
    left = mass_matrix(bodies, q)[..., order, :][..., order]
    size = size[..., order] + np.abs(np.diagonal(left, axis1=-2, axis2=-1))
    branch = np.zeros(size.shape)
    for k in range(bodies.nv - 1, -1, -1):
        branch[..., k] = left[..., k, k]
        left[..., :k, :k] -= (
            _yields(branch[..., k], size[..., k], left[..., k, :k])[..., :, None] * left[..., k, None, :k]
        )
    place = np.argsort(order)
    return branch[..., place], size[..., place]


def _at_longest_lever(bodies: Tree) -> Array:
    """Returns the inertia (..., nv) for turns of each branch's mass at the longest distance between two origins, or
    between an origin and the centre of mass of its body; at most at the one for which a radius of `THINNEST` counts as
    zero, because light links on long robots have small inertias that are right.
    """
    levers = [body.com for body in bodies.inertia]
    levers += [origin for origin, parent in zip(bodies.origin, bodies.parent, strict=True) if parent >= 0]
    longest = np.max(np.broadcast_arrays(0.0, *(np.sum(x * x, axis=-1) for x in levers)), axis=0)
    size = np.zeros((*bodies.lead, bodies.nv))
    masses: list[Any] = [np.abs(body.mass) for body in bodies.inertia]
    for i in range(len(bodies) - 1, -1, -1):
        turns = np.sum(bodies.inboard[i].subspace[:3] ** 2, axis=0)
        size[..., bodies.in_v[i]] += (np.minimum(longest, THINNEST**2 / SINGULAR) * masses[i])[..., None] * turns
        if bodies.parent[i] >= 0:
            masses[bodies.parent[i]] = masses[bodies.parent[i]] + masses[i]
    return size


def _yields(branch: Array, size: Array, row: Array) -> Array:
    """Returns row / branch; 0 where the branch inertia counts as zero."""
    return np.where((branch > SINGULAR * size)[..., None], row / branch[..., None], 0.0)


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

    def with_numbers(self, full: Tree, changed_links: Collection[int]) -> Weld:
        """Returns the weld with the numbers of another tree of the same links.

        Args:
            full: That tree, one body per link.
            changed_links: The links whose inertia differs.
        """
        bodies = frozenset(self.body[i] for i in changed_links)
        links = _links(self.body, len(self.tree))
        inertia = tuple(
            _welded_inertia(full, links[b], self.rotation, self.origin) if b in bodies else welded
            for b, welded in enumerate(self.tree.inertia)
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
    links: list[list[int]] = [[] for _ in range(count)]
    for i, body in enumerate(bodies):
        if body >= 0:
            links[body].append(i)
    return links


def weld(full: Tree) -> Weld:
    """Joins every link behind a fixed joint to the body it moves with. Inertia on unmoving links is the world's.

    In the arithmetic of the tree's numbers, doubles or decimals.
    """
    # The dtype of the tree, since frames are chosen in decimals and rounded once.
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
            target = "the world" if carrier < 0 else f"the body of link '{welded.tree.links[carrier]}'"
            notes.append(
                Note("merged", f"link '{full.links[i]}'", f"welded by fixed joint '{full.joints[i]}' to {target}")
            )
    return tuple(notes)
