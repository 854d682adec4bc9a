"""Messages between the serving process and its workers: a few words, and bytes that go with them.

Each is one packet: the length of the words, the words as a MessagePack map, the bytes. Where these are long they stand
in shared memory instead, whose descriptor goes with the packet, so that a batch crosses without being cut up.

Both ends are this package in one user's processes, joined by a pair of sockets that nobody else can reach. Linux has
what it takes: packets that are delivered in order, and memory without a name.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

AVAILABLE = hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")
"""Whether this system has worker processes."""

ORDER = struct.Struct("=Q")
"""What the nursery is told: the number of a worker, to be made where a socket comes with it, else to be ended."""

_HEAD = struct.Struct("=IQ")
_PACKET_BYTES = 1 << 17
_SHARED_FROM = 1 << 16
"""Bytes from which on they stand in shared memory."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode

Words = dict[str, Any]


class PipeClosedError(Exception):
    """The other end has gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that are joined."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Shared(mmap.mmap):
    """Memory for so many bytes, zero until they are written, that can be handed to another process without a copy."""

    descriptor: int

    @classmethod
    def of(cls, size: int) -> Shared:
        """A new one."""
        descriptor = os.memfd_create("dyn")
        os.ftruncate(descriptor, size)
        memory = cls(descriptor, size)
        memory.descriptor = descriptor
        return memory

    def __del__(self) -> None:
        os.close(self.descriptor)


class Pipe:
    """One end.

    Args:
        end: A socket of `pair`.
        waits: Whether `send` and `read` wait. If not, what cannot be sent yet is kept, and `read` gives what is there.
    """

    def __init__(self, end: socket.socket, *, waits: bool) -> None:
        end.setblocking(waits)
        self._end = end
        self._out: deque[tuple[bytes, Shared | None]] = deque()

    @property
    def writing(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out)

    def send(self, words: Words, body: bytes | bytearray | memoryview = b"") -> None:
        """Sends a message.

        Raises:
            PipeClosedError: The other end has gone.
        """
        text = _encode(words)
        packet = _HEAD.pack(len(text), len(body)) + text
        if len(body) < _SHARED_FROM:
            self._out.append((packet + body, None))
        else:
            shared = body.obj if isinstance(body, memoryview) else None
            if not isinstance(shared, Shared):
                shared = Shared.of(len(body))
                shared[:] = body
            self._out.append((packet, shared))
        self.write()

    def write(self) -> None:
        """Sends what was kept.

        Raises:
            PipeClosedError: The other end has gone.
        """
        while self._out:
            packet, shared = self._out[0]
            try:
                if shared is None:
                    self._end.send(packet)
                else:
                    socket.send_fds(self._end, [packet], [shared.descriptor])
            except BlockingIOError:
                return
            except OSError:
                raise PipeClosedError from None
            self._out.popleft()

    def read(self) -> Iterator[tuple[Words, memoryview]]:
        """The next message, or where this end does not wait, all that are there.

        Raises:
            PipeClosedError: The other end has gone.
        """
        while True:
            try:
                packet, shared, _, _ = socket.recv_fds(self._end, _PACKET_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:
                packet, shared = b"", []
            if not packet:
                raise PipeClosedError
            words, size = _HEAD.unpack_from(packet)
            begin = _HEAD.size + words
            if shared:
                body = memoryview(mmap.mmap(shared[0], size, prot=mmap.PROT_READ))
                os.close(shared[0])
            else:
                body = memoryview(packet)[begin:]
            yield _decode(packet[_HEAD.size : begin]), body

    def close(self) -> None:
        """Ends it; what was not sent is lost."""
        self._out.clear()
        self._end.close()
