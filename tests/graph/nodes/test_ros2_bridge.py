"""The bridge between our topics and ROS 2's, over a DDS domain on the loopback interface."""

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("cyclonedds", reason="extra ros2")

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.dds import Participant, domain_number
from dyn_service.graph.middleware.graph import End, NodeEntry
from dyn_service.graph.nodes.ros2_bridge import Incoming, Ros2Bridge, Ros2BridgeParameters
from dyn_service.messages import MAX_BYTES
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import String
from dyn_service.messages.trajectory_msgs import JointTrajectory
from tests.graph.in_process import Nodes
from tests.phrases import naming
from tests.ros2 import DOMAIN


@pytest.fixture
def ros() -> Iterator[Participant]:
    """A ROS 2 node on the level of DDS."""
    participant = Participant(DOMAIN)
    yield participant
    participant.close()


def _bridge(nodes: Nodes, **parameters: object) -> Ros2Bridge:
    bridge = nodes.make("/arm/ros2_bridge", Ros2BridgeParameters(domain=DOMAIN, **parameters), Ros2Bridge)
    for transition in ("configure", "activate"):
        bridge.change_state(transition)
    return bridge


def test_topics_go_out_and_come_in(nodes: Nodes, ros: Participant) -> None:
    bridge = _bridge(nodes, from_ros=[Incoming(topic="joint_trajectory", type="trajectory_msgs/msg/JointTrajectory")])
    ours, came = nodes.make("/arm/plant"), []
    states = ours.create_publisher(JointState, "/arm/joint_states")
    ours.create_publisher(String, "/arm/robot_description", latched=True).publish(String("<robot/>"))
    ours.create_subscription(JointTrajectory, "/arm/joint_trajectory", came.append)
    reader = ros.reader("/arm/joint_states", JointState)
    goal = ros.writer("/arm/joint_trajectory", JointTrajectory)
    received: list[JointState] = []

    def both() -> bool:
        states.publish(JointState(name=["elbow"], position=[0.5]))
        goal.write(JointTrajectory(joint_names=["elbow"]))
        received.extend(reader.take())
        return bool(received and came)

    nodes.until(both)
    assert received[0] == JointState(name=["elbow"], position=[0.5])
    assert came[0] == JointTrajectory(joint_names=["elbow"])
    late = ros.reader("/arm/robot_description", String, latched=True)  # as ROS 2's tools come, long after
    texts: list[String] = []
    nodes.until(lambda: texts.extend(late.take()) or texts)
    assert texts == [String("<robot/>")]
    assert set(bridge.sent) == {"/arm/joint_states", "/arm/robot_description"}


def test_messages_of_a_node_do_not_end_the_bridge(
    nodes: Nodes, ros: Participant, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic of an unknown package; a message that is too large, and one after it."""
    stranger = nodes.make("/arm/stranger")
    end = End("/arm/joint_states", "my_robot_msgs/msg/JointState", f"ipc://{nodes.folder}/none")
    nodes.make("/arm/plant").create_publisher(JointState, "/arm/joint_states")
    stranger._registration.write(NodeEntry("/arm/a", 1, stranger._token, publishers=(end,)))
    bridge = _bridge(nodes, from_ros=[Incoming(topic="notes", type="std_msgs/msg/String")])
    came: list[String] = []
    stranger.create_subscription(String, "/arm/notes", came.append, queue=10)
    stranger._registration.write(NodeEntry("/arm/a", 1, stranger._token, publishers=(end,)))
    notes, large = ros.writer("/arm/notes", String), String("x" * (MAX_BYTES + 1))

    def both() -> bool:
        notes.write(large)
        notes.write(String("after"))
        return bool(came) and "/arm/joint_states" in bridge._writers

    nodes.until(both)
    assert came[0] == String("after")
    messages = [record.message for record in caplog.records]
    assert sum("a message of /arm/notes does not come in: a std_msgs/msg/String of" in line for line in messages) == 1
    assert (
        sum(
            "does not go to ROS 2: there is no message type 'my_robot_msgs/msg/JointState'" in line for line in messages
        )
        == 1
    )


def test_a_circle_and_a_type_that_is_none_are_refused(nodes: Nodes) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("'joint_states'", "to_ros", "from_ros")):
        _bridge(nodes, from_ros=[Incoming(topic="/arm/joint_states", type="sensor_msgs/msg/JointState")])
    with pytest.raises(InvalidArgumentError, match="topic '/arm/wrist-1/wrench'"):
        _bridge(nodes, from_ros=[Incoming(topic="wrist-1/wrench", type="geometry_msgs/msg/WrenchStamped")])
    with pytest.raises(InvalidArgumentError, match="topic '/arm/wrist-1/wrench'"):
        _bridge(nodes, to_ros=["wrist-1/wrench"])
    with pytest.raises(NotFoundError, match=naming("'sensor_msgs/msg/JointStat'", re.compile("JointState"))):
        _bridge(nodes, from_ros=[Incoming(topic="other", type="sensor_msgs/msg/JointStat")])


def test_the_domain_is_ros_2s() -> None:
    assert domain_number(None, {}) == 0
    assert domain_number(None, {"ROS_DOMAIN_ID": "42"}) == 42
    assert domain_number(7, {"ROS_DOMAIN_ID": "42"}) == 7
    for wrong in ("x", "-1", "233", "1.5"):
        with pytest.raises(InvalidArgumentError, match=f"ROS_DOMAIN_ID is '{wrong}'"):
            domain_number(None, {"ROS_DOMAIN_ID": wrong})
