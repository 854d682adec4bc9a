"""`dyn robots`, `dyn check`, `dyn convert`, `dyn bench`: robot files and the speed of their kernels."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dyn_service.cli.progress import ROBOT, UsageError, assigned, bar, robot_file, say, tell
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.support import shipped


def robots(json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the shipped robots: `serve`, `check`, `bench` and other commands take their names."""
    from dyn_service import Robot

    rows: list[dict[str, Any]] = []
    for name, file in shipped.robots().items():
        robot = Robot.from_file(file)
        rows.append(
            {"name": name, "joints": list(robot.joint_names), "mass": robot.receipt.after.mass, "file": str(file)}
        )
    if json_output:
        say(json.dumps(rows, indent=2))
        return
    say(f"{'robot':<18}{'DoF':>4}{'mass':>11}  joints that have entries in q and v")
    for row in rows:
        say(f"{row['name']:<18}{len(row['joints']):>4}{row['mass']:>8.3g} kg  {_few(row['joints'])}")
    say(f"in {shipped.package_share() / 'urdf'}")


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, .., {names[-1]}"


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=ROBOT)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME:=VALUE", help="Arguments of a xacro file.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    root: Annotated[str, typer.Option(help="How the root link can move: fixed, planar or floating.")] = "fixed",
    mimic: Annotated[
        bool, typer.Option("--mimic/--no-mimic", help="Whether joints that mimic others follow them.")
    ] = True,
    joints: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A joint file: damping, friction, springs and rotors of its joints."),
    ] = None,
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
        say(json.dumps(receipt.to_dict(), indent=2, ensure_ascii=False) if json_output else receipt.render())
        return 0
    from dyn_service.formulations.verification import survey

    found = survey(robot, states=states)
    if json_output:
        say(json.dumps(found, indent=2))
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
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME:=VALUE", help="Arguments of a xacro file.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="urdf, mjcf or sdf. (default: by the ending of OUT)")
    ] = None,
    root: Annotated[str, typer.Option(help="How the root link can move: fixed, planar or floating.")] = "fixed",
    joints: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A joint file: damping, friction, springs and rotors of its joints."),
    ] = None,
    mimic: Annotated[
        bool, typer.Option("--mimic/--no-mimic", help="Whether joints that mimic others follow them.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
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
        rows = [{"kind": note.kind, "element": note.element, "text": note.text, "line": note.line} for note in notes]
        say(json.dumps({"file": str(target), "notes": rows}, indent=2, ensure_ascii=False))
        return
    for line in table(notes):
        say(line)
    say(f"{target} is written{'' if notes else '; nothing is missing in it'}")


def bench(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help=ROBOT)] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="STATES", help="States of a batch.")] = 4096,
    json_output: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> int:
    """Measure the time per state of the main queries on this machine, next to Pinocchio's where it is installed."""
    if not files:
        raise UsageError("name a robot to time, such as panda; dyn robots lists the shipped ones")
    return run([robot_file(file, tell) for file in files], batch=batch, json_output=json_output)


ROUNDS = 15
SINGLE_CALLS = 2000
PEER_STATES = 512
"""States in the peer's loop per round: enough to hide the clock, few enough to keep rounds short."""


_THEIRS = {"inverse_dynamics": "rnea", "forward_dynamics": "aba", "mass_matrix": "crba"}
"""Pinocchio's functions for the same quantities."""


@dataclass(frozen=True)
class Row:
    """One comparison. against: the peer's function, empty if it has none. Times are microseconds per state,
    medians over rounds; the ratio is theirs / ours.
    """

    robot: str
    dof: int
    query: str
    states: int
    against: str
    ours_us: float
    theirs_us: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None


def run(robot_files: list[Path], *, batch: int, json_output: bool) -> int:
    """Times the robots of these files and prints the table, or JSON. Returns the exit status."""
    peer = _pinocchio()
    rows: list[Row] = []
    for path in robot_files:
        rows += _rows(path, peer, batch)
        if not json_output:
            tell(f"timed {path}")
    about = {
        "machine": f"{_processor()}, Python {platform.python_version()}, one core",
        "peer": f"Pinocchio {peer.__version__} (Python bindings)" if peer else None,
        "method": f"processor time, {ROUNDS} interleaved rounds after one warm-up; medians, ratio with 10th and 90th "
        "percentile",
    }
    if json_output:
        say(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        say(_table(rows, about))
    return 0


def _pinocchio() -> Any | None:
    try:
        return import_module("pinocchio")
    except ImportError:
        return None


def _rows(path: Path, peer: Any | None, batch: int) -> list[Row]:
    robot = Robot.from_file(path, mimic=False)  # Pinocchio's `aba` refuses mimic joints
    rng = np.random.default_rng(0)
    q, v, a = rng.uniform(-1.0, 1.0, (3, batch, robot.nv))
    tau = robot.inverse_dynamics(q, v, a)
    ours: dict[str, Callable[..., Any]] = {
        "inverse_dynamics": robot.inverse_dynamics,
        "forward_dynamics": robot.forward_dynamics,
        "mass_matrix": robot.mass_matrix,
    }
    inputs = {"inverse_dynamics": (q, v, a), "forward_dynamics": (q, v, tau), "mass_matrix": (q,)}
    theirs: dict[str, Callable[..., Any]] = {}
    batches: dict[str, Callable[..., Any]] = {}
    if peer is not None and path.suffix == ".urdf":
        model = peer.buildModelFromUrdf(str(path))
        data = model.createData()
        if model.nq == robot.nq and tuple(model.names)[1:] == robot.joint_names:
            theirs = {
                "inverse_dynamics": lambda *state: peer.rnea(model, data, *state),
                "forward_dynamics": lambda *state: peer.aba(model, data, *state),
                "mass_matrix": lambda *state: peer.crba(model, data, *state),
            }
            batches = _in_parallel(peer, model, batch)
    rows = []
    for query, call in ours.items():
        arrays = inputs[query]
        one = tuple(x[0] for x in arrays)
        few = [tuple(x[k] for x in arrays) for k in range(min(batch, PEER_STATES))]
        other = theirs.get(query)
        name = _THEIRS[query]
        single = partial(_repeat, other, one) if other else None
        rows.append(_compare(robot, query, 1, name, partial(_repeat, call, one), single))
        whole = partial(_whole, call, arrays, batch)
        rows.append(
            _compare(robot, query, batch, f"{name}, loop", whole, partial(_loop, other, few) if other else None)
        )
        at_once = batches.get(query)
        if at_once is not None:
            columns = tuple(np.asfortranarray(x.T) for x in arrays)  # one state per column
            there = partial(_whole, at_once, columns, batch)
            rows.append(_compare(robot, query, batch, f"{name}InParallel(1)", whole, there))
    return rows


def _in_parallel(peer: Any, model: Any, batch: int) -> dict[str, Callable[..., Any]]:
    """Returns Pinocchio's functions for batches, by query; arrays have one column per state. Empty without OpenMP."""
    if not hasattr(peer, "rneaInParallel"):
        return {}
    pool, result = peer.ModelPool(model, 1), np.zeros((model.nv, batch), order="F")

    def answered(call: Callable[..., Any], *states: Any) -> Any:
        call(1, pool, *states, result)
        return result

    return {
        "inverse_dynamics": partial(answered, peer.rneaInParallel),
        "forward_dynamics": partial(answered, peer.abaInParallel),
    }


def _compare(
    robot: Robot,
    query: str,
    states: int,
    against: str,
    ours: Callable[[], float],
    theirs: Callable[[], float] | None,
) -> Row:
    mine: list[float] = []
    other: list[float] = []
    for _ in range(ROUNDS + 1):
        mine.append(ours())
        if theirs is not None:
            other.append(theirs())
    del mine[0], other[:1]  # the warm-up
    ratios = sorted(b / a for a, b in zip(mine, other, strict=False))
    return Row(
        robot.name,
        robot.nv,
        query,
        states,
        against if theirs is not None else "",
        statistics.median(mine) * 1e6,
        statistics.median(other) * 1e6 if other else None,
        statistics.median(ratios) if ratios else None,
        ratios[len(ratios) // 10] if ratios else None,
        ratios[-1 - len(ratios) // 10] if ratios else None,
    )


def _repeat(call: Callable[..., Any], state: tuple[Any, ...]) -> float:
    """Seconds per call on one state."""
    begun = time.process_time()
    for _ in range(SINGLE_CALLS):
        call(*state)
    return (time.process_time() - begun) / SINGLE_CALLS


def _whole(call: Callable[..., Any], arrays: tuple[Any, ...], states: int) -> float:
    """Seconds per state of one call on all states."""
    begun = time.process_time()
    call(*arrays)
    return (time.process_time() - begun) / states


def _loop(call: Callable[..., Any], states: list[tuple[Any, ...]]) -> float:
    """Seconds per state of a loop over states."""
    begun = time.process_time()
    for state in states:
        call(*state)
    return (time.process_time() - begun) / len(states)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _table(rows: list[Row], about: dict[str, Any]) -> str:
    head = f"{'robot':<15}{'DoF':>4}  {'query':<17}{'states':>7}{'ours':>11}{'Pinocchio':>12}"
    head += f"  {'by':<18}{'ratio':>6}  spread"
    lines = [
        about["machine"],
        about["peer"] or "no peer: `pip install pin` for a comparison",
        about["method"],
        "",
        head,
    ]
    for row in rows:
        line = f"{row.robot:<15.15}{row.dof:>4}  {row.query:<17}{row.states:>7}{row.ours_us:>8.3f} us"
        if row.ratio is not None and row.theirs_us is not None:
            line += f"{row.theirs_us:>9.3f} us  {row.against:<18}{row.ratio:>5.1f}x  "
            line += f"{row.ratio_low:.1f} to {row.ratio_high:.1f}"
        lines.append(line)
    return "\n".join(lines)
