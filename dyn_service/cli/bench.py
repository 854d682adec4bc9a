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
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service.cli.console import say, say_json, tell
from dyn_service.engine.loops.freedom import closed_positions
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError

ROUNDS = 15
SINGLE_CALLS = 2000
PEER_STATES = 512
"""States in the peer's loop per round: enough to hide the clock, few enough to keep rounds short."""


_PEER_FUNCTIONS = {"inverse_dynamics": "rnea", "forward_dynamics": "aba", "mass_matrix": "crba"}
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
    peer = None
    # not `find_spec`: an installation that cannot be imported counts as missing
    with suppress(ImportError):
        peer = import_module("pinocchio")
    rows: list[Row] = []
    for path in robot_files:
        rows += _rows(path, peer, batch)
        if not json_output:
            tell(f"timed {path}")
    header = {
        "machine": f"{_processor()}, Python {platform.python_version()}, one core",
        "peer": f"Pinocchio {peer.__version__} (Python bindings)" if peer else None,
        "method": f"processor time, {ROUNDS} interleaved rounds after one warm-up; medians, ratio with 10th and 90th "
        "percentile",
    }
    if json_output:
        say_json({**header, "rows": [asdict(row) for row in rows]})
    else:
        say(_table(rows, header))
    return 0


def _rows(path: Path, peer: Any | None, batch: int) -> list[Row]:
    # without mimic joints, which Pinocchio's `aba` refuses
    robot = Robot.from_file(path, mimic=False)
    inputs = _inputs(robot, batch)
    peer_calls: dict[str, Callable[..., Any]] = {}
    batches: dict[str, Callable[..., Any]] = {}
    # the peer reads a URDF without its loops
    if peer is not None and path.suffix == ".urdf" and robot.evaluator.closed_loops is None:
        model = peer.buildModelFromUrdf(str(path))
        data = model.createData()
        if model.nq == robot.nq and tuple(model.names)[1:] == robot.joint_names:
            peer_calls = {query: partial(getattr(peer, name), model, data) for query, name in _PEER_FUNCTIONS.items()}
            batches = _in_parallel(peer, model, batch)
    rows = []
    for query, arrays in inputs.items():
        call = getattr(robot, query)
        # closed loops take a hundred times as long
        calls = SINGLE_CALLS if robot.evaluator.closed_loops is None else -(-SINGLE_CALLS // 100)
        single_states = [tuple(x[0] for x in arrays)] * calls
        looped_states = [tuple(x[k] for x in arrays) for k in range(min(batch, PEER_STATES))]
        peer_call = peer_calls.get(query)
        name = _PEER_FUNCTIONS[query]
        single = partial(_loop_time, peer_call, single_states) if peer_call else None
        rows.append(_compare(robot, query, 1, name, partial(_loop_time, call, single_states), single))
        whole = partial(_batch_time, call, arrays, batch)
        peer_loop = partial(_loop_time, peer_call, looped_states) if peer_call else None
        rows.append(_compare(robot, query, batch, f"{name}, loop", whole, peer_loop))
        at_once = batches.get(query)
        if at_once is not None:
            columns = tuple(np.asfortranarray(x.T) for x in arrays)  # one state per column
            peer_batch = partial(_batch_time, at_once, columns, batch)
            rows.append(_compare(robot, query, batch, f"{name}InParallel(1)", whole, peer_batch))
    return rows


def _inputs(robot: Robot, batch: int) -> dict[str, tuple[Any, ...]]:
    """Returns the inputs of each query at random states; of robots with closed loops at states that keep them closed,
    without queries that have no answer for them.
    """
    rng = np.random.default_rng(0)
    q, v, a = rng.uniform(-1.0, 1.0, (3, batch, robot.nv))
    loops = robot.evaluator.closed_loops
    if loops is None:
        tau = robot.inverse_dynamics(q, v, a)
        return {"inverse_dynamics": (q, v, a), "forward_dynamics": (q, v, tau), "mass_matrix": (q,)}
    robot.evaluator.prepare_loops()
    if (note := loops.open_warning) is not None:
        raise FailedPreconditionError(f"robot '{robot.name}' has no states to time: {note.element}: {note.text}")
    positions, state = closed_positions(loops)
    states = np.arange(batch) % len(positions)
    q, v = positions[states], (loops.tangent(state).basis[states] @ v[..., None])[..., 0]
    tau = a if loops.driven is None else a * loops.driven
    a = robot.forward_dynamics(q, v, tau)
    inputs = {"inverse_dynamics": (q, v, a), "forward_dynamics": (q, v, tau), "mass_matrix": (q,)}
    try:
        robot.inverse_dynamics(q, v, a)
    except FailedPreconditionError as refusal:
        tell(str(refusal))
        del inputs["inverse_dynamics"]
    return inputs


def _in_parallel(peer: Any, model: Any, batch: int) -> dict[str, Callable[..., Any]]:
    """Returns Pinocchio's functions for batches, by query; arrays have one column per state. Empty without OpenMP."""
    if not hasattr(peer, "rneaInParallel"):
        return {}
    pool, result = peer.ModelPool(model, 1), np.zeros((model.nv, batch), order="F")

    def run_batch(call: Callable[..., Any], *states: Any) -> Any:
        call(1, pool, *states, result)
        return result

    names = {"inverse_dynamics": "rneaInParallel", "forward_dynamics": "abaInParallel"}
    return {query: partial(run_batch, getattr(peer, name)) for query, name in names.items()}


def _compare(
    robot: Robot, query: str, states: int, peer_name: str, ours: Callable[[], float], peer: Callable[[], float] | None
) -> Row:
    our_times: list[float] = []
    peer_times: list[float] = []
    for _ in range(ROUNDS + 1):
        our_times.append(ours())
        if peer is not None:
            # in turn with ours, so that a change of the clock rate affects both
            peer_times.append(peer())
    del our_times[0], peer_times[:1]  # the warm-up
    ratios = sorted(b / a for a, b in zip(our_times, peer_times, strict=False))
    return Row(
        robot.name,
        robot.nv,
        query,
        states,
        peer_name if peer is not None else "",
        statistics.median(our_times) * 1e6,
        statistics.median(peer_times) * 1e6 if peer_times else None,
        statistics.median(ratios) if ratios else None,
        ratios[len(ratios) // 10] if ratios else None,
        ratios[-1 - len(ratios) // 10] if ratios else None,
    )


def _batch_time(call: Callable[..., Any], arrays: tuple[Any, ...], states: int) -> float:
    """Seconds per state of one call on all states."""
    start_s = time.process_time()
    call(*arrays)
    return (time.process_time() - start_s) / states


def _loop_time(call: Callable[..., Any], states: list[tuple[Any, ...]]) -> float:
    """Seconds per state of a loop over states."""
    start_s = time.process_time()
    for state in states:
        call(*state)
    return (time.process_time() - start_s) / len(states)


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _table(rows: list[Row], header: dict[str, Any]) -> str:
    head = f"{'robot':<15}{'DoF':>4}  {'query':<17}{'states':>7}{'ours':>11}{'Pinocchio':>12}"
    head += f"  {'by':<18}{'ratio':>6}  spread"
    peer = header["peer"] or "no peer: `pip install pin` for a comparison"
    lines = [header["machine"], peer, header["method"], "", head]
    for row in rows:
        line = f"{row.robot:<15.15}{row.dof:>4}  {row.query:<17}{row.states:>7}{row.ours_us:>8.3f} us"
        if row.ratio is not None and row.theirs_us is not None:
            line += f"{row.theirs_us:>9.3f} us  {row.against:<18}{row.ratio:>5.1f}x  "
            line += f"{row.ratio_low:.1f} to {row.ratio_high:.1f}"
        lines.append(line)
    return "\n".join(lines)
