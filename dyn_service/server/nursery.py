"""The serving process's side of the nursery, the process that makes workers: see `worker_process`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dyn_service
from dyn_service.server.pipes import ORDER, pair


class Nursery:
    """The process that makes workers; made anew should it end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._count = 0

    def start(self) -> None:
        """Starts the process; it is ready some tenths of a second later, and what it is asked meanwhile waits."""
        mine, theirs = socket.socketpair()
        # Not from the folder the user stands in: a file there might be called as a module of ours.
        paths = [str(Path(dyn_service.__file__).parent.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"}
        with theirs, _no_interrupt():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dyn_service.server.worker_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self._end = mine

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process is None or self._process.poll() is not None

    def make(self) -> tuple[socket.socket, int]:
        """A worker's pipe, and its number. Does not wait: what is written to the pipe is read once the worker is there.

        A worker that never comes to be closes its pipe.
        """
        if self.ended or self._end is None:
            self.close()
            self.start()
        assert self._end is not None
        mine, theirs = pair()
        self._count += 1
        with theirs, suppress(OSError):
            socket.send_fds(self._end, [ORDER.pack(self._count)], [theirs.fileno()])
        return mine, self._count

    def kill(self, number: int) -> None:
        """Ends a worker at once."""
        if self._end is not None:
            with suppress(OSError):
                self._end.send(ORDER.pack(number))

    def close(self) -> None:
        """Ends the nursery, and with it all workers."""
        if self._end is not None:
            self._end.close()
            self._end = None
        if self._process is not None:
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """A process that is made meanwhile never hears of Ctrl-C, from its first moment on; this one does afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
