"""A request that was read and checked: what `service` makes of it, and whoever answers it is given.

----
A request that waits: for the worker thread, or for a worker process.

----
When a request's time is up, and what is said then: it was not begun, it was stopped, or its asker has given up.

----
The requests that wait for a worker, and whose turn it is: that peer's whose last one was begun longest ago.

Short requests and long ones stand in a line each, so that whoever may take only short ones need not look through the
others. Of peers that have nothing waiting no more is kept than a number, and that not for ever: a peer is a connection,
with all that it holds.


----
When workers make kernels: for what those who wait are told, and for what is off their deadlines.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

from dyn_service.errors import DeadlineExceededError
from dyn_service.model.order import Order
from dyn_service.service.protocol.defaults import NOTICE_PERIOD_MS
from dyn_service.service.protocol.messages import VERSION, Head, Notice, Request, Waiting, encode
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.answering.finite import NotFinite
from dyn_service.service.server.answering.plan import Plan

if TYPE_CHECKING:
    from dyn_service.api.spec import Variant
    from dyn_service.service.server.administration.access import Caller


_NOTHING: Mapping[str, Any] = {}


class Job(msgspec.Struct, gc=False):
    """A request that was read and checked.

    plan: None for a query about the server itself, and for what takes long by itself. excused_ns: what of the time
    since its receipt does not count against its deadline. slow: it is no work for the thread that serves. caller: who
    asks; None is a process of this machine that the endpoint knows no more of. order: that of the joints in its arrays;
    None is the robot's.
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
    """A number of the answer, once there is one, that may not leave the server."""


Envelope = tuple[Any, bool]
"""Where a reply goes: the peer, and whether it is a REQ socket, which wants an empty frame first."""


@dataclass(slots=True, eq=False)
class Task:
    """A request that waits.

    envelope: where its reply goes. payload: its bytes. received_ns: when it came in. head: who asks what. job: the
    request, read and checked; None where reading it takes too long for the thread that serves. long: it may take
    seconds: it computes at length, or needs a kernel that is not there. caller: as `Job.caller`. kernel: which one it
    needs, where that is known. next_notice_ns: no earlier is it told again that it waits. tries: how many workers were
    lost to it. unread: and how many before they read it. waits_for_kernel: whether it may be a kernel in the making
    that it waits for. given_up: nobody waits for it any more. answered: it was refused at its
    deadline, while its worker still makes a kernel.
    """

    envelope: Envelope
    payload: bytes | memoryview
    received_ns: int
    head: Head
    job: Job | None = None
    long: bool = False
    caller: Caller | None = None
    kernel: tuple[str, Variant, bool] | None = None
    next_notice_ns: int = 0
    tries: int = 0
    unread: int = 0
    waits_for_kernel: bool = True
    cancelled: bool = False
    answered: bool = False

    @property
    def peer(self) -> Any:
        """Who sent it."""
        return self.envelope[0]

    @property
    def size(self) -> int:
        """Bytes of the request."""
        return len(self.payload)


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


def not_started_error(request: Request | Head, waited_ns: float) -> DeadlineExceededError:
    """The deadline passed before the computation began, so many nanoseconds after the request's receipt."""
    return DeadlineExceededError(
        f"{request.query} was to begin within {request.deadline_ms:g} ms of its receipt, found "
        f"{waited_ns / 1e6:.1f} ms gone by",
        path="deadline_ms",
    )


def stopped_error(request: Request | Head, ran_ns: float) -> DeadlineExceededError:
    """The deadline passed while the computation ran; it was stopped so many nanoseconds after the request's receipt."""
    return DeadlineExceededError(
        f"{request.query} was to end within {request.deadline_ms:g} ms of its receipt, and was stopped after "
        f"{ran_ns / 1e6:.1f} ms",
        path="deadline_ms",
    )


def cancelled_error() -> DeadlineExceededError:
    """The asker sent a `cancel`: it waits no more, and drops whatever is said to it."""
    return DeadlineExceededError("the request was cancelled by its client")


_MOST_REMEMBERED = 4096
"""Of so many peers it is known when they had their last turn; more than there are connections."""

_Line = dict[Any, OrderedDict[Task, int]]
"""By peer, what it has waiting in the order it is begun in, with the number it came under."""


class Schedule:
    """What waits, and what is next."""

    def __init__(self) -> None:
        self._short: _Line = {}
        self._long: _Line = {}
        self._came = count()
        self._turn = 0
        self._before = count(-1, -1)
        self._last_turns: OrderedDict[int, int] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Task]:
        return (task for line in (self._short, self._long) for own in line.values() for task in own)

    def add(self, task: Task) -> None:
        """Adds the task behind those of its peer. A new peer starts at the current turn: reconnecting gains nothing."""
        if hash(task.peer) not in self._last_turns:
            self._remember(task.peer, self._turn)
        self._line(task).setdefault(task.peer, OrderedDict())[task] = next(self._came)
        self._count += 1

    def put_back(self, task: Task) -> None:
        """Has a task wait again that was begun before: it is next."""
        self.add(task)
        self._line(task)[task.peer].move_to_end(task, last=False)
        self._remember(task.peer, next(self._before))

    def discard(self, task: Task) -> bool:
        """Has it wait no longer; whether it did."""
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
        """Takes out the task whose turn it is; None: there is none, or none but long ones, which may not be begun."""
        lines = (self._short, self._long) if long else (self._short,)
        firsts = [self._first(line) for line in lines if line]
        if not firsts:
            return None
        *_, task = min(firsts, key=lambda first: first[:2])
        self.charge(task.peer)
        self.discard(task)
        return task

    def charge(self, peer: Any) -> None:
        """Counts one more turn of the peer: peers that wait, or that ask before the next turn, go first."""
        self._turn += 1
        self._remember(peer, self._turn)

    def _first(self, line: _Line) -> tuple[int, int, Task]:
        """Whose turn it is in a line: when its peer had the last one, the number it came under, and itself."""
        last = self._last_turns.get
        turn, own = min(((last(hash(peer), 0), own) for peer, own in line.items()), key=lambda each: each[0])
        task, came = next(iter(own.items()))
        return turn, came, task

    def _remember(self, peer: Any, turn: int) -> None:
        number = hash(peer)
        self._last_turns[number] = turn
        self._last_turns.move_to_end(number)
        if len(self._last_turns) > _MOST_REMEMBERED:
            self._last_turns.popitem(last=False)

    def _line(self, task: Task) -> _Line:
        return self._long if task.long else self._short


_KEPT = 512
"""So many of the last kernels are remembered: more than one request makes."""

_NOTICE_AFTER_NS = 20_000_000
"""A kernel that takes no longer, such as one from disk, is not worth a word to those who wait for it."""


class CompileClock:
    """Notes since when which kernels are made, and when others were. Their makers write it, every thread reads it."""

    def __init__(self) -> None:
        self._making: dict[int, tuple[str, int]] = {}
        self._past = _Past()

    @property
    def current(self) -> tuple[str, int] | None:
        """The kernel that has been in the making for longest, and since when, by `time.perf_counter_ns`."""
        return min(tuple(self._making.values()), key=lambda each: each[1], default=None)

    def begun(self, kernel: str, maker: int = 0) -> None:
        """The making of a kernel begins: see `kernels.making.Listener`. A maker makes one at a time."""
        self._making[maker] = (kernel, perf_counter_ns())

    def ended(self, maker: int = 0) -> None:
        """It is over."""
        made = self._making.pop(maker, None)
        if made is not None:
            self._past = self._past.and_then(made[1], perf_counter_ns())

    def forget(self) -> None:
        """Forgets what is past."""
        self._past = _Past()

    def within_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of that time went into kernels; what several makers do at once counts once."""
        past, current = self._past, self.current
        since = end_ns if current is None else max(begin_ns, min(current[1], end_ns))
        return max(0, past.until(since) - past.until(begin_ns)) + end_ns - since


class _Past:
    """Spans of time, apart and in order, and how much lies before each. It stays as it is: threads may read it."""

    def __init__(self, spans: tuple[tuple[int, int, int], ...] = ()) -> None:
        self._spans = spans  # begin, end, and how much lies before

    def and_then(self, begin_ns: int, end_ns: int) -> _Past:
        """These and one more, which ends last. Those that it overlaps become one with it."""
        kept = len(self._spans)
        while kept and self._spans[kept - 1][1] >= begin_ns:
            kept -= 1
            begin_ns = min(begin_ns, self._spans[kept][0])
        before = self._spans[kept - 1][2] + self._spans[kept - 1][1] - self._spans[kept - 1][0] if kept else 0
        return _Past((*self._spans[max(0, kept + 1 - _KEPT) : kept], (begin_ns, end_ns, before)))

    def until(self, now_ns: int) -> int:
        """How much of the time up to then they take."""
        number = bisect_right(self._spans, now_ns, key=lambda span: span[0])
        if not number:
            return self._spans[0][2] if self._spans else 0
        begin_ns, end_ns, before = self._spans[number - 1]
        return before + min(now_ns, end_ns) - begin_ns


def due_notices(clock: CompileClock, tasks: Iterable[Task], now_ns: int) -> Iterator[tuple[Task, bytes]]:
    """The notices that are due, to those who wait for a kernel: their own, or one of a request before theirs."""
    current = clock.current
    if current is None or now_ns - current[1] < _NOTICE_AFTER_NS:
        return
    kernel, since_ns = current
    for task in [*tasks]:  # who is told may turn out to be gone, and what he waits for with him
        if now_ns < task.next_notice_ns or not task.waits_for_kernel:
            continue
        head = task.head
        _, is_req = task.envelope
        if head.id is None or not head.compile_wait_ms or is_req:  # a REQ socket takes one message only
            task.next_notice_ns = sys.maxsize
            continue
        task.next_notice_ns = now_ns + int(NOTICE_PERIOD_MS * 1e6)
        waiting = Waiting("compiling", f"{kernel} is being compiled", (now_ns - since_ns) / 1e6, NOTICE_PERIOD_MS)
        yield task, encode(Notice(VERSION, head.id, waiting))
