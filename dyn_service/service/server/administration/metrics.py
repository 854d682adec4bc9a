"""Counters and latencies of a server: replies and errors by query, durations in powers of two, traffic."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

_BUCKETS = 64  # bucket k counts durations from 2^(k-1) us up to 2^k us


class Durations:
    """Histogram of durations. Only one thread may add to it."""

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
        total = Durations()
        total.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        total.total_ns = self.total_ns + other.total_ns
        total.longest_ns = max(self.longest_ns, other.longest_ns)
        return total

    def filled(self) -> list[int]:
        """Returns the buckets up to the last nonzero one."""
        return self.buckets[: (self.longest_ns // 1000).bit_length() + 1]

    def quantile_us(self, fraction: float) -> int:
        """Returns the upper bound, in microseconds, of the bucket that contains the quantile."""
        rank = fraction * sum(self.buckets)
        count_so_far = 0
        for power, count in enumerate(self.buckets):
            count_so_far += count
            if count and count_so_far >= rank:
                return min(1 << power, self.longest_ns // 1000)
        return 0


@dataclass(slots=True)
class Traffic:
    """Counts of messages and bytes, received, sent and dropped. Only the thread of the sockets modifies it."""

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


_LISTS = "evaluate"
"""The name under which all lists of queries are counted; theirs contain `+`."""


class Metrics:
    """Counters shared by the threads of a server."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.gauges: dict[str, Callable[[], float]] = {}
        """Functions that return a current value, by name; called by the server's thread."""
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._answered: dict[str, Durations] = {}
        self._fast: dict[str, Durations] = {}
        self._refused: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    @property
    def uptime_s(self) -> float:
        """Seconds since the server started."""
        return time.monotonic() - self._started

    def answered(self, query: str, duration_ns: int) -> None:
        """Counts a reply and the time from receipt to reply."""
        with self._lock:
            self._answered.setdefault(query if "+" not in query else _LISTS, Durations()).add(duration_ns)

    def fast_path(self, query: str) -> Durations:
        """Returns the histogram that the thread of the sockets, and no other, updates without a lock."""
        with self._lock:
            return self._fast.setdefault(query if "+" not in query else _LISTS, Durations())

    def refused(self, query: str | None, code: str) -> None:
        """Counts an error reply. `query` must be a known name or None, so that the number of counters is bounded."""
        with self._lock:
            self._errors[code] += 1
            if query is not None:
                self._refused[query if "+" not in query else _LISTS] += 1

    def to_dict(self) -> dict[str, Any]:
        """Returns all counters, as in the reply of the query `stats`."""
        with self._lock:
            requests = {}
            for query in sorted({*self._answered, *self._fast, *self._refused}):
                durations = self._answered.get(query, Durations()) + self._fast.get(query, Durations())
                answer_count, refusal_count = sum(durations.buckets), self._refused[query]
                if answer_count or refusal_count:
                    requests[query] = {
                        "answered": answer_count,
                        "refused": refusal_count,
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
