"""Frames of links, held against the poses of the links; the node with real sockets in one process."""

import msgspec
import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.control.joint_states import JointStates
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.nodes.plant.factory import PlantParameters
from dyn_service.graph.nodes.plant.node import PlantTopics
from dyn_service.graph.nodes.robot_state_publisher import Frames, RobotStatePublisher, RobotStatePublisherParameters
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.messages.geometry_msgs import TransformStamped
from dyn_service.messages.nav_msgs import Odometry
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import Header, String
from dyn_service.messages.tf2_msgs import TFMessage
from dyn_service.sensors.settings import SensorSettings
from dyn_service.support.shipped import find_robot
from tests.graph.in_process import Nodes
from tests.phrases import naming, unnamed

PANDA = find_robot("panda")


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_file(PANDA)


def _matrix(transform: TransformStamped) -> np.ndarray:
    """X_PC (4, 4), from the quaternion by its own formula."""
    t, r = transform.transform.translation, transform.transform.rotation
    x, y, z, w = r.x, r.y, r.z, r.w
    rotation = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    X_WC = np.eye(4)
    X_WC[:3, :3], X_WC[:3, 3] = rotation, (t.x, t.y, t.z)
    return X_WC


@pytest.mark.parametrize("root", ["fixed", "floating"])
def test_frames_along_the_tree_are_the_links_poses(root: str) -> None:
    robot = Robot.from_file(PANDA, root=root)
    frames, rng = Frames(robot, "left/"), np.random.default_rng(3)
    q = robot.configuration.integrate(robot.configuration.neutral, rng.uniform(-1.0, 1.0, robot.nv), 1.0)
    transforms = [
        *frames.fixed(Time(7)).transforms,
        *frames.moving(q, dict.fromkeys(robot.joint_names, Time(7))).transforms,
    ]
    assert len(transforms) == len(robot.description.joints)
    assert {transform.header.stamp for transform in transforms} == {Time(7)}
    transform_of = {transform.child_frame_id: transform for transform in transforms}
    poses = robot.link_poses(q)
    for k, link in enumerate(robot.link_names):
        pose, name = np.eye(4), f"left/{link}"
        while name in transform_of:
            pose, name = _matrix(transform_of[name]) @ pose, transform_of[name].header.frame_id
        assert name == ("left/world" if root == "floating" else f"left/{robot.link_names[0]}")
        # products of a dozen matrices of doubles, lengths of a metre
        np.testing.assert_allclose(pose[:3, :3], poses.rotation[k], atol=1e-14)
        np.testing.assert_allclose(pose[:3, 3], poses.position[k], atol=1e-14)


def _sensors(**mounts: dict[str, object]) -> SensorSettings:
    return msgspec.convert({"robot": "panda", **mounts}, SensorSettings)


def test_a_sensors_frame_is_where_its_readings_are_taken(robot: Robot) -> None:
    """At rest an accelerometer feels g upwards, and a force/torque sensor the torque of the weight about its origin."""
    imu = {"link": "panda_hand", "rpy": [0.3, -0.7, 1.1], "xyz": [0.01, 0.02, 0.03], "rate_hz": 100}
    wrist = {"joint": "panda_joint7", "rpy": [-0.4, 0.2, 0.9], "xyz": [0.0, 0.05, -0.02], "rate_hz": 100}
    frames = Frames(robot, "left/", _sensors(imus={"tip": imu}, force_torque={"wrist": wrist}))
    transform_of = {transform.child_frame_id: transform for transform in frames.fixed(Time(7)).transforms}
    assert transform_of["tip"].header == Header(Time(7), "left/panda_hand")
    assert transform_of["wrist"].header == Header(
        Time(7), "left/panda_link7"
    )  # the child link, in whose axes the joint's are
    q, zeros = robot.configuration.integrate(robot.configuration.neutral, np.full(8, 0.4), 1.0), np.zeros(8)
    poses = robot.link_poses(q)

    def pose(name: str, link: str) -> np.ndarray:
        X_WC = np.eye(4)
        k = robot.link_names.index(link)
        X_WC[:3, :3], X_WC[:3, 3] = poses.rotation[k], poses.position[k]
        return X_WC @ _matrix(transform_of[name])

    mount = {"xyz": imu["xyz"], "rpy": imu["rpy"]}
    specific_force = robot.imu(q, zeros, zeros, links=["panda_hand"], **mount).specific_force[0]
    # roundings of numbers of size 10; of sums over the links behind the wrist
    np.testing.assert_allclose(pose("tip", "panda_hand")[:3, :3] @ specific_force, -robot.gravity, atol=1e-13)
    at_joint = robot.force_torque(q, zeros, zeros, joints=["panda_joint7"])  # in the joint's own frame
    at_sensor = robot.force_torque(q, zeros, zeros, joints=["panda_joint7"], xyz=wrist["xyz"], rpy=wrist["rpy"])
    joint, sensor = poses.rotation[robot.link_names.index("panda_link7")], pose("wrist", "panda_link7")
    origin = poses.position[robot.link_names.index("panda_link7")]
    force, about_sensor = sensor[:3, :3] @ at_sensor.force[0], sensor[:3, :3] @ at_sensor.torque[0]
    np.testing.assert_allclose(force, joint @ at_joint.force[0], atol=1e-13)
    np.testing.assert_allclose(
        about_sensor + np.cross(sensor[:3, 3] - origin, force), joint @ at_joint.torque[0], atol=1e-13
    )


def test_a_sensor_that_is_called_like_a_link_has_no_frame(robot: Robot) -> None:
    sensors = _sensors(imus={"panda_hand": {"link": "panda_link7", "rate_hz": 100}})
    with pytest.raises(InvalidArgumentError, match=naming("'panda_hand'", "'panda'", "link")):
        Frames(robot, sensors=sensors)


def test_frames_of_a_robot_whose_loops_are_open() -> None:
    """Measured positions leave a loop open; a sensor in the joint that closes it is on that joint's child."""
    closed, tree = (Robot.from_file(find_robot("four_bar"), loops=loops) for loops in ("closed", "cut"))
    (pin,) = closed.description.loop_joints
    mount = {"joint": "pin", "rpy": [0.3, 0.1, -0.2], "xyz": [0.01, 0.02, 0.03], "rate_hz": 100}
    settings = msgspec.convert({"robot": "four_bar", "force_torque": {"cell": mount}}, SensorSettings)
    frames = Frames(tree, "", settings, closed.description.loop_joints)
    (cell,) = (x for x in frames.fixed(Time(7)).transforms if x.child_frame_id == "cell")
    assert cell.header.frame_id == pin.child
    rotation, offset = np.array(pin.child_rotation), np.array(mount["xyz"])
    np.testing.assert_allclose(_matrix(cell)[:3, 3], pin.child_xyz + rotation @ offset, atol=1e-15)
    stamps = dict.fromkeys(tree.joint_names, Time(7))
    assert len(frames.moving(np.array([0.3, 0.2, 0.1]), stamps).transforms) == 3


def test_frames_of_named_joints_and_their_followers_are_published(robot: Robot) -> None:
    """Each frame has the time of its own joint's state."""
    stamps = {"panda_finger_joint1": Time(3), "panda_joint1": Time(4)}
    transforms = Frames(robot).moving(robot.configuration.neutral, stamps).transforms
    assert {transform.child_frame_id: transform.header.stamp for transform in transforms} == {
        "panda_link1": Time(4), "panda_leftfinger": Time(3), "panda_rightfinger": Time(3),
    }  # fmt: skip


def test_a_floating_base_of_a_plant_is_where_our_kinematics_have_it(nodes: Nodes) -> None:
    """From a plant's state through its topics to tf, for every link."""
    file = find_robot("solo12")
    robot = Robot.from_file(file, root="floating")
    configuration, rng = robot.configuration, np.random.default_rng(4)
    q = configuration.integrate(configuration.neutral, rng.uniform(-1.0, 1.0, robot.nv))
    v = rng.uniform(-1.0, 1.0, robot.nv)
    names = configuration.velocity_names
    state = PlantState(
        1, 0, 2.0, names, q.tolist(), v.tolist(), [0.0] * robot.nv, "active", "", 0.0, 0, True, -1, 0.0, ""
    )
    plant, other = nodes.make("/dog/plant"), nodes.make("/listener")
    topics = PlantTopics(plant, PlantParameters(robot=str(file)), JointStates.of(robot))
    parameters = RobotStatePublisherParameters(robot=str(file), root="floating", rate_hz=500.0)
    publisher = nodes.make("/dog/robot_state_publisher", parameters, RobotStatePublisher)
    for transition in ("configure", "activate"):
        publisher.change_state(transition)
    transform_of: dict[str, TransformStamped] = {}
    odometry: list[Odometry] = []

    def keep(message: TFMessage) -> None:
        transform_of.update({transform.child_frame_id: transform for transform in message.transforms})

    for name in ("tf", "tf_static"):
        other.create_subscription(TFMessage, f"/dog/{name}", keep)
    other.create_subscription(Odometry, "/dog/odom", odometry.append)

    def sent() -> bool:
        topics.send(state)
        return bool(odometry) and transform_of.keys() == set(robot.link_names)

    nodes.until(sent)
    assert transform_of["base_link"].header == Header(Time(2), "world")
    poses = robot.link_poses(q)
    for k, link in enumerate(robot.link_names):
        pose, name = np.eye(4), link
        while name in transform_of:
            pose, name = _matrix(transform_of[name]) @ pose, transform_of[name].header.frame_id
        assert name == "world"
        # products of four matrices of doubles, lengths of a metre
        np.testing.assert_allclose(pose[:3, :3], poses.rotation[k], atol=1e-14)
        np.testing.assert_allclose(pose[:3, 3], poses.position[k], atol=1e-14)
    base, pose = transform_of["base_link"].transform, odometry[0].pose.pose
    assert (odometry[0].header, odometry[0].child_frame_id) == (Header(Time(2), "world"), "base_link")
    assert (pose.position.x, pose.position.y, pose.position.z) == (
        base.translation.x, base.translation.y, base.translation.z,
    )  # fmt: skip


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
    # late subscribers get the latched messages
    other.create_subscription(TFMessage, "/arm/tf_static", fixed.append)
    other.create_subscription(String, "/arm/robot_description", text.append)
    nodes.until(lambda: fixed and text)
    assert text[0].data == PANDA.read_text()
    assert {transform.child_frame_id for transform in fixed[0].transforms} >= {"panda_link8", "panda_hand"}

    def moved() -> bool:
        states.publish(
            JointState(Header(Time(3)), name=["elbow"], position=[0.0])
        )  # of another robot: said, and no more
        states.publish(JointState(Header(Time(5)), name=list(robot.joint_names), position=[0.1] * 8))
        return bool(moving)

    nodes.until(moved)
    assert moving[0].transforms[0].header == Header(Time(5), "panda_link0")
    nodes.until(lambda: moved() and publisher._last_fault)
    assert unnamed(caplog.text, "joint state", "'panda'", "elbow") == []
