"""Robots with closed loops against other equations, one part a run: `python -m qa.mechanisms PART`.

    exact        200 random mechanisms against fifty digits: both dynamics, loads of all joints, identities
    cuts         mechanisms that are cut elsewhere: all queries whose answer has the same meaning
    pinocchio    point and pose loops against Pinocchio's `constraintDynamics`
    hours        an hour of simulated time of the four-bar and the delta robot: drift of position and energy
    mujoco       equalities of the MJCF files of a folder against MuJoCo, as its constraints become stiff
    files        the files with loops of a folder: read and compared, or refused with the reason

Each part prints a table. Exit status 1: a figure exceeds its bound.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from dyn_service.errors import DynError
from qa.mechanisms import cuts, exactness, files, hours, peers

Row = tuple[str, dict[str, float]]

RANDOM: dict[str, tuple[Callable[[int], Row], int, float]] = {
    "exact": (exactness.errors_of, 200, 1e-9),
    "cuts": (cuts.errors_of, 60, 1e-11),
    "pinocchio": (peers.pinocchio_errors, 20, 1e-8),
}
"""By part: the errors of a seed, the number of seeds, and the largest error. Errors are rounding times the condition
numbers of loops near singular positions. Loads of all loops follow from one system: next to a loop with 390 N, near a
singular position, one with 0.03 N has an error of 7e-12 N, 2.4e-10 of its own scale. Pinocchio's constraints are
regularised by 1e-10."""


def attempted(errors_of: Callable[[int], Row], seed: int) -> tuple[int, Row | str]:
    """Returns the errors of one mechanism, or why there are none."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        return seed, errors_of(seed)
    except DynError as refusal:
        return seed, f"{type(refusal).__name__}: {refusal.message}"
    except Exception as fault:  # a fault of one mechanism is in the table, and the run goes on
        return seed, f"{type(fault).__name__}: {fault}"


def compared(
    part: str, errors_of: Callable[[int], Row], seeds: Iterable[int], jobs: int, minutes: float
) -> Iterator[str]:
    """Yields a table of the worst and the median error of each query, then the worst mechanisms."""
    errors: dict[str, list[tuple[float, int]]] = {}
    kinds: dict[int, str] = {}
    refusals: list[str] = []
    deadline = time.monotonic() + 60.0 * minutes
    with ProcessPoolExecutor(jobs) as pool:
        for seed, row in pool.map(partial(attempted, errors_of), seeds):
            if time.monotonic() > deadline:
                pool.shutdown(wait=False, cancel_futures=True)
                break
            if isinstance(row, str):
                refusals.append(f"{seed}: {row}")
                continue
            kinds[seed] = row[0]
            for query, error in row[1].items():
                errors.setdefault(query, []).append((error, seed))
            print(f"{seed}: {row[0]}: {max(row[1].values(), default=0.0):.1e}", file=sys.stderr, flush=True)
    yield f"{len(kinds)} mechanisms, {len(refusals)} refused"
    yield "| query | mechanisms | worst | median |"
    yield "|---|---|---|---|"
    for query, rows in errors.items():
        worst, seed = max(rows)
        yield f"| {query} | {len(rows)} | {worst:.1e} ({seed}) | {median(error for error, _ in rows):.1e} |"
    yield from refusals
    largest_error = RANDOM[part][2]
    excess_seeds = sorted({seed for rows in errors.values() for error, seed in rows if not error <= largest_error})
    yield from (f"above {largest_error:g}: {seed}: {kinds[seed]}" for seed in excess_seeds)


def hours_table() -> Iterator[str]:
    """Yields a row for each robot that swings for an hour."""
    yield "| robot | integrator | steps | swings | largest gap | kinetic energy | largest change | at the end |"
    yield "|---|---|---|---|---|---|---|---|"
    for swing in hours.SWINGS:
        drift = hours.drift(swing)
        yield (
            f"| `{swing.robot}` | `{swing.integrator}` | {drift.steps} of {1e3 * swing.dt:g} ms | {drift.swings} "
            f"| {drift.gap:.1e} m, rad "
            f"| up to {drift.kinetic:.2g} J | {drift.energy[0]:.1e} J | {drift.energy[1]:.1e} J |"
        )
        if drift.gap > 1e-9:
            yield f"above 1e-9: {swing.robot}, {swing.integrator}"


def main() -> int:
    """Runs one part."""
    parser = argparse.ArgumentParser(
        prog="python -m qa.mechanisms", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=(*RANDOM, "hours", "mujoco", "files"))
    parser.add_argument("folder", type=Path, nargs="?", help="of robot files, for mujoco and files")
    parser.add_argument("--count", type=int, help="of random mechanisms; 200 exact, 60 cut, 20 in Pinocchio")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e3, help="random mechanisms end after as many")
    options = parser.parse_args()
    if options.part in RANDOM:
        errors_of, count, _ = RANDOM[options.part]
        seeds = range(options.first, options.first + (options.count or count))
        lines = compared(options.part, errors_of, seeds, options.jobs, options.minutes)
    elif options.part == "hours":
        lines = hours_table()
    elif options.folder is None:
        parser.error(f"{options.part} needs a folder of robot files")
    else:
        lines = {"mujoco": peers.stiff_table, "files": files.table}[options.part](options.folder)
    wrong = False
    for line in lines:
        print(line, flush=True)
        wrong |= line.startswith("above")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
