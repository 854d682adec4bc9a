"""Numbers of a topic over time: `position[elbow]`, `wrench.force.x`, from messages of any type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dyn_service.graph.bags.reader import BagReader
from dyn_service.messages.builtin_interfaces import NANOSECONDS

By = Literal["stamp", "log"]
MAX_SIGNALS = 1000
"""Of one topic: a message that has more is no set of signals."""
_NAMES = ("name", "joint_names")


@dataclass(frozen=True)
class Signal:
    """One number of a topic. field: `position`; entry: whose, `elbow`, or empty. time: s from the bag's begin for
    `log`; for `stamp` the message's own. Where a message lacks the number, it is NaN. delay_s: median time
    from a message's own time to its arrival (s from the bag's begin); NaN where messages have no time of their own.
    """

    topic: str
    field: str
    entry: str
    time: NDArray[np.float64]
    value: NDArray[np.float64]
    delay_s: float = math.nan

    @property
    def name(self) -> str:
        """`position[elbow]`."""
        return f"{self.field}[{self.entry}]" if self.entry else self.field


def signals(bag: BagReader, topic: str, by: By = "stamp") -> list[Signal]:
    """The numbers of a topic, in the order of its message's fields.

    by: whether time is the messages' own stamp, where they have one other than zero, or when they came.

    Raises:
        NotFoundError: The bag has no such topic.
        InvalidArgumentError: The bag is damaged.
    """
    begin, _ = bag.span_ns
    came: list[float] = []
    stamped: list[float | None] = []
    columns: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for k, recorded in enumerate(bag.messages([topic])):
        came.append(1e-9 * (recorded.log_time_ns - begin))
        stamped.append(stamp_s(recorded.message))
        for field, entry, number in _numbers(recorded.message):
            key = (field, entry)
            if key in columns or len(columns) < MAX_SIGNALS:
                columns.setdefault(key, []).append((k, number))
    own = [stamp for stamp in stamped if stamp is not None]
    complete = len(own) == len(came) and any(own)
    time = np.array(own if by == "stamp" and complete else came)
    delay_s = float(np.median(np.array(came) - np.array(own))) if complete else math.nan
    found = []
    for (field, entry), column in columns.items():
        value = np.full(len(came), np.nan)
        value[np.array([row for row, _ in column])] = [number for _, number in column]
        found.append(Signal(topic, field, entry, time, value, delay_s))
    return found


def stamp_s(message: Any) -> float | None:
    """The message's own time in s: `header.stamp`, `stamp` or `clock`; None where it has none."""
    header = getattr(message, "header", None)
    for holder, name in ((header, "stamp"), (message, "stamp"), (message, "clock")):
        found = getattr(holder, name, None)
        if isinstance(found, float):
            return found
        sec, nanosec = getattr(found, "sec", None), getattr(found, "nanosec", None)
        if isinstance(sec, int) and isinstance(nanosec, int):
            return (sec * NANOSECONDS + nanosec) / NANOSECONDS
    return None


def _numbers(message: Any) -> Iterator[tuple[str, str, float]]:
    """(field, entry, value) of every number, but those of headers and times."""
    names: Sequence[str] = next((list(getattr(message, each)) for each in _NAMES if hasattr(message, each)), [])
    for field in _fields(message):
        if field in ("header", "stamp"):
            continue
        yield from _of(field, getattr(message, field), names)


def _of(field: str, value: Any, names: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    if isinstance(value, bool | int | float | np.number):
        yield field, "", float(value)
    elif isinstance(value, list | tuple | np.ndarray):
        for k, each in enumerate(value):
            entry = names[k] if len(names) == len(value) else str(k)
            if isinstance(each, int | float | np.number):
                yield field, entry, float(each)
            elif not isinstance(each, str):
                for inner, deeper, number in _of(field, each, ()):
                    yield (
                        f"{field}{inner.removeprefix(field)}",
                        f"{_entry(each, entry)}{deeper and '.' + deeper}",
                        number,
                    )
    elif not isinstance(value, str | bytes):
        for inner in _fields(value):
            if inner != "header":
                yield from _of(f"{field}.{inner}", getattr(value, inner), names)


def _entry(message: Any, otherwise: str) -> str:
    """What one of several is called: a transform by its child frame."""
    return str(getattr(message, "child_frame_id", "") or otherwise)


def _fields(message: Any) -> Sequence[str]:
    if isinstance(message, msgspec.Struct):
        return message.__struct_fields__
    return tuple(getattr(message, "__slots__", ()))
