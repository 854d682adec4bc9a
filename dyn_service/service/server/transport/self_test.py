"""Tries out an encrypted endpoint before it serves: strangers must be refused, the server's own key let in."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from dyn_service.errors import FailedPreconditionError
from dyn_service.service.protocol.keys import Keys, make_keys, use_keys

_LIMIT_S = 10.0
"""A handshake on this machine takes milliseconds; what is not settled by then is a fault."""

_WAIT_MS = 5
_OUTCOMES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def prove(endpoint: str, keys: Keys, admit: Callable[[], None]) -> None:
    """Tries out an endpoint that is bound.

    Args:
        endpoint: With the port that was chosen.
        keys: The server's.
        admit: Lets connections in, or not; called while the endpoint is tried.

    Raises:
        FailedPreconditionError: It lets a stranger in, or nobody at all.
    """
    stranger = make_keys("stranger", keys.public)
    broken_off = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    for who, tried, expected in (
        ("a key that is on no list", stranger, zmq.EVENT_HANDSHAKE_FAILED_AUTH),
        ("no key", None, broken_off),
        ("the server's own key", Keys(keys.name, keys.public, keys.secret, keys.public), zmq.EVENT_HANDSHAKE_SUCCEEDED),
    ):
        outcome = knock(endpoint, tried, admit)
        if not outcome & expected:
            found = "let in" if outcome == zmq.EVENT_HANDSHAKE_SUCCEEDED else "not answered as it should be"
            raise FailedPreconditionError(
                f"{endpoint} is not safe, and is not served: {who} was {found} (event {outcome})", path="endpoints"
            )


def knock(endpoint: str, keys: Keys | None, admit: Callable[[], None]) -> int:
    """The event in which a handshake with these keys ends; 0: in none."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    if keys is not None:
        use_keys(socket, keys)
    monitor = socket.get_monitor_socket(_OUTCOMES)
    try:
        socket.connect(_from_here(endpoint))
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            admit()
            if monitor.poll(_WAIT_MS):
                return int(parse_monitor_message(monitor.recv_multipart())["event"])
        return 0
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close()
        context.term()


def _from_here(endpoint: str) -> str:
    """Where to connect to an endpoint that may listen on all addresses."""
    return endpoint.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
