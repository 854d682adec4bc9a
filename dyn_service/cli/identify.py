"""`dyn identify`: the parameters of a robot from a recorded motion, as a robot file that loads."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dyn_service.cli.console import (
    ROBOT,
    Joints,
    Json,
    Mimic,
    UsageError,
    XacroArguments,
    assigned,
    assigned_numbers,
    robot_file,
    say,
    say_json,
    shipped_robots,
    step,
)
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from dyn_service.identification.physical_robot import PhysicalIdentification

_Recording = Annotated[
    Path,
    typer.Argument(
        metavar="RECORDING", help="A bag (MCAP), a launch's report, or a CSV or NPZ file: times, positions, efforts."
    ),
]
_Robot = Annotated[Path, typer.Argument(metavar="ROBOT", help=ROBOT, autocompletion=shipped_robots)]
_Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="OUT",
        help="The robot file to write: .urdf, .xml or .sdf. Next to it: a joint file, .joints.yaml, with friction and "
        "armatures, and a page, .html. (default: print only)",
    ),
]
_Check = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE|FILE",
        help="Share of the recording, 0 to 0.5, or another recording, that is not fitted. (default: a third)",
    ),
]
_Still = Annotated[
    list[str] | None,
    typer.Option(
        "--still", metavar="JOINT:=POSITION", help="A joint that is not in the recording and stood still, rad or m."
    ),
]
_Columns = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Joints of the columns of an NPZ file, separated by commas.")
]
_Friction = Annotated[
    str,
    typer.Option(metavar="KINDS", help="Terms of friction, separated by commas, of those of the default; empty: none."),
]
_Cutoff = Annotated[float | None, typer.Option(metavar="HZ", help="Of the filters. (default: proposed from the data)")]
_Delay = Annotated[
    float | None, typer.Option(metavar="S", help="By which efforts arrive after positions. (default: estimated)")
]
_FileError = Annotated[
    float, typer.Option(metavar="X", help="Standard error of the file's masses and inertias, relative to them.")
]
_Margin = Annotated[
    float, typer.Option(metavar="X", help="Least mass of a link, and square of its least extent, relative to the file.")
]

_Payload = Annotated[
    str | None,
    typer.Option(metavar="LINK", help="Identify what this link carries beyond ROBOT instead, as an overlay's payload."),
]
_Currents = Annotated[
    bool,
    typer.Option(
        "--currents", help="The recording has motor currents, A, as efforts; motors of --joints FILE convert them."
    ),
]
_Gains = Annotated[
    bool,
    typer.Option(
        "--gains",
        help="The recording has motor currents, A, as efforts: identify effort per current instead, by ROBOT's masses "
        "and inertias.",
    ),
]


def identify(
    recording: _Recording,
    robot: _Robot,
    arguments: XacroArguments = None,
    output: _Output = None,
    check: _Check = None,
    friction: _Friction = "viscous,coulomb,offset,asymmetric,stribeck",
    form: Annotated[str, typer.Option(help="effort; momentum and energy need no accelerations.")] = "effort",
    cutoff: _Cutoff = None,
    delay: _Delay = None,
    rest_positions: _Still = None,
    columns: _Columns = None,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Joint states of a bag.")] = "/joint_states",
    file_error: _FileError = 1.0,
    margin: _Margin = 0.01,
    payload: _Payload = None,
    poses: Annotated[bool, typer.Option("--poses", help="With --payload: the rows are poses at rest.")] = False,
    currents: _Currents = False,
    gains: _Gains = False,
    joints: Joints = None,
    mimic: Mimic = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json_output: Json = False,
) -> int:
    """Identify a robot from a recorded motion: inertias, friction, errors before and after; write it as a file.

    The links of the new file are bodies that can exist. What the recording does not determine stays near the file.
    Exit status 1 if efforts of the check, which is not fitted, differ more than with the old file; no robot is written.
    """
    from dyn_service.engine.robot import Robot
    from dyn_service.identification import Recording, file_gains, read_recording
    from dyn_service.identification import identify as identified
    from dyn_service.identification.physical_robot import physical
    from dyn_service.support.optional import load

    if poses and payload is None:
        raise UsageError("--poses is an option of --payload LINK")
    if gains and (payload is not None or currents or output is not None):
        raise UsageError("--gains prints gains, with neither --payload nor --currents nor -o")
    file = robot_file(robot)
    _check_outputs(output, force)
    if payload is None and not gains:  # before minutes of work, at the end of which it is needed
        load("the identification of physically consistent inertias", "clarabel")
    positions = assigned_numbers(rest_positions, "--still")
    with step(f"reading {recording}"):
        model = Robot.from_file(file, arguments=assigned(arguments), joints=joints, mimic=mimic)
        options: dict[str, Any] = {"joints": _names(columns), "rest_positions": positions, "topic": topic}
        motion, share = read_recording(recording, model, poses=poses, **options), _share(check)
        check_motion: Any = read_recording(Path(check), model, **options) if check and share is None else share
    if gains:
        return _identify_gains(model, motion, {"friction": _names(friction), "cutoff_hz": cutoff}, json_output)
    if currents:
        motor_gains = file_gains(model)
        motion = motion.with_gains(motor_gains)
        check_motion = check_motion.with_gains(motor_gains) if isinstance(check_motion, Recording) else check_motion
    if payload is not None:
        return _identify_payload(model, motion, payload, positions, poses, output, json_output)
    options = {"friction": _names(friction) or (), "form": form, "cutoff_hz": cutoff, "delay_s": delay}
    options |= {} if check_motion is None else {"check": check_motion}
    with step(f"identifying {len(model.joint_names)} joints from {motion.t[-1] - motion.t[0]:.3g} s of motion"):
        identification = identified(model, motion, rest_positions=positions, **options)
        result = physical(identification, file_error=file_error, margin=margin)
    output_files = _write(result, recording, file, output, force)
    _report(result, output_files, json_output)
    return 0


def _identify_payload(
    model: Any,
    motion: Any,
    link: str,
    rest_positions: dict[str, float],
    poses: bool,
    output: Path | None,
    json_output: bool,
) -> int:
    from dyn_service.identification import identify_payload

    if output is not None:
        raise UsageError("--payload prints an overlay and writes no robot file: leave out -o")
    with step(f"identifying the payload of {link}"):
        if poses:
            whole = motion.for_robot(model, rest_positions)
            motion = {"q": whole.q, "tau": whole.effort} | ({} if whole.v is None else {"v": whole.v})
        estimate = identify_payload(model, motion, link, rest_positions=rest_positions)
    payload = {"link": link, "mass": estimate.mass, "com": estimate.com.tolist(), "inertia": estimate.inertia.tolist()}
    if json_output:
        errors = estimate.standard_errors.tolist()
        say_json(
            {
                "payload": payload,
                "standard_errors": errors,
                "unknown": list(estimate.unknown),
                "notes": list(estimate.notes),
            }
        )
    else:
        say(estimate)
        numbers = ", ".join(f"{x:.5g}" for x in estimate.com)
        rows = ", ".join(f"[{', '.join(f'{x:.5g}' for x in row)}]" for row in estimate.inertia)
        say(
            f"overlay: {{payloads: [{{link: {link}, mass: {estimate.mass:.5g}, com: [{numbers}], inertia: [{rows}]}}]}}"
        )
    return 0


def _identify_gains(model: Any, motion: Any, options: dict[str, Any], json_output: bool) -> int:
    from dyn_service.identification import effort_gains

    with step(f"identifying gains of {len(model.joint_names)} joints"):
        gains = effort_gains(model, motion, **options)
    if json_output:
        values = {name: gain._asdict() if math.isfinite(gain.value) else None for name, gain in gains.items()}
        say_json({"gains": values})
        return 0
    width = max(map(len, gains))
    say(f"{'':<{width}}{'N m/A | N/A':>14}{'std. error':>14}")
    for name, gain in gains.items():
        text = "  not known: move it against gravity, or give its rotor_inertia (--joints)"
        if math.isfinite(gain.value):
            text = f"{gain.value:>14.4g}{gain.standard_error:>14.2g}"
        say(f"{name:<{width}}{text}")
    ratios = {joint.name: joint.reduction for joint in model.as_described.joints}
    say(f"# a joint file, for --currents\nrobot: {model.name}\nmotors:")
    for name, gain in gains.items():
        ratio = math.copysign(ratios.get(name) or 1.0, gain.value)
        if math.isfinite(gain.value):
            say(f"  {name}: {{gear_ratio: {ratio:g}, torque_constant: {gain.value / ratio:.6g}}}")
    return 0


def _check_outputs(output: Path | None, force: bool) -> None:
    """Refuses what cannot be written before the work begins."""
    from dyn_service.parsing.conversion import format_of
    from dyn_service.parsing.joint_files import JOINTS_SUFFIX

    if output is None:
        return
    format_of(output)
    if not output.parent.is_dir():
        raise InvalidArgumentError(f"{output.parent} is not a folder", path="output")
    for path in (output, output.with_suffix(JOINTS_SUFFIX), output.with_suffix(".html")):
        if path.exists() and not force:
            raise InvalidArgumentError(f"{path} already exists: --force overwrites it", path="output")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name for entry in text.split(",") if (name := entry.strip())]


def _share(check: str | None) -> float | None:
    """Returns the share of the recording for the check; None: the default, or a file."""
    try:
        return None if check is None else float(check)
    except ValueError:
        return None


def _write(
    result: PhysicalIdentification, recording: Path, file: Path, output: Path | None, force: bool
) -> dict[str, Any]:
    """Writes the robot, unless it is worse than its file, and the page with all notes; each whole or not at all."""
    from dyn_service.graph.report.identification import identification_page
    from dyn_service.identification.robot_files import write_robot
    from dyn_service.model.description import Note
    from dyn_service.support.files import replacement

    notes = [Note("changed", "recording", text) for text in result.identification.notes]
    if output is None:
        return {"files": [], "notes": notes}
    page = output.with_suffix(".html")
    files: list[Path] = []
    with step(f"writing {output}"), replacement(page) as target:
        if result.improves is not False:
            robot: Any = result.identification.robot
            files, file_notes = write_robot(
                robot, result.parameters.theta, output, recording=recording.name, source=file,
                friction_widths=result.friction_widths, remarks="\n".join(result.warnings), force=force,
            )  # fmt: skip
            notes += file_notes
        target.write(identification_page(result, recording.name, notes).encode())
    return {"files": [*map(str, files), str(page)], "notes": notes}


def _report(result: PhysicalIdentification, output_files: dict[str, Any], json_output: bool) -> None:
    """Prints the result. Raises FailedPreconditionError if the check refutes it."""
    if json_output:
        say_json(_as_map(result) | output_files | {"notes": [asdict(note) for note in output_files["notes"]]})
    else:
        _show(result, output_files)
    if result.improves is False:
        raise FailedPreconditionError(
            "the new files would predict the motion of the check no better than the old one, so they are not written: "
            "record a longer or faster motion, or lower --cutoff"
        )


def _show(result: PhysicalIdentification, output_files: dict[str, Any]) -> None:
    from dyn_service.parsing.report import table

    say(result.identification)
    errors = result.errors("check" if result.improves is not None else "fit")
    width = max(map(len, result.identification.joints))
    part = "check, not fitted" if result.improves is not None else "fit"
    say(f"\nrms error of efforts, {part}:\n{'':<{width}}{''.join(f'{name:>15}' for name in errors)}")
    for joint, *values in zip(result.identification.joints, *errors.values(), strict=True):
        say(f"{joint:<{width}}{''.join(f'{value:>15.3g}' for value in values)}")
    for line in result.warnings:
        say(f"warning: {line}")
    for line in table(output_files["notes"][len(result.identification.notes) :]):  # the first are in the result's table
        say(line)
    if output_files["files"]:
        say(f"{', '.join(output_files['files'])} written")


def _as_map(result: PhysicalIdentification) -> dict[str, Any]:
    """Returns the result as plain values; arrays by joint or by base parameter."""
    identification = result.identification

    def by_joint(values: Any) -> dict[str, float | None]:
        return {
            joint: float(x) if x == x else None for joint, x in zip(identification.joints, values, strict=True)
        }  # NaN, without rows, is null

    columns = (identification.model.file_values, identification.estimate, identification.standard_errors)
    physical = result.parameters.values[: len(identification.names)]
    return {
        "cutoff_hz": identification.cutoff_hz,
        "delay_s": identification.delay_s,
        "delay_error_s": identification.delay_error_s,
        "rms": {part: {name: by_joint(x) for name, x in result.errors(part).items()} for part in ("fit", "check")},
        "base_parameters": [
            {"name": name, "file": a, "least_squares": b, "standard_error": s, "physical": c}
            for name, a, b, s, c in zip(identification.names, *(x.tolist() for x in (*columns, physical)), strict=True)
        ],
        "friction": {name: dict(joint.values) for name, joint in identification.friction.items()},
        "other_terms": result.other_terms,
        "unknown": list(map(str, identification.unknown)),
        "warnings": result.warnings,
    }
