"""`dyn export`: queries of a robot as C functions, or the robot as an FMU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dyn_service.cli.console import ROBOT, Joints, Mimic, Root, XacroArguments, assigned, robot_file, say, tell
from dyn_service.errors import InvalidArgumentError

_FUNCTIONS_ONLY, _FMU_ONLY = ("queries", "wrenches", "acados"), ("integrator", "dt", "effort_limits", "imus")


def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help=ROBOT)],
    arguments: XacroArguments = None,
    queries: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Queries, separated by commas, see `dyn call --list`; QUERY:METHOD chooses its method, QUERY+QUERY is "
            "one function of both.",
        ),
    ] = "inverse_dynamics,forward_dynamics",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PATH", help="What to write. (default: the robot's name)"),
    ] = None,
    wrenches: Annotated[
        str, typer.Option(metavar="LINKS", help="Links on which the functions take external wrenches.")
    ] = "",
    payload: Annotated[
        str,
        typer.Option(
            metavar="LINKS",
            help="Links with a payload: its mass, centre and inertia are inputs. Of an FMU: one link, parameters.",
        ),
    ] = "",
    friction: Annotated[
        bool, typer.Option(help="Joint damping and Coulomb friction are inputs. Of an FMU: parameters.")
    ] = False,
    acados: Annotated[
        str | None,
        typer.Option(metavar="INTEGRATOR", help="Also write discrete dynamics for acados, in C, by rk4 or another."),
    ] = None,
    fmu: Annotated[
        int | None, typer.Option(metavar="2|3", help="Write an FMU of this version of FMI instead of functions.")
    ] = None,
    integrator: Annotated[str, typer.Option(metavar="NAME", help="Of an FMU: that of its steps.")] = "rk4",
    dt: Annotated[float, typer.Option(metavar="S", help="Of an FMU: the length of a step, s.")] = 0.001,
    effort_limits: Annotated[bool, typer.Option(help="Of an FMU: clip efforts to their limits.")] = False,
    imus: Annotated[str, typer.Option(metavar="LINKS", help="Of an FMU: links with an IMU, separated by commas.")] = "",
    target: Annotated[
        str, typer.Option(help="host, x86-64-v2, x86-64-v3, x86-64-v4, aarch64, cortex-m7 or wasm32.")
    ] = "host",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="First part of all names. (default: the robot's name)")
    ] = None,
    root: Root = "fixed",
    joints: Joints = None,
    mimic: Mimic = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write queries as C functions that need no Python: object file, library, header, self-test, CMake file.

    With --fmu, write the robot as a co-simulation unit of FMI: efforts in, positions, velocities and accelerations out.
    """
    from dyn_service import Robot

    pushed, loaded, sensors = _split(wrenches), _split(payload), _split(imus)
    for each in _FMU_ONLY if fmu is None else _FUNCTIONS_ONLY:
        source = context.get_parameter_source(each)
        if source is not None and source.name == "COMMANDLINE":
            what = "needs --fmu" if fmu is None else "is for functions, not for an FMU: omit it"
            raise InvalidArgumentError(f"--{each.replace('_', '-')} {what}", path=each)
    if fmu is not None and len(loaded) > 1:
        raise InvalidArgumentError(f"--payload of an FMU must be one link, found {', '.join(loaded)}", path="payload")
    given = assigned(arguments)
    robot = Robot.from_file(
        robot_file(file, tell),
        root=root,  # type: ignore[arg-type]  # `Robot.from_file` checks it
        joints=joints,
        mimic=mimic,
        arguments=given,
    )
    if fmu is not None:
        path = output or Path(f"{_one_name(robot.name)}.fmu")
        options = {"version": fmu, "integrator": integrator, "dt": dt, "effort_limits": effort_limits}
        options |= {"payload": loaded[0] if loaded else None, "friction": friction, "imus": sensors}
        say(robot.export_fmu(path, **options, target=target, name=name, force=force))  # type: ignore[arg-type]
        return
    inputs: dict[str, Any] = {"wrenches": pushed, "payload": loaded, "friction": friction, "acados": acados}
    for path in robot.export(
        _split(queries), output or Path(_one_name(robot.name)), **inputs, target=target, name=name, force=force
    ):
        say(path)


def _split(names: str) -> list[str]:
    """Returns names separated by commas, without spaces around them."""
    return [name for each in names.split(",") if (name := each.strip())]


def _one_name(name: str) -> str:
    """Returns a robot's name as the name of a file in this folder: a file may call its robot `../arm`."""
    return name.replace("/", "_").lstrip(".") or "robot"
