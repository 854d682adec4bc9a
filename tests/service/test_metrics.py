"""What a server tells of itself: its own numbers, and the same for Prometheus."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dyn_service import Client, InvalidArgumentError, Robot, Server
from dyn_service.protocol.limits import RequestLimits
from tests.service.conftest import WAIT_MS

WAIT_S = WAIT_MS / 1e3


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and labels' values, these by the labels' names."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_stats_show_what_stands_now_and_what_is_allowed(pendulum: Robot) -> None:
    limits = RequestLimits(max_robots=3)
    with Server([pendulum], endpoints=["tcp://127.0.0.1:0"], limits=limits, workers=1) as server:
        with Client(server.endpoints[0], timeout_s=WAIT_S) as client:
            client.robot("pendulum").mass_matrix(np.zeros((3000, 1)))
            stats = client.stats()
        gauges = stats["gauges"]
        assert (gauges["connections"], gauges["robots"], gauges["workers"]) == (1, 1, 1)
        assert (gauges["workers_busy"], gauges["waiting"], gauges["unread_bytes"]) == (0, 0, 0)
        assert gauges["memory_bytes"] > 1 << 20
        assert stats["limits"]["max_robots"] == 3
        assert set(stats["limits"]) == set(RequestLimits.__struct_fields__)
        record = stats["requests"]["mass_matrix"]
        assert sum(record["buckets"]) == record["answered"] == 1
        assert 1 << (len(record["buckets"]) - 1) > record["max_us"] >= 1 << (len(record["buckets"]) - 2)


@pytest.fixture
def exporter(tcp_server: Server) -> Any:
    command = [sys.executable, "-m", "dyn_service", "metrics", "--server", tcp_server.endpoints[0]]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().split()[1]
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0
    process.stdout.close()


def fetch(url: str) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return samples(answer.read().decode())


def test_prometheus_reads_the_same(exporter: str, tcp_server: Server) -> None:
    with Client(tcp_server.endpoints[0], timeout_s=WAIT_S) as client:
        robot = client.robot("pendulum")
        for _ in range(5):
            robot.gravity_forces([0.5])
        with pytest.raises(InvalidArgumentError):
            robot.gravity_forces([0.5, 0.5])
    found = fetch(exporter)
    assert found["dyn_up",] == 1
    assert found["dyn_answer_seconds_count", "gravity_forces"] == 5
    assert found["dyn_answer_seconds_bucket", "+Inf", "gravity_forces"] == 5
    assert found["dyn_refused_total", "gravity_forces"] == 1
    assert found["dyn_errors_total", "INVALID_ARGUMENT"] == 1
    assert found["dyn_received_total",] >= 8
    assert found["dyn_robots",] == 2
    assert found["dyn_limit", "max_robots"] == RequestLimits().max_robots
    tcp_server.stop()
    assert fetch(exporter) == {("dyn_up",): 0}


def test_a_place_to_listen_that_is_none(tcp_server: Server) -> None:
    command = [sys.executable, "-m", "dyn_service", "metrics", "--server", tcp_server.endpoints[0], "--listen", "9755"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode != 0
    assert "listen must look like 127.0.0.1:9755, found '9755'" in done.stderr
