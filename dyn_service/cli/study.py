"""`dyn study`: a study from a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dyn_service.cli.console import UsageError, robot_file, say, tell
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Iterator


def study(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A study file, see docs/studies.md.")],
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the results are kept. (default: FILE with .zarr)")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print states, time and memory, and run nothing.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads. (default: one for each core)")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler whose workers compute, tcp://HOST:PORT.")
    ] = None,
) -> int:
    """Compute queries at many states; a second run continues an interrupted one."""
    from dyn_service import Robot
    from dyn_service.studies.design_loads import readable
    from dyn_service.studies.study import Study, specification
    from dyn_service.support.documents import read_document

    document = read_document(file).value
    if not isinstance(document, dict) or not isinstance(document.get("robot"), str):
        raise UsageError(f"{file} must be a map with `robot`, `vary` and `outputs`")
    values = dict(document)
    name = values.pop("robot")
    options = {key: values.pop(key) for key in ("root", "joints", "mimic") if key in values}
    near = file.parent / name
    robot = Robot.from_file(robot_file(near if near.is_file() else Path(name), tell), **options)
    target = store or file.with_suffix(".zarr")
    try:
        planned = Study(robot, specification(values))
        say(str(planned.explain(workers=workers, store=target)))
    except (InvalidArgumentError, NotFoundError, UnimplementedError) as error:
        error.message = f"{file}: {error.message}"
        raise
    if explain:
        return 0
    try:
        with _progress(file.name) as progress:
            result = planned.run(target, workers=workers, scheduler=scheduler, progress=progress)
    except KeyboardInterrupt:
        tell(f"interrupted: the same command continues it from {target}")
        raise
    for key, variable in result.data_vars.items():
        if variable.size <= 64 and not str(key).endswith("_index"):
            say(f"{key} [{variable.attrs.get('units', '')}] {variable.dims}")
            units = variable.attrs.get("units")
            said = readable(*(x.values for x in result.data_vars.values() if x.attrs.get("units") == units))
            say(variable.to_pandas().to_string(float_format=said) if 0 < variable.ndim < 3 else str(variable.values))
    failed = ", ".join(f"{count:,} {reason}" for reason, count in json.loads(result.attrs["failures"]).items())
    say(f"states that failed: {failed or 'none'}; results in {target}")
    return 0


@contextmanager
def _progress(name: str) -> Iterator[Callable[[float], Any]]:
    """Shows a progress bar if standard error is a terminal, else writes a line after each tenth of the work."""
    if not sys.stderr.isatty():
        shown = 0

        def line(fraction: float) -> None:
            nonlocal shown
            if (tenths := int(10 * fraction + 1e-9)) > shown:
                shown = tenths
                tell(f"{name}: {100 * fraction:.0f} %")

        yield line
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)
