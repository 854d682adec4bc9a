"""Times and durations as seconds and nanoseconds, and conversion from seconds."""

from __future__ import annotations

import math
from typing import TypeVar

from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.fields import Int32, Message, UInt32

T = TypeVar("T", bound="_Span")

NANOSECONDS = 10**9
"""In a second."""


class _Span(Message, frozen=True):
    """Base of times and durations: `sec` plus `nanosec`, the latter never negative."""

    sec: Int32 = 0
    nanosec: UInt32 = 0

    @classmethod
    def from_nanoseconds(cls: type[T], nanoseconds: int) -> T:
        """Returns the time of this many nanoseconds.

        Raises:
            InvalidArgumentError: The seconds do not fit 32 bits: the time is beyond 2038, or 68 years before 1970.
        """
        sec, nanosec = divmod(nanoseconds, NANOSECONDS)
        if not -(2**31) <= sec < 2**31:
            raise InvalidArgumentError(f"{sec} s: seconds of a {cls.__name__} have 32 bits, at most {2**31 - 1}")
        return cls(sec, nanosec)

    @classmethod
    def from_seconds(cls: type[T], seconds: float) -> T:
        """Returns the time nearest to this many seconds.

        Raises:
            InvalidArgumentError: It is NaN, infinite, or does not fit 32 bits.
        """
        if not math.isfinite(seconds):
            raise InvalidArgumentError(f"a {cls.__name__} must be a finite number of seconds, found {seconds}")
        # Exactly, by the ratio: the product seconds * 1e9 is rounded once more.
        numerator, denominator = float(seconds).as_integer_ratio()
        return cls.from_nanoseconds((2 * numerator * NANOSECONDS + denominator) // (2 * denominator))

    def nanoseconds(self) -> int:
        """The time in nanoseconds."""
        return self.sec * NANOSECONDS + self.nanosec

    def seconds(self) -> float:
        """The nearest number of seconds; `from_seconds` gives back the same time within 52 days (2^52 ns) of zero."""
        return self.nanoseconds() / NANOSECONDS


class Time(_Span, frozen=True):
    """A point in time, since 1970 or, under simulated time, since the simulation's start."""


class Duration(_Span, frozen=True):
    """A duration."""
