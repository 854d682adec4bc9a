"""A server stops within its time, whatever its peers do: by `stop`, by a signal, at the end of the interpreter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import Robot, Server
from dyn_service.errors import DeadlineExceededError
from dyn_service.service.protocol.keys import Keys, read_keys
from dyn_service.service.protocol.messages import Role
from dyn_service.service.server.administration.access import KeyFolder
from tests.conftest import ROOT, URDF
from tests.phrases import naming
from tests.service.conftest import WAIT_S, array, eventually, request
from tests.service.server.raw_peers import MECHANISMS, RawPeer, connected, gauges

BATCH = msgpack.packb(request(inputs={"q": array(np.zeros((400_000, 1)))}))
"""Its reply is longer than the kernel keeps for a connection."""


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    file = KeyFolder(tmp_path / "keys").make("good", Role.ADMIN)
    assert file is not None
    return read_keys(file)


def options(mechanism: str, tmp_path: Path) -> dict[str, Any]:
    return {"keys": "required" if mechanism == "CURVE" else "remote", "key_folder": KeyFolder(tmp_path / "keys")}


def annoy(endpoint: str, keys: Keys | None, stack: ExitStack) -> None:
    """Makes connections that do not read, are cut off in each step of the handshake, or send noise."""

    def connect() -> RawPeer:
        return stack.enter_context(RawPeer(endpoint, keys))

    deaf, idle, silent, greeted, noisy, leaver = (connect() for _ in range(6))
    idle.shake_hands()
    deaf.shake_hands()
    deaf.socket.sendall(deaf.part(BATCH) * 1)
    if keys is not None:
        greeted.welcome()
        leaver.welcome()
    leaver.socket.close()
    noisy.socket.sendall(b"\xff" * 100)
    with suppress(ConnectionError):
        silent.socket.sendall(b"\xff" + bytes(8) + b"\x7f")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_stop_returns_whatever_peers_do(
    pendulum: Robot, keys: Keys, tmp_path: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyn_service.service.server.app._GRACE_S", 0.1)
    pendulum.prepare(["gravity_forces"])
    files = Path("/proc/self/fd")
    open_files = len(os.listdir(files)) if files.exists() else 0
    for _ in range(10):
        server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"], **options(mechanism, tmp_path))
        server.start()
        with ExitStack() as stack:
            annoy(server.endpoints[0], keys if mechanism == "CURVE" else None, stack)
            eventually(lambda: gauges(server)["unread_bytes"])  # noqa: B023
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            stopping.join(WAIT_S)
            assert not stopping.is_alive()
    if files.exists():
        assert len(os.listdir(files)) <= open_files


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_stopping_server_sends_the_rest_of_its_replies(
    pendulum: Robot, keys: Keys, tmp_path: Path, mechanism: str
) -> None:
    """To a peer that begins to read late."""
    pendulum.prepare(["gravity_forces"])
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"], **options(mechanism, tmp_path))
    server.start()
    with RawPeer(server.endpoints[0], keys if mechanism == "CURVE" else None).shake_hands() as peer:
        peer.socket.sendall(peer.part(BATCH))
        eventually(lambda: gauges(server)["unread_bytes"])
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        eventually(lambda: server._step == "waits for replies to be sent")
        assert msgpack.unpackb(peer.receive())["ok"]
        stopping.join(WAIT_S)
        assert not stopping.is_alive()


def test_a_stop_that_takes_too_long_names_what_it_waits_for(pendulum: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.service.server.app._STOP_S", 0.2)
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.start()
    gate, close = threading.Event(), server._worker.close
    monkeypatch.setattr(server._worker, "close", lambda: gate.wait(WAIT_S) and close())
    for _ in range(2):
        with pytest.raises(DeadlineExceededError, match=naming("0.2 s", "waits for workers to end")):
            server.stop()
    gate.set()
    assert server._thread is not None
    server._thread.join(WAIT_S)
    assert not server._thread.is_alive()


SERVE = """
import sys, threading
from dyn_service import Robot, Server
from dyn_service.service.server.administration.access import KeyFolder
robot = Robot.from_urdf(sys.argv[1])
robot.prepare(["gravity_forces"])
server = Server([robot], endpoints=["tcp://127.0.0.1:0"], keys=sys.argv[2], key_folder=KeyFolder(sys.argv[3]))
if sys.argv[4] == "signal":
    server.serve_forever(lambda: print(*server.endpoints, flush=True))
else:
    server.start()
    print(*server.endpoints, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("ending", ["signal", "end of the interpreter"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_process_ends_whatever_peers_do(keys: Keys, tmp_path: Path, mechanism: str, ending: str) -> None:
    policy = "required" if mechanism == "CURVE" else "remote"
    words = [sys.executable, "-c", SERVE, str(URDF / "pendulum.urdf"), policy, str(tmp_path / "keys"), ending]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process,
        ExitStack() as stack,
    ):
        try:
            assert process.stdout is not None
            endpoint = process.stdout.readline().strip()
            annoy(endpoint, keys if mechanism == "CURVE" else None, stack)
            if ending == "signal":
                process.send_signal(signal.SIGTERM)
                assert process.wait(WAIT_S) == 0
            else:
                process.communicate("\n", timeout=WAIT_S)
                assert process.returncode == 0
        finally:
            process.kill()
    with pytest.raises(ConnectionRefusedError), connected(endpoint) as late:
        late.recv(1)


def test_a_server_is_stopped_while_connections_arrive(pendulum: Robot) -> None:
    """Each connection is answered or closed; none is left without an end."""
    for _ in range(5):
        server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
        server.start()
        peers: list[socket.socket] = []
        (endpoint,) = server.endpoints

        def connect(peers: list[socket.socket] = peers, endpoint: str = endpoint) -> None:
            with suppress(OSError):
                while len(peers) < 1000:
                    peers.append(connected(endpoint))

        connecting = threading.Thread(target=connect)
        connecting.start()
        eventually(lambda: len(peers) > 20)  # noqa: B023
        server.stop()
        connecting.join(WAIT_S)
        assert not connecting.is_alive()
        for peer in peers:
            with suppress(ConnectionError):
                while peer.recv(4096):
                    pass
            peer.close()
