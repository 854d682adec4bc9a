"""Metrics of a server: `stats`, and the export to Prometheus."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dyn_service import Client, InvalidArgumentError, Robot, Server
from dyn_service.cli.metrics import ServerCollector
from dyn_service.service.protocol.keys import make_keys, read_keys
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import Role
from dyn_service.service.server.administration.access import KeyFolder
from tests.cli.test_command_line import Here, dyn_here  # noqa: F401  # a fixture
from tests.conftest import ROOT
from tests.phrases import unnamed
from tests.service.conftest import WAIT_S

PAGE = (ROOT / "docs" / "metrics.md").read_text("utf-8")


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Returns the samples by name and label values."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return values


@pytest.fixture(scope="module")
def working(pendulum: Robot) -> Iterator[Server]:
    limits = RequestLimits(max_robots=3)
    with Server([pendulum], endpoints=["tcp://127.0.0.1:0"], limits=limits, workers=1) as server:
        yield server


def test_stats_contain_gauges_and_limits(working: Server) -> None:
    with Client(working.endpoints[0], timeout_s=WAIT_S) as client:
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
    page_samples = fetch(exporter)
    assert page_samples["dyn_up",] == 1
    assert page_samples["dyn_answer_seconds_count", "gravity_forces"] == 5
    assert page_samples["dyn_answer_seconds_bucket", "+Inf", "gravity_forces"] == 5
    assert page_samples["dyn_refused_total", "gravity_forces"] == 1
    assert page_samples["dyn_errors_total", "INVALID_ARGUMENT"] == 1
    assert page_samples["dyn_received_total",] >= 8
    assert page_samples["dyn_robots",] == 2
    assert page_samples["dyn_limit", "max_robots"] == RequestLimits().max_robots
    tcp_server.stop()
    assert fetch(exporter) == {("dyn_up",): 0, ("dyn_scrape_fault", "UNAVAILABLE"): 1}


def test_the_page_lists_all_metrics(working: Server) -> None:
    """docs/metrics.md names each family that is exported, and no other."""
    with Client(working.endpoints[0], timeout_s=WAIT_S) as client:
        families = list(ServerCollector(client).collect())
    exported = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    metric_names = set(re.findall(r"`(dyn_\w+)(?:\{\w+\})?`", PAGE.partition("## List of metrics")[2]))
    assert metric_names == exported | {"dyn_scrape_fault"}
    limits = next(family for family in families if family.name == "dyn_limit")
    assert {sample.labels["limit"] for sample in limits.samples} == set(RequestLimits.__struct_fields__)


def collected(client: Client) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in ServerCollector(client).collect()
        for sample in family.samples
    }


def test_a_refusal_differs_from_a_server_that_is_down(
    pendulum: Robot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = KeyFolder(tmp_path)
    admin = read_keys(folder.make("admin", Role.ADMIN))
    weak, stranger = read_keys(folder.make("weak", Role.QUERY)), make_keys("stranger", admin.server)
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"], keys="required", key_folder=folder)
    with server:
        endpoint = server.endpoints[0]
        with Client(endpoint, keys=admin, timeout_s=WAIT_S) as client:
            assert collected(client)["dyn_up",] == 1
            assert collected(client)["dyn_robots",] == 1
            assert capsys.readouterr().err == ""
        expected_samples = {("dyn_up",): 1, ("dyn_scrape_fault", "PERMISSION_DENIED"): 1}
        for keys, words in ((weak, "stats"), (stranger, "does not let the key 'stranger' in")):
            with Client(endpoint, keys=keys, timeout_s=WAIT_S) as client:
                assert collected(client) == expected_samples
                assert words in capsys.readouterr().err
        # the server does not answer clients without a key; its greeting, which tells the cause, comes before
        with Client(endpoint, timeout_s=2.0) as client:
            assert collected(client) == {("dyn_up",): 0, ("dyn_scrape_fault", "UNAVAILABLE"): 1}
            assert "--key" in capsys.readouterr().err


def test_a_fault_is_reported_once_per_change(tcp_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(tcp_server.endpoints[0], timeout_s=WAIT_S) as client:
        collector = ServerCollector(client)
        list(collector.collect())
        tcp_server.stop()
        client.timeout_s = 0.1
        for _ in range(3):
            list(collector.collect())
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("way", ["option", "variable"])
def test_the_command_takes_a_key(way: str, pendulum: Robot, tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    file = folder.make("prometheus", Role.ADMIN)
    bare = tmp_path / "bare.key"  # without the server's public key
    bare.touch(0o600)
    bare.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("server")))
    with Server([pendulum], endpoints=["tcp://127.0.0.1:0"], keys="required", key_folder=folder) as server:
        command = [sys.executable, "-m", "dyn_service", "metrics", "--server", server.endpoints[0]]
        if way == "option":
            command += ["--key", str(bare), "--server-key", folder.server_keys().public]
        environment = {**os.environ, **({"DYN_SERVICE_KEY": str(file)} if way == "variable" else {})}
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        with process.stdout as output:
            page_samples = fetch(output.readline().split()[1])
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 0
    assert page_samples["dyn_up",] == 1
    assert page_samples["dyn_robots",] == 1


@pytest.mark.parametrize("place", ["9755", "127.0.0.1:97550"])
def test_an_invalid_endpoint_is_refused(tcp_server: Server, place: str, dyn_here: Here) -> None:  # noqa: F811
    status, _, err = dyn_here("metrics", "--server", tcp_server.endpoints[0], "--listen", place)
    assert status != 0
    assert unnamed(err, "listen", "127.0.0.1:9755", f"'{place}'") == []
