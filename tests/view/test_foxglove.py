"""What Foxglove is given: its protocol spoken by a real client, its bytes read by its own decoder of ROS 2's types."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcap.records import Schema
from mcap_ros2.decoder import DecoderFactory
from websockets.sync.client import ClientConnection, connect

from dyn_service.errors import UnavailableError
from dyn_service.graph.middleware.node import Node
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.geometry_msgs import WrenchStamped
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import Header, String
from dyn_service.support.parameters import NoParameters
from dyn_service.view.foxglove import FoxgloveServer
from tests.phrases import unnamed

PROTOCOL = "foxglove.sdk.v1"
MESSAGE = 1
"""The first byte of a binary message that carries a topic's: then its subscription, its time, its bytes."""
HEAD = 13


class Client:
    """What Foxglove's app does: takes channels as they are offered, subscribes, reads by the schema that came."""

    def __init__(self, url: str) -> None:
        self.socket: ClientConnection = connect(url, subprotocols=[PROTOCOL])  # type: ignore[list-item]
        self.info: dict[str, Any] = {}
        self.sessions: list[str] = []
        self.channels: dict[str, dict[str, Any]] = {}
        self.status: list[str] = []
        self.received: list[tuple[str, int, Any]] = []
        self._topics: dict[int, str] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def subscribe(self, topic: str) -> None:
        channel = self.channels[topic]["id"]
        self._topics[channel] = topic
        self.send(op="subscribe", subscriptions=[{"id": channel, "channelId": channel}])

    def send(self, **fields: Any) -> None:
        self.socket.send(json.dumps(fields))

    def take(self, wait_s: float = 0.0) -> None:
        """All that has come."""
        while True:
            try:
                frame = self.socket.recv(timeout=wait_s)
            except TimeoutError:
                return
            wait_s = 0.0
            if isinstance(frame, bytes):
                assert frame[0] == MESSAGE
                topic = self._topics[int.from_bytes(frame[1:5], "little")]
                self.received.append((topic, int.from_bytes(frame[5:HEAD], "little"), self._read(topic, frame[HEAD:])))
                continue
            reply = json.loads(frame)
            if reply["op"] == "serverInfo":
                self.info = reply
                self.sessions.append(reply["sessionId"])
            elif reply["op"] == "advertise":
                self.channels |= {channel["topic"]: channel for channel in reply["channels"]}
            elif reply["op"] == "status":
                self.status.append(reply["message"])

    def of(self, topic: str) -> list[Any]:
        return [message for name, _, message in self.received if name == topic]

    def _read(self, topic: str, data: bytes) -> Any:
        channel = self.channels[topic]
        assert channel["encoding"] == "cdr"
        schema = Schema(1, channel["schema"].encode(), channel["schemaEncoding"], channel["schemaName"])
        decode = DecoderFactory().decoder_for("cdr", schema)
        assert decode is not None
        return decode(data)


class Served:
    """A server on a free port, and what it said."""

    def __init__(self, folder: Path) -> None:
        self.messages: list[str] = []
        self.topics: list[tuple[str, str]] = []
        self.server = FoxgloveServer(
            ["*"], lambda: [folder], self.messages.append, lambda *entry: self.topics.append(entry), port=0
        )

    def until(self, client: Client, is_met: Callable[[], bool], do: Callable[[], object] = lambda: None) -> None:
        deadline = time.monotonic() + 240.0
        while not is_met():
            assert time.monotonic() < deadline, (client.received, client.channels, self.messages)
            do()
            self.server.turn(2)
            client.take(0.002)


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    server = Served(folder)
    yield server
    server.server.close()


def state(t: float, *position: float) -> JointState:
    return JointState(Header(Time.from_seconds(t), "base"), ["elbow", "wrist"], list(position), [0.0, 0.0], [1.5, -2.0])


def test_topics_are_offered_and_read(served: Served, node: Node[NoParameters]) -> None:
    """Existing and later topics are forwarded to their viewers; a new viewer gets the latest message."""
    states = node.create_publisher(JointState, "joint_states")
    text = node.create_publisher(String, "robot_description", latched=True)
    text.publish(String("<robot/>"))
    begin_ns = time.time_ns()
    with Client(served.server.url) as client:
        names = {"/arm/joint_states", "/arm/robot_description"}
        served.until(client, lambda: client.channels.keys() >= names, text.turn)
        assert client.info["capabilities"] == []  # to look, and nothing else
        client.take(0.05)
        assert client.received == []
        client.subscribe("/arm/joint_states")
        served.until(
            client, lambda: bool(client.of("/arm/joint_states")), lambda: states.publish(state(2.5, 0.25, -1.0))
        )
        client.subscribe("/arm/robot_description")  # that was published before
        served.until(client, lambda: bool(client.of("/arm/robot_description")), text.turn)
        late = node.create_publisher(WrenchStamped, "wrench")
        served.until(client, lambda: "/arm/wrench" in client.channels)
        late.close()
    assert client.channels["/arm/joint_states"]["schemaName"] == "sensor_msgs/msg/JointState"
    assert client.channels["/arm/joint_states"]["schemaEncoding"] == "ros2msg"
    message = client.of("/arm/joint_states")[0]
    assert (message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id) == (2, 500_000_000, "base")
    assert (message.name, message.position, message.effort) == (["elbow", "wrist"], [0.25, -1.0], [1.5, -2.0])
    assert {message.data for message in client.of("/arm/robot_description")} == {"<robot/>"}
    assert all(begin_ns <= came <= time.time_ns() for _, came, _ in client.received)
    assert ("/arm/wrench", "geometry_msgs/msg/WrenchStamped") in served.topics
    assert len(served.topics) == len(set(served.topics)) == 3
    assert served.messages == []


def test_another_run_clears_what_clients_hold(served: Served, node: Node[NoParameters]) -> None:
    """Its stamps begin at 0 again, below the run before, which would stay on top; what stands still comes too."""
    states = node.create_publisher(JointState, "joint_states")
    text = node.create_publisher(String, "robot_description", latched=True)
    text.publish(String("<robot/>"))
    with Client(served.server.url) as client:
        served.until(client, lambda: len(client.channels) == 2, text.turn)
        for topic in client.channels:
            client.subscribe(topic)
        served.until(client, lambda: bool(client.of("/arm/joint_states")), lambda: states.publish(state(9.0, 1.0, 1.0)))
        served.until(client, lambda: bool(client.of("/arm/robot_description")), text.turn)
        states.publish(state(8.5, 1.0, 1.0))  # several publishers of a topic are not of one time
        served.until(client, lambda: client.of("/arm/joint_states")[-1].header.stamp.sec == 8)
        assert len(client.sessions) == 1
        client.received.clear()
        states.publish(state(0.0, 2.0, 2.0))
        served.until(client, lambda: bool(client.of("/arm/robot_description")))
        assert len(client.sessions) == len(set(client.sessions)) == 2
        assert client.of("/arm/joint_states")[-1].position == [2.0, 2.0]


def test_who_looks_cannot_speak(served: Served, node: Node[NoParameters]) -> None:
    """A client that offers messages of its own is refused, and nothing of it comes to a node."""
    subscription = node.create_subscription(JointState, "/arm/joint_states", queue=10)
    states = node.create_publisher(JointState, "joint_states")
    with Client(served.server.url) as client:
        served.until(client, lambda: bool(client.channels))
        offer = {"id": 1, "topic": "/arm/joint_states", "encoding": "json", "schemaName": "sensor_msgs/msg/JointState"}
        client.send(op="advertise", channels=[offer])
        client.socket.send(b"\x01\x01\x00\x00\x00{}")
        served.until(client, lambda: bool(client.status))
        client.subscribe("/arm/joint_states")  # and may still look
        served.until(client, lambda: bool(client.received), lambda: states.publish(state(1.0, 0.0, 0.0)))
    node.spin_once(0.0)
    assert subscription.malformed == 0
    assert [message for message in iter(subscription.take, None) if message != state(1.0, 0.0, 0.0)] == []


def test_a_topic_of_two_types_is_said_once(served: Served, node: Node[NoParameters]) -> None:
    texts = node.create_publisher(String, "/mixed")
    loads = node.create_publisher(WrenchStamped, "/mixed")
    with Client(served.server.url) as client:

        def speak() -> None:
            texts.publish(String("a"))
            loads.publish(WrenchStamped())

        served.until(client, lambda: bool(served.messages), speak)
        served.until(client, lambda: "/mixed" in client.channels)
        first = client.channels["/mixed"]["schemaName"]
        for _ in range(3):
            speak()
            served.server.turn(2)
    second = ({"std_msgs/msg/String", "geometry_msgs/msg/WrenchStamped"} - {first}).pop()
    assert served.messages == [f"topic '/mixed' is published as {first} and as {second}: the second is not shown"]


def test_a_port_that_is_taken(served: Served, folder: Path) -> None:
    port = int(served.server.url.rpartition(":")[2])
    with pytest.raises(UnavailableError) as error:
        FoxgloveServer(["*"], lambda: [folder], print, print, port=port)
    assert unnamed(error.value, f"127.0.0.1:{port}", "Address already in use", "--port") == []


@pytest.mark.slow
def test_a_plant_seen_in_foxglove(tmp_path: Path, folder: Path) -> None:
    """As a user does it: `dyn foxglove`, then a plant and who says where its links are, a client, Ctrl-C."""
    environment = os.environ | {"DYN_RUNTIME_DIR": str(folder)}

    def dyn(*words: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dyn_service", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    started = [
        dyn("foxglove", "--port", "0"),
        dyn("plant", "robot:=pendulum"),
        dyn("run", "dyn_service", "robot_state_publisher", "robot:=pendulum"),
    ]
    process = started[0]
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1].rstrip(":")
        with Client(url) as client:
            topics = {"/joint_states", "/tf", "/tf_static", "/robot_description", "/plant_state"}
            deadline = time.monotonic() + 240.0
            while not client.channels.keys() >= topics:
                assert time.monotonic() < deadline, client.channels.keys()
                client.take(0.05)
            for topic in topics:
                client.subscribe(topic)
            while {topic for topic, _, _ in client.received} < topics:
                assert time.monotonic() < deadline, {topic for topic, _, _ in client.received}
                client.take(0.05)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=240)
    finally:
        for child in started:
            child.terminate()
        for child in started:
            child.wait(timeout=240)
            for stream in (child.stdout, child.stderr):
                assert stream is not None
                stream.close()
    assert process.returncode == 0
    assert errors == ""
    assert "/joint_states  sensor_msgs/msg/JointState" in output.splitlines()
    names = client.of("/joint_states")[0].name
    assert names == ["hinge"]
    assert "<robot" in client.of("/robot_description")[0].data
    frames = {
        transform.child_frame_id
        for topic in ("/tf", "/tf_static")
        for m in client.of(topic)
        for transform in m.transforms
    }
    assert "pendulum" in frames
