"""Invalid requests are refused with the recorded code and path, in little time."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from time import perf_counter_ns, thread_time
from typing import Any

import msgpack
import pytest

from dyn_service.api.queries import COMPUTATIONS, QUERIES
from dyn_service.service.server.answering.service import Service
from tests.phrases import in_our_words
from tests.service.server import bad_inputs
from tests.service.server.bad_inputs import committed, every_case
from tests.wide import wide

REFUSED = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND", "UNIMPLEMENTED", "FAILED_PRECONDITION")


@pytest.fixture(scope="module")
def service() -> Service:
    return bad_inputs.served()


def reply_to(service: Service, payload: bytes) -> dict[str, Any]:
    reply: dict[str, Any] = msgpack.unpackb(service.handle(payload, perf_counter_ns()))
    return reply


def test_there_are_enough_and_of_every_kind() -> None:
    cases = committed()
    assert len(cases) >= 600
    assert len({case.payload for case in cases}) >= 600
    assert len({case.name for case in cases}) == len(cases)
    counts = Counter(case.name.split()[0].rstrip(":") for case in cases)
    assert set(COMPUTATIONS) <= set(counts)
    assert len(set(QUERIES) & set(counts)) > 25
    assert {case.code for case in cases} >= set(REFUSED) - {"FAILED_PRECONDITION"}


def test_each_is_refused_as_recorded(service: Service) -> None:
    wrong = []
    for case in committed():
        reply = reply_to(service, case.payload)
        error = reply.get("error", {})
        outcome = (reply["id"], error.get("code"), error.get("path"))
        assert in_our_words(error.get("message", "")), case.name
        if outcome != (case.id, case.code, case.path):
            wrong.append((case.name, outcome, (case.id, case.code, case.path)))
    assert not wrong


def refusals(service: Service) -> Iterator[tuple[bad_inputs.Case, dict[str, Any], float]]:
    for case in every_case():
        began = thread_time()
        reply = reply_to(service, case.payload)
        if not reply["ok"]:
            yield case, reply["error"], thread_time() - began


def test_each_wrong_value_is_refused_at_its_path(service: Service) -> None:
    """The cases are made from the current table, so that new rows, inputs and options are included."""
    kilobytes_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong, slow, rows = [], [], Counter[str]()
    for case, error, took_s in refusals(service):
        rows[case.name.split()[0].rstrip(":")] += 1
        is_named = error["code"] in REFUSED and (error.get("path") or "").startswith(case.about or "")
        if not is_named:
            wrong.append((case.name, error))
        if took_s > 1.0:  # a refusal takes milliseconds
            slow.append((case.name, took_s))
    assert not wrong
    assert not slow
    assert rows.keys() >= QUERIES.keys() | COMPUTATIONS.keys()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kilobytes_before < 200 << 10  # KiB


def test_the_service_still_answers(service: Service) -> None:
    row = QUERIES["gravity_forces"]
    assert reply_to(service, bad_inputs.asked(row, *bad_inputs.good(row)))["ok"]


ROWS = {**QUERIES, **COMPUTATIONS}
OVERLAID = [name for name, row in ROWS.items() if "overlay" in row.inputs]


def is_valid(service: Service, name: str, *left_out: str) -> None:
    row = ROWS[name]
    inputs, options = bad_inputs.good(row)
    inputs |= {
        key: bad_inputs.good_value(spec)
        for key, spec in row.inputs.items()
        if key in row.required or key not in ("p", *left_out)
    }
    reply = reply_to(service, bad_inputs.asked(row, inputs, options))
    assert reply["ok"], reply


@pytest.mark.parametrize("name", ROWS)
def test_the_unmodified_inputs_are_valid(service: Service, name: str) -> None:
    """Otherwise requests might be refused for another reason."""
    is_valid(service, name, "overlay")


@pytest.mark.parametrize("name", wide(OVERLAID, {"gravity_forces", "simulate"}.__contains__))
def test_with_an_overlay_too(service: Service, name: str) -> None:
    """All rows read it alike, and have a kernel of their own for it."""
    is_valid(service, name)
