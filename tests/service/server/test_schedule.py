"""The queue of tasks: order, deadlines, and costs that do not grow with the number of tasks."""

from __future__ import annotations

import gc
import random
import selectors
import socket
import weakref
from collections import Counter
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import pytest

from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import RequestHead, decode_reply_head
from dyn_service.service.server.answering.jobs import CompileClock, DueTimes, Schedule, Task, due_ns
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.workers.pool import Pool

MS = 1_000_000


class Peer:
    """Stands for a connection; compared by identity."""


def task(peer: Any, *, long: bool = False, received_ns: int = 0, **head: Any) -> Task:
    return Task((("transport", peer), False), b"?", received_ns, RequestHead(**head), long=long)


def taken(schedule: Schedule, *, long: bool = True) -> Iterator[Task]:
    while (next_task := schedule.take(long=long)) is not None:
        yield next_task


def test_peers_take_turns() -> None:
    schedule = Schedule()
    for peer, count in (("greedy", 5), ("modest", 2), ("other", 1)):
        for number in range(count):
            schedule.add(task(peer, id=number, long=number % 2 == 1))
    order = [(queued_task.peer[1], queued_task.head.id) for queued_task in taken(schedule)]
    first = [("greedy", 0), ("modest", 0), ("other", 0), ("greedy", 1), ("modest", 1)]
    assert order == [*first, ("greedy", 2), ("greedy", 3), ("greedy", 4)]
    assert not schedule


def test_single_requests_and_queues_take_turns() -> None:
    schedule = Schedule()
    for _ in range(100):
        schedule.add(task("greedy"))
    seen: Counter[str] = Counter()
    for peer in ("a", "b"):
        schedule.add(task(peer))
    for _ in range(90):
        first_task = schedule.take(long=True)
        assert first_task is not None
        seen[first_task.peer[1]] += 1
        if first_task.peer[1] != "greedy":
            schedule.add(task(first_task.peer[1]))  # it has its answer, and sends another request
    assert seen == {"greedy": 30, "a": 30, "b": 30}


def test_reconnecting_gains_no_turn() -> None:
    schedule = Schedule()
    for _ in range(10):
        schedule.add(task("stays"))
    order: list[str] = []
    for number in range(3):
        schedule.add(task(f"new{number}"))  # the same client over another connection
        while not order or order[-1] != f"new{number}":
            first_task = schedule.take(long=True)
            assert first_task is not None
            order.append(first_task.peer[1])
    assert order == ["stays", "new0", "stays", "new1", "stays", "new2"]


def test_cancelled_work_counts_against_its_client() -> None:
    schedule = Schedule()
    for peer in "aabb":
        schedule.add(task(peer))
    order = []
    for _ in range(2):
        first_task = schedule.take(long=True)
        assert first_task is not None
        order.append(first_task.peer[1])
    schedule.charge(("transport", "a"))  # the first is cancelled: the turns were a, b, a
    schedule.add(task("c"))
    order += [queued_task.peer[1] for queued_task in taken(schedule)]
    assert order == ["a", "b", "b", "a", "c"]


def test_long_tasks_are_not_taken_for_short_workers() -> None:
    schedule = Schedule()
    long, short = task("a", long=True), task("b")
    schedule.add(long)
    schedule.add(short)
    assert [*taken(schedule, long=False)] == [short]
    assert [*schedule] == [long]
    assert [*taken(schedule)] == [long]


def test_put_back_and_discard() -> None:
    schedule = Schedule()
    tasks = [task(peer) for peer in "aabbcc"]
    for queued_task in tasks:
        schedule.add(queued_task)
    first = schedule.take(long=True)
    assert first is tasks[0]
    schedule.put_back(first)
    assert schedule.take(long=True) is first
    assert schedule.discard(tasks[2])
    assert not schedule.discard(tasks[2])
    assert not schedule.discard(first)
    assert {*taken(schedule)} == {tasks[1], tasks[3], tasks[4], tasks[5]}
    assert len(schedule) == 0


def test_disconnected_peers_are_not_kept() -> None:
    schedule = Schedule()
    schedule.add(task("busy", long=True))  # so that the queue is never empty
    peers = [Peer() for _ in range(20)]
    for peer in peers:
        schedule.add(task(peer))
    assert len([*taken(schedule, long=False)]) == 20
    seen = [weakref.ref(peer) for peer in peers]
    del peers, peer
    gc.collect()
    assert not any(reference() for reference in seen)
    assert len(schedule) == 1


def test_memory_of_past_peers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.service.server.answering.jobs._MAX_REMEMBERED", 10)
    schedule = Schedule()
    schedule.add(task("busy", long=True))
    for number in range(100):
        schedule.add(task(number))
        schedule.take(long=False)
    assert len(schedule._last_turns) == 10


def test_due_times_are_returned_when_due() -> None:
    dice, due_times = random.Random(0), DueTimes()
    times = {task(number): dice.randrange(1000) for number in range(200)}
    for queued, due_s in times.items():
        due_times.add(queued, dice.randrange(1000))
        due_times.add(queued, due_s)  # the last time counts
    for queued in [*times][::3]:
        assert due_times.discard(queued)
        assert not due_times.discard(queued)
        del times[queued]
    for now in range(0, 1001, 50):
        expected = {queued for queued, due_s in times.items() if due_s <= now}
        assert {*due_times.pop(now)} == expected
        for queued in expected:
            del times[queued]
    assert not len(due_times)


def test_due_times_of_finished_tasks_are_not_kept() -> None:
    due_times = DueTimes()
    for number in range(10_000):
        queued = task(number)
        due_times.add(queued, 1e18)
        due_times.discard(queued)
    assert len(due_times._heap) < 100
    assert not due_times._tasks
    assert not due_times._numbers


def test_only_the_allowed_compile_time_is_excused() -> None:
    head = RequestHead(deadline_ms=10.0, compile_wait_ms=5.0)
    assert due_ns(head, 7, 0) == 7 + 10 * MS
    assert due_ns(head, 7, 2 * MS) == 7 + 12 * MS
    assert due_ns(head, 7, 50 * MS) == 7 + 15 * MS
    assert due_ns(RequestHead(deadline_ms=10.0), 7, 50 * MS) == 7 + 10 * MS
    assert due_ns(RequestHead(compile_wait_ms=5.0), 7, 0) is None


def test_simultaneous_compilations_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dice, now = random.Random(1), 0
    monkeypatch.setattr("dyn_service.service.server.answering.jobs.perf_counter_ns", lambda: now)
    clock = CompileClock()
    busy: set[int] = set()
    is_compiling: list[bool] = []  # at each time, whether a kernel was being compiled
    while len(is_compiling) < 3000:
        maker = dice.randrange(4)
        if maker in busy:
            clock.ended(maker)
            busy.discard(maker)
        else:
            clock.begun("kernel", maker)
            busy.add(maker)
        pause = dice.randrange(9)
        is_compiling += [bool(busy)] * pause
        now += pause
        begin, end = sorted((dice.randrange(len(is_compiling) + 1), dice.randrange(len(is_compiling) + 1)))
        assert clock.within_ns(begin, now) == sum(is_compiling[begin:now])
        if not busy:
            assert clock.within_ns(begin, end) == sum(is_compiling[begin:end])


def test_the_clock_forgets_the_oldest_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr("dyn_service.service.server.answering.jobs.perf_counter_ns", lambda: now)
    clock = CompileClock()
    for number in range(2000):
        now = 10 * number
        clock.begun("kernel")
        now += 1
        clock.ended()
    assert clock.within_ns(19_000, now) == 100
    assert clock.within_ns(0, now) == 512


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool without workers, so that all tasks wait."""
    bell, bell_reader = socket.socketpair()
    with selectors.DefaultSelector() as selector, bell, bell_reader:
        pool = Pool(Service(limits=RequestLimits()), 2, selector=selector, wake=lambda: None)
        pool._next_start_ns = 1 << 62
        yield pool


def test_deadlines_are_checked_only_when_due(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the work of the server's thread per turn, with 128 waiting requests of which none or all are late."""
    lookups, now, within_ns = 0, perf_counter_ns(), CompileClock.within_ns

    def counted(clock: CompileClock, begin_ns: int, end_ns: int) -> int:
        nonlocal lookups
        lookups += 1
        return within_ns(clock, begin_ns, end_ns)

    monkeypatch.setattr(CompileClock, "within_ns", counted)
    pool._clock.begun("kernel")
    for number in range(128):
        pool.offer(task("peer", received_ns=now, id=number, deadline_ms=100.0, compile_wait_ms=5000.0))
    lookups = 0
    for turn in range(1000):
        pool.tick(now + turn * MS // 20)  # 50 ms
    assert lookups == 0
    for turn in range(1000):
        pool.tick(now + 101 * MS + turn * MS // 25)  # 40 ms: all are due except for the excused compilation
    assert lookups == 128
    assert not [*pool.collect()]
    pool.tick(now + 6000 * MS)  # longer than they excuse
    replies = [*pool.collect()]
    assert [queued.head.id for queued, _ in replies] == [*range(128)]
    assert {decode_reply_head(reply).error["code"] for _, reply in replies} == {"DEADLINE_EXCEEDED"}  # type: ignore[index]
    assert not len(pool._waiting)


def test_a_deadline_without_kernels_is_exact(pool: Pool) -> None:
    now = perf_counter_ns()
    pool.offer(task("peer", received_ns=now, deadline_ms=10.0))
    pool.tick(now + 10 * MS - 1)
    assert not [*pool.collect()]
    pool.tick(now + 10 * MS)
    assert len([*pool.collect()]) == 1
