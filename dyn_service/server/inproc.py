"""The endpoints within this process: a ROUTER socket of ZeroMQ's, since nothing else reaches them."""

from __future__ import annotations

import errno
import selectors
from collections.abc import Iterator
from typing import cast

import zmq

from dyn_service.errors import UnavailableError
from dyn_service.protocol.sockets import is_readable, plain_send
from dyn_service.server.endpoints import Bound
from dyn_service.server.metrics import Traffic
from dyn_service.server.zmtp import Message

_UNREAD = 4000
"""So many replies may wait for a client; it loses those that come when it has not read them."""

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.SNDMORE) | _NOBLOCK


class InprocEndpoints:
    """One ROUTER socket, behind the same calls as `connections.Connections`; a peer is its routing id.

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
        router.setsockopt(zmq.SNDHWM, _UNREAD)
        self._send_frame = plain_send(router)
        selector.register(cast(int, router.getsockopt(zmq.FD)), selectors.EVENT_READ, lambda events: None)

    def listen(self, endpoint: str) -> Bound:
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
        return Bound(endpoint)

    @property
    def pending(self) -> bool:
        """Whether a message waits. Of several, the socket's descriptor tells of the first only, so this is asked."""
        return is_readable(self._router)

    def messages(self, most: int) -> Iterator[tuple[bytes, Message]]:
        """Up to so many of the messages that have come."""
        router = self._router
        while most and is_readable(router):
            most -= 1
            sender = router.recv(_NOBLOCK)
            payload, parts, is_req = b"", 0, False
            while router.getsockopt(zmq.RCVMORE):
                part = router.recv(_NOBLOCK)
                parts += 1
                is_req = is_req or (parts == 1 and not part and bool(router.getsockopt(zmq.RCVMORE)))
                payload = part if parts == 1 + is_req else b""
            yield sender, Message(payload, parts, is_req)

    def send(self, peer: bytes, is_req: bool, reply: bytes | memoryview) -> None:
        """Sends a reply, or counts that it could not be sent; never waits."""
        send = self._send_frame
        try:
            send(peer, _MORE)
            if is_req:
                send(b"", _MORE)
            send(reply, _NOBLOCK)
            self._traffic.sent += 1
            self._traffic.sent_bytes += len(reply)
        except zmq.Again:
            self._traffic.dropped_slow_reader += 1
        except zmq.ZMQError as fault:
            if fault.errno != errno.EHOSTUNREACH:
                raise
            self._traffic.dropped_gone += 1

    def close(self, linger_s: float) -> None:
        """Ends everything, after replies have had so long to leave."""
        self._selector.unregister(cast(int, self._router.getsockopt(zmq.FD)))
        self._router.close(linger=int(linger_s * 1000))
