"""Messages between the server and its workers, and the shared memory that carries long payloads.

    to a worker     Begin, first; AddRobot (robot), RemoveRobot, Work (request); Stop, while it works
    from a worker   Ready; meanwhile Making and Made, Audit, Loaded (robot); Answered (reply) or Returned (request)

Parentheses: the payload. A message is one packet: length of the header, header in MessagePack, payload. A long payload
is in shared memory, whose descriptor is sent with the packet, so that batches are not split.

Both ends run this package as one user, connected by a socket pair. Linux provides ordered packets and anonymous shared
memory. `mmap.mmap` keeps its own file descriptor, so a few hundred waiting requests would use all open files of a
server. A mapping here uses no descriptor after it is received, and one while its memory may still be sent.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Generic, TypeVar

import msgspec
import numpy as np

from dyn_service.api.spec import Variant
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.administration.audit import Change
from dyn_service.service.server.process import files_allowed

# at most one in so many open files is used for waiting messages; more are in private memory
_SHARE_OF_FILES = 4

_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """Shared memory mapped while the object exists; NumPy can read it.

    size: in bytes. descriptor: for sending it to another process; -1: closed.
    """

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        self.descriptor, self.size = -1, size
        self._address: int | None = None
        access = mmap.PROT_READ | (mmap.PROT_WRITE * writable)
        address = _system().mmap(None, size, access, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._address = address
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, not writable)}

    def __del__(self) -> None:
        if self._address is not None:
            _system().munmap(self._address, self.size)
        if self.descriptor >= 0:
            _sendable.discard(self.descriptor)
            os.close(self.descriptor)


@cache
def _system() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library


_sendable: set[int] = set()
"""Open descriptors of memory that may be sent."""


def allocate_shared(size: int) -> memoryview:
    """Returns zeroed memory that can be sent to another process without a copy; `OSError` if it runs out."""
    descriptor = os.memfd_create("dyn")
    try:
        os.ftruncate(descriptor, size)
        mapping = _Mapping(descriptor, size, writable=True)
    except OSError:
        os.close(descriptor)
        raise
    mapping.descriptor = descriptor
    _sendable.add(descriptor)
    return np.asarray(mapping).data


def allocate(size: int) -> memoryview:
    """Returns memory for a message: shared while messages use few of the open files, else private."""
    max_files = files_allowed()
    if max_files is None or len(_sendable) < max_files // _SHARE_OF_FILES:
        with suppress(OSError):
            return allocate_shared(size)
    return np.empty(size, np.uint8).data


def map_received(descriptor: int, size: int) -> memoryview:
    """Maps memory that another process has written, and closes the descriptor; `OSError` if it is too short."""
    try:
        if os.fstat(descriptor).st_size < size:  # access beyond the end would kill this process
            raise OSError(f"{size} bytes were announced, found {os.fstat(descriptor).st_size}")
        return np.asarray(_Mapping(descriptor, size, writable=False)).data
    finally:
        os.close(descriptor)


def descriptor_of(body: bytes | bytearray | memoryview) -> int | None:
    """Returns the descriptor of shared memory that these bytes are the whole of; None for other memory."""
    owner = getattr(body.obj, "base", None) if isinstance(body, memoryview) else None
    return owner.descriptor if isinstance(owner, _Mapping) and owner.size == len(body) else None


AVAILABLE = hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")  # workers can run
ORDER = struct.Struct("=Q")
"""An order to the fork server: the number of a worker, to be started if a socket is attached, else killed."""

_HEAD = struct.Struct("=IQ")
_PACKET_BYTES = 1 << 17
_SHARED_FROM = 1 << 16  # payloads of at least this size are sent in shared memory

_encode = msgspec.msgpack.Encoder().encode

MessageT = TypeVar("MessageT")
"""The type of messages received."""


class PipeClosedError(Exception):
    """The other end is closed; the pipe cannot be used."""


class UnreadError(PipeClosedError):
    """The other end closed before it read the last message."""


class BytesLostError(PipeClosedError):
    """A received payload cannot be read, for example because no open file is left. The pipe cannot be used."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Pipe(Generic[MessageT]):
    """One end of a connection: a socket of `pair` that receives messages of this type.

    waits: whether `send` and `read` block. If not, unsent messages are queued, and `read` yields what has arrived.
    """

    def __init__(self, end: socket.socket, message: type[MessageT], *, waits: bool) -> None:
        end.setblocking(waits)
        self._end = end
        self._decode = msgspec.msgpack.Decoder(message).decode
        self._out: deque[tuple[bytes, memoryview | None]] = deque()

    @property
    def writing(self) -> bool:
        """Whether messages are queued."""
        return bool(self._out)

    def send(self, message: msgspec.Struct, body: bytes | bytearray | memoryview = b"") -> None:
        """Sends a message; errors as `write`, and `OSError` if there is no open file or memory for the payload."""
        text = _encode(message)
        packet = _HEAD.pack(len(text), len(body)) + text
        if len(body) < _SHARED_FROM:
            self._out.append((packet + body, None))
        elif descriptor_of(body) is not None:
            self._out.append((packet, memoryview(body)))
        else:
            copy = allocate_shared(len(body))
            copy[:] = body
            self._out.append((packet, copy))
        self.write()

    def write(self) -> None:
        """Sends queued messages; raises `UnreadError` if the other end is closed."""
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

    def read(self) -> Iterator[tuple[MessageT, memoryview]]:
        """Yields the next messages with their payloads; those that have arrived, if the pipe does not block.

        Raises:
            UnreadError: The other end closed without reading the last message.
            PipeClosedError: The other end is closed.
            BytesLostError: The payload of a message cannot be read.
        """
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._end, _PACKET_BYTES, 1)
            except BlockingIOError:
                return
            except ConnectionResetError as fault:  # unread data at close, see unix(7); a plain close is an empty packet
                raise UnreadError(str(fault)) from None
            except OSError as fault:
                raise PipeClosedError(str(fault)) from None
            if not packet:
                raise PipeClosedError("the other end is closed")
            length, size = _HEAD.unpack_from(packet)
            begin = _HEAD.size + length
            if descriptors:
                try:
                    body = map_received(descriptors[0], size)
                except OSError as fault:
                    raise BytesLostError(f"{size} bytes cannot be read: {fault}") from None
            else:
                body = memoryview(packet)[begin:]
            if len(body) != size:  # no open file was left for the descriptor (MSG_CTRUNC)
                raise BytesLostError(f"{size} bytes cannot be read: no open file is left")
            yield self._decode(packet[_HEAD.size : begin]), body

    def has_message(self) -> bool:
        """Whether a message, or the end of the connection, can be read without waiting."""
        try:
            self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Closes the pipe; queued messages are lost."""
        self._out.clear()
        self._end.close()


class Begin(msgspec.Struct, tag="begin"):
    """Limits of requests, whether they may load robots, and the epoch for replies."""

    limits: RequestLimits
    allow_load: bool
    epoch: int


class AddRobot(msgspec.Struct, tag="robot"):
    """Adds the robot in the payload, replacing one of the same name."""


class RemoveRobot(msgspec.Struct, tag="drop"):
    """Removes a robot."""

    name: str


class Work(msgspec.Struct, tag="work"):
    """Answer the request in the payload. received_ns, excused_ns, caller, needs_kernel: see `jobs.Job`, `jobs.Task`."""

    received_ns: int
    excused_ns: int
    caller: Caller | None
    needs_kernel: bool


class Stop(msgspec.Struct, tag="stop"):
    """Give up the request: nobody waits for its reply. No other message comes while a worker works."""


class Ready(msgspec.Struct, tag="ready"):
    """The worker has started, as process `pid`."""

    pid: int


class Making(msgspec.Struct, tag="making"):
    """It starts to compile a kernel."""

    kernel: str


class Made(msgspec.Struct, tag="made"):
    """The compilation has ended."""


class KernelReady(msgspec.Struct, tag="kernel_ready"):
    """The kernel that the request needs is loaded, or cannot be made."""


class Audit(msgspec.Struct, tag="audit"):
    """An entry of the audit log, to be written when the request is answered."""

    change: Change


class Loaded(msgspec.Struct, tag="loaded"):
    """The request loaded the robot in the payload."""

    name: str
    fingerprint: str


class Kernel(msgspec.Struct, frozen=True):
    """The kernel that answered: robot, query, method, variant, and whether passive forces act."""

    robot: str
    query: str
    method: str
    variant: Variant
    passive: bool


class Answered(msgspec.Struct, tag="answered"):
    """The reply. code: of an error. kernel: the one used. took_ns: time of the worker without that of making kernels.
    last: the worker uses too much memory and must end.
    """

    query: str
    code: str | None
    kernel: Kernel | None
    took_ns: int
    last: bool


class Returned(msgspec.Struct, tag="returned"):
    """The request is allowed but must be answered by the server's process; unneeded inputs and options are removed."""


ToWorker = Begin | AddRobot | RemoveRobot | Work | Stop
FromWorker = Ready | Making | Made | KernelReady | Audit | Loaded | Answered | Returned
