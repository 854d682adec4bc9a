"""The command line: parses arguments, calls the other modules, and prints errors as one line.

Exit status: 0 done, 1 the command failed, 2 wrong usage, 3 and 4 `dyn launch --check`: the run is not clean, or only
late, 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from dyn_service.errors import DynError, InvalidArgumentError, NotFoundError
from dyn_service.service.protocol.limits import DEFAULT_COMPILE_WAIT_S, DEFAULT_ENDPOINT
from dyn_service.support import shipped
from dyn_service.support.interrupts import raise_outside_of_imports
from dyn_service.support.optional import missing
from dyn_service.support.suggestions import did_you_mean

try:
    import typer
except ModuleNotFoundError:
    sys.exit(f"error: {missing('the command line', 'typer')}")

from dyn_service.cli import nodes, robots, view  # typer is there
from dyn_service.cli.bag import app as bag_app
from dyn_service.cli.console import LogLevel, RobotFiles, UsageError, assigned, bar, reworded, say, say_json, tell
from dyn_service.cli.keys import app as keys_app
from dyn_service.cli.new import app as new_app

if TYPE_CHECKING:
    from dyn_service.service.server.settings import ServerSettings

_LOG = logging.getLogger(__name__)
_NEGATIVE = re.compile(r"-(?!1$)([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

_LISTED = {"NODE": "dyn node list", "TOPIC": "dyn topic list", "SERVICE": "dyn service list"}
"""Commands that print the values of a missing argument, by its placeholder."""

_Server = Annotated[
    str | None,
    typer.Option(
        metavar="ENDPOINT",
        help=f"Where the server listens. (default: the one of the running launch, else {DEFAULT_ENDPOINT})",
    ),
]
_Key = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A key file, for a server that requires keys.", envvar="DYN_SERVICE_KEY"),
]
_ServerKey = Annotated[
    str | None, typer.Option(metavar="KEY", help="The server's public key, if it is not in the key file.")
]

app = typer.Typer(
    help="Robot dynamics as a service: torques, motions and joint loads of any robot with a URDF, MJCF or "
    "SDFormat file.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """Runs the command line and exits with the command's status."""
    if threading.current_thread() is threading.main_thread():
        raise_outside_of_imports()
    try:
        # a negative number is an argument, not a group of short options; -1 is an option of `topic pub`
        words = [f" {word}" if _NEGATIVE.fullmatch(word) else word for word in sys.argv[1:]]
        status = app(words, prog_name="dyn", standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except UsageError as error:
        _fail(str(error), 2)
    except DynError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "dyn_service":
            raise
        _fail(missing("this command", error.name))
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        if type(error).__name__ == "Abort":
            sys.exit(130)
        if not hasattr(error, "exit_code"):
            raise
        error.message = reworded(getattr(error, "message", "") or "") or _hint(error)  # type: ignore[attr-defined]
        error.show()  # type: ignore[attr-defined]  # wrong usage, reported by click
        sys.exit(error.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


# `dyn --help` shows panels in the order of their first command; groups follow commands.
for _command in (robots.check, view.view, robots.convert, robots.export, robots.study, robots.bench, robots.robots):
    app.command(rich_help_panel="Robots")(_command)
app.add_typer(nodes.topic_app, name="topic", rich_help_panel="Running systems")
app.add_typer(nodes.node_app, name="node", rich_help_panel="Running systems")
app.add_typer(nodes.service_app, name="service", rich_help_panel="Running systems")
app.add_typer(nodes.param_app, name="param", rich_help_panel="Running systems")
app.add_typer(nodes.lifecycle_app, name="lifecycle", rich_help_panel="Running systems")
app.add_typer(bag_app, name="bag", rich_help_panel="Running systems")
app.add_typer(keys_app, name="keys", rich_help_panel="Servers")
app.add_typer(new_app, name="new", rich_help_panel="Launches and nodes")


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from dyn_service import __version__

        say(__version__)
        raise typer.Exit


def _queries(incomplete: str) -> list[str]:
    """Names of queries."""
    from dyn_service.cli.calling import QUERY_NAMES

    return [name for name in QUERY_NAMES if name.startswith(incomplete)]


def _inputs(context: typer.Context, incomplete: str) -> list[str]:
    """Inputs and options of the query that the command line names, `NAME=`."""
    from dyn_service.cli.calling import arguments_of

    names = arguments_of(context.params.get("query") or "")
    return [f"{name}=" for name in names if name.startswith(incomplete)]


def _launch_words(context: typer.Context, incomplete: str) -> list[str]:
    """Names of shipped launch files; after one its arguments, `NAME:=`."""
    from dyn_service.graph.launch import declared_arguments

    words = context.params.get("words") or []
    completions: list[str] = []
    with suppress(DynError, OSError):  # a shell cannot show an error
        names = declared_arguments(shipped.find_launch_file(words[0]))[0] if words else shipped.launch_files()
        completions = [f"{name}:=" if words else name for name in names if name.startswith(incomplete)]
    return completions


@app.command(rich_help_panel="Servers")
def serve(
    files: RobotFiles = None,
    config: Annotated[Path | None, typer.Option(help="A parameter file, see config/server.yaml.")] = None,
    bind: Annotated[
        list[str] | None,
        typer.Option(metavar="ENDPOINT", help=f"Where to listen; may be repeated. (default: {DEFAULT_ENDPOINT})"),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(help="How the robots' root links can move: fixed, planar or floating. (default: fixed)"),
    ] = None,
    mimic: Annotated[
        bool | None,
        typer.Option("--mimic/--no-mimic", help="Whether joints that mimic others follow them. (default: mimic)"),
    ] = None,
    loops: Annotated[
        str | None,
        typer.Option(help="Whether closed loops of links are refused or cut: closed or cut. (default: closed)"),
    ] = None,
    joints: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A joint file: damping, friction, springs and rotors of a robot's joints; may be repeated.",
        ),
    ] = None,
    allow_load: Annotated[
        bool | None,
        typer.Option(
            "--allow-load/--no-allow-load",
            help="Whether clients may load and unload robots. (default: only if no other machine can reach the server)",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Worker processes for slow requests; with 0 they run in a thread, which deadlines do not stop: "
            "late answers are only marked. (default: 2)",
        ),
    ] = None,
    prepare: Annotated[
        bool | None,
        typer.Option("--prepare/--no-prepare", help="Compile the kernels before the first request. (default: prepare)"),
    ] = None,
    prepare_for: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Compile only these: a purpose, or the name of a query; may be repeated. "
            "(default: control, verify, simulate, contact_dynamics, simulate_rheonomic and ground_reactions)",
        ),
    ] = None,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Format of the log lines.")] = "text",
    log_level: LogLevel = "info",
    keys: Annotated[
        str | None,
        typer.Option(
            help="Which clients need a key: remote (those on other machines) or required (all). (default: remote)"
        ),
    ] = None,
    keys_folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the keys. (default: that of `dyn keys`)")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Log file of robots that clients loaded and unloaded.")
    ] = None,
) -> int:
    """Answer queries about robots over ZeroMQ, until SIGINT or SIGTERM."""
    import msgspec

    from dyn_service.service.server.settings import NODE, ServerSettings, read_settings
    from dyn_service.support import logs
    from dyn_service.support.arguments import full_name

    name = full_name("/", NODE)
    os.environ[logs.FORMAT], os.environ[logs.LEVEL] = log_format, log_level  # for the workers
    logs.set_up(name, log_format, level=log_level)

    def line(text: str) -> None:
        say(logs.json_line(name, "info", text) if log_format == "json" else text)

    try:
        settings = read_settings(config) if config is not None else ServerSettings()
        if prepare is not None and prepare_for:
            raise UsageError("give only one of --prepare, --no-prepare and --prepare-for", path="prepare")
        given: dict[str, Any] = {
            "root": root,
            "mimic": mimic,
            "loops": loops,
            "workers": workers,
            "allow_load": allow_load,
            "prepare": prepare_for or prepare,
            "endpoints": bind or None,
        }
        given |= {"keys": keys, "keys_folder": str(keys_folder or "") or None, "audit": str(audit or "") or None}
        given["robots"] = [*settings.robots, *map(str, files or [])]
        given["joints"] = [*settings.joints, *map(str, joints or [])]
        given = {name: value for name, value in given.items() if value is not None}
        _serve(msgspec.structs.replace(settings, **given), line)
    except DynError as error:
        if log_format == "text":
            raise
        _LOG.error("%s", error)  # as JSON
        return 1
    return 0


def _serve(settings: ServerSettings, ready: Callable[[str], None]) -> None:
    """Serves until a signal arrives; calls `ready` with a line when the server listens."""
    from dyn_service.service.server.app import open_server
    from dyn_service.support.realtime import apply

    server = open_server(settings, _LOG.info, bar)

    def announce() -> None:
        for endpoint in server.endpoints:
            ready(f"ready: {endpoint} robots: {', '.join(server.service.robots) or 'none'}")

    try:
        server.bind()  # starts the workers, which do not get this process's real-time settings
        apart = apply(settings.realtime, _LOG.warning, polls=False)
        if apart:
            _LOG.info(apart)
        server.serve_forever(announce)
    except BaseException:  # Ctrl-C too, before the server handles it
        server.stop()
        raise


@app.command(rich_help_panel="Servers", context_settings={"help_option_names": []})
def call(
    context: typer.Context,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="Name of a query, see --list.", autocompletion=_queries),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="Inputs and options: q=0,0.5,1  kp=100  method=mass_matrix",
            autocompletion=_inputs,
        ),
    ] = None,
    server: _Server = None,
    robot: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the robot. (default: the server's only robot)")
    ] = None,
    inputs: Annotated[str | None, typer.Option(metavar="JSON", help="Inputs and options as one JSON object.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit.")] = 5.0,
    compile_wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Additional time while the server compiles.")
    ] = DEFAULT_COMPILE_WAIT_S,
    key: _Key = None,
    server_key: _ServerKey = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the queries, their inputs and outputs.")] = False,
    help_: Annotated[bool, typer.Option("--help", "-h", help="Print this, or a QUERY with its inputs.")] = False,
) -> None:
    """Send a query to a server and print the answer as JSON."""
    from dyn_service.cli.calling import ask, list_queries, query_help, read_values

    if help_:
        say(query_help(query), nl=True) if query else say(context.get_help(), nl=False)
    elif list_:
        say(list_queries())
    elif query is None:
        raise UsageError("name a query; dyn call --list prints them all")
    else:
        given = read_values(inputs, values or [])
        said: set[str] = set()

        def waits(text: str) -> None:
            if text not in said:  # reported each second
                tell(f"waiting: {text}")
                said.add(text)

        answer = ask(nodes.find_server(server), query, robot, given, timeout, compile_wait, waits, key, server_key)
        say_json(answer)


@app.command(rich_help_panel="Servers")
def metrics(
    server: _Server = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where Prometheus connects.")] = "127.0.0.1:9755",
    key: _Key = None,
    server_key: _ServerKey = None,
) -> None:
    """Export a server's metrics to Prometheus: requests, times, errors, queues, workers, memory, limits."""
    from dyn_service.cli.metrics import serve_metrics

    serve_metrics(nodes.find_server(server), listen, key, server_key)


@app.command(rich_help_panel="Launches and nodes")
def launch(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PACKAGE] FILE [NAME:=VALUE]...",
            help="A launch file, or the name of a shipped one, of this package or of PACKAGE; then its arguments.",
            autocompletion=_launch_words,
            show_default=False,
        ),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop after this time. (default: at Ctrl-C)")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write the report.")] = None,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Format of the lines.")] = "text",
    log_level: LogLevel = "info",
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Exit with status 3 if the robot did not meet its bounds, 4 if only the timing did not."
        ),
    ] = False,
    show_args: Annotated[
        bool, typer.Option("--show-args", "-s", help="Print the arguments of the file and exit.")
    ] = False,
) -> int:
    """Start and supervise the processes of a launch file, and write a report."""
    from dyn_service.graph.launch import launch_file, show_arguments

    try:
        file, arguments = _file(words or [])
        if show_args:
            for line in show_arguments(file):
                say(line)
            return 0
        return launch_file(
            file,
            arguments,
            duration_s=duration,
            report_dir=report,
            log_format=log_format,
            log_level=log_level,
            check=check,
        )
    except (InvalidArgumentError, NotFoundError) as error:  # in files or arguments; nothing was started
        raise UsageError(str(error)) from None


def _file(words: list[str]) -> tuple[Path, dict[str, str]]:
    """Returns the launch file of these arguments, and the remaining arguments."""
    named = [word for word in words[:2] if ":=" not in word]
    if not named:
        raise UsageError(f"name a launch file; {shipped.PACKAGE} ships {', '.join(shipped.launch_files())}")
    # a second word without `:=` is a package's launch file, or a wrong argument if the first word is a file
    of_package = len(named) == 2 and words[:2] == named and not Path(named[0]).is_file() and "=" not in named[1]
    file = shipped.find_launch_file(named[of_package], package=named[0] if of_package else None)
    arguments = assigned(words[2 if of_package else 1 :])
    if of_package or str(file) != named[0]:
        tell(f"{' '.join(named) if of_package else named[0]}: {file}")
    return file, arguments


NODE_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Context settings that pass all further arguments to the node, including `--help`."""


@app.command(context_settings=NODE_ARGUMENTS, rich_help_panel="Launches and nodes")
def run(
    context: typer.Context,
    package: Annotated[str, typer.Argument(metavar="PACKAGE", help="The node's package, such as dyn_service.")] = "",
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name in its package.")] = "",
) -> int:
    """Run one node of any package: `dyn run PACKAGE NODE --help` lists its parameters."""
    from dyn_service.graph.nodes.registry import Registry

    registry = Registry()
    if package in ("-h", "--help"):
        say(context.get_help(), nl=False)
        return 0
    if not package:
        raise UsageError(f"name a package and its node: one of {', '.join(map('/'.join, registry.all_names()))}")
    known = registry.names(package)
    if not known:
        packages = {home for home, _ in registry.all_names()}
        raise UsageError(f"package {package!r} has no registered nodes{did_you_mean(package, packages)}")
    kind = registry.find(package, node)
    if kind is None:
        near = did_you_mean(node, known)
        raise UsageError(f"package {package!r} has no node {node!r}; it has {', '.join(known)}{near}")
    return kind.run(context.args)


def _node(name: str) -> Callable[[typer.Context], int]:
    def command(context: typer.Context) -> int:
        return run(context, shipped.PACKAGE, name)

    command.__doc__ = f"Run the node `{name}` by itself: `dyn {name} --help` lists its parameters."
    return command


for _name in ("server", "plant", "controller"):
    app.command(_name, context_settings=NODE_ARGUMENTS, rich_help_panel="Launches and nodes")(_node(_name))
app.command(rich_help_panel="Running systems")(view.foxglove)


def _hint(error: Exception) -> str:
    """Returns how to find a missing argument; empty for other errors."""
    listing = _LISTED.get(getattr(getattr(error, "param", None), "metavar", None) or "")
    return f"`{listing}` prints those that run." if listing else ""


def _fail(message: str, status: int = 1) -> NoReturn:
    tell(f"error: {message}")
    sys.exit(status)
