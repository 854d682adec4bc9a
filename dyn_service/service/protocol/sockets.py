"""ZeroMQ helpers that clients, servers and nodes share."""

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
"""Supported transports."""

MAX_PORT = 65535
"""ZeroMQ accepts larger ports silently, modulo 65536."""


def check_port(endpoint: str, path: str) -> str:
    """Returns the endpoint if its TCP port is valid; other transports are not checked.

    path: the name of the parameter that specifies it, for the error.

    Raises:
        InvalidArgumentError: The port exceeds `MAX_PORT`.
    """
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdecimal() and int(port[:9]) > MAX_PORT:
        raise InvalidArgumentError(f"{path}: the port of '{endpoint[:200]}' must be at most {MAX_PORT}", path=path)
    return endpoint


@contextmanager
def own_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """Yields a ZeroMQ context for a command, then closes its sockets and terminates it.

    After Ctrl-C it does neither: an interrupt inside pyzmq can leave a socket open, and the termination of a context
    waits for all of its sockets. They end with the process.
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
    """Whether each message from this endpoint carries the user id of its sender: ipc on Linux."""
    return endpoint.startswith("ipc://") and hasattr(socket, "SO_PEERCRED")


def check_owner(frame: zmq.Frame, endpoint: str) -> bytes:
    """Returns the bytes of a message from an ipc endpoint if its sender runs as this process's user or as root.

    libzmq reads SO_PEERCRED for each connection and attaches the result to each of its messages, so the check also
    holds after a reconnect. Messages of ZMTP 1 and 2 lack this property and are refused.

    frame: the message, received with `copy=False`. endpoint: one for which `tells_owner` is true.

    Raises:
        PermissionDeniedError: The sender runs as another user, or its user is unknown.
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


@lru_cache(maxsize=64)
def _uid_in(address: str) -> int | None:
    """Returns the user id in a `Peer-Address`, `localhost:UID:GID:PID`."""
    try:
        return int(address.split(":")[-3])
    except (IndexError, ValueError):
        return None


def receive_checked(socket: zmq.Socket[bytes], endpoint: str, flags: int = 0) -> bytes:
    """Receives the next message, checking its sender where the endpoint carries user ids.

    Raises:
        PermissionDeniedError: See `check_owner`.
        zmq.ZMQError: See `recv`.
    """
    if not tells_owner(endpoint):
        return socket.recv(flags)
    return check_owner(socket.recv(flags, copy=False), endpoint)


def plain_send(socket: zmq.Socket[bytes]) -> Callable[..., Any]:
    """Returns the socket's `send` without pyzmq's wrapper for draft sockets, a third of the cost of a small message."""
    return cast(Callable[..., Any], super(zmq.Socket, socket).send)


def file_descriptor(socket: zmq.Socket[bytes]) -> int:
    """Returns the descriptor for a selector. It is edge-triggered: read the socket's events after each wake-up."""
    return cast(int, socket.getsockopt(zmq.FD))


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received without blocking."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & _POLLIN)


def is_writable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be sent without blocking."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & _POLLOUT)


_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)
