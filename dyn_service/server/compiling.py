"""When the worker thread makes kernels: for what those who wait are told, and for what is off their deadlines."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from time import perf_counter_ns

from dyn_service.protocol.defaults import NOTICE_PERIOD_MS
from dyn_service.protocol.messages import VERSION, Notice, Waiting, encode
from dyn_service.server.worker import Task

_KEPT = 512
"""So many of the last kernels are remembered: more than one request makes."""

_NEWS_AFTER_NS = 20_000_000
"""A kernel that takes no longer, such as one from disk, is not worth a word to those who wait for it."""


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


def news(clock: CompileClock, tasks: Iterable[Task], now_ns: int) -> Iterator[tuple[Task, bytes]]:
    """The notices that are due, to those who wait for a kernel: their own, or one of a request before theirs."""
    current = clock.current
    if current is None or now_ns - current[1] < _NEWS_AFTER_NS:
        return
    kernel, since_ns = current
    for task in tasks:
        if now_ns < task.next_notice_ns:
            continue
        head = task.head()
        _, is_req = task.envelope
        if head.id is None or not head.compile_wait_ms or is_req:  # a REQ socket takes one message only
            task.next_notice_ns = sys.maxsize
            continue
        task.next_notice_ns = now_ns + int(NOTICE_PERIOD_MS * 1e6)
        waiting = Waiting("compiling", f"{kernel} is being compiled", (now_ns - since_ns) / 1e6, NOTICE_PERIOD_MS)
        yield task, encode(Notice(VERSION, head.id, waiting))
