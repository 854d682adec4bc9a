"""`dyn excite`: motions that make the parameters of a robot known, as goals that a launch follows."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dyn_service.cli.console import (
    Joints,
    Json,
    Mimic,
    RobotFile,
    UsageError,
    XacroArguments,
    assigned,
    assigned_numbers,
    number,
    progress_bar,
    robot_file,
    say,
    say_json,
    tell,
)
from dyn_service.support.files import replacement
from dyn_service.support.logs import printable
from dyn_service.support.validation import MismatchError, convert, dotted

if TYPE_CHECKING:
    from dyn_service.identification.excitation import Excitation, ExcitationDesign
    from dyn_service.messages.trajectory_msgs import JointTrajectoryPoint

_SHOWN = 60
"""Characters of a parameter's name in the table."""

_Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Goal file. (default: ROBOT_excitation.yaml)"),
]
_DesignFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A YAML file with numbers of the design; options override it."),
]
_Noise = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[JOINT:=]X",
        help="Standard deviation of efforts, N m or N, of one joint or all. (default: 1 % of the effort limits)",
    ),
]
_Jerk = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[JOINT:=]X",
        help="Largest jerk, rad/s^3 or m/s^3, of one joint or all. (default: of the robot's file, else unlimited)",
    ),
]
_Start = Annotated[
    list[str] | None,
    typer.Option(metavar="JOINT:=X", help="Where the motion starts, rad or m. (default: middle of the limits)"),
]
_KeepOut = Annotated[
    list[str] | None,
    typer.Option(
        metavar="YAML",
        help="A box that a point of a link may not enter, in m: {link: tool0, point: [0, 0, 0.1], "
        "lower: [-2, -2, -1], upper: [2, 2, 0.05]}; point in link axes, corners in world axes. May be repeated.",
    ),
]
_Objective = Annotated[
    str | None,
    typer.Option(
        help="determinant: smallest errors over all parameters; condition: smallest condition number. "
        "(default: determinant)"
    ),
]
_Restarts = Annotated[
    int | None, typer.Option(metavar="N", help="Random motions from which the search starts. (default: 2)")
]


def excite(
    file: RobotFile,
    arguments: XacroArguments = None,
    output: _Output = None,
    design: _DesignFile = None,
    period: Annotated[float | None, typer.Option(metavar="S", help="Duration of a period, s. (default: 10)")] = None,
    harmonics: Annotated[int | None, typer.Option(metavar="N", help="Sines per joint. (default: 5)")] = None,
    periods: Annotated[int | None, typer.Option(metavar="N", help="Periods in the recording. (default: 5)")] = None,
    noise: _Noise = None,
    rate: Annotated[float | None, typer.Option(metavar="HZ", help="Samples per second. (default: 100)")] = None,
    jerk: _Jerk = None,
    start: _Start = None,
    keep_out: _KeepOut = None,
    objective: _Objective = None,
    restarts: _Restarts = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the random motions. (default: 0)")] = None,
    mimic: Mimic = True,
    joints: Joints = None,
    json_output: Json = False,
) -> None:
    """Find a motion within the robot's limits that makes its parameters known, for `dyn identify`.

    Prints the errors that a recording of it leaves, and those of random motions within the same limits. Writes goals,
    and parameters for a launch that follows them. Limits are the robot's, less a margin, or those of the design.
    """
    from dyn_service.cli.yaml_text import parsed
    from dyn_service.engine.robot import Robot
    from dyn_service.identification.excitation import design_excitation

    options = {
        "period_s": period,
        "harmonics": harmonics,
        "periods": periods,
        "rate_hz": rate,
        "objective": objective,
        "restarts": restarts,
        "seed": seed,
        "noise": _one_or_by_joint(noise or [], "--noise"),
        "jerk": _one_or_by_joint(jerk or [], "--jerk"),
        "start": assigned_numbers(start, "--start") or None,
        "keep_out": [parsed(text, "--keep-out") for text in keep_out or []] or None,
    }
    numbers = _design(design, {name: value for name, value in options.items() if value is not None})
    path = robot_file(file)
    target = output or Path(f"{path.stem.split('.')[0]}_excitation.yaml")
    if not target.resolve().parent.is_dir():
        raise UsageError(f"--output: there is no folder {target.resolve().parent}")
    robot = Robot.from_file(path, arguments=assigned(arguments), mimic=mimic, joints=joints)
    with progress_bar(robot.name) as progress:
        plan = design_excitation(robot, numbers, progress=progress)
    parameter_file = target.with_name(f"{target.stem}.params.yaml")
    texts = {target: goal_file(robot.name, plan), parameter_file: launch_parameters(target.name, plan)}
    for path_of_text, text in texts.items():
        with replacement(path_of_text) as stream:
            stream.write(text.encode())
    if json_output:
        say_json(_as_json(plan))
    else:
        say(table(robot.name, plan))
    tell(f"wrote {target} and {parameter_file}. To follow and record it, here on a simulated robot:")
    _tell_commands(file, plan, target, parameter_file)


def _tell_commands(file: Path, plan: Excitation, target: Path, parameter_file: Path) -> None:
    """Shows the commands that follow and record the motion."""
    # 2 s in which the robot comes to rest and the next goal begins
    duration_s = plan.approach_s + plan.duration_s + 2.0
    launch = f"dyn launch robot robot:={file} controller:=trajectory_following params:={parameter_file}"
    tell(f"  {launch} clock:=lockstep --duration {math.ceil(duration_s)} --report report")
    tell(f"  dyn bag record --all -o {target.stem}.mcap    # during the launch, for a bag, too")


def goal_file(name: str, plan: Excitation) -> str:
    """Returns the goals as YAML: to the start, then one period, repeated. name: of the robot."""
    from dyn_service.cli.yaml_text import flow

    approach, period = plan.goals()
    motion = plan.motion
    lines = [
        f"# Excitation of robot '{printable(name)}' by `dyn excite`: {plan.periods} periods of {motion.period_s:g} s,",
        f"# {len(motion.sine)} harmonics, from rest to rest. The first goal moves to the start.",
        f"- joint_names: &joints {flow(approach.joint_names)}",
        "  points:",
        *map(_point, approach.points),
        "- &period",
        "  joint_names: *joints",
        "  points:",
        *map(_point, period.points),
    ]
    return "\n".join([*lines, *["- *period"] * (plan.periods - 1), ""])


def _point(point: JointTrajectoryPoint) -> str:
    lists = {name: getattr(point, name) for name in ("positions", "velocities", "accelerations")}
    # 9 decimals, without exponents, which YAML 1.1 reads as text
    texts = [f"{name}: [{', '.join(f'{x:.9f}' for x in values)}]" for name, values in lists.items() if values]
    time = point.time_from_start
    return f"    - {{{', '.join(texts)}, time_from_start: {{sec: {time.sec}, nanosec: {time.nanosec}}}}}"


def launch_parameters(goals: str, plan: Excitation) -> str:
    """Returns the parameters of the controller and of a simulated robot as YAML. goals: name of the goal file."""
    import numpy as np

    from dyn_service.cli.yaml_text import block

    start = dict(zip(plan.joint_names, np.round(plan.motion.start, 9).tolist(), strict=True))
    # 0 is unlimited: a robot that differs from its file strays from the motion, and its recording shows by how much.
    tolerances = {"path_tolerance": 0.0, "goal_tolerance": 0.0}
    nodes = {
        "controller": {"goals": goals, "velocity_share": 1.0, **tolerances},
        "plant": {"initial_position": start},
    }
    return (
        "# Parameters of a launch that follows the goals, `params:=FILE`, by `dyn excite`.\n"
        "# Tolerances of 0 are unlimited: goals are not aborted where the robot differs from its file.\n"
        + block({node: {"ros__parameters": parameters} for node, parameters in nodes.items()})
    )


def table(name: str, plan: Excitation) -> str:
    """Returns the plan as text."""
    import numpy as np

    motion, random = plan.motion, plan.random
    assert random is not None  # or it is itself a comparison
    ratio = random.standard_errors / plan.standard_errors
    noise = ", ".join(f"{joint} {x:.3g}" for joint, x in zip(plan.joint_names, plan.noise, strict=True))
    active = ", ".join(f"{peak.limit} of {peak.name}" for peak in plan.active)
    largest: dict[str, float] = {}
    for peak in plan.peaks:
        largest[peak.limit] = max(peak.share, largest.get(peak.limit, 0.0))
    rows = [
        f"{name}: {plan.periods} periods of {motion.period_s:g} s, {len(motion.sine)} harmonics, {plan.samples} states",
        f"noise of efforts, N m or N: {noise}",
        f"largest use of limits: {', '.join(f'{limit} {share:.1%}' for limit, share in largest.items())}",
        f"limits in use: {active or 'none'}",
        *([f"no motion tells from other parameters: {', '.join(plan.dependent)}"] if plan.dependent else []),
        "",
        f"{'':<34}{'excitation':>12}{'random':>12}",
        f"{'condition number':<34}{plan.condition:>12.4g}{random.condition:>12.4g}",
        f"{'log determinant of information':<34}{plan.log_determinant:>12.4g}{random.log_determinant:>12.4g}",
        f"{'standard errors, random / excitation':<46}{np.median(ratio):>12.3g} (median of parameters)",
        "",
        f"{'base parameter':<{_SHOWN}}{'file':>11}{'error':>11}{'random':>11}",
    ]
    numbers = (plan.values, plan.standard_errors, random.standard_errors)
    for parameter, value, error, random_error in zip(plan.parameters, *numbers, strict=True):
        text = parameter if len(parameter) < _SHOWN else f"{parameter[: _SHOWN - 4]}.. "
        rows.append(f"{text:<{_SHOWN}}{value:>11.3g}{error:>11.2g}{random_error:>11.2g}")
    rows += [
        "",
        "file: value of the robot's file. error: predicted standard error. random: the same for the median of random "
        "motions within these limits.",
    ]
    return "\n".join(rows)


def _as_json(plan: Excitation) -> dict[str, Any]:
    random = plan.random
    assert random is not None  # or it is itself a comparison
    return {
        "joints": list(plan.joint_names),
        "duration_s": plan.duration_s,
        "period_s": plan.motion.period_s,
        "samples": plan.samples,
        "noise": plan.noise.tolist(),
        "condition": plan.condition,
        "log_determinant": plan.log_determinant,
        "random": {"condition": random.condition, "log_determinant": random.log_determinant},
        "limits": [asdict(peak) for peak in plan.peaks],
        "parameters": [
            {"name": name, "file": value, "standard_error": error, "standard_error_random": random_error}
            for name, value, error, random_error in zip(
                plan.parameters,
                plan.values.tolist(),
                plan.standard_errors.tolist(),
                random.standard_errors.tolist(),
                strict=True,
            )
        ],
    }


def _design(file: Path | None, options: dict[str, Any]) -> ExcitationDesign:
    """Returns the design of a file, with the options of the command line."""
    from dyn_service.identification.excitation import ExcitationDesign
    from dyn_service.support.documents import read_document

    values: dict[str, Any] = {}
    if file is not None:
        document = read_document(file)
        document.convert(document.value, ExcitationDesign)  # for errors with lines, before options replace values
        values = document.value
    try:
        return convert({**values, **options}, ExcitationDesign)
    except MismatchError as error:
        raise UsageError(f"{dotted(error.place)}: {error}") from None


def _one_or_by_joint(texts: list[str], option: str) -> float | dict[str, float] | None:
    """Returns `[JOINT:=]X` as one number, or by joint."""
    if len(texts) == 1 and ":=" not in texts[0]:
        return number(texts[0], option)
    plain = [text for text in texts if ":=" not in text]
    if plain:
        raise UsageError(f"{option}: expected one number, or JOINT:=X of each joint, found '{plain[0]}' beside others")
    return assigned_numbers(texts, option) or None
