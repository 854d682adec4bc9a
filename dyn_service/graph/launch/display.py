"""The output of a launch: a live table in a terminal, a plain line every few seconds elsewhere, and log files.

A pipe without a reader and a stopped terminal (Ctrl-S) block writers; `Screen` therefore writes in a thread, and drops
and counts what does not fit its queue, so that the output never stops a launch. If the disk is full, lines of logs
(`Logs`, one file per process) are kept in memory up to a limit and written later; the rest is counted.
"""

from __future__ import annotations

import io
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dyn_service.graph.launch.planner import ProcessPlan
from dyn_service.graph.launch.supervisor import ManagedProcess, ProcessState
from dyn_service.graph.middleware.node_kind import rate
from dyn_service.support.logs import Format, json_line, printable

if TYPE_CHECKING:
    from dyn_service.graph.launch.supervisor import Supervisor


PLAIN_PERIOD_S = 5.0
_ANY_WIDTH = 10_000
"""Width at which any table fits."""
_COLOURS = {
    ProcessState.READY: "green",
    ProcessState.STARTING: "yellow",
    ProcessState.DELAY: "yellow",
    ProcessState.FAILED: "red",
    ProcessState.STOPPING: "yellow",
}


class Display:
    """Shows a launch; `with Display(console) as display`. With JSON: one object per line, no table."""

    def __init__(self, console: Console, title: str, log_format: Format = "text") -> None:
        self._console = console
        self._json = log_format == "json"
        self._title = title
        self._live: Live | None = None
        self._next_line_s = time.monotonic() + PLAIN_PERIOD_S

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._json:
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def output(self, plan: ProcessPlan, line: str) -> None:
        """Shows a line that a process wrote."""
        if plan.output != "log":
            self.line(plan.name, line)

    def notice(self, line: str) -> None:
        """Shows a line about the launch."""
        self.line("launch", line)

    def line(self, node: str, line: str) -> None:
        """Shows a line of a node."""
        text = printable(_as_json(node, line) if self._json else f"[{node}] {line}")
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def tick(self, supervisor: Supervisor) -> None:
        """Updates the table, or prints the next plain line."""
        if self._live is not None:
            self._live.update(_table(self._title, supervisor, self._console), refresh=True)
        elif time.monotonic() >= self._next_line_s and supervisor.ready_s is not None:
            self._next_line_s = time.monotonic() + PLAIN_PERIOD_S
            self.notice(plain_line(supervisor))


def _as_json(node: str, line: str) -> str:
    """Returns the line as a JSON object, unless it is one already."""
    with suppress(ValueError):
        if line.startswith("{") and "message" in json.loads(line):
            return line
    return json_line(node, "info", line)


def plain_line(supervisor: Supervisor) -> str:
    """Returns the state of the launch in one line."""
    parts = [f"{supervisor.running_s:.0f} s"]
    for process in supervisor.processes:
        cells = _cells(process, supervisor).items()
        labelled = [text if label == "notes" else f"{label} {text}" for label, text in cells if text]
        parts.append(f"{process.plan.name} {process.state.value}{', ' if labelled else ''}{', '.join(labelled)}")
    return " | ".join(parts)


def _cells(process: ManagedProcess, supervisor: Supervisor) -> dict[str, str]:
    node = supervisor.store.nodes.get(process.plan.name)
    kind = supervisor.plan.kind_of(process.plan.name, node)
    stats = node.stats if node is not None else {}
    columns, lockstep = kind.columns if kind is not None else (rate(),), supervisor.store.lockstep
    cells = {column.label: column.cell(stats, lockstep=lockstep) for column in columns}
    notes = cells.pop("notes", "")
    return {**cells, "notes": notes, "restarts": str(process.restarts) if process.restarts else ""}


def _table(title: str, supervisor: Supervisor, console: Console) -> Group:
    """Returns the table of processes, with nothing cut off: notes are below the table, process ids are shown if there
    is room, and if the columns do not fit, each process is a paragraph.
    """
    rows = [_cells(process, supervisor) for process in supervisor.processes]
    notes = [row.pop("notes") for row in rows]
    heading = _text(f"{title}  {supervisor.running_s:.0f} s", "italic")
    body: list[Table | Text] = []
    # process ids are the first to go: a name cut off cannot be guessed, an id can be looked up
    for with_pid in (True, False):
        table = _columns(supervisor, rows, with_pid=with_pid)
        if Measurement.get(console, console.options.update_width(_ANY_WIDTH), table).maximum <= console.width:
            body = [table]
            break
    else:
        for process, row in zip(supervisor.processes, rows, strict=True):
            facts = ", ".join(f"{label} {text}" for label, text in row.items() if text)
            body.append(Text.assemble(_text(f"{process.plan.name} "), _state(process), _text(f"  {facts}")))
    for process, note in zip(supervisor.processes, notes, strict=True):
        if note:
            body.append(_text(f"{process.plan.name}: {note}", "yellow"))
    return Group(heading, *body)


def _columns(supervisor: Supervisor, rows: list[dict[str, str]], *, with_pid: bool) -> Table:
    used_labels = [label for row in rows for label, text in row.items() if text or label != "restarts"]
    labels = list(dict.fromkeys([*(label for label in used_labels if label != "restarts"), *used_labels]))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for label in ("node", "state"):
        table.add_column(label, no_wrap=True)
    for label in [*(["pid"] if with_pid else []), *labels]:
        table.add_column(label, justify="right", no_wrap=True)
    for process, cells in zip(supervisor.processes, rows, strict=True):
        pid = [Text("" if process.pid is None else str(process.pid))] if with_pid else []
        texts = (_text(cells.get(label, "")) for label in labels)
        table.add_row(_text(process.plan.name), _state(process), *pid, *texts)
    return table


def _state(process: ManagedProcess) -> Text:
    return Text(process.state.value, style=_COLOURS.get(process.state, "white"))


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


WAITING_CHARACTERS = 1 << 18
"""Maximum number of characters that wait for a blocked output."""
DRAIN_TIMEOUT_S = 2.0
"""Seconds that the end of a launch waits for the output."""


class Screen(io.TextIOBase):
    """A text stream that writes to another one in a thread and gives up on errors (closed pipe, full disk).

    fault: why it gave up, or what was dropped, in one line; None if everything was written.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._file = _descriptor(stream)
        self._cause: str | None = None
        self._dropped_lines = 0
        self._queued = self._written = 0  # characters; each counter belongs to one thread
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._run, name="dyn-screen", daemon=True)
        if self._file is not None:
            self._writer.start()

    @property
    def fault(self) -> str | None:
        """Why something was not written."""
        if self._cause is not None:
            return f"the output could not be written: {self._cause}"
        count = self._dropped_lines
        return f"{count} lines were dropped because the output was blocked" if count else None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The descriptor of the stream below."""
        return self._stream.fileno()

    def write(self, text: str, /) -> int:
        """Queues the text; never blocks."""
        if self._file is None:
            self._write(text)
        elif self._queued - self._written + len(text) > WAITING_CHARACTERS:
            self._dropped_lines += text.count("\n")
        else:
            self._queued += len(text)
            self._texts.put(text)
        return len(text)

    def settle(self) -> str | None:
        """Waits a moment for the queue to be written; returns the fault, if any."""
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        while self._file is not None and self._written < self._queued and time.monotonic() < deadline_s:
            time.sleep(0.005)
        return self.fault

    def drain(self) -> None:
        """As `settle`, at the end: nothing is written afterwards, and the rest of the queue counts as dropped."""
        if self._writer.is_alive():
            self._texts.put(None)
            self._writer.join(DRAIN_TIMEOUT_S)
        with suppress(queue.Empty):
            while self._writer.is_alive():
                self._dropped_lines += (self._texts.get_nowait() or "").count("\n")

    def _run(self) -> None:
        while (text := self._texts.get()) is not None:
            self._write(text)
            self._written += len(text)

    def _write(self, text: str) -> None:
        if self._cause is not None:
            return
        # characters that the terminal cannot show are no reason to fail
        data = text.encode(self.encoding, "replace")
        try:
            if self._file is None:
                self._stream.write(data.decode(self.encoding))
                self._stream.flush()
                return
            while data:  # not by the stream's buffer, which would fail again at exit
                data = data[os.write(self._file, data) :]
        except (OSError, ValueError) as error:
            self._cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"error: the output cannot be written: {self._cause}; the launch continues\n")
                sys.stderr.flush()


@contextmanager
def showing(console: Console) -> Iterator[Screen]:
    """Redirects the console to a `Screen` in the block."""
    stream = console.file
    screen = Screen(stream)
    console.file = screen  # type: ignore[assignment]  # has the methods that a console uses
    try:
        yield screen
    finally:
        screen.drain()
        console.file = stream


def _descriptor(stream: IO[str]) -> int | None:
    """Flushes the stream and returns its descriptor; None if it has none."""
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


KEPT_BYTES = 1 << 20
"""Maximum number of bytes of a log that are kept in memory while it cannot be written."""
RETRY_S = 1.0


class Logs:
    """The log files of a launch's processes. With None as the folder, nothing is written.

    notice: called once with a line if a log cannot be written.
    """

    def __init__(self, folder: Path | None, notice: Callable[[str], None]) -> None:
        self._folder = folder
        self._notice = notice
        self._noticed = False
        self._files: dict[str, _Log] = {}

    def begin(self, names: Iterable[str]) -> None:
        """Creates the logs of the processes; a process without output has an empty one."""
        for name in names:
            self._add(name, None)

    def write(self, name: str, line: str) -> None:
        """Adds a line to the log of a process."""
        self._add(name, printable(line))

    def _add(self, name: str, line: str | None) -> None:
        if self._folder is None:
            return
        log = self._files.get(name)
        if log is None:
            log = self._files[name] = _Log(self._folder / f"{name.replace('/', '.')}.log")
        if line is None:
            log.make()
        else:
            log.write(line)
        if log.cause is not None and not self._noticed:
            self._noticed = True
            self._notice(f"logs cannot be written to {str(self._folder)!r}: {log.cause}; the launch continues")

    def close(self) -> list[str]:
        """Writes the rest, if possible; returns a line for each incomplete log."""
        faults = []
        for name, log in self._files.items():
            missing_count = log.close()
            if missing_count:
                faults.append(f"the log of {name} is missing {missing_count} lines: {log.cause}")
        return faults


class _Log:
    """One log file. cause: why its last line could not be written, or None."""

    def __init__(self, path: Path) -> None:
        self.cause: str | None = None
        self._path = path
        self._file: int | None = None
        self._waiting = bytearray()
        self._skipped = 0
        self._missing = 0
        self._retry_s = 0.0

    def make(self) -> None:
        try:
            self._open()
        except OSError as error:
            self.cause = error.strerror or str(error)

    def write(self, line: str) -> None:
        self._flush()
        if len(self._waiting) > KEPT_BYTES:
            self._skipped += 1
            self._missing += 1
            return
        if self._skipped:
            self._waiting += f"... {self._skipped} lines are missing here: {self.cause}\n".encode()
            self._skipped = 0
        self._waiting += line.encode("utf-8", "replace") + b"\n"
        self._flush()

    def close(self) -> int:
        """Closes the file; returns the number of missing lines."""
        self._retry_s = 0.0
        self._flush()
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
        return self._missing + self._waiting.count(b"\n")

    def _open(self) -> int:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        return self._file

    def _flush(self) -> None:
        if not self._waiting or time.monotonic() < self._retry_s:
            return
        try:
            file = self._open()
            while self._waiting:
                del self._waiting[: os.write(file, self._waiting)]
        except OSError as error:
            self.cause = error.strerror or str(error)
            self._retry_s = time.monotonic() + RETRY_S
