"""The endpoints within this process: a ROUTER socket of ZeroMQ's, since nothing else reaches them."""

from __future__ import annotations

import errno
import math
import selectors
from collections.abc import Iterator
from time import perf_counter_ns
from typing import cast

import zmq

from dyn_service.errors import UnavailableError
from dyn_service.service.protocol.sockets import is_readable, plain_send
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.transport.endpoints import MORE, NOBLOCK, UNREAD_REPLIES, BoundEndpoint
from dyn_service.service.server.transport.zmtp import Message


class InprocPeer:
    """A socket of this process, known by its routing id; see `transport.Peer`."""

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
    """One ROUTER socket; see `transport.Transport`.

    Args:
        selector: Watches the socket.
        context: Where the endpoints are.
        traffic: Where messages are counted.
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
            UnavailableError: It is taken.
        """
        try:
            self._router.bind(endpoint)
        except zmq.ZMQError as fault:
            taken = fault.errno == errno.EADDRINUSE
            cause = "another server listens there" if taken else str(fault).lower()
            raise UnavailableError(f"cannot listen on {endpoint}: {cause}", path="endpoints") from None
        return BoundEndpoint(endpoint)

    @property
    def pending(self) -> bool:
        """Whether a message waits. Of several, the socket's descriptor tells of the first only, so this is asked."""
        return is_readable(self._router)

    def messages(self, most: int, until_ns: float = math.inf) -> Iterator[tuple[InprocPeer, Message]]:
        """Up to so many of the messages that have come; see `transport.Transport`."""
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
        """Sends a reply, or counts that it could not be sent; never waits."""
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
        """Nothing: there are no connections here."""

    def check(self) -> None:
        """Nothing: a socket of this process neither vanishes nor is a stranger."""

    def close(self, linger_s: float) -> None:
        """Ends everything, after replies have had so long to leave."""
        self._selector.unregister(cast(int, self._router.getsockopt(zmq.FD)))
        self._router.close(linger=int(linger_s * 1000))
