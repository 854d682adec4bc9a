"""Arrays for large results, whose memory is reused.

The system maps and clears a page of new memory when it is first written. For a large result this takes longer than
the kernel. So the memory of a large array returns to a pool when the array and all its views are freed, in any thread,
and the next result of about the same size takes it. Like any array of `numpy.empty`, a taken one has arbitrary content.

The pool keeps at most `MAX_BYTES`, and no buffer that the last `MAX_UNUSED` large arrays did not need. A forked
process has a pool of its own. The arrays do not own their memory (`flags.owndata` is False).
"""

from __future__ import annotations

import ctypes
import math
import os
from bisect import insort
from collections import deque
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bytes = NDArray[np.uint8]

LARGE_BYTES = 1 << 19
"""Bytes of a result from which its memory is one of these buffers: page faults would cost more than the kernel."""


def _memory() -> int:
    """Returns the bytes of main memory; 0 if unknown."""
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


MAX_BYTES = min(512 << 20, _memory() // 16)
"""Largest total size of the buffers in the pool."""

MAX_UNUSED = 64
"""Number of large arrays after which a buffer that none of them needed is freed."""

_ALIGNMENT = 64
"""Bytes of a cache line, which a store of a whole vector then does not cross."""

# All access is by single atomic operations, without a lock: a buffer may return at any time, also while this thread,
# in a garbage collection, takes one.
FREE: deque[tuple[int, int, Bytes]] = deque()
"""Size, age and memory of each buffer in the pool, the last one used last."""

_AGES = count()

# It only grows, by single operations, so that it is never empty for another thread.
SIZES: list[int] = []
"""Sizes of all buffers so far, in order."""


@cache
def owner_class(size: int) -> type[Any]:
    """Returns the class of the owners of a buffer."""
    insort(SIZES, size)

    def give_back(self: Any) -> None:
        FREE.append((size, next(_AGES), self.memory))
        if len(FREE) * SIZES[-1] > MAX_BYTES:
            _free_oldest()

    # A ctypes array, since NumPy keeps a buffer's owner as the base of the array, and frees it with the last view.
    kind: Any = ctypes.c_char * size
    owner: type[Any] = type(kind)("Buffer", (kind,), {"__del__": give_back} if size <= MAX_BYTES else {})
    return owner


def _free_oldest() -> None:
    """Frees buffers until the pool has at most `MAX_BYTES`."""
    with suppress(IndexError, RuntimeError):  # another thread changed it
        while sum(entry[0] for entry in FREE.copy()) > MAX_BYTES:
            FREE.popleft()


def _aligned_memory(size: int) -> Bytes:
    """Returns aligned memory of a size from the pool, else new memory."""
    oldest = next(_AGES) - 2 * MAX_UNUSED  # each array counts twice: when it is created and when it is freed
    other_sizes = []
    try:
        with suppress(IndexError):  # the pool is empty
            while FREE[0][1] < oldest:
                FREE.popleft()
            while (entry := FREE.pop())[0] != size:
                other_sizes.append(entry)
            return entry[2]
    finally:
        if other_sizes:
            FREE.extend(reversed(other_sizes))
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def empty(shape: tuple[int, ...]) -> Array:
    """Returns a new array of doubles with arbitrary content; a large one uses a buffer of the pool."""
    size = 8 * math.prod(shape)
    if size < LARGE_BYTES // 2:  # a small output of a large result
        return np.empty(shape)
    step = 1 << (size.bit_length() - 4)  # at most an eighth is unused
    size = -(-size // step) * step
    memory = _aligned_memory(size)
    # The owner holds the memory, and returns it to the pool when the array and its views are gone.
    owner = owner_class(size).from_buffer(memory)
    owner.memory = memory
    return np.ndarray(shape, np.float64, owner)
