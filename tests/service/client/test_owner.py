"""Clients and subscribers over ipc reject messages from processes of other users, except root."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
import zmq

from dyn_service import AsyncClient, Client, PermissionDeniedError
from dyn_service.graph.bags.requests import RequestRecorder
from tests.conftest import ROOT
from tests.service.client.all_clients import WAIT_S

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as other users")

NOBODY, OTHER = 65534, 65533
SERVE = """
import os, sys
import msgpack, zmq
uid, requests, topic = int(sys.argv[1]), *sys.argv[2:]
os.umask(0)
os.setgroups([]); os.setgid(uid); os.setuid(uid)
context = zmq.Context()
context.linger = 0  # before they bind
router, publisher = context.socket(zmq.ROUTER), context.socket(zmq.XPUB)
router.bind(requests)
publisher.bind(topic)
print("ready", flush=True)
poller = zmq.Poller()
for each in (router, publisher, sys.stdin.fileno()):
    poller.register(each, zmq.POLLIN)
while sys.stdin.fileno() not in (ready := dict(poller.poll())):
    if publisher in ready:
        publisher.recv()
        publisher.send(b"a pose")
    if router in ready:
        sender, request = router.recv_multipart()
        reply = {"v": 1, "id": msgpack.unpackb(request)["id"], "ok": True, "outputs": {"robots": [f"of {uid}"]}}
        router.send_multipart([sender, msgpack.packb(reply)])
context.destroy(linger=0)
"""
"""A server and publisher run by a user; both end when their standard input closes."""
ASK = """
import json, os, sys
from tests.service.client.all_clients import all_of
uid = int(sys.argv[1])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
print(json.dumps([all_of(*places) for places in json.loads(sys.argv[2])]))
"""


@contextmanager
def serving(uid: int, *endpoints: str) -> Iterator[None]:
    command = [sys.executable, "-c", SERVE, str(uid), *endpoints]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield
        assert server.stdin is not None
        server.stdin.close()


@contextmanager
def made_folder() -> Iterator[Path]:
    """A folder in which every user may create sockets."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def folder() -> Iterator[Path]:
    with made_folder() as temporary_folder:
        yield temporary_folder


KINDS, SERVERS, CLIENTS = ("a file", "an abstract name"), (0, NOBODY), (0, NOBODY, OTHER)
Asked = dict[tuple[str, int], list[str]]


@pytest.fixture(scope="module")
def answers() -> Iterator[tuple[Asked, dict[int, list[list[str]]]]]:
    """The endpoints by kind and the server's user, and the answers from them by the client's user."""
    with ExitStack() as stack:
        folder = stack.enter_context(made_folder())
        places = {
            (kind, server): [
                f"ipc://{'' if kind == 'a file' else '@'}{folder}/{name}-{server}" for name in ("requests", "topic")
            ]
            for kind in KINDS
            for server in SERVERS
        }
        for (_, server), endpoints in places.items():
            stack.enter_context(serving(server, *endpoints))
        outcomes = {}
        for client in CLIENTS:
            command = [sys.executable, "-c", ASK, str(client), json.dumps([*places.values()])]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
            assert done.returncode == 0, done.stderr
            outcomes[client] = json.loads(done.stdout)
        yield places, outcomes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
def test_only_the_own_user_and_root_are_accepted(
    answers: tuple[Asked, dict[int, list[list[str]]]], server: int, client: int, kind: str
) -> None:
    questions, outcomes_by_client = answers
    places = questions[kind, server]
    answer = outcomes_by_client[client][list(questions).index((kind, server))]
    if server in (0, client):
        assert answer == [f"['of {server}']", f"['of {server}']", "a pose"]
        return
    uids = ", ".join(map(str, sorted({0, client})))
    cause = f"the process at the other end runs as uid {server}, allowed: {uids}; run both as the same user"
    refusals = [f"PermissionDeniedError: {places[0]}: {cause}"] * 2
    refusals += [f"PermissionDeniedError: topic '/pose': {places[1]}: {cause}; its messages are dropped"]
    assert answer == refusals


def test_after_a_reconnect(folder: Path) -> None:
    """A server replaces one that ended at the same endpoint; the client reconnects automatically."""
    places = [f"ipc://{folder}/{name}" for name in ("requests", "topic")]

    async def run() -> None:
        with Client(places[0], timeout_s=WAIT_S) as client:
            async with AsyncClient(places[0], timeout_s=WAIT_S) as other:
                for _ in range(2):
                    with serving(0, *places):
                        assert client.list_robots() == await other.list_robots() == ["of 0"]
                    with serving(NOBODY, *places):
                        for _ in range(3):
                            with pytest.raises(PermissionDeniedError, match=f"uid {NOBODY}, allowed: 0;"):
                                client.list_robots()
                            with pytest.raises(PermissionDeniedError, match=f"uid {NOBODY}, allowed: 0;"):
                                await other.list_robots()

    asyncio.run(run())


def test_a_recorder_of_requests(folder: Path) -> None:
    """`dyn bag record --listen` forwards requests to the server over its own sockets."""
    places = [f"ipc://{folder}/{name}" for name in ("requests", "topic")]
    with serving(NOBODY, *places), zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        recorder = RequestRecorder(places[0], f"ipc://{folder}/recorder", Mock(), print)
        client.connect(recorder.endpoint)
        client.send(b"\x81\xa2id\x01")
        with pytest.raises(PermissionDeniedError, match=f"uid {NOBODY}, allowed: 0;"):
            recorder.run(lambda: True)
        recorder.close()


GREETING = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00NULL" + bytes(48)
READY = b"\x05READY" + b"".join(
    bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
    for name, value in {b"Socket-Type": b"ROUTER", b"Peer-Address": b"localhost:0:0:1"}.items()
)
HANDSHAKE = GREETING + b"\x04" + bytes([len(READY)]) + READY


def test_the_user_is_reported_by_the_system(folder: Path) -> None:
    """A property that names another user is ignored, and the server gets no byte, so it has no request."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/requests")
        os.seteuid(NOBODY)
        try:
            listening.listen()  # the system records the user who makes this call
        finally:
            os.seteuid(0)
        with Client(f"ipc://{folder}/requests", timeout_s=WAIT_S) as client, ThreadPoolExecutor(1) as other:
            call = other.submit(client.list_robots)
            accepted, _ = listening.accept()
            with accepted:
                with suppress(BrokenPipeError):  # the client has closed its end
                    accepted.sendall(HANDSHAKE)
                with pytest.raises(PermissionDeniedError, match=f"runs as uid {NOBODY}, allowed: 0;"):
                    call.result(WAIT_S)
                with suppress(ConnectionResetError):  # it has not read what was sent
                    assert accepted.recv(1) == b""
