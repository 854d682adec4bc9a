"""Positions and colours of the drawn objects, against statics computed by hand."""

import math
import re
import subprocess
import sys

import numpy as np
import pytest

from dyn_service import Robot, find_robot
from dyn_service.view.scene import FORCE_LENGTH, UNKNOWN, Scene, colours, quaternions
from tests.conftest import ROOT

G = 9.81
ARM = """<robot name="arm">
<link name="base"><inertial><mass value="5"/>
  <inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>
<link name="upper"><inertial><origin xyz="0.5 0 0"/><mass value="2"/>
  <inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial></link>
<link name="lower"><inertial><origin xyz="0.25 0 0"/><mass value="1"/>
  <inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial></link>
<joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 -1 0"/>
  <limit lower="-1" upper="2" effort="40" velocity="1"/></joint>
<joint name="elbow" type="continuous"><origin xyz="1 0 0"/><parent link="upper"/><child link="lower"/>
  <axis xyz="0 -1 0"/></joint>
</robot>"""


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene(Robot.from_text(ARM))


def test_the_arm_held_out_straight(scene: Scene) -> None:
    shot = scene.still(np.zeros(2))
    assert shot.position.tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]
    np.testing.assert_allclose(shot.centre, [(2 * 0.5 + 1 * 1.25) / 8.0, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(shot.tau, [G * (2 * 0.5 + 1 * 1.25), G * 0.25], rtol=1e-14)
    np.testing.assert_allclose(shot.share, [G * 2.25 / 40.0, np.nan])
    assert shot.joints == ("shoulder", "elbow")
    np.testing.assert_allclose(shot.force, [3 * G, G], rtol=1e-14)
    begin, end = shot.loads[:, 0], shot.loads[:, 1]
    np.testing.assert_allclose(begin, [[0, 0, 0], [1, 0, 0]], atol=1e-15)
    arrows = np.array([[0, 0, 1.0], [0, 0, 1.0 / 3.0]]) * FORCE_LENGTH * scene.size  # the parent holds the child up
    np.testing.assert_allclose(end - begin, arrows, atol=1e-15)
    assert shot.colours[1].tolist() == list(UNKNOWN)
    assert shot.colours[0].tolist() == colours([G * 2.25 / 40.0])[0].tolist()


def test_the_arm_as_it_swings(scene: Scene) -> None:
    """Turning at 3 rad/s about the shoulder, straight: what it carries is the centripetal force too."""
    hanging = np.array([-math.pi / 2, 0.0])
    shot = scene.moving(hanging, np.array([3.0, 0.0]), np.zeros(2))
    np.testing.assert_allclose(shot.force, [3 * G + 9.0 * (2 * 0.5 + 1.25), G + 9.0 * 1.25], rtol=1e-12)
    np.testing.assert_allclose(shot.position[2], [0, 0, -1], atol=1e-15)


def test_sliders_go_from_limit_to_limit(scene: Scene) -> None:
    lower, upper = scene.ranges()
    assert (lower.tolist(), upper.tolist()) == ([-1.0, -math.pi], [2.0, math.pi])
    assert scene.start().tolist() == [0.5, 0.0]
    assert scene.position_of(np.array([0.4, -2.0])).tolist() == [0.4, -2.0]
    assert scene.floor == 0.0


def test_a_floating_robot_is_moved_by_offsets() -> None:
    scene = Scene(Robot.from_text(ARM, root="floating"))
    q = scene.position_of(np.array([0.1, 0.2, 0.3, 0.0, 0.0, math.pi / 2, 0.4, 0.5]))
    np.testing.assert_allclose(q[3:], [0.0, 0.0, math.sqrt(0.5), math.sqrt(0.5), 0.4, 0.5], atol=1e-15)
    lower, upper = scene.ranges()
    assert upper[:6].tolist() == [scene.size] * 3 + [math.pi] * 3
    assert (lower[6], upper[6]) == (-1.0, 2.0)
    assert scene.floor == pytest.approx(min(0.0, -0.0))


def test_a_branch_without_mass_has_no_loads_and_is_shown() -> None:
    text = ARM.replace('<mass value="1"/>', '<mass value="0"/>')
    text = text.replace(
        '<inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial></link>\n<joint',
        "</inertial></link>\n<joint",
    )
    robot = Robot.from_text(text.replace('<inertial><origin xyz="0.25 0 0"/><mass value="0"/>\n  </inertial>', ""))
    shot = Scene(robot).still(np.zeros(2))
    assert len(shot.loads) == 0
    assert np.isfinite(shot.position).all()


def test_colours_go_from_green_through_yellow_to_red() -> None:
    shades = colours([0.0, 0.5, 1.0, 7.0, math.nan])
    assert shades.dtype == np.uint8
    green, yellow, red, above_limit, unknown = shades.tolist()
    assert green[1] > 2 * green[0]
    assert min(yellow[:2]) > 3 * yellow[2]
    assert red[0] > 3 * red[1]
    assert above_limit == red
    assert unknown == list(UNKNOWN)


def test_quaternions_turn_as_their_rotations_do() -> None:
    """Random ones, and half turns about each axis, where w is 0."""
    rng = np.random.default_rng(1)
    random = np.linalg.qr(rng.normal(size=(50, 3, 3)))[0]
    random *= np.linalg.det(random)[:, None, None]
    half = np.stack([np.diag(row) for row in ([1, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, 1])])
    rotation = np.concatenate([random, half])
    wxyz = quaternions(rotation)
    w, v = wxyz[:, :1], wxyz[:, 1:]
    cross = np.zeros((len(wxyz), 3, 3))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        cross[:, i, j], cross[:, j, i] = -v[:, k], v[:, k]
    rotation_of_wxyz = np.eye(3) + 2.0 * w[:, :, None] * cross + 2.0 * cross @ cross  # Rodrigues
    np.testing.assert_allclose(rotation_of_wxyz, rotation, atol=1e-14)


@pytest.mark.parametrize(("name", "independent"), [("four_bar", 1), ("delta", 3)])
def test_loops_stay_closed_as_sliders_move(name: str, independent: int) -> None:
    robot = Robot.from_file(find_robot(name))
    scene = Scene(robot)
    assert len(scene.independent) == independent
    q, values = scene.first, scene.numbers_of(scene.first)[scene.independent]
    for step in (0.2, 0.2, 0.2):
        values = values + step
        q = scene.moved(q, values)
        np.testing.assert_allclose(robot.loop_error(q), 0.0, atol=1e-9)
        np.testing.assert_allclose(scene.numbers_of(q)[scene.independent], values, atol=1e-12)
    if name == "delta":  # one arm points away from the others, so that no platform hangs from all three
        assert scene.moved(q, np.array([3.1, 0.0, 0.0])) is q
    shot = scene.still(q)
    np.testing.assert_allclose(shot.tau, robot.gravity_forces(q))
    assert {joint.name for joint in robot.description.loop_joints} <= set(shot.joints)


def test_the_load_of_a_loop_joint_is_drawn_where_it_is() -> None:
    robot = Robot.from_file(find_robot("four_bar"))
    scene = Scene(robot)
    shot = scene.still(scene.moved(scene.first, np.array([0.7])))
    (pin,) = robot.description.loop_joints
    poses = {name: (R, p) for name, R, p in zip(robot.link_names, shot.rotation, shot.position, strict=True)}
    for link, xyz in ((pin.parent, pin.parent_xyz), (pin.child, pin.child_xyz)):
        rotation, position = poses[link]
        np.testing.assert_allclose(shot.loads[shot.joints.index("pin"), 0], position + rotation @ xyz, atol=1e-9)


def test_measured_states_are_shown_closed() -> None:
    robot = Robot.from_file(find_robot("four_bar"))
    scene = Scene(robot)
    q = scene.moved(scene.first, np.array([0.7]))
    v = robot.independent_motion(q, np.zeros(3)).jacobian[:, 0]
    exact = scene.moving(q, v, np.zeros(3))
    noise_q, noise_v = np.array([0.0, 1e-4, -1e-4]), np.array([0.0, 1e-3, 0.0])
    shot = scene.moving(q + noise_q, v + noise_v, np.zeros(3))
    np.testing.assert_allclose(shot.force, exact.force, rtol=1e-2)
    # So are references, which are closed where they were planned and not quite between.
    np.testing.assert_allclose(scene.still(q + noise_q).position, scene.still(q).position, atol=1e-4)


def test_a_robot_that_tells_no_motors_of_its_loops_has_no_efforts() -> None:
    text = re.sub("<transmission.*?</transmission>", "", find_robot("four_bar").read_text("utf-8"), flags=re.DOTALL)
    scene = Scene(Robot.from_text(text))
    shot = scene.still(scene.first)
    assert np.isnan(shot.tau).all()
    assert shot.joints == ()


def test_the_viewer_needs_no_library_of_bags() -> None:
    """`dyn view` of a robot and of a report, with the extras `server` and `view` alone."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('mcap', 'mcap_ros2', 'rosbags', 'lz4')))\n"
        "import dyn_service.view.playing, dyn_service.view.viewer\n"
        "from dyn_service.graph.bags.motions import of_report\n"
        "print('ready')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout == "ready\n", done.stderr
