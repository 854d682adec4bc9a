"""How a client's socket is set up, and how it survives a fork."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import zmq

from dyn_service.protocol.limits import MAX_MESSAGE_BYTES

_RECONNECT_MS = 20
_RECONNECT_MAX_MS = 500
_HEARTBEAT_MS = 2000

_S = TypeVar("_S", bound="zmq.Socket[Any]")

_forks = 0


def _note_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def forks() -> int:
    """Counts the forks between the first process and this one: a socket that was made before one is of no use."""
    return _forks


def prepare(socket: _S) -> _S:
    """Sets up a DEALER socket that has not been connected.

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
    return socket
