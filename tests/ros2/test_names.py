"""What ROS 2's own rules say of names."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy", reason="dependency group test-ros2")

from hypothesis import example, given
from hypothesis import strategies as st
from rclpy.exceptions import InvalidTopicNameException
from rclpy.validate_full_topic_name import validate_full_topic_name

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.dds import dds_topic


def _ros(name: str) -> bool:
    try:
        validate_full_topic_name(name)
    except (InvalidTopicNameException, ValueError):
        return False
    return True


def _ours(name: str) -> bool:
    try:
        return dds_topic(name) == "rt" + name
    except InvalidArgumentError:
        return False


@given(st.text("/a1_B-~é{} \n", max_size=12) | st.from_regex(r"(/[a-z_][a-z0-9_]*)+", fullmatch=True))
@example("/" + "a" * 246)
@example("/" + "a" * 247)
@example("")
@example("/")
@example("/a\n")
@example("/wrist-1/wrench")
@example("/arm/joint_states")
def test_a_topic_goes_over_if_ros_2_could_ask_for_it(name: str) -> None:
    assert _ours(name) == _ros(name)
