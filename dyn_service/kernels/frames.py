"""The same robot in the frames and lumps that cost a kernel least.

Efforts, accelerations and the mass matrix of the moving bodies do not depend on where in a body its frame stands, nor
on how inertia that two neighbours share is split between them. Both are ours to choose, and zeros are free speed.

Frames. The z axis lies along the free axis; the origin is slid along it to where it passes the parent's axis; x points
along the common normal to the axis of the heaviest child. Then R_PC(0) has at most two turns, of which the last is
about z and becomes an offset of q, and p_PC loses a component. (The convention of Denavit and Hartenberg, on a tree.)

Lumps. What a joint cannot feel of its body moves to the parent: of a body that turns about z, mass, moment along z
and the inertia of a rod across z, since they look the same from the parent at every q; of a body that slides, its whole
inertia about the origin. Each body is left with seven numbers or four of its ten. (Base parameters: Gautier and
Khalil, Direct calculation of minimum set of inertial parameters of serial robots, IEEE T-RA 6(3), 1990.)

Loads at the joints do depend on both, so a kernel that gives them takes the tree as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dyn_service.dynamics.spatial import Influence, Mat, constant
from dyn_service.model.description import Matrix, Vector
from dyn_service.model.inertia import BodyInertia
from dyn_service.model.tree import Tree, snapped

_PARALLEL = 1e-8
"""Sine of the angle below which two axes count as parallel: their common normal is then no longer well defined."""

_ROUNDING = 1e-14
"""Share of a body's largest inertia entry below which an entry is the rounding of these very transformations."""


@dataclass(frozen=True, eq=False)
class KernelTree:
    """tree: in the chosen frames and lumps. offset: (nv,) added to q. rotation, origin: R_NL, p_NL, per body the URDF
    link frame in the chosen one.
    """

    tree: Tree
    offset: Vector
    rotation: tuple[Matrix, ...]
    origin: tuple[Vector, ...]

    def position(self, q: Mat) -> Mat:
        """q as the chosen frames count it."""
        return q + constant(self.offset)

    def position_as_given(self, q: Mat) -> Mat:
        """q as the URDF counts it."""
        return q - constant(self.offset)

    def wrench(self, i: int, W: Mat) -> Mat:
        """A wrench at the URDF link's origin in its axes, at the chosen frame's origin in its axes."""
        return Influence(constant(self.rotation[i].T), constant(self.origin[i])).T @ W


def as_given(tree: Tree) -> KernelTree:
    """The tree as it is: link frames, every body's own inertia."""
    return KernelTree(tree, np.zeros(tree.nv), (np.eye(3),) * len(tree), (np.zeros(3),) * len(tree))


def simplest(tree: Tree) -> KernelTree:
    """The tree of the moving bodies in the frames and lumps of this module's docstring."""
    turned = _along_axes(tree)
    return replace(turned, tree=replace(turned.tree, inertia=_lumped(turned.tree)))


def _along_axes(tree: Tree) -> KernelTree:
    slid: list[Vector] = []
    for i in range(len(tree)):
        slid.append(_nearest_to_parent(tree, i, slid))
    frames = [(np.column_stack(_axes(tree, i, slid)), slid[i]) for i in range(len(tree))]  # R_LN, p_LN

    rotation, origin, inertia = [], [], []
    offset = np.zeros(tree.nv)
    for i, parent in enumerate(tree.parent):
        R_LN, p_LN = frames[i]
        R_PN, p_PN = (np.eye(3), np.zeros(3)) if parent < 0 else frames[parent]
        R = R_PN.T @ tree.rotation[i] @ R_LN
        if tree.motion[i] == "revolute":
            offset[tree.dof[i]] = turn = _last_turn(R)
            c, s = np.cos(turn), np.sin(turn)
            R = R @ np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])
        rotation.append(snapped(R))
        origin.append(snapped(R_PN.T @ (tree.origin[i] + tree.rotation[i] @ p_LN - p_PN)))
        inertia.append(_cleaned(tree.inertia[i].placed(R_LN.T, -R_LN.T @ p_LN)))
    along_z = np.array([0.0, 0.0, 1.0])
    chosen = replace(
        tree,
        axis=(along_z,) * len(tree),
        rotation=tuple(rotation),
        origin=tuple(origin),
        inertia=tuple(inertia),
    )
    return KernelTree(
        chosen,
        snapped(offset),
        tuple(snapped(R.T) for R, _ in frames),
        tuple(-R.T @ p for R, p in frames),
    )


def _nearest_to_parent(tree: Tree, i: int, slid: list[Vector]) -> Vector:
    """The point of body i's axis nearest its parent's axis, in link axes; level with the parent if parallel."""
    parent = tree.parent[i]
    if parent < 0:
        return np.zeros(3)  # the ground does not turn: where a root joint stands does not matter
    axis, other = tree.axis[i], tree.rotation[i].T @ tree.axis[parent]
    point = tree.rotation[i].T @ (slid[parent] - tree.origin[i])
    cosine = axis @ other
    if 1.0 - cosine**2 < _PARALLEL**2:
        return (axis @ point) * axis
    return (axis @ point - cosine * (other @ point)) / (1.0 - cosine**2) * axis


def _axes(tree: Tree, i: int, slid: list[Vector]) -> tuple[Vector, Vector, Vector]:
    """x, y, z of the chosen frame of body i, in link axes."""
    z = tree.axis[i]
    x = None
    if tree.children[i]:
        child = max(tree.children[i], key=lambda k: (len(tree.branch(k)), -k))
        normal = np.cross(z, tree.rotation[child] @ tree.axis[child])
        toward = tree.origin[child] + tree.rotation[child] @ slid[child] - slid[i]
        x = normal if np.linalg.norm(normal) > _PARALLEL else toward - (toward @ z) * z
    else:
        x = tree.inertia[i].com - (tree.inertia[i].com @ z) * z
    if np.linalg.norm(x) < _PARALLEL:
        x = np.eye(3)[np.argmin(np.abs(z))]
        x = x - (x @ z) * z
    x = x / np.linalg.norm(x)
    return x, np.cross(z, x), z


def _last_turn(R: Matrix) -> float:
    """The angle t for which R Rz(-t) has no entry (3, 1); all of R's turn where R is about z."""
    if np.hypot(R[2, 0], R[2, 1]) < _PARALLEL:
        return float(np.arctan2(R[1, 0], R[0, 0]))
    return float(np.arctan2(R[2, 0], R[2, 1]))


def _lumped(tree: Tree) -> tuple[BodyInertia, ...]:
    """Each body's inertia, less what goes to its parent, plus what comes from its children. Axes lie along z."""
    kept = list(tree.inertia)
    for i in range(len(tree) - 1, -1, -1):
        body, parent = kept[i], tree.parent[i]
        if tree.motion[i] == "revolute":
            across = body.about_origin[1, 1]
            unfelt = BodyInertia(body.mass, np.array([0.0, 0.0, body.moment[2]]), np.diag([across, across, 0.0]))
        else:
            unfelt = BodyInertia(0.0, np.zeros(3), body.about_origin)
        kept[i] = _cleaned(body - unfelt)
        if parent >= 0:
            kept[parent] = kept[parent] + unfelt.placed(tree.rotation[i], tree.origin[i])
    return tuple(kept)


def _cleaned(body: BodyInertia) -> BodyInertia:
    def without_rounding(array: Vector) -> Vector:
        return np.where(np.abs(array) < _ROUNDING * np.abs(array).max(), 0.0, array)

    return BodyInertia(body.mass, without_rounding(body.moment), without_rounding(body.about_origin))
