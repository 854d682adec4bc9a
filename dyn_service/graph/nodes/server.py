"""The server node: `dyn serve` under a launcher. It is ready when its first endpoint has answered `health`.

From then on a thread calls `health` several times a second; each response proves that the server's loop works, and
sends a heartbeat.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from dyn_service.errors import DeadlineExceededError, DynError, UnavailableError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.node_kind import NodeKind
from dyn_service.graph.middleware.telemetry import BEAT_PERIOD_S
from dyn_service.service.client.sync import Client
from dyn_service.service.server.administration.access import KeyFolder
from dyn_service.service.server.settings import NODE as NAME
from dyn_service.service.server.settings import ServerSettings
from dyn_service.service.server.transport.endpoints import needs_keys
from dyn_service.support.realtime import apply
from dyn_service.support.threads import join_within

if TYPE_CHECKING:
    from dyn_service.service.server.app import Server

STATS_PERIOD_S = 1.0
_HEALTH_TRIES, _TRY_S = 40, 0.25
"""Number and timeout of the first `health` calls; if the loop ends, waiting ends with the present call."""
_WATCHER_S = 10.0
"""Longest wait for the thread that sends heartbeats; a call of `health` in it takes up to a second."""
_LOG = logging.getLogger(__name__)


def main(node: Node[ServerSettings]) -> None:
    """Serves the robots until the node is asked to stop."""
    # imported late: a launcher reads only the declaration below and needs no engine
    from dyn_service.service.server.app import open_server

    with node.stop.at_once():
        server = open_server(node.parameters, _LOG.info)
    server.bind()
    robots = {name: robot.fingerprint for name, robot in server.service.robots.items()}
    node.telemetry.facts({"role": "server", "endpoints": server.endpoints, "robots": robots})
    node.freeze_garbage_collector()
    done = apply(node.parameters.realtime, _LOG.warning, polls=False)
    if done:
        _LOG.info(done)
    ending = threading.Event()
    faults: list[DynError] = []
    # a heartbeat from the server's own loop would not prove that it answers
    watcher = threading.Thread(target=_watch, args=(node, server, ending, faults), daemon=True)

    def begin() -> None:
        """Called when the loop begins and the server handles signals."""
        if node.stop.requested:  # by a signal before that
            signal.raise_signal(signal.SIGTERM)
        else:
            watcher.start()

    try:
        if node.stop.requested:
            server.stop()
        else:
            server.serve_forever(begin)
    finally:
        ending.set()
        if watcher.ident is not None:
            join_within(watcher, _WATCHER_S, "the thread that sends heartbeats")
    if faults:
        raise faults[0]


def _watch(node: Node[ServerSettings], server: Server, ending: threading.Event, faults: list[DynError]) -> None:
    """Reports ready when the server answers, then sends heartbeats and stats, all from this thread."""
    p, endpoint = node.parameters, server.endpoints[0]
    keys = KeyFolder(p.keys_folder).own_keys() if needs_keys(endpoint, p.keys) else None
    with Client(endpoint, timeout_s=_TRY_S, keys=keys) as client:
        fault = _until_it_answers(client, ending)
        if ending.is_set():
            return
        if fault is not None:
            faults.append(fault)
            server.stop()
            return
        node.say_answers_at(server.endpoints)
        node.telemetry.ready()
        client.timeout_s = STATS_PERIOD_S
        answered_before, last_s = 0, time.monotonic()
        while not ending.wait(BEAT_PERIOD_S):
            node.spin_once()
            # without a response no heartbeat is sent
            with suppress(DynError):
                client.health()
                node.telemetry.beat()
            now = time.monotonic()
            if now - last_s >= STATS_PERIOD_S:
                answered_before, last_s = _stats(node, server, answered_before, now - last_s), now
        _stats(node, server, answered_before, time.monotonic() - last_s)


def _until_it_answers(client: Client, ending: threading.Event) -> DynError | None:
    """Waits for the first response or the end of the loop; returns the error, or None."""
    fault: DynError | None = None
    for _ in range(_HEALTH_TRIES):
        try:
            client.health()
            return None
        except (UnavailableError, DeadlineExceededError) as error:
            fault = error
        except DynError as error:
            return error
        if ending.is_set():
            break
    return fault


def _stats(node: Node[ServerSettings], server: Server, answered_before: int, elapsed_s: float) -> int:
    """Sends the server's stats; returns the number of answered requests, without `health`."""
    metrics = server.service.metrics.to_dict()
    answered_count: int = sum(record["answered"] for query, record in metrics["requests"].items() if query != "health")
    rate = (answered_count - answered_before) / max(elapsed_s, 1e-9)
    node.telemetry.stats({"answered": answered_count, "refused": sum(metrics["errors"].values()), "rate_hz": rate})
    return answered_count


NODE = NodeKind(
    NAME,
    ServerSettings,
    main,
    launched={"endpoints": ["$(endpoint dynamics)"], "allow_load": False},  # private to the launch by default
    about="The dynamics server: answers requests about robots over ZeroMQ, as `dyn serve`.",
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
