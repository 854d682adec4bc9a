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
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import Any

import zmq

from dyn_service.api.arrays import holds_labelled
from dyn_service.api.description import RobotDescription
from dyn_service.api.inputs import labelled
from dyn_service.api.queries import COMPUTATIONS, QUERIES, GaitQueries, Overlay, RobotQueries
from dyn_service.errors import DeadlineExceededError, DynError, FailedPreconditionError
from dyn_service.model.description import LoopHandling, RootType
from dyn_service.service.client import flows
from dyn_service.service.client.channels import Channel, forks
from dyn_service.service.client.connection import MIN_S, Connection, first_id
from dyn_service.service.client.flows import Ask, Flow, RemoteRobotProperties, T, array_of, array_reader, pack_request
from dyn_service.service.client.retries import CHECK_S, Cause, RetryState, Step, TimeoutExtension
from dyn_service.service.protocol.messages import Notice, ReplyHead


class Client(Connection, GaitQueries):
    """A connection to one server. Threads that share a client take turns; one client per thread is faster.

    After a fork, the copy in the child process opens its own connection.

    Args:
        endpoint: The server's endpoint: `tcp://host:port`, `ipc:///path` or `inproc://name`.
        timeout_s: The time limit of each call; robots may have their own.
        compile_wait_s: How much longer a call waits while the server reports that it compiles; 0: no longer.
        on_wait: Called about once a second with what the server compiles; None: the call logs one warning.
        retries: Maximum number of retries of a query within its time limit; 0: none.
        retry_after_s: Time without a reply before the first retry, s; later pauses are longer and random.
        context: The ZeroMQ context; None: the process's default.
        keys: The client's key file or its contents, for a server with keys; None: the server has no keys.
        server_key: The server's public key; None: it is in the key file.
    """

    def _start(self) -> None:
        self._locks: dict[int, Any] = {}  # of each process, by the number of forks before it
        self._interrupted = False
        """Whether a call was interrupted, for example by KeyboardInterrupt, and may have left a request half sent."""
        self._begin()
        self._open()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; a call of another thread ends, and later calls fail. May be called twice."""
        self._forks = -1
        self._closed = True
        # A call of another thread uses the socket until it ends.
        with self._locks.setdefault(forks(), threading.RLock()):
            self._channel.close()  # in a forked child, pyzmq ignores this

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
        return RemoteRobot(self, self.run(flows.describe_robot(name)), timeout_s=timeout_s, names=names)

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
        timeout_s: float | None = None,
    ) -> RemoteRobot:
        """Loads a robot into the server.

        Args:
            urdf: The text of a robot file (URDF, MJCF, SDFormat), or the path of a local file. Xacro files are expanded
                in this process.
            root: How the root link moves in the world: "fixed", "planar" or "floating".
            mimic: Whether mimic joints follow others; False: each joint is independent.
            loops: "closed" refuses efforts of a robot with closed loops; "cut": those of the tree that is left.
            timeout_s: The time limit of this call; None: the client's.

        Raises:
            PermissionDeniedError: The client may not load robots.
            UrdfError: The file is invalid.
        """
        return RemoteRobot(self, self.run(flows.load_robot(urdf, root, mimic, loops), timeout_s))

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
        return RemoteRobot(self, self.run(flows.overlay_robot(robot, overlay, name, expires_s), timeout_s))

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
        begun = perf_counter()
        try:
            request = next(flow)
            extension = self._extension(request.query, begun, timeout_s)
            while True:
                request = flow.send(self.ask(request, timeout_s, extension=extension))
        except StopIteration as done:
            answer: T = done.value
            return answer

    def ask(
        self,
        request: Ask,
        timeout_s: float | None = None,
        read: Callable[[bytes], Any] = flows.read_head,
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
        if self._forks != forks():
            self._revive()
        if timeout_s is None:
            timeout_s = self._timeout_s
        begun = perf_counter()
        left_s = timeout_s if extension is None else extension.left_s(begun)
        if left_s <= 0:
            raise self._unanswered(request.query, timeout_s, begun, begun, None, 1, connected=True)
        lock = self._lock
        if lock._is_owned():
            raise FailedPreconditionError(
                f"{request.query}: on_wait may not call its own client, nor may a signal handler, while a call of the "
                "same thread waits for the server; use another client there"
            )
        try:
            try:
                if not lock.acquire(False) and not lock.acquire(timeout=left_s):
                    message = f"{request.query}: another thread's call took longer than {timeout_s:g} s"
                    raise DeadlineExceededError(message)
                if self._interrupted and not self._closed:
                    self._reopen()
                return self._exchange(request, timeout_s, read, extension, begun, left_s)
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
        read: Callable[[bytes], Any],
        extension: TimeoutExtension | None,
        begun: float,
        left_s: float,
    ) -> Any:
        """As `ask`, by the thread that holds the lock; `left_s` is the time left at `begun`."""
        request_id = self._last_id = self._last_id + 1
        request_epoch = epoch = self._epoch
        channel = self._channel
        payload = pack_request(request_id, *request, left_s * 1e3, self._compile_wait_s * 1e3)
        until = begun + left_s
        notified = tries = None
        sent, self._interrupted = False, True
        try:
            if not channel.send(payload):
                payload = self._send_in_time(request_id, request, timeout_s, until)
            sent = True
            while not self._closed:
                left = until - perf_counter()
                message = channel.receive(left if left < CHECK_S else CHECK_S)  # noqa: FURB136  # no call
                if message is not None:
                    reply = read(message)
                    if reply is not None and reply.id == request_id:
                        if reply.__class__ is Notice:
                            notified = extension = extension or self._extension(request.query, begun, timeout_s)
                            until = extension.until_s(reply, perf_counter())
                            if tries is not None:
                                tries.notified = True
                        elif reply.epoch == epoch or self._accepts(reply.epoch, request_epoch, perf_counter()):
                            break
                    else:
                        self._handle_unexpected(reply, perf_counter())
                    self._heard_s = now = perf_counter()
                    epoch = self._epoch
                    if now < until:
                        continue
                if tries is None:
                    tries = self._retry_state(request.query, len(payload), begun, request_epoch)
                    tries.notified = notified is not None
                self._look(tries, request_id, request, begun, timeout_s, until, notified)
                epoch = self._epoch
            else:
                raise self._closed_error()  # noqa: TRY301
        except BaseException as fault:
            if sent:
                self._cancel(request_id)
            self._interrupted = not isinstance(fault, DynError)
            if self._closed and isinstance(fault, zmq.ZMQError):  # closed by a signal handler, or before the call
                raise self._closed_error() from None
            raise
        self._interrupted = False
        self._heard_s = perf_counter()
        if reply.late and notified is None:
            raise self._late_answer(request.query, timeout_s)
        return reply

    def _send_in_time(self, request_id: int, request: Ask, timeout_s: float, until: float) -> bytes:
        """Sends a request as soon as a server is connected, with the time left then; returns the encoded request.

        Raises:
            UnavailableError: No server is connected in time.
        """
        channel = self._channel
        while (left := until - perf_counter()) > 0:
            if self._closed:
                raise self._closed_error()
            if not channel.is_connected(min(left, CHECK_S)):
                continue
            payload = self._packed(request_id, request, max(until - perf_counter(), MIN_S))
            if channel.send(payload):
                return payload
        raise self._unreachable(timeout_s)

    def _look(
        self,
        tries: RetryState,
        request_id: int,
        request: Ask,
        begun: float,
        timeout_s: float,
        until: float,
        extension: TimeoutExtension | None,
    ) -> None:
        """Retries or probes for a call that has no reply yet.

        Raises:
            DeadlineExceededError: Its time limit has passed.
            UnavailableError: The server that could answer is gone.
        """
        now = perf_counter()
        channel, query = self._channel, request.query
        connected = channel.is_connected()
        if now >= until:
            raise self._unanswered(query, timeout_s, begun, now, extension, tries.count, connected=connected)
        heard = self._heard_s > tries.checked_s
        step = tries.next_step(now, connected=connected, epoch=self._epoch, heard=heard)
        if isinstance(step, Cause):
            raise self._lost(query, step, now, tries.count)
        if step is Step.RETRY:
            self._counters.retries += 1
            channel.send(self._packed(request_id, request, until - now, tries.count - 1))
        elif step is Step.PROBE:
            channel.send(self._probe())

    def _cancel(self, request_id: int) -> None:
        """Sends the cancel of this request, without waiting for its delivery."""
        with suppress(zmq.ZMQError):  # the socket was closed in the call
            for message in self._cancel_messages(request_id, perf_counter()):
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
        self._lock = self._locks.setdefault(forks(), threading.RLock())
        self._forks = forks()

    def _reopen(self) -> None:
        """Replaces the connection of an interrupted call or of a parent process, in whatever state it is."""
        self._last_id = first_id()
        self._retrying.random.seed()
        former = self._channel
        self._open()
        former.close()

    def _reconnect(self) -> None:
        self._channel.renew()

    def _open(self) -> None:
        context = self._context if self._context_forks == forks() else None  # a parent's is unusable after a fork
        self._channel = Channel(self._endpoint, context, self._keys)


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

    def _ask(self, row: str, given: tuple[Any, ...], others: tuple[Any, ...] = ()) -> Any:
        entry = QUERIES[row]
        if holds_labelled(given) or holds_labelled(others):
            return labelled(self, entry, entry.named(given, others))
        request = flows.query_request(self, entry, given, others)
        reader = self._readers.get(row)
        reply = self._client.ask(request, self._timeout_s, reader or flows.read_head)
        if type(reply) is ReplyHead:
            return flows.read_answer(reply, entry, request, self)
        return array_of(reply, entry, flows.leading(entry, request.inputs) + self._cores[row])

    def _compute(self, row: str, **arguments: Any) -> Any:
        if holds_labelled(arguments):
            return labelled(self, COMPUTATIONS[row], arguments)
        return self._client.run(flows.computation(COMPUTATIONS[row], arguments, self), self._timeout_s)
