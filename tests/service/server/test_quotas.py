"""Limits over all connections of a server, encrypted or not, and the log lines about them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from dyn_service import Client, Robot, Server
from dyn_service.service.protocol.keys import Keys, make_keys
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.access import KeyFolder
from dyn_service.service.server.administration.audit import AuditFile
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.transport.quotas import Connection, ConnectionQuota, RateLimitedLog
from tests.conftest import ROOT, URDF
from tests.service.conftest import WAIT_MS, WAIT_S, eventually, request
from tests.service.server.raw_peers import RawPeer, connected, counters, gauges, is_closed
from tests.service.server.test_security import dealer, new

HEALTH = msgpack.packb({"v": 1, "id": 1, "query": "health"})


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "keys")


@pytest.fixture
def keys(folder: KeyFolder) -> Keys:
    return new(folder, "good")


@pytest.fixture
def serve(pendulum: Robot, folder: KeyFolder, keys: Keys) -> Iterator[Callable[..., Server]]:
    """Starts a server with these endpoints, plain and encrypted."""
    pendulum.prepare(["gravity_forces"])
    with ExitStack() as stack:

        def start(*kinds: str, **limits: Any) -> Server:
            endpoints = {"open": "tcp://127.0.0.1:0", "keyed": "tcp://0.0.0.0:0"}
            chosen_endpoints = [endpoints[kind] for kind in kinds]
            server = Server([pendulum], endpoints=chosen_endpoints, key_folder=folder, limits=RequestLimits(**limits))
            return stack.enter_context(server)

        yield start


def reached(server: Server) -> list[str]:
    return [endpoint.replace("0.0.0.0", "127.0.0.1") for endpoint in server.endpoints]


def ask(asking: zmq.Socket[bytes]) -> bool:
    asking.send(HEALTH)
    return bool(msgpack.unpackb(asking.recv())["ok"])


@pytest.mark.parametrize("kind", ["open", "keyed"])
def test_frequent_heartbeats_of_libzmq_close_no_connection(serve: Callable[..., Server], keys: Keys, kind: str) -> None:
    """libzmq closes a connection whose PINGs are not answered, and these are sent each millisecond."""
    server = serve(kind, max_unfinished_bytes=8192)
    (endpoint,) = reached(server)
    curve = keys if kind == "keyed" else None
    heartbeat_options = {"HEARTBEAT_IVL": 1, "HEARTBEAT_TIMEOUT": WAIT_MS}
    with dealer(endpoint, curve, **heartbeat_options) as lively, dealer(endpoint, curve, **heartbeat_options) as mute:
        assert ask(lively)
        assert ask(mute)
        peers = list(server._quota._peers)
        output = type(peers[0].protocol).take_output  # type: ignore[attr-defined]
        pongs = 0

        def counting(protocol: Any) -> bytes:
            nonlocal pongs
            data: bytes = output(protocol)
            pongs += bool(data)
            return data

        type(peers[0].protocol).take_output = counting  # type: ignore[attr-defined]
        try:
            eventually(lambda: pongs > 1000)
        finally:
            type(peers[0].protocol).take_output = output  # type: ignore[attr-defined]
        assert ask(lively)
        assert gauges(server)["unfinished_bytes"] < 4096
        assert counters(server)["cut_off"] == 0
        assert list(server._quota._peers) == peers


@pytest.mark.parametrize("kind", ["open", "keyed"])
def test_a_new_connection_displaces_the_quietest(serve: Callable[..., Server], keys: Keys, kind: str) -> None:
    """If all have sent a request; the same rule at every transport."""
    server = serve(kind, max_connections=4)
    (endpoint,) = reached(server)
    with ExitStack() as stack:
        options = {"RECONNECT_IVL": -1, "HEARTBEAT_IVL": 0}  # no reconnects
        clients = [
            stack.enter_context(dealer(endpoint, keys if kind == "keyed" else None, **options)) for _ in range(4)
        ]
        for client in clients:
            assert ask(client)
        clients.append(clients.pop(0))  # the first to connect was the last to send
        for client in clients:
            assert ask(client)
        newcomer = stack.enter_context(dealer(endpoint, keys if kind == "keyed" else None, **options))
        assert ask(newcomer)
        assert counters(server)["cut_off"] == 1
        for client in clients[1:]:
            assert ask(client)
        for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
            clients[0].setsockopt(option, 300)
        with pytest.raises(zmq.Again):
            ask(clients[0])
        assert gauges(server)["connections"] == 4


def test_connections_are_bounded_over_all_endpoints(
    serve: Callable[..., Server], folder: KeyFolder, keys: Keys
) -> None:
    server = serve("open", "keyed", max_connections=8)
    plain, keyed = reached(server)
    with ExitStack() as stack:
        for _ in range(8):
            assert ask(stack.enter_context(dealer(plain, None, RECONNECT_IVL=-1)))
        for _ in range(8):
            assert ask(stack.enter_context(dealer(keyed, keys, RECONNECT_IVL=-1)))
            assert gauges(server)["connections"] <= 8
        assert counters(server)["cut_off"] == 8


class Place(Connection):
    """A connection as the quota sees it, that sends a request when the test calls `ask`."""

    def __init__(self, quota: ConnectionQuota) -> None:
        super().__init__()
        self.received_ns, self.last_sent_s = 0, 0.0
        self._quota = quota
        quota.add(self)

    def ask(self, now_s: float) -> None:
        self.received_ns = int(now_s * 1e9)
        if not self.served:
            self._quota.note_request(self)

    def close(self) -> None:
        self.closed = True
        self._quota.remove(self)


def test_open_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of them is left for long messages in shared memory."""
    monkeypatch.setattr("dyn_service.service.server.transport.quotas.files_allowed", lambda: 100)
    quota = ConnectionQuota(RequestLimits(), Traffic())
    places = [Place(quota) for _ in range(200)]
    assert len(quota) == 75
    assert [place.closed for place in places] == [True] * 125 + [False] * 75


def test_new_connections_are_answered_during_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections with a request hold all places; then 5000 silent ones a second are made."""
    now = [100.0]
    monkeypatch.setattr("dyn_service.service.server.transport.quotas.time.monotonic", lambda: now[0])
    quota = ConnectionQuota(RequestLimits(max_connections=1024), Traffic())
    loop = Place(quota)
    for _ in range(1100):
        Place(quota).ask(now[0])
    for _ in range(20):
        newcomer = Place(quota)
        for flood in range(500):  # 0.1 s, until its request
            now[0] += 2e-4
            Place(quota)
            if flood % 10 == 0:
                loop.ask(now[0])
        assert not newcomer.closed
        newcomer.ask(now[0])
        assert newcomer.served
        for _ in range(500):
            now[0] += 2e-4
            Place(quota)
        assert not newcomer.closed  # it sent a request, so silent ones do not displace it
        assert not loop.closed


def test_silent_connections_are_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dyn_service.service.server.transport.quotas.time.monotonic", lambda: now[0])
    quota = ConnectionQuota(RequestLimits(max_connections=8), Traffic())
    places = [Place(quota) for _ in range(6)]
    for place in places:
        place.ask(now[0])
    mute = [Place(quota) for _ in range(2)]
    now[0] += 2.0
    for _ in range(2):
        Place(quota)
    assert [place.closed for place in mute] == [True, True]
    assert not any(place.closed for place in places)
    Place(quota)  # now all silent connections are recent
    assert [place.closed for place in places] == [True] + [False] * 5


@pytest.mark.parametrize("kind", ["open", "keyed"])
def test_a_new_connection_keeps_its_place_until_its_first_request(
    serve: Callable[..., Server], keys: Keys, kind: str
) -> None:
    """All others have sent a request, and more and more silent ones are made."""
    server = serve(kind, max_connections=16)
    (endpoint,) = reached(server)
    curve = keys if kind == "keyed" else None
    with ExitStack() as stack:
        for _ in range(16):
            assert ask(stack.enter_context(dealer(endpoint, curve, RECONNECT_IVL=-1)))
        for _ in range(5):
            newcomer = stack.enter_context(dealer(endpoint, curve, RECONNECT_IVL=-1))
            watch = newcomer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            assert watch.poll(WAIT_MS)
            cut_off_before = counters(server)["cut_off"]
            for _ in range(6):
                stack.enter_context(connected(endpoint))
            eventually(lambda: counters(server)["cut_off"] >= cut_off_before + 6)  # noqa: B023
            assert ask(newcomer)
            newcomer.disable_monitor()
            watch.close(linger=0)


LITTLE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
from dyn_service import Robot, Server
from dyn_service.service.server.administration.access import KeyFolder
endpoints = ["tcp://127.0.0.1:0", "tcp://0.0.0.0:0"]
server = Server([Robot.from_urdf(sys.argv[1])], endpoints=endpoints, key_folder=KeyFolder(sys.argv[2]))
server.serve_forever(lambda: print(*server.endpoints, flush=True))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files as Linux shows them")
def test_plain_and_encrypted_connections_share_few_files(folder: KeyFolder, keys: Keys) -> None:
    """With a limit of 160 files: many idle connections of both kinds shut out neither kind of new ones."""
    command = [sys.executable, "-c", LITTLE, str(URDF / "pendulum.urdf"), str(folder.folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process,
        ExitStack() as stack,
    ):
        assert process.stdout is not None
        try:
            plain, keyed = process.stdout.readline().replace("0.0.0.0", "127.0.0.1").split()
            for _ in range(4):
                for _ in range(40):
                    for endpoint in (plain, keyed):
                        stack.enter_context(connected(endpoint))
                for endpoint, curve in ((plain, None), (keyed, keys)):
                    assert ask(stack.enter_context(dealer(endpoint, curve)))
                assert len(os.listdir(f"/proc/{process.pid}/fd")) < 160
        finally:
            process.terminate()
            process.wait(WAIT_S)


def test_unfinished_messages_are_bounded_over_all_endpoints(serve: Callable[..., Server], keys: Keys) -> None:
    server = serve("open", "keyed", max_message_bytes=4 << 20, max_unfinished_bytes=5 << 20)
    plain, keyed = reached(server)
    long_part = b"\x02" + (4 << 20).to_bytes(8)
    with RawPeer(plain).shake_hands() as first, RawPeer(keyed, keys).shake_hands() as second:
        first.socket.sendall(long_part + bytes(2 << 20))
        eventually(lambda: gauges(server)["unfinished_bytes"] >= 2 << 20)
        with suppress(ConnectionError):
            second.socket.sendall(long_part + bytes(7 << 19))
        eventually(lambda: counters(server)["cut_off"] == 1)
        assert is_closed(second.socket)
        assert gauges(server)["unfinished_bytes"] <= 5 << 20
        first.socket.sendall(bytes(2 << 20))  # the message may be completed
        assert first.socket.recv(1)


def test_connections_without_a_handshake_are_closed_first() -> None:
    """Even if they hold less than a known client."""
    quota = ConnectionQuota(RequestLimits(max_unfinished_bytes=1000), Traffic())
    served_place, stranger, idle = Place(quota), Place(quota), Place(quota)
    served_place.is_stranger = False
    quota.set_unfinished(served_place, 900)
    quota.set_unfinished(stranger, 200)
    quota.enforce_unfinished()
    assert [place.closed for place in (served_place, stranger, idle)] == [False, True, False]


def test_unread_replies_are_bounded_over_all_endpoints(serve: Callable[..., Server], keys: Keys) -> None:
    server = serve("open", "keyed", max_reply_bytes=4 << 20, max_unread_bytes=3 << 20)
    plain, keyed = reached(server)
    q = {"dtype": "<f8", "shape": [1500, 1], "data": bytes(12_000)}
    message = msgpack.packb(request(inputs={"q": q}))
    options = {"RCVHWM": 1, "RCVBUF": 1 << 14, "SNDHWM": 0, "RECONNECT_IVL": -1}
    with (
        dealer(plain, None, **options) as first,
        dealer(keyed, keys, **options) as second,
        dealer(plain, None) as reader,
    ):
        for number in range(1000):  # 12 MB to each
            first.send(message)
            second.send(message)
            if number % 20 == 0:
                assert ask(reader)
                assert gauges(server)["unread_bytes"] <= 3 << 20
        eventually(lambda: counters(server)["cut_off"])
        assert ask(reader)


def test_a_flood_of_connections_writes_few_lines(
    serve: Callable[..., Server], keys: Keys, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients cannot fill a disk with log lines, whatever they do wrong."""
    monkeypatch.setattr("dyn_service.service.server.transport.quotas._LOG_EVERY_S", 1000.0)
    server = serve("open", "keyed")
    plain, keyed = reached(server)
    caplog.set_level(logging.INFO)
    for _ in range(100):
        with connected(plain) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert is_closed(stranger)
    with dealer(keyed, None), dealer(keyed, make_keys("other", keys.server)):
        eventually(lambda: server._admission and server._admission.refused)
    assert counters(server)["cut_off"] >= 100
    lines = [record for record in caplog.records if record.name.startswith("dyn_service")]
    assert len([record for record in lines if "connection was closed" in record.getMessage()]) == 1
    assert len(lines) <= 2
    assert server._quota._closed._left_out >= 99


def test_skipped_log_lines_are_counted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dyn_service.service.server.transport.quotas.time.monotonic", lambda: now[0])
    log = RateLimitedLog(logging.getLogger("dyn_service.sparse"), logging.WARNING)
    for number in range(5):
        log.log("number %d", number)
    now[0] += 2.0
    log.log("number %d", 5)
    for number in range(6, 9):
        log.log("number %d", number)
    log.check()
    now[0] += 2.0
    log.check()
    log.check()
    assert [record.getMessage() for record in caplog.records] == [
        "number 0",
        "number 5 (4 similar lines skipped)",
        "3 lines like the last one skipped",
    ]


def test_the_audit_log_names_the_robot_unloaded(pendulum: Robot, tmp_path: Path) -> None:
    """Another thread may load the robot between any two steps of an unload."""
    scara = Robot.from_urdf(URDF / "scara.urdf")
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"], allow_load=True)
    registry, remove = server.service.registry, server.service.registry.remove

    def late(name: str) -> Any:
        registry.add(scara)
        return remove(name)

    registry.remove = late  # type: ignore[method-assign]
    handler = AuditFile(tmp_path / "audit.jsonl")
    try:
        message = msgpack.packb({"v": 1, "id": 1, "query": "unload_robot", "robot": "scara"})
        assert msgpack.unpackb(server.service.handle(message, 0))["outputs"] == {"robot": "scara"}
    finally:
        handler.close()
    (line,) = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert (line["robot"], line["fingerprint"], line["outcome"]) == ("scara", scara.fingerprint, "ok")


def test_clients_that_displace_each_other_are_all_answered(
    serve: Callable[..., Server], folder: KeyFolder, keys: Keys
) -> None:
    """Our clients, which reconnect after their connection was closed."""
    server = serve("keyed", max_connections=4)
    with ExitStack() as stack:
        for _ in range(6):
            client = stack.enter_context(Client(reached(server)[0], keys=keys, timeout_s=WAIT_S))
            assert client.health()["ready"]
