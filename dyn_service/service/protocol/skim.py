"""Scanner for single fields of a message that may be damaged, truncated, too deep or too long.

An error reply needs the id of its request. So the scanner reads the keys of the outermost map and skips the other
values without decoding them: it counts the objects still to skip, so nesting needs no stack, and it jumps over strings
and binary data. It stops at the first error and keeps the fields read so far. Cost: linear in the number of skipped
objects, which is bounded.
"""

from __future__ import annotations

from typing import Any

import msgspec

MOST_OBJECTS = 1 << 17
"""Default limit of scanned objects, some tens of milliseconds; later fields are not read."""

_LONGEST_KEY = 32
"""Length in bytes of the longest key that is decoded."""

# By first byte. _FIXED: bytes that follow. _SIZED: width of the length, extra bytes. _HOLDING: width of the length,
# contained objects per unit of length.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXED |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_HOLDING = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}

_decode = msgspec.msgpack.Decoder().decode


class _EndsError(Exception):
    """The message is truncated, is not MessagePack, or has too many objects."""


class _CrowdedError(_EndsError):
    """The message has too many objects."""


def fields(payload: bytes | memoryview, wanted: frozenset[str], most: int = MOST_OBJECTS) -> dict[str, Any]:
    """Returns the scalar values (number, string, nil, boolean) of these keys in the message's map.

    Args:
        payload: The message, possibly damaged.
        wanted: The keys. The last value of a repeated key counts, as in other readers.
        most: Maximum number of objects to scan.
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
    """Whether a message has more than `most` objects before its end or its first error."""
    try:
        _Walk(payload, most).skip(1)
    except _CrowdedError:
        return True
    except _EndsError:
        pass
    return False


class _Walk:
    """A position in a message that moves forward."""

    def __init__(self, payload: bytes | memoryview, most: int) -> None:
        self._bytes = payload
        self._at = 0
        self._left = most

    def entries(self) -> int:
        """Enters the map at this position and returns its announced number of entries."""
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
        """Returns the scalar at this position and moves past it; None for a container or a value that is too long."""
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
        """Moves past this number of objects and their content."""
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
        """Returns the position after an object with a length (of a container: after its header) and its entry count."""
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
