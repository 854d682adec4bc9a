"""The connections of an encrypted endpoint: who is at the other end, and how much of our memory each one holds.

A libzmq socket does not say what it keeps for a peer. So the kernel's counts are held against our own:

    bytes received on a connection - bytes of the messages that came out of it = what has not ended, or waits for us
    bytes of the replies to it     - bytes that the other side's kernel took   = what is not read

Heartbeats are messages too, which the kernel counts and which never come out of the socket. Each that came is answered
by one that went, and each that went by one that came: so what the other side took beyond our replies tells how many
bytes of them were received.

What a peer may hold is bounded for each connection here, and over all by `ledger`. A connection that is over is reset,
and libzmq lets go of what it kept. Linux tells these counts of TCP connections; elsewhere, and over ipc, which is for
the server's own user, high-water marks must do.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from dyn_service.service.protocol.sockets import file_descriptor, is_readable
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.transport.quotas import Ledger

_COUNTS = struct.Struct("@120xQQ")
"""`tcpi_bytes_acked` and `tcpi_bytes_received` in the kernel's `struct tcp_info`."""

_AT_ONCE = struct.pack("ii", 1, 0)
"""A reset, not a farewell that the peer may leave unread."""

_SEALED_BYTES = 33
"""What encryption adds to a part."""

_PING_TO_PONG = 1.05
"""A sealed PING is 42 bytes and more on a connection, the PONG to it two fewer."""

_ASIDE_BYTES = 1024
"""So much of what came is no message: the handshake, and heartbeats whose answer is on its way."""


class KeyedPeer:
    """One connection; see `ledger.Held` and `front.Asker`.

    sender: its name at the ROUTER socket, key: its public key, and caller: whose that was by the list, when the last
    message came. delivered: bytes of its messages, and of what else came that is none. handed: bytes of the replies to
    it, and of heartbeats. taken, received: as the kernel counted when last looked at.
    """

    files = 1

    __slots__ = (
        "_peers",
        "caller",
        "closed",
        "delivered",
        "descriptor",
        "handed",
        "heard_s",
        "held",
        "inode",
        "key",
        "moved_s",
        "received",
        "received_ns",
        "sender",
        "served",
        "taken",
        "unread",
    )

    def __init__(self, peers: KeyedPeers, descriptor: int, inode: int) -> None:
        self._peers = peers
        self.descriptor = descriptor
        self.inode = inode
        self.served = False
        self.sender = self.key = self.caller = None
        self.handed = self.unread = self.held = self.taken = self.received = self.received_ns = 0
        self.delivered: float = _ASIDE_BYTES
        self.heard_s = self.moved_s = time.monotonic()
        self.closed = False

    sender: bytes | None
    key: str | None
    caller: Caller | None

    @property
    def is_stranger(self) -> bool:
        """Whether it has not shown its key yet, which its first message does."""
        return self.key is None

    def end(self) -> None:
        """Resets the connection; again, does nothing."""
        self._peers.end(self)


class KeyedPeers:
    """The connections of one socket. All calls come from the thread that owns the socket.

    Args:
        router: The socket, before it listens.
        ledger: What they and others hold together.
    """

    def __init__(self, router: zmq.Socket[bytes], ledger: Ledger) -> None:
        self._ledger = ledger
        self._limits = ledger.limits
        ledger.refreshers.append(self._refresh_all)
        self._peers: dict[int, KeyedPeer] = {}
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
                    self._note(descriptor)
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
                found = self._note(descriptor)
            peer = found
            peer.sender = sender
        return peer

    def _note(self, descriptor: int) -> KeyedPeer:
        """Takes up a connection.

        Raises:
            OSError: It is gone again.
        """
        peer = KeyedPeer(self, descriptor, os.fstat(descriptor).st_ino)
        self._ledger.enter(peer)
        self._peers[descriptor] = peer
        return peer

    def end(self, peer: KeyedPeer) -> None:
        """Ends a connection at once; again, does nothing."""
        if peer.closed:
            return
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
        peer.heard_s = time.monotonic()
        if not peer.served:
            self._ledger.asked(peer)

    def goes(self, peer: KeyedPeer, sizes: Sequence[int]) -> bool:
        """Notes a reply that is to be handed over, if there is room: for one alone, or several within the limits."""
        size = sum(map(_on_the_wire, sizes))
        most = self._limits.max_reply_bytes
        if peer.unread and peer.unread + size > most:
            self._refresh(peer)
            if peer.unread and peer.unread + size > most:
                return False
        if not peer.unread:
            peer.moved_s = time.monotonic()
        peer.handed += size
        self._ledger.owed(peer, peer.unread + size)
        self._ledger.bound_unread()
        return not peer.closed

    def stayed(self, peer: KeyedPeer, sizes: Sequence[int]) -> None:
        """Takes back what `goes` noted: the reply was not handed over after all."""
        size = sum(map(_on_the_wire, sizes))
        peer.handed -= size
        if not peer.closed:
            self._ledger.owed(peer, peer.unread - size)

    def look(self) -> None:
        """Notes what each connection holds, and cuts off those that hold too much by themselves."""
        self._refresh_all()
        for peer in self:
            if peer.held > 2 * self._limits.max_message_bytes:
                self._ledger.cut(peer, f"{peer.held} bytes came in without an end")

    def _refresh_all(self) -> None:
        for peer in self:
            self._refresh(peer)

    def _refresh(self, peer: KeyedPeer) -> None:
        """Takes what the kernel counts of a connection."""
        counts = _counts(peer)
        if counts is None:
            self._ledger.owed(peer, 0)
            return
        taken, received = counts
        now = time.monotonic()
        if taken > peer.taken:
            peer.moved_s = now
        if received > peer.received:
            peer.heard_s = now
        peer.taken, peer.received = counts
        signs_of_life = max(0, taken - peer.handed)
        peer.handed += signs_of_life
        # they give no credit beyond what came
        peer.delivered = min(peer.delivered + _PING_TO_PONG * signs_of_life, received + _ASIDE_BYTES)
        self._ledger.owed(peer, peer.handed - taken)
        self._ledger.holds(peer, max(0, received - int(peer.delivered)))

    def close(self) -> None:
        """Ends the watch; before the socket is closed."""
        self._router.disable_monitor()
        self._monitor.close(linger=0)
        self._ledger.refreshers.remove(self._refresh_all)
        for peer in self:
            self._forget(peer.descriptor)

    def _forget(self, descriptor: int) -> None:
        peer = self._peers.pop(descriptor, None)
        if peer is not None:
            peer.closed = True
            self._ledger.leave(peer)


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
