"""The server's sockets and its loop.

The loop waits until a socket can be read or written, takes what came, of each peer one message in turn, and answers it.
What is answered here, in microseconds, and what by a worker is for `dispatcher` to say. So a request is never behind
another client's big batch, only behind the few that arrived before it, and the sockets are looked at again and again.

    transport          what a transport is to the server; the ones below are three
    connections    tcp and ipc, open: the peers, and what each may make grow
    keyed          tcp and ipc, encrypted, for keys that are on a list
    inproc         peers within this process
    quota         what the connections of all transports may hold together

    Server([robot], endpoints=["tcp://127.0.0.1:0"])        as a context manager: a thread of this process
    Server([robot]).serve_forever()                         in this thread, until SIGINT or SIGTERM


----
From settings to a server that has only to listen: robots loaded, kernels made; for `dyn serve` and the node.
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
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

import numpy as np
import zmq

from dyn_service.api.preparation import chosen, load_modules
from dyn_service.api.queries import COMPUTATIONS
from dyn_service.errors import FailedPreconditionError, InternalError, InvalidArgumentError
from dyn_service.kernels.making import making_none
from dyn_service.parsing.joint_files import robot_of
from dyn_service.service.protocol.defaults import DEFAULT_ENDPOINT
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.access import KeyFolder
from dyn_service.service.server.administration.audit import close_audit, open_audit
from dyn_service.service.server.answering.jobs import Envelope
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.dispatcher import Dispatcher
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
from dyn_service.service.server.transport.inproc import InprocTransport
from dyn_service.service.server.transport.plain import PlainTransport
from dyn_service.service.server.transport.quotas import ConnectionQuota, CountedConnection
from dyn_service.service.server.transport.zmtp import Message
from dyn_service.service.server.workers.pipes import AVAILABLE
from dyn_service.service.server.workers.pool import Pool, ThreadWorker
from dyn_service.support.realtime import check
from dyn_service.support.shipped import find_robot

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


_LOG = logging.getLogger(__name__)


_BURST = 64
"""So many messages of one transport are answered before the sockets are looked at again."""

_TURN_NS = 1_000_000
"""None is begun after so long before they are."""

_TICK_S = 0.05
"""How often an idle loop looks whether it should stop, and what has taken too long."""

_LOOK_NS = 100_000_000
"""How often the connections and the list of keys are looked over."""

_GRACE_S = 2.0
"""How long a server that stops waits for the answers that are worked on, and for replies to leave."""


class Server:
    """Serves robots over ZeroMQ.

    Args:
        robots: The robots, by their names.
        endpoints: Where to listen. Only addresses that are written out are listened on: the default is loopback.
        limits: Sizes, counts and times that clients must keep.
        workers: How many processes do what is slow, and may be killed. 0 is a thread of this process: for a server
            within another program, where a slow request may take its time and slow requests wait for each other.
        allow_load: Whether clients may load and unload robots; None: if nothing but this machine can reach the server.
        context: The ZeroMQ context of `inproc` endpoints; None is the process's own.
        keys: Where keys are asked for: "remote", where other machines can come, or "required", on this machine too.
        key_folder: Where `dyn keys` keeps them; None is its default.
        audit: The file that says who loaded and unloaded what; None: only the log does.
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
        self._asked = tuple(endpoints)
        self._limits = limits or RequestLimits()
        self._workers = workers
        self._audit_file = audit
        self._audit: logging.Handler | None = None
        self._keys, self._key_folder = keys, key_folder or KeyFolder()
        local = all(is_local(endpoint) for endpoint in self._asked)
        self.service = Service(robots, limits=self._limits, allow_load=local if allow_load is None else allow_load)
        self._given_context = context
        self._bound: tuple[BoundEndpoint, ...] = ()
        self._stopping = self._running = self._opening = self._closed = False
        self._life = threading.RLock()
        """Held while the server opens and while it closes."""
        self._thread: threading.Thread | None = None
        self._traffic = self.service.metrics.traffic
        self._next_look_ns = 0

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where the server listens, with the ports that were chosen; empty before it has started."""
        return tuple(bound.endpoint for bound in self._bound)

    def start(self) -> None:
        """Listens, and answers in a thread of its own.

        Raises:
            UnavailableError: An endpoint is taken.
            FailedPreconditionError: The server was started, or stopped, before.
        """
        with self._life:
            self.bind()
            self._running = True
            self._thread = threading.Thread(target=self._run, name="dyn-server", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Answers what has arrived, closes the sockets, and comes back when all that is done."""
        self._stopping = True
        self._wake()
        with self._life:  # one that is about to open sees it first, and says so
            if self._opening:  # called in the midst of `bind`, by a signal's handler
                return
            if self._bound and not self._running:  # it listens, and nothing answers
                self._close(0.0)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def serve_forever(self, announce: Callable[[], None] | None = None) -> None:
        """Answers in this thread until `stop` or, in the main thread, SIGINT or SIGTERM; a second signal ends at once.

        Args:
            announce: Called once the server listens and signals end it cleanly.

        Raises:
            UnavailableError: An endpoint is taken.
        """
        with self._life:
            if not self._bound:
                self.bind()
            if self._closed:  # stopped since
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
        """Listens on the endpoints, starts the workers, and comes back when one is there.

        Until then what needs no worker is answered, `health` for one, and the rest waits; afterwards all of it waits
        until `serve_forever`.

        Raises:
            UnavailableError: An endpoint is taken, or no worker process comes.
            FailedPreconditionError: The server was started, or stopped, before or meanwhile.
        """
        with self._life:
            if self._bound:
                raise FailedPreconditionError("a server starts once")
            if self._stopping:
                raise FailedPreconditionError(
                    "the server was stopped before it started, and stays so: make another one"
                )
            load_modules(COMPUTATIONS)  # no first request waits for an import
            for endpoint in self._asked:
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
        """Listens, and takes turns until there is a worker.

        Raises:
            DynError: That cannot be.
        """
        self._selector = selectors.DefaultSelector()
        self._wake_writer, self._wake_reader = socket.socketpair()
        for end in (self._wake_writer, self._wake_reader):
            end.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, lambda events: self._wake_reader.recv(4096))
        self._quota = ConnectionQuota(self._limits, self._traffic, self._gone)
        self._keyed: EncryptedTransport | None = None
        self._by_kind: dict[str, Transport] = {}
        self._transports: list[Transport] = []
        self._worker = self._make_worker()
        self._dispatcher = Dispatcher(self.service, self._worker)
        self.service.set_readiness(lambda: self._worker.ready and not self._stopping)
        self.service.metrics.gauges |= {
            "connections": lambda: len(self._quota),
            "unfinished_bytes": lambda: self._quota.unfinished,
            "unread_bytes": lambda: self._quota.unread,
            "waiting": lambda: len(self._dispatcher.waiting),
            "waiting_bytes": lambda: self._dispatcher.waiting_bytes,
            "robots": lambda: len(self.service.registry.served),
            "memory_bytes": resident_bytes,
        }
        for endpoint in self._asked:
            self._bound += (self._transport_for(endpoint).listen(endpoint),)
        if self._audit_file is not None:
            self._audit = open_audit(self._audit_file)
        self._worker.start()
        with self._serving():
            while not self._worker.ready and not self._stopping:
                self._worker.check_coming()
                self._turn(_TICK_S)
        if self._stopping:
            raise FailedPreconditionError("the server was stopped while it started, and stays so: make another one")

    def _transport_for(self, endpoint: str) -> Transport:
        """Who listens at such an endpoint."""
        keyed, inproc = needs_keys(endpoint, self._keys), endpoint.startswith("inproc://")
        kind = "keyed" if keyed else "inproc" if inproc else "open"
        if kind not in self._by_kind:
            self._by_kind[kind] = self._make_transport(kind)
            self._transports.append(self._by_kind[kind])
        return self._by_kind[kind]

    def _make_transport(self, kind: str) -> Transport:
        if kind == "keyed":
            self._keyed = keyed = open_encrypted(self._key_folder, self._quota)
            self._selector.register(keyed.descriptor, selectors.EVENT_READ, lambda events: None)
            self.service.set_access_list(keyed.allowed)
            return keyed
        if kind == "inproc":
            return InprocTransport(self._selector, self._given_context or zmq.Context.instance(), self._traffic)
        return PlainTransport(self._selector, self._quota)

    def _make_worker(self) -> ThreadWorker | Pool:
        service = self.service
        if self._workers and not AVAILABLE:
            _LOG.warning("this system has no worker processes: a thread does what is slow, and nothing stops it")
        if not self._workers or not AVAILABLE:
            return ThreadWorker(self._wake, service)
        return Pool(service, self._workers, selector=self._selector, wake=self._wake)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:  # asked twice
            for bound in self._bound:
                bound.clear()
            os._exit(128 + number)
        self._stopping = True

    def _wake(self) -> None:
        """Wakes the loop, from any thread."""
        with suppress(OSError, AttributeError):  # it is awake, has ended, or has not begun
            self._wake_writer.send(b"!")

    def _run(self) -> None:
        try:
            with self._serving():
                while not self._stopping:
                    self._turn(_TICK_S)
                self._wind_up()
        finally:
            with self._life:
                self._close(_GRACE_S)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """How a thread is that takes turns: it makes no kernels, whoever asks, and what overflows is no error."""
        with making_none(), np.errstate(all="ignore"):
            yield

    def _close(self, linger_s: float) -> None:
        """Ends everything; again, does nothing."""
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
        """Waits until there is something to do, and does it."""
        try:
            waiting = any(transport.pending for transport in self._transports)
            for key, events in self._selector.select(0 if waiting else most_s):
                key.data(events)
            for transport in self._transports:
                for peer, message in transport.messages(_BURST, perf_counter_ns() + _TURN_NS):
                    self._take(transport, peer, message)
            now = perf_counter_ns()
            self._worker.tick(now)
            for envelope, reply in self._dispatcher.finished():  # what the tick refuses too
                self._send(envelope, reply)
            self.service.expire(now, self._dispatcher.at_work)
            if self._dispatcher.waiting:
                for envelope, notice in self._dispatcher.notices(now):
                    self._send(envelope, notice)
            if now > self._next_look_ns:
                self._next_look_ns = now + _LOOK_NS
                for transport in self._transports:
                    transport.check()
                self._quota.check()
        except Exception:  # noqa: BLE001  # a defect, and no reason to leave those who ask next
            self._traffic.defects += 1
            _LOG.exception("a turn was not taken to its end")

    def _take(self, transport: Transport, peer: Peer, message: Message) -> None:
        """Answers a message, or has it wait. Whatever happens, its sender is told."""
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
        except Exception:  # noqa: BLE001  # a defect: its asker need not wait for nothing
            traffic.defects += 1
            _LOG.exception("a request failed")
            reply = self.service.refuse_unread(payload, InternalError("the server failed to answer; its log says why"))
        if reply is not None:
            self._send(envelope, reply)

    def _send(self, envelope: Envelope, reply: bytes | memoryview) -> None:
        (transport, peer), is_req = envelope
        try:
            transport.send(peer, is_req, reply)
        except Exception:  # noqa: BLE001  # a defect: the others get theirs
            self._traffic.defects += 1
            _LOG.exception("a reply was lost, and the connection that it was for is ended")
            transport.end(peer)

    def _gone(self, peer: CountedConnection) -> None:
        self._dispatcher.gone(peer)

    def _wind_up(self) -> None:
        """Refuses what has not been begun, answers what has arrived."""
        until = time.monotonic() + _GRACE_S
        for envelope, refusal in self._dispatcher.shut_down():
            self._send(envelope, refusal)
        while time.monotonic() < until:
            self._turn(0.0)
            if not any(transport.pending for transport in self._transports):
                break
        while self._dispatcher.waiting and time.monotonic() < until:
            self._turn(_TICK_S)


ProgressWatch = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Shows how far the work is: given its name and how many parts it has, within it a call for each part that is done."""


@contextmanager
def no_progress(name: str, parts: int) -> Iterator[Callable[[], None]]:
    """Shows nothing."""
    yield lambda: None


def open_server(settings: ServerSettings, tell: Callable[[str], None], watch: ProgressWatch = no_progress) -> Server:
    """The server that the settings ask for, with its kernels made. It does not listen yet.

    Args:
        settings: What it serves, where, and to whom.
        tell: Takes a line on each robot that needs one: what its file leaves in doubt, which kernels were made.
        watch: Shows how far the kernels are.

    Raises:
        DynError: A robot's file is not sound.
        InvalidArgumentError: There is no robot, and clients may not load one.
        FailedPreconditionError: An endpoint asks for keys, and there are none.
        PermissionDeniedError: The system refuses a part of `realtime` that is required.
    """
    by_key = any(needs_keys(endpoint, settings.keys) for endpoint in settings.endpoints)
    if by_key:  # what takes long is not begun where its end would be refused
        read_folder(KeyFolder(settings.keys_folder))
    check(settings.realtime, polls=False)
    files = [find_robot(path) for path in settings.robots]
    for path, file in zip(settings.robots, files, strict=True):
        if path != str(file):
            tell(f"{path}: {file}")
    robots = _robots(settings, files)
    for path, robot in zip(settings.robots, robots, strict=True):
        doubted = len(robot.receipt.of_kind("doubted"))
        if doubted:
            tell(f"{robot.name}: {doubted} doubted in its file, see dyn check {path}")
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
        tell(prepare(robot, settings.purposes, watch))
    return server


def open_robots(settings: ServerSettings) -> list[Robot]:
    """The robots of a server with these settings, in their order; nothing is compiled yet.

    Raises:
        DynError: A robot's file is not sound.
        InvalidArgumentError: A joint file is for none of them, or two are for one.
    """
    return _robots(settings, [find_robot(path) for path in settings.robots])


def _robots(settings: ServerSettings, robot_files: Sequence[Path]) -> list[Robot]:
    """The robots, each with the joint file that is for it.

    Raises:
        InvalidArgumentError: A joint file is for none of them, or two are for one.
    """
    files: dict[str, str] = {}
    for file in settings.joints:
        name = robot_of(file)
        if name in files:
            raise InvalidArgumentError(f"{file} and {files[name]} are both for robot '{name}'", path="joints")
        files[name] = file
    from dyn_service.engine.robot import Robot  # here, because it imports the compiler

    robots = []
    for path in robot_files:
        read = partial(Robot.from_file, path, root=settings.root, mimic=settings.mimic)
        robot = read()
        file_of = files.pop(robot.name, None)
        robots.append(robot if file_of is None else read(joints=file_of))
    for name, file in files.items():
        raise InvalidArgumentError(f"{file} is for robot '{name}', which is not served", path="joints")
    return robots


def prepare(robot: Robot, purposes: Sequence[str], watch: ProgressWatch = no_progress) -> str:
    """Makes the robot's kernels for purposes and queries of these names; a line that says so, and how long it took."""
    begun = time.monotonic()
    kernels = len(chosen(purposes))
    with watch(robot.name, kernels) as advance:
        robot.prepare(purposes, progress=lambda name, seconds: advance())
    return f"{robot.name}: {kernels} kernels for {', '.join(purposes)} in {time.monotonic() - begun:.1f} s"
