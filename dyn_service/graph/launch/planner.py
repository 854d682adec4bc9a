"""Plans of launches: launch file and arguments -> processes to start (`LaunchPlan`).

Nothing is started here, so that all faults of launch and parameter files are reported before the first process starts.
Parameters of registered nodes (`graph/nodes/registry.py`) are checked against their types here, those of others by the
nodes.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dyn_service.errors import DynError, InvalidArgumentError, UnavailableError
from dyn_service.graph.launch import schema
from dyn_service.graph.launch.schema import LaunchFile, Placed
from dyn_service.graph.launch.substitutions import FileValues, as_written, substitute
from dyn_service.graph.middleware import topics
from dyn_service.graph.middleware.node_kind import typed
from dyn_service.graph.middleware.telemetry import NodeTelemetry
from dyn_service.graph.nodes.registry import PACKAGE, Kind, Registry, clash
from dyn_service.support.arguments import full_name
from dyn_service.support.documents import Document, parse_document, read_document
from dyn_service.support.logs import Level
from dyn_service.support.parameters import Parameters, section_names, strangers
from dyn_service.support.shipped import find_parameter_file
from dyn_service.support.suggestions import did_you_mean
from dyn_service.support.validation import Place, dotted, suggestion

_MAX_INCLUDES = 16
SERVER_ENDPOINT = "DYN_SERVER_ENDPOINT"
"""Environment variable with `$(endpoint dynamics)`, for launch files that ROS 2 also reads: `$(env NAME ..)`."""


def make_plan(
    launch: LaunchFile,
    arguments: Mapping[str, str],
    *,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> LaunchPlan:
    """Returns the plan of a launch file.

    arguments: `name:=value` from the command line; `params`, unless the file declares it, is a parameter file that each
    node reads last. environment: variables for `$(env ..)`, by default those of the process; `SERVER_ENDPOINT` is added
    if missing. folder: of the launch, for sockets (`$(endpoint ..)`) and parameter files with substitutions
    (`allow_substs`).

    Raises:
        InvalidArgumentError: An argument is unknown or missing; lists the declared ones.
        ConfigurationError: The file is invalid; names the line, the place and the fault.
    """
    seen = dict(environment)
    if folder is not None:
        seen.setdefault(SERVER_ENDPOINT, topics.endpoint("dynamics", "/", {}, folder))
    planner = _Planner(arguments, seen, folder)
    own = {placed.action.name for placed in launch.actions if isinstance(placed.action, schema.Arg)}
    if "params" in set(arguments) - own:
        planner.last = read_document(find_parameter_file(arguments["params"]).resolve())
        planner.files[planner.last.file] = planner.last
    planner.run(launch, {})
    unknown = sorted(set(arguments) - set(planner.declared) - ({"params"} if planner.last else set()))
    if unknown:
        near = did_you_mean(unknown[0], planner.declared)
        raise InvalidArgumentError(
            f"unknown launch argument {unknown[0]!r}; declared are: {planner.list_declared()}{near}", path=unknown[0]
        )
    if not planner.processes:
        raise launch.document.fault("the launch starts no process", ("launch",))
    for document in planner.files.values():
        for section, place in strangers(document, [*planner.nodes, *planner.skipped_nodes]):
            near = did_you_mean(section, [name for node in planner.nodes for name in (node, node.rpartition("/")[2])])
            raise document.fault(
                f"section {section!r} is for none of the launch's nodes: {', '.join(planner.nodes)}{near}", place[:-1]
            )
    return LaunchPlan(launch.path, planner.values, tuple(planner.processes), planner.registry, tuple(planner.messages))


class _Planner:
    """Plans the actions in the order of the file."""

    def __init__(self, arguments: Mapping[str, str], environment: dict[str, str], folder: Path | None) -> None:
        self.arguments = arguments
        self.environment = environment
        self.folder = folder
        self.declared: dict[str, schema.Arg] = {}
        self.values: dict[str, str] = {}
        self.processes: list[ProcessPlan] = []
        self.messages: list[tuple[Level, str]] = []
        self.registry = Registry()
        self.kinds: dict[str, Kind] = {}
        self.files: dict[str, Document] = {}
        self.last: Document | None = None
        self.nodes: list[str] = []
        self.skipped_nodes: list[str] = []
        self._names: set[str] = set()
        self._files: list[tuple[Path, bool]] = []  # that include each other, and whether they are skipped

    def run(self, launch: LaunchFile, given: Mapping[str, str], *, skipped: bool = False) -> None:
        """Plans one file. given: the arguments from an including file. skipped: see `_FilePlanner`."""
        if len(self._files) == _MAX_INCLUDES:
            raise launch.document.fault(f"launch files include each other more than {_MAX_INCLUDES} deep")
        if (launch.path, True) in self._files:
            return  # skipped files may include each other if a condition ends the recursion
        self._files.append((launch.path, skipped))
        try:
            _FilePlanner(self, launch, given, skipped=skipped).walk(launch.actions)
        finally:
            self._files.pop()

    def list_declared(self) -> str:
        """Returns the declared arguments with their defaults, as text."""
        shown = [
            name if arg.default is None else f"{name} (default {as_written(arg.default)!r})"
            for name, arg in self.declared.items()
        ]
        return ", ".join(shown) or "none"

    def add(self, plan: ProcessPlan) -> None:
        """Adds a process under a unique name: `sleep`, `sleep-2`, ..."""
        name, count = plan.name, 1
        while name in self._names:
            count += 1
            name = f"{plan.name}-{count}"
        self._names.add(name)
        self.processes.append(replace(plan, name=name))


class _FilePlanner(FileValues):
    """The actions of one file.

    skipped: Whether a condition was false. Then only the names of the nodes are taken, because parameter files may have
    sections for them, and errors (a missing include, a variable of a branch that was not taken) are ignored.
    """

    def __init__(self, planner: _Planner, launch: LaunchFile, given: Mapping[str, str], *, skipped: bool) -> None:
        super().__init__(launch, planner.environment, planner.folder)
        self.planner = planner
        self.given = given
        self.skipped = skipped
        self.variables |= given if skipped else {}

    def walk(self, actions: tuple[Placed, ...]) -> None:
        for placed in actions:
            with suppress(DynError) if self.skipped else nullcontext():
                self._one(placed.action, placed.place)

    def _one(self, action: Any, place: Place) -> None:
        if isinstance(action, schema.Arg):
            self._arg(action, place)
        elif not self.skipped and not self.condition(action, place):
            scope = (dict(self.variables), self.namespace)
            self.skipped = True
            self.walk((Placed(action, place),))
            self.skipped = False
            self.variables, self.namespace = scope
        elif isinstance(action, schema.Let):
            self.variables[action.name] = self.text(action.value, (*place, "value"))
        elif isinstance(action, schema.PushRosNamespace):
            self.namespace = full_name(self.namespace, self.text(action.namespace, (*place, "namespace")))
        elif isinstance(action, schema.Log) and not self.skipped:
            self.planner.messages.append((action.level, self.text(action.message, (*place, "message"))))
        elif isinstance(action, schema.Group):
            self._group(action, place)
        elif isinstance(action, schema.Include):
            self._include(action, place)
        elif isinstance(action, schema.NodeAction):
            self._node(action, place)
        elif isinstance(action, schema.Executable) and not self.skipped:
            self._executable(action, place)

    def _arg(self, action: schema.Arg, place: Place) -> None:
        planner = self.planner
        if self.skipped:
            if action.default is not None:
                self.variables.setdefault(action.name, self.text(action.default, place))
            return
        planner.declared.setdefault(action.name, action)
        if action.name in self.given:
            value = self.given[action.name]
        elif action.name in planner.arguments:
            value = planner.arguments[action.name]
        elif action.default is not None:
            value = self.text(action.default, (*place, "default"))
        else:
            about = f" ({as_written(action.description)})" if action.description else ""
            raise self.document.fault(
                f"launch argument {action.name!r}{about} has no default: give {action.name}:=VALUE", place
            )
        choices = [as_written(choice.value) for choice in action.choice]
        if choices and value not in choices:
            raise self.document.fault(
                f"launch argument {action.name!r} is {value!r}: expected one of {', '.join(choices)}", place
            )
        self.variables[action.name] = value
        planner.values.setdefault(action.name, value)

    def _group(self, action: schema.Group, place: Place) -> None:
        keep = self.truth(action.scoped, (*place, "scoped"))
        before = (dict(self.variables), self.namespace)
        self.walk(schema.inner_actions(self.document, action, place))
        if keep:
            self.variables, self.namespace = before

    def _include(self, action: schema.Include, place: Place) -> None:
        path = Path(self.text(action.file, (*place, "file")))
        if not path.is_absolute():
            path = self.launch.path.parent / path
        given, places = dict[str, str](), dict[str, Place]()
        for at, pair in action.given():
            name = self.text(pair.name, (*place, *at, "name"))
            given[name], places[name] = self.text(pair.value, (*place, *at, "value")), (*place, *at)
        with self.located((*place, "file")):
            launch = schema.read_launch_file(path)
        declared = {placed.action.name for placed in launch.actions if isinstance(placed.action, schema.Arg)}
        for name in () if self.skipped else given:
            if name not in declared:
                raise self.document.fault(
                    f"{path.name} declares no argument {name!r}{suggestion(name, declared)}", places[name]
                )
        self.planner.run(launch, given, skipped=self.skipped)

    def _process(self, action: Any, place: Place, name: str) -> ProcessPlan:
        on_exit = None if action.on_exit is None else self.text(action.on_exit, (*place, "on_exit"))
        if on_exit not in (None, "shutdown"):
            raise self.document.fault(f"expected 'shutdown', got {on_exit!r}", (*place, "on_exit"))
        output = self.text(action.output, (*place, "output"))
        if output not in ("screen", "log", "both"):
            raise self.document.fault(f"expected screen, log or both, got {output!r}", (*place, "output"))
        return ProcessPlan(
            name=name,
            command=(),
            where=f"{self.document.file}:{self.document.lines.get(place)}: {dotted(place)}",
            env={
                self.text(pair.name, (*place, "env", k, "name")): self.text(pair.value, (*place, "env", k, "value"))
                for k, pair in enumerate(action.env)
            },
            cwd=self._cwd(action, place),
            output=output,
            respawn=self.truth(action.respawn, (*place, "respawn")),
            respawn_delay_s=self.number(action.respawn_delay, (*place, "respawn_delay")),
            respawn_max_retries=int(self.number(action.respawn_max_retries, (*place, "respawn_max_retries"), least=-1)),
            on_exit_shutdown=on_exit == "shutdown",
            sigterm_timeout_s=self.number(action.sigterm_timeout, (*place, "sigterm_timeout")),
            sigkill_timeout_s=self.number(action.sigkill_timeout, (*place, "sigkill_timeout")),
        )

    def _cwd(self, action: Any, place: Place) -> str | None:
        cwd = None if action.cwd is None else self.text(action.cwd, (*place, "cwd"))
        if cwd is not None and not Path(cwd).is_dir():
            raise self.document.fault(f"there is no folder {cwd!r}", (*place, "cwd"))
        return cwd

    def _executable(self, action: schema.Executable, place: Place) -> None:
        words = [
            *self.words(action.launch_prefix, (*place, "launch-prefix")),
            *self.words(action.cmd, (*place, "cmd")),
            *self.words(action.args, (*place, "args")),
        ]
        if not words:
            raise self.document.fault("the command is empty", (*place, "cmd"))
        name = Path(words[0]).name if action.name is None else self.text(action.name, (*place, "name"))
        self.planner.add(replace(self._process(action, place, name), command=tuple(words)))

    def _node(self, action: schema.NodeAction, place: Place) -> None:
        executable = self.text(action.exec, (*place, "exec"))
        package = self.text(action.pkg, (*place, "pkg"))
        default_name = Path(executable.removesuffix(".py")).name
        name = default_name if action.name is None else self.text(action.name, (*place, "name"))
        namespace = full_name(self.namespace, self.text(action.namespace, (*place, "namespace")))
        if self.skipped:
            self.planner.skipped_nodes.append(full_name(namespace, name))
            return
        program, kind = self._program(package, executable, place)
        self.planner.nodes.append(full_name(namespace, name))
        parameters = Parameters()
        ros = ["--ros-args", "-r", f"__node:={name}", "-r", f"__ns:={namespace}"]
        for k, remap in enumerate(action.remap):
            source = self.text(remap.from_, (*place, "remap", k, "from"))
            ros += ["-r", f"{source}:={self.text(remap.to, (*place, 'remap', k, 'to'))}"]
        for k, parameter in enumerate(action.param):
            ros += self._parameter(parameter, (*place, "param", k), full_name(namespace, name), parameters)
        last = self.planner.last
        if last is not None and parameters.merge_file(last, full_name(namespace, name)):
            ros += ["--params-file", last.file]
        below: dict[str, Any] = {}
        if kind is not None:
            for key, value in kind.launched.items():
                if key not in parameters.values:
                    said = self.evaluate(value, (*place, "param"), self.scope(namespace=namespace))
                    parameters.set(key, said, self.document, (*place, "param"))
                    ros += ["-p", f"{key}:={json.dumps(said)}"]
            with self.located((*place, "param")):
                _, checked = typed(parameters, kind.parameters)
                parameters.check_files(kind.parameters, Path(cwd) if (cwd := self._cwd(action, place)) else None)
                kind.check(checked)
            # explicit, because a file with substitutions was rewritten in another folder
            below = parameters.below_their_files(kind.parameters)
            for key, value in below.items():
                ros += ["-p", f"{key}:={json.dumps(value)}"]
        plan = replace(
            self._process(action, place, full_name(namespace, name).lstrip("/")),
            command=(
                *self.words(action.launch_prefix, (*place, "launch-prefix")),
                sys.executable,
                "-P",  # modules in the working directory are never run
                *program,
                *self.words(action.args, (*place, "args")),
                *ros,
            ),
            reports=True,
            ready_timeout_s=self.number(action.ready_timeout, (*place, "ready_timeout")),
            heartbeat_timeout_s=self.number(action.heartbeat_timeout, (*place, "heartbeat_timeout")),
            parameters=parameters.values | below,
            kind=kind,
        )
        self.planner.add(plan)

    def _program(self, package: str, executable: str, place: Place) -> tuple[list[str], Kind | None]:
        """Returns Python's arguments and the declaration, for a node of a package or of a file."""
        at = (*place, "exec")
        if executable.endswith(".py"):
            if package:
                raise self.document.fault(f"{executable!r} is a Python file: remove 'pkg'", (*place, "pkg"))
            file = self.launch.path.parent / executable
            with self.located(at):
                return [str(file)], self._declared(executable, self.planner.registry.in_file(file), at)
        if not package:
            raise self.document.fault("missing 'pkg': the package of the node, or a Python file as 'exec'", place)
        for key, word in (("pkg", package), ("exec", executable)):
            if not word.isidentifier():
                raise self.document.fault(
                    f"{word!r} is not a valid name: expected letters, digits and _, without a leading digit",
                    (*place, key),
                )
        with self.located(at):
            kind = self.planner.registry.find(package, executable)
        if kind is not None:
            self._declared(f"{package}/{executable}", kind, at)
        elif package == PACKAGE:  # all nodes of this package are registered; nodes of other packages may not be
            near = suggestion(executable, self.planner.registry.names(package))
            raise self.document.fault(f"package {package!r} has no node {executable!r}{near}", at)
        return ["-m", self.planner.registry.module(package, executable)], kind

    def _declared(self, name: str, kind: Kind, place: Place) -> Kind:
        """Returns the kind after checking that its panels do not conflict with others in the report."""
        self.planner.kinds[name] = kind
        clashing = clash(self.planner.kinds.items(), REPORT_KEYS)
        if clashing is not None:
            raise self.document.fault(clashing, place)
        return kind

    def _parameter(self, parameter: schema.Parameter, place: Place, node: str, parameters: Parameters) -> list[str]:
        if (parameter.from_ is None) == (parameter.name is None):
            raise self.document.fault("expected either 'from' or 'name'", place)
        if parameter.from_ is not None:
            path = find_parameter_file(self.text(parameter.from_, (*place, "from")))
            substitutes = self.truth(parameter.allow_substs, (*place, "allow_substs"))
            with self.located((*place, "from")):
                document = read_document(path)
                if substitutes:
                    text = substitute(path.read_text("utf-8"), self.scope(path.resolve()))
                    document = parse_document(text, str(path))
                    path = self._scratch_file(text)
                if not parameters.merge_file(document, node):
                    raise self.document.fault(
                        f"{document.file} has no section for {node}, but some for {section_names(document)}",
                        (*place, "from"),
                    )
                self.planner.files.setdefault(document.file, document)
            return ["--params-file", str(path)]
        value = self._value(parameter, place)
        parameters.set(str(parameter.name), value, self.document, place)
        return ["-p", f"{parameter.name}:={json.dumps(value)}"]

    def _value(self, parameter: schema.Parameter, place: Place) -> Any:
        if parameter.param:
            return {
                str(below.name): self._value(below, (*place, "param", k)) for k, below in enumerate(parameter.param)
            }
        if parameter.value is msgspec.UNSET:
            raise self.document.fault(f"parameter {parameter.name!r} has no value", place)
        return self.evaluate(parameter.value, (*place, "value"))

    def _scratch_file(self, text: str) -> Path:
        if self.folder is None:
            raise InvalidArgumentError("'allow_substs' needs a folder for the files it makes")
        path = self.folder / f"params-{len(list(self.folder.iterdir()))}.yaml"
        try:
            path.write_text(text, "utf-8")
        except OSError as error:
            raise UnavailableError(f"file {str(path)!r} cannot be written: {error.strerror}") from None
        return path


REPORT_KEYS = (
    "schema", "created", "launch", "robot", "duration_s", "simulated_s", "outcome", "processes", "nodes", "versions",
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
    """The processes of a launch in the order of the file, the values of its arguments, its nodes, its messages."""

    file: Path
    arguments: Mapping[str, str]
    processes: tuple[ProcessPlan, ...]
    registry: Registry = field(default_factory=Registry)
    messages: tuple[tuple[Level, str], ...] = ()

    def kind_of(self, name: str, node: NodeTelemetry | None) -> Kind | None:
        """Returns the declaration of a node: as planned, or by its fact `role` for a node started as an executable."""
        planned = next((process.kind for process in self.processes if process.name == name), None)
        role = None if planned is not None or node is None else node.fact("role")
        return self.registry.find(PACKAGE, role) if isinstance(role, str) else planned
