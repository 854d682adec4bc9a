"""Output of commands (`say` writes to standard output, `tell` to standard error), and arguments that several have."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dyn_service.errors import InvalidArgumentError
from dyn_service.support import shipped
from dyn_service.support.logs import printable


def say(text: Any, *, nl: bool = True) -> None:
    """Writes text to standard output; control characters, such as those of a robot's name, are escaped."""
    # a name in a robot's file or of a node could otherwise send escape sequences to the terminal
    typer.echo(printable(str(text)), nl=nl)


def say_json(value: Any) -> None:
    """Writes a value as JSON to standard output."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def tell(line: str) -> None:
    """Writes a line to standard error; control characters are escaped."""
    typer.echo(printable(line), err=True)


@contextmanager
def step(text: str, *, lines: bool = True) -> Iterator[None]:
    """Shows what is being done: on a terminal until it is done, else as a line if `lines`."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if not console.is_terminal:
        if lines:
            tell(text)
        yield
        return
    with console.status(escape(printable(text))):
        yield


@contextmanager
def bar(name: str, kernels: int) -> Iterator[Callable[[], None]]:
    """Shows a progress bar if standard error is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{name}: kernels", total=kernels)
        yield lambda: progress.advance(task)


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[float], Any]]:
    """Shows a progress bar if standard error is a terminal, else writes a line after each tenth of the work."""
    if not sys.stderr.isatty():
        shown_tenths = 0

        def line(fraction: float) -> None:
            nonlocal shown_tenths
            if (tenths := int(10 * fraction + 1e-9)) > shown_tenths:
                shown_tenths = tenths
                tell(f"{name}: {100 * fraction:.0f} %")

        yield line
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)


LogFormat = Annotated[Literal["text", "json"], typer.Option(help="Format of the log lines.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(metavar="LEVEL", help="Lowest level to log: debug, info, warning or error."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
XacroArguments = Annotated[list[str] | None, typer.Argument(metavar="NAME:=VALUE", help="Arguments of a xacro file.")]
Root = Annotated[str, typer.Option(help="How the root link can move: fixed, planar or floating.")]
Mimic = Annotated[bool, typer.Option("--mimic/--no-mimic", help="Whether joints that mimic others follow them.")]
Loops = Annotated[str, typer.Option(help="closed: robots with closed loops; cut: the tree that is left.")]
Joints = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A joint file: motors, loop joints, damping, friction, springs.")
]


def shipped_robots(incomplete: str) -> list[str]:
    """Completions: names of shipped robots."""
    return [name for name in shipped.robots() if name.startswith(incomplete)]


ROBOT = "A robot file (URDF, MJCF, SDFormat or xacro), or the name of a shipped robot, see `dyn robots`."
"""Help text of arguments that `robot_file` resolves."""
RobotFile = Annotated[Path, typer.Argument(metavar="FILE", help=ROBOT, autocompletion=shipped_robots)]
RobotFiles = Annotated[list[Path] | None, typer.Argument(metavar="FILE", help=ROBOT, autocompletion=shipped_robots)]


class UsageError(InvalidArgumentError):
    """Wrong usage of a command; the exit status is 2, as for an unknown option."""


def reworded(message: str) -> str:
    """Returns an error message of click, with the type of an invalid number as in other errors of this package."""
    message = re.sub(r"Input should be a valid number\b.*", "expected a number", message)
    return re.sub(r"Input should be a valid integer\b.*", "expected a whole number", message)


def assigned(arguments: list[str] | None) -> dict[str, str]:
    """Returns the values of `name:=value` arguments by name; raises `UsageError` for other arguments."""
    values: dict[str, str] = {}
    for text in arguments or []:
        name, separator, value = text.partition(":=")
        if not separator or not name:
            raise UsageError(f"an argument must look like name:=value, found '{text}'")
        if name in values:
            raise UsageError(f"{name} is given twice, '{values[name]}' and '{value}': expected it once")
        values[name] = value
    return values


def number(text: str, option: str) -> float:
    """Returns the number of an option; raises `UsageError` for other text."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option}: expected a number, found {text!r}") from None


def assigned_numbers(arguments: list[str] | None, option: str) -> dict[str, float]:
    """Returns the numbers of `name:=number` values of an option by name; raises `UsageError` for other values."""
    return {name: number(text, option) for name, text in assigned(arguments).items()}


def robot_file(file: Path) -> Path:
    """Returns the path of a robot file; for the name of a shipped robot, tells its path."""
    path = shipped.find_robot(file)
    if path != file:
        tell(f"{file}: {path}")
    return path
