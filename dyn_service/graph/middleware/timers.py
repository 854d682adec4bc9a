"""Timers of a node: absolute deadlines, and one call for however many periods have passed."""

from __future__ import annotations

import time
from collections.abc import Callable

from dyn_service.graph.middleware.pacing import Pacer


class Timer:
    """Calls `callback` every `period_s`, by `Pacer`'s rules: nothing drifts, and a node that comes late skips periods
    instead of making up for them.

    Raises:
        InvalidArgumentError: The period is not a positive number.
    """

    def __init__(
        self, period_s: float, callback: Callable[[], object], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._pacer = Pacer(period_s, now_ns)
        self._callback = callback
        self.cancelled = False

    @property
    def period_s(self) -> float:
        """Seconds from deadline to deadline."""
        return self._pacer.period_s

    @property
    def overruns(self) -> int:
        """How often more than one period had passed."""
        return self._pacer.overruns

    @property
    def skipped(self) -> int:
        """Periods that were passed over in all."""
        return self._pacer.skipped

    @property
    def late_s(self) -> float:
        """How long after its deadline the last call began."""
        return self._pacer.late_s

    @property
    def deadline_ns(self) -> int:
        """The next deadline, on the clock of `time.monotonic_ns`."""
        return self._pacer.deadline_ns

    def restart(self) -> None:
        """Lets the deadlines count from now."""
        self._pacer.restart()

    def cancel(self) -> None:
        """Calls no more."""
        self.cancelled = True

    def turn(self, now_ns: int) -> bool:
        """Calls, if it is time; whether it was."""
        if self.cancelled or now_ns < self._pacer.deadline_ns:
            return False
        self._pacer.met(now_ns)
        self._callback()
        return True
