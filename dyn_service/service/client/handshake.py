"""Why a server with keys does not let this client in: ZeroMQ tells it by events, the connection just never comes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from dyn_service.errors import PermissionDeniedError
from dyn_service.service.protocol.keys import Keys, use_keys
from dyn_service.service.protocol.sockets import is_readable

_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_GIVEN_UP = _REFUSED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""After these ZeroMQ does not try again by itself, so that they come once for each time we have it connect."""


class Gate:
    """The way of one socket through a server's list of keys.

    Args:
        socket: Which; before it connects.
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
        self._process = os.getpid()
        use_keys(socket, keys)
        name = f"inproc://dyn-gate-{os.urandom(16).hex()}"
        socket.monitor(name, _GIVEN_UP)
        self._events = context.socket(zmq.PAIR)
        self._events.connect(name)

    def knock(self) -> None:
        """Reconnects the socket if it no longer tries to connect."""
        self._look()
        if self._event:
            self._event = 0
            with suppress(zmq.ZMQError):  # ZeroMQ may have forgotten it
                self._socket.disconnect(self._endpoint)
            self._socket.connect(self._endpoint)

    def check(self) -> None:
        """Asks whether the server has refused the client since it knocked.

        Raises:
            PermissionDeniedError: The key is not on the server's list.
        """
        self._look()
        if self._event == _REFUSED:
            raise PermissionDeniedError(f"{self._endpoint} does not let the key '{self._keys.name}' in", path="keys")

    def close(self) -> None:
        """Ends the watch; before the socket is closed."""
        if not self._events.closed and os.getpid() == self._process:  # a parent's sockets are none of a child's
            self._socket.disable_monitor()
            self._events.close(linger=0)

    def _look(self) -> None:
        while is_readable(self._events):
            self._event = int(parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))["event"])
