"""What the sockets of both sides share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import zmq

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError

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


@contextmanager
def own_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A ZeroMQ context for a command; at the end it closes its sockets and terminates.

    After Ctrl-C it does neither: an interrupt inside pyzmq can leave a socket that is never closed, and the termination
    of a context waits for all of its sockets. They end with the process.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    except KeyboardInterrupt:
        raise
    except BaseException:
        context.destroy()
        raise
    context.destroy()


def tells_owner(endpoint: str) -> bool:
    """Whether each message from this endpoint carries the user id of the process that sent it: ipc, on Linux."""
    return endpoint.startswith("ipc://") and hasattr(socket, "SO_PEERCRED")


def check_owner(frame: zmq.Frame, endpoint: str) -> bytes:
    """The bytes of a message from an ipc endpoint, if its sender runs as this process's user or as root.

    libzmq reads SO_PEERCRED when a connection is made and attaches the result to each message that comes over it, so
    the check also holds after a reconnect. A peer of ZMTP 1 or 2 gets no such property and is refused.

    Args:
        frame: The message, received with `copy=False`.
        endpoint: One for which `tells_owner`.

    Raises:
        PermissionDeniedError: The sender runs as another user, or is unknown.
    """
    try:
        uid = _uid_in(cast(str, frame.get("Peer-Address")))
    except zmq.ZMQError:
        uid = None
    if uid != 0 and uid != (own := os.geteuid()):
        allowed = {0, own}
        raise PermissionDeniedError(
            f"{endpoint}: the process at the other end runs as {'an unknown uid' if uid is None else f'uid {uid}'}, "
            f"allowed: {', '.join(map(str, sorted(allowed)))}; run both as the same user",
            path="endpoint",
        )
    return frame.bytes


@lru_cache(maxsize=64)  # of each peer for each of its messages
def _uid_in(address: str) -> int | None:
    """The user id in a `Peer-Address`, `localhost:UID:GID:PID`."""
    try:
        return int(address.split(":")[-3])
    except (IndexError, ValueError):
        return None


def receive_checked(socket: zmq.Socket[bytes], endpoint: str, flags: int = 0) -> bytes:
    """The next message from this endpoint.

    Raises:
        PermissionDeniedError: As `check_owner`, if `tells_owner`.
        zmq.ZMQError: As `recv`.
    """
    if not tells_owner(endpoint):
        return socket.recv(flags)
    return check_owner(socket.recv(flags, copy=False), endpoint)


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
