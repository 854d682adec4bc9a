"""Robot states to and from ROS messages.

A joint with one degree of freedom has one entry per list in `sensor_msgs/JointState`. A ball, planar or floating joint
has a transform, a twist and a wrench in `sensor_msgs/MultiDOFJointState` instead. A link that such a joint moves in the
world is also in `nav_msgs/Odometry`:

    pose     of the child frame in the parent frame, quaternion x, y, z, w
    twist    of the child, in its own axes:  linear R^T p-dot, angular R^T omega

Mimicked joints have entries, as from ROS's `joint_state_publisher`: multiplier q + offset, multiplier v. Their effort
is zero, because the driving joint's effort moves both: the sum of effort times velocity is the power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dyn_service.api.description import JointDescription, MimicDescription, RobotDescription
from dyn_service.api.queries import Array, RobotQueries
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.messages.geometry_msgs import (
    Point,
    Pose,
    PoseWithCovariance,
    Quaternion,
    Transform,
    Twist,
    TwistWithCovariance,
    Vector3,
    Wrench,
)
from dyn_service.messages.nav_msgs import Odometry
from dyn_service.messages.sensor_msgs import JointState, MultiDOFJointState
from dyn_service.messages.std_msgs import Header
from dyn_service.model.configuration import UNIT, Configuration
from dyn_service.model.joints import FIXED, Joint
from dyn_service.model.joints.rotations import matrix, quaternion_product, times
from dyn_service.parsing.pose import quaternion_of

WORLD = "world"
"""The frame in which a moving root is measured."""
MULTI_DOF = "multi_dof_joint_states"
"""The topic of joints with several degrees of freedom."""


class JointMessages(NamedTuple):
    """Messages of one state. several: None without such joints. odometry: None without a moving base."""

    joints: JointState
    multi_dof: MultiDOFJointState | None
    odometry: Odometry | None


@dataclass(frozen=True)
class Base:
    """A link `child` that a planar or floating joint moves in a fixed frame `parent`. quaternion (x, y, z, w), position
    (m): of the joint's frame in the parent's.
    """

    joint: str
    parent: str
    child: str
    quaternion: Sequence[float] = (0.0, 0.0, 0.0, 1.0)
    position: Sequence[float] = (0.0, 0.0, 0.0)

    def pose(self, quaternion: Sequence[float], position: Sequence[float]) -> Pose:
        """Pose of the child in the parent's frame, from its pose in the joint's frame."""
        shifted = times(matrix(self.quaternion), position)
        place = Point(*(x + y for x, y in zip(self.position, shifted, strict=True)))
        return Pose(place, Quaternion(*quaternion_product(self.quaternion, quaternion)))


@dataclass(frozen=True)
class _Single:
    """An entry of `joint_states`: q[in_q] * ratio + offset, v[in_v] * ratio."""

    name: str
    in_q: int
    in_v: int
    ratio: float = 1.0
    offset: float = 0.0
    follows: bool = False


class JointStates:
    """Makes a robot's messages. has_several: whether a joint has several degrees of freedom. has_odometry: whether it
    has a moving base.

    followers: mimic joints by name. base: the moving base, or None. frame: of the root.
    """

    def __init__(
        self,
        joints: Configuration,
        followers: Mapping[str, MimicDescription] | None = None,
        base: Base | None = None,
        frame: str = "",
    ) -> None:
        self._base, self._frame = base, frame
        single: dict[str, _Single] = {}
        self._several: list[tuple[str, Joint, slice, slice]] = []
        for name, joint, in_q, in_v in zip(joints.names, joints.joints, joints.q_slices, joints.v_slices, strict=True):
            if joint.nv == 1:
                single[name] = _Single(name, in_q.start, in_v.start)
            else:
                self._several.append((name, joint, in_q, in_v))
        for name, rule in (followers or {}).items():
            leader = single[rule.joint]
            single[name] = _Single(name, leader.in_q, leader.in_v, rule.multiplier, rule.offset, follows=True)
        self._single = list(single.values())
        self._names = list(single)
        self.has_several, self.has_odometry = bool(self._several), base is not None
        self._as_is = not self._several and not followers  # then a state's lists are the message's

    @classmethod
    def of(cls, robot: RobotQueries) -> JointStates:
        """Returns the message maker of a local or remote robot."""
        description, configuration = robot.description, robot.configuration
        followers = {joint.name: joint.mimic for joint in description.joints if joint.mimic is not None}
        rooted = any(joint.parent is None for joint in description.joints)
        return cls(configuration, followers, _base(robot, description), WORLD if rooted else description.link_names[0])

    def of_state(self, state: PlantState) -> JointMessages:
        """Returns the messages of a plant's state, stamped with the plant's time."""
        header = Header(Time.from_seconds(state.stamp))
        return JointMessages(self._joints(header, state), *self._with_several(header.stamp, state))

    def _joints(self, header: Header, state: PlantState) -> JointState:
        q, v, tau = state.position, state.velocity, state.effort
        if self._as_is:
            return JointState(header, self._names, q, v, tau)
        return JointState(
            header,
            self._names,
            [q[entry.in_q] * entry.ratio + entry.offset for entry in self._single],
            [v[entry.in_v] * entry.ratio for entry in self._single],
            # Its leader's effort drives a follower: shown twice, it would count twice.
            [0.0 if entry.follows else tau[entry.in_v] for entry in self._single],
        )

    def _with_several(self, stamp: Time, state: PlantState) -> tuple[MultiDOFJointState | None, Odometry | None]:
        if not self._several:
            return None, None
        names: list[str] = []
        transforms: list[Transform] = []
        twists: list[Twist] = []
        wrenches: list[Wrench] = []
        odometry = None
        for name, joint, in_q, in_v in self._several:
            names.append(name)
            rotation, p = joint.to_pose(state.position[in_q])
            transforms.append(Transform(Vector3(*p), Quaternion(*rotation)))
            # G has orthonormal columns: G v is the twist, G tau a wrench whose projection on the joint is tau
            turning, shifting = np.split(joint.subspace @ np.array([state.velocity[in_v], state.effort[in_v]]).T, 2)
            (omega, torque), (linear, force) = turning.T.tolist(), shifting.T.tolist()
            twists.append(Twist(Vector3(*linear), Vector3(*omega)))
            wrenches.append(Wrench(Vector3(*force), Vector3(*torque)))
            base = self._base
            if base is not None and name == base.joint:
                header = Header(stamp, base.parent)
                pose = PoseWithCovariance(base.pose(rotation, p))
                odometry = Odometry(header, base.child, pose, TwistWithCovariance(twists[-1]))
        return MultiDOFJointState(Header(stamp, self._frame), names, transforms, twists, wrenches), odometry


def _base(robot: RobotQueries, description: RobotDescription) -> Base | None:
    """The first link that a joint moves in a plane or in space, with only fixed joints before it."""
    carriers = {joint.child: joint for joint in description.joints}
    types = dict(zip(robot.configuration.names, robot.configuration.joints, strict=True))
    for name in robot.configuration.names:
        joint = next(described for described in description.joints if described.name == name)
        if sum(types[name].shifts) > 1 and _stands(joint.parent, carriers):
            if joint.parent is None:
                return Base(name, WORLD, joint.child)
            poses = robot.link_poses(robot.configuration.neutral)  # where child and joint frames coincide
            p, c = (description.link_names.index(link) for link in (joint.parent, joint.child))
            back = poses.rotation[p].T
            w, *xyz = quaternion_of(back @ poses.rotation[c]).tolist()
            place = (back @ (poses.position[c] - poses.position[p])).tolist()
            return Base(name, joint.parent, joint.child, (*xyz, w), place)
    return None


def _stands(link: str | None, carriers: Mapping[str, JointDescription]) -> bool:
    """Whether only fixed joints carry a link."""
    while link is not None and link in carriers:
        carrier = carriers[link]
        if carrier.type != FIXED.type:
            return False
        link = carrier.parent
    return True


@dataclass
class ReceivedJointStates:
    """The latest received state of a robot: q (nq,), v, tau (nv,). Joints not yet received are neutral, at rest."""

    configuration: Configuration

    def __post_init__(self) -> None:
        joints = self.configuration
        self.q, self.v, self.tau = joints.neutral.copy(), np.zeros(joints.nv), np.zeros(joints.nv)
        places = zip(joints.joints, joints.q_slices, joints.v_slices, strict=True)
        self._places = dict(zip(joints.names, places, strict=True))

    def take(self, message: Any) -> list[str]:
        """Stores a `JointState` or `MultiDOFJointState`, and returns the joints whose position it contains.

        The message may also be of a bag's own schema. Joints of other robots and followers are ignored.

        Raises:
            InvalidArgumentError: A list has a wrong length, a position is not finite, or a quaternion is not of
                length 1. Nothing is stored then.
        """
        return self._take_several(message) if hasattr(message, "joint_names") else self._take_single(message)

    def _take_single(self, message: Any) -> list[str]:
        lists = [_filled(message, field, len(message.name)) for field in ("position", "velocity", "effort")]
        entries = [(k, *self._places[name][1:]) for k, name in self._known_joints(message.name, multi_dof=False)]
        if lists[0] is None:
            return []
        for k, _, _ in entries:
            # All joints before the first is stored, so that an invalid message changes nothing.
            if not math.isfinite(lists[0][k]):
                text = f"position {lists[0][k]} of joint {message.name[k]!r}, expected a finite number"
                raise InvalidArgumentError(f"the joint state has {text}")
        for k, in_q, in_v in entries:
            for array, part, values in ((self.q, in_q, lists[0]), (self.v, in_v, lists[1]), (self.tau, in_v, lists[2])):
                array[part] = 0.0 if values is None else values[k]
        return [message.name[k] for k, _, _ in entries]

    def _take_several(self, message: Any) -> list[str]:
        names = message.joint_names
        transforms, twists, wrenches = (_filled(message, key, len(names)) for key in ("transforms", "twist", "wrench"))
        if transforms is None:
            return []
        states = []
        for k, name in self._known_joints(names, multi_dof=True):
            joint, in_q, in_v = self._places[name]
            p, r = transforms[k].translation, transforms[k].rotation
            quaternion = (r.x, r.y, r.z, r.w)
            length = math.hypot(*quaternion)
            if not (abs(length - 1.0) <= UNIT and math.isfinite(p.x + p.y + p.z)):
                raise InvalidArgumentError(
                    f"the joint state has a transform of joint {name!r} with ({p.x:g}, {p.y:g}, {p.z:g}) and a "
                    f"quaternion of length {length:g}, expected finite numbers and 1 within {UNIT:g}"
                )
            v, tau = np.zeros(joint.nv), np.zeros(joint.nv)
            if twists is not None:
                v = joint.subspace.T @ _vector(twists[k].angular, twists[k].linear)
            if wrenches is not None:
                tau = joint.subspace.T @ _vector(wrenches[k].torque, wrenches[k].force)
            # Stored below, when all joints of the message are valid.
            states.append((in_q, in_v, joint.of_pose(quaternion, (p.x, p.y, p.z)), v, tau))
        for in_q, in_v, q, v, tau in states:
            self.q[in_q], self.v[in_v], self.tau[in_v] = q, v, tau
        return [name for _, name in self._known_joints(names, multi_dof=True)]

    def _known_joints(self, names: Sequence[str], *, multi_dof: bool) -> list[tuple[int, str]]:
        """Index and name of the robot's joints in `names`, of one kind."""
        entries = ((k, name) for k, name in enumerate(names) if name in self._places)
        return [(k, name) for k, name in entries if (self._places[name][0].nv > 1) == multi_dof]


def _filled(message: Any, field: str, count: int) -> Sequence[Any] | None:
    """The list, with one entry per name, or None if it is empty."""
    values: Sequence[Any] = getattr(message, field)
    if len(values) not in (0, count):
        text = f"{len(values)} entries in {field!r} of {count} names, expected as many, or none"
        raise InvalidArgumentError(f"the joint state has {text}")
    return values if len(values) else None


def _vector(*parts: Any) -> Array:
    return np.array([x for part in parts for x in (part.x, part.y, part.z)])
