"""Endpoints within this process, by a ROUTER socket of libzmq."""

from __future__ import annotations

import errno
import math
import selectors
from collections.abc import Iterator
from time import perf_counter_ns
from typing import cast

import zmq

from dyn_service.service.protocol.sockets import is_readable, plain_send
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.transport.endpoints import MORE, NOBLOCK, UNREAD_REPLIES, BoundEndpoint, bind
from dyn_service.service.server.transport.zmtp import Message


class InprocPeer:
    """A socket of this process, identified by its routing id; a `Peer`."""

    __slots__ = ("received_ns", "sender")
    caller = None

    def __init__(self, sender: bytes, received_ns: int) -> None:
        self.sender = sender
        self.received_ns = received_ns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InprocPeer) and other.sender == self.sender

    def __hash__(self) -> int:
        return hash(self.sender)


class InprocTransport:
    """One ROUTER socket; a `Transport`.

    Args:
        selector: Watches the socket.
        context: The ZeroMQ context that contains the endpoints.
        traffic: Counts messages.
    """

    def __init__(
        self, selector: selectors.BaseSelector, context: zmq.Context[zmq.Socket[bytes]], traffic: Traffic
    ) -> None:
        self._selector = selector
        self._traffic = traffic
        self._router = router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, UNREAD_REPLIES)
        self._send_frame = plain_send(router)
        selector.register(cast(int, router.getsockopt(zmq.FD)), selectors.EVENT_READ, lambda events: None)

    def listen(self, endpoint: str) -> BoundEndpoint:
        """Listens on the endpoint.

        Raises:
            UnavailableError: It is in use.
        """
        return bind(self._router, endpoint)

    @property
    def pending(self) -> bool:
        """Whether a message waits. The socket's descriptor signals only the first of several."""
        return is_readable(self._router)

    def messages(self, most: int, until_ns: float = math.inf) -> Iterator[tuple[InprocPeer, Message]]:
        """See `Transport.messages`."""
        router = self._router
        while most and perf_counter_ns() < until_ns and is_readable(router):
            most -= 1
            sender, received_ns = router.recv(NOBLOCK), perf_counter_ns()
            payload, parts, is_req = b"", 0, False
            while router.getsockopt(zmq.RCVMORE):
                part = router.recv(NOBLOCK)
                parts += 1
                is_req = is_req or (parts == 1 and not part and bool(router.getsockopt(zmq.RCVMORE)))
                payload = part if parts == 1 + is_req else b""
            yield InprocPeer(sender, received_ns), Message(payload, parts, is_req)

    def send(self, peer: InprocPeer, is_req: bool, reply: bytes | memoryview) -> None:
        """Sends a reply, or counts that it could not be sent; never blocks."""
        send = self._send_frame
        try:
            send(peer.sender, MORE)
            if is_req:
                send(b"", MORE)
            send(reply, NOBLOCK)
            self._traffic.sent += 1
            self._traffic.sent_bytes += len(reply)
        except zmq.Again:
            self._traffic.dropped_slow_reader += 1
        except zmq.ZMQError as fault:
            if fault.errno != errno.EHOSTUNREACH:
                raise
            self._traffic.dropped_gone += 1

    def end(self, peer: InprocPeer) -> None:
        """Does nothing: there are no connections."""

    def check(self) -> None:
        """Does nothing: sockets of this process need no checks."""

    def close(self, linger_s: float) -> None:
        """See `Transport.close`."""
        self._selector.unregister(cast(int, self._router.getsockopt(zmq.FD)))
        self._router.close(linger=int(linger_s * 1000))
