"""What the sockets of both sides share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import zmq

from dyn_service.errors import InvalidArgumentError

SCHEMES = ("tcp://", "ipc://", "inproc://")
"""The transports that endpoints may name."""

MAX_PORT = 65535
"""ZeroMQ takes larger ones without a word, and counts them from 0 again."""


def check_port(endpoint: str, path: str) -> str:
    """The endpoint, unless it is one of tcp with a port that there cannot be.

    Args:
        endpoint: Any.
        path: Which parameter names it.

    Raises:
        InvalidArgumentError: The port is beyond `MAX_PORT`.
    """
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdecimal() and int(port[:9]) > MAX_PORT:
        raise InvalidArgumentError(f"{path}: the port of '{endpoint[:200]}' must be at most {MAX_PORT}", path=path)
    return endpoint


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
