"""Publishes the frames of a robot's links: from joint states to `tf`, `tf_static` and `robot_description`.

    X_PC = X_WP^-1 X_WC        of each joint, from its parent link P to its child link C

As ROS 2's node of the same name: one frame per link, with the link's name; fixed joints once on `tf_static`, all others
at each received state, at most `rate_hz` times a second, with that state's stamp. A message moves the joints it names
and the joints that mimic them. Joints with several degrees of freedom, including a floating base, are from
`multi_dof_joint_states`; without a publisher their frames are left to others, as ROS leaves `odom` to `base_link`. An
invalid message, or one that names no joint of the robot, is ignored and logged once. The sensors of a sensor file have
fixed frames, named as the `frame_id` of their readings.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from dyn_service.api.description import LoopJointDescription
from dyn_service.api.queries import Array
from dyn_service.api.results import LinkPoses
from dyn_service.control.joint_states import MULTI_DOF, WORLD, ReceivedJointStates
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.node_kind import NodeKind
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.geometry_msgs import Quaternion, Transform, TransformStamped, Vector3
from dyn_service.messages.sensor_msgs import JointState, MultiDOFJointState
from dyn_service.messages.std_msgs import Header, String
from dyn_service.messages.tf2_msgs import TFMessage
from dyn_service.model.description import RootType
from dyn_service.model.joints import FIXED
from dyn_service.parsing.quantities import rotation_of_rpy
from dyn_service.support.parameters import InputFile, RobotFile
from dyn_service.support.shipped import find_robot

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot
    from dyn_service.sensors.settings import SensorSettings

_LOG = logging.getLogger(__name__)


class RobotStatePublisherParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the robot state publisher.

    robot: path of its URDF, MJCF, SDFormat or xacro file. root: how its root link moves in the world. mimic: whether
    mimic joints follow their leaders. rate_hz: largest rate of `tf`. frame_prefix: prefix of the name of each frame.
    sensors: path of a sensor file, whose force/torque sensors and IMUs get frames too. joint_states,
    multi_dof_joint_states: the topics it subscribes to.
    """

    robot: RobotFile
    root: RootType = "fixed"
    mimic: bool = True
    rate_hz: Annotated[float, msgspec.Meta(gt=0.0, le=5000.0)] = 50.0
    frame_prefix: str = ""
    sensors: InputFile = ""
    joint_states: str = "joint_states"
    multi_dof_joint_states: str = MULTI_DOF


class Frames:
    """The frames of a robot's links in those of their parents.

    robot: a tree. loop_joints: of the robot whose loops it leaves open, for sensors in them.
    """

    def __init__(
        self,
        robot: Robot,
        prefix: str = "",
        sensors: SensorSettings | None = None,
        loop_joints: Sequence[LoopJointDescription] = (),
    ) -> None:
        self._robot, self._prefix, self._sensors = robot, prefix, sensors
        self._link_index = {name: k for k, name in enumerate(robot.link_names)}
        for name in (*sensors.force_torque, *sensors.imus) if sensors is not None else ():
            if name in self._link_index:
                raise InvalidArgumentError(
                    f"the sensor {name!r} has the name of a link of robot {robot.name!r}: frames need unique names",
                    path="sensors",
                )
        joints = robot.description.joints
        self._joint_frames = {joint.name: (joint.child, np.zeros(3), np.eye(3)) for joint in joints}
        for loop in loop_joints:
            self._joint_frames[loop.name] = (loop.child, np.array(loop.child_xyz), np.array(loop.child_rotation))
        self._fixed = [(joint.parent, joint.child) for joint in joints if joint.type == FIXED.type]
        self._moving = [
            (joint.parent, joint.child, joint.name if joint.mimic is None else joint.mimic.joint)
            for joint in joints
            if joint.type != FIXED.type
        ]

    def fixed(self, stamp: Time) -> TFMessage:
        """Returns the frames that are fixed in their parents."""
        # any position does: the frames of fixed joints do not depend on it
        poses = self._robot.link_poses(self._robot.configuration.neutral)
        links = [self._transform(parent, child, poses, stamp) for parent, child in self._fixed]
        return TFMessage([*links, *self._mounted(stamp)])

    def moving(self, q: Array, stamps: Mapping[str, Time]) -> TFMessage:
        """Returns the frames that joints move in their parents, at the position q (nq,). stamps: by joint."""
        poses = self._robot.link_poses(q)
        pairs = [(parent, child, stamps[mover]) for parent, child, mover in self._moving if mover in stamps]
        return TFMessage([self._transform(parent, child, poses, stamp) for parent, child, stamp in pairs])

    def _mounted(self, stamp: Time) -> Iterator[TransformStamped]:
        """Yields the frames of sensors; a force/torque sensor is in its joint's frame on the child link."""
        if self._sensors is None:
            return
        sensors = self._sensors.force_torque.items()
        mounts = [(name, self._joint_frames[sensor.joint], sensor.xyz, sensor.rpy) for name, sensor in sensors]
        units = self._sensors.imus.items()
        mounts += [(name, (unit.link, np.zeros(3), np.eye(3)), unit.xyz, unit.rpy) for name, unit in units]
        for name, (link, origin, rotation), xyz, rpy in mounts:
            mount = _transform(rotation @ rotation_of_rpy(np.array(rpy)), origin + rotation @ np.array(xyz))
            yield TransformStamped(Header(stamp, self._prefix + link), name, mount)

    def _transform(self, parent: str | None, child: str, poses: LinkPoses, stamp: Time) -> TransformStamped:
        k = self._link_index[child]
        rotation, position = poses.rotation[k], poses.position[k]
        if parent is not None:
            p = self._link_index[parent]
            position = poses.rotation[p].T @ (position - poses.position[p])
            rotation = poses.rotation[p].T @ rotation
        header = Header(stamp, self._prefix + (parent or WORLD))
        return TransformStamped(header, self._prefix + child, _transform(rotation, position))


def _transform(rotation: Array, position: Array) -> Transform:
    from dyn_service.parsing.pose import quaternion_of

    w, x, y, z = quaternion_of(rotation).tolist()
    return Transform(Vector3(*position.tolist()), Quaternion(x, y, z, w))


class RobotStatePublisher(Node[RobotStatePublisherParameters]):
    """The node; see the module."""

    def on_configure(self) -> None:
        """Loads the robot, and creates topics and the timer."""
        from dyn_service.engine.robot import Robot
        from dyn_service.parsing.conversion import urdf_of
        from dyn_service.sensors import Sensors

        p = self.parameters
        file = find_robot(p.robot)
        with self.stop.at_once():
            self.urdf = urdf_of(file)
            robot = Robot.from_file(file, root=p.root, mimic=p.mimic)
            sensors = Sensors.from_file(robot, p.sensors).settings if p.sensors else None
            loop_joints = robot.description.loop_joints
            # Measured positions leave loops open, and frames of links need no closed ones.
            self.robot = Robot.from_file(file, root=p.root, mimic=p.mimic, loops="cut") if loop_joints else robot
            self.frames = Frames(self.robot, p.frame_prefix, sensors, loop_joints)
        self.tf = self.create_publisher(TFMessage, "tf")
        self.tf_static = self.create_publisher(TFMessage, "tf_static", latched=True)
        self.text = self.create_publisher(String, "robot_description", latched=True)
        self.states = self.create_subscription(JointState, p.joint_states)
        self.multi_dof_states = self.create_subscription(MultiDOFJointState, p.multi_dof_joint_states)
        self.received = ReceivedJointStates(self.robot.configuration)
        self.create_timer(1.0 / p.rate_hz, self._publish)
        self._last_fault, self._has_published = "", False

    def _publish(self) -> None:
        if not self._has_published:  # publishers speak only once the node is active
            self._has_published = True
            self.tf_static.publish(self.frames.fixed(Time()))
            self.text.publish(String(self.urdf))
        messages = [message for message in (self.states.take(), self.multi_dof_states.take()) if message is not None]
        stamps: dict[str, Time] = {}
        for message in messages:
            try:
                joints = self.received.take(message)
                if not joints and _names(message):
                    raise InvalidArgumentError(
                        f"the joint state names no joint of robot {self.robot.name!r}, but {', '.join(_names(message))}"
                    )
            except DynError as error:
                # once, not at each of hundreds of messages a second
                if str(error) != self._last_fault:
                    self._last_fault = str(error)
                    _LOG.warning("%s: %s", self.name, error)
            else:
                stamps |= dict.fromkeys(joints, message.header.stamp)
        if stamps:
            self.tf.publish(self.frames.moving(self.received.q, stamps))


def _names(message: JointState | MultiDOFJointState) -> list[str]:
    return message.name if isinstance(message, JointState) else message.joint_names


NODE = NodeKind("robot_state_publisher", RobotStatePublisherParameters, RobotStatePublisher)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
