"""What a law shows of itself, recorded: the channel `law`, with a column per number of its signals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyn_service.control.law import Law
from dyn_service.nodes.telemetry import Recorder, Telemetry

CHANNEL = "law"


class LawSignals:
    """Records the signals of a law, and keeps the latest. names: of the entries of v, for signals of that length."""

    def __init__(self, law: Law, names: Sequence[str], telemetry: Telemetry | None) -> None:
        self._law, self._names, self._telemetry = law, tuple(names), telemetry
        self._recorder: Recorder | None = None
        self._latest: dict[str, float] = {}

    def exchange(self, law: Law) -> None:
        """Records those of this law from now on; it shows what the one before did."""
        self._law = law

    def take(self, stamp: float) -> None:
        """Records what the law shows of its last update, at the plant's time `stamp` s."""
        found = {name: np.asarray(value, dtype=np.float64) for name, value in self._law.signals().items()}
        if not found:
            return
        self._latest = {f"law.{name}": float(np.abs(value).max(initial=0.0)) for name, value in found.items()}
        if self._telemetry is None:
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
        """Of each signal the largest magnitude in the last update, as `law.NAME`."""
        return dict(self._latest)

    def flush(self) -> None:
        """Sends what was recorded."""
        if self._recorder is not None:
            self._recorder.flush()

    def _columns(self, name: str, size: int, ndim: int) -> list[str]:
        if ndim == 0:
            return [f"{name}.{name}"]
        entries = self._names if size == len(self._names) else [str(k) for k in range(size)]
        return [f"{name}.{entry}" for entry in entries]
