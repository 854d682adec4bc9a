"""The logs of a launch: one file per process.

If the disk is full, lines are kept in memory up to a limit and written later; the rest is counted. Nothing here raises,
so that no process ends because of its log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dyn_service.support.logs import printable

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
            lost = log.close()
            if lost:
                faults.append(f"the log of {name} is missing {lost} lines: {log.cause}")
        return faults


class _Log:
    """One log file. cause: why its last line could not be written, or None."""

    def __init__(self, path: Path) -> None:
        self.cause: str | None = None
        self._path = path
        self._file: int | None = None
        self._waiting = bytearray()
        self._skipped = 0
        self._lost = 0
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
            self._lost += 1
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
        return self._lost + self._waiting.count(b"\n")

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
