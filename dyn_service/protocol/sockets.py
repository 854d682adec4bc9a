"""What the sockets of both sides share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import zmq

SCHEMES = ("tcp://", "ipc://", "inproc://")
"""The transports that endpoints may name."""


def plain_send(socket: zmq.Socket[bytes]) -> Callable[..., Any]:
    """The socket's `send` without pyzmq's wrapper for drafts of ZeroMQ, a third of the cost of a small message."""
    return cast(Callable[..., Any], super(zmq.Socket, socket).send)


def file_descriptor(socket: zmq.Socket[bytes]) -> int:
    """What a selector may watch: readable when the socket has news, told once until its events are looked at."""
    return cast(int, socket.getsockopt(zmq.FD))


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message waits, asked without an exception."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & _POLLIN)


def is_writable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a peer is connected that has room for a message."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & _POLLOUT)


_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)
