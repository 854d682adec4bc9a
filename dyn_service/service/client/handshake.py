"""Detects that a server with keys refuses this client. ZeroMQ reports it as a monitor event; the connection is never
made.
"""

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
"""Events after which ZeroMQ does not reconnect, so that each `connect` causes at most one."""


class HandshakeMonitor:
    """Sets a socket's keys, and reports whether the server accepts them.

    Args:
        socket: The socket, not connected yet.
        context: Its ZeroMQ context.
        endpoint: The endpoint that it will connect to.
        keys: The client's keys and the server's public key.
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

    def reconnect(self) -> None:
        """Connects the socket again if ZeroMQ has given up."""
        self._look()
        if self._event:
            self._event = 0
            with suppress(zmq.ZMQError):  # ZeroMQ may have removed the endpoint
                self._socket.disconnect(self._endpoint)
            self._socket.connect(self._endpoint)

    def check(self) -> None:
        """Checks whether the server has refused the client since the last `reconnect`.

        Raises:
            PermissionDeniedError: The key is not on the server's list.
        """
        self._look()
        if self._event == _REFUSED:
            raise PermissionDeniedError(f"{self._endpoint} does not let the key '{self._keys.name}' in", path="keys")

    def close(self) -> None:
        """Stops monitoring; to be called before the socket is closed."""
        if not self._events.closed and os.getpid() == self._process:  # a forked child must not use its parent's sockets
            self._socket.disable_monitor()
            self._events.close(linger=0)

    def _look(self) -> None:
        while is_readable(self._events):
            self._event = int(parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))["event"])
