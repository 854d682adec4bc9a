"""The client for asyncio: the same calls as `Client`, awaited, as many at a time as you like over one connection.

    async with AsyncClient("tcp://127.0.0.1:5755") as client:
        panda = await client.robot("panda")
        tau, M = await asyncio.gather(panda.inverse_dynamics(q, v, a), panda.mass_matrix(q))

Replies find their calls by id, in whatever order they come. One task looks after all calls that wait: see `tries`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from dyn_service.api.description import RobotDescription
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Array, Overlay
from dyn_service.errors import FailedPreconditionError, PermissionDeniedError, UnavailableError
from dyn_service.model.description import RootType
from dyn_service.service.client import core
from dyn_service.service.client.async_queries import AsyncGaitQueries, AsyncRobotQueries
from dyn_service.service.client.channels import AsyncChannel, Context, open_async_channel
from dyn_service.service.client.connection import LEAST_S, Connection, check_timeout
from dyn_service.service.client.core import Ask, Flow, RemoteDescribed, T, read_head
from dyn_service.service.client.retries import LOOK_S, Cause, RetryState, Step
from dyn_service.service.client.timeouts import OnWait, TimeoutExtension
from dyn_service.service.protocol.defaults import (
    DEFAULT_COMPILE_WAIT_S,
    DEFAULT_RETRIES,
    DEFAULT_RETRY_AFTER_S,
    DEFAULT_TIMEOUT_S,
)
from dyn_service.service.protocol.keys import KeySource
from dyn_service.service.protocol.messages import Notice, ReplyHead


class AsyncClient(Connection, AsyncGaitQueries):
    """A connection to one server. It belongs to the event loop in which it is first used.

    Args:
        endpoint: Where the server listens: `tcp://host:port`, `ipc:///path`, `inproc://name`.
        timeout_s: The time limit of each call, unless the robot has its own.
        compile_wait_s: How much longer a call waits while the server says that it compiles; 0: not at all.
        on_wait: Told what the server compiles, about once a second; None: a call that waits logs one warning.
        retries: How often a request that changes nothing is sent again within its time limit; 0: never.
        retry_after_s: The silence after which it is; after each time longer, by chance.
        context: The ZeroMQ context; None is the process's own.
        keys: The key file, or what was read from one, for a server that asks for keys; None: it asks for none.
        server_key: The server's public key; None: it is in the key file.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        compile_wait_s: float = DEFAULT_COMPILE_WAIT_S,
        on_wait: OnWait | None = None,
        retries: int = DEFAULT_RETRIES,
        retry_after_s: float = DEFAULT_RETRY_AFTER_S,
        context: Context | None = None,
        keys: KeySource | None = None,
        server_key: str | None = None,
    ) -> None:
        super().__init__(endpoint, timeout_s, compile_wait_s, on_wait, retries, retry_after_s, keys, server_key)
        self._given_context = context
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
            FailedPreconditionError: Another event loop uses the client, and still runs.
        """
        if not self._closed:
            self._check_loop(closing=True)
        self._closed = True
        for call in self._pending.values():
            if not call.reply.done():
                call.reply.set_exception(UnavailableError("the client was closed"))
        await self._disconnect()

    async def robot(
        self, name: str, *, timeout_s: float | None = None, names: Sequence[str] | None = None
    ) -> AsyncRemoteRobot:
        """A robot of the server, with the methods of `Robot` to be awaited.

        Args:
            name: The robot's name on the server.
            timeout_s: The time limit of its calls; None is the client's.
            names: All its movable joints, in the order in which the entries of q, v, tau.. are to stand, in calls and
                in answers; None is the server's order. Each stands for all of its joint's entries, in their order.

        Raises:
            NotFoundError: The server has no robot of that name, or the robot no joint of one of the names.
            InvalidArgumentError: A joint is named twice or not at all.
        """
        description = await self.run(core.describe_robot(name))
        return AsyncRemoteRobot(self, description, timeout_s=timeout_s, names=names)

    async def list_robots(self) -> list[str]:
        """The names of the robots that the server has."""
        return await self.run(core.list_robots())

    async def load_robot(
        self,
        urdf: str | os.PathLike[str],
        *,
        root: RootType = "fixed",
        mimic: bool = True,
        timeout_s: float | None = None,
    ) -> AsyncRemoteRobot:
        """Makes the server serve one more robot.

        Args:
            urdf: The text of a robot's file (URDF, MJCF, SDFormat), or the path of one on this side; one of xacro is
                expanded on this side, too.
            root: How the root link moves in the world: "fixed", "planar" or "floating".
            mimic: Whether joints that mimic others follow them; False: each moves by itself.
            timeout_s: The time limit of this call; None is the client's.

        Raises:
            PermissionDeniedError: The server does not let clients load robots.
            UrdfError: The description is malformed.
        """
        return AsyncRemoteRobot(self, await self.run(core.load_robot(urdf, root, mimic), timeout_s))

    async def overlay_robot(
        self,
        robot: str,
        overlay: Overlay,
        *,
        name: str,
        expires_s: float | None = None,
        timeout_s: float | None = None,
    ) -> AsyncRemoteRobot:
        """Makes the server serve one of its robots once more, otherwise than it was loaded: for a session, say.

        Args:
            robot: The name of the robot that it has.
            overlay: The changed numbers, without leading axes.
            name: What the new one is called.
            expires_s: Unused for so many seconds it is unloaded; None: it stays.
            timeout_s: The time limit of this call; None is the client's.

        Raises:
            NotFoundError: The server has no robot of that name, or the robot no link or joint of one.
            InvalidArgumentError: A number is wrong, or contradicts another; `path` names it.
            FailedPreconditionError: Another robot has that name.
            PermissionDeniedError: The server does not let clients load robots.
            ResourceExhaustedError: There are too many.
        """
        found = await self.run(core.overlay_robot(robot, overlay, name, expires_s), timeout_s)
        return AsyncRemoteRobot(self, found)

    async def unload_robot(self, name: str) -> None:
        """Makes the server stop serving a robot.

        Raises:
            NotFoundError: The server has no robot of that name.
            PermissionDeniedError: The server does not let clients unload robots.
        """
        await self.run(core.unload_robot(name))

    async def health(self) -> dict[str, Any]:
        """Whether the server answers, its version and how long it runs."""
        return await self.run(core.plain("health"))

    async def stats(self) -> dict[str, Any]:
        """What the server has done since it started: requests, errors, times."""
        return await self.run(core.plain("stats"))

    async def run(self, flow: Flow[T], timeout_s: float | None = None) -> T:
        """Sends the requests of a flow, one after the other, and gives its answer.

        Args:
            flow: See `client.core`.
            timeout_s: The time limit of all of them together; None is the client's.
        """
        if timeout_s is None:
            timeout_s = self._timeout_s
        begun = asyncio.get_running_loop().time()
        head: ReplyHead | None = None
        extension: TimeoutExtension | None = None
        while True:
            try:
                request = next(flow) if head is None else flow.send(head)
            except StopIteration as done:  # may not leave a coroutine
                answer: T = done.value
                return answer
            extension = extension or self._extension(request.query, begun, timeout_s)
            head = await self.ask(request, timeout_s, extension)

    async def ask(
        self, request: Ask, timeout_s: float | None = None, extension: TimeoutExtension | None = None
    ) -> ReplyHead:
        """Sends one request and waits for its reply, which may carry an error.

        Args:
            request: What is asked; see `client.core.Ask`.
            timeout_s: The time limit; None is the client's.
            extension: The wait of the call that the request is one of; None: it is the only one.

        Raises:
            DeadlineExceededError: No reply in time.
            UnavailableError: No server.
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
            raise self._unanswered(query, timeout_s, begun, begun, None, 1, reaches=True)
        payload = self._packed(request_id, request, left_s)
        call = None
        try:
            async with asyncio.timeout(left_s) as limit:
                channel = await self._reaching()
                while not channel.send(payload):
                    await asyncio.sleep(0)  # the time limit strikes in between
                    await channel.reaches(left_s)
                    left = begun + left_s - loop.time()
                    payload = self._packed(request_id, request, max(left, LEAST_S))
                call = _Call(request, len(payload), begun, loop.create_future(), limit, extension, self._epoch)
                self._pending[request_id] = call
                if self._watcher is None or self._watcher.done():
                    self._watcher = loop.create_task(self._watch(channel))
                head = await call.reply
        except BaseException as fault:
            if call is None:
                if isinstance(fault, TimeoutError):
                    raise self._unreached(timeout_s) from None
                raise
            self._cancel(request_id)
            if not (isinstance(fault, TimeoutError) and limit.expired()):
                raise
            reaches = self._channel is not None and await self._channel.reaches()
            told, count = extension if call.told else None, call.retry_state.count if call.retry_state else 1
            raise self._unanswered(query, timeout_s, begun, loop.time(), told, count, reaches=reaches) from None
        finally:
            self._pending.pop(request_id, None)
        if head.late and not call.told:
            raise self._came_late(query, timeout_s)
        return head

    async def _compute(self, row: str, **arguments: Any) -> Any:
        return await self.run(core.computation(COMPUTATIONS[row], arguments))

    def _check_loop(self, *, closing: bool = False) -> None:
        """Refuses an event loop that is not the one of the connection; one that has ended leaves it to be closed."""
        loop = self._loop
        if loop is not None and loop is not asyncio.get_running_loop() and not (closing and loop.is_closed()):
            raise FailedPreconditionError(
                "the client belongs to the event loop in which it was first used; make one in each loop"
            )

    async def _reaching(self) -> AsyncChannel:
        """Returns the channel; it is reopened if it cannot find a new server by itself and no call is waiting."""
        channel = self._channel
        if channel is not None and channel.remains and not self._pending and not await channel.reaches():
            await self._disconnect()
        return self._channel or self._connect()

    def _connect(self) -> AsyncChannel:
        self._channel = open_async_channel(self._endpoint, self._given_context, self._keys)
        self._loop = asyncio.get_running_loop()
        self._reader = self._loop.create_task(self._read(self._channel))
        return self._channel

    def _renew(self) -> None:
        if self._channel is not None:
            self._channel.renew()

    async def _disconnect(self) -> None:
        tasks, channel = (self._reader, self._watcher), self._channel
        self._reader = self._watcher = self._channel = None
        ending = [task for task in tasks if task is not None and not task.done()]  # they are where their loop has ended
        for task in ending:
            task.cancel()
        if channel is not None:
            channel.close()
        if ending:
            await asyncio.wait(ending)  # last, since who closes may be cancelled here

    async def _read(self, channel: AsyncChannel) -> None:
        """Hands each reply to the call that waits for it; drops those for which none does."""
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
                self._put_aside(head, now)
                await asyncio.sleep(0)  # however many come, the event loop turns
            elif isinstance(head, ReplyHead):
                if head.epoch == self._epoch or self._meets(head.epoch, call.asked_in, now):
                    call.reply.set_result(head)
            else:
                try:
                    call.wait_on(head)
                except Exception as fault:  # noqa: BLE001  # of the caller's `on_wait`: it ends that call, and no other
                    call.reply.set_exception(fault)

    async def _watch(self, channel: AsyncChannel) -> None:
        """Does for the calls that wait what is to be done while they hear nothing; ends when none waits."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while self._pending:
            await asyncio.sleep(LOOK_S)
            reaches = await channel.reaches()
            now = loop.time()
            heard, looked = self._heard_s > looked, now
            probed = False
            for request_id, call in list(self._pending.items()):
                if call.reply.done():
                    continue
                tries = call.retry_state
                if tries is None:
                    tries = call.retry_state = self._retry_state(
                        call.request.query, call.size, call.begun, call.asked_in
                    )
                    tries.told = call.told
                step = tries.look(now, reaches=reaches, epoch=self._epoch, heard=heard)
                if isinstance(step, Cause):
                    call.reply.set_exception(self._lost(call.request.query, step, now, tries.count))
                elif step is Step.AGAIN:
                    left = (call.limit.when() or now) - now
                    if left > 0:
                        self._counters.retries += 1
                        channel.send(self._packed(request_id, call.request, left, tries.count - 1))
                elif step is Step.PROBE and not probed:
                    probed = True
                    channel.send(self._probe())

    def _cancel(self, request_id: int) -> None:
        """Tells the server that nobody waits for this reply any more; whether that gets there is not waited for."""
        for word in self._last_words(request_id, asyncio.get_running_loop().time()):
            if self._channel is not None:
                self._channel.send(word)


class _Call:
    """One that waits for its reply."""

    def __init__(
        self,
        request: Ask,
        size: int,
        begun: float,
        reply: asyncio.Future[ReplyHead],
        limit: asyncio.Timeout,
        extension: TimeoutExtension,
        asked_in: int | None,
    ) -> None:
        self.request = request
        self.size = size
        self.begun = begun
        self.reply = reply
        self.limit = limit
        self.asked_in = asked_in
        self.told = False
        self.retry_state: RetryState | None = None  # most calls need none
        self._extension = extension

    def wait_on(self, notice: Notice) -> None:
        """Lets the call wait longer, since the server says why."""
        self.told = True
        if self.retry_state is not None:
            self.retry_state.told = True
        until_s = self._extension.until_s(notice, asyncio.get_running_loop().time())
        if not self.limit.expired():
            self.limit.reschedule(until_s)


class AsyncRemoteRobot(RemoteDescribed, AsyncRobotQueries):
    """A robot on a server, each method of `Robot` to be awaited. Get one from `AsyncClient.robot`."""

    def __init__(
        self,
        client: AsyncClient,
        description: RobotDescription,
        *,
        timeout_s: float | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(description, names)
        self._client = client
        self._timeout_s = None if timeout_s is None else check_timeout(timeout_s)

    @property
    def client(self) -> AsyncClient:
        """The connection that the calls go through."""
        return self._client

    def with_timeout(self, timeout_s: float) -> AsyncRemoteRobot:
        """The same robot over the same connection, with its own time limit for each call."""
        return AsyncRemoteRobot(self._client, self.description, timeout_s=timeout_s, names=self.names)

    async def constraint_basis(self, joint: str) -> Array:
        """Directions in which a joint carries load: see `RobotQueries.constraint_basis`."""
        return (await self.constraint_bases(joints=[joint])).of(joint)

    async def _ask(self, row: str, given: tuple[Any, ...], others: tuple[Any, ...] = ()) -> Any:
        entry = QUERIES[row]
        request = core.question(self, entry, given, others)
        return core.read_answer(await self._client.ask(request, self._timeout_s), entry, request, self)

    async def _compute(self, row: str, **arguments: Any) -> Any:
        return await self._client.run(core.computation(COMPUTATIONS[row], arguments, self), self._timeout_s)
