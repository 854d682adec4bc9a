"""All that a peer can make grow is bounded, with and without encryption: parts, unfinished messages, unread replies."""

from __future__ import annotations

import os
import resource
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from select import select as select_readable
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import Robot, Server
from dyn_service.service.protocol.keys import Keys
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.zmtp import ProtocolError
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.transport.connections import ServerConnection, Transport
from dyn_service.service.server.transport.quotas import ConnectionQuota
from tests.service.conftest import WAIT_S, array, eventually, request
from tests.service.protocol.rfc_peers import command, frame, greeting, null_ready
from tests.service.server.raw_peers import (
    MECHANISMS,
    NULL_START,
    RawPeer,
    connected,
    counters,
    gauges,
    is_closed,
    look,
    turn,
)

NULL_ONLY = pytest.mark.parametrize("mechanism", ["NULL"])
LONG_PART = b"\x02" + struct.pack(">Q", 60 << 20)
"""The header of a part of 60 MiB."""


def memory() -> int:
    """Returns the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Endpoint:
    """Servers with one endpoint, and their clients."""

    def __init__(self, robot: Robot, keys: Keys | None, options: dict[str, Any], stack: ExitStack) -> None:
        self._robot, self.keys, self._options, self._stack = robot, keys, options, stack
        self.endpoint = ""

    def serve(self, **limits: Any) -> Server:
        options = {"limits": RequestLimits(**limits), **self._options}
        server = self._stack.enter_context(Server([self._robot], endpoints=["tcp://127.0.0.1:0"], **options))
        (self.endpoint,) = server.endpoints
        return server

    def connect(self) -> RawPeer:
        """Returns a connection that has not begun its handshake."""
        return self._stack.enter_context(RawPeer(self.endpoint, self.keys))

    def raw(self) -> RawPeer:
        """Returns a connection after its handshake."""
        return self.connect().shake_hands()


@pytest.fixture
def endpoint(pendulum: Robot, mechanism: str, tmp_path: Path) -> Iterator[Endpoint]:
    from dyn_service.service.protocol.keys import read_keys
    from dyn_service.service.protocol.messages import Role
    from dyn_service.service.server.administration.access import KeyFolder

    pendulum.prepare(["gravity_forces"])
    options: dict[str, Any] = {}
    keys = None
    if mechanism == "CURVE":
        folder = KeyFolder(tmp_path / "keys")
        file = folder.make("good", Role.ADMIN)
        assert file is not None
        keys, options = read_keys(file), {"keys": "required", "key_folder": folder}
    with ExitStack() as stack:
        yield Endpoint(pendulum, keys, options, stack)


def ask(peer: RawPeer, **fields: Any) -> Any:
    """Returns the reply to a request."""
    peer.socket.sendall(peer.part(msgpack.packb(request(**fields))))
    return msgpack.unpackb(peer.receive())


# messages


@pytest.mark.parametrize("minor", [0, 1])
def test_peers_of_zmtp_3_0_and_3_1_are_served(endpoint: Endpoint, minor: int) -> None:
    endpoint.serve()
    with RawPeer(endpoint.endpoint, endpoint.keys, minor) as peer:
        assert ask(peer.shake_hands())["ok"]


@pytest.mark.parametrize("parts", [17, 20_000])
def test_a_message_of_too_many_parts_closes_its_connection(endpoint: Endpoint, parts: int) -> None:
    server = endpoint.serve()
    good, bad = endpoint.raw(), endpoint.raw()
    assert ask(good)["ok"]
    received = counters(server)["received"]
    stream = b"".join(bad.part(b"", continued=True) for _ in range(min(parts, 1000))) + bad.part(b"")
    with suppress(ConnectionError):
        bad.socket.sendall(stream)
    assert is_closed(bad.socket)
    assert counters(server)["cut_off"] == 1
    assert counters(server)["received"] == received  # it was not a message
    assert ask(good)["ok"]


@pytest.mark.parametrize("parts", [2, 3, 16])
def test_a_message_of_several_parts_is_refused_and_its_sender_stays(endpoint: Endpoint, parts: int) -> None:
    server = endpoint.serve()
    peer = endpoint.raw()
    for _ in range(3):
        peer.socket.sendall(b"".join(peer.part(b"x", continued=True) for _ in range(parts - 1)) + peer.part(b"x"))
        assert f"found {parts}" in msgpack.unpackb(peer.receive())["error"]["message"]
    assert ask(peer)["ok"]
    assert counters(server)["cut_off"] == 0


@NULL_ONLY
def test_endless_parts_take_no_memory(endpoint: Endpoint) -> None:
    server = endpoint.serve()
    good, *bad = [endpoint.raw() for _ in range(9)]
    initial_bytes = memory()
    for peer in bad:
        with suppress(ConnectionError):
            peer.socket.sendall(frame(b"", 1) * 2_000_000)
    assert ask(good)["ok"]
    assert memory() - initial_bytes < 64 << 20
    eventually(lambda: counters(server)["cut_off"] == 8)  # the kernel may still hold some bytes


def test_unfinished_messages_are_bounded_over_all_connections(endpoint: Endpoint) -> None:
    server = endpoint.serve(max_unfinished_bytes=20 << 20)
    honest = endpoint.raw()
    assert ask(honest)["ok"]
    bad = [endpoint.raw() for _ in range(6)]
    initial_bytes = memory()
    for peer in bad:
        with suppress(ConnectionError):
            peer.socket.sendall(LONG_PART + bytes(8 << 20))
    assert ask(honest)["ok"]
    assert memory() - initial_bytes < 64 << 20
    assert gauges(server)["unfinished_bytes"] <= 20 << 20
    eventually(lambda: counters(server)["cut_off"] >= 3)
    for peer in bad:
        peer.socket.close()
    eventually(lambda: gauges(server)["connections"] == 1)
    assert gauges(server)["unfinished_bytes"] == 0
    assert ask(honest, inputs={"q": array(np.zeros((200_000, 1)))})["ok"]


def test_a_message_over_the_limit_closes_its_connection_before_it_arrives(endpoint: Endpoint) -> None:
    server = endpoint.serve(max_message_bytes=1 << 20)
    good, peer = endpoint.raw(), endpoint.raw()
    peer.socket.sendall(b"\x02" + struct.pack(">Q", (1 << 20) + 40))
    assert is_closed(peer.socket)
    assert counters(server)["cut_off"] == 1
    assert gauges(server)["unfinished_bytes"] == 0
    assert ask(good)["ok"]


@pytest.mark.parametrize("size", [5000, 3 << 20])
def test_strangers_hold_no_memory(endpoint: Endpoint, size: int) -> None:
    """Before the handshake's end a frame over 4 KiB closes the connection when it is announced."""
    server = endpoint.serve()
    good = endpoint.raw()
    for _ in range(4):
        stranger = endpoint.connect()
        start = rfc_start(stranger)
        with suppress(ConnectionError):
            stranger.socket.sendall(start + b"\x06" + struct.pack(">Q", size) + bytes(min(size, 4096)))
        assert is_closed(stranger.socket)
    assert counters(server)["cut_off"] == 4
    assert gauges(server)["unfinished_bytes"] == 0
    assert ask(good)["ok"]


def rfc_start(peer: RawPeer) -> bytes:
    """Returns the greeting of the peer's mechanism."""
    return greeting() if peer.curve is None else peer.curve.greeting()


# replies


def requests(peer: RawPeer, count: int, states: int) -> bytes:
    """Returns the bytes of so many requests."""
    return b"".join(
        peer.part(msgpack.packb(request(id=number, inputs={"q": array(np.zeros((states, 1)))})))
        for number in range(count)
    )


def test_unread_replies_are_bounded_for_each_and_over_all(endpoint: Endpoint) -> None:
    """Small ones too; clients that read get their replies, batches included."""
    server = endpoint.serve(max_reply_bytes=2 << 20, max_unread_bytes=5 << 20)
    reader, *deaf = [endpoint.raw() for _ in range(7)]
    initial_bytes = memory()
    streams = []
    for peer in deaf:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.socket.setblocking(False)
        streams.append(memoryview(requests(peer, 1000, 1500)))  # 12 kB each way: answered by the server's thread
    deadline_s = time.monotonic() + 0.2 * WAIT_S
    while any(streams) and time.monotonic() < deadline_s:
        for k, peer in enumerate(deaf):
            with suppress(OSError):
                streams[k] = streams[k][peer.socket.send(streams[k][: 1 << 18]) :]
        assert ask(reader)["ok"]
        assert gauges(server)["unread_bytes"] <= 7 << 20
        if counters(server)["dropped_slow_reader"] > 100:
            break
    assert memory() - initial_bytes < (64 << 20) + 6 * (13 << 20)  # and the streams themselves
    assert counters(server)["dropped_slow_reader"] > 100
    for _ in range(3):
        assert ask(reader, inputs={"q": array(np.zeros((100_000, 1)))})["ok"]
    for peer in deaf:
        peer.socket.close()
    eventually(lambda: gauges(server)["unread_bytes"] == 0)


def test_a_client_that_reads_gets_many_long_replies(endpoint: Endpoint) -> None:
    """Replies that were read no longer count."""
    server = endpoint.serve(max_reply_bytes=1 << 20, max_unread_bytes=2 << 20)
    peer = endpoint.raw()
    for _ in range(40):
        assert ask(peer, inputs={"q": array(np.zeros((100_000, 1)))})["ok"]
    assert counters(server)["dropped_slow_reader"] == counters(server)["cut_off"] == 0


def test_a_peer_that_reads_nothing_is_disconnected(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.service.server.transport.quotas._STUCK_S", 0.3)
    server = endpoint.serve()
    peer = endpoint.raw()
    peer.socket.sendall(requests(peer, 4, 200_000))
    eventually(lambda: gauges(server)["unread_bytes"])
    eventually(lambda: not gauges(server)["connections"])
    assert gauges(server)["unread_bytes"] == 0


# heartbeats


def test_pings_are_answered_with_their_context(endpoint: Endpoint) -> None:
    endpoint.serve()
    peer = endpoint.raw()
    peer.socket.sendall(peer.command(b"PING", b"\0\0deep"))
    assert peer.receive() == b"\4PONGdeep"


def test_unread_answers_to_heartbeats_are_not_kept(endpoint: Endpoint) -> None:
    server = endpoint.serve()
    peer = endpoint.raw()
    pings = b"".join(peer.command(b"PING", bytes(18)) for _ in range(30_000))
    peer.socket.settimeout(2.0)
    with suppress(TimeoutError):
        peer.socket.sendall(pings)
    assert gauges(server)["unread_bytes"] < 1 << 16


def test_a_silent_peer_gets_no_bytes_and_stays(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients without a thread cannot answer a PING between their calls; TCP keepalive detects vanished hosts."""
    server = endpoint.serve()
    peer = endpoint.raw()
    assert ask(peer)["ok"]
    with monkeypatch.context() as patch:
        patch.setattr(
            "dyn_service.service.server.transport.connections.time.monotonic", lambda: time.perf_counter() + 3600
        )
        look(server)
    peer.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.socket.recv(1)
    peer.socket.settimeout(WAIT_S)
    assert ask(peer)["ok"]


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="names of options are Linux's")
def test_a_vanished_host_is_detected_within_15_seconds(endpoint: Endpoint) -> None:
    server = endpoint.serve()
    peer = endpoint.raw()
    assert ask(peer)["ok"]
    (connection,) = server._transport._connections
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    idle, interval, count = (connection.socket.getsockopt(socket.IPPROTO_TCP, option) for option in options)
    assert connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + interval * count <= 15


# connections


def test_a_new_connection_gets_a_place_when_all_are_taken(endpoint: Endpoint) -> None:
    """Silent connections are closed first, and a control loop keeps its connection."""
    server = endpoint.serve(max_connections=8)
    loop = endpoint.raw()
    for number in range(40):
        assert ask(loop, id=number)["ok"]
        endpoint.connect()
    for number in range(10):
        assert ask(endpoint.raw(), id=number)["ok"]
        assert ask(loop)["ok"]
    assert gauges(server)["connections"] <= 8


@pytest.mark.parametrize("step", ["nothing", "greeting", "hello"])
def test_a_peer_that_does_not_complete_the_handshake_is_disconnected(
    endpoint: Endpoint, mechanism: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyn_service.service.server.transport.connections._HANDSHAKE_S", 0.3)
    server = endpoint.serve()
    peer = endpoint.connect()
    if step == "greeting":
        peer.socket.sendall(rfc_start(peer))
    elif step == "hello" and mechanism == "CURVE":
        peer.welcome()
    assert is_closed(peer.socket)
    assert counters(server)["cut_off"] == 1


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, greeting(b"PLAIN"), greeting() + frame(b"hello"), b"\0" * 300],
    ids=["http", "ones", "another mechanism", "a message", "zeros"],
)
def test_noise_closes_its_connection_and_gets_only_the_greeting(endpoint: Endpoint, noise: bytes) -> None:
    server = endpoint.serve()
    peer = endpoint.connect()
    peer.socket.sendall(noise)
    received = b""
    with suppress(ConnectionError):
        while piece := peer.socket.recv(4096):
            received += piece
    assert len(received) < 64 + 50  # and the READY of mechanism NULL
    assert counters(server)["received"] == 0


def test_a_reply_that_cannot_be_encoded_ends_its_connection(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a defect of the server: the client sees its connection close, others are answered."""
    server = endpoint.serve()
    peer, other = endpoint.raw(), endpoint.raw()
    assert ask(other)["ok"]
    with monkeypatch.context() as patch:
        patch.setattr("dyn_service.service.server.transport.connections.Protocol.encode", lambda *_, **__: 1 / 0)
        peer.socket.sendall(peer.part(msgpack.packb(request())))
        assert is_closed(peer.socket)
    assert ask(other)["ok"]
    assert counters(server)["defects"] == 1
    assert "ZeroDivisionError" in caplog.text


# turns


def test_a_flood_of_one_peer_leaves_others_their_turn(endpoint: Endpoint) -> None:
    """One message of each peer in turn: a request waits for at most one message of the flood."""
    endpoint.serve()
    quick, flood = endpoint.raw(), endpoint.raw()
    assert ask(quick)["ok"]
    stream = requests(flood, 5000, 1)
    flood.socket.setblocking(False)
    for number in range(100):
        with suppress(OSError):
            stream = stream[flood.socket.send(stream) :]
        assert ask(quick, id=number)["ok"]
        with suppress(OSError):
            flood.socket.recv(1 << 20)


class Clock:
    """Replaces `time.perf_counter_ns`, so that the test decides how long an answer takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**12
        for module in ("app", "transport.connections"):
            monkeypatch.setattr(f"dyn_service.service.server.{module}.perf_counter_ns", lambda: self.now_ns)


def test_a_short_request_waits_for_at_most_one_long_message(pendulum: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many connections with many messages of 4 ms each: the sockets are polled after each of them."""
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.bind()
    clock = Clock(monkeypatch)
    names: list[str] = []

    def take(connection: Any, message: Any) -> None:
        payload, _, _ = message
        name = bytes(payload).decode()
        names.append(name)
        clock.now_ns += 4_000_000 if name == "long" else 10_000

    server._transport.take = take
    try:
        with ExitStack() as stack:
            *hogs, good = [stack.enter_context(connected(server.endpoints[0])) for _ in range(9)]
            for hog in hogs:
                hog.sendall(NULL_START + frame(b"long") * 50)
            while len(names) < 24:  # by then each peer is known as short or long
                count = len(names)
                turn(server)
                assert len(names) <= count + 2  # one of a new peer, one of a long peer
            count = len(names)
            good.sendall(NULL_START + frame(b"short"))
            eventually(lambda: turn(server) or "short" in names)
            assert len(names[count:]) <= 4  # one turn each for connection, greeting and request
            for _ in range(10):
                count = len(names)
                good.sendall(frame(b"short"))
                eventually(lambda: turn(server) or "short" in names[count:])  # noqa: B023
                assert names[count:].index("short") <= 1
                turns = len(names)
                turn(server)
                assert names[turns:] == ["long"]
    finally:
        server.stop()


def test_a_turn_ends_by_time_as_by_count(pendulum: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers whose last message was long get their turn however many others there are."""
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.bind()
    clock, short_ns = Clock(monkeypatch), [50_000]
    names: list[bytes] = []

    def take(connection: Any, message: Any) -> None:
        payload, _, _ = message
        names.append(bytes(payload))
        clock.now_ns += 4_000_000 if payload == b"long" else short_ns[0]

    server._transport.take = take
    try:
        with ExitStack() as stack:
            hog, *peers = [stack.enter_context(connected(server.endpoints[0])) for _ in range(4)]
            hog.sendall(NULL_START + frame(b"long") * 50)
            eventually(lambda: turn(server) or names)
            for peer in peers:
                peer.sendall(NULL_START + frame(b"short") * 500)
            eventually(lambda: turn(server) or names.count(b"short") > 30)
            for short_ns[0], short in ((50_000, 20), (1_000, 63)):
                count = len(names)
                turn(server)
                assert names[count:].count(b"short") == short
                assert names[count:].count(b"long") == 1
    finally:
        server.stop()


def test_one_request_takes_three_system_calls(pendulum: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The selector, recv and send: no second poll and no read of an empty socket."""
    pendulum.prepare(["gravity_forces"])
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.bind()
    calls: list[str] = []
    try:
        with RawPeer(server.endpoints[0]) as peer:
            for number in range(3):  # greeting and READY before the server's READY is read
                peer.socket.sendall(NULL_START if not number else peer.part(msgpack.packb(request())))
                eventually(lambda number=number: turn(server) or server.service.metrics.traffic.sent == number)
            (connection,) = server._transport._connections

            class Counting:
                def __getattr__(self, name: str) -> Any:
                    calls.append(name)
                    return getattr(connection_socket, name)

            connection_socket = connection.socket
            select = server._selector.select
            monkeypatch.setattr(server._selector, "select", lambda timeout: calls.append("select") or select(timeout))
            connection.socket = Counting()  # type: ignore[assignment]
            message = peer.part(msgpack.packb(request()))
            peer.socket.sendall(message)
            select_readable([connection_socket], [], [], WAIT_S)  # all of it has arrived; a later part takes more turns
            eventually(lambda: len(connection_socket.recv(1 << 16, socket.MSG_PEEK)) == len(message))
            turn(server, WAIT_S)
            assert server.service.metrics.traffic.sent == 3
            assert calls == ["select", "recv", "send"]
            assert not server._pending
            connection.socket = connection_socket
    finally:
        server.stop()


@pytest.fixture
def pair() -> Iterator[tuple[Transport, ServerConnection, socket.socket]]:
    """A peer of an endpoint without a server; its replies arrive at the socket."""
    server_end, peer_end = socket.socketpair()
    with server_end, peer_end, selectors.DefaultSelector() as selector:
        for end in (server_end, peer_end):
            end.setblocking(False)
        quota = ConnectionQuota(RequestLimits(max_reply_bytes=4096), Traffic())
        transport = Transport(selector, quota, lambda connection, message: None)
        connection = ServerConnection(transport, server_end, None)
        connection.protocol.take_output()
        quota.add(connection)
        selector.register(server_end, selectors.EVENT_READ, connection.on_ready)
        yield transport, connection, peer_end


def test_replies_may_be_as_many_bytes_as_the_limit_says(
    pair: tuple[Transport, ServerConnection, socket.socket],
) -> None:
    """And no more, in addition to unread ones."""
    transport, connection, _ = pair
    traffic = transport.quota.traffic
    transport.quota.set_unread(connection, 96)
    transport.send(connection, False, bytes(4001))
    assert (traffic.sent, traffic.dropped_slow_reader) == (0, 1)
    transport.send(connection, False, bytes(4000))
    assert (traffic.sent, traffic.dropped_slow_reader) == (1, 1)


def test_heartbeats_are_answered_only_while_replies_are_read(
    pair: tuple[Transport, ServerConnection, socket.socket],
) -> None:
    transport, connection, peer_end = pair
    peer_end.sendall(greeting() + null_ready() + command(b"PING", b"\0\0deep"))
    for unread_bytes in (1, 0):
        transport.quota.set_unread(connection, unread_bytes)
        connection.on_ready(selectors.EVENT_READ)
        assert not transport.serve(64, float("inf"))  # type: ignore[arg-type]
        if unread_bytes:
            with pytest.raises(BlockingIOError):
                peer_end.recv(100)
            peer_end.sendall(command(b"PING", b"\0\0flat"))
    assert peer_end.recv(100) == command(b"PONG", b"flat")


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


def test_peers_with_noise_leave_others_their_turn(pendulum: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends by time also if each message ends its connection, as wrong boxes do."""
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.bind()
    clock, count = Clock(monkeypatch), 0

    def fail(_: Any) -> None:
        nonlocal count
        count += 1
        clock.now_ns += 400_000
        raise ProtocolError("noise")

    monkeypatch.setattr("dyn_service.service.server.transport.connections.Protocol.next", fail)
    try:
        with ExitStack() as stack:
            peers = [stack.enter_context(connected(server.endpoints[0])) for _ in range(9)]
            eventually(lambda: turn(server) or gauges(server)["connections"] == 9)
            for peer in peers:
                peer.sendall(b"noise")
            while count < 9:
                former_count = count
                turn(server)
                assert count <= former_count + 3
    finally:
        server.stop()


def test_a_connection_that_cannot_be_accepted_does_not_take_the_whole_processor(
    pendulum: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is free, and no connection can be closed for it."""
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.bind()
    pauses: list[float] = []
    sleep = time.sleep
    peer = socket.socket()
    free = [socket.socket() for _ in range(10)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for unused in free:
            unused.close()
        monkeypatch.setattr("time.sleep", pauses.append)
        with peer:
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            files = [os.dup(0) for _ in range(highest + 1 - len(os.listdir("/proc/self/fd")) + 1)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(files) + 1, hard))
            host, _, port = server.endpoints[0].removeprefix("tcp://").rpartition(":")
            peer.connect((host, int(port)))
            while len(pauses) < 3:
                count = len(pauses)
                turn(server, 0.1)
                assert len(pauses) == count + 1
            for file in files:
                os.close(file)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            monkeypatch.setattr("time.sleep", sleep)
            eventually(lambda: turn(server) or gauges(server)["connections"] == 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        monkeypatch.setattr("time.sleep", sleep)
        server.stop()
