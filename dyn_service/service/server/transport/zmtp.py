"""Server side of ZMTP 3 for one connection: bytes in, messages out. No socket and no clock.

libzmq's ROUTER socket stores all parts of a message and cannot bound their number: two bytes on the wire become 64 in
memory and take 2 us of the server's thread, without authentication. This decoder counts parts as they arrive, stores
only the part that a request has, and rejects messages with too many. Peers are DEALER and REQ sockets of any library
that implements ZMTP 3.0 or 3.1 with mechanism NULL (https://rfc.zeromq.org/spec/37). Encrypted endpoints use libzmq,
see `encrypted`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
"""Signature, version 3.1, mechanism, not `as-server`, filler: 64 bytes."""

MAX_PARTS = 16
"""Maximum number of parts of a message. A request has one or two; the sender of up to 16 gets an error reply, the
connection of a sender of more is closed.
"""

_MORE, _LONG, _COMMAND = 1, 2, 4
_BIG = 1 << 15  # longer parts are collected in their own buffer, without copying data read with them

_MAX_COMMAND = 1 << 12
Buffer = Any
"""Writable memory: `bytearray`, `mmap.mmap`."""

_PEERS = (b"DEALER", b"REQ")


class ProtocolError(Exception):
    """The peer violates ZMTP 3; its connection must be closed.

    farewell: bytes to send to the peer first.
    """

    def __init__(self, message: str, farewell: bytes = b"") -> None:
        super().__init__(message)
        self.farewell = farewell


class Message(NamedTuple):
    """A complete message.

    payload: the payload of a request, empty for other messages. parts: number of parts; 0 is a command, after which the
    bytes from `Decoder.take_answers` are to be sent. is_req: whether an empty part came first, as REQ sockets send it.
    """

    payload: bytes | memoryview
    parts: int
    is_req: bool


_A_COMMAND = Message(b"", 0, False)


def _command(name: bytes, body: bytes = b"") -> bytes:
    content = bytes([len(name)]) + name + body
    return bytes([_COMMAND, len(content)]) + content


def _properties(**values: bytes) -> bytes:
    parts = ((name.replace("_", "-").encode(), value) for name, value in values.items())
    return b"".join(bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value for name, value in parts)


READY = _command(b"READY", _properties(Socket_Type=b"ROUTER", Identity=b""))
PING = _command(b"PING", bytes(2))


def head(size: int, *, is_req: bool) -> bytes:
    """Returns the frame header of a reply with one part."""
    length = bytes([0, size]) if size < 256 else b"\2" + size.to_bytes(8, "big")
    return b"\1\0" + length if is_req else length


class Decoder:
    """Decodes what one peer sends.

    Args:
        max_bytes: Maximum size of a message, all parts together.
        allocate: Returns a buffer for a long part, given its size, before it arrives.
    """

    def __init__(self, max_bytes: int, allocate: Callable[[int], Buffer] = bytearray) -> None:
        self._max_bytes = max_bytes
        self._allocate = allocate
        self._data, self._at = b"", 0
        self._answers = b""
        self.ready = False  # whether the handshake is complete, so that messages may be exchanged
        self._is_req = False
        self._payload: bytes | memoryview = b""
        self.minor = -1  # the peer's minor version after its greeting; PING exists since 3.1
        self._next_message()
        self._missing, self._more, self._is_whole = 0, False, False
        self._big: memoryview | None = None

    @property
    def buffer(self) -> memoryview | None:
        """Buffer for the rest of a long part, or None. After writing to it call `wrote`, not `feed`."""
        return None if self._big is None or self._at < len(self._data) else self._big[-self._missing :]

    def wrote(self, count: int) -> None:
        """Reports that `count` bytes were written to `buffer`."""
        self._missing -= count
        self._is_whole = not self._missing

    @property
    def held(self) -> int:
        """Bytes stored that `next` has not returned yet."""
        gathered = 0 if self._big is None else len(self._big) - self._missing
        return len(self._data) - self._at + len(self._payload) + gathered

    def feed(self, data: bytes) -> None:
        """Takes bytes from the peer."""
        self._data = data if self._at == len(self._data) else self._data[self._at :] + data
        self._at = 0

    def take_answers(self) -> bytes:
        """Returns the replies to commands received since the last call."""
        answers, self._answers = self._answers, b""
        return answers

    def next(self) -> Message | None:
        """Returns the next message, or None if more bytes are needed; on `ProtocolError` close the connection."""
        if self.minor < 0 and not self._greeted():
            return None
        while True:
            if self._missing or self._is_whole:
                if not self._gather():
                    return None
            else:
                frame = self._frame()
                if frame is None:
                    return None
                flags, begin, size = frame
                whole = begin + size <= len(self._data)
                if not whole and size <= _BIG:
                    return None
                if flags & _COMMAND or not self.ready:
                    return self._command(flags, begin, size)
                self._count(size)
                self._more = bool(flags & _MORE)
                kept = not self._more and self._parts == 1 + self._is_req  # other parts are not part of a request
                if whole:
                    self._at = begin + size
                    if kept:
                        self._payload = self._data[begin : self._at]
                else:
                    self._at, self._missing = begin, size
                    self._big = memoryview(self._allocate(size)) if kept else None
                    continue
            if self._more:
                self._is_req = self._is_req or (self._parts == 1 and not self._bytes)
                continue
            message = Message(self._payload, self._parts, self._is_req)
            self._next_message()
            return message

    def _frame(self) -> tuple[int, int, int] | None:
        """Returns flags, begin and size of the next frame's content, or None if its header is incomplete."""
        data, at = self._data, self._at
        left = len(data) - at
        if not left:
            return None
        flags = data[at]
        if flags & ~(_MORE | _LONG | _COMMAND) or flags & (_COMMAND | _MORE) == _COMMAND | _MORE:
            raise ProtocolError(f"a frame with flags {flags:#04x}")
        if flags & _LONG:
            return None if left < 9 else (flags, at + 9, int.from_bytes(data[at + 1 : at + 9], "big"))
        return None if left < 2 else (flags, at + 2, data[at + 1])

    def _next_message(self) -> None:
        self._parts = self._bytes = 0
        self._is_req = False
        self._payload = b""

    def _count(self, size: int) -> None:
        self._parts += 1
        self._bytes += size
        if self._bytes > self._max_bytes:
            raise ProtocolError(f"a message of {self._bytes} bytes or more, the limit is {self._max_bytes}")
        if self._parts > MAX_PARTS:
            raise ProtocolError(f"a message of more than {MAX_PARTS} parts")

    def _gather(self) -> bool:
        """Adds available bytes to a long part; returns whether it is complete."""
        count = min(self._missing, len(self._data) - self._at)
        if self._big is not None and count:
            begin = len(self._big) - self._missing
            self._big[begin : begin + count] = self._data[self._at : self._at + count]
        self._at += count
        self._missing -= count
        if self._missing:
            return False
        self._is_whole = False
        if self._big is not None:
            self._payload, self._big = self._big, None
        return True

    def _greeted(self) -> bool:
        """Reads the peer's greeting; False if it is incomplete."""
        data = self._data
        if (data[:1] or b"\xff") != b"\xff" or (len(data) > 9 and not data[9] & 1):
            raise ProtocolError("no greeting of ZMTP 3")
        if len(data) > 10 and data[10] < 3:
            raise ProtocolError(f"ZMTP {data[10]}, this server speaks ZMTP 3")
        if len(data) < len(GREETING):
            return False
        mechanism = data[12:32].rstrip(b"\0")
        if mechanism != b"NULL":
            raise ProtocolError(f"the mechanism {mechanism[:20]!r}, this endpoint speaks NULL")
        self.minor = data[11] if data[10] == 3 else 1
        self._at = len(GREETING)
        return True

    def _command(self, flags: int, begin: int, size: int) -> Message:
        if not flags & _COMMAND:
            raise ProtocolError("a message before READY")
        if size > _MAX_COMMAND:
            raise ProtocolError(f"a command of {size} bytes")
        self._at = begin + size
        body = self._data[begin : self._at]
        length = body[0] if body else 0
        name, rest = body[1 : 1 + length], body[1 + length :]
        if not self.ready:
            self._meet(name, rest)
        elif name == b"PING":
            self._answers += _command(b"PONG", rest[2:18])
        elif name == b"ERROR":
            raise ProtocolError("the peer ends with an error of its own")
        return _A_COMMAND

    def _meet(self, name: bytes, rest: bytes) -> None:
        if name != b"READY":
            raise ProtocolError(f"the command {name[:20]!r}, expected READY")
        at, kind = 0, b""
        while at < len(rest):
            begin = at + 1 + rest[at]
            label, begin = rest[at + 1 : begin], begin + 4
            at = begin + int.from_bytes(rest[begin - 4 : begin], "big")
            if begin > len(rest) or at > len(rest):
                raise ProtocolError("a READY whose properties are cut off")
            if label.lower() == b"socket-type":
                kind = rest[begin:at]
        if kind not in _PEERS:
            reason = b"connect a DEALER or a REQ socket"
            raise ProtocolError(
                f"a socket of type {kind[:20]!r}, expected DEALER or REQ",
                _command(b"ERROR", bytes([len(reason)]) + reason),
            )
        self.ready = True
