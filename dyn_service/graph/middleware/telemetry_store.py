"""What the nodes have told the launcher: latest numbers, facts, faults and recordings. No sockets.

Recordings are bounded: one that outgrows its share of memory keeps every second row from then on, so that it always
spans the whole run. `stride` says how many rows of the node stand behind one that is kept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.telemetry import Facts, Fault, Message, Ready, Rows, Stats, rows_of

MAX_RECORDING_BYTES = 32 << 20


class Recording:
    """A table of named columns that grows by blocks of rows within a bound on its memory."""

    def __init__(self, columns: Sequence[str], *, max_bytes: int = MAX_RECORDING_BYTES) -> None:
        self.columns = tuple(columns)
        self.stride = 1
        self.seen = 0
        self._most = max(2, max_bytes // (8 * max(1, len(self.columns))))
        self._blocks: list[Array] = []
        self._kept = 0

    def extend(self, rows: Array) -> None:
        """Takes over rows (k, columns)."""
        first = -self.seen % self.stride
        self.seen += len(rows)
        kept = rows[first :: self.stride]
        if len(kept):
            self._blocks.append(np.array(kept))
            self._kept += len(kept)
        while self._kept > self._most:
            halved = np.concatenate(self._blocks)[::2]
            self._blocks, self._kept = [halved], len(halved)
            self.stride *= 2

    @property
    def table(self) -> Array:
        """All rows that are kept, (k, columns)."""
        if not self._blocks:
            return np.empty((0, len(self.columns)))
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]

    def column(self, name: str) -> Array:
        """One column, (k,)."""
        return self.table[:, self.columns.index(name)]

    def group(self, prefix: str) -> tuple[tuple[str, ...], Array]:
        """The columns `prefix.NAME`: their names, and their values (k, names)."""
        chosen = [i for i, name in enumerate(self.columns) if name.startswith(prefix + ".")]
        return tuple(self.columns[i][len(prefix) + 1 :] for i in chosen), self.table[:, chosen]


@dataclass
class NodeBoard:
    """One node: its latest numbers, the sums of its counters over restarts, its facts and faults.

    lives: the stats of each run of the node, the last one is the present. facts: one entry per message.
    """

    lives: dict[int, dict[str, float | int | str]] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    recordings: dict[str, Recording] = field(default_factory=dict)
    heard_s: float = 0.0

    @property
    def stats(self) -> dict[str, float | int | str]:
        """The latest numbers."""
        return next(reversed(self.lives.values())) if self.lives else {}

    def total(self, name: str) -> int:
        """A counter, summed over the node's restarts."""
        return sum(int(life[name]) for life in self.lives.values() if isinstance(life.get(name), int | float))

    def fact(self, name: str) -> Any:
        """The latest fact of that name, or None."""
        return next((facts[name] for facts in reversed(self.facts) if name in facts), None)


@dataclass
class Board:
    """All nodes by name."""

    nodes: dict[str, NodeBoard] = field(default_factory=dict)
    malformed: int = 0

    def take(self, message: Message) -> None:
        """Takes one message over."""
        node = self.nodes.setdefault(message.node, NodeBoard())
        node.heard_s = time.monotonic()
        if isinstance(message, Stats):
            node.lives.setdefault(message.pid, {}).update(message.values)
        elif isinstance(message, Facts):
            node.facts.append({**message.values, "pid": message.pid})
        elif isinstance(message, Fault):
            node.faults.append(message.message)
        elif isinstance(message, Rows):
            self._rows(node, message)
        elif isinstance(message, Ready):
            node.lives.setdefault(message.pid, {})

    def with_fact(self, name: str) -> NodeBoard | None:
        """The first node that has told a fact of that name, or None."""
        return next((node for node in self.nodes.values() if node.fact(name) is not None), None)

    def _rows(self, node: NodeBoard, message: Rows) -> None:
        try:
            rows = rows_of(message)
        except InvalidArgumentError:
            self.malformed += 1
            return
        recording = node.recordings.get(message.channel)
        if recording is None or recording.columns != tuple(message.columns):
            recording = node.recordings[message.channel] = Recording(message.columns)
        recording.extend(rows)
