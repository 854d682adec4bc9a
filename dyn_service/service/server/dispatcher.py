"""What is sent when: answered at once, handed to the worker, made to wait, refused, told that it waits.

No socket and no thread of its own: `app` calls in with what arrived and when, and sends what comes back.

    answer(envelope, payload, received_ns)    a request came: its reply, or None while the worker has it
    finished()                                the worker rang: the replies that are ready
    notices(now_ns)                           now and then: who is to be told that it waits
    gone(peer)                                its connection has ended: what it asked for is dropped, or stopped
    shut_down()                               the end: refusals for what was not begun; from here on nothing new waits

Each request gets one reply, from `answer`, `finished` or `shut_down`; its notices come before it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from dyn_service.api.queries import QUERIES
from dyn_service.errors import (
    DynError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from dyn_service.service.protocol.messages import CANCEL, Head, Request, peek, read_cancel
from dyn_service.service.protocol.skim import is_crowded
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.answering.jobs import Envelope, Task, due_notices
from dyn_service.service.server.answering.plan import SLOW_BYTES
from dyn_service.service.server.answering.service import Service, names_robot

_LOG = logging.getLogger(__name__)


_OBJECTS = 2000
"""So much of a long request is looked at, some 0.4 ms, to see who asks what."""

_FEW = 500
"""A request of more objects is long, however few its bytes: each costs some microseconds to read and to check."""


class Executor(Protocol):
    """Does what is slow: `worker_thread.ThreadWorker`, `pool.Pool`."""

    def offer(self, task: Task) -> None:
        """Takes the task."""

    def collect(self) -> Iterator[tuple[Task, bytes | memoryview]]:
        """The tasks that were done since, with their replies; each is handed out once."""

    def abandon(self) -> list[Task]:
        """Takes back the tasks that were not begun; no more are begun."""

    def cancel(self, meant: Iterable[Task]) -> list[Task]:
        """Drops tasks that nobody waits for, and stops those that are worked on if it can; says which were dropped."""

    def tick(self, now_ns: int) -> None:
        """Stops what has taken too long, if it can."""


class Dispatcher:
    """The order in which requests are answered. All calls come from one thread, the one that serves.

    Args:
        service: Gives the answers.
        worker: Does what is slow. What it has done is asked for by `finished`.
    """

    def __init__(self, service: Service, worker: Executor) -> None:
        self._service = service
        self._worker = worker
        self._limits = service.limits
        self._traffic = service.metrics.traffic
        self._shutting_down = False
        self.waiting: dict[int, Task] = {}
        """The tasks whose replies are still to come from the worker, by identity."""
        self.waiting_bytes = 0
        """Bytes of their requests."""
        self._by_peer: Counter[Any] = Counter()

    def answer(
        self, envelope: Envelope, payload: bytes | memoryview, received_ns: int, caller: Caller | None = None
    ) -> bytes | memoryview | None:
        """The reply to a request, or None: it waits, and its reply comes from `finished` or `shut_down`; or it is a
        cancel, or one more try of a request that waits, which have none.

        Args:
            envelope: Where the reply goes.
            payload: The request's bytes, which stay as they are until it is answered.
            received_ns: When it came in, on the clock of `time.perf_counter_ns`.
            caller: Who asks; None is a process of this machine that the endpoint knows no more of.
        """
        service = self._service
        try:
            if len(payload) > SLOW_BYTES:
                return self._hand_over_unread(envelope, payload, received_ns, caller)
            reply = service.answer_single_state(payload, received_ns)
            if reply is not None:
                return reply
            cancelled = read_cancel(payload)
            if cancelled is not None:
                self._cancel(envelope, cancelled)
                return None
            if len(payload) > _FEW and is_crowded(payload, _FEW):
                return self._hand_over_unread(envelope, payload, received_ns, caller)
            job = service.accept(payload, received_ns, caller=caller)
            if isinstance(job, bytes):
                return job
            if self._is_at_work(envelope, job.request):
                return None
            there = service.has_kernel(job)
            if there and not job.slow and (reply := service.answer_at_once(job)) is not None:
                return reply
            plan = job.plan
            kernel = None if plan is None else plan.kernel(job.inputs, job.options)
            long = plan is None or job.verify or not there
            return self._hand_over(Task(envelope, payload, received_ns, peek(payload), job, long, caller, kernel))
        except DynError as error:
            return service.refuse_unread(payload, error)
        except Exception:  # noqa: BLE001  # a defect: its asker need not wait for nothing
            _LOG.exception("a request failed")
            return service.refuse_unread(payload, InternalError("the server failed to answer; its log says why"))

    def _hand_over_unread(
        self, envelope: Envelope, payload: bytes | memoryview, received_ns: int, caller: Caller | None
    ) -> bytes | None:
        """As `_hand_over`, for a request that even to read takes too long."""
        head = peek(payload, _OBJECTS)
        if head.query == CANCEL and head.id is not None:
            self._cancel(envelope, head.id)
            return None
        if self._is_at_work(envelope, head):
            return None
        long = head.query not in QUERIES
        return self._hand_over(Task(envelope, payload, received_ns, head, long=long, caller=caller))

    def refuse_frames(self, count: int) -> bytes:
        """The reply to a message of so many frames, which is no request."""
        found = f"a message must be one frame, or an empty one and one more, found {count}"
        return self._service.refuse(Head(), InvalidArgumentError(found))

    def gone(self, peer: Any) -> None:
        """Drops or stops what the peer asked for: its connection has ended."""
        meant = [task for task in self.waiting.values() if task.peer[1] is peer]
        if meant:
            self._cancel_tasks(meant)

    def finished(self) -> Iterator[tuple[Envelope, bytes | memoryview]]:
        """The replies that the worker has ready."""
        for task, reply in self._worker.collect():
            self._forget(task)
            yield task.envelope, reply

    def notices(self, now_ns: int) -> Iterator[tuple[Envelope, bytes]]:
        """The notices that are due to those who wait for a kernel.

        Args:
            now_ns: The time, on the clock of `time.perf_counter_ns`.
        """
        for task, notice in due_notices(self._service.clock, self.waiting.values(), now_ns):
            self._traffic.notices += 1
            yield task.envelope, notice

    def shut_down(self) -> list[tuple[Envelope, bytes]]:
        """The refusals of what was not begun. What the worker is at still comes from `finished`.

        From here on a slow request is refused; what takes no time is answered to the end.
        """
        self._shutting_down = True
        left = self._worker.abandon()
        for task in left:
            self._forget(task)
        return [(task.envelope, self._service.refuse_task(task, _shutting_down())) for task in left]

    def _is_at_work(self, envelope: Envelope, request: Request | Head) -> bool:
        """Whether this is one more try of a request that waits, whose reply answers this one too."""
        return bool(request.retry) and any(self._waiting(envelope, request.id))

    def _waiting(self, envelope: Envelope, request_id: int | None) -> Iterator[Task]:
        """The tasks of one client that wait under this id."""
        return (task for task in self.waiting.values() if task.envelope == envelope and task.head.id == request_id)

    def _cancel(self, envelope: Envelope, request_id: int) -> None:
        """Work that nobody waits for is not begun, or stopped where that can be done."""
        self._traffic.cancelled += 1
        meant = [*self._waiting(envelope, request_id)]
        if meant:
            self._cancel_tasks(meant)

    def _cancel_tasks(self, meant: list[Task]) -> None:
        for task in meant:
            task.cancelled = True
        for task in self._worker.cancel(meant):
            self._forget(task)

    def _hand_over(self, task: Task) -> bytes | None:
        """Gives the task to the worker, or the reply that refuses it.

        Raises:
            NotFoundError: It is about a robot that is not there; a worker does not know the names of all others.
        """
        limits, count = self._limits, len(self.waiting)
        if names_robot(task.head.query) and type(task.head.robot) is str:
            self._service.registry.get(task.head.robot)
        if self._shutting_down:
            return self._service.refuse_task(task, _shutting_down())
        own = self._by_peer[task.peer]
        if own >= limits.max_waiting_per_client:
            return self._refuse_busy(task, f"{own} slow requests of this client wait already")
        # one alone may be of any size, or the longest that the transport lets in would never be answered
        if count >= limits.max_waiting or (count and self.waiting_bytes + task.size > limits.max_waiting_bytes):
            return self._refuse_busy(task, f"{count} slow requests wait already")
        self.waiting[id(task)] = task
        self.waiting_bytes += task.size
        self._by_peer[task.peer] += 1
        self._worker.offer(task)
        return None

    @property
    def at_work(self) -> Iterator[Any]:
        """The robots of the tasks that wait, by what may be their names."""
        return (task.head.robot for task in self.waiting.values())

    def _forget(self, task: Task) -> None:
        self._service.registry.use(task.head.robot)
        del self.waiting[id(task)]
        self.waiting_bytes -= task.size
        self._by_peer[task.peer] -= 1
        if not self._by_peer[task.peer]:
            del self._by_peer[task.peer]

    def _refuse_busy(self, task: Task, cause: str) -> bytes:
        self._traffic.refused_busy += 1
        error = ResourceExhaustedError(f"the server is busy: {cause}, try again later")
        return self._service.refuse_task(task, error)


def _shutting_down() -> DynError:
    return UnavailableError("the server is shutting down")
