"""The asyncio client: the calls of `Client`, awaited, any number of them at a time over one connection.

    async with AsyncClient("tcp://127.0.0.1:5755") as client:
        panda = await client.robot("panda")
        tau, M = await asyncio.gather(panda.inverse_dynamics(q, v, a), panda.mass_matrix(q))

Replies are matched to calls by id, in any order. One task handles the retries of all waiting calls; see `retries`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, cast

from dyn_service.api.description import RobotDescription
from dyn_service.api.queries import COMPUTATIONS, Array, Query
from dyn_service.errors import FailedPreconditionError, PermissionDeniedError
from dyn_service.service.client import flows
from dyn_service.service.client.async_channel import AsyncChannel
from dyn_service.service.client.async_queries import AsyncGaitQueries, AsyncRobotQueries, P, awaited
from dyn_service.service.client.connection import MIN_S, Call, Connection
from dyn_service.service.client.flows import Ask, Flow, RemoteRobotProperties, T, read_head
from dyn_service.service.client.retries import CHECK_S, Cause, Step, TimeoutExtension
from dyn_service.service.client.sync import Client, RemoteRobot
from dyn_service.service.protocol.messages import ReplyHead


def _awaited_robot(
    method: Callable[Concatenate[Any, P], RemoteRobot],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, AsyncRemoteRobot]]:
    """As `awaited`, for a method that returns a robot."""
    return cast("Callable[Concatenate[Any, P], Coroutine[Any, Any, AsyncRemoteRobot]]", method)


class AsyncClient(Connection, AsyncGaitQueries):
    """A connection to one server, with the arguments of `Client`. It belongs to the event loop of its first use."""

    robot = _awaited_robot(Client.robot)
    load_robot = _awaited_robot(Client.load_robot)
    overlay_robot = _awaited_robot(Client.overlay_robot)
    list_robots = awaited(Client.list_robots)
    unload_robot = awaited(Client.unload_robot)
    health = awaited(Client.health)
    stats = awaited(Client.stats)

    def _start(self) -> None:
        self._channel: AsyncChannel | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: dict[int, _WaitingCall] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls in flight and later ones fail. May be called twice.

        Raises:
            FailedPreconditionError: The client belongs to another event loop that still runs.
        """
        if not self._closed:
            self._check_loop(closing=True)
        self._closed = True
        for call in self._pending.values():
            if not call.reply.done():
                call.reply.set_exception(self._closed_error())
        channel, watcher = self._channel, self._watcher
        if channel is not None:
            await channel.close()
            self._channel = None
        if watcher is not None and not watcher.done():  # it is done if its loop has ended
            watcher.cancel()
            await asyncio.wait((watcher,))  # last, because this task may be cancelled here

    async def _robot(
        self, flow: Flow[RobotDescription], flow_timeout_s: float | None = None, **settings: Any
    ) -> AsyncRemoteRobot:
        """As `Client._robot`."""
        return AsyncRemoteRobot(self, await self.run(flow, flow_timeout_s), **settings)

    async def run(self, flow: Flow[T], timeout_s: float | None = None) -> T:
        """As `Client.run`."""
        if timeout_s is None:
            timeout_s = self._timeout_s
        begun_s = asyncio.get_running_loop().time()
        head: ReplyHead | None = None
        extension: TimeoutExtension | None = None
        while True:
            try:
                request = next(flow) if head is None else flow.send(head)
            except StopIteration as done:  # a coroutine may not raise StopIteration
                answer: T = done.value
                return answer
            extension = extension or self._extension(request.query, begun_s, timeout_s)
            head = await self.ask(request, timeout_s, extension)

    async def ask(
        self, request: Ask, timeout_s: float | None = None, extension: TimeoutExtension | None = None
    ) -> ReplyHead:
        """As `Client.ask`.

        Raises:
            FailedPreconditionError: The client is closed, or belongs to another event loop.
        """
        if self._closed:
            raise FailedPreconditionError("the client is closed")
        self._check_loop()
        if timeout_s is None:
            timeout_s = self._timeout_s
        request_id = self._last_id = self._last_id + 1
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        extension = extension or self._extension(request.query, begun_s, timeout_s)
        left_s = extension.left_s(begun_s)
        if left_s <= 0:
            call = Call(request, timeout_s, begun_s, 0, self._epoch, 0, None)
            raise self._unanswered_error(call, begun_s, connected=True)
        payload = self._packed(request_id, request, left_s)
        waiting = None
        try:
            async with asyncio.timeout(left_s) as limit:
                channel = self._channel or self._connect()
                while not channel.send(payload):
                    if self._closed:
                        raise self._closed_error()  # noqa: TRY301
                    await channel.is_connected(left_s)
                    await asyncio.sleep(0)  # the time limit is checked here
                    remaining_s = begun_s + left_s - loop.time()
                    payload = self._packed(request_id, request, max(remaining_s, MIN_S))
                fields = (request, timeout_s, begun_s, len(payload), self._epoch, channel.connections, extension)
                waiting = self._pending[request_id] = _WaitingCall(*fields, reply=loop.create_future(), limit=limit)
                if self._watcher is None or self._watcher.done():
                    self._watcher = loop.create_task(self._watch(channel))
                head = await waiting.reply
        except BaseException as fault:
            if waiting is None:
                task = asyncio.current_task()
                # its socket was closed meanwhile
                if self._closed and not (task is not None and task.cancelling()):
                    raise self._closed_error() from None
                if isinstance(fault, TimeoutError):
                    failure = None if self._channel is None else self._channel.failure
                    raise self._unreachable_error(timeout_s, failure) from None
                raise
            # before `_cancel`, which may drop it
            connected = self._channel is not None and self._channel.is_open()
            self._cancel(request_id)
            if not (isinstance(fault, TimeoutError) and limit.expired()):
                raise
            raise self._unanswered_error(waiting, loop.time(), connected=connected) from None
        finally:
            self._pending.pop(request_id, None)
        if head.late and not waiting.is_notified:
            raise self._late_error(waiting)
        return head

    async def _compute(self, row: str, **arguments: Any) -> Any:
        return await self.run(flows.computation(COMPUTATIONS[row], arguments))

    def _check_loop(self, *, closing: bool = False) -> None:
        """Checks that the connection belongs to the running event loop. closing: a closed loop is allowed too."""
        loop = self._loop
        if loop is not None and loop is not asyncio.get_running_loop() and not (closing and loop.is_closed()):
            raise FailedPreconditionError(
                "the client belongs to the event loop of its first use; make one in each loop"
            )

    def _connect(self) -> AsyncChannel:
        self._channel = AsyncChannel(self._endpoint, self._keys, self._receive)
        self._loop = asyncio.get_running_loop()
        return self._channel

    def _receive(self, message: bytes | memoryview) -> None:
        """Passes a reply to the call that waits for it; handles the others."""
        assert self._loop is not None
        head = read_head(message)
        self._heard_s = now = self._loop.time()
        call = None if head is None or head.id is None else self._pending.get(head.id)
        if call is None or head is None or call.reply.done():
            self._handle_unexpected(head, now)
        elif isinstance(head, ReplyHead):
            if head.epoch == self._epoch or self._accepts(head.epoch, call.epoch, now):
                call.reply.set_result(head)
        else:
            try:
                until_s = self._extend(call, head, now)
                if not call.limit.expired():
                    call.limit.reschedule(until_s)
            except Exception as fault:  # noqa: BLE001  # from the caller's `on_wait`: it ends only that call
                call.reply.set_exception(fault)

    async def _watch(self, channel: AsyncChannel) -> None:
        """Retries and probes for all waiting calls; ends when no call waits."""
        loop = asyncio.get_running_loop()
        checked_s = loop.time()
        while self._pending:
            await asyncio.sleep(CHECK_S)
            try:
                connection = channel.connections if await channel.is_connected() else None
            except PermissionDeniedError as fault:
                for call in self._pending.values():
                    if not call.reply.done():
                        call.reply.set_exception(PermissionDeniedError(str(fault), path=fault.path))
                continue
            now = loop.time()
            has_message, checked_s = self._heard_s > checked_s, now
            probed = False
            for request_id, call in list(self._pending.items()):
                if call.reply.done():
                    continue
                tries = self._retry_state(call)
                step = tries.next_step(now, connection=connection, epoch=self._epoch, has_message=has_message)
                if isinstance(step, Cause):
                    call.reply.set_exception(self._lost_error(call, step, now))
                elif step is Step.RETRY:
                    remaining_s = (call.limit.when() or now) - now
                    if remaining_s > 0:
                        self._counters.retries += 1
                        channel.send(self._packed(request_id, call.request, remaining_s, tries.count - 1))
                elif step is Step.PROBE and not probed:
                    probed = True
                    channel.send(self._probe())

    def _cancel(self, request_id: int) -> None:
        """Sends the cancel of this request, without waiting for its delivery."""
        messages, channel = self._cancel_messages(request_id, asyncio.get_running_loop().time()), self._channel
        if channel is None:
            return
        # or requests to a server that reads none fill the memory
        if channel.is_sending and len(self._pending) == 1:
            channel.renew()
        for message in messages:
            channel.send(message)


@dataclass(eq=False, slots=True)
class _WaitingCall(Call):
    """A call with the future of its reply and its time limit."""

    reply: asyncio.Future[ReplyHead] = field(kw_only=True)
    limit: asyncio.Timeout = field(kw_only=True)


class AsyncRemoteRobot(RemoteRobotProperties, AsyncRobotQueries):
    """A robot on a server with the methods of `Robot`, awaited; from `AsyncClient.robot`."""

    def __init__(
        self,
        client: AsyncClient,
        description: RobotDescription,
        *,
        timeout_s: float | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(description, names, timeout_s)
        self._client = client

    @property
    def client(self) -> AsyncClient:
        """The client."""
        return self._client

    async def constraint_basis(self, joint: str) -> Array:
        """Returns the directions in which a joint carries load; see `RobotQueries.constraint_basis`."""
        return (await self.constraint_bases(joints=[joint])).of(joint)

    async def _answer(self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...]) -> Any:
        request = flows.query_request(self, row, required, optional)
        return flows.read_answer(await self._client.ask(request, self._timeout_s), row, request, self)

    async def _compute(self, row: str, **arguments: Any) -> Any:
        return await self._client.run(flows.computation(COMPUTATIONS[row], arguments, self), self._timeout_s)
