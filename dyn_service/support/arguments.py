"""The command line of a node, as in ROS 2.

    python -m dyn_service.graph.nodes.plant.node --ros-args -r __node:=plant -r __ns:=/arm --params-file FILE -p
    name:=value

Also `--remap` for `-r`, `--param` for `-p`, `--log-level debug`, and `name:=value` before `--ros-args` for a parameter.
Later parameters win over earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dyn_service.errors import InvalidArgumentError
from dyn_service.support.documents import read_document
from dyn_service.support.logs import LEVELS, Level
from dyn_service.support.parameters import Parameters, assignment, section_names
from dyn_service.support.suggestions import did_you_mean

COMMAND_LINE = "command line"


@dataclass
class NodeArguments:
    """A node's name, namespace, remapped topics and parameters. log_level: None if not given."""

    name: str
    namespace: str = "/"
    remaps: dict[str, str] = field(default_factory=dict)
    parameters: Parameters = field(default_factory=Parameters)
    rest: list[str] = field(default_factory=list)
    log_level: Level | None = None

    @property
    def full_name(self) -> str:
        """Namespace and name: `/arm/plant`."""
        return full_name(self.namespace, self.name)


def full_name(namespace: str, name: str) -> str:
    """Namespace and name joined: `/arm` and `plant` give `/arm/plant`."""
    return "/" + "/".join(part for part in (*namespace.split("/"), *name.split("/")) if part)


def parse_arguments(argv: Sequence[str], *, default_name: str) -> NodeArguments:
    """Parses the command line of a node.

    Raises:
        InvalidArgumentError: An option is unknown or lacks its value.
        ConfigurationError: A parameter file or value is malformed.
    """
    rest: list[str] = []
    pairs: list[tuple[str, str]] = []
    tokens = iter(argv)
    in_ros_args = False
    for word in tokens:
        if word == "--ros-args":
            in_ros_args = True
        elif in_ros_args and word == "--":
            in_ros_args = False
        elif not in_ros_args:
            if ":=" in word and not word.startswith("-"):
                pairs.append(("parameter", word))
            else:
                rest.append(word)
        elif word in _OPTIONS:
            value = next(tokens, None)
            if value is None:
                raise InvalidArgumentError(f"option {word!r} lacks its value")
            pairs.append((_OPTIONS[word], value))
        else:
            hint = did_you_mean(word, _OPTIONS)
            raise InvalidArgumentError(f"unknown option {word!r}: expected one of {', '.join(sorted(_OPTIONS))}{hint}")

    arguments = NodeArguments(name=default_name, rest=rest)
    for kind, value in pairs:
        if kind == "remap":
            _remap(arguments, value)
    # not in the first loop: which sections of a file apply depends on the node's name
    for kind, value in pairs:
        if kind == "file":
            document = read_document(Path(value))
            if not arguments.parameters.merge_file(document, arguments.full_name):
                sections, node = section_names(document), arguments.full_name
                raise document.fault(f"no section is for {node}; others are for {sections}")
        elif kind == "parameter":
            name, parsed, document = assignment(value, origin=COMMAND_LINE)
            arguments.parameters.set(name, parsed, document, ())
        elif kind == "level":
            level = value.lower()
            if level not in LEVELS:
                level_text = ", ".join(LEVELS) + did_you_mean(level, LEVELS)
                raise InvalidArgumentError(f"log level {value!r} is none of {level_text}")
            arguments.log_level = level
    return arguments


def _remap(arguments: NodeArguments, text: str) -> None:
    """Applies `from:=to`: a topic's new name, or the node's name or namespace."""
    source, separator, target = text.partition(":=")
    if not separator:
        raise InvalidArgumentError(f"remap {text!r} is not of the form from:=to")
    if source == "__node":
        arguments.name = target
    elif source == "__ns":
        arguments.namespace = target
    else:
        arguments.remaps[source] = target


_OPTIONS = {
    "-r": "remap",
    "--remap": "remap",
    "-p": "parameter",
    "--param": "parameter",
    "--params-file": "file",
    "--log-level": "level",
}
