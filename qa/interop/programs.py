"""Peers as processes, with bounded waits; each is ended by its own process number."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

WAIT_S = 240.0
"""Limit of each wait: far more than any step takes."""

ROOT = Path(__file__).parents[2]


class ProgramError(Exception):
    """A peer ended, or did not answer in time."""


def free_endpoint() -> str:
    """Returns a tcp endpoint at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


class Program:
    """A process that prints lines. It is ready when it has printed `ready`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._folder = TemporaryDirectory()
        self._count = 0
        self._lines: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self._expect("ready")
        except BaseException:
            self.kill()
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")

    def _expect(self, word: str) -> None:
        try:
            line = self._lines.get(timeout=WAIT_S)
        except queue.Empty:
            raise ProgramError(f"no '{word}' within {WAIT_S:.0f} s: {self.process.args!r}") from None
        if line != word:
            raise ProgramError(f"expected '{word}', found '{line}': {self.process.args!r}")

    def begin_request(self, payload: bytes) -> Path:
        """Makes a client send a message; returns the file of the reply, which `end_request` waits for."""
        self._count += 1
        request, reply = (Path(self._folder.name) / f"{name}{self._count}" for name in ("request", "reply"))
        request.write_bytes(payload)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{request} {reply}\n")
        self.process.stdin.flush()
        return reply

    def end_request(self, reply: Path) -> bytes:
        """Returns the reply."""
        self._expect("done")
        content = reply.read_bytes()
        for file in reply.parent.iterdir():
            file.unlink()
        return content

    def request(self, payload: bytes) -> bytes:
        """Makes a client send a message; returns the reply."""
        return self.end_request(self.begin_request(payload))

    def kill(self) -> None:
        """Ends the process as a crash does."""
        self.process.kill()
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
