"""Positions and colours of the drawn objects, against statics computed by hand."""

import math

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.view.scene import FORCE_LENGTH, UNKNOWN, Scene, colours, quaternions

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
    down = np.array([-math.pi / 2, 0.0])
    shot = scene.moving(down, np.array([3.0, 0.0]), np.zeros(2))
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
    shown = colours([0.0, 0.5, 1.0, 7.0, math.nan])
    assert shown.dtype == np.uint8
    green, yellow, red, beyond, unknown = shown.tolist()
    assert green[1] > 2 * green[0]
    assert min(yellow[:2]) > 3 * yellow[2]
    assert red[0] > 3 * red[1]
    assert beyond == red
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
    again = np.eye(3) + 2.0 * w[:, :, None] * cross + 2.0 * cross @ cross  # Rodrigues
    np.testing.assert_allclose(again, rotation, atol=1e-14)
