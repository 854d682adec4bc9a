"""The one thread for slow requests of a server that has no worker processes: one within another program, say a test.

The thread that serves hands tasks over and gets replies back, so that a control loop's request never waits for another
client's million states. Kernels run without the interpreter's lock, but nothing here can be stopped before it ends, and
what Python does in this thread the serving one waits for: `pool` has neither fault. How many tasks may wait is for the
dispatcher to say; how the serving thread is woken, for whoever made `ring`.


----
A worker process, as the pool sees it.

----
What is not tried again: kernels that took too long to make, by robot and query, whatever the inputs.

----
Brings into the serving process what workers made: kernels, from the store on disk, and robots.

A thread of its own does it, so that a control loop does not wait for the disk. What it has done is told to the thread
that serves by `collect`, whatever came of it.


----
Worker processes: slow requests are done beside the process that serves, in others that may be killed.

    Pool        the workers, who does what, and what is told of it
    schedule    the requests that wait, and whose turn it is
    loader      brings what workers made into this process
    fork_server     the process that makes workers
    refusals    what is not tried again

A request that is worked on is stopped, by ending its worker, when its deadline has passed, when its asker is gone, or
when it has taken `max_worker_s`. While it makes a kernel, only the request is refused; the kernel goes on until that
last limit, for the next client. All but one of the workers may do long work, so that a batch never waits for it.
"""

from __future__ import annotations

import logging
import math
import pickle
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from dyn_service.api.queries import QUERIES
from dyn_service.api.spec import PLAIN
from dyn_service.errors import DynError, InternalError, ResourceExhaustedError, UnavailableError
from dyn_service.kernels.making import listening
from dyn_service.service.server.administration.access import local_caller
from dyn_service.service.server.administration.audit import Change, record_refused, write
from dyn_service.service.server.answering.jobs import (
    DueTimes,
    Schedule,
    Task,
    cancelled_error,
    due_ns,
    not_started_error,
    stopped_error,
)
from dyn_service.service.server.answering.registry import CERTIFIED, Registry
from dyn_service.service.server.answering.service import Service, is_query
from dyn_service.service.server.process import is_stopped
from dyn_service.service.server.workers.fork_server import ForkServer
from dyn_service.service.server.workers.pipes import (
    Answered,
    Audit,
    Begin,
    BytesLostError,
    DropRobot,
    FromWorker,
    Kernel,
    KnowRobot,
    Loaded,
    Made,
    Making,
    Pipe,
    PipeClosedError,
    Ready,
    Returned,
    UnreadError,
    Work,
)

if TYPE_CHECKING:
    from dyn_service.service.server.answering.registry import Served


_LOG = logging.getLogger(__name__)


class ThreadWorker:
    """Does tasks one after the other, in the order given.

    All methods but `work_one` belong to the thread that serves. A worker that was not started does nothing by itself:
    its tasks are done by calls of `work_one`, in whatever thread makes them.

    Args:
        wake: Called after each task, in the thread that did it: there is something to collect.
        service: Gives the answers, and hears of the kernels that they take.
    """

    def __init__(self, wake: Callable[[], None], service: Service) -> None:
        self._wake = wake
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
        self._wake()
        return True

    def _run(self) -> None:
        while self.work_one():
            pass


class WorkerHandle:
    """One worker process, with what it is at.

    task: what it is at, since begun_ns, until due_ns. making: the kernel that it makes meanwhile, since making_ns.
    known: the robots it has, by name, with their fingerprints. robot: one that it was told to load, as bytes.
    has_started: it has said so. ending: it was told to end. audit: entries of the log of changes, once it is so.
    excused_ns:
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
        self.has_started = self.ending = False
        self.is_watched_for_writing = False
        self.pid = self.stopped = 0

    @property
    def is_long(self) -> bool:
        """Whether it is at what may take long."""
        return self.task is not None and (self.task.long or self.making is not None)

    @property
    def is_ready(self) -> bool:
        """Whether it does what it is asked."""
        return self.has_started and not self.ending

    @property
    def is_idle(self) -> bool:
        """Whether it takes a task."""
        return self.task is None and self.is_ready

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

    def update_due_time(self, most_s: float) -> None:
        """Computes when to stop its task, or to refuse it while it makes a kernel; then only the limit counts."""
        self.due_ns = self.begun_ns + most_s * 1e9
        if self.task is not None and not self.task.answered:
            excused = self.excused_ns if self.making is None else math.inf
            due = due_ns(self.task.head, self.task.received_ns, excused)
            self.due_ns = self.due_ns if due is None else min(self.due_ns, due)


_MOST = 1000
_HELD_NS = 600_000_000_000
"""A kernel that took too long is not tried again for so long: it may have been the machine."""


class RefusedKernels:
    """Remembers what was refused.

    Args:
        registry: The robots.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[tuple[Any, ...], tuple[DynError, int]] = {}

    def remember(self, task: Task, fate: DynError, now_ns: int) -> None:
        """Has the next request of its kind refused likewise."""
        kind = self._kind(task)
        if kind is None:
            return
        while len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[kind] = (fate, now_ns + _HELD_NS)

    def known(self, task: Task, now_ns: int) -> DynError | None:
        """Why it need not be tried; None: it is."""
        kind = self._kind(task) if self._known else None
        fate, until_ns = self._known.get(kind, (None, 0)) if kind is not None else (None, 0)
        return fate if now_ns < until_ns else None

    def _kind(self, task: Task) -> tuple[Any, ...] | None:
        """What a refusal holds for: robot, query and kernel; None: for nothing else."""
        head = task.head
        served = self._registry.served.get(head.robot) if type(head.robot) is str else None
        if served is None or (task.kernel is None and head.query in QUERIES):
            return None
        return served.robot.fingerprint, head.query, task.kernel


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
        wake: Wakes the thread that serves: there is something to collect.
    """

    def __init__(self, registry: Registry, wake: Callable[[], None]) -> None:
        self._registry = registry
        self._wake = wake
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
            self._wake()

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


_AGAIN_NS = 1_000_000_000
"""After a worker that ended before it was there, the next is made so much later."""

_LOOK_NS = 50_000_000
"""A task whose time is up but for the kernels that it waits for is looked at again so much later."""

_CHECK_NS = 100_000_000
"""Time between two checks whether a signal has stopped a worker that has a task."""

_STOPPED_CHECKS = 3
"""A worker is lost after so many such checks in a row. They are counted, not timed: this process may stand still."""

_TRIES = 2
"""So many workers may be lost to one request."""

_UNREAD = 8
"""And so many before they read it: it had no part in that, but the robots that were sent before it may have."""

_START_S = 60.0
"""How long the first worker may take to come, but for the time in which there was no processor for its fork_server."""

_FORK_SERVER_ENDED = "the process that makes workers has ended"


class Pool:
    """The workers, and the requests that wait for them. All calls come from the thread that serves.

    Args:
        service: Its robots are known to the workers, and those that workers load are added to it.
        workers: How many there are.
        selector: Watches the pipes; what it finds ready is called as `key.data(events)`.
        wake: Wakes the thread that serves, from another.
    """

    def __init__(
        self, service: Service, workers: int, *, selector: selectors.BaseSelector, wake: Callable[[], None]
    ) -> None:
        self._service = service
        self._registry = service.registry
        self._clock = service.clock
        self._metrics = service.metrics
        self._limits = service.limits
        self._count = workers
        self._selector = selector
        self._fork_server = ForkServer()
        self._workers: list[WorkerHandle] = []
        self._waiting = Schedule()
        self._due = DueTimes()
        self._done: deque[tuple[Task, bytes | memoryview]] = deque()
        self._refusals = RefusedKernels(service.registry)
        self._loader = Loader(service.registry, wake)
        self._loading = DueTimes()
        self._ending = False
        self._no_more_before_ns = 0
        self._next_check_ns = 0
        self._start_until_s = math.inf
        service.metrics.gauges |= {
            "workers": lambda: len(self._workers),
            "workers_busy": lambda: sum(worker.task is not None for worker in self._workers),
            "compiling": lambda: sum(worker.making is not None for worker in self._workers),
        }

    @property
    def ready(self) -> bool:
        """Whether a worker is there."""
        return any(worker.is_ready for worker in self._workers)

    def start(self) -> None:
        """Starts the workers. What is offered waits until they are there: see `ready` and `check_coming`."""
        self._fork_server.start()
        self._loader.start()
        for served in self._registry.served.values():
            _ = served.pickled  # takes milliseconds, which later a control loop would wait
        self._fill_up(perf_counter_ns())
        self._start_until_s = time.monotonic() + _START_S

    def check_coming(self) -> None:
        """To be called until `ready`.

        Raises:
            UnavailableError: No worker will come, or none has come in time.
        """
        if self._fork_server.ended:
            raise UnavailableError("the server's worker processes do not start; what they wrote says why")
        if time.monotonic() > self._start_until_s + self._fork_server.starved_ns / 1e9:
            raise UnavailableError(f"no worker process came within {_START_S:g} s")

    # what waits

    def offer(self, task: Task) -> None:
        """Takes the task."""
        if (known := self._refusals.known(task, perf_counter_ns())) is not None:
            self._refuse(task, known)
            return
        self._waiting.add(task)
        self._watch_deadline(task)
        self._assign()

    def collect(self) -> Iterator[tuple[Task, bytes | memoryview]]:
        """The tasks that were done since, with their replies; each is handed out once."""
        for load in self._loader.collect():
            self._loaded(load)
        while self._done:
            yield self._done.popleft()

    def abandon(self) -> list[Task]:
        """Takes back the tasks that were not begun; no more are begun."""
        self._ending = True
        left = [*self._waiting]
        for task in left:
            self._wait_no_more(task)
        return left

    def cancel(self, meant: Iterable[Task]) -> list[Task]:
        """Drops tasks that nobody waits for, and stops those that are worked on, where a kernel is being made once it
        is there; says which were dropped.
        """
        dropped = [task for task in meant if self._wait_no_more(task)]
        for worker in self._workers:
            self._stop_if_cancelled(worker)
        return dropped

    def tick(self, now_ns: int) -> None:
        """Stops what has taken too long, and refuses what has waited too long; replaces a fork_server that hangs."""
        if self._fork_server.hangs(now_ns):
            self._lose_all("the process that makes workers did not do what it was told")
        if len(self._workers) < self._count:
            self._fill_up(now_ns)
            self._assign()
        for task in self._due.pop(now_ns):
            self._refuse_if_late(task, now_ns)
        for task in self._loading.pop(now_ns):
            self._refuse(task, stopped_error(task.head, now_ns - task.received_ns))
        for worker in self._workers:
            if worker.task is not None and now_ns > worker.due_ns:
                self._stop_late(worker, worker.task, now_ns)
        if now_ns >= self._next_check_ns:
            self._next_check_ns = now_ns + _CHECK_NS
            self._lose_stopped()

    def close(self) -> None:
        """Ends all workers."""
        self._ending = True
        for worker in self._workers:
            self._selector.unregister(worker.end)
            worker.pipe.close()
        self._workers.clear()
        self._fork_server.close()
        self._loader.close()

    def _watch_deadline(self, task: Task) -> None:
        due = due_ns(task.head, task.received_ns, 0)
        if due is not None:
            self._due.add(task, due)

    def _refuse_if_late(self, task: Task, now_ns: int) -> None:
        """Refuses a task whose deadline has passed, or looks again later: the time of any kernel is excused, since it
        may be that one which keeps the workers from it.
        """
        due = due_ns(task.head, task.received_ns, self._clock.within_ns(task.received_ns, now_ns))
        if due is not None and due > now_ns:
            self._due.add(task, max(due, now_ns + _LOOK_NS))
            return
        self._waiting.discard(task)
        self._refuse(task, not_started_error(task.head, now_ns - task.received_ns))

    def _wait_no_more(self, task: Task) -> bool:
        self._due.discard(task)
        return self._waiting.discard(task)

    def _refuse(self, task: Task, fate: DynError) -> None:
        if not task.answered:
            self._done.append((task, self._service.refuse_task(task, fate)))

    # the workers

    def _fill_up(self, now_ns: int) -> None:
        """Makes the workers that are missing."""
        if self._workers and self._fork_server.ended:  # those that are left end too
            self._lose_all(_FORK_SERVER_ENDED)
            return
        while len(self._workers) < self._count and now_ns >= self._no_more_before_ns and not self._ending:
            try:
                self._workers.append(self._make_worker())
            except OSError as fault:  # no more processes or open files for now
                _LOG.error("no worker can be made: %s", fault)  # said in one line
                self._no_more_before_ns = now_ns + _AGAIN_NS

    def _make_worker(self) -> WorkerHandle:
        end, number = self._fork_server.make()
        worker = WorkerHandle(end, number)
        with suppress(PipeClosedError):
            worker.pipe.send(Begin(self._limits, self._service.allow_load, self._service.epoch))
        self._selector.register(end, selectors.EVENT_READ, lambda events: self._heard(worker, events))
        return worker

    def _assign(self) -> None:
        """Gives waiting tasks to idle workers. Long work leaves one live worker for batches; a worker that was ended
        does not count. Long work goes to the newest worker, which alone is lost when its client cancels, and batches go
        to the oldest, which already has their kernels.
        """
        while self._waiting and (idle := [worker for worker in self._workers if worker.is_idle]):
            free = sum(each.is_ready and not each.is_long for each in self._workers)
            task = self._waiting.take(long=free > 1 or len(self._workers) == 1)
            if task is None:
                return
            self._due.discard(task)
            self._begin(idle[-1 if task.long else 0], task)

    def _begin(self, worker: WorkerHandle, task: Task) -> None:
        now = perf_counter_ns()
        worker.excused_ns = self._clock.within_ns(task.received_ns, now)
        try:
            worker.hand(task, self._registry.served)
        except PipeClosedError:
            worker.task = task
            self._lost_unread(worker)
            return
        except OSError as fault:  # no fault of the worker's
            self._refuse(task, ResourceExhaustedError(f"{task.size} bytes cannot be handed to a worker now: {fault}"))
            self._watch(worker)
            return
        worker.task, worker.begun_ns, task.waits_for_kernel = task, now, False
        worker.update_due_time(self._limits.max_worker_s)
        self._watch(worker)

    def _stop(self, worker: WorkerHandle, task: Task, fate: DynError) -> None:
        """Ends a worker, and tells its asker why at once, however long the end takes."""
        worker.task = None
        self._refuse(task, fate)
        self._end(worker)

    def _end(self, worker: WorkerHandle) -> None:
        worker.ending = True
        self._fork_server.kill(worker.number)

    def _stop_if_cancelled(self, worker: WorkerHandle) -> None:
        if worker.task is not None and worker.task.cancelled and worker.making is None:
            self._waiting.charge(worker.task.peer)  # its worker is lost, which costs the others as much as work does
            self._stop(worker, worker.task, cancelled_error())

    def _stop_late(self, worker: WorkerHandle, task: Task, now_ns: int) -> None:
        most_s = self._limits.max_worker_s
        if now_ns <= worker.begun_ns + most_s * 1e9:
            fate: DynError = stopped_error(task.head, now_ns - task.received_ns)
            if worker.making is None:
                self._stop(worker, task, fate)
            else:
                self._refuse(task, fate)
                task.answered = task.cancelled = True  # the work ends with `Made`
                worker.update_due_time(most_s)
            return
        at = f"{worker.making} is being made" if worker.making else f"{task.head.query} is worked on"
        fate = ResourceExhaustedError(f"{at} for more than {most_s:g} s, which is the limit")
        if worker.making:
            self._refusals.remember(task, fate, now_ns)
        self._stop(worker, task, fate)

    def _lost(self, worker: WorkerHandle, why: str) -> None:
        """Handles the end of a worker; if the fork server ended, all workers did, which counts as one loss."""
        if worker not in self._workers:
            return
        if self._fork_server.ended:
            self._lose_all(_FORK_SERVER_ENDED)
        else:
            self._lose([worker], why)

    def _lost_unread(self, worker: WorkerHandle, how: str = "lost before they were at") -> None:
        """A worker has ended, or was stopped by a signal, through no fault of what it was handed."""
        task, worker.task = worker.task, None
        if task is not None:
            task.unread += 1
            self._wait_again(task, task.unread, _UNREAD, f"{how} {task.head.query}")
        self._lost(worker, "it was gone already")

    def _lose_stopped(self) -> None:
        """Replaces a worker that a signal stopped while it has a task; others at the next checks."""
        for worker in self._workers:
            worker.stopped = worker.stopped + 1 if worker.task is not None and is_stopped(worker.pid) else 0
            if worker.stopped >= _STOPPED_CHECKS:
                self._lost_unread(worker, "stopped by a signal while at")
                return

    def _lose_all(self, why: str) -> None:
        """Ends the fork_server, if it has not ended, and with it all workers."""
        _LOG.error("all workers are made anew: %s", why)
        self._fork_server.drop()
        self._lose([*self._workers], why)

    def _lose(self, lost: list[WorkerHandle], why: str) -> None:
        """Others take their places, and their askers are told."""
        for worker in lost:
            self._workers.remove(worker)
            self._selector.unregister(worker.end)
            worker.pipe.close()
            self._fork_server.kill(worker.number)  # it may live, where what it said could not be had
            self._fork_server.done(worker.number)
            self._clock.ended(worker.number)
            if worker.task is not None:
                self._try_again(worker.task, why)
        now = perf_counter_ns()
        if not any(worker.has_started for worker in lost):  # what keeps one from coming may keep the next
            self._no_more_before_ns = now + _AGAIN_NS
        self._fill_up(now)
        self._assign()

    def _try_again(self, task: Task, why: str) -> None:
        """Has a task wait again that a worker was lost to; where others were before, its asker is told."""
        task.tries += 1
        self._wait_again(task, task.tries, _TRIES, f"lost while at {task.head.query}: {why}")

    def _wait_again(self, task: Task, lost: int, most: int, how: str) -> None:
        """Has a task wait again, unless so many workers were lost."""
        self._metrics.traffic.workers_lost += 1
        _LOG.error("a worker was %s", how)
        if task.cancelled:
            self._refuse(task, cancelled_error())
        elif lost < most and not self._ending:
            self._waiting.put_back(task)
            self._watch_deadline(task)
        else:
            self._refuse(task, ResourceExhaustedError(f"{lost} workers were {how}"))

    # what they say

    def _watch(self, worker: WorkerHandle) -> None:
        if worker.pipe.writing != worker.is_watched_for_writing:
            worker.is_watched_for_writing = worker.pipe.writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.pipe.writing else 0)
            self._selector.modify(worker.end, events, lambda events: self._heard(worker, events))

    def _heard(self, worker: WorkerHandle, events: int) -> None:
        if worker not in self._workers:  # lost with another, of which was heard just before
            return
        try:
            if events & selectors.EVENT_WRITE:
                worker.pipe.write()
                self._watch(worker)
            if events & selectors.EVENT_READ:
                for said, body in worker.pipe.read():
                    self._take(worker, said, body)
        except BytesLostError as fault:
            self._lost(worker, f"of what the last one said {fault}")
        except UnreadError:
            self._lost_unread(worker)
        except PipeClosedError:
            self._lost(worker, "it takes too much memory, or they were killed")

    def _take(self, worker: WorkerHandle, said: FromWorker, body: memoryview) -> None:
        match said:
            case Ready(pid):
                worker.has_started, worker.pid = True, pid
                self._fork_server.done(worker.number)
                self._assign()
            case Making(kernel):
                worker.making, worker.making_ns = kernel, perf_counter_ns()
                self._clock.begun(kernel, worker.number)
            case Made():
                worker.making = None
                worker.excused_ns += perf_counter_ns() - worker.making_ns
                self._clock.ended(worker.number)
                self._stop_if_cancelled(worker)
            case Audit(change):
                worker.audit.append(change)
            case Loaded(name, fingerprint):
                worker.robot = body
                worker.known[name] = fingerprint
            case Answered():
                self._answered(worker, said, body)
                return
            case Returned():
                if (task := worker.task) is not None:
                    worker.task = None
                    self._done.append((task, self._service.handle(body, task.received_ns, task.caller)))
                self._assign()
                return
        if worker.task is not None:
            worker.task.waits_for_kernel = worker.making is not None
            worker.update_due_time(self._limits.max_worker_s)

    def _answered(self, worker: WorkerHandle, answer: Answered, reply: memoryview) -> None:
        task, robot, changes = worker.task, worker.robot, worker.audit
        worker.task, worker.robot, worker.audit = None, None, []
        if task is None:  # it was stopped, and its asker was told so
            return
        if answer.last:
            self._end(worker)
        if robot is not None:
            due = due_ns(task.head, task.received_ns, worker.excused_ns)
            self._loading.add(task, math.inf if due is None else due)
            self._loader.load(Load(task, answer, reply, robot, changes))
        else:
            self._tell(task, changes, answer)
            self._done.append((task, reply))
            if answer.kernel is not None and answer.code is None:
                self._loader.fetch(answer.kernel)
        self._assign()

    def _loaded(self, load: Load) -> None:
        """A robot is served now, or is not. Where the deadline has passed meanwhile, its asker was told so."""
        task, error = load.task, load.error
        awaited = self._loading.discard(task)
        if error is None:
            self._tell(task, load.audit, load.answer)
        else:
            caller = task.caller or local_caller("a local process", allow_load=True)
            record_refused(caller, load.answer.query, task.head.robot, error)
        if awaited:
            self._done.append((task, load.reply if error is None else self._service.refuse_task(task, error)))

    def _tell(self, task: Task, changes: list[Change], answer: Answered) -> None:
        """Counts the answer, and writes down what it changed."""
        for change in changes:
            write(change)
        if answer.code is None:
            self._metrics.answered(answer.query, perf_counter_ns() - task.received_ns)
        else:
            self._metrics.refused(answer.query if is_query(answer.query) else None, answer.code)
