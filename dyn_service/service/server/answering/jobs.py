"""Requests that were read or wait: jobs, tasks, deadlines, the fair queue of tasks, and compile notices."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from operator import itemgetter
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

from dyn_service.api.lists import names_queries
from dyn_service.errors import DeadlineExceededError
from dyn_service.model.order import Order
from dyn_service.service.protocol.limits import NOTICE_PERIOD_MS
from dyn_service.service.protocol.messages import VERSION, Notice, Progress, Request, RequestHead, encode
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.answering.finite import NotFinite
from dyn_service.service.server.answering.plan import Plan

if TYPE_CHECKING:
    from dyn_service.api.spec import Variant


_NOTHING: Mapping[str, Any] = {}


class Job(msgspec.Struct, gc=False):
    """A request that was read and checked.

    plan: None for queries about the server itself and for computations. excused_ns: time since receipt that does not
    count against the deadline. slow: whether it is too slow for the server's thread. caller: its sender; None is a
    process of this machine without a key. order: the order of joints in its arrays; None is the robot's.
    """

    request: Request
    plan: Plan | None
    received_ns: int
    excused_ns: int = 0
    inputs: Mapping[str, Any] = _NOTHING
    options: Mapping[str, Any] = _NOTHING
    slow: bool = False
    verify: bool = False
    caller: Caller | None = None
    order: Order | None = None
    not_finite: NotFinite | None = None
    """A number of the answer that is not finite, once found."""


Envelope = tuple[Any, bool]
"""Where a reply goes: the peer, and whether it is a REQ socket, which needs an empty frame first."""


@dataclass(slots=True, eq=False)
class Task:
    """A request that waits for a worker.

    payload: its bytes. received_ns: its arrival, on the clock of `time.perf_counter_ns`. head: its id, query and
    robot. job: the request as read; None if reading it takes too long for the server's thread. long: whether it may
    take seconds, because it computes at length or needs a missing kernel. caller: as `Job.caller`. kernel: the
    kernel that answers it, if known. needs_kernel: whether that is still missing; the worker then makes it even
    after the deadline. next_notice_ns: earliest time of its next notice. losses: workers lost while computing it.
    unread_losses: workers lost before they read it. waits_for_kernel: whether it may wait for a kernel being
    compiled. cancelled: whether the client no longer waits. is_refused: whether it was refused while its worker
    still has it.
    """

    envelope: Envelope
    payload: bytes | memoryview
    received_ns: int
    head: RequestHead
    job: Job | None = None
    long: bool = False
    caller: Caller | None = None
    kernel: tuple[str, Variant, bool] | None = None
    needs_kernel: bool = False
    next_notice_ns: int = 0
    losses: int = 0
    unread_losses: int = 0
    waits_for_kernel: bool = True
    cancelled: bool = False
    is_refused: bool = False

    @property
    def peer(self) -> Any:
        """The peer that sent it."""
        return self.envelope[0]

    @property
    def size(self) -> int:
        """Bytes of the request."""
        return len(self.payload)


_MS = 1_000_000


def due_ns(request: Request | RequestHead, received_ns: int, excused_ns: float) -> float | None:
    """Returns the time of a request's deadline, on the clock of its receipt; None if it has no deadline.

    `excused_ns` is the time since its receipt spent compiling kernels; as much of it as the request allows is added.
    """
    if not request.deadline_ms:
        return None
    allowed_ns = (request.compile_wait_ms or 0.0) * _MS
    return received_ns + request.deadline_ms * _MS + min(excused_ns, allowed_ns)


_MAX_PACES = 1024
# after which a request is expected to take half of the time, so that it is tried again
_HALF_LIFE_NS = 1e9


class Paces:
    """Predicts how long a worker takes for a batch, from the last ones of the same peer, robot and kernel.

    The least time, in proportion to the bytes of the request: at most what the last request took, or at least what one
    took that was given up. It halves every second, because the machine may have been busy. Of computations such as
    `simulate` nothing is predicted: their work does not grow with their bytes.
    """

    def __init__(self) -> None:
        # ns per byte, and when it was measured
        self._known: dict[tuple[Any, ...], tuple[float, int]] = {}

    def note(self, task: Task, took_ns: int, now_ns: int, *, finished: bool) -> None:
        """Notes the time of a worker for a task. finished: whether the task was computed; False: it was given up."""
        if not names_queries(task.head.query):
            return
        kind, pace = self._kind(task), took_ns / task.size
        if kind in self._known:
            pace = min(pace, self._known[kind][0]) if finished else max(pace, self.least_ns(task, now_ns) / task.size)
        elif len(self._known) >= _MAX_PACES:
            del self._known[next(iter(self._known))]
        self._known[kind] = pace, now_ns

    def least_ns(self, task: Task, now_ns: int) -> float:
        """Returns the least time that a task is expected to take; 0 if nothing is known."""
        pace, then_ns = self._known.get(self._kind(task), (0.0, now_ns))
        return task.size * pace * math.exp2((then_ns - now_ns) / _HALF_LIFE_NS)

    @staticmethod
    def _kind(task: Task) -> tuple[Any, ...]:
        return hash(task.peer), task.head.query, str(task.head.robot), task.kernel


class DueTimes:
    """Tasks by due time. The cost of a query does not depend on their number."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._tasks: dict[int, Task] = {}
        self._numbers: dict[Task, int] = {}
        self._count = count()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: Task, at_ns: float) -> None:
        """Adds or moves a task."""
        self.discard(task)
        number = next(self._count)
        self._numbers[task] = number
        self._tasks[number] = task
        heappush(self._heap, (at_ns, number))

    def discard(self, task: Task) -> bool:
        """Removes the task; returns whether it was present."""
        number = self._numbers.pop(task, None)
        if number is None:
            return False
        del self._tasks[number]
        if len(self._heap) > 2 * len(self._tasks) + 64:  # most entries are of removed tasks
            self._heap = [entry for entry in self._heap if entry[1] in self._tasks]
            heapify(self._heap)
        return True

    def pop(self, now_ns: int) -> Iterator[Task]:
        """Removes and yields the tasks that are due."""
        while self._heap and self._heap[0][0] <= now_ns:
            task = self._tasks.pop(heappop(self._heap)[1], None)
            if task is not None:
                del self._numbers[task]
                yield task


def late_error(request: Request | RequestHead, after_ns: float, *, started: bool) -> DeadlineExceededError:
    """Returns the error for a deadline that passed before the computation started, or at which it was stopped."""
    must, was = ("end", "and was stopped after") if started else ("start", "but waited")
    return DeadlineExceededError(
        f"{request.query} must {must} within {request.deadline_ms:g} ms of its receipt, {was} {after_ns / 1e6:.1f} ms",
        path="deadline_ms",
    )


def hopeless_error(request: Request | RequestHead, least_ns: float) -> DeadlineExceededError:
    """Returns the error for a request that was not started, because it cannot end by its deadline."""
    return DeadlineExceededError(
        f"{request.query} must end within {request.deadline_ms:g} ms of its receipt, but is expected to take at least "
        f"{least_ns / 1e6:.1f} ms, as the last one did: send fewer states, or allow more time",
        path="deadline_ms",
    )


def cancelled_error() -> DeadlineExceededError:
    """Returns the error for a request that its client cancelled; the client ignores the reply."""
    return DeadlineExceededError("the request was cancelled by its client")


_MAX_REMEMBERED = 4096  # number of peers whose last turn is stored; more than there are connections

_Line = dict[Any, OrderedDict[Task, int]]
"""By peer, its waiting tasks in order, with their arrival numbers."""


class Schedule:
    """Queue of tasks for workers, fair between peers: next is the peer whose last task was started longest ago.

    Short and long tasks have separate queues, so that a worker for short tasks need not search. Of peers without
    waiting tasks only a number is stored, because a peer object keeps its connection alive.
    """

    def __init__(self) -> None:
        self._short: _Line = {}
        self._long: _Line = {}
        self._arrivals = count()
        self._turn = 0
        self._earlier_turns = count(-1, -1)
        self._last_turns: OrderedDict[int, int] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Task]:
        return (task for line in (self._short, self._long) for tasks in line.values() for task in tasks)

    def add(self, task: Task) -> None:
        """Appends the task to its peer's. A new peer starts at the current turn, so that reconnecting gains nothing."""
        if hash(task.peer) not in self._last_turns:
            self._remember(task.peer, self._turn)
        self._line(task).setdefault(task.peer, OrderedDict())[task] = next(self._arrivals)
        self._count += 1

    def put_back(self, task: Task) -> None:
        """Queues a task again that was started before; it is next."""
        self.add(task)
        self._line(task)[task.peer].move_to_end(task, last=False)
        self._remember(task.peer, next(self._earlier_turns))

    def discard(self, task: Task) -> bool:
        """Removes the task; returns whether it was queued."""
        line = self._line(task)
        if task not in line.get(task.peer, ()):
            return False
        del line[task.peer][task]
        if not line[task.peer]:
            del line[task.peer]
        self._count -= 1
        if not self._count:
            self._last_turns.clear()
        return True

    def take(self, *, long: bool) -> Task | None:
        """Removes and returns the next task, or None; a long one only if `long`."""
        lines = (self._short, self._long) if long else (self._short,)
        firsts = [self._first(line) for line in lines if line]
        if not firsts:
            return None
        *_, task = min(firsts, key=lambda first: first[:2])
        self.charge(task.peer)
        self.discard(task)
        return task

    def charge(self, peer: Any) -> None:
        """Counts one more turn of the peer; other peers that wait go first."""
        self._turn += 1
        self._remember(peer, self._turn)

    def _first(self, line: _Line) -> tuple[int, int, Task]:
        """Returns the next task of a queue: its peer's last turn, its arrival number, and the task."""
        last = self._last_turns.get
        turn, tasks = min(((last(hash(peer), 0), tasks) for peer, tasks in line.items()), key=itemgetter(0))
        task, number = next(iter(tasks.items()))
        return turn, number, task

    def _remember(self, peer: Any, turn: int) -> None:
        number = hash(peer)
        self._last_turns[number] = turn
        self._last_turns.move_to_end(number)
        if len(self._last_turns) > _MAX_REMEMBERED:
            self._last_turns.popitem(last=False)

    def _line(self, task: Task) -> _Line:
        return self._long if task.long else self._short


_KEPT = 512  # number of compilations remembered; one request needs fewer
# no notices are sent for kernels that take less, such as those loaded from disk
_NOTICE_AFTER_NS = 20_000_000


class CompileClock:
    """Times of current and past compilations of kernels. Compilers write it, any thread may read it."""

    def __init__(self) -> None:
        self._making: dict[int, tuple[str, int]] = {}
        self._compilations = _Past()

    @property
    def current(self) -> tuple[str, int] | None:
        """The kernel compiled for longest and its start, on the clock of `time.perf_counter_ns`."""
        return min(tuple(self._making.values()), key=itemgetter(1), default=None)

    def begun(self, kernel: str, maker: int = 0) -> None:
        """The compilation of a kernel starts; see `kernels.compile_events.Listener`. A maker compiles one at a time."""
        self._making[maker] = (kernel, perf_counter_ns())

    def ended(self, maker: int = 0) -> None:
        """The compilation has ended."""
        compilation = self._making.pop(maker, None)
        if compilation is not None:
            self._compilations = self._compilations.and_then(compilation[1], perf_counter_ns())

    def forget(self) -> None:
        """Forgets past compilations."""
        self._compilations = _Past()

    def within_ns(self, begin_ns: int, end_ns: int) -> int:
        """Returns how much of an interval was spent compiling; simultaneous compilations count once."""
        compilations, current = self._compilations, self.current
        uncounted_ns = end_ns if current is None else max(begin_ns, min(current[1], end_ns))
        return max(0, compilations.until(uncounted_ns) - compilations.until(begin_ns)) + end_ns - uncounted_ns


class _Past:
    """Disjoint sorted intervals with the sum of those before each. Immutable, so that threads may read it."""

    def __init__(self, spans: tuple[tuple[int, int, int], ...] = ()) -> None:
        self._spans = spans  # begin, end, total length before

    def and_then(self, begin_ns: int, end_ns: int) -> _Past:
        """Returns these intervals and one more, which ends last; overlapping ones are merged."""
        count = len(self._spans)
        while count and self._spans[count - 1][1] >= begin_ns:
            count -= 1
            begin_ns = min(begin_ns, self._spans[count][0])
        length_before = (
            self._spans[count - 1][2] + self._spans[count - 1][1] - self._spans[count - 1][0] if count else 0
        )
        return _Past((*self._spans[max(0, count + 1 - _KEPT) : count], (begin_ns, end_ns, length_before)))

    def until(self, now_ns: int) -> int:
        """Returns the total length of the intervals up to a time."""
        number = bisect_right(self._spans, now_ns, key=lambda span: span[0])
        if not number:
            return self._spans[0][2] if self._spans else 0
        begin_ns, end_ns, length_before = self._spans[number - 1]
        return length_before + min(now_ns, end_ns) - begin_ns


def due_notices(clock: CompileClock, tasks: Iterable[Task], now_ns: int) -> Iterator[tuple[Task, bytes]]:
    """Yields the notices due to clients that wait for a kernel, their own or one needed by a request before theirs.

    A request that needs a kernel may also wait for the worker that makes it.
    """
    current = clock.current
    # a copy: sending a notice may reveal that a peer is gone and remove its tasks
    for task in [*tasks]:
        head = task.head
        text, since_ns = f"{head.query} of robot '{head.robot}' waits for a worker to make its kernel", task.received_ns
        if current is not None:
            text, since_ns = f"{current[0]} is being loaded or compiled", current[1]
        waits = task.needs_kernel or (task.waits_for_kernel and current is not None)
        if not waits or now_ns < task.next_notice_ns or now_ns - since_ns < _NOTICE_AFTER_NS:
            continue
        _, is_req = task.envelope
        # a REQ socket takes one message only
        if head.id is None or not head.compile_wait_ms or is_req:
            task.next_notice_ns = sys.maxsize
            continue
        task.next_notice_ns = now_ns + int(NOTICE_PERIOD_MS * 1e6)
        waiting = Progress("compiling", text, (now_ns - since_ns) / 1e6, NOTICE_PERIOD_MS)
        yield task, encode(Notice(VERSION, head.id, waiting))
