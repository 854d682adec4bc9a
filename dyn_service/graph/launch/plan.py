"""The plan of a launch: the processes to start, as the planner returns it."""

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
"""Reserved names of a report; a node's panel cannot have them."""


@dataclass(frozen=True)
class ProcessPlan:
    """A process to start and how to supervise it.

    name: unique in the launch. reports: whether it reports that it is ready, within ready_timeout_s.
    heartbeat_timeout_s: a node without heartbeats for this long is hung; 0: off. respawn_max_retries: -1: no limit.
    on_exit_shutdown: whether its exit, also with status 0, ends the launch. kind: the declaration of a registered node.
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
    """The processes of a launch in the order of the file, the values of its arguments, and its nodes."""

    file: Path
    arguments: Mapping[str, str]
    processes: tuple[ProcessPlan, ...]
    registry: Registry = field(default_factory=Registry)

    def kind_of(self, name: str, node: NodeTelemetry | None) -> Kind | None:
        """Returns the declaration of a node: as planned, or by its fact `role` for a node started as an executable."""
        planned = next((process.kind for process in self.processes if process.name == name), None)
        role = None if planned is not None or node is None else node.fact("role")
        return self.registry.find(PACKAGE, role) if isinstance(role, str) else planned
