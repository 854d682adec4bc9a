"""The command line: parses arguments, calls the other modules, and prints errors as one line.

Exit status: 0 done, 1 the command failed, 2 wrong usage, 3 and 4 `dyn launch --check`: the run is not clean, or only
late, 130 interrupted.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

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

from dyn_service.cli import nodes, robot_check, robots, view  # typer is there
from dyn_service.cli.bag import app as bag_app
from dyn_service.cli.console import LogFormat, LogLevel, UsageError, assigned, reworded, say, say_json, tell
from dyn_service.cli.excite import excite
from dyn_service.cli.identify import identify
from dyn_service.cli.keys import app as keys_app
from dyn_service.cli.new import app as new_app
from dyn_service.cli.serve import serve

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
    # only the main thread can set signal handlers; tests call this from others
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
    # the reader, such as `head`, has enough: no error message
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        # by name, because typer has its own copy of click's exceptions
        if type(error).__name__ == "Abort":
            sys.exit(130)
        if not hasattr(error, "exit_code"):
            raise
        error.message = reworded(getattr(error, "message", "") or "") or _hint(error)  # type: ignore[attr-defined]
        error.show()  # type: ignore[attr-defined]  # wrong usage, reported by click
        sys.exit(error.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


# `dyn --help` shows panels in the order of their first command; groups follow commands.
_ROBOTS = (
    robot_check.check,
    view.view,
    robots.convert,
    excite,
    identify,
    robots.export,
    robots.study,
    robots.bench,
    robots.robots,
)
for _command in _ROBOTS:
    app.command(rich_help_panel="Robots")(_command)
for _name, _group in (*nodes.GROUPS.items(), ("bag", bag_app)):
    app.add_typer(_group, name=_name, rich_help_panel="Running systems")
app.add_typer(keys_app, name="keys", rich_help_panel="Servers")
app.add_typer(new_app, name="new", rich_help_panel="Launches and nodes")
app.command(rich_help_panel="Servers")(serve)


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
    # without completions rather than with an error, which a shell cannot show
    with suppress(DynError, OSError):
        names = declared_arguments(shipped.find_launch_file(words[0]))[0] if words else shipped.launch_files()
        completions = [f"{name}:=" if words else name for name in names if name.startswith(incomplete)]
    return completions


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
        inputs_and_options = read_values(inputs, values or [])
        reported: set[str] = set()

        def waits(text: str) -> None:
            # once, because the server repeats its notice each second
            if text not in reported:
                tell(f"waiting: {text}")
                reported.add(text)

        endpoint = nodes.find_server(server)
        answer = ask(endpoint, query, robot, inputs_and_options, timeout, compile_wait, waits, key, server_key)
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
    log_format: LogFormat = "text",
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
    # in files or arguments, before anything was started: wrong usage, not a failed run
    except (InvalidArgumentError, NotFoundError) as error:
        raise UsageError(str(error)) from None


def _file(words: list[str]) -> tuple[Path, dict[str, str]]:
    """Returns the launch file of these arguments, and the remaining arguments."""
    names = [word for word in words[:2] if ":=" not in word]
    if not names:
        raise UsageError(f"name a launch file; {shipped.PACKAGE} ships {', '.join(shipped.launch_files())}")
    # a second word without `:=` is a package's launch file, or a wrong argument if the first word is a file
    of_package = len(names) == 2 and words[:2] == names and not Path(names[0]).is_file() and "=" not in names[1]
    file = shipped.find_launch_file(names[of_package], package=names[0] if of_package else None)
    arguments = assigned(words[2 if of_package else 1 :])
    if of_package or str(file) != names[0]:
        tell(f"{' '.join(names) if of_package else names[0]}: {file}")
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
    node_names = registry.names(package)
    if not node_names:
        packages = {home for home, _ in registry.all_names()}
        raise UsageError(f"package {package!r} has no registered nodes{did_you_mean(package, packages)}")
    kind = registry.find(package, node)
    if kind is None:
        hint = did_you_mean(node, node_names)
        raise UsageError(f"package {package!r} has no node {node!r}; it has {', '.join(node_names)}{hint}")
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
