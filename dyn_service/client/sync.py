"""The client for ordinary code: each call sends one request and waits for its reply.

    with Client("tcp://127.0.0.1:5755") as client:
        panda = client.robot("panda")
        tau = panda.inverse_dynamics(q, v, a)

A call ends within its time limit: with the answer, with the server's error, or with `DeadlineExceededError` (no answer
in time) or `UnavailableError` (no server). Only where the server says that it compiles the call goes on waiting, as
long as `compile_wait_s` allows. A reply that comes too late is dropped when the next call meets it. After a server
restart the next call finds the new one by itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from time import perf_counter
from types import TracebackType
from typing import Any

import zmq
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
from dyn_service.api.results import RheonomicTrajectory, SegmentLoads, SegmentMatrices, Trajectory
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
from dyn_service.client.sockets import forks, prepare
from dyn_service.client.state import StateCall, shortcut
from dyn_service.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError
from dyn_service.model.description import RootType
from dyn_service.protocol.defaults import DEFAULT_COMPILE_WAIT_S
from dyn_service.protocol.messages import Notice, ReplyHead
from dyn_service.protocol.sockets import is_writable, plain_send


class Client:
    """A connection to one server. Threads that share a client take turns; one client per thread is faster.

    After a fork the child's copy opens a connection of its own.

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
        self._closed = False
        self._forks = forks()
        self._open()

    def __repr__(self) -> str:
        return f"<Client '{self._endpoint}'{', closed' if self._closed else ''}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def close(self) -> None:
        """Closes the connection; later calls fail. May be called twice."""
        if not self._closed:
            self._closed = True
            if self._forks == forks():
                self._socket.close()
            self._forks = -1

    def robot(self, name: str, *, timeout_s: float | None = None) -> RemoteRobot:
        """A robot of the server, with the methods of `Robot`.

        Args:
            name: The robot's name on the server.
            timeout_s: The time limit of its calls; None is the client's.

        Raises:
            NotFoundError: The server has no robot of that name.
        """
        return RemoteRobot(self, self._administer("describe_robot", robot=name), timeout_s=timeout_s)

    def list_robots(self) -> list[str]:
        """The names of the robots that the server has."""
        robots: list[str] = self._administer("list_robots")["robots"]
        return robots

    def load_robot(
        self, urdf: str | os.PathLike[str], *, root: RootType = "fixed", timeout_s: float | None = None
    ) -> RemoteRobot:
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
        return RemoteRobot(self, self._administer("load_robot", inputs=inputs, options=options, timeout_s=timeout_s))

    def unload_robot(self, name: str) -> None:
        """Makes the server stop serving a robot.

        Raises:
            NotFoundError: The server has no robot of that name.
            PermissionDeniedError: The server does not let clients unload robots.
        """
        self._administer("unload_robot", robot=name)

    def segment_inverse_dynamics(self, **arguments: Any) -> SegmentLoads:
        """Forces and moments at the joints of measured segments: see `dyn_service.reference.segments`.

        Args:
            **arguments: `mass`, `inertia`, `rotation` and so on, and `method`.
        """
        options = {"method": arguments.pop("method")} if "method" in arguments else UNSET
        head = self.ask("segment_inverse_dynamics", UNSET, pack_inputs(arguments), options, UNSET)
        return SegmentLoads(**read_arrays(head))

    def segment_matrices(self, **arguments: Any) -> SegmentMatrices:
        """The matrices of the segments' M q-ddot = C + G + A [F; M] + E: see `dyn_service.reference.segments`.

        Args:
            **arguments: `mass`, `inertia`, `rotation` and so on, as for `segment_inverse_dynamics`.
        """
        head = self.ask("segment_matrices", UNSET, pack_inputs(arguments), UNSET, UNSET)
        return SegmentMatrices(**read_arrays(head))

    def health(self) -> dict[str, Any]:
        """Whether the server answers, its version and how long it runs."""
        return self._administer("health")

    def stats(self) -> dict[str, Any]:
        """What the server has done since it started: requests, errors, times."""
        return self._administer("stats")

    def ask(
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

        def write(request_id: int, limit_s: float, wait_s: float) -> bytes:
            return pack_request(request_id, query, robot, inputs, options, model, limit_s * 1e3, wait_s * 1e3)

        head: ReplyHead = self.exchange(query, write, read_head, timeout_s)
        return head

    def exchange(
        self,
        query: str,
        write: Callable[[int, float, float], bytes],
        read: Callable[[bytes], Any],
        timeout_s: float | None = None,
    ) -> Any:
        """Sends one request and waits for its reply.

        Args:
            query: The query's name, for errors.
            write: Gives the request's bytes, from its id, the time limit and the wait for compilers in seconds.
            read: Makes of a reply's bytes something with an `id`, or None of what is no reply; or a `Notice`.
            timeout_s: The time limit; None is the client's.

        Returns:
            What `read` made of the reply to this very request.

        Raises:
            DeadlineExceededError: No reply in time.
            UnavailableError: No server.
        """
        if self._forks != forks():
            self._revive()
        if timeout_s is None:
            timeout_s = self._timeout_s
        begun = perf_counter()
        if not self._turn.acquire(False) and not self._turn.acquire(timeout=timeout_s):
            raise DeadlineExceededError(f"{query}: another thread's call took longer than {timeout_s:g} s")
        try:
            request_id = self._last_id = self._last_id + 1
            payload = write(request_id, timeout_s, self._compile_wait_s)
            if timeout_s != self._armed_s:
                self._arm(timeout_s)
            if self._is_inproc and not is_writable(self._socket):
                self._reconnect()  # the one transport that does not do so by itself
                self._arm(timeout_s)
            try:
                self._send(payload)
            except zmq.Again:
                raise UnavailableError(f"no server answers at {self._endpoint} within {timeout_s:g} s") from None
            patience = None
            until = begun + timeout_s
            left = until - perf_counter()
            while True:
                if left < 0.999 * timeout_s:  # something took its time: only what is left of it may be waited
                    self._arm(max(left, 0.0))
                try:
                    reply = read(self._receive())
                except zmq.Again:
                    raise self._no_answer(query, timeout_s, patience) from None
                if reply is not None and reply.id == request_id:
                    if reply.__class__ is not Notice:
                        return reply
                    patience = patience or Patience(query, begun, timeout_s, self._compile_wait_s, self._on_wait)
                    now = perf_counter()
                    until = patience.until_s(reply, now)
                    self._arm(max(until - now, 0.0))
                left = until - perf_counter()  # the late reply to an earlier request, or nothing of ours
        finally:
            self._turn.release()

    def _administer(
        self,
        query: str,
        *,
        robot: Any = UNSET,
        inputs: Any = UNSET,
        options: Any = UNSET,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        return read_plain(self.ask(query, robot, inputs, options, UNSET, timeout_s))

    def _no_answer(
        self, query: str, timeout_s: float, patience: Patience | None
    ) -> DeadlineExceededError | UnavailableError:
        connected = is_writable(self._socket)
        if self._is_inproc:
            self._reconnect()  # what waits for a server yet to come must not reach it
        if connected and patience is not None:
            return patience.exceeded(self._endpoint)
        if connected:
            return DeadlineExceededError(f"{query}: no answer from {self._endpoint} within {timeout_s:g} s")
        return UnavailableError(f"{query}: the server at {self._endpoint} went away before it answered")

    def _arm(self, timeout_s: float) -> None:
        """Sets how long the socket waits."""
        milliseconds = ceil(timeout_s * 1e3)
        self._socket.setsockopt(zmq.SNDTIMEO, milliseconds)
        self._socket.setsockopt(zmq.RCVTIMEO, milliseconds)
        self._armed_s = timeout_s

    def _revive(self) -> None:
        """After a fork, or a close: both are told apart here, off the path of every call."""
        if self._closed:
            raise FailedPreconditionError("the client is closed")
        self._open()

    def _open(self) -> None:
        self._forks = forks()
        self._turn = threading.Lock()
        self._is_inproc = self._endpoint.startswith("inproc://")
        self._connect()

    def _reconnect(self) -> None:
        self._socket.close()
        self._connect()

    def _connect(self) -> None:
        context = self._given_context or zmq.Context.instance()
        self._socket = prepare(context.socket(zmq.DEALER))
        try:
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as fault:
            self._socket.close()
            raise refused_endpoint(self._endpoint, fault) from None
        self._send = plain_send(self._socket)
        self._receive = self._socket.recv
        self._armed_s = -1.0


class RemoteRobot(Described, RobotQueries):
    """A robot on a server. Its answers are those of the `Robot` there, to the last bit.

    Get one from `Client.robot`. With each request goes the fingerprint of the robot it was made for: should the server
    come to serve another robot under that name, calls raise `FailedPreconditionError`.
    """

    def __init__(
        self,
        client: Client,
        description: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        owns_client: bool = False,
    ) -> None:
        Described.__init__(self, description)
        self._client = client
        self._timeout_s = None if timeout_s is None else check_timeout(timeout_s)
        self._owns_client = owns_client
        sizes = {"nq": self.nq, "nv": self.nv}
        for row in QUERIES.values():
            if row.result_type is None and self.nv:
                call = StateCall(row, self.name, self.fingerprint, sizes)
                general = getattr(RobotQueries, row.name).__get__(self)
                setattr(self, row.name, shortcut(row, general, partial(self._ask_state, row, call)))

    def __enter__(self) -> RemoteRobot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def client(self) -> Client:
        """The connection that the calls go through."""
        return self._client

    def with_timeout(self, timeout_s: float) -> RemoteRobot:
        """The same robot over the same connection, with its own time limit for each call."""
        return RemoteRobot(self._client, self._description, timeout_s=timeout_s)

    def close(self) -> None:
        """Closes the connection if this robot brought its own, as one from `connect` does."""
        if self._owns_client:
            self._client.close()

    def _evaluate(self, row: Query, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        head = self._client.ask(
            row.name,
            self._name,
            pack_inputs(inputs, row),
            pack_options(row, options),
            self._fingerprint,
            self._timeout_s,
        )
        return read_outputs(head, row)

    def verify(self, q: ArrayLike, v: ArrayLike, a: ArrayLike, *, gravity: ArrayLike | None = None) -> dict[str, Array]:
        """How far the formulations are apart at a state: relative residuals by name, (...,) each."""
        inputs = pack_inputs({"q": q, "v": v, "a": a, "gravity": gravity})
        head = self._client.ask(
            "inverse_dynamics", self._name, inputs, {"verify": True}, self._fingerprint, self._timeout_s
        )
        return read_residuals(head)

    def simulate(
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
        try:
            inputs, chosen = next(asking)
            while True:
                head = self._client.ask(
                    "simulate", self._name, pack_inputs(inputs), chosen, self._fingerprint, self._timeout_s
                )
                inputs, chosen = asking.send(read_arrays(head))
        except StopIteration as done:
            motion: Trajectory = done.value
            return motion

    def simulate_rheonomic(
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
            head = self._client.ask(
                "simulate_rheonomic", self._name, pack_inputs(inputs), chosen, self._fingerprint, self._timeout_s
            )
            outputs = read_arrays(head)
            try:
                inputs, chosen = asking.send(outputs)
            except StopIteration as done:
                motion: RheonomicTrajectory = done.value
                return motion

    def _ask_state(self, row: Query, call: StateCall, *values: Any) -> Any:
        """The answer by the short way, or None where the general one must be taken."""
        data = call.data(values)
        if data is None:
            return None
        reply = self._client.exchange(row.name, partial(call.write, data), call.read, self._timeout_s)
        if type(reply) is ReplyHead:
            return row.result(read_outputs(reply, row))
        return reply.outputs.array.value()
