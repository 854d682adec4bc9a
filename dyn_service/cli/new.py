"""`dyn new`: controllers, nodes and launch files to begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dyn_service.cli.progress import say
from dyn_service.cli.scaffolding import new_launch_file, new_package
from dyn_service.cli.usage import UsageError
from dyn_service.errors import InvalidArgumentError

app = typer.Typer(help="Write a controller, a node or a launch file to start from.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as my_arm.")]
Folder = Annotated[Path, typer.Option(metavar="DIR", help="Where to write it.")]


@app.command()
def controller(name: Name, folder: Folder = Path()) -> None:
    """Write a package with a controller that runs: law, parameters, tests and a launch file."""
    _write(lambda: new_package("controller", name, folder))
    top = folder / name
    say(f"\ntest it    python -m pytest {top}")
    say(f"run it     dyn launch {top / name / 'launch' / f'{name}.launch.yaml'} --duration 10 --report report")
    say(f"the law    {top / name / 'controller.py'}")


@app.command()
def node(name: Name, folder: Folder = Path()) -> None:
    """Write a folder with a node that runs, in one file, and a launch file."""
    _write(lambda: new_package("node", name, folder))
    say(f"\nrun it     dyn launch {folder / name / f'{name}.launch.yaml'}")
    say(f"watch it   dyn topic echo /{name}/joint_states")


@app.command()
def launch(name: Name, folder: Folder = Path()) -> None:
    """Write a launch file with a dynamics server, a simulated robot and a controller."""
    (path,) = _write(lambda: new_launch_file(name, folder))
    say(f"\nrun it     dyn launch {path} --duration 10 --report report")


def _write(make: Callable[[], list[Path]]) -> list[Path]:
    try:
        written = make()
    except InvalidArgumentError as error:
        raise UsageError(str(error)) from None
    for path in written:
        say(path)
    return written
