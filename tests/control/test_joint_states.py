"""Joint states as ROS messages: order of joints and axes, compared with our own kinematics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.control.joint_states import JointMessages, JointStates, ReceivedJointStates
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages import decode, encode
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.messages.geometry_msgs import Quaternion, Transform, Vector3
from dyn_service.messages.sensor_msgs import JointState, MultiDOFJointState
from dyn_service.support.shipped import find_robot

INERTIAL = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
MIXED = f"""
<robot name="mixed">
  <link name="map"/><link name="pad"/>
  {"".join(f'<link name="{name}">{INERTIAL}</link>' for name in ("hull", "head", "slab", "arm", "claw"))}
  <joint name="bolt" type="fixed"><parent link="map"/><child link="pad"/><origin xyz="0 0 2" rpy="0 0 1.2"/></joint>
  <joint name="free" type="floating"><parent link="pad"/><child link="hull"/>
    <origin xyz="1 2 3" rpy="0.3 -0.5 0.7"/></joint>
  <joint name="ball" type="spherical"><parent link="hull"/><child link="head"/><origin xyz="0 0 1" rpy="1 0 0"/></joint>
  <joint name="slide" type="planar"><parent link="hull"/><child link="slab"/><axis xyz="0.6 0 0.8"/></joint>
  <joint name="turn" type="continuous"><parent link="head"/><child link="arm"/><axis xyz="0 1 0"/></joint>
  <joint name="close" type="prismatic"><parent link="arm"/><child link="claw"/><axis xyz="1 0 0"/>
    <limit lower="-9" upper="9" effort="1" velocity="1"/><mimic joint="turn" multiplier="-0.5" offset="0.25"/></joint>
</robot>"""  # fmt: skip


@pytest.fixture(scope="module")
def mixed() -> Robot:
    return Robot.from_urdf(MIXED)


def plant_state(robot: Robot, q: Any, v: Any, tau: Any, stamp: float = 1.25) -> PlantState:
    lists = [np.asarray(x).tolist() for x in (q, v, tau)]
    names = robot.configuration.velocity_names
    return PlantState(1, 0, stamp, names, *lists, "active", "", 0.0, 0, True, -1, 0.0, robot.fingerprint)


def random_state(robot: Robot, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng, configuration = np.random.default_rng(seed), robot.configuration
    q = configuration.integrate(configuration.neutral, rng.uniform(-1.0, 1.0, robot.nv))
    return q, rng.uniform(-1.0, 1.0, robot.nv), rng.uniform(-1.0, 1.0, robot.nv)


def xyz(vector: Any) -> np.ndarray:
    return np.array([vector.x, vector.y, vector.z])


def rotation(quaternion: Quaternion) -> np.ndarray:
    """From x, y, z, w by the quaternion's own product, r v r*."""
    w, u = (
        quaternion.w,
        np.array(
            [[0, -quaternion.z, quaternion.y], [quaternion.z, 0, -quaternion.x], [-quaternion.y, quaternion.x, 0]]
        ),
    )
    return np.eye(3) + 2.0 * w * u + 2.0 * u @ u


def messages_of(robot: Robot, *state: Any) -> JointMessages:
    return JointStates.of(robot).of_state(plant_state(robot, *state))


def test_each_joint_stands_in_one_message_and_each_list_has_its_entry(mixed: Robot) -> None:
    q, v, tau = random_state(mixed, 1)
    joints, multi_dof, odometry = messages_of(mixed, q, v, tau)
    assert multi_dof is not None
    assert odometry is not None
    assert joints.name == ["turn", "close"]
    assert multi_dof.joint_names == ["free", "ball", "slide"]
    assert {len(x) for x in (multi_dof.transforms, multi_dof.twist, multi_dof.wrench)} == {3}
    k = list(mixed.configuration.velocity_names).index("turn")
    turn, rate, effort = q[list(mixed.configuration.position_names).index("turn")], v[k], tau[k]
    assert joints.position == [turn, turn * -0.5 + 0.25]
    assert joints.velocity == [rate, rate * -0.5]
    assert joints.effort == [effort, 0.0]  # its leader's moves both
    assert {message.header.stamp for message in (joints, multi_dof, odometry)} == {Time(1, 250_000_000)}
    for message in (joints, multi_dof, odometry):
        assert decode(type(message), encode(message)) == message


def test_odometry_is_the_links_pose_and_its_twist_their_derivative(mixed: Robot) -> None:
    """Central differences of our link poses: they err by h^2 times third derivatives, some 1e-9, and 1e-16 / h."""
    q, v, tau = random_state(mixed, 2)
    configuration, h = mixed.configuration, 1e-5
    odometry = messages_of(mixed, q, v, tau).odometry
    assert odometry is not None
    assert (odometry.header.frame_id, odometry.child_frame_id) == ("pad", "hull")
    pad, hull = (mixed.link_names.index(name) for name in ("pad", "hull"))

    def pose(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        R, p = (getattr(mixed.link_poses(q), name) for name in ("rotation", "position"))
        return R[pad].T @ R[hull], R[pad].T @ (p[hull] - p[pad])

    R, p = pose(q)
    np.testing.assert_allclose(rotation(odometry.pose.pose.orientation), R, atol=1e-14)
    np.testing.assert_allclose(xyz(odometry.pose.pose.position), p, atol=1e-14)
    (R_after, p_after), (R_before, p_before) = (pose(configuration.integrate(q, v, sign * h)) for sign in (1.0, -1.0))
    spin = R.T @ (R_after - R_before) / (2 * h)
    np.testing.assert_allclose(xyz(odometry.twist.twist.linear), R.T @ (p_after - p_before) / (2 * h), atol=1e-9)
    np.testing.assert_allclose(xyz(odometry.twist.twist.angular), [spin[2, 1], spin[0, 2], spin[1, 0]], atol=1e-9)


@pytest.mark.parametrize("joint", ["free", "ball", "slide"])
def test_transform_and_twist_of_each_joint(mixed: Robot, joint: str) -> None:
    """The transform is the joint's own, from where the child is at rest; its derivative is the twist, as above."""
    q, v, tau = random_state(mixed, 3)
    configuration, h = mixed.configuration, 1e-5
    described = next(candidate for candidate in mixed.description.joints if candidate.name == joint)
    p, c = (mixed.link_names.index(link) for link in (described.parent, described.child))

    def pose(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def relative_pose(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            poses = mixed.link_poses(q)
            back = poses.rotation[p].T
            return back @ poses.rotation[c], back @ (poses.position[c] - poses.position[p])

        (R_0, p_0), (R, x) = relative_pose(configuration.neutral), relative_pose(q)
        return R_0.T @ R, R_0.T @ (x - p_0)

    multi_dof = messages_of(mixed, q, v, tau).multi_dof
    assert multi_dof is not None
    k = multi_dof.joint_names.index(joint)
    R, x = pose(q)
    np.testing.assert_allclose(rotation(multi_dof.transforms[k].rotation), R, atol=1e-14)
    np.testing.assert_allclose(xyz(multi_dof.transforms[k].translation), x, atol=1e-14)
    (R_after, x_after), (R_before, x_before) = (pose(configuration.integrate(q, v, sign * h)) for sign in (1.0, -1.0))
    spin = R.T @ (R_after - R_before) / (2 * h)
    np.testing.assert_allclose(xyz(multi_dof.twist[k].linear), R.T @ (x_after - x_before) / (2 * h), atol=1e-9)
    np.testing.assert_allclose(xyz(multi_dof.twist[k].angular), [spin[2, 1], spin[0, 2], spin[1, 0]], atol=1e-9)


def test_power_is_that_of_the_robot(mixed: Robot) -> None:
    """Effort times velocity, wrench times twist, each joint once."""
    q, v, tau = random_state(mixed, 4)
    joints, multi_dof, _ = messages_of(mixed, q, v, tau)
    assert multi_dof is not None
    power = float(np.dot(joints.effort, joints.velocity))
    for twist, wrench in zip(multi_dof.twist, multi_dof.wrench, strict=True):
        power += xyz(wrench.force) @ xyz(twist.linear) + xyz(wrench.torque) @ xyz(twist.angular)
    assert power == pytest.approx(float(tau @ v), abs=1e-14)  # a sum of ten products below 1


@pytest.mark.parametrize(
    ("name", "root", "joints", "multi_dof", "odometry"),
    [
        ("panda", "fixed", 9, [], None),  # the second finger follows the first
        ("solo12", "floating", 12, ["root_joint"], ("world", "base_link")),
        ("scara", "planar", None, ["root_joint"], ("world", "base_link")),
    ],
)
def test_robots_that_come_along(
    name: str, root: str, joints: int | None, multi_dof: list[str], odometry: tuple[str, str] | None
) -> None:
    robot = Robot.from_file(find_robot(name), root=root)
    q, v, tau = random_state(robot, 5)
    messages = messages_of(robot, q, v, tau)
    assert len({len(x) for x in (messages.joints.name, messages.joints.position, messages.joints.velocity)}) == 1
    assert joints in (None, len(messages.joints.name))
    assert (messages.multi_dof.joint_names if messages.multi_dof else []) == multi_dof
    frames = (
        None if messages.odometry is None else (messages.odometry.header.frame_id, messages.odometry.child_frame_id)
    )
    if odometry is None:
        assert frames is None
    else:
        assert frames == (odometry[0], robot.link_names[0])
        assert messages.multi_dof is not None
        assert messages.multi_dof.header.frame_id == "world"


def test_what_was_made_is_heard(mixed: Robot) -> None:
    q, v, tau = random_state(mixed, 6)
    joints, multi_dof, _ = messages_of(mixed, q, v, tau)
    assert multi_dof is not None
    received = ReceivedJointStates(mixed.configuration)
    assert received.take(joints) == ["turn"]  # who follows it is not asked
    assert received.take(multi_dof) == ["free", "ball", "slide"]
    np.testing.assert_allclose(mixed.configuration.difference(q, received.q), 0.0, atol=1e-14)
    np.testing.assert_allclose(received.v, v, atol=1e-15)
    np.testing.assert_allclose(received.tau, tau, atol=1e-15)
    assert received.take(JointState(name=["turn"], position=[0.5])) == ["turn"]
    k = list(mixed.configuration.velocity_names).index("turn")
    assert (received.v[k], received.tau[k]) == (0.0, 0.0)  # nobody said them
    assert received.take(JointState(name=["turn"])) == []
    assert received.take(MultiDOFJointState(joint_names=["ball"])) == []
    assert received.take(JointState(name=["stranger", "ball"], position=[1.0, 2.0])) == []


TURNED = Transform(Vector3(), Quaternion(0.0, 0.0, 0.0, 2.0))
AWAY = Transform(Vector3(x=float("inf")))


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (JointState(name=["turn", "x"], position=[1.0]), "1 entries in 'position' of 2 names, expected as many"),
        (JointState(name=["turn"], position=[1.0], effort=[1.0, 2.0]), "2 entries in 'effort' of 1 names"),
        (JointState(name=["turn"], position=[float("nan")]), "position nan of joint 'turn', expected a finite number"),
        (MultiDOFJointState(joint_names=["ball", "free"], transforms=[TURNED]), "1 entries in 'transforms' of 2 names"),
        (MultiDOFJointState(joint_names=["ball"], transforms=[TURNED]), "quaternion of length 2, expected finite"),
        (MultiDOFJointState(joint_names=["free"], transforms=[AWAY]), r"joint 'free' with \(inf, 0, 0\)"),
    ],
)  # fmt: skip
def test_what_is_no_joint_state_is_refused_whole(mixed: Robot, message: Any, sentence: str) -> None:
    received = ReceivedJointStates(mixed.configuration)
    q_before = received.q.copy()
    with pytest.raises(InvalidArgumentError, match=sentence):
        received.take(message)
    with pytest.raises(InvalidArgumentError, match=sentence):  # as a bag's own schema has it
        received.take(SimpleNamespace(**{name: getattr(message, name) for name in message.__struct_fields__}))
    np.testing.assert_array_equal(received.q, q_before)
