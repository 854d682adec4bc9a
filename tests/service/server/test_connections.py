"""Everything that a peer can make grow is bounded: parts, unfinished messages, unread replies, connections."""

from __future__ import annotations

import os
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import Robot, Server
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.transport.plain import PlainPeer, PlainTransport
from dyn_service.service.server.transport.quotas import ConnectionQuota
from tests.service.conftest import WAIT_MS, array, request
from tests.service.server.test_server import speak_zeromq
from tests.service.server.test_zmtp import HELLO, command, frame, ready

WAIT_S = WAIT_MS / 1e3


def memory() -> int:
    """Returns the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def serving(pendulum: Robot) -> Iterator[Callable[..., Server]]:
    pendulum.prepare(["gravity_forces"])
    with ExitStack() as stack:

        def start(**limits: Any) -> Server:
            return stack.enter_context(
                Server([pendulum], endpoints=["tcp://127.0.0.1:0"], limits=RequestLimits(**limits))
            )

        yield start


def counters(server: Server) -> dict[str, int]:
    return server.service.metrics.to_dict()["counters"]


def eventually(holds: Callable[[], Any]) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_closed(peer: socket.socket) -> bool:
    with suppress(ConnectionError):
        while peer.recv(1 << 16):
            pass
    return True


def test_a_message_of_a_million_parts_closes_its_connection(serving: Any, bare: Any) -> None:
    server = serving()
    quick = bare(server.endpoints[0])
    assert quick.ask(request())["ok"]
    received = counters(server)["received"]
    with speak_zeromq(server.endpoints[0]) as peer:
        with suppress(ConnectionError):
            peer.sendall(frame(b"", more=True) * 1_000_000 + frame(b""))
        assert is_closed(peer)
    assert counters(server)["cut_off"] == 1
    assert counters(server)["received"] == received  # it was not a message
    assert quick.ask(request())["ok"]


def test_endless_parts_take_no_memory(serving: Any, bare: Any) -> None:
    server = serving()
    peers = [speak_zeromq(server.endpoints[0]) for _ in range(8)]
    before = memory()
    for peer in peers:
        with suppress(ConnectionError):
            peer.sendall(frame(b"", more=True) * 2_000_000)
    assert bare(server.endpoints[0]).ask(request())["ok"]
    assert memory() - before < 64 << 20
    eventually(lambda: counters(server)["cut_off"] == 8)  # the kernel may still hold some bytes
    for peer in peers:
        peer.close()


def test_unfinished_messages_are_bounded_over_all_connections(serving: Any, bare: Any) -> None:
    server = serving(max_unfinished_bytes=20 << 20)
    begun = b"\x02" + struct.pack(">Q", 60 << 20)
    honest = bare(server.endpoints[0])
    assert honest.ask(request())["ok"]
    peers = [speak_zeromq(server.endpoints[0]) for _ in range(6)]
    before = memory()
    for peer in peers:
        with suppress(ConnectionError):
            peer.sendall(begun + bytes(8 << 20))
    assert honest.ask(request())["ok"]
    assert memory() - before < 64 << 20
    assert server._quota.unfinished <= 20 << 20
    eventually(lambda: counters(server)["cut_off"] >= 3)
    for peer in peers:
        peer.close()
    eventually(lambda: len(server._quota) == 1)
    assert server._quota.unfinished == 0
    assert honest.ask(request(inputs={"q": array(np.zeros((200_000, 1)))}))["ok"]


def asking(count: int, states: int) -> bytes:
    return b"".join(
        frame(msgpack.packb(request(id=number, inputs={"q": array(np.zeros((states, 1)))}))) for number in range(count)
    )


def test_unread_replies_are_bounded_for_each_and_over_all(serving: Any, bare: Any) -> None:
    """Small ones too; clients that read get their replies, batches included."""
    server = serving(max_reply_bytes=2 << 20, max_unread_bytes=5 << 20)
    reader = bare(server.endpoints[0])
    deaf = [speak_zeromq(server.endpoints[0]) for _ in range(6)]
    before = memory()
    for peer in deaf:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
    small = asking(300, 1500)  # 12 kB each way: answered by the server's thread
    sent = [0] * len(deaf)
    for _ in range(400):
        for k, peer in enumerate(deaf):
            with suppress(OSError):
                sent[k] += peer.send(small[sent[k] % len(small) :])
        assert reader.ask(request())["ok"]
        assert server._quota.unread <= 7 << 20
    assert memory() - before < 64 << 20
    assert counters(server)["dropped_slow_reader"] > 100
    for _ in range(3):
        assert reader.ask(request(inputs={"q": array(np.zeros((100_000, 1)))}))["ok"]
    for peer in deaf:
        peer.close()
    eventually(lambda: server._quota.unread == 0)


def test_unread_answers_to_heartbeats_are_not_kept(serving: Any) -> None:
    server = serving()
    with speak_zeromq(server.endpoints[0]) as peer:
        peer.setblocking(False)
        pings = command(b"PING", b"\0\0" + bytes(16)) * 3000
        at = 0
        until = time.monotonic() + 2.0
        while time.monotonic() < until and at < 40 * len(pings):
            with suppress(OSError):
                at += peer.send(pings[at % len(pings) :])
        assert server._quota.unread < 1 << 16


def test_a_new_connection_gets_a_place_when_all_are_taken(serving: Any, bare: Any) -> None:
    """Silent connections are closed first, and a control loop keeps its connection."""
    server = serving(max_connections=8)
    loop = bare(server.endpoints[0])
    host, port = server.endpoints[0].removeprefix("tcp://").split(":")
    idle: list[socket.socket] = []
    for number in range(40):
        assert loop.ask(request(id=number))["ok"]
        idle.append(socket.create_connection((host, int(port)), timeout=WAIT_S))
    for number in range(10):
        assert bare(server.endpoints[0]).ask(request(id=number))["ok"]
    assert loop.ask(request())["ok"]
    assert len(server._quota) <= 8
    for peer in idle:
        peer.close()


def test_the_systems_limit_of_open_files_counts_too(serving: Any, bare: Any) -> None:
    server = serving()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    idle: list[socket.socket] = []
    host, port = server.endpoints[0].removeprefix("tcp://").split(":")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 200, hard))
        with suppress(OSError):
            for _ in range(200):
                idle.append(socket.create_connection((host, int(port)), timeout=WAIT_S))  # noqa: PERF401
        for peer in idle[100:]:
            peer.close()  # this process has both ends, and the client needs files
        assert bare(server.endpoints[0]).ask(request())["ok"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for peer in idle:
            peer.close()


def test_a_peer_without_greeting_is_disconnected(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.service.server.transport.plain._HELLO_S", 0.1)
    server = serving()
    host, port = server.endpoints[0].removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as peer:
        assert is_closed(peer)
    assert counters(server)["cut_off"] == 1


def test_a_silent_peer_gets_a_ping_and_is_disconnected(
    serving: Any, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyn_service.service.server.transport.plain._QUIET_S", 0.2)
    server = serving()
    with socket.create_connection(server.endpoints[0].removeprefix("tcp://").split(":"), timeout=WAIT_S) as peer:
        peer.sendall(HELLO.replace(b"\x7f\x03\x00", b"\x7f\x03\x01") + ready())
        living = bare(server.endpoints[0])  # libzmq answers PINGs
        assert living.ask(request())["ok"]
        said = b""
        while chunk := peer.recv(1 << 16):
            said += chunk
        assert said.endswith(command(b"PING", b"\0\0"))
        time.sleep(1.0)
        assert living.ask(request())["ok"]
    assert len(server._quota) == 1


def test_a_peer_that_reads_nothing_is_disconnected(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.service.server.transport.quotas._STUCK_S", 0.3)
    server = serving()
    with speak_zeromq(server.endpoints[0]) as peer:
        peer.sendall(asking(4, 200_000))
        eventually(lambda: server._quota.unread)
        eventually(lambda: not len(server._quota))
        assert server._quota.unread == 0


def test_a_flood_of_one_peer_leaves_others_their_turn(serving: Any, bare: Any) -> None:
    """One message of each peer in turn: a request waits for at most one message of the flood."""
    server = serving()
    quick = bare(server.endpoints[0])
    assert quick.ask(request())["ok"]
    with speak_zeromq(server.endpoints[0]) as flood:
        stream = asking(20_000, 1)
        flood.setblocking(False)
        at = 0
        for number in range(100):
            with suppress(OSError):
                at += flood.send(stream[at % len(stream) :])
            assert quick.ask(request(id=number))["ok"]
            with suppress(OSError):
                flood.recv(1 << 20)


class Clock:
    """Replaces `time.perf_counter_ns`, so that the test decides how long an answer takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**12
        for module in ("app", "transport.plain"):
            monkeypatch.setattr(f"dyn_service.service.server.{module}.perf_counter_ns", lambda: self.now_ns)


def test_a_short_request_waits_for_at_most_one_long_message(pendulum: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many connections with many messages of 4 ms each: the sockets are polled after each of them."""
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.bind()
    clock = Clock(monkeypatch)
    answered: list[str] = []

    def take(transport: Any, peer: Any, message: Any) -> None:
        name = bytes(message.payload).decode()
        answered.append(name)
        clock.now_ns += 4_000_000 if name == "long" else 10_000

    server._take = take  # type: ignore[method-assign]
    host, port = server.endpoints[0].removeprefix("tcp://").split(":")
    try:
        with ExitStack() as stack:
            peers = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(9)]
            *hogs, good = peers
            for hog in hogs:
                hog.sendall(HELLO + ready() + frame(b"long") * 50)
            while len(answered) < 24:  # by then each peer is known as short or long
                before = len(answered)
                server._turn(0.0)
                assert len(answered) <= before + 2  # one of a new peer, one of a long peer
            before = len(answered)
            good.sendall(HELLO + ready() + frame(b"short"))
            eventually(lambda: server._turn(0.0) or "short" in answered)
            assert len(answered[before:]) <= 4  # one turn each for connection, greeting and request
            for _ in range(10):
                before = len(answered)
                good.sendall(frame(b"short"))
                eventually(lambda: server._turn(0.0) or "short" in answered[before:])  # noqa: B023
                assert answered[before:].index("short") <= 1
                turns = len(answered)
                server._turn(0.0)
                assert answered[turns:] == ["long"]
    finally:
        server.stop()


def test_a_turn_ends_by_time_as_by_count(pendulum: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers whose last message was long get their turn however many others there are."""
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.bind()
    clock, takes_ns = Clock(monkeypatch), [50_000]
    answered: list[bytes] = []

    def take(transport: Any, peer: Any, message: Any) -> None:
        answered.append(bytes(message.payload))
        clock.now_ns += 4_000_000 if message.payload == b"long" else takes_ns[0]

    server._take = take  # type: ignore[method-assign]
    host, port = server.endpoints[0].removeprefix("tcp://").split(":")
    try:
        with ExitStack() as stack:
            hog, *many = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(4)]
            hog.sendall(HELLO + ready() + frame(b"long") * 50)
            eventually(lambda: server._turn(0.0) or answered)
            for peer in many:
                peer.sendall(HELLO + ready() + frame(b"short") * 500)
            eventually(lambda: server._turn(0.0) or answered.count(b"short") > 30)
            for takes_ns[0], short in ((50_000, 20), (1_000, 63)):
                before = len(answered)
                server._turn(0.0)
                assert answered[before:].count(b"short") == short
                assert answered[before:].count(b"long") == 1
    finally:
        server.stop()


@pytest.fixture
def pair() -> Iterator[tuple[PlainTransport, PlainPeer, socket.socket]]:
    """A peer of an endpoint without a server; its replies arrive at the socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs, selectors.DefaultSelector() as selector:
        for end in (ours, theirs):
            end.setblocking(False)
        connections = PlainTransport(selector, ConnectionQuota(RequestLimits(max_reply_bytes=4096), Traffic()))
        peer = PlainPeer(connections, ours)
        connections.quota.add(peer)
        selector.register(ours, selectors.EVENT_READ, peer.ready)
        yield connections, peer, theirs


def test_replies_may_be_as_many_bytes_as_the_limit_says(pair: tuple[PlainTransport, PlainPeer, socket.socket]) -> None:
    """And no more, in addition to unread ones."""
    connections, peer, _ = pair
    traffic = connections.quota.traffic
    connections.quota.set_unread(peer, 96)
    connections.send(peer, False, bytes(4001))
    assert (traffic.sent, traffic.dropped_slow_reader) == (0, 1)
    connections.send(peer, False, bytes(4000))
    assert (traffic.sent, traffic.dropped_slow_reader) == (1, 1)


def test_heartbeats_are_answered_only_while_replies_are_read(
    pair: tuple[PlainTransport, PlainPeer, socket.socket],
) -> None:
    connections, peer, theirs = pair
    theirs.sendall(HELLO + ready() + command(b"PING", b"\0\0deep"))
    for unread in (1, 0):
        connections.quota.set_unread(peer, unread)
        connections.read(peer)
        assert list(connections.messages(64)) == []
        if unread:
            with pytest.raises(BlockingIOError):
                theirs.recv(100)
            theirs.sendall(command(b"PING", b"\0\0flat"))
    assert theirs.recv(100) == command(b"PONG", b"flat")


def test_a_process_of_another_user_is_disconnected(tmp_path: Path, pendulum: Robot) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    path = tmp_path / "socket"
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o011)
    with Server([pendulum], endpoints=[f"ipc://{path}"]) as server:
        path.chmod(0o666)  # so that only the check of the user remains
        child = os.fork()
        if not child:
            os.setuid(65534)
            with suppress(OSError), socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(path))
                os._exit(7 if peer.recv(64) else 0)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert counters(server)["cut_off"] == 1
