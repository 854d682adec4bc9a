"""The server node: `dyn serve` under a launcher. It is ready when it has answered `health` on its own endpoint."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dyn_service.client.sync import Client
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.model.description import RootType
from dyn_service.nodes.kinds import NodeKind
from dyn_service.nodes.runtime import Node

if TYPE_CHECKING:
    from dyn_service.server.app import Server

STATS_PERIOD_S = 1.0
_HEALTH_TIMEOUT_S = 10.0


class ServerParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the server node: the URDF files it serves, how their root links move, the endpoint it binds."""

    robots: list[str]
    root: RootType = "fixed"
    endpoint: str = "tcp://127.0.0.1:5755"


def main(node: Node[ServerParameters]) -> None:
    """Serves the robots until the node is asked to stop."""
    # the engine: a launcher, which reads the declaration below, does without
    from dyn_service.engine.robot import Robot
    from dyn_service.server.app import Server

    p = node.parameters
    if not p.robots:
        raise InvalidArgumentError("robots is empty: name at least one URDF file")
    robots = [Robot.from_urdf(Path(path), root=p.root) for path in p.robots]
    for robot in robots:
        robot.prepare()
    node.telemetry.facts(
        {"role": "server", "endpoint": p.endpoint, "robots": {robot.name: robot.fingerprint for robot in robots}}
    )
    node.freeze_garbage_collector()
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


NODE = NodeKind("server", ServerParameters, main)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
