"""The server's side of the fork server, the process that makes workers; its own side is `process`.

It may exit or be stopped like any process. When it exits, its workers exit too. A stopped one is detected by orders
that it does not carry out in time.
"""

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
from dyn_service.service.server.process import is_stopped, starved_ns
from dyn_service.service.server.workers.pipes import ORDER, pair

_FIRST_NS = 60_000_000_000
"""Time for the first order of a new fork server, which first imports the engine and the compiler."""

_ORDER_NS = 10_000_000_000
"""Time for later orders, each a fork or a signal, and for every order of a process that a signal has stopped."""

_GAP_NS = 1_000_000_000
"""Longest time counted between two checks, so that a suspended server does not blame the fork server."""


class ForkServer:
    """The fork server and the orders it has not carried out."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._dropped: list[subprocess.Popen[bytes]] = []
        self._count = 0
        self._orders: dict[int, int] = {}  # by worker number: time of the order on `_clock_ns`
        self._clock_ns = 0
        self._looked_ns = 0
        self._starved_ns = 0
        self._most_ns = _FIRST_NS

    def start(self) -> None:
        """Starts the process. It is ready some tenths of a second later; orders wait until then."""
        mine, theirs = socket.socketpair()
        mine.setblocking(False)  # so that a hung fork server does not block this process
        # `-P`, because a file in the current folder may have the name of an imported module.
        paths = [str(Path(dyn_service.__file__).parent.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"}
        with theirs, _no_interrupt():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dyn_service.service.server.workers.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self._end = mine
        self._starved_ns = 0

    @property
    def starved_ns(self) -> int:
        """How long the process was runnable without a CPU."""
        return 0 if self._process is None else starved_ns(self._process.pid)

    @property
    def ended(self) -> bool:
        """Whether it is not running. Its exit is detected no later than its workers', because the kernel closes its
        files before it signals its children.
        """
        if self._end is None:
            return True
        try:
            return not self._end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def exit_status(self) -> int | None:
        """Exit status of the last process, negative for a signal; None while it is not known."""
        last = self._process or (self._dropped[-1] if self._dropped else None)
        return None if last is None else last.poll()

    def make(self) -> tuple[socket.socket, int]:
        """Orders a worker; returns its pipe and number. Does not block; data written to the pipe is read when the
        worker runs.

        The pipe of a worker that cannot be made is closed. Starts a fork server if none is running.

        Raises:
            OSError: No more processes or open files are available.
        """
        if self.ended:
            self.drop()
            self.start()
        assert self._end is not None
        mine, theirs = pair()
        self._count += 1
        self._orders[self._count] = self._clock_ns
        with theirs, suppress(OSError):
            socket.send_fds(self._end, [ORDER.pack(self._count)], [theirs.fileno()])
        return mine, self._count

    def kill(self, number: int) -> None:
        """Orders that a worker is killed."""
        if self._end is not None:
            self._orders[number] = self._clock_ns
            with suppress(OSError):
                self._end.send(ORDER.pack(number))

    def done(self, number: int) -> None:
        """Reports that a worker has started or exited, as ordered."""
        if self._orders.pop(number, None) is not None:
            self._most_ns = _ORDER_NS
            self._dropped = [process for process in self._dropped if process.poll() is None]

    def hangs(self, now_ns: int) -> bool:
        """Returns whether an order was not carried out in time.

        Args:
            now_ns: The time; to be called many times a second, because longer gaps do not count.
        """
        if not self._orders or self._process is None:
            return False
        starved_ns = self.starved_ns
        self._clock_ns += max(0, min(now_ns - self._looked_ns, _GAP_NS) - (starved_ns - self._starved_ns))
        self._looked_ns, self._starved_ns = now_ns, starved_ns
        most_ns = _ORDER_NS if is_stopped(self._process.pid) else self._most_ns
        return self._clock_ns - min(self._orders.values()) > most_ns

    def drop(self) -> None:
        """Kills the fork server, and so all workers, without waiting."""
        if self._end is not None:
            self._end.close()
            self._end = None
        if self._process is not None:
            self._process.kill()
            self._dropped.append(self._process)
            self._process = None
        self._orders.clear()
        self._most_ns = _FIRST_NS

    def close(self) -> None:
        """Ends the fork server and all workers, and waits for it."""
        if self._end is not None:
            self._end.close()
            self._end = None
        for process in filter(None, (self._process, *self._dropped)):
            try:
                process.wait(2.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        self._dropped.clear()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Processes started in this context never receive Ctrl-C; this one does afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
