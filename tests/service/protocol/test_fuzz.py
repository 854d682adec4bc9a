"""Every payload, valid or not, gets a well-formed reply, and the server keeps running."""

from __future__ import annotations

import gc
import random
import tracemalloc
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyn_service import QUERIES, Robot, Server, errors
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import ADMINISTRATION
from dyn_service.service.server.answering.plan import SLOW_BYTES
from dyn_service.service.server.answering.service import Service
from tests.service.conftest import Bare, array, request
from tests.wide import wide

CODES = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DynError)}
WIRE = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=24),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
arrays = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["<f8", "<f4", "|i1", "|O", ">f8"]) | values,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | values,
        "data": st.binary(max_size=32) | values,
    },
)
names = st.sampled_from(["q", "v", "a", "tau", "gravity", "wrenches", "kp", "kd", "q_ref", "dt", "p"]) | st.text(
    max_size=4
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "v": st.just(1) | values,
        "id": st.integers(0, 2**64 - 1) | values,
        "query": st.sampled_from([*QUERIES, *(set(ADMINISTRATION) - {"load_robot", "unload_robot"})]) | values,
        "robot": st.just("pendulum") | values,
        "inputs": st.dictionaries(names, arrays | values | st.lists(st.floats(), max_size=4), max_size=6) | values,
        "options": st.dictionaries(st.sampled_from(["method", "frame", "joints"]) | st.text(), values, max_size=3)
        | values,
        "model": values,
        "deadline_ms": values,
    },
)


@pytest.fixture(scope="module")
def service(pendulum: Robot) -> Service:
    return Service([pendulum], limits=RequestLimits(max_reply_bytes=1 << 20))


def check(service: Service, payload: bytes) -> dict[str, Any]:
    """Returns the reply after checking that it is well-formed."""
    with np.errstate(all="ignore"):
        short = service.answer_single_state(payload, perf_counter_ns()) if len(payload) <= SLOW_BYTES else None
        data = short or service.handle(payload, perf_counter_ns())
    reply: dict[str, Any] = msgpack.unpackb(data)
    assert reply["v"] == 1
    if reply["ok"]:
        assert set(reply) - {"late"} == {"v", "id", "ok", "outputs", "timing", "epoch"}
        assert isinstance(reply["id"], int)
    else:
        assert set(reply) == {"v", "id", "ok", "error", "epoch"}
        assert reply["error"]["code"] in CODES - {"INTERNAL"}, reply
        assert isinstance(reply["error"]["message"], str)
    return reply


@WIRE
@given(st.binary(max_size=200))
def test_bytes(service: Service, payload: bytes) -> None:
    check(service, payload)


@WIRE
@given(values)
def test_values(service: Service, value: Any) -> None:
    check(service, msgpack.packb(value))


@pytest.mark.parametrize("examples", wide([150, 900], (150).__eq__))
def test_requests(service: Service, examples: int) -> None:
    @settings(WIRE, max_examples=examples)
    @given(requests)
    def each(message: dict[str, Any]) -> None:
        reply = check(service, msgpack.packb(message))
        number = message.get("id")
        if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
            assert reply["id"] == number

    each()


@WIRE
@given(st.data())
def test_damaged_requests(service: Service, data: st.DataObject) -> None:
    """A valid request with some bytes changed, removed or duplicated."""
    query = data.draw(st.sampled_from(["gravity_forces", "computed_torque"]))
    q = array([0.5])
    optional = {"v": q, "q_ref": q, "v_ref": q, "a_ref": q, "kp": 2.0, "kd": 1.0} if query == "computed_torque" else {}
    payload = bytearray(msgpack.packb(request(query, inputs={"q": q, **optional})))
    check(service, bytes(payload))
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(payload) - 1))
        kind = data.draw(st.sampled_from(["change", "drop", "double", "cut"]))
        if kind == "change":
            payload[index] = data.draw(st.integers(0, 255))
        elif kind == "drop" and len(payload) > 1:
            del payload[index]
        elif kind == "double":
            payload[index:index] = payload[index : index + 8]
        elif kind == "cut" and index:
            del payload[index:]
    check(service, bytes(payload))


def test_noise_over_a_socket(tcp_server: Server, pendulum: Robot, bare: Any) -> None:
    socket: Bare = bare(tcp_server.endpoints[0])
    noise = random.Random(0)
    good = msgpack.packb(request())
    for number in range(500):
        damaged = bytearray(good)
        for _ in range(noise.randrange(1, 5)):
            damaged[noise.randrange(len(damaged))] = noise.randrange(256)
        payload = bytes(damaged) if number % 2 else noise.randbytes(noise.randrange(0, 400))
        assert socket.ask(payload)["v"] == 1
    forces = socket.ask(request())["outputs"]["forces"]
    assert forces["data"] == pendulum.gravity_forces([0.5]).tobytes()


def test_bombs_do_not_grow_the_server(service: Service) -> None:
    """A mebibyte of empty maps, long lists, strings with lengths of gibibytes: the server keeps no memory of them.

    The test counts Python's allocations, since the resident memory of a process need not shrink after a release.
    """
    bombs = [
        msgpack.packb(request(x=[[{}] * 4000] * 262)),
        msgpack.packb(request(x=[[[]] * 4000] * 262)),
        b"\xdc\x10\x00" * 100_000,
        b"\xdd\x00\x00\x10\x00" * 100_000,
        b"\x81\xa1v\xdb\x7f\xff\xff\xff",
        b"\x81\xa1v\xc6\x7f\xff\xff\xff",
        b"\x91" * 1_000_000,
        b"\x81\xa1a" * 300_000,
    ]
    for bomb in bombs:
        check(service, bomb)
    gc.collect()
    tracemalloc.start()
    try:
        for bomb in bombs:
            assert not check(service, bomb)["ok"]
        gc.collect()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 100_000  # the smallest decoded bomb would take a million bytes
