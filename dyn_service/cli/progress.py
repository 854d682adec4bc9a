"""What commands write, on standard output and standard error: all of it goes through `say` and `tell`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

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
