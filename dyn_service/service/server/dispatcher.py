"""Decides what happens to a request: an answer at once, a queue for the workers, or a refusal; sends compile notices.

No socket and no thread of its own: `app` passes in events and sends what is returned.

    answer(envelope, payload, received_ns)    a request arrived: returns its reply, or None if it waits for a worker
    finished()                                the executor has results: yields replies
    notices(now_ns)                           periodically: yields notices for clients that wait for a kernel
    gone(peer)                                a connection closed: drops or stops its requests
    shut_down()                               returns refusals of requests not started; later ones are refused

Each request gets one reply, from `answer`, `finished` or `shut_down`; its notices come before the reply.
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
from dyn_service.service.protocol.messages import CANCEL, Request, RequestHead, has_more_objects, peek, read_cancel
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.answering.jobs import Envelope, Task, due_notices
from dyn_service.service.server.answering.plan import SLOW_BYTES
from dyn_service.service.server.answering.service import Service, names_robot

_LOG = logging.getLogger(__name__)


_SCANNED_OBJECTS = 2000
"""Number of MessagePack objects of a long request that are scanned for its head; takes about 0.4 ms."""

_MANY_OBJECTS = 500
"""A request with more objects is treated as long, because each takes some microseconds to read and check."""


class Executor(Protocol):
    """Computes slow requests: `pool.ThreadWorker`, `pool.Pool`."""

    def offer(self, task: Task) -> None:
        """Queues the task."""

    def collect(self) -> Iterator[tuple[Task, bytes | memoryview]]:
        """Yields tasks finished since the last call, with their replies."""

    def abandon(self) -> list[Task]:
        """Returns the tasks not started, and starts no more."""

    def cancel(self, meant: Iterable[Task]) -> list[Task]:
        """Drops waiting tasks and stops running ones where possible; returns those dropped."""

    def tick(self, now_ns: int) -> None:
        """Stops tasks past their limits, where possible."""


class Dispatcher:
    """Dispatches requests. All calls come from the server's thread.

    Args:
        service: Computes the answers.
        worker: Computes slow requests.
    """

    def __init__(self, service: Service, worker: Executor) -> None:
        self._service = service
        self._worker = worker
        self._limits = service.limits
        self._traffic = service.metrics.traffic
        self._shutting_down = False
        self.waiting: dict[int, Task] = {}
        """Tasks whose replies the executor still owes, by identity."""
        self.waiting_bytes = 0
        """Bytes of their requests."""
        self._by_peer: Counter[Any] = Counter()

    def answer(
        self, envelope: Envelope, payload: bytes | memoryview, received_ns: int, caller: Caller | None = None
    ) -> bytes | memoryview | None:
        """Returns the reply to a request; None if it waits, or if it is a cancel or a retry of a waiting request.

        Args:
            envelope: Where the reply goes.
            payload: The request's bytes, unchanged until it is answered.
            received_ns: Its arrival, on the clock of `time.perf_counter_ns`.
            caller: Its sender; None is a process of this machine without a key.
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
            if len(payload) > _MANY_OBJECTS and has_more_objects(payload, _MANY_OBJECTS):
                return self._hand_over_unread(envelope, payload, received_ns, caller)
            job = service.accept(payload, received_ns, caller=caller)
            if isinstance(job, bytes):
                return job
            if self._is_waiting(envelope, job.request):
                return None
            has_kernel = service.has_kernel(job)
            if has_kernel and not job.slow and (reply := service.answer_at_once(job)) is not None:
                return reply
            plan = job.plan
            kernel = None if plan is None else plan.kernel(job.inputs, job.options)
            long = plan is None or job.verify or not has_kernel
            return self._hand_over(Task(envelope, payload, received_ns, peek(payload), job, long, caller, kernel))
        except DynError as error:
            return service.refuse_unread(payload, error)
        except Exception:  # noqa: BLE001  # a defect: the client gets an error reply
            _LOG.exception("a request failed")
            return service.refuse_unread(payload, InternalError("the server failed to answer; see its log"))

    def _hand_over_unread(
        self, envelope: Envelope, payload: bytes | memoryview, received_ns: int, caller: Caller | None
    ) -> bytes | None:
        """As `_hand_over`, for a request too long to read in this thread."""
        head = peek(payload, _SCANNED_OBJECTS)
        if head.query == CANCEL and head.id is not None:
            self._cancel(envelope, head.id)
            return None
        if self._is_waiting(envelope, head):
            return None
        long = head.query not in QUERIES
        return self._hand_over(Task(envelope, payload, received_ns, head, long=long, caller=caller))

    def refuse_frames(self, count: int) -> bytes:
        """Returns the refusal of a message with an invalid number of frames."""
        found = f"a message must be one frame, or an empty one and one more, found {count}"
        return self._service.refuse(RequestHead(), InvalidArgumentError(found))

    def gone(self, peer: Any) -> None:
        """Drops or stops the requests of a peer whose connection has ended."""
        meant = [task for task in self.waiting.values() if task.peer[1] is peer]
        if meant:
            self._cancel_tasks(meant)

    def finished(self) -> Iterator[tuple[Envelope, bytes | memoryview]]:
        """Yields the replies that the executor has finished."""
        for task, reply in self._worker.collect():
            self._forget(task)
            yield task.envelope, reply

    def notices(self, now_ns: int) -> Iterator[tuple[Envelope, bytes]]:
        """Yields the notices due to clients that wait for a kernel.

        Args:
            now_ns: The time, on the clock of `time.perf_counter_ns`.
        """
        for task, notice in due_notices(self._service.clock, self.waiting.values(), now_ns):
            self._traffic.notices += 1
            yield task.envelope, notice

    def shut_down(self) -> list[tuple[Envelope, bytes]]:
        """Returns refusals of the requests not started. Running ones are still returned by `finished`.

        From now on slow requests are refused; fast ones are answered until the end.
        """
        self._shutting_down = True
        left = self._worker.abandon()
        for task in left:
            self._forget(task)
        return [(task.envelope, self._service.refuse_task(task, _shutting_down())) for task in left]

    def _is_waiting(self, envelope: Envelope, request: Request | RequestHead) -> bool:
        """Returns whether this is a retry of a waiting request, whose reply answers both."""
        return bool(request.retry) and any(self._waiting(envelope, request.id))

    def _waiting(self, envelope: Envelope, request_id: int | None) -> Iterator[Task]:
        """Yields a client's waiting tasks with this id."""
        return (task for task in self.waiting.values() if task.envelope == envelope and task.head.id == request_id)

    def _cancel(self, envelope: Envelope, request_id: int) -> None:
        """Drops or stops a request that its client cancelled."""
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
        """Gives the task to the executor, or returns its refusal.

        Raises:
            NotFoundError: Its robot does not exist; a worker could not name the existing ones.
        """
        limits, count = self._limits, len(self.waiting)
        if names_robot(task.head.query) and type(task.head.robot) is str:
            self._service.registry.get(task.head.robot)
        if self._shutting_down:
            return self._service.refuse_task(task, _shutting_down())
        own = self._by_peer[task.peer]
        if own >= limits.max_waiting_per_client:
            return self._refuse_busy(task, f"{own} slow requests of this client wait already")
        # a single task may have any size, or the longest valid request would never be answered
        if count >= limits.max_waiting or (count and self.waiting_bytes + task.size > limits.max_waiting_bytes):
            return self._refuse_busy(task, f"{count} slow requests wait already")
        self.waiting[id(task)] = task
        self.waiting_bytes += task.size
        self._by_peer[task.peer] += 1
        self._worker.offer(task)
        return None

    @property
    def robots_in_use(self) -> Iterator[Any]:
        """Values of `robot` in the requests that wait."""
        return (task.head.robot for task in self.waiting.values())

    def _forget(self, task: Task) -> None:
        self._service.registry.touch(task.head.robot)
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
