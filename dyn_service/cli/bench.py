"""Measures speed on this machine, compared with Pinocchio.

Each figure is CPU time per state, summed over threads, so that other processes do not count. If Pinocchio is installed
(`pip install pin`), each round times both libraries in turn, so that noise affects both. A ratio is the median over
rounds of Pinocchio's time divided by ours, with the 10th and 90th percentile. A single call evaluates one state from
Python. A batch is one call on one thread; it is compared with a Python loop over `rnea`, `aba` or `crba`, and, if the
bindings have them, with one call of `rneaInParallel` or `abaInParallel` on one thread, into a preallocated array.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service.cli.console import say, say_json, tell
from dyn_service.engine.robot import Robot

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
        say_json({**about, "rows": [asdict(row) for row in rows]})
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
        one = [tuple(x[0] for x in arrays)] * SINGLE_CALLS
        few = [tuple(x[k] for x in arrays) for k in range(min(batch, PEER_STATES))]
        other = theirs.get(query)
        name = _THEIRS[query]
        single = partial(_loop, other, one) if other else None
        rows.append(_compare(robot, query, 1, name, partial(_loop, call, one), single))
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
    robot: Robot, query: str, states: int, against: str, ours: Callable[[], float], theirs: Callable[[], float] | None
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
