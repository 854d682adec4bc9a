"""`NodeKind`: a node's declaration in its module: name, parameters, work, and its part of displays and reports; and
its process.

    NODE = NodeKind("thermometer", ThermometerParameters, main, panels=(Panel("temperature", temperature),))

    if __name__ == "__main__":
        raise SystemExit(NODE.run())

A launcher imports the module to check parameters before anything starts, and to make the report. The module must be
light: `main` imports slow modules, such as an engine, when it is called.

The process: SIGINT and SIGTERM ask the node to stop; it leaves its loop, sends its recordings and returns 0. Within
`stop.at_once()` they end it immediately, with status 130 or 143. An error of this package ends it with one line on
stderr and status 1, or status 2 if the arguments or parameters are invalid and the node was never ready: restarting it
is then useless. Any other error ends it with its traceback and status 1.

In addition to its own parameters every node has `realtime` (`support/realtime.py`), `log_format` and `log_level`
(`support/logs.py`), and `autostart`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from dyn_service.api.queries import Array
from dyn_service.errors import DynError, InvalidArgumentError, NotFoundError, PermissionDeniedError, UnimplementedError
from dyn_service.graph.middleware import telemetry, topics
from dyn_service.graph.middleware.node import Node, P
from dyn_service.graph.middleware.stop import Stop, end_with_launcher
from dyn_service.graph.middleware.telemetry import NodeTelemetry, TelemetryStore
from dyn_service.graph.middleware.zmq_sockets import open_context
from dyn_service.graph.report.charts import Card, Finding
from dyn_service.graph.report.verdicts import Verdict
from dyn_service.support import logs
from dyn_service.support.arguments import full_name, parse_arguments
from dyn_service.support.optional import MissingLibraryError
from dyn_service.support.parameter_descriptions import described, table, terminal_width
from dyn_service.support.parameters import Parameters
from dyn_service.support.realtime import Realtime, check

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


def node_help(name: str, parameters: type[msgspec.Struct], description: str) -> str:
    """Returns the help of a node: description, arguments, parameters and topics."""
    width = terminal_width()
    descriptors = described(parameters)
    names = {descriptor.name for descriptor in descriptors}
    common = [descriptor for descriptor in described(CommonParameters) if descriptor.name not in names]
    lines = [*textwrap.wrap(f"{name}: {description}" if description else name, width), "", _USAGE, "", "Parameters"]
    lines += table(descriptors, width) or ["  none"]
    lines += ["", "Parameters of every node", *table(common, width)]
    topics = [descriptor for descriptor in descriptors if descriptor.topic]
    if topics:
        lines += ["", "Topics, by the parameter that names them"]
        lines += [f"  {descriptor.name:<24}{descriptor.topic}" for descriptor in topics]
    return "\n".join(lines)


Stats = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Section:
    """Content of a panel.

    content: for report.json; NaN and infinities become null. lines: summary for a terminal. plots: by name, functions
    that draw pictures for the page, given the run's title. charts: by heading, interactive charts for the page.
    findings: for the top of the page. tables: computed recordings, by channel: names of columns, rows (k, columns).
    verdicts: comparisons with bounds; a run is clean only if all pass.
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

    section: its key in report.json; see docs/launch.md for several nodes with the same one. make: makes the section
    from this node's telemetry and that of all nodes; returns None if there is nothing to show.
    """

    section: str
    make: Callable[[NodeTelemetry, TelemetryStore], Section | None]


@dataclass(frozen=True)
class Column:
    """A column of a launch's live table. text: returns the cell from the node's latest stats, or an empty string.
    timing: whether it counts what was late, which nothing is in lockstep.
    """

    label: str
    text: Callable[[Stats], str]
    timing: bool = False

    def cell(self, stats: Stats, *, lockstep: bool = False) -> str:
        """Returns the cell, or `?` if `text` fails: an error in a column must not stop the display."""
        try:
            return "" if self.timing and lockstep else self.text(stats)
        except Exception:  # noqa: BLE001  the other cells are still shown
            return "?"


def number(stats: Stats, name: str) -> float | None:
    """Returns the latest number with this name, or None."""
    value = stats.get(name)
    return float(value) if isinstance(value, int | float) else None


def column(label: str, text: str, *names: str, timing: bool = False) -> Column:
    """Returns a column of the latest numbers with these names in a format; empty while one of them is unknown."""

    def cell(stats: Stats) -> str:
        numbers = [number(stats, name) for name in names]
        return "" if None in numbers else text.format(*numbers)

    return Column(label, cell, timing)


def rate(name: str = "rate_hz") -> Column:
    """Returns the column `rate`, from the number `name` in Hz."""

    def text(stats: Stats) -> str:
        value = number(stats, name)
        return f"{value:.0f} Hz" if value else ""

    return Column("rate", text)


@dataclass(frozen=True)
class NodeKind(Generic[P]):
    """A kind of node.

    name: its name in launch files, `exec`. parameters: their struct; a struct that forbids unknown fields finds
    misspelt names. main: a function that does the node's work until it is asked to stop, or a subclass of `Node`.
    panels: its parts of the report. columns: its cells in the live table. at_end: returns a summary for a launch's last
    line, or an empty string. launched: default parameters, with substitutions, under a launcher. about: a short
    description for `--help`; by default the first paragraph of the parameters' module docstring. check: raises for
    parameters that cannot work here, for example without a library; called by a launcher while planning and by the node
    before it starts.
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
        """Runs a node of this kind, by default with the process's arguments, and returns the exit status.

        With `--help` it prints the help instead.
        """
        words = sys.argv[1:] if argv is None else list(argv)
        if "-h" in words or "--help" in words:
            module_text = sys.modules[self.parameters.__module__].__doc__ or ""
            paragraph = " ".join(module_text.partition("\n\n")[0].split()).replace("`", "")
            print(node_help(self.name, self.parameters, self.about or paragraph))
            return 0
        return _run(self, words)


_LOG = logging.getLogger(__name__)
_LINGER_MS = 2000
"""For how long a node that ends sends what waits in sockets of its own."""
_PARAMETER_ERRORS = (
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
    PermissionDeniedError,
    MissingLibraryError,
)
"""Errors that, before a node is ready, mean invalid parameters; a restart does not help."""


class CommonParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Parameters of every node.

    realtime: real-time settings of its process. log_format: of log lines; by default the launcher's, else text.
    log_level: lowest level to log; by default the launcher's, else info. autostart: whether a node that is a class
    activates itself, or waits for transitions.
    """

    realtime: Realtime = Realtime()
    log_format: logs.Format | None = None
    log_level: logs.Level | None = None
    autostart: bool = True


def typed(parameters: Parameters, kind: type[P]) -> tuple[CommonParameters, P]:
    """Returns the common parameters and the node's own. A name that the node declares is its own.

    Raises:
        ConfigurationError: A parameter is invalid; names file, line, parameter, found and expected value.
    """
    own_names = {field.encode_name for field in msgspec.structs.fields(kind)}
    names = {field.encode_name for field in msgspec.structs.fields(CommonParameters)} - own_names
    common, rest = parameters.divide(names)
    return common.to(CommonParameters), rest.to(kind)


def _run(kind: NodeKind[P], argv: Sequence[str]) -> int:
    stop = Stop()
    # before parsing: from here on a signal ends the node in order, not in the middle of a statement
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop.request)
    end_with_launcher()
    logs.set_up(full_name("/", kind.name))
    try:
        arguments = parse_arguments(argv, default_name=kind.name)
        if arguments.rest:
            raise InvalidArgumentError(
                f"unknown argument {arguments.rest[0]!r}; parameters are given as name:=value, options after "
                "--ros-args, and --help lists them"
            )
        common, parameters = typed(arguments.parameters, kind.parameters)
        kind.check(parameters)
    except DynError as error:
        _LOG.error("%s: %s", kind.name, error)
        return 2
    logs.set_up(arguments.full_name, common.log_format, level=arguments.log_level or common.log_level)
    _LOG.debug("parameters: %s", json.dumps(msgspec.to_builtins(parameters)))
    with open_context(_LINGER_MS) as context:
        name, endpoint = os.environ.get(telemetry.NODE, arguments.full_name), os.environ.get(telemetry.ENDPOINT)
        sender = telemetry.Telemetry(name, context, endpoint)
        node: Node[P] | None = None
        try:
            node_class = kind.main if isinstance(kind.main, type) else Node[P]
            node = node_class(arguments, parameters, sender, context, stop, topics.runtime_dir(), common.realtime)
            node.diagnosed = True
            # real-time settings after the preparation, which would otherwise run at real-time priority and block the
            # machine
            sender.before_ready = node.begin
            check(common.realtime, polls=True)  # before anything slow is begun
            if isinstance(kind.main, type):
                node.run(autostart=common.autostart)
            else:
                kind.main(node)
        except DynError as error:
            _LOG.error("%s: %s", arguments.full_name, error)
            sender.fault(str(error))
            return 1 if sender.was_ready or not isinstance(error, _PARAMETER_ERRORS) else 2
        except Exception as error:  # noqa: BLE001  any error is reported to the launcher
            _LOG.exception("%s ended", arguments.full_name)
            sender.fault(f"{type(error).__name__}: {error}")
            return 1
        finally:
            if node is not None:
                node.close()
            sender.close()
    return 0
