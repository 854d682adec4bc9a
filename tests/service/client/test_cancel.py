"""A call that gives up cancels its request on the server; retries of a queued request are ignored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service import AsyncClient, Client, DeadlineExceededError, Robot, Server
from tests.service.client.plain_server import channel_of
from tests.service.client.test_clients import Impostor, describe
from tests.service.conftest import WAIT_MS, request
from tests.service.server.test_server import gated

Q = np.array([0.5])


class Listening:
    """Answers `describe_robot` and `health`; records all requests, and sets an event when one arrives."""

    def __init__(self, pendulum: Robot) -> None:
        self._pendulum = pendulum
        self.asked: list[dict[str, Any]] = []
        self.cancelled = threading.Event()
        self.arrived = threading.Event()

    def __call__(self, request: dict[str, Any]) -> list[Any]:
        self.asked.append(request)
        if request["query"] == "describe_robot":
            return [describe(self._pendulum, request)]
        if request["query"] == "health":
            return [{"v": 1, "id": request["id"], "ok": True, "outputs": {}}]
        if request["query"] == "cancel":
            self.cancelled.set()
            # the reply of a server that does not know `cancel`; the client drops it
            error = {"code": "UNIMPLEMENTED", "message": "there is no query 'cancel'", "path": "query"}
            return [{"v": 1, "id": request["id"], "ok": False, "error": error}]
        self.arrived.set()
        return []

    def check(self) -> None:
        """Checks that the cancel has the id of the last request."""
        assert self.cancelled.wait(WAIT_MS / 1e3)
        (request_id,) = {message["id"] for message in self.asked if message["query"] == "mass_matrix"}
        assert {"v": 1, "id": request_id, "query": "cancel"} in self.asked


def test_a_timeout_cancels(pendulum: Robot) -> None:
    listening = Listening(pendulum)
    with Impostor(listening) as impostor, Client(impostor.endpoint, timeout_s=240.0) as client:
        robot = client.robot("pendulum")
        with pytest.raises(DeadlineExceededError):
            robot.with_timeout(0.05).mass_matrix(Q)
        listening.check()
        client.health()  # drops the server's reply to the cancel
        assert client.counters.dropped == 1


def test_an_interrupt_cancels(pendulum: Robot) -> None:
    listening = Listening(pendulum)
    with Impostor(listening) as impostor, Client(impostor.endpoint, timeout_s=240.0) as client:
        robot = client.robot("pendulum")
        receive = channel_of(client).receive

        def interrupted(timeout_s: float) -> bytes | None:
            assert listening.arrived.wait(WAIT_MS / 1e3)
            raise KeyboardInterrupt

        channel_of(client).receive = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            robot.mass_matrix(Q)
        channel_of(client).receive = receive  # type: ignore[method-assign]
        listening.check()
        client.health()


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_an_awaited_call_cancels(pendulum: Robot, how: str) -> None:
    listening = Listening(pendulum)

    async def ask(endpoint: str) -> None:
        async with AsyncClient(endpoint, timeout_s=240.0) as client:
            robot = await client.robot("pendulum")
            if how == "timeout":
                with pytest.raises(DeadlineExceededError):
                    await robot.with_timeout(0.05).mass_matrix(Q)
            else:
                task = asyncio.create_task(robot.mass_matrix(Q))
                await asyncio.to_thread(listening.arrived.wait, WAIT_MS / 1e3)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(listening.check)
            await client.health()
            assert client.counters.cancelled == 1

    with Impostor(listening) as impostor:
        asyncio.run(ask(impostor.endpoint))


def held(pendulum: Robot) -> tuple[Robot, threading.Event, threading.Event, list[float]]:
    """A robot whose `mass_matrix` of a batch waits for a gate, and the first state of each request."""
    busy, is_begun, gate = gated(pendulum, "mass_matrix")
    positions: list[float] = []
    answer: Callable[..., Any] = busy.mass_matrix

    def noted(q: Any, **options: Any) -> Any:
        positions.append(float(np.asarray(q).ravel()[0]))
        return answer(q, **options)

    busy.mass_matrix = noted  # type: ignore[method-assign]
    return busy, is_begun, gate, positions


def batch(number: int, value: float, **fields: Any) -> dict[str, Any]:
    """A request that is long enough for the worker, identified by its first state."""
    data = {"dtype": "<f8", "shape": [1000, 1], "data": np.full(1000, value).tobytes()}
    return request("mass_matrix", id=number, inputs={"q": data}, options={"verify": False}, **fields)


def test_cancelled_work_is_not_begun(pendulum: Robot, bare: Any) -> None:
    busy, is_begun, gate, positions = held(pendulum)
    with Server([busy], endpoints=["tcp://127.0.0.1:0"]) as server:
        first, second = bare(server.endpoints[0]), bare(server.endpoints[0])
        first.send(batch(1, 1.0))
        assert is_begun.wait(WAIT_MS / 1e3)
        for number in (2, 3):
            first.send(batch(number, float(number)))
            second.send(batch(number, 10.0 * number))
        for peer in (first, second):
            peer.ask({"v": 1, "id": 9, "query": "health"})  # afterwards, all requests have arrived
        first.send({"v": 1, "id": 2, "query": "cancel"})
        first.send({"v": 1, "id": 77, "query": "cancel"})  # no such request
        assert first.ask({"v": 1, "id": 9, "query": "health"})["id"] == 9  # a cancel has no reply
        gate.set()
        replies = {reply["id"]: reply for reply in (first.receive() for _ in range(3))}
        assert replies[1]["ok"]
        assert replies[3]["ok"]
        assert replies[2]["error"]["code"] == "DEADLINE_EXCEEDED"
        assert all(second.receive()["ok"] for _ in range(2))  # an id is valid for one client only
        assert sorted(positions) == [1.0, 3.0, 20.0, 30.0]
        assert server.service.metrics.to_dict()["counters"]["cancelled"] == 2


def test_retries_of_a_queued_request_are_ignored(pendulum: Robot, bare: Any) -> None:
    busy, is_begun, gate, positions = held(pendulum)
    with Server([busy], endpoints=["tcp://127.0.0.1:0"]) as server:
        first, second = bare(server.endpoints[0]), bare(server.endpoints[0])
        first.send(batch(1, 1.0))
        assert is_begun.wait(WAIT_MS / 1e3)
        first.send(batch(2, 2.0))
        first.send(batch(1, 1.0, retry=1))
        first.send(batch(2, 2.0, retry=1))
        first.send(batch(2, 2.0, retry=2))
        first.send(batch(2, 2.5))  # not a retry: a client may use an id twice
        second.send(batch(2, 4.0, retry=1))  # a retry of a request that was lost with another connection
        for peer in (first, second):
            peer.ask({"v": 1, "id": 9, "query": "health"})
        gate.set()
        assert sorted(first.receive()["id"] for _ in range(3)) == [1, 2, 2]
        assert second.receive()["ok"]
        assert sorted(positions) == [1.0, 2.0, 2.5, 4.0]
        first.send(batch(1, 5.0, retry=1))  # the first request is no longer queued
        assert first.receive()["ok"]


@pytest.mark.parametrize("retry", [0, -1, 1.5, "1", True])
def test_a_retry_is_a_count(tcp_server: Server, bare: Any, retry: Any) -> None:
    """The slow path checks `retry`; the fast path ignores it, because it answers every try."""
    reply = bare(tcp_server.endpoints[0]).ask(request(retry=retry, inputs={"q": [[0.5]]}))
    assert (reply["error"]["code"], reply["error"]["path"]) == ("INVALID_ARGUMENT", "retry")
    assert reply["error"]["message"].startswith("retry must be ")
