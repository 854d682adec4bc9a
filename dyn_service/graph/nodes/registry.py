"""Finds nodes by package and name: those of this package, and those that other packages register.

    [project.entry-points."dyn_service.nodes"]
    thermometer = "my_robot.nodes.thermometer:NODE"

registers the `NodeKind` that stands there as node `thermometer` of package `my_robot`.
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
from dyn_service.graph import MODULES
from dyn_service.graph.middleware.node_kind import NodeKind, Panel

GROUP = "dyn_service.nodes"
PACKAGE = "dyn_service"
Kind = NodeKind[Any]


class Registry:
    """The nodes there are. A node's module is imported when it is asked for, and only then."""

    def __init__(self) -> None:
        # our own come from a table: what is installed may be older than the sources that run
        own = [EntryPoint(name, f"{module}:NODE", GROUP) for name, module in MODULES.items()]
        others = [entry for entry in entry_points(group=GROUP) if _package(entry) != PACKAGE]
        self._entries = {(_package(entry), entry.name): entry for entry in (*own, *others)}
        self._kinds: dict[tuple[str, str], Kind] = {}

    def names(self, package: str) -> list[str]:
        """The names of the package's nodes."""
        return [name for home, name in self._entries if home == package]

    def all_names(self) -> list[tuple[str, str]]:
        """Package and name of all nodes."""
        return list(self._entries)

    def module(self, package: str, name: str) -> str:
        """The module that runs as the node: the one that declares it, or `PACKAGE.nodes.NAME` if none is registered."""
        entry = self._entries.get((package, name))
        return f"{package}.nodes.{name}" if entry is None else entry.module

    def find(self, package: str, name: str) -> Kind | None:
        """The node's declaration, or None where it is not registered.

        Raises:
            InvalidArgumentError: Its module cannot be imported, or does not hold a `NodeKind` there.
        """
        key = package, name
        if key not in self._kinds:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._kinds[key] = _load(f"node {name!r} of package {package!r}", entry.load, entry.value)
        return self._kinds[key]

    def in_file(self, path: Path) -> Kind:
        """The declaration `NODE` of a Python file that is in no package.

        Raises:
            InvalidArgumentError: There is no such file, it cannot be run, or it has no `NodeKind` of that name.
        """
        key = "", str(path)
        if key not in self._kinds:
            if not path.is_file():
                raise InvalidArgumentError(f"there is no file {str(path)!r}")
            self._kinds[key] = _load(f"node {str(path)!r}", lambda: getattr(run_file(path), "NODE", None), "NODE")
        return self._kinds[key]


def clash(kinds: Iterable[tuple[str, Kind]], taken: Iterable[str]) -> str | None:
    """Why panels cannot stand in one report, or None. kinds: each with a name for it. taken: the report's own keys.

    A panel that several kinds have, such as those of all controllers, is one.
    """
    owners: dict[str, tuple[str, Panel | None]] = dict.fromkeys(taken, ("the report itself", None))
    for name, kind in kinds:
        for panel in kind.panels:
            owner, theirs = owners.setdefault(panel.section, (name, panel))
            if owner != name and theirs != panel:
                return f"section {panel.section!r} of the report is that of {owner}: {name} cannot have it too"
    return None


def _load(name: str, load: Callable[[], Any], where: str) -> Kind:
    try:
        found = load()
    except Exception as error:
        raise InvalidArgumentError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, NodeKind):
        raise InvalidArgumentError(f"{name}: {where!r} is not a NodeKind")
    return found


def run_file(path: Path) -> ModuleType:
    """The file as a module, under a name that no other module has."""
    name = f"_dyn_node_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # types are looked up there
    spec.loader.exec_module(module)
    return module


def _package(entry: EntryPoint) -> str:
    return entry.module.partition(".")[0]
