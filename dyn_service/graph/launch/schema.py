"""The schema of launch files: the supported part of ROS 2's YAML launch schema.

    launch:
      - arg: {name: rate_hz, default: "500", description: commands per second}
      - let: {name: x, value: $(var rate_hz)}
      - node: {pkg: dyn_service, exec: plant, name: plant, param: [{from: FILE}, {name: n, value: v}], respawn: true}
      - executable: {cmd: sleep 10, name: sleeper}
      - include: {file: FILE, let: [{name: n, value: v}]}
      - group: [...]                 # or {scoped: true, if: .., children: [...]}
      - push_ros_namespace: {namespace: arm}
      - log_info: {message: $(var x)}

Keys and meanings are those of https://docs.ros.org: launch, launch_ros and launch_yaml. Unknown actions and keys are
errors. Text may contain substitutions, which `planner.py` evaluates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dyn_service.support.documents import Document, read_document
from dyn_service.support.logs import LEVELS, Level
from dyn_service.support.validation import Place, suggestion

Text = str | int | float | bool
"""Text that may contain substitutions; YAML numbers and booleans are kept as written."""


class _Action(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"if_": "if"}):
    if_: Text | None = None
    unless: Text | None = None


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """One allowed value of an argument."""

    value: Text


class Arg(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Declares an argument of the launch file; without a default it must be given."""

    name: str
    default: Text | None = None
    description: Text = ""
    choice: list[Choice] = []


class Pair(msgspec.Struct, forbid_unknown_fields=True):
    """A name and its value: of an environment variable, or of an argument of an included file."""

    name: Text
    value: Text


class Remap(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """A topic's name in the node, and its new name."""

    from_: Text
    to: Text


class Parameter(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """A file of parameters (`from`), one parameter (`name`, `value`), or a group of them (`name`, `param`)."""

    from_: Text | None = None
    allow_substs: Text = False
    name: str | None = None
    value: Any = msgspec.UNSET
    param: list[Parameter] = []


class Let(_Action, kw_only=True):
    """Sets a variable for the following actions."""

    name: str
    value: Text


class PushRosNamespace(_Action, kw_only=True):
    """Sets the namespace of the following nodes of the group."""

    namespace: Text


class Log(_Action, kw_only=True):
    """Logs a message; the action `log_info` has its level in its name."""

    message: Text
    level: Level = "info"


class _Process(_Action, kw_only=True, rename={"if_": "if", "launch_prefix": "launch-prefix"}):
    name: Text | None = None
    env: list[Pair] = []
    cwd: Text | None = None
    output: Text = "screen"
    respawn: Text = False
    respawn_delay: Text = 0.0
    respawn_max_retries: Text = -1
    on_exit: Text | None = None
    sigterm_timeout: Text = 5.0
    sigkill_timeout: Text = 5.0
    launch_prefix: Text = ""


class NodeAction(_Process, kw_only=True):
    """Starts `python -P -m <pkg>.nodes.<exec>`, or the Python file `exec`, with ROS 2's node arguments.

    heartbeat_timeout: s without a heartbeat after which the node is hung; 0: off. ready_timeout: maximum time until it
    is ready, s.
    """

    pkg: Text = ""
    exec: Text
    heartbeat_timeout: Text = 2.0
    ready_timeout: Text = 120.0
    namespace: Text = ""
    param: list[Parameter] = []
    remap: list[Remap] = []
    args: Text = ""


class Executable(_Process, kw_only=True):
    """Starts any command; `args` follow it."""

    cmd: Text
    args: Text = ""


class Include(_Action, kw_only=True):
    """Includes another launch file with arguments: `let`, or `arg`, its name before 2025."""

    file: Text
    arg: list[Pair] = []
    let: list[Pair] = []

    def arguments(self) -> Iterator[tuple[Place, Pair]]:
        """Returns each argument with its place in the action; the last of the same name counts, as in ROS 2."""
        for key, pairs in (("arg", self.arg), ("let", self.let)):
            for k, pair in enumerate(pairs):
                yield (key, k), pair


class Group(_Action, kw_only=True):
    """Actions; their variables and namespace end with the group, unless `scoped` is false."""

    children: list[dict[str, Any]]
    scoped: Text = True


Action = Arg | Let | NodeAction | Executable | Include | Group | PushRosNamespace
ACTIONS: dict[str, type[msgspec.Struct]] = {
    "arg": Arg,
    "let": Let,
    "node": NodeAction,
    "executable": Executable,
    "include": Include,
    "group": Group,
    "push_ros_namespace": PushRosNamespace,
    "push-ros-namespace": PushRosNamespace,
    "log": Log,
    **{f"log_{level}": Log for level in LEVELS},
}


@dataclass(frozen=True)
class PlacedAction:
    """An action and its place in the file."""

    action: Any
    place: Place


@dataclass(frozen=True)
class LaunchFile:
    """A launch file."""

    path: Path
    document: Document
    actions: tuple[PlacedAction, ...]

    @property
    def argument_names(self) -> set[str]:
        """Names of the arguments that this file declares, without those of its groups and includes."""
        return {action.action.name for action in self.actions if isinstance(action.action, Arg)}


def read_launch_file(path: Path) -> LaunchFile:
    """Reads the launch file at `path`.

    Raises:
        NotFoundError: The file does not exist.
        ConfigurationError: The file is invalid; names the line, the action or key, and what was expected.
    """
    document = read_document(path)
    root = document.value
    if not isinstance(root, dict) or set(root) != {"launch"}:
        raise document.fault("expected a map with the one key 'launch', a list of actions")
    return LaunchFile(path.resolve(), document, actions_of(document, root["launch"], ("launch",)))


def actions_of(document: Document, values: Any, place: Place) -> tuple[PlacedAction, ...]:
    """Returns the list of actions at `place`."""
    if not isinstance(values, list):
        raise document.fault(f"expected a list of actions, got {_kind(values)}", place)
    placed_actions: list[PlacedAction] = []
    for index, entry in enumerate(values):
        entry_place = (*place, index)
        if not isinstance(entry, dict) or len(entry) != 1:
            raise document.fault(f"expected an action, a map with one key, got {_kind(entry)}", entry_place)
        ((name, body),) = entry.items()
        kind = ACTIONS.get(name)
        if kind is None:
            raise document.fault(f"unknown action {name!r}{suggestion(name, ACTIONS)}", entry_place)
        if kind is Group and isinstance(body, list):
            body = {"children": body}
        if name.startswith("log_") and isinstance(body, dict):
            body = {"level": name.removeprefix("log_"), **body}
        if not isinstance(body, dict):
            raise document.fault(f"expected a map of keys, got {_kind(body)}", (*entry_place, name))
        placed_actions.append(PlacedAction(document.convert(body, kind, (*entry_place, name)), (*entry_place, name)))
    return tuple(placed_actions)


def inner_actions(document: Document, group: Group, place: Place) -> tuple[PlacedAction, ...]:
    """Returns the actions of the group at `place`."""
    # a group is a list, or a map with `children`: the place follows the file
    inner = (*place, "children") if (*place, "children") in document.lines else place
    return actions_of(document, group.children, inner)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"a map with {len(value)} keys" if len(value) != 1 else "a map"
    names = {list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "nothing")
