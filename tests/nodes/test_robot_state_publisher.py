"""Frames of links, held against the poses of the links; the node with real sockets in one process."""

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.geometry_msgs import TransformStamped
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import Header, String
from dyn_service.messages.tf2_msgs import TFMessage
from dyn_service.nodes.robot_state_publisher import (
    Frames,
    RobotStatePublisher,
    RobotStatePublisherParameters,
    position_of,
)
from dyn_service.shipped import find_robot
from tests.nodes.in_process import Nodes

PANDA = find_robot("panda")


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_file(PANDA)


def _matrix(one: TransformStamped) -> np.ndarray:
    """X_PC (4, 4), from the quaternion by its own formula."""
    t, r = one.transform.translation, one.transform.rotation
    x, y, z, w = r.x, r.y, r.z, r.w
    rotation = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    found = np.eye(4)
    found[:3, :3], found[:3, 3] = rotation, (t.x, t.y, t.z)
    return found


@pytest.mark.parametrize("root", ["fixed", "floating"])
def test_frames_along_the_tree_are_the_links_poses(root: str) -> None:
    robot = Robot.from_file(PANDA, root=root)
    frames, rng = Frames(robot, "left/"), np.random.default_rng(3)
    q = robot.configuration.integrate(robot.configuration.neutral, rng.uniform(-1.0, 1.0, robot.nv), 1.0)
    said = [*frames.fixed(Time(7)).transforms, *frames.moving(q, Time(7)).transforms]
    assert len(said) == len(robot.description.joints)
    assert {one.header.stamp for one in said} == {Time(7)}
    within = {one.child_frame_id: one for one in said}
    poses = robot.link_poses(q)
    for k, link in enumerate(robot.link_names):
        pose, name = np.eye(4), f"left/{link}"
        while name in within:
            pose, name = _matrix(within[name]) @ pose, within[name].header.frame_id
        assert name == ("left/world" if root == "floating" else f"left/{robot.link_names[0]}")
        # products of a dozen matrices of doubles, lengths of a metre
        np.testing.assert_allclose(pose[:3, :3], poses.rotation[k], atol=1e-14)
        np.testing.assert_allclose(pose[:3, 3], poses.position[k], atol=1e-14)


def test_positions_go_by_name(robot: Robot) -> None:
    q = np.arange(1.0, 1.0 + robot.nq)
    names = list(reversed(robot.joint_names))
    np.testing.assert_array_equal(position_of(JointState(name=names, position=q[::-1].tolist()), robot), q)


def test_what_is_no_position_of_it_is_said(robot: Robot) -> None:
    with pytest.raises(InvalidArgumentError, match="lacks joint 'panda_joint1'"):
        position_of(JointState(name=["elbow"], position=[0.0]), robot)
    with pytest.raises(InvalidArgumentError, match="has 1 positions of 8 names"):
        position_of(JointState(name=list(robot.joint_names), position=[0.0]), robot)


def test_states_become_frames(nodes: Nodes, robot: Robot, caplog: pytest.LogCaptureFixture) -> None:
    publisher = nodes.make(
        "/arm/robot_state_publisher",
        RobotStatePublisherParameters(robot=str(PANDA), rate_hz=500.0),
        RobotStatePublisher,
    )
    for transition in ("configure", "activate"):
        publisher.change_state(transition)
    other = nodes.make("/listener")
    moving, fixed, text = [], [], []
    other.create_subscription(TFMessage, "/arm/tf", moving.append)
    states = other.create_publisher(JointState, "/arm/joint_states")
    nodes.turns(3)
    # who comes late is told what was said once
    other.create_subscription(TFMessage, "/arm/tf_static", fixed.append)
    other.create_subscription(String, "/arm/robot_description", text.append)
    nodes.until(lambda: fixed and text)
    assert text[0].data == PANDA.read_text()
    assert {one.child_frame_id for one in fixed[0].transforms} >= {"panda_link8", "panda_hand"}

    def moved() -> bool:
        states.publish(
            JointState(Header(Time(3)), name=["elbow"], position=[0.0])
        )  # of another robot: said, and no more
        states.publish(JointState(Header(Time(5)), name=list(robot.joint_names), position=[0.1] * 8))
        return bool(moving)

    nodes.until(moved)
    assert moving[0].transforms[0].header == Header(Time(5), "panda_link0")
