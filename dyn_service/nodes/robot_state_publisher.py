"""Where a robot's links are, for all who draw it: from `joint_states` to `tf`, `tf_static` and `robot_description`.

    X_PC = X_WP^-1 X_WC        of each joint, from its parent link P to its child link C

as ROS 2's node of the same name does: a frame for each link, called like it; joints that are fixed are said once, on
`tf_static`, all others at each state that comes, at most `rate_hz` times a second. Joints that follow others (mimic)
move too. A state that lacks a joint, or is of another robot, moves nothing, and is said once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from dyn_service.api.queries import Array
from dyn_service.api.results import LinkPoses
from dyn_service.config.parameters import RobotFile
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.geometry_msgs import Quaternion, Transform, TransformStamped, Vector3
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import Header, String
from dyn_service.messages.tf2_msgs import TFMessage
from dyn_service.model.description import RootType
from dyn_service.nodes.kinds import NodeKind
from dyn_service.nodes.runtime import Node
from dyn_service.shipped import find_robot

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

WORLD = "world"
"""The frame that a robot's root moves in, where it does."""
_LOG = logging.getLogger(__name__)


class RobotStatePublisherParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the robot state publisher.

    robot: path of its URDF, MJCF, SDFormat or xacro file. root: how its root link moves in the world. mimic: whether
    joints that mimic others follow them. rate_hz: how often at most `tf` is published. frame_prefix: what stands before
    the name of each frame. joint_states: the topic it listens to.
    """

    robot: RobotFile
    root: RootType = "fixed"
    mimic: bool = True
    rate_hz: Annotated[float, msgspec.Meta(gt=0.0)] = 50.0
    frame_prefix: str = ""
    joint_states: str = "joint_states"


class Frames:
    """The frames of a robot's links in those of their parents."""

    def __init__(self, robot: Robot, prefix: str = "") -> None:
        self._robot, self._prefix = robot, prefix
        self._places = {name: k for k, name in enumerate(robot.link_names)}
        joints = robot.description.joints
        self._fixed = [(joint.parent, joint.child) for joint in joints if joint.type == "fixed"]
        self._moving = [(joint.parent, joint.child) for joint in joints if joint.type != "fixed"]

    def fixed(self, stamp: Time) -> TFMessage:
        """Frames that stand still in their parents."""
        return self._message(self._fixed, self._robot.link_poses(self._robot.configuration.neutral), stamp)

    def moving(self, q: Array, stamp: Time) -> TFMessage:
        """Frames that move in their parents, at the position q (nq,)."""
        return self._message(self._moving, self._robot.link_poses(q), stamp)

    def _message(self, pairs: list[tuple[str | None, str]], poses: LinkPoses, stamp: Time) -> TFMessage:
        return TFMessage([self._transform(parent, child, poses, stamp) for parent, child in pairs])

    def _transform(self, parent: str | None, child: str, poses: LinkPoses, stamp: Time) -> TransformStamped:
        from dyn_service.formats.pose import quaternion_of

        k = self._places[child]
        rotation, position = poses.rotation[k], poses.position[k]
        if parent is not None:
            p = self._places[parent]
            position = poses.rotation[p].T @ (position - poses.position[p])
            rotation = poses.rotation[p].T @ rotation
        w, x, y, z = quaternion_of(rotation).tolist()
        header = Header(stamp, self._prefix + (parent or WORLD))
        transform = Transform(Vector3(*position.tolist()), Quaternion(x, y, z, w))
        return TransformStamped(header, self._prefix + child, transform)


def position_of(state: JointState, robot: Robot) -> Array:
    """q (nq,) of a state that names the robot's joints, in any order.

    Raises:
        InvalidArgumentError: It lacks a joint, or has not one position (or as many as it has) for each.
    """
    at = robot.configuration
    own = {
        joint: [name for name, of in zip(at.velocity_names, at.velocity_joints, strict=True) if of == joint]
        for joint in at.names
    }
    given = list(dict.fromkeys(joint for name in state.name for joint, parts in own.items() if name in (joint, *parts)))
    missing = [joint for joint in at.names if joint not in given]
    if missing:
        raise InvalidArgumentError(f"the joint state lacks joint {missing[0]!r} of robot {robot.name!r}")
    order, in_q, _ = at.chosen(given)
    if len(state.position) != order.nq or len(state.name) != order.nv:
        raise InvalidArgumentError(
            f"the joint state has {len(state.position)} positions of {len(state.name)} names, robot {robot.name!r} "
            f"{order.nq} of {order.nv}"
        )
    q = np.empty(at.nq)
    q[in_q] = state.position
    return q


class RobotStatePublisher(Node[RobotStatePublisherParameters]):
    """See the module."""

    def on_configure(self) -> None:
        """Loads the robot, says its description and what is fixed, and listens."""
        from dyn_service.engine.robot import Robot

        p = self.parameters
        with self.stop.at_once():
            self._file = find_robot(p.robot)
            self.robot = Robot.from_file(self._file, root=p.root, mimic=p.mimic)
            self.frames = Frames(self.robot, p.frame_prefix)
        self.tf = self.create_publisher(TFMessage, "tf")
        self.tf_static = self.create_publisher(TFMessage, "tf_static", latched=True)
        self.text = self.create_publisher(String, "robot_description", latched=True)
        self.states = self.create_subscription(JointState, p.joint_states)
        self.create_timer(1.0 / p.rate_hz, self._publish)
        self._said, self._begun = "", False

    def _publish(self) -> None:
        if not self._begun:  # publishers speak only once the node is active
            self._begun = True
            self.tf_static.publish(self.frames.fixed(Time()))
            self.text.publish(String(self._file.read_text(encoding="utf-8")))
        state = self.states.take()
        if state is None:
            return
        try:
            self.tf.publish(self.frames.moving(position_of(state, self.robot), state.header.stamp))
        except DynError as error:
            if str(error) != self._said:
                self._said = str(error)
                _LOG.warning("%s: %s", self.name, error)


NODE = NodeKind("robot_state_publisher", RobotStatePublisherParameters, RobotStatePublisher)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
