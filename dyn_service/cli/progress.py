"""What commands say on standard error while they work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def tell(line: str) -> None:
    """Says one line."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def bar(name: str, kernels: int) -> Iterator[Callable[[], None]]:
    """A progress bar where someone watches."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{name}: kernels", total=kernels)
        yield lambda: progress.advance(task)
