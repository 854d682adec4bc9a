"""Servers whose workers tests share: each start of one imports the engine in a new process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dyn_service import Robot, Server
from dyn_service.service.server.workers.pool import Pool


@pytest.fixture(scope="module")
def one_worker(pendulum: Robot) -> Iterator[Server]:
    with Server([pendulum], endpoints=["tcp://127.0.0.1:0"], workers=1, allow_load=True) as server:
        yield server


@pytest.fixture
def single(one_worker: Server) -> Server:
    """A server of the pendulum with one idle worker, which has lost none since a test began."""
    from tests.service.server.test_pool import eventually

    pool = one_worker._worker
    assert isinstance(pool, Pool)
    eventually(lambda: not one_worker._dispatcher.waiting and pool.ready)
    eventually(lambda: len(pool._workers) == 1 and pool._workers[0].is_idle)
    one_worker.service.metrics.traffic.workers_lost = 0
    return one_worker
