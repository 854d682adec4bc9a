"""What commands write, on standard output and standard error: all of it goes through `say` and `tell`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from dyn_service.config.logs import printable


def say(text: Any, *, nl: bool = True) -> None:
    """Writes text on standard output; names and messages in it may be strangers'."""
    typer.echo(printable(str(text)), nl=nl)


def tell(line: str) -> None:
    """Writes a line on standard error."""
    typer.echo(printable(line), err=True)


SLOW_S = 2.0
"""Work that takes longer is announced."""


@contextmanager
def announced(text: str) -> Iterator[None]:
    """Writes `text` on standard error if the work takes longer than `SLOW_S`, where someone watches."""
    timer = threading.Timer(SLOW_S, tell, [text])
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def bar(name: str, kernels: int) -> Iterator[Callable[[], None]]:
    """A progress bar where someone watches."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{name}: kernels", total=kernels)
        yield lambda: progress.advance(task)
