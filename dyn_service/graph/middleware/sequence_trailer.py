"""What ends a frame of a topic: who published it, and which of its messages it is.

A frame is two objects of MessagePack, the message's map and a list of two numbers, `[publisher, count]`: a number that
no other publisher has (32 bits), and how many messages it has published, this one too (64 bits). By them a subscription
knows what it has missed, and a message that is sent again for one who came late. Frames without a mark are taken.
"""

from __future__ import annotations

import struct

_MARK = struct.Struct(">BBIBQ")  # a list of two, a number of 32 bits, one of 64 bits
_LIST, _UINT32, _UINT64 = 0x92, 0xCE, 0xCF
MARK_BYTES = _MARK.size


def marked(payload: bytes, publisher: int, count: int) -> bytes:
    """The frame of a message."""
    return payload + _MARK.pack(_LIST, _UINT32, publisher, _UINT64, count)


def split(frame: bytes) -> tuple[memoryview, int, int]:
    """The message of a frame, its publisher and its count; both -1 where there is no mark."""
    view = memoryview(frame)
    if len(frame) > MARK_BYTES:
        first, second, publisher, third, count = _MARK.unpack_from(frame, len(frame) - MARK_BYTES)
        if (first, second, third) == (_LIST, _UINT32, _UINT64):
            return view[:-MARK_BYTES], publisher, count
    return view, -1, -1
