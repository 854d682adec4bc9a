"""What a node says of itself when it is asked for `--help`: made from the struct of its parameters.

What a node's module declares: its name, its parameters, what it does, and what a launcher shows of it.

    NODE = NodeKind("thermometer", ThermometerParameters, main, panels=(Panel("temperature", temperature),))

    if __name__ == "__main__":
        raise SystemExit(NODE.run())

A launcher imports the module to hold parameters against their types before anything is started, and to make the report.
So the module stays light: `main` imports what takes long, such as an engine, when it is called.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from dyn_service.api.queries import Array
from dyn_service.graph.middleware.node import Node, P
from dyn_service.graph.middleware.runtime import CommonParameters, run_node
from dyn_service.graph.middleware.telemetry import NodeTelemetry, TelemetryStore
from dyn_service.graph.report.charts import Card, Finding
from dyn_service.graph.report.verdicts import Verdict
from dyn_service.support.parameter_descriptions import described, table, terminal_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


Stats = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Section:
    """What a panel has to show.

    content: what stands in report.json; NaN and infinities become null. lines: the same in a few lines for a terminal.
    plots: by their names, what draws pictures for the page; it is given the run's title. charts: by their headings,
    charts for the page that can be looked at closer. findings: what there is to look at, for the top of the page.
    tables: what was made from the recordings and is kept beside them, by channel: names of columns, rows (k, columns).
    verdicts: what was held against bounds; a run is clean only if all of them passed.
    """

    content: Mapping[str, Any]
    lines: Sequence[str] = ()
    plots: Mapping[str, Callable[[str], Figure]] = field(default_factory=dict)
    charts: Mapping[str, Sequence[Card]] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    tables: Mapping[str, tuple[Sequence[str], Array]] = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()


@dataclass(frozen=True)
class Panel:
    """A part of a launch's report.

    section: its key in report.json, where one node has it; see docs/launch.md for several. make: the section from what
    this node has told and what all nodes have; None where there is nothing to show.
    """

    section: str
    make: Callable[[NodeTelemetry, TelemetryStore], Section | None]


@dataclass(frozen=True)
class Column:
    """A column of a launch's live table. text: the cell, from the node's latest numbers; empty for nothing to show."""

    label: str
    text: Callable[[Stats], str]

    def cell(self, stats: Stats) -> str:
        """The cell, or `?` where `text` fails: a column, of whatever package, shall not stop who shows it."""
        try:
            return self.text(stats)
        except Exception:  # noqa: BLE001  whatever it raises, the others' cells are shown
            return "?"


def number(stats: Stats, name: str) -> float | None:
    """The latest number of that name, or None."""
    value = stats.get(name)
    return float(value) if isinstance(value, int | float) else None


def rate(name: str = "rate_hz") -> Column:
    """The column `rate`, from the number `name` in Hz."""

    def text(stats: Stats) -> str:
        value = number(stats, name)
        return f"{value:.0f} Hz" if value else ""

    return Column("rate", text)


@dataclass(frozen=True)
class NodeKind(Generic[P]):
    """A kind of node.

    name: what a launch file calls it, `exec`. parameters: their struct; one that forbids unknown fields finds misspelt
    names. main: a function that does the node's work until it is asked to stop, or a class of `Node`. panels: its parts
    of the report, by the section's name. columns: its cells in the live table. at_end: what a launch's last line says
    of it, from all it has told; empty for nothing. launched: parameters, with substitutions, that a launcher gives it
    where nothing else is said of them. about: what it is, in a sentence or two, for `--help`; empty is
    how the docstring of its parameters' module begins. check: refuses, by an error of this package, parameters that
    cannot work here, such as those that need a library which is not installed; a launcher calls it while it plans, and
    the node before it begins.
    """

    name: str
    parameters: type[P]
    main: Callable[[Node[P]], None] | type[Node[P]]
    panels: tuple[Panel, ...] = ()
    columns: tuple[Column, ...] = (rate(),)
    at_end: Callable[[NodeTelemetry], str] = lambda node: ""
    launched: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    check: Callable[[P], None] = lambda parameters: None

    def run(self, argv: Sequence[str] | None = None) -> int:
        """Runs a node of this kind to its end, by default with the process's own arguments; the exit status.

        With `--help` it says what it takes, and runs nothing.
        """
        words = sys.argv[1:] if argv is None else list(argv)
        if asks_for_help(words):
            print(node_help(self.name, self.parameters, self.about or _first_paragraph(self.parameters.__module__)))
            return 0
        return run_node(self.main, self.parameters, self.name, words, self.check)


def _first_paragraph(module: str) -> str:
    text = sys.modules[module].__doc__ or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("`", "")
