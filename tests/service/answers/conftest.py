"""One server of the scara and one client of it, for all tests of its answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dyn_service import Client, Robot, Server


@pytest.fixture(scope="session")
def scara_server(scara: Robot) -> Iterator[Server]:
    with Server([scara], endpoints=["tcp://127.0.0.1:0"]) as server:
        yield server


@pytest.fixture(scope="session")
def client(scara_server: Server) -> Iterator[Client]:
    with Client(scara_server.endpoints[0], timeout_s=240.0) as client:
        yield client
