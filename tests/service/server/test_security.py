"""Access control: clients with and without valid keys at each kind of endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from dyn_service import AsyncClient, Client, Robot, Server, connect
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnavailableError,
)
from dyn_service.service.protocol.keys import Keys, make_keys, read_keys
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import Role
from dyn_service.service.server.administration.access import AccessList, KeyFolder
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.transport.admission import Admission
from dyn_service.service.server.transport.connections import ServerConnection, Transport
from dyn_service.service.server.transport.quotas import ConnectionQuota
from tests.conftest import ROOT, URDF
from tests.phrases import naming
from tests.service.conftest import Bare, eventually, request
from tests.service.server.raw_peers import RawPeer, connected, is_closed

WAIT_S = 240.0
"""Far more than any step takes."""

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


class Serving(Server):
    """A server with one encrypted endpoint; it records its callers, and echoes messages that begin with `echo`."""

    def __init__(
        self, folder: KeyFolder, endpoint: str, robots: list[Robot], limits: RequestLimits | None = None
    ) -> None:
        self.asked: list[str] = []
        """The caller of each request that reached the service."""
        self.before_reply: Callable[[ServerConnection], None] = lambda connection: None
        super().__init__(
            robots, endpoints=[endpoint], limits=limits, allow_load=False, keys="required", key_folder=folder
        )
        self.start()
        assert self._admission is not None
        self.admission, self.traffic, self.endpoint = self._admission, self._traffic, self.endpoints[0]
        self.allowed = self.admission.access_list

    def _take(self, connection: ServerConnection, message: Any) -> None:
        payload, _, is_req = message
        assert connection.caller is not None
        self.asked.append(connection.caller.name)
        self.before_reply(connection)
        if bytes(payload[:4]) == b"echo":
            self._transport.send(connection, is_req, bytes(payload))
        else:
            super()._take(connection, message)


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "keys")


@pytest.fixture
def serve(folder: KeyFolder, pendulum: Robot, tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    servers: list[Serving] = []

    def make(transport: str = "tcp", limits: RequestLimits | None = None) -> Serving:
        if not folder.server_file.exists():
            folder.make_server()
        endpoint = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{tmp_path}/s{len(servers)}"
        servers.append(Serving(folder, endpoint, [pendulum], limits))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def new(folder: KeyFolder, name: str, role: Role = Role.QUERY) -> Keys:
    file = folder.make(name, role)
    assert file is not None
    return read_keys(file)


def use_keys(socket: zmq.Socket[Any], keys: Keys) -> None:
    """Sets the CURVE options of libzmq's socket, which is not connected yet."""
    socket.curve_serverkey = keys.server.encode()
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()


@contextmanager
def dealer(endpoint: str, keys: Keys | None, kind: int = zmq.DEALER, **options: Any) -> Iterator[zmq.Socket[bytes]]:
    """Returns a DEALER socket with these keys."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDTIMEO, int(1e3 * WAIT_S))
    socket.setsockopt(zmq.RCVTIMEO, int(1e3 * WAIT_S))
    for name, value in options.items():
        socket.setsockopt(getattr(zmq, name), value)
    if keys is not None:
        use_keys(socket, keys)
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close()
        context.term()


def handshake(endpoint: str, keys: Keys | None) -> int:
    """Returns the event in which libzmq's handshake with these keys ends."""
    outcomes = (
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.LINGER, 0)
    if keys is not None:
        use_keys(stranger, keys)
    monitor = stranger.get_monitor_socket(outcomes)
    try:
        stranger.connect(endpoint)
        assert monitor.poll(1000 * WAIT_S)
        return int(parse_monitor_message(monitor.recv_multipart())["event"])
    finally:
        stranger.disable_monitor()
        monitor.close(linger=0)
        stranger.close()
        context.term()


# the matrix


def strangers(folder: KeyFolder) -> dict[str, Keys | None]:
    """Yields clients to be refused, and one to be admitted."""
    server = folder.server_keys()
    good = new(folder, "good")
    revoked = new(folder, "revoked")
    folder.revoke("revoked")
    foreign_folder = KeyFolder(folder.folder / "elsewhere")
    listed_elsewhere = replace(new(foreign_folder, "good"), server=server.public)
    return {
        "no key": None,
        "wrong server key": replace(good, server=make_keys("other").public),
        "the client's own key as the server's": replace(good, server=good.public),
        "random key": make_keys("random", server.public),
        "unlisted": listed_elsewhere,
        "revoked": revoked,
    }


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_no_unknown_client_reaches_the_service(
    folder: KeyFolder, serve: Callable[..., Serving], transport: str
) -> None:
    folder.make_server()
    keys_by_stranger = strangers(folder)
    serving = serve(transport)
    good = read_keys(folder.folder / "good.key")
    with Client(serving.endpoint, keys=good, timeout_s=WAIT_S) as client:
        for stranger, keys in keys_by_stranger.items():
            request_count = len(serving.asked)
            assert handshake(serving.endpoint, keys) in (
                zmq.EVENT_HANDSHAKE_FAILED_AUTH,
                zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
                zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            ), stranger
            with dealer(serving.endpoint, keys, RCVTIMEO=100) as stranger_socket:
                for _ in range(5):  # queued, and sent once admitted
                    stranger_socket.send(b"echo")
                with pytest.raises(zmq.Again):
                    stranger_socket.recv()
            assert client.list_robots() == ["pendulum"], stranger  # the valid client is answered meanwhile
            assert serving.asked[request_count:] == ["key good"], stranger
            eventually(lambda: serving.traffic.sent == len(serving.asked))  # counted after it was sent


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_unencrypted_clients_get_no_data(serve: Callable[..., Serving], transport: str) -> None:
    serving = serve(transport)
    plain = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    curve = plain.replace(b"NULL\0", b"CURVE")
    for opening in (
        plain + ready + b"\x00\x04echo",
        curve + ready + b"\x00\x04echo",
        curve + b"\x00\x04echo",
        b"GET /\n\n",
    ):
        with connected(serving.endpoint) as connection:
            connection.sendall(opening)
            received_bytes = b""
            try:
                while piece := connection.recv(4096):
                    received_bytes += piece
            except ConnectionResetError:
                pass
        assert len(received_bytes) <= 64  # the greeting, which says CURVE
        assert b"echo" not in received_bytes
    assert serving.asked == []
    assert serving.traffic.sent == 0


@AS_ROOT
@pytest.mark.parametrize("transport", ["tcp", "ipc", "ipc without keys"])
def test_another_user_does_not_reach_the_service(
    folder: KeyFolder, serve: Callable[..., Serving], pendulum: Robot, tmp_path: Path, transport: str
) -> None:
    file = folder.make("good", Role.ADMIN)
    for place in [tmp_path, *tmp_path.parents[:2]]:
        place.chmod(0o755)  # only the modes of the sockets and files remain
    folder.folder.chmod(0o755)
    serving = None if transport == "ipc without keys" else serve(transport)
    server = Server([pendulum], endpoints=[f"ipc://{tmp_path}/plain"])
    with server:
        endpoint = serving.endpoint if serving else server.endpoints[0]
        code = f"""
import encodings.idna, os  # and what resolves addresses, before the user changes
from dyn_service import Client
from dyn_service.errors import DynError
Client("tcp://127.0.0.1:9").close()
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    open({str(file)!r}).read()
except PermissionError:
    print("cannot read the key")
try:
    with Client({endpoint!r}, timeout_s=0.5) as client:
        print(client.list_robots())
except DynError as fault:
    print(type(fault).__name__)
"""
        assert run_python(code).split("\n") == ["cannot read the key", "UnavailableError"]
        assert not server.service.metrics.to_dict()["counters"]["received"]
    if serving:
        assert serving.asked == []
        assert serving.traffic.sent == 0


def run_python(code: str, says: str = "") -> str:
    """Returns the output of the code; `says`: its error message instead."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == bool(says)
    assert says in done.stderr
    return done.stdout.strip()


# admitted clients


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_clients_of_every_kind_are_admitted(
    folder: KeyFolder, serve: Callable[..., Serving], pendulum: Robot, transport: str
) -> None:
    file = folder.make("good", Role.QUERY)
    serving = serve(transport)
    expected = pendulum.gravity_forces([0.5])
    with Client(serving.endpoint, keys=file, timeout_s=WAIT_S) as client:
        assert client.robot("pendulum").gravity_forces([0.5]).tobytes() == expected.tobytes()
        assert "secret" not in repr(client)
    remote = connect(f"{serving.endpoint}/pendulum", keys=file, timeout_s=WAIT_S)
    assert remote.gravity_forces([0.5]).tobytes() == expected.tobytes()
    remote.close()  # type: ignore[attr-defined]

    async def ask() -> Any:
        async with AsyncClient(serving.endpoint, keys=file, timeout_s=WAIT_S) as client:
            robot = await client.robot("pendulum")
            return await robot.gravity_forces([0.5])

    assert asyncio.run(ask()).tobytes() == expected.tobytes()
    keys = read_keys(str(file))
    with Client(serving.endpoint, keys=replace(keys, server=""), server_key=keys.server, timeout_s=WAIT_S) as client:
        assert client.list_robots() == ["pendulum"]
    with dealer(serving.endpoint, keys, zmq.REQ) as asking:
        for number in range(3):
            asking.send(b"echo%d" % number)
            assert asking.recv() == b"echo%d" % number


def test_a_refused_client_gets_the_reason(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    good = new(folder, "good")
    serving = serve()
    unlisted = make_keys("panda", good.server)
    with (
        pytest.raises(PermissionDeniedError, match="does not let the key 'panda' in"),
        Client(serving.endpoint, keys=unlisted, timeout_s=WAIT_S) as client,
    ):
        client.list_robots()

    async def ask() -> None:
        async with AsyncClient(serving.endpoint, keys=unlisted, timeout_s=WAIT_S) as client:
            await client.list_robots()

    with pytest.raises(PermissionDeniedError, match="does not let the key 'panda' in"):
        asyncio.run(ask())
    with (
        pytest.raises(UnavailableError, match=naming("no server", "key")),
        Client(serving.endpoint, keys=good, server_key=unlisted.public, timeout_s=2.0) as client,
    ):
        client.list_robots()


@pytest.mark.parametrize("kind", ["waiting", "awaited"])
def test_a_refused_client_is_admitted_once_listed(folder: KeyFolder, serve: Callable[..., Serving], kind: str) -> None:
    """A ZeroMQ socket gives up after a refusal; a client does not."""
    folder.make_server()
    serving = serve()
    keys = make_keys("late", folder.server_keys().public)

    async def ask() -> list[str]:
        async with AsyncClient(serving.endpoint, keys=keys, timeout_s=WAIT_S) as client:
            for _ in range(2):
                with pytest.raises(PermissionDeniedError):
                    await client.list_robots()
            await asyncio.to_thread(list_it)
            return await client.list_robots()

    def list_it() -> None:
        folder.make("late", Role.QUERY, public=keys.public)
        eventually(lambda: serving.allowed.caller(keys.public))

    if kind == "awaited":
        assert asyncio.run(ask()) == ["pendulum"]
        return
    with Client(serving.endpoint, keys=keys, timeout_s=WAIT_S) as client:
        for _ in range(2):
            time.sleep(0.05)
            with pytest.raises(PermissionDeniedError):
                client.list_robots()
        list_it()
        assert client.list_robots() == ["pendulum"]


def test_clients_report_missing_keys(folder: KeyFolder) -> None:
    good = new(folder, "good")
    with pytest.raises(InvalidArgumentError, match="names no server"):
        Client("tcp://127.0.0.1:9", keys=replace(good, server=""))
    with pytest.raises(InvalidArgumentError, match="server_key needs keys"):
        Client("tcp://127.0.0.1:9", server_key=good.server)
    with pytest.raises(InvalidArgumentError, match="server_key must be a public key"):
        Client("tcp://127.0.0.1:9", keys=good, server_key="short")


def test_no_answer_is_lost_in_a_burst(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """The loop waits for the descriptor only: if it missed a message, the burst would stall."""
    keys = new(folder, "good")
    serving = serve()
    with dealer(serving.endpoint, keys) as asking:
        for start in range(0, 3000, 500):
            for number in range(start, start + 500):
                asking.send(b"echo%d" % number)
            assert [asking.recv() for _ in range(500)] == [b"echo%d" % n for n in range(start, start + 500)]


# roles


def test_each_role_has_its_permissions(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    keys = {role: new(folder, role.name.lower(), role) for role in Role}
    serving = serve()
    text = (URDF / "scara.urdf").read_text()
    for role in Role:
        with Client(serving.endpoint, keys=keys[role], timeout_s=WAIT_S) as client:
            client.health()
            assert client.robot("pendulum").mass_matrix([0.0]).shape == (1, 1)
            if role is Role.QUERY:
                with pytest.raises(
                    PermissionDeniedError, match=naming("load_robot", "'load'", "'query'", "key query")
                ) as e:
                    client.load_robot(text)
                assert e.value.path == "query"
                with pytest.raises(PermissionDeniedError, match="unload_robot needs the role 'load'"):
                    client.unload_robot("pendulum")
            else:
                client.load_robot(text)
                client.unload_robot("scara")
            if role is Role.ADMIN:
                client.stats()
            else:
                with pytest.raises(PermissionDeniedError, match="stats needs the role 'admin'"):
                    client.stats()
    assert list(serving.service.robots) == ["pendulum"]


def test_a_role_that_changes_counts_at_the_next_message(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    keys = new(folder, "good", Role.ADMIN)
    serving = serve()
    with Client(serving.endpoint, keys=keys, timeout_s=WAIT_S) as client:
        client.stats()
        folder.list_file.write_text(folder.list_file.read_text().replace("admin", "query"))

        def refused() -> bool:
            try:
                client.stats()
            except PermissionDeniedError:
                return True
            return False

        eventually(refused)
        client.health()
    assert serving.traffic.cut_off == 0


# revoked, broken


def test_a_revoked_key_loses_its_live_connection(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    keys, silent, other = new(folder, "lost"), new(folder, "silent"), new(folder, "other")
    serving = serve()
    with (
        dealer(serving.endpoint, keys) as asking,
        dealer(serving.endpoint, silent) as waiting,
        Client(serving.endpoint, keys=other, timeout_s=WAIT_S) as client,
    ):
        asking.send(b"echo")
        assert asking.recv() == b"echo"
        client.health()
        eventually(lambda: len([connection for connection in serving._transport._connections if connection.key]) == 3)
        removed: list[str] = []
        stop_work = serving._quota._on_removed
        serving._quota._on_removed = lambda peer: (removed.append(peer.key), stop_work(peer))  # type: ignore[attr-defined,func-returns-value]
        watch = waiting.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        folder.revoke("lost")
        folder.revoke("silent")
        eventually(lambda: serving.admission.refused >= 2)  # they reconnect and are refused
        assert {*removed} >= {keys.public, silent.public}  # so that their work can be stopped
        assert watch.poll(1000 * WAIT_S)  # it never sent a request, and is disconnected too
        request_count = len(serving.asked)
        with suppress(zmq.Again):
            asking.send(b"echo", zmq.NOBLOCK)
        assert client.list_robots() == ["pendulum"]  # on the connection that it had
        assert set(serving.asked[request_count:]) == {"key other"}
        waiting.disable_monitor()
        watch.close(linger=0)


def test_each_message_is_checked_against_the_current_list(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """Requests that arrived before the revocation was seen are not handled after it."""
    keys = new(folder, "lost")
    serving = serve()

    def revoke(connection: ServerConnection) -> None:
        folder.revoke("lost")
        serving.allowed.check(at_once=True)

    with RawPeer(serving.endpoint, keys).shake_hands() as peer:
        serving.before_reply = revoke
        peer.socket.sendall(peer.part(b"echo") * 1 + peer.part(b"echo") + peer.part(b"echo"))
        assert is_closed(peer.socket)
    eventually(lambda: serving.traffic.cut_off)
    assert serving.asked == ["key lost"]
    assert serving.traffic.sent == 0


def test_a_reply_is_not_sent_to_a_revoked_key(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    keys = new(folder, "lost")
    serving = serve()

    def revoke(connection: ServerConnection) -> None:
        folder.revoke("lost")
        eventually(lambda: serving.allowed.check() or serving.allowed.caller(connection.key) is None)

    with dealer(serving.endpoint, keys, RCVTIMEO=300) as asking:
        serving.before_reply = revoke
        asking.send(b"echo")
        eventually(lambda: serving.traffic.dropped_gone == 1)
        with pytest.raises(zmq.Again):
            asking.recv()
    assert serving.traffic.sent == 0


SPOILT = pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda file: file.write_text("query short good 2026-01-01\n"),
            "allowed:1: the second word must be a public key",
        ),
        (lambda file: file.chmod(0o666), "has mode 0666, open to others: chmod go-w"),
        (lambda file: file.unlink(), "there is no file"),
        (lambda file: file.write_bytes(b"\xff\x00" * 100), "allowed:1: expected role"),
        (lambda file: (file.unlink(), file.mkdir()), "is not a regular file"),
        (lambda file: (file.unlink(), os.mkfifo(file, 0o600)), "is not a regular file"),
        (lambda file: file.parent.chmod(0o777), "others can write"),
        (lambda file: file.write_bytes(b"#" * (2 << 20)), "is longer than"),
    ],
    ids=["broken", "too open", "missing", "binary", "folder", "pipe", "open folder", "endless"],
)


@SPOILT
def test_an_invalid_list_is_refused_with_its_error(
    folder: KeyFolder, spoil: Callable[[Path], Any], says: str, caplog: Any
) -> None:
    keys = new(folder, "good")
    access_list = folder.access_list()
    assert access_list.caller(keys.public) is not None
    spoil(folder.list_file)
    access_list.check(at_once=True)
    access_list.check(at_once=True)
    assert access_list.caller(keys.public) is None
    assert says in access_list.state
    assert len([line for line in caplog.messages if says in line]) == 1
    with pytest.raises(DynError, match=re.escape(says)):
        folder.access_list()


@pytest.mark.parametrize("spoil", [lambda file: file.write_text("query\n"), lambda file: file.chmod(0o622)])
def test_an_invalid_list_admits_no_client_and_is_reported(
    folder: KeyFolder, serve: Callable[..., Serving], spoil: Callable[[Path], Any]
) -> None:
    keys = new(folder, "good")
    serving = serve()
    sound = folder.list_file.read_text()
    with (
        dealer(serving.endpoint, keys) as asking,
        Client(serving.endpoint, timeout_s=240.0, keys=folder.own_keys()) as server_client,
    ):
        asking.send(b"echo")
        asking.recv()
        assert server_client.health()["access"] == "ok"
        spoil(folder.list_file)
        eventually(lambda: serving.allowed.fault)
        eventually(lambda: serving.admission.refused >= 1)
        request_count = len(serving.asked)
        assert handshake(serving.endpoint, keys) == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # so that it tries again
        server_client.timeout_s = WAIT_S
        assert server_client.health()["access"].startswith("no client is admitted: ")
        assert set(serving.asked[request_count:]) == {"the server itself"}
        folder.list_file.write_text(sound)
        folder.list_file.chmod(0o600)
        asking.send(b"echo")
        assert asking.recv() == b"echo"  # admitted again without a restart
        assert server_client.health()["access"] == "ok"


def test_a_folder_that_others_can_write_is_refused_unless_it_is_sticky(folder: KeyFolder) -> None:
    """In a sticky folder, users cannot replace the files of others."""
    keys = new(folder, "good")
    access_list = folder.access_list()
    for mode, sound in ((0o1777, True), (0o777, False), (0o1770, True), (0o770, False), (0o1700, True), (0o700, True)):
        folder.list_file.parent.chmod(mode)
        access_list.check(at_once=True)
        assert (access_list.caller(keys.public) is not None) is sound, oct(mode)
        assert (access_list.fault is None) is sound


def test_the_log_names_refused_keys_and_reasons(
    folder: KeyFolder, serve: Callable[..., Serving], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyn_service.service.server.transport.quotas._LOG_EVERY_S", 0.0)
    good, revoked_keys = new(folder, "good"), new(folder, "lost")
    other = make_keys("other", good.server)
    revoked = folder.revoke("lost").revoked
    serving = serve()

    def said(keys: Keys) -> str:
        caplog.clear()
        handshake(serving.endpoint, keys)
        eventually(lambda: any("refusal number" in line for line in caplog.messages))
        (line,) = {re.sub(r"number \d+", "", line) for line in caplog.messages if "refusal number" in line}
        return line

    assert re.match(f"key {re.escape(other.public)} .*not on the list", said(other))
    assert re.match(f"key lost .*revoked on {revoked}", said(revoked_keys))
    folder.list_file.write_text("query\n")
    eventually(lambda: serving.allowed.fault)
    assert re.match(f"key good .*{re.escape(str(folder.list_file))}", said(good))


def test_the_log_names_keys_of_closed_connections(
    folder: KeyFolder, serve: Callable[..., Serving], caplog: Any
) -> None:
    keys = new(folder, "lost")
    serving = serve()
    with dealer(serving.endpoint, keys) as asking:
        asking.send(b"echo")
        asking.recv()
        folder.revoke("lost")
        eventually(lambda: any("key lost is no longer allowed" in line for line in caplog.messages))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("root {a} new 2026-01-01", "the role must be one of query, load, admin, found 'root'"),
        ("query {a} new", "found 3 words"),
        ("query {a} new 2026-01-01 revoked=2026-01-02 more", "found 6 words"),
        ("query {a} new 2026-01-01 2026-01-02", "the last word must be revoked=DATE"),
        ("query {a} new 2026-13-01", "month"),
        ("query {a} ../new 2026-01-01", "the name must be"),
        ("query {a} good 2026-01-01", "duplicate name or key"),
        ("query {b} new 2026-01-01", "duplicate name or key"),
        ("query {b} new 2026-01-01 revoked=2026-01-02", "duplicate name or key"),
    ],
)
def test_an_invalid_line_invalidates_the_list(folder: KeyFolder, line: str, says: str) -> None:
    keys = new(folder, "good")
    with folder.list_file.open("a") as writing:
        writing.write("\n# a comment\n" + line.format(a=make_keys("new").public, b=keys.public) + "\n")
    with pytest.raises(InvalidArgumentError, match=rf"allowed:5: .*{re.escape(says)}"):
        folder.entries()


def test_quick_changes_of_the_list_are_detected(folder: KeyFolder) -> None:
    """Changes of the same length within one tick of the file system's clock are detected."""
    keys = new(folder, "good", Role.QUERY)
    access_list = folder.access_list()
    status = folder.list_file.stat()
    with folder.list_file.open("r+") as writing:
        writing.write(folder.list_file.read_text().replace("query", "admin"))
    os.utime(folder.list_file, ns=(status.st_atime_ns, status.st_mtime_ns))
    eventually(lambda: access_list.check() or access_list.caller(keys.public).role is Role.ADMIN)  # type: ignore[union-attr]


# starting


def test_no_keys_no_start(folder: KeyFolder) -> None:
    with pytest.raises(FailedPreconditionError, match=naming("keys", "dyn keys new NAME")):
        folder.for_server()
    folder.make_server()
    folder.list_file.unlink()
    with pytest.raises(FailedPreconditionError, match=r"there is no file .*allowed"):
        folder.for_server()
    folder.list_file.write_text("nonsense\n")
    with pytest.raises(InvalidArgumentError, match="allowed:1"):
        folder.for_server()
    with pytest.raises(DynError):
        AccessList(folder.list_file, "")


def test_an_endpoint_in_use_leaves_nothing_open(folder: KeyFolder) -> None:
    folder.make_server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        files_before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
        for _ in range(3):
            with selectors.DefaultSelector() as selector:
                quota = ConnectionQuota(RequestLimits(), Traffic())
                transport = Transport(selector, quota, lambda connection, message: None)
                with pytest.raises(UnavailableError, match="another server listens there"):
                    transport.listen(f"tcp://127.0.0.1:{listener.getsockname()[1]}", Admission(*folder.for_server()))
                transport.close(0.0)
        if sys.platform == "linux":
            assert len(os.listdir("/proc/self/fd")) <= files_before


# the handshake


def test_a_key_revoked_during_its_handshake_is_refused(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """Between WELCOME and INITIATE, even if the list was not read since."""
    keys = new(folder, "lost")
    serving = serve()
    with RawPeer(serving.endpoint, keys) as peer:
        cookie = peer.welcome()
        serving.allowed.check = _unless_at_once(serving.allowed.check)  # type: ignore[method-assign]
        folder.revoke("lost")
        with pytest.raises(ConnectionError, match="400"):
            peer.initiate(cookie)
        assert is_closed(peer.socket)
    assert serving.admission.refused == 1
    assert serving.asked == []


def _unless_at_once(check: Callable[..., None]) -> Callable[..., None]:
    return lambda *, at_once=False: check(at_once=True) if at_once else None


def test_a_role_that_changes_during_the_handshake_counts(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    keys = new(folder, "good", Role.ADMIN)
    serving = serve()
    with RawPeer(serving.endpoint, keys) as peer:
        cookie = peer.welcome()
        serving.allowed.check = _unless_at_once(serving.allowed.check)  # type: ignore[method-assign]
        folder.list_file.write_text(folder.list_file.read_text().replace("admin", "query"))
        peer.initiate(cookie)
        peer.socket.sendall(peer.part(msgpack.packb(request("stats", inputs=...))))
        assert msgpack.unpackb(peer.receive())["error"]["code"] == "PERMISSION_DENIED"


def test_a_key_is_not_admitted_without_its_secret(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """A stranger that knows a public key of the list, and the server's."""
    good = new(folder, "good")
    serving = serve()
    with RawPeer(serving.endpoint, replace(good, secret=make_keys("other").secret)) as peer:
        cookie = peer.welcome()
        with pytest.raises(ConnectionError):
            peer.initiate(cookie)
    assert serving.admission.refused == 0  # its key was never looked up
    eventually(lambda: serving.traffic.cut_off)


def test_secrets_are_in_no_log_and_no_repr(
    folder: KeyFolder, serve: Callable[..., Serving], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyn_service.service.server.transport.quotas._LOG_EVERY_S", 0.0)
    caplog.set_level(0)
    good, other = new(folder, "good"), make_keys("other", folder.server_keys().public)
    serving = serve()
    with Client(serving.endpoint, keys=good, timeout_s=WAIT_S) as client:
        client.health()
        (connection,) = (candidate for candidate in serving._transport._connections if candidate.key)
        handshake(serving.endpoint, other)
        text = repr((serving.admission, vars(serving.admission), connection, vars(connection), vars(serving.allowed)))
    for keys in (folder.server_keys(), good, other):
        for secret in (keys.secret, repr(keys.pair.secret)[2:-1]):
            assert secret not in caplog.text
            assert secret not in text


def test_routing_ids_have_no_meaning(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """Two clients that choose the same one get their own replies."""
    keys = new(folder, "good")
    serving = serve()
    with (
        dealer(serving.endpoint, keys, ROUTING_ID=b"someone") as first,
        dealer(serving.endpoint, keys, ROUTING_ID=b"someone") as second,
    ):
        for number in range(10):
            first.send(b"echo one %d" % number)
            second.send(b"echo two %d" % number)
            assert second.recv() == b"echo two %d" % number
            assert first.recv() == b"echo one %d" % number


# the audit log


def test_the_audit_log_names_caller_and_robot(folder: KeyFolder, serve: Callable[..., Serving], tmp_path: Path) -> None:
    from dyn_service.service.server.administration.audit import AuditFile

    loader, sender = new(folder, "lab", Role.LOAD), new(folder, "panda")
    serving = serve()
    file = tmp_path / "audit.jsonl"
    former_umask = os.umask(0)
    try:
        handler = AuditFile(file)
    finally:
        os.umask(former_umask)
    try:
        with Client(serving.endpoint, keys=loader, timeout_s=WAIT_S) as client:
            fingerprint = client.load_robot(URDF / "scara.urdf").fingerprint
            client.unload_robot("scara")
        with Client(serving.endpoint, keys=sender, timeout_s=WAIT_S) as client:
            for _ in range(50):
                with pytest.raises(PermissionDeniedError):
                    client.unload_robot("pendulum")
    finally:
        handler.close()
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    entries = [
        (line["who"], line["query"], line.get("robot"), line.get("fingerprint"), line["outcome"]) for line in lines
    ]
    assert entries[:3] == [
        ("key lab", "load_robot", "scara", fingerprint, "ok"),
        ("key lab", "unload_robot", "scara", fingerprint, "ok"),
        ("key panda", "unload_robot", "pendulum", None, "PERMISSION_DENIED"),
    ]
    assert len(lines) < 50  # at most one refusal a second
    file.chmod(0o644)
    with pytest.raises(PermissionDeniedError, match="chmod 600"):
        AuditFile(file)
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(PermissionDeniedError, match="cannot be written"):
        AuditFile(link)


def test_a_full_disk_under_the_audit_log_fails_no_request(tmp_path: Path) -> None:
    code = f"""
import os, resource, signal
from pathlib import Path
from dyn_service.service.server.administration.access import Caller, Role
from dyn_service.service.server.administration.audit import AuditFile, record_done
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = Path({str(tmp_path / "audit")!r})
handler = AuditFile(file)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
for _ in range(20):
    record_done(Caller("key lab", Role.LOAD), "load_robot", "panda", "f" * 32)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
record_done(Caller("key lab", Role.LOAD), "load_robot", "last", "f" * 32)
handler.close()
print(file.read_text())
"""
    lines = run_python(code, says="changes are not written to").splitlines()
    assert 1 <= sum("panda" in line for line in lines) < 20
    assert json.loads(lines[-1])["robot"] == "last"  # on its own line, after the incomplete one


def test_local_callers_need_allow_load(pendulum: Robot) -> None:
    with Server([pendulum], endpoints=["tcp://127.0.0.1:0"], allow_load=False) as server:
        bare = Bare(server.endpoints[0])
        reply = bare.ask(request("unload_robot", inputs=...))
        assert (reply["error"]["code"], reply["error"]["path"]) == ("PERMISSION_DENIED", "query")
        assert bare.ask(request("stats", inputs=...))["ok"]
        assert bare.ask(request("health", inputs=...))["outputs"]["access"] == "no keys"
        bare.close()


def test_time_to_revoke(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """How long a revocation takes, ten times; printed for docs/reliability.md."""
    serving = serve()
    durations_s = []
    for number in range(10):
        keys = new(folder, f"k{number}")
        with dealer(serving.endpoint, keys) as asking:
            asking.send(b"echo")
            asking.recv()
            cut_off_before = serving.traffic.cut_off
            folder.revoke(f"k{number}")
            begun_s = time.monotonic()
            eventually(lambda cut_off_before=cut_off_before: serving.traffic.cut_off > cut_off_before)
            durations_s.append(time.monotonic() - begun_s)
    print(f"revoked to cut: median {1e3 * np.median(durations_s):.0f} ms, longest {1e3 * max(durations_s):.0f} ms")
