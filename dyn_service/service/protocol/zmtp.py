"""ZMTP 3 for one end of one connection: bytes to messages and back. No socket and no clock.

    connection = Connection(Null(), b"DEALER", max_bytes)
    send(connection.take_output())                 # the greeting; later the handshake's commands
    connection.feed(received)
    while (message := connection.next()) is not None: ...
    send(*connection.encode(payload))              # once `ready`

Both ends, versions 3.0 and 3.1 (https://rfc.zeromq.org/spec/37), mechanisms NULL (here) and CURVE (`curve`). Each
mechanism has a table of transitions; a command without an entry for the current state is a `ProtocolError`:

    NULL            GREETING -> READY -> TRAFFIC
    CURVE, client   GREETING -> WELCOME -> READY -> TRAFFIC
    CURVE, server   GREETING -> HELLO -> INITIATE -> TRAFFIC

A state is named after what is awaited from the peer. The table does not hold three things: in each state ERROR ends
the connection; in TRAFFIC messages and commands may arrive in any order, of which PING is answered and others are
ignored; the socket types must fit.

All that a peer can make grow is bounded: a command by `MAX_COMMAND_BYTES`, a message by `max_bytes` and `MAX_PARTS`.
Of a message with several parts only the part that a request or a reply has is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from struct import Struct
from typing import Any, ClassVar

import numpy as np

MAX_PARTS = 16
"""Maximum number of parts of a message. A request has one or two; the sender of up to 16 gets an error reply, the
connection of a sender of more is closed.
"""

MAX_COMMAND_BYTES = 1 << 12
"""Maximum size of a command, and of each frame of the handshake."""

MORE, LONG, COMMAND = 1, 2, 4
"""Flags of a frame: further parts follow; the size has 8 bytes; a command."""

SOCKET_TYPES: Mapping[bytes, tuple[bytes, ...]] = {b"ROUTER": (b"DEALER", b"REQ"), b"DEALER": (b"ROUTER",)}
"""The socket types of this package, with the types of their peers."""

_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_GREETING_BYTES = 64
# longer frames get a buffer of their own, so that nothing received with them is copied
_COLLECTED_BYTES = 1 << 15
# payloads up to this size are copied behind their header, faster than sending two pieces
_JOINED_BYTES = 1 << 14

Buffer = Any
"""Writable memory: `memoryview`, `mmap.mmap`."""


Piece = bytes | bytearray | memoryview
"""Bytes to send."""


def allocate_untouched(size: int) -> Buffer:
    """Returns memory that the system provides as it is written; `bytearray` would take all of it when announced."""
    return np.empty(size, np.uint8).data


class ProtocolError(Exception):
    """The peer violates ZMTP 3 or is refused; its connection must be closed.

    farewell: bytes to send to the peer first.
    """

    def __init__(self, message: str, farewell: bytes = b"") -> None:
        super().__init__(message)
        self.farewell = farewell


class PeerRefusedError(ProtocolError):
    """The peer ended the connection by an ERROR command. reason: its text; `400`: this client's key is not allowed."""

    def __init__(self, reason: bytes) -> None:
        super().__init__(f"the peer ends the connection with the error {reason[:80]!r}")
        self.reason = reason


class MechanismError(ProtocolError):
    """The peer speaks another mechanism: one end has keys, the other has none."""


Message = tuple[bytes | memoryview, int, bool]
"""A complete message, or a command that was handled: `payload, parts, is_req`.

payload: the payload of a request or reply, empty for other messages. parts: number of parts; 0 is a command, after
which the bytes from `Connection.take_output` are to be sent. is_req: whether an empty part came first, as REQ sockets
send it.
"""

_HANDLED: Message = b"", 0, False


class State(Enum):
    """What is awaited from the peer."""

    GREETING = auto()
    HELLO = auto()
    WELCOME = auto()
    INITIATE = auto()
    READY = auto()
    TRAFFIC = auto()
    CLOSED = auto()


GREETING = b"GREETING"
"""The event of a complete greeting; all other events are names of commands."""


class Mechanism(ABC):
    """The handshake of one connection, and how its frames are encrypted.

    name, as_server: fields of the greeting. transitions: state -> event -> next state. overhead: bytes that encryption
    adds to a frame, or None if frames are plain. peer_key: the peer's public key after the handshake of a CURVE server.
    """

    name: ClassVar[bytes]
    as_server: ClassVar[bool] = False
    transitions: ClassVar[Mapping[State, Mapping[bytes, State]]]
    overhead: ClassVar[int | None] = None
    peer_key = b""

    @abstractmethod
    def opening(self, metadata: bytes) -> bytes:
        """Returns the frames to send behind the greeting."""

    @abstractmethod
    def answer(self, event: bytes, body: bytes, metadata: bytes) -> tuple[bytes, bytes | None]:
        """Handles an event that `transitions` allows.

        Args:
            event: `GREETING` or the name of a command.
            body: The command's content behind its name.
            metadata: This end's properties, for a command that carries them.

        Returns:
            Frames to send, and the peer's properties if the event carries them.
        """

    def seal(self, flags: int, content: bytes | memoryview) -> bytearray:
        """Returns an encrypted frame."""
        raise NotImplementedError

    def unseal(self, content: bytes | memoryview) -> tuple[int, memoryview]:
        """Returns the flags and the content of an encrypted frame."""
        raise NotImplementedError


class Null(Mechanism):
    """No authentication and no encryption: each end sends READY with its properties."""

    name = b"NULL"
    transitions: ClassVar = {
        State.GREETING: {GREETING: State.READY},
        State.READY: {b"READY": State.TRAFFIC},
    }

    def opening(self, metadata: bytes) -> bytes:
        """READY, before the peer's greeting has arrived, which saves the time of a round trip."""
        return command(b"READY", metadata)

    def answer(self, event: bytes, body: bytes, metadata: bytes) -> tuple[bytes, bytes | None]:
        """See `Mechanism.answer`."""
        return b"", body if event == b"READY" else None


def command(name: bytes, body: bytes = b"") -> bytes:
    """Returns the frame of a command."""
    return frame_header(COMMAND, 1 + len(name) + len(body)) + bytes([len(name)]) + name + body


_HEADER_BYTES = {flags: 9 if flags & LONG else 2 for flags in (0, MORE, LONG, MORE | LONG, COMMAND, COMMAND | LONG)}
"""By flags of a frame; others are invalid."""

_pack_long_header = Struct(">BQ").pack
_unpack_size = Struct(">Q").unpack_from


def frame_header(flags: int, size: int) -> bytes:
    """Returns the header of a frame with a content of that size."""
    return bytes((flags, size)) if size < 256 else _pack_long_header(flags | LONG, size)


def refusal(text: str, reason: str) -> ProtocolError:
    """Returns an error that sends the peer an ERROR command with this reason, at most 255 ASCII characters."""
    return ProtocolError(text, command(b"ERROR", bytes([len(reason)]) + reason.encode("ascii")))


def properties(values: Mapping[bytes, bytes]) -> bytes:
    """Returns the metadata of a handshake."""
    return b"".join(bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value for name, value in values.items())


def parse_properties(metadata: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields lower-case names and values of a handshake's metadata; raises `ProtocolError` if it is invalid."""
    position = 0
    while position < len(metadata):
        if not metadata[position]:
            raise ProtocolError("a handshake with a property without a name")
        name_end = position + 1 + metadata[position]
        value_start = name_end + 4
        value_end = value_start + int.from_bytes(metadata[name_end:value_start], "big")
        if value_start > len(metadata) or value_end > len(metadata):
            raise ProtocolError("a handshake whose properties are cut off")
        yield metadata[position + 1 : name_end].lower(), metadata[value_start:value_end]
        position = value_end


class Connection:
    """One end of a connection.

    Args:
        mechanism: Of this connection only.
        socket_type: A key of `SOCKET_TYPES`: `ROUTER` for a server, `DEALER` for a client.
        max_bytes: Maximum size of a message, all parts together.
        allocate: Returns a buffer for a long frame, given its size, before it arrives.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        socket_type: bytes,
        max_bytes: int,
        allocate: Callable[[int], Buffer] = allocate_untouched,
    ) -> None:
        self._mechanism = mechanism
        self._socket_type = socket_type
        self._max_bytes = max_bytes
        self._allocate = allocate
        self.state = State.GREETING
        """What is awaited from the peer."""
        self._metadata = properties({b"Socket-Type": socket_type, b"Identity": b""})
        greeting = _SIGNATURE + b"\3\1" + mechanism.name.ljust(20, b"\0") + bytes([mechanism.as_server]) + bytes(31)
        self._output = greeting + mechanism.opening(self._metadata)
        self._ping_contexts: list[bytes] = []
        self.ready = False
        """Whether the handshake is complete, so that messages may be exchanged."""
        self._data, self._position = b"", 0
        self._flags = self._size = 0  # of the long frame that is being collected
        self._missing: int | None = None  # bytes of it that have not arrived; None: no such frame
        self._long: memoryview | None = None  # its content; None if it is not kept
        self._parts = self._bytes = 0  # of the message that is being received
        self._is_req = False
        # a first frame up to this size is within all limits
        self._small_bytes = min(MAX_COMMAND_BYTES, max_bytes)
        self._is_sealed = False  # whether frames are encrypted, once the handshake is complete

    @property
    def peer_key(self) -> bytes:
        """The client's public key, 32 bytes, once a CURVE server is `ready`; else empty."""
        return self._mechanism.peer_key

    @property
    def buffer(self) -> memoryview | None:
        """Buffer for the rest of a long frame, or None. After writing to it call `wrote`, not `feed`."""
        if self._long is None or not self._missing or self._position < len(self._data):
            return None
        return self._long[-self._missing :]

    def wrote(self, count: int) -> None:
        """Reports that `count` bytes were written to `buffer`."""
        self._missing = (self._missing or 0) - count

    @property
    def held(self) -> int:
        """Bytes stored that `next` has not returned yet."""
        collected = 0 if self._long is None else len(self._long) - (self._missing or 0)
        return len(self._data) - self._position + collected

    def feed(self, data: bytes) -> None:
        """Takes bytes from the peer."""
        self._data = data if self._position == len(self._data) else self._data[self._position :] + data
        self._position = 0

    def take_output(self) -> bytes:
        """Returns bytes to send to the peer: the greeting, and answers to commands."""
        output, self._output = self._output, b""
        # sealed only now: nonces must increase in the order in which bytes are sent
        if self._ping_contexts:
            output += b"".join(self._sealed_command(b"PONG", context) for context in self._ping_contexts)
            self._ping_contexts.clear()
        return output

    def encode(self, payload: bytes | memoryview, *, is_req: bool = False) -> tuple[Piece, ...]:
        """Returns the bytes of a message, in pieces to send in order.

        payload: its one part. is_req: whether an empty part comes first, as REQ sockets expect it.
        """
        if self._mechanism.overhead is not None:
            seal = self._mechanism.seal
            return (seal(MORE, b""), seal(0, payload)) if is_req else (seal(0, payload),)
        header = frame_header(0, len(payload))
        if is_req:
            header = b"\1\0" + header
        return (header + payload,) if len(payload) <= _JOINED_BYTES else (header, payload)

    def next(self) -> Message | None:
        """Returns the next message, or None if more bytes are needed.

        Raises:
            ProtocolError: The connection must be closed.
        """
        try:
            if self.state is State.GREETING and not self._read_greeting():
                return None
            while (frame := self._read_frame()) is not None:
                flags, content, size = frame
                if self._is_sealed:
                    flags, content = self._mechanism.unseal(content)
                    size = len(content)
                if not self.ready or flags & COMMAND:
                    self._handle_command(flags, bytes(content))
                    return _HANDLED
                if not flags and not self._parts:  # one part, as nearly every message
                    return content, 1, False
                self._parts += 1
                self._bytes += size
                if not flags & MORE:
                    # other parts are dropped as they come: kept until the last, one connection took 4 GB of a server
                    message = content if self._parts == 1 + self._is_req else b"", self._parts, self._is_req
                    self._parts = self._bytes = 0
                    self._is_req = False
                    return message
                self._is_req = self._is_req or not self._bytes  # the first part, and empty
            return None
        except ProtocolError:
            self.state, self.ready, self._is_sealed = State.CLOSED, False, False
            raise

    # frames

    def _read_frame(self) -> tuple[int, bytes | memoryview, int] | None:
        """Returns flags (without LONG), content (empty if not kept) and size of the next frame; None if incomplete."""
        if self._missing is not None:
            return self._collect()
        data, position = self._data, self._position
        available = len(data)
        if available < position + 2:
            return None
        flags, size = data[position], data[position + 1]
        header_bytes = _HEADER_BYTES.get(flags)
        if header_bytes is None:
            raise ProtocolError(f"a frame with flags {flags:#04x}")
        start = position + header_bytes
        if flags & LONG:
            if available < start:
                return None
            (size,) = _unpack_size(data, position + 1)
            flags ^= LONG
        if size > self._small_bytes or self._parts:
            self._check_size(flags, size)
        stop = start + size
        if stop <= available:
            self._position = stop
            return flags, data[start:stop], size
        if size <= _COLLECTED_BYTES:
            return None
        self._flags, self._size, self._position, self._missing = flags, size, start, size
        # A request is the only part, or the last of two of a REQ socket; a sealed frame shows it when it is open.
        is_kept = self._mechanism.overhead is not None or (not flags & MORE and self._parts == self._is_req)
        self._long = memoryview(self._allocate(size)) if is_kept else None
        return self._collect()

    def _check_size(self, flags: int, size: int) -> None:
        """Raises `ProtocolError` if the next frame exceeds the limits."""
        overhead = self._mechanism.overhead
        if not self.ready or (flags & COMMAND and overhead is None):
            if size > MAX_COMMAND_BYTES:
                raise ProtocolError(f"a command of {size} bytes, the limit is {MAX_COMMAND_BYTES}")
            return
        message_bytes = self._bytes + max(0, size - (overhead or 0))
        if message_bytes > self._max_bytes:
            raise ProtocolError(f"a message of {message_bytes} bytes or more, the limit is {self._max_bytes}")
        if self._parts >= MAX_PARTS:
            raise ProtocolError(f"a message of more than {MAX_PARTS} parts")

    def _collect(self) -> tuple[int, bytes | memoryview, int] | None:
        """Adds available bytes to the long frame; returns it if it is complete."""
        missing = self._missing or 0
        count = min(missing, len(self._data) - self._position)
        if count:
            if self._long is not None:
                start = len(self._long) - missing
                self._long[start : start + count] = self._data[self._position : self._position + count]
            self._position += count
            self._missing = missing - count
        if self._missing:
            return None
        content = b"" if self._long is None else self._long
        self._missing = self._long = None
        return self._flags, content, self._size

    # greeting and commands

    def _read_greeting(self) -> bool:
        """Reads the peer's greeting; False if it is incomplete."""
        data = self._data
        if (data[:1] or b"\xff") != b"\xff" or (len(data) > 9 and not data[9] & 1):
            raise ProtocolError("no greeting of ZMTP 3")
        if len(data) > 10 and data[10] < 3:
            raise ProtocolError(f"ZMTP {data[10]}, this end speaks ZMTP 3")
        if len(data) < _GREETING_BYTES:
            return False
        name = data[12:32].rstrip(b"\0")
        mechanism = self._mechanism
        if name != mechanism.name:
            raise MechanismError(f"the mechanism {name[:20]!r}, this end speaks {mechanism.name.decode()}")
        self._position = _GREETING_BYTES
        self._advance(GREETING, b"")
        return True

    def _handle_command(self, flags: int, content: bytes) -> None:
        if not flags & COMMAND:
            raise ProtocolError("a message before the end of the handshake")
        if len(content) > MAX_COMMAND_BYTES:
            raise ProtocolError(f"a command of {len(content)} bytes, the limit is {MAX_COMMAND_BYTES}")
        body_start = 1 + (content[0] if content else 0)
        name, body = content[1:body_start], content[body_start:]
        if name == b"ERROR":
            raise PeerRefusedError(body[1 : 1 + body[0]] if body else b"")
        if not self.ready:
            self._advance(name, body)
        elif name == b"PING":
            self._ping_contexts.append(body[2:18])  # behind 2 bytes of time to live

    def _advance(self, event: bytes, body: bytes) -> None:
        """Handles an event of the handshake, by the mechanism's table."""
        mechanism = self._mechanism
        transitions = mechanism.transitions.get(self.state, {})  # none when closed
        state = transitions.get(event)
        if state is None:
            expected = b" or ".join(transitions).decode()
            raise ProtocolError(f"the command {event[:20]!r}, expected {expected}")
        output, metadata = mechanism.answer(event, body, self._metadata)
        if metadata is not None:
            self._check_peer(dict(parse_properties(metadata)))
        self._output += output
        self.state = state
        self.ready = state is State.TRAFFIC
        self._is_sealed = self.ready and mechanism.overhead is not None

    def _check_peer(self, values: Mapping[bytes, bytes]) -> None:
        """Raises `ProtocolError` if the peer's socket type does not fit."""
        peer_types = SOCKET_TYPES[self._socket_type]
        peer_type = values.get(b"socket-type", b"")
        if peer_type not in peer_types:
            expected = " or ".join(name.decode() for name in peer_types)
            text = f"a socket of type {peer_type[:20]!r}, expected {expected}"
            if self._socket_type != b"ROUTER":  # RFC 26: a client sends no ERROR
                raise ProtocolError(text)
            raise refusal(text, f"connect a socket of {expected}")

    def _sealed_command(self, name: bytes, body: bytes) -> bytes | bytearray:
        if self._mechanism.overhead is None:
            return command(name, body)
        return self._mechanism.seal(COMMAND, bytes([len(name)]) + name + body)
