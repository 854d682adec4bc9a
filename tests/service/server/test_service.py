"""The service without sockets: deadlines, fingerprints, sizes, loading of robots."""

from __future__ import annotations

import gc
import re
from itertools import count
from time import perf_counter_ns
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest

from dyn_service import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError, Robot, Wrench
from dyn_service.api.lists import row_of
from dyn_service.api.queries import QUERIES
from dyn_service.errors import DeadlineExceededError
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.metrics import Durations, Metrics
from dyn_service.service.server.answering.jobs import Job, cancelled_error
from dyn_service.service.server.answering.plan import (
    FREQUENT,
    MAX_CHOICES,
    MAX_KNOWN,
    MAX_OPTION_BYTES,
    MAX_OVERLAY_BYTES,
    MAX_OVERLAYS,
    read_options,
)
from dyn_service.service.server.answering.service import Service
from tests.conftest import URDF
from tests.counting import calls_of
from tests.phrases import naming
from tests.service.conftest import array, request

SECOND = 10**9


def ask(service: Service, message: dict[str, Any], *, ago_ns: int = 0) -> dict[str, Any]:
    """Returns the reply to a request received some time ago, on the fast path if it is open."""
    payload, received = msgpack.packb(message), perf_counter_ns() - ago_ns
    reply: dict[str, Any] = msgpack.unpackb(
        service.answer_single_state(payload, received) or service.handle(payload, received)
    )
    return reply


@pytest.fixture
def service(panda: Robot, pendulum: Robot) -> Service:
    return Service([panda, pendulum])


def test_deadline_counts_from_the_receipt(service: Service) -> None:
    for _ in range(2):  # the slow path, then the fast path
        assert ask(service, request(deadline_ms=1000.0), ago_ns=SECOND // 2)["ok"]
        error = ask(service, request(deadline_ms=1000.0), ago_ns=2 * SECOND)["error"]
        assert (error["code"], error["path"]) == ("DEADLINE_EXCEEDED", "deadline_ms")
        assert "must start within 1000 ms of its receipt, but waited 20" in error["message"]
        assert ask(service, request(deadline_ms=1e300), ago_ns=2 * SECOND)["ok"]


def test_fingerprint_is_compared_with_the_robot(service: Service, pendulum: Robot) -> None:
    for _ in range(2):
        assert ask(service, request(model=pendulum.fingerprint))["ok"]
        error = ask(service, request(model="f" * 32))["error"]
        assert (error["code"], error["path"]) == ("FAILED_PRECONDITION", "model")


def test_fast_path_of_a_prepared_robot_is_open_from_the_start() -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    robot.prepare(["gravity_forces"])
    assert Service([robot]).answer_single_state(msgpack.packb(request()), perf_counter_ns()) is not None


def test_fast_path_opens_when_the_kernel_is_loaded() -> None:
    service = Service([Robot.from_urdf(URDF / "pendulum.urdf")])
    payload = msgpack.packb(request())
    assert service.answer_single_state(payload, perf_counter_ns()) is None
    job = service.accept(payload, perf_counter_ns())
    assert isinstance(job, Job)
    assert not service.has_kernel(job)
    general = msgpack.unpackb(service.answer(job))["outputs"]
    job = service.accept(payload, perf_counter_ns())
    assert isinstance(job, Job)
    assert service.has_kernel(job)
    short = service.answer_single_state(payload, perf_counter_ns())
    assert short is not None
    assert msgpack.unpackb(short)["outputs"] == general


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"method": "x"}},
        {"inputs": {"q": array([0.5]), "gravity": [0.0, 0.0, 1.0]}},
        {"inputs": {"q": array([0.5]), "gravity": array([0.0, np.nan, 1.0])}},
        {"inputs": {"q": array([0.5]), "gravity": array([1.0])}},
        {"inputs": {"q": [0.5]}},
        {"inputs": {"q": array([[0.5]])}},
        {"inputs": {"q": array([np.nan])}},
        {"inputs": {"q": array([1e308])}},
        {"model": "other"},
        {"v": 2},
        {"id": -1},
        {"query": "health"},
        {"robot": "r2d2"},
        {"deadline_ms": -1.0},
        {"compile_wait_ms": 0.0},
        {"robot": b"\xff\xfe"},
    ],
    ids=str,
)
def test_fast_path_takes_only_the_common_request(
    service: Service, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    ask(service, request())
    assert service.answer_single_state(msgpack.packb(request()), perf_counter_ns()) is not None
    payload = msgpack.packb(request(**change)).replace(
        b"\xc4\x02\xff\xfe", b"\xa2\xff\xfe"
    )  # a string that is not UTF-8
    assert service.answer_single_state(payload, perf_counter_ns()) is None
    assert not caplog.records  # an invalid request writes nothing to the log


def test_what_is_slow() -> None:
    service = Service([Robot.from_urdf(URDF / "pendulum.urdf")], allow_load=True)

    def slow(message: dict[str, Any]) -> bool:
        job = service.accept(msgpack.packb(message), perf_counter_ns())
        assert isinstance(job, Job), job
        return job.slow or not service.has_kernel(job)

    state = array([0.5])
    plain = {"q": state, "v": state, "a": state}
    force = {"link": service.robots["pendulum"].link_names[-1], "force": [0.0, 0.0, 1.0]}
    for inputs in (plain, {**plain, "wrenches": force}):
        assert slow(request("inverse_dynamics", inputs=inputs))
        ask(service, request("inverse_dynamics", inputs=inputs))
        assert not slow(request("inverse_dynamics", inputs=inputs))
    assert slow(request("inverse_dynamics", inputs={**plain, "wrenches": [force] * 5}))
    assert slow(request("inverse_dynamics", inputs={**plain, "q": array(np.zeros((3000, 1)))}))
    assert slow(
        request("inverse_dynamics", inputs={**plain, "q": array(np.zeros((60, 1, 1))), "v": array(np.zeros((60, 1)))})
    )
    assert slow({"v": 1, "id": 1, "query": "load_robot", "inputs": {"urdf": "<robot/>"}})
    assert not slow({"v": 1, "id": 1, "query": "health"})


def test_answer_as_long_as_the_limit_passes(pendulum: Robot) -> None:
    service = Service([pendulum], limits=RequestLimits(max_reply_bytes=9000))
    assert ask(service, request(inputs={"q": array(np.zeros((1000, 1)))}))["ok"]
    for states in (1120, 1126, 10_000):  # the last by its predicted size, the others by their length
        error = ask(service, request(inputs={"q": array(np.zeros((states, 1)))}))["error"]
        assert error["code"] == "RESOURCE_EXHAUSTED"
        assert re.search(r"the answer takes \d+ bytes, the limit is 9000: ", error["message"])


def test_wrenches_count_towards_the_answer(pendulum: Robot) -> None:
    """They are spread over all links and states before the kernel runs."""
    service = Service([pendulum], limits=RequestLimits(max_reply_bytes=1 << 20))
    state = array([0.5])
    wrench = {"link": pendulum.link_names[-1], "force": array(np.zeros((20_000, 3)))}
    message = request("inverse_dynamics", inputs={"q": state, "v": state, "a": state, "wrenches": wrench})
    assert ask(service, message)["error"]["code"] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("name", RequestLimits.__struct_fields__)
@pytest.mark.parametrize("value", [0, -1])
def test_limits_are_positive(name: str, value: int) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(name, value)):
        RequestLimits(**{name: value})


def test_robots_of_one_name(pendulum: Robot) -> None:
    heavier = Robot.from_urdf((URDF / "pendulum.urdf").read_text().replace('mass value="', 'mass value="1'))
    assert list(Service([pendulum, pendulum]).robots) == ["pendulum"]
    with pytest.raises(FailedPreconditionError, match=naming("'pendulum'", "fingerprint")):
        Service([pendulum, heavier])


def test_robots_are_bounded(pendulum: Robot, panda: Robot) -> None:
    with pytest.raises(ResourceExhaustedError, match=naming("1 robots", "limit")):
        Service([pendulum, panda], limits=RequestLimits(max_robots=1))


def test_description_is_the_robots(service: Service, panda: Robot) -> None:
    reply = ask(service, {"v": 1, "id": 1, "query": "describe_robot", "robot": "panda"})
    assert reply["outputs"] == panda.description.to_dict()


def test_durations() -> None:
    durations = Durations()
    assert durations.quantile_us(0.5) == 0
    for microseconds in (0, 1, 2, 3, 100, 1000):
        durations.add(microseconds * 1000)
    assert durations.quantile_us(0.5) == 4
    assert durations.quantile_us(1.0) == 1000
    total = durations + durations
    assert sum(total.buckets) == 12
    assert total.quantile_us(0.5) == 4
    durations.add(10**18)
    assert durations.quantile_us(1.0) == 10**15


def test_metrics_of_both_ways_are_added() -> None:
    metrics = Metrics()
    metrics.fast_path("a").add(5000)
    metrics.fast_path("never")
    metrics.answered("a", 7000)
    metrics.refused("a", "NOT_FOUND")
    metrics.refused(None, "NOT_FOUND")
    counts = metrics.to_dict()
    record = {"answered": 2, "refused": 1, "p50_us": 7, "p99_us": 7, "max_us": 7, "total_us": 12}
    assert counts["requests"] == {"a": {**record, "buckets": [0, 0, 0, 2]}}
    assert counts["errors"] == {"NOT_FOUND": 2}


OPTIONS: dict[str, dict[str, Any]] = {
    "gravity": {"inputs": {"gravity": array(np.array([0.1, 0.2, -1.6]))}},
    "passive": {"options": {"passive": False}},
    "method": {"options": {"method": "mass_matrix", "passive": None}},
    "overlay": {"inputs": {"overlay": {"payloads": [{"link": "pendulum", "mass": 1.5}]}}},
    "all": {
        "inputs": {
            "gravity": array(np.array([0.1, 0.2, -1.6])),
            "wrenches": [{"link": "pendulum", "force": array(np.array([1.0, 2.0, 3.0]))}],
            "overlay": {"payloads": [{"link": "pendulum", "mass": 1.5}]},
        },
        "options": {"passive": False, "method": "mass_matrix"},
    },
}


@pytest.mark.parametrize("fields", OPTIONS.values(), ids=OPTIONS)
def test_single_states_with_options_take_the_fast_path(pendulum: Robot, fields: dict[str, Any]) -> None:
    """After at most `FREQUENT` requests, with the same answer; a request with an invalid option never does."""
    unit_vector = array(np.ones(1))
    inputs = {"q": unit_vector, "v": unit_vector, "tau": unit_vector, **fields.get("inputs", {})}
    options = fields.get("options", {})
    service = Service([pendulum])
    payload, wrong, unknown = (
        msgpack.packb(request("forward_dynamics", inputs=inputs, options={**options, **wrong_options}))
        for wrong_options in ({}, {"passive": 0}, {"passives": False})
    )
    replies = [service.handle(payload, perf_counter_ns()) for _ in range(2)]
    slow = 0
    for _ in range(FREQUENT + 1):
        if (reply := service.answer_single_state(payload, perf_counter_ns())) is None:
            slow += 1
            reply = service.handle(payload, perf_counter_ns())
        replies.append(reply)
    assert slow == (FREQUENT if "overlay" in inputs else 0)
    assert service.answer_single_state(payload, perf_counter_ns()) is not None
    assert len({str(msgpack.unpackb(reply)["outputs"]) for reply in replies}) == 1
    plain, now = (
        msgpack.packb(request("forward_dynamics", inputs={"q": unit_vector, "v": unit_vector, "tau": unit_vector})),
        perf_counter_ns(),
    )
    service.handle(plain, now), service.answer_single_state(plain, now)
    call_count = calls_of(lambda: service.answer_single_state(plain, now))
    assert call_count < calls_of(lambda: service.answer_single_state(payload, now)) <= call_count + 5
    for message in (wrong, unknown):
        assert service.answer_single_state(message, perf_counter_ns()) is None
        assert msgpack.unpackb(service.handle(message, perf_counter_ns()))["error"]["code"] == "INVALID_ARGUMENT"


def with_overlay(overlay: dict[str, Any]) -> bytes:
    unit_vector = array(np.ones(1))
    return msgpack.packb(
        request("inverse_dynamics", inputs={"q": unit_vector, "v": unit_vector, "a": unit_vector, "overlay": overlay})
    )


def test_few_overlays_are_kept_for_the_fast_path(pendulum: Robot) -> None:
    """No long ones, and none of several robots, whose answers are no single states."""
    service = Service([pendulum])
    service.handle(with_overlay({}), perf_counter_ns())
    joint = {"j": {"damping": array(np.array(0.1))}}
    links = {"payloads": [{"link": "pendulum", "mass": 1.0}] * 100}
    batch_overlay = {"payloads": [{"link": "pendulum", "mass": array(np.array([1.0, 2.0]))}]}
    assert len(msgpack.packb(links)) > MAX_OVERLAY_BYTES
    for overlay in (links, batch_overlay, {"joints": joint}):
        for _ in range(2 * FREQUENT + 2):
            assert service.answer_single_state(with_overlay(overlay), perf_counter_ns()) is None
    fast = service.registry.served["pendulum"].plans["inverse_dynamics"].fast_path
    assert fast is not None
    for k in range(2 * MAX_OVERLAYS):
        light = {"payloads": [{"link": "pendulum", "mass": 1.0 + k}]}
        assert service.answer_single_state(with_overlay(light), perf_counter_ns()) is None
        assert 0 < len(fast._overlays) <= MAX_OVERLAYS


def test_few_encodings_of_options_are_kept(pendulum: Robot) -> None:
    """No long ones; each of them is answered as by the slow path."""
    service = Service([pendulum])
    inputs = dict.fromkeys(("q", "v", "tau"), array(np.ones(1)))
    fast = None
    for k in [*range(1, MAX_CHOICES + 5), MAX_OPTION_BYTES]:
        message = request("constraint_forces", inputs=inputs, options={"joints": pendulum.joint_names * k})
        payload, now = msgpack.packb(message), perf_counter_ns()
        expected = msgpack.unpackb(service.handle(payload, now))["outputs"]
        fast = service.registry.served["pendulum"].plans["constraint_forces"].fast_path
        assert fast is not None
        for _ in range(2):
            reply = service.answer_single_state(payload, now)
            assert reply is not None
            assert msgpack.unpackb(reply)["outputs"] == expected
        assert 0 < len(fast._choices) <= MAX_CHOICES
        assert 0 < len(fast._arguments) <= MAX_KNOWN
        assert all(len(packed) <= MAX_OPTION_BYTES for packed, *_ in (*fast._choices, *fast._arguments))


def test_robots_of_equal_sizes_share_their_decoders(pendulum: Robot) -> None:
    """Each took 0.45 MB of decoders before; what is left are some 25 objects for each query."""
    text = (URDF / "pendulum.urdf").read_text()
    robots = [Robot.from_text(text.replace('robot name="', f'robot name="{k}')) for k in range(5)]
    services = [Service([pendulum])]
    gc.collect()
    classes, objects = len(msgspec.Struct.__subclasses__()), len(gc.get_objects())
    services.append(Service(robots))
    gc.collect()
    assert len(msgspec.Struct.__subclasses__()) == classes
    assert len(gc.get_objects()) - objects <= len(robots) * len(QUERIES) * 30


def test_slow_answers_do_not_take_the_fast_path(pendulum: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results in world axes, and kernels that take long."""
    unit_vector = array(np.ones(1))

    def answered_at_once(query: str, options: dict[str, Any]) -> bool:
        payload = msgpack.packb(
            request(query, inputs={"q": unit_vector, "v": unit_vector, "tau": unit_vector}, options=options)
        )
        service = Service([pendulum])
        assert msgpack.unpackb(service.handle(payload, perf_counter_ns()))["ok"]
        return service.answer_single_state(payload, perf_counter_ns()) is not None

    assert answered_at_once("constraint_forces", {"frame": "joint"})
    assert not answered_at_once("constraint_forces", {"frame": "world"})
    assert answered_at_once("forward_dynamics", {"method": "mass_matrix"})
    monkeypatch.setattr("dyn_service.service.server.answering.plan.SLOW_WORK_S", 0.0)
    assert not answered_at_once("forward_dynamics", {"method": "mass_matrix"})


@pytest.mark.parametrize(
    ("query", "lead", "pushed"),
    [
        ("inverse_dynamics", (3000,), False),
        ("forward_dynamics", (40, 75), False),
        ("inverse_dynamics", (3000,), True),
        ("inverse_dynamics+mass_matrix", (3000,), False),
    ],
)
def test_a_batch_is_computed_in_blocks_with_the_same_bits(
    query: str, lead: tuple[int, ...], pushed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyn_service.service.server.answering.plan.BLOCK_WORK_S", 1e-5)
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    row, rng = row_of(query), np.random.default_rng(0)
    inputs: dict[str, Any] = {name: rng.uniform(-1.0, 1.0, (*lead, robot.nv)) for name in row.required}
    if pushed:
        inputs["wrenches"] = [Wrench("tool0", force=rng.uniform(-1.0, 1.0, (*lead, 3)), point=(0.1, 0.2, 0.3))]
    plan = Service([robot]).registry.served["ur5e"].plans[query]
    options, checks = read_options(row, {}), count()
    whole = plan.answer(inputs, options)
    blocks = plan.answer(inputs, options, None, lambda: next(checks) and None)
    assert next(checks) > 3
    assert {name: (x.shape, bytes(x.data)) for name, x in blocks.items()} == {
        name: (x.shape, bytes(x.data)) for name, x in whole.items()
    }

    def gone() -> None:
        if next(checks) > 10:
            raise cancelled_error()

    checks = count(9)
    with pytest.raises(DeadlineExceededError, match="cancelled"):
        plan.answer(inputs, options, None, gone)
    assert next(checks) == 12  # no block more


def test_an_error_in_a_batch_of_blocks_is_that_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.service.server.answering.plan.BLOCK_WORK_S", 1e-4)
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    plan = Service([robot]).registry.served["ur5e"].plans["inverse_dynamics"]
    inputs = {"q": np.zeros((3000, 6)), "v": np.zeros((3000, 5)), "a": np.zeros((3000, 6))}
    with pytest.raises(InvalidArgumentError, match=naming("(3000, 5)")):
        plan.answer(inputs, read_options(QUERIES["inverse_dynamics"], {}), None, lambda: None)
