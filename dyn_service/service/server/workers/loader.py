"""Brings into the serving process what workers made: kernels, from the store on disk, and robots.

A thread of its own does it, so that a control loop does not wait for the disk. What it has done is told to the thread
that serves by `collect`, whatever came of it.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

from dyn_service.api.queries import QUERIES
from dyn_service.api.spec import PLAIN
from dyn_service.errors import DynError, InternalError, ResourceExhaustedError
from dyn_service.service.server.administration.audit import Change
from dyn_service.service.server.answering.administration import CERTIFIED
from dyn_service.service.server.answering.registry import Registry
from dyn_service.service.server.answering.task import Task
from dyn_service.service.server.workers.protocol import Answered, Kernel

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Load:
    """A robot that a worker was told to load, to be served from here on.

    task, answer, reply: the request, and what the worker says to it. robot: it and when it expires, as bytes. audit:
    what the log of changes is to say. error: why it is not served.
    """

    task: Task
    answer: Answered
    reply: memoryview
    robot: memoryview
    audit: list[Change] = field(default_factory=list)
    error: DynError | None = None


class Loader:
    """The thread. All methods belong to the thread that serves.

    Args:
        registry: Where robots are added.
        ring: Wakes the thread that serves: there is something to collect.
    """

    def __init__(self, registry: Registry, ring: Callable[[], None]) -> None:
        self._registry = registry
        self._ring = ring
        self._asked: SimpleQueue[Load | Kernel | None] = SimpleQueue()
        self._done: deque[Load] = deque()
        self._thread = threading.Thread(target=self._run, name="dyn-loader", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def load(self, load: Load) -> None:
        """Has a robot served; `collect` says when it is."""
        self._asked.put(load)

    def fetch(self, kernel: Kernel) -> None:
        """Has a kernel brought, unless it is here."""
        served = self._registry.served.get(kernel.robot)
        row = QUERIES[kernel.query]
        if served is not None and not served.robot.has_kernel(
            row, kernel.method, kernel.variant, passive=kernel.passive
        ):
            self._asked.put(kernel)

    def collect(self) -> Iterator[Load]:
        """What was loaded since, or was not, for the reason that stands in `error`; each is handed out once."""
        while self._done:
            yield self._done.popleft()

    def close(self) -> None:
        """Ends the thread, after what it is at."""
        self._asked.put(None)
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            if isinstance(asked, Kernel):
                self._bring(asked)
            else:
                try:
                    self._add(asked)
                except DynError as error:
                    asked.error = error
                except Exception:  # noqa: BLE001  # a defect: its asker need not wait for nothing
                    _LOG.exception("a robot could not be loaded")
                    asked.error = InternalError("the server failed to load the robot; its log says why")
                self._done.append(asked)
            self._ring()

    def _add(self, load: Load) -> None:
        """Serves the robot, with the kernels that the worker made."""
        robot, expires_s = pickle.loads(load.robot)  # from a worker, not from a client
        self._registry.add(robot, expires_s)
        served = self._registry.served.get(robot.name)
        if served is None:  # unloaded meanwhile
            return
        _ = served.pickled  # takes milliseconds, which later a control loop would wait
        for name in CERTIFIED:
            self._bring(Kernel(robot.name, name, next(iter(QUERIES[name].kernels)), PLAIN, passive=True))
        served.refresh()

    def _bring(self, kernel: Kernel) -> None:
        """Loads a kernel from the store. Where that fails the workers have it still, and answer."""
        served = self._registry.served.get(kernel.robot)
        if served is None:
            return
        try:
            with suppress(ResourceExhaustedError):  # it is known to take too much: whoever asks is told
                row = QUERIES[kernel.query]
                if served.robot.load_kernel(row, kernel.method, kernel.variant, passive=kernel.passive):
                    served.plans[kernel.query].refresh()
        except Exception:  # noqa: BLE001  # a defect
            _LOG.exception("a kernel could not be fetched")
