"""The asyncio client: the calls of `Client`, awaited, any number of them at a time over one connection.

    async with AsyncClient("tcp://127.0.0.1:5755") as client:
        panda = await client.robot("panda")
        tau, M = await asyncio.gather(panda.inverse_dynamics(q, v, a), panda.mass_matrix(q))

Replies are matched to calls by id, in any order. One task handles the retries of all waiting calls; see `retries`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from dyn_service.api.description import RobotDescription
from dyn_service.api.outputs import checked_workers, fill, output_arrays
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Array, Overlay
from dyn_service.errors import FailedPreconditionError, PermissionDeniedError
from dyn_service.model.description import LoopHandling, RootType
from dyn_service.service.client import flows
from dyn_service.service.client.async_queries import AsyncGaitQueries, AsyncRobotQueries, awaited
from dyn_service.service.client.channels import AsyncChannel
from dyn_service.service.client.connection import MIN_S, Connection
from dyn_service.service.client.flows import Ask, Flow, RemoteRobotProperties, T, read_head
from dyn_service.service.client.retries import CHECK_S, Cause, RetryState, Step, TimeoutExtension
from dyn_service.service.client.sync import Client
from dyn_service.service.protocol.messages import Notice, ReplyHead


class AsyncClient(Connection, AsyncGaitQueries):
    """A connection to one server, with the arguments of `Client`. It belongs to the event loop of its first use."""

    list_robots = awaited(Client.list_robots)
    unload_robot = awaited(Client.unload_robot)
    health = awaited(Client.health)
    stats = awaited(Client.stats)

    def _start(self) -> None:
        self._channel: AsyncChannel | None = None
        self._reader: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: dict[int, _Call] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        await self._disconnect()

    async def robot(
        self, name: str, *, timeout_s: float | None = None, names: Sequence[str] | None = None
    ) -> AsyncRemoteRobot:
        """As `Client.robot`."""
        description = await self.run(flows.describe_robot(name))
        return AsyncRemoteRobot(self, description, timeout_s=timeout_s, names=names)

    async def load_robot(
        self,
        urdf: str | os.PathLike[str],
        *,
        root: RootType = "fixed",
        mimic: bool = True,
        loops: LoopHandling = "closed",
        timeout_s: float | None = None,
    ) -> AsyncRemoteRobot:
        """As `Client.load_robot`."""
        return AsyncRemoteRobot(self, await self.run(flows.load_robot(urdf, root, mimic, loops), timeout_s))

    async def overlay_robot(
        self, robot: str, overlay: Overlay, *, name: str, expires_s: float | None = None, timeout_s: float | None = None
    ) -> AsyncRemoteRobot:
        """As `Client.overlay_robot`."""
        found = await self.run(flows.overlay_robot(robot, overlay, name, expires_s), timeout_s)
        return AsyncRemoteRobot(self, found)

    async def run(self, flow: Flow[T], timeout_s: float | None = None) -> T:
        """As `Client.run`."""
        if timeout_s is None:
            timeout_s = self._timeout_s
        begun = asyncio.get_running_loop().time()
        head: ReplyHead | None = None
        extension: TimeoutExtension | None = None
        while True:
            try:
                request = next(flow) if head is None else flow.send(head)
            except StopIteration as done:  # a coroutine may not raise StopIteration
                answer: T = done.value
                return answer
            extension = extension or self._extension(request.query, begun, timeout_s)
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
        query = request.query
        request_id = self._last_id = self._last_id + 1
        loop = asyncio.get_running_loop()
        begun = loop.time()
        extension = extension or self._extension(query, begun, timeout_s)
        left_s = extension.left_s(begun)
        if left_s <= 0:
            raise self._unanswered(query, timeout_s, begun, begun, None, 1, connected=True)
        payload = self._packed(request_id, request, left_s)
        call = None
        try:
            async with asyncio.timeout(left_s) as limit:
                channel = await self._open_channel()
                while not channel.send(payload):
                    await asyncio.sleep(0)  # the time limit is checked here
                    await channel.is_connected(left_s)
                    left = begun + left_s - loop.time()
                    payload = self._packed(request_id, request, max(left, MIN_S))
                call = _Call(request, len(payload), begun, loop.create_future(), limit, extension, self._epoch)
                self._pending[request_id] = call
                if self._watcher is None or self._watcher.done():
                    self._watcher = loop.create_task(self._watch(channel))
                head = await call.reply
        except BaseException as fault:
            if call is None:
                task = asyncio.current_task()
                if self._closed and not (task is not None and task.cancelling()):  # its socket was closed meanwhile
                    raise self._closed_error() from None
                if isinstance(fault, TimeoutError):
                    raise self._unreachable(timeout_s) from None
                raise
            self._cancel(request_id)
            if not (isinstance(fault, TimeoutError) and limit.expired()):
                raise
            connected = self._channel is not None and await self._channel.is_connected()
            notified, count = extension if call.notified else None, call.retry_state.count if call.retry_state else 1
            raise self._unanswered(query, timeout_s, begun, loop.time(), notified, count, connected=connected) from None
        finally:
            self._pending.pop(request_id, None)
        if head.late and not call.notified:
            raise self._late_answer(query, timeout_s)
        return head

    async def _compute(self, row: str, **arguments: Any) -> Any:
        return await self.run(flows.computation(COMPUTATIONS[row], arguments))

    def _check_loop(self, *, closing: bool = False) -> None:
        """Checks that the connection belongs to the running event loop; `closing` also allows one whose loop is
        closed.
        """
        loop = self._loop
        if loop is not None and loop is not asyncio.get_running_loop() and not (closing and loop.is_closed()):
            raise FailedPreconditionError(
                "the client belongs to the event loop in which it was first used; make one in each loop"
            )

    async def _open_channel(self) -> AsyncChannel:
        """Returns the channel; it is reopened if it cannot find a new server by itself and no call is waiting."""
        channel = self._channel
        if channel is not None and channel.is_inproc and not self._pending and not await channel.is_connected():
            await self._disconnect()
        return self._channel or self._connect()

    def _connect(self) -> AsyncChannel:
        self._channel = AsyncChannel(self._endpoint, self._context, self._keys)
        self._loop = asyncio.get_running_loop()
        self._reader = self._loop.create_task(self._read(self._channel))
        return self._channel

    def _reconnect(self) -> None:
        if self._channel is not None:
            self._channel.renew()

    async def _disconnect(self) -> None:
        tasks, channel = (self._reader, self._watcher), self._channel
        self._reader = self._watcher = self._channel = None
        ending = [
            task for task in tasks if task is not None and not task.done()
        ]  # they are done if their loop has ended
        for task in ending:
            task.cancel()
        if channel is not None:
            channel.close()
        if ending:
            await asyncio.wait(ending)  # last, because this task may be cancelled here

    async def _read(self, channel: AsyncChannel) -> None:
        """Passes each reply to the call that waits for it; handles the others."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                head = read_head(await channel.receive())
            except PermissionDeniedError as fault:
                for waiting in self._pending.values():
                    if not waiting.reply.done():
                        waiting.reply.set_exception(PermissionDeniedError(str(fault), path=fault.path))
                await asyncio.sleep(0)
                continue
            self._heard_s = now = loop.time()
            call = None if head is None or head.id is None else self._pending.get(head.id)
            if call is None or head is None or call.reply.done():
                self._handle_unexpected(head, now)
                await asyncio.sleep(0)  # lets other tasks run during a flood of replies
            elif isinstance(head, ReplyHead):
                if head.epoch == self._epoch or self._accepts(head.epoch, call.request_epoch, now):
                    call.reply.set_result(head)
            else:
                try:
                    call.wait_on(head)
                except Exception as fault:  # noqa: BLE001  # from the caller's `on_wait`: it ends only that call
                    call.reply.set_exception(fault)

    async def _watch(self, channel: AsyncChannel) -> None:
        """Retries and probes for all waiting calls; ends when no call waits."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while self._pending:
            await asyncio.sleep(CHECK_S)
            connected = await channel.is_connected()
            now = loop.time()
            heard, looked = self._heard_s > looked, now
            probed = False
            for request_id, call in list(self._pending.items()):
                if call.reply.done():
                    continue
                tries = call.retry_state
                if tries is None:
                    tries = call.retry_state = self._retry_state(
                        call.request.query, call.size, call.begun, call.request_epoch
                    )
                    tries.notified = call.notified
                step = tries.next_step(now, connected=connected, epoch=self._epoch, heard=heard)
                if isinstance(step, Cause):
                    call.reply.set_exception(self._lost(call.request.query, step, now, tries.count))
                elif step is Step.RETRY:
                    left = (call.limit.when() or now) - now
                    if left > 0:
                        self._counters.retries += 1
                        channel.send(self._packed(request_id, call.request, left, tries.count - 1))
                elif step is Step.PROBE and not probed:
                    probed = True
                    channel.send(self._probe())

    def _cancel(self, request_id: int) -> None:
        """Sends the cancel of this request, without waiting for its delivery."""
        for message in self._cancel_messages(request_id, asyncio.get_running_loop().time()):
            if self._channel is not None:
                self._channel.send(message)


class _Call:
    """A call that waits for its reply."""

    def __init__(
        self,
        request: Ask,
        size: int,
        begun: float,
        reply: asyncio.Future[ReplyHead],
        limit: asyncio.Timeout,
        extension: TimeoutExtension,
        request_epoch: int | None,
    ) -> None:
        self.request = request
        self.size = size
        self.begun = begun
        self.reply = reply
        self.limit = limit
        self.request_epoch = request_epoch
        self.notified = False
        self.retry_state: RetryState | None = None  # most calls need none
        self._extension = extension

    def wait_on(self, notice: Notice) -> None:
        """Extends the time limit because of a notice."""
        self.notified = True
        if self.retry_state is not None:
            self.retry_state.notified = True
        until_s = self._extension.until_s(notice, asyncio.get_running_loop().time())
        if not self.limit.expired():
            self.limit.reschedule(until_s)


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

    async def _ask(self, row: str, given: tuple[Any, ...], others: tuple[Any, ...] = ()) -> Any:
        entry = QUERIES[row]
        request = flows.query_request(self, entry, given, others)
        return flows.read_answer(await self._client.ask(request, self._timeout_s), entry, request, self)

    async def _ask_into(self, row: str, given: tuple[Any, ...], others: tuple[Any, ...], out: Any, workers: Any) -> Any:
        arrays = output_arrays(QUERIES[row], out)
        checked_workers(1 if workers is None else workers)
        return fill(QUERIES[row], await self._ask(row, given, others), arrays)

    async def _compute(self, row: str, **arguments: Any) -> Any:
        return await self._client.run(flows.computation(COMPUTATIONS[row], arguments, self), self._timeout_s)
