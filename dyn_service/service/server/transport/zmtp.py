"""ZMTP 3, a server's end of one connection: bytes in, messages out. No socket and no clock.

ZeroMQ's own ROUTER socket takes a message's parts into memory until the last one is there, and nothing it offers bounds
their number: two bytes on the wire become 64 in memory and cost the server's thread 2 us, for whoever connects. Here
parts are counted as they come, none but the one that a request has is kept, and a peer that sends too many is shown
the door. The peers are ZeroMQ's: DEALER and REQ sockets of any library that speaks ZMTP 3.0 or 3.1, mechanism NULL
(https://rfc.zeromq.org/spec/37). Encrypted endpoints are ZeroMQ's own, see `keyed`.

    decoder = Decoder(max_bytes)
    socket.send(decoder.greeting)
    decoder.feed(socket.recv(65536))
    while (message := decoder.next()) is not None: ..
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
"""Signature, version 3.1, mechanism, not `as-server`, filler: 64 bytes."""

MAX_PARTS = 16
"""Parts of one message. A request has one, or two; up to these the sender is told so, beyond it is cut off."""

_MORE, _LONG, _COMMAND = 1, 2, 4
_BIG = 1 << 15
"""A part longer than this is gathered by itself, so that what is read beside it need not be copied."""

_MAX_COMMAND = 1 << 12
Buffer = Any
"""Memory that can be written: `bytearray`, `mmap.mmap`."""

_PEERS = (b"DEALER", b"REQ")


class ProtocolError(Exception):
    """The peer does not speak ZMTP 3, or sends what nobody may. The message says what; the connection is to end.

    farewell: what is to be sent to the peer before.
    """

    def __init__(self, message: str, farewell: bytes = b"") -> None:
        super().__init__(message)
        self.farewell = farewell


class Message(NamedTuple):
    """A message whose last part has come.

    payload: of a request, the one part that counts; else empty. parts: how many there were; 0 is a command, for which
    nothing is to be done but to send what `Decoder.take_answers` gives. is_req: whether an empty part came first,
    as REQ sockets send it.
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
    """What goes before the one part of a reply."""
    length = bytes([0, size]) if size < 256 else b"\2" + size.to_bytes(8, "big")
    return b"\1\0" + length if is_req else length


class Decoder:
    """What a peer has said so far.

    Args:
        max_bytes: Of a message, its parts together.
        make_room: Gives the place for a long part of that many bytes, before they have come.
    """

    __slots__ = (
        "_answers",
        "_at",
        "_big",
        "_bytes",
        "_data",
        "_is_req",
        "_is_whole",
        "_make_room",
        "_max_bytes",
        "_missing",
        "_more",
        "_parts",
        "_payload",
        "_ready",
        "minor",
    )

    def __init__(self, max_bytes: int, make_room: Callable[[int], Buffer] = bytearray) -> None:
        self._max_bytes = max_bytes
        self._make_room = make_room
        self._data, self._at = b"", 0
        self._answers = b""
        self._ready = False
        self._is_req = False
        self._payload: bytes | memoryview = b""
        self.minor = -1
        """The peer's minor version, once it has greeted; PING came with 3.1."""
        self._next_message()
        self._missing, self._more, self._is_whole = 0, False, False
        self._big: memoryview | None = None

    @property
    def ready(self) -> bool:
        """Whether the peer has said who it is: from then on messages come, and may be sent."""
        return self._ready

    @property
    def room(self) -> memoryview | None:
        """Where the rest of a long part is to go, for which `took` is called in place of `feed`; or None."""
        return None if self._big is None or self._at < len(self._data) else self._big[-self._missing :]

    def took(self, count: int) -> None:
        """Notes that so many bytes were written to `room`."""
        self._missing -= count
        self._is_whole = not self._missing

    @property
    def held(self) -> int:
        """Bytes that are kept of what was not taken by `next` yet."""
        gathered = 0 if self._big is None else len(self._big) - self._missing
        return len(self._data) - self._at + len(self._payload) + gathered

    def feed(self, data: bytes) -> None:
        """Takes what the peer sent, before `next` is asked again."""
        self._data = data if self._at == len(self._data) else self._data[self._at :] + data
        self._at = 0

    def take_answers(self) -> bytes:
        """What is to be sent for commands that came; each is handed out once."""
        answers, self._answers = self._answers, b""
        return answers

    def next(self) -> Message | None:
        """The next message, or None: there is none without more bytes.

        Raises:
            ProtocolError: The connection is to end.
        """
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
                if flags & _COMMAND or not self._ready:
                    return self._command(flags, begin, size)
                self._count(size)
                self._more = bool(flags & _MORE)
                kept = not self._more and self._parts == 1 + self._is_req  # else no part of a request
                if whole:
                    self._at = begin + size
                    if kept:
                        self._payload = self._data[begin : self._at]
                else:
                    self._at, self._missing = begin, size
                    self._big = memoryview(self._make_room(size)) if kept else None
                    continue
            if self._more:
                self._is_req = self._is_req or (self._parts == 1 and not self._bytes)
                continue
            message = Message(self._payload, self._parts, self._is_req)
            self._next_message()
            return message

    def _frame(self) -> tuple[int, int, int] | None:
        """Flags, begin and size of the next frame's content; None while its head is not all there."""
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
        """Takes what is there of a big part; whether that is all of it."""
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
        """Reads the peer's greeting; False while it is not all there."""
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
        if not self._ready:
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
        self._ready = True
