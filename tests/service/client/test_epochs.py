"""A client accepts one reply per request: of the current epoch of its server, and in time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    FailedPreconditionError,
    Robot,
    Server,
    UnavailableError,
)
from dyn_service.service.protocol.messages import EPOCH_BITS, new_epoch
from dyn_service.service.server.answering.service import Service
from tests.conftest import URDF
from tests.phrases import naming
from tests.service.client.plain_server import channel_of
from tests.service.client.simulated_network import Faults, World
from tests.service.client.test_clients import Impostor, describe, forces
from tests.service.client.test_retries import SLACK_S, Caller, calling
from tests.service.conftest import WAIT_S, Transport, assert_same, request

Q = np.array([0.5])
A, B, C = 11, 22, 33

Script = Callable[[dict[str, Any]], list[tuple[float, Any]]]


class Scripted(World):
    """A world whose server follows a script, which returns delays in seconds and replies for each request."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__([], Faults(), 0)
        self.script = script or (lambda request: [])
        self.asked: list[dict[str, Any]] = []

    def request(self, payload: bytes, deliver: Callable[[bytes], None]) -> None:
        self.asked.append(msgpack.unpackb(payload))
        for delay_s, reply in self.script(self.asked[-1]):
            message = reply if isinstance(reply, bytes) else msgpack.packb(reply)
            self.at(delay_s, lambda message=message: deliver(message))


def says(request: dict[str, Any], epoch: int | None, sender: str = "", **fields: Any) -> dict[str, Any]:
    """An answer to `health`; `sender` shows which one the client accepted."""
    reply = {"v": 1, "id": request["id"], "ok": True, "outputs": {"who": sender}, **fields}
    return reply if epoch is None else {**reply, "epoch": epoch}


def health(caller: Caller) -> str:
    sender: str = caller.plain(lambda client: client.health())["who"]
    return sender


@pytest.fixture(params=["Client", "AsyncClient"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_each_restart_is_counted(kind: str) -> None:
    epochs = iter([A, A, B, B, C])
    world = Scripted(lambda request: [(0.001, says(request, next(epochs)))])
    with calling(kind, world) as caller:
        assert (caller.client.epoch, caller.client.restarts) == (None, 0)
        seen = []
        for _ in range(5):
            health(caller)
            seen.append((caller.client.epoch, caller.client.restarts))
        assert seen == [(A, 0), (A, 0), (B, 1), (B, 1), (C, 2)]


def test_a_failover_and_back_is_followed(kind: str) -> None:
    """Two servers at one address, neither of which restarts: the last request was sent when B was known."""
    epochs = iter([A, B, B, A, A])
    world = Scripted(lambda request: [(0.001, says(request, epoch := next(epochs), str(epoch)))])
    with calling(kind, world) as caller:
        assert [health(caller) for _ in range(5)] == [str(epoch) for epoch in (A, B, B, A, A)]
        assert caller.client.counters.stale == 0
        assert (caller.client.epoch, caller.client.restarts) == (A, 2)


@pytest.mark.parametrize("late", [A, B], ids=["known", "unknown"])
def test_a_request_in_flight_during_a_restart_is_sent_again(kind: str, late: int) -> None:
    """A probe shows epoch C; then the answer of an earlier server arrives, whose epoch may be known or unknown."""

    def script(request: dict[str, Any]) -> list[tuple[float, Any]]:
        number = len(world.asked)
        if number == 1:
            return [(0.001, says(request, A))]
        if number == 2:
            return []
        if request.get("retry"):  # the new server answers after 1.5 s
            return [(1.5, says(request, C, "new"))]
        return [(0.001, says(request, C, "probe")), (0.002, says(world.asked[1], late, "late"))]

    world = Scripted(script)
    with calling(kind, world, timeout_s=30.0, retries=1, retry_after_s=25.0) as caller:
        health(caller)
        assert health(caller) == "new"
        assert [message.get("retry") for message in world.asked] == [None, None, None, 1]
        assert caller.client.counters.stale == 1
        assert (caller.client.epoch, caller.client.restarts) == (C, 1)


def test_a_second_new_epoch_in_flight_is_dropped() -> None:
    """Two calls are sent to A. C answers one of them; then the answer of B arrives, which ran between A and C."""
    plan = [(0.001, A), (0.01, C), (0.02, B), (0.001, C)]

    def script(request: dict[str, Any]) -> list[tuple[float, Any]]:
        if request.get("retry"):
            return [(0.001, says(request, C, "again"))]
        delay_s, epoch = plan.pop(0)
        return [(delay_s, says(request, epoch, str(epoch)))]

    world = Scripted(script)
    with calling("AsyncClient", world) as caller:
        health(caller)

        async def both(client: AsyncClient) -> list[Any]:
            return await asyncio.gather(client.health(), client.health())

        assert [answers["who"] for answers in caller.plain(both)] == [str(C), "again"]
        assert health(caller) == str(C)
        assert (caller.client.epoch, caller.client.restarts) == (C, 1)


def test_replies_without_an_epoch_are_accepted(kind: str) -> None:
    world = Scripted(lambda request: [(0.001, says(request, None, "x"))])
    with calling(kind, world) as caller:
        assert [health(caller), health(caller)] == ["x", "x"]
        assert (caller.client.epoch, caller.client.restarts) == (None, 0)


def test_a_late_answer_raises(kind: str) -> None:
    world = Scripted(lambda request: [(0.001, says(request, A, late=True))])
    with calling(kind, world, timeout_s=2.0) as caller:
        for number in (1, 2):
            begun_s = world.now_s
            with pytest.raises(DeadlineExceededError, match=naming("health", "too late")):
                health(caller)
            assert world.now_s - begun_s < 0.01  # the call does not wait for another answer
            assert caller.client.counters.late == number


def test_a_late_answer_after_a_notice_is_accepted(kind: str) -> None:
    """After a notice, the call waits beyond the deadline that it sent, so it accepts an answer marked as late."""
    news = {"state": "compiling", "text": "x", "elapsed_ms": 1.0, "again_ms": 1000.0}

    def script(request: dict[str, Any]) -> list[tuple[float, Any]]:
        return [(0.02, {"v": 1, "id": request["id"], "notice": news}), (5.0, says(request, A, "at last", late=True))]

    with calling(kind, Scripted(script), on_wait=lambda text: None) as caller:
        assert health(caller) == "at last"


def test_a_request_in_progress_is_not_sent_again(kind: str) -> None:
    news = {"state": "compiling", "text": "x", "elapsed_ms": 1.0, "again_ms": 1000.0}

    def script(request: dict[str, Any]) -> list[tuple[float, Any]]:
        return [(0.07, {"v": 1, "id": request["id"], "notice": news}), (1.9, says(request, A, "at last"))]

    world = Scripted(script)
    with calling(kind, world, on_wait=lambda text: None) as caller:
        assert health(caller) == "at last"
    assert len(world.asked) == 1


def test_a_flood_of_other_replies_does_not_delay_the_deadline(kind: str) -> None:
    """One every millisecond, for five times the time limit."""
    noise = msgpack.packb(says({"id": 1}, A))
    world = Scripted(lambda request: [(number * 1e-3, noise) for number in range(5000)])
    with calling(kind, world) as caller:
        begun_s = world.now_s
        with pytest.raises(DeadlineExceededError):
            health(caller)
        assert world.now_s - begun_s <= 1.0 + SLACK_S
        assert caller.client.counters.dropped >= 900


def test_ids_begin_at_random() -> None:
    firsts = []
    for kind in (Client, AsyncClient) * 20:
        client: Any = kind("tcp://127.0.0.1:9")
        firsts.append(client._last_id)
        if kind is Client:
            client.close()
    assert len(set(firsts)) == 40
    assert all(0 <= first < 2**32 for first in firsts)
    assert max(firsts) > 2**29


def test_a_forked_client_has_a_new_first_id_and_new_jitter(tcp_server: Server) -> None:
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        client.health()
        last_id, jitter = client._last_id, client._retrying.random.getstate()
        client._forks -= 1  # as in a forked child
        channel_of(client).close()
        client.health()
        assert not 0 <= client._last_id - last_id < 1000
        assert client._retrying.random.getstate() != jitter


def test_epochs_are_random_and_fit_a_double() -> None:
    epochs = {new_epoch() for _ in range(200)}
    assert len(epochs) == 200
    assert all(0 < epoch < 2**53 == 2**EPOCH_BITS for epoch in epochs)
    assert max(epochs) > 2**50


def test_every_reply_of_a_server_carries_its_epoch(pendulum: Robot) -> None:
    first, second = Service([pendulum]), Service([pendulum])
    assert first.epoch != second.epoch
    requests = [request(), request(inputs={"q": [[0.1], [0.2]]}), request(query="nothing"), {"v": 1}, {"v": 2, "id": 1}]
    payloads = [b"noise", b"", *map(msgpack.packb, requests)]
    payloads += [msgpack.packb(request(query=query, inputs={})) for query in ("health", "stats", "list_robots")]
    for service in (first, second):
        for payload in payloads:
            assert msgpack.unpackb(service.handle(payload, perf_counter_ns()))["epoch"] == service.epoch
        short = service.answer_single_state(msgpack.packb(request()), perf_counter_ns())
        assert short is not None
        assert msgpack.unpackb(short)["epoch"] == service.epoch


@pytest.mark.parametrize("inputs", [..., {"q": [[0.5], [0.6]]}], ids=["one state", "a batch"])
def test_late_answers_are_marked(pendulum: Robot, monkeypatch: pytest.MonkeyPatch, inputs: Any) -> None:
    """Each reading advances the clock by 10 ms: the work begins after 10 ms and ends after 20 ms."""
    service = Service([pendulum])
    fields = {} if inputs is ... else {"inputs": inputs}
    service.handle(msgpack.packb(request(**fields)), perf_counter_ns())  # warm
    for deadline_ms, outcome in ((5.0, "DEADLINE_EXCEEDED"), (15.0, True), (25.0, None), (None, None)):
        now_ns = 0

        def tick() -> int:
            nonlocal now_ns
            now_ns += 10_000_000
            return now_ns

        payload = msgpack.packb(request(deadline_ms=deadline_ms or ..., **fields))
        with monkeypatch.context() as patch:
            patch.setattr("dyn_service.service.server.answering.service.perf_counter_ns", tick)
            answer = service.answer_single_state(payload, 0) if inputs is ... and deadline_ms != 5.0 else None
            reply = msgpack.unpackb(answer or service.handle(payload, 0))
        assert (reply["error"]["code"] if "error" in reply else reply.get("late")) == outcome


def test_a_restart_of_the_server_is_detected(pendulum: Robot, connect_to: Any, transport: Transport) -> None:
    other = Robot.from_urdf((URDF / "pendulum.urdf").read_text().replace('mass value="', 'mass value="1'))
    with Server([pendulum], endpoints=[transport.endpoint], **transport.server_options) as server:
        (endpoint,) = server.endpoints
        client = connect_to(endpoint, **transport.client_options)
        remote = client.robot("pendulum")
        assert_same(remote.gravity_forces(Q), pendulum.gravity_forces(Q))
        assert (client.epoch, client.restarts) == (server.service.epoch, 0)
    with Server([pendulum], endpoints=[endpoint], **transport.server_options) as server:
        assert_same(remote.gravity_forces(Q), pendulum.gravity_forces(Q))
        assert (client.epoch, client.restarts) == (server.service.epoch, 1)
    with Server([other], endpoints=[endpoint], **transport.server_options):
        with pytest.raises(FailedPreconditionError, match="has fingerprint"):
            remote.gravity_forces(Q)
        assert client.restarts == 2


def test_a_call_in_flight_is_answered_by_the_next_server(pendulum: Robot, connect_to: Any) -> None:
    """The first server stops after it has received the request."""

    def script(request: dict[str, Any]) -> list[Any]:
        if request["query"] == "describe_robot":
            return [describe(pendulum, request)]
        is_received.set()
        return []

    is_received, is_answered = threading.Event(), threading.Event()
    with Impostor(script) as impostor:

        def succeed() -> None:
            is_received.wait(WAIT_S)
            impostor.close()
            while True:
                with suppress(UnavailableError), Server([pendulum], endpoints=[impostor.endpoint]):  # until it is free
                    is_answered.wait(WAIT_S)
                    return

        next_server = threading.Thread(target=succeed)
        next_server.start()
        try:
            robot = connect_to(impostor.endpoint, 240.0).robot("pendulum")
            assert_same(robot.gravity_forces(Q), pendulum.gravity_forces(Q))
        finally:
            is_answered.set()
            next_server.join()


def test_a_late_array_raises(pendulum: Robot) -> None:
    """The fast decoder rejects it too."""

    def script(request: dict[str, Any]) -> list[Any]:
        if request["query"] == "describe_robot":
            return [describe(pendulum, request)]
        return [forces(request["id"], 1.0) | {"late": True, "epoch": A}]

    with Impostor(script) as impostor, Client(impostor.endpoint, timeout_s=240.0) as client:
        robot = client.robot("pendulum")
        with pytest.raises(DeadlineExceededError, match="computed too late"):
            robot.gravity_forces(Q)
        assert client.counters.late == 1


def test_ids_do_not_depend_on_the_process_id() -> None:
    """First ids come from `os.urandom`, because a restarted process may have the same process id."""
    urandom = os.urandom
    try:
        os.urandom = lambda count: bytes(range(count))  # type: ignore[assignment]
        with Client("tcp://127.0.0.1:9") as client:
            assert client._last_id == 0x00010203
    finally:
        os.urandom = urandom
