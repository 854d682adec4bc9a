"""Messages between the serving process and its workers: a few words, and bytes that go with them.

    head: lengths of words and bytes    words: MessagePack map    bytes: as they are

Both ends are this package in one user's processes, joined by a pair of sockets that nobody else can reach.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

_HEAD = struct.Struct("=IQ")
ORDER = struct.Struct("=Q")
"""What the nursery is told: the number of a worker, to be made where a socket comes with it, else to be ended."""

_READ_BYTES = 1 << 18
_WRITE_BYTES = 1 << 18

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode

Words = dict[str, Any]


class PipeClosedError(Exception):
    """The other end has gone."""


class Waiting:
    """One end for a process that may wait."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, words: Words, body: bytes | bytearray | memoryview = b"") -> None:
        """Sends a message.

        Raises:
            PipeClosedError: The other end has gone.
        """
        text = _encode(words)
        try:
            self._end.sendall(_HEAD.pack(len(text), len(body)) + text)
            if len(body):
                self._end.sendall(body)
        except OSError:
            raise PipeClosedError from None

    def receive(self) -> tuple[Words, bytearray]:
        """The next message; waits for it.

        Raises:
            PipeClosedError: The other end has gone.
        """
        words, body = _HEAD.unpack(self._exactly(_HEAD.size))
        return _decode(self._exactly(words)), self._exactly(body)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            try:
                count = self._end.recv_into(view[at:])
            except OSError:
                count = 0
            if not count:
                raise PipeClosedError
            at += count
        return data


class Polled:
    """One end for a process that never waits: it reads what is there, and keeps what cannot be written yet."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._out: deque[memoryview] = deque()
        self._buffer = bytearray()
        self._wanted = 0

    @property
    def writing(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._out)

    def send(self, words: Words, body: bytes | bytearray | memoryview = b"") -> None:
        """Sends a message, now or as the other end takes it.

        Raises:
            PipeClosedError: The other end has gone.
        """
        text = _encode(words)
        self._out.append(memoryview(_HEAD.pack(len(text), len(body)) + text))
        if len(body):
            self._out.append(memoryview(body))
        self.write()

    def write(self) -> None:
        """Writes what the other end takes.

        Raises:
            PipeClosedError: The other end has gone.
        """
        while self._out:
            try:
                sent = self._end.send(self._out[0][:_WRITE_BYTES])
            except BlockingIOError:
                return
            except OSError:
                raise PipeClosedError from None
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
            else:
                self._out.popleft()

    def read(self) -> Iterator[tuple[Words, bytearray]]:
        """Reads once, and gives the messages that are whole.

        Raises:
            PipeClosedError: The other end has gone.
        """
        try:
            data = self._end.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise PipeClosedError
        self._buffer += data
        while len(self._buffer) >= max(self._wanted, _HEAD.size):
            words, body = _HEAD.unpack_from(self._buffer)
            begin = _HEAD.size + words
            self._wanted = begin + body
            if len(self._buffer) < self._wanted:
                return
            whole = self._buffer
            self._buffer, self._wanted = whole[begin + body :], 0
            said = _decode(bytes(whole[_HEAD.size : begin]))
            del whole[begin + body :]
            del whole[:begin]  # moves no bytes: the front of a bytearray is let go in place
            yield said, whole
