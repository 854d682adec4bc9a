"""Periodic deadlines: absolute, with skipped periods after an overrun; statistics of lateness; timers.

The deadlines are t0 + k period. After an overrun a loop goes on at the next deadline and gets the number of periods
that passed, as in ros2_control's controller manager: no drift and no bursts.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import zmq

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.zmq_sockets import is_readable

_PR_SET_TIMERSLACK = 29


@dataclass(eq=False)
class Pacer:
    """Absolute deadlines every `period_s`; `wait` sleeps until the next one and polls for the last `busy_poll_s`.

    deadline_ns: the next deadline, on the clock `now_ns`. late_s: time from the deadline to the return of the last
    `wait`. overruns: number of times that more than one period had passed. skipped: total number of skipped periods.
    """

    period_s: float
    now_ns: Callable[[], int] = time.monotonic_ns
    sleep: Callable[[float], None] = time.sleep
    busy_poll_s: float = 0.0
    late_s: float = 0.0
    overruns: int = 0
    skipped: int = 0
    deadline_ns: int = field(default=0, init=False)
    _start_ns: int = field(default=0, init=False)
    _period_ns: int = field(default=0, init=False)
    _count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.period_s > 0.0:
            raise InvalidArgumentError(f"period_s is {self.period_s}: expected a positive number of seconds")
        self._period_ns = max(1, round(self.period_s * 1e9))
        self.restart()

    def restart(self) -> None:
        """Restarts the deadlines now."""
        self._start_ns = self.now_ns()
        self._count = 0
        self.deadline_ns = self._start_ns + self._period_ns

    def wait(self) -> int:
        """Sleeps until the next deadline, and returns the number of periods since the last call: 1, or more if late."""
        deadline = self.deadline_ns
        now = self.now_ns()
        while now < deadline:
            left = (deadline - now) * 1e-9 - self.busy_poll_s
            if left > 0.0:
                self.sleep(left)
            now = self.now_ns()
        return self.met(now)

    def met(self, now: int) -> int:
        """Returns the number of periods up to `now` ns, the deadline or later; for loops that do not call `wait`."""
        # from the start, not from the last deadline: rounding of the period does not add up
        count = (now - self._start_ns) // self._period_ns
        period_count = count - self._count
        self._count = count
        self.late_s = (now - self.deadline_ns) * 1e-9
        self.deadline_ns = self._start_ns + (count + 1) * self._period_ns
        if period_count > 1:
            self.overruns += 1
            self.skipped += period_count - 1
        return period_count


LATE = ("late_p50_us", "late_p99_us", "late_p99_9_us", "late_max_us")
"""Keys of `Lateness.microseconds`, also used in reports."""


class Lateness:
    """Lateness of a loop over its whole run in bounded memory: counts in bins 2 % apart, and the exact maximum."""

    _EDGES_US = np.geomspace(0.1, 1e7, 932)

    def __init__(self) -> None:
        self._counts = np.zeros(len(self._EDGES_US) + 1, dtype=np.int64)
        self._new: list[float] = []
        self._max_s = 0.0

    def add(self, late_s: float) -> None:
        """Adds the lateness of one period."""
        self._new.append(late_s)

    def microseconds(self) -> dict[str, float]:
        """Returns percentiles (each at most 2 % too large) and the maximum of all periods so far, with the keys `LATE`.
        Call it regularly: it folds the new values into the bins.
        """
        if self._new:
            late_s = np.array(self._new)
            self._new.clear()
            self._counts += np.bincount(np.searchsorted(self._EDGES_US, 1e6 * late_s), minlength=len(self._counts))
            self._max_s = max(self._max_s, float(late_s.max()))
        longest = 1e6 * self._max_s
        up_to = np.cumsum(self._counts)
        percentiles = {}
        for name, share in zip(LATE, (0.5, 0.99, 0.999), strict=False):
            index = min(int(np.searchsorted(up_to, share * up_to[-1])), len(self._EDGES_US) - 1)
            percentiles[name] = min(float(self._EDGES_US[index]), longest)
        return {**percentiles, LATE[-1]: longest}


def readable(socket: zmq.Socket[bytes], timeout_ms: int, busy_poll_s: float) -> bool:
    """Whether a message is available within the timeout; for the first `busy_poll_s` s this polls without sleeping."""
    poll_end_s = time.monotonic() + busy_poll_s
    while busy_poll_s > 0.0 and time.monotonic() < poll_end_s:
        if is_readable(socket):
            return True
    # `poll` of the socket makes a poller for each call
    return bool(zmq.zmq_poll([(socket, zmq.POLLIN)], timeout_ms))


def precise_sleep() -> bool:
    """Reduces the timer slack of this thread from Linux's 50 us to 1 us; returns whether the system supports it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


class Timer(Pacer):
    """Calls `callback` every `period_s`; a late node skips periods."""

    def __init__(
        self, period_s: float, callback: Callable[[], object], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        super().__init__(period_s, now_ns)
        self._callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Stops the timer."""
        self.cancelled = True

    def turn(self, now_ns: int) -> bool:
        """Calls the callback if it is due; returns whether it was."""
        if self.cancelled or now_ns < self.deadline_ns:
            return False
        self.met(now_ns)
        self._callback()
        return True
