"""The bytes on the wire, held fast: a change here is a change of the protocol."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import msgpack
import numpy as np
import pytest
from msgspec import UNSET

from dyn_service import QUERIES, InvalidArgumentError, Robot
from dyn_service.client.core import pack_inputs, pack_request, read_head, read_outputs
from dyn_service.client.state import StateCall
from dyn_service.protocol.arrays import pack_array
from dyn_service.protocol.messages import Reply, Timing, encode, error_reply, read_request
from dyn_service.server.service import Service

GOLDEN = Path(__file__).parent / "golden"
FAULT = InvalidArgumentError("q has shape (2,), expected (..., 1) (1 movable joints)", path="inputs.q")


def golden(name: str) -> bytes:
    """The bytes of a hex dump: an offset, the bytes, and what of them is text."""
    lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    return b"".join(bytes.fromhex(line[6:53]) for line in lines)


def test_request_is_written_as_ever() -> None:
    inputs = pack_inputs({"q": np.array([0.5]), "gravity": None}, QUERIES["gravity_forces"])
    assert pack_request(7, "gravity_forces", "pendulum", inputs, UNSET, UNSET, 1000.0) == golden("request")


def test_request_is_read_as_ever() -> None:
    request = read_request(golden("request"))
    assert (request.v, request.id, request.query, request.robot) == (1, 7, "gravity_forces", "pendulum")
    assert (request.options, request.model, request.deadline_ms) == (UNSET, UNSET, 1000.0)
    assert request.inputs == {"q": {"dtype": "<f8", "shape": [1], "data": np.array([0.5]).tobytes()}}


def test_replies_are_written_as_ever() -> None:
    outputs = {"forces": pack_array(np.array([4.7032]), "")}
    assert encode(Reply(1, 7, True, outputs, Timing(11.0, 2.5))) == golden("reply")
    assert error_reply(7, FAULT) == golden("error_reply")


def test_replies_are_read_as_ever() -> None:
    row = QUERIES["gravity_forces"]
    head = read_head(golden("reply"))
    assert head is not None
    assert (head.id, head.ok, head.timing) == (7, True, Timing(11.0, 2.5))
    assert read_outputs(head, row)["forces"].tolist() == [4.7032]
    head = read_head(golden("error_reply"))
    assert head is not None
    with pytest.raises(InvalidArgumentError) as found:
        read_outputs(head, row)
    assert found.value.to_wire() == FAULT.to_wire()


def test_golden_request_is_answered(pendulum: Robot) -> None:
    reply = msgpack.unpackb(Service([pendulum]).handle(golden("request"), perf_counter_ns()))
    assert list(reply) == ["v", "id", "ok", "outputs", "timing"]
    assert (reply["v"], reply["id"], reply["ok"]) == (1, 7, True)
    assert reply["outputs"]["forces"]["data"] == pendulum.gravity_forces([0.5]).tobytes()


@pytest.mark.parametrize("query", [name for name, row in QUERIES.items() if row.result_type is None])
def test_short_way_writes_the_same_request(panda: Robot, query: str) -> None:
    """The request that is joined from pieces is, but for the length of its id, the one that is written as a whole."""
    row = QUERIES[query]
    call = StateCall(row, "panda", panda.fingerprint, panda.sizes)
    values = [2.5 if row.inputs[n].scalar else np.linspace(0, k, 9) for k, n in enumerate(row.required)]
    assert call.takes(values, row.defaults)
    for request_id, timeout_s, wait_s in ((1, 1.0, 0.0), (2**40, 0.002, 0.0), (3, 1.0, 120.0), (4, 1.0, 0.0)):
        found = msgpack.unpackb(call.encode(values, request_id, timeout_s, wait_s))
        inputs = pack_inputs(dict(zip(row.required, values, strict=True)), row)
        whole = pack_request(
            request_id, query, "panda", inputs, UNSET, panda.fingerprint, timeout_s * 1e3, wait_s * 1e3
        )
        assert found == msgpack.unpackb(whole)


def test_short_way_declines_what_it_does_not_take(panda: Robot) -> None:
    row = QUERIES["computed_torque"]
    call = StateCall(row, "panda", "f", panda.sizes)
    q = np.zeros(9)
    assert call.takes([q, q, q, q, q, 1.0, 2.0], row.defaults)
    assert not call.takes([q, q, q, q, q, 1.0, 2.0], (np.zeros(3), None))
    for odd in ([0.0] * 9, np.zeros(8), np.zeros((1, 9)), np.zeros(9, dtype=np.float32), 1.0, None):
        assert not call.takes([odd, q, q, q, q, 1.0, 2.0], row.defaults)
    for odd in (1, np.float64(1.0), q, None):
        assert not call.takes([q, q, q, q, q, odd, 2.0], row.defaults)
