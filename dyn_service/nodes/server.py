"""The server node: `dyn serve` under a launcher. It is ready when it has answered `health` on its own endpoint."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from dyn_service.client.sync import Client
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.nodes.runtime import Node, run_node
from dyn_service.nodes.settings import ServerParameters
from dyn_service.robot import Robot
from dyn_service.server.app import Server

STATS_PERIOD_S = 1.0
_HEALTH_TIMEOUT_S = 10.0


def main(node: Node[ServerParameters]) -> None:
    """Serves the robots until the node is asked to stop."""
    p = node.parameters
    if not p.robots:
        raise InvalidArgumentError("robots is empty: name at least one URDF file")
    robots = [Robot.from_urdf(Path(path), root=p.root) for path in p.robots]
    for robot in robots:
        robot.prepare()
    node.telemetry.facts(
        {"role": "server", "endpoint": p.endpoint, "robots": {robot.name: robot.fingerprint for robot in robots}}
    )
    node.settle()
    server = Server(robots, endpoints=[p.endpoint])
    server.bind()
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


def _watch(node: Node[ServerParameters], server: Server, ended: threading.Event, faults: list[DynError]) -> None:
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


if __name__ == "__main__":
    raise SystemExit(run_node(main, ServerParameters, "server"))
