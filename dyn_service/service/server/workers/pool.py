"""Where slow requests are computed: worker processes (`Pool`), or one thread in servers without them (`ThreadWorker`).

A running request is stopped when its deadline passes, its client disconnects or cancels, or it has taken
`max_worker_s`. A worker gives up between the blocks of a batch or the steps of a simulation; one that does not is
killed (ADR 54). While a worker compiles a kernel, or is about to, the pool refuses the request at its deadline but lets
the compilation finish within that last limit: a client with a short deadline succeeds when it tries again. A request
that cannot end by its deadline, judged by the last ones like it, is refused before it starts. All workers but one may
do long work, so that a batch never waits for long work.

**The fork server** is the process that makes workers; its own side is `process`.

It may be killed or stopped like any process. When it exits, its workers exit too. A stopped one is detected by orders
that it does not carry out in time. SIGINT and SIGTERM have no effect on it and on the workers: service managers and
terminals send them to all processes, and the stopping server still answers what the workers compute.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

import dyn_service
from dyn_service.api.lists import names_queries, row_of
from dyn_service.api.spec import WITHOUT_WRENCHES
from dyn_service.errors import DeadlineExceededError, DynError, InternalError, ResourceExhaustedError, UnavailableError
from dyn_service.kernels.compile_events import listening
from dyn_service.service.server.administration.access import local_caller
from dyn_service.service.server.administration.audit import Change, record_refused, write
from dyn_service.service.server.answering import jobs
from dyn_service.service.server.answering.jobs import Task, due_ns
from dyn_service.service.server.answering.registry import CERTIFIED, Registry
from dyn_service.service.server.answering.service import Service, is_query
from dyn_service.service.server.process import blocked, is_stopped, starved_ns
from dyn_service.service.server.workers import pipes
from dyn_service.service.server.workers.pipes import FromWorker, Pipe

if TYPE_CHECKING:
    from dyn_service.service.server.answering.registry import Served

_LOG = logging.getLogger(__name__)


class Executor:
    """Computes slow requests. All methods belong to the server's thread."""

    def __init__(self) -> None:
        self._done: deque[tuple[Task, bytes | memoryview]] = deque()

    @property
    def ready(self) -> bool:
        """Whether tasks are computed at once."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts threads and processes; tasks wait until `ready`."""
        raise NotImplementedError

    def check_starting(self) -> None:
        """To be called until `ready`; raises `UnavailableError` if it will not be."""

    def offer(self, task: Task) -> None:
        """Queues the task."""
        raise NotImplementedError

    def collect(self) -> Iterator[tuple[Task, bytes | memoryview]]:
        """Yields tasks finished since the last call, with their replies."""
        while self._done:
            yield self._done.popleft()

    def abandon(self) -> list[Task]:
        """Returns the tasks not started, and starts no more."""
        raise NotImplementedError

    def cancel(self, tasks: Iterable[Task]) -> None:
        """Refuses waiting tasks and stops running ones where possible."""

    def tick(self, now_ns: int) -> None:
        """Stops running tasks and refuses waiting ones past their limits, where possible."""

    def close(self) -> None:
        """Ends threads and processes."""
        raise NotImplementedError


class ThreadWorker(Executor):
    """Computes tasks one after the other, in order, in a thread of the server's process.

    For servers without worker processes, such as one inside another program. Kernels release the interpreter lock, so
    control loops are not blocked by large batches, but a running task cannot be stopped; a cancelled one is refused
    when it is next. Without `start`, tasks are computed by calls of `work_one`. Each task ends with a call of `wake`,
    in the thread that computed it.
    """

    def __init__(self, wake: Callable[[], None], service: Service) -> None:
        super().__init__()
        self._wake = wake
        self._service = service
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="dyn-worker", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def offer(self, task: Task) -> None:
        """Queues the task."""
        self._tasks.put(task)

    def abandon(self) -> list[Task]:
        """Returns the tasks not started; the thread ends after the current one."""
        self._abandoned = True
        left = []
        with suppress(Empty):
            while True:
                left.append(self._tasks.get_nowait())
        self._tasks.put(None)
        return [task for task in left if task is not None]

    def close(self) -> None:
        """Waits 0.1 s for the thread; a busy one ends later by itself."""
        if self._thread.is_alive():
            self._thread.join(0.1)

    def work_one(self) -> bool:
        """Computes the next task, waiting for one if needed; False if there will be none."""
        if self._abandoned or (task := self._tasks.get()) is None:
            return False
        with np.errstate(all="ignore"), listening(self._service.clock):
            try:
                reply = self._service.work(task)
            except Exception:  # noqa: BLE001  # a defect: the thread goes on
                _LOG.exception("a slow request failed")
                reply = self._service.refuse_task(task, InternalError("the server failed to answer; see its log"))
        self._done.append((task, reply))
        self._wake()
        return True

    def _run(self) -> None:
        while self.work_one():
            pass


class WorkerHandle:
    """One worker process as seen by the pool.

    task: its task, running since begun_ns, to be stopped at due_ns. making: the kernel it compiles, since making_ns.
    known: fingerprints of the robots it has, by name. kernels: those it has, see `kernel_of`. robot: a robot it loaded,
    pickled. has_started: whether it reported `Ready`. ending: whether it is being killed. audit: log entries, written
    when the task is answered. excused_ns: time of the task spent compiling. pid: its process. stopped: number of
    consecutive checks that found it stopped by a signal.
    """

    def __init__(self, end: socket.socket, number: int) -> None:
        self.end, self.number = end, number
        self.pipe: Pipe[FromWorker] = Pipe(end, FromWorker, waits=False)  # type: ignore[arg-type]  # a union
        self.task: Task | None = None
        self.making: str | None = None
        self.begun_ns, self.due_ns, self.making_ns, self.excused_ns = 0, 0.0, 0, 0
        self.known: dict[str, str] = {}
        self.kernels: set[tuple[Any, ...]] = set()
        self.robot: memoryview | None = None
        self.audit: list[Change] = []
        self.has_started = self.ending = self.watches_writing = False
        self.pid = self.stopped = 0

    @property
    def is_long(self) -> bool:
        """Whether its task may take long."""
        return self.task is not None and (self.task.long or self.must_finish_kernel)

    @property
    def must_finish_kernel(self) -> bool:
        """Whether it compiles a kernel, or must have one before it answers."""
        return self.making is not None or (self.task is not None and self.task.needs_kernel)

    @property
    def is_ready(self) -> bool:
        """Whether it has started and is not being killed."""
        return self.has_started and not self.ending

    @property
    def is_idle(self) -> bool:
        """Whether it can take a task."""
        return self.task is None and self.is_ready

    def send_task(self, task: Task, served: dict[str, Served]) -> None:
        """Sends a task and the robots that it needs; removes robots no longer served. Errors as `Pipe.send`."""
        # first, to stay within the limit of robots
        for former_name in self.known.keys() - served.keys():
            self.pipe.send(pipes.RemoveRobot(former_name))
            del self.known[former_name]
        name = task.head.robot
        required = [served[name]] if name in served else [] if type(name) is str else [*served.values()]
        for served_robot in required:  # all robots, if the request's robot is unknown
            if self.known.get(served_robot.robot.name) != served_robot.robot.fingerprint:
                self.pipe.send(pipes.AddRobot(), served_robot.pickled)
                self.known[served_robot.robot.name] = served_robot.robot.fingerprint
                kept_robots = {*self.known.values()} - {served_robot.robot.fingerprint}
                self.kernels = {kernel for kernel in self.kernels if kernel[0] in kept_robots}
        work = pipes.Work(task.received_ns, self.excused_ns, task.caller, task.needs_kernel)
        self.pipe.send(work, task.payload)

    def update_due_time(self, most_s: float) -> None:
        """Computes when to stop its task, or to kill the worker if it is to give up; until then it may compile."""
        self.due_ns = self.begun_ns + most_s * 1e9
        if self.task is not None and not self.task.is_refused:
            excused = math.inf if self.must_finish_kernel else self.excused_ns
            due_time_ns = due_ns(self.task.head, self.task.received_ns, excused)
            self.due_ns = self.due_ns if due_time_ns is None else min(self.due_ns, due_time_ns)
        elif not self.must_finish_kernel:
            self.due_ns = min(self.due_ns, perf_counter_ns() + _GIVE_UP_NS)


# a worker that has not given up a task by then is killed: about what a new one costs
_GIVE_UP_NS = 250_000_000

_MAX_REFUSED = 1000
# time for which a kernel that took too long is refused; the machine may have been busy
_REFUSED_NS = 600_000_000_000


def kernel_of(task: Task, registry: Registry) -> tuple[Any, ...] | None:
    """Returns robot, query and kernel of a task; None if its robot is not served or its kernel is not known yet."""
    head = task.head
    served = registry.served.get(head.robot) if type(head.robot) is str else None
    if served is None or (task.kernel is None and names_queries(head.query)):
        return None
    return served.robot.fingerprint, head.query, task.kernel


class RefusedKernels:
    """Requests refused without trying, because compiling their kernel took too long."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[tuple[Any, ...], tuple[DynError, int]] = {}

    def remember(self, task: Task, error: DynError, now_ns: int) -> None:
        """Refuses further requests of this kind with the same error."""
        kind = kernel_of(task, self._registry)
        if kind is None:
            return
        while len(self._known) >= _MAX_REFUSED:
            del self._known[next(iter(self._known))]
        self._known[kind] = (error, now_ns + _REFUSED_NS)

    def refusal(self, task: Task, now_ns: int) -> DynError | None:
        """Returns the error for a task that is refused, or None."""
        kind = kernel_of(task, self._registry) if self._known else None
        error, until_ns = self._known.get(kind, (None, 0)) if kind is not None else (None, 0)
        return error if now_ns < until_ns else None


@dataclass(slots=True, eq=False)
class Load:
    """A robot loaded by a worker as the answer to a task, to be served by the server's process.

    robot: the robot and its expiry time, pickled. audit: entries for the audit log. error: why it is not served.
    """

    task: Task
    answer: pipes.Answered
    reply: memoryview
    robot: memoryview
    audit: list[Change] = field(default_factory=list)
    error: DynError | None = None


class Loader:
    """Loads robots and kernels made by workers into the registry, in a thread, so that control loops do not wait.

    All methods belong to the server's thread, which `wake` wakes when there is something to collect.
    """

    def __init__(self, registry: Registry, wake: Callable[[], None]) -> None:
        self._registry = registry
        self._wake = wake
        self._requests: SimpleQueue[Load | pipes.Kernel | None] = SimpleQueue()
        self._done: deque[Load] = deque()
        self._thread = threading.Thread(target=self._run, name="dyn-loader", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def load(self, load: Load) -> None:
        """Starts to load a robot; `collect` reports the end."""
        self._requests.put(load)

    def fetch(self, kernel: pipes.Kernel) -> None:
        """Starts to load a kernel from the store, unless it is loaded."""
        served = self._registry.served.get(kernel.robot)
        row_kernel = row_of(kernel.query), kernel.method, kernel.variant
        if served is not None and not served.robot.evaluator.has_kernel(*row_kernel, passive=kernel.passive):
            self._requests.put(kernel)

    def collect(self) -> Iterator[Load]:
        """Yields the loads that have ended; `error` is set for those that failed."""
        while self._done:
            yield self._done.popleft()

    def close(self) -> None:
        """Ends the thread after its current work; waits 2 s for it."""
        self._requests.put(None)
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            if isinstance(request, pipes.Kernel):
                self._load_kernel(request)
            else:
                try:
                    self._add_robot(request)
                except DynError as error:
                    request.error = error
                except Exception:  # noqa: BLE001  # a defect: the client gets an error reply
                    _LOG.exception("a robot could not be loaded")
                    request.error = InternalError("the server failed to load the robot; see its log")
                self._done.append(request)
            self._wake()

    def _add_robot(self, load: Load) -> None:
        """Serves the robot, with the kernels that the worker compiled."""
        robot, expires_s = pickle.loads(load.robot)  # from a worker, not from a client
        self._registry.add(robot, expires_s)
        served = self._registry.served.get(robot.name)
        if served is None:  # unloaded meanwhile
            return
        _ = served.pickled  # cached here, because it takes milliseconds
        for name in CERTIFIED:
            method = next(iter(row_of(name).kernels))
            self._load_kernel(pipes.Kernel(robot.name, name, method, WITHOUT_WRENCHES, passive=True))
        served.refresh()

    def _load_kernel(self, kernel: pipes.Kernel) -> None:
        """Loads a kernel from the store. If that fails, workers answer its requests."""
        served = self._registry.served.get(kernel.robot)
        if served is None:
            return
        row_kernel = row_of(kernel.query), kernel.method, kernel.variant
        try:
            with suppress(ResourceExhaustedError):  # requests for it are refused with this error
                if served.robot.evaluator.load_kernel(*row_kernel, passive=kernel.passive):
                    served.plans[kernel.query].refresh()
        except Exception:  # noqa: BLE001  # a defect
            _LOG.exception("a kernel could not be fetched")


# delay before another worker is started after one exited before it was ready
_RESTART_DELAY_NS = 1_000_000_000
# interval at which a task past its deadline is checked again while kernels are compiled
_LOOK_NS = 50_000_000
_CHECK_NS = 100_000_000  # interval of checks whether a signal has stopped a worker with a task

# so many in a row replace a worker; counted, not timed: this process may be suspended too
_STOPPED_CHECKS = 3

_MAX_LOSSES = 2  # a request is refused after so many workers were lost computing it

# the same for workers lost before they read it, perhaps because of the robots sent first
_MAX_UNREAD = 8

_START_S = 60.0  # time for the first worker to start, not counting time without a CPU

_FORK_SERVER_ENDED = "the fork server has exited"
_KILLED = (None, -signal.SIGKILL)
"""Exit statuses of a fork server that did not end by itself, so that another one is started; None: not known yet."""


class Pool(Executor):
    """A number of workers and the tasks that wait for them.

    service: its robots are sent to the workers; robots that workers load are added to it. selector: watches the pipes;
    ready ones are handled by `key.data(events)`. wake: wakes the server's thread, from another.
    """

    def __init__(
        self, service: Service, workers: int, *, selector: selectors.BaseSelector, wake: Callable[[], None]
    ) -> None:
        super().__init__()
        self._service = service
        self._registry = service.registry
        self._clock = service.clock
        self._metrics = service.metrics
        self._limits = service.limits
        self._count = workers
        self._selector = selector
        self._fork_server = ForkServer()
        self._workers: list[WorkerHandle] = []
        self._waiting = jobs.Schedule()
        self._due_times = jobs.DueTimes()
        self._refusals = RefusedKernels(service.registry)
        self._paces = jobs.Paces()
        self._loader = Loader(service.registry, wake)
        self._loading = jobs.DueTimes()
        self._ending = False
        self._next_start_ns = 0
        self._next_check_ns = 0
        self._start_until_s = math.inf
        service.metrics.gauges |= {
            "workers": lambda: len(self._workers),
            "workers_busy": lambda: sum(worker.task is not None for worker in self._workers),
            "compiling": lambda: sum(worker.making is not None for worker in self._workers),
        }

    @property
    def ready(self) -> bool:
        """Whether a worker is ready."""
        return any(worker.is_ready for worker in self._workers)

    def start(self) -> None:
        """Starts the workers."""
        self._fork_server.start()
        self._loader.start()
        for served in self._registry.served.values():
            _ = served.pickled  # cached here, because it takes milliseconds
        self._fill_up(perf_counter_ns())
        self._start_until_s = time.monotonic() + _START_S

    def check_starting(self) -> None:
        """See `Executor.check_starting`."""
        if self._fork_server.ended and self._fork_server.exit_status not in _KILLED:
            raise UnavailableError("the server's worker processes do not start; see their output")
        if time.monotonic() > self._start_until_s + self._fork_server.starved_ns / 1e9:
            raise UnavailableError(f"no worker process started within {_START_S:g} s")

    # waiting tasks

    def offer(self, task: Task) -> None:
        """Queues the task, or refuses it if its kernel takes too long to compile."""
        if (refusal := self._refusals.refusal(task, perf_counter_ns())) is not None:
            self._refuse(task, refusal)
            return
        self._waiting.add(task)
        self._watch_deadline(task)
        self._assign()

    def collect(self) -> Iterator[tuple[Task, bytes | memoryview]]:
        """As `Executor.collect`, and serves the robots that workers loaded."""
        for load in self._loader.collect():
            self._loaded(load)
        yield from super().collect()

    def abandon(self) -> list[Task]:
        """See `Executor.abandon`."""
        self._ending = True
        left = [*self._waiting]
        for task in left:
            self._dequeue(task)
        return left

    def cancel(self, tasks: Iterable[Task]) -> None:
        """Refuses waiting tasks and stops running ones, after a compilation if one is running."""
        for task in tasks:
            if self._dequeue(task):
                self._refuse(task, jobs.cancelled_error())
        for worker in self._workers:
            running = worker.task
            if running is not None and running.cancelled and not running.is_refused:
                self._interrupt(worker, running, jobs.cancelled_error())

    def tick(self, now_ns: int) -> None:
        """Stops running tasks and refuses waiting ones past their limits; replaces a fork server that hangs."""
        if self._fork_server.hangs(now_ns):
            self._lose_all("the fork server did not respond")
        if len(self._workers) < self._count:
            self._fill_up(now_ns)
            self._assign()
        for task in self._due_times.pop(now_ns):
            self._refuse_if_late(task, now_ns)
        for task in self._loading.pop(now_ns):
            self._refuse(task, jobs.late_error(task.head, now_ns - task.received_ns, started=True))
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
        due_time_ns = due_ns(task.head, task.received_ns, 0)
        if due_time_ns is not None:
            self._due_times.add(task, due_time_ns)

    def _refuse_if_late(self, task: Task, now_ns: int) -> None:
        """Refuses a task past its deadline, or checks it again later."""
        due_time_ns = due_ns(task.head, task.received_ns, self._excused_ns(task, now_ns))
        if due_time_ns is not None and due_time_ns > now_ns:
            self._due_times.add(task, max(due_time_ns, now_ns + _LOOK_NS))
            return
        self._waiting.discard(task)
        self._refuse(task, jobs.late_error(task.head, now_ns - task.received_ns, started=False))

    def _excused_ns(self, task: Task, now_ns: int) -> int:
        """Returns the time that a task waited for kernels: all until its own is made, and while any is compiled."""
        if task.needs_kernel:
            return now_ns - task.received_ns
        return self._clock.within_ns(task.received_ns, now_ns)

    def _dequeue(self, task: Task) -> bool:
        self._due_times.discard(task)
        return self._waiting.discard(task)

    def _refuse(self, task: Task, error: DynError) -> None:
        if not task.is_refused:
            self._done.append((task, self._service.refuse_task(task, error)))

    # the workers

    def _fill_up(self, now_ns: int) -> None:
        """Starts missing workers."""
        if self._workers and self._fork_server.ended:  # its workers exit too
            self._lose_all(_FORK_SERVER_ENDED)
            return
        while len(self._workers) < self._count and now_ns >= self._next_start_ns and not self._ending:
            try:
                self._workers.append(self._start_worker())
            except OSError as fault:  # no more processes or open files for now
                _LOG.error("no worker can be started: %s", fault)  # one line, no traceback
                self._next_start_ns = now_ns + _RESTART_DELAY_NS

    def _start_worker(self) -> WorkerHandle:
        end, number = self._fork_server.make()
        worker = WorkerHandle(end, number)
        with suppress(pipes.PipeClosedError):
            worker.pipe.send(pipes.Begin(self._limits, self._service.allow_load, self._service.epoch))
        self._selector.register(end, selectors.EVENT_READ, lambda events: self._on_event(worker, events))
        return worker

    def _assign(self) -> None:
        """Gives waiting tasks to idle workers.

        Long work leaves one live worker for batches; a worker being killed does not count. Long work goes to the newest
        worker, because it may be killed, and batches to the oldest, which has their kernels loaded; but a task goes to
        a worker that has its kernel, which may be in no store.
        """
        while self._waiting and (idle := [worker for worker in self._workers if worker.is_idle]):
            free_workers = sum(worker.is_ready and not worker.is_long for worker in self._workers)
            task = self._waiting.take(long=free_workers > 1 or len(self._workers) == 1)
            if task is None:
                return
            self._due_times.discard(task)
            kernel = kernel_of(task, self._registry)
            having = [worker for worker in idle if kernel in worker.kernels]
            self._begin((having or idle)[-1 if task.long else 0], task)

    def _begin(self, worker: WorkerHandle, task: Task) -> None:
        now = perf_counter_ns()
        worker.excused_ns = self._excused_ns(task, now)
        deadline_ns, least_ns = due_ns(task.head, task.received_ns, worker.excused_ns), self._paces.least_ns(task, now)
        if deadline_ns is not None and now + least_ns > deadline_ns and not task.needs_kernel:
            self._refuse(task, jobs.hopeless_error(task.head, least_ns))
            return
        try:
            worker.send_task(task, self._registry.served)
        except pipes.PipeClosedError:
            worker.task = task
            self._lost_before_reading(worker)
            return
        except OSError as fault:
            self._refuse(task, ResourceExhaustedError(f"{task.size} bytes cannot be sent to a worker now: {fault}"))
            self._watch(worker)
            return
        worker.task, worker.begun_ns, task.waits_for_kernel = task, now, False
        worker.update_due_time(self._limits.max_worker_s)
        self._watch(worker)

    def _stop(self, worker: WorkerHandle, task: Task, error: DynError) -> None:
        """Kills a worker; its client gets the error at once."""
        self._waiting.charge(task.peer)  # restarting a worker costs other peers as much as work
        worker.task = None
        self._refuse(task, error)
        self._end(worker)

    def _interrupt(self, worker: WorkerHandle, task: Task, error: DynError) -> None:
        """Asks a worker to give up its task, whose client gets the error at once; see `WorkerHandle.due_ns`."""
        self._refuse(task, error)
        task.is_refused = task.cancelled = True
        # it has exited, which the next event of its pipe reports
        with suppress(pipes.PipeClosedError):
            worker.pipe.send(pipes.Stop())
        self._watch(worker)
        worker.update_due_time(self._limits.max_worker_s)

    def _end(self, worker: WorkerHandle) -> None:
        worker.ending = True
        self._fork_server.kill(worker.number)

    def _stop_late(self, worker: WorkerHandle, task: Task, now_ns: int) -> None:
        most_s = self._limits.max_worker_s
        # a compilation goes on until the limit, or a query with a short deadline would never find its kernel
        if now_ns <= worker.begun_ns + most_s * 1e9:
            if task.is_refused:  # it did not give up
                self._stop(worker, task, jobs.cancelled_error())
            else:
                self._interrupt(worker, task, jobs.late_error(task.head, now_ns - task.received_ns, started=True))
            return
        work = f"compiling {worker.making}" if worker.making else task.head.query
        error = ResourceExhaustedError(f"{work} took more than {most_s:g} s, which is the limit")
        if worker.making:
            self._refusals.remember(task, error, now_ns)
        self._stop(worker, task, error)

    def _lost(self, worker: WorkerHandle, why: str) -> None:
        """Handles the exit of a worker; if the fork server exited, all workers did, which counts as one loss."""
        if worker not in self._workers:
            return
        if self._fork_server.ended:
            self._lose_all(_FORK_SERVER_ENDED)
        else:
            self._lose([worker], why)

    def _lost_before_reading(self, worker: WorkerHandle, how: str = "lost before they started") -> None:
        """Handles a worker that exited, or was stopped by a signal, independently of its task."""
        task, worker.task = worker.task, None
        if task is not None:
            task.unread_losses += 1
            self._wait_again(task, task.unread_losses, _MAX_UNREAD, f"{how} {task.head.query}")
        self._lost(worker, "it had exited before")

    def _lose_stopped(self) -> None:
        """Replaces one worker that a signal stopped while it has a task; others at the next checks."""
        for worker in self._workers:
            worker.stopped = worker.stopped + 1 if worker.task is not None and is_stopped(worker.pid) else 0
            if worker.stopped >= _STOPPED_CHECKS:
                self._lost_before_reading(worker, "stopped by a signal during")
                return

    def _lose_all(self, why: str) -> None:
        """Kills the fork server and so all workers."""
        _LOG.error("all workers are restarted: %s", why)
        self._fork_server.drop()
        self._lose([*self._workers], why)

    def _lose(self, workers: list[WorkerHandle], why: str) -> None:
        """Replaces workers; their tasks are tried again."""
        for worker in workers:
            self._workers.remove(worker)
            self._selector.unregister(worker.end)
            worker.pipe.close()
            # it may still run if only its message could not be read
            self._fork_server.kill(worker.number)
            self._fork_server.done(worker.number)
            self._clock.ended(worker.number)
            if (task := worker.task) is not None:
                task.losses += 1
                self._wait_again(task, task.losses, _MAX_LOSSES, f"lost during {task.head.query}: {why}")
        now = perf_counter_ns()
        # the next one may fail in the same way
        if not any(worker.has_started for worker in workers):
            self._next_start_ns = now + _RESTART_DELAY_NS
        self._fill_up(now)
        self._assign()

    def _wait_again(self, task: Task, losses: int, limit: int, how: str) -> None:
        """Queues a task again, unless `losses` has reached `limit`."""
        self._metrics.traffic.workers_lost += 1
        _LOG.error("a worker was %s", how)
        if task.cancelled:
            self._refuse(task, jobs.cancelled_error())
        elif losses < limit and not self._ending:
            self._waiting.put_back(task)
            self._watch_deadline(task)
        else:
            self._refuse(task, ResourceExhaustedError(f"{losses} workers were {how}"))

    # messages of workers

    def _watch(self, worker: WorkerHandle) -> None:
        if worker.pipe.writing != worker.watches_writing:
            worker.watches_writing = worker.pipe.writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.pipe.writing else 0)
            self._selector.modify(worker.end, events, lambda events: self._on_event(worker, events))

    def _on_event(self, worker: WorkerHandle, events: int) -> None:
        if worker not in self._workers:  # lost with another one, just before
            return
        try:
            if events & selectors.EVENT_WRITE:
                worker.pipe.write()
                self._watch(worker)
            if events & selectors.EVENT_READ:
                for message, body in worker.pipe.read():
                    self._on_message(worker, message, body)
        except pipes.BytesLostError as fault:
            self._lost(worker, f"the last reply was lost: {fault}")
        except pipes.UnreadError:
            self._lost_before_reading(worker)
        except pipes.PipeClosedError:
            self._lost(worker, "the request needs too much memory, or they were killed")

    def _on_message(self, worker: WorkerHandle, message: FromWorker, body: memoryview) -> None:
        match message:
            case pipes.Ready(pid):
                worker.has_started, worker.pid = True, pid
                self._fork_server.done(worker.number)
                self._assign()
            case pipes.Making(kernel):
                worker.making, worker.making_ns = kernel, perf_counter_ns()
                self._clock.begun(kernel, worker.number)
            case pipes.Made():
                worker.making = None
                worker.excused_ns += perf_counter_ns() - worker.making_ns
                self._clock.ended(worker.number)
            case pipes.KernelReady():
                self._on_kernel_ready(worker)
            case pipes.Audit(change):
                worker.audit.append(change)
            case pipes.Loaded(name, fingerprint):
                worker.robot = body
                worker.known[name] = fingerprint
            case pipes.Answered():
                self._take_answer(worker, message, body)
                return
            case pipes.Returned():
                task, worker.task = worker.task, None
                if task is not None and not task.is_refused:
                    self._done.append((task, self._service.handle(body, task.received_ns, task.caller)))
                self._assign()
                return
        if worker.task is not None:
            worker.task.waits_for_kernel = worker.making is not None
            worker.update_due_time(self._limits.max_worker_s)

    def _on_kernel_ready(self, worker: WorkerHandle) -> None:
        """Notes a kernel; if no client waits for its answer, the server loads it for the next one."""
        task = worker.task
        if task is None:
            return
        task.needs_kernel = False
        worker.excused_ns = perf_counter_ns() - task.received_ns
        if (kernel := kernel_of(task, self._registry)) is not None:
            worker.kernels.add(kernel)
        if task.cancelled and task.kernel is not None and type(task.head.robot) is str:
            self._loader.fetch(pipes.Kernel(task.head.robot, str(task.head.query), *task.kernel))

    def _take_answer(self, worker: WorkerHandle, answer: pipes.Answered, reply: memoryview) -> None:
        task, robot, changes = worker.task, worker.robot, worker.audit
        worker.task, worker.robot, worker.audit = None, None, []
        if task is None:  # stopped before
            return
        if answer.last:
            self._end(worker)
        if answer.code in (None, DeadlineExceededError.code):
            self._paces.note(task, answer.took_ns, perf_counter_ns(), finished=answer.code is None)
        if task.is_refused:
            pass
        elif robot is not None:
            due_time_ns = due_ns(task.head, task.received_ns, worker.excused_ns)
            self._loading.add(task, math.inf if due_time_ns is None else due_time_ns)
            self._loader.load(Load(task, answer, reply, robot, changes))
        else:
            self._record(task, changes, answer)
            self._done.append((task, reply))
            if answer.kernel is not None and answer.code is None:
                self._loader.fetch(answer.kernel)
        self._assign()

    def _loaded(self, load: Load) -> None:
        """Sends the reply for a robot that was loaded or not, unless the request was refused at its deadline."""
        task, error = load.task, load.error
        awaited = self._loading.discard(task)
        if error is None:
            self._record(task, load.audit, load.answer)
        else:
            caller = task.caller or local_caller("a local process", allow_load=True)
            record_refused(caller, load.answer.query, task.head.robot, error)
        if awaited:
            self._done.append((task, load.reply if error is None else self._service.refuse_task(task, error)))

    def _record(self, task: Task, changes: list[Change], answer: pipes.Answered) -> None:
        """Counts the answer, and writes its audit entries."""
        for change in changes:
            write(change)
        if answer.code is None:
            self._metrics.answered(answer.query, perf_counter_ns() - task.received_ns)
        else:
            self._metrics.refused(answer.query if is_query(answer.query) else None, answer.code)


# for the first order of a new fork server, which imports the engine and the compiler
_FIRST_NS = 60_000_000_000
# for later orders, each a fork or a signal, and for all of a process that a signal stopped
_ORDER_NS = 10_000_000_000
_END_S = 1.5  # for processes to end at the close
CLOSE_S = 2 * _END_S + 2.0
"""A pool closes within this time: its processes, and the thread of `Loader`."""

# longest time counted between two checks, so that a suspended server does not blame it
_GAP_NS = 1_000_000_000


class ForkServer:
    """The fork server and the orders it has not carried out."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._former_processes: list[subprocess.Popen[bytes]] = []
        self._count = 0
        self._orders: dict[int, int] = {}  # by worker number: time of the order on `_clock_ns`
        self._clock_ns = 0
        self._looked_ns = 0
        self._starved_ns = 0
        self._most_ns = _FIRST_NS

    def start(self) -> None:
        """Starts the process. It is ready some tenths of a second later; orders wait until then."""
        parent_end, child_end = socket.socketpair()
        parent_end.setblocking(False)  # so that a hung fork server does not block this process
        # `-P`, because a file in the current folder may have the name of an imported module.
        paths = [str(Path(dyn_service.__file__).parent.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"}
        # a signal to the process group stops the server
        with child_end, blocked(signal.SIGINT, signal.SIGTERM):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dyn_service.service.server.workers.process", str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self._end = parent_end
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
        last = self._process or (self._former_processes[-1] if self._former_processes else None)
        return None if last is None else last.poll()

    def make(self) -> tuple[socket.socket, int]:
        """Orders a worker, from a new fork server if none is running; returns its pipe and number. Does not block.

        Data written to the pipe is read when the worker runs. The pipe of a worker that cannot be made is closed.

        Raises:
            OSError: No more processes or open files are available.
        """
        if self.ended:
            self.drop()
            self.start()
        assert self._end is not None
        parent_end, worker_end = pipes.pair()
        self._count += 1
        self._orders[self._count] = self._clock_ns
        with worker_end, suppress(OSError):
            socket.send_fds(self._end, [pipes.ORDER.pack(self._count)], [worker_end.fileno()])
        return parent_end, self._count

    def kill(self, number: int) -> None:
        """Orders that a worker is killed."""
        if self._end is not None:
            self._orders[number] = self._clock_ns
            with suppress(OSError):
                self._end.send(pipes.ORDER.pack(number))

    def done(self, number: int) -> None:
        """Reports that a worker has started or exited, as ordered."""
        if self._orders.pop(number, None) is not None:
            self._most_ns = _ORDER_NS
            self._former_processes = [process for process in self._former_processes if process.poll() is None]

    def hangs(self, now_ns: int) -> bool:
        """Returns whether an order was not carried out in time; call it often, because long gaps do not count."""
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
            self._former_processes.append(self._process)
            self._process = None
        self._orders.clear()
        self._most_ns = _FIRST_NS

    def close(self) -> None:
        """Ends the fork server and all workers, and waits for it, at most `_END_S` and as long again once killed."""
        if self._end is not None:
            self._end.close()
            self._end = None
        processes = [*filter(None, (self._process, *self._former_processes))]
        for until_s in (time.monotonic() + _END_S, time.monotonic() + 2 * _END_S):
            for process in processes:
                try:
                    process.wait(max(0.0, until_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
        self._process = None
        self._former_processes.clear()
