"""When workers make kernels: for what those who wait are told, and for what is off their deadlines."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING

from dyn_service.service.protocol.defaults import NOTICE_PERIOD_MS
from dyn_service.service.protocol.messages import VERSION, Notice, Waiting, encode

if TYPE_CHECKING:
    from dyn_service.service.server.answering.task import Task

_KEPT = 512
"""So many of the last kernels are remembered: more than one request makes."""

_NEWS_AFTER_NS = 20_000_000
"""A kernel that takes no longer, such as one from disk, is not worth a word to those who wait for it."""


class CompileClock:
    """Notes since when which kernels are made, and when others were. Their makers write it, every thread reads it."""

    def __init__(self) -> None:
        self._making: dict[int, tuple[str, int]] = {}
        self._past = _Past()

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
            self._past = self._past.and_then(made[1], perf_counter_ns())

    def forget(self) -> None:
        """Forgets what is past."""
        self._past = _Past()

    def within_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of that time went into kernels; what several makers do at once counts once."""
        past, current = self._past, self.current
        since = end_ns if current is None else max(begin_ns, min(current[1], end_ns))
        return max(0, past.until(since) - past.until(begin_ns)) + end_ns - since


class _Past:
    """Spans of time, apart and in order, and how much lies before each. It stays as it is: threads may read it."""

    def __init__(self, spans: tuple[tuple[int, int, int], ...] = ()) -> None:
        self._spans = spans  # begin, end, and how much lies before

    def and_then(self, begin_ns: int, end_ns: int) -> _Past:
        """These and one more, which ends last. Those that it overlaps become one with it."""
        kept = len(self._spans)
        while kept and self._spans[kept - 1][1] >= begin_ns:
            kept -= 1
            begin_ns = min(begin_ns, self._spans[kept][0])
        before = self._spans[kept - 1][2] + self._spans[kept - 1][1] - self._spans[kept - 1][0] if kept else 0
        return _Past((*self._spans[max(0, kept + 1 - _KEPT) : kept], (begin_ns, end_ns, before)))

    def until(self, now_ns: int) -> int:
        """How much of the time up to then they take."""
        number = bisect_right(self._spans, now_ns, key=lambda span: span[0])
        if not number:
            return self._spans[0][2] if self._spans else 0
        begin_ns, end_ns, before = self._spans[number - 1]
        return before + min(now_ns, end_ns) - begin_ns


def news(clock: CompileClock, tasks: Iterable[Task], now_ns: int) -> Iterator[tuple[Task, bytes]]:
    """The notices that are due, to those who wait for a kernel: their own, or one of a request before theirs."""
    current = clock.current
    if current is None or now_ns - current[1] < _NEWS_AFTER_NS:
        return
    kernel, since_ns = current
    for task in [*tasks]:  # who is told may turn out to be gone, and what he waits for with him
        if now_ns < task.next_notice_ns or not task.waits_for_kernel:
            continue
        head = task.head
        _, is_req = task.envelope
        if head.id is None or not head.compile_wait_ms or is_req:  # a REQ socket takes one message only
            task.next_notice_ns = sys.maxsize
            continue
        task.next_notice_ns = now_ns + int(NOTICE_PERIOD_MS * 1e6)
        waiting = Waiting("compiling", f"{kernel} is being compiled", (now_ns - since_ns) / 1e6, NOTICE_PERIOD_MS)
        yield task, encode(Notice(VERSION, head.id, waiting))
