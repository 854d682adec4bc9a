"""An error reply has the id of its request, wherever the id is in the message and whatever is wrong with the rest."""

from __future__ import annotations

import struct
from time import perf_counter_ns, thread_time
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyn_service import Robot
from dyn_service.service.protocol.messages import MAX_SCANNED_OBJECTS, peek, scan_fields
from dyn_service.service.server.answering.service import Service
from tests.service.conftest import array, request

HEAD = frozenset({"id", "query", "compile_wait_ms"})
DEEP = b"\x91" * 5000 + b"\xc0"
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=60)
    | st.binary(max_size=60),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=6), inner, max_size=6),
    max_leaves=20,
)
messages = st.dictionaries(st.sampled_from(["id", "query", "v", "x", "inputs"]) | st.text(max_size=40), values)


@pytest.fixture(scope="module")
def service(pendulum: Robot) -> Service:
    return Service([pendulum], allow_load=True)


def refusal(service: Service, payload: bytes) -> dict[str, Any]:
    reply: dict[str, Any] = msgpack.unpackb(service.handle(payload, perf_counter_ns()))
    assert not reply["ok"]
    return reply


def joined(*pairs: tuple[str, bytes]) -> bytes:
    """A map with these keys and these bytes as values."""
    return bytes([0x80 | len(pairs)]) + b"".join(msgpack.packb(key) + value for key, value in pairs)


def head(*values_of: tuple[str, Any]) -> tuple[tuple[str, bytes], ...]:
    return tuple((key, msgpack.packb(value)) for key, value in values_of)


@settings(max_examples=60, deadline=None)
@given(messages)
def test_fields_agree_with_another_decoder(message: dict[str, Any]) -> None:
    plain = {key: value for key, value in message.items() if key in HEAD}
    expected = {key: None if isinstance(value, (list, dict)) else value for key, value in plain.items()}
    assert scan_fields(msgpack.packb(message), HEAD) == expected
    assert scan_fields(memoryview(msgpack.packb(message)), HEAD) == expected


@settings(max_examples=50, deadline=None)
@given(messages, st.data())
def test_the_id_of_a_truncated_message_is_read(message: dict[str, Any], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, 2**64 - 1))
    whole = {"id": number, **{key: x for key, x in message.items() if key != "id"}}
    payload = msgpack.packb(whole)
    end = data.draw(st.integers(0, len(payload)))
    id_end = 1 + len(msgpack.packb("id")) + len(msgpack.packb(number)) + (2 if len(whole) > 15 else 0)
    assert peek(payload[:end]).id == (number if end >= id_end else None)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_noise_ends_the_scan(noise: bytes) -> None:
    peek(noise)
    assert peek(b"\x82\xa2id\x07" + noise).id is not None or b"\xa2id" in noise


OVER = {
    "a list over the limit": struct.pack(">BI", 0xDD, 5000) + b"\xc0" * 5000,
    "a map over the limit": struct.pack(">BI", 0xDF, 300) + b"\xa1a\xc0" * 300,
    "a string over the limit": struct.pack(">BI", 0xDB, 9 << 20) + b"<" * (9 << 20),
    "too many entries": msgpack.packb([[{}] * 4000] * 30),
    "nested too deep": DEEP,
    "nested maps": b"\x81\xa1a" * 3000 + b"\xc0",
    "an extension type": msgpack.packb(msgpack.ExtType(5, b"abc")),
    "a time": msgpack.packb(msgpack.Timestamp(5)),
    "a string that is not UTF-8": b"\xa2\xff\xfe",
    "a key that is a number": b"\x81\x05\x06",
}


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("wrong", OVER)
def test_the_id_is_in_the_refusal(service: Service, wrong: str, order: str) -> None:
    rest = (*head(("v", 1), ("query", "gravity_forces"), ("robot", "pendulum")), ("inputs", OVER[wrong]))
    number = head(("id", 77))
    payload = joined(*((*number, *rest) if order == "first" else (*rest, *number)))
    reply = refusal(service, payload)
    assert reply["id"] == 77
    assert reply["error"]["code"] in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("order", ["first", "last"])
def test_the_id_of_requests_with_other_faults(service: Service, order: str) -> None:
    faults = [{"v": 2}, {"v": "1"}, {"v": 1, "query": 3}, {"v": 1, "query": "x", "robot": 5}, {"v": 1, "query": "x"}]
    faults += [{"v": 1, "query": "simulate", "inputs": [1]}, {"v": 1, "query": "verify", "deadline_ms": -1}, {}]
    for fault in faults:
        message = {"id": 9, **fault} if order == "first" else {**fault, "id": 9}
        assert refusal(service, msgpack.packb(message))["id"] == 9


def test_a_long_urdf_is_refused_at_once_with_the_limit(service: Service) -> None:
    """A string of 9 MiB exceeds the limit; the error names the limit and has the id of the request."""
    text = "<robot name='x'>" + " " * (9 << 20) + "</robot>"
    message = {"v": 1, "query": "load_robot", "inputs": {"urdf": text}, "id": 12}
    began = thread_time()
    reply = refusal(service, msgpack.packb(message))
    assert thread_time() - began < 5.0  # CPU seconds; it takes some milliseconds
    assert reply["id"] == 12
    assert reply["error"]["code"] == "RESOURCE_EXHAUSTED"
    assert f"over the limit of {8 << 20}" in reply["error"]["message"]


def test_an_id_after_too_many_objects_is_not_read() -> None:
    payload = (
        b"\x82\xa1x" + struct.pack(">BI", 0xDD, MAX_SCANNED_OBJECTS) + b"\xc0" * MAX_SCANNED_OBJECTS + b"\xa2id\x07"
    )
    assert peek(payload).id is None
    assert peek(b"\x82\xa2id\x07" + payload[1:]).id == 7


def test_values_that_are_not_ids() -> None:
    for value in (-1, 1.5, "a", None, True, [1], {"id": 5}, 2.0, b"7"):
        assert peek(msgpack.packb({"id": value})).id is None
    assert peek(msgpack.packb({b"id": 5})).id is None
    assert peek(msgpack.packb([5])).id is None
    assert peek(b"\x82\xa2id\x05\xa2id\x06").id == 6


def test_the_other_fields_of_the_head() -> None:
    head = peek(msgpack.packb(request(compile_wait_ms=5, inputs={"q": array([0.1])})))
    assert (head.id, head.query, head.compile_wait_ms) == (7, "gravity_forces", 5.0)
    assert peek(msgpack.packb({"query": 5, "compile_wait_ms": -1})).query == ""
