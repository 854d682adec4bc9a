"""Why a server with keys does not let this client in: ZeroMQ tells it by events, the connection just never comes."""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from dyn_service.errors import PermissionDeniedError, UnavailableError
from dyn_service.protocol.keys import Keys
from dyn_service.protocol.sockets import is_readable

_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_CUT_SHORT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class Gate:
    """Has a socket connect anew, and listens to what becomes of that, within `with`.

    Args:
        socket: Whose.
        context: Its ZeroMQ context.
        endpoint: Where it connects to.
        keys: What it shows there.
    """

    def __init__(
        self, socket: zmq.Socket[Any], context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: Keys
    ) -> None:
        self._socket = socket
        self._endpoint = endpoint
        self._keys = keys
        self._event = 0
        name = f"inproc://dyn-gate-{os.urandom(16).hex()}"
        socket.monitor(name, _REFUSED | _CUT_SHORT)
        self._events = context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.RCVHWM, 0)  # a full one would hold up ZeroMQ's thread
        self._events.connect(name)
        with suppress(zmq.ZMQError):  # it may have gone: ZeroMQ does not try again by itself once a key was refused
            socket.disconnect(endpoint)
        socket.connect(endpoint)

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.disable_monitor()
        self._events.close(linger=0)

    def check(self, *, at_end: bool) -> None:
        """Raises if the server refused the client; at_end: nothing came of it in time, so also if it broke off.

        Raises:
            PermissionDeniedError: The key is not on the server's list.
            UnavailableError: The server has another public key than was thought, asks for none, or lets nobody in now.
        """
        while is_readable(self._events):
            self._event = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))["event"]
        if self._event & _REFUSED:
            raise PermissionDeniedError(f"{self._endpoint} does not let the key '{self._keys.name}' in", path="keys")
        if self._event & _CUT_SHORT and at_end:
            raise UnavailableError(
                f"{self._endpoint} broke off the handshake: its key is not {self._keys.server}, it asks for no keys, "
                f"or it lets '{self._keys.name}' in at another time"
            )
