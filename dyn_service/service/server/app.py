"""The server: its sockets and event loop, and how it is made from settings.

The loop waits for sockets, takes received messages, one per peer in turn, and answers them. `dispatcher` decides what
is answered here, in microseconds, and what by a worker. So a request never waits for another client's large batch, only
for the few requests that arrived before it.

    Server([robot], endpoints=["tcp://127.0.0.1:0"])        as a context manager: runs in a thread of this process
    Server([robot]).serve_forever()                         runs in this thread until SIGINT or SIGTERM
    open_server(settings, print)                            loads robots and compiles kernels by `ServerSettings`
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from dyn_service.api.preparation import chosen
from dyn_service.api.queries import COMPUTATIONS
from dyn_service.engine import computations
from dyn_service.errors import DeadlineExceededError, FailedPreconditionError, InternalError, InvalidArgumentError
from dyn_service.kernels.compile_events import forbid_compilation
from dyn_service.parsing.joint_files import robot_of
from dyn_service.service.protocol.limits import DEFAULT_ENDPOINT, RequestLimits
from dyn_service.service.protocol.messages import peek
from dyn_service.service.protocol.zmtp import Message
from dyn_service.service.server.administration.access import KeyFolder
from dyn_service.service.server.administration.audit import AuditFile
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.dispatcher import Dispatcher
from dyn_service.service.server.process import resident_bytes, settle_process
from dyn_service.service.server.settings import ServerSettings
from dyn_service.service.server.transport.admission import Admission
from dyn_service.service.server.transport.connections import ServerConnection, Transport
from dyn_service.service.server.transport.endpoints import (
    BoundEndpoint,
    KeyPolicy,
    check_endpoint,
    check_free,
    is_local,
    needs_keys,
)
from dyn_service.service.server.transport.quotas import ConnectionQuota
from dyn_service.service.server.workers.pipes import AVAILABLE
from dyn_service.service.server.workers.pool import CLOSE_S, Executor, Pool, ThreadWorker
from dyn_service.support.realtime import check
from dyn_service.support.shipped import find_robot

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

_LOG = logging.getLogger(__name__)


_BURST = 64  # maximum number of messages handled before the sockets are polled again
# after this time no further message is started before the sockets are polled again
_TURN_NS = 1_000_000
# interval at which a loop without slow requests checks for a stop, for workers and expired robots
_TICK_S = 0.05
_LOOK_NS = 100_000_000  # interval at which connections and the list of keys are checked
# time that a stopping server waits for running requests, and again for replies to be sent
_GRACE_S = 2.0
_STOP_S = 2 * _GRACE_S + CLOSE_S + 1.0  # a stop takes at most this time, 10 s


class Server:
    """Serves robots over ZeroMQ.

    Args:
        robots: The robots, served by their names.
        endpoints: Where to listen; the default is loopback.
        limits: Limits on sizes, counts and times of requests.
        workers: Number of processes for slow requests, which can be killed. 0 is one thread of this process, for
            servers inside another program: its requests wait for each other and cannot be stopped.
        allow_load: Whether clients may load and unload robots; None: if only this machine can reach the server.
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
        self._endpoints: tuple[BoundEndpoint, ...] = ()
        self._stopping = self._running = self._opening = self._closed = False
        self._life = threading.RLock()  # held while the server opens and while it closes
        self._thread: threading.Thread | None = None
        self._traffic = self.service.metrics.traffic
        self._next_tick_ns = self._next_look_ns = 0
        self._pending = False  # whether messages have arrived that were not handled yet
        self._step = "had not begun to stop"  # what a stopping server does, for the error of `stop`

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints with their chosen ports; empty before the start."""
        return tuple(endpoint.endpoint for endpoint in self._endpoints)

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
        """Answers received requests, closes the sockets, and returns when all is done, after at most 10 s.

        Raises:
            DeadlineExceededError: The server's thread did not end in this time, which is a defect.
        """
        deadline_s = time.monotonic() + _STOP_S
        self._stopping = True
        self._wake()
        # another thread may be opening or closing the server
        if self._life.acquire(timeout=_STOP_S):
            try:
                if self._opening:  # called by a signal handler during `bind`
                    return
                if self._endpoints and not self._running:  # bound, but the loop does not run
                    self._close(0.0)
                thread = self._thread
            finally:
                self._life.release()
            if thread is None or thread is threading.current_thread():
                return
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if not thread.is_alive():
                return
        raise DeadlineExceededError(f"the server did not stop within {_STOP_S:g} s: its thread {self._step}")

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
            if not self._endpoints:
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
            if self._endpoints:
                raise FailedPreconditionError("a server starts once")
            if self._stopping:
                raise FailedPreconditionError("the server was stopped before it started: make another one")
            computations.load(COMPUTATIONS)  # so that no request waits for an import
            for endpoint in self._requested:
                check_endpoint(endpoint)
            self._opening = True
            try:
                self._open()
            except BaseException:
                self._close(0.0)
                self._endpoints = ()
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
        self._worker = self._make_worker()
        self._dispatcher = Dispatcher(self.service, self._worker)
        self._quota = ConnectionQuota(self._limits, self._traffic, self._dispatcher.gone)
        self._transport = Transport(self._selector, self._quota, self._take)
        self._admission: Admission | None = None
        if any(needs_keys(endpoint, self._keys) for endpoint in self._requested):
            self._admission = Admission(*self._key_folder.for_server())
            self.service.administrator.allowed = self._admission.access_list
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
            admission = self._admission if needs_keys(endpoint, self._keys) else None
            self._endpoints += (self._transport.listen(endpoint, admission),)
        if self._audit_file is not None:
            self._audit = AuditFile(self._audit_file)
        self._worker.start()
        with _serving():
            while not self._worker.ready and not self._stopping:
                self._worker.check_starting()
                self._turn(_TICK_S)
        if self._stopping:
            raise FailedPreconditionError("the server was stopped while it started: make another one")

    def _make_worker(self) -> Executor:
        if self._workers and AVAILABLE:
            return Pool(self.service, self._workers, selector=self._selector, wake=self._wake)
        if self._workers:
            _LOG.warning("worker processes need Linux: a thread computes slow requests, and cannot be stopped")
        return ThreadWorker(self._wake, self.service)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:  # the second signal
            for endpoint in self._endpoints:
                endpoint.clear()
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
                self._step = "waits for running requests"
                self._drain()
        finally:
            with self._life:
                self._close(_GRACE_S)

    def _close(self, linger_s: float) -> None:
        """Closes everything; repeated calls do nothing."""
        if self._closed:
            return
        self._closed = True
        for endpoint in self._endpoints:
            endpoint.clear()
        self._step = "waits for workers to end"
        self._worker.close()
        self._step = "waits for replies to be sent"
        self._transport.close(linger_s)
        if self._audit is not None:
            self._audit.close()
        self._selector.close()
        self._wake_writer.close()
        self._wake_reader.close()

    def _turn(self, most_s: float) -> None:
        """Waits for events, and handles them."""
        try:
            # `select.epoll` would save 1 us of 60, and need a second table of sockets
            for key, events in self._selector.select(0 if self._pending else most_s):
                key.data(events)
            self._pending = self._transport.serve(_BURST, _TURN_NS)
            now_ns = perf_counter_ns()
            if self._dispatcher.waiting or now_ns >= self._next_tick_ns:
                self._tick(now_ns)
        except Exception:  # noqa: BLE001  # a defect: the server goes on
            self._pending = True
            self._traffic.defects += 1
            _LOG.exception("an iteration of the server's loop failed")

    def _tick(self, now_ns: int) -> None:
        """Sends finished replies and notices, and checks limits of time; with slow requests at each turn."""
        self._next_tick_ns = now_ns + int(_TICK_S * 1e9)
        self._worker.tick(now_ns)
        for envelope, reply in self._dispatcher.finished():
            self._transport.send(*envelope, reply)
        self.service.expire(now_ns, self._dispatcher.robots_in_use)
        for envelope, notice in self._dispatcher.notices(now_ns):
            self._transport.send(*envelope, notice)
        if now_ns > self._next_look_ns:
            self._next_look_ns = now_ns + _LOOK_NS
            self._transport.check()
            self._quota.check()

    def _take(self, connection: ServerConnection, message: Message) -> None:
        """Answers a message or queues it. Whatever happens, its sender gets a reply."""
        payload, parts, is_req = message
        traffic = self._traffic
        traffic.received += 1
        traffic.received_bytes += len(payload)
        envelope = (connection, is_req)
        try:
            if parts == 1 + is_req:
                reply = self._dispatcher.answer(envelope, payload, connection.received_ns, connection.caller)
            else:
                reply = self._dispatcher.refuse_frames(parts)
        except Exception:  # noqa: BLE001  # a defect: the client gets an error reply
            traffic.defects += 1
            _LOG.exception("a request failed")
            reply = self.service.refuse(peek(payload), InternalError("the server failed to answer; see its log"))
        if reply is not None:
            self._transport.send(connection, is_req, reply)

    def _drain(self) -> None:
        """Refuses requests not started, and answers those received."""
        deadline_s = time.monotonic() + _GRACE_S
        for envelope, refusal in self._dispatcher.shut_down():
            self._transport.send(*envelope, refusal)
        while time.monotonic() < deadline_s:
            self._turn(0.0)
            if not self._pending:
                break
        while self._dispatcher.waiting and time.monotonic() < deadline_s:
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
        KeyFolder(settings.keys_folder).for_server()
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
    for robot in robots:
        loops = robot.evaluator.closed_loops
        if loops is not None and (note := loops.open_warning) is not None:
            report(f"{robot.name}: {note.element}: {note.text}")
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
    for file in filter(None, settings.joints):
        name = robot_of(file)
        if name in files:
            raise InvalidArgumentError(f"{file} and {files[name]} are both for robot '{name}'", path="joints")
        files[name] = file
    from dyn_service.engine.robot import Robot  # here, because it imports the compiler

    robots = []
    for path in settings.robots:
        options: dict[str, Any] = {"root": settings.root, "mimic": settings.mimic, "loops": settings.loops}
        read = partial(Robot.from_file, find_robot(path), **options)
        robot = read()
        file_of = files.pop(robot.name, None)
        robots.append(robot if file_of is None else read(joints=file_of))
    for name, file in files.items():
        raise InvalidArgumentError(f"{file} is for robot '{name}', which is not served", path="joints")
    return robots


def prepare(robot: Robot, purposes: Sequence[str], watch: ProgressWatch = no_progress) -> str:
    """Compiles the robot's kernels for these purposes and queries; returns a line with their number and time."""
    start_s = time.monotonic()
    kernels = len(chosen(purposes))
    with watch(robot.name, kernels) as advance:
        robot.prepare(purposes, progress=lambda name, seconds: advance())
    number = "1 kernel" if kernels == 1 else f"{kernels} kernels"
    return f"{robot.name}: {number} for {', '.join(purposes)} in {time.monotonic() - start_s:.1f} s"
