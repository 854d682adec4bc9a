"""What the server counts: answers and errors by query, time by powers of two, events of the transport."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import Any

_BUCKETS = 40
"""Bucket k counts durations of 2^(k-1) us up to 2^k us; the last takes the rest."""


class _Record:
    __slots__ = ("answered", "buckets", "max_us", "refused")

    def __init__(self) -> None:
        self.answered = 0
        self.refused = 0
        self.buckets = [0] * _BUCKETS
        self.max_us = 0

    def add(self, microseconds: int) -> None:
        self.answered += 1
        self.buckets[min(microseconds.bit_length(), _BUCKETS - 1)] += 1
        self.max_us = max(self.max_us, microseconds)

    def quantile(self, fraction: float) -> int:
        """The upper end, in microseconds, of the bucket that the quantile falls in."""
        wanted = fraction * sum(self.buckets)
        seen = 0
        for power, count in enumerate(self.buckets):
            seen += count
            if seen >= wanted:
                return min(1 << power, self.max_us)
        return self.max_us

    def to_dict(self) -> dict[str, int]:
        return {
            "answered": self.answered,
            "refused": self.refused,
            "p50_us": self.quantile(0.5),
            "p99_us": self.quantile(0.99),
            "max_us": self.max_us,
        }


class Metrics:
    """Counters that the threads of a server share.

    counters: Events of the transport; only the thread that owns the socket adds to them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._noted: deque[tuple[str, int]] = deque()
        self._records: dict[str, _Record] = {}
        self._errors: Counter[str] = Counter()
        self.counters: Counter[str] = Counter()

    @property
    def uptime_s(self) -> float:
        """Seconds since the server started."""
        return time.monotonic() - self._started

    def answered(self, query: str, total_ns: int) -> None:
        """Notes an answer, and the time from the request's receipt to its reply, for `settle` to count."""
        self._noted.append((query, total_ns))

    def settle(self) -> None:
        """Counts what was noted: when the reply is on its way, not before."""
        with self._lock:
            while self._noted:
                query, total_ns = self._noted.popleft()
                self._record(query).add(total_ns // 1000)

    def refused(self, query: str | None, code: str) -> None:
        """Counts an error reply. Give `query` only where it is the name of one, so that the counters stay few."""
        with self._lock:
            self._errors[code] += 1
            if query is not None:
                self._record(query).refused += 1

    def to_dict(self) -> dict[str, Any]:
        """All of it, as the query `stats` answers."""
        self.settle()
        with self._lock:
            return {
                "uptime_s": self.uptime_s,
                "requests": {name: record.to_dict() for name, record in sorted(self._records.items())},
                "errors": dict(sorted(self._errors.items())),
                "counters": dict(sorted(self.counters.items())),
            }

    def _record(self, query: str) -> _Record:
        record = self._records.get(query)
        if record is None:
            record = self._records[query] = _Record()
        return record
