"""The open endpoints, tcp and ipc: sockets that listen, the peers that came, what they sent and have not read yet.

Everything that a peer can make grow is counted here and bounded, for each connection and over all together: messages
that have not ended, replies that are not read, connections. Where a bound over all is reached, the connection goes that
holds most of a message, or has read nothing for longest: whoever hoards pays for it and nobody else.

No thread and no waiting: a selector says which sockets are ready, and what it watches each with is called.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter_ns

from dyn_service.errors import UnavailableError
from dyn_service.protocol.limits import RequestLimits
from dyn_service.server.endpoints import Bound, owner_only, peer_is_owner, refuse_taken
from dyn_service.server.metrics import Traffic
from dyn_service.server.pipes import AVAILABLE
from dyn_service.server.process import most_connections
from dyn_service.server.shared import room
from dyn_service.server.zmtp import GREETING, PING, READY, Conversation, Message, ProtocolError, head

_LOG = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
"""So much is read from a connection before another has its turn; twice that of a long message."""

_WRITE_BYTES = 1 << 18
"""So much is written to one."""

_KERNEL_BYTES = 1 << 18
"""What the system may hold of the replies to one connection."""

_JOINED_BYTES = 1 << 14
"""A reply up to this length is copied behind its head, which takes less time than to send two pieces."""

_HELLO_S = 2.0
"""A connection that has not said by then who it is goes."""

_QUIET_S = 5.0
"""A peer that was not heard for so long is asked for a sign of life, and goes after three times that."""

_STUCK_S = 30.0
"""A peer that has read nothing of what waits for it for so long goes."""

_FILES_EACH = 3
"""Open files set aside for one connection: its own; the rest is for long messages, see `shared`, and all else."""


class Peer:
    """One connection.

    closed: it has ended, whoever ended it. heard_s, moved_s: when it last sent, and last took something that waited for
    it, on the clock of `time.monotonic`. unread: bytes that wait for it. held: bytes of a message that has not ended.
    """

    __slots__ = (
        "_connections",
        "_out",
        "came_s",
        "closed",
        "conversation",
        "heard_s",
        "held",
        "moved_s",
        "pinged",
        "queued",
        "received_ns",
        "served",
        "socket",
        "unread",
    )

    def __init__(self, connections: Connections, connected: socket.socket, now_s: float) -> None:
        self._connections = connections
        self._out: deque[memoryview] = deque()
        self.socket = connected
        self.conversation = Conversation(connections.limits.max_message_bytes, room if AVAILABLE else bytearray)
        self.came_s = self.heard_s = self.moved_s = now_s
        self.received_ns = 0
        self.unread = self.held = 0
        self.closed = self.pinged = self.queued = self.served = False

    def ready(self, events: int) -> None:
        """Called when the socket can be read or written."""
        if events & selectors.EVENT_WRITE:
            self._write()
        if events & selectors.EVENT_READ and not self.closed:
            self._connections.read(self)

    def send(self, *pieces: bytes | memoryview) -> None:
        """Sends what goes out at once, and keeps the rest."""
        if self._out:
            self._keep(pieces)
            return
        size = sum(map(len, pieces))
        try:
            sent = self.socket.send(pieces[0]) if len(pieces) == 1 else self.socket.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < size:
            self.moved_s = time.monotonic()
            self._keep(pieces, sent)
            self._connections.watch(self, writing=True)

    def _keep(self, pieces: tuple[bytes | memoryview, ...], skipped: int = 0) -> None:
        for piece in pieces:
            view = memoryview(piece)[skipped:]
            skipped = max(0, skipped - len(piece))
            if len(view):
                self._out.append(view)
                self.unread += len(view)
                self._connections.unread += len(view)

    def _write(self) -> None:
        try:
            sent = self.socket.send(self._out[0][:_WRITE_BYTES])
        except (BlockingIOError, IndexError):
            return
        except OSError:
            self.close()
            return
        self.moved_s = time.monotonic()
        self.unread -= sent
        self._connections.unread -= sent
        left = self._out[0][sent:]
        if len(left):
            self._out[0] = left
            return
        self._out.popleft()
        if not self._out:
            self._connections.watch(self, writing=False)

    def close(self) -> None:
        """Ends the connection; again, does nothing."""
        if not self.closed:
            self.closed = True
            self._out.clear()
            self._connections.forget(self)
            self.socket.close()


class Connections:
    """The peers at the open endpoints. All calls come from one thread.

    Args:
        selector: Watches the sockets; what it finds ready is called as `key.data(events)`.
        limits: What peers must keep.
        traffic: Where messages are counted.
        gone: Told of each peer whose connection has ended.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        limits: RequestLimits,
        traffic: Traffic,
        gone: Callable[[Peer], None] = lambda peer: None,
    ) -> None:
        self.limits = limits
        self.unread = 0
        """Bytes of replies that wait to be read."""
        self.unfinished = 0
        """Bytes of messages that have not ended."""
        self._selector = selector
        self._traffic = traffic
        self._gone = gone
        self._listening: list[socket.socket] = []
        self._peers: set[Peer] = set()
        self._pending: deque[Peer] = deque()

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def pending(self) -> bool:
        """Whether something was read that `messages` has not given yet."""
        return bool(self._pending)

    # peers come

    def listen(self, endpoint: str) -> Bound:
        """Listens on a tcp or ipc endpoint.

        Raises:
            UnavailableError: It is taken, or this machine has no such address.
        """
        try:
            listening, bound = _listen_ipc(endpoint) if endpoint.startswith("ipc://") else _listen_tcp(endpoint)
        except OSError as fault:
            taken = fault.errno == errno.EADDRINUSE
            cause = "another server listens there" if taken else (fault.strerror or str(fault)).lower()
            raise UnavailableError(f"cannot listen on {endpoint}: {cause}", path="endpoints") from None
        self._listening.append(listening)
        is_ipc = endpoint.startswith("ipc://")
        self._selector.register(listening, selectors.EVENT_READ, lambda events: self._accept(listening, is_ipc))
        return bound

    def _accept(self, listening: socket.socket, is_ipc: bool) -> None:
        try:
            connected, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as fault:
            if fault.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            return
        connected.setblocking(False)
        if is_ipc and not peer_is_owner(connected):
            _LOG.warning("a process of another user was turned away")
            self._traffic.cut_off += 1
            connected.close()
            return
        if not is_ipc:
            with suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        if len(self._peers) >= most_connections(self.limits.max_connections, _FILES_EACH):
            self._make_room()
        peer = Peer(self, connected, time.monotonic())
        self._peers.add(peer)
        self._selector.register(connected, selectors.EVENT_READ, peer.ready)
        peer.send(GREETING + READY)

    def _make_room(self) -> None:
        """Ends the connection that is missed least: one that never asked anything, else the one quiet for longest."""
        if self._peers:
            self._cut(min(self._peers, key=lambda peer: (peer.served, peer.heard_s)), "room is needed for another")

    # messages in

    def read(self, peer: Peer) -> None:
        """Reads from a peer what is there, unless what it sent before has still to be dealt with."""
        if peer.queued:
            return
        room = peer.conversation.room
        try:
            if room is None:
                data = peer.socket.recv(_READ_BYTES)
                count = len(data)
            else:
                count = peer.socket.recv_into(room, min(len(room), _READ_BYTES << 1))
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            peer.close()
            return
        peer.received_ns = perf_counter_ns()
        peer.heard_s, peer.pinged = time.monotonic(), False
        if room is None:
            peer.conversation.feed(data)
        else:
            peer.conversation.took(count)
        peer.queued = True
        self._pending.append(peer)

    def messages(self, most: int) -> Iterator[tuple[Peer, Message]]:
        """Up to so many of the messages that have come, of each peer one in turn."""
        pending = self._pending
        while pending and most:
            peer = pending.popleft()
            peer.queued = False
            if peer.closed:
                continue
            try:
                message = peer.conversation.next()
            except ProtocolError as fault:
                if fault.farewell:
                    peer.send(fault.farewell)
                self._cut(peer, str(fault))
                continue
            except (OSError, MemoryError) as fault:  # no room for a long message
                self._cut(peer, f"there is no room for its message: {fault}")
                continue
            self._hold(peer)
            if message is None or peer.closed:
                continue
            peer.queued = True
            pending.append(peer)
            most -= 1
            if message.parts:
                peer.served = True
                yield peer, message
            elif (answers := peer.conversation.take_answers()) and not peer.unread:  # else it does not read them
                peer.send(answers)

    def _hold(self, peer: Peer) -> None:
        held = peer.conversation.held
        self.unfinished += held - peer.held
        peer.held = held
        if self.unfinished > self.limits.max_unfinished_bytes:
            hoarder = max(self._peers, key=lambda other: other.held)
            self._cut(hoarder, f"{hoarder.held} bytes came in without an end")

    # replies out

    def send(self, peer: Peer, is_req: bool, reply: bytes | memoryview) -> None:
        """Sends a reply, or counts that it could not be sent; never waits."""
        if peer.closed:
            self._traffic.dropped_gone += 1
            return
        size = len(reply)
        if peer.unread and peer.unread + size > self.limits.max_reply_bytes:
            self._traffic.dropped_slow_reader += 1
            return
        begin = head(size, is_req=is_req)
        if size <= _JOINED_BYTES:
            peer.send(begin + reply)
        else:
            peer.send(begin, reply)
        self._traffic.sent += 1
        self._traffic.sent_bytes += size
        while self.unread > self.limits.max_unread_bytes:
            stuck = min((other for other in self._peers if other.unread), key=lambda other: other.moved_s)
            self._cut(stuck, f"{stuck.unread} bytes of replies were not read")

    def watch(self, peer: Peer, *, writing: bool) -> None:
        """Has the selector tell when the peer takes more, or no longer."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        self._selector.modify(peer.socket, events, peer.ready)

    # peers go

    def look(self) -> None:
        """Ends the connections that are dead, deaf or dumb, and asks the quiet ones; to be called often."""
        now = time.monotonic()
        for peer in [*self._peers]:
            quiet = now - peer.heard_s
            if not peer.conversation.ready:
                if now - peer.came_s > _HELLO_S:
                    self._cut(peer, "it did not say who it is")
            elif peer.unread and now - peer.moved_s > _STUCK_S:
                self._cut(peer, f"{peer.unread} bytes of replies were not read")
            elif quiet > 3 * _QUIET_S and peer.pinged:
                self._cut(peer, "it gave no sign of life")
            elif quiet > _QUIET_S and not peer.unread and peer.conversation.minor >= 1 and not peer.pinged:
                peer.pinged = True
                peer.send(PING)

    def _cut(self, peer: Peer, cause: str) -> None:
        _LOG.info("a connection was cut off: %s", cause)
        self._traffic.cut_off += 1
        peer.close()

    def forget(self, peer: Peer) -> None:
        """Leaves a peer out of all counts: its connection ends."""
        self._selector.unregister(peer.socket)
        self._peers.discard(peer)
        self.unread -= peer.unread
        self.unfinished -= peer.held
        self._gone(peer)

    def close(self, linger_s: float) -> None:
        """Ends everything, after replies have had so long to leave."""
        for listening in self._listening:
            self._selector.unregister(listening)
            listening.close()
        until = time.monotonic() + linger_s
        while self.unread and (left := until - time.monotonic()) > 0:
            for key, events in self._selector.select(left):
                if events & selectors.EVENT_WRITE:
                    key.data(selectors.EVENT_WRITE)
        for peer in [*self._peers]:
            peer.close()


def _listen_tcp(endpoint: str) -> tuple[socket.socket, Bound]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    found = socket.getaddrinfo(
        None if host == "*" else host, 0 if port == "*" else int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(socket.SOMAXCONN)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    bound_host, bound_port = listening.getsockname()[:2]
    return listening, Bound(
        f"tcp://[{bound_host}]:{bound_port}" if ":" in bound_host else f"tcp://{bound_host}:{bound_port}"
    )


def _listen_ipc(endpoint: str) -> tuple[socket.socket, Bound]:
    """A file that its owner alone may connect to. One that a live server listens on is left alone."""
    path = endpoint.removeprefix("ipc://")
    refuse_taken(path)
    with suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with owner_only():
            listening.bind(path)
        listening.listen(socket.SOMAXCONN)
        listening.setblocking(False)
        found = os.stat(path)
    except BaseException:
        listening.close()
        raise
    return listening, Bound(endpoint, (path, found.st_dev, found.st_ino))
