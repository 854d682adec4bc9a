"""A robot as frozen, parent-first arrays: what every algorithm reads and none changes.

Body i hangs on body parent[i] by its inboard joint; parent[i] < i, and -1 is the world. Invariants:

    parent-first      parent[i] < i
    depth-first       a branch {j >= i} is the index range i .. i + size(i)
    canonical         siblings stand in the order of their joints' names, so the order of links in a file does not
                      matter, and movable joints come in the order Pinocchio gives them
    one body, one joint   body i's pose is joint i's pose: the URDF child link's frame

Two trees describe a robot. `Tree.from_description` has one body per link, fixed joints included (a joint without a free
axis); there nothing is lost. `weld` makes from it the tree of the bodies that move against each other; it answers
faster, and `Weld` says where each link went. Relations are those of the Newton-Euler document: ancestors {j <= i},
branch {j >= i}, children.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dyn_service.errors import UrdfError
from dyn_service.model.description import Description, Joint, Link, Matrix, Mimic, Note, Vector
from dyn_service.model.inertia import NOTHING, BodyInertia, combine, skew

MotionType = Literal["revolute", "prismatic", "fixed"]

SNAP = 1e-15
"""Entries of rotations, and of places in m, this near to 0 or +-1 are roundings of `rpy` in multiples of pi/2."""


_HUGE = 1e100
"""kg m^2; beyond it products of inertias and lengths leave the range of doubles."""


@dataclass(frozen=True, eq=False)
class Limits:
    """Per movable joint, (nv,): lower, upper (rad | m), velocity (rad/s | m/s), effort (N m | N); inf where absent."""

    lower: Vector
    upper: Vector
    velocity: Vector
    effort: Vector


@dataclass(frozen=True, eq=False)
class Tree:
    """Bodies in parent-first order; entry i of each field belongs to body i.

    links: the link's name. joints: the inboard joint's name ("" for the root link, which stands fixed in the world).
    parent: index, -1 for the world. motion: revolute, prismatic or fixed. axis: (3,) unit vector of the free axis in
    the joint frame, which is also the body's. rotation, origin: R_PB, p_PB at q = 0. turn: cosine and sine of an angle
    that a turning joint adds to q; (1, 0) but in frames of our own choice. inertia: the body's. dof: index into q and
    v, -1 for fixed joints.
    """

    name: str
    links: tuple[str, ...]
    joints: tuple[str, ...]
    parent: tuple[int, ...]
    motion: tuple[MotionType, ...]
    axis: tuple[Vector, ...]
    rotation: tuple[Matrix, ...]
    origin: tuple[Vector, ...]
    turn: tuple[Vector, ...]
    inertia: tuple[BodyInertia, ...]
    dof: tuple[int, ...]
    continuous: frozenset[str]
    limits: Limits
    damping: Vector
    friction: Vector
    mimic: tuple[Mimic | None, ...]

    def __post_init__(self) -> None:
        """Makes the arrays read-only: kernels are compiled from them, and must not be outlived by what they say."""
        limits = (self.limits.lower, self.limits.upper, self.limits.velocity, self.limits.effort)
        bodies = (array for body in self.inertia for array in (body.moment, body.about_origin, *(body.centre or ())))
        for array in (
            *self.axis,
            *self.rotation,
            *self.origin,
            *self.turn,
            *bodies,
            *limits,
            self.damping,
            self.friction,
        ):
            array.flags.writeable = False

    @classmethod
    def from_description(cls, description: Description) -> Tree:
        """One body per link. The description is a tree (the importer has checked it): one root, no loops."""
        links = {link.name: link for link in description.links}
        outboard: dict[str, list[Joint]] = {name: [] for name in links}
        for joint in description.joints:
            outboard[joint.parent].append(joint)
        (root,) = set(links) - {joint.child for joint in description.joints}

        order: list[tuple[Link, Joint | None, int]] = []
        stack: list[tuple[str, Joint | None, int]] = [(root, None, -1)]
        while stack:
            name, inboard, parent = stack.pop()
            index = len(order)
            order.append((links[name], inboard, parent))
            ordered = sorted(outboard[name], key=lambda joint: joint.name, reverse=True)
            stack += [(joint.child, joint, index) for joint in ordered]

        movable = [joint for _, joint, _ in order if joint is not None and joint.type != "fixed"]
        dof = {joint.name: k for k, joint in enumerate(movable)}
        return cls(
            name=description.name,
            links=tuple(link.name for link, _, _ in order),
            joints=tuple("" if joint is None else joint.name for _, joint, _ in order),
            parent=tuple(parent for _, _, parent in order),
            motion=tuple(_motion(joint) for _, joint, _ in order),
            axis=tuple(np.array([1.0, 0.0, 0.0]) if joint is None else snapped(joint.axis) for _, joint, _ in order),
            rotation=tuple(np.eye(3) if joint is None else snapped(joint.rotation) for _, joint, _ in order),
            origin=tuple(np.zeros(3) if joint is None else joint.xyz for _, joint, _ in order),
            turn=(np.array([1.0, 0.0]),) * len(order),
            inertia=tuple(_inertia(link) for link, _, _ in order),
            dof=tuple(-1 if joint is None else dof.get(joint.name, -1) for _, joint, _ in order),
            continuous=frozenset(joint.name for joint in movable if joint.type == "continuous"),
            limits=_limits(movable),
            damping=np.array([joint.damping for joint in movable]),
            friction=np.array([joint.friction for joint in movable]),
            mimic=tuple(joint.mimic for joint in movable),
        )

    def __len__(self) -> int:
        return len(self.links)

    @cached_property
    def nv(self) -> int:
        """Number of movable joints; each has one position and one velocity."""
        return sum(k >= 0 for k in self.dof)

    @cached_property
    def movable_joints(self) -> tuple[str, ...]:
        """Names of the movable joints, in the order of q."""
        return tuple(name for name, k in zip(self.joints, self.dof, strict=True) if k >= 0)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """For each body i the bodies whose parent is i."""
        of: list[list[int]] = [[] for _ in self.parent]
        for i, parent in enumerate(self.parent):
            if parent >= 0:
                of[parent].append(i)
        return tuple(tuple(found) for found in of)

    def ancestors(self, i: int) -> tuple[int, ...]:
        """{j <= i}: body i, its parent, and so on to the root."""
        chain = []
        while i >= 0:
            chain.append(i)
            i = self.parent[i]
        return tuple(chain)

    def branch(self, i: int) -> tuple[int, ...]:
        """{j >= i}: body i and every body that hangs on it."""
        end = i + 1
        while end < len(self) and self.parent[end] >= i:
            end += 1
        return tuple(range(i, end))

    def poses_at_zero(self) -> tuple[tuple[Matrix, Vector], ...]:
        """R_WB, p_WB of every body at q = 0."""
        poses: list[tuple[Matrix, Vector]] = []
        for i, parent in enumerate(self.parent):
            rotation, origin = (np.eye(3), np.zeros(3)) if parent < 0 else poses[parent]
            poses.append((rotation @ self.rotation[i], origin + rotation @ self.origin[i]))
        return tuple(poses)

    def total_inertia(self) -> BodyInertia:
        """The whole robot's inertia at q = 0, seen from the world."""
        return combine(inertia.placed(*pose) for inertia, pose in zip(self.inertia, self.poses_at_zero(), strict=True))

    def mass_matrix(self, q: Vector) -> Matrix:
        """M(q), (..., nv, nv) at q (..., nv), in plain numbers, by composite bodies: Newton-Euler document, (18c)."""
        M = np.zeros((*q.shape, self.nv))
        D = [self._influence(i, q) for i in range(len(self))]
        C: list[Matrix] = [body.matrix for body in self.inertia]
        for i in range(len(self) - 1, -1, -1):
            if self.parent[i] >= 0:
                C[self.parent[i]] = C[self.parent[i]] + D[i].mT @ C[i] @ D[i]
            if self.dof[i] >= 0:
                F = C[i] @ self._free_axis(i)[:, None]
                for j in self.ancestors(i):
                    if self.dof[j] >= 0:
                        felt = (self._free_axis(j) @ F)[..., 0]
                        M[..., self.dof[i], self.dof[j]] = M[..., self.dof[j], self.dof[i]] = felt
                    F = D[j].mT @ F
        return M

    def _free_axis(self, i: int) -> Vector:
        """G_i, (6,)."""
        nothing = np.zeros(3)
        return np.concatenate((self.axis[i], nothing) if self.motion[i] == "revolute" else (nothing, self.axis[i]))

    def _influence(self, i: int, q: Vector) -> Matrix:
        """D_i, (..., 6, 6): Newton-Euler document, (4), in body axes."""
        R, p, k = self.rotation[i], self.origin[i], self.dof[i]
        if self.motion[i] == "revolute":
            across, angle = skew(self.axis[i]), q[..., k, None, None] + np.arctan2(self.turn[i][1], self.turn[i][0])
            R = R @ (np.eye(3) + np.sin(angle) * across + (1.0 - np.cos(angle)) * across @ across)
        lever = skew(p)
        if self.motion[i] == "prismatic":
            lever = lever + skew(R @ self.axis[i]) * q[..., k, None, None]
        D = np.zeros((*q.shape[:-1], 6, 6))
        D[..., :3, :3] = D[..., 3:, 3:] = R.mT
        D[..., 3:, :3] = -R.mT @ lever
        return D

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits over all that answers depend on, names and limits too; not over the file's layout."""
        digest = hashlib.sha256()
        names = (self.name, *self.links, *self.joints, *self.motion, *sorted(self.continuous), *map(str, self.mimic))
        for name in names:
            digest.update(name.encode() + b"\0")
        digest.update(np.array([self.parent, self.dof], dtype="<i8").tobytes())
        numbers = [*self.axis, *self.rotation, *self.origin, *self.turn]
        for body in self.inertia:
            numbers += [np.array([body.mass]), body.moment, body.about_origin, *(body.centre or ())]
        numbers += [self.limits.lower, self.limits.upper, self.limits.velocity, self.limits.effort]
        numbers += [self.damping, self.friction]
        for array in numbers:
            # Adding zero turns -0.0 into 0.0: the same robot must not have two fingerprints.
            digest.update((np.asarray(array, dtype="<f8") + 0.0).tobytes())
        return digest.hexdigest()[:32]


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


def weld(full: Tree) -> Weld:
    """Joins every link behind a fixed joint to the body it moves with. Inertia on unmoving links is the world's.

    In the arithmetic of the tree's numbers, be they doubles or decimals.
    """
    kind = full.origin[0].dtype
    unturned, nowhere = np.eye(3, dtype=kind), np.zeros(3, dtype=kind)
    body: list[int] = []
    rotation: list[Matrix] = []
    origin: list[Vector] = []
    parts: list[list[BodyInertia]] = []
    moving: list[int] = []
    placement: list[tuple[int, Matrix, Vector]] = []
    for i, parent in enumerate(full.parent):
        carrier, R, p = (-1, unturned, nowhere) if parent < 0 else (body[parent], rotation[parent], origin[parent])
        R_BL, p_BL = R @ full.rotation[i], p + R @ full.origin[i]
        if full.dof[i] >= 0:
            placement.append((carrier, R_BL, p_BL))
            carrier, R_BL, p_BL = len(moving), unturned, nowhere
            moving.append(i)
            parts.append([])
        body.append(carrier)
        rotation.append(R_BL)
        origin.append(p_BL)
        if carrier >= 0:
            parts[carrier].append(full.inertia[i].placed(R_BL, p_BL))
    tree = Tree(
        name=full.name,
        links=tuple(full.links[i] for i in moving),
        joints=tuple(full.joints[i] for i in moving),
        parent=tuple(carrier for carrier, _, _ in placement),
        motion=tuple(full.motion[i] for i in moving),
        axis=tuple(full.axis[i] for i in moving),
        rotation=tuple(R for _, R, _ in placement),
        origin=tuple(p for _, _, p in placement),
        turn=tuple(full.turn[i] for i in moving),
        inertia=tuple(combine(inertias) for inertias in parts),
        dof=tuple(range(len(moving))),
        continuous=full.continuous,
        limits=full.limits,
        damping=full.damping,
        friction=full.friction,
        mimic=full.mimic,
    )
    return Weld(tree, tuple(body), tuple(rotation), tuple(origin))


def welding_notes(full: Tree, welded: Weld) -> tuple[Note, ...]:
    """One note per link that a fixed joint joined to a moving body or to the world."""
    notes = []
    for i, carrier in enumerate(welded.body):
        if full.joints[i] and full.dof[i] < 0:
            to = "the world" if carrier < 0 else f"the body of link '{welded.tree.links[carrier]}'"
            notes.append(Note("merged", f"link '{full.links[i]}'", f"welded by fixed joint '{full.joints[i]}' to {to}"))
    return tuple(notes)


def snapped(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entries within SNAP of 0 or +-1 as exactly that. Zeros fold away in the kernels, so exact ones are speed."""
    nearest = np.round(array)
    return np.where((np.abs(array - nearest) < SNAP) & (np.abs(nearest) <= 1.0), nearest, array) + 0.0


def _motion(joint: Joint | None) -> MotionType:
    if joint is None or joint.type == "fixed":
        return "fixed"
    return "prismatic" if joint.type == "prismatic" else "revolute"


def _inertia(link: Link) -> BodyInertia:
    if link.inertial is None:
        return NOTHING
    R = link.inertial.rotation
    with np.errstate(over="ignore", invalid="ignore"):
        body = BodyInertia.of_centre(link.inertial.mass, link.inertial.com, link.inertial.inertia, R)
    if not (np.abs(body.about_origin).max() < _HUGE and np.abs(body.moment).max() < _HUGE):
        raise UrdfError(
            f"the inertia about the link's origin is {np.abs(body.about_origin).max():g} kg m^2, expected less than "
            f"{_HUGE:g}",
            line=link.line or None,
            element=f"link '{link.name}' inertial",
        )
    return body


def _limits(movable: list[Joint]) -> Limits:
    def column(name: str, absent: float) -> Vector:
        values = (None if joint.limit is None else getattr(joint.limit, name) for joint in movable)
        return np.array([absent if value is None else value for value in values])

    limits = Limits(
        column("lower", -np.inf), column("upper", np.inf), column("velocity", np.inf), column("effort", np.inf)
    )
    for k, joint in enumerate(movable):
        if joint.type == "continuous":
            limits.lower[k], limits.upper[k] = -np.inf, np.inf
    return limits
