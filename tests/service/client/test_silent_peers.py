"""Calls to peers that accept a connection and send nothing raise `UnavailableError` within a bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dyn_service import AsyncClient, Client, DeadlineExceededError, Robot, Server, UnavailableError
from dyn_service.service.client import channels, connection, flows
from dyn_service.service.client import retries as tries
from tests.conftest import ROOT
from tests.service.client.plain_server import channel_of
from tests.service.client.test_clients import Impostor, Q
from tests.service.conftest import WAIT_MS, assert_same, eventually

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
    for module, name in ((channels, "HANDSHAKE_S"), (tries, "PROBE_S"), (tries, "SILENT_S")):
        monkeypatch.setattr(module, name, getattr(module, name) / 20)
    monkeypatch.setattr(connection, "SILENT_S", tries.SILENT_S)


def fault_of(client: Any) -> Exception:
    """Returns the error of a call to a server that does not answer."""
    with pytest.raises((UnavailableError, DeadlineExceededError)) as excinfo:
        client.health()
    return excinfo.value


def test_a_peer_without_handshake_is_not_a_server(quick: None, connect_to: Any) -> None:
    """The client closes the connection and connects again, because the server may have been about to exit."""
    with Peer(greets=False) as peer:
        begun_s = time.monotonic()
        fault = fault_of(connect_to(peer.endpoint, 1.0))
        assert time.monotonic() - begun_s > 0.9
        assert isinstance(fault, UnavailableError)
        assert str(fault).startswith(f"no server answers at {peer.endpoint} within 1 s")
        assert peer.accepted >= 2
        assert peer.received.startswith(b"\xff")


def test_a_peer_that_only_completes_the_handshake_is_reported_before_the_deadline(quick: None, connect_to: Any) -> None:
    """It accepts every connection and reads everything, so only an unanswered health request shows it."""
    with Peer(greets=True) as peer:
        # pytest's time limit is shorter
        assert isinstance(fault_of(connect_to(peer.endpoint, 100_000.0)), UnavailableError)
        assert b"health" in peer.received


def test_the_connection_to_a_silent_server_is_replaced(quick: None, connect_to: Any) -> None:
    """A proxy may keep a connection open whose server has exited."""
    with Peer(greets=True) as peer:
        client = connect_to(peer.endpoint, 240.0)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="does not respond"):
                client.health()
        assert peer.accepted == 2


def test_waiting_calls_replace_the_connection_once(quick: None) -> None:
    async def run() -> None:
        async with AsyncClient(peer.endpoint, timeout_s=240.0) as client:
            errors = await asyncio.gather(*(client.health() for _ in range(50)), return_exceptions=True)
            assert {type(error) for error in errors} == {UnavailableError}

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
    namespace_command = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    run = subprocess.run(
        [*namespace_command, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    if "unshare" in run.stderr or "not found" in run.stderr:
        pytest.skip(f"no network namespace can be made here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    assert "was lost before the answer" in run.stdout


def test_socket_options() -> None:
    """The bounds in docs/reliability.md."""
    with Peer(greets=True) as peer, Client(peer.endpoint) as client:
        assert channel_of(client).is_connected(WAIT_MS / 1e3)
        connected = channel_of(client)._socket
        assert connected is not None
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 8000, "TCP_NODELAY": 1}
        for name, value in options.items():
            assert connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value, name
    assert (channels.HANDSHAKE_S, channels.MIN_PAUSE_S, channels.MAX_PAUSE_S) == (2.0, 0.02, 0.5)
    assert (tries.PROBE_S, tries.SILENT_S) == (2.0, 10.0)


def test_a_reply_longer_than_the_limit_closes_the_connection(
    quick: None, connect_to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long reply cannot exhaust the client's memory."""
    monkeypatch.setattr(channels, "MAX_MESSAGE_BYTES", 5000)

    def script(request: dict[str, Any]) -> list[Any]:
        outputs = {"x": bytes(6000)} if request["query"] == "health" else {"robots": []}
        return [{"v": 1, "id": request["id"], "ok": True, "outputs": outputs}]

    with Impostor(script) as impostor:
        client = connect_to(impostor.endpoint, 240.0)
        assert client.list_robots() == []
        with pytest.raises((UnavailableError, DeadlineExceededError)):
            client.run(flows.query_server("health"), 0.5)
        assert client.list_robots() == []
    assert len(impostor.senders) >= 2  # the client has connected again


def test_a_server_that_replaces_one_of_another_protocol_is_found(quick: None, pendulum: Robot, connect_to: Any) -> None:
    """At first, a server of another protocol listens at the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        answer = pool.submit(lambda: connect_to(endpoint, 240.0).list_robots())
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" * 4)
            peer.recv(100)
        listener.close()
        with Server([pendulum], endpoints=[endpoint]):
            assert answer.result() == ["pendulum"]


def test_a_server_that_replaces_a_silent_peer_answers_the_same_call(
    quick: None, pendulum: Robot, connect_to: Any
) -> None:
    """The peer closes the connection, and a server starts at its endpoint; the same call is answered."""
    with ThreadPoolExecutor() as pool:
        with Peer(greets=True) as peer:
            answer = pool.submit(lambda: connect_to(peer.endpoint, 240.0).robot("pendulum").gravity_forces(Q))
            eventually(lambda: b"describe_robot" in peer.received)
        with Server([pendulum], endpoints=[peer.endpoint]):
            assert_same(answer.result(), pendulum.gravity_forces(Q))
