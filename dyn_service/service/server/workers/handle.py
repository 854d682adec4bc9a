"""A worker process, as the pool sees it."""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING

from dyn_service.service.server.administration.audit import Change
from dyn_service.service.server.answering.deadlines import due_ns
from dyn_service.service.server.answering.task import Task
from dyn_service.service.server.workers.pipes import Pipe
from dyn_service.service.server.workers.protocol import DropRobot, FromWorker, KnowRobot, Work

if TYPE_CHECKING:
    from dyn_service.service.server.answering.registry import Served


class WorkerHandle:
    """One worker process, with what it is at.

    task: what it is at, since begun_ns, until due_ns. making: the kernel that it makes meanwhile, since making_ns.
    known: the robots it has, by name, with their fingerprints. robot: one that it was told to load, as bytes. has_come:
    it has said so. ending: it was told to end. audit: entries of the log of changes, once it is so. excused_ns:
    what of the task's time went into kernels. pid: its process. stopped: how many checks in a row found it stopped.
    """

    def __init__(self, end: socket.socket, number: int) -> None:
        self.end, self.number = end, number
        self.pipe: Pipe[FromWorker] = Pipe(end, FromWorker, waits=False)  # type: ignore[arg-type]  # a union
        self.task: Task | None = None
        self.begun_ns = 0
        self.due_ns = 0.0
        self.making: str | None = None
        self.making_ns = 0
        self.known: dict[str, str] = {}
        self.robot: memoryview | None = None
        self.audit: list[Change] = []
        self.excused_ns = 0
        self.has_come = self.ending = False
        self.is_watched_for_writing = False
        self.pid = self.stopped = 0

    @property
    def is_long(self) -> bool:
        """Whether it is at what may take long."""
        return self.task is not None and (self.task.long or self.making is not None)

    @property
    def is_there(self) -> bool:
        """Whether it does what it is asked."""
        return self.has_come and not self.ending

    @property
    def is_idle(self) -> bool:
        """Whether it takes a task."""
        return self.task is None and self.is_there

    def hand(self, task: Task, served: dict[str, Served]) -> None:
        """Hands it a task, and the robots that it needs for that; the robots that are gone go.

        Raises:
            PipeClosedError: The worker has gone.
            OSError: There is no open file, or no memory, left for it.
        """
        for gone in self.known.keys() - served.keys():  # first: there may be no more robots than there may be
            self.pipe.send(DropRobot(gone))
            del self.known[gone]
        name = task.head.robot
        needed = [served[name]] if name in served else [] if type(name) is str else [*served.values()]
        for each in needed:  # of a request that nobody could read that far, all
            if self.known.get(each.robot.name) != each.robot.fingerprint:
                self.pipe.send(KnowRobot(), each.pickled)
                self.known[each.robot.name] = each.robot.fingerprint
        self.pipe.send(Work(task.received_ns, self.excused_ns, task.caller), task.payload)

    def look_ahead(self, most_s: float) -> None:
        """Computes when to stop its task, or to refuse it while it makes a kernel; then only the limit counts."""
        self.due_ns = self.begun_ns + most_s * 1e9
        if self.task is not None and not self.task.answered:
            excused = self.excused_ns if self.making is None else math.inf
            due = due_ns(self.task.head, self.task.received_ns, excused)
            self.due_ns = self.due_ns if due is None else min(self.due_ns, due)
