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
from tests.service.client.plain_server import PlainServer, channel_of
from tests.service.conftest import TRANSPORTS, WAIT_S, Transport
from tests.wide import wide

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""Python closes sockets whose constructor was interrupted, with these warnings."""

FINALIZERS = ("__del__", "_remove")
"""Functions whose exceptions Python ignores."""


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def interrupted(call: Callable[[], Any], index: int, handler: Callable[[], None] = raise_interrupt) -> bool:
    """Interrupts a call before its instruction with index `index`; returns False if the call ended earlier.

    handler: what the interrupt does, as a signal handler.
    """
    left = itertools.count(index, -1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_name in FINALIZERS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and next(left) == 0:
            sys.settrace(None)
            handler()
        return trace

    former_trace = sys.gettrace()  # a coverage tool's, or None
    gc.disable()  # otherwise a finalizer of another test's object may be interrupted, whose exceptions Python ignores
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    except DynError:
        return False
    finally:
        sys.settrace(former_trace)
        gc.enable()
    return False


def is_closed(client: Client) -> bool:
    """Returns whether a client has no open socket."""
    connected = channel_of(client)._socket
    return connected is None or connected.fileno() == -1


def every_instruction(call: Callable[[], Any], check: Callable[[int], None]) -> int:
    """Interrupts the call at each instruction in turn, with a check after each; returns the number of instructions."""
    for index in itertools.count():
        if not interrupted(call, index):
            return index
        check(index)
    raise AssertionError


EACH_TRANSPORT = wide(TRANSPORTS, {"ipc", "curve"}.__contains__)


@pytest.fixture
def robots(pendulum: Robot, transport: Transport) -> Any:
    """A robot on a server, its client, and a thread that shares both."""
    with (
        Server([pendulum], endpoints=[transport.endpoint], **transport.server_options) as server,
        ThreadPoolExecutor(1) as other,
        Client(server.endpoints[0], timeout_s=WAIT_S, **transport.client_options) as client,
    ):
        yield client, client.robot("pendulum"), other


@pytest.mark.parametrize("transport", EACH_TRANSPORT, indirect=True)
def test_at_every_instruction_of_a_call(robots: Any, pendulum: Robot) -> None:
    _, robot, other = robots
    angles = itertools.count(1)

    def ask() -> None:
        robot.gravity_forces(np.array([next(angles) * 1e-3]))

    def check(index: int) -> None:
        """Checks that this thread and another one get their own answers, not that of an interrupted call."""
        for run in (lambda call, q: call(q), lambda call, q: other.submit(call, q).result(WAIT_S)):
            q = np.array([next(angles) * 1e-3])
            assert run(robot.gravity_forces, q).tolist() == pendulum.gravity_forces(q).tolist(), index

    assert every_instruction(ask, check) > 300


@pytest.mark.parametrize("transport", EACH_TRANSPORT, indirect=True)
@pytest.mark.parametrize("error", [NotFoundError, DeadlineExceededError], ids=["the server's", "no answer in time"])
def test_at_every_instruction_of_a_call_that_fails(robots: Any, pendulum: Robot, error: type[DynError]) -> None:
    client, robot, other = robots
    hasty = robot.with_timeout(1e-6)
    calls = {NotFoundError: lambda: client.robot("nobody"), DeadlineExceededError: lambda: hasty.gravity_forces([0.5])}
    expected = pendulum.gravity_forces([0.5]).tolist()

    def check(index: int) -> None:
        for forces in (other.submit(robot.gravity_forces, [0.5]).result(WAIT_S), robot.gravity_forces([0.5])):
            assert forces.tolist() == expected, index

    with pytest.raises(error):
        calls[error]()
    assert every_instruction(calls[error], check) > 300


def test_at_every_instruction_of_a_first_call(pendulum: Robot, ipc_endpoint: str) -> None:
    """Also of the first call after the server was lost: the call opens or replaces the connection."""
    with (
        Server([pendulum], endpoints=[ipc_endpoint]) as server,
        Client(server.endpoints[0], timeout_s=240.0) as client,
    ):
        clients: list[Client] = []

        def ask() -> None:
            clients.append(Client(server.endpoints[0], timeout_s=WAIT_S))
            clients[-1].health()

        def check(index: int) -> None:
            for interrupted_client in clients:
                assert interrupted_client.health()["status"] == "ok", index
                interrupted_client.close()
            clients.clear()
            assert client.health()["status"] == "ok"

        assert every_instruction(ask, check) > 300


def test_at_every_instruction_of_a_call_to_no_server(
    pendulum: Robot, ipc_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's clock advances by a sixth of the time limit at each reading, however slow the machine is."""
    with Client(ipc_endpoint, timeout_s=WAIT_S) as client:
        with monkeypatch.context() as patch:
            for clock in ("sync.perf_counter", "channels.monotonic"):
                patch.setattr(f"dyn_service.service.client.{clock}", itertools.count(0.0, 1e-3).__next__)
            client.timeout_s = 6e-3
            count = every_instruction(client.health, lambda index: None)
        client.timeout_s = WAIT_S
        with Server([pendulum], endpoints=[ipc_endpoint]):
            assert client.health()["status"] == "ok"
        assert count > 300


def test_at_every_instruction_of_close(pendulum: Robot, ipc_endpoint: str) -> None:
    """After an interrupted `close`, the client is either usable or closed; the next `close` completes it."""
    with Server([pendulum], endpoints=[ipc_endpoint]) as server:
        clients = [Client(server.endpoints[0], timeout_s=WAIT_S)]

        def check(index: int) -> None:
            client = clients[-1]
            if client._closed:
                with pytest.raises(FailedPreconditionError, match="the client is closed"):
                    client.health()
            else:
                assert client.health()["status"] == "ok"
            client.close()
            assert is_closed(client), index
            clients.append(Client(server.endpoints[0], timeout_s=WAIT_S))

        assert every_instruction(lambda: clients[-1].close(), check) > 10


def test_a_signal_handler_closes_the_client_at_every_seventh_instruction_of_a_first_call() -> None:
    """The call ends with an error of this package, or with its answer, and no socket stays open."""
    with PlainServer() as server:
        for index in itertools.count(0, 7):
            closed: list[None] = []
            client = Client(server.endpoint, timeout_s=WAIT_S)
            interrupted(client.health, index, lambda: closed.append(client.close()))  # type: ignore[func-returns-value]  # noqa: B023
            if not closed:
                break
            assert is_closed(client), index
            client.close()
        client.close()
    assert index > 300


def test_a_call_within_a_call_is_refused(robots: Any, pendulum: Robot) -> None:
    """For example in a signal handler: it fails at once, not after the time limit, and the outer call continues."""
    client, robot, _ = robots
    refusals: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "receive" and not refusals:
            refusals.append("begun")
            with pytest.raises(FailedPreconditionError, match="nor may a signal handler") as excinfo:
                client.health()
            refusals.append(str(excinfo.value))
        return None

    sys.settrace(trace)
    try:
        forces = robot.gravity_forces([0.5])
    finally:
        sys.settrace(None)
    assert forces.tolist() == pendulum.gravity_forces([0.5]).tolist()
    assert len(refusals) == 2


class Suspended:
    """Awaits an object and cancels the task at suspension `at`; `count` is the number of suspensions."""

    def __init__(self, awaited: Any, index: int) -> None:
        self._awaited, self._at, self.count = awaited, index, 0

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
    for index in itertools.count():
        suspended = Suspended(make(), index)
        try:
            await asyncio.ensure_future(_all_of(suspended))
        except asyncio.CancelledError:
            await check(index)
        else:
            return index
    raise AssertionError


async def _all_of(suspended: Suspended) -> None:
    await suspended


def test_cancelled_at_every_await(pendulum: Robot, transport: Transport) -> None:
    async def run(endpoint: str) -> None:
        clients = [AsyncClient(endpoint, timeout_s=WAIT_S, **transport.client_options)]
        angles = itertools.count(1)

        async def first_call() -> None:
            robot = await clients[-1].robot("pendulum")
            await robot.gravity_forces([next(angles) * 1e-3])

        async def check(index: int) -> None:
            client = clients[-1]
            robot = await client.robot("pendulum")
            q = [next(angles) * 1e-3]
            assert (await robot.gravity_forces(q)).tolist() == pendulum.gravity_forces(q).tolist(), index
            assert not client._pending
            await client.close()
            assert len(asyncio.all_tasks()) == 1, index
            clients.append(AsyncClient(endpoint, timeout_s=WAIT_S, **transport.client_options))

        assert await every_await(first_call, check) >= 2
        await clients[-1].close()

        async def open_one() -> AsyncClient:
            clients.append(AsyncClient(endpoint, timeout_s=WAIT_S, **transport.client_options))
            await clients[-1].health()
            return clients[-1]

        async def closed(index: int) -> None:
            with pytest.raises(FailedPreconditionError, match="the client is closed"):
                await clients[-1].health()
            await clients[-1].close()
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == 1, index
            assert sockets[-1].fileno() == -1, index
            await begin()

        sockets: list[Any] = []

        async def begin() -> None:
            sockets.append(channel_of(await open_one())._socket)

        await begin()
        assert await every_await(lambda: clients[-1].close(), closed) >= 1

    with Server([pendulum], endpoints=[transport.endpoint], **transport.server_options) as server:
        asyncio.run(run(server.endpoints[0]))
