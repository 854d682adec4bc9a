"""`dyn launch`, `dyn run`, and the commands `dyn server`, `dyn plant` and `dyn controller`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from dyn_service.cli.console import LogLevel, UsageError, assigned, say, tell
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support import shipped
from dyn_service.support.suggestions import did_you_mean


def launch(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PACKAGE] FILE [NAME:=VALUE]...",
            help="A launch file, or the name of a shipped one, of this package or of PACKAGE; then its arguments.",
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
        bool, typer.Option("--check", help="Exit with status 3 if the run did not meet its bounds.")
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


def own_nodes() -> dict[str, Callable[[typer.Context], int]]:
    """Returns the commands for nodes of this package: server, plant, controller."""
    return {name: _command(name) for name in ("server", "plant", "controller")}


def _command(name: str) -> Callable[[typer.Context], int]:
    def command(context: typer.Context) -> int:
        from dyn_service.graph.nodes.registry import PACKAGE

        return run(context, PACKAGE, name)

    command.__doc__ = f"Run the node `{name}` by itself: `dyn {name} --help` lists its parameters."
    return command
