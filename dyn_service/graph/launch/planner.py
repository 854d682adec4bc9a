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
from dyn_service.graph.launch.schema import LaunchFile, PlacedAction
from dyn_service.graph.launch.substitutions import PARAMS, FileValues, as_written, substitute
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
    if PARAMS.name in set(arguments) - launch.argument_names:
        planner.last = read_document(find_parameter_file(arguments[PARAMS.name]).resolve())
        planner.files[planner.last.file] = planner.last
    planner.run(launch, {})
    unknown = sorted(set(arguments) - set(planner.declared) - ({PARAMS.name} if planner.last else set()))
    if unknown:
        hint = did_you_mean(unknown[0], [*planner.declared, PARAMS.name])
        raise InvalidArgumentError(
            f"unknown launch argument {unknown[0]!r}; declared are: {planner.list_declared()}{hint}", path=unknown[0]
        )
    if not planner.processes:
        raise launch.document.fault("the launch starts no process", ("launch",))
    for document in planner.files.values():
        # a misspelt section would otherwise leave a node with its defaults and no word
        for section, place in strangers(document, [*planner.nodes, *planner.skipped_nodes]):
            hint = did_you_mean(section, [name for node in planner.nodes for name in (node, node.rpartition("/")[2])])
            raise document.fault(
                f"section {section!r} is for none of the launch's nodes: {', '.join(planner.nodes)}{hint}", place[:-1]
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
        # the files that include the present one, and whether they are skipped
        self._files: list[tuple[Path, bool]] = []

    def run(self, launch: LaunchFile, arguments: Mapping[str, str], *, skipped: bool = False) -> None:
        """Plans one file. arguments: those of an including file. skipped: see `_FilePlanner`."""
        if len(self._files) == _MAX_INCLUDES:
            raise launch.document.fault(f"launch files include each other more than {_MAX_INCLUDES} deep")
        if (launch.path, True) in self._files:
            return  # skipped files may include each other if a condition ends the recursion
        self._files.append((launch.path, skipped))
        try:
            _FilePlanner(self, launch, arguments, skipped=skipped).walk(launch.actions)
        finally:
            self._files.pop()

    def list_declared(self) -> str:
        """Returns the declared arguments with their defaults, as text."""
        defaults = {name: arg.default for name, arg in self.declared.items()}
        texts = [name if x is None else f"{name} (default {as_written(x)!r})" for name, x in defaults.items()]
        return ", ".join(texts) or "none"

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

    def __init__(self, planner: _Planner, launch: LaunchFile, arguments: Mapping[str, str], *, skipped: bool) -> None:
        super().__init__(launch, planner.environment, planner.folder)
        self.planner = planner
        self.arguments = arguments
        self.skipped = skipped
        self.variables |= arguments if skipped else {}

    def walk(self, actions: tuple[PlacedAction, ...]) -> None:
        for placed_action in actions:
            # a branch that is not taken may name what exists only where it is taken
            with suppress(DynError) if self.skipped else nullcontext():
                self._plan(placed_action.action, placed_action.place)

    def _plan(self, action: Any, place: Place) -> None:
        if isinstance(action, schema.Arg):
            self._arg(action, place)
        elif not self.skipped and not self.condition(action, place):
            scope = (dict(self.variables), self.namespace)
            self.skipped = True
            self.walk((PlacedAction(action, place),))
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
        if action.name in self.arguments:
            value = self.arguments[action.name]
        elif action.name in planner.arguments:
            value = planner.arguments[action.name]
        elif action.default is not None:
            value = self.text(action.default, (*place, "default"))
        else:
            description = f" ({as_written(action.description)})" if action.description else ""
            raise self.document.fault(
                f"launch argument {action.name!r}{description} has no default: give {action.name}:=VALUE", place
            )
        choices = [as_written(choice.value) for choice in action.choice]
        if choices and value not in choices:
            choice_text = ", ".join(choices)
            raise self.document.fault(
                f"launch argument {action.name!r} is {value!r}: expected one of {choice_text}", place
            )
        self.variables[action.name] = value
        planner.values.setdefault(action.name, value)

    def _group(self, action: schema.Group, place: Place) -> None:
        keep = self.truth(action.scoped, (*place, "scoped"))
        outer_scope = (dict(self.variables), self.namespace)
        self.walk(schema.inner_actions(self.document, action, place))
        if keep:
            self.variables, self.namespace = outer_scope

    def _include(self, action: schema.Include, place: Place) -> None:
        path = Path(self.text(action.file, (*place, "file")))
        if not path.is_absolute():
            path = self.launch.path.parent / path
        arguments, places = dict[str, str](), dict[str, Place]()
        for pair_place, pair in action.arguments():
            name = self.text(pair.name, (*place, *pair_place, "name"))
            arguments[name], places[name] = self.text(pair.value, (*place, *pair_place, "value")), (*place, *pair_place)
        with self.located((*place, "file")):
            launch = schema.read_launch_file(path)
        declared_names = launch.argument_names
        for name in () if self.skipped else arguments:
            if name not in declared_names:
                raise self.document.fault(
                    f"{path.name} declares no argument {name!r}{suggestion(name, declared_names)}", places[name]
                )
        self.planner.run(launch, arguments, skipped=self.skipped)

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
            origin=f"{self.document.file}:{self.document.lines.get(place)}: {dotted(place)}",
            env={
                self.text(pair.name, (*place, "env", k, "name")): self.text(pair.value, (*place, "env", k, "value"))
                for k, pair in enumerate(action.env)
            },
            cwd=self._cwd(action, place),
            output=output,
            respawn=self.truth(action.respawn, (*place, "respawn")),
            respawn_delay_s=self.number(action.respawn_delay, (*place, "respawn_delay")),
            respawn_max_retries=int(
                self.number(action.respawn_max_retries, (*place, "respawn_max_retries"), minimum=-1)
            ),
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
        file_values: dict[str, Any] = {}
        if kind is not None:
            for key, value in kind.launched.items():
                if key not in parameters.values:
                    evaluated = self.evaluate(value, (*place, "param"), self.scope(namespace=namespace))
                    parameters.set(key, evaluated, self.document, (*place, "param"))
                    ros += ["-p", f"{key}:={json.dumps(evaluated)}"]
            with self.located((*place, "param")):
                _, checked = typed(parameters, kind.parameters)
                parameters.check_files(kind.parameters, Path(cwd) if (cwd := self._cwd(action, place)) else None)
                kind.check(checked)
            # explicit, because a file with substitutions was rewritten in another folder
            file_values = parameters.below_their_files(kind.parameters)
            for key, value in file_values.items():
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
            parameters=parameters.values | file_values,
            kind=kind,
        )
        self.planner.add(plan)

    def _program(self, package: str, executable: str, place: Place) -> tuple[list[str], Kind | None]:
        """Returns Python's arguments and the declaration, for a node of a package or of a file."""
        exec_place = (*place, "exec")
        if executable.endswith(".py"):
            if package:
                raise self.document.fault(f"{executable!r} is a Python file: remove 'pkg'", (*place, "pkg"))
            file = self.launch.path.parent / executable
            with self.located(exec_place):
                return [str(file)], self._check_panels(executable, self.planner.registry.in_file(file), exec_place)
        if not package:
            raise self.document.fault("missing 'pkg': the package of the node, or a Python file as 'exec'", place)
        for key, word in (("pkg", package), ("exec", executable)):
            if not word.isidentifier():
                raise self.document.fault(
                    f"{word!r} is not a valid name: expected letters, digits and _, without a leading digit",
                    (*place, key),
                )
        with self.located(exec_place):
            kind = self.planner.registry.find(package, executable)
        if kind is not None:
            self._check_panels(f"{package}/{executable}", kind, exec_place)
        elif package == PACKAGE:  # all nodes of this package are registered; nodes of other packages may not be
            hint = suggestion(executable, self.planner.registry.names(package))
            raise self.document.fault(f"package {package!r} has no node {executable!r}{hint}", exec_place)
        return ["-m", self.planner.registry.module(package, executable)], kind

    def _check_panels(self, name: str, kind: Kind, place: Place) -> Kind:
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
            inner = (((*place, "param", k), nested) for k, nested in enumerate(parameter.param))
            return {str(nested.name): self._value(nested, inner_place) for inner_place, nested in inner}
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
    origin: str
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
        planned_kind = next((process.kind for process in self.processes if process.name == name), None)
        role = None if planned_kind is not None or node is None else node.fact("role")
        return self.registry.find(PACKAGE, role) if isinstance(role, str) else planned_kind
