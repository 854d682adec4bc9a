"""A robot as frozen, parent-first arrays: what every algorithm reads and none changes.

Body i hangs on body parent[i] by its inboard joint; parent[i] < i, and -1 is the world. Invariants:

    parent-first      parent[i] < i
    depth-first       a branch {j >= i} is the index range i .. i + size(i)
    canonical         siblings stand in the order of their joints' names, so the order of links in a file does not
                      matter, and movable joints come in the order Pinocchio gives them
    one body, one joint   body i's pose is joint i's pose: the URDF child link's frame

Two trees describe a robot. `Tree.from_description` has one body per link, fixed joints included (a joint without a free
axis); there nothing is lost. `weld` makes from it the tree of the bodies that move against each other; it answers
faster, and `Weld` says where each link went.

Relations are those of the Newton-Euler document: ancestors {j <= i}, branch {j >= i}, children.

Joints may follow others (`mimic.py`): q, v and tau have entries of the leaders only, and a follower's body reads those
of its leader. Its joint is the file's, `led` by a ratio: its G is the ratio times as long, and its frame stands where
the body is with the leader at zero. With S the constant matrix from v to the rates of all joints that move,

    rates = S v,      tau = S^T tau_all,      M = S^T M_all S,

and a sweep over the bodies does all three, where bodies that share an entry of v add to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyn_service.errors import UrdfError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.model.description import ROOT_JOINT, Description, Link, Mimic, Note, RootType
from dyn_service.model.description import Joint as DescribedJoint
from dyn_service.model.inertia import NOTHING, BodyInertia, combine
from dyn_service.model.joints import FIXED, JOINT_TYPES, NUMBERS, Joint, summed
from dyn_service.model.mimic import Bounds, by_leader, followers, kept
from dyn_service.model.passive import Passive, widths

SNAP = 1e-15
"""Entries of rotations, and of places in m, this near to 0 or +-1 are roundings of `rpy` in multiples of pi/2."""


HUGE = 1e100
"""kg m^2; beyond it products of inertias and lengths leave the range of doubles."""


@dataclass(frozen=True, eq=False)
class Tree:
    """Bodies in parent-first order; entry i of each field belongs to body i.

    links: the link's name. joints: the inboard joint's name ("" for the root link that stands fixed in the world).
    parent: index, -1 for the world. inboard: the joint, in the joint frame, which is also the body's at q = 0.
    rotation, origin: R_PJ, p_PJ, where the joint frame stands on the parent. inertia: the body's.

    limits: of the joints that have entries in q and v, which keep those of their followers too. Of each joint that
    moves, in the order of their bodies: passive, what it does by itself, in its own rate; mimic, whom it follows, in
    the end, and None where it has entries of its own. free: (nv,), 0 where a joint is locked, else 1; None: all move.

    What locking means: the joint stands still, whatever acts on it. Its v and a are 0, its effort counts for nothing
    and is 0 where it is asked for, its column of Jacobians is 0, and its row of M is the identity's; what its lock
    carries is in the loads at the joints. So all else is as if it were fixed where it is, and M a + C = tau holds.

    Inertia and passive may have leading axes, those of many robots that are one but for these numbers.
    """

    name: str
    links: tuple[str, ...]
    joints: tuple[str, ...]
    parent: tuple[int, ...]
    inboard: tuple[Joint, ...]
    rotation: tuple[Matrix, ...]
    origin: tuple[Vector, ...]
    inertia: tuple[BodyInertia, ...]
    limits: Limits
    passive: Passive
    mimic: tuple[Mimic | None, ...]
    free: Vector | None = None

    def __post_init__(self) -> None:
        """Makes the arrays read-only: kernels are compiled from them, and must not be outlived by what they say."""
        limits = (self.limits.lower, self.limits.upper, self.limits.velocity, self.limits.effort)
        bodies = (array for body in self.inertia for array in (body.moment, body.about_origin, *(body.centre or ())))
        for array in (
            *(array for joint in self.inboard for array in joint.numbers),
            *self.rotation,
            *self.origin,
            *bodies,
            *limits,
            *self.passive.arrays,
            self.free,
        ):
            if isinstance(array, np.ndarray):  # and no symbol in place of a number
                array.flags.writeable = False

    @classmethod
    def from_description(cls, description: Description) -> Tree:
        """One body per link. The description is a tree (the importer has checked it): one root, no loops."""
        links = {link.name: link for link in description.links}
        outboard: dict[str, list[DescribedJoint]] = {name: [] for name in links}
        for joint in description.joints:
            outboard[joint.parent].append(joint)
        (root,) = set(links) - {joint.child for joint in description.joints}

        order: list[tuple[Link, DescribedJoint | None, int]] = []
        stack: list[tuple[str, DescribedJoint | None, int]] = [(root, _root_joint(description.root, root), -1)]
        while stack:
            name, inboard, parent = stack.pop()
            index = len(order)
            order.append((links[name], inboard, parent))
            ordered = sorted(outboard[name], key=lambda joint: joint.name, reverse=True)
            stack += [(joint.child, joint, index) for joint in ordered]

        led = followers(description.joints)
        inboards = tuple(_inboard(joint, led) for _, joint, _ in order)
        places = [_place(joint, led) for _, joint, _ in order]
        movable = [
            (described, joint)
            for (_, described, _), joint in zip(order, inboards, strict=True)
            if described is not None and joint.nv
        ]
        return cls(
            name=description.name,
            links=tuple(link.name for link, _, _ in order),
            joints=tuple("" if joint is None else joint.name for _, joint, _ in order),
            parent=tuple(parent for _, _, parent in order),
            inboard=inboards,
            rotation=tuple(R for R, _ in places),
            origin=tuple(p for _, p in places),
            inertia=tuple(_inertia(link) for link, _, _ in order),
            limits=_limits(movable, by_leader(description.joints, led)),
            passive=_passive(movable, led),
            mimic=tuple(led.get(joint.name) for joint, _ in movable),
        )

    def __len__(self) -> int:
        return len(self.links)

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """The bodies whose inboard joint moves."""
        return tuple(i for i, joint in enumerate(self.inboard) if joint.nv)

    @cached_property
    def leader(self) -> tuple[int, ...]:
        """Per body, the one whose joint its own follows; itself where its joint follows none."""
        at = {self.joints[i]: i for i in self.movable}
        of = {i: at[mimic.joint] for i, mimic in zip(self.movable, self.mimic, strict=True) if mimic is not None}
        return tuple(of.get(i, i) for i in range(len(self)))

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """The bodies whose joints have entries in q and v, in their order."""
        return tuple(i for i in self.movable if self.leader[i] == i)

    @cached_property
    def together(self) -> tuple[tuple[int, ...], ...]:
        """Of each of these joints, the bodies that move with its entries: its own, then those that follow."""
        of: dict[int, list[int]] = {i: [i] for i in self.leaders}
        for k in self.movable:
            if self.leader[k] != k:
                of[self.leader[k]].append(k)
        return tuple(tuple(bodies) for bodies in of.values())

    @cached_property
    def coupled(self) -> bool:
        """Whether a joint follows another."""
        return len(self.leaders) < len(self.movable)

    @cached_property
    def entries_outward(self) -> tuple[int, ...]:
        """The entries of v, each after those of the joints that carry its bodies; an entry that several bodies share
        where all the branches with these meet. From the last to the first, M is factored with least filled in.
        """

        def meeting(bodies: tuple[int, ...]) -> float:
            if len(bodies) == 1:
                return bodies[0]
            on_all_ways = set.intersection(*(set(self.ancestors(i)) for i in bodies))
            last = max(on_all_ways, default=-1)
            return last if last in bodies else last + 0.5

        outward = sorted(range(len(self.leaders)), key=lambda k: meeting(self.together[k]))
        slices = self.configuration.v_slices
        return tuple(n for k in outward for n in range(slices[k].start, slices[k].stop))

    @cached_property
    def configuration(self) -> Configuration:
        """The joints that have entries in q and v, and these entries."""
        return Configuration(tuple(self.joints[i] for i in self.leaders), tuple(self.inboard[i] for i in self.leaders))

    @cached_property
    def bare(self) -> Tree:
        """The same bodies, their joints doing nothing by themselves."""
        return replace(self, passive=Passive.none(self.nr)) if self.passive.acts else self

    def locked(self, joints: Iterable[str]) -> Tree:
        """The same bodies, those joints locked, and with them all that follow; they do nothing by themselves.

        Args:
            joints: Names of joints that have entries in v.
        """
        chosen = frozenset(joints)
        if not chosen:
            return self
        free = np.array([float(name not in chosen) for name in self.configuration.velocity_joints])
        still = [self.joints[self.leader[i]] in chosen for i in self.movable for _ in range(self.inboard[i].nv)]
        held = free if self.free is None else free * self.free
        return replace(self, free=held, passive=self.passive.without(np.flatnonzero(still).tolist()))

    @property
    def locked_joints(self) -> frozenset[str]:
        """Names of the joints that are locked, without those that follow them."""
        if self.free is None:
            return frozenset()
        return frozenset(np.array(self.configuration.velocity_joints)[self.free == 0.0].tolist())

    def one(self, index: tuple[int, ...]) -> Tree:
        """That of many robots which has this place in their leading axes, or in those that these broadcast to."""
        if not self.lead:
            return self

        def at(array: Any, core: int) -> Any:
            return np.asarray(array)[_places(np.shape(array), core, index)]

        passive = Passive(*(at(array, 1) for array in self.passive.arrays))
        return replace(self, inertia=tuple(body.mapped(at) for body in self.inertia), passive=passive)

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of its numbers: () of one robot."""
        of_joints = (array.shape[:-1] for array in self.passive.arrays)
        return np.broadcast_shapes(*(body.lead for body in self.inertia), *of_joints)

    @cached_property
    def unled(self) -> Tree:
        """The same bodies, each joint moving by itself, its position that of its own less what its offset made of it.
        Limits stay those of the leaders.
        """
        alone = tuple(joint.alone for joint in self.inboard)
        return replace(self, inboard=alone, mimic=(None,) * len(self.movable)) if self.coupled else self

    @property
    def nq(self) -> int:
        """Length of q."""
        return self.configuration.nq

    @property
    def nv(self) -> int:
        """Length of v, a, tau."""
        return self.configuration.nv

    @cached_property
    def nr(self) -> int:
        """Rates of all joints that move, followers too."""
        return sum(joint.nv for joint in self.inboard)

    @property
    def movable_joints(self) -> tuple[str, ...]:
        """Names of the joints that have entries in q and v, in their order."""
        return self.configuration.names

    @cached_property
    def moving_joints(self) -> tuple[str, ...]:
        """Names of all joints that move, followers too, in the order of their bodies."""
        return tuple(self.joints[i] for i in self.movable)

    @cached_property
    def ways(self) -> tuple[str, ...]:
        """Names of all joints that move, in that order, each as often as it has ways to move."""
        return tuple(self.joints[i] for i in self.movable for _ in range(self.inboard[i].nv))

    @cached_property
    def named_joints(self) -> tuple[str, ...]:
        """Names of all joints, fixed ones too, in the order of the bodies they move."""
        return tuple(name for name in self.joints if name)

    @cached_property
    def in_q(self) -> tuple[slice, ...]:
        """Per body, where its joint's positions stand in q, a follower's being its leader's; empty at fixed joints."""
        return self._placed(self.configuration.q_slices)

    @cached_property
    def in_v(self) -> tuple[slice, ...]:
        """Per body, where its joint's velocities stand in v, as `in_q`."""
        return self._placed(self.configuration.v_slices)

    @cached_property
    def in_rates(self) -> tuple[slice, ...]:
        """Per body, where its own joint's rates stand among those of all joints that move; empty at fixed joints."""
        ends = tuple(accumulate(joint.nv for joint in self.inboard))
        return tuple(slice(start, end) for start, end in zip((0, *ends), ends, strict=False))

    def _placed(self, slices: tuple[slice, ...]) -> tuple[slice, ...]:
        of = dict(zip(self.leaders, slices, strict=True))
        return tuple(of.get(self.leader[i], slice(0, 0)) for i in range(len(self)))

    @cached_property
    def spread(self) -> Matrix:
        """S, (nr, nv): from v to the rates of all joints that move."""
        S = np.zeros((self.nr, self.nv))
        for i in self.movable:
            S[self.in_rates[i], self.in_v[i]] = self.inboard[i].ratio * np.eye(self.inboard[i].nv)
        S.flags.writeable = False
        return S

    def felt(self, x: Vector) -> Vector:
        """Of what each joint's own rate meets, (..., nr), in proportion: what v meets, (..., nv), the diagonal of
        S^T x S.
        """
        return x @ self.spread**2 if self.coupled else x

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

    def pose(self, i: int, q: Vector) -> tuple[Matrix, Vector]:
        """R_PB (..., 3, 3) and p_PB (..., 3) of body i at q (..., nq)."""
        joint, entries = self.inboard[i], [q[..., k] for k in range(self.in_q[i].start, self.in_q[i].stop)]
        R, p = self.rotation[i], self.origin[i]
        turned, shifted = joint.rotation(entries, NUMBERS), joint.translation(entries, NUMBERS)
        moved = p + summed(shifted, 1) @ R.T if shifted else np.broadcast_to(p, (*q.shape[:-1], 3))
        return (R @ summed(turned, 2) if turned else np.broadcast_to(R, (*q.shape[:-1], 3, 3))), moved

    def mass_matrix(self, q: Vector) -> Matrix:
        """M(q), (..., nv, nv) at q (..., nq), in plain numbers, by composite bodies: Newton-Euler document, (18c); with
        the armature of the joints.
        """
        M = np.zeros((*np.broadcast_shapes(q.shape[:-1], self.lead), self.nv, self.nv))
        D = [self._influence(i, q) for i in range(len(self))]
        C: list[Matrix] = [body.matrix for body in self.inertia]
        for i in range(len(self) - 1, -1, -1):
            if self.parent[i] >= 0:
                C[self.parent[i]] = C[self.parent[i]] + D[i].mT @ C[i] @ D[i]
            if self.inboard[i].nv:
                F = C[i] @ self.inboard[i].subspace
                for j in self.ancestors(i):
                    if self.inboard[j].nv:
                        felt = self.inboard[j].subspace.T @ F
                        M[..., self.in_v[j], self.in_v[i]] += felt
                        if j != i:
                            M[..., self.in_v[i], self.in_v[j]] += felt.mT
                    F = D[j].mT @ F
        M[..., range(self.nv), range(self.nv)] += self.felt(self.passive.armature)
        return M if self.free is None else M * np.outer(self.free, self.free) + np.diag(1.0 - self.free)

    def _influence(self, i: int, q: Vector) -> Matrix:
        """D_i, (..., 6, 6): Newton-Euler document, (4), in body axes."""
        R, p = self.pose(i, q)
        D = np.zeros((*q.shape[:-1], 6, 6))
        D[..., :3, :3] = D[..., 3:, 3:] = R.mT
        D[..., 3:, :3] = R.mT @ np.cross(np.eye(3), p[..., None, :]).mT  # -R p~
        return D

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits over all that answers depend on, names and limits too; not over the file's layout."""
        digest = hashlib.sha256()
        types = (joint.type for joint in self.inboard)
        names = (self.name, *self.links, *self.joints, *types, *map(str, self.mimic))
        for name in names:
            digest.update(name.encode() + b"\0")
        digest.update(np.array(self.parent, dtype="<i8").tobytes())
        numbers = [*self.rotation, *self.origin]
        for joint in self.inboard:
            numbers += [*joint.numbers, *([] if joint.ratio == 1.0 else [np.array([joint.ratio])])]
        for body in self.inertia:
            numbers += [np.atleast_1d(body.mass), body.moment, body.about_origin, *(body.centre or ())]
        numbers += [self.limits.lower, self.limits.upper, self.limits.velocity, self.limits.effort]
        for array in numbers:
            # Adding zero turns -0.0 into 0.0: the same robot must not have two fingerprints.
            digest.update((np.asarray(array, dtype="<f8") + 0.0).tobytes())
        for part in self.passive.identity:
            digest.update(part)
        if self.free is not None:
            digest.update(b"locked" + self.free.astype("<f8").tobytes())
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

    def carrying(self, full: Tree, changed: Collection[int]) -> Weld:
        """The same with the numbers of another tree of these links.

        Args:
            full: One body per link, in the same places.
            changed: The links whose inertia is another one.
        """
        bodies = frozenset(self.body[i] for i in changed)
        inertia = tuple(
            _welded_inertia(full, b, self.body, self.rotation, self.origin) if b in bodies else own
            for b, own in enumerate(self.tree.inertia)
        )
        tree = replace(self.tree, name=full.name, inertia=inertia, passive=full.passive, free=full.free)
        return replace(self, tree=tree)


def _welded_inertia(
    full: Tree, body: int, bodies: Sequence[int], rotation: Sequence[Matrix], origin: Sequence[Vector]
) -> BodyInertia:
    """Of the links that move with a body, in its frame: bodies, rotation and origin are those of `Weld`."""
    links = [i for i, of in enumerate(bodies) if of == body]
    return combine(full.inertia[i].placed(rotation[i], origin[i]) for i in links)


def weld(full: Tree) -> Weld:
    """Joins every link behind a fixed joint to the body it moves with. Inertia on unmoving links is the world's.

    In the arithmetic of the tree's numbers, be they doubles or decimals.
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
        inertia=tuple(_welded_inertia(full, b, body, rotation, origin) for b in range(len(moving))),
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


def _places(shape: tuple[int, ...], core: int, index: tuple[int, ...]) -> tuple[int, ...]:
    """Where an array that broadcasts to leading axes has what stands at one place of these."""
    lead = shape[: len(shape) - core]
    return tuple(k if size > 1 else 0 for k, size in zip(index[len(index) - len(lead) :], lead, strict=True))


def snapped(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entries within SNAP of 0 or +-1 as exactly that. Zeros fold away in the kernels, so exact ones are speed."""
    nearest = np.round(array)
    return np.where((np.abs(array - nearest) < SNAP) & (np.abs(nearest) <= 1.0), nearest, array) + 0.0


def _root_joint(kind: RootType, link: str) -> DescribedJoint | None:
    if kind == "fixed":
        return None
    upright = np.array([0.0, 0.0, 1.0])
    return DescribedJoint(ROOT_JOINT, kind, "", link, np.zeros(3), np.eye(3), upright)


def _inboard(joint: DescribedJoint | None, led: Mapping[str, Mimic]) -> Joint:
    if joint is None:
        return FIXED
    made = JOINT_TYPES[joint.type](snapped(joint.axis), joint.pitch)
    return made.led(led[joint.name].multiplier) if joint.name in led else made


def _place(joint: DescribedJoint | None, led: Mapping[str, Mimic]) -> tuple[Matrix, Vector]:
    """R_PJ and p_PJ: where the body stands with its joint at zero, or, where it follows another, with that at zero."""
    if joint is None:
        return np.eye(3), np.zeros(3)
    R = snapped(joint.rotation)
    offset = led[joint.name].offset if joint.name in led else 0.0
    if not offset:
        return R, joint.xyz
    turned, shifted = _inboard(joint, {}).pose(np.array([offset]))
    return snapped(R @ turned), joint.xyz + R @ shifted


def _passive(movable: list[tuple[DescribedJoint, Joint]], led: Mapping[str, Mimic]) -> Passive:
    """What the joints do by themselves, of each the same in all its ways to move. A follower's spring rests where its
    own does, counted from where it stands with its leader at zero.
    """
    for described, joint in movable:
        if described.stiffness and joint.nv != 1:
            raise UrdfError(
                f"a spring acts along one way to move, and a joint of type {described.type} has {joint.nv}",
                line=described.line or None,
                element=f"joint '{described.name}'",
            )
    spread = [joint.nv for _, joint in movable]

    def column(name: str) -> Vector:
        return np.repeat([getattr(described, name) for described, _ in movable], spread).astype(np.float64)

    given = [(described.friction_width, widths(joint.alone)) for described, joint in movable]
    width = [default if said is None else said for said, defaults in given for default in defaults]
    offset = [led[described.name].offset if described.name in led else 0.0 for described, _ in movable]
    return Passive(
        column("damping"),
        column("friction"),
        np.array(width, dtype=np.float64),
        column("armature"),
        column("stiffness"),
        column("rest") - np.repeat(np.array(offset), spread),
    )


def _inertia(link: Link) -> BodyInertia:
    if link.inertial is None:
        return NOTHING
    R = link.inertial.rotation
    with np.errstate(over="ignore", invalid="ignore"):
        body = BodyInertia.of_centre(link.inertial.mass, link.inertial.com, link.inertial.inertia, R)
    if large := too_large(body):
        raise UrdfError(large, line=link.line or None, element=f"link '{link.name}' inertial")
    return body


def too_large(body: BodyInertia) -> str:
    """What of a link's inertia is beyond what products of it can take, in words; empty where nothing is."""
    for what, array, unit in (("inertia", body.about_origin, "kg m^2"), ("first moment", body.moment, "kg m")):
        size = float(np.abs(array).max(initial=0.0))
        if not size < HUGE:
            return f"the {what} about the link's origin is {size:g} {unit}, expected less than {HUGE:g}"
    return ""


def _limits(
    movable: list[tuple[DescribedJoint, Joint]], following: Mapping[str, list[tuple[DescribedJoint, Mimic]]]
) -> Limits:
    """Those of joints with one way to move; the file's one range says nothing of several. Followers have none of their
    own.
    """
    led = {joint.name for group in following.values() for joint, _ in group}
    found = [
        (joint, kept(described, following.get(described.name, ())).bounds)
        for described, joint in movable
        if described.name not in led
    ]
    of_q = [(joint.nq, of) for joint, of in found]
    of_v = [(joint.nv, of) for joint, of in found]

    def column(entries: list[tuple[int, Bounds]], name: str) -> Vector:
        return np.array([getattr(of, name) for count, of in entries for _ in range(count)], dtype=np.float64)

    return Limits(column(of_q, "lower"), column(of_q, "upper"), column(of_v, "velocity"), column(of_v, "effort"))
