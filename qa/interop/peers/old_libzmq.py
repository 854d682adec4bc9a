"""A peer of the interoperability run on another build of libzmq, by ctypes: `old_libzmq.py LIBRARY ROLE ..`.

See qa/interop/__init__.py for the roles.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

REQ, DEALER, ROUTER = 3, 5, 6
SNDMORE = 2
RCVMORE, LINGER, SNDHWM, RCVHWM = 13, 17, 23, 24
CURVE_SERVER, CURVE_PUBLICKEY, CURVE_SECRETKEY, CURVE_SERVERKEY = 47, 48, 49, 50
HEARTBEAT_IVL, HEARTBEAT_TTL, HEARTBEAT_TIMEOUT = 75, 76, 77
POLLIN = 1


class _Message(ctypes.Structure):
    _fields_ = (("opaque", ctypes.c_uint8 * 64),)


class _PollItem(ctypes.Structure):
    _fields_ = (
        ("socket", ctypes.c_void_p),
        ("fd", ctypes.c_int),
        ("events", ctypes.c_short),
        ("revents", ctypes.c_short),
    )


class Library:
    """The functions of a shared library that the roles need."""

    def __init__(self, path: str) -> None:
        self._functions = ctypes.CDLL(path, use_errno=True)
        for name in ("zmq_ctx_new", "zmq_socket", "zmq_msg_data"):
            getattr(self._functions, name).restype = ctypes.c_void_p
        self._functions.zmq_msg_size.restype = ctypes.c_size_t
        self._context = ctypes.c_void_p(self._functions.zmq_ctx_new())

    @property
    def version(self) -> str:
        """Of libzmq."""
        numbers = [ctypes.c_int() for _ in range(3)]
        self._functions.zmq_version(*map(ctypes.byref, numbers))
        return ".".join(str(number.value) for number in numbers)

    def _check(self, result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    def open(self, socket_type: int, keys: list[str]) -> ctypes.c_void_p:
        """Returns a socket with these keys."""
        socket = ctypes.c_void_p(self._functions.zmq_socket(self._context, socket_type))
        for option in (LINGER, SNDHWM, RCVHWM):
            self.set_number(socket, option, 0)
        if keys:
            for option, key in zip((CURVE_PUBLICKEY, CURVE_SECRETKEY, CURVE_SERVERKEY), keys, strict=False):
                text = key.encode() + b"\0"
                self._check(self._functions.zmq_setsockopt(socket, option, text, ctypes.c_size_t(len(text))))
            if len(keys) == 2:
                self.set_number(socket, CURVE_SERVER, 1)
        return socket

    def set_number(self, socket: ctypes.c_void_p, option: int, value: int) -> None:
        """Sets an integer option."""
        number = ctypes.c_int(value)
        self._check(self._functions.zmq_setsockopt(socket, option, ctypes.byref(number), ctypes.c_size_t(4)))

    def bind(self, socket: ctypes.c_void_p, endpoint: str) -> None:
        """Listens."""
        self._check(self._functions.zmq_bind(socket, endpoint.encode()))

    def connect(self, socket: ctypes.c_void_p, endpoint: str) -> None:
        """Connects, at some time."""
        self._check(self._functions.zmq_connect(socket, endpoint.encode()))

    def send(self, socket: ctypes.c_void_p, parts: list[bytes]) -> None:
        """Sends a message."""
        for k, part in enumerate(parts):
            flags = SNDMORE * (k < len(parts) - 1)
            self._check(self._functions.zmq_send(socket, part, ctypes.c_size_t(len(part)), flags))

    def receive(self, socket: ctypes.c_void_p) -> list[bytes]:
        """Returns the parts of the next message."""
        parts: list[bytes] = []
        more_parts, size = ctypes.c_int(1), ctypes.c_size_t(4)
        while more_parts.value:
            message = _Message()
            pointer: Any = ctypes.byref(message)
            self._check(self._functions.zmq_msg_init(pointer))
            self._check(self._functions.zmq_msg_recv(pointer, socket, 0))
            address = self._functions.zmq_msg_data(pointer)
            parts.append(ctypes.string_at(address, self._functions.zmq_msg_size(pointer)))
            self._check(self._functions.zmq_msg_close(pointer))
            self._check(self._functions.zmq_getsockopt(socket, RCVMORE, ctypes.byref(more_parts), ctypes.byref(size)))
        return parts

    def wait(self, *sockets: ctypes.c_void_p) -> list[bool]:
        """Waits for messages; returns which sockets have one."""
        items = (_PollItem * len(sockets))(*(_PollItem(each_socket, 0, POLLIN, 0) for each_socket in sockets))
        self._check(self._functions.zmq_poll(items, len(sockets), ctypes.c_long(-1)))
        return [bool(item.revents) for item in items]


def end_with_parent() -> None:
    """Ends the process when the parent closes standard input."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def client(library: Library, endpoint: str, socket_type: str, heartbeat_ms: str, *keys: str) -> None:
    """Sends a file for each line, and writes the reply to another."""
    socket = library.open(REQ if socket_type == "REQ" else DEALER, [*keys])
    if int(heartbeat_ms):
        for option, times in ((HEARTBEAT_IVL, 1), (HEARTBEAT_TTL, 100), (HEARTBEAT_TIMEOUT, 100)):
            library.set_number(socket, option, times * int(heartbeat_ms))
    library.connect(socket, endpoint)
    print("ready", flush=True)
    for line in sys.stdin:
        request, reply = map(Path, line.split())
        library.send(socket, [request.read_bytes()])
        reply.write_bytes(library.receive(socket)[-1])
        print("done", flush=True)
    os._exit(0)


def echo(library: Library, endpoint: str, *keys: str) -> None:
    """Returns each message."""
    end_with_parent()
    router = library.open(ROUTER, [*keys])
    library.bind(router, endpoint)
    print("ready", flush=True)
    while True:
        library.send(router, library.receive(router))


def relay(library: Library, endpoint: str, server: str, *keys: str) -> None:
    """Passes messages to a server and back."""
    end_with_parent()
    router, dealer = library.open(ROUTER, [*keys]), library.open(DEALER, [])
    library.bind(router, endpoint)
    library.connect(dealer, server)
    print("ready", flush=True)
    sender = b""
    while True:
        from_client, from_server = library.wait(router, dealer)
        if from_client:
            sender, message = library.receive(router)
            library.send(dealer, [message])
        if from_server:
            library.send(router, [sender, *library.receive(dealer)])


ROLES: dict[str, Callable[..., None]] = {"client": client, "echo": echo, "relay": relay}

if __name__ == "__main__":
    if sys.argv[2] == "version":
        print(Library(sys.argv[1]).version)
    else:
        ROLES[sys.argv[2]](Library(sys.argv[1]), *sys.argv[3:])
