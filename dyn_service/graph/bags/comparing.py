"""Two replies to one request, held against each other: to the bit, or how far apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dyn_service.errors import DynError
from dyn_service.service.protocol.arrays import unpack_array
from dyn_service.service.protocol.messages import decode_reply_head

NOT_SAID = frozenset({"DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED"})
"""Codes of replies that say nothing of the request: the server was busy, or is not for this key."""

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What is raised for bytes that are no MessagePack: a text in them that is no UTF-8 is a ValueError."""


@dataclass(frozen=True)
class Difference:
    """Where two replies differ. place: `torques[2]`, or `reply` where one is a refusal; recorded, found: what stands
    there. relative: the difference as a share of the output's largest number, infinite where it is none of numbers.
    """

    place: str
    recorded: str
    found: str
    relative: float

    @property
    def digits(self) -> float:
        """How many digits agree."""
        return math.inf if self.relative == 0.0 else max(0.0, -math.log10(self.relative))


@dataclass(frozen=True)
class Comparison:
    """Two replies. same: to the bit. largest: the largest difference, None where they are the same. first: the first
    in the order of the outputs.
    """

    same: bool
    largest: Difference | None = None
    first: Difference | None = None


def compare(recorded: bytes, found: bytes) -> Comparison | None:
    """Two replies; None where the recorded one says nothing of the request.

    Outputs are compared, and of refusals their codes; not how long it took, and in which words it was refused.
    """
    try:
        old, new = decode_reply_head(recorded), decode_reply_head(found)
    except UNREADABLE:
        return _other("reply", "a reply" if _readable(recorded) else "bytes that are no reply", "")
    old_code, new_code = _code(old), _code(new)
    if old_code in NOT_SAID:
        return None
    if old_code or new_code:
        same = old_code == new_code
        return Comparison(True) if same else _other("reply", old_code or "an answer", new_code or "an answer")
    if bytes(old.outputs) == bytes(new.outputs):
        return Comparison(True)
    try:
        return outputs_compared(msgspec.msgpack.decode(old.outputs), msgspec.msgpack.decode(new.outputs))
    except UNREADABLE:
        return _other("reply", "outputs that cannot be read", "")


def outputs_compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Outputs by name, arrays as on the wire or plain values; names that the old ones lack are not looked at."""
    found = [difference for name, value in old.items() for difference in _differences(name, value, new.get(name))]
    if not found:
        return Comparison(True)
    return Comparison(False, max(found, key=lambda difference: difference.relative), found[0])


def _differences(name: str, old: Any, new: Any) -> Iterator[Difference]:
    """Of one output: where it first differs, and where most."""
    one, other = _array(old), _array(new)
    if one is None or other is None:
        if old != new:
            yield Difference(name, _short(old), _short(new), math.inf)
        return
    if one.shape != other.shape:
        yield Difference(name, f"shape {one.shape}", f"shape {other.shape}", math.inf)
        return
    apart = np.ascontiguousarray(one).view(np.uint64) != np.ascontiguousarray(other).view(np.uint64)
    if not apart.any():
        return
    scale = max(float(np.abs(one).max()), float(np.abs(other).max()))
    size = np.abs(one - other) / (scale or 1.0)
    places = {int(np.argmax(apart)), int(np.argmax(np.where(apart, size, -1.0)))}
    for flat in sorted(places):
        index = np.unravel_index(flat, one.shape)
        where = name + (f"[{', '.join(map(str, index))}]" if one.ndim else "")
        yield Difference(where, repr(float(one[index])), repr(float(other[index])), float(size[index]))


def _array(value: Any) -> NDArray[np.float64] | None:
    if isinstance(value, np.ndarray | float | int) and not isinstance(value, bool):
        return np.asarray(value, np.float64)
    if not (isinstance(value, dict) and value.keys() >= {"dtype", "shape", "data"}):
        return None
    try:
        return unpack_array(value, "outputs")
    except DynError:
        return None


def _code(reply: Any) -> str:
    """Of a refusal; empty for an answer."""
    return "" if reply.ok else str((reply.error or {}).get("code", "a refusal"))


def _readable(frame: bytes) -> bool:
    try:
        decode_reply_head(frame)
    except UNREADABLE:
        return False
    return True


def _other(place: str, old: str, new: str) -> Comparison:
    difference = Difference(place, old, new, math.inf)
    return Comparison(False, difference, difference)


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
