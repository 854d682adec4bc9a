"""The fuzzing targets without a fuzzer: they hold for what they begin from, and notice what they are for."""

from __future__ import annotations

import random
from time import process_time

import pytest

from dyn_service.errors import InternalError
from qa.fuzz import hangs
from qa.fuzz.hangs import check_time
from qa.fuzz.targets import TARGETS, Decoder

ROUNDS = 150


@pytest.mark.parametrize("name", TARGETS)
def test_what_it_begins_from_and_what_that_becomes(name: str) -> None:
    """150 inputs, changed along their structure by a fixed seed; a fuzzer goes on from here by coverage."""
    target = TARGETS[name]()
    seeds = list(target.seeds())
    assert len(seeds) > 20
    choose = random.Random(5)
    for number in range(ROUNDS):
        data = choose.choice(seeds)
        for _ in range(choose.randrange(3)):
            data = target.mutated(data, number) or data
        target.try_one(data)


def test_a_defect_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Decoder()
    seed = next(target.seeds())
    target.try_one(seed)
    refuse = target._service.refuse
    monkeypatch.setattr(target._service, "answer_single_state", lambda payload, received_ns: None)
    monkeypatch.setattr(target._service, "answer", lambda job: refuse(job.request, InternalError("a defect")))
    with pytest.raises(AssertionError, match="INTERNAL"):
        target.try_one(seed)


def test_a_hang_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "HANG_S", 0.02)
    monkeypatch.setattr(hangs, "DICTIONARY_STEPS", hangs.DICTIONARY_STEPS // 10)

    def busy() -> None:
        began, limit_s = process_time(), 3.0 * max(hangs.HANG_S, hangs.pace_s())
        while process_time() - began < limit_s:
            pass

    with pytest.raises(TimeoutError, match="an input took"):
        check_time(busy)
    check_time(lambda: None)
