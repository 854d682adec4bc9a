"""Messages between the serving process and its workers: a few words, and bytes that go with them.

Each is one packet: the length of the words, the words as MessagePack (see `worker_words`), the bytes. Where these are
long they stand in shared memory instead, whose descriptor goes with the packet, so that a batch crosses without being
cut up.

Both ends are this package in one user's processes, joined by a pair of sockets that nobody else can reach. Linux has
what it takes: packets that are delivered in order, and memory without a name.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from dyn_service.service.server.workers.shared_memory import descriptor_of, received, shared

AVAILABLE = hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")
"""Whether this system has worker processes."""

ORDER = struct.Struct("=Q")
"""What the nursery is told: the number of a worker, to be made where a socket comes with it, else to be ended."""

_HEAD = struct.Struct("=IQ")
_PACKET_BYTES = 1 << 17
_SHARED_FROM = 1 << 16
"""Bytes from which on they stand in shared memory."""

_encode = msgspec.msgpack.Encoder().encode

Said = TypeVar("Said")
"""What the other end may say."""


class PipeClosedError(Exception):
    """The other end has gone: the pipe is of no more use."""


class UnreadError(PipeClosedError):
    """The other end has gone before it read what was sent last."""


class BytesLostError(PipeClosedError):
    """What the other end said cannot be had, as where no open file is left for it: nor is the pipe of use then."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that are joined."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Pipe(Generic[Said]):
    """One end.

    Args:
        end: A socket of `pair`.
        said: The type of what comes from the other end.
        waits: Whether `send` and `read` wait. If not, what cannot be sent yet is kept, and `read` gives what is there.
    """

    def __init__(self, end: socket.socket, said: type[Said], *, waits: bool) -> None:
        end.setblocking(waits)
        self._end = end
        self._decode = msgspec.msgpack.Decoder(said).decode
        self._out: deque[tuple[bytes, memoryview | None]] = deque()

    @property
    def writing(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out)

    def send(self, words: msgspec.Struct, body: bytes | bytearray | memoryview = b"") -> None:
        """Sends a message.

        Raises:
            PipeClosedError: The other end has gone.
            OSError: There is no open file, or no memory, left for it; nothing was sent.
        """
        text = _encode(words)
        packet = _HEAD.pack(len(text), len(body)) + text
        if len(body) < _SHARED_FROM:
            self._out.append((packet + body, None))
        elif descriptor_of(body) is not None:
            self._out.append((packet, memoryview(body)))
        else:
            copy = shared(len(body))
            copy[:] = body
            self._out.append((packet, copy))
        self.write()

    def write(self) -> None:
        """Sends what was kept.

        Raises:
            UnreadError: The other end has gone.
        """
        while self._out:
            packet, body = self._out[0]
            descriptor = None if body is None else descriptor_of(body)
            try:
                if descriptor is None:
                    self._end.send(packet)
                else:
                    socket.send_fds(self._end, [packet], [descriptor])
            except BlockingIOError:
                return
            except OSError as fault:
                raise UnreadError(str(fault)) from None
            self._out.popleft()

    def read(self) -> Iterator[tuple[Said, memoryview]]:
        """The next message, or where this end does not wait, all that are there.

        Raises:
            UnreadError: The other end has gone, and what was sent last lies there still.
            PipeClosedError: The other end has gone.
            BytesLostError: A message has come without its bytes.
        """
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._end, _PACKET_BYTES, 1)
            except BlockingIOError:
                return
            except ConnectionResetError as fault:  # how the kernel says it (unix(7)); the end alone is an empty packet
                raise UnreadError(str(fault)) from None
            except OSError as fault:
                raise PipeClosedError(str(fault)) from None
            if not packet:
                raise PipeClosedError("the other end has gone")
            words, size = _HEAD.unpack_from(packet)
            begin = _HEAD.size + words
            if descriptors:
                try:
                    body = received(descriptors[0], size)
                except OSError as fault:
                    raise BytesLostError(f"{size} bytes cannot be had: {fault}") from None
            else:
                body = memoryview(packet)[begin:]
            if len(body) != size:  # no open file was left for the descriptor (MSG_CTRUNC)
                raise BytesLostError(f"{size} bytes cannot be had: no open file is left for them")
            yield self._decode(packet[_HEAD.size : begin]), body

    def close(self) -> None:
        """Ends it; what was not sent is lost."""
        self._out.clear()
        self._end.close()
