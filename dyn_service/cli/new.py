"""`dyn new`: writes controllers, nodes and launch files from templates."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dyn_service.cli.console import UsageError, say
from dyn_service.errors import DynError, InvalidArgumentError, UnimplementedError
from dyn_service.support import shipped

app = typer.Typer(help="Write a controller, a node or a launch file to start from.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as my_arm.")]
Folder = Annotated[Path, typer.Option(metavar="DIR", help="Where to write it.")]


@app.command()
def controller(
    name: Name,
    folder: Folder = Path(),
    robot: Annotated[
        str, typer.Option(metavar="FILE", help="Its robot: a file, or the name of a shipped one (dyn robots).")
    ] = "pendulum",
) -> None:
    """Write a package with a controller that runs: law, parameters, tests and a launch file."""
    _write(lambda: new_package("controller", name, folder, robot))
    top = folder / name
    launch = top / name / "launch" / f"{name}.launch.yaml"
    say(f"\ntest it    pip install pytest; python -m pytest {top}")
    say(f"run it     dyn launch {launch} clock:=lockstep --duration 10 --report report")
    say(f"then       dyn launch {launch} --duration 10 --report report     # in real time")
    say(f"the law    {top / name / 'controller.py'}; it lags behind motions and friction until you add terms for them")


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
        paths = make()
    except DynError as error:
        raise UsageError(str(error)) from None
    for path in paths:
        say(path)
    return paths


TEMPLATES = Path(__file__).parent / "templates"
_NAME, _CLASS, _ROBOT = "law_name", "LawName", "robot_file"
_LONGEST = 40


def new_package(template: str, name: str, folder: Path, robot: str = "") -> list[Path]:
    """Writes a package of that name below the folder.

    template: the name of a folder in `templates/`. folder: the parent of the package's folder. robot: file or name of
    its robot.

    Returns:
        The files that were written.

    Raises:
        InvalidArgumentError: The name is invalid or in use, the package exists, or the folder does not exist.
        UnimplementedError: The robot has closed loops, which the template's law would open.
        DynError: There is no such robot, or its file has an error.
    """
    check_name(name)
    target = _target(folder, name)
    if robot:
        from dyn_service.engine.robot import Robot

        model = Robot.from_file(shipped.find_robot(robot))
        if model.description.loop_joints:
            raise UnimplementedError(
                f"robot '{model.name}' has closed loops, and the law of the new package commands all joints "
                "independently: choose a robot without loops, and take the efforts from computed_torque, which keeps "
                "loops closed",
                path="robot",
            )
        # relative to the launch file, so that both can be moved together
        if Path(robot).exists():
            robot = f"$(dirname)/{os.path.relpath(robot, target / name / 'launch')}"
    source = TEMPLATES / template
    paths = []
    # an installation compiles the templates too
    for file in sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        path = target / _filled(str(file.relative_to(source)), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(file.read_text("utf-8"), name).replace(_ROBOT, robot), encoding="utf-8")
        paths.append(path)
    return paths


def new_launch_file(name: str, folder: Path) -> list[Path]:
    """Writes `NAME.launch.yaml` into the folder: the shipped `robot.launch.yaml`, to be edited."""
    _check_letters(name)
    path = _target(folder, f"{name}.launch.yaml")
    text = shipped.launch_files()["robot"].read_text("utf-8").replace("$(dirname)/../urdf/ur5e.urdf", "ur5e")
    path.write_text(text.replace("dyn launch robot ", f"dyn launch {path.name} "), encoding="utf-8")
    return [path]


def check_name(name: str) -> None:
    """Checks that a name is valid for a package or node, and that no module has it.

    Raises:
        InvalidArgumentError: The name is invalid, a keyword or an existing module; the message says which.
    """
    _check_letters(name)
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise InvalidArgumentError(f"'{name}' is a Python keyword: choose another name", path="name")
    # Python would import the other module, and pytest would collect the tests of another folder
    if name in sys.stdlib_module_names or name == "tests" or importlib.util.find_spec(name) is not None:
        raise InvalidArgumentError(f"'{name}' is the name of an existing module: choose another", path="name")


def _check_letters(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or len(name) > _LONGEST:
        raise InvalidArgumentError(
            "a name must have lower-case letters, digits and underscores, begin with a letter and have at most "
            f"{_LONGEST} characters, found '{name}'",
            path="name",
        )


def _target(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise InvalidArgumentError(f"the folder '{folder}' does not exist", path="folder")
    target = folder / name
    if target.exists():
        raise InvalidArgumentError(f"'{target}' already exists and is not overwritten", path="name")
    return target


def _filled(text: str, name: str) -> str:
    return text.replace(_NAME, name).replace(_CLASS, "".join(part.capitalize() for part in name.split("_")))
