"""Encrypted endpoints: CURVE by libzmq, a list of allowed keys, and the memory that each connection holds.

A ROUTER socket of libzmq does the cryptography. Each connection is checked against the list (ZAP), and again at each of
its messages and before each reply; removing a key closes its connections. Before it serves, an endpoint tests itself: a
new key must be refused, and so must a connection without a key.

libzmq does not report what it stores for a peer, so the kernel's counts are compared with the transport's own:

    unfinished or waiting = bytes received on a connection - bytes of the messages read from the socket
    unread                = bytes of replies given to the socket - bytes that the peer's kernel acknowledged

The kernel also counts heartbeats, which are not read from the socket. Each heartbeat received is answered by one sent,
and vice versa, so acknowledged bytes beyond the replies measure the heartbeats received.

Closing a connection resets it, and libzmq frees what it stored. Linux reports these counts for TCP; on other systems,
and over ipc, which only the server's own user can reach, high-water marks apply.

No thread of its own: all calls come from one thread, and none blocks.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, cast

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from dyn_service.errors import FailedPreconditionError, NotFoundError
from dyn_service.service.protocol.keys import Keys, make_keys, use_keys
from dyn_service.service.protocol.sockets import file_descriptor, is_readable, plain_send
from dyn_service.service.server.administration.access import AccessList, KeyFolder
from dyn_service.service.server.transport.endpoints import MORE, NOBLOCK, UNREAD_REPLIES, BoundEndpoint, bind
from dyn_service.service.server.transport.quotas import Connection, ConnectionQuota, RateLimitedLog
from dyn_service.service.server.transport.zmtp import Message

_LOG = logging.getLogger(__name__)


_LIMIT_S = 10.0  # a handshake on this machine takes milliseconds; one not finished by then is a fault

_WAIT_MS = 5
_OUTCOMES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def self_test(endpoint: str, keys: Keys, admit: Callable[[], None]) -> None:
    """Tests a bound endpoint of a server with these keys, while `admit` handles pending requests for admission.

    Raises:
        FailedPreconditionError: The endpoint admits an unknown key, or refuses the server's own.
    """
    unknown = make_keys("stranger", keys.public)
    failed = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    for client, tried, expected in (
        ("a client with an unknown key", unknown, zmq.EVENT_HANDSHAKE_FAILED_AUTH),
        ("a client without a key", None, failed),
        ("the server's own key", replace(keys, server=keys.public), zmq.EVENT_HANDSHAKE_SUCCEEDED),
    ):
        outcome = try_handshake(endpoint, tried, admit)
        if not outcome & expected:
            found = "admitted" if outcome == zmq.EVENT_HANDSHAKE_SUCCEEDED else "not answered correctly"
            raise FailedPreconditionError(
                f"{endpoint} failed its self-test and is not served: {client} was {found} (event {outcome})",
                path="endpoints",
            )


def try_handshake(endpoint: str, keys: Keys | None, admit: Callable[[], None]) -> int:
    """Returns the event that a handshake with these keys ends in; 0 if it does not end."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    if keys is not None:
        use_keys(socket, keys)
    monitor = socket.get_monitor_socket(_OUTCOMES)
    try:
        socket.connect(endpoint.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:"))
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            admit()
            if monitor.poll(_WAIT_MS):
                return int(parse_monitor_message(monitor.recv_multipart())["event"])
        return 0
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close()
        context.term()


_COUNTS = struct.Struct("@120xQQ")  # `tcpi_bytes_acked` and `tcpi_bytes_received` in the kernel's `struct tcp_info`
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER options that reset the connection on close
_SEALED_BYTES = 33  # bytes that encryption adds to a part
_PING_TO_PONG = 1.05  # an encrypted PING takes at least 42 bytes, its PONG two fewer

_ASIDE_BYTES = 1024  # bytes received besides messages: handshake, heartbeats whose answer is not acknowledged yet


class EncryptedPeer(Connection):
    """One connection.

    sender: its routing id. key: its public key. Both are unknown until its first message, and `caller` is by the list
    of keys at its last one. delivered: bytes of its messages and heartbeats. sent: bytes of replies and heartbeats to
    it. acknowledged, received: the kernel's last counts.
    """

    is_stranger = True

    def __init__(self, peers: EncryptedPeers, descriptor: int, inode: int) -> None:
        super().__init__()
        self._peers = peers
        self.descriptor, self.inode = descriptor, inode
        self.sender: bytes | None = None
        self.key: str | None = None
        self.sent = self.acknowledged = self.received = 0
        self.delivered: float = _ASIDE_BYTES

    def close(self) -> None:
        """Resets the connection; repeated calls do nothing."""
        self._peers.reset(self)


class EncryptedPeers:
    """The connections of one socket, which does not listen yet. All calls come from the thread that owns it."""

    def __init__(self, router: zmq.Socket[bytes], quota: ConnectionQuota) -> None:
        self._quota = quota
        self._limits = quota.limits
        quota.refreshers.append(self._refresh_all)
        self._peers: dict[int, EncryptedPeer] = {}
        self._router = router
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        name = f"inproc://dyn-keyed-{os.urandom(16).hex()}"
        router.monitor(name, events)
        self.monitor: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.RCVHWM, 0)  # a full queue would block libzmq's I/O thread
        self.monitor.connect(name)

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[EncryptedPeer]:
        return iter([*self._peers.values()])

    def read_events(self) -> None:
        """Updates which connections exist."""
        while is_readable(self.monitor):
            event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            descriptor = event["value"]
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._forget(descriptor)
                with suppress(OSError):  # it may be closed already
                    self._note(descriptor)
            else:
                self._forget(descriptor)

    def peer_of(self, sender: bytes, frame: zmq.Frame) -> EncryptedPeer | None:
        """Returns the connection that a frame of a message came from, or None if it has ended.

        `sender` is the peer's routing id: zero and a counter.
        """
        descriptor: Any = frame.get(zmq.SRCFD)
        peer = self._peers.get(descriptor)
        if peer is None:
            self.read_events()
            peer = self._peers.get(descriptor)
        if peer is None:
            return None
        if peer.sender is None:
            peer.sender = sender
        elif peer.sender != sender:  # an earlier connection had the same descriptor
            if not _is_later(sender, peer.sender):
                return None
            self.read_events()  # the events for the end of the earlier and the start of this one have arrived
            found = self._peers.get(descriptor)
            if found is None:
                return None
            if found is peer:
                self._forget(descriptor)
                found = self._note(descriptor)
            peer = found
            peer.sender = sender
        return peer

    def _note(self, descriptor: int) -> EncryptedPeer:
        """Adds a connection; `OSError` if it is closed already."""
        peer = EncryptedPeer(self, descriptor, os.fstat(descriptor).st_ino)
        self._quota.add(peer)
        self._peers[descriptor] = peer
        return peer

    def reset(self, peer: EncryptedPeer) -> None:
        """Resets a connection; repeated calls do nothing."""
        if peer.closed:
            return
        self._forget(peer.descriptor)
        with suppress(OSError):
            if os.fstat(peer.descriptor).st_ino != peer.inode:  # closed by libzmq, descriptor reused
                return
            with _borrowed(peer.descriptor) as borrowed:
                borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                borrowed.shutdown(socket.SHUT_RDWR)

    def note_message(self, peer: EncryptedPeer, size: int) -> None:
        """Notes a message of that many bytes on the wire."""
        peer.delivered += size
        peer.last_received_s = time.monotonic()
        if not peer.served:
            self._quota.note_request(peer)

    def reserve_reply(self, peer: EncryptedPeer, size: int) -> bool:
        """Notes a reply before it is sent. False beyond the limit of unread ones; a single one is accepted."""
        most = self._limits.max_reply_bytes
        if peer.unread and peer.unread + size > most:
            self._refresh(peer)
            if peer.unread and peer.unread + size > most:
                return False
        if not peer.unread:
            peer.last_sent_s = time.monotonic()
        peer.sent += size
        self._quota.set_unread(peer, peer.unread + size)
        self._quota.enforce_unread()
        return not peer.closed

    def release_reply(self, peer: EncryptedPeer, size: int) -> None:
        """Reverts `reserve_reply`: the reply was not sent."""
        peer.sent -= size
        if not peer.closed:
            self._quota.set_unread(peer, peer.unread - size)

    def check(self) -> None:
        """Updates what each connection holds, and closes those that hold too much."""
        self._refresh_all()
        for peer in self:
            if peer.unfinished > 2 * self._limits.max_message_bytes:
                self._quota.disconnect(peer, f"it sent {peer.unfinished} bytes of an unfinished message")

    def _refresh_all(self) -> None:
        for peer in self:
            self._refresh(peer)

    def _refresh(self, peer: EncryptedPeer) -> None:
        """Reads the kernel's counts of a connection."""
        counts = _counts(peer)
        if counts is None:
            self._quota.set_unread(peer, 0)
            return
        acknowledged, received = counts
        now = time.monotonic()
        if acknowledged > peer.acknowledged:
            peer.last_sent_s = now
        if received > peer.received:
            peer.last_received_s = now
        peer.acknowledged, peer.received = counts
        heartbeats = max(0, acknowledged - peer.sent)
        peer.sent += heartbeats
        peer.delivered = min(peer.delivered + _PING_TO_PONG * heartbeats, received + _ASIDE_BYTES)
        self._quota.set_unread(peer, peer.sent - acknowledged)
        self._quota.set_unfinished(peer, max(0, received - int(peer.delivered)))

    def close(self) -> None:
        """Stops watching; to be called before the socket is closed."""
        self._router.disable_monitor()
        self.monitor.close(linger=0)
        self._quota.refreshers.remove(self._refresh_all)
        for peer in self:
            self._forget(peer.descriptor)

    def _forget(self, descriptor: int) -> None:
        peer = self._peers.pop(descriptor, None)
        if peer is not None:
            peer.closed = True
            self._quota.remove(peer)


def _bytes_on_wire(size: int, is_req: bool) -> int:
    """Returns the bytes that a message takes on the connection, with the empty part of a REQ socket."""
    sealed = size + _SEALED_BYTES
    return sealed + (2 if sealed < 256 else 9) + (_SEALED_BYTES + 2) * is_req


def _is_later(sender: bytes, other: bytes) -> bool:
    """Returns whether a connection's 32-bit number, which wraps around, was assigned after the other's."""
    return (int.from_bytes(sender[1:]) - int.from_bytes(other[1:])) % (1 << 32) < 1 << 31


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """libzmq's connection as a Python socket, which does not close it."""
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def _counts(peer: EncryptedPeer) -> tuple[int, int] | None:
    """Returns the bytes acknowledged by the peer and received from it; None where the system does not report them."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        with _borrowed(peer.descriptor) as borrowed:
            acknowledged, received = _COUNTS.unpack(
                borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
            )
    except (OSError, struct.error):
        return None
    return acknowledged, received


_ADMITTED_AT_ONCE = 16  # maximum number of connections admitted or refused before messages are handled
_DISCARDED_AT_ONCE = 256  # maximum number of parts of an invalid message discarded before others are handled: 0.2 ms
_SHUT_OUT_NS = 10_000_000_000  # a key that sends such a message is refused for this long
_HANDSHAKE_MS = 2000  # a connection that is not authenticated by then is closed

_KEEPALIVE_S = 5
"""Interval of TCP keepalive; a connection whose host misses two is closed. ZeroMQ's own heartbeats are off: with them,
libzmq 4.3.5 aborts the process if a client with unread requests leaves (`Assertion failed: !_io_error`).
"""


def open_encrypted(folder: KeyFolder, quota: ConnectionQuota) -> EncryptedTransport:
    """Returns the transport for encrypted endpoints, with keys and list from a folder; errors as `read_folder`."""
    return EncryptedTransport(*read_folder(folder), quota)


def read_folder(folder: KeyFolder) -> tuple[Keys, AccessList]:
    """Returns the server's keys and its list of allowed keys.

    Raises:
        FailedPreconditionError: There are no keys yet.
        DynError: The keys or the list are invalid.
    """
    try:
        return folder.server_keys(), folder.access_list()
    except NotFoundError as fault:
        raise FailedPreconditionError(
            f"an endpoint needs keys, and {fault}: dyn keys new NAME makes the server's and a client's", path="keys"
        ) from None


class EncryptedTransport:
    """Listens on encrypted endpoints, with the server's keys and the list of allowed ones."""

    def __init__(self, keys: Keys, allowed: AccessList, quota: ConnectionQuota) -> None:
        self.allowed = allowed
        self._keys = keys
        self._quota = quota
        self._traffic = quota.traffic
        self._losses = allowed.losses
        self._shut_out: dict[str, int] = {}
        self._discarding = self._is_woken = False
        self.refused = 0  # number of connections refused, without those of self-tests
        self._refusals = RateLimitedLog(_LOG, logging.WARNING)
        self._self_testing = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # Before it binds: connections get the value of that time, and with -1 `term` may wait for ever for one that was
        # reset with unread replies just before. `close` sets how long replies are still sent.
        self._context.linger = 0
        self._zap_handler = self._context.socket(zmq.ROUTER)
        self._zap_handler.bind("inproc://zeromq.zap.01")
        self._router = router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        router.setsockopt(zmq.ZAP_DOMAIN, b"dyn_service")
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a ZAP handler no client is admitted
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, UNREAD_REPLIES)
        router.setsockopt(zmq.MAXMSGSIZE, quota.limits.max_message_bytes + 64)  # of an encrypted part
        router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        router.setsockopt(zmq.TCP_KEEPALIVE, 1)
        router.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_S)
        router.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_S)
        router.setsockopt(zmq.TCP_KEEPALIVE_CNT, 2)
        self._peers = EncryptedPeers(router, quota)
        self._send_frame = plain_send(router)
        self._read_away: Any = super(zmq.Socket, router).recv  # as `plain_send`
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._ready = selectors.DefaultSelector()
        sockets = (router, self._zap_handler, self._peers.monitor)
        for descriptor in (self._wake_reader, *map(file_descriptor, sockets)):  # `monitor`: connections come and go
            self._ready.register(descriptor, selectors.EVENT_READ)

    @property
    def descriptor(self) -> int:
        """File descriptor for selectors, readable while `messages` has work."""
        return cast(selectors.EpollSelector, self._ready).fileno()

    @property
    def pending(self) -> bool:
        """Whether `messages` has more work."""
        return self._is_woken

    def listen(self, endpoint: str) -> BoundEndpoint:
        """Listens on a tcp or ipc endpoint after its self-test; errors as `endpoints.bind` and `self_test`."""
        self._router.setsockopt(zmq.IPV6, int("[" in endpoint))
        bound = bind(self._router, endpoint)
        refused, self._self_testing = self.refused, True
        try:
            self_test(bound.endpoint, self._keys, self._admit)
        except BaseException:
            self._router.unbind(bound.endpoint)
            bound.clear()
            raise
        finally:
            self.refused, self._self_testing = refused, False
        return bound

    def messages(self, most: int, until_ns: float = math.inf) -> Iterator[tuple[EncryptedPeer, Message]]:
        """Admits pending connections and yields up to `most` requests; see `Transport.messages`.

        `caller` of each peer is by the current list. libzmq takes peers in turn.
        """
        if self._is_woken:
            self._is_woken = False
            with suppress(BlockingIOError):
                os.read(self._wake_reader, 1)
        self._admit()
        self._peers.read_events()
        for _ in range(most):
            if perf_counter_ns() >= until_ns or (self._discarding and not self._discard()):
                break
            if not is_readable(self._router):
                break
            received = self._read()
            if received is not None:
                yield received
        self._wake_if_more()

    def send(self, peer: EncryptedPeer, is_req: bool, reply: bytes | bytearray | memoryview) -> None:
        """Sends a reply, or counts that its peer is gone, no longer allowed, or does not read."""
        if peer.closed or peer.sender is None or self.allowed.caller(peer.key or "") is None:
            self._traffic.dropped_gone += 1
            return
        size = _bytes_on_wire(len(reply), is_req)
        if not self._peers.reserve_reply(peer, size):
            self._traffic.dropped_slow_reader += 1
            return
        send = self._send_frame
        try:
            send(peer.sender, MORE)
            if is_req:
                send(b"", MORE)
            send(reply, NOBLOCK, copy=len(reply) < zmq.COPY_THRESHOLD)
            self._traffic.sent += 1
            self._traffic.sent_bytes += len(reply)
            return
        except zmq.Again:
            self._traffic.dropped_slow_reader += 1
        except zmq.ZMQError as fault:
            if fault.errno != errno.EHOSTUNREACH:
                raise
            self._traffic.dropped_gone += 1
        finally:
            self._wake_if_more()  # sending may consume the event for a message that has arrived
        self._peers.release_reply(peer, size)

    def check(self) -> None:
        """Applies changes of the list, and closes connections that are no longer allowed or hold too much."""
        self._peers.read_events()
        self.allowed.check()
        if self._losses != self.allowed.losses:
            self._losses = self.allowed.losses
            for peer in self._peers:
                if peer.key is None or self.allowed.caller(peer.key) is None:  # the key of a silent peer is unknown
                    name = self.allowed.name_of(peer.key) if peer.key else "its key"
                    self._quota.disconnect(peer, f"{name} is no longer allowed")
        self._peers.check()
        self._refusals.check()
        self._wake_if_more()

    def close(self, linger_s: float = 0.0) -> None:
        """See `Transport.close`."""
        self._peers.close()
        self._ready.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._zap_handler.close(linger=0)
        self._router.close(linger=int(linger_s * 1000))
        self._context.term()

    def _admit(self) -> None:
        """Answers libzmq's requests whether to admit a connection (https://rfc.zeromq.org/spec/27)."""
        for _ in range(_ADMITTED_AT_ONCE):
            if not is_readable(self._zap_handler):
                return
            sender, _, version, request_id, *_, key = self._zap_handler.recv_multipart(zmq.NOBLOCK)
            public = z85.encode(key).decode() if len(key) == 32 else ""
            if self.allowed.caller(public) is None:
                self.allowed.check(at_once=True)  # the key may have been added just now
            caller = self.allowed.caller(public)
            now = perf_counter_ns()
            answer = [b"200", b"OK", public.encode()]
            if caller is None or self._shut_out.get(public, 0) > now:
                temporary = caller is not None or self.allowed.fault is not None
                # after 300 a client tries again, after 400 it gives up
                answer = [b"300" if temporary else b"400", b"this key is not allowed", b""]
                self.refused += 1
                if not self._self_testing:
                    why = "it sent a message of more than one part" if caller else self.allowed.refusal(public)
                    name = self.allowed.name_of(public)
                    self._refusals.log("%s was refused (refusal number %d): %s", name, self.refused, why)
            self._zap_handler.send_multipart([sender, b"", version, request_id, *answer, b""])

    def _read(self) -> tuple[EncryptedPeer, Message] | None:
        """Returns the next message if it is a request of an allowed peer."""
        sender = self._router.recv(NOBLOCK)
        frame = self._router.recv(NOBLOCK, copy=False)
        received_ns = perf_counter_ns()
        is_req = frame.more and not len(frame)
        if is_req:
            frame = self._router.recv(NOBLOCK, copy=False)
        key = str(frame.get("User-Id"))
        caller = self.allowed.caller(key) if self._shut_out.get(key, 0) < received_ns else None
        peer = self._peers.peer_of(sender, frame)
        if frame.more:
            self._discarding = True
            self._shut_out[key] = received_ns + _SHUT_OUT_NS
            cause = f"{self.allowed.name_of(key)} sent a message of more than one part"
        elif sender[0]:
            cause = f"{self.allowed.name_of(key)} chose its own routing id, by which it could get others' replies"
        else:
            cause = f"{self.allowed.name_of(key)} is no longer allowed"
        if peer is None:
            return None
        if frame.more or sender[0] or caller is None:
            self._quota.disconnect(peer, cause)
            return None
        peer.key, peer.caller, peer.received_ns, peer.is_stranger = key, caller, received_ns, False
        self._peers.note_message(peer, _bytes_on_wire(len(frame), is_req))
        payload = frame.bytes if len(frame) < zmq.COPY_THRESHOLD else frame.buffer
        return peer, Message(payload, 1 + is_req, is_req)

    def _discard(self) -> bool:
        """Discards more parts of an invalid message; returns whether all are discarded."""
        for _ in range(_DISCARDED_AT_ONCE):
            if not self._read_away(NOBLOCK, False).more:
                self._discarding = False
                return True
        return False

    def _wake_if_more(self) -> None:
        """Keeps the descriptor readable while there is work: libzmq's descriptors signal each message only once."""
        if not self._is_woken and (self._discarding or is_readable(self._router) or is_readable(self._zap_handler)):
            self._is_woken = True
            os.write(self._wake_writer, b"\0")
