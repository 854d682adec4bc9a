"""The short version of `python -m qa.faults closes`."""

from __future__ import annotations

import socket

import pytest

from dyn_service.service.server.transport.connections import ServerConnection
from qa.faults import closes

pytestmark = pytest.mark.slow
"""In wall time, with closes that wait for peers: `python -m pytest -m slow`."""


def test_servers_and_clients_close_whatever_their_peers_do_and_leave_nothing() -> None:
    report = closes.run(40, seed=1, jobs=8)
    assert (report.rounds, report.faults) == (40, [])
    assert set(report.peers) == set(closes.PEERS)
    assert sum(len(durations_s) for kind, durations_s in report.durations_s.items() if kind.startswith("server")) == 40


def test_a_descriptor_that_is_left_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[socket.socket] = []
    close = ServerConnection.close

    def close_half(connection: ServerConnection) -> None:
        copies.append(connection.socket.dup())
        close(connection)

    monkeypatch.setattr(ServerConnection, "close", close_half)
    try:
        report = closes.run(10, seed=1, jobs=2)
    finally:
        for copy in copies:
            copy.close()
    assert copies
    assert any(fault.startswith("descriptors and threads:") for fault in report.faults)
