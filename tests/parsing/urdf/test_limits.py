"""Limits: those of URDF 1.2, of joints without a range, of motors that cannot move their joint."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.api.description import RobotDescription
from dyn_service.control.joint_goals import motion_limits
from dyn_service.model.description import Limit
from dyn_service.parsing.conversion import written
from dyn_service.parsing.files import read_text
from dyn_service.service.client.flows import RemoteRobotProperties

NEW = """<robot name="r" version="1.2">
<link name="base"/>
<link name="boom"><inertial><origin xyz="0.25 0 0" quat_xyzw="0 0 0.7071067811865476 0.7071067811865476"/>
<mass value="2"/><inertia ixx="0.02" ixy="0" ixz="0" iyy="0.003" iyz="0" izz="0.021"/></inertial>
<collision><geometry><capsule radius="0.04" length="0.4"/></geometry></collision></link>
<link name="wheel"><inertial><origin/><mass value="0.4"/><inertia ixx="0.001" ixy="0" ixz="0" iyy="0.002" iyz="0"
izz="0.001"/></inertial></link>
<joint name="lift" type="revolute"><origin/><parent link="base"/><child link="boom"/><axis xyz="0 1 0"/>
<limit lower="-1.5" upper="1.5" effort="40" velocity="2" acceleration="8" deceleration="4" jerk="100"/></joint>
<joint name="spin" type="continuous"><parent link="boom"/><child link="wheel"/><origin xyz="0.5 0 0"/>
<axis xyz="0 1 0"/><limit velocity="20" acceleration="50"/></joint>
</robot>"""


def test_limits_of_version_1_2() -> None:
    description = read_text(NEW)
    assert [joint.limit for joint in description.joints] == [
        Limit(-1.5, 1.5, 40, 2, 8, 4, 100),
        Limit(velocity=20, acceleration=50),
    ]
    assert [note.text for note in description.notes] == ["geometry of 1 link is not used in dynamics"]
    assert [shape.kind for shape in description.links[1].shapes] == ["capsule"]
    inertial = description.links[1].inertial
    assert inertial is not None
    inertia_in_link = inertial.rotation @ inertial.inertia @ inertial.rotation.T
    np.testing.assert_allclose(inertia_in_link, np.diag([0.003, 0.02, 0.021]), atol=1e-17)
    robot = Robot(description)
    assert robot.limits.acceleration.tolist() == [4, 50]
    assert robot.limits.jerk.tolist() == [100, math.inf]
    assert robot.limits.effort.tolist() == [40, math.inf]


def test_motions_of_goals_keep_the_limits() -> None:
    robot = Robot.from_text(NEW)
    limits = motion_limits(robot.configuration, robot.limits, 0.5, np.full(2, 5.0), np.full(2, 200.0))
    assert limits.acceleration.tolist() == [4, 5]
    assert limits.jerk.tolist() == [100, 200]


@pytest.mark.parametrize("names", [None, ["spin", "lift"]])
def test_a_client_knows_them(names: list[str] | None) -> None:
    """The description goes over the wire as a map; that of a robot without such limits as before."""
    described = Robot.from_text(NEW).description
    remote = RemoteRobotProperties(described, names).limits
    expected = [4.0, 50.0] if names is None else [50.0, 4.0]
    assert remote.acceleration.tolist() == expected
    unlimited = Robot.from_text(NEW.replace("acceleration", "x").replace("deceleration", "y").replace("jerk", "z"))
    assert (unlimited.description.limits.acceleration, unlimited.description.limits.jerk) == ([], [])
    assert RemoteRobotProperties(unlimited.description, names).limits.acceleration.tolist() == [math.inf] * 2
    assert isinstance(described, RobotDescription)
    assert unlimited.fingerprint != described.fingerprint


def test_writers_keep_them_or_note_them() -> None:
    description = read_text(NEW)
    text, notes = written(description, "urdf")
    assert [joint.limit for joint in read_text(text).joints] == [joint.limit for joint in description.joints]
    assert notes == []
    for way in ("sdf", "mjcf"):
        texts = [note.text for note in written(description, way)[1] if "celeration limit" in note.text]
        assert [text.split(" limit ")[1].split()[0] for text in texts] == ["8", "4", "50"]


@pytest.mark.parametrize("value", ["0", "-3"])
def test_a_limit_that_is_not_positive_counts_as_none(value: str) -> None:
    robot = Robot.from_text(NEW.replace('deceleration="4"', f'deceleration="{value}"'))
    assert robot.limits.acceleration.tolist() == [8, 50]
    (note,) = robot.receipt.of_kind("warning")
    assert f"deceleration limit {value}" in note.text


def test_followers_narrow_them() -> None:
    mimic = NEW.replace('acceleration="50"/>', 'acceleration="50"/><mimic joint="lift" multiplier="-20"/>')
    assert Robot.from_text(mimic).limits.acceleration.tolist() == [2.5]


@pytest.mark.parametrize("way", ["urdf", "sdf"])
def test_a_continuous_joint_has_no_range(way: str) -> None:
    bounds = 'lower="-6.28" upper="6.28" velocity="20" effort="3"'
    text = NEW.replace('<limit velocity="20" acceleration="50"/>', f"<limit {bounds}/>")
    if way == "sdf":
        text = written(read_text(text), "sdf")[0]
        text = text.replace("<velocity>20<", "<lower>-6.28</lower><upper>6.28</upper><velocity>20<")
    description = read_text(text)
    joint = next(joint for joint in description.joints if joint.name == "spin")
    assert joint.type == "continuous"
    assert joint.limit == Limit(velocity=20, effort=3)
    (note,) = (note for note in description.notes if "has no range" in note.text)
    assert (note.kind, note.element) == ("dropped", "joint 'spin'")
    assert not Robot(description).receipt.of_kind("warning")


PASSIVE = """<robot name="r"><link name="a"/><link name="b"><inertial><origin xyz="1 0 0"/><mass value="1"/>
<inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial></link><joint name="j" type="revolute">
<origin/><parent link="a"/><child link="b"/><axis xyz="0 1 0"/><limit lower="-1" upper="1" velocity="1" effort="56"/>
<dynamics friction="{}"/></joint></robot>"""


@pytest.mark.parametrize(("friction", "warns"), [("55.9", False), ("56", True), ("80", True)])
def test_friction_as_large_as_the_effort_limit(friction: str, warns: bool) -> None:
    notes = read_text(PASSIVE.format(friction)).notes
    expected = [f"friction {friction} is not below the effort limit 56: no motor moves the joint"] * warns
    assert [note.text for note in notes if note.kind == "warning"] == expected


def test_a_motor_without_effort_is_one_warning() -> None:
    """The friction of a joint without a motor has no warning of its own."""
    notes = read_text(PASSIVE.format("3").replace('"56"', '"0"')).notes
    expected = ["effort limit 0 means no motor; remove limits that are unknown"]
    assert [note.text for note in notes if note.kind == "warning"] == expected
