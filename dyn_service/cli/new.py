"""`dyn new`: packages to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dyn_service.cli.progress import say
from dyn_service.cli.usage import UsageError
from dyn_service.errors import InvalidArgumentError

app = typer.Typer(help="Write a new package to start from.", no_args_is_help=True)


@app.command()
def controller(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The package's name, such as my_controller.")],
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where to write it.")] = Path(),
) -> None:
    """Write a package with a controller that runs: law, parameters, tests and a launch file."""
    from dyn_service.scaffolding import new_package

    try:
        written = new_package("controller", name, folder)
    except InvalidArgumentError as error:
        raise UsageError(str(error)) from None
    for path in written:
        say(path)
    top = folder / name
    say(f"\ntest it    python -m pytest {top}")
    say(f"run it     dyn launch {top / name / 'launch' / f'{name}.launch.yaml'} --duration 10 --report report")
    say(f"the law    {top / name / 'controller.py'}")
