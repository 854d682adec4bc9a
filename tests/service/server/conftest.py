"""Servers whose workers tests share: each start of one imports the engine in a new process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dyn_service import Robot, Server
from tests.service.conftest import eventually
from tests.service.server.pools import are_idle
from tests.service.server.raw_peers import gauges


@pytest.fixture(scope="module")
def one_worker(pendulum: Robot) -> Iterator[Server]:
    with Server([pendulum], endpoints=["tcp://127.0.0.1:0"], workers=1, allow_load=True) as server:
        yield server


@pytest.fixture
def single(one_worker: Server) -> Server:
    """A server of the pendulum with one idle worker, which has lost none since a test began."""
    eventually(lambda: not gauges(one_worker)["waiting"] and are_idle(one_worker, 1))
    one_worker.service.metrics.traffic.workers_lost = 0
    return one_worker
