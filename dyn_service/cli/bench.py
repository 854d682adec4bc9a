"""How fast this machine answers, beside the engine a user could pick instead.

Every figure is the time per state on one core. Where Pinocchio is installed (`pip install pin`), each round times us
and it in turn, so that both meet the same noise; a ratio is the median over rounds of theirs by ours, with its spread.
A single call goes from Python and back on one state. A batch is one call on many states for us; Pinocchio's bindings
take one state at a time, so there it is a loop in Python, which is what its users write.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service.engine.robot import Robot

ROUNDS = 15
SINGLE_CALLS = 2000
PEER_STATES = 512
"""States in the peer's loop per round: enough to hide the clock, few enough to keep rounds short."""


@dataclass(frozen=True)
class Row:
    """One comparison. Times are microseconds per state, medians over rounds; the ratio is theirs / ours."""

    robot: str
    dof: int
    query: str
    states: int
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
            print(f"timed {path}", file=sys.stderr)
    about = {
        "machine": f"{_processor()}, Python {platform.python_version()}, one core",
        "peer": f"Pinocchio {peer.__version__} (Python bindings)" if peer else None,
        "method": f"{ROUNDS} interleaved rounds after one warm-up; medians, ratio with its 10th and 90th percentile",
    }
    if json_output:
        print(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(_table(rows, about))
    return 0


def _pinocchio() -> Any | None:
    try:
        return import_module("pinocchio")
    except ImportError:
        return None


def _rows(path: Path, peer: Any | None, batch: int) -> list[Row]:
    robot = Robot.from_file(path, mimic=False)  # as the peer has it, whose `aba` refuses joints that follow
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
    if peer is not None and path.suffix == ".urdf":
        model = peer.buildModelFromUrdf(str(path))
        data = model.createData()
        if model.nq == robot.nq and tuple(model.names)[1:] == robot.joint_names:
            theirs = {
                "inverse_dynamics": lambda *state: peer.rnea(model, data, *state),
                "forward_dynamics": lambda *state: peer.aba(model, data, *state),
                "mass_matrix": lambda *state: peer.crba(model, data, *state),
            }
    rows = []
    for query, call in ours.items():
        arrays = inputs[query]
        one = tuple(x[0] for x in arrays)
        few = [tuple(x[k] for x in arrays) for k in range(min(batch, PEER_STATES))]
        other = theirs.get(query)
        rows.append(
            _compare(
                robot,
                query,
                1,
                partial(_repeat, call, one),
                partial(_repeat, other, one) if other else None,
            )
        )
        rows.append(
            _compare(
                robot,
                query,
                batch,
                partial(_whole, call, arrays, batch),
                partial(_loop, other, few) if other else None,
            )
        )
    return rows


def _compare(
    robot: Robot, query: str, states: int, ours: Callable[[], float], theirs: Callable[[], float] | None
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
        statistics.median(mine) * 1e6,
        statistics.median(other) * 1e6 if other else None,
        statistics.median(ratios) if ratios else None,
        ratios[len(ratios) // 10] if ratios else None,
        ratios[-1 - len(ratios) // 10] if ratios else None,
    )


def _repeat(call: Callable[..., Any], state: tuple[Any, ...]) -> float:
    """Seconds per call on one state."""
    begun = time.perf_counter()
    for _ in range(SINGLE_CALLS):
        call(*state)
    return (time.perf_counter() - begun) / SINGLE_CALLS


def _whole(call: Callable[..., Any], arrays: tuple[Any, ...], states: int) -> float:
    """Seconds per state of one call on all states."""
    begun = time.perf_counter()
    call(*arrays)
    return (time.perf_counter() - begun) / states


def _loop(call: Callable[..., Any], states: list[tuple[Any, ...]]) -> float:
    """Seconds per state of a loop over states."""
    begun = time.perf_counter()
    for state in states:
        call(*state)
    return (time.perf_counter() - begun) / len(states)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _table(rows: list[Row], about: dict[str, Any]) -> str:
    head = f"{'robot':<18}{'DoF':>4}  {'query':<18}{'states':>7}{'ours':>11}{'Pinocchio':>12}{'ratio':>8}  spread"
    lines = [
        about["machine"],
        about["peer"] or "no peer: `pip install pin` for a comparison",
        about["method"],
        "",
        head,
    ]
    for row in rows:
        line = f"{row.robot:<18.18}{row.dof:>4}  {row.query:<18}{row.states:>7}{row.ours_us:>8.3f} us"
        if row.ratio is not None and row.theirs_us is not None:
            line += f"{row.theirs_us:>9.3f} us{row.ratio:>7.1f}x  {row.ratio_low:.1f} to {row.ratio_high:.1f}"
        lines.append(line)
    return "\n".join(lines)
