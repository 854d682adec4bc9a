"""Ways to a server: whole messages there and back. A transport is one class for each kind of client, named by a scheme.

    channel = open_channel("tcp://127.0.0.1:5755", context)
    channel.send(request, timeout_s)
    reply = channel.receive(timeout_s)          # None: nothing came in time
    channel.close()

What a message says, whose reply it is and how long to wait for it is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import ceil
from time import monotonic
from typing import Any, Protocol, TypeVar

import zmq

from dyn_service.client.gate import Gate
from dyn_service.errors import InvalidArgumentError
from dyn_service.protocol.keys import Keys
from dyn_service.protocol.limits import MAX_MESSAGE_BYTES
from dyn_service.protocol.sockets import SCHEMES, is_writable, plain_send

_RECONNECT_MS = 20
_RECONNECT_MAX_MS = 500
_HEARTBEAT_MS = 2000

_SAME = 0.999
"""A time that is left counts as the whole one down to this share: to tell a socket costs more than the difference."""

Context = zmq.Context[zmq.Socket[bytes]]

_S = TypeVar("_S", bound="zmq.Socket[Any]")

_forks = 0


def _note_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def forks() -> int:
    """Counts the forks between the first process and this one: a channel that was opened before one is of no use."""
    return _forks


class Channel(Protocol):
    """A way to a server for calls that wait."""

    def send(self, payload: bytes, timeout_s: float) -> bool:
        """Sends a message; False if no server could be reached in time: then it never will be sent."""

    def receive(self, timeout_s: float) -> bytes | None:
        """The next message; None if none came in time."""

    def reaches(self) -> bool:
        """Whether a server is connected now."""

    def close(self) -> None:
        """Lets go of the transport."""


class AsyncChannel(Protocol):
    """The same for asyncio; it belongs to the event loop in which it was opened."""

    remains: bool
    """Whether it keeps to a server that is gone, and has to be opened anew to find the next one there."""

    async def send(self, payload: bytes, timeout_s: float) -> bool:
        """As `Channel.send`."""

    async def receive(self) -> bytes:
        """The next message, however long it takes."""

    async def reaches(self) -> bool:
        """Whether a server is connected now."""

    def close(self) -> None:
        """Lets go of the transport."""


class ZmqChannel:
    """A DEALER socket over `tcp`, `ipc` or `inproc`.

    Over `inproc` ZeroMQ takes messages for a server that is yet to come, and hands them to it even when the socket that
    sent them has been closed: there alone, what was asked in vain may be carried out late.

    Args:
        endpoint: Where the server listens.
        context: The ZeroMQ context; None is the process's own.
        keys: Who asks, and which server is meant; None: whoever, of a server that asks for no keys.

    Raises:
        InvalidArgumentError: ZeroMQ does not take the endpoint.
    """

    def __init__(self, endpoint: str, context: Context | None, keys: Keys | None = None) -> None:
        self._endpoint = endpoint
        self._context = context
        self._keys = keys
        self._is_inproc = endpoint.startswith("inproc://")
        self._connect()

    def send(self, payload: bytes, timeout_s: float) -> bool:
        """Sends a message; waits for a server up to the time limit."""
        if self._is_inproc and not is_writable(self._socket):
            self._reconnect()  # the one transport that does not do so by itself
        if timeout_s != self._armed_s:
            self._arm(timeout_s)
        if self._gate is not None and not is_writable(self._socket):
            return self._send_through(self._gate, payload, timeout_s)
        try:
            self._send(payload)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_s: float) -> bytes | None:
        """The next message; None if none came in time."""
        if not _SAME * self._armed_s <= timeout_s <= self._armed_s:
            self._arm(max(timeout_s, 0.0))
        try:
            return self._receive()
        except zmq.Again:
            return None

    def reaches(self) -> bool:
        """Whether a server is connected now."""
        return is_writable(self._socket)

    def close(self) -> None:
        """Closes the socket."""
        if self._gate is not None:
            self._gate.close()
        self._socket.close()

    def _send_through(self, gate: Gate, payload: bytes, timeout_s: float) -> bool:
        """As `send`, where it may be that the server does not let this client in."""
        until = monotonic() + timeout_s
        gate.knock()
        while not self._socket.poll(min(_RECONNECT_MS, max(0, ceil(1e3 * (until - monotonic())))), zmq.POLLOUT):
            gate.check()
            if monotonic() >= until:
                return False
        try:
            self._send(payload)
        except zmq.Again:  # gone again
            return False
        return True

    def _arm(self, timeout_s: float) -> None:
        """Sets how long the socket waits."""
        milliseconds = ceil(timeout_s * 1e3)
        self._socket.setsockopt(zmq.SNDTIMEO, milliseconds)
        self._socket.setsockopt(zmq.RCVTIMEO, milliseconds)
        self._armed_s = timeout_s

    def _reconnect(self) -> None:
        self.close()
        self._connect()

    def _connect(self) -> None:
        context = self._context or zmq.Context.instance()
        made = context.socket(zmq.DEALER)
        self._gate = None if self._keys is None else Gate(made, context, self._endpoint, self._keys)
        self._socket = _connected(made, self._endpoint)
        self._send = plain_send(self._socket)
        self._receive: Callable[[], bytes] = self._socket.recv
        self._armed_s = -1.0


class AsyncZmqChannel:
    """A DEALER socket over `tcp`, `ipc` or `inproc`, in an event loop.

    Args:
        endpoint: Where the server listens.
        context: The ZeroMQ context; None is the process's own.
        keys: Who asks, and which server is meant; None: whoever, of a server that asks for no keys.

    Raises:
        InvalidArgumentError: ZeroMQ does not take the endpoint.
    """

    def __init__(self, endpoint: str, context: Context | None, keys: Keys | None = None) -> None:
        from zmq.asyncio import Context as Shadow  # it brings asyncio, which calls that wait do without

        self.remains = endpoint.startswith("inproc://")
        own = context or zmq.Context.instance()
        made = Shadow(shadow=own).socket(zmq.DEALER)
        self._gate = None if keys is None else Gate(made, own, endpoint, keys)
        self._socket = _connected(made, endpoint)

    async def send(self, payload: bytes, timeout_s: float) -> bool:
        """Sends at once, or when a server can be reached; what was not sent in time never will be."""
        while True:
            try:
                await self._socket.send(payload, zmq.NOBLOCK)
                return True
            except zmq.Again:
                if self._gate is not None:
                    await self._pass(self._gate)
                elif not await self._poll(ceil(timeout_s * 1e3)):
                    return False

    async def receive(self) -> bytes:
        """The next message, however long it takes."""
        return await self._socket.recv()

    async def reaches(self) -> bool:
        """Whether a server is connected now."""
        return await self._poll(0)

    def close(self) -> None:
        """Closes the socket."""
        if self._gate is not None:
            self._gate.close()
        self._socket.close()

    async def _pass(self, gate: Gate) -> None:
        """Waits until the server lets this client in; who calls sets a limit."""
        gate.knock()
        while not await self._poll(_RECONNECT_MS):
            gate.check()

    async def _poll(self, timeout_ms: int) -> bool:
        poll: Callable[..., Any] = self._socket.poll  # pyzmq's types leave its parameters out
        return bool(await poll(timeout_ms, zmq.POLLOUT))


_Opener = tuple[
    Callable[[str, Context | None, Keys | None], Channel], Callable[[str, Context | None, Keys | None], AsyncChannel]
]

_CHANNELS: dict[str, _Opener] = dict.fromkeys(SCHEMES, (ZmqChannel, AsyncZmqChannel))
"""What opens a channel, by the scheme of an endpoint, for calls that wait and for asyncio."""


def open_channel(endpoint: str, context: Context | None, keys: Keys | None = None) -> Channel:
    """A way to the server at this endpoint, for calls that wait; with keys, to a server that asks for them.

    Raises:
        InvalidArgumentError: There is no such transport, or it does not take the endpoint.
    """
    return _CHANNELS[_scheme(check_endpoint(endpoint))][0](endpoint, context, keys)


def open_async_channel(endpoint: str, context: Context | None, keys: Keys | None = None) -> AsyncChannel:
    """A way to the server at this endpoint, for asyncio; with keys, to a server that asks for them.

    Raises:
        InvalidArgumentError: There is no such transport, or it does not take the endpoint.
    """
    return _CHANNELS[_scheme(check_endpoint(endpoint))][1](endpoint, context, keys)


def check_endpoint(endpoint: str) -> str:
    """The endpoint, if it is one that a client can connect to.

    Raises:
        InvalidArgumentError: It is none; the message says how one looks.
    """
    if not isinstance(endpoint, str) or _scheme(endpoint) not in _CHANNELS or endpoint in _CHANNELS:
        raise _refused(endpoint)
    return endpoint


def _scheme(endpoint: str) -> str:
    return "".join(endpoint.partition("://")[:2])


def _refused(endpoint: Any, fault: Exception | None = None) -> InvalidArgumentError:
    cause = "" if fault is None else f": {fault}"
    return InvalidArgumentError(
        f"endpoint must look like tcp://127.0.0.1:5755, ipc:///path or inproc://name, found {endpoint!r}{cause}",
        path="endpoint",
    )


def _connected(socket: _S, endpoint: str) -> _S:
    """A DEALER socket, set up and connected.

    IMMEDIATE: nothing is queued for a server that is not there, so that no command is carried out late. The heartbeat
    finds out about a server that went without a word.
    """
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as fault:
        socket.close()
        raise _refused(endpoint, fault) from None
    return socket
