"""Channels: the transports of clients, which send and receive whole messages.

    channel = Channel("tcp://127.0.0.1:5755", context)
    channel.send(request)                       # does not block; False: no server is connected
    channel.is_connected(timeout_s)                  # waits until a server is connected
    reply = channel.receive(timeout_s)          # None: no message in time
    channel.close()

Channels do not know the contents of messages, match replies to requests, or set time limits.

A monitor of the socket detects that a server with keys refuses this client: ZeroMQ reports only an event, and the
connection is never made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

import zmq
from zmq.utils.monitor import parse_monitor_message

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError
from dyn_service.service.protocol.keys import Keys, use_keys
from dyn_service.service.protocol.limits import MAX_MESSAGE_BYTES
from dyn_service.service.protocol.sockets import (
    SCHEMES,
    check_owner,
    check_port,
    is_readable,
    is_writable,
    plain_send,
    tells_owner,
)

if TYPE_CHECKING:
    import zmq.asyncio

_RECONNECT_MS = 20
_RECONNECT_MAX_MS = 500
_HANDSHAKE_MS = 2000
"""A connection without a ZMTP handshake is closed after this time, and made again."""

_KEEPALIVE_S = 2
"""Interval of TCP keepalive; a connection whose host misses four is closed.

ZeroMQ's own heartbeats are off: with them, libzmq 4.3.5 aborts the process when a server closes the connection of a
client that holds `_MAX_UNREAD` replies (`Assertion failed: !_io_error`, at the next heartbeat).
"""

_RENEW_S = 2.5
"""A socket without a server for this long is replaced, because ZeroMQ does not reconnect after a protocol error, such
as a peer that is not ZeroMQ or a message that is too long. Longer than `_HANDSHAKE_MS`.
"""

_MAX_UNREAD = 16
"""Replies that libzmq queues for a client with one call at a time before it stops reading from the connection. The
asyncio client has libzmq's default of 1000; with fewer, thousands of concurrent calls take twice as long.
"""

_NOBLOCK = int(zmq.NOBLOCK)

Context = zmq.Context[zmq.Socket[bytes]]

_S = TypeVar("_S", bound="zmq.Socket[Any]")

_forks = 0


def _note_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def forks() -> int:
    """Returns how many forks lie between the first process and this one. A channel opened before a fork is unusable."""
    return _forks


class _ZmqChannel:
    """A DEALER socket over `tcp`, `ipc` or `inproc`.

    Over `inproc`, and only there, ZeroMQ queues messages for a server that does not exist yet, and delivers them even
    if their socket has been closed. A request may therefore be carried out after its call has failed.

    context: by default that of the process. keys: the client's keys and the server's public key; None for a server
    without keys.

    Raises:
        InvalidArgumentError: ZeroMQ rejects the endpoint.
    """

    _socket: zmq.Socket[Any]

    def __init__(self, endpoint: str, context: Context | None, keys: Keys | None = None) -> None:
        self._endpoint = endpoint
        self._context = context
        self._keys = keys
        self.is_inproc = endpoint.startswith("inproc://")
        """The only transport that does not reconnect automatically."""
        self._checks_owner = keys is None and tells_owner(endpoint)  # keys identify a server that has them
        self._absent_since_s: float | None = None
        self._handshakes: HandshakeMonitor | None = None
        self._connect()

    def _connect(self) -> None:
        raise NotImplementedError

    def _reconnect(self) -> None:
        raise NotImplementedError

    def _connected(self, socket: _S) -> _S:
        """Returns the new DEALER socket, with the client's keys, configured and connected.

        IMMEDIATE: nothing is queued for a server that is not connected, so that no command is carried out late. SNDHWM
        is unlimited, because a server that reads slowly would otherwise look disconnected. TCP detects a host that
        disappeared without closing the connection; `TCP_MAXRT` applies while a request is unacknowledged, keepalive
        otherwise.
        """
        if self._keys is not None:
            context = self._context or zmq.Context.instance()
            self._handshakes = HandshakeMonitor(socket, context, self._endpoint, self._keys)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        socket.setsockopt(zmq.TCP_MAXRT, 4 * _KEEPALIVE_S * 1000)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        try:
            socket.connect(self._endpoint)
        except zmq.ZMQError as fault:
            socket.close()
            raise _refused(self._endpoint, fault) from None
        return socket

    def _absent_long(self) -> bool:
        """Records that no server is connected; returns whether to replace the socket, and then begins again."""
        now_s = monotonic()
        long = self._absent_since_s is not None and now_s - self._absent_since_s >= _RENEW_S
        if long or self._absent_since_s is None:
            self._absent_since_s = now_s
        return long

    def renew(self) -> None:
        """Replaces the connection, because its server no longer answers; except over `inproc`, which loses none."""
        if not self.is_inproc:
            self._reconnect()

    def close(self) -> None:
        """Closes the socket."""
        if self._handshakes is not None:
            self._handshakes.close()
        self._socket.close()


class Channel(_ZmqChannel):
    """A channel for blocking calls; see `_ZmqChannel`."""

    _armed_ms: int

    def send(self, payload: bytes) -> bool:
        """Sends a message without blocking. False: no server is connected, and the message is dropped."""
        if self.is_inproc and not is_writable(self._socket):
            self._reconnect()
        try:
            self._send(payload, _NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_s: float) -> bytes | None:
        """Returns the next message; None if no message arrives in time.

        Raises:
            PermissionDeniedError: The server at an ipc endpoint runs as a user other than this process's user and root.
        """
        if timeout_s != self._armed_s:
            self._arm(timeout_s)
        try:
            return check_owner(self._receive(copy=False), self._endpoint) if self._checks_owner else self._receive()
        except zmq.Again:
            return None
        except PermissionDeniedError:
            self._reconnect()  # drops the other messages of this server
            raise

    def is_connected(self, timeout_s: float = 0.0) -> bool:
        """Returns whether a server is connected; waits for one.

        Raises:
            PermissionDeniedError: The server's list does not contain this client's key.
        """
        if is_writable(self._socket):
            self._absent_since_s = None
            return True
        until_s = monotonic() + timeout_s
        if self._handshakes is not None:
            self._handshakes.reconnect()
        while not self._absent_long():
            left_s = until_s - monotonic()
            if left_s <= 0.0:
                return False
            if self._socket.poll(ceil(min(left_s, _poll_s(self._handshakes)) * 1e3), zmq.POLLOUT):
                self._absent_since_s = None
                return True
            if self._handshakes is not None:
                self._handshakes.check()
        self._reconnect()
        return self.is_connected(until_s - monotonic())

    def _arm(self, timeout_s: float) -> None:
        """Sets the socket's receive timeout in whole milliseconds. Setting it costs more than checking that it is
        set.
        """
        milliseconds = max(0, ceil(timeout_s * 1e3))
        if milliseconds != self._armed_ms:
            self._socket.setsockopt(zmq.RCVTIMEO, milliseconds)
            self._armed_ms = milliseconds
        self._armed_s = timeout_s

    def _reconnect(self) -> None:
        self.close()
        self._connect()

    def _connect(self) -> None:
        made = (self._context or zmq.Context.instance()).socket(zmq.DEALER)
        made.setsockopt(zmq.RCVHWM, _MAX_UNREAD)
        self._socket = self._connected(made)
        self._send = plain_send(self._socket)
        self._receive: Callable[..., Any] = self._socket.recv
        self._armed_s = -1.0
        self._armed_ms = -1


class AsyncChannel(_ZmqChannel):
    """A channel for asyncio; see `_ZmqChannel`. It belongs to the event loop in which it was opened."""

    _socket: zmq.asyncio.Socket

    def __init__(self, endpoint: str, context: Context | None, keys: Keys | None = None) -> None:
        from asyncio import CancelledError, current_task  # slow to import, and not needed by blocking calls

        from zmq.asyncio import Context as Shadow

        self._cancelled, self._current_task = CancelledError, current_task
        context = context or zmq.Context.instance()
        self._shadow = Shadow(shadow=context)
        super().__init__(endpoint, context, keys)

    def _connect(self) -> None:
        made = self._shadow.socket(zmq.DEALER)
        if self.is_inproc:
            made.setsockopt(zmq.RCVHWM, 0)  # an inproc server drops replies beyond this number
        self._socket = self._connected(made)
        self._send = plain_send(zmq.Socket.shadow(made))

    def send(self, payload: bytes) -> bool:
        """As `Channel.send`."""
        try:
            self._send(payload, _NOBLOCK)  # pyzmq's asyncio `send` would wait for calls in `is_connected`
        except zmq.Again:
            return False
        self._is_writable()  # sending may have consumed the signal of a reply
        return True

    async def receive(self) -> bytes:
        """Waits for the next message; raises as `Channel.receive`."""
        while True:
            socket = self._socket
            try:
                if self._checks_owner:
                    return check_owner(await socket.recv(copy=False), self._endpoint)
                return await socket.recv()
            except self._cancelled:
                task = self._current_task()
                if socket is self._socket or (task is not None and task.cancelling()):
                    raise  # otherwise the socket was replaced, which cancelled the receive

    async def is_connected(self, timeout_s: float = 0.0) -> bool:
        """As `Channel.is_connected`."""
        until_s = monotonic() + timeout_s
        if self._handshakes is not None:
            self._handshakes.reconnect()
        while True:
            if not self._is_writable() and (left_s := min(until_s - monotonic(), _poll_s(self._handshakes))) > 0.0:
                poll: Callable[..., Any] = self._socket.poll  # its parameters are missing in pyzmq's types
                await poll(ceil(left_s * 1e3), zmq.POLLOUT)
            if self._is_writable():
                self._absent_since_s = None
                return True
            if self._handshakes is not None:
                self._handshakes.check()
            if self._absent_long():
                self._reconnect()
            if monotonic() >= until_s:
                return False

    def _reconnect(self) -> None:
        former, handshakes = self._socket, self._handshakes
        self._connect()
        if handshakes is not None:
            handshakes.close()
        former.close()

    def _is_writable(self) -> bool:
        """Returns whether a server is connected, and lets the event loop receive a reply that has arrived.

        ZeroMQ signals a reply once. Any use of the raw socket, pyzmq's `poll` included, may take that signal; only
        `get` of the asyncio socket then looks for the reply.
        """
        return bool(cast(int, self._socket.get(zmq.EVENTS)) & zmq.POLLOUT)


def _poll_s(handshakes: HandshakeMonitor | None) -> float:
    """Returns how long to wait for a server between checks for errors."""
    return _RENEW_S if handshakes is None else _RECONNECT_MS * 1e-3


def check_endpoint(endpoint: str) -> str:
    """Returns the endpoint if a client can connect to it.

    Raises:
        InvalidArgumentError: Invalid endpoint; the message shows a valid one.
    """
    if not isinstance(endpoint, str) or not endpoint.startswith(SCHEMES) or endpoint in SCHEMES:
        raise _refused(endpoint)
    return check_port(endpoint, "endpoint")


def _refused(endpoint: Any, fault: Exception | None = None) -> InvalidArgumentError:
    cause = "" if fault is None else f": {fault}"
    return InvalidArgumentError(
        f"endpoint must look like tcp://127.0.0.1:5755, ipc:///path or inproc://name, found {endpoint!r}{cause}",
        path="endpoint",
    )


_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_GIVEN_UP = _REFUSED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""Events after which ZeroMQ does not reconnect, so that each `connect` causes at most one."""


class HandshakeMonitor:
    """Sets a socket's keys, and reports whether the server accepts them.

    socket: not connected yet. endpoint: to which it will connect. keys: the client's keys and the server's public key.
    """

    def __init__(
        self, socket: zmq.Socket[Any], context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: Keys
    ) -> None:
        self._socket = socket
        self._endpoint = endpoint
        self._keys = keys
        self._event = 0
        self._process = os.getpid()
        use_keys(socket, keys)
        name = f"inproc://dyn-gate-{os.urandom(16).hex()}"
        socket.monitor(name, _GIVEN_UP)
        self._events = context.socket(zmq.PAIR)
        self._events.connect(name)

    def reconnect(self) -> None:
        """Connects the socket again if ZeroMQ has given up."""
        self._look()
        if self._event:
            self._event = 0
            with suppress(zmq.ZMQError):  # ZeroMQ may have removed the endpoint
                self._socket.disconnect(self._endpoint)
            self._socket.connect(self._endpoint)

    def check(self) -> None:
        """Checks whether the server has refused the client since the last `reconnect`.

        Raises:
            PermissionDeniedError: The key is not on the server's list.
        """
        self._look()
        if self._event == _REFUSED:
            raise PermissionDeniedError(f"{self._endpoint} does not let the key '{self._keys.name}' in", path="keys")

    def close(self) -> None:
        """Stops monitoring; to be called before the socket is closed."""
        if not self._events.closed and os.getpid() == self._process:  # a forked child must not use its parent's sockets
            self._socket.disable_monitor()
            self._events.close(linger=0)

    def _look(self) -> None:
        while is_readable(self._events):
            self._event = int(parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))["event"])
