"""Calls that wait for a compiler report it and wait as long as the caller allows. Tests use gates, not sleeps."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from dyn_service import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    Robot,
    Server,
)
from dyn_service.kernels import compiling, store
from dyn_service.service.client.retries import MAX_WAIT_S
from dyn_service.service.protocol.messages import decode_notice
from dyn_service.service.server.answering.jobs import CompileClock
from tests.conftest import ROOT, URDF
from tests.phrases import naming, unnamed
from tests.service.client.test_clients import Impostor
from tests.service.conftest import WAIT_MS, array, eventually, request
from tests.service.server.raw_peers import counters
from tests.service.server.test_server import health

Q = np.array([0.5])
LONG_MS = 20_000.0
"""`compile_wait_ms` of requests that must not time out."""

DEADLINE_MS = 1500.0
"""Deadline of requests behind a compiler: much longer than any other wait, also on a busy machine."""


LIMIT_S = 1.0
"""Time limit of calls that outlast it: shorter than until the second notice, much longer than until the first."""


class Gate:
    """A compiler that waits: `begun` is set when it is called; `open` releases this call and all later ones. Until then
    no kernel is in the store.
    """

    def __init__(self) -> None:
        self.begun, self._gate = threading.Event(), threading.Event()

    def open(self) -> None:
        self._gate.set()

    def is_open(self) -> bool:
        return self._gate.is_set()

    def wait(self) -> None:
        self.begun.set()
        assert self._gate.wait(WAIT_MS / 1e3)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, compiled, load_kernel = Gate(), compiling.compile_ir, store.load

    def slow(text: str, **options: bool) -> bytes:
        gate.wait()
        return compiled(text, **options)

    monkeypatch.setattr(store, "load", lambda key: load_kernel(key) if gate.is_open() else None)
    monkeypatch.setattr(compiling, "compile_ir", slow)
    yield gate
    gate.open()


@pytest.fixture
def server(gate: Gate) -> Iterator[Server]:
    """A server whose robot has no kernels yet."""
    with Server([Robot.from_urdf(URDF / "pendulum.urdf")], endpoints=["tcp://127.0.0.1:0"]) as server:
        yield server
        gate.open()  # a stopping server waits for its compiler


def test_notices_come_before_the_reply(server: Server, gate: Gate, bare: Any) -> None:
    peer = bare(server.endpoints[0])
    peer.send(request(id=5, compile_wait_ms=LONG_MS))
    for least_ms in (20.0, 1000.0):  # no notice for short waits; then one per second
        message = peer.receive()
        assert message.keys() == {"v", "id", "notice"}
        assert (message["v"], message["id"]) == (1, 5)
        news = message["notice"]
        assert news.pop("elapsed_ms") > least_ms
        text = "gravity_forces of robot 'pendulum' is being loaded or compiled"
        assert news == {"state": "compiling", "text": text, "again_ms": 1000.0}
    gate.open()
    assert peer.receive()["ok"]
    assert server.service.metrics.to_dict()["counters"]["notices"] >= 2
    assert peer.ask(request(id=6, compile_wait_ms=LONG_MS))["id"] == 6  # compiled: no notice comes first


def test_requests_without_compile_wait_get_no_notices(server: Server, gate: Gate, bare: Any) -> None:
    quiet, req, notified = bare(server.endpoints[0]), bare(server.endpoints[0], zmq.REQ), bare(server.endpoints[0])
    quiet.send(request(id=1))
    assert gate.begun.wait(WAIT_MS / 1e3)
    req.send(request(id=2, compile_wait_ms=LONG_MS))  # a REQ socket receives one reply, so a notice would replace it
    notified.send(request(id=3, compile_wait_ms=LONG_MS))
    for _ in range(2):
        assert "notice" in notified.receive()
    gate.open()
    assert quiet.receive()["ok"]
    assert req.receive()["ok"]
    assert notified.receive()["ok"]


def test_time_behind_a_compiler_does_not_count_towards_the_deadline(server: Server, gate: Gate, bare: Any) -> None:
    """Its deadline passes in the queue while a kernel is compiled: this does not count, up to `compile_wait_ms`."""
    first, second = bare(server.endpoints[0]), bare(server.endpoints[0])
    first.send(request(id=1))
    assert gate.begun.wait(WAIT_MS / 1e3)
    batch = {"q": array(np.zeros((20_000, 1)))}  # so long that it is queued undecoded
    second.send(request(id=2, inputs=batch, deadline_ms=DEADLINE_MS, compile_wait_ms=LONG_MS))
    assert unnamed(second.receive()["notice"]["text"], "gravity_forces", "'pendulum'") == []
    second.send(request(id=3, inputs=batch, deadline_ms=DEADLINE_MS, compile_wait_ms=1.0))
    assert second.receive()["id"] == 3  # a notice: the server has received it
    second.send(request(id=4, inputs=batch, deadline_ms=DEADLINE_MS))
    second.send(request(id=5, inputs=batch, deadline_ms=DEADLINE_MS, compile_wait_ms=LONG_MS))
    message = second.receive()
    while message["id"] != 5:
        message = second.receive()
    assert "notice" in message  # so request 4, sent before 5, has been received too
    threading.Event().wait(1.2e-3 * DEADLINE_MS)
    gate.open()
    replies: dict[int, Any] = {}
    while replies.keys() != {2, 3, 4, 5}:
        message = second.receive()
        replies |= {} if "notice" in message else {message["id"]: message}
    assert replies[2]["ok"]
    assert replies[5]["ok"]
    for number in (3, 4):
        assert replies[number]["error"]["code"] == "DEADLINE_EXCEEDED"


def test_other_requests_are_answered_while_the_server_compiles(server: Server, gate: Gate, bare: Any) -> None:
    peer = bare(server.endpoints[0])
    peer.send(request(id=1))
    assert gate.begun.wait(WAIT_MS / 1e3)
    assert bare(server.endpoints[0]).ask(health(2))["ok"]


ASKED: dict[str, Callable[[Any], Any]] = {
    "a state": lambda robot: robot.inverse_dynamics(Q, Q, Q),
    "a batch": lambda robot: robot.inverse_dynamics(Q[None], Q, Q),
    "verify": lambda robot: robot.verify(Q, Q, Q)["mass_matrix"],
    "simulate": lambda robot: robot.simulate(Q, Q, dt=1e-3, steps=3).q,
}


def run(kind: str, endpoint: str, ask: Callable[[Any], Any], timeout_s: float, **arguments: Any) -> Any:
    """Returns the answer by either client. `timeout_s` applies to `ask` only, not to the description of the robot."""
    arguments["timeout_s"] = WAIT_MS / 1e3
    if kind == "Client":
        with Client(endpoint, **arguments) as client:
            return ask(client.robot("pendulum").with_timeout(timeout_s))

    async def awaited() -> Any:
        async with AsyncClient(endpoint, **arguments) as client:
            robot = await client.robot("pendulum")
            return await ask(robot.with_timeout(timeout_s))

    return asyncio.run(awaited())


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
@pytest.mark.parametrize("query", ASKED)
def test_calls_outlast_the_compiler(server: Server, gate: Gate, pendulum: Robot, kind: str, query: str) -> None:
    """The second notice arrives 1 s after the first, when the time limit has passed."""
    notices: list[str] = []

    def on_wait(text: str) -> None:
        notices.append(text)
        if len(notices) == 2:
            gate.open()

    def ask(robot: Any) -> Any:
        if kind == "AsyncClient" and query == "verify":
            return _picked(robot.verify(Q, Q, Q), lambda residuals: residuals["mass_matrix"])
        if kind == "AsyncClient" and query == "simulate":
            return _picked(robot.simulate(Q, Q, dt=1e-3, steps=3), lambda motion: motion.q)
        return ASKED[query](robot)

    answer = run(kind, server.endpoints[0], ask, timeout_s=LIMIT_S, on_wait=on_wait)
    np.testing.assert_array_equal(answer, ASKED[query](pendulum))
    assert len(notices) >= 2
    assert all(text.endswith("of robot 'pendulum' is being loaded or compiled") for text in notices)


async def _picked(asking: Any, pick: Callable[[Any], Any]) -> Any:
    return pick(await asking)


class Notifying:
    """Answers all queries with `ok`; sends a notice before the answer to `stats`."""

    def __init__(self, again_ms: float = 100.0) -> None:
        self.asked: list[str] = []
        self._again_ms = again_ms

    def __call__(self, request: dict[str, Any]) -> list[Any]:
        self.asked.append(request["query"])
        head = {"v": 1, "id": request["id"]}
        news = {"state": "compiling", "text": "x", "elapsed_ms": 1.0, "again_ms": self._again_ms}
        answer = {**head, "ok": True, "outputs": {"status": "ok"}}
        return [{**head, "notice": news}, answer] if request["query"] == "stats" else [answer]


def failing(text: str) -> None:
    raise RuntimeError(f"the listener fails at {text}")


def test_a_listener_that_raises_ends_its_own_call() -> None:
    with Impostor(Notifying()) as impostor, Client(impostor.endpoint, timeout_s=240.0, on_wait=failing) as client:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the listener fails at x"):
                client.stats()
            assert client.health() == {"status": "ok"}


def test_a_listener_that_raises_ends_its_own_awaited_call() -> None:
    """Concurrent calls continue."""

    async def ask(endpoint: str) -> None:
        async with AsyncClient(endpoint, timeout_s=240.0, on_wait=failing) as client:
            for _ in range(2):
                fault, answer = await asyncio.gather(client.stats(), client.health(), return_exceptions=True)
                assert isinstance(fault, RuntimeError)
                assert str(fault) == "the listener fails at x"
                assert answer == {"status": "ok"}
            assert await client.health() == {"status": "ok"}

    with Impostor(Notifying()) as impostor:
        asyncio.run(ask(impostor.endpoint))


def test_the_longest_waits_work(connect_to: Any) -> None:
    """Both limits at their maximum, and a server that announces years without a notice."""
    notices: list[str] = []
    with Impostor(Notifying(again_ms=1e12)) as impostor:
        client = connect_to(impostor.endpoint, MAX_WAIT_S, compile_wait_s=MAX_WAIT_S, on_wait=notices.append)
        answer = client.stats()
    assert (answer, notices) == ({"status": "ok"}, ["x"])


def test_a_listener_may_not_call_its_own_client() -> None:
    notices: list[str] = []

    def ask(text: str) -> None:
        with pytest.raises(FailedPreconditionError, match=naming("health", "on_wait")) as excinfo:
            client.health()
        notices.append(str(excinfo.value))
        with Client(impostor.endpoint, timeout_s=240.0) as other:
            assert other.health() == {"status": "ok"}

    notified = Notifying()
    with Impostor(notified) as impostor, Client(impostor.endpoint, timeout_s=240.0, on_wait=ask) as client:
        assert client.stats() == {"status": "ok"}
        assert client.health() == {"status": "ok"}
    assert len(notices) == 1
    assert notified.asked == ["stats", "health", "health"]


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_call_waits_no_longer_than_the_caller_allows(server: Server, gate: Gate, kind: str) -> None:
    limits = {"timeout_s": 1.0, "compile_wait_s": 0.25}
    with pytest.raises(DeadlineExceededError) as excinfo:
        run(kind, server.endpoints[0], ASKED["a state"], **limits)
    assert re.fullmatch(
        rf"inverse_dynamics: no answer from {server.endpoints[0]} within 1 s and 0.25 s for its compiler "
        r"\(\d tr(y|ies), last heard [\d.]+ s ago\); its last notice was: inverse_dynamics of robot 'pendulum' "
        "is being loaded or compiled",
        str(excinfo.value),
    )


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_call_without_compile_wait_gets_no_notices(server: Server, gate: Gate, kind: str) -> None:
    with pytest.raises(
        DeadlineExceededError, match=naming("0.25 s", re.compile(r"\d tr(y|ies), last heard [\d.]+ s ago\)$"))
    ):
        run(kind, server.endpoints[0], ASKED["a state"], timeout_s=0.25, compile_wait_s=0)
    assert server.service.metrics.to_dict()["counters"]["notices"] == 0


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_call_that_waits_logs_it_once(
    server: Server, gate: Gate, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_late() -> None:
        eventually(lambda: counters(server)["notices"] > 1)  # after the second one, which is not logged
        gate.open()

    opener = threading.Thread(target=open_late)
    opener.start()
    with caplog.at_level(logging.WARNING, logger="dyn_service.service.client"):
        run(kind, server.endpoints[0], ASKED["a state"], timeout_s=LIMIT_S)
    opener.join()
    assert [
        record.getMessage() for record in caplog.records if record.name.startswith("dyn_service.service.client")
    ] == [
        "inverse_dynamics waits up to 120 s for the server's compiler: inverse_dynamics of robot 'pendulum' is being "
        "loaded or compiled"
    ]


def test_late_notices_of_an_earlier_call_are_dropped(server: Server, gate: Gate, pendulum: Robot) -> None:
    with Client(server.endpoints[0], timeout_s=240.0, compile_wait_s=0.1) as client:
        robot = client.robot("pendulum")
        client.timeout_s = 0.1
        with pytest.raises(DeadlineExceededError):
            robot.mass_matrix(Q)
        notices: list[str] = []
        client._on_wait = notices.append
        client.timeout_s = 20.0
        threading.Event().wait(1.2)  # a notice of it arrives meanwhile
        assert client.health()["status"] == "ok"
        assert notices == []
        client.compile_wait_s = 20.0
        gate.open()
        assert robot.mass_matrix(Q) == pendulum.mass_matrix(Q)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, 1.1e6, 1e307, "1"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_compile_wait_is_checked(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("compile_wait_s", "0", "1e+06")):
        kind("tcp://127.0.0.1:9", compile_wait_s=value)


def test_the_command_line_reports_that_it_waits(server: Server, gate: Gate, pendulum: Robot) -> None:
    words = ["gravity_forces", "q=[0.5]", "--server", server.endpoints[0], "--timeout", str(WAIT_MS / 1e3)]
    command = [sys.executable, "-m", "dyn_service", "call", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert unnamed(process.stderr.readline(), "gravity_forces", "'pendulum'") == []
        gate.open()
        out, err = process.communicate(timeout=WAIT_MS / 1e3)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == {"forces": pendulum.gravity_forces(Q).tolist()}


def test_the_command_line_waits_no_longer_than_compile_wait(server: Server, gate: Gate) -> None:
    words = ["gravity_forces", "q=[0.5]", "--server", server.endpoints[0], "--timeout", "1.5", "--compile-wait", "0.25"]
    command = [sys.executable, "-m", "dyn_service", "call", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_MS / 1e3)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: gravity_forces: no answer from" in done.stderr


def test_the_clock_sums_compile_time_within_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr("dyn_service.service.server.answering.jobs.perf_counter_ns", lambda: now)
    clock = CompileClock()
    clock.ended()  # nothing had begun
    for begin, end in ((10, 20), (30, 50)):
        now = begin
        clock.begun("a")
        now = end
        clock.ended()
    now = 60
    clock.begun("b")
    assert clock.current == ("b", 60)
    assert clock.within_ns(0, 100) == 10 + 20 + 40
    assert clock.within_ns(15, 40) == 5 + 10
    assert clock.within_ns(50, 60) == 0


def test_an_older_client_does_not_accept_a_notice_as_a_reply() -> None:
    """It has neither `ok` nor outputs, so an older client does not accept it as a reply."""
    from dyn_service.service.client.flows import read_head
    from dyn_service.service.protocol.messages import ReplyHead
    from tests.service.protocol.test_golden_bytes import golden

    notice = decode_notice(golden("notice"))
    assert (notice.v, notice.id, notice.notice.state, notice.notice.again_ms) == (1, 7, "compiling", 1000.0)
    assert not isinstance(read_head(golden("notice")), ReplyHead)
