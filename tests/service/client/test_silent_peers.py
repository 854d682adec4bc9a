"""Calls to peers that accept a connection and send nothing raise `UnavailableError` within a bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import msgpack
import pytest
import zmq

from dyn_service import AsyncClient, Client, DeadlineExceededError, Robot, Server, UnavailableError
from dyn_service.service.client import channels, connection, flows
from dyn_service.service.client import retries as tries
from tests.conftest import ROOT
from tests.service.client.test_clients import Q
from tests.service.conftest import WAIT_MS, assert_same

pytestmark = pytest.mark.slow
"""These tests run in real time and kill processes: `python -m pytest -m slow`."""

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)


def command(name: bytes, body: bytes) -> bytes:
    data = bytes([len(name)]) + name + body
    return struct.pack("!BB", 4, len(data)) + data


def ready() -> bytes:
    return command(b"READY", b"".join(bytes([len(k)]) + k + struct.pack("!I", len(v)) + v for k, v in PROPERTIES))


PROPERTIES = [(b"Socket-Type", b"ROUTER"), (b"Identity", b"")]


class Peer:
    """A TCP listener that completes the ZMTP handshake if `greets`, then reads and sends nothing."""

    def __init__(self, *, greets: bool) -> None:
        self._greets = greets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self.received = b""
        self._open: list[socket.socket] = []
        self._readers: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *args: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # only afterwards is the last accepted connection in the list
        self._listener.close()
        for peer in self._open:
            with contextlib.suppress(OSError):  # not connected: the client has closed it already
                peer.shutdown(socket.SHUT_RDWR)
        for reader in self._readers:
            reader.join()
        for peer in self._open:
            peer.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._open.append(peer)
            peer.settimeout(0.05)
            reader = threading.Thread(target=self._read, args=(peer,))
            self._readers.append(reader)
            reader.start()

    def _read(self, peer: socket.socket) -> None:
        try:
            if self._greets:
                peer.sendall(GREETING + ready())
            while True:
                try:
                    data = peer.recv(65536)
                except TimeoutError:
                    continue
                if not data:
                    return
                self.received += data
        except OSError:
            return


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divides all periods by 20, to shorten the test."""
    monkeypatch.setattr(channels, "_HANDSHAKE_MS", channels._HANDSHAKE_MS // 20)
    for module, name in ((channels, "_RENEW_S"), (tries, "PROBE_S"), (tries, "SILENT_S")):
        monkeypatch.setattr(module, name, getattr(module, name) / 20)
    monkeypatch.setattr(connection, "SILENT_S", tries.SILENT_S)


def health(kind: str, endpoint: str, timeout_s: float) -> tuple[Exception, float]:
    """Returns the error of a call on a new client, and the time until it is raised, s."""
    begun = time.monotonic()

    async def awaited() -> None:
        async with AsyncClient(endpoint, timeout_s=timeout_s) as client:
            await client.health()

    def waited() -> None:
        with Client(endpoint, timeout_s=timeout_s) as client:
            client.health()

    with pytest.raises((UnavailableError, DeadlineExceededError)) as found:
        asyncio.run(awaited()) if kind == "AsyncClient" else waited()
    return found.value, time.monotonic() - begun


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_peer_without_handshake_is_not_a_server(quick: None, kind: str) -> None:
    """The client closes the connection and connects again, because the server may have been about to exit."""
    with Peer(greets=False) as peer:
        fault, took_s = health(kind, peer.endpoint, 1.0)
        assert isinstance(fault, UnavailableError)
        assert str(fault).startswith(f"no server answers at {peer.endpoint} within 1 s; a server with keys")
        assert took_s > 0.9
        assert peer.accepted >= 2
        assert peer.received.startswith(b"\xff")


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_peer_that_only_completes_the_handshake_is_reported_before_the_deadline(quick: None, kind: str) -> None:
    """It accepts every connection and reads everything, so only an unanswered health request shows it."""
    with Peer(greets=True) as peer:
        fault, _ = health(kind, peer.endpoint, 100_000.0)  # pytest's time limit is shorter
        assert isinstance(fault, UnavailableError)
        assert b"health" in peer.received


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_the_connection_to_a_silent_server_is_replaced(quick: None, kind: str) -> None:
    """A proxy may keep a connection open whose server has exited."""

    async def awaited() -> None:
        async with AsyncClient(peer.endpoint, timeout_s=240.0) as client:
            with pytest.raises(UnavailableError, match="does not respond"):
                await client.health()
            wait_for_another()

    def waited() -> None:
        with Client(peer.endpoint, timeout_s=240.0) as client:
            with pytest.raises(UnavailableError, match="does not respond"):
                client.health()
            wait_for_another()

    def wait_for_another() -> None:
        until = time.monotonic() + WAIT_MS / 1e3
        while peer.accepted < 2:
            assert time.monotonic() < until
            time.sleep(0.01)

    with Peer(greets=True) as peer:
        asyncio.run(awaited()) if kind == "AsyncClient" else waited()


def test_waiting_calls_replace_the_connection_once(quick: None) -> None:
    async def run() -> None:
        async with AsyncClient(peer.endpoint, timeout_s=240.0) as client:
            found = await asyncio.gather(*(client.health() for _ in range(50)), return_exceptions=True)
            assert {type(each) for each in found} == {UnavailableError}

    with Peer(greets=True) as peer:
        asyncio.run(run())
        assert peer.accepted <= 2


def test_a_vanished_host_ends_the_connection() -> None:
    """Its packets are dropped, both while a request is unacknowledged and while the connection is idle."""
    code = """
import socket, subprocess, sys, threading, time
from dyn_service import Client, UnavailableError
from tests.service.client.test_silent_peers import Peer

with Peer(greets=True) as peer, Client(peer.endpoint, timeout_s=1.0, retries=0) as idle:
    assert idle._channel.is_connected(60.0)
    with Client(peer.endpoint, timeout_s=60.0, retries=0) as asking:
        assert asking._channel.is_connected(60.0)
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        begun = time.monotonic()
        try:
            asking.health()
        except UnavailableError as error:
            print(error)
        print("asking", time.monotonic() - begun)
    while idle._channel.is_connected():
        time.sleep(0.05)
    print("idle", time.monotonic() - begun)
"""
    inside = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    run = subprocess.run([*inside, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    if "unshare" in run.stderr or "not found" in run.stderr:
        pytest.skip(f"no network namespace can be made here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    assert "was lost before the answer" in run.stdout


def test_a_full_queue_and_a_lost_server_leave_the_process_alive() -> None:
    """With heartbeats, libzmq aborts the process at the next one (`Assertion failed: !_io_error`)."""
    code = """
import socket, sys, time
from dyn_service import Client
from tests.service.client.test_floods import SIZE, taken

with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    with Client(f"ipc://{sys.argv[1]}") as client:
        assert taken(listening, 1000 * SIZE) < 40 * SIZE
        time.sleep(3.0)  # longer than the former interval of heartbeats
        print("alive")
"""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, f"{folder}/s"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert (run.returncode, run.stdout, run.stderr) == (0, "alive\n", "")


def test_socket_options() -> None:
    """The bounds in docs/reliability.md."""
    with Client("tcp://127.0.0.1:9") as client:
        options = client._channel._socket  # type: ignore[attr-defined]
        assert options.getsockopt(zmq.HEARTBEAT_IVL) == 0
        assert options.getsockopt(zmq.TCP_KEEPALIVE) == 1
        assert options.getsockopt(zmq.TCP_KEEPALIVE_IDLE) == 2
        assert options.getsockopt(zmq.TCP_KEEPALIVE_INTVL) == 2
        assert options.getsockopt(zmq.TCP_KEEPALIVE_CNT) == 3
        assert options.getsockopt(zmq.TCP_MAXRT) == 8000
        assert options.getsockopt(zmq.HANDSHAKE_IVL) == 2000
        assert options.getsockopt(zmq.RECONNECT_IVL) == 20
        assert options.getsockopt(zmq.RECONNECT_IVL_MAX) == 500
        assert options.getsockopt(zmq.IMMEDIATE) == 1
        assert options.getsockopt(zmq.LINGER) == 0
        assert options.getsockopt(zmq.MAXMSGSIZE) == 64 << 20
    assert (tries.PROBE_S, tries.SILENT_S) == (2.0, 10.0)


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_reply_longer_than_the_limit_closes_the_connection(
    quick: None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long reply cannot exhaust the client's memory. ZeroMQ does not reconnect after it; the next call does."""
    monkeypatch.setattr(channels, "MAX_MESSAGE_BYTES", 5000)
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.RCVTIMEO, 20)
    router.bind("tcp://127.0.0.1:0")
    endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
    ended, senders = threading.Event(), set()

    def serve() -> None:
        while not ended.is_set():
            try:
                sender, payload = router.recv_multipart()
            except zmq.Again:
                continue
            asked = msgpack.unpackb(payload)
            senders.add(sender)
            outputs = {"x": bytes(6000)} if asked["query"] == "health" else {"robots": []}
            router.send_multipart([sender, msgpack.packb({"v": 1, "id": asked["id"], "ok": True, "outputs": outputs})])

    thread = threading.Thread(target=serve)
    thread.start()

    async def awaited() -> None:
        async with AsyncClient(endpoint, timeout_s=240.0) as client:
            assert await client.list_robots() == []
            with pytest.raises((UnavailableError, DeadlineExceededError)):
                await client.run(flows.query_server("health"), 0.5)
            assert await client.list_robots() == []

    try:
        if kind == "AsyncClient":
            asyncio.run(awaited())
        else:
            with Client(endpoint, timeout_s=240.0) as client:
                assert client.list_robots() == []
                with pytest.raises((UnavailableError, DeadlineExceededError)):
                    client.run(flows.query_server("health"), 0.5)
                assert client.list_robots() == []
        assert len(senders) >= 2  # the client has connected again
    finally:
        ended.set()
        thread.join()
        router.close()


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_server_that_replaces_one_of_another_protocol_is_found(quick: None, pendulum: Robot, kind: str) -> None:
    """At first, a server of another protocol listens at the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        found: list[Any] = []

        async def awaited() -> Any:
            async with AsyncClient(endpoint, timeout_s=240.0) as client:
                return await client.list_robots()

        def call() -> None:
            if kind == "AsyncClient":
                found.append(asyncio.run(awaited()))
            else:
                with Client(endpoint, timeout_s=240.0) as client:
                    found.append(client.list_robots())

        caller = threading.Thread(target=call)
        caller.start()
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" * 4)
            peer.recv(100)
    with Server([pendulum], endpoints=[endpoint]):
        caller.join()
    assert found == [["pendulum"]]


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_server_that_replaces_a_silent_peer_answers_the_same_call(quick: None, pendulum: Robot, kind: str) -> None:
    """The peer closes the connection, and a server starts at its endpoint; the same call is answered."""
    with Peer(greets=True) as peer:
        endpoint = peer.endpoint
        found: list[Any] = []

        async def awaited() -> Any:
            async with AsyncClient(endpoint, timeout_s=240.0) as client:
                robot = await client.robot("pendulum")
                return await robot.gravity_forces(Q)

        def call() -> None:
            if kind == "AsyncClient":
                found.append(asyncio.run(awaited()))
            else:
                with Client(endpoint, timeout_s=240.0) as client:
                    found.append(client.robot("pendulum").gravity_forces(Q))

        caller = threading.Thread(target=call)
        caller.start()
        until = time.monotonic() + WAIT_MS / 1e3
        while b"describe_robot" not in peer.received and time.monotonic() < until:
            time.sleep(0.005)
    with Server([pendulum], endpoints=[endpoint]):
        caller.join()
    assert_same(found[0], pendulum.gravity_forces(Q))
