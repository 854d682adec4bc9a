"""Finds nodes by package and name: those of this package, and those registered by other packages.

    [project.entry-points."dyn_service.nodes"]
    thermometer = "my_robot.nodes.thermometer:NODE"

registers that `NodeKind` as node `thermometer` of package `my_robot`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.node_kind import NodeKind, Panel

GROUP = "dyn_service.nodes"
PACKAGE = "dyn_service"
Kind = NodeKind[Any]

SHIPPED = {
    "server": "dyn_service.graph.nodes.server",
    "plant": "dyn_service.graph.nodes.plant.node",
    "controller": "dyn_service.graph.nodes.controllers.computed_torque",
    "robot_state_publisher": "dyn_service.graph.nodes.robot_state_publisher",
    "payload_estimator": "dyn_service.graph.nodes.payload_estimator",
    "ros2_bridge": "dyn_service.graph.nodes.ros2_bridge",
    "gravity_compensation": "dyn_service.graph.nodes.controllers.gravity_compensation",
    "joint_impedance": "dyn_service.graph.nodes.controllers.joint_impedance",
    "collision_stop": "dyn_service.graph.nodes.controllers.collision_stop",
    "cartesian_impedance": "dyn_service.graph.nodes.controllers.cartesian_impedance",
    "trajectory_following": "dyn_service.graph.nodes.controllers.trajectory_following",
    "admittance": "dyn_service.graph.nodes.controllers.admittance",
}
"""The modules of this package's nodes, which each declare `NODE`. They are not entry points too: the metadata of an
installation may be older than the running sources."""


class Registry:
    """All known nodes. A node's module is imported when it is first requested."""

    def __init__(self) -> None:
        shipped = [EntryPoint(name, f"{module}:NODE", GROUP) for name, module in SHIPPED.items()]
        # versions up to 0.2.0 installed their own nodes as entry points too
        foreign = [entry for entry in entry_points(group=GROUP) if _package(entry) != PACKAGE]
        self._entries = {(_package(entry), entry.name): entry for entry in (*shipped, *foreign)}
        self._kinds: dict[tuple[str, str], Kind] = {}

    def names(self, package: str) -> list[str]:
        """Returns the names of the package's nodes."""
        return [name for home, name in self._entries if home == package]

    def all_names(self) -> list[tuple[str, str]]:
        """Returns package and name of all nodes."""
        return list(self._entries)

    def module(self, package: str, name: str) -> str:
        """Returns the module that declares the node, or `PACKAGE.nodes.NAME` if it is not registered."""
        entry = self._entries.get((package, name))
        return f"{package}.nodes.{name}" if entry is None else entry.module

    def find(self, package: str, name: str) -> Kind | None:
        """Returns the node's declaration, or None if it is not registered.

        Raises:
            InvalidArgumentError: Its module cannot be imported, or has no such `NodeKind`.
        """
        key = package, name
        if key not in self._kinds:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._kinds[key] = _load(f"node {name!r} of package {package!r}", entry.load, entry.value)
        return self._kinds[key]

    def in_file(self, path: Path) -> Kind:
        """Returns the declaration `NODE` of a Python file outside of any package.

        Raises:
            InvalidArgumentError: The file does not exist, cannot be run, or has no `NodeKind` with this name.
        """
        key = "", str(path)
        if key not in self._kinds:
            if not path.is_file():
                raise InvalidArgumentError(f"there is no file {str(path)!r}")
            self._kinds[key] = _load(f"node {str(path)!r}", lambda: getattr(run_file(path), "NODE", None), "NODE")
        return self._kinds[key]


def clash(kinds: Iterable[tuple[str, Kind]], report_keys: Iterable[str]) -> str | None:
    """Returns a message on panels with the same section, or None.

    kinds: with their names. report_keys: of the report itself.

    Equal panels of several kinds, such as those of all controllers, do not clash.
    """
    owners: dict[str, tuple[str, Panel | None]] = dict.fromkeys(report_keys, ("the report itself", None))
    for name, kind in kinds:
        for panel in kind.panels:
            owner, owner_panel = owners.setdefault(panel.section, (name, panel))
            if owner != name and owner_panel != panel:
                return f"section {panel.section!r} of the report belongs to {owner}: {name} cannot have it too"
    return None


def _load(name: str, load: Callable[[], Any], reference: str) -> Kind:
    try:
        kind = load()
    except Exception as error:
        raise InvalidArgumentError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(kind, NodeKind):
        raise InvalidArgumentError(f"{name}: {reference!r} is not a NodeKind")
    return kind


def run_file(path: Path) -> ModuleType:
    """Runs the file and returns it as a module with a unique name."""
    name = f"_dyn_node_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # needed to resolve its types
    spec.loader.exec_module(module)
    return module


def _package(entry: EntryPoint) -> str:
    return entry.module.partition(".")[0]
