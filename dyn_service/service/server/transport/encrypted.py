"""The encrypted endpoints: CURVE, and a list that says who is let in.

A ROUTER socket of libzmq does the cryptography. Around it: whoever connects is looked up in the list of keys (ZAP), and
looked up again at each of his messages and before each reply to him; a key that leaves the list loses its connections.
Before it serves, an endpoint is tried out: a key made up on the spot must be refused, one without a key too.

    router = KeyedRouter(server_keys, access_list, ledger)
    bound = router.listen("tcp://0.0.0.0:5755")
    selector.register(router.descriptor, EVENT_READ)                # readable: call `messages`
    for peer, (payload, parts, is_req) in router.messages(64): ..   # and every tenth of a second `router.look()`
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
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, cast

import zmq
from zmq.utils import z85

from dyn_service.errors import FailedPreconditionError, NotFoundError
from dyn_service.service.protocol.keys import Keys
from dyn_service.service.protocol.sockets import file_descriptor, is_readable, plain_send
from dyn_service.service.server.administration.access import AccessList
from dyn_service.service.server.administration.key_folder import KeyFolder
from dyn_service.service.server.transport.encrypted_peers import KeyedPeer, KeyedPeers
from dyn_service.service.server.transport.endpoints import Bound, bind
from dyn_service.service.server.transport.quotas import Ledger, SparseLog
from dyn_service.service.server.transport.self_test import prove
from dyn_service.service.server.transport.transport import MORE, NOBLOCK, UNREAD_REPLIES
from dyn_service.service.server.transport.zmtp import Message

_LOG = logging.getLogger(__name__)

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


def open_keyed(folder: KeyFolder, ledger: Ledger) -> KeyedRouter:
    """What listens on endpoints that ask for keys, by the keys and the list in a folder; see `KeyedRouter`.

    Raises:
        DynError: As `read_folder`.
    """
    keys, allowed = read_folder(folder)
    return KeyedRouter(keys, allowed, ledger)


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


class KeyedRouter:
    """Listens on encrypted endpoints.

    Args:
        keys: The server's.
        allowed: Who is let in.
        ledger: What their connections and others hold together.
    """

    def __init__(self, keys: Keys, allowed: AccessList, ledger: Ledger) -> None:
        self.allowed = allowed
        self._keys = keys
        self._ledger = ledger
        self._traffic = ledger.traffic
        self._losses = allowed.losses
        self._shut_out: dict[str, int] = {}
        self._discarding = self._rung = False
        self.refused = 0
        """Connections that were not let in, the endpoints' own trials aside."""
        self._refusals = SparseLog(_LOG, logging.WARNING)
        self._tries_itself_out = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._doorman = self._context.socket(zmq.ROUTER)
        self._doorman.bind("inproc://zeromq.zap.01")
        self._router = router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        router.setsockopt(zmq.ZAP_DOMAIN, b"dyn_service")
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a doorman nobody is let in
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, UNREAD_REPLIES)
        router.setsockopt(zmq.MAXMSGSIZE, ledger.limits.max_message_bytes + 64)  # of a part as it is sealed
        router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        router.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        self._peers = KeyedPeers(router, ledger)
        self._send_frame = plain_send(router)
        self._read_away: Any = super(zmq.Socket, router).recv  # as `plain_send`
        self._bell, self._ringer = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ringer, False)
        self._ready = selectors.DefaultSelector()
        for descriptor in (self._bell, self._peers.descriptor, *map(file_descriptor, (router, self._doorman))):
            self._ready.register(descriptor, selectors.EVENT_READ)

    @property
    def descriptor(self) -> int:
        """Readable as long as there is something for `messages` to do: a file descriptor for selectors."""
        return cast(selectors.EpollSelector, self._ready).fileno()

    @property
    def pending(self) -> bool:
        """Whether `messages` left something to do."""
        return self._rung

    def listen(self, endpoint: str) -> Bound:
        """Listens on a tcp or ipc endpoint, once it is proven to let no stranger in.

        Raises:
            InvalidArgumentError: The endpoint is none.
            UnavailableError: It is taken.
            FailedPreconditionError: It lets a stranger in.
        """
        self._router.setsockopt(zmq.IPV6, int("[" in endpoint))
        bound = bind(self._router, endpoint)
        refused, self._tries_itself_out = self.refused, True
        try:
            prove(bound.endpoint, self._keys, self._admit)
        except BaseException:
            self._router.unbind(bound.endpoint)
            bound.clear()
            raise
        finally:
            self.refused, self._tries_itself_out = refused, False
        return bound

    def messages(self, most: int, until_ns: float = math.inf) -> Iterator[tuple[KeyedPeer, Message]]:
        """Lets in who may come, and gives up to so many of the requests that are there; see `front.Front`.

        Each with its peer, whose `caller` says who asks by the list of now. Of each one in turn: libzmq sees to it.
        """
        if self._rung:
            self._rung = False
            with suppress(BlockingIOError):
                os.read(self._bell, 1)
        self._admit()
        self._peers.follow()
        for _ in range(most):
            if perf_counter_ns() >= until_ns or (self._discarding and not self._discard()):
                break
            if not is_readable(self._router):
                break
            received = self._read()
            if received is not None:
                yield received
        self._ring_if_more()

    def send(self, peer: KeyedPeer, is_req: bool, reply: bytes | bytearray | memoryview) -> None:
        """Sends a reply, or counts that its reader is gone, is no longer let in, or does not read."""
        if peer.closed or peer.sender is None or self.allowed.caller(peer.key or "") is None:
            self._traffic.dropped_gone += 1
            return
        sizes = (0, len(reply)) if is_req else (len(reply),)
        if not self._peers.goes(peer, sizes):
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
        self._peers.stayed(peer, sizes)

    def end(self, peer: KeyedPeer) -> None:
        """Ends a connection."""
        peer.end()

    def look(self) -> None:
        """Takes over a changed list, and cuts off who is on it no longer or holds too much. Ten times a second."""
        self._peers.follow()
        self.allowed.look()
        if self._losses != self.allowed.losses:
            self._losses = self.allowed.losses
            for peer in self._peers:
                if peer.key is None or self.allowed.caller(peer.key) is None:  # of one that never asked, who knows
                    who = self.allowed.called(peer.key) if peer.key else "some key"
                    self._ledger.cut(peer, f"{who} is no longer let in")
        self._peers.look()
        self._refusals.look()
        self._ring_if_more()

    def close(self, linger_s: float = 0.0) -> None:
        """Ends everything, after replies have had so long to leave."""
        self._peers.close()
        self._ready.close()
        os.close(self._bell)
        os.close(self._ringer)
        self._doorman.close(linger=0)
        self._router.close(linger=int(linger_s * 1000))
        self._context.term()

    def _admit(self) -> None:
        """Answers libzmq, which asks about each connection whether to let it in (https://rfc.zeromq.org/spec/27)."""
        for _ in range(_ADMITTED_AT_ONCE):
            if not is_readable(self._doorman):
                return
            asker, _, version, request_id, *_, key = self._doorman.recv_multipart(zmq.NOBLOCK)
            public = z85.encode(key).decode() if len(key) == 32 else ""
            if self.allowed.caller(public) is None:
                self.allowed.look(at_once=True)  # he may have been let in this very moment
            caller = self.allowed.caller(public)
            now = perf_counter_ns()
            answer = [b"200", b"OK", public.encode()]
            if caller is None or self._shut_out.get(public, 0) > now:
                passing = caller is not None or self.allowed.fault is not None
                # after 300 a client tries again by itself, after 400 it gives up
                answer = [b"300" if passing else b"400", b"this key is not let in", b""]
                self.refused += 1
                if not self._tries_itself_out:
                    why = "it sent a message of more than one part" if caller else self.allowed.refusal(public)
                    who = self.allowed.called(public)
                    self._refusals.tell("%s was not let in, refusal number %d: %s", who, self.refused, why)
            self._doorman.send_multipart([asker, b"", version, request_id, *answer, b""])

    def _read(self) -> tuple[KeyedPeer, Message] | None:
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
        peer = self._peers.of(sender, frame)
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
            self._ledger.cut(peer, cause)
            return None
        peer.key, peer.caller, peer.received_ns = key, caller, received_ns
        self._peers.came(peer, sizes)
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
        if not self._rung and (self._discarding or is_readable(self._router) or is_readable(self._doorman)):
            self._rung = True
            os.write(self._ringer, b"\0")
