"""ZMTP 3 and CurveZMQ written from RFC 37 and RFC 26 alone, on libsodium's functions: peers of `zmtp` in tests.

They share no line with the package, so that a fault which both roles of the package have in common shows. Every key and
nonce can be specified, and every field of a command replaced, so that tests can send what no honest peer sends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nacl.bindings import (
    crypto_box,
    crypto_box_keypair,
    crypto_box_open,
    crypto_scalarmult_base,
    crypto_secretbox,
    crypto_secretbox_open,
    randombytes,
)

MORE, LONG, COMMAND = 1, 2, 4

GREETING_SIZE = 64
HELLO_SIZE = 200
WELCOME_SIZE = 168
INITIATE_MIN_SIZE = 257
READY_MIN_SIZE = 30
MESSAGE_MIN_SIZE = 33


class KeyPair(NamedTuple):
    """Raw Curve25519 keys, 32 bytes each."""

    public: bytes
    secret: bytes


def new_keys(secret: bytes | None = None) -> KeyPair:
    """Returns a random key pair, or that of a secret key."""
    return KeyPair(*crypto_box_keypair()) if secret is None else KeyPair(crypto_scalarmult_base(secret), secret)


def greeting(mechanism: bytes = b"NULL", *, as_server: bool = False, major: int = 3, minor: int = 1) -> bytes:
    """signature version mechanism as-server filler (RFC 37)."""
    return (
        b"\xff"
        + bytes(8)
        + b"\x7f"
        + bytes([major, minor])
        + mechanism.ljust(20, b"\0")
        + bytes([as_server])
        + bytes(31)
    )


class Frame(NamedTuple):
    """Flags without `LONG`, and content."""

    flags: int
    body: bytes


def frame(body: bytes, flags: int = 0, *, long: bool | None = None) -> bytes:
    """A frame: flags, size, body. long: whether the size has eight octets; None: if the body has over 255."""
    long = len(body) > 255 if long is None else long
    return bytes([flags | LONG * long]) + (struct.pack(">Q", len(body)) if long else bytes([len(body)])) + body


def command(name: bytes, data: bytes = b"") -> bytes:
    """A command frame of RFC 37."""
    return frame(bytes([len(name)]) + name + data, COMMAND)


def message(*parts: bytes) -> bytes:
    """The frames of a message."""
    return b"".join(frame(part, MORE * (k < len(parts) - 1)) for k, part in enumerate(parts))


def read_frames(data: bytes) -> list[Frame]:
    """Returns all frames of a stream that ends with a whole frame."""
    frames, position = [], 0
    while position < len(data):
        flags = data[position]
        if flags & LONG:
            (size,) = struct.unpack_from(">Q", data, position + 1)
        else:
            size = data[position + 1]
        position += 9 if flags & LONG else 2
        assert position + size <= len(data), "the last frame is not whole"
        frames.append(Frame(flags & ~LONG, data[position : position + size]))
        position += size
    return frames


def read_command(body: bytes, name: bytes) -> bytes:
    """Returns the data of a command that has this name."""
    assert body[: 1 + len(name)] == bytes([len(name)]) + name, f"{body[:10]!r} is not {name!r}"
    return body[1 + len(name) :]


def metadata(properties: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]]) -> bytes:
    """The properties of a READY or INITIATE."""
    pairs = properties.items() if isinstance(properties, Mapping) else properties
    return b"".join(bytes([len(name)]) + name + struct.pack(">I", len(value)) + value for name, value in pairs)


def read_metadata(data: bytes) -> dict[bytes, bytes]:
    """Returns the properties, names in lower case."""
    properties, position = {}, 0
    while position < len(data):
        length = data[position]
        name = data[position + 1 : position + 1 + length]
        position += 1 + length
        (size,) = struct.unpack_from(">I", data, position)
        assert length
        assert position + 4 + size <= len(data)
        properties[name.lower()] = data[position + 4 : position + 4 + size]
        position += 4 + size
    return properties


def null_ready(socket_type: bytes = b"DEALER", *properties: tuple[bytes, bytes]) -> bytes:
    """The READY of mechanism NULL."""
    return command(b"READY", metadata([(b"Socket-Type", socket_type), *properties]))


def short_nonce(prefix: bytes, number: int) -> bytes:
    """16 characters and an integer of 8 octets."""
    assert len(prefix) == 16
    return prefix + struct.pack(">Q", number)


def long_nonce(prefix: bytes, octets: bytes) -> bytes:
    """8 characters and 16 octets."""
    assert (len(prefix), len(octets)) == (8, 16)
    return prefix + octets


@dataclass
class CurveEnd:
    """What both roles have: `short` is the transient key pair."""

    keys: KeyPair
    short: KeyPair = field(default_factory=new_keys)
    peer_short: bytes = b""
    nonce: int = 0
    peer_nonce: int = 0

    send_prefix = b""
    receive_prefix = b""

    def next_nonce(self) -> int:
        """Counts from 1."""
        self.nonce += 1
        return self.nonce

    def message(self, data: bytes, flags: int = 0, *, nonce: int | None = None) -> bytes:
        """A MESSAGE in a message frame, as libzmq sends it. flags: 1 more, 2 command (ZMTP 3.1)."""
        number = self.next_nonce() if nonce is None else nonce
        sealed = crypto_box(
            bytes([flags]) + data, short_nonce(self.send_prefix, number), self.peer_short, self.short.secret
        )
        return frame(b"\x07MESSAGE" + struct.pack(">Q", number) + sealed)

    def read_message(self, body: bytes) -> tuple[int, bytes]:
        """Returns flags and data of a MESSAGE."""
        assert len(body) >= MESSAGE_MIN_SIZE
        data = read_command(body, b"MESSAGE")
        (number,) = struct.unpack(">Q", data[:8])
        assert number > self.peer_nonce, "a nonce that does not increase"
        self.peer_nonce = number
        text = crypto_box_open(data[8:], short_nonce(self.receive_prefix, number), self.peer_short, self.short.secret)
        return text[0], text[1:]


@dataclass
class CurveClient(CurveEnd):
    """A client of RFC 26. vouched_*: what the vouch says; None: the truth."""

    server_public: bytes = b""
    socket_type: bytes = b"DEALER"
    properties: bytes | None = None
    vouch_nonce: bytes = field(default_factory=lambda: randombytes(16))
    vouched_transient: bytes | None = None
    vouched_server: bytes | None = None
    vouch_secret: bytes | None = None
    sent_public: bytes | None = None
    minor: int = 1

    send_prefix = b"CurveZMQMESSAGEC"
    receive_prefix = b"CurveZMQMESSAGES"

    def greeting(self) -> bytes:
        """A client is not as-server."""
        return greeting(b"CURVE", minor=self.minor)

    def hello(
        self,
        *,
        version: bytes = b"\1\0",
        padding: bytes = bytes(72),
        signed: bytes = bytes(64),
        nonce: int | None = None,
        tail: bytes = b"",
    ) -> bytes:
        """HELLO as a command frame."""
        number = self.next_nonce() if nonce is None else nonce
        sealed = crypto_box(signed, short_nonce(b"CurveZMQHELLO---", number), self.server_public, self.short.secret)
        return command(b"HELLO", version + padding + self.short.public + struct.pack(">Q", number) + sealed + tail)

    def read_welcome(self, body: bytes) -> tuple[bytes, bytes]:
        """Returns S' and the cookie."""
        assert len(body) == WELCOME_SIZE
        data = read_command(body, b"WELCOME")
        text = crypto_box_open(data[16:], long_nonce(b"WELCOME-", data[:16]), self.server_public, self.short.secret)
        self.peer_short, cookie = text[:32], text[32:]
        assert len(cookie) == 96
        return self.peer_short, cookie

    def initiate(self, cookie: bytes, *, nonce: int | None = None, tail: bytes = b"") -> bytes:
        """INITIATE as a command frame."""
        transient = self.short.public if self.vouched_transient is None else self.vouched_transient
        server = self.server_public if self.vouched_server is None else self.vouched_server
        vouch = self.vouch_nonce + crypto_box(
            transient + server,
            long_nonce(b"VOUCH---", self.vouch_nonce),
            self.peer_short,
            self.keys.secret if self.vouch_secret is None else self.vouch_secret,
        )
        public = self.keys.public if self.sent_public is None else self.sent_public
        properties = self.properties
        if properties is None:
            properties = metadata([(b"Socket-Type", self.socket_type), (b"Identity", b"")])
        number = self.next_nonce() if nonce is None else nonce
        sealed = crypto_box(
            public + vouch + properties,
            short_nonce(b"CurveZMQINITIATE", number),
            self.peer_short,
            self.short.secret,
        )
        return command(b"INITIATE", cookie + struct.pack(">Q", number) + sealed + tail)

    def read_ready(self, body: bytes) -> dict[bytes, bytes]:
        """Returns the server's metadata."""
        assert len(body) >= READY_MIN_SIZE
        data = read_command(body, b"READY")
        (self.peer_nonce,) = struct.unpack(">Q", data[:8])
        text = crypto_box_open(
            data[8:], short_nonce(b"CurveZMQREADY---", self.peer_nonce), self.peer_short, self.short.secret
        )
        return read_metadata(text)


@dataclass
class CurveServer(CurveEnd):
    """A server of RFC 26."""

    cookie_key: bytes = field(default_factory=lambda: randombytes(32))
    welcome_nonce: bytes = field(default_factory=lambda: randombytes(16))
    cookie_nonce: bytes = field(default_factory=lambda: randombytes(16))
    socket_type: bytes = b"ROUTER"
    properties: bytes | None = None
    client_public: bytes = b""
    minor: int = 1

    send_prefix = b"CurveZMQMESSAGES"
    receive_prefix = b"CurveZMQMESSAGEC"

    def greeting(self) -> bytes:
        """A server is as-server."""
        return greeting(b"CURVE", as_server=True, minor=self.minor)

    def read_hello(self, body: bytes) -> None:
        """Checks each field of a HELLO and keeps C'."""
        assert len(body) == HELLO_SIZE
        data = read_command(body, b"HELLO")
        assert data[:2] == b"\1\0"
        assert data[2:74] == bytes(72)
        self.peer_short = data[74:106]
        (self.peer_nonce,) = struct.unpack(">Q", data[106:114])
        signed = crypto_box_open(
            data[114:], short_nonce(b"CurveZMQHELLO---", self.peer_nonce), self.peer_short, self.keys.secret
        )
        assert signed == bytes(64)

    def welcome(self) -> bytes:
        """WELCOME as a command frame."""
        cookie = self.cookie_nonce + crypto_secretbox(
            self.peer_short + self.short.secret, long_nonce(b"COOKIE--", self.cookie_nonce), self.cookie_key
        )
        sealed = crypto_box(
            self.short.public + cookie,
            long_nonce(b"WELCOME-", self.welcome_nonce),
            self.peer_short,
            self.keys.secret,
        )
        return command(b"WELCOME", self.welcome_nonce + sealed)

    def read_initiate(self, body: bytes) -> dict[bytes, bytes]:
        """Checks each field of an INITIATE; keeps the client's public key and returns its metadata."""
        assert len(body) >= INITIATE_MIN_SIZE
        data = read_command(body, b"INITIATE")
        cookie, sealed = data[:96], data[104:]
        assert crypto_secretbox_open(cookie[16:], long_nonce(b"COOKIE--", cookie[:16]), self.cookie_key) == (
            self.peer_short + self.short.secret
        )
        (number,) = struct.unpack(">Q", data[96:104])
        assert number > self.peer_nonce, "a nonce that does not increase"
        self.peer_nonce = number
        text = crypto_box_open(sealed, short_nonce(b"CurveZMQINITIATE", number), self.peer_short, self.short.secret)
        public, vouch, properties = text[:32], text[32:128], text[128:]
        vouched = crypto_box_open(vouch[16:], long_nonce(b"VOUCH---", vouch[:16]), public, self.short.secret)
        assert vouched == self.peer_short + self.keys.public
        self.client_public = public
        return read_metadata(properties)

    def ready(self, *, nonce: int | None = None) -> bytes:
        """READY as a command frame."""
        properties = self.properties
        if properties is None:
            properties = metadata([(b"Socket-Type", self.socket_type), (b"Identity", b"")])
        number = self.next_nonce() if nonce is None else nonce
        sealed = crypto_box(properties, short_nonce(b"CurveZMQREADY---", number), self.peer_short, self.short.secret)
        return command(b"READY", struct.pack(">Q", number) + sealed)


def error(reason: bytes) -> bytes:
    """ERROR as a command frame."""
    return command(b"ERROR", bytes([len(reason)]) + reason)
