"""Memory that two processes share, without a name and, for whoever only reads it, without an open file.

`mmap.mmap` keeps a descriptor of its own for as long as it lives, so a few hundred long requests that wait, or replies
that nobody reads, would take every open file a server may have. Here a mapping costs none, and the memory that may yet
be handed on costs one.


----
Messages between the serving process and its workers: a few words, and bytes that go with them.

Each is one packet: the length of the words, the words as MessagePack (see `worker_words`), the bytes. Where these are
long they stand in shared memory instead, whose descriptor goes with the packet, so that a batch crosses without being
cut up.

Both ends are this package in one user's processes, joined by a pair of sockets that nobody else can reach. Linux has
what it takes: packets that are delivered in order, and memory without a name.


----
What the serving process and a worker process say to each other; what goes with it in bytes stands in parentheses.

to a worker     begin, first; robot (the robot), drop, work (the request)
from a worker   ready; making and made, audit, loaded (the robot), meanwhile; answered (the reply) or returned (the
                request)
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

_SHARE_OF_FILES = 4
"""One open file in so many may go to messages that wait; beyond that they stand in memory of this process."""

_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """Shared memory in this process's addresses, for as long as the object lives; NumPy reads it.

    size: its bytes. descriptor: by which it can be handed to another process; -1: it was closed.
    """

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        self.descriptor, self.size = -1, size
        self._address: int | None = None
        address = _system().mmap(
            None, size, mmap.PROT_READ | (mmap.PROT_WRITE * writable), mmap.MAP_SHARED, descriptor, 0
        )
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._address = address
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, not writable),
        }

    def __del__(self) -> None:
        if self._address is not None:
            _system().munmap(self._address, self.size)
        if self.descriptor >= 0:
            _handed_on.discard(self.descriptor)
            os.close(self.descriptor)


@cache
def _system() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library


_handed_on: set[int] = set()
"""The descriptors that are open for memory that may be handed on."""


def shared(size: int) -> memoryview:
    """Memory for so many bytes, zero until they are written, that can be handed to another process without a copy.

    Raises:
        OSError: There is no open file, or no memory, left for it.
    """
    descriptor = os.memfd_create("dyn")
    try:
        os.ftruncate(descriptor, size)
        mapping = _Mapping(descriptor, size, writable=True)
    except OSError:
        os.close(descriptor)
        raise
    mapping.descriptor = descriptor
    _handed_on.add(descriptor)
    return np.asarray(mapping).data


def room(size: int) -> memoryview:
    """Memory for a message of so many bytes: shared, while messages take few of the open files, else this process's."""
    allowed = files_allowed()
    if allowed is None or len(_handed_on) < allowed // _SHARE_OF_FILES:
        with suppress(OSError):
            return shared(size)
    return np.empty(size, np.uint8).data


def received(descriptor: int, size: int) -> memoryview:
    """What another process has written. The descriptor is closed, whatever comes.

    Raises:
        OSError: It cannot be mapped, or is shorter than that.
    """
    try:
        if os.fstat(descriptor).st_size < size:  # to touch what is not there would end this process
            raise OSError(f"{size} bytes were announced, found {os.fstat(descriptor).st_size}")
        return np.asarray(_Mapping(descriptor, size, writable=False)).data
    finally:
        os.close(descriptor)


def descriptor_of(body: bytes | bytearray | memoryview) -> int | None:
    """The descriptor of the memory that these bytes are the whole of, if it is shared."""
    owner = getattr(body.obj, "base", None) if isinstance(body, memoryview) else None
    return owner.descriptor if isinstance(owner, _Mapping) and owner.size == len(body) else None


AVAILABLE = hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")
"""Whether this system has worker processes."""

ORDER = struct.Struct("=Q")
"""What the fork_server is told: the number of a worker, to be made where a socket comes with it, else to be ended."""

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


class Begin(msgspec.Struct, tag="begin"):
    """What its requests may take, whether they may load robots, and which life of the server its replies speak of."""

    limits: RequestLimits
    allow_load: bool
    epoch: int


class KnowRobot(msgspec.Struct, tag="robot"):
    """Here is a robot; it takes the place of one of its name."""


class DropRobot(msgspec.Struct, tag="drop"):
    """A robot is served no longer."""

    name: str


class Work(msgspec.Struct, tag="work"):
    """Answer a request. received_ns, excused_ns, caller: see `job.Job`."""

    received_ns: int
    excused_ns: int
    caller: Caller | None


class Ready(msgspec.Struct, tag="ready"):
    """It is there, as the process `pid`."""

    pid: int


class Making(msgspec.Struct, tag="making"):
    """It begins to make a kernel."""

    kernel: str


class Made(msgspec.Struct, tag="made"):
    """That is over."""


class Audit(msgspec.Struct, tag="audit"):
    """An entry of the log of changes, once the request is answered."""

    change: Change


class Loaded(msgspec.Struct, tag="loaded"):
    """The request had it load a robot."""

    name: str
    fingerprint: str


class Kernel(msgspec.Struct, frozen=True):
    """Which kernel answered: a row of the table for a robot, its method, what it takes beside, and whether what joints
    do by themselves acts in it.
    """

    robot: str
    query: str
    method: str
    variant: Variant
    passive: bool


class Answered(msgspec.Struct, tag="answered"):
    """The reply to its request. code: of an error. kernel: which one it took. last: the worker has grown: end it."""

    query: str
    code: str | None
    kernel: Kernel | None
    last: bool


class Returned(msgspec.Struct, tag="returned"):
    """Its request is allowed, and for the process that serves to answer: here it is without what is of no account."""


ToWorker = Begin | KnowRobot | DropRobot | Work
FromWorker = Ready | Making | Made | Audit | Loaded | Answered | Returned
