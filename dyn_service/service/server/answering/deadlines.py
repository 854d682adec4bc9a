"""When a request's time is up, and what is said then: it was not begun, it was stopped, or its asker has given up."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from dyn_service.errors import DeadlineExceededError
from dyn_service.service.protocol.messages import Head, Request
from dyn_service.service.server.answering.task import Task

_MS = 1_000_000


def due_ns(request: Request | Head, received_ns: int, excused_ns: float) -> float | None:
    """When the request's time is up, by the clock of its receipt; None: never.

    Args:
        request: Says how long it may take, and how much longer where it waits for kernels.
        received_ns: When it came in.
        excused_ns: What of the time since then went into kernels.
    """
    if not request.deadline_ms:
        return None
    allowed_ns = (request.compile_wait_ms or 0.0) * _MS
    return received_ns + request.deadline_ms * _MS + min(excused_ns, allowed_ns)


class DueTimes:
    """Tasks by when they are to be looked at. To ask whether one is due costs the same however many there are."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._tasks: dict[int, Task] = {}
        self._numbers: dict[Task, int] = {}
        self._count = count()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: Task, at_ns: float) -> None:
        """Has the task looked at then."""
        self.discard(task)
        number = next(self._count)
        self._numbers[task] = number
        self._tasks[number] = task
        heappush(self._heap, (at_ns, number))

    def discard(self, task: Task) -> bool:
        """Has it not looked at; whether it was to be."""
        number = self._numbers.pop(task, None)
        if number is None:
            return False
        del self._tasks[number]
        if len(self._heap) > 2 * len(self._tasks) + 64:  # mostly of those that are done
            self._heap = [entry for entry in self._heap if entry[1] in self._tasks]
            heapify(self._heap)
        return True

    def pop(self, now_ns: int) -> Iterator[Task]:
        """Takes out those that are due."""
        while self._heap and self._heap[0][0] <= now_ns:
            task = self._tasks.pop(heappop(self._heap)[1], None)
            if task is not None:
                del self._numbers[task]
                yield task


def not_begun(request: Request | Head, waited_ns: float) -> DeadlineExceededError:
    """The deadline passed before the computation began, so many nanoseconds after the request's receipt."""
    return DeadlineExceededError(
        f"{request.query} was to begin within {request.deadline_ms:g} ms of its receipt, found "
        f"{waited_ns / 1e6:.1f} ms gone by",
        path="deadline_ms",
    )


def stopped(request: Request | Head, ran_ns: float) -> DeadlineExceededError:
    """The deadline passed while the computation ran; it was stopped so many nanoseconds after the request's receipt."""
    return DeadlineExceededError(
        f"{request.query} was to end within {request.deadline_ms:g} ms of its receipt, and was stopped after "
        f"{ran_ns / 1e6:.1f} ms",
        path="deadline_ms",
    )


def given_up() -> DeadlineExceededError:
    """The asker sent a `cancel`: it waits no more, and drops whatever is said to it."""
    return DeadlineExceededError("the request was cancelled by its client")
