"""What a node says of itself when it is asked for `--help`: made from the struct of its parameters."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import msgspec

from dyn_service.graph.middleware.runtime import CommonParameters
from dyn_service.support.parameter_descriptions import described, table, terminal_width

_USAGE = """\
usage: .. [NAME:=VALUE ..] [--ros-args ARGUMENTS]

  --params-file FILE          a parameter file; its sections for this node's full name apply
  -p NAME:=VALUE              one parameter; so does NAME:=VALUE before --ros-args
  -r __node:=NAME             the node's name; -r __ns:=/NAMESPACE, its namespace
  -r TOPIC:=OTHER             another topic, or an endpoint
  --log-level LEVEL           debug, info, warning or error
  Later ones win over earlier ones."""


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether one of the words is `-h` or `--help`."""
    return not {"-h", "--help"}.isdisjoint(words)


def node_help(name: str, parameters: type[msgspec.Struct], about: str) -> str:
    """The help of a node: what it is, its arguments, its parameters, its topics."""
    width = terminal_width()
    own = described(parameters)
    names = {one.name for one in own}
    common = [one for one in described(CommonParameters) if one.name not in names]
    lines = [*textwrap.wrap(f"{name}: {about}" if about else name, width), "", _USAGE, "", "Parameters"]
    lines += table(own, width) or ["  none"]
    lines += ["", "Parameters of every node", *table(common, width)]
    topics = [one for one in own if one.topic]
    if topics:
        lines += ["", "Topics, by the parameter that names them"]
        lines += [f"  {one.name:<24}{one.topic}" for one in topics]
    return "\n".join(lines)
