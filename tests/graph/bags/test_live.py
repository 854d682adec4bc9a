"""Recording and playing topics with real sockets and nodes in one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.playing import Player
from dyn_service.graph.bags.reader import BagReader
from dyn_service.graph.bags.topic_recorder import TopicRecorder
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.graph.middleware.node import Node
from dyn_service.messages.geometry_msgs import WrenchStamped
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import String
from dyn_service.support.parameters import NoParameters
from tests.graph.bags.test_bags import MS, T0, state, write


def test_recording_whoever_publishes(tmp_path: Path, folder: Path, node: Node[NoParameters]) -> None:
    """Topics that are there, one that comes later, one that nobody asked for, one of an unknown type, a latched one
    that was said before."""
    messages: list[str] = []
    states = node.create_publisher(JointState, "joint_states")
    text = node.create_publisher(String, "robot_description", latched=True)
    other = node.create_publisher(String, "/other")
    text.publish(String("<robot/>"))
    writer = BagWriter(tmp_path / "a.mcap")
    recorder = TopicRecorder(writer, ["/arm/*"], lambda: [folder], messages.append)
    begin_ns = time.time_ns()
    late = None
    deadline = time.monotonic() + 240.0
    k = 0
    while time.monotonic() < deadline:
        recorder.turn(5)
        text.turn()
        states.publish(state(k))
        other.publish(String("no"))
        k += 1
        if k == 5:
            late = node.create_publisher(WrenchStamped, "wrench")
        if late is not None:
            late.publish(WrenchStamped())
        if {"/arm/joint_states", "/arm/robot_description", "/arm/wrench"} <= writer.counts.keys() and k > 20:
            break
    end_ns = time.time_ns()
    recorder.close()
    writer.close()
    with BagReader(tmp_path / "a.mcap") as bag:
        recorded = list(bag.messages(["/arm/joint_states"]))
        assert bag.names() == {"/arm/joint_states", "/arm/robot_description", "/arm/wrench"}
        assert [message.message for message in bag.messages(["/arm/robot_description"])] == [String("<robot/>")]
    first = round(1000.0 * recorded[0].message.header.stamp.seconds())
    assert [message.message for message in recorded] == [state(first + j) for j in range(len(recorded))]
    assert all(begin_ns <= message.log_time_ns <= end_ns for message in recorded)
    assert [message.log_time_ns for message in recorded] == sorted(message.log_time_ns for message in recorded)
    assert recorder.missed == 0
    assert messages == []


def test_malformed_frames_are_counted_reported_once_and_not_recorded(
    tmp_path: Path, folder: Path, node: Node[NoParameters]
) -> None:
    states = node.create_publisher(JointState, "joint_states")
    messages: list[str] = []
    with BagWriter(tmp_path / "a.mcap") as writer:
        recorder = TopicRecorder(writer, ["*"], lambda: [folder], messages.append)
        deadline = time.monotonic() + 240.0
        while recorder.malformed < 2 or not writer.counts:
            assert time.monotonic() < deadline
            if recorder.malformed < 2:
                states.socket.send(b"\xc1")
            else:
                states.publish(state(1))
            recorder.turn(5)
            assert len(messages) == min(1, recorder.malformed)
        recorder.close()
    fault = "not a sensor_msgs/msg/JointState: it is not MessagePack from byte 0 on"
    assert messages == [f"topic '/arm/joint_states': {fault}; it is not recorded"]
    with BagReader(tmp_path / "a.mcap") as bag:
        assert all(recorded.message == state(1) for recorded in bag.messages())


def test_a_topic_of_two_launches_is_reported(tmp_path: Path, folder: Path, node: Node[NoParameters]) -> None:
    second = tmp_path / "second"
    second.mkdir(mode=0o700)
    other = Node.alone("/arm/plant", NoParameters(), second, node.context)
    node.create_publisher(JointState, "joint_states")
    other.create_publisher(JointState, "joint_states")
    messages: list[str] = []
    with BagWriter(tmp_path / "a.mcap") as writer:
        recorder = TopicRecorder(writer, ["/arm/*"], lambda: [folder, second], messages.append)
        recorder.turn(0)
        assert [topic for topic, _ in recorder.topics()] == ["/arm/joint_states"]
        recorder.close()
    other.close()
    assert len(messages) == 1
    assert messages[0].startswith("topic '/arm/joint_states' is published in several launches")


def test_a_launch_that_begins_later_is_heard(tmp_path: Path, folder: Path, node: Node[NoParameters]) -> None:
    node.create_publisher(JointState, "joint_states")
    folders: list[Path] = []
    with BagWriter(tmp_path / "a.mcap") as writer:
        recorder = TopicRecorder(writer, ["*"], lambda: folders, print)
        recorder.turn(0)
        assert recorder.topics() == []
        folders.append(folder)
        deadline = time.monotonic() + 240.0
        while not recorder.topics() and time.monotonic() < deadline:
            recorder.turn(5)
        assert [topic for topic, _ in recorder.topics()] == ["/arm/joint_states"]
        recorder.close()


def test_playing_a_recorded_bag(tmp_path: Path, folder: Path, node: Node[NoParameters]) -> None:
    """A subscriber gets the messages of the bag from its start on, in order, one after the other in the bag's time."""
    path = tmp_path / "a.mcap"
    with BagWriter(path) as bag:
        for k in range(60):
            bag.write("/arm/joint_states", state(k), T0 + k * MS)
        bag.write("/server/requests", String("left out"), T0)
    subscription = node.create_subscription(JointState, "/arm/joint_states", queue=1000)
    with BagReader(path) as bag:
        player = Player(bag, [], folder, start_s=0.010, rate=0.5, say=print)
        deadline = time.monotonic() + 240.0
        out = player._publishers["/arm/joint_states"]
        while subscription._counts.get(out._number) != max(
            1, out.sent
        ):  # it hears the player, and all that it said so far
            assert time.monotonic() < deadline
            if not subscription.received:
                out.publish(state(99))
            node.spin_once(0.01)
            subscription.take()
        began = time.monotonic()
        player.run(lambda: True, delay_s=0.2)
        elapsed_s = time.monotonic() - began
        player.close()
    received = []
    while len(received) < 50 and subscription.socket.poll(240_000):
        message = subscription.take()
        if message is not None:
            received.append(message)
    assert received == [state(k) for k in range(10, 60)]
    assert player.played == 50
    assert 0.0 <= player.latest_s <= elapsed_s
    assert elapsed_s >= 0.2 + 2.0 * 0.049  # never before its time, at half the rate


@pytest.mark.parametrize(
    ("arguments", "kind", "cause"),
    [
        ({"rate": 0.0}, InvalidArgumentError, "--rate must be positive"),
        ({"start_s": 9.0}, InvalidArgumentError, r"--start must be 0 to 0.299 s, found 9"),
        ({"topics": ["/leg/joint_state"]}, NotFoundError, "did you mean '/leg/joint_states'"),
    ],
)
def test_topics_that_cannot_be_played(tmp_path: Path, folder: Path, arguments, kind, cause: str) -> None:
    with BagReader(write(tmp_path / "a.mcap")) as bag, pytest.raises(kind, match=cause):
        Player(bag, arguments.pop("topics", []), folder, **arguments, say=print)
    assert list((folder / "graph").glob("*.node")) == []


@pytest.mark.slow
def test_ctrl_c_closes_the_file(tmp_path: Path, folder: Path, node: Node[NoParameters]) -> None:
    """With the commands: `dyn bag record --all`, a publisher, Ctrl-C; then `dyn bag info`."""
    states = node.create_publisher(JointState, "joint_states")
    file = tmp_path / "a.mcap"
    environment = os.environ | {"DYN_RUNTIME_DIR": str(folder)}
    command = [sys.executable, "-m", "dyn_service", "bag", "record", "--all", "-o", str(file)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 240.0
        while time.monotonic() < deadline:
            states.publish(state(1))
            node.spin_once(0.01)
            if file.exists() and file.stat().st_size > 500:
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 0
    assert errors.splitlines()[-1].startswith("recorded ")
    with BagReader(file) as bag:
        assert bag.whole
        assert len(bag.topics[0].times) > 0
