"""The serving process's side of the fork_server, the process that makes workers: see `worker_process`.

As any process it may end, or be stopped. One that has ended takes its workers with it. One that is stopped looks like
one that has nothing to do: so what it is told is noted until it is done.
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
from dyn_service.service.server.process import starved_ns
from dyn_service.service.server.workers.pipes import ORDER, pair

_FIRST_NS = 60_000_000_000
"""So long may it take until a new fork_server does what it is told: it imports the engine and the compiler before."""

_ORDER_NS = 10_000_000_000
"""So long may an order take after that: it is a fork, or a signal."""

_GAP_NS = 1_000_000_000
"""Between two looks at it no more time counts: it was this process, or the machine, that stood still."""


class ForkServer:
    """The process that makes workers, and whether it does what it is told."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._dropped: list[subprocess.Popen[bytes]] = []
        self._count = 0
        self._orders: dict[int, int] = {}  # workers that are to come or to end, by number, since when on `_clock_ns`
        self._clock_ns = 0
        self._looked_ns = 0
        self._starved_ns = 0
        self._most_ns = _FIRST_NS

    def start(self) -> None:
        """Starts the process; it is ready some tenths of a second later, and what it is asked meanwhile waits."""
        mine, theirs = socket.socketpair()
        mine.setblocking(False)  # one that hangs is not waited for
        # Not from the folder the user stands in: a file there might be called as a module of ours.
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
        """How long the process was ready to run and had no processor: no time in which it could have done anything."""
        return 0 if self._process is None else starved_ns(self._process.pid)

    @property
    def ended(self) -> bool:
        """Whether there is none. Its exit is detected no later than its workers': the
        system closes what a process has open before it tells its children.
        """
        if self._end is None:
            return True
        try:
            return not self._end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def make(self) -> tuple[socket.socket, int]:
        """A worker's pipe, and its number. Does not wait: what is written to the pipe is read once the worker is there.

        A worker that never comes to be closes its pipe. Where there is no fork_server, one is started.

        Raises:
            OSError: There are no more processes or open files for now.
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
        """Has a worker ended at once."""
        if self._end is not None:
            self._orders[number] = self._clock_ns
            with suppress(OSError):
                self._end.send(ORDER.pack(number))

    def done(self, number: int) -> None:
        """The worker has come, or ended: nothing is expected any more."""
        if self._orders.pop(number, None) is not None:
            self._most_ns = _ORDER_NS
            self._dropped = [process for process in self._dropped if process.poll() is None]

    def hangs(self, now_ns: int) -> bool:
        """Whether something that it was told is not done, though there was time.

        Args:
            now_ns: The time; it is asked many times a second, or does not pass.
        """
        if not self._orders:
            return False
        starved_ns = self.starved_ns
        self._clock_ns += max(0, min(now_ns - self._looked_ns, _GAP_NS) - (starved_ns - self._starved_ns))
        self._looked_ns, self._starved_ns = now_ns, starved_ns
        return self._clock_ns - min(self._orders.values()) > self._most_ns

    def drop(self) -> None:
        """Ends the fork_server at once, and with it all workers, without waiting for that."""
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
        """Ends the fork_server, and with it all workers, and waits until they have."""
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
    """A process that is made meanwhile never hears of Ctrl-C, from its first moment on; this one does afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
