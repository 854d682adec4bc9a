"""Publishers and subscriptions, with real sockets in one process."""

import logging
import socket

import pytest
import zmq

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware import pubsub
from dyn_service.graph.middleware.pacing import Timer
from dyn_service.graph.middleware.pubsub import TRAILER_BYTES, split_trailer, with_trailer
from dyn_service.graph.middleware.zmq_sockets import is_readable
from dyn_service.messages.geometry_msgs import WrenchStamped
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import String
from tests.graph.in_process import Nodes
from tests.phrases import naming, unnamed


def state(*positions: float) -> JointState:
    return JointState(name=["elbow"], position=list(positions))


def test_messages_arrive_in_any_order_of_starting(nodes: Nodes) -> None:
    listener = nodes.make("/arm/listener")
    received: list[JointState] = []
    early = listener.create_subscription(JointState, "joint_states", received.append, queue=10)
    assert early.publishers == 0
    plant = nodes.make("/arm/plant")
    out = plant.create_publisher(JointState, "joint_states")
    other = nodes.make("/other")
    late = other.create_subscription(JointState, "/arm/joint_states", queue=10)
    nodes.until(lambda: out.publish(state(out.sent)) and received and late.take())
    assert received[-1].name == ["elbow"]
    assert (out.topic, early.topic, early.publishers) == ("/arm/joint_states", "/arm/joint_states", 1)
    entry = next(node_entry for node_entry in other.graph.nodes() if node_entry.name == "/arm/plant")
    assert [(end.name, end.type) for end in entry.publishers] == [("/arm/joint_states", "sensor_msgs/msg/JointState")]


def test_publishers_come_and_go_and_several_are_heard(nodes: Nodes) -> None:
    received: list[str] = []
    subscription = nodes.make("/hears").create_subscription(
        String, "said", lambda message: received.append(message.data), queue=100
    )
    first, second = nodes.make("/first"), nodes.make("/second")
    outs = {node.name: node.create_publisher(String, "said") for node in (first, second)}

    def both() -> bool:
        for name, out in outs.items():
            out.publish(String(name))
        return set(received) == {"/first", "/second"}

    nodes.until(both)
    assert subscription.publishers == 2
    nodes.end(first)
    nodes.until(lambda: subscription.publishers == 1)
    with pytest.raises(zmq.ZMQError):  # it is not tried again and again
        subscription.socket.disconnect(outs["/first"].end.endpoint)
    replacement = nodes.make("/first")
    out = replacement.create_publisher(String, "said")
    nodes.until(lambda: out.publish(String("again")) and "again" in received)
    assert subscription.publishers == 2


def test_latest_only_and_queued(nodes: Nodes) -> None:
    """Of ten messages at once, one subscription takes the newest, the other all in order."""
    out = nodes.make("/plant").create_publisher(String, "x")
    hears = nodes.make("/hears")
    newest, queued = (hears.create_subscription(String, "x", queue=queue) for queue in (1, 20))
    nodes.until(lambda: out.publish(String("begin")) and newest.take() and queued.take())
    for subscription in (newest, queued):  # until all that was sent has come
        nodes.until(
            lambda subscription=subscription: (
                (subscription.take() and False) or max(subscription._counts.values(), default=0) == out.sent
            )
        )
    missed_before = newest.missed
    for k in range(10):
        out.publish(String(str(k)))
    received = []
    nodes.until(
        lambda: received.extend(message.data for message in [queued.take()] if message) or received[-1:] == ["9"]
    )
    assert received == [str(k) for k in range(10)]
    assert queued.missed == 0
    last = nodes.until(newest.take)
    while last.data != "9":  # the newest at the moment of taking
        last = nodes.until(newest.take)
    assert 0 < newest.missed - missed_before <= 9


def test_a_turn_ends_although_messages_wait(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time for a turn it takes one message, so a node behind a long queue still sends heartbeats."""
    out, received = nodes.make("/plant").create_publisher(String, "x"), list[String]()
    behind = nodes.make("/hears").create_subscription(String, "x", received.append, queue=20)
    nodes.until(lambda: out.publish(String("begin")) and received)
    monkeypatch.setattr(pubsub, "TURN_S", -1.0)
    for k in range(10):
        out.publish(String(str(k)))
    for count in range(len(received) + 1, len(received) + 11):
        assert behind.socket.poll(5_000)
        assert behind.turn()
        assert len(received) == count


def test_what_is_dropped_is_counted(nodes: Nodes) -> None:
    """A publisher with a queue of two, and a subscriber that does not receive for a while."""
    out = nodes.make("/plant").create_publisher(String, "x", queue=2)
    slow = nodes.make("/slow").create_subscription(String, "x", queue=2)
    nodes.until(lambda: out.publish(String("begin")) and slow.take())
    big = "x" * 100_000  # no more than a few find room in the kernel's buffers
    for _ in range(50):
        out.publish(String(big))
    nodes.until(lambda: out.publish(String("last")) and (newest := slow.take()) is not None and newest.data == "last")
    assert slow.missed > 0
    assert slow.missed + slow.received <= out.sent


def test_another_type_is_named_once_and_not_heard(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    wrong = nodes.make("/wrong").create_publisher(WrenchStamped, "joint_states")
    right = nodes.make("/right").create_publisher(JointState, "joint_states")
    with caplog.at_level(logging.WARNING):
        subscription = nodes.make("/hears").create_subscription(JointState, "joint_states")
        for _ in range(3):
            nodes.until(lambda: wrong.publish(WrenchStamped()) and right.publish(state(1.0)) and subscription.take())
            nodes.make(f"/more{len(nodes.all)}")
    assert [record.getMessage() for record in caplog.records] == [
        "topic '/joint_states': node '/wrong' publishes geometry_msgs/msg/WrenchStamped, "
        "expected sensor_msgs/msg/JointState; it is ignored"
    ]
    assert subscription.malformed == 0


def test_a_message_of_another_type_is_not_published(nodes: Nodes) -> None:
    out = nodes.make("/plant").create_publisher(JointState, "joint_states")
    for message, type_name in ((String("x"), "std_msgs/msg/String"), ({}, "dict")):
        with pytest.raises(InvalidArgumentError) as excinfo:
            out.publish(message)  # type: ignore[arg-type]
        assert unnamed(excinfo.value, "'/joint_states'", "sensor_msgs/msg/JointState", type_name) == []
    assert out.sent == 0


def test_garbage_ends_nothing(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = free_port()
    subscription = nodes.make("/hears").create_subscription(String, endpoint, binds=True)
    with nodes.context.socket(zmq.PUB) as attacker:
        attacker.linger = 0
        attacker.connect(endpoint)
        frames = {
            b"": "its end is missing",
            b"\xc1": "it is not MessagePack from byte 0 on",
            b"\x81\xa4data\x05": "data: expected text, found a whole number",
            b"\x81\xa4data\xa2\xff\xff": "a text in it is not UTF-8",
            b"\x91" * 100_000: "expected a map, found a list",
        }
        with caplog.at_level(logging.WARNING):
            for frame, cause in frames.items():
                message = f"topic '{endpoint}': not a std_msgs/msg/String: {cause}"
                nodes.until(
                    lambda f=frame, s=message: attacker.send(f) or subscription.take() or s in caplog.messages, message
                )
            nodes.until(lambda: attacker.send(b"\x81\xa4data\xa2hi") or subscription.take())
    assert subscription.malformed == subscription.received - 1 >= len(frames)  # all but the last, each once
    assert len(caplog.messages) == len(frames)  # each cause once


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def test_endpoints_that_are_written_down(nodes: Nodes) -> None:
    """The plant listens at both, the controller connects; on the same machine they are found by name as well."""
    states, commands = free_port(), free_port()
    plant, controller, local = (nodes.make(name) for name in ("/plant", "/controller", "/local"))
    out = plant.create_publisher(JointState, states, name="joint_states")
    orders = plant.create_subscription(String, commands, name="joint_commands", binds=True)
    seen = controller.create_subscription(JointState, states)
    order = controller.create_publisher(String, commands, name="joint_commands", binds=False)
    second = local.create_subscription(JointState, "joint_states")
    listener = local.create_subscription(String, "joint_commands")
    nodes.until(lambda: out.publish(state(1.0)) and seen.take())
    nodes.until(lambda: order.publish(String("go")) and orders.take())
    nodes.until(lambda: out.publish(state(1.0)) and second.take())
    nodes.until(lambda: order.publish(String("go")) and listener.take())
    with pytest.raises(
        InvalidArgumentError, match=naming("'/joint_commands'", f"'{commands}'", "Address already in use")
    ):
        local.create_subscription(String, commands, name="joint_commands", binds=True)
    with pytest.raises(InvalidArgumentError, match="Address already in use"):
        local.create_publisher(String, commands, name="x")


def test_late_subscribers_get_a_latched_message_once(nodes: Nodes) -> None:
    out = nodes.make("/plant").create_publisher(String, "robot_description", latched=True)
    out.publish(String("old"))
    out.publish(String("<robot/>"))
    received: list[list[str]] = []
    for k in range(3):
        texts: list[str] = []
        received.append(texts)
        nodes.make(f"/late{k}").create_subscription(
            String, "robot_description", lambda m, h=texts: h.append(m.data), queue=9
        )
        nodes.until(lambda h=texts: h)
    nodes.turns(50)
    assert received == [["<robot/>"]] * 3
    assert out.subscribers == 3
    for late in nodes.all[2:]:
        nodes.end(late)
    nodes.until(lambda: out.subscribers == 1)


def test_subscribers_are_counted(nodes: Nodes) -> None:
    """Subscribers are counted for every publisher, also in a node without subscriptions; only latched ones repeat."""
    out = nodes.make("/plant").create_publisher(String, "said")
    out.publish(String("old"))
    late = [nodes.make(f"/late{k}") for k in range(2)]
    subscriptions = [late_node.create_subscription(String, "said") for late_node in late]
    nodes.until(lambda: out.subscribers == 2)
    nodes.end(late[0])
    nodes.until(lambda: out.subscribers == 1)
    assert subscriptions[1].received == 0


def test_names_in_a_namespace_remapped_and_private(nodes: Nodes) -> None:
    plant = nodes.make("/arm/plant")
    plant.arguments.remaps["joint_states"] = "/all/states"
    assert plant.name == "/arm/plant"
    names = [plant.create_publisher(String, name).topic for name in ("joint_states", "x", "/y", "~/z")]
    assert names == ["/all/states", "/arm/x", "/y", "/arm/plant/z"]
    with pytest.raises(InvalidArgumentError, match="topic '/' has no name"):
        plant.create_subscription(String, "/")
    with pytest.raises(InvalidArgumentError, match="queue is 0, expected 1"):
        plant.create_subscription(String, "x", queue=0)


def test_two_nodes_of_one_name_work_and_are_reported(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    outs = [nodes.make("/plant").create_publisher(String, "x")]
    with caplog.at_level(logging.WARNING):
        outs.append(nodes.make("/plant").create_publisher(String, "x"))
    assert "node /plant: process" in caplog.text
    received = set()
    subscription = nodes.make("/hears").create_subscription(String, "x", lambda m: received.add(m.data), queue=9)
    nodes.until(lambda: [out.publish(String(str(k))) for k, out in enumerate(outs)] and received == {"0", "1"})
    assert subscription.publishers == 2


def test_a_node_without_subscriptions_looks_at_nothing(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes.make("/plant")
    node.create_publisher(String, "x")
    node.spin_once()
    looks = []
    monkeypatch.setattr(type(node.graph), "nodes", lambda self: looks.append(1) or ())
    for _ in range(20):
        node.spin_once()
    assert looks == []


def test_a_turn_that_waits_for_nothing_asks_for_services_once_a_period(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a control loop, services cost one poll of one socket in `SERVICES_S`, and nothing in the turns between."""
    node = nodes.make("/plant")
    node.create_publisher(String, "x")
    subscription = node.create_subscription(String, "y")
    monkeypatch.setattr("dyn_service.graph.middleware.node.SERVICES_S", 0.0)
    node.spin_once()  # services are due in the next turn, however fast the machine is
    calls = []
    monkeypatch.setattr(
        "dyn_service.graph.middleware.services.is_readable", lambda s: calls.append(s) or is_readable(s)
    )
    monkeypatch.setattr("dyn_service.graph.middleware.pubsub.is_readable", lambda s: calls.append(s) or is_readable(s))
    monkeypatch.setattr("dyn_service.graph.middleware.node.zmq.zmq_poll", lambda *a: pytest.fail("it waited"))
    for period_s, polls in ((0.0, 10), (3600.0, 1)):
        node.create_subscription(String, f"after{period_s}")  # a change is looked at in the next turn
        calls.clear()
        monkeypatch.setattr("dyn_service.graph.middleware.node.SERVICES_S", period_s)
        for _ in range(10):
            node.spin_once()
        assert calls == [node.services().socket] * polls
    assert subscription.take() is None


class Clock:
    def __init__(self) -> None:
        self.ns = 0


def test_timers_skip_what_they_missed_and_do_not_drift() -> None:
    clock, calls = Clock(), []
    timer = Timer(0.010, lambda: calls.append(clock.ns), lambda: clock.ns)
    for at_ms in (5, 10, 11, 20, 57, 60, 65, 70):
        clock.ns = at_ms * 1_000_000
        timer.turn(clock.ns)
    assert [ns // 1_000_000 for ns in calls] == [10, 20, 57, 60, 70]
    assert (timer.overruns, timer.skipped) == (1, 2)  # 30 and 40: that of 50 came late
    assert timer.late_s == 0.0
    timer.cancel()
    clock.ns = 200_000_000
    assert not timer.turn(clock.ns)
    with pytest.raises(InvalidArgumentError, match="period_s is 0"):
        Timer(0.0, lambda: None)


def test_spin_once_ends_when_a_timer_is_due(nodes: Nodes) -> None:
    node, calls = nodes.make("/n"), []
    timer = node.create_timer(0.002, lambda: calls.append(1))
    while len(calls) < 5:
        node.spin_once(10.0)
    assert timer.skipped + len(calls) >= 5
    timer.cancel()
    node.stop.request()
    node.spin()  # comes back at once


def test_marks() -> None:
    for payload in (b"\x80", b"x" * 1000):
        frame = with_trailer(payload, 2**32 - 1, 2**63)
        assert len(frame) == len(payload) + TRAILER_BYTES == len(payload) + 15
        payload_read, publisher, count = split_trailer(frame)
        assert (bytes(payload_read), publisher, count) == (payload, 2**32 - 1, 2**63)
    for frame in (b"", b"\x80", b"y" * 15, b"y" * 100):
        payload_read, publisher, count = split_trailer(frame)
        assert (bytes(payload_read), publisher, count) == (frame, -1, -1)


def test_a_node_that_ends_leaves_nothing(nodes: Nodes) -> None:
    node = nodes.make("/plant")
    node.create_publisher(String, "x")
    node.services()
    assert len(list(nodes.folder.glob("*@*"))) == 2
    nodes.end(node)
    assert [path.name for path in nodes.folder.iterdir()] == ["graph"]
