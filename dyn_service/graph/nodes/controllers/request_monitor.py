"""Statistics of a controller's requests: sent, answered and lost, deadline misses, round-trip times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from dyn_service.errors import DeadlineExceededError, ResourceExhaustedError, UnavailableError
from dyn_service.graph.middleware.telemetry import Recorder

TRANSIENT_ERRORS = (DeadlineExceededError, UnavailableError, ResourceExhaustedError)
"""Errors after which the next request may succeed: the loop goes on."""
UPDATE, LOADS = 0, 1
"""Kinds of requests in the recording: a law's update with all it asks, and joint loads for the record."""
COLUMNS = ("t", "kind", "round_trip_us", "missed")

T = TypeVar("T")


class RequestMonitor:
    """Makes requests and counts their outcomes. deadline_s: an update that takes longer is a deadline miss."""

    def __init__(self, deadline_s: float, recorder: Recorder | None) -> None:
        self.sent = self.answered = self.lost = self.deadline_misses = 0
        self.round_trips_us: list[float] = []
        self._deadline_us = 1e6 * deadline_s
        self._recorder = recorder

    def flush(self) -> None:
        """Sends what was recorded."""
        if self._recorder is not None:
            self._recorder.flush()

    def ask(self, stamp: float, kind: int, question: Callable[[], T]) -> T | None:
        """The answer, or None where it is lost."""
        self.sent += 1
        begun = time.perf_counter_ns()
        try:
            answer = question()
        except TRANSIENT_ERRORS:
            self.lost += 1
            return None
        took_us = 1e-3 * (time.perf_counter_ns() - begun)
        self.answered += 1
        missed = kind == UPDATE and took_us > self._deadline_us
        self.deadline_misses += missed
        if kind == UPDATE:
            self.round_trips_us.append(took_us)
        if self._recorder is not None:
            self._recorder.row()[:] = (stamp, kind, took_us, missed)
        return answer
