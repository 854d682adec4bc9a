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
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from dyn_service.errors import DynError
from qa.mechanisms import exactness

BOUNDS = {"exact": 1e-10, "cuts": 1e-11}
"""Largest errors. exact: rounding times the condition numbers of loops near singular positions."""

Row = tuple[str, dict[str, float]]


def attempted(errors_of: Callable[[int], Row], seed: int) -> tuple[int, Row | str]:
    """Returns the errors of one mechanism, or why there are none."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        return seed, errors_of(seed)
    except DynError as refusal:
        return seed, f"{type(refusal).__name__}: {refusal.message}"


def compared(part: str, errors_of: Callable[[int], Row], seeds: Iterable[int], jobs: int) -> Iterator[str]:
    """Yields a table of the worst and the median error of each query, then the worst mechanisms."""
    errors: dict[str, list[tuple[float, int]]] = {}
    kinds: dict[int, str] = {}
    refusals: list[str] = []
    with ProcessPoolExecutor(jobs) as pool:
        for seed, row in pool.map(partial(attempted, errors_of), seeds):
            if isinstance(row, str):
                refusals.append(f"{seed}: {row}")
                continue
            kinds[seed] = row[0]
            for query, error in row[1].items():
                errors.setdefault(query, []).append((error, seed))
            print(f"{seed}: {row[0]}: {max(row[1].values()):.1e}", file=sys.stderr, flush=True)
    yield f"{len(kinds)} mechanisms, {len(refusals)} refused"
    yield "| query | mechanisms | worst | median |"
    yield "|---|---|---|---|"
    for query, rows in errors.items():
        worst, seed = max(rows)
        yield f"| {query} | {len(rows)} | {worst:.1e} ({seed}) | {median(error for error, _ in rows):.1e} |"
    yield from refusals
    beyond = sorted({seed for rows in errors.values() for error, seed in rows if not error <= BOUNDS[part]})
    yield from (f"above {BOUNDS[part]:g}: {seed}: {kinds[seed]}" for seed in beyond)


def main() -> int:
    """Runs one part."""
    parser = argparse.ArgumentParser(
        prog="python -m qa.mechanisms", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("exact",))
    parser.add_argument("folder", type=Path, nargs="?", help="of robot files, for mujoco and files")
    parser.add_argument("--count", type=int, help="of random mechanisms")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    count = options.count or 200
    lines = list(compared("exact", exactness.errors_of, range(options.first, options.first + count), options.jobs))
    print("\n".join(lines))
    return any(line.startswith("above") for line in lines)


if __name__ == "__main__":
    sys.exit(main())
