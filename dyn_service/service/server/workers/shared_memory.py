"""Memory that two processes share, without a name and, for whoever only reads it, without an open file.

`mmap.mmap` keeps a descriptor of its own for as long as it lives, so a few hundred long requests that wait, or replies
that nobody reads, would take every open file a server may have. Here a mapping costs none, and the memory that may yet
be handed on costs one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from functools import cache

import numpy as np

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
