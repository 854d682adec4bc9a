"""Mutilated robot descriptions end in a robot that keeps its promises or in an error of ours, never in another one."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dyn_service.errors import DynError
from dyn_service.parsing.urdf.reader import read_text

ARM = """<?xml version="1.0"?>
<robot name="arm" version="1.1">
  <link name="base"><visual/></link>
  <link name="upper">
    <inertial>
      <origin xyz="0.1 0 -.2" rpy="0 0 1.57"/>
      <mass value="2.5"/>
      <inertia ixx="1" ixy="0" ixz="0" iyy="2" iyz="0" izz="2.5"/>
    </inertial>
  </link>
  <link name="slide"/>
  <link name="tool"/>
  <joint name="turn" type="revolute">
    <parent link="base"/><child link="upper"/>
    <origin xyz="0 0 0.5" quat_xyzw="0 0 0 1"/>
    <axis xyz="0 0 -1"/>
    <limit lower="-1.5" upper="1.5" effort="80" velocity="2"/>
    <dynamics damping="0.7" friction="0.3"/>
  </joint>
  <joint name="lift" type="prismatic">
    <parent link="upper"/><child link="slide"/>
    <axis xyz="0 1 0"/><mimic joint="turn" multiplier="2" offset="1"/>
  </joint>
  <joint name="flange" type="fixed"><parent link="slide"/><child link="tool"/></joint>
  <gazebo/>
</robot>
"""

# fmt: off
PIECES = st.sampled_from([
    "", "<", ">", '"', "&", "/>", "</link>", "<link>", "<!DOCTYPE r>", "<![CDATA[", "<!--", "\0", "\ud800", "\ufeff",
    "nan", "-inf", "1e999", "-1", "0", "0 0 0", "1 2", "${x}", "xacro:x", "floating", "fixed", "base", "tool", "lift",
    '<mimic joint="lift"/>', "<inertial/>", '<joint name="x" type="fixed"/>', '<link name="y"/>', "\n", "é", "x" * 99,
])
# fmt: on


def held(source: str | bytes) -> None:
    """Reads; anything but a description that keeps its promises, or an error of ours, fails the test."""
    try:
        robot = read_text(source)
    except DynError:
        return
    assert len(robot.joints) == len(robot.links) - 1
    for joint in robot.joints:
        assert abs(np.linalg.norm(joint.axis) - 1) < 1e-12
        assert np.abs(joint.rotation @ joint.rotation.T - np.eye(3)).max() < 1e-9
        assert np.isfinite(joint.xyz).all()
    for link in robot.links:
        if link.inertial is not None:
            assert link.inertial.mass >= 0
            assert np.isfinite(link.inertial.inertia).all()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(ARM)), st.integers(0, 40), PIECES), min_size=1, max_size=4))
@example([(len(ARM) // 2, len(ARM), "")])
def test_mutilated_text_gives_a_robot_or_our_error(edits: list[tuple[int, int, str]]) -> None:
    text = ARM
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    held(text)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), PIECES | st.text(max_size=8)), min_size=1, max_size=3))
def test_mutilated_values_give_a_robot_or_our_error(edits: list[tuple[int, str]]) -> None:
    """Well-formed XML with wrong attributes reaches further into the reader than broken XML does."""
    values = list(re.finditer(r'(?<==")[^"]*(?=")', ARM[50:]))
    text = ARM
    for index, piece in sorted(edits, key=lambda edit: -(edit[0] % len(values))):
        match = values[index % len(values)]
        text = text[: 50 + match.start()] + piece.replace("<", "").replace('"', "") + text[50 + match.end() :]
    held(text)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=64), st.integers(0, len(ARM)))
def test_any_bytes_give_a_robot_or_our_error(noise: bytes, place: int) -> None:
    data = ARM.encode()
    held(data[:place] + noise + data[place + len(noise) :])
