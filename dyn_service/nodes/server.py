"""The server node: `dyn serve` under a launcher. It is ready when it has answered `health` on its first endpoint."""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from dyn_service.client.sync import Client
from dyn_service.errors import DynError
from dyn_service.nodes.kinds import NodeKind
from dyn_service.nodes.runtime import Node
from dyn_service.server.settings import NODE as NAME
from dyn_service.server.settings import ServerSettings

if TYPE_CHECKING:
    from dyn_service.server.app import Server

STATS_PERIOD_S = 1.0
_HEALTH_TIMEOUT_S = 10.0


def main(node: Node[ServerSettings]) -> None:
    """Serves the robots until the node is asked to stop."""
    # the engine: a launcher, which reads the declaration below, does without
    from dyn_service.server.opening import open_server

    server = open_server(node.parameters, partial(print, file=sys.stderr, flush=True))
    server.bind()
    robots = {name: robot.fingerprint for name, robot in server.service.robots.items()}
    node.telemetry.facts({"role": "server", "endpoints": server.endpoints, "robots": robots})
    node.freeze_garbage_collector()
    ended = threading.Event()
    faults: list[DynError] = []
    watcher = threading.Thread(target=_watch, args=(node, server, ended, faults), daemon=True)
    watcher.start()
    if not node.stop.requested:
        server.serve_forever()
    ended.set()
    watcher.join()
    if faults:
        raise faults[0]


def _watch(node: Node[ServerSettings], server: Server, ended: threading.Event, faults: list[DynError]) -> None:
    """Says that the server is ready once it answers, then sends its numbers; the launcher's socket is this thread's."""
    try:
        with Client(server.endpoints[0], timeout_s=_HEALTH_TIMEOUT_S) as client:
            client.health()
    except DynError as error:
        if not ended.is_set():
            faults.append(error)
            server.stop()
        return
    node.telemetry.ready()
    before, since = 0, time.monotonic()
    while True:
        over = ended.wait(STATS_PERIOD_S)
        found = server.service.metrics.to_dict()
        answered = sum(record["answered"] for record in found["requests"].values())
        now = time.monotonic()
        node.telemetry.stats(
            {
                "answered": answered,
                "refused": sum(found["errors"].values()),
                "rate_hz": (answered - before) / max(now - since, 1e-9),
            }
        )
        before, since = answered, now
        if over:
            return


NODE = NodeKind(NAME, ServerSettings, main)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
