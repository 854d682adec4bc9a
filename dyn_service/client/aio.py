"""The client for asyncio: the same calls as `Client`, awaited, as many at a time as you like over one connection.

    async with AsyncClient("tcp://127.0.0.1:5755") as client:
        panda = await client.robot("panda")
        tau, M = await asyncio.gather(panda.inverse_dynamics(q, v, a), panda.mass_matrix(q))

Replies find their calls by id, in whatever order they come.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from math import ceil
from types import TracebackType
from typing import TYPE_CHECKING, Any

import zmq
import zmq.asyncio
from msgspec import UNSET
from numpy.typing import ArrayLike

from dyn_service.api.prescribed import GivenMotion
from dyn_service.api.queries import (
    QUERIES,
    Array,
    EffortFunction,
    Integrator,
    Method,
    Payload,
    Query,
    RobotQueries,
    Wrench,
    WrenchFunction,
)
from dyn_service.api.results import ConstraintBases, RheonomicTrajectory, SegmentLoads, SegmentMatrices, Trajectory
from dyn_service.client import rheonomic
from dyn_service.client.core import (
    DEFAULT_TIMEOUT_S,
    Described,
    check_compile_wait,
    check_endpoint,
    check_timeout,
    pack_inputs,
    pack_options,
    pack_request,
    read_arrays,
    read_description,
    read_head,
    read_outputs,
    read_plain,
    read_residuals,
    refused_endpoint,
)
from dyn_service.client.motion import parts
from dyn_service.client.patience import OnWait, Patience
from dyn_service.client.sockets import prepare
from dyn_service.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError
from dyn_service.model.description import RootType
from dyn_service.protocol.defaults import DEFAULT_COMPILE_WAIT_S
from dyn_service.protocol.messages import Notice, ReplyHead


class AsyncClient:
    """A connection to one server. It belongs to the event loop in which it is first used.

    Args:
        endpoint: Where the server listens: `tcp://host:port`, `ipc:///path`, `inproc://name`.
        timeout_s: The time limit of each call, unless the robot has its own.
        compile_wait_s: How much longer a call waits while the server says that it compiles; 0: not at all.
        on_wait: Told what the server compiles, about once a second; None: a call that waits logs one warning.
        context: The ZeroMQ context; None is the process's own.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        compile_wait_s: float = DEFAULT_COMPILE_WAIT_S,
        on_wait: OnWait | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self._endpoint = check_endpoint(endpoint)
        self._timeout_s = check_timeout(timeout_s)
        self._compile_wait_s = check_compile_wait(compile_wait_s)
        self._on_wait = on_wait
        self._given_context = context
        self._last_id = 0
        self._socket: zmq.asyncio.Socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._pending: dict[int, _Call] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<AsyncClient '{self._endpoint}'{', closed' if self._closed else ''}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def endpoint(self) -> str:
        """Where the server listens."""
        return self._endpoint

    @property
    def timeout_s(self) -> float:
        """The time limit of each call, in seconds. May be set."""
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, value: float) -> None:
        self._timeout_s = check_timeout(value)

    @property
    def compile_wait_s(self) -> float:
        """How much longer a call waits while the server says that it compiles, in seconds. May be set."""
        return self._compile_wait_s

    @compile_wait_s.setter
    def compile_wait_s(self, value: float) -> None:
        self._compile_wait_s = check_compile_wait(value)

    async def close(self) -> None:
        """Closes the connection; calls in flight and later ones fail. May be called twice."""
        self._closed = True
        for call in self._pending.values():
            if not call.reply.done():
                call.reply.set_exception(UnavailableError("the client was closed"))
        await self._disconnect()

    async def robot(self, name: str, *, timeout_s: float | None = None) -> AsyncRemoteRobot:
        """A robot of the server, with the methods of `Robot` to be awaited.

        Args:
            name: The robot's name on the server.
            timeout_s: The time limit of its calls; None is the client's.

        Raises:
            NotFoundError: The server has no robot of that name.
        """
        return AsyncRemoteRobot(self, await self._administer("describe_robot", robot=name), timeout_s=timeout_s)

    async def list_robots(self) -> list[str]:
        """The names of the robots that the server has."""
        robots: list[str] = (await self._administer("list_robots"))["robots"]
        return robots

    async def load_robot(
        self, urdf: str | os.PathLike[str], *, root: RootType = "fixed", timeout_s: float | None = None
    ) -> AsyncRemoteRobot:
        """Makes the server serve one more robot.

        Args:
            urdf: The text of a URDF file, or the path of one on this side.
            root: How the root link moves in the world: "fixed", "planar" or "floating".
            timeout_s: The time limit of this call; None is the client's.

        Raises:
            PermissionDeniedError: The server does not let clients load robots.
            UrdfError: The description is malformed.
        """
        inputs, options = {"urdf": read_description(urdf)}, {"root": root} if root != "fixed" else UNSET
        return AsyncRemoteRobot(
            self, await self._administer("load_robot", inputs=inputs, options=options, timeout_s=timeout_s)
        )

    async def unload_robot(self, name: str) -> None:
        """Makes the server stop serving a robot.

        Raises:
            NotFoundError: The server has no robot of that name.
            PermissionDeniedError: The server does not let clients unload robots.
        """
        await self._administer("unload_robot", robot=name)

    async def segment_inverse_dynamics(self, **arguments: Any) -> SegmentLoads:
        """Forces and moments at the joints of measured segments: see `dyn_service.reference.segments`.

        Args:
            **arguments: `mass`, `inertia`, `rotation` and so on, and `method`.
        """
        options = {"method": arguments.pop("method")} if "method" in arguments else UNSET
        head = await self.ask("segment_inverse_dynamics", UNSET, pack_inputs(arguments), options, UNSET)
        return SegmentLoads(**read_arrays(head))

    async def segment_matrices(self, **arguments: Any) -> SegmentMatrices:
        """The matrices of the segments' M q-ddot = C + G + A [F; M] + E: see `dyn_service.reference.segments`.

        Args:
            **arguments: `mass`, `inertia`, `rotation` and so on, as for `segment_inverse_dynamics`.
        """
        head = await self.ask("segment_matrices", UNSET, pack_inputs(arguments), UNSET, UNSET)
        return SegmentMatrices(**read_arrays(head))

    async def health(self) -> dict[str, Any]:
        """Whether the server answers, its version and how long it runs."""
        return await self._administer("health")

    async def stats(self) -> dict[str, Any]:
        """What the server has done since it started: requests, errors, times."""
        return await self._administer("stats")

    async def ask(
        self, query: str, robot: Any, inputs: Any, options: Any, model: Any, timeout_s: float | None = None
    ) -> ReplyHead:
        """Sends one request and waits for its reply, which may carry an error.

        Args:
            query: The query's name.
            robot: As in a request, like the next three; `msgspec.UNSET` is left out.
            inputs: As `pack_inputs` gives them.
            options: As `pack_options` gives them.
            model: The robot's fingerprint.
            timeout_s: The time limit; None is the client's.

        Raises:
            DeadlineExceededError: No reply in time.
            UnavailableError: No server.
        """
        if self._closed:
            raise FailedPreconditionError("the client is closed")
        if timeout_s is None:
            timeout_s = self._timeout_s
        request_id = self._last_id = self._last_id + 1
        payload = pack_request(
            request_id, query, robot, inputs, options, model, timeout_s * 1e3, self._compile_wait_s * 1e3
        )
        loop = asyncio.get_running_loop()
        patience = Patience(query, loop.time(), timeout_s, self._compile_wait_s, self._on_wait)
        call = None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._send(payload, timeout_s)
                call = self._pending[request_id] = _Call(loop.create_future(), limit, patience)
                return await call.reply
        except TimeoutError:
            raise await self._no_answer(query, timeout_s, patience if call and call.told else None) from None
        finally:
            self._pending.pop(request_id, None)

    async def _administer(
        self,
        query: str,
        *,
        robot: Any = UNSET,
        inputs: Any = UNSET,
        options: Any = UNSET,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        return read_plain(await self.ask(query, robot, inputs, options, UNSET, timeout_s))

    async def _send(self, payload: bytes, timeout_s: float) -> None:
        """Sends at once, or when a server can be reached; what was not sent in time never will be."""
        socket = self._socket or self._connect()
        if self._endpoint.startswith("inproc://") and not self._pending and not await _poll(socket, 0):
            await self._disconnect()  # the one transport that does not reconnect by itself
            socket = self._connect()
        while True:
            try:
                await socket.send(payload, zmq.NOBLOCK)
                return
            except zmq.Again:
                if not await _poll(socket, ceil(timeout_s * 1e3)):
                    raise UnavailableError(f"no server answers at {self._endpoint} within {timeout_s:g} s") from None

    async def _no_answer(
        self, query: str, timeout_s: float, patience: Patience | None
    ) -> DeadlineExceededError | UnavailableError:
        connected = self._socket is not None and await _poll(self._socket, 0)
        if self._endpoint.startswith("inproc://") and not self._pending:
            await self._disconnect()  # what waits for a server yet to come must not reach it
        if connected and patience is not None:
            return patience.exceeded(self._endpoint)
        if connected:
            return DeadlineExceededError(f"{query}: no answer from {self._endpoint} within {timeout_s:g} s")
        return UnavailableError(f"no server answers at {self._endpoint} within {timeout_s:g} s")

    def _connect(self) -> zmq.asyncio.Socket:
        context = zmq.asyncio.Context(shadow=self._given_context or zmq.Context.instance())
        self._socket = prepare(context.socket(zmq.DEALER))
        try:
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as fault:
            self._socket.close()
            raise refused_endpoint(self._endpoint, fault) from None
        self._reader = asyncio.get_running_loop().create_task(self._read(self._socket))
        return self._socket

    async def _disconnect(self) -> None:
        reader, socket = self._reader, self._socket
        self._reader = self._socket = None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])
        if socket is not None:
            socket.close()

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        """Hands each reply to the call that waits for it; drops those for which none does."""
        while True:
            head = read_head(await socket.recv())
            call = None if head is None or head.id is None else self._pending.get(head.id)
            if call is None or head is None or call.reply.done():
                continue
            if isinstance(head, ReplyHead):
                call.reply.set_result(head)
            else:
                call.wait_on(head)


class _Call:
    """One that waits for its reply."""

    def __init__(self, reply: asyncio.Future[ReplyHead], limit: asyncio.Timeout, patience: Patience) -> None:
        self.reply = reply
        self.told = False
        self._limit = limit
        self._patience = patience

    def wait_on(self, notice: Notice) -> None:
        """Lets the call wait longer, since the server says why."""
        self.told = True
        until_s = self._patience.until_s(notice, asyncio.get_running_loop().time())
        if not self._limit.expired():
            self._limit.reschedule(until_s)


class AsyncRemoteRobot(Described):
    """A robot on a server, each method of `Robot` to be awaited. Get one from `AsyncClient.robot`."""

    def __init__(self, client: AsyncClient, description: Mapping[str, Any], *, timeout_s: float | None = None) -> None:
        super().__init__(description)
        self._client = client
        self._timeout_s = None if timeout_s is None else check_timeout(timeout_s)

    if TYPE_CHECKING:  # the methods are made from the table below

        def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]: ...

    @property
    def client(self) -> AsyncClient:
        """The connection that the calls go through."""
        return self._client

    def with_timeout(self, timeout_s: float) -> AsyncRemoteRobot:
        """The same robot over the same connection, with its own time limit for each call."""
        return AsyncRemoteRobot(self._client, self._description, timeout_s=timeout_s)

    async def _ask(self, row: Query, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        head = await self._client.ask(
            row.name,
            self.name,
            pack_inputs(inputs, row),
            pack_options(row, options),
            self.fingerprint,
            self._timeout_s,
        )
        return row.result(read_outputs(head, row))

    async def verify(
        self, q: ArrayLike, v: ArrayLike, a: ArrayLike, *, gravity: ArrayLike | None = None
    ) -> dict[str, Array]:
        """How far the formulations are apart at a state: relative residuals by name, (...,) each."""
        inputs = pack_inputs({"q": q, "v": v, "a": a, "gravity": gravity})
        head = await self._client.ask(
            "inverse_dynamics", self.name, inputs, {"verify": True}, self.fingerprint, self._timeout_s
        )
        return read_residuals(head)

    async def constraint_basis(self, joint: str) -> Array:
        """Directions in which a joint carries load, (6, 5) in joint axes, (6, 6) for a fixed joint."""
        bases: ConstraintBases = await self.constraint_bases(joints=[joint])
        return bases.of(joint)

    async def simulate(
        self,
        q0: ArrayLike,
        v0: ArrayLike,
        tau: ArrayLike | EffortFunction | None = None,
        *,
        dt: float,
        steps: int,
        method: Method = "articulated",
        integrator: Integrator = "rk4",
        gravity: ArrayLike | None = None,
        wrenches: Wrench | Sequence[Wrench] | WrenchFunction | None = None,
        payload: Payload | None = None,
        every: int = 1,
        p0: ArrayLike | None = None,
        first_step: int = 0,
        progress: Callable[[float], None] | None = None,
    ) -> Trajectory:
        """The motion from `q0`, `v0` under the efforts `tau`: see `RobotQueries.simulate`; it comes part by part."""
        asking = parts(
            self.configuration,
            q0,
            v0,
            tau,
            dt=dt,
            steps=steps,
            method=method,
            integrator=integrator,
            gravity=gravity,
            wrenches=wrenches,
            payload=payload,
            every=every,
            p0=p0,
            first_step=first_step,
            progress=progress,
        )
        outputs: Mapping[str, Any] | None = None
        while True:
            try:
                inputs, chosen = next(asking) if outputs is None else asking.send(outputs)
            except StopIteration as done:  # may not leave a coroutine
                motion: Trajectory = done.value
                return motion
            head = await self._client.ask(
                "simulate", self.name, pack_inputs(inputs), chosen, self.fingerprint, self._timeout_s
            )
            outputs = read_arrays(head)

    async def simulate_rheonomic(
        self,
        prescribed: GivenMotion,
        q0: ArrayLike,
        v0: ArrayLike,
        tau: ArrayLike | EffortFunction | None = None,
        *,
        dt: float,
        steps: int,
        **options: Any,
    ) -> RheonomicTrajectory:
        """The motion while some joints move as given, as `Robot.simulate_rheonomic`; long ones come part by part."""
        asking = rheonomic.parts(self.configuration, prescribed, q0, v0, tau, dt=dt, steps=steps, **options)
        inputs, chosen = next(asking)
        while True:
            head = await self._client.ask(
                "simulate_rheonomic", self.name, pack_inputs(inputs), chosen, self.fingerprint, self._timeout_s
            )
            outputs = read_arrays(head)
            try:
                inputs, chosen = asking.send(outputs)
            except StopIteration as done:  # may not leave a coroutine
                motion: RheonomicTrajectory = done.value
                return motion


async def _poll(socket: zmq.asyncio.Socket, timeout_ms: int) -> bool:
    """Whether a server is connected within that time."""
    poll: Callable[..., Any] = socket.poll  # pyzmq's types leave its parameters out
    return bool(await poll(timeout_ms, zmq.POLLOUT))


def _awaited(row: Query) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The row's method, with the same parameters, to be awaited."""
    declared = getattr(RobotQueries, row.name)
    signature = inspect.signature(declared)

    async def ask(self: AsyncRemoteRobot, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        inputs = {name: given[name] for name in row.inputs}
        return await self._ask(row, inputs, {name: given[name] for name in row.options})

    ask.__name__ = row.name
    ask.__qualname__ = f"AsyncRemoteRobot.{row.name}"
    ask.__doc__ = declared.__doc__
    ask.__signature__ = signature  # type: ignore[attr-defined]
    return ask


for _row in QUERIES.values():
    setattr(AsyncRemoteRobot, _row.name, _awaited(_row))
