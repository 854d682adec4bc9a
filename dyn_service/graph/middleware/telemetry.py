"""Telemetry: messages from nodes to their launcher, and the launcher's store of them.

Messages are MessagePack maps with a `kind`, from the node's PUSH to the launcher's PULL socket:

    ready    the node has started
    beat     heartbeat of its main loop
    stats    present numbers, a few times a second
    rows     a block of a recording: named columns of 64-bit floats
    facts    constants: the robot, its joints and limits, the reference motion
    fault    why the node ends

Sending never blocks a control loop: messages that the launcher does not receive in time are dropped and counted.

Recordings are bounded: a recording that exceeds its share of memory keeps only every second row from then on, so that
it always spans the whole run. `stride` is the number of the node's rows per kept row.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import zmq

from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.zmq_sockets import Context

ENDPOINT = "DYN_LAUNCH_ENDPOINT"
NODE = "DYN_LAUNCH_NODE"
RESTARTS = "DYN_LAUNCH_RESTARTS"
"""Environment variable with the number of times that a launcher has restarted the node."""
DURATION = "DYN_LAUNCH_DURATION"
"""Environment variable with the s of its own time after which a plant in lockstep stands still, if there is one."""
ROUNDING_S = 1e-9
"""Tolerance of that time, which is a sum of steps."""
_QUEUE = 4096
_LINGER_MS = 2000
BEAT_PERIOD_S = 0.2
"""Shortest period between two heartbeats."""


class _Message(msgspec.Struct, tag_field="kind", tag=str.lower):
    node: str
    pid: int


class Ready(_Message):
    """The node has started."""


class Beat(_Message):
    """Heartbeat. busy_s: seconds by which the next beat may exceed the timeout."""

    busy_s: float = 0.0


class Stats(_Message):
    """Present numbers; counters count since the node started."""

    values: dict[str, float | int | str]


class Rows(_Message):
    """A block of the recording `channel`: rows of `columns`, little-endian doubles, row by row."""

    channel: str
    columns: list[str]
    data: bytes


class Facts(_Message):
    """Values that do not change while the node runs."""

    values: dict[str, Any]


class Fault(_Message):
    """Why the node ends."""

    message: str


Message = Ready | Beat | Stats | Rows | Facts | Fault
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


def decode(frame: bytes) -> Message:
    """Decodes a frame; raises `InvalidArgumentError` for other bytes."""
    try:
        message: Message = _DECODER.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"not a telemetry message: {error}") from None
    return message


def rows_of(message: Rows) -> Array:
    """Returns the block as an array (rows, columns)."""
    width = 8 * len(message.columns)
    if not width or len(message.data) % width:
        raise InvalidArgumentError(f"channel {message.channel!r}: {len(message.data)} bytes are not rows of {width}")
    return np.frombuffer(message.data, dtype="<f8").reshape(-1, len(message.columns)).astype(np.float64)


class Telemetry:
    """Sends a node's telemetry; without a launcher it sends nothing."""

    def __init__(self, node: str, context: Context, endpoint: str | None) -> None:
        self.node = node
        self.dropped = 0
        self.latest: dict[str, float | int | str] = {}
        self.before_ready: Callable[[], None] = lambda: None
        self.was_ready = False
        self._next_beat_s = 0.0
        self._busy_s = 0.0
        # the process began before this line: its CPU time until here is about the time since then
        self._began_s = time.monotonic() - time.process_time()
        self._pid = os.getpid()
        self._socket: zmq.Socket[bytes] | None = None
        if endpoint:
            self._socket = context.socket(zmq.PUSH)
            self._socket.setsockopt(zmq.SNDHWM, _QUEUE)
            self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
            self._socket.connect(endpoint)

    def ready(self) -> None:
        """Calls `before_ready`, then reports that the node has started."""
        self.before_ready()
        self.was_ready = True
        self._send(Ready(self.node, self._pid))

    def beat(self, busy_s: float = 0.0) -> None:
        """Sends a heartbeat: call it in every turn of the main loop, and nowhere else.

        After its first heartbeat a node is watched: it is killed as hung if no heartbeat arrives for its
        `heartbeat_timeout` plus `busy_s` seconds. Calls within `BEAT_PERIOD_S` of the last one send nothing.
        """
        now = time.monotonic()
        if now >= self._next_beat_s or busy_s != self._busy_s:
            self._next_beat_s, self._busy_s = now + BEAT_PERIOD_S, busy_s
            self._send(Beat(self.node, self._pid, busy_s))

    def stats(self, values: Mapping[str, float | int | str]) -> None:
        """Sends the present numbers, and keeps them as `latest`."""
        self.latest = dict(values)
        self._send(Stats(self.node, self._pid, self.latest))

    def facts(self, values: Mapping[str, Any]) -> None:
        """Sends constants."""
        self._send(Facts(self.node, self._pid, dict(values)))

    def fault(self, message: str) -> None:
        """Reports why the node ends."""
        self._send(Fault(self.node, self._pid, message))

    def rows(self, channel: str, columns: Sequence[str], block: Array) -> None:
        """Sends a block of a recording."""
        if self._socket is not None:
            data = np.ascontiguousarray(block, dtype="<f8").tobytes()
            self._send(Rows(self.node, self._pid, channel, list(columns), data))

    def close(self) -> None:
        """Sends the CPU time of the process and its ended children, and closes the socket."""
        if self._socket is not None:
            usages = [resource.getrusage(processes) for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
            self.stats({"cpu_s": cpu_s, "lived_s": time.monotonic() - self._began_s})
            self._socket.close()
            self._socket = None

    def _send(self, message: Message) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(_ENCODER.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1


class Recorder:
    """A channel of a recording: rows are buffered until a block is full or old, then sent.

    telemetry: of the node. channel: its name. columns: their names. block_rows: rows of a block. age_s: time after
    which a block is sent.
    """

    def __init__(
        self, telemetry: Telemetry, channel: str, columns: Sequence[str], *, block_rows: int = 128, age_s: float = 0.5
    ) -> None:
        self._telemetry = telemetry
        self._channel = channel
        self._columns = tuple(columns)
        self._block = np.empty((block_rows, len(self._columns)))
        self._age_s = age_s
        self._count = 0
        self._since = time.monotonic()

    def row(self) -> Array:
        """Returns the next row, which the caller must fill at once."""
        if self._count == len(self._block) or (self._count and time.monotonic() - self._since > self._age_s):
            self.flush()
        if self._count == 0:
            self._since = time.monotonic()
        self._count += 1
        row: Array = self._block[self._count - 1]
        return row

    def flush(self) -> None:
        """Sends the buffered rows."""
        if self._count:
            self._telemetry.rows(self._channel, self._columns, self._block[: self._count])
            self._count = 0


MAX_RECORDING_BYTES = 32 << 20


class Recording:
    """A table of named columns that grows by blocks of rows within a memory bound."""

    def __init__(self, columns: Sequence[str], *, max_bytes: int = MAX_RECORDING_BYTES) -> None:
        self.columns = tuple(columns)
        self.stride = 1
        self.seen = 0
        self._most = max(2, max_bytes // (8 * max(1, len(self.columns))))
        self._blocks: list[Array] = []
        self._kept = 0

    def extend(self, rows: Array) -> None:
        """Appends rows (k, columns)."""
        first = -self.seen % self.stride
        self.seen += len(rows)
        new_rows = rows[first :: self.stride]
        if len(new_rows):
            self._blocks.append(np.array(new_rows))
            self._kept += len(new_rows)
        while self._kept > self._most:
            # thinned, not cut, so that a recording always spans the whole run
            halved = np.concatenate(self._blocks)[::2]
            self._blocks, self._kept = [halved], len(halved)
            self.stride *= 2

    @property
    def table(self) -> Array:
        """All kept rows, (k, columns)."""
        if not self._blocks:
            return np.empty((0, len(self.columns)))
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]

    def column(self, name: str) -> Array:
        """Returns one column, (k,)."""
        return self.table[:, self.columns.index(name)]

    def group(self, prefix: str) -> tuple[tuple[str, ...], Array]:
        """Returns the names NAME of the columns `prefix.NAME`, and their values (k, names)."""
        columns = [i for i, name in enumerate(self.columns) if name.startswith(prefix + ".")]
        return tuple(self.columns[i][len(prefix) + 1 :] for i in columns), self.table[:, columns]


@dataclass
class NodeTelemetry:
    """Telemetry of one node: stats, counters summed over restarts, facts, faults and recordings.

    lives: the stats of each run of the node, the present one last. facts: one entry per message.
    """

    lives: dict[int, dict[str, float | int | str]] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    recordings: dict[str, Recording] = field(default_factory=dict)

    @property
    def stats(self) -> dict[str, float | int | str]:
        """The latest numbers."""
        return next(reversed(self.lives.values())) if self.lives else {}

    def total(self, name: str) -> int:
        """Returns a counter, summed over the node's restarts."""
        return sum(int(life[name]) for life in self.lives.values() if isinstance(life.get(name), int | float))

    def recording(self, channel: str) -> Recording | None:
        """Returns the recording of a channel, or None if it has no rows."""
        recording = self.recordings.get(channel)
        return recording if recording is not None and len(recording.table) else None

    def fact(self, name: str) -> Any:
        """Returns the latest fact with this name, or None."""
        return next((facts[name] for facts in reversed(self.facts) if name in facts), None)


@dataclass
class TelemetryStore:
    """Telemetry of all nodes, by name. malformed: number of messages that could not be read."""

    nodes: dict[str, NodeTelemetry] = field(default_factory=dict)
    malformed: int = 0

    def take(self, message: Message) -> None:
        """Stores one message."""
        node = self.nodes.setdefault(message.node, NodeTelemetry())
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

    @property
    def lockstep(self) -> bool:
        """Whether all plants run in lockstep: then nothing can be late, and time is that of the plants."""
        return {clock for node in self.nodes.values() if (clock := node.fact("clock")) is not None} == {"lockstep"}

    @property
    def simulated_s(self) -> float | None:
        """The time, s, that each plant in lockstep has reached at least; None without such plants."""
        plants = [node for node in self.nodes.values() if node.fact("clock") == "lockstep"]
        return min((float(node.stats.get("time_s", 0.0)) for node in plants), default=None)

    def with_fact(self, name: str) -> NodeTelemetry | None:
        """Returns the first node with a fact of this name, or None."""
        return next((node for node in self.nodes.values() if node.fact(name) is not None), None)

    def _rows(self, node: NodeTelemetry, message: Rows) -> None:
        try:
            rows = rows_of(message)
        except InvalidArgumentError:
            self.malformed += 1
            return
        recording = node.recordings.get(message.channel)
        if recording is None or recording.columns != tuple(message.columns):
            recording = node.recordings[message.channel] = Recording(message.columns)
        recording.extend(rows)
