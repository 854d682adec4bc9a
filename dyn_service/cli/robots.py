"""`dyn robots`, `dyn check`, `dyn convert`, `dyn bench`: robot files and the speed of their kernels."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dyn_service.cli.console import (
    ROBOT,
    Joints,
    Json,
    Mimic,
    Root,
    UsageError,
    XacroArguments,
    assigned,
    bar,
    robot_file,
    say,
    say_json,
    tell,
)
from dyn_service.errors import FailedPreconditionError
from dyn_service.support import shipped


def robots(json_output: Json = False) -> None:
    """List the shipped robots: `serve`, `check`, `bench` and other commands take their names."""
    from dyn_service import Robot

    rows: list[dict[str, Any]] = []
    for name, file in shipped.robots().items():
        robot = Robot.from_file(file)
        rows.append(
            {"name": name, "joints": list(robot.joint_names), "mass": robot.receipt.after.mass, "file": str(file)}
        )
    if json_output:
        say_json(rows)
        return
    say(f"{'robot':<18}{'DoF':>4}{'mass':>11}  joints that have entries in q and v")
    for row in rows:
        joints = row["joints"]
        few = ", ".join(joints) if len(joints) <= 3 else f"{joints[0]}, .., {joints[-1]}"
        say(f"{row['name']:<18}{len(joints):>4}{row['mass']:>8.3g} kg  {few}")
    say(f"in {shipped.package_share() / 'urdf'}")


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=ROBOT)],
    arguments: XacroArguments = None,
    json_output: Json = False,
    root: Root = "fixed",
    mimic: Mimic = True,
    joints: Joints = None,
    dynamics: Annotated[
        bool, typer.Option("--dynamics", help="Compare all formulations of the dynamics with each other instead.")
    ] = False,
    states: Annotated[int, typer.Option(min=1, metavar="N", help="Random states for --dynamics.")] = 20,
    bound: Annotated[float, typer.Option(metavar="X", help="Largest relative residual for --dynamics.")] = 1e-9,
    kernels: Annotated[
        bool,
        typer.Option("--kernels/--no-kernels", help="Compile the kernels of control loops, for their certificates."),
    ] = True,
) -> int:
    """Read a robot; report masses, merged links, defaults, unused parts, warnings, and rounding errors of kernels."""
    from rich.console import Console
    from rich.markup import escape

    from dyn_service import Robot
    from dyn_service.support.logs import printable

    given = assigned(arguments)
    file = robot_file(file, tell)
    with Console(stderr=True).status(f"reading {escape(printable(str(file)))}"):
        robot = Robot.from_file(file, root=root, joints=joints, mimic=mimic, arguments=given)  # type: ignore[arg-type]  # is said there
    if not dynamics:
        if kernels:
            from dyn_service.service.server.app import prepare

            tell(prepare(robot, ["control"], bar))
        receipt = robot.receipt
        say_json(receipt.to_dict()) if json_output else say(receipt.render())
        return 0
    from dyn_service.formulations.verification import survey

    found = survey(robot, states=states)
    if json_output:
        say_json(found)
    else:
        for name, residual in found["residuals"].items():
            say(f"{name:<24}{residual:8.1e}")
        say(f"worst {found['worst']:.1e} of {found['states']} states, bound {bound:g}")
    if not found["worst"] <= bound:
        raise FailedPreconditionError(
            f"{file}: the formulations differ by {found['worst']:.1e}, expected at most {bound:g}"
        )
    return 0


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help=ROBOT)],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: .urdf, .xml, .mjcf or .sdf.")],
    arguments: XacroArguments = None,
    to: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="urdf, mjcf or sdf. (default: by the ending of OUT)")
    ] = None,
    root: Root = "fixed",
    joints: Joints = None,
    mimic: Mimic = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json_output: Json = False,
) -> None:
    """Write a robot in another format, and list what that format cannot represent."""
    from dyn_service.parsing.conversion import convert as converted
    from dyn_service.parsing.report import table

    notes = converted(
        robot_file(source, tell),
        target,
        format=to,
        root=root,
        joints=joints,
        mimic=mimic,
        arguments=assigned(arguments),
        force=force,
    )
    if json_output:
        say_json({"file": str(target), "notes": list(map(asdict, notes))})
        return
    for line in table(notes):
        say(line)
    say(f"{target} is written{'' if notes else '; nothing is missing in it'}")


def bench(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help=ROBOT)] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="STATES", help="States of a batch.")] = 4096,
    json_output: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> int:
    """Measure the time per state of the main queries on this machine, compared with Pinocchio's if installed."""
    from dyn_service.cli.bench import run

    if not files:
        raise UsageError("name a robot to time, such as panda; dyn robots lists the shipped ones")
    return run([robot_file(file, tell) for file in files], batch=batch, json_output=json_output)
