"""`dyn robots`, `convert`, `export`, `bench` and `study`: robot files, their kernels, and studies of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dyn_service.cli.console import (
    ROBOT,
    Joints,
    Json,
    Loops,
    Mimic,
    RobotFile,
    RobotFiles,
    Root,
    UsageError,
    XacroArguments,
    assigned,
    progress_bar,
    robot_file,
    say,
    say_json,
    shipped_robots,
    tell,
)
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.support import shipped

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


def robots(json_output: Json = False) -> None:
    """List the shipped robots: `serve`, `check`, `bench` and other commands take their names."""
    from dyn_service.engine.robot import Robot

    rows: list[dict[str, Any]] = []
    for name, file in shipped.robots().items():
        robot = Robot.from_file(file)
        mass = robot.receipt.after.mass
        rows.append({"name": name, "joints": list(robot.joint_names), "mass": mass, "file": str(file)})
    if json_output:
        say_json(rows)
        return
    say(f"{'robot':<18}{'DoF':>4}{'mass':>11}  joints that have entries in q and v")
    for row in rows:
        joints = row["joints"]
        summary = ", ".join(joints) if len(joints) <= 3 else f"{joints[0]}, .., {joints[-1]}"
        say(f"{row['name']:<18}{len(joints):>4}{row['mass']:>8.3g} kg  {summary}")
    say(f"in {shipped.package_share() / 'urdf'}")


def read_robot(file: Path, arguments: list[str] | None, **settings: Any) -> Robot:
    """Returns the robot of a file. arguments: `name:=value`, of a xacro file. settings: of `Robot.from_file`."""
    # here, because the engine takes a second to import, and most commands need none
    from dyn_service.engine.robot import Robot

    return Robot.from_file(file, arguments=assigned(arguments), **settings)


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help=ROBOT, autocompletion=shipped_robots)],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: .urdf, .xml, .mjcf or .sdf.")],
    arguments: XacroArguments = None,
    to: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="urdf, mjcf or sdf. (default: by the ending of OUT)")
    ] = None,
    root: Root = "fixed",
    joints: Joints = None,
    mimic: Mimic = True,
    loops: Loops = "closed",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json_output: Json = False,
) -> None:
    """Write a robot in another format, and list what that format cannot represent."""
    from dyn_service.parsing.conversion import convert as converted
    from dyn_service.parsing.report import table

    notes = converted(
        robot_file(source),
        target,
        format=to,
        root=root,
        joints=joints,
        mimic=mimic,
        arguments=assigned(arguments),
        force=force,
        loops=loops,  # type: ignore[arg-type]  # checked there
    )
    if json_output:
        say_json({"file": str(target), "notes": list(map(asdict, notes))})
        return
    for line in table(notes):
        say(line)
    say(f"{target} is written{'' if notes else '; nothing is missing in it'}")


_FUNCTIONS_ONLY, _FMU_ONLY = ("queries", "wrenches", "acados"), ("integrator", "dt", "effort_limits", "imus", "motors")


_Queries = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Queries, separated by commas, see `dyn call --list`; QUERY:METHOD chooses its method, QUERY+QUERY is "
        "one function of both.",
    ),
]
_Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="PATH", help="What to write. (default: the robot's name)")
]
_Wrenches = Annotated[str, typer.Option(metavar="LINKS", help="Links on which the functions take external wrenches.")]
_Payload = Annotated[
    str,
    typer.Option(
        metavar="LINKS",
        help="Links with a payload: its mass, centre and inertia are inputs. Of an FMU: one link, parameters.",
    ),
]
_Friction = Annotated[bool, typer.Option(help="Joint damping and Coulomb friction are inputs. Of an FMU: parameters.")]
_Acados = Annotated[
    str | None,
    typer.Option(metavar="INTEGRATOR", help="Also write discrete dynamics for acados, in C, by rk4 or another."),
]
_Fmu = Annotated[
    int | None, typer.Option(metavar="2|3", help="Write an FMU of this version of FMI instead of functions.")
]
_Integrator = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of an FMU: that of its steps; by default that of `step`.")
]
_Imus = Annotated[str, typer.Option(metavar="LINKS", help="Of an FMU: links with an IMU, separated by commas.")]
_Motors = Annotated[bool, typer.Option(help="Of an FMU: limits of current, voltage and heat of the motors act.")]
_Target = Annotated[str, typer.Option(help="host, x86-64-v2, x86-64-v3, x86-64-v4, aarch64, cortex-m7 or wasm32.")]
_Name = Annotated[str | None, typer.Option(metavar="NAME", help="First part of all names. (default: the robot's name)")]


def export(
    context: typer.Context,
    file: RobotFile,
    arguments: XacroArguments = None,
    queries: _Queries = "inverse_dynamics,forward_dynamics",
    output: _Output = None,
    wrenches: _Wrenches = "",
    payload: _Payload = "",
    friction: _Friction = False,
    acados: _Acados = None,
    fmu: _Fmu = None,
    integrator: _Integrator = None,
    dt: Annotated[float, typer.Option(metavar="S", help="Of an FMU: the length of a step, s.")] = 0.001,
    effort_limits: Annotated[bool, typer.Option(help="Of an FMU: clip efforts to their limits.")] = False,
    imus: _Imus = "",
    motors: _Motors = False,
    target: _Target = "host",
    name: _Name = None,
    root: Root = "fixed",
    joints: Joints = None,
    mimic: Mimic = True,
    loops: Loops = "closed",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write queries as C functions that need no Python: object file, library, header, self-test, CMake file.

    With --fmu, write the robot as a co-simulation unit of FMI: efforts in, positions, velocities and accelerations out.
    """
    payload_links = split(payload)
    _check_form(context, fmu, payload_links)
    robot = read_robot(robot_file(file), arguments, root=root, joints=joints, mimic=mimic, loops=loops)
    common: dict[str, Any] = {"friction": friction, "target": target, "name": name, "force": force}
    # a robot's file may call its robot `../arm`
    file_name = robot.name.replace("/", "_").lstrip(".") or "robot"
    if fmu is not None:
        common |= {} if integrator is None else {"integrator": integrator}
        common |= {"version": fmu, "dt": dt, "effort_limits": effort_limits, "imus": split(imus)}
        common |= {"motors": motors}
        link = payload_links[0] if payload_links else None
        say(robot.export_fmu(output or Path(f"{file_name}.fmu"), payload=link, **common))
        return
    common |= {"wrenches": split(wrenches), "payload": payload_links, "acados": acados}
    for path in robot.export(split(queries), output or Path(file_name), **common):
        say(path)


def _check_form(context: typer.Context, fmu: int | None, payload_links: list[str]) -> None:
    """Refuses options of the other form: of an FMU for functions, and of functions for an FMU."""
    for option in _FMU_ONLY if fmu is None else _FUNCTIONS_ONLY:
        # the source, because a default of the other form is not an argument
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            fault = "needs --fmu" if fmu is None else "is for functions, not for an FMU: omit it"
            raise InvalidArgumentError(f"--{option.replace('_', '-')} {fault}", path=option)
    if fmu is not None and len(payload_links) > 1:
        names = ", ".join(payload_links)
        raise InvalidArgumentError(f"--payload of an FMU must be one link, found {names}", path="payload")


def split(names: str) -> list[str]:
    """Returns names separated by commas, without spaces around them."""
    return [name for entry in names.split(",") if (name := entry.strip())]


def bench(
    files: RobotFiles = None,
    batch: Annotated[int, typer.Option(min=1, metavar="STATES", help="States of a batch.")] = 4096,
    json_output: Json = False,
) -> int:
    """Measure the time per state of the main queries on this machine, compared with Pinocchio's if installed."""
    from dyn_service.cli.bench import run

    if not files:
        raise UsageError("name a robot to time, such as panda; dyn robots lists the shipped ones")
    return run([robot_file(file) for file in files], batch=batch, json_output=json_output)


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
    from dyn_service.engine.robot import Robot
    from dyn_service.studies.joint_loads import readable
    from dyn_service.studies.study import Study, specification
    from dyn_service.support.documents import read_document

    document = read_document(file).value
    if not isinstance(document, dict) or not isinstance(document.get("robot"), str):
        raise UsageError(f"{file} must be a map with `robot`, `vary` and `outputs`")
    values = dict(document)
    name = values.pop("robot")
    options = {key: values.pop(key) for key in ("root", "joints", "mimic", "loops") if key in values}
    local_file = file.parent / name
    robot = Robot.from_file(robot_file(local_file if local_file.is_file() else Path(name)), **options)
    target = store or file.with_suffix(".zarr")
    try:
        plan = Study(robot, specification(values))
        say(str(plan.explain(workers=workers, store=target)))
    except (InvalidArgumentError, NotFoundError, UnimplementedError) as error:
        error.message = f"{file}: {error.message}"
        raise
    if explain:
        return 0
    try:
        with progress_bar(file.name) as progress:
            result = plan.run(target, workers=workers, scheduler=scheduler, progress=progress)
    except KeyboardInterrupt:
        tell(f"interrupted: the same command continues it from {target}")
        raise
    for key, variable in result.data_vars.items():
        if variable.size <= 64 and not str(key).endswith("_index"):
            say(f"{key} [{variable.attrs.get('units', '')}] {variable.dims}")
            units = variable.attrs.get("units")
            formatter = readable(*(x.values for x in result.data_vars.values() if x.attrs.get("units") == units))
            is_table = 0 < variable.ndim < 3
            say(variable.to_pandas().to_string(float_format=formatter) if is_table else str(variable.values))
    failed = ", ".join(f"{count:,} {reason}" for reason, count in json.loads(result.attrs["failures"]).items())
    say(f"states that failed: {failed or 'none'}; results in {target}")
    return 0
