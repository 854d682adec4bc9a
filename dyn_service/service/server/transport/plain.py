"""Endpoints without encryption, tcp on loopback and ipc: listening sockets, connections, messages and replies.

Everything that a peer can make grow is counted and bounded: unfinished messages and unread replies. `quotas` bounds the
sums. No thread and no blocking call: a selector signals ready sockets and calls the function registered with each.

`inproc` endpoints, within this process, are a ROUTER socket of libzmq.
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
from dataclasses import dataclass, field
from time import perf_counter_ns

import zmq

from dyn_service.service.protocol.sockets import file_descriptor, is_readable, plain_send
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.transport.endpoints import (
    MORE,
    NOBLOCK,
    UNREAD_REPLIES,
    BoundEndpoint,
    bind,
    bound_endpoint,
    check_not_in_use,
    listen_error,
    owner_only,
    peer_is_owner,
)
from dyn_service.service.server.transport.quotas import Connection, ConnectionQuota
from dyn_service.service.server.transport.zmtp import GREETING, PING, READY, Decoder, Message, ProtocolError, head
from dyn_service.service.server.workers.pipes import AVAILABLE, allocate

_READ_BYTES = 1 << 16  # bytes read from a connection before the next one; twice that of a long message
_WRITE_BYTES = 1 << 18  # maximum bytes per write
_KERNEL_BYTES = 1 << 18  # send buffer of the kernel per connection

_JOINED_BYTES = 1 << 14  # replies up to this length are copied behind their header, faster than sending two pieces
_LONG_NS = 100_000  # messages that take longer are long; one state takes a tenth of it
_HELLO_S = 2.0  # a connection whose handshake is incomplete after this time is closed
_QUIET_S = 5.0  # a peer silent for this long gets a PING; it is disconnected after three times that

_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2))
"""TCP keepalive at the same rate, for peers of ZMTP 3.0, which has no PING."""


class PlainPeer(Connection):
    """One connection.

    queued: whether it is in `queue`, one of the queues of peers whose last message was short or long. pinged: whether
    it has a PING to answer.
    """

    files = 3  # its own socket, and two for a long message collected in shared memory

    def __init__(self, connections: PlainTransport, connected: socket.socket) -> None:
        super().__init__()
        self._connections = connections
        self._quota = connections.quota
        self._out: deque[memoryview] = deque()
        self.socket = connected
        self.decoder = Decoder(self._quota.limits.max_message_bytes, allocate if AVAILABLE else bytearray)
        self.came_s = self.last_received_s
        self.queue = connections.short
        self.pinged = self.queued = False

    def ready(self, events: int) -> None:
        """Called when the socket is readable or writable."""
        if events & selectors.EVENT_WRITE:
            self._write()
        if events & selectors.EVENT_READ and not self.closed:
            self._connections.read(self)

    def send(self, *pieces: bytes | memoryview) -> None:
        """Sends what the socket accepts at once, and queues the rest."""
        if self._out:
            return self._keep(pieces)
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
        """Closes the connection; repeated calls do nothing."""
        if not self.closed:
            self.closed = True
            self._out.clear()
            self._connections.forget(self)
            self.socket.close()


class PlainTransport:
    """The connections of the endpoints without encryption. All calls come from one thread.

    The selector watches the sockets; ready ones are handled by `key.data(events)`.
    """

    def __init__(self, selector: selectors.BaseSelector, quota: ConnectionQuota) -> None:
        self.quota = quota
        self._selector = selector
        self._limits = quota.limits
        self._traffic = quota.traffic
        self._listening: list[socket.socket] = []
        self._peers: set[PlainPeer] = set()
        self.short: deque[PlainPeer] = deque()  # peers with data to decode whose last message was short, by turns
        self._long: deque[PlainPeer] = deque()  # the same for peers whose last message was long

    @property
    def pending(self) -> bool:
        """Whether data was read that `messages` has not returned yet."""
        return bool(self.short or self._long)

    # connections

    def listen(self, endpoint: str) -> BoundEndpoint:
        """Listens on a tcp or ipc endpoint; errors as `endpoints.bind`."""
        is_ipc = endpoint.startswith("ipc://")
        try:
            listening, bound = _listen_ipc(endpoint) if is_ipc else _listen_tcp(endpoint)
        except OSError as fault:
            raise listen_error(endpoint, fault) from None
        self._listening.append(listening)
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
            self.quota.note_disconnect("its peer runs as another user")
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
        peer = PlainPeer(self, connected)
        self.quota.add(peer)
        self._peers.add(peer)
        self._selector.register(connected, selectors.EVENT_READ, peer.ready)
        peer.send(GREETING + READY)

    # messages

    def read(self, peer: PlainPeer) -> None:
        """Reads available data from a peer, unless earlier data is still to be decoded."""
        if peer.queued:
            return
        buffer = peer.decoder.buffer
        try:
            if buffer is None:
                data = peer.socket.recv(_READ_BYTES)
                count = len(data)
            else:
                count = peer.socket.recv_into(buffer, min(len(buffer), _READ_BYTES << 1))
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            peer.close()
            return
        peer.received_ns = perf_counter_ns()
        peer.last_received_s, peer.pinged = time.monotonic(), False
        if buffer is None:
            peer.decoder.feed(data)
        else:
            peer.decoder.wrote(count)
        peer.queued = True
        peer.queue.append(peer)

    def messages(self, most: int, until_ns: float = math.inf) -> Iterator[tuple[PlainPeer, Message]]:
        """Yields up to `most` messages, one per peer in turn; see `Transport.messages`.

        Messages of peers whose last message was short come first, then at most one of a peer whose last message was
        long, so that short requests that arrive meanwhile come before the next long one.
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
            except (OSError, MemoryError) as fault:
                self.quota.disconnect(peer, f"no memory for its message: {fault}")
                continue
            if (held := peer.decoder.held) != peer.unfinished:
                self.quota.set_unfinished(peer, held)
                self.quota.enforce_unfinished()
            if message is None or peer.closed:
                continue
            peer.queued = True
            most -= 1
            if not message.parts:
                peer.queue.append(peer)
                if (answers := peer.decoder.take_answers()) and not peer.unread:  # answers to a peer that reads
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

    # replies

    def send(self, peer: PlainPeer, is_req: bool, reply: bytes | memoryview) -> None:
        """Sends a reply, or counts that it could not be sent; never blocks."""
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
        """Starts or stops watching whether the peer's socket is writable."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        self._selector.modify(peer.socket, events, peer.ready)

    # closing

    def check(self) -> None:
        """Closes dead connections and those without a handshake, and sends PINGs to silent peers; call it often."""
        now = time.monotonic()
        for peer in [*self._peers]:
            quiet = now - peer.last_received_s
            if not peer.decoder.ready:
                if now - peer.came_s > _HELLO_S:
                    self.quota.disconnect(peer, "it did not complete the handshake")
            elif quiet > 3 * _QUIET_S and peer.pinged:
                self.quota.disconnect(peer, "it did not answer a PING")
            elif quiet > _QUIET_S and not peer.unread and peer.decoder.minor >= 1 and not peer.pinged:
                peer.pinged = True
                peer.send(PING)

    def forget(self, peer: PlainPeer) -> None:
        """Removes a peer whose connection has ended."""
        self._selector.unregister(peer.socket)
        self._peers.discard(peer)
        self.quota.remove(peer)

    def close(self, linger_s: float) -> None:
        """See `Transport.close`."""
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


def check_free(endpoint: str) -> None:
    """Raises `UnavailableError` if a server listens on a tcp or ipc endpoint, or this machine has no such address."""
    try:
        if endpoint.startswith("ipc://"):
            check_not_in_use(endpoint.removeprefix("ipc://"))
        elif endpoint.startswith("tcp://"):
            _listen_tcp(endpoint)[0].close()
    except OSError as fault:
        raise listen_error(endpoint, fault) from None


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
    host, port = listening.getsockname()[:2]
    return listening, BoundEndpoint(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")


def _listen_ipc(endpoint: str) -> tuple[socket.socket, BoundEndpoint]:
    """Listens on a file that only its owner may connect to. The file of a running server is not replaced."""
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
        return listening, bound_endpoint(endpoint)
    except BaseException:
        listening.close()
        raise


@dataclass(unsafe_hash=True)
class InprocPeer:
    """A socket of this process, identified by its routing id; a `Peer`."""

    sender: bytes
    received_ns: int = field(compare=False)
    caller: Caller | None = field(default=None, compare=False)

    def close(self) -> None:
        """Does nothing: there are no connections."""


class InprocTransport:
    """One ROUTER socket, in the context of its clients; a `Transport`."""

    def __init__(
        self, selector: selectors.BaseSelector, context: zmq.Context[zmq.Socket[bytes]], traffic: Traffic
    ) -> None:
        self._selector = selector
        self._traffic = traffic
        self._router = router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, UNREAD_REPLIES)
        self._send_frame = plain_send(router)
        selector.register(file_descriptor(router), selectors.EVENT_READ, lambda events: None)

    def listen(self, endpoint: str) -> BoundEndpoint:
        """See `endpoints.bind`."""
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

    def check(self) -> None:
        """Does nothing: sockets of this process need no checks."""

    def close(self, linger_s: float) -> None:
        """See `Transport.close`."""
        self._selector.unregister(file_descriptor(self._router))
        self._router.close(linger=int(linger_s * 1000))
