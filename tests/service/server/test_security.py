"""Access control: clients with and without valid keys at each kind of endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from dyn_service import AsyncClient, Client, Robot, Server, connect
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnavailableError,
)
from dyn_service.service.protocol.keys import Keys, make_keys, read_keys, use_keys
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import Role
from dyn_service.service.server.administration.access import AccessList, Caller, KeyFolder
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.transport.encrypted import (
    EncryptedPeer,
    EncryptedTransport,
    open_encrypted,
    try_handshake,
)
from dyn_service.service.server.transport.quotas import ConnectionQuota
from tests.conftest import ROOT, URDF
from tests.phrases import naming
from tests.service.conftest import Bare, request

WAIT_S = 240.0
"""Far more than any step takes."""

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a connection's bytes")


class Serving(Server):
    """A server with one encrypted endpoint; it records its callers, and echoes messages that begin with `echo`."""

    def __init__(
        self, folder: KeyFolder, endpoint: str, robots: list[Robot], limits: RequestLimits | None = None
    ) -> None:
        self.asked: list[str] = []
        """The caller of each request that reached the service."""
        self.gone: list[EncryptedPeer] = []
        self.before_reply: Callable[[EncryptedPeer], None] = lambda peer: None
        super().__init__(
            robots, endpoints=[endpoint], limits=limits, allow_load=False, keys="required", key_folder=folder
        )
        self.start()
        assert self._keyed is not None
        self.router, self.traffic, self.endpoint = self._keyed, self._traffic, self.endpoints[0]
        self.allowed = self.router.allowed

    def _take(self, transport: Any, peer: Any, message: Any) -> None:
        payload, _, is_req = message
        self.asked.append(peer.caller.name)
        self.before_reply(peer)
        if bytes(payload[:4]) == b"echo":
            transport.send(peer, is_req, bytes(payload))
        else:
            super()._take(transport, peer, message)

    def _gone(self, peer: Any) -> None:
        self.gone.append(peer)
        super()._gone(peer)


def wait_until(condition: Callable[[], Any]) -> float:
    """Waits until the condition holds; returns the seconds."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < WAIT_S
        time.sleep(0.005)
    return time.monotonic() - begun


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "keys")


@pytest.fixture
def serve(folder: KeyFolder, pendulum: Robot, tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    made: list[Serving] = []

    def make(transport: str = "tcp", limits: RequestLimits | None = None) -> Serving:
        if not folder.server_file.exists():
            folder.make_server()
        endpoint = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{tmp_path}/s{len(made)}"
        made.append(Serving(folder, endpoint, [pendulum], limits))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def new(folder: KeyFolder, name: str, role: Role = Role.QUERY) -> Keys:
    file = folder.make(name, role)
    assert file is not None
    return read_keys(file)


@contextmanager
def dealer(endpoint: str, keys: Keys | None, kind: int = zmq.DEALER, **options: Any) -> Iterator[zmq.Socket[bytes]]:
    """Returns a DEALER socket with these keys."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    opened = context.socket(kind)
    opened.setsockopt(zmq.LINGER, 0)
    opened.setsockopt(zmq.SNDTIMEO, int(1e3 * WAIT_S))
    opened.setsockopt(zmq.RCVTIMEO, int(1e3 * WAIT_S))
    for name, value in options.items():
        opened.setsockopt(getattr(zmq, name), value)
    if keys is not None:
        use_keys(opened, keys)
    opened.connect(endpoint)
    try:
        yield opened
    finally:
        opened.close()
        context.term()


# the matrix


def strangers(folder: KeyFolder) -> dict[str, Keys | None]:
    """Yields clients to be refused, and one to be admitted."""
    server = folder.server_keys()
    good = new(folder, "good")
    revoked = new(folder, "revoked")
    folder.revoke("revoked")
    elsewhere = KeyFolder(folder.folder / "elsewhere")
    listed_elsewhere = replace(new(elsewhere, "good"), server=server.public)
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
    outside = strangers(folder)
    serving = serve(transport)
    good = read_keys(folder.folder / "good.key")
    with Client(serving.endpoint, keys=good, timeout_s=WAIT_S) as client:
        for who, keys in outside.items():
            reached = len(serving.asked)
            assert try_handshake(serving.endpoint, keys, lambda: None) in (
                zmq.EVENT_HANDSHAKE_FAILED_AUTH,
                zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
                zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            ), who
            with dealer(serving.endpoint, keys, RCVTIMEO=100) as stranger:
                for _ in range(5):  # queued, and sent once admitted
                    stranger.send(b"echo")
                with pytest.raises(zmq.Again):
                    stranger.recv()
            assert client.list_robots() == ["pendulum"], who  # the valid client is answered meanwhile
            assert serving.asked[reached:] == ["key good"], who
            wait_until(lambda: serving.traffic.sent == len(serving.asked))  # counted after it was sent


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_unencrypted_clients_get_no_data(serve: Callable[..., Serving], transport: str) -> None:
    serving = serve(transport)
    plain = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    curve = plain.replace(b"NULL\0", b"CURVE")
    for spoken in (
        plain + ready + b"\x00\x04echo",
        curve + ready + b"\x00\x04echo",
        curve + b"\x00\x04echo",
        b"GET /\n\n",
    ):
        with raw(serving.endpoint) as connection:
            connection.sendall(spoken)
            heard = b""
            try:
                while piece := connection.recv(4096):
                    heard += piece
            except ConnectionResetError:
                pass
        assert len(heard) <= 64  # the greeting, which says CURVE
        assert b"echo" not in heard
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
import os
from dyn_service import Client
from dyn_service.errors import DynError
Client("tcp://127.0.0.1:9").close()  # imports everything before the user changes
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


@contextmanager
def raw(endpoint: str) -> Iterator[socket.socket]:
    """Returns a TCP or ipc socket without ZeroMQ."""
    if endpoint.startswith("ipc://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(endpoint.removeprefix("ipc://"))
    else:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        connection = socket.create_connection((host, int(port)))
    connection.settimeout(WAIT_S)
    with connection:
        yield connection


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
        Client(serving.endpoint, keys=unlisted, timeout_s=1.0) as client,
    ):
        client.list_robots()

    async def ask() -> None:
        async with AsyncClient(serving.endpoint, keys=unlisted, timeout_s=WAIT_S) as client:
            await client.list_robots()

    with pytest.raises(PermissionDeniedError, match="does not let the key 'panda' in"):
        asyncio.run(ask())
    with (
        pytest.raises(UnavailableError, match=naming("no server", "key")),
        Client(serving.endpoint, keys=good, server_key=unlisted.public, timeout_s=1.0) as client,
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
        wait_until(lambda: serving.allowed.caller(keys.public))

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


def test_the_descriptor_is_readable_while_there_is_work(folder: KeyFolder) -> None:
    """libzmq's descriptor signals each message once, not again after some were read or a reply was sent."""
    keys = new(folder, "good")
    router = open_encrypted(folder, ConnectionQuota(RequestLimits(), Traffic()))

    def readable(wait_s: float) -> bool:
        return bool(select.select([router.descriptor], [], [], wait_s)[0])

    try:
        with dealer(router.listen("tcp://127.0.0.1:0").endpoint, keys) as asking:
            for _ in range(200):
                asking.send(b"echo")
            found: list[Any] = []
            while not found:
                assert readable(WAIT_S)
                time.sleep(0.2)  # usually until all have arrived; a later one signals itself
                found += router.messages(64)
            while len(found) < 200:
                assert readable(WAIT_S)  # at once, except after a later one
                found += router.messages(64)
            while readable(0.1):
                assert list(router.messages(64)) == []
            asking.send(b"echo")
            assert readable(WAIT_S)
            router.send(found[0][0], False, b"echo")  # reads arrived messages
            assert readable(0.0)
            assert len(list(router.messages(64))) == 1
    finally:
        router.close()


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

        wait_until(refused)
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
        wait_until(lambda: len(serving.router._peers) == 3)
        watch = waiting.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        folder.revoke("lost")
        folder.revoke("silent")
        wait_until(lambda: serving.router.refused >= 2)  # they reconnect and are refused
        assert {peer.key for peer in serving.gone} >= {keys.public, None}  # so that their work can be stopped
        assert watch.poll(1000 * WAIT_S)  # it never sent a request, and is disconnected too
        reached = len(serving.asked)
        with suppress(zmq.Again):
            asking.send(b"echo", zmq.NOBLOCK)
        assert client.list_robots() == ["pendulum"]  # on the connection that it had
        assert set(serving.asked[reached:]) == {"key other"}
        waiting.disable_monitor()
        watch.close(linger=0)


def test_each_message_is_checked_against_the_current_list(folder: KeyFolder) -> None:
    """`check` closes no connection here: the message itself is refused."""
    keys = new(folder, "lost")
    traffic = Traffic()
    router = open_encrypted(folder, ConnectionQuota(RequestLimits(), traffic))
    try:
        with dealer(router.listen("tcp://127.0.0.1:0").endpoint, keys) as asking:
            asking.send(b"echo")
            found: list[Any] = []
            wait_until(lambda: found.extend(router.messages(64)) or found)
            assert found[0][0].caller == Caller("key lost", Role.QUERY)
            folder.revoke("lost")
            router.allowed.check(at_once=True)
            assert not router.send(found[0][0], False, b"echo")
            assert traffic.cut_off == 0
            asking.send(b"echo")
            found.clear()
            wait_until(lambda: found.extend(router.messages(64)) or traffic.cut_off)
            assert found == []
    finally:
        router.close()


def test_a_reply_is_not_sent_to_a_revoked_key(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    keys = new(folder, "lost")
    serving = serve()

    def revoke(peer: EncryptedPeer) -> None:
        folder.revoke("lost")
        wait_until(lambda: serving.allowed.check() or serving.allowed.caller(str(peer.key)) is None)

    with dealer(serving.endpoint, keys, RCVTIMEO=300) as asking:
        serving.before_reply = revoke
        asking.send(b"echo")
        wait_until(lambda: serving.traffic.dropped_gone == 1)
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
    allowed = folder.access_list()
    assert allowed.caller(keys.public) is not None
    spoil(folder.list_file)
    allowed.check(at_once=True)
    allowed.check(at_once=True)
    assert allowed.caller(keys.public) is None
    assert says in allowed.state
    assert allowed.losses == 1
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
        Client(serving.endpoint, timeout_s=240.0, keys=folder.own_keys()) as own,
    ):
        asking.send(b"echo")
        asking.recv()
        assert own.health()["access"] == "ok"
        spoil(folder.list_file)
        wait_until(lambda: serving.allowed.fault)
        wait_until(lambda: serving.router.refused >= 1)
        reached = len(serving.asked)
        assert try_handshake(serving.endpoint, keys, lambda: None) == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        own.timeout_s = WAIT_S
        assert own.health()["access"].startswith("no client is admitted: ")
        assert set(serving.asked[reached:]) == {"the server itself"}
        folder.list_file.write_text(sound)
        folder.list_file.chmod(0o600)
        asking.send(b"echo")
        assert asking.recv() == b"echo"  # admitted again without a restart
        assert own.health()["access"] == "ok"


def test_a_folder_that_others_can_write_is_refused_unless_it_is_sticky(folder: KeyFolder) -> None:
    """In a sticky folder, users cannot replace the files of others."""
    keys = new(folder, "good")
    allowed = folder.access_list()
    for mode, sound in ((0o1777, True), (0o777, False), (0o1770, True), (0o770, False), (0o1700, True), (0o700, True)):
        folder.list_file.parent.chmod(mode)
        allowed.check(at_once=True)
        assert (allowed.caller(keys.public) is not None) is sound, oct(mode)
        assert (allowed.fault is None) is sound


def test_the_log_names_refused_keys_and_reasons(
    folder: KeyFolder, serve: Callable[..., Serving], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyn_service.service.server.transport.quotas._LOG_EVERY_S", 0.0)
    good, lost = new(folder, "good"), new(folder, "lost")
    other = make_keys("other", good.server)
    revoked = folder.revoke("lost").revoked
    serving = serve()

    def said(keys: Keys) -> str:
        caplog.clear()
        try_handshake(serving.endpoint, keys, lambda: None)
        wait_until(lambda: any("refusal number" in line for line in caplog.messages))
        (line,) = {re.sub(r"number \d+", "", line) for line in caplog.messages if "refusal number" in line}
        return line

    assert re.match(f"key {re.escape(other.public)} .*not on the list", said(other))
    assert re.match(f"key lost .*revoked on {revoked}", said(lost))
    serving.router._shut_out[good.public] = time.perf_counter_ns() + 10**12
    assert re.match("key good .*message of more than one part", said(good))
    serving.router._shut_out.clear()
    folder.list_file.write_text("query\n")
    wait_until(lambda: serving.allowed.fault)
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
        wait_until(lambda: any("key lost is no longer allowed" in line for line in caplog.messages))


def test_a_turn_is_over_when_its_time_is(folder: KeyFolder) -> None:
    """Messages that have arrived are left for the next one."""
    keys = new(folder, "good")
    router = open_encrypted(folder, ConnectionQuota(RequestLimits(), Traffic()))
    try:
        with dealer(router.listen("tcp://127.0.0.1:0").endpoint, keys) as asking:
            asking.send(b"1")
            found: list[Any] = []
            wait_until(lambda: found.extend(router.messages(64)) or found)
            asking.send(b"2")
            wait_until(lambda: router._peers.read_events() or router._router.poll(0))
            assert list(router.messages(64, 0)) == []
            assert router.pending
            assert len(list(router.messages(64))) == 1
    finally:
        router.close()


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
    allowed = folder.access_list()
    status = folder.list_file.stat()
    with folder.list_file.open("r+") as writing:
        writing.write(folder.list_file.read_text().replace("query", "admin"))
    os.utime(folder.list_file, ns=(status.st_atime_ns, status.st_mtime_ns))
    wait_until(lambda: allowed.check() or allowed.caller(keys.public).role is Role.ADMIN)  # type: ignore[union-attr]


# starting


class LetsAllIn(EncryptedTransport):
    def _admit(self) -> None:
        while self._zap_handler.poll(0):
            sender, _, version, request_id, *_ = self._zap_handler.recv_multipart()
            self._zap_handler.send_multipart([sender, b"", version, request_id, b"200", b"OK", b"someone", b""])


class LetsNobodyIn(EncryptedTransport):
    def _admit(self) -> None:
        while self._zap_handler.poll(0):
            sender, _, version, request_id, *_ = self._zap_handler.recv_multipart()
            self._zap_handler.send_multipart([sender, b"", version, request_id, b"400", b"no", b"", b""])


@pytest.mark.parametrize(
    ("kind", "says"),
    [(LetsAllIn, "unknown key was admitted"), (LetsNobodyIn, "server's own key was not answered")],
)
def test_a_server_that_fails_its_self_test_does_not_start(
    folder: KeyFolder, kind: type[EncryptedTransport], says: str
) -> None:
    folder.make_server()
    router = kind(folder.server_keys(), folder.access_list(), ConnectionQuota(RequestLimits(), Traffic()))
    with pytest.raises(FailedPreconditionError, match=says):
        router.listen("tcp://127.0.0.1:0")
    router.close()


def test_no_keys_no_start(folder: KeyFolder) -> None:
    with pytest.raises(FailedPreconditionError, match=naming("keys", "dyn keys new NAME")):
        open_encrypted(folder, ConnectionQuota(RequestLimits(), Traffic()))
    folder.make_server()
    folder.list_file.unlink()
    with pytest.raises(FailedPreconditionError, match=r"there is no file .*allowed"):
        open_encrypted(folder, ConnectionQuota(RequestLimits(), Traffic()))
    folder.list_file.write_text("nonsense\n")
    with pytest.raises(InvalidArgumentError, match="allowed:1"):
        open_encrypted(folder, ConnectionQuota(RequestLimits(), Traffic()))
    with pytest.raises(DynError):
        AccessList(folder.list_file, "")


def test_an_endpoint_in_use_leaves_nothing_open(folder: KeyFolder) -> None:
    folder.make_server()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
        for _ in range(3):
            router = open_encrypted(folder, ConnectionQuota(RequestLimits(), Traffic()))
            with pytest.raises(UnavailableError, match="another server listens there"):
                router.listen(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
            router.close()
        if sys.platform == "linux":
            assert len(os.listdir("/proc/self/fd")) == before


# admitted clients that misbehave


def test_a_message_of_many_parts_closes_its_connection(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    bad, good = new(folder, "bad"), new(folder, "good")
    serving = serve()
    with Client(serving.endpoint, keys=good, timeout_s=WAIT_S) as client:
        client.health()
        for parts in (2, 20_000):
            with dealer(serving.endpoint, bad) as sending:
                cut = serving.traffic.cut_off
                reached = len(serving.asked)
                sending.send_multipart([b"x"] * parts)
                sending.send(b"echo")
                wait_until(lambda cut=cut: serving.traffic.cut_off > cut)
                assert client.list_robots() == ["pendulum"]
                assert set(serving.asked[reached:]) <= {"key good"}
                assert try_handshake(serving.endpoint, bad, lambda: None) == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                serving.router._shut_out.clear()
    assert serving.traffic.sent == len(serving.asked)


def test_no_turn_reads_more_than_some_parts(folder: KeyFolder) -> None:
    """Counts the parts read by each call of `messages`, whatever the message has."""
    bad = new(folder, "bad")
    router = open_encrypted(folder, ConnectionQuota(RequestLimits(), Traffic()))
    try:
        read = 0
        really = router._read_away

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal read
            read += 1
            return really(*arguments, **options)

        router._read_away = counted
        with dealer(router.listen("tcp://127.0.0.1:0").endpoint, bad) as sending:
            sending.send_multipart([b""] * 5000)
            most, until = 0, time.monotonic() + WAIT_S
            while read < 4998 and time.monotonic() < until:
                before = read
                assert list(router.messages(64)) == []
                most = max(most, read - before)
            assert read == 4998  # the empty part and one more were read before
            assert most <= 256
    finally:
        router.close()


class Frame:
    """The part of a frame that names its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def get(self, option: int) -> int:
        assert option == zmq.SRCFD
        return self._descriptor


def test_messages_of_an_ended_connection_are_not_attributed_to_the_next(folder: KeyFolder) -> None:
    """Its descriptor is reused: a late message of the earlier connection, and replies to it, are dropped."""
    keys = new(folder, "good")
    traffic = Traffic()
    router = open_encrypted(folder, ConnectionQuota(RequestLimits(), traffic))
    try:
        with dealer(router.listen("tcp://127.0.0.1:0").endpoint, keys) as asking:
            asking.send(b"echo")
            found: list[Any] = []
            wait_until(lambda: found.extend(router.messages(64)) or found)
            ((peer, _),) = found
            frame: Any = Frame(peer.descriptor)
            number = int.from_bytes(peer.sender[1:])
            before, after = (bytes(1) + ((number + step) % (1 << 32)).to_bytes(4) for step in (-1, 1))
            peers = router._peers
            assert peers.peer_of(peer.sender, frame) is peer
            assert peers.peer_of(before, frame) is None
            counts = peer.sent, peer.unread, router._quota.unread
            assert peers.reserve_reply(peer, 100)
            peers.release_reply(peer, 100)
            assert (peer.sent, peer.unread, router._quota.unread) == counts
            later = peers.peer_of(after, frame)
            assert later is not None
            assert later is not peer
            assert peer.closed
            router.send(peer, False, b"echo")
            assert (traffic.sent, traffic.dropped_gone) == (0, 1)
            wrapped = bytes(1) + (5).to_bytes(4)
            later.sender = bytes(1) + ((1 << 32) - 5).to_bytes(4)  # 32-bit numbers wrap around
            assert peers.peer_of(wrapped, frame) not in (None, later)
    finally:
        router.close()


def test_a_chosen_routing_id_is_refused(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """Otherwise a client could take the id of another, whose connection broke, and get its replies."""
    keys = new(folder, "good")
    serving = serve()
    with dealer(serving.endpoint, keys, ROUTING_ID=b"someone") as asking:
        asking.send(b"echo")
        wait_until(lambda: serving.traffic.cut_off)
    assert serving.asked == []


class Halting:
    """A proxy that forwards a number of bytes and then stalls."""

    def __init__(self, endpoint: str, most: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self._to = endpoint
        self._most = most
        self.handed = 0
        self.ended = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._listening.settimeout(WAIT_S)
        near, _ = self._listening.accept()
        with near, raw(self._to) as far, selectors.DefaultSelector() as selector:
            selector.register(far, selectors.EVENT_READ)
            selector.register(near, selectors.EVENT_READ)
            while not self._stopping:
                for key, _ in selector.select(0.02):
                    try:
                        data = key.fileobj.recv(
                            min(1 << 16, self._most - self.handed) if key.fileobj is near else 1 << 16
                        )  # type: ignore[union-attr]
                    except OSError:
                        data = b""
                    if key.fileobj is far:
                        if not data:
                            self.ended = True
                            return
                        near.sendall(data)
                        continue
                    far.sendall(data)
                    self.handed += len(data)
                    if not data or self.handed >= self._most:
                        selector.unregister(near)

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._listening.close()


@ON_LINUX
def test_messages_that_do_not_end_are_bounded_over_all_connections(
    folder: KeyFolder, serve: Callable[..., Serving]
) -> None:
    keys, good = new(folder, "slow"), new(folder, "good")
    limits = RequestLimits(max_message_bytes=4 << 20, max_unfinished_bytes=5 << 20)
    serving = serve(limits=limits)
    halting = [Halting(serving.endpoint, 3 << 20) for _ in range(3)]
    try:
        with (
            Client(serving.endpoint, keys=good, timeout_s=WAIT_S) as client,
            dealer(halting[0].endpoint, keys) as first,
            dealer(halting[1].endpoint, keys) as second,
        ):
            first.send(bytes(3_900_000))
            second.send(bytes(3_900_000))
            wait_until(lambda: all(each.handed >= 3 << 20 for each in halting[:2]))
            wait_until(lambda: any(each.ended for each in halting[:2]))  # their sum exceeds the limit
            client.health()
            with dealer(halting[2].endpoint, keys) as third:
                third.send(bytes(3_900_000))
                wait_until(lambda: sum(each.ended for each in halting) == 2)
            client.health()
        assert serving.traffic.cut_off == 2
    finally:
        for each in halting:
            each.close()


@ON_LINUX
def test_unauthenticated_connections_hold_no_memory(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """Before authentication a connection may send a command as long as a message."""
    good = new(folder, "good")
    serving = serve(limits=RequestLimits(max_message_bytes=4 << 20, max_unfinished_bytes=5 << 20))
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    with Client(serving.endpoint, keys=good, timeout_s=WAIT_S) as client, ExitStack() as opened:
        client.health()
        for _ in range(6):
            connection = opened.enter_context(raw(serving.endpoint))
            with suppress(ConnectionError):
                connection.sendall(greeting + b"\x06" + (4_000_000).to_bytes(8) + bytes(3_000_000))
        wait_until(lambda: serving.traffic.cut_off)  # for what they hold, not for slowness
        wait_until(lambda: len(serving.router._peers) == 1)
        assert client.list_robots() == ["pendulum"]  # on the connection that it had
    assert serving.asked == ["key good", "key good"]


@ON_LINUX
def test_unread_replies_are_bounded(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """Of one connection and over all; small ones too."""
    keys, good = new(folder, "deaf"), new(folder, "good")
    limits = RequestLimits(max_reply_bytes=4 << 20, max_unread_bytes=10 << 20)
    serving = serve(limits=limits)
    with (
        Client(serving.endpoint, keys=good, timeout_s=WAIT_S) as client,
        dealer(serving.endpoint, keys, RCVHWM=1, RCVBUF=1 << 16) as deaf,
    ):
        message = b"echo" + bytes(20_000)
        for _ in range(2000):  # 40 MB of replies
            deaf.send(message)
        wait_until(lambda: serving.asked.count("key deaf") == 2000)
        assert serving.traffic.dropped_slow_reader > 500
        assert serving.router._quota.unread <= limits.max_reply_bytes + (1 << 20)
        client.health()
        with (
            dealer(serving.endpoint, keys, RCVHWM=1, RCVBUF=1 << 16) as second,
            dealer(serving.endpoint, keys, RCVHWM=1, RCVBUF=1 << 16) as third,
        ):
            for each in (second, third):
                for _ in range(1000):
                    each.send(message)
            wait_until(lambda: serving.asked.count("key deaf") == 4000 or serving.traffic.cut_off)
            wait_until(lambda: serving.router._quota.unread <= limits.max_unread_bytes)
        assert client.list_robots() == ["pendulum"]


@ON_LINUX
def test_unread_replies_are_bounded_at_each_reply(folder: KeyFolder) -> None:
    """Not only ten times a second, because many replies are sent between two checks."""
    keys = new(folder, "deaf")
    limits = RequestLimits(max_reply_bytes=16 << 20, max_unread_bytes=4 << 20)
    router = open_encrypted(folder, ConnectionQuota(limits, Traffic()))
    reply = bytes(500_000)
    try:
        endpoint = router.listen("tcp://127.0.0.1:0").endpoint
        with (
            dealer(endpoint, keys, RCVHWM=1, RCVBUF=1 << 16) as one,
            dealer(endpoint, keys, RCVHWM=1, RCVBUF=1 << 16) as two,
        ):
            one.send(b"echo")
            two.send(b"echo")
            found: list[Any] = []
            wait_until(lambda: found.extend(router.messages(64)) or len(found) == 2)
            for _ in range(40):  # 20 MB to each
                for peer, _ in found:
                    router.send(peer, False, reply)
                    assert router._quota.unread <= limits.max_unread_bytes + len(reply) + 100
            assert any(peer.closed for peer, _ in found)
    finally:
        router.close()


@ON_LINUX
def test_a_transport_closes_when_peers_with_unread_replies_were_just_reset(folder: KeyFolder) -> None:
    """libzmq waited for ever for one of them in a third of the rounds: its listener had no limit for unsent replies."""
    keys, reply = new(folder, "deaf"), bytes(200_000)
    for _ in range(100):
        router = open_encrypted(folder, ConnectionQuota(RequestLimits(), Traffic()))
        endpoint = router.listen("tcp://127.0.0.1:0").endpoint
        with ExitStack() as peers:
            for _ in range(8):
                peers.enter_context(dealer(endpoint, keys, RCVHWM=1, RCVBUF=1 << 16)).send(b"echo")
            messages: list[Any] = []
            wait_until(lambda: messages.extend(router.messages(64)) or len(messages) == 8)  # noqa: B023
            for peer, _ in messages:
                for _ in range(40):  # 8 MB: more than the connection takes
                    router.send(peer, False, reply)
                router._quota.disconnect(peer, "it leaves")
            closing = threading.Thread(target=router.close, daemon=True)
            closing.start()
            closing.join(WAIT_S)
            assert not closing.is_alive()


@ON_LINUX
def test_one_connection_holds_at_most_two_messages(folder: KeyFolder) -> None:
    """Whatever the bound over all. The socket is not read here, so that messages stay in its memory."""
    keys = new(folder, "good")
    traffic = Traffic()
    router = open_encrypted(folder, ConnectionQuota(RequestLimits(max_message_bytes=2 << 20), traffic))
    try:
        with dealer(router.listen("tcp://127.0.0.1:0").endpoint, keys) as asking:
            for _ in range(5):
                asking.send(bytes(2_000_000))
            wait_until(lambda: list(router.messages(0)) or router.check() or traffic.cut_off)
            assert traffic.cut_off == 1
    finally:
        router.close()


def test_a_client_that_reads_gets_many_long_replies(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    """Replies that were read no longer count."""
    keys = new(folder, "good")
    limits = RequestLimits(max_reply_bytes=1 << 20, max_unread_bytes=2 << 20)
    serving = serve(limits=limits)
    message = b"echo" + bytes(900_000)
    with dealer(serving.endpoint, keys) as asking:
        for _ in range(40):
            asking.send(message)
            assert asking.recv() == message
    assert serving.traffic.dropped_slow_reader == serving.traffic.cut_off == 0


@ON_LINUX
def test_connections_are_bounded_and_idle_ones_make_room(folder: KeyFolder, serve: Callable[..., Serving]) -> None:
    keys = new(folder, "good")
    serving = serve(limits=RequestLimits(max_connections=20))
    with Client(serving.endpoint, keys=keys, timeout_s=WAIT_S) as client:
        client.health()
        idle = [socket.create_connection(("127.0.0.1", int(serving.endpoint.rpartition(":")[2]))) for _ in range(100)]
        wait_until(lambda: serving.traffic.cut_off >= 81)
        assert len(serving.router._peers) <= 20
        assert client.list_robots() == ["pendulum"]  # on the connection that it had
        with Client(serving.endpoint, keys=keys, timeout_s=WAIT_S) as another:
            assert another.list_robots() == ["pendulum"]
        for each in idle:
            each.close()


# the audit log


def test_the_audit_log_names_caller_and_robot(folder: KeyFolder, serve: Callable[..., Serving], tmp_path: Path) -> None:
    from dyn_service.service.server.administration.audit import close_audit, open_audit

    loader, sender = new(folder, "lab", Role.LOAD), new(folder, "panda")
    serving = serve()
    file = tmp_path / "audit.jsonl"
    before = os.umask(0)
    try:
        handler = open_audit(file)
    finally:
        os.umask(before)
    try:
        with Client(serving.endpoint, keys=loader, timeout_s=WAIT_S) as client:
            fingerprint = client.load_robot(URDF / "scara.urdf").fingerprint
            client.unload_robot("scara")
        with Client(serving.endpoint, keys=sender, timeout_s=WAIT_S) as client:
            for _ in range(50):
                with pytest.raises(PermissionDeniedError):
                    client.unload_robot("pendulum")
    finally:
        close_audit(handler)
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told = [(line["who"], line["query"], line.get("robot"), line.get("fingerprint"), line["outcome"]) for line in lines]
    assert told[:3] == [
        ("key lab", "load_robot", "scara", fingerprint, "ok"),
        ("key lab", "unload_robot", "scara", fingerprint, "ok"),
        ("key panda", "unload_robot", "pendulum", None, "PERMISSION_DENIED"),
    ]
    assert len(lines) < 50  # at most one refusal a second
    file.chmod(0o644)
    with pytest.raises(PermissionDeniedError, match="chmod 600"):
        open_audit(file)
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(PermissionDeniedError, match="cannot be written"):
        open_audit(link)


def test_a_full_disk_under_the_audit_log_fails_no_request(tmp_path: Path) -> None:
    code = f"""
import os, resource, signal
from pathlib import Path
from dyn_service.service.server.administration.access import Caller, Role
from dyn_service.service.server.administration.audit import close_audit, open_audit, record_done
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = Path({str(tmp_path / "audit")!r})
handler = open_audit(file)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
for _ in range(20):
    record_done(Caller("key lab", Role.LOAD), "load_robot", "panda", "f" * 32)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
record_done(Caller("key lab", Role.LOAD), "load_robot", "last", "f" * 32)
close_audit(handler)
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
    took = []
    for number in range(10):
        keys = new(folder, f"k{number}")
        with dealer(serving.endpoint, keys) as asking:
            asking.send(b"echo")
            asking.recv()
            cut = serving.traffic.cut_off
            folder.revoke(f"k{number}")
            took.append(wait_until(lambda cut=cut: serving.traffic.cut_off > cut))
    print(f"revoked to cut: median {1e3 * np.median(took):.0f} ms, longest {1e3 * max(took):.0f} ms")
