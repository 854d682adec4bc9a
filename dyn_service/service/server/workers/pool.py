"""Worker processes: slow requests are done beside the process that serves, in others that may be killed.

    Pool        the workers, who does what, and what is told of it
    schedule    the requests that wait, and whose turn it is
    loader      brings what workers made into this process
    nursery     the process that makes workers
    refusals    what is not tried again

A request that is worked on is stopped, by ending its worker, when its deadline has passed, when its asker is gone, or
when it has taken `max_worker_s`. While it makes a kernel, only the request is refused; the kernel goes on until that
last limit, for the next client. All but one of the workers may do long work, so that a batch never waits for it.
"""

from __future__ import annotations

import logging
import math
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import perf_counter_ns

from dyn_service.errors import DynError, ResourceExhaustedError, UnavailableError
from dyn_service.service.server.administration.access import local_caller
from dyn_service.service.server.administration.audit import Change, tell_refused, write
from dyn_service.service.server.answering.deadlines import DueTimes, due_ns, given_up, not_begun, stopped
from dyn_service.service.server.answering.service import Service, is_query
from dyn_service.service.server.answering.task import Task
from dyn_service.service.server.process import is_stopped
from dyn_service.service.server.workers.fork_server import Nursery
from dyn_service.service.server.workers.handle import WorkerHandle
from dyn_service.service.server.workers.loader import Load, Loader
from dyn_service.service.server.workers.pipes import BytesLostError, PipeClosedError, UnreadError
from dyn_service.service.server.workers.protocol import (
    Answered,
    Audit,
    Begin,
    FromWorker,
    Loaded,
    Made,
    Making,
    Ready,
    Returned,
)
from dyn_service.service.server.workers.refusals import Refusals
from dyn_service.service.server.workers.schedule import Schedule

_LOG = logging.getLogger(__name__)

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
"""How long the first worker may take to come, but for the time in which there was no processor for its nursery."""

_NURSERY_ENDED = "the process that makes workers has ended"


class Pool:
    """The workers, and the requests that wait for them. All calls come from the thread that serves.

    Args:
        service: Its robots are known to the workers, and those that workers load are added to it.
        workers: How many there are.
        selector: Watches the pipes; what it finds ready is called as `key.data(events)`.
        ring: Wakes the thread that serves, from another.
    """

    def __init__(
        self, service: Service, workers: int, *, selector: selectors.BaseSelector, ring: Callable[[], None]
    ) -> None:
        self._service = service
        self._registry = service.registry
        self._clock = service.clock
        self._metrics = service.metrics
        self._limits = service.limits
        self._count = workers
        self._selector = selector
        self._nursery = Nursery()
        self._workers: list[WorkerHandle] = []
        self._waiting = Schedule()
        self._due = DueTimes()
        self._done: deque[tuple[Task, bytes | memoryview]] = deque()
        self._refusals = Refusals(service.registry)
        self._loader = Loader(service.registry, ring)
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
        return any(worker.is_there for worker in self._workers)

    def start(self) -> None:
        """Starts the workers. What is offered waits until they are there: see `ready` and `check_coming`."""
        self._nursery.start()
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
        if self._nursery.ended:
            raise UnavailableError("the server's worker processes do not start; what they wrote says why")
        if time.monotonic() > self._start_until_s + self._nursery.starved_ns / 1e9:
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
            self._stop_if_given_up(worker)
        return dropped

    def tick(self, now_ns: int) -> None:
        """Stops what has taken too long, and refuses what has waited too long; replaces a nursery that hangs."""
        if self._nursery.hangs(now_ns):
            self._lose_all("the process that makes workers did not do what it was told")
        if len(self._workers) < self._count:
            self._fill_up(now_ns)
            self._assign()
        for task in self._due.pop(now_ns):
            self._refuse_if_late(task, now_ns)
        for task in self._loading.pop(now_ns):
            self._refuse(task, stopped(task.head, now_ns - task.received_ns))
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
        self._nursery.close()
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
        self._refuse(task, not_begun(task.head, now_ns - task.received_ns))

    def _wait_no_more(self, task: Task) -> bool:
        self._due.discard(task)
        return self._waiting.discard(task)

    def _refuse(self, task: Task, fate: DynError) -> None:
        if not task.answered:
            self._done.append((task, self._service.refuse_task(task, fate)))

    # the workers

    def _fill_up(self, now_ns: int) -> None:
        """Makes the workers that are missing."""
        if self._workers and self._nursery.ended:  # those that are left end too
            self._lose_all(_NURSERY_ENDED)
            return
        while len(self._workers) < self._count and now_ns >= self._no_more_before_ns and not self._ending:
            try:
                self._workers.append(self._make_worker())
            except OSError as fault:  # no more processes or open files for now
                _LOG.error("no worker can be made: %s", fault)  # said in one line
                self._no_more_before_ns = now_ns + _AGAIN_NS

    def _make_worker(self) -> WorkerHandle:
        end, number = self._nursery.make()
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
            free = sum(each.is_there and not each.is_long for each in self._workers)
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
        worker.look_ahead(self._limits.max_worker_s)
        self._watch(worker)

    def _stop(self, worker: WorkerHandle, task: Task, fate: DynError) -> None:
        """Ends a worker, and tells its asker why at once, however long the end takes."""
        worker.task = None
        self._refuse(task, fate)
        self._end(worker)

    def _end(self, worker: WorkerHandle) -> None:
        worker.ending = True
        self._nursery.kill(worker.number)

    def _stop_if_given_up(self, worker: WorkerHandle) -> None:
        if worker.task is not None and worker.task.given_up and worker.making is None:
            self._waiting.charge(worker.task.peer)  # its worker is lost, which costs the others as much as work does
            self._stop(worker, worker.task, given_up())

    def _stop_late(self, worker: WorkerHandle, task: Task, now_ns: int) -> None:
        most_s = self._limits.max_worker_s
        if now_ns <= worker.begun_ns + most_s * 1e9:
            fate: DynError = stopped(task.head, now_ns - task.received_ns)
            if worker.making is None:
                self._stop(worker, task, fate)
            else:
                self._refuse(task, fate)
                task.answered = task.given_up = True  # the work ends with `Made`
                worker.look_ahead(most_s)
            return
        at = f"{worker.making} is being made" if worker.making else f"{task.head.query} is worked on"
        fate = ResourceExhaustedError(f"{at} for more than {most_s:g} s, which is the limit")
        if worker.making:
            self._refusals.remember(task, fate, now_ns)
        self._stop(worker, task, fate)

    def _lost(self, worker: WorkerHandle, why: str) -> None:
        """A worker has ended; where that is for its nursery's end, all have, and that is one loss to those who wait."""
        if worker not in self._workers:
            return
        if self._nursery.ended:
            self._lose_all(_NURSERY_ENDED)
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
        """Ends the nursery, if it has not ended, and with it all workers."""
        _LOG.error("all workers are made anew: %s", why)
        self._nursery.drop()
        self._lose([*self._workers], why)

    def _lose(self, lost: list[WorkerHandle], why: str) -> None:
        """Others take their places, and their askers are told."""
        for worker in lost:
            self._workers.remove(worker)
            self._selector.unregister(worker.end)
            worker.pipe.close()
            self._nursery.kill(worker.number)  # it may live, where what it said could not be had
            self._nursery.done(worker.number)
            self._clock.ended(worker.number)
            if worker.task is not None:
                self._try_again(worker.task, why)
        now = perf_counter_ns()
        if not any(worker.has_come for worker in lost):  # what keeps one from coming may keep the next
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
        if task.given_up:
            self._refuse(task, given_up())
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
                worker.has_come, worker.pid = True, pid
                self._nursery.done(worker.number)
                self._assign()
            case Making(kernel):
                worker.making, worker.making_ns = kernel, perf_counter_ns()
                self._clock.begun(kernel, worker.number)
            case Made():
                worker.making = None
                worker.excused_ns += perf_counter_ns() - worker.making_ns
                self._clock.ended(worker.number)
                self._stop_if_given_up(worker)
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
            worker.look_ahead(self._limits.max_worker_s)

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
            tell_refused(caller, load.answer.query, task.head.robot, error)
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
