"""The command line: arguments in, one clear line out when something is wrong. The work is done elsewhere.

Exit status: 0 done, 1 the command failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.interrupts import raise_outside_of_imports
from dyn_service.protocol.defaults import DEFAULT_COMPILE_WAIT_S, DEFAULT_ENDPOINT

try:
    import typer
except ModuleNotFoundError:
    sys.exit(
        "error: the command line needs 'typer', which the base install leaves out: pip install 'dyn_service[server]'"
    )

from dyn_service.cli.keys import app as keys_app  # typer is there

if TYPE_CHECKING:
    from dyn_service.server.settings import ServerSettings

_LOG = logging.getLogger(__name__)

_Key = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A key file, for a server with keys.", envvar="DYN_SERVICE_KEY")
]
_ServerKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="The server's public key, where it does not stand in the key file."),
]

app = typer.Typer(
    help="Robot dynamics as a service: torques, motions and joint loads of any robot with a URDF, MJCF or "
    "SDFormat file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """Runs the command that the arguments name, and ends the process with its status."""
    if threading.current_thread() is threading.main_thread():
        raise_outside_of_imports()
    try:
        status = app(prog_name="dyn", standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except DynError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "dyn_service":
            raise
        _fail(f"this command needs '{error.name}': pip install 'dyn_service[server]'")
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        if type(error).__name__ == "Abort":
            sys.exit(130)
        if not hasattr(error, "exit_code"):
            raise
        error.show()  # type: ignore[attr-defined]  # a fault in the usage, as click tells it
        sys.exit(error.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


app.add_typer(keys_app, name="keys")


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from dyn_service import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def serve(
    robots: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Robots: URDF, MJCF, SDFormat, xacro.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A parameter file, see config/server.yaml.")] = None,
    bind: Annotated[
        list[str] | None,
        typer.Option(metavar="ENDPOINT", help=f"Where to listen, may be given often. (default: {DEFAULT_ENDPOINT})"),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(help="How the robots' root links move: fixed, planar or floating. (default: fixed)"),
    ] = None,
    mimic: Annotated[
        bool | None,
        typer.Option("--mimic/--no-mimic", help="Whether joints that mimic others follow them. (default: mimic)"),
    ] = None,
    joints: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="What a robot's joints do by themselves, a joint file; may be given often."),
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
            help="Processes for slow requests; 0 is a thread of the server's own, which no deadline stops: its late "
            "answers are only marked. (default: 2)",
        ),
    ] = None,
    prepare: Annotated[
        bool | None,
        typer.Option("--prepare/--no-prepare", help="Make the kernels before the first request. (default: prepare)"),
    ] = None,
    prepare_for: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Make only these: a purpose, or the name of a query; may be given often. "
            "(default: control, verify, simulate, contact_dynamics, simulate_rheonomic and ground_reactions)",
        ),
    ] = None,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="How log lines are written.")] = "text",
    keys: Annotated[
        str | None,
        typer.Option(
            help="Where keys are asked for: remote (where other machines come) or required. (default: remote)"
        ),
    ] = None,
    keys_folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where `dyn keys` keeps the keys. (default: as there)")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write who loaded and unloaded what.")
    ] = None,
) -> int:
    """Answer questions about robots over ZeroMQ, until SIGINT or SIGTERM."""
    import msgspec

    from dyn_service.config import logs
    from dyn_service.config.arguments import full_name
    from dyn_service.server.settings import NODE, ServerSettings, read_settings

    name = full_name("/", NODE)
    os.environ[logs.FORMAT] = log_format  # what its workers have to say, too
    logs.set_up(name, log_format)

    def say(line: str) -> None:
        print(logs.json_line(name, "info", line) if log_format == "json" else line, flush=True)

    try:
        settings = read_settings(config) if config is not None else ServerSettings()
        if prepare is not None and prepare_for:
            raise InvalidArgumentError("give --prepare, --no-prepare or --prepare-for, not two of them", path="prepare")
        given: dict[str, Any] = {
            "root": root,
            "mimic": mimic,
            "workers": workers,
            "allow_load": allow_load,
            "prepare": prepare_for or prepare,
            "endpoints": bind or None,
        }
        given |= {"keys": keys, "keys_folder": str(keys_folder or "") or None, "audit": str(audit or "") or None}
        given["robots"] = [*settings.robots, *map(str, robots or [])]
        given["joints"] = [*settings.joints, *map(str, joints or [])]
        given = {name: value for name, value in given.items() if value is not None}
        _serve(msgspec.structs.replace(settings, **given), say)
    except DynError as error:
        if log_format == "text":
            raise
        _LOG.error("%s", error)  # a line like the others
        return 1
    return 0


def _serve(settings: ServerSettings, say: Callable[[str], None]) -> None:
    """Serves as the settings say until a signal comes; `say` is told once it listens."""
    from dyn_service.config.realtime import apply
    from dyn_service.server.opening import open_server

    server = open_server(settings, _LOG.info, _bar)

    def announce() -> None:
        for endpoint in server.endpoints:
            say(f"ready: {endpoint} robots: {', '.join(server.service.robots) or 'none'}")

    try:
        server.bind()  # workers are made before this process is set apart, and are not
        apart = apply(settings.realtime, _LOG.warning, polls=False)
        if apart:
            _LOG.info(apart)
        server.serve_forever(announce)
    except BaseException:  # Ctrl-C too, before the server itself looks after it
        server.stop()
        raise


@app.command()
def call(
    query: Annotated[str | None, typer.Argument(help="A query, see --list.")] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Inputs and options: q=0,0.5,1  kp=100  method=mass_matrix"),
    ] = None,
    server: Annotated[str, typer.Option(metavar="ENDPOINT", help="Where the server listens.")] = DEFAULT_ENDPOINT,
    robot: Annotated[str | None, typer.Option(metavar="NAME", help="(default: the server's only robot)")] = None,
    inputs: Annotated[str | None, typer.Option(metavar="JSON", help="Inputs and options as one JSON object.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit.")] = 5.0,
    compile_wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long, beyond it, to wait while the server compiles.")
    ] = DEFAULT_COMPILE_WAIT_S,
    key: _Key = None,
    server_key: _ServerKey = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the queries, their inputs and outputs.")] = False,
) -> None:
    """Ask a server one question and print the answer as JSON."""
    from dyn_service.cli.calling import ask, list_queries, read_values

    if list_:
        typer.echo(list_queries())
    elif query is None:
        raise InvalidArgumentError("name a query; dyn call --list prints them all")
    else:
        given = read_values(inputs, values or [])
        said: set[str] = set()

        def tell(text: str) -> None:
            if text not in said:  # it is told each second
                print(f"waiting: {text}", file=sys.stderr)
                said.add(text)

        answer = ask(server, query, robot, given, timeout, compile_wait, tell, key, server_key)
        typer.echo(json.dumps(answer, indent=2, ensure_ascii=False))


@app.command()
def metrics(
    server: Annotated[str, typer.Option(metavar="ENDPOINT", help="Where the server listens.")] = DEFAULT_ENDPOINT,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where Prometheus asks.")] = "127.0.0.1:9755",
    key: _Key = None,
    server_key: _ServerKey = None,
) -> None:
    """Give a server's numbers to Prometheus: requests, times, errors, what waits, workers, memory, limits."""
    from dyn_service.cli.metrics import serve_metrics

    serve_metrics(server, listen, key, server_key)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A robot: URDF, MJCF, SDFormat, xacro.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME:=VALUE", help="Arguments of a xacro file.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    root: Annotated[str, typer.Option(help="How the root link moves: fixed, planar or floating.")] = "fixed",
    mimic: Annotated[
        bool, typer.Option("--mimic/--no-mimic", help="Whether joints that mimic others follow them.")
    ] = True,
    joints: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What its joints do by themselves, a joint file.")
    ] = None,
    dynamics: Annotated[
        bool, typer.Option("--dynamics", help="Hold every formulation of the dynamics against the others instead.")
    ] = False,
    states: Annotated[int, typer.Option(min=1, metavar="N", help="Random states for --dynamics.")] = 20,
    bound: Annotated[float, typer.Option(metavar="X", help="Largest relative residual for --dynamics.")] = 1e-9,
    kernels: Annotated[
        bool, typer.Option("--kernels/--no-kernels", help="Make the kernels of control loops, for their certificates.")
    ] = True,
) -> int:
    """Read a robot and say what was kept, merged, defaulted, dropped and doubted, and how exact its kernels are."""
    from dyn_service import Robot

    given = _assigned(arguments)
    robot = Robot.from_file(file, root=root, joints=joints, mimic=mimic, arguments=given)  # type: ignore[arg-type]  # is said there
    if not dynamics:
        if kernels:
            from dyn_service.server.opening import prepare

            _tell(prepare(robot, ["control"], _bar))
        receipt = robot.receipt
        typer.echo(json.dumps(receipt.to_dict(), indent=2, ensure_ascii=False) if json_output else receipt.render())
        return 0
    from dyn_service.reference.verification import survey

    found = survey(robot, states=states)
    if json_output:
        typer.echo(json.dumps(found, indent=2))
    else:
        for name, residual in found["residuals"].items():
            typer.echo(f"{name:<24}{residual:8.1e}")
        typer.echo(f"worst {found['worst']:.1e} of {found['states']} states, bound {bound:g}")
    if not found["worst"] <= bound:
        _fail(f"{file}: the formulations are {found['worst']:.1e} apart, expected at most {bound:g}")
    return 0


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A robot: URDF, MJCF, SDFormat, xacro.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: .urdf, .xml, .mjcf or .sdf.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME:=VALUE", help="Arguments of a xacro file.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="urdf, mjcf or sdf. (default: as OUT is named)")
    ] = None,
    root: Annotated[str, typer.Option(help="How the root link moves: fixed, planar or floating.")] = "fixed",
    joints: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What its joints do by themselves, a joint file.")
    ] = None,
    mimic: Annotated[
        bool, typer.Option("--mimic/--no-mimic", help="Whether joints that mimic others follow them.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a robot as another sort of file, and say line by line what is not in it."""
    from dyn_service.formats.converting import convert as converted
    from dyn_service.urdf.receipt import table

    notes = converted(
        source,
        target,
        format=to,
        root=root,
        joints=joints,
        mimic=mimic,
        arguments=_assigned(arguments),
        force=force,
    )
    if json_output:
        rows = [{"kind": note.kind, "element": note.element, "text": note.text, "line": note.line} for note in notes]
        typer.echo(json.dumps({"file": str(target), "notes": rows}, indent=2, ensure_ascii=False))
        return
    for line in table(notes):
        typer.echo(line)
    typer.echo(f"{target} is written{'' if notes else '; nothing is missing in it'}")


@app.command()
def launch(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A launch file.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="NAME:=VALUE", help="Its arguments.")] = None,
    duration: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after so long.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write the report.")] = None,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="How lines are shown.")] = "text",
    show_args: Annotated[
        bool, typer.Option("--show-args", "-s", help="Print the file's arguments, and start nothing.")
    ] = False,
) -> int:
    """Start the processes of a launch file, watch over them, report."""
    from dyn_service.launching import launch_file, show_arguments

    if show_args:
        for line in show_arguments(file):
            typer.echo(line)
        return 0

    return launch_file(file, _assigned(arguments), duration_s=duration, report_dir=report, log_format=log_format)


@app.command()
def bench(
    robots: Annotated[list[Path] | None, typer.Argument(metavar="ROBOT.urdf")] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="STATES", help="States of a batch.")] = 4096,
    json_output: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> int:
    """Measure how long the main queries take on this machine, per state, beside Pinocchio where it is installed."""
    from dyn_service.cli.bench import run

    if not robots:
        raise InvalidArgumentError("name a URDF file to time, such as urdf/panda.urdf")
    return run(robots, batch=batch, json_output=json_output)


def _assigned(arguments: list[str] | None) -> dict[str, str]:
    """Values by the names that they are given to."""
    given: dict[str, str] = {}
    for text in arguments or []:
        name, separator, value = text.partition(":=")
        if not separator or not name:
            raise InvalidArgumentError(f"an argument must look like name:=value, found '{text}'")
        given[name] = value
    return given


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


@contextmanager
def _bar(name: str, kernels: int) -> Iterator[Callable[[], None]]:
    """A progress bar where someone watches."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{name}: kernels", total=kernels)
        yield lambda: progress.advance(task)


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)
