"""The dispatcher as a state machine, without a socket: what is answered, queued, refused or gets a notice.

Service, robot and worker are real; the worker is not started, so that a test runs its tasks one at a time.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dyn_service import Robot
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import RequestHead
from dyn_service.service.server.answering.jobs import Task
from dyn_service.service.server.answering.plan import SLOW_BYTES
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.dispatcher import Dispatcher
from dyn_service.service.server.workers.pool import ThreadWorker
from tests.conftest import URDF
from tests.service.conftest import WAIT_MS, array, request
from tests.wide import wide

ROBOT = "double_pendulum"
LIMITS = RequestLimits(max_waiting=4, max_waiting_bytes=200_000)
BUSY = "RESOURCE_EXHAUSTED"
MS = 1_000_000


def new_robot() -> Robot:
    """Returns a robot with the kernel of a control loop only."""
    robot = Robot.from_urdf(URDF / f"{ROBOT}.urdf")
    robot.prepare(["gravity_forces"])
    return robot


def asked(query: str = "gravity_forces", states: int | None = None, **fields: Any) -> bytes:
    """Returns a request for one state or a batch."""
    q = np.full(2 if states is None else (states, 2), 0.5)
    return msgpack.packb(request(query, ROBOT, inputs={"q": array(q)}, **fields))


class Rig:
    """A dispatcher with its parts.

    rings: number of calls of `wake`.
    """

    def __init__(self, limits: RequestLimits = LIMITS) -> None:
        self.rings = 0
        self.service = Service([new_robot()], limits=limits)
        self.worker = ThreadWorker(self._wake, self.service)
        self.dispatcher = Dispatcher(self.service, self.worker)

    def _wake(self) -> None:
        self.rings += 1

    def ask(self, payload: bytes, peer: bytes = b"peer", *, is_req: bool = False, received_ns: int = 0) -> Any:
        reply = self.dispatcher.answer((peer, is_req), payload, received_ns or perf_counter_ns())
        return None if reply is None else msgpack.unpackb(reply)

    def finished(self) -> list[tuple[bytes, Any]]:
        return [(peer, msgpack.unpackb(reply)) for (peer, _), reply in self.dispatcher.finished()]

    def shut_down(self) -> list[tuple[bytes, Any]]:
        return [(peer, msgpack.unpackb(reply)) for (peer, _), reply in self.dispatcher.shut_down()]

    def notices(self, now_ns: int) -> list[tuple[bytes, Any]]:
        return [(peer, msgpack.unpackb(notice)) for (peer, _), notice in self.dispatcher.notices(now_ns)]

    def counters(self) -> dict[str, int]:
        return self.service.metrics.to_dict()["counters"]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def code(reply: Any) -> str:
    return "" if reply["ok"] else reply["error"]["code"]


# one by one


def test_a_warm_state_is_answered_at_once_whatever_waits(rig: Rig) -> None:
    for number in range(LIMITS.max_waiting):
        assert rig.ask(asked(states=2000, id=number)) is None
    reply = rig.ask(asked(id=9))
    assert (reply["id"], reply["ok"]) == (9, True)
    assert rig.finished() == []


def test_slow_requests_are_answered_in_their_order(rig: Rig) -> None:
    payloads = [asked(states=2000, id=1), asked("mass_matrix", id=2), asked("mass_matrix", 700, id=3)]
    assert [rig.ask(payload) for payload in payloads] == [None] * 3
    for number in (1, 2, 3):
        assert rig.worker.work_one()
        ((_, reply),) = rig.finished()
        assert (reply["id"], reply["ok"]) == (number, True)
        assert rig.rings == number
    assert rig.ask(asked("mass_matrix", id=4))["ok"]  # its kernel is loaded now


def test_a_single_task_may_exceed_the_limit_of_bytes(rig: Rig) -> None:
    huge = asked(states=20_000, id=1)
    assert len(huge) > LIMITS.max_waiting_bytes
    assert rig.ask(huge) is None
    reply = rig.ask(asked("mass_matrix", id=2))
    assert reply["id"] == 2
    assert reply["error"] == {
        "code": BUSY,
        "type": "ResourceExhaustedError",
        "message": "the server is busy: 1 slow requests wait already, try again later",
    }
    rig.worker.work_one()
    rig.finished()
    assert rig.dispatcher.waiting_bytes == 0
    assert rig.ask(asked(states=2000)) is None


def test_one_client_cannot_fill_the_queue() -> None:
    rig = Rig(RequestLimits(max_waiting=4, max_waiting_per_client=2))
    assert [rig.ask(asked(states=2000, id=number), b"greedy") for number in (1, 2)] == [None, None]
    error = rig.ask(asked(states=2000, id=3), b"greedy")["error"]
    assert (error["code"], error["message"]) == (
        BUSY,
        "the server is busy: 2 slow requests of this client wait already, try again later",
    )
    assert rig.ask(asked(states=2000, id=4), b"modest") is None


def test_requests_of_a_client_that_left_are_dropped(rig: Rig) -> None:
    for number, peer in ((1, b"leaver"), (2, b"other")):
        rig.ask(asked(states=2000, id=number), peer)
    (leaver,) = [task.peer for task in rig.dispatcher.waiting.values() if task.head.id == 1]
    rig.dispatcher.gone(leaver)
    for expected in ("DEADLINE_EXCEEDED", ""):
        rig.worker.work_one()
        ((_, reply),) = rig.finished()
        assert code(reply) == expected


def test_a_deadline_passes_while_it_waits(rig: Rig) -> None:
    long_ago = perf_counter_ns() - 1000 * MS
    assert rig.ask(asked(states=2000, deadline_ms=100.0), received_ns=long_ago) is None
    assert rig.ask(asked(states=2000, deadline_ms=1e9), received_ns=long_ago) is None
    rig.worker.work_one()
    error = rig.finished()[0][1]["error"]
    assert (error["code"], error["path"]) == ("DEADLINE_EXCEEDED", "deadline_ms")
    assert error["message"].startswith("gravity_forces must start within 100 ms of its receipt, but waited ")
    rig.worker.work_one()
    assert code(rig.finished()[0][1]) == ""


def test_shut_down_refuses_what_was_not_begun_and_answers_the_rest(rig: Rig) -> None:
    for number in (1, 2, 3):
        rig.ask(asked(states=2000, id=number))
    rig.worker.work_one()
    refusals = rig.shut_down()
    assert [(reply["id"], code(reply)) for _, reply in refusals] == [(2, "UNAVAILABLE"), (3, "UNAVAILABLE")]
    assert code(rig.ask(asked(states=2000))) == "UNAVAILABLE"
    assert rig.ask(asked())["ok"]
    assert not rig.worker.work_one()
    assert [reply["id"] for _, reply in rig.finished()] == [1]
    assert (rig.dispatcher.waiting, rig.dispatcher.waiting_bytes) == ({}, 0)


def test_no_notice_follows_a_reply(rig: Rig) -> None:
    rig.ask(asked(states=2000, id=1, compile_wait_ms=1e4))
    now = perf_counter_ns()
    rig.service.clock._making[0] = ("a kernel", now)
    assert rig.notices(now + 30 * MS)[0][1]["id"] == 1
    rig.shut_down()
    assert rig.notices(now + 9000 * MS) == []


def test_a_defect_costs_one_request(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(rig.service, "accept", fail)
        patch.setattr(rig.service, "handle", fail)
        with pytest.raises(ZeroDivisionError):  # the server logs it, and replies
            rig.ask(asked("mass_matrix", id=1))
        assert rig.ask(asked(states=2000, id=2)) is None
        assert rig.worker.work_one()
    assert rig.ask(asked(states=2000, id=3)) is None
    assert rig.worker.work_one()
    replies = [reply for _, reply in rig.finished()]
    assert [(reply["id"], code(reply)) for reply in replies] == [(2, "INTERNAL"), (3, "")]
    assert "secret" not in str(replies)
    assert caplog.text.count("ZeroDivisionError: secret") == 1


CROWDED = {
    "wrenches": {"wrenches": [{"link": "tip", "force": [0, 0, 1]}] * 400},
    "lists": {"q": [[0, 0]] * 2000},
    "another's fields": {"q": array(np.zeros(2)), **{f"x{k}": 0 for k in range(400)}},
}


@pytest.mark.parametrize("inputs", CROWDED.values(), ids=CROWDED)
def test_requests_of_many_objects_are_read_by_a_worker(rig: Rig, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of some kilobytes can contain thousands of objects, each taking microseconds."""
    payload = msgpack.packb(request(robot=ROBOT, id=3, inputs=inputs))
    assert len(payload) < SLOW_BYTES
    with monkeypatch.context() as patched:
        patched.setattr(rig.service, "accept", lambda *_, **__: pytest.fail("it was read"))
        assert rig.ask(payload) is None
    assert rig.worker.work_one()
    ((_, reply),) = rig.finished()
    assert reply["id"] == 3


def test_damaged_requests_are_refused_at_once(rig: Rig) -> None:
    assert rig.ask(b"\xdd\xff\xff\xff\xff" + b"\xc1" * 2000) is not None


# the worker's thread


def test_the_worker_rings_from_its_thread_and_ends_after_the_task_it_is_at() -> None:
    rung, is_begun, gate = threading.Semaphore(0), threading.Event(), threading.Event()
    names: list[str] = []
    tasks = [
        Task((("transport", b"peer"), False), asked(id=number), perf_counter_ns(), RequestHead()) for number in range(3)
    ]

    class Gated(Service):
        """Waits within the second task."""

        def work(self, task: Task) -> bytes:
            names.append(threading.current_thread().name)
            if task is tasks[1]:
                is_begun.set()
                assert gate.wait(WAIT_MS / 1e3)
            return super().work(task)

    def collected() -> list[tuple[Task, int]]:
        return [(task, msgpack.unpackb(reply)["id"]) for task, reply in worker.collect()]

    worker = ThreadWorker(rung.release, Gated([new_robot()]))
    worker.start()
    for task in tasks:
        worker.offer(task)
    assert is_begun.wait(WAIT_MS / 1e3)
    assert rung.acquire(timeout=WAIT_MS / 1e3)
    assert collected() == [(tasks[0], 0)]
    assert names == ["dyn-worker", "dyn-worker"]
    assert worker.abandon() == [tasks[2]]
    gate.set()
    assert rung.acquire(timeout=WAIT_MS / 1e3)
    assert collected() == [(tasks[1], 1)]
    worker.close()


# everything in any order

BAD = {
    b"": (None, "INVALID_ARGUMENT"),
    b"\xc1": (None, "INVALID_ARGUMENT"),
    msgpack.packb({"v": 1, "id": 3}): (3, "INVALID_ARGUMENT"),
    msgpack.packb({"v": 2, "id": 3}): (3, "UNIMPLEMENTED"),
    msgpack.packb(request("divination", ROBOT, id=4)): (4, "UNIMPLEMENTED"),
    msgpack.packb(request(robot="nobody", id=5)): (5, "NOT_FOUND"),
    msgpack.packb(request(robot=ROBOT, id=6)): (6, "INVALID_ARGUMENT"),  # one position of two
    msgpack.packb(request(robot=ROBOT, id=7, inputs={"q": array([np.nan, 0.0])})): (7, "INVALID_ARGUMENT"),
    msgpack.packb(request(robot=ROBOT, id=8, model="another")): (8, "FAILED_PRECONDITION"),
}
"""Requests refused at once: id and code of the reply."""


@dataclass
class Waits:
    """A request that waits for its reply, in the model: bytes of both, and the expected outcome.

    needs_kernel: whether a worker makes its kernel first.
    """

    size: int
    reply_size: int
    number: int | None
    code: str
    is_notified: bool
    query: str
    needs_kernel: bool
    received_ns: int
    next_notice_ns: int = 0


class Dispatching(RuleBasedStateMachine):
    """A model that tracks waiting requests, their order, notices and refusals."""

    robot: Robot
    worker_service: Service
    reply_sizes: dict[bytes, int]

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.now_ns = perf_counter_ns()
        self.peers = 0
        self.waiting: dict[bytes, Waits] = {}
        self.undone: deque[bytes] = deque()
        self.done: deque[bytes] = deque()
        self.warm = False  # whether mass_matrix has answered
        self.down = False
        self.kernel_since_ns: int | None = None
        self.errors: Counter[str] = Counter()
        self.busy = self.notices = self.works = 0

    def settle(self, reply: Any, number: int | None, expected: str) -> None:
        assert (reply["id"], code(reply)) == (number, expected)
        if expected:
            self.errors[expected] += 1

    def reply_size(self, payload: bytes) -> int:
        """Returns the length of its reply, from another service."""
        if payload not in self.reply_sizes:
            self.reply_sizes[payload] = len(self.elsewhere.handle(payload, perf_counter_ns()))
        return self.reply_sizes[payload]

    def ask(self, payload: bytes, is_req: bool = False) -> tuple[bytes, Any]:
        self.peers += 1
        peer = b"peer %d" % self.peers
        return peer, self.rig.ask(payload, peer, is_req=is_req, received_ns=self.now_ns)

    def ask_slowly(
        self, payload: bytes, number: int | None, code: str, is_notified: bool, is_req: bool, query: str
    ) -> None:
        """It waits, unless the server shuts down or the queue is full."""
        peer, reply = self.ask(payload, is_req)
        size = sum(waiting.size for waiting in self.waiting.values())
        full = bool(self.waiting) and size + len(payload) > LIMITS.max_waiting_bytes
        if self.down:
            self.settle(reply, number, "UNAVAILABLE")
        elif len(self.waiting) == LIMITS.max_waiting or full:
            self.settle(reply, number, BUSY)
            self.busy += 1
        else:
            assert reply is None
            hears = is_notified and not is_req  # a REQ socket takes one message only
            needs_kernel = query == "mass_matrix" and not self.warm
            self.waiting[peer] = Waits(
                len(payload), self.reply_size(payload), number, code, hears, query, needs_kernel, self.now_ns
            )
            self.undone.append(peer)

    @rule()
    def a_control_loop_asks(self) -> None:
        _, reply = self.ask(asked(id=1))
        self.settle(reply, 1, "")
        assert reply["outputs"]["forces"]["data"] == self.robot.gravity_forces([0.5, 0.5]).tobytes()

    @rule()
    def health_is_asked(self) -> None:
        self.settle(self.ask(msgpack.packb({"v": 1, "id": 2, "query": "health"}))[1], 2, "")

    @rule(payload=st.sampled_from(list(BAD)))
    def a_bad_request_comes(self, payload: bytes) -> None:
        self.settle(self.ask(payload)[1], *BAD[payload])

    @rule()
    def a_batch_over_the_limit_comes(self) -> None:
        payload = asked(states=20_000, id=9)
        assert len(payload) > LIMITS.max_waiting_bytes
        self.ask_slowly(payload, 9, "", False, False, "gravity_forces")

    @rule(states=st.sampled_from([1100, 6000]), is_notified=st.booleans(), is_req=st.booleans())
    def a_batch_comes(self, states: int, is_notified: bool, is_req: bool) -> None:
        payload = asked(states=states, id=10, compile_wait_ms=1e4 if is_notified else ...)
        assert len(payload) > SLOW_BYTES
        self.ask_slowly(payload, 10, "", is_notified, is_req, "gravity_forces")

    @rule(is_notified=st.booleans())
    def a_short_request_with_a_long_answer_comes(self, is_notified: bool) -> None:
        payload = asked("mass_matrix", 700, id=11, compile_wait_ms=1e4 if is_notified else ...)
        assert len(payload) < SLOW_BYTES
        self.ask_slowly(payload, 11, "", is_notified, False, "mass_matrix")

    @rule(is_notified=st.booleans(), is_req=st.booleans())
    def a_kernel_is_asked_for(self, is_notified: bool, is_req: bool) -> None:
        payload = asked("mass_matrix", id=12, compile_wait_ms=1e4 if is_notified else ...)
        if self.warm:
            self.settle(self.ask(payload, is_req)[1], 12, "")
        else:
            self.ask_slowly(payload, 12, "", is_notified, is_req, "mass_matrix")

    @rule()
    def rubbish_comes(self) -> None:
        self.ask_slowly(b"\xc1" * 20_000, None, "INVALID_ARGUMENT", False, False, "")

    @rule()
    def a_batch_for_nobody_comes(self) -> None:
        payload = msgpack.packb(request(robot="nobody", id=13, inputs={"q": array(np.zeros((3000, 1)))}))
        self.settle(self.ask(payload)[1], 13, "NOT_FOUND")

    @precondition(lambda self: self.undone)
    @rule()
    def the_worker_does_a_task(self) -> None:
        assert self.rig.worker.work_one()
        self.works += 1
        peer = self.undone.popleft()
        self.done.append(peer)
        waiting = self.waiting[peer]
        self.warm |= waiting.query == "mass_matrix"
        waiting.needs_kernel = False
        if waiting.code:
            self.errors[waiting.code] += 1

    @rule()
    def finished_replies_are_sent(self) -> None:
        for (peer, _), data in self.rig.dispatcher.finished():
            assert peer == self.done.popleft()
            waiting = self.waiting.pop(peer)
            reply = msgpack.unpackb(data)
            assert (len(data), reply["id"], code(reply)) == (waiting.reply_size, waiting.number, waiting.code)
        assert not self.done

    @rule(milliseconds=st.integers(1, 1500))
    def time_goes_by(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * MS

    @rule()
    def a_kernel_is_begun(self) -> None:
        self.kernel_since_ns = self.now_ns
        self.rig.service.clock._making[-1] = ("a kernel", self.now_ns)

    @rule()
    def it_is_made(self) -> None:
        self.kernel_since_ns = None
        self.rig.service.clock._making.pop(-1, None)

    @rule()
    def notices_are_due(self) -> None:
        since_ns = {  # of a kernel that any of them may wait for, or of the wait for a worker that makes its own
            peer: waiting.received_ns if self.kernel_since_ns is None else self.kernel_since_ns
            for peer, waiting in self.waiting.items()
            if waiting.needs_kernel or self.kernel_since_ns is not None
        }
        due_peers = {
            peer: self.waiting[peer]
            for peer, begin_ns in since_ns.items()
            if self.now_ns - begin_ns >= 20 * MS
            and self.waiting[peer].is_notified
            and self.now_ns >= self.waiting[peer].next_notice_ns
        }
        notices = self.rig.notices(self.now_ns)
        assert [peer for peer, _ in notices] == list(due_peers)
        for peer, notice in notices:
            assert notice["id"] == due_peers[peer].number
            assert notice["notice"]["state"] == "compiling"
            due_peers[peer].next_notice_ns = self.now_ns + 1000 * MS
        self.notices += len(notices)

    @precondition(lambda self: not self.down)
    @rule()
    def the_server_shuts_down(self) -> None:
        self.down = True
        refusals = self.rig.shut_down()
        assert [peer for peer, _ in refusals] == list(self.undone)
        for peer, reply in refusals:
            self.settle(reply, self.waiting.pop(peer).number, "UNAVAILABLE")
        self.undone.clear()

    @invariant()
    def what_waits_is_counted_and_bounded(self) -> None:
        dispatcher, sizes = self.rig.dispatcher, [waiting.size for waiting in self.waiting.values()]
        assert len(dispatcher.waiting) == len(sizes) <= LIMITS.max_waiting
        assert dispatcher.waiting_bytes == sum(sizes)
        assert dispatcher.waiting_bytes <= LIMITS.max_waiting_bytes or len(sizes) == 1

    @invariant()
    def what_was_refused_is_counted(self) -> None:
        metrics = self.rig.service.metrics.to_dict()
        assert metrics["errors"] == dict(self.errors)
        assert (metrics["counters"]["refused_busy"], metrics["counters"]["notices"]) == (self.busy, self.notices)

    @invariant()
    def each_task_rang(self) -> None:
        assert self.rig.rings == self.works

    def teardown(self) -> None:
        """In the end each request has had one reply, and none waits."""
        while self.undone:
            self.the_worker_does_a_task()
        self.finished_replies_are_sent()
        if not self.down:
            self.the_server_shuts_down()
        assert not self.rig.worker.work_one()
        assert not self.waiting
        self.what_waits_is_counted_and_bounded()
        self.what_was_refused_is_counted()
        assert self.rig.notices(self.now_ns + 10_000 * MS) == []


@pytest.mark.parametrize("examples", wide([30, 100, 200], (30).__eq__))
def test_everything_in_any_order(examples: int) -> None:
    robot = new_robot()
    parts = {"robot": robot, "elsewhere": Service([robot]), "reply_sizes": {}}
    many_steps = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(type("Machine", (Dispatching,), parts), settings=many_steps)
