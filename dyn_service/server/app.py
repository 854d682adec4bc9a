"""The server's sockets and its loop.

One ROUTER socket listens on every endpoint, and the loop does nothing but wait on it: no poller, no timers. What is
answered by the loop itself, in microseconds, and what by the worker thread is for `dispatcher` to say; the worker rings
by a message to the same socket when a reply is ready. So a request is never behind another client's big batch, only
behind the few that arrived before it.

    Server([robot], endpoints=["tcp://127.0.0.1:0"])        as a context manager: a thread of this process
    Server([robot]).serve_forever()                         in this thread, until SIGINT or SIGTERM
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq

from dyn_service.api.preparation import load_modules
from dyn_service.api.queries import COMPUTATIONS
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.protocol.defaults import DEFAULT_ENDPOINT
from dyn_service.protocol.limits import RequestLimits
from dyn_service.protocol.sockets import is_readable, plain_send
from dyn_service.server.dispatcher import Dispatcher
from dyn_service.server.endpoints import Bound, bind, is_local
from dyn_service.server.plan import SLOW_BYTES
from dyn_service.server.process import settle_process
from dyn_service.server.service import Service
from dyn_service.server.unfinished import LOOK_EVERY_NS, UnfinishedMessages
from dyn_service.server.worker import Envelope, Worker

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

_LOG = logging.getLogger(__name__)

_BURST = 64
"""So many messages are read, and their time of receipt noted, before the first of them is answered."""

_AT_ONCE_NS = 4000
"""A message that was there within this time had been waiting, and may not be alone."""

_TICK_MS = 50
"""How often an idle loop looks whether it should stop."""

_GRACE_S = 2.0
"""How long a server that stops waits for the answer the worker is at, and for replies to leave."""

_UNREAD = 4000
"""So many replies may wait for a client; it loses those that come when it has not read them."""

_HANDSHAKE_MS = 2000
"""A connection that has not said hello by then is closed."""

_HEARTBEAT_MS = 5000
"""A peer is asked for a sign of life so often, and dropped after three times without."""

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.SNDMORE) | _NOBLOCK

_Received = tuple[Envelope, bytes | memoryview, int]
"""A request as it came in, with its time of receipt."""


class Server:
    """Serves robots over ZeroMQ.

    Args:
        robots: The robots, by their names.
        endpoints: Where to listen. Only addresses that are written out are listened on: the default is loopback.
        limits: Sizes and counts that clients must keep.
        allow_load: Whether clients may load and unload robots; None: if nothing but this machine can reach the server.
        context: The ZeroMQ context. None is the process's own for `inproc` endpoints, else one of the server.
    """

    def __init__(
        self,
        robots: Iterable[Robot] = (),
        *,
        endpoints: Sequence[str] = (DEFAULT_ENDPOINT,),
        limits: RequestLimits | None = None,
        allow_load: bool | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        if not endpoints:
            raise InvalidArgumentError("endpoints must name at least one endpoint, found none", path="endpoints")
        self._asked = tuple(endpoints)
        self._limits = limits or RequestLimits()
        local = all(is_local(endpoint) for endpoint in self._asked)
        self.service = Service(robots, limits=self._limits, allow_load=local if allow_load is None else allow_load)
        self._owns_context = context is None and not any(e.startswith("inproc://") for e in self._asked)
        self._given_context = context
        self._bound: tuple[Bound, ...] = ()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._traffic = self.service.metrics.traffic
        self._in_flight: list[tuple[Any, int]] = []
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
        self._thread = threading.Thread(target=self._run, name="dyn-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answers what has arrived, closes the sockets, and comes back when all that is done."""
        if self._thread is None or self._thread is threading.current_thread():
            self._stopping = True
            return
        with suppress(zmq.ZMQError), self._open_wakeup(self._stop_wakeup) as wakeup:
            wakeup.linger = 0  # should the loop have ended by itself, nothing waits for it
            self._stopping = True
            wakeup.send(b"", zmq.NOBLOCK)
        self._stopping = True
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
        """Listens on the endpoints; requests wait until `serve_forever`.

        Raises:
            UnavailableError: An endpoint is taken.
            FailedPreconditionError: The server was started, or stopped, before.
        """
        if self._bound:
            raise FailedPreconditionError("a server starts once")
        if self._stopping:
            raise FailedPreconditionError("the server was stopped before it started, and stays so: make another one")
        load_modules(COMPUTATIONS)  # no first request waits for an import
        for endpoint in self._asked:
            if not is_local(endpoint):
                _LOG.warning("%s is open to other machines, and whoever reaches it may ask anything", endpoint)
        self._context = zmq.Context() if self._owns_context else self._given_context or zmq.Context.instance()
        router = self._context.socket(zmq.ROUTER)
        self._unfinished = UnfinishedMessages(router, 2 * self._limits.max_message_bytes)
        try:
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            router.setsockopt(zmq.SNDHWM, _UNREAD)
            router.setsockopt(zmq.MAXMSGSIZE, self._limits.max_message_bytes)
            router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
            router.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
            router.setsockopt(zmq.RCVTIMEO, _TICK_MS)
            if any("[" in endpoint for endpoint in self._asked):
                router.setsockopt(zmq.IPV6, 1)
            self._wakeups = (os.urandom(16), os.urandom(16))
            self._worker_wakeup, self._stop_wakeup = self._wakeups
            self._wakeup_endpoint = f"inproc://dyn-server-{os.urandom(16).hex()}"
            router.bind(self._wakeup_endpoint)
            self._bound = tuple(bind(router, endpoint) for endpoint in self._asked)
            bell = self._open_wakeup(self._worker_wakeup)
        except BaseException:
            self._unfinished.close()
            router.close(linger=0)
            if self._owns_context:
                self._context.term()
            raise
        self._router = router
        self._send_frame = plain_send(router)
        self._bell = bell  # made here, rung by the worker's thread alone from its start on
        self._worker = Worker(self._ring, self.service.clock)
        self._dispatcher = Dispatcher(self.service, self._worker, self._in_flight_bytes)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:  # asked twice
            for bound in self._bound:
                bound.clear()
            os._exit(128 + number)
        self._stopping = True

    def _open_wakeup(self, name: bytes) -> zmq.Socket[bytes]:
        """A socket whose empty messages wake the loop. No client can take its name, which nobody outside knows."""
        wakeup = self._context.socket(zmq.DEALER)
        wakeup.setsockopt(zmq.ROUTING_ID, name)
        wakeup.setsockopt(zmq.SNDHWM, 0)
        wakeup.connect(self._wakeup_endpoint)
        return wakeup

    def _ring(self) -> None:
        """Wakes the loop: the worker has a reply ready."""
        with suppress(zmq.Again):  # the server has stopped, and nobody is left to wake
            self._bell.send(b"", zmq.NOBLOCK)

    def _run(self) -> None:
        self._worker.start()
        try:
            with np.errstate(all="ignore"):  # what overflows is infinite in the answer, and no news for this side
                while not self._stopping:
                    try:
                        self._turn()
                    except Exception:  # noqa: BLE001  # what goes wrong with one message is no reason to leave the others
                        _LOG.exception("a message was lost")
                        while self._router.getsockopt(zmq.RCVMORE):  # what is left of it is no message of its own
                            self._router.recv()
                        time.sleep(_TICK_MS / 1e3)
                self._wind_up()
        finally:
            self._worker.join(0.1)
            self._unfinished.close()
            self._router.close(linger=int(_GRACE_S * 1000))
            for bound in self._bound:
                bound.clear()
            self._worker.at_end(self._close_bell)  # where a compiler is still at work, closing waits for it elsewhere

    def _close_bell(self) -> None:
        self._bell.close(linger=0)
        if self._owns_context:
            self._context.term()

    def _turn(self) -> None:
        """Waits for a message and answers it; if more came with it, takes their times of receipt before it does."""
        router = self._router
        waiting_since = perf_counter_ns()
        if waiting_since > self._next_look_ns:
            self._next_look_ns = waiting_since + LOOK_EVERY_NS
            self._traffic.cut_off += self._unfinished.look()
        if self._dispatcher.waiting:
            for envelope, notice in self._dispatcher.notices(waiting_since):
                self._send(envelope, notice)
        try:
            sender = router.recv()
        except zmq.Again:
            return
        first = self._receive(sender)
        if first is None or first[2] - waiting_since > _AT_ONCE_NS:
            self._answer(first)
            return
        burst: list[_Received | None] = [first]
        while is_readable(router) and len(burst) < _BURST:
            burst.append(self._receive(router.recv()))
        for received in burst:
            self._answer(received)

    def _receive(self, sender: bytes) -> _Received | None:
        """The rest of a message whose first frame was read, with its time of receipt; None if nothing is left to do."""
        frame = self._router.recv(copy=False)
        now = perf_counter_ns()
        is_req, count = False, 1
        if frame.more:
            frame, is_req, count = self._receive_more(frame)
        elif sender in self._wakeups:
            self._deliver()
            return None
        size = len(frame)
        self._unfinished.delivered(frame, size)
        self._traffic.received += 1
        self._traffic.received_bytes += size
        if count > 1:
            self._send((sender, is_req), self._dispatcher.refuse_frames(count + is_req))
            return None
        return (sender, is_req), frame.bytes if size <= SLOW_BYTES else frame.buffer, now

    def _receive_more(self, frame: zmq.Frame) -> tuple[zmq.Frame, bool, int]:
        """The last frame of a message, whether a REQ socket's empty frame came first, and the count of the others."""
        is_req = not len(frame)
        count = 0 if is_req else 1
        while frame.more:
            self._unfinished.delivered(frame, len(frame))
            frame = self._router.recv(copy=False)
            count += 1
        return frame, is_req, count

    def _answer(self, received: _Received | None) -> None:
        if received is None:
            return
        envelope, payload, now = received
        reply = self._dispatcher.answer(envelope, payload, now)
        if reply is not None:
            self._send(envelope, reply)

    def _send(self, envelope: Envelope, reply: bytes) -> None:
        """Sends the reply, or counts that it could not be sent; never waits."""
        sender, is_req = envelope
        send = self._send_frame
        try:
            send(sender, _MORE)
            if is_req:
                send(b"", _MORE)
            if len(reply) < zmq.COPY_THRESHOLD:  # pyzmq would copy it all the same
                send(reply, _NOBLOCK)
            else:
                self._in_flight.append((send(reply, _NOBLOCK, copy=False, track=True), len(reply)))
            self._traffic.sent += 1
            self._traffic.sent_bytes += len(reply)
        except zmq.Again:
            self._traffic.dropped_slow_reader += 1
        except zmq.ZMQError as fault:
            if fault.errno != errno.EHOSTUNREACH:
                raise
            self._traffic.dropped_gone += 1

    def _deliver(self) -> None:
        """Sends the replies that the worker has ready."""
        for envelope, reply in self._dispatcher.finished():
            self._send(envelope, reply)

    def _in_flight_bytes(self) -> int:
        """Bytes of long replies that the transport still holds."""
        self._in_flight = [(tracker, size) for tracker, size in self._in_flight if not tracker.done]
        return sum(size for _, size in self._in_flight)

    def _wind_up(self) -> None:
        """Refuses what has not been begun, answers what has arrived. To unbind first would cut the clients off."""
        until = time.monotonic() + _GRACE_S
        for envelope, refusal in self._dispatcher.shut_down():
            self._send(envelope, refusal)
        while is_readable(self._router) and time.monotonic() < until:
            self._answer(self._receive(self._router.recv()))
        while self._dispatcher.waiting and time.monotonic() < until:
            self._turn()
            self._deliver()
