"""What the server counts: answers and errors by query, time by powers of two, the traffic of its socket."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

_BUCKETS = 64
"""Bucket k counts durations of 2^(k-1) us up to 2^k us."""


class Durations:
    """How often something took how long. One thread adds to it at a time."""

    __slots__ = ("buckets", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * _BUCKETS
        self.longest_ns = self.total_ns = 0

    def add(self, duration_ns: int) -> None:
        """Counts one duration."""
        self.buckets[(duration_ns // 1000).bit_length()] += 1
        self.total_ns += duration_ns
        if duration_ns > self.longest_ns:
            self.longest_ns = duration_ns

    def __add__(self, other: Durations) -> Durations:
        both = Durations()
        both.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        both.total_ns = self.total_ns + other.total_ns
        both.longest_ns = max(self.longest_ns, other.longest_ns)
        return both

    def filled(self) -> list[int]:
        """The buckets up to the last one that counts something."""
        return self.buckets[: (self.longest_ns // 1000).bit_length() + 1]

    def quantile_us(self, fraction: float) -> int:
        """The upper end, in microseconds, of the bucket that the quantile falls in."""
        wanted = fraction * sum(self.buckets)
        seen = 0
        for power, count in enumerate(self.buckets):
            seen += count
            if count and seen >= wanted:
                return min(1 << power, self.longest_ns // 1000)
        return 0


@dataclass(slots=True)
class Traffic:
    """Messages and bytes in and out, and what was not delivered or not taken. Only the socket's thread adds to it."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    cut_off: int = 0
    dropped_gone: int = 0
    dropped_slow_reader: int = 0
    refused_busy: int = 0
    cancelled: int = 0
    notices: int = 0
    workers_lost: int = 0
    defects: int = 0


class Metrics:
    """Counters that the threads of a server share."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.gauges: dict[str, Callable[[], float]] = {}
        """What stands at some number now, by name; asked by the thread that serves."""
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._answered: dict[str, Durations] = {}
        self._short: dict[str, Durations] = {}
        self._refused: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    @property
    def uptime_s(self) -> float:
        """Seconds since the server started."""
        return time.monotonic() - self._started

    def answered(self, query: str, duration_ns: int) -> None:
        """Counts an answer, and the time from the request's receipt to its reply."""
        with self._lock:
            self._answered.setdefault(query, Durations()).add(duration_ns)

    def short(self, query: str) -> Durations:
        """Where the thread that owns the socket, and no other, counts answers without a lock."""
        with self._lock:
            return self._short.setdefault(query, Durations())

    def refused(self, query: str | None, code: str) -> None:
        """Counts an error reply. Give `query` only where it is the name of one, so that the counters stay few."""
        with self._lock:
            self._errors[code] += 1
            if query is not None:
                self._refused[query] += 1

    def to_dict(self) -> dict[str, Any]:
        """All of it, as the query `stats` answers."""
        with self._lock:
            requests = {}
            for query in sorted({*self._answered, *self._short, *self._refused}):
                durations = self._answered.get(query, Durations()) + self._short.get(query, Durations())
                answered, refused = sum(durations.buckets), self._refused[query]
                if answered or refused:
                    requests[query] = {
                        "answered": answered,
                        "refused": refused,
                        "p50_us": durations.quantile_us(0.5),
                        "p99_us": durations.quantile_us(0.99),
                        "max_us": durations.longest_ns // 1000,
                        "total_us": durations.total_ns // 1000,
                        "buckets": durations.filled(),
                    }
            return {
                "uptime_s": self.uptime_s,
                "requests": requests,
                "errors": dict(sorted(self._errors.items())),
                "counters": asdict(self.traffic),
                "gauges": {name: read() for name, read in sorted(self.gauges.items())},
            }
