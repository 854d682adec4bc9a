"""What is to be started: the outcome of planning a launch file, and all that supervision and reports know of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dyn_service.graph.middleware.telemetry import NodeTelemetry
from dyn_service.graph.nodes.registry import PACKAGE, Kind, Registry

REPORT_KEYS = (
    "schema", "created", "launch", "robot", "duration_s", "outcome", "processes", "nodes", "versions",
)  # fmt: skip
"""What a report says of every launch: no node's panel may have such a name."""


@dataclass(frozen=True)
class ProcessPlan:
    """A process to start and how to keep it.

    name: unique in the launch. reports: whether it says by itself when it is ready, and ready_timeout_s for how long it
    may not. heartbeat_timeout_s: a node that has sent heartbeats and sends none for so long is hung; 0 is off.
    respawn_max_retries: -1 for no limit. on_exit_shutdown: its end, with status 0 too, ends the launch. kind: what a
    registered node declares.
    """

    name: str
    command: tuple[str, ...]
    where: str
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    output: str = "screen"
    reports: bool = False
    ready_timeout_s: float = math.inf
    heartbeat_timeout_s: float = 0.0
    respawn: bool = False
    respawn_delay_s: float = 0.0
    respawn_max_retries: int = -1
    on_exit_shutdown: bool = False
    sigterm_timeout_s: float = 5.0
    sigkill_timeout_s: float = 5.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind | None = None


@dataclass(frozen=True)
class LaunchPlan:
    """The processes of a launch in the order of the file, the arguments as they came out, and the nodes there are."""

    file: Path
    arguments: Mapping[str, str]
    processes: tuple[ProcessPlan, ...]
    registry: Registry = field(default_factory=Registry)

    def kind_of(self, name: str, node: NodeTelemetry | None) -> Kind | None:
        """What the node of that name declares: as planned, else, for one of ours that runs as an executable, by its
        fact `role`.
        """
        planned = next((process.kind for process in self.processes if process.name == name), None)
        role = None if planned is not None or node is None else node.fact("role")
        return self.registry.find(PACKAGE, role) if isinstance(role, str) else planned
