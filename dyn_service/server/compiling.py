"""When workers make kernels: for what those who wait are told, and for what is off their deadlines."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from time import perf_counter_ns

from dyn_service.protocol.defaults import NOTICE_PERIOD_MS
from dyn_service.protocol.messages import VERSION, Notice, Waiting, encode
from dyn_service.server.task import Task

_KEPT = 512
"""So many of the last kernels are remembered: more than one request makes."""

_NEWS_AFTER_NS = 20_000_000
"""A kernel that takes no longer, such as one from disk, is not worth a word to those who wait for it."""


class CompileClock:
    """Notes since when which kernels are made, and when others were. Their makers write it, every thread reads it."""

    def __init__(self) -> None:
        self._making: dict[int, tuple[str, int]] = {}
        self._past: deque[tuple[int, int]] = deque(maxlen=_KEPT)

    @property
    def current(self) -> tuple[str, int] | None:
        """The kernel that has been in the making for longest, and since when, by `time.perf_counter_ns`."""
        return min(tuple(self._making.values()), key=lambda each: each[1], default=None)

    def begun(self, kernel: str, maker: int = 0) -> None:
        """The making of a kernel begins: see `kernels.making.Listener`. A maker makes one at a time."""
        self._making[maker] = (kernel, perf_counter_ns())

    def ended(self, maker: int = 0) -> None:
        """It is over."""
        made = self._making.pop(maker, None)
        if made is not None:
            self._past.append((made[1], perf_counter_ns()))

    def forget(self) -> None:
        """Forgets what is past."""
        self._past.clear()

    def within_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of that time went into kernels; what several makers do at once counts once."""
        spans = [*self._past, *((since, end_ns) for _, since in tuple(self._making.values()))]
        total, until = 0, begin_ns
        for begin, end in sorted(spans):
            total += max(0, min(end, end_ns) - max(begin, until))
            until = max(until, end)
        return total


def news(clock: CompileClock, tasks: Iterable[Task], now_ns: int) -> Iterator[tuple[Task, bytes]]:
    """The notices that are due, to those who wait for a kernel: their own, or one of a request before theirs."""
    current = clock.current
    if current is None or now_ns - current[1] < _NEWS_AFTER_NS:
        return
    kernel, since_ns = current
    for task in tasks:
        if now_ns < task.next_notice_ns or not task.waits_for_kernel:
            continue
        head = task.head()
        _, is_req = task.envelope
        if head.id is None or not head.compile_wait_ms or is_req:  # a REQ socket takes one message only
            task.next_notice_ns = sys.maxsize
            continue
        task.next_notice_ns = now_ns + int(NOTICE_PERIOD_MS * 1e6)
        waiting = Waiting("compiling", f"{kernel} is being compiled", (now_ns - since_ns) / 1e6, NOTICE_PERIOD_MS)
        yield task, encode(Notice(VERSION, head.id, waiting))
