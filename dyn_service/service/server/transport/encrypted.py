"""Tries out an encrypted endpoint before it serves: strangers must be refused, the server's own key let in.

----
The connections of an encrypted endpoint: who is at the other end, and how much of our memory each one holds.

A libzmq socket does not say what it keeps for a peer. So the kernel's counts are held against our own:

    bytes received on a connection - bytes of the messages that came out of it = what has not ended, or waits for us
    bytes of the replies to it     - bytes that the other side's kernel took   = what is not read

Heartbeats are messages too, which the kernel counts and which never come out of the socket. Each that came is answered
by one that went, and each that went by one that came: so what the other side took beyond our replies tells how many
bytes of them were received.

What a peer may hold is bounded for each connection here, and over all by `quota`. A connection that is over is reset,
and libzmq lets go of what it kept. Linux tells these counts of TCP connections; elsewhere, and over ipc, which is for
the server's own user, high-water marks must do.


----
The encrypted endpoints: CURVE, and a list that says who is let in.

A ROUTER socket of libzmq does the cryptography. Around it: whoever connects is looked up in the list of keys (ZAP), and
looked up again at each of his messages and before each reply to him; a key that leaves the list loses its connections.
Before it serves, an endpoint is tried out: a key made up on the spot must be refused, one without a key too.

    router = EncryptedTransport(server_keys, access_list, quota)
    bound = router.listen("tcp://0.0.0.0:5755")
    selector.register(router.descriptor, EVENT_READ)                # readable: call `messages`
    for peer, (payload, parts, is_req) in router.messages(64): ..   # and every tenth of a second `router.check()`
    peer.caller.check(query)
    router.send(peer, is_req, reply)

No thread of its own: all calls come from one, and none of them waits.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter_ns
from typing import Any, cast

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from dyn_service.errors import FailedPreconditionError, NotFoundError
from dyn_service.service.protocol.keys import Keys, make_keys, use_keys
from dyn_service.service.protocol.sockets import file_descriptor, is_readable, plain_send
from dyn_service.service.server.administration.access import AccessList, Caller, KeyFolder
from dyn_service.service.server.transport.endpoints import MORE, NOBLOCK, UNREAD_REPLIES, BoundEndpoint, bind
from dyn_service.service.server.transport.quotas import ConnectionQuota, RateLimitedLog
from dyn_service.service.server.transport.zmtp import Message

_LOG = logging.getLogger(__name__)


_LIMIT_S = 10.0
"""A handshake on this machine takes milliseconds; what is not settled by then is a fault."""

_WAIT_MS = 5
_OUTCOMES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def self_test(endpoint: str, keys: Keys, admit: Callable[[], None]) -> None:
    """Tries out an endpoint that is bound.

    Args:
        endpoint: With the port that was chosen.
        keys: The server's.
        admit: Lets connections in, or not; called while the endpoint is tried.

    Raises:
        FailedPreconditionError: It lets a stranger in, or nobody at all.
    """
    stranger = make_keys("stranger", keys.public)
    broken_off = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    for who, tried, expected in (
        ("a key that is on no list", stranger, zmq.EVENT_HANDSHAKE_FAILED_AUTH),
        ("no key", None, broken_off),
        ("the server's own key", Keys(keys.name, keys.public, keys.secret, keys.public), zmq.EVENT_HANDSHAKE_SUCCEEDED),
    ):
        outcome = try_handshake(endpoint, tried, admit)
        if not outcome & expected:
            found = "let in" if outcome == zmq.EVENT_HANDSHAKE_SUCCEEDED else "not answered as it should be"
            raise FailedPreconditionError(
                f"{endpoint} is not safe, and is not served: {who} was {found} (event {outcome})", path="endpoints"
            )


def try_handshake(endpoint: str, keys: Keys | None, admit: Callable[[], None]) -> int:
    """The event in which a handshake with these keys ends; 0: in none."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    if keys is not None:
        use_keys(socket, keys)
    monitor = socket.get_monitor_socket(_OUTCOMES)
    try:
        socket.connect(_from_here(endpoint))
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


def _from_here(endpoint: str) -> str:
    """Where to connect to an endpoint that may listen on all addresses."""
    return endpoint.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


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


class EncryptedPeer:
    """One connection; see `quota.CountedConnection` and `transport.Peer`.

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
        "held",
        "inode",
        "key",
        "last_received_s",
        "last_sent_s",
        "received",
        "received_ns",
        "sender",
        "served",
        "taken",
        "unread",
    )

    def __init__(self, peers: EncryptedPeers, descriptor: int, inode: int) -> None:
        self._peers = peers
        self.descriptor = descriptor
        self.inode = inode
        self.served = False
        self.sender = self.key = self.caller = None
        self.handed = self.unread = self.held = self.taken = self.received = self.received_ns = 0
        self.delivered: float = _ASIDE_BYTES
        self.last_received_s = self.last_sent_s = time.monotonic()
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


class EncryptedPeers:
    """The connections of one socket. All calls come from the thread that owns the socket.

    Args:
        router: The socket, before it listens.
        quota: What they and others hold together.
    """

    def __init__(self, router: zmq.Socket[bytes], quota: ConnectionQuota) -> None:
        self._quota = quota
        self._limits = quota.limits
        quota.refreshers.append(self._refresh_all)
        self._peers: dict[int, EncryptedPeer] = {}
        self._router = router
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        name = f"inproc://dyn-keyed-{os.urandom(16).hex()}"
        router.monitor(name, events)
        self._monitor: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # a full one would hold up the thread that reads all connections
        self._monitor.connect(name)

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[EncryptedPeer]:
        return iter([*self._peers.values()])

    @property
    def descriptor(self) -> int:
        """Readable when connections have come or gone."""
        return file_descriptor(self._monitor)

    def read_events(self) -> None:
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

    def peer_of(self, sender: bytes, frame: zmq.Frame) -> EncryptedPeer | None:
        """The connection that a message came from; None if it has ended.

        Args:
            sender: The name of the peer at the ROUTER socket: zero and a number that counts up.
            frame: One of the message's.
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
        elif peer.sender != sender:  # one of them is of an earlier connection, whose descriptor was used again
            if not _is_later(sender, peer.sender):
                return None
            self.read_events()  # the events of the earlier one's end, and of this one's begin, are there by now
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
        """Takes up a connection.

        Raises:
            OSError: It is gone again.
        """
        peer = EncryptedPeer(self, descriptor, os.fstat(descriptor).st_ino)
        self._quota.add(peer)
        self._peers[descriptor] = peer
        return peer

    def end(self, peer: EncryptedPeer) -> None:
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

    def note_message(self, peer: EncryptedPeer, sizes: Sequence[int]) -> None:
        """Notes a message whose parts have these sizes."""
        peer.delivered += sum(map(_on_the_wire, sizes))
        peer.last_received_s = time.monotonic()
        if not peer.served:
            self._quota.note_request(peer)

    def reserve_reply(self, peer: EncryptedPeer, sizes: Sequence[int]) -> bool:
        """Notes a reply that is to be handed over, if there is room: for one alone, or several within the limits."""
        size = sum(map(_on_the_wire, sizes))
        most = self._limits.max_reply_bytes
        if peer.unread and peer.unread + size > most:
            self._refresh(peer)
            if peer.unread and peer.unread + size > most:
                return False
        if not peer.unread:
            peer.last_sent_s = time.monotonic()
        peer.handed += size
        self._quota.set_unread(peer, peer.unread + size)
        self._quota.enforce_unread()
        return not peer.closed

    def release_reply(self, peer: EncryptedPeer, sizes: Sequence[int]) -> None:
        """Takes back what `goes` noted: the reply was not handed over after all."""
        size = sum(map(_on_the_wire, sizes))
        peer.handed -= size
        if not peer.closed:
            self._quota.set_unread(peer, peer.unread - size)

    def check(self) -> None:
        """Notes what each connection holds, and cuts off those that hold too much by themselves."""
        self._refresh_all()
        for peer in self:
            if peer.held > 2 * self._limits.max_message_bytes:
                self._quota.disconnect(peer, f"{peer.held} bytes came in without an end")

    def _refresh_all(self) -> None:
        for peer in self:
            self._refresh(peer)

    def _refresh(self, peer: EncryptedPeer) -> None:
        """Takes what the kernel counts of a connection."""
        counts = _counts(peer)
        if counts is None:
            self._quota.set_unread(peer, 0)
            return
        taken, received = counts
        now = time.monotonic()
        if taken > peer.taken:
            peer.last_sent_s = now
        if received > peer.received:
            peer.last_received_s = now
        peer.taken, peer.received = counts
        signs_of_life = max(0, taken - peer.handed)
        peer.handed += signs_of_life
        # they give no credit beyond what came
        peer.delivered = min(peer.delivered + _PING_TO_PONG * signs_of_life, received + _ASIDE_BYTES)
        self._quota.set_unread(peer, peer.handed - taken)
        self._quota.set_unfinished(peer, max(0, received - int(peer.delivered)))

    def close(self) -> None:
        """Ends the watch; before the socket is closed."""
        self._router.disable_monitor()
        self._monitor.close(linger=0)
        self._quota.refreshers.remove(self._refresh_all)
        for peer in self:
            self._forget(peer.descriptor)

    def _forget(self, descriptor: int) -> None:
        peer = self._peers.pop(descriptor, None)
        if peer is not None:
            peer.closed = True
            self._quota.remove(peer)


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


def _counts(peer: EncryptedPeer) -> tuple[int, int] | None:
    """The bytes that the other side took, and those that came from it; None where the system does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        with _borrowed(peer.descriptor) as borrowed:
            taken, received = _COUNTS.unpack(borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size))
    except (OSError, struct.error):
        return None
    return taken, received


_ADMITTED_AT_ONCE = 16
"""So many connections are let in, or not, before others have their turn."""

_DISCARDED_AT_ONCE = 256
"""So many parts of a message that has too many are read away before others have their turn: 0.2 ms."""

_SHUT_OUT_NS = 10_000_000_000
"""A key that sends such messages is refused for so long."""

_HANDSHAKE_MS = 2000
"""A connection that has not proven who it is by then is closed."""

_HEARTBEAT_MS = 5000
"""A peer is asked for a sign of life so often, and dropped after three times without."""


def open_encrypted(folder: KeyFolder, quota: ConnectionQuota) -> EncryptedTransport:
    """What listens on endpoints that ask for keys, by the keys and the list in a folder; see `EncryptedTransport`.

    Raises:
        DynError: As `read_folder`.
    """
    keys, allowed = read_folder(folder)
    return EncryptedTransport(keys, allowed, quota)


def read_folder(folder: KeyFolder) -> tuple[Keys, AccessList]:
    """The server's keys and its list.

    Raises:
        FailedPreconditionError: There are no keys yet.
        DynError: The keys or the list are not sound.
    """
    try:
        return folder.server_keys(), folder.access_list()
    except NotFoundError as fault:
        raise FailedPreconditionError(
            f"an endpoint asks for keys, and {fault}: dyn keys new NAME makes the server's and a client's", path="keys"
        ) from None


class EncryptedTransport:
    """Listens on encrypted endpoints.

    Args:
        keys: The server's.
        allowed: Who is let in.
        quota: What their connections and others hold together.
    """

    def __init__(self, keys: Keys, allowed: AccessList, quota: ConnectionQuota) -> None:
        self.allowed = allowed
        self._keys = keys
        self._quota = quota
        self._traffic = quota.traffic
        self._losses = allowed.losses
        self._shut_out: dict[str, int] = {}
        self._discarding = self._rung = False
        self.refused = 0
        """PlainTransport that were not let in, the endpoints' own trials aside."""
        self._refusals = RateLimitedLog(_LOG, logging.WARNING)
        self._self_testing = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._zap_handler = self._context.socket(zmq.ROUTER)
        self._zap_handler.bind("inproc://zeromq.zap.01")
        self._router = router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        router.setsockopt(zmq.ZAP_DOMAIN, b"dyn_service")
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a doorman nobody is let in
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, UNREAD_REPLIES)
        router.setsockopt(zmq.MAXMSGSIZE, quota.limits.max_message_bytes + 64)  # of a part as it is sealed
        router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        router.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        self._peers = EncryptedPeers(router, quota)
        self._send_frame = plain_send(router)
        self._read_away: Any = super(zmq.Socket, router).recv  # as `plain_send`
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._ready = selectors.DefaultSelector()
        for descriptor in (
            self._wake_reader,
            self._peers.descriptor,
            *map(file_descriptor, (router, self._zap_handler)),
        ):
            self._ready.register(descriptor, selectors.EVENT_READ)

    @property
    def descriptor(self) -> int:
        """Readable as long as there is something for `messages` to do: a file descriptor for selectors."""
        return cast(selectors.EpollSelector, self._ready).fileno()

    @property
    def pending(self) -> bool:
        """Whether `messages` left something to do."""
        return self._rung

    def listen(self, endpoint: str) -> BoundEndpoint:
        """Listens on a tcp or ipc endpoint, once it is proven to let no stranger in.

        Raises:
            InvalidArgumentError: The endpoint is none.
            UnavailableError: It is taken.
            FailedPreconditionError: It lets a stranger in.
        """
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
        """Lets in who may come, and gives up to so many of the requests that are there; see `transport.Transport`.

        Each with its peer, whose `caller` says who asks by the list of now. Of each one in turn: libzmq sees to it.
        """
        if self._rung:
            self._rung = False
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
        self._ring_if_more()

    def send(self, peer: EncryptedPeer, is_req: bool, reply: bytes | bytearray | memoryview) -> None:
        """Sends a reply, or counts that its reader is gone, is no longer let in, or does not read."""
        if peer.closed or peer.sender is None or self.allowed.caller(peer.key or "") is None:
            self._traffic.dropped_gone += 1
            return
        sizes = (0, len(reply)) if is_req else (len(reply),)
        if not self._peers.reserve_reply(peer, sizes):
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
            self._ring_if_more()  # to send takes in what came, of which the socket's own descriptor then does not tell
        self._peers.release_reply(peer, sizes)

    def end(self, peer: EncryptedPeer) -> None:
        """Ends a connection."""
        peer.end()

    def check(self) -> None:
        """Takes over a changed list, and cuts off who is on it no longer or holds too much. Ten times a second."""
        self._peers.read_events()
        self.allowed.check()
        if self._losses != self.allowed.losses:
            self._losses = self.allowed.losses
            for peer in self._peers:
                if peer.key is None or self.allowed.caller(peer.key) is None:  # of one that never asked, who knows
                    who = self.allowed.called(peer.key) if peer.key else "some key"
                    self._quota.disconnect(peer, f"{who} is no longer let in")
        self._peers.check()
        self._refusals.check()
        self._ring_if_more()

    def close(self, linger_s: float = 0.0) -> None:
        """Ends everything, after replies have had so long to leave."""
        self._peers.close()
        self._ready.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._zap_handler.close(linger=0)
        self._router.close(linger=int(linger_s * 1000))
        self._context.term()

    def _admit(self) -> None:
        """Answers libzmq, which asks about each connection whether to let it in (https://rfc.zeromq.org/spec/27)."""
        for _ in range(_ADMITTED_AT_ONCE):
            if not is_readable(self._zap_handler):
                return
            asker, _, version, request_id, *_, key = self._zap_handler.recv_multipart(zmq.NOBLOCK)
            public = z85.encode(key).decode() if len(key) == 32 else ""
            if self.allowed.caller(public) is None:
                self.allowed.check(at_once=True)  # he may have been let in this very moment
            caller = self.allowed.caller(public)
            now = perf_counter_ns()
            answer = [b"200", b"OK", public.encode()]
            if caller is None or self._shut_out.get(public, 0) > now:
                passing = caller is not None or self.allowed.fault is not None
                # after 300 a client tries again by itself, after 400 it gives up
                answer = [b"300" if passing else b"400", b"this key is not let in", b""]
                self.refused += 1
                if not self._self_testing:
                    why = "it sent a message of more than one part" if caller else self.allowed.refusal(public)
                    who = self.allowed.called(public)
                    self._refusals.tell("%s was not let in, refusal number %d: %s", who, self.refused, why)
            self._zap_handler.send_multipart([asker, b"", version, request_id, *answer, b""])

    def _read(self) -> tuple[EncryptedPeer, Message] | None:
        """The message that is there, if it is a request of one who is let in."""
        sender = self._router.recv(NOBLOCK)
        frame = self._router.recv(NOBLOCK, copy=False)
        received_ns = perf_counter_ns()
        sizes = [len(frame)]
        is_req = frame.more and not sizes[0]
        if is_req:
            frame = self._router.recv(NOBLOCK, copy=False)
            sizes.append(len(frame))
        key = str(frame.get("User-Id"))
        caller = self.allowed.caller(key) if self._shut_out.get(key, 0) < received_ns else None
        peer = self._peers.peer_of(sender, frame)
        if frame.more:
            self._discarding = True
            self._shut_out[key] = received_ns + _SHUT_OUT_NS
            cause = f"{self.allowed.called(key)} sent a message of more than one part"
        elif sender[0]:
            cause = f"{self.allowed.called(key)} gave itself a routing id, and would get others' replies"
        else:
            cause = f"{self.allowed.called(key)} is no longer let in"
        if peer is None:
            return None
        if frame.more or sender[0] or caller is None:
            self._quota.disconnect(peer, cause)
            return None
        peer.key, peer.caller, peer.received_ns = key, caller, received_ns
        self._peers.note_message(peer, sizes)
        payload = frame.bytes if sizes[-1] < zmq.COPY_THRESHOLD else frame.buffer
        return peer, Message(payload, 1 + is_req, is_req)

    def _discard(self) -> bool:
        """Reads away some more of a message that has too many parts; whether that was all."""
        for _ in range(_DISCARDED_AT_ONCE):
            if not self._read_away(NOBLOCK, False).more:
                self._discarding = False
                return True
        return False

    def _ring_if_more(self) -> None:
        """Keeps the descriptor readable while something is to be done: libzmq's tell of a message but once."""
        if not self._rung and (self._discarding or is_readable(self._router) or is_readable(self._zap_handler)):
            self._rung = True
            os.write(self._wake_writer, b"\0")
