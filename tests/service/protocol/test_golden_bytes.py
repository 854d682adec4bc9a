"""Golden bytes of the messages: a change here is a change of the protocol."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import msgpack
import numpy as np
import pytest
from msgspec import UNSET

from dyn_service import QUERIES, InternalError, InvalidArgumentError, Robot
from dyn_service.api.queries import Query
from dyn_service.service.client.flows import (
    Ask,
    array_of,
    array_reader,
    pack_inputs,
    pack_request,
    read_answer,
    read_head,
    read_outputs,
)
from dyn_service.service.protocol.arrays import pack_array
from dyn_service.service.protocol.messages import (
    Reply,
    ReplyHead,
    Timing,
    cancel,
    encode,
    error_reply,
    read_cancel,
    read_request,
)
from dyn_service.service.server.answering.service import Service

GOLDEN = Path(__file__).parent / "golden"
EPOCH = 0x123456789ABCD
FAULT = InvalidArgumentError("q has shape (2,), expected (..., 1) (1 movable joints)", path="inputs.q")


def golden(name: str) -> bytes:
    """Reads a hex dump with columns for offset, bytes and ASCII characters."""
    lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    return b"".join(bytes.fromhex(line[6:53]) for line in lines)


def test_request_is_written_as_ever() -> None:
    inputs = pack_inputs({"q": np.array([0.5]), "gravity": None}, QUERIES["gravity_forces"])
    assert pack_request(7, Ask("gravity_forces", "pendulum", inputs), 1000.0) == golden("request")


def test_a_retry_is_written_as_ever() -> None:
    """A retry has the same id, the remaining time, and the index of the retry."""
    inputs = pack_inputs({"q": np.array([0.5])}, QUERIES["gravity_forces"])
    assert pack_request(7, Ask("gravity_forces", "pendulum", inputs), 800.0, retry=2) == golden("retry")
    request = read_request(golden("retry"))
    assert (request.id, request.deadline_ms, request.retry) == (7, 800.0, 2)


def test_a_cancel_is_written_and_read_as_ever() -> None:
    assert cancel(7) == golden("cancel")
    assert read_cancel(golden("cancel")) == 7
    assert read_cancel(golden("request")) is None
    assert read_request(golden("cancel")).query == "cancel"  # servers without cancels read an unknown query


def test_request_is_read_as_ever() -> None:
    request = read_request(golden("request"))
    assert (request.v, request.id, request.query, request.robot) == (1, 7, "gravity_forces", "pendulum")
    assert (request.options, request.model, request.deadline_ms) == (UNSET, UNSET, 1000.0)
    assert request.inputs == {"q": {"dtype": "<f8", "shape": [1], "data": np.array([0.5]).tobytes()}}


def test_replies_are_written_as_ever() -> None:
    outputs = {"forces": pack_array(np.array([4.7032]), "")}
    assert encode(Reply(1, 7, True, outputs, Timing(11.0, 2.5), UNSET, EPOCH)) == golden("reply")
    assert encode(Reply(1, 7, True, outputs, Timing(11.0, 2.5), UNSET, EPOCH, True)) == golden("late_reply")
    assert encode(Reply(1, 7, True, outputs, Timing(11.0, 2.5))) == golden("reply_without_epoch")
    assert error_reply(7, FAULT, EPOCH) == golden("error_reply")


def asked(row: Query, shape: tuple[int, ...] = (1,)) -> Ask:
    """A request whose required inputs all have that shape."""
    return Ask(row.name, inputs=dict.fromkeys(row.required, pack_array(np.zeros(shape), "")))


def test_replies_are_read_as_ever() -> None:
    row = QUERIES["gravity_forces"]
    for name, epoch, late in (
        ("reply", EPOCH, UNSET),
        ("late_reply", EPOCH, True),
        ("reply_without_epoch", UNSET, UNSET),
    ):
        head = read_head(golden(name))
        assert isinstance(head, ReplyHead)
        assert (head.id, head.ok, head.timing) == (7, True, Timing(11.0, 2.5))
        assert (head.epoch, head.late) == (epoch, late)
        assert read_outputs(head, row, asked(row), None)["forces"].tolist() == [4.7032]
        fast = array_reader(row.name)(golden(name))
        assert (fast.id, fast.epoch, isinstance(fast, ReplyHead)) == (7, epoch, late is True)
    head = read_head(golden("error_reply"))
    assert head is not None
    with pytest.raises(InvalidArgumentError) as excinfo:
        read_outputs(head, row, asked(row), None)
    assert excinfo.value.to_wire() == FAULT.to_wire()


def test_golden_request_is_answered(pendulum: Robot) -> None:
    reply = msgpack.unpackb(Service([pendulum], epoch=5).handle(golden("request"), perf_counter_ns()))
    assert list(reply) == ["v", "id", "ok", "outputs", "timing", "epoch"]
    assert (reply["v"], reply["id"], reply["ok"], reply["epoch"]) == (1, 7, True, 5)
    assert reply["outputs"]["forces"]["data"] == pendulum.gravity_forces([0.5]).tobytes()


@pytest.mark.parametrize("query", [name for name, row in QUERIES.items() if row.result_type is None])
@pytest.mark.parametrize("lead", [(), (4,), (0,), (2, 1, 3)], ids=str)
def test_the_fast_reader_reads_the_same(query: str, lead: tuple[int, ...]) -> None:
    row = QUERIES[query]
    if not row.required and lead:
        pytest.skip("the query has no input with leading axes")
    (spec,) = row.outputs.values()
    shape = lead + (9,) * len(spec.shape)
    values = np.random.default_rng(0).normal(size=shape)
    reply = encode(Reply(1, 7, True, {next(iter(row.outputs)): pack_array(values, "")}, Timing(1.0, 2.0)))
    reply_read = array_reader(query)(reply)
    assert reply_read.id == 7
    answer = array_of(reply_read, row, shape)
    general = read_answer(read_head(reply), row, asked(row, (*lead, 9)), None)
    assert answer.tobytes() == general.tobytes() == np.asarray(values).tobytes()
    assert type(answer) is type(general)
    assert answer.shape == shape
    assert answer.flags.writeable or shape == ()  # a number is no array


@pytest.mark.parametrize("odd", ["error_reply", "reply"])
def test_the_fast_reader_leaves_other_replies(odd: str) -> None:
    """Errors, and answers with an output of another query, are left to the general reader."""
    reply_read = array_reader("mass_matrix")(golden(odd))
    assert reply_read == read_head(golden(odd))


def test_bytes_that_do_not_match_their_shape_are_an_internal_error() -> None:
    row = QUERIES["gravity_forces"]
    wrong = {"dtype": "<f8", "shape": [3], "data": bytes(16)}
    reply = msgpack.packb({"v": 1, "id": 7, "ok": True, "outputs": {"forces": wrong}, "timing": {}})
    with pytest.raises(InternalError, match="reply is invalid"):
        array_of(array_reader(row.name)(reply), row, (3,))
