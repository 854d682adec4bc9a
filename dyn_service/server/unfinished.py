"""Against a peer whose message never ends.

A message arrives when its last part does; until then its parts lie in ZeroMQ's memory, and no high-water mark counts
them. So the bytes that the kernel received on each connection are held against the bytes of the messages that came out
of it, and a connection that holds back more than any message may have is cut off, which frees its parts.

Linux tells these bytes of TCP connections. Elsewhere, and for ipc, which is for the server's own user, nothing is done.
"""

from __future__ import annotations

import logging
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from dyn_service.protocol.sockets import is_readable

_LOG = logging.getLogger(__name__)

LOOK_EVERY_NS = 100_000_000
"""How often the connections are looked at."""

_BYTES_RECEIVED = struct.Struct("@128xQ")
"""`tcpi_bytes_received` in the kernel's `struct tcp_info`."""

_AT_ONCE = struct.pack("ii", 1, 0)
"""A reset, not a farewell that the peer may leave unread."""

_FRAME_BYTES = 9
"""What ZeroMQ adds to a frame, at most."""


class UnfinishedMessages:
    """Watches the connections of one socket. All calls come from the thread that owns the socket.

    Args:
        router: The socket, before it listens.
        most: How many bytes a connection may hold back.
    """

    def __init__(self, router: zmq.Socket[bytes], most: int) -> None:
        self._most = most
        self._router = router
        self._delivered: dict[int, int] = {}
        self._monitor: zmq.Socket[bytes] | None = None
        if sys.platform == "linux":
            self._monitor = router.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)

    def delivered(self, frame: zmq.Frame, size: int) -> None:
        """Notes the frame of a message that has arrived."""
        if not self._delivered:
            return
        with suppress(zmq.ZMQError):  # inproc has no connections
            connection: Any = frame.get(zmq.SRCFD)
            if connection in self._delivered:
                self._delivered[connection] += size + _FRAME_BYTES

    def look(self) -> int:
        """Cuts off the connections that hold back too much; says how many."""
        if self._monitor is None:
            return 0
        while is_readable(self._monitor):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._delivered.pop(event["value"], None)
            elif _received(event["value"]) is not None:
                self._delivered[event["value"]] = 0
        excess = {
            connection: received - delivered
            for connection, delivered in self._delivered.items()
            if (received := _received(connection)) is not None and received - delivered > self._most
        }
        for connection, count in excess.items():
            _LOG.warning("a connection was cut off: %d bytes came in without an end", count)
            del self._delivered[connection]
            _reset(connection)
        return len(excess)

    def close(self) -> None:
        """Ends the watch; before the socket is closed."""
        if self._monitor is not None:
            self._router.disable_monitor()
            self._monitor.close(linger=0)
            self._monitor = None


@contextmanager
def _borrowed(connection: int) -> Iterator[socket.socket]:
    """ZeroMQ's connection as a socket of Python's, which does not close it."""
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=connection)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def _received(connection: int) -> int | None:
    """The bytes that came in on a connection; None if it is closed, or not TCP."""
    try:
        with _borrowed(connection) as borrowed:
            (count,) = _BYTES_RECEIVED.unpack(
                borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
            )
            return int(count)
    except (OSError, struct.error):
        return None


def _reset(connection: int) -> None:
    with suppress(OSError), _borrowed(connection) as borrowed:
        borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        borrowed.shutdown(socket.SHUT_RDWR)
