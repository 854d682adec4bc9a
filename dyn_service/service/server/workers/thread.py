"""The one thread for slow requests of a server that has no worker processes: one within another program, say a test.

The thread that serves hands tasks over and gets replies back, so that a control loop's request never waits for another
client's million states. Kernels run without the interpreter's lock, but nothing here can be stopped before it ends, and
what Python does in this thread the serving one waits for: `pool` has neither fault. How many tasks may wait is for the
dispatcher to say; how the serving thread is woken, for whoever made `ring`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

import numpy as np

from dyn_service.errors import InternalError
from dyn_service.kernels.making import listening
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.answering.task import Task

_LOG = logging.getLogger(__name__)


class ThreadWorker:
    """Does tasks one after the other, in the order given.

    All methods but `work_one` belong to the thread that serves. A worker that was not started does nothing by itself:
    its tasks are done by calls of `work_one`, in whatever thread makes them.

    Args:
        ring: Called after each task, in the thread that did it: there is something to collect.
        service: Gives the answers, and hears of the kernels that they take.
    """

    def __init__(self, ring: Callable[[], None], service: Service) -> None:
        self._ring = ring
        self._service = service
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._done: deque[tuple[Task, bytes]] = deque()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="dyn-worker", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def check_coming(self) -> None:
        """Nothing: a thread that was started is there."""

    def offer(self, task: Task) -> None:
        """Takes the task."""
        self._tasks.put(task)

    def collect(self) -> Iterator[tuple[Task, bytes]]:
        """The tasks that were done since, with their replies; each is handed out once."""
        while self._done:
            yield self._done.popleft()

    def abandon(self) -> list[Task]:
        """Takes back the tasks that were not begun; the thread ends after the one it is at."""
        self._abandoned = True
        left = []
        with suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    left.append(task)
        self._tasks.put(None)
        return left

    def cancel(self, meant: Iterable[Task]) -> list[Task]:
        """Nothing: what was begun goes on, and the rest is refused at its turn."""
        return []

    def tick(self, now_ns: int) -> None:
        """Nothing: what was begun goes on."""

    def close(self) -> None:
        """Waits a moment for the thread to end; one that is at work ends after it, by itself."""
        if self._thread.is_alive():
            self._thread.join(0.1)

    def work_one(self) -> bool:
        """Does the next task, after waiting for one; False if there will be none any more."""
        if self._abandoned or (task := self._tasks.get()) is None:
            return False
        with np.errstate(all="ignore"), listening(self._service.clock):
            try:
                reply = self._service.work(task)
            except Exception:  # noqa: BLE001  # a defect: it must not take the thread from all who wait
                _LOG.exception("a slow request failed")
                reply = self._service.refuse_task(task, InternalError("the server failed to answer; its log says why"))
        self._done.append((task, reply))
        self._ring()
        return True

    def _run(self) -> None:
        while self.work_one():
            pass
