"""Who asks, read from the bytes of a message that may be damaged, cut short, too deep or too long.

A refusal should carry the id of the request that it refuses. So the message's own map is walked key by key, and values
are stepped over without being made: an object is its first byte and a count of objects inside it, so that no stack is
needed, however deep they stand, and texts and binary data are jumped over, however long. What is wrong ends the walk,
and what was read until then counts. Cost: linear in the objects that are stepped over, which are bounded.
"""

from __future__ import annotations

from typing import Any

import msgspec

MOST_OBJECTS = 1 << 17
"""So many objects are stepped over, in some tens of milliseconds; what stands behind them is not read."""

_LONGEST_KEY = 32
"""Bytes of a key that may be one that is looked for."""

# By first byte: how many bytes follow that say a length, the length itself where none do, objects inside per length.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXED |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_HOLDING = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}

_decode = msgspec.msgpack.Decoder().decode


class _EndsError(Exception):
    """The message ends here, or is no MessagePack from here on, or goes on for too long."""


class _CrowdedError(_EndsError):
    """It goes on for too long."""


def fields(payload: bytes | memoryview, wanted: frozenset[str], most: int = MOST_OBJECTS) -> dict[str, Any]:
    """The plain values (numbers, texts, nil, truth values) that the message's map has under these keys.

    Args:
        payload: The message, or what there is of one.
        wanted: The keys. Of one that comes twice the last counts, as for other readers.
        most: How many objects are stepped over at most.
    """
    found: dict[str, Any] = {}
    walk = _Walk(payload, most)
    try:
        for _ in range(walk.entries()):
            key = walk.plain(_LONGEST_KEY)
            if type(key) is str and key in wanted:
                found[key] = None
                found[key] = walk.plain(len(payload))
            else:
                walk.skip(1)
    except _EndsError:
        pass
    return found


def is_crowded(payload: bytes | memoryview, most: int) -> bool:
    """Whether more objects than these stand in a message, before it ends or is damaged."""
    try:
        _Walk(payload, most).skip(1)
    except _CrowdedError:
        return True
    except _EndsError:
        pass
    return False


class _Walk:
    """A place in a message that only goes forward."""

    def __init__(self, payload: bytes | memoryview, most: int) -> None:
        self._bytes = payload
        self._at = 0
        self._left = most

    def entries(self) -> int:
        """Steps into the map that begins here: how many entries it announces."""
        first = self._first()
        if 0x80 <= first <= 0x8F:
            self._at += 1
            return first & 0x0F
        if first in (0xDE, 0xDF):
            width, _ = _HOLDING[first]
            count = self._length(width)
            self._at += 1 + width
            return count
        raise _EndsError

    def plain(self, longest: int) -> Any:
        """The value that begins here, None if it is no plain one of at most so many bytes; then it is behind."""
        first, begin = self._first(), self._at
        if self._holds(first):
            self.skip(1)
            return None
        self.skip(1)
        if self._at - begin > longest + 5:
            return None
        try:
            return _decode(self._bytes[begin : self._at])
        except (msgspec.MsgspecError, ValueError, OverflowError):
            return None

    def skip(self, objects: int) -> None:
        """Goes behind so many objects and all that is inside them."""
        data, at, left, end = self._bytes, self._at, self._left, len(self._bytes)
        while objects:
            if at >= end:
                raise _EndsError
            if not left:
                raise _CrowdedError
            left -= 1
            first = data[at]
            if first <= 0x7F or first >= 0xE0:
                at += 1
                objects -= 1
            elif first <= 0x8F:
                at += 1
                objects += 2 * (first & 0x0F) - 1
            elif first <= 0x9F:
                at += 1
                objects += (first & 0x0F) - 1
            elif first <= 0xBF:
                at += 1 + (first & 0x1F)
                objects -= 1
            elif first in _FIXED:
                at += 1 + _FIXED[first]
                objects -= 1
            else:
                self._at = at
                at, more = self._sized(first)
                objects += more - 1
        if at > end:
            raise _EndsError
        self._at, self._left = at, left

    def _sized(self, first: int) -> tuple[int, int]:
        """Behind an object that says its length, or behind the head of one that holds others, and their number."""
        if first in _SIZED:
            width, more = _SIZED[first]
            return self._at + 1 + width + more + self._length(width), 0
        if first in _HOLDING:
            width, each = _HOLDING[first]
            return self._at + 1 + width, each * self._length(width)
        raise _EndsError

    def _first(self) -> int:
        if self._at >= len(self._bytes):
            raise _EndsError
        return self._bytes[self._at]

    def _length(self, width: int) -> int:
        data = self._bytes[self._at + 1 : self._at + 1 + width]
        if len(data) < width:
            raise _EndsError
        return int.from_bytes(data, "big")

    @staticmethod
    def _holds(first: int) -> bool:
        return 0x80 <= first <= 0x9F or first in _HOLDING
