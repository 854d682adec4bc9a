"""The connections of an encrypted endpoint: who is at the other end, and how much of our memory each one holds.

A libzmq socket does not say what it keeps for a peer. So the kernel's counts are held against our own:

    bytes received on a connection - bytes of the messages that came out of it = what has not ended, or waits for us
    bytes of the replies to it     - bytes that the other side's kernel took   = what is not read

What a peer may hold is bounded for each connection and over all together. A connection that is over is reset, and
libzmq lets go of what it kept. Linux tells these counts of TCP connections; elsewhere, and over ipc, which is for the
server's own user, high-water marks must do.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from dyn_service.protocol.limits import RequestLimits
from dyn_service.protocol.sockets import file_descriptor, is_readable
from dyn_service.server.access import Caller
from dyn_service.server.metrics import Traffic
from dyn_service.server.process import most_connections

_LOG = logging.getLogger(__name__)

_COUNTS = struct.Struct("@120xQQ")
"""`tcpi_bytes_acked` and `tcpi_bytes_received` in the kernel's `struct tcp_info`."""

_AT_ONCE = struct.pack("ii", 1, 0)
"""A reset, not a farewell that the peer may leave unread."""

_SEALED_BYTES = 33
"""What encryption adds to a part."""


class KeyedPeer:
    """One connection.

    sender: its name at the ROUTER socket, key: its public key, and caller: whose that was by the list, when the last
    message came. delivered: bytes of its messages. handed: bytes of the replies to it. unread: how many of these it has
    not taken, when last looked at. closed: it has ended.
    """

    __slots__ = ("caller", "closed", "delivered", "descriptor", "handed", "inode", "key", "sender", "unread")

    def __init__(self, descriptor: int, inode: int) -> None:
        self.descriptor = descriptor
        self.inode = inode
        self.sender = self.key = self.caller = None
        self.delivered = self.handed = self.unread = 0
        self.closed = False

    sender: bytes | None
    key: str | None
    caller: Caller | None


class KeyedPeers:
    """The connections of one socket. All calls come from the thread that owns the socket.

    Args:
        router: The socket, before it listens.
        limits: What peers must keep.
        traffic: Where connections that were cut are counted.
        gone: Told of each one that has ended.
    """

    def __init__(
        self, router: zmq.Socket[bytes], limits: RequestLimits, traffic: Traffic, gone: Callable[[KeyedPeer], None]
    ) -> None:
        self._gone = gone
        self._limits = limits
        self._traffic = traffic
        self._peers: dict[int, KeyedPeer] = {}
        self.unread = 0
        """Bytes of replies that are not read, over all connections."""
        self._router = router
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        name = f"inproc://dyn-keyed-{os.urandom(16).hex()}"
        router.monitor(name, events)
        self._monitor: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # a full one would hold up the thread that reads all connections
        self._monitor.connect(name)

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[KeyedPeer]:
        return iter([*self._peers.values()])

    @property
    def descriptor(self) -> int:
        """Readable when connections have come or gone."""
        return file_descriptor(self._monitor)

    def follow(self) -> None:
        """Notes which connections have come and gone."""
        while is_readable(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            descriptor = event["value"]
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._forget(descriptor)
                with suppress(OSError):  # it may be gone again
                    self._peers[descriptor] = KeyedPeer(descriptor, os.fstat(descriptor).st_ino)
                    if len(self._peers) > most_connections(self._limits.max_connections, 1):
                        self._make_room()
            else:
                self._forget(descriptor)

    def of(self, sender: bytes, frame: zmq.Frame) -> KeyedPeer | None:
        """The connection that a message came from; None if it has ended.

        Args:
            sender: The name of the peer at the ROUTER socket: zero and a number that counts up.
            frame: One of the message's.
        """
        descriptor: Any = frame.get(zmq.SRCFD)
        peer = self._peers.get(descriptor)
        if peer is None:
            self.follow()
            peer = self._peers.get(descriptor)
        if peer is None:
            return None
        if peer.sender is None:
            peer.sender = sender
        elif peer.sender != sender:  # one of them is of an earlier connection, whose descriptor was used again
            if not _is_later(sender, peer.sender):
                return None
            self.follow()  # the events of the earlier one's end, and of this one's begin, are there by now
            found = self._peers.get(descriptor)
            if found is None:
                return None
            if found is peer:
                self._forget(descriptor)
                found = self._peers[descriptor] = KeyedPeer(descriptor, os.fstat(descriptor).st_ino)
            peer = found
            peer.sender = sender
        return peer

    def cut(self, peer: KeyedPeer, cause: str) -> None:
        """Ends a connection at once."""
        if peer.closed:
            return
        _LOG.warning("a connection was cut off: %s", cause)
        self._traffic.cut_off += 1
        self._forget(peer.descriptor)
        with suppress(OSError):
            if os.fstat(peer.descriptor).st_ino != peer.inode:  # closed by libzmq, and the number used again
                return
            with _borrowed(peer.descriptor) as borrowed:
                borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                borrowed.shutdown(socket.SHUT_RDWR)

    def came(self, peer: KeyedPeer, sizes: Sequence[int]) -> None:
        """Notes a message whose parts have these sizes."""
        peer.delivered += sum(map(_on_the_wire, sizes))

    def goes(self, peer: KeyedPeer, sizes: Sequence[int]) -> bool:
        """Notes a reply that is to be handed over, if there is room: for one alone, or several within the limits."""
        size = sum(map(_on_the_wire, sizes))
        most = self._limits.max_reply_bytes
        if peer.unread and peer.unread + size > most:
            self._refresh(peer)
            if peer.unread and peer.unread + size > most:
                return False
        if self.unread + size > self._limits.max_unread_bytes:
            self.look()
        peer.handed += size
        peer.unread += size
        self.unread += size
        return not peer.closed

    def stayed(self, peer: KeyedPeer, sizes: Sequence[int]) -> None:
        """Takes back what `goes` noted: the reply was not handed over after all."""
        size = sum(map(_on_the_wire, sizes))
        peer.handed -= size
        if not peer.closed:
            peer.unread -= size
            self.unread -= size

    def look(self) -> None:
        """Cuts off the connections that hold too much, and the greatest until all together do not."""
        held = {peer: self._refresh(peer) for peer in self}
        for peer, size in held.items():
            if size > 2 * self._limits.max_message_bytes:
                self.cut(peer, f"{size} bytes came in without an end")
        self._cut_greatest(held, self._limits.max_unfinished_bytes, "came in without an end")
        self._cut_greatest(
            {peer: peer.unread for peer in held}, self._limits.max_unread_bytes, "of replies were not read"
        )

    def _refresh(self, peer: KeyedPeer) -> int:
        """Takes what the kernel counts of a connection; the bytes of messages that have not come out of it."""
        counts = _counts(peer)
        if counts is None:
            self.unread -= peer.unread
            peer.unread = 0
            return 0
        taken, received = counts
        # signs of life are counted by the kernel alone, and give no credit
        peer.handed, peer.delivered = max(peer.handed, taken), min(peer.delivered, received)
        self.unread += peer.handed - taken - peer.unread
        peer.unread = peer.handed - taken
        return received - peer.delivered

    def _cut_greatest(self, sizes: dict[KeyedPeer, int], most: int, cause: str) -> None:
        """Cuts off peers until the others are within the limit: first those that never asked, then the greatest."""
        left = sorted(
            (peer for peer in sizes if not peer.closed), key=lambda peer: (peer.key is not None, -sizes[peer])
        )
        total = sum(sizes[peer] for peer in left)
        for peer in left:
            if total <= most:
                return
            if sizes[peer]:
                total -= sizes[peer]
                self.cut(peer, f"{sizes[peer]} bytes {cause}, and {total} on other connections")

    def close(self) -> None:
        """Ends the watch; before the socket is closed."""
        self._router.disable_monitor()
        self._monitor.close(linger=0)
        for peer in self:
            peer.closed = True

    def _make_room(self) -> None:
        """Ends the connection that has waited longest without asking anything, else the last one that came."""
        idle = next((peer for peer in self._peers.values() if peer.key is None), None)
        self.cut(idle or [*self._peers.values()][-1], "room is needed for others")

    def _forget(self, descriptor: int) -> None:
        peer = self._peers.pop(descriptor, None)
        if peer is not None:
            peer.closed = True
            self.unread -= peer.unread
            self._gone(peer)


def _on_the_wire(size: int) -> int:
    """The bytes that a part of a message takes on a connection."""
    sealed = size + _SEALED_BYTES
    return sealed + (2 if sealed < 256 else 9)


def _is_later(sender: bytes, other: bytes) -> bool:
    """Whether a connection's number, of 32 bits that wrap around, was given out after another's."""
    return (int.from_bytes(sender[1:]) - int.from_bytes(other[1:])) % (1 << 32) < 1 << 31


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """ZeroMQ's connection as a socket of Python's, which does not close it."""
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def _counts(peer: KeyedPeer) -> tuple[int, int] | None:
    """The bytes that the other side took, and those that came from it; None where the system does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        with _borrowed(peer.descriptor) as borrowed:
            taken, received = _COUNTS.unpack(borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size))
    except (OSError, struct.error):
        return None
    return taken, received
