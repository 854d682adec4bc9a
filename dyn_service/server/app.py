"""The server's sockets and its loop.

The loop waits until a socket can be read or written, takes what came, of each peer one message in turn, and answers it.
What is answered here, in microseconds, and what by a worker is for `dispatcher` to say. So a request is never behind
another client's big batch, only behind the few that arrived before it.

    connections    tcp and ipc: the peers, and what each may make grow
    inproc         peers within this process

    Server([robot], endpoints=["tcp://127.0.0.1:0"])        as a context manager: a thread of this process
    Server([robot]).serve_forever()                         in this thread, until SIGINT or SIGTERM
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

import numpy as np
import zmq

from dyn_service.api.preparation import load_modules
from dyn_service.api.queries import COMPUTATIONS
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.kernels.making import make_none
from dyn_service.protocol.defaults import DEFAULT_ENDPOINT
from dyn_service.protocol.limits import RequestLimits
from dyn_service.server.audit import close_audit, open_audit
from dyn_service.server.connections import Connections, Peer
from dyn_service.server.dispatcher import Dispatcher
from dyn_service.server.endpoints import Bound, KeysWhere, check_endpoint, is_local, needs_keys
from dyn_service.server.inproc import InprocEndpoints
from dyn_service.server.key_folder import KeyFolder
from dyn_service.server.keyed import KeyedRouter, open_keyed
from dyn_service.server.keyed_peers import KeyedPeer
from dyn_service.server.pipes import AVAILABLE
from dyn_service.server.pool import Pool
from dyn_service.server.process import resident_bytes, settle_process
from dyn_service.server.service import Service
from dyn_service.server.task import Envelope
from dyn_service.server.worker_thread import ThreadWorker
from dyn_service.server.zmtp import Message

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

_LOG = logging.getLogger(__name__)

_BURST = 64
"""So many messages are answered before the sockets are looked at again."""

_TICK_S = 0.05
"""How often an idle loop looks whether it should stop, and what has taken too long."""

_LOOK_NS = 100_000_000
"""How often the connections and the list of keys are looked over."""

_GRACE_S = 2.0
"""How long a server that stops waits for the answers that are worked on, and for replies to leave."""

_Endpoints = Connections | InprocEndpoints | KeyedRouter


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
        keys: KeysWhere = "remote",
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
        self._bound: tuple[Bound, ...] = ()
        self._stopping = self._running = False
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
        self.bind()
        self._running = True
        self._thread = threading.Thread(target=self._run, name="dyn-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answers what has arrived, closes the sockets, and comes back when all that is done."""
        self._stopping = True
        if self._bound and not self._running:  # it listens, and nothing answers
            self._running = True
            self._close(0.0)
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._ring()
        self._thread.join()
        self._thread = None

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
        if not self._bound:
            self.bind()
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
        """Listens on the endpoints, and starts the workers; requests wait until `serve_forever`.

        Raises:
            UnavailableError: An endpoint is taken, or no worker process comes.
            FailedPreconditionError: The server was started, or stopped, before.
        """
        if self._bound:
            raise FailedPreconditionError("a server starts once")
        if self._stopping:
            raise FailedPreconditionError("the server was stopped before it started, and stays so: make another one")
        load_modules(COMPUTATIONS)  # no first request waits for an import
        for endpoint in self._asked:
            check_endpoint(endpoint)
        self._selector = selectors.DefaultSelector()
        self._bell, self._heard = socket.socketpair()
        for end in (self._bell, self._heard):
            end.setblocking(False)
        self._selector.register(self._heard, selectors.EVENT_READ, lambda events: self._heard.recv(4096))
        self._open = Connections(self._selector, self._limits, self._traffic, self._gone)
        self._keyed: KeyedRouter | None = None
        self._inproc: InprocEndpoints | None = None
        self._fronts: list[_Endpoints] = [self._open]
        self._worker = self._make_worker()
        self._dispatcher = Dispatcher(self.service, self._worker)
        try:
            for endpoint in self._asked:
                self._bound += (self._front(endpoint).listen(endpoint),)
            if self._audit_file is not None:
                self._audit = open_audit(self._audit_file)
            self._worker.start()
        except BaseException:
            self._close(0.0)
            self._bound = ()
            raise
        self.service.is_ready(lambda: self._worker.ready and not self._stopping)
        self.service.metrics.gauges |= {
            "connections": lambda: len(self._open) + (len(self._keyed) if self._keyed else 0),
            "unfinished_bytes": lambda: self._open.unfinished,
            "unread_bytes": self._unread_bytes,
            "waiting": lambda: len(self._dispatcher.waiting),
            "waiting_bytes": lambda: self._dispatcher.waiting_bytes,
            "robots": lambda: len(self.service.registry.served),
            "memory_bytes": resident_bytes,
        }

    def _front(self, endpoint: str) -> _Endpoints:
        """Who listens at such an endpoint."""
        if needs_keys(endpoint, self._keys):
            if self._keyed is None:
                self._keyed = open_keyed(self._key_folder, self._limits, self._traffic, self._gone)
                self._selector.register(self._keyed.descriptor, selectors.EVENT_READ, lambda events: None)
                self._fronts.append(self._keyed)
                self.service.goes_by(self._keyed.allowed)
            return self._keyed
        if endpoint.startswith("inproc://"):
            if self._inproc is None:
                context = self._given_context or zmq.Context.instance()
                self._inproc = InprocEndpoints(self._selector, context, self._traffic)
                self._fronts.append(self._inproc)
            return self._inproc
        return self._open

    def _unread_bytes(self) -> int:
        return self._open.unread + (self._keyed.unread if self._keyed else 0)

    def _make_worker(self) -> ThreadWorker | Pool:
        service = self.service
        if self._workers and not AVAILABLE:
            _LOG.warning("this system has no worker processes: a thread does what is slow, and nothing stops it")
        if not self._workers or not AVAILABLE:
            return ThreadWorker(self._ring, service)
        return Pool(service, self._workers, selector=self._selector, ring=self._ring)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:  # asked twice
            for bound in self._bound:
                bound.clear()
            os._exit(128 + number)
        self._stopping = True

    def _ring(self) -> None:
        """Wakes the loop, from any thread."""
        with suppress(OSError):  # it is awake, or has ended
            self._bell.send(b"!")

    def _run(self) -> None:
        self._running = True
        make_none()  # kernels are the worker's work, whoever asks
        try:
            with np.errstate(all="ignore"):  # what overflows is infinite in the answer, and no news for this side
                while not self._stopping:
                    try:
                        self._turn(_TICK_S)
                    except Exception:  # noqa: BLE001  # what goes wrong with one message is no reason to leave the others
                        _LOG.exception("a message was lost")
                self._wind_up()
        finally:
            self._close(_GRACE_S)

    def _close(self, linger_s: float) -> None:
        for bound in self._bound:
            bound.clear()
        self._worker.close()
        for front in self._fronts:
            front.close(linger_s)
        if self._audit is not None:
            close_audit(self._audit)
        self._selector.close()
        self._bell.close()
        self._heard.close()

    def _turn(self, most_s: float) -> None:
        """Waits until there is something to do, and does it."""
        waiting = any(front.pending for front in self._fronts)
        for key, events in self._selector.select(0 if waiting else most_s):
            key.data(events)
        for front in self._fronts:
            for peer, message in front.messages(_BURST):
                self._take(front, peer, message)
        now = perf_counter_ns()
        self._worker.tick(now)
        for envelope, reply in self._dispatcher.finished():  # what the tick refuses too
            self._send(envelope, reply)
        if self._dispatcher.waiting:
            for envelope, notice in self._dispatcher.notices(now):
                self._send(envelope, notice)
        if now > self._next_look_ns:
            self._next_look_ns = now + _LOOK_NS
            self._open.look()
            if self._keyed is not None:
                self._keyed.look()

    def _take(
        self, front: _Endpoints, peer: Peer | KeyedPeer | bytes, message: Message | tuple[bytes | memoryview, int, bool]
    ) -> None:
        payload, parts, is_req = message
        traffic = self._traffic
        traffic.received += 1
        traffic.received_bytes += len(payload)
        envelope = ((front, peer), is_req)
        if parts != 1 + is_req:
            self._send(envelope, self._dispatcher.refuse_frames(parts))
            return
        received_ns = peer.received_ns if isinstance(peer, Peer) else perf_counter_ns()
        caller = peer.caller if isinstance(peer, KeyedPeer) else None
        reply = self._dispatcher.answer(envelope, payload, received_ns, caller)
        if reply is not None:
            front.send(peer, is_req, reply)  # type: ignore[arg-type]

    def _send(self, envelope: Envelope, reply: bytes | memoryview) -> None:
        (front, peer), is_req = envelope
        front.send(peer, is_req, reply)

    def _gone(self, peer: Peer | KeyedPeer) -> None:
        if self._bound:
            self._dispatcher.gone(peer)

    def _wind_up(self) -> None:
        """Refuses what has not been begun, answers what has arrived."""
        until = time.monotonic() + _GRACE_S
        for envelope, refusal in self._dispatcher.shut_down():
            self._send(envelope, refusal)
        while time.monotonic() < until:
            self._turn(0.0)
            if not any(front.pending for front in self._fronts):
                break
        while self._dispatcher.waiting and time.monotonic() < until:
            self._turn(_TICK_S)
