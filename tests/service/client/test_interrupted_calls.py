"""A client remains usable after an interrupt at any instruction of a call, and after any cancelled await.

`sys.settrace` reports each instruction of each Python frame before it runs, and an exception of the trace function is
raised there. The tests interrupt at each instruction in turn; CPython itself interrupts at some of them.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest

from dyn_service import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    DynError,
    FailedPreconditionError,
    NotFoundError,
    Robot,
    Server,
)
from tests.service.conftest import WAIT_MS
from tests.wide import wide

pytestmark = pytest.mark.filterwarnings(
    "ignore:Unclosed socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""Python closes sockets whose constructor was interrupted, with these warnings."""

WAIT_S = WAIT_MS / 1e3
FINALIZERS = ("__del__", "_remove")
"""Functions whose exceptions Python ignores."""


def interrupted(call: Callable[[], Any], at: int) -> bool:
    """Interrupts a call before its instruction with index `at`; returns False if the call ended earlier."""
    left = itertools.count(at, -1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_name in FINALIZERS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and next(left) == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()  # a coverage tool's, or None
    gc.disable()  # otherwise a finalizer of another test's object may be interrupted, whose exceptions Python ignores
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    except DynError:
        return False
    finally:
        sys.settrace(before)
        gc.enable()
    return False


def every_instruction(call: Callable[[], Any], check: Callable[[int], None]) -> int:
    """Interrupts the call at each instruction in turn, with a check after each; returns the number of instructions."""
    for at in itertools.count():
        if not interrupted(call, at):
            return at
        check(at)
    raise AssertionError


@pytest.fixture(params=wide(["tcp", "ipc", "inproc"], {"tcp", "inproc"}.__contains__))
def robots(request: pytest.FixtureRequest, pendulum: Robot, new_endpoint: Any) -> Any:
    """A robot on a server, its client, and a thread that shares both."""
    with (
        Server([pendulum], endpoints=[new_endpoint(request.param)]) as server,
        ThreadPoolExecutor(1) as other,
        Client(server.endpoints[0], timeout_s=WAIT_S) as client,
    ):
        yield client, client.robot("pendulum"), other


def test_at_every_instruction_of_a_call(robots: Any, pendulum: Robot) -> None:
    _, robot, other = robots
    angles = itertools.count(1)

    def ask() -> None:
        robot.gravity_forces(np.array([next(angles) * 1e-3]))

    def check(at: int) -> None:
        """Checks that this thread and another one get their own answers, not that of an interrupted call."""
        for run in (lambda call, q: call(q), lambda call, q: other.submit(call, q).result(WAIT_S)):
            q = np.array([next(angles) * 1e-3])
            assert run(robot.gravity_forces, q).tolist() == pendulum.gravity_forces(q).tolist(), at

    assert every_instruction(ask, check) > 300


@pytest.mark.parametrize("error", [NotFoundError, DeadlineExceededError], ids=["the server's", "no answer in time"])
def test_at_every_instruction_of_a_call_that_fails(robots: Any, pendulum: Robot, error: type[DynError]) -> None:
    client, robot, other = robots
    hasty = robot.with_timeout(1e-6)
    calls = {NotFoundError: lambda: client.robot("nobody"), DeadlineExceededError: lambda: hasty.gravity_forces([0.5])}
    expected = pendulum.gravity_forces([0.5]).tolist()

    def check(at: int) -> None:
        for found in (other.submit(robot.gravity_forces, [0.5]).result(WAIT_S), robot.gravity_forces([0.5])):
            assert found.tolist() == expected, at

    with pytest.raises(error):
        calls[error]()
    assert every_instruction(calls[error], check) > 300


def test_at_every_instruction_of_a_first_call(pendulum: Robot, new_endpoint: Any) -> None:
    """Also of the first call after the server was lost: the call opens or replaces the connection."""
    with (
        Server([pendulum], endpoints=[new_endpoint("ipc")]) as server,
        Client(server.endpoints[0], timeout_s=240.0) as client,
    ):
        made: list[Client] = []

        def ask() -> None:
            made.append(Client(server.endpoints[0], timeout_s=WAIT_S))
            made[-1].health()

        def check(at: int) -> None:
            for each in made:
                assert each.health()["status"] == "ok", at
                each.close()
            made.clear()
            assert client.health()["status"] == "ok"

        assert every_instruction(ask, check) > 300


def test_at_every_instruction_of_a_call_to_no_server(
    pendulum: Robot, new_endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's clock advances by a sixth of the time limit at each reading, however slow the machine is."""
    endpoint = new_endpoint("ipc")
    with Client(endpoint, timeout_s=WAIT_S) as client:
        with monkeypatch.context() as patch:
            for clock in ("sync.perf_counter", "channels.monotonic"):
                patch.setattr(f"dyn_service.service.client.{clock}", itertools.count(0.0, 1e-3).__next__)
            client.timeout_s = 6e-3
            found = every_instruction(client.health, lambda at: None)
        client.timeout_s = WAIT_S
        with Server([pendulum], endpoints=[endpoint]):
            assert client.health()["status"] == "ok"
        assert found > 300


def test_at_every_instruction_of_close(pendulum: Robot, new_endpoint: Any) -> None:
    """After an interrupted `close`, the client is either usable or closed; the next `close` completes it."""
    with Server([pendulum], endpoints=[new_endpoint("ipc")]) as server:
        made = [Client(server.endpoints[0], timeout_s=WAIT_S)]

        def check(at: int) -> None:
            client = made[-1]
            if client._closed:
                with pytest.raises(FailedPreconditionError, match="the client is closed"):
                    client.health()
            else:
                assert client.health()["status"] == "ok"
            client.close()
            assert client._channel._socket.closed, at
            made.append(Client(server.endpoints[0], timeout_s=WAIT_S))

        assert every_instruction(lambda: made[-1].close(), check) > 10


def test_a_call_within_a_call_is_refused(robots: Any, pendulum: Robot) -> None:
    """For example in a signal handler: it fails at once, not after the time limit, and the outer call continues."""
    client, robot, _ = robots
    refused: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "receive" and not refused:
            refused.append("begun")
            with pytest.raises(FailedPreconditionError, match="nor may a signal handler") as caught:
                client.health()
            refused.append(str(caught.value))
        return None

    sys.settrace(trace)
    try:
        found = robot.gravity_forces([0.5])
    finally:
        sys.settrace(None)
    assert found.tolist() == pendulum.gravity_forces([0.5]).tolist()
    assert len(refused) == 2


class Suspended:
    """Awaits an object and cancels the task at suspension `at`; `count` is the number of suspensions."""

    def __init__(self, awaited: Any, at: int) -> None:
        self._awaited, self._at, self.count = awaited, at, 0

    def __await__(self) -> Any:
        inner = self._awaited.__await__()
        value, fault = None, None
        while True:
            try:
                waits_for = inner.send(value) if fault is None else inner.throw(fault)
            except StopIteration as done:
                return done.value
            if self.count == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            self.count += 1
            fault = None
            try:
                value = yield waits_for
            except BaseException as thrown:  # to be raised in the inner awaitable
                fault = thrown


async def every_await(make: Callable[[], Any], check: Callable[[int], Any]) -> int:
    """Cancels at each await in turn, with a check after each; returns the number of awaits."""
    for at in itertools.count():
        suspended = Suspended(make(), at)
        try:
            await asyncio.ensure_future(_all_of(suspended))
        except asyncio.CancelledError:
            await check(at)
        else:
            return at
    raise AssertionError


async def _all_of(suspended: Suspended) -> None:
    await suspended


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
def test_cancelled_at_every_await(pendulum: Robot, new_endpoint: Any, transport: str) -> None:
    async def run(endpoint: str) -> None:
        made = [AsyncClient(endpoint, timeout_s=WAIT_S)]
        angles = itertools.count(1)

        async def first_call() -> None:
            robot = await made[-1].robot("pendulum")
            await robot.gravity_forces([next(angles) * 1e-3])

        async def check(at: int) -> None:
            client = made[-1]
            robot = await client.robot("pendulum")
            q = [next(angles) * 1e-3]
            assert (await robot.gravity_forces(q)).tolist() == pendulum.gravity_forces(q).tolist(), at
            assert not client._pending
            await client.close()
            assert len(asyncio.all_tasks()) == 1, at
            made.append(AsyncClient(endpoint, timeout_s=WAIT_S))

        assert await every_await(first_call, check) >= 2
        await made[-1].close()

        async def open_one() -> AsyncClient:
            made.append(AsyncClient(endpoint, timeout_s=WAIT_S))
            await made[-1].health()
            return made[-1]

        async def closed(at: int) -> None:
            with pytest.raises(FailedPreconditionError, match="the client is closed"):
                await made[-1].health()
            await made[-1].close()
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == 1, at
            assert channels[-1]._socket.closed, at
            await begin()

        channels: list[Any] = []

        async def begin() -> None:
            channels.append((await open_one())._channel)

        await begin()
        assert await every_await(lambda: made[-1].close(), closed) >= 1

    with Server([pendulum], endpoints=[new_endpoint(transport)]) as server:
        asyncio.run(run(server.endpoints[0]))
