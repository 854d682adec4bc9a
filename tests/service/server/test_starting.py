"""Requests to a server whose workers start slowly or not at all."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dyn_service import Client, Robot, Server
from dyn_service.errors import DynError, FailedPreconditionError, UnavailableError
from tests.service.conftest import WAIT_S, Bare, eventually, request
from tests.service.protocol.rfc_peers import GREETING_SIZE, frame, greeting, null_ready
from tests.service.server.pools import simulate
from tests.service.server.raw_peers import look, receive_exactly, receive_frame

HEALTH = {"v": 1, "id": 1, "query": "health"}


class Starting:
    """A server that starts in a thread; its workers start when the test allows it."""

    def __init__(self, robot: Robot, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/s"
        self.path = folder / "s"
        self._gate = folder / "gate"
        self.server = Server([robot], endpoints=[self.endpoint], workers=1)
        self.fault: BaseException | None = None
        self.thread = threading.Thread(target=self._start)

    def _start(self) -> None:
        try:
            self.server.start()
        except BaseException as fault:
            self.fault = fault

    def begin(self) -> None:
        self.thread.start()
        eventually(lambda: self.fault or self.server.endpoints)

    def let_workers_come(self) -> None:
        self._gate.touch()

    def end(self) -> None:
        self.let_workers_come()
        self.server.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def starting(pendulum: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starting]:
    pendulum.prepare(["gravity_forces"])
    script = tmp_path / "slow_python"
    script.write_text(f'#!/bin/sh\nuntil [ -e {tmp_path}/gate ]; do sleep 0.02; done\nexec {sys.executable} "$@"\n')
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    server = Starting(pendulum, tmp_path)
    yield server
    if server.thread.ident:
        server.end()


def test_health_reports_a_starting_server(starting: Starting, bare: Callable[..., Bare]) -> None:
    """Alive and not ready: requests that need no worker are answered, others wait, and no connection is closed."""
    starting.begin()
    asking, waiting = bare(starting.endpoint), bare(starting.endpoint)
    outputs = asking.ask(HEALTH)["outputs"]
    assert (outputs["status"], outputs["ready"]) == ("ok", False)
    assert asking.ask(request())["ok"]
    waiting.send(simulate(5, steps=2, states=1))
    with Client(starting.endpoint, timeout_s=WAIT_S) as client:
        assert client.list_robots() == ["pendulum"]
    assert starting.thread.is_alive()  # `start` comes back, and `dyn serve` says `ready:`, when it is
    starting.let_workers_come()
    starting.thread.join(WAIT_S)
    assert starting.fault is None
    assert asking.ask(HEALTH)["outputs"]["ready"]
    reply = waiting.receive()
    while "notice" in reply:
        reply = waiting.receive()
    assert (reply["id"], reply["ok"]) == (5, True)
    assert starting.server.service.metrics.traffic.cut_off == 0


def test_a_peer_that_greets_in_pieces_while_a_server_starts_stays(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting.begin()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(WAIT_S)
        peer.connect(str(starting.path))
        peer.sendall(greeting(minor=0))
        time.sleep(0.05)  # so that the pieces are read separately
        peer.sendall(null_ready())
        receive_exactly(peer, GREETING_SIZE)
        receive_frame(peer)
        monkeypatch.setattr("dyn_service.service.server.transport.connections._HANDSHAKE_S", 0.0)
        look(starting.server)  # a greeting may take no time from here on
        starting.let_workers_come()
        starting.thread.join(WAIT_S)
        peer.sendall(frame(b"\x80"))
        assert peer.recv(1 << 16)
        eventually(lambda: starting.server.service.metrics.traffic.sent)
    assert starting.server.service.metrics.traffic.cut_off == 0


def test_a_starting_server_does_not_spin(starting: Starting) -> None:
    """Its loop runs as often as an idle server's."""
    starting.begin()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(starting.path))
        peer.sendall(greeting(minor=0) + null_ready())
        begins_s: list[float] = []
        take_turn = starting.server._turn

        def timed(most_s: float) -> None:
            begins_s.append(time.monotonic())
            take_turn(most_s)

        starting.server._turn = timed  # type: ignore[method-assign]
        eventually(lambda: len(begins_s) > 10)
        assert begins_s[10] - begins_s[0] > 0.1  # 10 ms each; an idle server waits for 50 ms


def test_stop_ends_a_start(starting: Starting) -> None:
    starting.begin()
    starting.server.stop()
    starting.thread.join(WAIT_S)
    assert isinstance(starting.fault, FailedPreconditionError)
    assert "was stopped while it started" in str(starting.fault)
    assert starting.server.endpoints == ()
    assert not starting.path.exists()


def test_a_failed_start_raises_its_cause_also_when_stopped(pendulum: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the cause, or that it was stopped, never that a socket is closed."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    for number in range(12):
        server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"], workers=1)
        faults: list[DynError] = []

        def start(server: Server = server, faults: list[DynError] = faults) -> None:
            with pytest.raises((UnavailableError, FailedPreconditionError)) as raised:
                server.start()
            faults.append(raised.value)

        thread = threading.Thread(target=start)
        thread.start()
        time.sleep(0.002 * number)
        server.stop()
        server.stop()
        thread.join(WAIT_S)
        assert len(faults) == 1


def test_a_server_that_was_stopped_before_it_ran_just_ends(pendulum: Robot) -> None:
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.bind()
    server.stop()
    server.serve_forever()
    server.stop()


def test_the_servers_thread_is_restored(pendulum: Robot) -> None:
    """A server that runs in a thread of another program restores that thread's settings."""
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    server.bind()
    server._stopping = True
    server.serve_forever()
    robot: Any = Robot.from_urdf(Path(__file__).parents[3] / "urdf" / "pendulum.urdf")
    assert robot.mass_matrix([0.1]).shape == (1, 1)
