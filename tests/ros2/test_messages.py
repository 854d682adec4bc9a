"""Each message type that ROS 2 has too: its fields, its bytes, its hash."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="dependency group test-ros2")

from rclpy.serialization import deserialize_message, serialize_message

from dyn_service.messages import fields_of
from dyn_service.messages.cdr import from_cdr, to_cdr
from tests.ros2.as_ros import KINDS, as_ros, plain, ros_class
from tests.ros_samples import drawn


def test_there_are_types_to_compare() -> None:
    assert {"sensor_msgs/msg/JointState", "trajectory_msgs/msg/JointTrajectory", "nav_msgs/msg/Odometry"} < {*KINDS}
    assert len(KINDS) >= 25


@pytest.mark.parametrize("name", KINDS)
def test_ros_2_reads_our_bytes_and_we_its(name: str) -> None:
    kind, rng = KINDS[name], np.random.default_rng(len(name))
    assert [field.name for field in fields_of(kind)] == list(ros_class(kind).get_fields_and_field_types())
    for message in (drawn(kind, rng) for _ in range(5)):
        ros_message = as_ros(message)
        assert plain(ros_message) == plain(message)
        assert deserialize_message(to_cdr(message), ros_class(kind)) == ros_message
        assert plain(from_cdr(kind, serialize_message(ros_message))) == plain(message)
