"""Output of commands: `say` writes to standard output, `tell` to standard error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dyn_service.errors import InvalidArgumentError
from dyn_service.support import shipped
from dyn_service.support.logs import printable


def say(text: Any, *, nl: bool = True) -> None:
    """Writes text on standard output; names and messages in it may be strangers'."""
    typer.echo(printable(str(text)), nl=nl)


def tell(line: str) -> None:
    """Writes a line on standard error."""
    typer.echo(printable(line), err=True)


@contextmanager
def bar(name: str, kernels: int) -> Iterator[Callable[[], None]]:
    """A progress bar where someone watches."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{name}: kernels", total=kernels)
        yield lambda: progress.advance(task)


LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(metavar="LEVEL", help="Lowest level to log: debug, info, warning or error."),
]
ROBOT = "A robot file (URDF, MJCF, SDFormat or xacro), or the name of a shipped robot, see `dyn robots`."
"""The help of an argument that `taken` reads."""


class UsageError(InvalidArgumentError):
    """A command was called wrongly: the status is 2, as for an option that it does not have."""


def in_our_words(message: str) -> str:
    """What the library of the command line says of a value, as we say it."""
    message = re.sub(r"Input should be a valid number\b.*", "expected a number", message)
    return re.sub(r"Input should be a valid integer\b.*", "expected a whole number", message)


def assigned(arguments: list[str] | None) -> dict[str, str]:
    """Values by the names that they are given to.

    Raises:
        UsageError: An argument does not look like `name:=value`.
    """
    given: dict[str, str] = {}
    for text in arguments or []:
        name, separator, value = text.partition(":=")
        if not separator or not name:
            raise UsageError(f"an argument must look like name:=value, found '{text}'")
        given[name] = value
    return given


def taken(given: Path, tell: Callable[[str], None]) -> Path:
    """Returns the robot's file, or the shipped one of that name; `tell` is called with the path of the latter."""
    found = shipped.find_robot(given)
    if found != given:
        tell(f"{given}: {found}")
    return found
