"""A controller's recordings: its requests (sent, answered, lost, late, round trips) and its law's signals."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.law import Law
from dyn_service.errors import DeadlineExceededError, ResourceExhaustedError, UnavailableError
from dyn_service.graph.middleware.telemetry import Recorder, Telemetry
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.control_msgs import DynamicJointState, InterfaceValue
from dyn_service.messages.std_msgs import Header

TRANSIENT_ERRORS = (DeadlineExceededError, UnavailableError, ResourceExhaustedError)
"""Errors after which the next request may succeed: the loop goes on."""
UPDATE, LOADS = 0, 1
"""Kinds of requests in the recording: an update of the law with all its queries; joint loads."""
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
        """Calls `question` and returns its result, or None after a transient error."""
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


CHANNEL = "law"


class LawSignals:
    """Records signals of laws, and keeps the latest. names: of the entries of v, for signals of that length."""

    def __init__(self, names: Sequence[str], telemetry: Telemetry | None) -> None:
        self._names, self._telemetry = tuple(names), telemetry
        self._recorder: Recorder | None = None
        self._found: dict[str, Array] = {}

    def take(self, stamp: float, law: Law) -> None:
        """Records the law's signals of its last update, at the plant time `stamp` s."""
        found = self._found = {name: np.asarray(value, dtype=np.float64) for name, value in law.signals().items()}
        if not found or self._telemetry is None:
            return
        if self._recorder is None:
            columns = [
                column for name, value in found.items() for column in self._columns(name, value.size, value.ndim)
            ]
            self._recorder = Recorder(self._telemetry, CHANNEL, ["t", *columns])
        row = self._recorder.row()
        row[0] = stamp
        row[1:] = np.concatenate([value.ravel() for value in found.values()])

    def latest(self) -> dict[str, float | int | str]:
        """Returns the largest magnitude of each signal in the last update, as `law.NAME`."""
        return {f"law.{name}": float(np.abs(value).max(initial=0.0)) for name, value in self._found.items()}

    def message(self, stamp: float) -> DynamicJointState:
        """Returns the last signals as a message: those with one number per joint by joint, others by their names."""
        parts: dict[str, InterfaceValue] = {}
        for name, value in self._found.items():
            for column, number in zip(self._columns(name, value.size, value.ndim), value.ravel().tolist(), strict=True):
                entry = column.removeprefix(f"{name}.")
                part, key = (entry, name) if entry in self._names else (name, entry)
                here = parts.setdefault(part, InterfaceValue())
                here.interface_names.append(key)
                here.values.append(number)
        return DynamicJointState(Header(Time.from_seconds(stamp)), list(parts), list(parts.values()))

    def flush(self) -> None:
        """Sends what was recorded."""
        if self._recorder is not None:
            self._recorder.flush()

    def _columns(self, name: str, size: int, ndim: int) -> list[str]:
        if ndim == 0:
            return [f"{name}.{name}"]
        entries = self._names if size == len(self._names) else [str(k) for k in range(size)]
        return [f"{name}.{entry}" for entry in entries]
