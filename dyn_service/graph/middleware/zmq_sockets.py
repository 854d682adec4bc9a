"""ZeroMQ contexts and sockets of nodes: contexts that close within a bound, and messages whose sender is checked."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import zmq

from dyn_service.service.protocol.endpoints import check_uid

Context = zmq.Context[zmq.Socket[bytes]]
CLOSE_S = 3.0
"""Longest wait for the end of a context."""
_POLLIN = int(zmq.POLLIN)
_LOG = logging.getLogger(__name__)


@contextmanager
def open_context(linger_ms: int = 0) -> Iterator[Context]:
    """Yields a ZeroMQ context, then closes it; see `close_context`."""
    context: Context = zmq.Context()
    try:
        yield context
    finally:
        close_context(context, linger_ms)


def close_context(context: zmq.Context[Any], linger_ms: int = 0) -> None:
    """Closes the sockets of a context and terminates it; returns after `CLOSE_S` at the latest, with a warning.

    libzmq waits without a limit for every socket, and an interrupt inside pyzmq can leave one that nothing closes. Such
    a context ends with the process.

    linger_ms: for how long the sockets that are still open may send what waits.
    """
    # in a thread that is given up after a while: `term` cannot be interrupted
    closing = threading.Thread(target=context.destroy, args=(linger_ms,), name="dyn-zmq-close", daemon=True)
    closing.start()
    closing.join(CLOSE_S)
    if closing.is_alive():
        _LOG.warning("a ZeroMQ context did not close within %g s: a socket is open or has unsent messages", CLOSE_S)


def receive_checked(socket: zmq.Socket[bytes], endpoint: str) -> bytes:
    """Returns the next message, which must have arrived; over ipc on Linux its sender's user is checked.

    libzmq reads SO_PEERCRED for each connection and attaches the result to each of its messages, so the check also
    holds after a reconnect. Messages of ZMTP 1 and 2 lack this property and are refused.

    Raises:
        PermissionDeniedError: The sender runs neither as this process's user nor as root, or its user is unknown.
        zmq.Again: There is no message.
    """
    if not (endpoint.startswith("ipc://") and _HAS_USERS):
        return socket.recv(zmq.NOBLOCK)
    frame = socket.recv(zmq.NOBLOCK, copy=False)
    try:
        uid = _uid_in(cast(str, frame.get("Peer-Address")))
    except zmq.ZMQError:
        uid = None
    check_uid(uid, endpoint)
    return frame.bytes


_HAS_USERS = hasattr(socket, "SO_PEERCRED")


@lru_cache(maxsize=64)
def _uid_in(address: str) -> int | None:
    """Returns the user id in a `Peer-Address`, `localhost:UID:GID:PID`."""
    try:
        return int(address.split(":")[-3])
    except (IndexError, ValueError):
        return None


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received without blocking."""
    events: Any = socket.getsockopt(zmq.EVENTS)
    return bool(events & _POLLIN)
