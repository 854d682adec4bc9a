"""Right answers under load, in counts: the short version of `python -m qa.load`."""

from __future__ import annotations

import pytest

from dyn_service import Client
from qa.load.clients import OTHERS, busy_client, loops
from qa.load.serving import served

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""


@pytest.mark.timeout(300)
def test_every_answer_is_there_and_right_whatever_else_the_server_does() -> None:
    with served() as (endpoint, _):
        for kind in OTHERS:
            with busy_client(endpoint, kind):
                seen = loops(endpoint, 2, 250.0, 1.0)
            for loop in seen:
                assert (loop.requests - loop.answers, loop.wrong, loop.errors) == (0, 0, {}), kind
                assert loop.requests > 10
        with Client(endpoint, timeout_s=240.0) as client:
            counters = client.stats()["counters"]
            assert (counters["dropped_slow_reader"], counters["workers_lost"], counters["cut_off"]) == (0, 0, 0)
