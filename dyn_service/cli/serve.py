"""`dyn serve`: a server, by a parameter file and options."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dyn_service.cli.console import LogFormat, LogLevel, RobotFiles, UsageError, bar, say
from dyn_service.errors import DynError
from dyn_service.service.protocol.limits import DEFAULT_ENDPOINT

if TYPE_CHECKING:
    from dyn_service.service.server.settings import ServerSettings

_LOG = logging.getLogger(__name__)

# None marks an option that was not given, so that the parameter file's value or the server's default holds.
_Config = Annotated[Path | None, typer.Option(help="A parameter file, see config/server.yaml.")]
_Bind = Annotated[
    list[str] | None,
    typer.Option(metavar="ENDPOINT", help=f"Where to listen; may be repeated. (default: {DEFAULT_ENDPOINT})"),
]
_Root = Annotated[
    str | None, typer.Option(help="How the robots' root links can move: fixed, planar or floating. (default: fixed)")
]
_Mimic = Annotated[
    bool | None,
    typer.Option("--mimic/--no-mimic", help="Whether joints that mimic others follow them. (default: mimic)"),
]
_Loops = Annotated[
    str | None, typer.Option(help="closed: robots with closed loops; cut: the tree that is left. (default: closed)")
]
_JointFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="A joint file: motors, loop joints, damping, friction, springs of a robot; may be repeated.",
    ),
]
_AllowLoad = Annotated[
    bool | None,
    typer.Option(
        "--allow-load/--no-allow-load",
        help="Whether clients may load and unload robots. (default: only if no other machine can reach the server)",
    ),
]
_Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Worker processes for slow requests; with 0 they run in a thread, which deadlines do not stop: "
        "late answers are only marked. (default: 2)",
    ),
]
_Prepare = Annotated[
    bool | None,
    typer.Option("--prepare/--no-prepare", help="Compile the kernels before the first request. (default: prepare)"),
]
_PrepareFor = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Compile only these: a purpose, or the name of a query; may be repeated. "
        "(default: control, verify, simulate, contact_dynamics, simulate_rheonomic, constraint_force_causes and "
        "ground_reactions)",
    ),
]
_Keys = Annotated[
    str | None,
    typer.Option(
        help="Which clients need a key: remote (those on other machines) or required (all). (default: remote)"
    ),
]
_KeysFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the keys. (default: that of `dyn keys`)")
]
_Audit = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Log file of robots that clients loaded and unloaded.")
]


def serve(
    files: RobotFiles = None,
    config: _Config = None,
    bind: _Bind = None,
    root: _Root = None,
    mimic: _Mimic = None,
    loops: _Loops = None,
    joints: _JointFiles = None,
    allow_load: _AllowLoad = None,
    workers: _Workers = None,
    prepare: _Prepare = None,
    prepare_for: _PrepareFor = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
    keys: _Keys = None,
    keys_folder: _KeysFolder = None,
    audit: _Audit = None,
) -> int:
    """Answer queries about robots over ZeroMQ, until SIGINT or SIGTERM."""
    from dyn_service.service.server.settings import NODE
    from dyn_service.support import logs
    from dyn_service.support.arguments import full_name

    name = full_name("/", NODE)
    # workers inherit the format and level by the environment
    os.environ[logs.FORMAT], os.environ[logs.LEVEL] = log_format, log_level
    logs.set_up(name, log_format, level=log_level)

    def line(text: str) -> None:
        say(logs.json_line(name, "info", text) if log_format == "json" else text)

    options: dict[str, Any] = {
        "endpoints": bind,
        "root": root,
        "mimic": mimic,
        "loops": loops,
        "allow_load": allow_load,
        "workers": workers,
        "prepare": prepare_for or prepare,
        "keys": keys,
        "keys_folder": keys_folder,
        "audit": audit,
    }
    try:
        if prepare is not None and prepare_for:
            raise UsageError("give only one of --prepare, --no-prepare and --prepare-for", path="prepare")
        _serve(_settings(config, files or [], joints or [], options), line)
    except DynError as error:
        # in JSON the error is a log line too, so that each line of the output is an object
        if log_format == "text":
            raise
        _LOG.error("%s", error)
        return 1
    return 0


def _settings(config: Path | None, files: list[Path], joints: list[Path], options: dict[str, Any]) -> ServerSettings:
    """Returns the settings of a parameter file, replaced by the options that are given; robots are added."""
    import msgspec

    from dyn_service.service.server.settings import ServerSettings, read_settings

    settings = read_settings(config) if config is not None else ServerSettings()
    changes = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in options.items()
        # an option that may be repeated is an empty list if it was not given
        if value not in (None, [])
    }
    changes["robots"] = [*settings.robots, *map(str, files)]
    changes["joints"] = [*settings.joints, *map(str, joints)]
    return msgspec.structs.replace(settings, **changes)


def _serve(settings: ServerSettings, ready: Callable[[str], None]) -> None:
    """Serves until a signal arrives; calls `ready` with a line when the server listens."""
    from dyn_service.service.server.app import open_server
    from dyn_service.support.realtime import apply

    server = open_server(settings, _LOG.info, bar)

    def announce() -> None:
        for endpoint in server.endpoints:
            ready(f"ready: {endpoint} robots: {', '.join(server.service.robots) or 'none'}")

    try:
        # first, because it starts the workers, which do not get this process's real-time settings
        server.bind()
        if realtime_text := apply(settings.realtime, _LOG.warning, polls=False):
            _LOG.info(realtime_text)
        server.serve_forever(announce)
    # Ctrl-C too, before the server handles it
    except BaseException:
        server.stop()
        raise
