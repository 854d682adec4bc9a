"""Joints that follow others in MJCF and SDFormat act: the numbers are those of the same robot in URDF."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from tests.terms.interpreting import interpreted_robot

INERTIAL = """<inertial><origin xyz="{com}"/><mass value="{mass}"/>
  <inertia ixx="0.02" iyy="0.03" izz="0.04" ixy="0" ixz="0" iyz="0"/></inertial>"""
URDF = f"""<robot name="gripper"><link name="palm"/>
  <link name="finger">{INERTIAL.format(com="0.1 0.2 0.3", mass=1.5)}</link>
  <link name="thumb">{INERTIAL.format(com="-0.1 0.05 0.2", mass=0.7)}</link>
  <link name="tip">{INERTIAL.format(com="0 0.3 0.1", mass=0.4)}</link>
  <joint name="drive" type="prismatic"><origin xyz="0.1 0 0.2"/><parent link="palm"/><child link="finger"/>
    <axis xyz="0 0 1"/><limit lower="-1" upper="1" effort="30" velocity="4"/></joint>
  <joint name="swing" type="revolute"><origin xyz="0 -0.2 0"/><parent link="palm"/><child link="thumb"/>
    <axis xyz="0 1 0"/><limit lower="-9" upper="9" effort="30" velocity="40"/>
    <dynamics damping="0.7" friction="0"/><mimic joint="drive" multiplier="-3" offset="0.25"/></joint>
  <joint name="free" type="revolute"><origin xyz="0.1 0 0"/><parent link="thumb"/><child link="tip"/>
    <axis xyz="1 0 0"/><limit lower="-2" upper="2" effort="3" velocity="4"/></joint>
</robot>"""

BODY = '<inertial pos="{com}" mass="{mass}" diaginertia="0.02 0.03 0.04"/>'
# y - 0.65 = -0.7 - 3 (x - 0.1), of joints at 0.1 m and 0.65 rad in the reference pose of the file.
MJCF = f"""<mujoco model="gripper"><compiler angle="radian"/><worldbody><body name="palm">
  <body name="finger" pos="0.1 0 0.3"><joint name="drive" type="slide" axis="0 0 1" ref="0.1" range="-1 1"
    actuatorfrcrange="-30 30"/>{BODY.format(com="0.1 0.2 0.3", mass=1.5)}</body>
  <body name="thumb" pos="0 -0.2 0" euler="0 0.65 0"><joint name="swing" axis="0 1 0" ref="0.65" range="-9 9"
    damping="0.7" actuatorfrcrange="-30 30"/>{BODY.format(com="-0.1 0.05 0.2", mass=0.7)}
    <body name="tip" pos="0.1 0 0"><joint name="free" axis="1 0 0" range="-2 2" actuatorfrcrange="-3 3"/>
    {BODY.format(com="0 0.3 0.1", mass=0.4)}</body></body>
  </body></worldbody>
  <equality><joint joint1="swing" joint2="drive" polycoef="-0.7 -3"/></equality></mujoco>"""

LINK = """<link name="{name}">{at}<inertial><pose>{com} 0 0 0</pose><mass>{mass}</mass><inertia><ixx>0.02</ixx>
  <iyy>0.03</iyy><izz>0.04</izz></inertia></inertial></link>"""
LIMIT = "<limit><lower>{0}</lower><upper>{1}</upper><effort>{2}</effort><velocity>{3}</velocity></limit>"
SDF = f"""<sdf version="1.11"><model name="gripper">
  {LINK.format(name="palm", at="", com="0 0 0", mass=1)}
  {LINK.format(name="finger", at='<pose relative_to="drive"/>', com="0.1 0.2 0.3", mass=1.5)}
  {LINK.format(name="thumb", at='<pose relative_to="swing"/>', com="-0.1 0.05 0.2", mass=0.7)}
  {LINK.format(name="tip", at='<pose relative_to="free"/>', com="0 0.3 0.1", mass=0.4)}
  <joint name="drive" type="prismatic"><pose relative_to="palm">0.1 0 0.2 0 0 0</pose><parent>palm</parent>
    <child>finger</child><axis><xyz>0 0 1</xyz>{LIMIT.format(-1, 1, 30, 4)}</axis></joint>
  <joint name="swing" type="revolute"><pose relative_to="palm">0 -0.2 0 0 0 0</pose><parent>palm</parent>
    <child>thumb</child><axis><xyz>0 1 0</xyz>{LIMIT.format(-9, 9, 30, 40)}<dynamics><damping>0.7</damping></dynamics>
    <mimic joint="drive"><multiplier>-3</multiplier><offset>0.55</offset><reference>-0.1</reference></mimic>
    </axis></joint>
  <joint name="free" type="revolute"><pose relative_to="thumb">0.1 0 0 0 0 0</pose><parent>thumb</parent>
    <child>tip</child><axis><xyz>1 0 0</xyz>{LIMIT.format(-2, 2, 3, 4)}</axis></joint>
</model></sdf>"""


def read(text: str) -> Robot:
    return interpreted_robot(Robot.from_text(text))


@pytest.mark.parametrize("text", [MJCF, SDF], ids=["MJCF", "SDFormat"])
def test_who_follows_in_another_file_is_who_follows_in_urdf(text: str, tmp_path: Path) -> None:
    ours, urdf = read(text), read(URDF)
    assert ours.joint_names == urdf.joint_names == ("drive", "free")
    assert ours.tree.moving_joints == urdf.tree.moving_joints
    rng = np.random.default_rng(0)
    q, v, a = rng.uniform(-0.5, 0.5, (3, 5, 2))
    for query, inputs in (("inverse_dynamics", (q, v, a)), ("forward_dynamics", (q, v, a)), ("mass_matrix", (q,))):
        answer, expected_answer = (getattr(robot, query)(*inputs) for robot in (ours, urdf))
        assert np.abs(answer - expected_answer).max() < 1e-13 * np.abs(expected_answer).max(), query
    poses, expected = ours.link_poses(q), urdf.link_poses(q)
    for link in ("finger", "thumb", "tip"):
        k, n = poses.links.index(link), expected.links.index(link)
        assert np.allclose(poses.position[:, k], expected.position[:, n], atol=1e-14)
        assert np.allclose(poses.rotation[:, k], expected.rotation[:, n], atol=1e-14)
    assert np.allclose(ours.limits.lower, urdf.limits.lower, rtol=1e-15)
    assert np.allclose(ours.limits.effort, urdf.limits.effort, rtol=1e-15)
    (note,) = ours.receipt.of_kind("following")
    assert (note.element, note.text) == ("joint 'swing'", "follows -3 * 'drive' + 0.25")
    assert not [note for note in ours.receipt.of_kind("reported") if "swing" in note.element]
    path = tmp_path / "gripper.xml"
    path.write_text(text)
    assert Robot.from_file(path).fingerprint == Robot.from_text(text).fingerprint
    assert Robot.from_text(text, mimic=False).joint_names == ("drive", "swing", "free")
    assert Robot.from_file(path, mimic=False).joint_names == ("drive", "swing", "free")
