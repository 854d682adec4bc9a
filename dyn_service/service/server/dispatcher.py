"""Which requests are answered at once, in microseconds, and which by a worker. No socket and no thread.

`Server` passes in messages and sends what is returned. Each request gets one reply, from `answer`, `finished` or
`shut_down`, or an error if `answer` raises; notices come before the reply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from dyn_service.api.lists import names_queries
from dyn_service.errors import DynError, InvalidArgumentError, ResourceExhaustedError, UnavailableError
from dyn_service.service.protocol.messages import CANCEL, Request, RequestHead, has_more_objects, peek, read_cancel
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.answering.jobs import Envelope, Task, due_notices
from dyn_service.service.server.answering.plan import SLOW_BYTES
from dyn_service.service.server.answering.service import Service, names_robot
from dyn_service.service.server.workers.pool import Executor

# MessagePack objects of a long request that are scanned for its head; takes about 0.4 ms
_SCANNED_OBJECTS = 2000
# a request with more is treated as long, because each takes some microseconds to read and check
_MANY_OBJECTS = 500


class Dispatcher:
    """Dispatches requests. All calls come from the server's thread."""

    def __init__(self, service: Service, worker: Executor) -> None:
        self._service = service
        self._worker = worker
        self._limits = service.limits
        self._traffic = service.metrics.traffic
        self._shutting_down = False
        # tasks whose replies the executor still owes, by identity
        self.waiting: dict[int, Task] = {}
        self.waiting_bytes = 0  # bytes of their requests
        self._by_peer: Counter[Any] = Counter()

    def answer(
        self, envelope: Envelope, payload: bytes | memoryview, received_ns: int, caller: Caller | None = None
    ) -> bytes | memoryview | None:
        """Returns the reply to a request; None if it waits, or if it is a cancel or a retry of a waiting request.

        The payload must not change until the request is answered. For the other arguments see `jobs.Task`.
        """
        service = self._service
        try:
            # not even read here: that takes milliseconds, for which control loops would wait
            if len(payload) > SLOW_BYTES:
                return self._hand_over_unread(envelope, payload, received_ns, caller)
            reply = service.answer_single_state(payload, received_ns)
            if reply is not None:
                return reply
            # behind the fast path, because nearly all messages are requests for one state
            cancelled = read_cancel(payload)
            if cancelled is not None:
                self._cancel(envelope, cancelled)
                return None
            if len(payload) > _MANY_OBJECTS and has_more_objects(payload, _MANY_OBJECTS):
                return self._hand_over_unread(envelope, payload, received_ns, caller)
            job = service.accept(payload, received_ns, caller=caller)
            if isinstance(job, bytes):
                return job
            # a second execution would delay other clients, and its reply would be dropped
            if self._is_waiting(envelope, job.request):
                return None
            has_kernel = service.has_kernel(job)
            if has_kernel and not job.slow and (reply := service.answer_at_once(job)) is not None:
                return reply
            plan = job.plan
            kernel = None if plan is None else plan.kernel(job.inputs, job.options)
            long = plan is None or job.verify or not has_kernel
            missing = plan is not None and not has_kernel
            task = Task(envelope, payload, received_ns, peek(payload), job, long, caller, kernel, needs_kernel=missing)
            return self._hand_over(task)
        except DynError as error:
            return service.refuse(peek(payload), error)

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
        long = not names_queries(head.query)
        return self._hand_over(Task(envelope, payload, received_ns, head, long=long, caller=caller))

    def refuse_frames(self, count: int) -> bytes:
        """Returns the refusal of a message with an invalid number of frames."""
        text = f"a message must be one frame, or an empty one and one more, found {count}"
        return self._service.refuse(RequestHead(), InvalidArgumentError(text))

    def gone(self, peer: Any) -> None:
        """Refuses or stops the requests of a peer whose connection has ended."""
        self._cancel_tasks([task for task in self.waiting.values() if task.peer is peer])

    def finished(self) -> Iterator[tuple[Envelope, bytes | memoryview]]:
        """Yields the replies that the executor has finished."""
        for task, reply in self._worker.collect():
            self._forget(task)
            yield task.envelope, reply

    def notices(self, now_ns: int) -> Iterator[tuple[Envelope, bytes]]:
        """Yields the notices due to clients that wait for a kernel."""
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
        """Refuses or stops a request that its client cancelled."""
        self._traffic.cancelled += 1
        self._cancel_tasks([*self._waiting(envelope, request_id)])

    def _cancel_tasks(self, tasks: list[Task]) -> None:
        for task in tasks:
            task.cancelled = True
        if tasks:
            self._worker.cancel(tasks)

    def _hand_over(self, task: Task) -> bytes | None:
        """Gives the task to the executor, or returns its refusal; raises `NotFoundError` for an unknown robot."""
        limits, count = self._limits, len(self.waiting)
        if names_robot(task.head.query) and type(task.head.robot) is str:
            self._service.registry.get(task.head.robot)
        if self._shutting_down:
            return self._service.refuse_task(task, _shutting_down())
        waiting = self._by_peer[task.peer]
        if waiting >= limits.max_waiting_per_client:
            return self._refuse_busy(task, f"{waiting} slow requests of this client wait already")
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
