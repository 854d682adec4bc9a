"""The bridge with nodes of ROS 2: every type in both directions, latched and volatile, and its clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="dependency group test-ros2")
pytest.importorskip("cyclonedds", reason="extra ros2")

from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data

from dyn_service.graph.nodes.ros2_bridge import Incoming, Ros2Bridge, Ros2BridgeParameters
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.cdr import rihs01
from dyn_service.messages.rosgraph_msgs import Clock
from dyn_service.messages.std_msgs import String
from tests.graph.in_process import Nodes
from tests.ros2.as_ros import KINDS, as_ros, plain, ros_class
from tests.ros2.conftest import Ros
from tests.ros_samples import drawn

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def _bridge(nodes: Nodes, domain: int, **parameters: Any) -> Ros2Bridge:
    bridge = nodes.make("/arm/ros2_bridge", Ros2BridgeParameters(domain=domain, **parameters), Ros2Bridge)
    for transition in ("configure", "activate"):
        bridge.change_state(transition)
    return bridge


def test_every_type_goes_out(nodes: Nodes, ros: Ros, domain: int) -> None:
    """Reliable and best-effort subscribers receive messages, with the type hash of ROS 2."""
    plant, publishers, message_of = nodes.make("/arm/plant"), {}, {}
    reliable: dict[str, list[Any]] = {}
    best_effort: dict[str, list[Any]] = {}
    for k, kind in enumerate(KINDS.values()):
        topic = f"/arm/topic_{k}"
        publishers[topic] = plant.create_publisher(kind, topic)
        message_of[topic] = drawn(kind, np.random.default_rng(k))
        for messages, qos in ((reliable, 10), (best_effort, qos_profile_sensor_data)):
            ros.node.create_subscription(ros_class(kind), topic, messages.setdefault(topic, []).append, qos)
    _bridge(nodes, domain, to_ros=list(publishers))

    def all_of_them() -> bool:
        for topic, publisher in publishers.items():
            publisher.publish(message_of[topic])
        return all(reliable.values()) and all(best_effort.values())

    ros.until(all_of_them)
    for topic, message in message_of.items():
        assert plain(reliable[topic][0]) == plain(best_effort[topic][0]) == plain(message)
        (end,) = ros.node.get_publishers_info_by_topic(topic)
        assert str(end.topic_type_hash) == rihs01(type(message))


def test_every_type_comes_in(nodes: Nodes, ros: Ros, domain: int) -> None:
    topics = {f"/arm/topic_{k}": kind for k, kind in enumerate(KINDS.values())}
    _bridge(
        nodes, domain, from_ros=[Incoming(topic=topic, type=name) for topic, name in zip(topics, KINDS, strict=True)]
    )
    controller = nodes.make("/arm/controller")
    came: dict[str, list[Any]] = {topic: [] for topic in topics}
    ros_publishers, message_of = {}, {}
    for k, (topic, kind) in enumerate(topics.items()):
        controller.create_subscription(kind, topic, came[topic].append)
        ros_publishers[topic] = ros.node.create_publisher(ros_class(kind), topic, 10)
        message_of[topic] = drawn(kind, np.random.default_rng(k))

    def all_of_them() -> bool:
        for topic, publisher in ros_publishers.items():
            publisher.publish(as_ros(message_of[topic]))
        return all(came.values())

    ros.until(all_of_them)
    for topic, message in message_of.items():
        assert plain(came[topic][0]) == plain(message)


def test_a_description_waits_for_who_comes_late(nodes: Nodes, ros: Ros, domain: int) -> None:
    """Either way: rviz2 comes long after it was sent, and so does a controller of ours."""
    plant = nodes.make("/arm/plant")
    plant.create_publisher(String, "/arm/robot_description", latched=True).publish(String("<robot/>"))
    bridge = _bridge(nodes, domain, from_ros=[Incoming(topic="/left/robot_description", type="std_msgs/msg/String")])
    ros_publisher = ros.node.create_publisher(ros_class(String), "/left/robot_description", LATCHED)
    ros_publisher.publish(as_ros(String("<theirs/>")))
    ros.until(lambda: bridge.sent and bridge.received)
    texts: list[Any] = []
    ours: list[String] = []
    ros.node.create_subscription(ros_class(String), "/arm/robot_description", texts.append, LATCHED)
    nodes.make("/arm/late").create_subscription(String, "/left/robot_description", ours.append)
    ros.until(lambda: texts and ours)
    assert (texts[0].data, ours[0].data) == ("<robot/>", "<theirs/>")


def test_a_node_of_ros_2_lives_in_the_time_of_the_plant(nodes: Nodes, ros: Ros, domain: int) -> None:
    """`use_sim_time`, as any node of ROS 2 has it."""
    clock = nodes.make("/arm/plant").create_publisher(Clock, "/clock")
    _bridge(nodes, domain, to_ros=["/clock"])
    ros.node.set_parameters([Parameter("use_sim_time", value=True)])

    def at_that_time() -> bool:
        clock.publish(Clock(Time(12, 345)))
        return ros.node.get_clock().now().nanoseconds == 12_000_000_345

    ros.until(at_that_time)
