"""From a launch file and arguments to the processes to start: substitutions, conditions, scopes, parameters.

Nothing is started here; every fault of a launch file or of a parameter file shows before the first process runs. The
parameters of registered nodes (`nodes/registry.py`) are held against their types here, those of others by the nodes.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dyn_service.config.arguments import full_name
from dyn_service.config.documents import (
    ConfigurationError,
    Document,
    Place,
    dotted,
    parse_document,
    read_document,
    suggestion,
)
from dyn_service.config.parameters import Parameters
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.launching import schema
from dyn_service.launching.schema import LaunchFile, Placed
from dyn_service.launching.substitutions import Scope, substitute, truth
from dyn_service.nodes.registry import PACKAGE, Kind, Registry, clash
from dyn_service.suggestions import did_you_mean

_MAX_INCLUDES = 16
REPORT_KEYS = (
    "schema", "created", "launch", "robot", "duration_s", "outcome", "processes", "versions",
)  # fmt: skip
"""What a report says of every launch: no node's panel may have such a name."""


@dataclass(frozen=True)
class ProcessPlan:
    """A process to start and how to keep it.

    name: unique in the launch. reports: whether it says by itself when it is ready. respawn_max_retries: -1 for no
    limit. on_exit_shutdown: its end, with status 0 too, ends the launch. kind: what a registered node declares.
    """

    name: str
    command: tuple[str, ...]
    where: str
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    output: str = "screen"
    reports: bool = False
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


def make_plan(
    launch: LaunchFile,
    arguments: Mapping[str, str],
    *,
    environment: Mapping[str, str] | None = None,
    scratch: Path | None = None,
) -> LaunchPlan:
    """What to start.

    Args:
        launch: The file as written.
        arguments: `name:=value` from the command line.
        environment: What `$(env ..)` sees; the process's own by default.
        scratch: A folder for parameter files with substitutions in them (`allow_substs`).

    Raises:
        InvalidArgumentError: An argument is unknown or missing; it lists those that are declared.
        ConfigurationError: It names the line, the place in the file and the fault.
    """
    planner = _Planner(arguments, dict(os.environ if environment is None else environment), scratch)
    planner.run(launch, {})
    unknown = sorted(set(arguments) - set(planner.declared))
    if unknown:
        near = did_you_mean(unknown[0], planner.declared)
        raise InvalidArgumentError(
            f"unknown launch argument {unknown[0]!r}; declared are: {planner.list_declared()}{near}", path=unknown[0]
        )
    if not planner.processes:
        raise launch.document.fault("the launch starts no process", ("launch",))
    return LaunchPlan(launch.path, planner.values, tuple(planner.processes), planner.registry)


class _Planner:
    """Walks the actions in the order of the file."""

    def __init__(self, arguments: Mapping[str, str], environment: dict[str, str], scratch: Path | None) -> None:
        self.arguments = arguments
        self.environment = environment
        self.scratch = scratch
        self.declared: dict[str, schema.Arg] = {}
        self.values: dict[str, str] = {}
        self.processes: list[ProcessPlan] = []
        self.registry = Registry()
        self.kinds: dict[str, Kind] = {}
        self._names: set[str] = set()
        self._depth = 0

    def run(self, launch: LaunchFile, given: Mapping[str, str]) -> None:
        """Plans one file; `given` are the arguments that an including file passes."""
        self._depth += 1
        if self._depth > _MAX_INCLUDES:
            raise launch.document.fault(f"launch files include each other more than {_MAX_INCLUDES} deep")
        _FilePlanner(self, launch, given).walk(launch.actions)
        self._depth -= 1

    def list_declared(self) -> str:
        """The declared arguments with their defaults, as text."""
        shown = [
            name if arg.default is None else f"{name} (default {_text(arg.default)!r})"
            for name, arg in self.declared.items()
        ]
        return ", ".join(shown) or "none"

    def add(self, plan: ProcessPlan) -> None:
        """Takes a process over under a name of its own: `sleep`, `sleep-2`, ..."""
        name, count = plan.name, 1
        while name in self._names:
            count += 1
            name = f"{plan.name}-{count}"
        self._names.add(name)
        self.processes.append(replace(plan, name=name))


class _FilePlanner:
    """The actions of one file, with the variables and the namespace at the point where the walk stands."""

    def __init__(self, planner: _Planner, launch: LaunchFile, given: Mapping[str, str]) -> None:
        self.planner = planner
        self.launch = launch
        self.document: Document = launch.document
        self.given = given
        self.variables: dict[str, str] = {}
        self.namespace = "/"

    def walk(self, actions: tuple[Placed, ...]) -> None:
        """Plans the actions one after the other."""
        for placed in actions:
            self._one(placed.action, placed.place)

    def _one(self, action: Any, place: Place) -> None:
        if isinstance(action, schema.Arg):
            self._arg(action, place)
            return
        if not self._condition(action, place):
            return
        if isinstance(action, schema.Let):
            self.variables[action.name] = self.text(action.value, (*place, "value"))
        elif isinstance(action, schema.PushRosNamespace):
            self.namespace = full_name(self.namespace, self.text(action.namespace, (*place, "namespace")))
        elif isinstance(action, schema.Group):
            self._group(action, place)
        elif isinstance(action, schema.Include):
            self._include(action, place)
        elif isinstance(action, schema.NodeAction):
            self._node(action, place)
        elif isinstance(action, schema.Executable):
            self._executable(action, place)

    def text(self, value: schema.Text, place: Place) -> str:
        """The value as text with its substitutions made."""
        with self._located(place):
            return substitute(_text(value), Scope(self.launch.path, self.variables, self.planner.environment))

    @contextmanager
    def _located(self, place: Place) -> Iterator[None]:
        try:
            yield
        except DynError as error:
            if isinstance(error, ConfigurationError) and error.file is not None:
                raise  # it knows its place
            raise self.document.fault(error.message, place) from None

    def _condition(self, action: Any, place: Place) -> bool:
        for key, value, wanted in (("if", action.if_, True), ("unless", action.unless, False)):
            if value is not None:
                text = self.text(value, (*place, key))
                with self._located((*place, key)):
                    if truth(text) is not wanted:
                        return False
        return True

    def _number(self, value: schema.Text, place: Place, *, least: float = 0.0) -> float:
        text = self.text(value, place)
        try:
            number = float(text)
        except ValueError:
            raise self.document.fault(f"expected a number, got {text!r}", place) from None
        if not least <= number < float("inf"):
            raise self.document.fault(f"expected a number of at least {least:g}, got {text}", place)
        return number

    def _arg(self, action: schema.Arg, place: Place) -> None:
        planner = self.planner
        planner.declared.setdefault(action.name, action)
        if action.name in self.given:
            value = self.given[action.name]
        elif action.name in planner.arguments:
            value = planner.arguments[action.name]
        elif action.default is not None:
            value = self.text(action.default, (*place, "default"))
        else:
            about = f" ({_text(action.description)})" if action.description else ""
            raise self.document.fault(
                f"launch argument {action.name!r}{about} has no default: give {action.name}:=VALUE", place
            )
        choices = [_text(choice.value) for choice in action.choice]
        if choices and value not in choices:
            raise self.document.fault(
                f"launch argument {action.name!r} is {value!r}: expected one of {', '.join(choices)}", place
            )
        self.variables[action.name] = value
        planner.values.setdefault(action.name, value)

    def _group(self, action: schema.Group, place: Place) -> None:
        scoped = self.text(action.scoped, (*place, "scoped"))
        with self._located((*place, "scoped")):
            keep = truth(scoped)
        before = (dict(self.variables), self.namespace)
        # a group is written as a list, or as a map with its children: the place is what stands in the file
        inner = (*place, "children") if (*place, "children") in self.document.lines else place
        self.walk(schema.actions_of(self.document, action.children, inner))
        if keep:
            self.variables, self.namespace = before

    def _include(self, action: schema.Include, place: Place) -> None:
        path = Path(self.text(action.file, (*place, "file")))
        if not path.is_absolute():
            path = self.launch.path.parent / path
        given = {
            self.text(pair.name, (*place, "arg", k, "name")): self.text(pair.value, (*place, "arg", k, "value"))
            for k, pair in enumerate(action.arg)
        }
        with self._located((*place, "file")):
            launch = schema.read_launch_file(path)
        declared = {placed.action.name for placed in launch.actions if isinstance(placed.action, schema.Arg)}
        for name in given:
            if name not in declared:
                raise self.document.fault(
                    f"{path.name} declares no argument {name!r}{suggestion(name, declared)}", (*place, "arg")
                )
        self.planner.run(launch, given)

    def _process(self, action: Any, place: Place, name: str) -> ProcessPlan:
        on_exit = None if action.on_exit is None else self.text(action.on_exit, (*place, "on_exit"))
        if on_exit not in (None, "shutdown"):
            raise self.document.fault(f"expected 'shutdown', got {on_exit!r}", (*place, "on_exit"))
        output = self.text(action.output, (*place, "output"))
        if output not in ("screen", "log", "both"):
            raise self.document.fault(f"expected screen, log or both, got {output!r}", (*place, "output"))
        respawn = self.text(action.respawn, (*place, "respawn"))
        with self._located((*place, "respawn")):
            again = truth(respawn)
        cwd = None if action.cwd is None else self.text(action.cwd, (*place, "cwd"))
        if cwd is not None and not Path(cwd).is_dir():
            raise self.document.fault(f"there is no folder {cwd!r}", (*place, "cwd"))
        line = self.document.lines.get(place)
        return ProcessPlan(
            name=name,
            command=(),
            where=f"{self.document.file}:{line}: {dotted(place)}",
            env={
                self.text(pair.name, (*place, "env", k, "name")): self.text(pair.value, (*place, "env", k, "value"))
                for k, pair in enumerate(action.env)
            },
            cwd=cwd,
            output=output,
            respawn=again,
            respawn_delay_s=self._number(action.respawn_delay, (*place, "respawn_delay")),
            respawn_max_retries=int(
                self._number(action.respawn_max_retries, (*place, "respawn_max_retries"), least=-1.0)
            ),
            on_exit_shutdown=on_exit == "shutdown",
            sigterm_timeout_s=self._number(action.sigterm_timeout, (*place, "sigterm_timeout")),
            sigkill_timeout_s=self._number(action.sigkill_timeout, (*place, "sigkill_timeout")),
        )

    def _words(self, value: schema.Text, place: Place) -> list[str]:
        text = self.text(value, place)
        try:
            return shlex.split(text)
        except ValueError as error:
            raise self.document.fault(f"cannot be split into words: {error}", place) from None

    def _executable(self, action: schema.Executable, place: Place) -> None:
        words = [
            *self._words(action.launch_prefix, (*place, "launch-prefix")),
            *self._words(action.cmd, (*place, "cmd")),
            *self._words(action.args, (*place, "args")),
        ]
        if not words:
            raise self.document.fault("the command is empty", (*place, "cmd"))
        name = Path(words[0]).name if action.name is None else self.text(action.name, (*place, "name"))
        self.planner.add(replace(self._process(action, place, name), command=tuple(words)))

    def _node(self, action: schema.NodeAction, place: Place) -> None:
        package = self.text(action.pkg, (*place, "pkg"))
        executable = self.text(action.exec, (*place, "exec"))
        for key, word in (("pkg", package), ("exec", executable)):
            if not word.isidentifier():
                raise self.document.fault(f"{word!r} is not a name", (*place, key))
        kind = self._kind(package, executable, (*place, "exec"))
        name = executable if action.name is None else self.text(action.name, (*place, "name"))
        namespace = full_name(self.namespace, self.text(action.namespace, (*place, "namespace")))
        parameters = Parameters()
        ros = ["--ros-args", "-r", f"__node:={name}", "-r", f"__ns:={namespace}"]
        for k, remap in enumerate(action.remap):
            source = self.text(remap.from_, (*place, "remap", k, "from"))
            ros += ["-r", f"{source}:={self.text(remap.to, (*place, 'remap', k, 'to'))}"]
        for k, parameter in enumerate(action.param):
            ros += self._parameter(parameter, (*place, "param", k), full_name(namespace, name), parameters)
        below: dict[str, Any] = {}
        if kind is not None:
            with self._located((*place, "param")):
                parameters.to(kind.parameters)
            # said outright: where the file was written anew, with its substitutions, it lies in another folder
            below = parameters.below_their_files(kind.parameters)
            for key, value in below.items():
                ros += ["-p", f"{key}:={json.dumps(value)}"]
        plan = replace(
            self._process(action, place, full_name(namespace, name).lstrip("/")),
            command=(
                *self._words(action.launch_prefix, (*place, "launch-prefix")),
                sys.executable,
                "-m",
                self.planner.registry.module(package, executable),
                *self._words(action.args, (*place, "args")),
                *ros,
            ),
            reports=True,
            parameters=parameters.values | below,
            kind=kind,
        )
        self.planner.add(plan)

    def _kind(self, package: str, executable: str, place: Place) -> Kind | None:
        registry, kinds = self.planner.registry, self.planner.kinds
        with self._located(place):
            kind = registry.find(package, executable)
        if kind is None:
            if package == PACKAGE:  # its nodes are all registered; other packages' nodes need not be
                near = suggestion(executable, registry.names(package))
                raise self.document.fault(f"package {package!r} has no node {executable!r}{near}", place)
            return None
        kinds[f"{package}/{executable}"] = kind
        clashing = clash(kinds.items(), REPORT_KEYS)
        if clashing is not None:
            raise self.document.fault(clashing, place)
        return kind

    def _parameter(self, parameter: schema.Parameter, place: Place, node: str, parameters: Parameters) -> list[str]:
        if (parameter.from_ is None) == (parameter.name is None):
            raise self.document.fault("expected either 'from' or 'name'", place)
        if parameter.from_ is not None:
            path = Path(self.text(parameter.from_, (*place, "from")))
            wanted = self.text(parameter.allow_substs, (*place, "allow_substs"))
            with self._located((*place, "from")):
                document = read_document(path)
                if truth(wanted):
                    text = substitute(
                        path.read_text("utf-8"), Scope(path.resolve(), self.variables, self.planner.environment)
                    )
                    document = parse_document(text, str(path))
                    path = self._scratch_file(text)
                parameters.merge_file(document, node)
            return ["--params-file", str(path)]
        value = self._value(parameter, place)
        parameters.set(str(parameter.name), value, self.document, place)
        return ["-p", f"{parameter.name}:={json.dumps(value)}"]

    def _value(self, parameter: schema.Parameter, place: Place) -> Any:
        """A parameter's value: text with substitutions is read as YAML, as ROS 2 does."""
        if parameter.param:
            return {
                str(below.name): self._value(below, (*place, "param", k)) for k, below in enumerate(parameter.param)
            }
        if parameter.value is msgspec.UNSET:
            raise self.document.fault(f"parameter {parameter.name!r} has no value", place)
        return self._evaluate(parameter.value, (*place, "value"))

    def _evaluate(self, value: Any, place: Place) -> Any:
        if isinstance(value, list):
            return [self._evaluate(item, (*place, k)) for k, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: self._evaluate(item, (*place, key)) for key, item in value.items()}
        if isinstance(value, str) and "$(" in value:
            return parse_document(self.text(value, place), self.document.file).value
        return value

    def _scratch_file(self, text: str) -> Path:
        if self.planner.scratch is None:
            raise InvalidArgumentError("'allow_substs' needs a folder for the files it makes")
        path = self.planner.scratch / f"params-{len(list(self.planner.scratch.iterdir()))}.yaml"
        path.write_text(text, "utf-8")
        return path


def _text(value: schema.Text) -> str:
    """A scalar of YAML as it is written there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
