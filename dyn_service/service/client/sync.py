"""The blocking client: each call sends one request and waits for its reply.

    with Client("tcp://127.0.0.1:5755") as client:
        panda = client.robot("panda")
        tau = panda.inverse_dynamics(q, v, a)

A call ends within its time limit: with the answer, with the server's error, with `DeadlineExceededError` (no answer in
time) or with `UnavailableError` (no server). While the server reports that it compiles, the call waits longer, by up to
`compile_wait_s`. Within the limit, queries that seem lost are sent again (see `retries`), also to a server that was
restarted. Replies that arrive too late are dropped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from dyn_service.api.arrays import holds_labelled
from dyn_service.api.description import RobotDescription
from dyn_service.api.inputs import labelled
from dyn_service.api.queries import COMPUTATIONS, QUERIES, GaitQueries, Overlay, Query, RobotQueries
from dyn_service.errors import DeadlineExceededError, DynError, FailedPreconditionError
from dyn_service.model.description import LoopHandling, RootType
from dyn_service.service.client import flows
from dyn_service.service.client.channels import Channel, forks
from dyn_service.service.client.connection import MIN_S, Call, Connection, first_id
from dyn_service.service.client.flows import Ask, Flow, RemoteRobotProperties, T, array_of, array_reader, pack_request
from dyn_service.service.client.retries import CHECK_S, Cause, Step, TimeoutExtension
from dyn_service.service.protocol.messages import Notice, ReplyHead


class Client(Connection, GaitQueries):
    """A connection to one server. Threads that share a client take turns; one client per thread is faster.

    After a fork, the copy in the child process opens its own connection.

    Args:
        endpoint: The server's endpoint: `tcp://host:port` or `ipc:///path`.
        timeout_s: The time limit of each call; robots may have their own.
        compile_wait_s: How much longer a call waits while the server reports that it compiles; 0: no longer.
        on_wait: Called about once a second with what the server compiles; None: the call logs one warning.
        retries: Maximum number of retries of a query within its time limit; 0: none.
        retry_after_s: Time without a reply before the first retry, s; later pauses are longer and random.
        keys: The path of the client's key file, or its `Keys`, for a server with keys; None: the server has no keys.
        server_key: The server's public key; None: it is in the key file.
    """

    _channel: Channel

    def _start(self) -> None:
        self._locks: dict[int, Any] = {}  # of each process, by the number of forks before it
        self._interrupted = False
        """Whether a call was interrupted, for example by KeyboardInterrupt, and may have left a request half sent."""
        self._begin()
        self._channel = Channel(self._endpoint, self._keys)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; a call of another thread ends, and later calls fail. May be called twice.

        It takes at most 0.1 s, unless a call of another thread is in its `on_wait`.
        """
        self._forks = -1
        self._closed = True
        # A call of another thread uses the socket until it ends.
        with self._locks.setdefault(forks.count, threading.RLock()):
            self._channel.close()

    def robot(self, name: str, *, timeout_s: float | None = None, names: Sequence[str] | None = None) -> RemoteRobot:
        """Returns a robot on the server, with the methods of `Robot`.

        Args:
            name: The robot's name on the server.
            timeout_s: The time limit of its calls; None: the client's.
            names: All movable joints, in the order of the entries of q, v, tau in arguments and results; None: the
                server's order. A joint with several entries keeps their order.

        Raises:
            NotFoundError: The server has no robot of that name, or the robot has no joint of one of the names.
            InvalidArgumentError: A joint is named twice or missing.
        """
        return self._robot(flows.describe_robot(name), timeout_s=timeout_s, names=names)

    def list_robots(self) -> list[str]:
        """Returns the names of the robots on the server."""
        return self.run(flows.list_robots())

    def load_robot(
        self,
        urdf: str | os.PathLike[str],
        *,
        root: RootType = "fixed",
        mimic: bool = True,
        loops: LoopHandling = "closed",
        joints: str | os.PathLike[str] | None = None,
        timeout_s: float | None = None,
    ) -> RemoteRobot:
        """Loads a robot into the server.

        Args:
            urdf: The text of a robot file (URDF, MJCF, SDFormat), or the path of a local file. Xacro files are expanded
                in this process.
            root: How the root link moves in the world: "fixed", "planar" or "floating".
            mimic: Whether mimic joints follow others; False: each joint is independent.
            loops: With "closed", loop joints close their loops, and efforts are refused if something else closes one;
                "cut": all answers are those of the tree that is left.
            joints: The text of a joint file, or the path of a local file: passive parameters, motors and loop joints.
            timeout_s: The time limit of this call; None: the client's.

        Raises:
            PermissionDeniedError: The client may not load robots.
            UrdfError: The file is invalid.
            InvalidArgumentError: `joints` is not a joint file, or does not fit the robot.
        """
        return self._robot(flows.load_robot(urdf, root, mimic, loops, joints), timeout_s)

    def overlay_robot(
        self, robot: str, overlay: Overlay, *, name: str, expires_s: float | None = None, timeout_s: float | None = None
    ) -> RemoteRobot:
        """Adds a copy of one of the server's robots with an overlay, for example for a session.

        Args:
            robot: The name of the existing robot.
            overlay: The changed numbers, without leading axes.
            name: The name of the copy.
            expires_s: Time without use after which the copy is unloaded, s; None: never.
            timeout_s: The time limit of this call; None: the client's.

        Raises:
            NotFoundError: The server has no robot of that name, or the robot has no such link or joint.
            InvalidArgumentError: A number is invalid or contradicts another one; `path` names it.
            FailedPreconditionError: A different robot has that name.
            PermissionDeniedError: The client may not load robots.
            ResourceExhaustedError: The server has too many robots.
        """
        return self._robot(flows.overlay_robot(robot, overlay, name, expires_s), timeout_s)

    def _robot(self, flow: Flow[RobotDescription], flow_timeout_s: float | None = None, **settings: Any) -> RemoteRobot:
        """Returns the robot that a flow describes. settings: of `RemoteRobot`."""
        return RemoteRobot(self, self.run(flow, flow_timeout_s), **settings)

    def unload_robot(self, name: str) -> None:
        """Removes a robot from the server.

        Raises:
            NotFoundError: The server has no robot of that name.
            PermissionDeniedError: The client may not unload robots.
        """
        return self.run(flows.unload_robot(name))

    def health(self) -> dict[str, Any]:
        """Returns the server's status, version and uptime."""
        return self.run(flows.query_server("health"))

    def stats(self) -> dict[str, Any]:
        """Returns the server's statistics since its start: requests, errors, durations."""
        return self.run(flows.query_server("stats"))

    def run(self, flow: Flow[T], timeout_s: float | None = None) -> T:
        """Sends the requests of a flow in order; returns its result.

        flow: see `client.flows`. timeout_s: of all requests together; None: the client's.
        """
        if timeout_s is None:
            timeout_s = self._timeout_s
        begun_s = perf_counter()
        try:
            request = next(flow)
            extension = self._extension(request.query, begun_s, timeout_s)
            while True:
                request = flow.send(self.ask(request, timeout_s, extension=extension))
        except StopIteration as done:
            answer: T = done.value
            return answer

    def ask(
        self,
        request: Ask,
        timeout_s: float | None = None,
        read: Callable[[bytes | memoryview], Any] = flows.read_head,
        extension: TimeoutExtension | None = None,
    ) -> Any:
        """Sends one request and waits for its reply, which may carry an error.

        timeout_s: of the request; None: the client's. read: decodes a message to an object with an `id`, to a `Notice`,
        or to None if it is not a reply. extension: the timeout extension of the call that contains this request; None:
        it is the only request.

        Returns:
            The reply to this request, decoded by `read`.

        Raises:
            DeadlineExceededError: There was no reply in time.
            UnavailableError: There is no server.
        """
        if self._forks != forks.count:
            self._revive()
        if timeout_s is None:
            timeout_s = self._timeout_s
        begun_s = perf_counter()
        timeout_left_s = timeout_s if extension is None else extension.left_s(begun_s)
        if timeout_left_s <= 0:
            call = Call(request, timeout_s, begun_s, 0, self._epoch, 0, None)
            raise self._unanswered_error(call, begun_s, connected=True)
        lock = self._lock
        # the outer call holds the connection, so this one would wait for itself until its time limit
        if lock._is_owned():
            raise FailedPreconditionError(
                f"{request.query}: on_wait may not call its own client, nor may a signal handler, while a call of the "
                "same thread waits for the server; use another client there"
            )
        try:
            try:
                if not lock.acquire(False) and not lock.acquire(timeout=timeout_left_s):
                    message = f"{request.query}: another thread's call took longer than {timeout_s:g} s"
                    raise DeadlineExceededError(message)
                if self._interrupted and not self._closed:
                    self._reopen()
                return self._exchange(request, timeout_s, read, extension, begun_s, timeout_left_s)
            finally:
                if lock._is_owned():
                    lock.release()
        except BaseException:  # an interrupt within `finally`
            if lock._is_owned():
                lock.release()
            raise

    def _exchange(
        self,
        request: Ask,
        timeout_s: float,
        read: Callable[[bytes | memoryview], Any],
        extension: TimeoutExtension | None,
        begun_s: float,
        timeout_left_s: float,
    ) -> Any:
        """As `ask`, by the thread that holds the lock; `timeout_left_s` is the time left at `begun_s`."""
        request_id = self._last_id = self._last_id + 1
        channel = self._channel
        payload = pack_request(request_id, request, timeout_left_s * 1e3, self._compile_wait_s * 1e3)
        until_s, remaining_s = begun_s + timeout_left_s, timeout_left_s
        call, self._interrupted = None, True
        try:
            if not channel.send(payload):
                payload = self._send_in_time(request_id, request, timeout_s, until_s)
                remaining_s = until_s - perf_counter()
            call = Call(request, timeout_s, begun_s, len(payload), self._epoch, channel.connections, extension)
            while not self._closed:
                message = channel.receive(remaining_s if remaining_s < CHECK_S else CHECK_S)  # noqa: FURB136  # no call
                if message is not None:
                    reply = read(message)
                    if reply is None or reply.id != request_id:
                        self._handle_unexpected(reply, perf_counter())
                    elif reply.__class__ is Notice:
                        until_s = self._extend(call, reply, perf_counter())
                    elif reply.epoch == self._epoch or self._accepts(reply.epoch, call.epoch, perf_counter()):
                        break
                    self._heard_s = now = perf_counter()
                    remaining_s = until_s - now
                    if remaining_s > 0.0:
                        continue
                self._look(call, request_id, until_s)
                remaining_s = until_s - perf_counter()
            else:
                raise self._closed_error()  # noqa: TRY301
        except BaseException as fault:
            if call is not None:
                self._cancel(request_id)
            self._interrupted = not isinstance(fault, DynError)
            raise
        self._interrupted = False
        self._heard_s = perf_counter()
        # a control loop must not act on a late torque; a call that got notices waits longer on purpose
        if reply.late and not call.is_notified:
            raise self._late_error(call)
        return reply

    def _send_in_time(self, request_id: int, request: Ask, timeout_s: float, until_s: float) -> bytes:
        """Sends a request as soon as a server is connected; returns its bytes, or raises `UnavailableError`."""
        channel = self._channel
        while (remaining_s := until_s - perf_counter()) > 0:
            if self._closed:
                raise self._closed_error()
            if not channel.is_connected(min(remaining_s, CHECK_S)):
                continue
            payload = self._packed(request_id, request, max(until_s - perf_counter(), MIN_S))
            if channel.send(payload):
                return payload
        raise self._unreachable_error(timeout_s, channel.failure)

    def _look(self, call: Call, request_id: int, until_s: float) -> None:
        """Retries or probes for a call without a reply; raises its error if time is up or the server is gone."""
        if self._closed:
            raise self._closed_error()
        now, channel, tries = perf_counter(), self._channel, self._retry_state(call)
        connection = channel.connections if channel.is_connected() else None
        if now >= until_s:
            raise self._unanswered_error(call, now, connected=connection is not None)
        has_message = self._heard_s > tries.checked_s
        step = tries.next_step(now, connection=connection, epoch=self._epoch, has_message=has_message)
        if isinstance(step, Cause):
            raise self._lost_error(call, step, now)
        if step is Step.RETRY:
            self._counters.retries += 1
            channel.send(self._packed(request_id, call.request, until_s - now, tries.count - 1))
        elif step is Step.PROBE:
            channel.send(self._probe())

    def _cancel(self, request_id: int) -> None:
        """Sends the cancel of this request, without waiting for its delivery."""
        messages = self._cancel_messages(request_id, perf_counter())
        if self._channel.is_sending:  # the request is incomplete
            self._channel.renew()
        for message in messages:
            self._channel.send(message)

    def _compute(self, row: str, **arguments: Any) -> Any:
        return self.run(flows.computation(COMPUTATIONS[row], arguments))

    def _revive(self) -> None:
        """Handles calls after a fork or after `close`."""
        if self._closed:
            raise FailedPreconditionError("the client is closed")
        self._interrupted = True
        self._begin()

    def _begin(self) -> None:
        """Creates the lock again in this process; concurrent threads get the same lock."""
        self._lock = self._locks.setdefault(forks.count, threading.RLock())
        self._forks = forks.count

    def _reopen(self) -> None:
        """Replaces the connection of an interrupted call or of a parent process, in whatever state it is."""
        self._last_id = first_id()
        self._retrying.random.seed()
        former, self._channel = self._channel, Channel(self._endpoint, self._keys)
        former.close()


class RemoteRobot(RemoteRobotProperties, RobotQueries):
    """A robot on a server, from `Client.robot`. Its results are bit-identical to those of the `Robot` there.

    Each request carries the robot's fingerprint: if the server replaces the robot by another one of the same name,
    calls raise `FailedPreconditionError`.
    """

    def __init__(
        self,
        client: Client,
        description: RobotDescription,
        *,
        timeout_s: float | None = None,
        owns_client: bool = False,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(description, names, timeout_s)
        self._client = client
        self._owns_client = owns_client
        single = [row for row in QUERIES.values() if row.output is not None]
        self._readers = {row.name: array_reader(row.name) for row in single}
        self._cores = {row.name: row.outputs[row.output or ""].dims(self.dimensions) for row in single}

    @property
    def client(self) -> Client:
        """The client."""
        return self._client

    def close(self) -> None:
        """Closes the connection if this robot owns it, as robots from `connect` do."""
        if self._owns_client:
            self._client.close()

    def _answer(self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...]) -> Any:
        if holds_labelled((required, optional)):
            return labelled(self, row, row.named(required, optional))
        request = flows.query_request(self, row, required, optional)
        reader = self._readers.get(row.name)
        reply = self._client.ask(request, self._timeout_s, reader or flows.read_head)
        if type(reply) is ReplyHead:
            return flows.read_answer(reply, row, request, self)
        return array_of(reply, row, flows.leading(row, request.inputs) + self._cores[row.name])

    def _compute(self, row: str, **arguments: Any) -> Any:
        if holds_labelled(arguments):
            return labelled(self, COMPUTATIONS[row], arguments)
        return self._client.run(flows.computation(COMPUTATIONS[row], arguments, self), self._timeout_s)
