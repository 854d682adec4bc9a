"""`dyn check`: the receipt of a robot file and its findings, as text, JSON or SARIF, and repairs of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from dyn_service.cli.console import (
    Joints,
    Json,
    Loops,
    Mimic,
    RobotFile,
    Root,
    XacroArguments,
    bar,
    robot_file,
    say,
    say_json,
    step,
    tell,
)
from dyn_service.cli.robots import read_robot, split
from dyn_service.errors import FailedPreconditionError, UrdfError

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot
    from dyn_service.model.description import Note
    from dyn_service.parsing.report import Receipt
    from dyn_service.support.documents import ConfigurationError


def _show_rules(flag: bool) -> None:
    if not flag:
        return
    from dyn_service.parsing.rules import RULES

    width = max(map(len, RULES))
    for rule in RULES.values():
        say(f"{rule.number}  {rule.name:<{width}}  {rule.summary}{' [--fix]' if rule.fixable else ''}")
    raise typer.Exit


_Rules = Annotated[
    bool, typer.Option("--rules", is_eager=True, callback=_show_rules, help="List the rules of findings, and exit.")
]
_Format = Annotated[Literal["text", "json", "sarif"], typer.Option(help="Of the output: text, json or sarif.")]
_Select = Annotated[str, typer.Option(metavar="RULES", help="Only these findings: names, DYN101, DYN1, by commas.")]
_Ignore = Annotated[str, typer.Option(metavar="RULES", help="Not these findings.")]
_Fix = Annotated[bool, typer.Option("--fix", help="Write unambiguous repairs into FILE, and list them.")]
_Mass = Annotated[float | None, typer.Option(min=1e-9, metavar="KG", help="The mass the robot is said to have.")]
_Controllers = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="YAML of controllers, whose joints the robot must have.")
]
_Dynamics = Annotated[
    bool, typer.Option("--dynamics", help="Compare all formulations of the dynamics with each other instead.")
]
_States = Annotated[int, typer.Option(min=1, metavar="N", help="Random states for --dynamics.")]
_Bound = Annotated[float, typer.Option(metavar="X", help="Largest relative residual for --dynamics.")]
_Kernels = Annotated[
    bool,
    typer.Option("--kernels/--no-kernels", help="Compile the kernels of control loops, for their certificates."),
]
_Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with status 1 if there are warnings or notes of kind loop.")
]


def check(
    file: RobotFile,
    arguments: XacroArguments = None,
    json_output: Json = False,
    format: _Format = "text",
    root: Root = "fixed",
    mimic: Mimic = True,
    loops: Loops = "closed",
    joints: Joints = None,
    select: _Select = "",
    ignore: _Ignore = "",
    fix: _Fix = False,
    controllers: _Controllers = None,
    mass: _Mass = None,
    dynamics: _Dynamics = False,
    states: _States = 20,
    bound: _Bound = 1e-9,
    kernels: _Kernels = True,
    strict: _Strict = False,
    rules: _Rules = False,
) -> int:
    """Read a robot; report masses, merged links, defaults, unused parts, mistakes in the file, and rounding errors of
    kernels.
    """
    from dyn_service.parsing.rules import selection
    from dyn_service.support.documents import ConfigurationError

    passes = selection(split(select), split(ignore))
    file, format = robot_file(file), "json" if json_output else format
    if fix:
        _repair(file, passes)
    try:
        with step(f"reading {file}", lines=False):
            robot = read_robot(file, arguments, root=root, joints=joints, mimic=mimic, loops=loops)
    except (UrdfError, ConfigurationError) as error:
        if format != "sarif":
            raise
        say_json(sarif([_unreadable(error)], str(file)))
        return 1
    if dynamics:
        _compare(robot, file, states, bound, json_output=format == "json")
    elif kernels:
        from dyn_service.service.server.app import prepare

        tell(prepare(robot, ["control"], bar))
    robot.evaluator.prepare_loops()
    receipt = _receipt(robot, file, mass, controllers or [], passes)
    if not dynamics and format == "sarif":
        say_json(sarif(receipt.notes, str(file)))
    elif not dynamics:
        say_json(receipt.to_dict()) if format == "json" else say(receipt.render())
    return _status(receipt, strict)


def _receipt(
    robot: Robot, file: Path, mass: float | None, controllers: Iterable[Path], passes: Callable[[Note], bool]
) -> Receipt:
    """Returns the receipt with all findings that pass."""
    from dyn_service.parsing.linter import claimed_mass, controller_findings, findings
    from dyn_service.support.documents import read_document

    receipt, description = robot.receipt, robot.as_described
    notes = findings(receipt.notes, description, file.parent)
    notes += [] if mass is None else claimed_mass(description, mass)
    for path in controllers:
        notes += controller_findings(read_document(path), description)
    return replace(receipt, notes=tuple(sorted(filter(passes, notes), key=lambda note: note.line)))


def _compare(robot: Robot, file: Path, states: int, bound: float, *, json_output: bool) -> None:
    """Prints the comparison of the formulations; raises an error if they differ."""
    from dyn_service.formulations.verification import survey

    comparison = survey(robot, states=states)
    if json_output:
        say_json(comparison)
    else:
        for name, residual in comparison["residuals"].items():
            say(f"{name:<24}{residual:8.1e}")
        say(f"worst {comparison['worst']:.1e} of {comparison['states']} states, bound {bound:g}")
    # negated, so that NaN fails too
    if not comparison["worst"] <= bound:
        wrong = ", ".join(name for name, residual in comparison["residuals"].items() if not residual <= bound)
        text = f"the formulations differ by {comparison['worst']:.1e}, expected at most {bound:g}: {wrong}"
        raise FailedPreconditionError(f"{file}: {text}")


def _repair(file: Path, passes: Callable[[Note], bool]) -> None:
    """Writes the repairs of a file, and lists them on standard error."""
    from dyn_service.parsing.repairs import fix
    from dyn_service.parsing.rules import RULES

    changes, unwritten = fix(file, passes)
    for change in changes:
        numbers = f"{change.label} {change.old} -> {change.new}"
        tell(f"{file}:{change.line}: {change.element}: {numbers} ({RULES[change.rule].number})")
    for note in unwritten:
        text = (
            "this file has no plain numbers for it at the element, another repair changes them, or other numbers of "
            "the joint (velocity, soft limits, offset) may have the same unit"
        )
        tell(f"{file}:{note.line}: {note.element}: not repaired: {text} ({RULES[note.rule].number})")
    tell(f"{file}: {len(changes)} numbers changed")


def _unreadable(error: UrdfError | ConfigurationError) -> Note:
    from dyn_service.model.description import Note

    if isinstance(error, UrdfError):
        return Note("warning", error.element or "file", error.message, error.line or 0, "unreadable")
    from dyn_service.parsing.quantities import Elsewhere

    return Elsewhere(error.file or "", error.path or "file", error.line or 0).warning("unreadable", error.message)


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(notes: Iterable[Note], source: str) -> dict[str, Any]:
    """Returns the findings among notes as a SARIF 2.1.0 log. source: the robot's file."""
    from dyn_service import __version__
    from dyn_service.parsing.rules import RULES, location, repair_of, rule_of

    numbers = [rule.number for rule in RULES.values()]
    results = []
    for note in notes:
        if (rule := rule_of(note)) is None:
            continue
        path, line, element = location(note, source)
        place: dict[str, Any] = {"artifactLocation": {"uri": quote(Path(path).as_posix())}}
        results.append(
            {
                "ruleId": rule.number,
                "ruleIndex": numbers.index(rule.number),
                "level": rule.level,
                "message": {"text": f"{element}: {note.text}. Repair: {repair_of(note)}"},
                "locations": [
                    {
                        "physicalLocation": place | ({"region": {"startLine": line}} if line else {}),
                        "logicalLocations": [{"name": element}],
                    }
                ],
            }
        )
    descriptors = [
        {
            "id": rule.number,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "help": {"text": rule.repair},
            "defaultConfiguration": {"level": rule.level},
        }
        for rule in RULES.values()
    ]
    driver = {"name": "dyn check", "version": __version__, "rules": descriptors}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _status(receipt: Receipt, strict: bool) -> int:
    """Returns the exit status: 1 if it is strict and there are warnings or notes of kind loop."""
    if count := len(receipt.of_kind("warning", "loop")) if strict else 0:
        tell(f"{receipt.source}: warnings and notes of kind loop: {count}, expected none with --strict")
    return int(count > 0)
