"""When the worker thread makes kernels: for what those who wait are told, and for what is off their deadlines."""

from __future__ import annotations

from collections import deque
from itertools import chain
from time import perf_counter_ns

_KEPT = 512
"""So many of the last kernels are remembered: more than one request makes."""


class CompileClock:
    """Notes since when which kernel is made, and when others were. Written by the worker, read by every thread."""

    def __init__(self) -> None:
        self.current: tuple[str, int] | None = None
        """The kernel that is being made, and since when, on the clock of `time.perf_counter_ns`."""
        self._past: deque[tuple[int, int]] = deque(maxlen=_KEPT)

    def begun(self, kernel: str) -> None:
        """The making of a kernel begins: see `kernels.making.Listener`."""
        self.current = (kernel, perf_counter_ns())

    def ended(self) -> None:
        """It is over."""
        current, self.current = self.current, None
        if current is not None:
            self._past.append((current[1], perf_counter_ns()))

    def within_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of that time went into kernels."""
        current = self.current
        ongoing = [] if current is None else [(current[1], end_ns)]
        spans = chain(tuple(self._past), ongoing)
        return sum(max(0, min(end, end_ns) - max(begin, begin_ns)) for begin, end in spans)
