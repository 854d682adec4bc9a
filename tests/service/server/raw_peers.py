"""Clients by plain sockets, with and without encryption, that send what no ZeroMQ library would."""

from __future__ import annotations

import socket
from typing import Any

from dyn_service.service.protocol.keys import Keys, z85_decode
from tests.service.conftest import WAIT_MS, eventually
from tests.service.protocol import rfc_peers

MECHANISMS = ("NULL", "CURVE")

NULL_START = rfc_peers.greeting(minor=0) + rfc_peers.null_ready()
"""All that a DEALER of ZMTP 3.0 sends before its messages, without encryption."""


def connected(endpoint: str) -> socket.socket:
    """Returns a TCP or Unix socket."""
    if endpoint.startswith("ipc://"):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(endpoint.removeprefix("ipc://"))
    else:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        peer = socket.create_connection((host, int(port)))
    peer.settimeout(WAIT_MS / 1e3)
    return peer


def receive_exactly(peer: socket.socket, size: int) -> bytes:
    """Returns so many bytes; `ConnectionError` if there are fewer."""
    data = b""
    while len(data) < size:
        piece = peer.recv(size - len(data))
        if not piece:
            raise ConnectionError(f"{len(data)} of {size} bytes")
        data += piece
    return data


def receive_frame(peer: socket.socket) -> rfc_peers.Frame:
    """Returns the next frame."""
    header = receive_exactly(peer, 2)
    if header[0] & rfc_peers.LONG:
        header += receive_exactly(peer, 7)
    size = int.from_bytes(header[1:], "big")
    return rfc_peers.Frame(header[0] & ~rfc_peers.LONG, receive_exactly(peer, size))


class RawPeer:
    """A client whose handshake is done step by step.

    keys: the client's, with the server's public key, for an encrypted endpoint; None: no encryption.
    """

    def __init__(self, endpoint: str, keys: Keys | None = None, minor: int = 1) -> None:
        self.socket = connected(endpoint)
        self.minor = minor
        self.curve: rfc_peers.CurveClient | None = None
        if keys is not None:
            pair = rfc_peers.KeyPair(z85_decode(keys.public), z85_decode(keys.secret))
            self.curve = rfc_peers.CurveClient(pair, server_public=z85_decode(keys.server), minor=minor)

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def shake_hands(self) -> RawPeer:
        """Completes the handshake."""
        if self.curve is None:
            self.socket.sendall(rfc_peers.greeting(minor=self.minor) + rfc_peers.null_ready())
            receive_exactly(self.socket, rfc_peers.GREETING_SIZE)
            receive_frame(self.socket)
        else:
            self.initiate(self.welcome())
        return self

    def welcome(self) -> bytes:
        """Sends HELLO and returns the cookie of WELCOME."""
        assert self.curve is not None
        self.socket.sendall(self.curve.greeting())
        receive_exactly(self.socket, rfc_peers.GREETING_SIZE)
        self.socket.sendall(self.curve.hello())
        _, cookie = self.curve.read_welcome(receive_frame(self.socket).body)
        return cookie

    def initiate(self, cookie: bytes) -> None:
        """Sends INITIATE and reads READY; `ConnectionError` if the server closes instead."""
        assert self.curve is not None
        self.socket.sendall(self.curve.initiate(cookie))
        body = receive_frame(self.socket).body
        if body.startswith(b"\5ERROR"):
            raise ConnectionError(body[7:].decode())
        self.curve.read_ready(body)

    def part(self, content: bytes, *, continued: bool = False) -> bytes:
        """Returns the frame of a part."""
        if self.curve is not None:
            return self.curve.message(content, int(continued))
        return rfc_peers.frame(content, rfc_peers.MORE * continued)

    def command(self, name: bytes, content: bytes = b"") -> bytes:
        """Returns the frame of a command."""
        if self.curve is not None:
            return self.curve.message(bytes([len(name)]) + name + content, 2)
        return rfc_peers.command(name, content)

    def receive(self) -> bytes:
        """Returns the content of the next frame: a part or a command."""
        body = receive_frame(self.socket).body
        return body if self.curve is None else self.curve.read_message(body)[1]


def turn(server: Any, most_s: float = 0.0) -> None:
    """One turn of a server that has no thread of its own."""
    server._turn(most_s)


def look(server: Any) -> None:
    """Waits until the server has checked all its connections once more, from begin to end."""
    seen_ns = server._next_look_ns
    eventually(lambda: server._next_look_ns > seen_ns + 200_000_000)


def is_closed(peer: socket.socket) -> bool:
    """Reads until the server has closed the connection."""
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def counters(server: Any) -> dict[str, int]:
    """Returns the counters of a server, as `stats` reports them."""
    values: dict[str, int] = server.service.metrics.to_dict()["counters"]
    return values


def gauges(server: Any) -> dict[str, float]:
    """Returns the gauges of a server, as `stats` reports them."""
    values: dict[str, float] = server.service.metrics.to_dict()["gauges"]
    return values
