"""The one thread for slow requests: big batches, robots to load, kernels to compile.

The thread that owns the socket hands jobs over and gets replies back, so that a control loop's request never waits for
another client's million states. Kernels run without the interpreter's lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
import zmq

from dyn_service.errors import DynError
from dyn_service.kernels.making import Listener, listening
from dyn_service.protocol.limits import RequestLimits
from dyn_service.protocol.messages import Head


@dataclass(slots=True)
class Task:
    """A request that waits.

    envelope: where its reply goes, for the transport alone. work: gives its reply. refuse: gives the reply that refuses
    it. size: its bytes. head: reads who asks. next_notice_ns: no earlier is it told again that it waits.
    """

    envelope: tuple[bytes, bool]
    work: Callable[[], bytes]
    refuse: Callable[[DynError], bytes]
    size: int
    head: Callable[[], Head]
    next_notice_ns: int = 0


class Worker:
    """Does tasks one after the other, in the order given.

    All methods belong to the thread that owns the server's socket. The worker wakes it by an empty message from a
    socket of its own.

    Args:
        open_wakeup: Makes that socket, in the worker's thread.
        limits: How many tasks, and how many bytes, may wait.
        listener: Hears of the kernels that the tasks make.
    """

    def __init__(self, open_wakeup: Callable[[], zmq.Socket[bytes]], limits: RequestLimits, listener: Listener) -> None:
        self._open_wakeup = open_wakeup
        self._listener = listener
        self._limits = limits
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._done: deque[tuple[Task, bytes]] = deque()
        self._waiting = 0
        self._waiting_bytes = 0
        self._abandoned = False
        self._ending = threading.Lock()
        self._ended = False
        self._close: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="dyn-worker", daemon=True)

    @property
    def waiting(self) -> int:
        """Tasks that were given and not yet collected."""
        return self._waiting

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def offer(self, task: Task) -> bool:
        """Takes the task, unless too much waits already."""
        if self._waiting >= self._limits.max_waiting:
            return False
        if self._waiting and self._waiting_bytes + task.size > self._limits.max_waiting_bytes:
            return False
        self._waiting += 1
        self._waiting_bytes += task.size
        self._tasks.put(task)
        return True

    def collect(self) -> list[tuple[Task, bytes]]:
        """The tasks that were done since, with their replies."""
        finished = []
        while self._done:
            finished.append(self._done.popleft())
            self._waiting -= 1
            self._waiting_bytes -= finished[-1][0].size
        return finished

    def abandon(self) -> list[Task]:
        """Takes back the tasks that were not begun; the thread ends after the one it is at."""
        self._abandoned = True
        left = []
        with suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    left.append(task)
        self._waiting -= len(left)
        self._tasks.put(None)
        return left

    def join(self, timeout_s: float) -> None:
        """Waits for the thread to end."""
        self._thread.join(timeout_s)

    def at_end(self, close: Callable[[], None]) -> None:
        """Has something closed once the thread needs it no more: now, or after the task it is at."""
        with self._ending:
            if not self._ended:
                self._close = close
                return
        close()

    def _run(self) -> None:
        wakeup = self._open_wakeup()
        try:
            with np.errstate(all="ignore"), listening(self._listener):
                while not self._abandoned and (task := self._tasks.get()) is not None:
                    self._done.append((task, task.work()))
                    with suppress(zmq.Again):  # the server has stopped, and nobody is left to wake
                        wakeup.send(b"", zmq.NOBLOCK)
        finally:
            wakeup.close()
            with self._ending:
                self._ended = True
            self._close()
