"""The transport of a server: listening sockets, connections, messages and replies, by tcp and ipc, encrypted or not.

`protocol.zmtp` reads and writes the bytes of a connection; the mechanism, NULL or CURVE, belongs to the endpoint.
Everything that a peer can make grow is counted and bounded: unfinished messages and unread replies. `quotas` bounds the
sums. No thread and no blocking call: a selector signals ready sockets and calls the function registered with each.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns

from dyn_service.service.protocol.endpoints import peer_uid
from dyn_service.service.protocol.keys import z85_encode
from dyn_service.service.protocol.zmtp import Connection as Protocol
from dyn_service.service.protocol.zmtp import Message, Null, Piece, ProtocolError, allocate_untouched
from dyn_service.service.server.transport.admission import Admission
from dyn_service.service.server.transport.endpoints import BoundEndpoint, listen
from dyn_service.service.server.transport.quotas import Connection, ConnectionQuota
from dyn_service.service.server.workers.pipes import AVAILABLE, allocate

_LOG = logging.getLogger(__name__)

# bytes read from a connection before the next one; twice that of a long message
_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 18  # maximum bytes per write
_KERNEL_BYTES = 1 << 18  # send buffer of the kernel per connection

_LONG_NS = 100_000  # messages that take longer are long; one state takes a tenth of it
# pause after a connection that could not be accepted, if no other connection can be closed for it
_RETRY_S = 0.02
_HANDSHAKE_S = 2.0  # a connection whose handshake is incomplete after this time is closed

_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2))
"""TCP keepalive closes the connection of a vanished host. The server sends no PING: a client without a thread of its
own could not answer between its calls.
"""


class ServerConnection(Connection):
    """One connection.

    key: the client's public key, after the handshake at an encrypted endpoint; else empty. queue: the queue of
    connections whose last message was short, or long. queued: whether it is in that queue.
    """

    def __init__(self, transport: Transport, connected: socket.socket, admission: Admission | None) -> None:
        super().__init__()
        self.socket = connected
        self.protocol = Protocol(
            Null() if admission is None else admission.mechanism(),
            b"ROUTER",
            transport.quota.limits.max_message_bytes,
            allocate if AVAILABLE else allocate_untouched,
        )
        self.admission = admission
        self.key = ""
        self.accepted_s = self.last_sent_s
        self.queue = transport.short
        self.queued = False
        self._transport = transport
        self._quota = transport.quota
        self._out: deque[memoryview] = deque()

    def on_ready(self, events: int) -> None:
        """Called when the socket is readable or writable; reads only when earlier data is decoded."""
        if events & selectors.EVENT_WRITE:
            self.write()
        if not events & selectors.EVENT_READ or self.queued or self.closed:
            return
        buffer = self.protocol.buffer if self.unfinished else None
        try:
            if buffer is None:
                data = self.socket.recv(_READ_BYTES)
                count = len(data)
            else:
                count = self.socket.recv_into(buffer, min(len(buffer), _READ_BYTES << 1))
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self.received_ns = perf_counter_ns()
        if buffer is None:
            self.protocol.feed(data)
        else:
            self.protocol.wrote(count)
        self.queued = True
        self.queue.append(self)

    def send(self, pieces: tuple[Piece, ...]) -> None:
        """Sends what the socket accepts at once, and keeps the rest."""
        if self._out:
            return self._keep(pieces, 0)
        try:
            count = self.socket.send(pieces[0]) if len(pieces) == 1 else self.socket.sendmsg(pieces)
        except BlockingIOError:
            count = 0
        except OSError:
            self.close()
            return
        if count < (len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))):
            self.last_sent_s = time.monotonic()
            self._keep(pieces, count)
            self._transport.watch(self, writing=True)

    def _keep(self, pieces: tuple[Piece, ...], start: int) -> None:
        for piece in pieces:
            view = memoryview(piece)[start:]
            start = max(0, start - len(piece))
            if len(view):
                self._out.append(view)
                self._quota.set_unread(self, self.unread + len(view))

    def write(self) -> None:
        """Sends more of the bytes that were kept."""
        try:
            count = self.socket.send(self._out[0][:_WRITE_BYTES])
        except (BlockingIOError, IndexError):
            return
        except OSError:
            self.close()
            return
        self.last_sent_s = time.monotonic()
        self._quota.set_unread(self, self.unread - count)
        rest = self._out[0][count:]
        if len(rest):
            self._out[0] = rest
            return
        self._out.popleft()
        if not self._out:
            self._transport.watch(self, writing=False)

    def close(self) -> None:
        """Closes the connection; repeated calls do nothing."""
        if not self.closed:
            self.closed = True
            self._out.clear()
            self._transport.forget(self)
            self.socket.close()


class Transport:
    """All endpoints and connections of a server. All calls come from one thread; only `close` may block.

    selector: watches the sockets; ready ones are handled by `key.data(events)`. take: called by `serve` with each
    message and its connection.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        quota: ConnectionQuota,
        take: Callable[[ServerConnection, Message], None],
    ) -> None:
        self.quota = quota
        self.take = take
        # with data to decode, last message short, by turns
        self.short: deque[ServerConnection] = deque()
        self._long: deque[ServerConnection] = deque()  # the same, last message long
        self._selector = selector
        self._listeners: list[socket.socket] = []
        self._connections: set[ServerConnection] = set()
        self._admissions: list[Admission] = []

    # connections

    def listen(self, endpoint: str, admission: Admission | None = None) -> BoundEndpoint:
        """Listens on a valid endpoint, encrypted if there is an `admission`; errors as `endpoints.listen`."""
        listener, bound_endpoint = listen(endpoint)
        is_ipc = endpoint.startswith("ipc://")
        self._listeners.append(listener)
        accept = lambda events: self._accept(listener, admission, is_ipc=is_ipc)
        self._selector.register(listener, selectors.EVENT_READ, accept)
        if admission is not None and admission not in self._admissions:
            self._admissions.append(admission)
            admission.access_list.changed = self._apply_lists
        return bound_endpoint

    def _accept(self, listener: socket.socket, admission: Admission | None, *, is_ipc: bool) -> None:
        try:
            connected, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as fault:
            if fault.errno in (errno.EMFILE, errno.ENFILE):
                # other files of this process: `accept` would fail again at once
                if not self._connections:
                    time.sleep(_RETRY_S)
                self.quota.make_room()
            return
        connected.setblocking(False)
        if is_ipc and peer_uid(connected) not in (None, os.geteuid()):  # None: unknown
            self.quota.note_disconnect("its peer runs as another user")
            connected.close()
            return
        with suppress(OSError):
            # bounds what the kernel stores for a client that does not read; the rest is counted in `unread`
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
            if not is_ipc:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _KEEPALIVE:
                    if hasattr(socket, name):
                        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection = ServerConnection(self, connected, admission)
        self.quota.add(connection)
        self._connections.add(connection)
        self._selector.register(connected, selectors.EVENT_READ, connection.on_ready)
        connection.send((connection.protocol.take_output(),))

    def _apply_lists(self) -> None:
        """Applies changes of the lists of keys to the connections that exist."""
        for connection in [*self._connections]:
            if connection.admission is not None and connection.key:
                self._identify(connection, connection.admission)

    def _identify(self, connection: ServerConnection, admission: Admission) -> None:
        """Sets the caller by its key, or closes the connection if the key is not allowed."""
        connection.caller = admission.access_list.caller(connection.key)
        if connection.caller is None:
            self.quota.disconnect(connection, f"{admission.access_list.name_of(connection.key)} is no longer allowed")

    # messages

    def serve(self, limit: int, turn_ns: int) -> bool:
        """Passes up to `limit` messages to `take`, one per connection in turn; returns whether others have arrived.

        Connections whose last message was short come first, then at most one whose last message was long, so that short
        requests that arrive meanwhile come before the next long one.

        Args:
            limit: Maximum number of messages.
            turn_ns: Time after which no further short message is started; it waits for the next call.
        """
        short, long = self.short, self._long
        now_ns = perf_counter_ns()
        until_ns = now_ns + turn_ns
        while limit:
            # the last turn belongs to a long message if one waits, so that neither kind starves the other
            if short and now_ns < until_ns and (limit > 1 or not long):
                connection = short.popleft()
            elif long:
                connection, limit = long.popleft(), 1
            else:
                break
            connection.queued = False
            if connection.closed:
                continue
            started_ns = now_ns
            try:
                message = connection.protocol.next()
            except ProtocolError as fault:
                if fault.farewell:
                    connection.send((fault.farewell,))
                self.quota.disconnect(connection, str(fault))
                # opening a wrong box takes longer than most requests
                limit, now_ns = limit - 1, perf_counter_ns()
                continue
            except (OSError, MemoryError) as fault:
                self.quota.disconnect(connection, f"no memory for its message: {fault}")
                continue
            if message is None or connection.unfinished:
                self._note_unfinished(connection)
            if message is None or connection.closed:
                continue
            limit -= 1
            if message[1]:  # its parts; a command has none
                if not connection.served:
                    self.quota.note_request(connection)
                self.take(connection, message)
            else:
                self._answer_command(connection)
            now_ns = perf_counter_ns()
            connection.queue = long if now_ns - started_ns > _LONG_NS else short
            # after the answer, which need not wait for this
            if connection.protocol.held and not connection.closed:
                self._note_unfinished(connection)
                connection.queued = True
                connection.queue.append(connection)
        return bool(short or long)

    def _note_unfinished(self, connection: ServerConnection) -> None:
        """Counts what the connection holds of unfinished messages, and keeps the limit on all of them."""
        self.quota.set_unfinished(connection, connection.protocol.held)
        self.quota.enforce_unfinished()

    def _answer_command(self, connection: ServerConnection) -> None:
        """Sends what the protocol answers to a command; PONGs only to a peer that reads its replies."""
        protocol = connection.protocol
        output = protocol.take_output()
        if output and not connection.unread:
            connection.send((output,))
        if connection.is_stranger and protocol.ready:
            connection.is_stranger = False
            if connection.admission is not None:
                connection.key = z85_encode(protocol.peer_key)
                self._identify(connection, connection.admission)

    # replies

    def send(self, connection: ServerConnection, is_req: bool, reply: bytes | memoryview) -> None:
        """Sends a reply, or counts that it could not be sent; never blocks."""
        traffic = self.quota.traffic
        if connection.closed:
            traffic.dropped_gone += 1
            return
        size = len(reply)
        if connection.unread and connection.unread + size > self.quota.limits.max_reply_bytes:
            traffic.dropped_slow_reader += 1
            return
        try:
            connection.send(connection.protocol.encode(reply, is_req=is_req))
        except Exception:  # noqa: BLE001  # a defect: the loop goes on
            traffic.defects += 1
            _LOG.exception("a reply could not be sent, its connection is closed")
            connection.close()
            return
        traffic.sent += 1
        traffic.sent_bytes += size
        if connection.unread:
            self.quota.enforce_unread()

    def watch(self, connection: ServerConnection, *, writing: bool) -> None:
        """Starts or stops watching whether the connection's socket is writable."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        self._selector.modify(connection.socket, events, connection.on_ready)

    # closing

    def check(self) -> None:
        """Closes connections whose handshake takes too long, or whose key is no longer allowed; call it often."""
        for admission in self._admissions:
            admission.access_list.check()
            admission.log.check()
        now = time.monotonic()
        for connection in [*self._connections]:
            if connection.is_stranger and now - connection.accepted_s > _HANDSHAKE_S:
                self.quota.disconnect(connection, "it did not complete the handshake")

    def forget(self, connection: ServerConnection) -> None:
        """Removes a connection that has ended."""
        self._selector.unregister(connection.socket)
        self._connections.discard(connection)
        self.quota.remove(connection)

    def close(self, linger_s: float) -> None:
        """Closes everything, after at most `linger_s` for replies to be sent."""
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        deadline = time.monotonic() + linger_s
        with selectors.DefaultSelector() as writable:
            for connection in [*self._connections]:
                if connection.unread:
                    writable.register(connection.socket, selectors.EVENT_WRITE, connection)
                else:
                    connection.close()
            while self._connections and (remaining := deadline - time.monotonic()) > 0:
                for key, _ in writable.select(remaining):
                    key.data.write()
                    if key.data.closed or not key.data.unread:
                        writable.unregister(key.fileobj)
                        key.data.close()
        for connection in [*self._connections]:
            connection.close()
