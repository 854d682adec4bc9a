"""The client for ordinary code: each call sends one request and waits for its reply.

    with Client("tcp://127.0.0.1:5755") as client:
        panda = client.robot("panda")
        tau = panda.inverse_dynamics(q, v, a)

A call ends within its time limit: with the answer, with the server's error, or with `DeadlineExceededError` (no answer
in time) or `UnavailableError` (no server). Only where the server says that it compiles the call goes on waiting, as
long as `compile_wait_s` allows. Within the limit a request that changes nothing is sent again where it, or its reply,
seems to be lost: see `tries`. A reply that comes too late is dropped when the next call meets it. After a restart of
the server the call finds the new one by itself.
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

from dyn_service.api.description import RobotDescription
from dyn_service.api.queries import COMPUTATIONS, QUERIES, GaitQueries, Overlay, RobotQueries
from dyn_service.errors import DeadlineExceededError, DynError, FailedPreconditionError
from dyn_service.model.description import RootType
from dyn_service.service.client import core
from dyn_service.service.client.channels import Channel, Context, forks, open_channel
from dyn_service.service.client.connection import LEAST_S, Connection, check_timeout, first_id
from dyn_service.service.client.core import Ask, Flow, RemoteDescribed, T, pack_request
from dyn_service.service.client.decoding import array_of, array_reader
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


class Client(Connection, GaitQueries):
    """A connection to one server. Threads that share a client take turns; one client per thread is faster.

    After a fork the child's copy opens a connection of its own, in the child's own ZeroMQ context.

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
        self._given_context, self._given_in = context, forks()
        self._turns: dict[int, Any] = {}  # the lock of each process, by the forks before it
        self._torn = False
        """Whether a call was left in its midst, as by KeyboardInterrupt: what it was at may be half done."""
        self._begin()
        self._open()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; later calls fail. May be called twice."""
        self._forks = -1
        self._closed = True
        self._channel.close()  # of a parent's socket, in the child, pyzmq makes nothing

    def robot(self, name: str, *, timeout_s: float | None = None, names: Sequence[str] | None = None) -> RemoteRobot:
        """A robot of the server, with the methods of `Robot`.

        Args:
            name: The robot's name on the server.
            timeout_s: The time limit of its calls; None is the client's.
            names: All its movable joints, in the order in which the entries of q, v, tau.. are to stand, in calls and
                in answers; None is the server's order. Each stands for all of its joint's entries, in their order.

        Raises:
            NotFoundError: The server has no robot of that name, or the robot no joint of one of the names.
            InvalidArgumentError: A joint is named twice or not at all.
        """
        return RemoteRobot(self, self.run(core.describe_robot(name)), timeout_s=timeout_s, names=names)

    def list_robots(self) -> list[str]:
        """The names of the robots that the server has."""
        return self.run(core.list_robots())

    def load_robot(
        self,
        urdf: str | os.PathLike[str],
        *,
        root: RootType = "fixed",
        mimic: bool = True,
        timeout_s: float | None = None,
    ) -> RemoteRobot:
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
        return RemoteRobot(self, self.run(core.load_robot(urdf, root, mimic), timeout_s))

    def overlay_robot(
        self,
        robot: str,
        overlay: Overlay,
        *,
        name: str,
        expires_s: float | None = None,
        timeout_s: float | None = None,
    ) -> RemoteRobot:
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
        return RemoteRobot(self, self.run(core.overlay_robot(robot, overlay, name, expires_s), timeout_s))

    def unload_robot(self, name: str) -> None:
        """Makes the server stop serving a robot.

        Raises:
            NotFoundError: The server has no robot of that name.
            PermissionDeniedError: The server does not let clients unload robots.
        """
        self.run(core.unload_robot(name))

    def health(self) -> dict[str, Any]:
        """Whether the server answers, its version and how long it runs."""
        return self.run(core.plain("health"))

    def stats(self) -> dict[str, Any]:
        """What the server has done since it started: requests, errors, times."""
        return self.run(core.plain("stats"))

    def run(self, flow: Flow[T], timeout_s: float | None = None) -> T:
        """Sends the requests of a flow, one after the other, and gives its answer.

        Args:
            flow: See `client.core`.
            timeout_s: The time limit of all of them together; None is the client's.
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
        read: Callable[[bytes], Any] = core.read_head,
        extension: TimeoutExtension | None = None,
    ) -> Any:
        """Sends one request and waits for its reply, which may carry an error.

        Args:
            request: What is asked; see `client.core.Ask`.
            timeout_s: The time limit; None is the client's.
            read: Makes of a reply's bytes something with an `id`, or None of what is no reply; or a `Notice`.
            extension: The wait of the call that the request is one of; None: it is the only one.

        Returns:
            What `read` made of the reply to this very request: a `ReplyHead`, unless it was given.

        Raises:
            DeadlineExceededError: No reply in time.
            UnavailableError: No server.
        """
        if self._forks != forks():
            self._revive()
        if timeout_s is None:
            timeout_s = self._timeout_s
        begun = perf_counter()
        left_s = timeout_s if extension is None else extension.left_s(begun)
        if left_s <= 0:
            raise self._unanswered(request.query, timeout_s, begun, begun, None, 1, reaches=True)
        turn = self._turn
        if turn._is_owned():
            raise FailedPreconditionError(
                f"{request.query}: on_wait may not call its own client, nor may a signal handler, while a call of the "
                "same thread waits for the server; use another client there"
            )
        try:
            try:
                if not turn.acquire(False) and not turn.acquire(timeout=left_s):
                    message = f"{request.query}: another thread's call took longer than {timeout_s:g} s"
                    raise DeadlineExceededError(message)
                if self._torn:
                    self._reopen()
                return self._exchange(request, timeout_s, read, extension, begun, left_s)
            finally:
                if turn._is_owned():
                    turn.release()
        except BaseException:  # an interrupt within `finally`
            if turn._is_owned():
                turn.release()
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
        """As `ask`, by the thread whose turn it is: asked at `begun`, with `left_s` of its time limit left then."""
        request_id = self._last_id = self._last_id + 1
        asked_in = epoch = self._epoch
        channel = self._channel
        payload = pack_request(request_id, *request, left_s * 1e3, self._compile_wait_s * 1e3)
        until = begun + left_s
        told = tries = None
        sent, self._torn = False, True
        try:
            if not channel.send(payload):
                payload = self._send_in_time(request_id, request, timeout_s, until)
            sent = True
            while True:
                left = until - perf_counter()
                message = channel.receive(left if left < LOOK_S else LOOK_S)  # noqa: FURB136  # no call
                if message is not None:
                    reply = read(message)
                    if reply is not None and reply.id == request_id:
                        if reply.__class__ is Notice:
                            told = extension = extension or self._extension(request.query, begun, timeout_s)
                            until = extension.until_s(reply, perf_counter())
                            if tries is not None:
                                tries.told = True
                        elif reply.epoch == epoch or self._meets(reply.epoch, asked_in, perf_counter()):
                            break
                    else:
                        self._put_aside(reply, perf_counter())
                    self._heard_s = now = perf_counter()
                    epoch = self._epoch
                    if now < until:
                        continue
                if tries is None:
                    tries = self._retry_state(request.query, len(payload), begun, asked_in)
                    tries.told = told is not None
                self._look(tries, request_id, request, begun, timeout_s, until, told)
                epoch = self._epoch
        except BaseException as fault:
            if sent:
                self._cancel(request_id)
            self._torn = not isinstance(fault, DynError)
            raise
        self._torn = False
        self._heard_s = perf_counter()
        if reply.late and told is None:
            raise self._came_late(request.query, timeout_s)
        return reply

    def _send_in_time(self, request_id: int, request: Ask, timeout_s: float, until: float) -> bytes:
        """Sends a request as soon as there is a server, with the time that is left by then; gives its bytes.

        Raises:
            UnavailableError: No server is connected in time.
        """
        channel = self._channel
        while (left := until - perf_counter()) > 0 and channel.reaches(left):
            payload = self._packed(request_id, request, max(until - perf_counter(), LEAST_S))
            if channel.send(payload):
                return payload
        raise self._unreached(timeout_s)

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
        """Does what a call does that waits and hears nothing.

        Raises:
            DeadlineExceededError: Its time is up.
            UnavailableError: There is no server any more that could answer.
        """
        now = perf_counter()
        channel, query = self._channel, request.query
        reaches = channel.reaches()
        if now >= until:
            raise self._unanswered(query, timeout_s, begun, now, extension, tries.count, reaches=reaches)
        heard = self._heard_s > tries.looked_s
        step = tries.look(now, reaches=reaches, epoch=self._epoch, heard=heard)
        if isinstance(step, Cause):
            raise self._lost(query, step, now, tries.count)
        if step is Step.AGAIN:
            self._counters.retries += 1
            channel.send(self._packed(request_id, request, until - now, tries.count - 1))
        elif step is Step.PROBE:
            channel.send(self._probe())

    def _cancel(self, request_id: int) -> None:
        """Tells the server that nobody waits for this reply any more; whether that gets there is not waited for."""
        with suppress(zmq.ZMQError):  # the socket was closed in the call
            for word in self._last_words(request_id, perf_counter()):
                self._channel.send(word)

    def _compute(self, row: str, **arguments: Any) -> Any:
        return self.run(core.computation(COMPUTATIONS[row], arguments))

    def _revive(self) -> None:
        """Handles calls after a fork or after `close`."""
        if self._closed:
            raise FailedPreconditionError("the client is closed")
        self._torn = True
        self._begin()

    def _begin(self) -> None:
        """Creates the lock again in this process; concurrent threads get the same lock."""
        self._turn = self._turns.setdefault(forks(), threading.RLock())
        self._forks = forks()

    def _reopen(self) -> None:
        """Replaces a connection that a call left in its midst, or a parent: whatever state it is in."""
        self._last_id = first_id()
        self._retrying.random.seed()
        former = self._channel
        self._open()
        former.close()

    def _renew(self) -> None:
        self._channel.renew()

    def _open(self) -> None:
        context = self._given_context if self._given_in == forks() else None  # a parent's did not come along
        self._channel: Channel = open_channel(self._endpoint, context, self._keys)


class RemoteRobot(RemoteDescribed, RobotQueries):
    """A robot on a server. Its answers are those of the `Robot` there, to the last bit.

    Get one from `Client.robot`. With each request goes the fingerprint of the robot it was made for: should the server
    come to serve another robot under that name, calls raise `FailedPreconditionError`.
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
        super().__init__(description, names)
        self._client = client
        self._timeout_s = None if timeout_s is None else check_timeout(timeout_s)
        self._owns_client = owns_client
        single = [row for row in QUERIES.values() if row.output is not None]
        self._readers = {row.name: array_reader(row.name) for row in single}
        self._cores = {row.name: row.outputs[row.output or ""].dims(self.dimensions) for row in single}

    @property
    def client(self) -> Client:
        """The connection that the calls go through."""
        return self._client

    def with_timeout(self, timeout_s: float) -> RemoteRobot:
        """The same robot over the same connection, with its own time limit for each call."""
        return RemoteRobot(self._client, self.description, timeout_s=timeout_s, names=self.names)

    def close(self) -> None:
        """Closes the connection if this robot brought its own, as one from `connect` does."""
        if self._owns_client:
            self._client.close()

    def _ask(self, row: str, given: tuple[Any, ...], others: tuple[Any, ...] = ()) -> Any:
        entry = QUERIES[row]
        request = core.question(self, entry, given, others)
        reader = self._readers.get(row)
        reply = self._client.ask(request, self._timeout_s, reader or core.read_head)
        if type(reply) is ReplyHead:
            return core.read_answer(reply, entry, request, self)
        return array_of(reply, entry, core.leading(entry, request.inputs) + self._cores[row])

    def _compute(self, row: str, **arguments: Any) -> Any:
        return self._client.run(core.computation(COMPUTATIONS[row], arguments, self), self._timeout_s)
