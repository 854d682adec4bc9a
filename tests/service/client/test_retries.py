"""Both clients over a simulated network that drops, doubles, reorders, delays, replays and truncates messages.

Each call returns the right answer or raises a DynError within its time limit plus 10 ms; without faults, it answers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyn_service import AsyncClient, Client, DeadlineExceededError, DynError, Robot, UnavailableError
from dyn_service.service.client import aio, sync
from dyn_service.service.client.connection import Call
from dyn_service.service.client.flows import Ask
from dyn_service.service.client.retries import (
    CHECK_S,
    LONG_BYTES,
    PROBE_S,
    SILENT_S,
    Cause,
    RetryPolicy,
    RetryState,
    Step,
    TimeoutExtension,
)
from dyn_service.service.protocol.messages import Notice, Progress, read_cancel
from dyn_service.simulation import parts
from tests.conftest import URDF
from tests.phrases import naming
from tests.service.client.simulated_network import Faults, SimulatedAsyncChannel, SimulatedChannel, SimulatedLoop, World

SLACK_S = 0.010

_TEXT = (URDF / "double_pendulum.urdf").read_text()
MODELS = [Robot.from_urdf(_TEXT), Robot.from_urdf(_TEXT.replace('mass value="', 'mass value="1'))]
ROBOT = MODELS[0]
QUERIES = ("gravity_forces", "mass_matrix", "inverse_dynamics", "link_poses")
for model in MODELS:
    model.prepare(QUERIES)


class Caller:
    """A client of either kind in a world, with blocking calls. Durations are in simulated time."""

    def __init__(self, kind: str, world: World, **options: Any) -> None:
        self.world = world
        self._loop = SimulatedLoop(world) if kind == "AsyncClient" else None
        self.client: Any = (AsyncClient if self._loop else Client)("tcp://simulated:1", **options)
        self._robot: Any = None

    def together(self, calls: list[Callable[[Any], Any]], limits_s: list[float]) -> list[tuple[Any, float]]:
        """Returns results and durations of calls on the robot, concurrent for `AsyncClient`."""
        if self._loop is None:
            return [self._timed(call, limit) for call, limit in zip(calls, limits_s, strict=True)]
        return self._loop.run_until_complete(self._gathered(calls, limits_s))

    def robot(self) -> Any:
        robot = self.client.robot("double_pendulum")
        self._robot = self._loop.run_until_complete(robot) if self._loop else robot
        return self._robot

    def plain(self, call: Callable[[Any], Any]) -> Any:
        """Returns the result of a call on the client."""
        answer = call(self.client)
        return self._loop.run_until_complete(answer) if self._loop else answer

    def close(self) -> None:
        if self._loop:
            self._loop.run_until_complete(self.client.close())
            self._loop.close()
        else:
            self.client.close()

    def _timed(self, call: Callable[[Any], Any], limit_s: float) -> tuple[Any, float]:
        begun_s = self.world.now_s
        try:
            return call(self._robot.with_timeout(limit_s)), self.world.now_s - begun_s
        except DynError as fault:
            return fault, self.world.now_s - begun_s

    async def _gathered(self, calls: list[Callable[[Any], Any]], limits_s: list[float]) -> list[tuple[Any, float]]:
        async def timed(call: Callable[[Any], Any], limit_s: float) -> tuple[Any, float]:
            begun_s = self.world.now_s
            try:
                return await call(self._robot.with_timeout(limit_s)), self.world.now_s - begun_s
            except DynError as fault:
                return fault, self.world.now_s - begun_s

        return await asyncio.gather(*(timed(call, limit) for call, limit in zip(calls, limits_s, strict=True)))


@contextmanager
def calling(kind: str, world: World, **options: Any) -> Iterator[Caller]:
    """A client in this world."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "perf_counter", world.time)
        patch.setattr(sync, "Channel", lambda endpoint, keys: SimulatedChannel(world))
        patch.setattr(aio, "AsyncChannel", lambda endpoint, keys, deliver: SimulatedAsyncChannel(world, deliver))
        caller = Caller(kind, world, **options)
        caller.client._retrying.random.seed(1)
        try:
            yield caller
        finally:
            caller.close()


def question(random: Random) -> tuple[Callable[[Any], Any], Any]:
    """Returns a call and its expected answer."""
    query = random.choice(QUERIES)
    needs = ROBOT.nv if query != "inverse_dynamics" else 3 * ROBOT.nv
    values = np.array([random.uniform(-3.0, 3.0) for _ in range(needs)]).reshape(-1, ROBOT.nv)
    if query == "link_poses":  # decoded on the slow path
        return lambda robot: robot.link_poses(values[0]), ROBOT.link_poses(values[0])
    return lambda robot: getattr(robot, query)(*values), getattr(ROBOT, query)(*values)


def same(answer: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return isinstance(answer, np.ndarray) and answer.tobytes() == expected.tobytes()
    return (
        answer.position.tobytes() == expected.position.tobytes()
        and answer.rotation.tobytes() == expected.rotation.tobytes()
    )


def calls_through(kind: str, seed: int, faults: Faults, rounds: int) -> Iterator[tuple[float, float, bool]]:
    """Makes four calls per round, concurrent for `AsyncClient`, and checks their answers. Yields the time limit and the
    duration of each call, and whether it was answered. The third call after the end of the faults is answered.
    """
    random = Random(seed)
    present = Faults()
    world = World(MODELS, present, seed)
    with calling(kind, world) as caller:
        caller.robot()
        vars(present).update(vars(faults))
        for _ in range(rounds):
            questions = [question(random) for _ in range(4)]
            limits = [random.choice([0.001, 0.02, 0.1, 0.5, 2.0]) for _ in questions]
            results = caller.together([call for call, _ in questions], limits)
            for (answer, took_s), (_, expected), limit_s in zip(results, questions, limits, strict=True):
                is_answered = not isinstance(answer, DynError)
                assert not is_answered or (same(answer, expected) and took_s <= limit_s)
                yield limit_s, took_s, is_answered
        present.end()
        if world.service.robots["double_pendulum"].fingerprint != ROBOT.fingerprint:
            world.restart()
        world.run_until(world.now_s + 1.0)
        for _ in range(3):
            call, expected = question(random)
            ((answer, _),) = caller.together([call], [1.0])
        assert same(answer, expected)
        assert caller.client.epoch == world.service.epoch


_SHARE = st.sampled_from([0.0, 0.01, 0.1, 0.3])


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
@given(
    seed=st.integers(0, 2**32),
    faults=st.builds(
        Faults,
        drop=_SHARE,
        double=_SHARE,
        replay=_SHARE,
        truncate=_SHARE,
        restart=st.sampled_from([0.0, 0.02, 0.2]),
        other_model=st.sampled_from([0.0, 0.0, 0.5]),
        delay_s=st.sampled_from([0.0, 0.02, 0.3]),
        work_s=st.sampled_from([0.0, 0.02, 0.3]),
    ),
)
@settings(max_examples=25, deadline=None)
def test_right_answers_or_errors_in_time(kind: str, seed: int, faults: Faults) -> None:
    for limit_s, took_s, _ in calls_through(kind, seed, faults, rounds=8):
        assert took_s <= limit_s + SLACK_S


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_lost_requests_are_sent_again_with_the_same_id(kind: str) -> None:
    world = World(MODELS, Faults(), 3)
    with calling(kind, world, timeout_s=2.0) as caller:
        robot = caller.robot()
        world.faults.drop = 1.0
        world.sent.clear()
        call, _ = question(Random(1))
        ((fault, took_s),) = caller.together([lambda _: call(robot)], [2.0])
        assert isinstance(fault, DynError)
        assert fault.code == "DEADLINE_EXCEEDED"
        assert "4 tries" in str(fault)
        assert took_s == pytest.approx(2.0, abs=SLACK_S)
        *tries, last = [msgpack.unpackb(payload) for payload in world.sent]
        assert [message.get("retry") for message in tries] == [None, 1, 2, 3]
        assert len({message["id"] for message in tries}) == 1
        deadlines_ms = [message["deadline_ms"] for message in tries]
        assert deadlines_ms[0] == 2000.0
        for number, (earlier_ms, later_ms) in enumerate(pairwise(deadlines_ms), 1):
            assert 100.0 <= earlier_ms - later_ms <= 100.0 + 100.0 * 2 ** (number - 1) + 2e3 * CHECK_S
        assert (last["query"], last["id"]) == ("cancel", tries[0]["id"])
        assert caller.client.counters.retries == 3
        assert caller.client.counters.cancelled == 1


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
@pytest.mark.parametrize("limit_s", [0.001, 0.01, 0.1])
def test_a_control_loop_never_retries(kind: str, limit_s: float) -> None:
    """Its time limit is shorter than the time before the first retry."""
    world = World(MODELS, Faults(), 3)
    with calling(kind, world) as caller:
        caller.robot()
        world.faults.drop = 1.0
        world.sent.clear()
        for _ in range(15):
            ((fault, took_s),) = caller.together([question(Random(1))[0]], [limit_s])
            assert isinstance(fault, DynError)
            assert took_s <= limit_s + 1e-9
        assert len(world.sent) == 30  # one request and one cancel each
        assert caller.client.counters.retries == 0


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_one_of_two_answers_is_accepted(kind: str) -> None:
    world = World(MODELS, Faults(), 3)
    with calling(kind, world) as caller:
        caller.robot()
        for seed in range(10):
            world.faults.work_s = 0.5
            call, expected = question(Random(seed))
            ((answer, _),) = caller.together([call], [2.0])
            assert same(answer, expected)
        assert caller.client.counters.retries > 3
        world.faults.work_s = 0.0
        caller.plain(lambda client: client.health())
        assert 0 < caller.client.counters.dropped <= caller.client.counters.retries
        assert caller.client.restarts == 0


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
@pytest.mark.parametrize("after_s", [0.01, 0.4])
def test_a_call_is_answered_by_the_restarted_server(kind: str, after_s: float) -> None:
    """The request is lost with the server; it is sent again as soon as the next server is connected."""
    world = World(MODELS, Faults(work_s=0.0), 5)
    with calling(kind, world) as caller:
        caller.robot()
        first = caller.client.epoch
        world.faults.drop = 1.0

        def die() -> None:
            world.faults.drop = 0.0
            world.restart()

        world.at(after_s, die)
        call, expected = question(Random(1))
        ((answer, took_s),) = caller.together([call], [30.0])
        assert same(answer, expected)
        assert took_s < after_s + 0.3 + 2 * CHECK_S + 0.01
        assert caller.client.restarts == 1
        assert caller.client.epoch == world.service.epoch != first


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_requests_that_change_the_server_are_not_repeated(kind: str) -> None:
    world = World(MODELS, Faults(), 5)
    with calling(kind, world, timeout_s=30.0) as caller:
        caller.robot()
        world.faults.drop = 1.0
        world.at(3.0, world.restart)
        world.sent.clear()
        begun_s = world.now_s
        with pytest.raises(UnavailableError, match="is unknown"):
            caller.plain(lambda client: client.load_robot(_TEXT))
        assert world.now_s - begun_s < 3.0 + 2 * CHECK_S
        queries = [msgpack.unpackb(payload)["query"] for payload in world.sent]
        assert queries.count("load_robot") == 1


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
@pytest.mark.parametrize("query", ["health", "load_robot"])
def test_a_silent_server_is_reported_before_the_deadline(kind: str, query: str) -> None:
    """The transport remains connected, for example through a proxy or to a peer that only completes the handshake."""
    world = World(MODELS, Faults(), 5)
    with calling(kind, world, timeout_s=600.0) as caller:
        caller.robot()
        world.faults.drop = 1.0
        begun_s = world.now_s
        with pytest.raises(UnavailableError, match="does not respond"):
            caller.plain(lambda client: client.health() if query == "health" else client.load_robot(_TEXT))
        assert SILENT_S <= world.now_s - begun_s < SILENT_S + 2 * CHECK_S
        assert caller.client.counters.probes == SILENT_S // (PROBE_S + CHECK_S)


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_short_calls_report_a_silent_server_after_a_while(kind: str) -> None:
    world = World(MODELS, Faults(), 5)
    with calling(kind, world) as caller:
        caller.robot()
        world.run_until(world.now_s + 1e4)  # idle time does not count as silence
        world.faults.drop = 1.0
        call, _ = question(Random(1))
        codes = [caller.together([call], [1.0])[0][0].code for _ in range(14)]
        assert codes == ["DEADLINE_EXCEEDED"] * 10 + ["UNAVAILABLE"] * 4


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_call_in_parts_has_one_time_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten requests of 0.6 s on average: each is shorter than the time limit of the call, their sum is longer."""
    monkeypatch.setattr(parts, "PART_STEPS", 5)
    world = World(MODELS, Faults(), 5)
    with calling(kind, world, retries=0) as caller:
        caller.robot()
        world.faults.delay_s = 0.6
        world.sent.clear()

        def simulate(robot: Any) -> Any:
            return robot.simulate(np.full(2, 0.5), np.zeros(2), dt=1e-3, steps=50, integrator="rk4")

        ((answer, took_s),) = caller.together([simulate], [2.0])
        assert isinstance(answer, DeadlineExceededError)
        assert re.search(r"simulate: no answer from .* within 2 s \(1 try, last heard", str(answer))
        assert took_s == pytest.approx(2.0, abs=SLACK_S)
        *requests, last = [message for message in map(msgpack.unpackb, world.sent) if message["query"] != "health"]
        assert last == {"v": 1, "id": requests[-1]["id"], "query": "cancel"}
        assert [request["query"] for request in requests] == ["simulate"] * len(requests)
        limits_ms = [request["deadline_ms"] for request in requests]
        assert limits_ms[0] == pytest.approx(2000.0)
        assert 0.0 < limits_ms[-1] < 1200.0
        assert all(later_ms < earlier_ms for earlier_ms, later_ms in pairwise(limits_ms))
        ((answer, took_s),) = caller.together([simulate], [12.0])
        assert answer.q.shape == (51, 2)


def test_compiling_does_not_count_towards_the_time_limit() -> None:
    """A notice restarts the time limit for later parts, from the time when the next notice is due."""
    extension = TimeoutExtension("simulate", 100.0, 2.0, 30.0, lambda text: None)
    assert extension.left_s(101.5) == 0.5
    notice = Notice(1, 7, Progress("compiling", "a kernel is being compiled", 0.0, 1000.0))
    assert extension.until_s(notice, 101.8) == 111.8
    assert extension.left_s(102.0) == pytest.approx(2.8)
    assert extension.until_s(notice, 131.0) == 132.0  # the time limit plus `compile_wait_s`
    assert extension.left_s(131.0) == 1.0


def answer_health_only(world: World) -> None:
    arrive = world.arrive

    def busy(payload: bytes, deliver: Any) -> None:
        if msgpack.unpackb(payload)["query"] == "health":
            arrive(payload, deliver)

    world.arrive = busy  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_server_that_answers_health_requests_is_not_gone(kind: str) -> None:
    """It answers health requests while it works for longer than `SILENT_S`."""
    world = World(MODELS, Faults(), 5)
    with calling(kind, world) as caller:
        caller.robot()
        answer_health_only(world)
        call, _ = question(Random(1))
        for _ in range(2):
            ((answer, _),) = caller.together([call], [SILENT_S + 2.0])
            assert isinstance(answer, DeadlineExceededError)
            heard_s = float(re.search(r"last heard ([\d.]+) s ago", str(answer))[1])  # type: ignore[index]
            assert heard_s < PROBE_S + 2 * CHECK_S


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_short_calls_do_not_report_a_busy_server_as_gone(kind: str) -> None:
    """It answers health requests, which short calls send when they give up, no more often than every `PROBE_S`."""
    world = World(MODELS, Faults(), 5)
    with calling(kind, world) as caller:
        caller.robot()
        answer_health_only(world)
        call, _ = question(Random(1))
        codes = [caller.together([call], [0.1])[0][0].code for _ in range(300)]
        assert codes == ["DEADLINE_EXCEEDED"] * 300
        assert 8 <= caller.client.counters.probes <= 30.0 / PROBE_S


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_the_first_call_reports_that_the_server_was_never_heard(kind: str) -> None:
    with (
        calling(kind, World(MODELS, Faults(drop=1.0), 5)) as caller,
        pytest.raises(DeadlineExceededError, match=naming("1 s", "4 tries")),
    ):
        caller.plain(lambda client: client.health())


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_slow_work_is_waited_for(kind: str) -> None:
    """A server that answers health requests is alive, however long its work takes."""
    world = World(MODELS, Faults(), 5)
    with calling(kind, world, timeout_s=600.0) as caller:
        robot = caller.robot()
        q = np.array([0.1, 0.2])
        arrive = world.arrive

        def slow(payload: bytes, deliver: Any) -> None:
            if msgpack.unpackb(payload)["query"] != "verify":
                arrive(payload, deliver)
            elif "retry" not in msgpack.unpackb(payload):
                world.at(100.0, lambda: arrive(payload, deliver))

        world.arrive = slow  # type: ignore[method-assign]
        ((residuals, took_s),) = caller.together([lambda _: robot.verify(q, q, q)], [600.0])
        assert 100.0 < took_s < 100.1
        assert not isinstance(residuals, DynError)
        assert caller.client.counters.probes > 30
        assert caller.client.restarts == 0


def test_pauses_grow_and_are_jittered() -> None:
    pauses = {number: [RetryPolicy(9, 0.1).pause_s(number) for _ in range(200)] for number in (1, 2, 3, 8, 1000)}
    for number, longest_s in ((1, 0.1), (2, 0.2), (3, 0.4), (8, 2.0), (1000, 2.0)):
        assert 0.1 <= min(pauses[number]) < 0.1 + 0.1 * longest_s
        assert 0.1 + 0.9 * longest_s < max(pauses[number]) <= 0.1 + longest_s
    assert RetryPolicy(9, 0.1, Random(4)).pause_s(3) == RetryPolicy(9, 0.1, Random(4)).pause_s(3)


def steps_of(tries: RetryState, until_s: float, **state: Any) -> list[tuple[float, Step | Cause]]:
    """Returns the results of `next_step` every `CHECK_S`, with their times, without `Step.WAIT`."""
    steps, now_s = [], tries.checked_s
    while now_s < until_s:
        now_s += CHECK_S
        step = tries.next_step(now_s, **({"connection": 1, "epoch": 7, "has_message": False} | state))
        if step is not Step.WAIT:
            steps.append((now_s, step))
    return steps


@pytest.mark.parametrize("how", [{"repeatable": False}, {"is_long": True}, {"notified": True}, {"retries": 0}], ids=str)
def test_some_requests_are_not_repeated_after_silence(how: dict[str, Any]) -> None:
    """Requests that change the server, long ones, those in progress, and all if `retries` is 0."""
    options = {"repeatable": True, "is_long": False} | {k: v for k, v in how.items() if k in ("repeatable", "is_long")}
    tries = RetryState(RetryPolicy(how.get("retries", 3), 0.1), 0.0, 7, 1, **options)
    tries.notified = how.get("notified", False)
    assert {step for _, step in steps_of(tries, 5.0)} == {Step.PROBE}
    step = tries.next_step(5.1, connection=1, epoch=8, has_message=True)  # after a restart, repeatable requests again
    assert step is (Cause.RESTARTED if how.get("repeatable") is False or "retries" in how else Step.RETRY)


def test_a_restart_resets_the_number_of_retries() -> None:
    tries = RetryState(RetryPolicy(3, 0.1, Random(1)), 0.0, 7, 1, repeatable=True, is_long=False)
    assert [step for _, step in steps_of(tries, 1.5)] == [Step.RETRY] * 3
    assert [step for _, step in steps_of(tries, 3.0, epoch=8)] == [Step.RETRY] * 4  # at once, then after each pause
    assert tries.count == 8


def test_a_request_over_a_former_connection_is_lost() -> None:
    """The connection was lost and made again between two checks: the reply cannot arrive."""
    for repeatable, expected in ((True, Step.RETRY), (False, Cause.GONE)):
        tries = RetryState(RetryPolicy(3, 10.0), 0.0, 7, 1, repeatable=repeatable, is_long=False)
        assert tries.next_step(CHECK_S, connection=1, epoch=7, has_message=False) is Step.WAIT
        assert tries.next_step(2 * CHECK_S, connection=2, epoch=7, has_message=False) is expected


def test_a_suspended_process_does_not_report_a_silent_server() -> None:
    tries = RetryState(RetryPolicy(0, 0.1), 0.0, 7, 1, repeatable=True, is_long=False)
    assert tries.next_step(1000.0, connection=1, epoch=7, has_message=False) is not Cause.SILENT


def test_the_wait_for_a_lost_server_is_bounded() -> None:
    tries = RetryState(RetryPolicy(3, 0.1), 0.0, 7, 1, repeatable=True, is_long=True)
    steps = steps_of(tries, 60.0, connection=None)
    assert steps[0][0] == pytest.approx(SILENT_S, abs=3 * CHECK_S)
    assert steps[0][1] is Cause.GONE


def test_long_requests_are_those_beyond_the_limit() -> None:
    with Client("tcp://127.0.0.1:9") as client:
        for size, is_long in ((LONG_BYTES, False), (LONG_BYTES + 1, True)):
            call = Call(Ask("mass_matrix"), 1.0, 0.0, size, None, 1, None)
            assert client._retry_state(call)._is_long == is_long


def test_read_cancel_accepts_cancels_only() -> None:
    assert read_cancel(msgpack.packb({"v": 1, "id": 5, "query": "cancel"})) == 5
    assert read_cancel(msgpack.packb({"v": 1, "id": 5, "query": "cancel", "more": "x" * 100})) == 5
    assert read_cancel(msgpack.packb({"v": 1, "id": 5, "query": "cancel", "more": "x" * 300})) == 5
    for other in (
        {"v": 1, "id": 5},
        {"v": 2, "id": 5, "query": "cancel"},
        {"v": 1, "id": None, "query": "cancel"},
        {"v": 1, "id": -5, "query": "cancel"},
        {"v": 1, "id": 5, "query": "health"},
    ):
        assert read_cancel(msgpack.packb(other)) is None
    for noise in (b"", b"\xc1", b"\x93"):
        assert read_cancel(noise) is None
