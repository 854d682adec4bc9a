"""Standard output, or what stands for it, that may fail and never stops a launch."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import IO


class Screen(io.TextIOBase):
    """A text stream over another one. When that cannot be written, a closed pipe or a full disk, it is given up.

    fault: why it was given up, or None.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.fault: str | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        return self.fault is None and self._stream.isatty()

    def fileno(self) -> int:
        """The descriptor of the stream below."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str, /) -> int:
        """Writes the text, if it can be written."""
        if self.fault is None:
            try:
                try:
                    self._stream.write(text)
                except UnicodeEncodeError:  # signs that this terminal does not have
                    self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
            except (OSError, ValueError) as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Sends on what was written, if that can be done."""
        if self.fault is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.fault = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if self._stream in (sys.stdout, sys.__stdout__):
            with suppress(OSError, ValueError):  # what waits in its buffer goes nowhere, instead of failing at the exit
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"error: the output cannot be written: {self.fault}; the launch goes on without it\n")
            sys.stderr.flush()
