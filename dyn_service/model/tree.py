"""A robot as frozen, parent-first arrays, the input of every algorithm.

Body i is connected to body parent[i] by its inboard joint; -1 is the world. Invariants:

    parent-first      parent[i] < i
    depth-first       a branch {j >= i} is the index range i .. i + size(i)
    canonical         siblings are sorted by the names of their joints, so that the order of links in a file does not
                      matter, and movable joints have Pinocchio's order
    one body, one joint   body i's pose is joint i's pose: the URDF child link's frame

Two trees describe a robot: the tree of links, one body per link with fixed joints (`building.tree_of`), and the tree
of moving bodies, in which fixed joints are merged for speed (`composite.weld`). `composite.py` computes poses and total
masses of both with NumPy.

Relations are those of the Newton-Euler document: ancestors {j <= i}, branch {j >= i}, children.

Mimic joints (`mimic.py`) have no entries in q, v and tau; their bodies read those of the mimicked joint. G of a mimic
joint is multiplied by its ratio, and its frame is the body's pose with the mimicked joint at zero. With S the constant
matrix from v to the velocities of all movable joints,

    rates = S v,      tau = S^T tau_all,      M = S^T M_all S,

which a sweep over the bodies computes if bodies that share an entry of v add to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.model.description import Mimic
from dyn_service.model.inertia import BodyInertia
from dyn_service.model.joints import Joint
from dyn_service.model.passive import Passive
from dyn_service.model.traversal import Traversal


@dataclass(frozen=True, eq=False)
class Tree(Traversal):
    """Bodies in parent-first order; entry i of each field belongs to body i.

    links: names of the links. joints: names of the inboard joints ("" for a root link fixed in the world). parent:
    index, -1 for the world. inboard: the joints, in the joint frame, which is also the body's at q = 0. rotation,
    origin: R_PJ, p_PJ, pose of the joint frame in the parent. inertia: of the bodies.

    limits: of the joints with entries in q and v, including those of their mimic joints. For each movable joint, in the
    order of bodies: passive, its passive properties in its own velocity; mimic, the joint with entries in q that it
    follows, or None. free: (nv,), 0 for locked joints, else 1; None: all are free.

    A locked joint does not move: its v and a are 0, its effort is ignored as an input and 0 as an output, its column of
    Jacobians is 0, and its row of M is that of the identity. The load of the lock is in the constraint forces. All
    other results are those of a fixed joint at this position, and M a + C = tau holds.

    Inertia and passive may have leading axes, for many robots that differ only in these numbers.
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
        """Makes the arrays read-only, because compiled kernels contain their numbers as constants."""
        joints = (array for joint in self.inboard for array in joint.numbers)
        bodies = (array for body in self.inertia for array in (body.moment, body.about_origin, *(body.centre or ())))
        limits = (getattr(self.limits, limit.name) for limit in fields(self.limits))
        places = (*self.rotation, *self.origin)
        for array in (*joints, *places, *bodies, *limits, *self.passive.arrays, self.free):
            if isinstance(array, np.ndarray):  # not a symbol
                array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.links)

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """The bodies whose inboard joint moves."""
        return tuple(i for i, joint in enumerate(self.inboard) if joint.nv)

    @cached_property
    def mimicked_body(self) -> tuple[int, ...]:
        """Per body, the body whose joint its joint mimics; the body itself if it mimics none."""
        body_by_joint = {self.joints[i]: i for i in self.movable}
        leader_body = {
            i: body_by_joint[mimic.joint]
            for i, mimic in zip(self.movable, self.mimic, strict=True)
            if mimic is not None
        }
        return tuple(leader_body.get(i, i) for i in range(len(self)))

    @cached_property
    def independent_bodies(self) -> tuple[int, ...]:
        """The bodies of independent joints, those with entries in q and v, in their order."""
        return tuple(i for i in self.movable if self.mimicked_body[i] == i)

    @cached_property
    def driven_bodies(self) -> tuple[tuple[int, ...], ...]:
        """For each independent joint, the bodies that its velocities move: its own, then those of its mimic joints."""
        bodies_by_leader: dict[int, list[int]] = {i: [i] for i in self.independent_bodies}
        for k in self.movable:
            if self.mimicked_body[k] != k:
                bodies_by_leader[self.mimicked_body[k]].append(k)
        return tuple(tuple(bodies) for bodies in bodies_by_leader.values())

    @cached_property
    def follows(self) -> tuple[bool, ...]:
        """Per body, whether its joint mimics another."""
        return tuple(body != i for i, body in enumerate(self.mimicked_body))

    @cached_property
    def has_mimics(self) -> bool:
        """Whether a joint mimics another."""
        return len(self.independent_bodies) < len(self.movable)

    @cached_property
    def parent_first_entries(self) -> tuple[int, ...]:
        """Indices of the entries of v such that those of a joint follow those of its ancestors.

        Entries that several bodies share are placed at the last common ancestor of these bodies. Eliminating in
        reverse order gives the factors of M the least fill-in.
        """

        def position(bodies: tuple[int, ...]) -> float:
            if len(bodies) == 1:
                return bodies[0]
            common = set.intersection(*(set(self.ancestors(i)) for i in bodies))
            last = max(common, default=-1)
            # Half an index later than the ancestor, and before each of the bodies.
            return last if last in bodies else last + 0.5

        order = sorted(range(len(self.independent_bodies)), key=lambda k: position(self.driven_bodies[k]))
        slices = self.configuration.v_slices
        return tuple(n for k in order for n in range(slices[k].start, slices[k].stop))

    @cached_property
    def configuration(self) -> Configuration:
        """The joints that have entries in q and v, and these entries."""
        return Configuration(
            tuple(self.joints[i] for i in self.independent_bodies),
            tuple(self.inboard[i] for i in self.independent_bodies),
        )

    @cached_property
    def without_passive(self) -> Tree:
        """The tree without passive joint properties."""
        return replace(self, passive=Passive.none(self.nr)) if self.passive.acts else self

    def locked(self, joints: Iterable[str]) -> Tree:
        """Returns the tree with these independent joints and their mimic joints locked, without passive efforts."""
        locked_names = frozenset(joints)
        if not locked_names:
            return self
        free = np.array([float(name not in locked_names) for name in self.configuration.velocity_joints])
        is_locked = [
            self.joints[self.mimicked_body[i]] in locked_names for i in self.movable for _ in range(self.inboard[i].nv)
        ]
        free_entries = free if self.free is None else free * self.free
        # Without passive efforts, because the load of the lock is in the constraint forces.
        return replace(self, free=free_entries, passive=self.passive.without(np.flatnonzero(is_locked).tolist()))

    @property
    def locked_joints(self) -> frozenset[str]:
        """Names of the locked joints, without their mimic joints."""
        if self.free is None:
            return frozenset()
        return frozenset(np.array(self.configuration.velocity_joints)[self.free == 0.0].tolist())

    def robot_at(self, index: tuple[int, ...]) -> Tree:
        """Returns the robot at an index of the leading axes, or of axes to which these broadcast."""
        if not self.lead:
            return self

        def at(array: Any, core: int) -> Any:
            return np.asarray(array)[_places(np.shape(array), core, index)]

        passive = Passive(*(at(array, 1) for array in self.passive.arrays))
        return replace(self, inertia=tuple(body.mapped(at) for body in self.inertia), passive=passive)

    @cached_property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of its numbers; () for one robot."""
        of_joints = (array.shape[:-1] for array in self.passive.arrays)
        return np.broadcast_shapes(*(body.lead for body in self.inertia), *of_joints)

    @cached_property
    def without_mimics(self) -> Tree:
        """The tree with every mimic joint made independent, at position 0 where the mimicked joint is at 0.

        The limits are not changed: the additional joints have no limits.
        """
        joints = tuple(joint.without_mimic for joint in self.inboard)
        return replace(self, inboard=joints, mimic=(None,) * len(self.movable)) if self.has_mimics else self

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
        """Number of velocities of all movable joints, mimic joints included."""
        return sum(joint.nv for joint in self.inboard)

    @property
    def movable_joints(self) -> tuple[str, ...]:
        """Names of the joints with entries in q and v, in their order."""
        return self.configuration.names

    @cached_property
    def moving_joints(self) -> tuple[str, ...]:
        """Names of all movable joints, mimic joints included, in the order of their bodies."""
        return tuple(self.joints[i] for i in self.movable)

    @cached_property
    def rate_joints(self) -> tuple[str, ...]:
        """(nr,): the joint of each velocity of all movable joints, mimic joints included."""
        return tuple(self.joints[i] for i in self.movable for _ in range(self.inboard[i].nv))

    @cached_property
    def named_joints(self) -> tuple[str, ...]:
        """Names of all joints, including fixed ones, in the order of their bodies."""
        return tuple(name for name in self.joints if name)

    @cached_property
    def in_q(self) -> tuple[slice, ...]:
        """Per body, the entries of its joint in q, those of the mimicked joint for mimic joints; empty for fixed
        joints.
        """
        return self._placed(self.configuration.q_slices)

    @cached_property
    def in_v(self) -> tuple[slice, ...]:
        """Per body, the entries of its joint in v, as `in_q`."""
        return self._placed(self.configuration.v_slices)

    @cached_property
    def in_rates(self) -> tuple[slice, ...]:
        """Per body, the slice of its joint among the velocities of all movable joints; empty for fixed joints."""
        ends = tuple(accumulate(joint.nv for joint in self.inboard))
        return tuple(slice(start, end) for start, end in zip((0, *ends), ends, strict=False))

    def _placed(self, slices: tuple[slice, ...]) -> tuple[slice, ...]:
        slice_by_body = dict(zip(self.independent_bodies, slices, strict=True))
        return tuple(slice_by_body.get(self.mimicked_body[i], slice(0, 0)) for i in range(len(self)))

    @cached_property
    def coupling_matrix(self) -> Matrix:
        """S, (nr, nv): maps v to the velocities of all movable joints, mimic joints included."""
        S = np.zeros((self.nr, self.nv))
        for i in self.movable:
            S[self.in_rates[i], self.in_v[i]] = self.inboard[i].ratio * np.eye(self.inboard[i].nv)
        S.flags.writeable = False
        return S

    def reflected(self, x: Vector) -> Vector:
        """Returns coefficients of joint rates, (..., nr), such as damping, as those of v, (..., nv): the diagonal of
        S^T diag(x) S.
        """
        return x @ self.coupling_matrix**2 if self.has_mimics else x

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that results depend on, names and limits included: 32 hexadecimal digits."""
        digest = hashlib.sha256()
        types = (joint.type for joint in self.inboard)
        names = (self.name, *self.links, *self.joints, *types, *map(str, self.mimic))
        for name in names:
            # Separated, so that the names ab and c are not the names a and bc.
            digest.update(name.encode() + b"\0")
        digest.update(np.array(self.parent, dtype="<i8").tobytes())
        numbers = [*self.rotation, *self.origin]
        for joint in self.inboard:
            numbers += [*joint.numbers, *([] if joint.ratio == 1.0 else [np.array([joint.ratio])])]
        for body in self.inertia:
            numbers += [np.atleast_1d(body.mass), body.moment, body.about_origin, *(body.centre or ())]
        numbers += [self.limits.lower, self.limits.upper, self.limits.velocity, self.limits.effort]
        # Only if there are any, so that the fingerprints of robots without them stay.
        rates = [self.limits.acceleration, self.limits.jerk]
        numbers += rates if any(np.isfinite(rate).any() for rate in rates) else []
        for array in numbers:
            # Adding zero turns -0.0 into 0.0: the same robot must not have two fingerprints.
            digest.update((np.asarray(array, dtype="<f8") + 0.0).tobytes())
        for part in self.passive.identity:
            digest.update(part)
        if self.free is not None:
            digest.update(b"locked" + self.free.astype("<f8").tobytes())
        return digest.hexdigest()[:32]


def _places(shape: tuple[int, ...], core: int, index: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the index into an array for one index of the broadcast leading axes."""
    lead = shape[: len(shape) - core]
    return tuple(k if size > 1 else 0 for k, size in zip(index[len(index) - len(lead) :], lead, strict=True))
