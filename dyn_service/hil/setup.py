"""The setup of a test: the server, plant and controller of a launch file, with the test's own parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan, make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.middleware.node_kind import typed
from dyn_service.graph.nodes.controllers.controller_kind import ControllerKind
from dyn_service.graph.nodes.controllers.parameters import LoopParameters
from dyn_service.graph.nodes.plant.factory import PlantParameters
from dyn_service.hil.faults import PlantFault
from dyn_service.service.server.settings import ServerSettings
from dyn_service.support.documents import parse_document
from dyn_service.support.parameters import Parameters
from dyn_service.support.shipped import find_launch_file

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Setup:
    """Launch file and parameters of a test.

    launch: a launch file, or the name of a shipped one. arguments: of it. plant, controller: parameters of these
    nodes, which replace those of the file. folder: relative paths begin here.
    """

    launch: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    plant: Mapping[str, Any] = field(default_factory=dict)
    controller: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()


@dataclass(frozen=True)
class ResolvedSetup:
    """A setup's launch, planned, with the processes that a test is of. The server is None where the launch has none."""

    plan: LaunchPlan
    plant: ProcessPlan
    controller: ProcessPlan
    server: ProcessPlan | None

    @property
    def kind(self) -> ControllerKind[Any]:
        """What the controller is."""
        assert isinstance(self.controller.kind, ControllerKind)
        return self.controller.kind

    def plant_parameters(self) -> PlantParameters:
        """The plant's parameters."""
        return _parameters_of(self.plant, PlantParameters)

    def controller_parameters(self) -> LoopParameters:
        """The controller's."""
        kind: type[LoopParameters] = self.kind.parameters
        return _parameters_of(self.controller, kind)

    def server_settings(self) -> ServerSettings | None:
        """The server's settings; None without a server."""
        return None if self.server is None else _parameters_of(self.server, ServerSettings)

    def with_overrides(self, plant: Mapping[str, Any], controller: Mapping[str, Any]) -> ResolvedSetup:
        """The same with these parameters of the plant and the controller over their own."""
        first, second = with_parameters(self.plant, plant), with_parameters(self.controller, controller)
        by_name = {first.name: first, second.name: second}
        processes = tuple(by_name.get(process.name, process) for process in self.plan.processes)
        return ResolvedSetup(replace(self.plan, processes=processes), first, second, self.server)

    def with_faults(self, faults: Sequence[PlantFault]) -> ResolvedSetup:
        """Returns the setup with faults in its plant's parameters."""
        setup = self
        for fault in faults:
            setup = setup.with_overrides(fault.parameters(setup.plant_parameters()), {})
        return setup


def resolve(setup: Setup, folder: Path) -> ResolvedSetup:
    """The launch file's processes, with the parameters that the setup says.

    setup: The launch file and the changed parameters. folder: For sockets, `$(endpoint ..)`.

    Raises:
        NotFoundError: There is no such launch file.
        ConfigurationError: It is malformed, or a parameter is none of its node or of another type.
        InvalidArgumentError: It has not one plant and one controller.
    """
    local_path = setup.folder / setup.launch
    path = local_path if local_path.exists() else find_launch_file(setup.launch)
    plan = make_plan(read_launch_file(path), dict(setup.arguments), folder=folder)
    by_kind: dict[str, list[ProcessPlan]] = {"plant": [], "controller": [], "server": []}
    for process in plan.processes:
        kind = process.kind
        if isinstance(kind, ControllerKind):
            by_kind["controller"].append(process)
        elif kind is not None and kind.name in by_kind:
            by_kind[kind.name].append(process)
    for role in ("plant", "controller"):
        if len(by_kind[role]) != 1:
            raise InvalidArgumentError(f"{path} starts {len(by_kind[role])} {role}s: a test needs one {role}")
    server = by_kind["server"][0] if by_kind["server"] else None
    bench = ResolvedSetup(plan, by_kind["plant"][0], by_kind["controller"][0], server)
    return bench.with_overrides(setup.plant, setup.controller)


def with_parameters(process: ProcessPlan, values: Mapping[str, Any]) -> ProcessPlan:
    """The process with some parameters over its own."""
    if not values:
        return process
    # a copy: other tests of the session have the same plan
    parameters = Parameters(deepcopy(dict(process.parameters)))
    for name, value in values.items():
        text = json.dumps(msgspec.to_builtins(value))
        parameters.set(name, json.loads(text), parse_document(text, f"test: {name}"), ())
    assert process.kind is not None  # only registered nodes are asked for
    typed(parameters, process.kind.parameters)
    words = [word for name, value in values.items() for word in ("-p", f"{name}:={json.dumps(value)}")]
    return replace(process, command=(*process.command, *words), parameters=parameters.values)


def _parameters_of(process: ProcessPlan, kind: type[T]) -> T:
    return typed(Parameters(deepcopy(dict(process.parameters))), kind)[1]
