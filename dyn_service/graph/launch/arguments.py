"""The arguments that a launch file declares, its included files' among them: `dyn launch --show-args`."""

from __future__ import annotations

import os
from pathlib import Path

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.schema import Arg, Group, Include, LaunchFile, inner_actions, read_launch_file
from dyn_service.graph.launch.substitutions import Scope, substitute
from dyn_service.graph.launch.values import as_written


def show_arguments(path: Path | str) -> list[str]:
    """What `--show-args` prints: each argument that a launch file, or a file that it includes, declares, with what it
    is, its default as written, and the values it may have.

    Raises:
        NotFoundError: There is no such file.
        ConfigurationError: The launch file is malformed: file, line, place, cause.
    """
    found: dict[str, Arg] = {}
    unread = _declared(read_launch_file(Path(path)), found, [])
    lines = []
    for name, arg in found.items():
        lines.append(f"{name}: {as_written(arg.description)}" if arg.description else name)
        lines.append("    must be given" if arg.default is None else f"    default: {as_written(arg.default)}")
        if arg.choice:
            lines.append(f"    one of: {', '.join(as_written(choice.value) for choice in arg.choice)}")
    lines += [f"and what {file} declares, whose place depends on arguments" for file in unread]
    return lines or ["it declares no arguments"]


def _declared(launch: LaunchFile, found: dict[str, Arg], within: list[Path]) -> list[str]:
    """Adds the arguments that are declared; the included files whose place hangs on more than the file's own."""
    unread: list[str] = []
    actions = list(launch.actions)
    while actions:
        placed = actions.pop(0)
        action = placed.action
        if isinstance(action, Arg):
            found.setdefault(action.name, action)
        elif isinstance(action, Group):
            actions[:0] = inner_actions(launch.document, action, placed.place)
        elif isinstance(action, Include):
            try:
                file = launch.path.parent / substitute(as_written(action.file), Scope(launch.path, {}, os.environ))
            except InvalidArgumentError:
                unread.append(as_written(action.file))
                continue
            if file not in within:  # one that includes itself, on some condition, declares nothing new
                inner: dict[str, Arg] = {}
                unread += _declared(read_launch_file(file), inner, [*within, file])
                given = {as_written(pair.name) for _, pair in action.given()}
                found |= {name: arg for name, arg in inner.items() if name not in given | found.keys()}
    return unread
