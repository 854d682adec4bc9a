"""`dyn metrics`: a server's metrics for Prometheus, from a separate process, so that the server is not delayed.

Each scrape sends the query `stats`. `dyn_up` is 0 if the server does not answer, and 1 if it answers or refuses, for
example because the key's role is not `admin`. In case of an error, `dyn_scrape_fault` has its code, standard error its
message, and no other metrics are returned. docs/metrics.md lists all metrics.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dyn_service.cli.console import say, tell
from dyn_service.errors import DeadlineExceededError, DynError, InvalidArgumentError, UnavailableError
from dyn_service.service.client.sync import Client
from dyn_service.service.protocol.endpoints import MAX_PORT

_UP = "Whether the server answers; a refusal is an answer."
_DOWN = (UnavailableError, DeadlineExceededError)


class ServerCollector:
    """Collects the metrics of a client's server for Prometheus."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reported_code = ""

    def collect(self) -> Iterator[Metric]:
        """Yields the server's current metrics."""
        try:
            stats = self._client.stats()
        except DynError as error:
            self._tell(error.code, f"error: {error}")
            yield GaugeMetricFamily("dyn_up", _UP, 0 if isinstance(error, _DOWN) else 1)
            fault = GaugeMetricFamily(
                "dyn_scrape_fault", "Code of the error because of which there are no other metrics.", labels=["code"]
            )
            fault.add_metric([error.code], 1)
            yield fault
            return
        self._tell("", f"{self._client.endpoint} answers")
        yield GaugeMetricFamily("dyn_up", _UP, 1)
        yield GaugeMetricFamily("dyn_uptime_seconds", "Since the server started.", stats["uptime_s"])
        text = "From a request's receipt to its answer."
        answer_times = HistogramMetricFamily("dyn_answer_seconds", text, labels=["query"])
        refusals = CounterMetricFamily("dyn_refused", "Requests that were refused.", labels=["query"])
        for query, record in stats["requests"].items():
            counts, total = [], 0
            for power, count in enumerate(record["buckets"]):
                total += count
                # Prometheus expects cumulative counts
                counts.append((repr((1 << power) * 1e-6), total))
            buckets = [*counts, ("+Inf", record["answered"])]
            answer_times.add_metric([query], buckets, sum_value=record["total_us"] * 1e-6)
            refusals.add_metric([query], record["refused"])
        yield answer_times
        yield refusals
        errors = CounterMetricFamily("dyn_errors", "Refusals by their code.", labels=["code"])
        for code, count in stats["errors"].items():
            errors.add_metric([code], count)
        yield errors
        for name, count in stats["counters"].items():
            yield CounterMetricFamily(f"dyn_{name}", name.replace("_", " "), count)
        for name, value in stats["gauges"].items():
            yield GaugeMetricFamily(f"dyn_{name}", name.replace("_", " "), value)
        limits = GaugeMetricFamily("dyn_limit", "What the server allows.", labels=["limit"])
        for name, value in stats["limits"].items():
            limits.add_metric([name], value)
        yield limits

    def _tell(self, code: str, line: str) -> None:
        """Writes a line to standard error when the error's code changes."""
        if code != self._reported_code:
            self._reported_code = code
            tell(line)


def serve_metrics(endpoint: str, listen: str, keys: Path | None = None, server_key: str | None = None) -> None:
    """Serves metrics at `http://HOST:PORT/metrics` until SIGINT.

    listen: `HOST:PORT`. keys: a key file, for a server that requires keys; `stats` needs the role `admin`.

    Raises:
        InvalidArgumentError: `listen` is not HOST:PORT.
        UnavailableError: The address cannot be used.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port[:9]) > MAX_PORT:
        raise InvalidArgumentError(f"listen must look like 127.0.0.1:9755, found '{listen}'", path="listen")
    registry = CollectorRegistry()
    with Client(endpoint, keys=keys, server_key=server_key) as client:
        registry.register(ServerCollector(client))
        try:
            server, thread = start_http_server(int(port), host, registry)
        except OSError as fault:
            raise UnavailableError(f"cannot listen on {listen}: {fault.strerror}", path="listen") from None
        try:
            # scripts wait for this line: from here on SIGINT ends the loop
            say(f"ready: http://{host}:{server.server_port}/metrics of {endpoint}")
            while thread.is_alive():
                time.sleep(1.0)
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()
            server.server_close()
