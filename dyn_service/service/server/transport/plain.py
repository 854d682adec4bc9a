"""The open endpoints, tcp and ipc: sockets that listen, the peers that came, what they sent and have not read yet.

Everything that a peer can make grow is counted here and bounded: messages that have not ended, replies that are not
read. What all connections may hold together, and who goes where that is too much, is `quota`'s business.

No thread and no waiting: a selector says which sockets are ready, and what it watches each with is called.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter_ns

from dyn_service.errors import UnavailableError
from dyn_service.service.server.transport.endpoints import BoundEndpoint, check_not_in_use, owner_only, peer_is_owner
from dyn_service.service.server.transport.quotas import ConnectionQuota
from dyn_service.service.server.transport.zmtp import (
    GREETING,
    PING,
    READY,
    Decoder,
    Message,
    ProtocolError,
    head,
)
from dyn_service.service.server.workers.pipes import AVAILABLE, room

_READ_BYTES = 1 << 16
"""So much is read from a connection before another has its turn; twice that of a long message."""

_WRITE_BYTES = 1 << 18
"""So much is written to one."""

_KERNEL_BYTES = 1 << 18
"""What the system may hold of the replies to one connection."""

_JOINED_BYTES = 1 << 14
"""A reply up to this length is copied behind its head, which takes less time than to send two pieces."""

_LONG_NS = 100_000
"""A message that took so long to answer is a long one: a single state takes a tenth of it."""

_HELLO_S = 2.0
"""A connection that has not said by then who it is goes."""

_QUIET_S = 5.0
"""A peer that was not heard for so long is asked for a sign of life, and goes after three times that."""

_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2))
"""As often as it is asked by PING, the other machine's kernel is: ZMTP 3.0 has no PING, and its host may vanish too."""


class PlainPeer:
    """One connection.

    closed: it has ended, whoever ended it. last_received_s, last_sent_s: when it last sent, and last took
    something that waited for it, on the clock of `time.monotonic`. unread: bytes that wait for it. held: bytes of a
    message that has not ended.
    queued: whether it stands in its queue, which is that of those whose last message was a short or a long one.
    """

    files = 3
    """Its own, and two where a long message is gathered in shared memory."""
    is_stranger = False
    caller = None

    __slots__ = (
        "_connections",
        "_out",
        "_quota",
        "came_s",
        "closed",
        "decoder",
        "held",
        "last_received_s",
        "last_sent_s",
        "pinged",
        "queue",
        "queued",
        "received_ns",
        "served",
        "socket",
        "unread",
    )

    def __init__(self, connections: PlainTransport, connected: socket.socket, now_s: float) -> None:
        self._connections = connections
        self._quota = connections.quota
        self._out: deque[memoryview] = deque()
        self.socket = connected
        self.decoder = Decoder(self._quota.limits.max_message_bytes, room if AVAILABLE else bytearray)
        self.came_s = self.last_received_s = self.last_sent_s = now_s
        self.queue = connections.short
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
            self.last_sent_s = time.monotonic()
            self._keep(pieces, sent)
            self._connections.watch(self, writing=True)

    def _keep(self, pieces: tuple[bytes | memoryview, ...], skipped: int = 0) -> None:
        for piece in pieces:
            view = memoryview(piece)[skipped:]
            skipped = max(0, skipped - len(piece))
            if len(view):
                self._out.append(view)
                self._quota.set_unread(self, self.unread + len(view))

    def _write(self) -> None:
        try:
            sent = self.socket.send(self._out[0][:_WRITE_BYTES])
        except (BlockingIOError, IndexError):
            return
        except OSError:
            self.close()
            return
        self.last_sent_s = time.monotonic()
        self._quota.set_unread(self, self.unread - sent)
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

    end = close


class PlainTransport:
    """The peers at the open endpoints. All calls come from one thread.

    Args:
        selector: Watches the sockets; what it finds ready is called as `key.data(events)`.
        quota: What they and others hold together.
    """

    def __init__(self, selector: selectors.BaseSelector, quota: ConnectionQuota) -> None:
        self.quota = quota
        self._selector = selector
        self._limits = quota.limits
        self._traffic = quota.traffic
        self._listening: list[socket.socket] = []
        self._peers: set[PlainPeer] = set()
        self.short: deque[PlainPeer] = deque()
        """Peers of which something was read, in the order of their turns: those whose last message was short."""
        self._long: deque[PlainPeer] = deque()
        """The others, for whom those do not wait."""

    @property
    def pending(self) -> bool:
        """Whether something was read that `messages` has not given yet."""
        return bool(self.short or self._long)

    # peers come

    def listen(self, endpoint: str) -> BoundEndpoint:
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
                self.quota.make_room()
            return
        connected.setblocking(False)
        if is_ipc and not peer_is_owner(connected):
            self.quota.note_disconnect("a process of another user was at its other end")
            connected.close()
            return
        if not is_ipc:
            with suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _KEEPALIVE:
                    if hasattr(socket, name):
                        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        with suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        peer = PlainPeer(self, connected, time.monotonic())
        self.quota.add(peer)
        self._peers.add(peer)
        self._selector.register(connected, selectors.EVENT_READ, peer.ready)
        peer.send(GREETING + READY)

    # messages in

    def read(self, peer: PlainPeer) -> None:
        """Reads from a peer what is there, unless what it sent before has still to be dealt with."""
        if peer.queued:
            return
        room = peer.decoder.room
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
        peer.last_received_s, peer.pinged = time.monotonic(), False
        if room is None:
            peer.decoder.feed(data)
        else:
            peer.decoder.took(count)
        peer.queued = True
        peer.queue.append(peer)

    def messages(self, most: int, until_ns: float = math.inf) -> Iterator[tuple[PlainPeer, Message]]:
        """Up to so many of the messages that have come, of each peer one in turn; see `transport.Transport`.

        First those of peers whose last message was short, then one, and no more, of a peer whose last one was long:
        before the next of these, those who came meanwhile have their turn.
        """
        short, long = self.short, self._long
        now_ns = perf_counter_ns()
        while most:
            if short and now_ns < until_ns and (most > 1 or not long):
                peer = short.popleft()
            elif long:
                peer, most = long.popleft(), 1
            else:
                return
            peer.queued = False
            if peer.closed:
                continue
            try:
                message = peer.decoder.next()
            except ProtocolError as fault:
                if fault.farewell:
                    peer.send(fault.farewell)
                self.quota.disconnect(peer, str(fault))
                continue
            except (OSError, MemoryError) as fault:  # no room for a long message
                self.quota.disconnect(peer, f"there is no room for its message: {fault}")
                continue
            if (held := peer.decoder.held) != peer.held:
                self.quota.set_unfinished(peer, held)
                self.quota.enforce_unfinished()
            if message is None or peer.closed:
                continue
            peer.queued = True
            most -= 1
            if not message.parts:
                peer.queue.append(peer)
                if (answers := peer.decoder.take_answers()) and not peer.unread:  # else it does not read them
                    peer.send(answers)
                continue
            if not peer.served:
                self.quota.note_request(peer)
            begun_ns = perf_counter_ns()
            try:
                yield peer, message
            finally:
                now_ns = perf_counter_ns()
                peer.queue = long if now_ns - begun_ns > _LONG_NS else short
                peer.queue.append(peer)

    # replies out

    def send(self, peer: PlainPeer, is_req: bool, reply: bytes | memoryview) -> None:
        """Sends a reply, or counts that it could not be sent; never waits."""
        if peer.closed:
            self._traffic.dropped_gone += 1
            return
        size = len(reply)
        if peer.unread and peer.unread + size > self._limits.max_reply_bytes:
            self._traffic.dropped_slow_reader += 1
            return
        begin = head(size, is_req=is_req)
        if size <= _JOINED_BYTES:
            peer.send(begin + reply)
        else:
            peer.send(begin, reply)
        self._traffic.sent += 1
        self._traffic.sent_bytes += size
        if peer.unread:
            self.quota.enforce_unread()

    def watch(self, peer: PlainPeer, *, writing: bool) -> None:
        """Has the selector tell when the peer takes more, or no longer."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        self._selector.modify(peer.socket, events, peer.ready)

    # peers go

    def check(self) -> None:
        """Ends the connections that are dead or dumb, and asks the quiet ones; to be called often."""
        now = time.monotonic()
        for peer in [*self._peers]:
            quiet = now - peer.last_received_s
            if not peer.decoder.ready:
                if now - peer.came_s > _HELLO_S:
                    self.quota.disconnect(peer, "it did not say who it is")
            elif quiet > 3 * _QUIET_S and peer.pinged:
                self.quota.disconnect(peer, "it gave no sign of life")
            elif quiet > _QUIET_S and not peer.unread and peer.decoder.minor >= 1 and not peer.pinged:
                peer.pinged = True
                peer.send(PING)

    def end(self, peer: PlainPeer) -> None:
        """Ends a connection."""
        peer.close()

    def forget(self, peer: PlainPeer) -> None:
        """Leaves a peer out: its connection ends."""
        self._selector.unregister(peer.socket)
        self._peers.discard(peer)
        self.quota.remove(peer)

    def close(self, linger_s: float) -> None:
        """Ends everything, after replies have had so long to leave."""
        for listening in self._listening:
            self._selector.unregister(listening)
            listening.close()
        until = time.monotonic() + linger_s
        while any(peer.unread for peer in self._peers) and (left := until - time.monotonic()) > 0:
            for key, events in self._selector.select(left):
                if events & selectors.EVENT_WRITE:
                    key.data(selectors.EVENT_WRITE)
        for peer in [*self._peers]:
            peer.close()


def _listen_tcp(endpoint: str) -> tuple[socket.socket, BoundEndpoint]:
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
    return listening, BoundEndpoint(
        f"tcp://[{bound_host}]:{bound_port}" if ":" in bound_host else f"tcp://{bound_host}:{bound_port}"
    )


def _listen_ipc(endpoint: str) -> tuple[socket.socket, BoundEndpoint]:
    """A file that its owner alone may connect to. One that a live server listens on is left alone."""
    path = endpoint.removeprefix("ipc://")
    check_not_in_use(path)
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
    return listening, BoundEndpoint(endpoint, (path, found.st_dev, found.st_ino))
