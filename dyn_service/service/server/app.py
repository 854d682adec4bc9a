"""The server: its sockets and event loop, and how it is made from settings.

The loop waits for sockets, takes received messages, one per peer in turn, and answers them. `Dispatcher` decides what
is answered here, in microseconds, and what by a worker. So a request never waits for another client's large batch, only
for the few requests that arrived before it.

    Server([robot], endpoints=["tcp://127.0.0.1:0"])        as a context manager: runs in a thread of this process
    Server([robot]).serve_forever()                         runs in this thread until SIGINT or SIGTERM
    open_server(settings, print)                            loads robots and compiles kernels by `ServerSettings`

`Dispatcher` has no socket and no thread of its own: `Server` passes in events and sends what is returned. Each request
gets one reply, from `answer`, `finished` or `shut_down`; its notices come before the reply.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq

from dyn_service.api.preparation import chosen, load_modules
from dyn_service.api.queries import COMPUTATIONS, QUERIES
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from dyn_service.kernels.compile_events import forbid_compilation
from dyn_service.parsing.joint_files import robot_of
from dyn_service.service.protocol.limits import DEFAULT_ENDPOINT, RequestLimits
from dyn_service.service.protocol.messages import CANCEL, Request, RequestHead, has_more_objects, peek, read_cancel
from dyn_service.service.server.administration.access import Caller, KeyFolder
from dyn_service.service.server.administration.audit import close_audit, open_audit
from dyn_service.service.server.answering.jobs import Envelope, Task, due_notices
from dyn_service.service.server.answering.plan import SLOW_BYTES
from dyn_service.service.server.answering.service import Service, names_robot
from dyn_service.service.server.process import resident_bytes, settle_process
from dyn_service.service.server.settings import ServerSettings
from dyn_service.service.server.transport.encrypted import EncryptedTransport, open_encrypted, read_folder
from dyn_service.service.server.transport.endpoints import (
    BoundEndpoint,
    KeyPolicy,
    Peer,
    Transport,
    check_endpoint,
    is_local,
    needs_keys,
)
from dyn_service.service.server.transport.plain import InprocTransport, PlainTransport, check_free
from dyn_service.service.server.transport.quotas import Connection, ConnectionQuota
from dyn_service.service.server.transport.zmtp import Message
from dyn_service.service.server.workers.pipes import AVAILABLE
from dyn_service.service.server.workers.pool import Executor, Pool, ThreadWorker
from dyn_service.support.realtime import check
from dyn_service.support.shipped import find_robot

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

_LOG = logging.getLogger(__name__)


_BURST = 64  # maximum number of messages of a transport handled before the sockets are polled again
_TURN_NS = 1_000_000  # after this time no further message is started before the sockets are polled again
_TICK_S = 0.05  # interval at which an idle loop checks for a stop and for expired requests
_LOOK_NS = 100_000_000  # interval at which connections and the list of keys are checked
_GRACE_S = 2.0  # time that a stopping server waits for running requests and for replies to be sent


class Server:
    """Serves robots over ZeroMQ.

    Args:
        robots: The robots, served by their names.
        endpoints: Where to listen; the default is loopback.
        limits: Limits on sizes, counts and times of requests.
        workers: Number of processes for slow requests, which can be killed. 0 is one thread of this process, for
            servers inside another program: its requests wait for each other and cannot be stopped.
        allow_load: Whether clients may load and unload robots; None: if only this machine can reach the server.
        context: ZeroMQ context of `inproc` endpoints; None is the process's own.
        keys: Where keys are required: "remote", if other machines can reach the endpoint, or "required", on this
            machine too.
        key_folder: The folder of `dyn keys`; None is its default.
        audit: File of the audit log of loaded and unloaded robots; None: changes are only logged.
    """

    def __init__(
        self,
        robots: Iterable[Robot] = (),
        *,
        endpoints: Sequence[str] = (DEFAULT_ENDPOINT,),
        limits: RequestLimits | None = None,
        workers: int = 0,
        allow_load: bool | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        keys: KeyPolicy = "remote",
        key_folder: KeyFolder | None = None,
        audit: Path | None = None,
    ) -> None:
        if not endpoints:
            raise InvalidArgumentError("endpoints must name at least one endpoint, found none", path="endpoints")
        self._requested = tuple(endpoints)
        self._limits = limits or RequestLimits()
        self._workers = workers
        self._audit_file = audit
        self._audit: logging.Handler | None = None
        self._keys, self._key_folder = keys, key_folder or KeyFolder()
        local = all(is_local(endpoint) for endpoint in self._requested)
        self.service = Service(robots, limits=self._limits, allow_load=local if allow_load is None else allow_load)
        self._given_context = context
        self._bound: tuple[BoundEndpoint, ...] = ()
        self._stopping = self._running = self._opening = self._closed = False
        self._life = threading.RLock()  # held while the server opens and while it closes
        self._thread: threading.Thread | None = None
        self._traffic = self.service.metrics.traffic
        self._next_look_ns = 0

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints with their chosen ports; empty before the start."""
        return tuple(bound.endpoint for bound in self._bound)

    def start(self) -> None:
        """Listens, and serves in its own thread.

        Raises:
            UnavailableError: An endpoint is in use.
            FailedPreconditionError: The server was started or stopped before.
        """
        with self._life:
            self.bind()
            self._running = True
            self._thread = threading.Thread(target=self._run, name="dyn-server", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Answers received requests, closes the sockets, and returns when all is done."""
        self._stopping = True
        self._wake()
        with self._life:
            if self._opening:  # called by a signal handler during `bind`
                return
            if self._bound and not self._running:  # bound, but the loop does not run
                self._close(0.0)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def serve_forever(self, announce: Callable[[], None] | None = None) -> None:
        """Serves in this thread until `stop` or, in the main thread, SIGINT or SIGTERM; a second signal exits at once.

        Args:
            announce: Called when the server listens and signals stop it cleanly.

        Raises:
            UnavailableError: An endpoint is in use.
        """
        with self._life:
            if not self._bound:
                self.bind()
            if self._closed:
                return
            self._running = True
        announce = announce or (lambda: None)
        if threading.current_thread() is not threading.main_thread():
            announce()
            self._run()
            return
        settle_process()
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            announce()
            self._run()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def bind(self) -> None:
        """Listens on the endpoints, starts the workers, and returns when the first worker is ready.

        Meanwhile requests that need no worker are answered, such as `health`; after `bind` all wait until
        `serve_forever`.

        Raises:
            UnavailableError: An endpoint is in use, or no worker process starts.
            FailedPreconditionError: The server was started or stopped before or meanwhile.
        """
        with self._life:
            if self._bound:
                raise FailedPreconditionError("a server starts once")
            if self._stopping:
                raise FailedPreconditionError(
                    "the server was stopped before it started and cannot start again: make another one"
                )
            load_modules(COMPUTATIONS)  # so that no request waits for an import
            for endpoint in self._requested:
                check_endpoint(endpoint)
            self._opening = True
            try:
                self._open()
            except BaseException:
                self._close(0.0)
                self._bound = ()
                raise
            finally:
                self._opening = False

    def _open(self) -> None:
        """Listens, and runs the loop until a worker is ready."""
        self._selector = selectors.DefaultSelector()
        self._wake_writer, self._wake_reader = socket.socketpair()
        for end in (self._wake_writer, self._wake_reader):
            end.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, lambda events: self._wake_reader.recv(4096))
        self._quota = ConnectionQuota(self._limits, self._traffic, self._gone)
        self._keyed: EncryptedTransport | None = None
        self._transports: list[Transport] = []
        self._worker = self._make_worker()
        self._dispatcher = Dispatcher(self.service, self._worker)
        self.service.administrator.is_ready = lambda: self._worker.ready and not self._stopping
        self.service.metrics.gauges |= {
            "connections": lambda: len(self._quota),
            "unfinished_bytes": lambda: self._quota.unfinished,
            "unread_bytes": lambda: self._quota.unread,
            "waiting": lambda: len(self._dispatcher.waiting),
            "waiting_bytes": lambda: self._dispatcher.waiting_bytes,
            "robots": lambda: len(self.service.registry.served),
            "memory_bytes": resident_bytes,
        }
        for endpoint in self._requested:
            self._bound += (self._transport_for(endpoint).listen(endpoint),)
        if self._audit_file is not None:
            self._audit = open_audit(self._audit_file)
        self._worker.start()
        with _serving():
            while not self._worker.ready and not self._stopping:
                self._worker.check_starting()
                self._turn(_TICK_S)
        if self._stopping:
            raise FailedPreconditionError(
                "the server was stopped while it started and cannot start again: make another one"
            )

    def _transport_for(self, endpoint: str) -> Transport:
        """Returns the transport for this endpoint, made if needed."""
        kind: type[Transport] = PlainTransport
        if needs_keys(endpoint, self._keys):
            kind = EncryptedTransport
        elif endpoint.startswith("inproc://"):
            kind = InprocTransport
        for transport in self._transports:
            if isinstance(transport, kind):
                return transport
        if kind is EncryptedTransport:
            transport = self._keyed = keyed = open_encrypted(self._key_folder, self._quota)
            self._selector.register(keyed.descriptor, selectors.EVENT_READ, lambda events: None)
            self.service.administrator.allowed = keyed.allowed
        elif kind is InprocTransport:
            transport = InprocTransport(self._selector, self._given_context or zmq.Context.instance(), self._traffic)
        else:
            transport = PlainTransport(self._selector, self._quota)
        self._transports.append(transport)
        return transport

    def _make_worker(self) -> Executor:
        if self._workers and AVAILABLE:
            return Pool(self.service, self._workers, selector=self._selector, wake=self._wake)
        if self._workers:
            _LOG.warning("worker processes need Linux: a thread computes slow requests, and cannot be stopped")
        return ThreadWorker(self._wake, self.service)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:  # the second signal
            for bound in self._bound:
                bound.clear()
            os._exit(128 + number)
        self._stopping = True

    def _wake(self) -> None:
        """Wakes the loop, from any thread."""
        with suppress(OSError, AttributeError):  # the pipe is full, closed, or not made yet
            self._wake_writer.send(b"!")

    def _run(self) -> None:
        try:
            with _serving():
                while not self._stopping:
                    self._turn(_TICK_S)
                self._drain()
        finally:
            with self._life:
                self._close(_GRACE_S)

    def _close(self, linger_s: float) -> None:
        """Closes everything; repeated calls do nothing."""
        if self._closed:
            return
        self._closed = True
        for bound in self._bound:
            bound.clear()
        self._worker.close()
        for transport in self._transports:
            transport.close(linger_s)
        if self._audit is not None:
            close_audit(self._audit)
        self._selector.close()
        self._wake_writer.close()
        self._wake_reader.close()

    def _turn(self, most_s: float) -> None:
        """Waits for events, and handles them."""
        try:
            waiting = any(transport.pending for transport in self._transports)
            for key, events in self._selector.select(0 if waiting else most_s):
                key.data(events)
            for transport in self._transports:
                for peer, message in transport.messages(_BURST, perf_counter_ns() + _TURN_NS):
                    self._take(transport, peer, message)
            now = perf_counter_ns()
            self._worker.tick(now)
            for envelope, reply in self._dispatcher.finished():
                self._send(envelope, reply)
            self.service.expire(now, self._dispatcher.robots_in_use)
            if self._dispatcher.waiting:
                for envelope, notice in self._dispatcher.notices(now):
                    self._send(envelope, notice)
            if now > self._next_look_ns:
                self._next_look_ns = now + _LOOK_NS
                for transport in self._transports:
                    transport.check()
                self._quota.check()
        except Exception:  # noqa: BLE001  # a defect: the server goes on
            self._traffic.defects += 1
            _LOG.exception("an iteration of the server's loop failed")

    def _take(self, transport: Transport, peer: Peer, message: Message) -> None:
        """Answers a message or queues it. Whatever happens, its sender gets a reply."""
        payload, parts, is_req = message
        traffic = self._traffic
        traffic.received += 1
        traffic.received_bytes += len(payload)
        envelope = ((transport, peer), is_req)
        try:
            if parts == 1 + is_req:
                reply = self._dispatcher.answer(envelope, payload, peer.received_ns, peer.caller)
            else:
                reply = self._dispatcher.refuse_frames(parts)
        except Exception:  # noqa: BLE001  # a defect: the client gets an error reply
            traffic.defects += 1
            _LOG.exception("a request failed")
            reply = self.service.refuse(peek(payload), InternalError("the server failed to answer; see its log"))
        if reply is not None:
            self._send(envelope, reply)

    def _send(self, envelope: Envelope, reply: bytes | memoryview) -> None:
        (transport, peer), is_req = envelope
        try:
            transport.send(peer, is_req, reply)
        except Exception:  # noqa: BLE001  # a defect: the loop goes on
            self._traffic.defects += 1
            _LOG.exception("a reply could not be sent, its connection is closed")
            peer.close()

    def _gone(self, peer: Connection) -> None:
        self._dispatcher.gone(peer)

    def _drain(self) -> None:
        """Refuses requests not started, and answers those received."""
        until = time.monotonic() + _GRACE_S
        for envelope, refusal in self._dispatcher.shut_down():
            self._send(envelope, refusal)
        while time.monotonic() < until:
            self._turn(0.0)
            if not any(transport.pending for transport in self._transports):
                break
        while self._dispatcher.waiting and time.monotonic() < until:
            self._turn(_TICK_S)


@contextmanager
def _serving() -> Iterator[None]:
    """Context of a thread that runs the loop: it compiles no kernels, and overflows raise no warnings."""
    with forbid_compilation(), np.errstate(all="ignore"):
        yield


ProgressWatch = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Context manager that shows progress: given a name and the number of parts, yields a function to call for each."""


@contextmanager
def no_progress(name: str, parts: int) -> Iterator[Callable[[], None]]:
    """Shows nothing."""
    yield lambda: None


def open_server(settings: ServerSettings, report: Callable[[str], None], watch: ProgressWatch = no_progress) -> Server:
    """Returns a server with these settings and its kernels compiled. It does not listen yet.

    Args:
        settings: The parameters of the server.
        report: Called with a line for each robot with warnings or compiled kernels.
        watch: Shows the progress of compilation.

    Raises:
        DynError: A robot or joint file is invalid.
        InvalidArgumentError: There is no robot, and clients may not load one; an endpoint is invalid.
        UnavailableError: An endpoint is in use.
        FailedPreconditionError: An endpoint needs keys, and no keys exist.
        PermissionDeniedError: The system refuses a required part of `realtime`.
    """
    for endpoint in settings.endpoints:
        check_endpoint(endpoint)
        check_free(endpoint)
    by_key = any(needs_keys(endpoint, settings.keys) for endpoint in settings.endpoints)
    if by_key:  # fails before anything slow is started
        read_folder(KeyFolder(settings.keys_folder))
    check(settings.realtime, polls=False)
    for path in settings.robots:
        if path != (file := str(find_robot(path))):
            report(f"{path}: {file}")
    robots = open_robots(settings)
    for path, robot in zip(settings.robots, robots, strict=True):
        warnings = len(robot.receipt.of_kind("warning"))
        if warnings:
            report(f"{robot.name}: {warnings} warnings about its file, see dyn check {path}")
        if refusal := robot.as_described.loop_refusal:
            report(f"{robot.name}: no efforts and accelerations: {refusal}")
    server = Server(
        robots,
        endpoints=settings.endpoints,
        limits=settings.limits,
        workers=settings.workers,
        allow_load=settings.allow_load,
        keys=settings.keys,
        key_folder=KeyFolder(settings.keys_folder),
        audit=Path(settings.audit) if settings.audit else None,
    )
    if not robots and not server.service.allow_load and not by_key:
        raise InvalidArgumentError("there is nothing to serve: name a robot's file", path="robots")
    for robot in robots if settings.purposes else ():
        report(prepare(robot, settings.purposes, watch))
    return server


def open_robots(settings: ServerSettings) -> list[Robot]:
    """Returns the robots of these settings in order, each with its joint file; nothing is compiled.

    Raises:
        DynError: A robot file is invalid.
        InvalidArgumentError: A joint file matches no robot, or two match one.
    """
    files: dict[str, str] = {}
    for file in settings.joints:
        name = robot_of(file)
        if name in files:
            raise InvalidArgumentError(f"{file} and {files[name]} are both for robot '{name}'", path="joints")
        files[name] = file
    from dyn_service.engine.robot import Robot  # here, because it imports the compiler

    robots = []
    for path in settings.robots:
        read = partial(
            Robot.from_file, find_robot(path), root=settings.root, mimic=settings.mimic, loops=settings.loops
        )
        robot = read()
        file_of = files.pop(robot.name, None)
        robots.append(robot if file_of is None else read(joints=file_of))
    for name, file in files.items():
        raise InvalidArgumentError(f"{file} is for robot '{name}', which is not served", path="joints")
    return robots


def prepare(robot: Robot, purposes: Sequence[str], watch: ProgressWatch = no_progress) -> str:
    """Compiles the robot's kernels for these purposes and queries; returns a line with their number and time."""
    begun = time.monotonic()
    kernels = len(chosen(purposes))
    with watch(robot.name, kernels) as advance:
        robot.prepare(purposes, progress=lambda name, seconds: advance())
    made = "1 kernel" if kernels == 1 else f"{kernels} kernels"
    return f"{robot.name}: {made} for {', '.join(purposes)} in {time.monotonic() - begun:.1f} s"


_SCANNED_OBJECTS = 2000  # MessagePack objects of a long request that are scanned for its head; takes about 0.4 ms
_MANY_OBJECTS = 500  # a request with more is treated as long, because each takes some microseconds to read and check


class Dispatcher:
    """Dispatches requests. All calls come from the server's thread."""

    def __init__(self, service: Service, worker: Executor) -> None:
        self._service = service
        self._worker = worker
        self._limits = service.limits
        self._traffic = service.metrics.traffic
        self._shutting_down = False
        self.waiting: dict[int, Task] = {}  # tasks whose replies the executor still owes, by identity
        self.waiting_bytes = 0  # bytes of their requests
        self._by_peer: Counter[Any] = Counter()

    def answer(
        self, envelope: Envelope, payload: bytes | memoryview, received_ns: int, caller: Caller | None = None
    ) -> bytes | memoryview | None:
        """Returns the reply to a request; None if it waits, or if it is a cancel or a retry of a waiting request.

        The payload must not change until the request is answered. For the other arguments see `jobs.Task`.
        """
        service = self._service
        try:
            if len(payload) > SLOW_BYTES:
                return self._hand_over_unread(envelope, payload, received_ns, caller)
            reply = service.answer_single_state(payload, received_ns)
            if reply is not None:
                return reply
            cancelled = read_cancel(payload)
            if cancelled is not None:
                self._cancel(envelope, cancelled)
                return None
            if len(payload) > _MANY_OBJECTS and has_more_objects(payload, _MANY_OBJECTS):
                return self._hand_over_unread(envelope, payload, received_ns, caller)
            job = service.accept(payload, received_ns, caller=caller)
            if isinstance(job, bytes):
                return job
            if self._is_waiting(envelope, job.request):
                return None
            has_kernel = service.has_kernel(job)
            if has_kernel and not job.slow and (reply := service.answer_at_once(job)) is not None:
                return reply
            plan = job.plan
            kernel = None if plan is None else plan.kernel(job.inputs, job.options)
            long = plan is None or job.verify or not has_kernel
            missing = plan is not None and not has_kernel
            task = Task(envelope, payload, received_ns, peek(payload), job, long, caller, kernel, needs_kernel=missing)
            return self._hand_over(task)
        except DynError as error:
            return service.refuse(peek(payload), error)
        except Exception:  # noqa: BLE001  # a defect: the client gets an error reply
            _LOG.exception("a request failed")
            return service.refuse(peek(payload), InternalError("the server failed to answer; see its log"))

    def _hand_over_unread(
        self, envelope: Envelope, payload: bytes | memoryview, received_ns: int, caller: Caller | None
    ) -> bytes | None:
        """As `_hand_over`, for a request too long to read in this thread."""
        head = peek(payload, _SCANNED_OBJECTS)
        if head.query == CANCEL and head.id is not None:
            self._cancel(envelope, head.id)
            return None
        if self._is_waiting(envelope, head):
            return None
        long = head.query not in QUERIES
        return self._hand_over(Task(envelope, payload, received_ns, head, long=long, caller=caller))

    def refuse_frames(self, count: int) -> bytes:
        """Returns the refusal of a message with an invalid number of frames."""
        found = f"a message must be one frame, or an empty one and one more, found {count}"
        return self._service.refuse(RequestHead(), InvalidArgumentError(found))

    def gone(self, peer: Any) -> None:
        """Refuses or stops the requests of a peer whose connection has ended."""
        self._cancel_tasks([task for task in self.waiting.values() if task.peer[1] is peer])

    def finished(self) -> Iterator[tuple[Envelope, bytes | memoryview]]:
        """Yields the replies that the executor has finished."""
        for task, reply in self._worker.collect():
            self._forget(task)
            yield task.envelope, reply

    def notices(self, now_ns: int) -> Iterator[tuple[Envelope, bytes]]:
        """Yields the notices due to clients that wait for a kernel."""
        for task, notice in due_notices(self._service.clock, self.waiting.values(), now_ns):
            self._traffic.notices += 1
            yield task.envelope, notice

    def shut_down(self) -> list[tuple[Envelope, bytes]]:
        """Returns refusals of the requests not started. Running ones are still returned by `finished`.

        From now on slow requests are refused; fast ones are answered until the end.
        """
        self._shutting_down = True
        left = self._worker.abandon()
        for task in left:
            self._forget(task)
        return [(task.envelope, self._service.refuse_task(task, _shutting_down())) for task in left]

    def _is_waiting(self, envelope: Envelope, request: Request | RequestHead) -> bool:
        """Returns whether this is a retry of a waiting request, whose reply answers both."""
        return bool(request.retry) and any(self._waiting(envelope, request.id))

    def _waiting(self, envelope: Envelope, request_id: int | None) -> Iterator[Task]:
        """Yields a client's waiting tasks with this id."""
        return (task for task in self.waiting.values() if task.envelope == envelope and task.head.id == request_id)

    def _cancel(self, envelope: Envelope, request_id: int) -> None:
        """Refuses or stops a request that its client cancelled."""
        self._traffic.cancelled += 1
        self._cancel_tasks([*self._waiting(envelope, request_id)])

    def _cancel_tasks(self, meant: list[Task]) -> None:
        for task in meant:
            task.cancelled = True
        if meant:
            self._worker.cancel(meant)

    def _hand_over(self, task: Task) -> bytes | None:
        """Gives the task to the executor, or returns its refusal; raises `NotFoundError` for an unknown robot."""
        limits, count = self._limits, len(self.waiting)
        if names_robot(task.head.query) and type(task.head.robot) is str:
            self._service.registry.get(task.head.robot)
        if self._shutting_down:
            return self._service.refuse_task(task, _shutting_down())
        own = self._by_peer[task.peer]
        if own >= limits.max_waiting_per_client:
            return self._refuse_busy(task, f"{own} slow requests of this client wait already")
        # a single task may have any size, or the longest valid request would never be answered
        if count >= limits.max_waiting or (count and self.waiting_bytes + task.size > limits.max_waiting_bytes):
            return self._refuse_busy(task, f"{count} slow requests wait already")
        self.waiting[id(task)] = task
        self.waiting_bytes += task.size
        self._by_peer[task.peer] += 1
        self._worker.offer(task)
        return None

    @property
    def robots_in_use(self) -> Iterator[Any]:
        """Values of `robot` in the requests that wait."""
        return (task.head.robot for task in self.waiting.values())

    def _forget(self, task: Task) -> None:
        self._service.registry.touch(task.head.robot)
        del self.waiting[id(task)]
        self.waiting_bytes -= task.size
        self._by_peer[task.peer] -= 1
        if not self._by_peer[task.peer]:
            del self._by_peer[task.peer]

    def _refuse_busy(self, task: Task, cause: str) -> bytes:
        self._traffic.refused_busy += 1
        error = ResourceExhaustedError(f"the server is busy: {cause}, try again later")
        return self._service.refuse_task(task, error)


def _shutting_down() -> DynError:
    return UnavailableError("the server is shutting down")
