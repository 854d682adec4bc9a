"""Standard output, or what stands for it, that may fail or stand still and never stops a launch.

A pipe that nobody reads and a terminal that was stopped (Ctrl-S) would hold up whoever writes to them: a thread does so
instead, and what has no room in its queue is dropped and counted.
"""

from __future__ import annotations

import io
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from rich.console import Console

WAITING_CHARACTERS = 1 << 18
"""So much may wait for an output that takes nothing at the moment."""
PATIENCE_S = 2.0
"""How long the end of a launch waits for it."""


class Screen(io.TextIOBase):
    """A text stream over another one. One that cannot be written, a closed pipe or a full disk, is given up.

    fault: why it was given up, or what it lacks, in one line; None where all was written.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._file = _descriptor(stream)
        self._cause: str | None = None
        self._lacking = 0
        self._taken = self._done = 0  # characters; each is counted by one thread alone
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._run, name="dyn-screen", daemon=True)
        if self._file is not None:
            self._writer.start()

    @property
    def fault(self) -> str | None:
        """Why not all was written."""
        if self._cause is not None:
            return f"the output could not be written: {self._cause}"
        return f"the output lacks {self._lacking} lines, which it did not take in time" if self._lacking else None

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

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str, /) -> int:
        """Takes the text; never waits."""
        if self._file is None:
            self._write(text)
        elif self._taken - self._done + len(text) > WAITING_CHARACTERS:
            self._lacking += text.count("\n")
        else:
            self._taken += len(text)
            self._texts.put(text)
        return len(text)

    def settle(self) -> str | None:
        """Lets the output take what waits, for a moment; the fault, if there is one by then."""
        until = time.monotonic() + PATIENCE_S
        while self._file is not None and self._done < self._taken and time.monotonic() < until:
            time.sleep(0.005)
        return self.fault

    def drain(self) -> None:
        """As `settle`, for good: nothing is written afterwards, and what still waits is counted as lacking."""
        if self._writer.is_alive():
            self._texts.put(None)
            self._writer.join(PATIENCE_S)
        while self._writer.is_alive() and not self._texts.empty():
            self._lacking += (self._texts.get() or "").count("\n")

    def _run(self) -> None:
        while (text := self._texts.get()) is not None:
            self._write(text)
            self._done += len(text)

    def _write(self, text: str) -> None:
        if self._cause is not None:
            return
        data = text.encode(self.encoding, "replace")  # signs that a terminal does not have are no reason to fail
        try:
            if self._file is None:
                self._stream.write(data.decode(self.encoding))
                self._stream.flush()
                return
            while data:  # past the stream's own buffer, which would keep what failed for another failure at the exit
                data = data[os.write(self._file, data) :]
        except (OSError, ValueError) as error:
            self._cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"error: the output cannot be written: {self._cause}; the launch goes on without it\n")
                sys.stderr.flush()


@contextmanager
def showing(console: Console) -> Iterator[Screen]:
    """Lets the console write so; at the end it takes what waits, and writes as before."""
    stream = console.file
    screen = Screen(stream)
    console.file = screen  # type: ignore[assignment]  # all that a console asks of a stream
    try:
        yield screen
    finally:
        screen.drain()
        console.file = stream


def _descriptor(stream: IO[str]) -> int | None:
    """The stream's descriptor, with all written that it held; None where it has none."""
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
