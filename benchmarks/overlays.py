"""What numbers as inputs cost: parametric kernels and those with constants, for one state and thousands.

The calls alternate in blocks, so that all see the same machine. Figures are medians over the blocks; the ratio is that
to the plain kernel. "view" holds an overlay (`robot.overlaid`), "passed" gets it with each call. Of many states
the numbers are those of one robot, or of as many robots as there are states.

    python benchmarks/overlays.py [ROBOT.urdf ...] [--blocks 60] [--states 4096]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import numpy as np

from dyn_service import Robot
from dyn_service.api.queries import Inertial, Overlay, Payload

URDF = Path(__file__).parents[1] / "urdf"
QUERIES = ("inverse_dynamics", "forward_dynamics", "mass_matrix")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robots", nargs="*", type=Path, default=[URDF / "panda.urdf", URDF / "upper_body.urdf"])
    parser.add_argument("--blocks", type=int, default=60, help="of each kind of call")
    parser.add_argument("--states", type=int, default=4096, help="of a batch")
    arguments = parser.parse_args()
    for path in arguments.robots:
        robot = Robot.from_urdf(path)
        print(f"\n{robot.name}, {robot.nv} entries of v")
        for query in QUERIES:
            table(f"{query}, one state", single_calls(robot, query), arguments.blocks, 50)
            table(
                f"{query}, {arguments.states} states", batch_calls(robot, query, arguments.states), arguments.blocks, 1
            )


def single_calls(robot: Robot, query: str) -> dict[str, Callable[[], object]]:
    """One state."""
    ask, inputs = getattr(robot, query), state(robot, query, ())
    overlay = Overlay(Payload(robot.link_names[-1], 1.0))
    view = getattr(robot.overlaid(overlay), query)
    return {
        "plain": lambda: ask(*inputs),
        "view": lambda: view(*inputs),
        "passed": lambda: ask(*inputs, overlay=overlay),
    }


def batch_calls(robot: Robot, query: str, states: int) -> dict[str, Callable[[], object]]:
    """A batch."""
    rng = np.random.default_rng(1)
    ask, inputs = getattr(robot, query), state(robot, query, (states,))
    query_of_one = getattr(robot.overlaid(Overlay(Payload(robot.link_names[-1], 1.0))), query)
    # Links without mass stay so: a mass would make their joints move something, and another kernel.
    heavy = [name for name, body in zip(robot.link_names, robot.tree.inertia, strict=True) if body.mass > 0.0]
    overlay = Overlay(links={name: Inertial(mass=rng.uniform(0.5, 2.0, states)) for name in heavy})
    query_of_many = getattr(robot.overlaid(overlay), query)
    return {
        "plain": lambda: ask(*inputs),
        "view of one robot": lambda: query_of_one(*inputs),
        f"view of {states} robots": lambda: query_of_many(*inputs),
        f"{states} robots passed": lambda: ask(*inputs, overlay=overlay),
    }


def state(robot: Robot, query: str, lead: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Positions, velocities and accelerations or efforts, as far as the query takes them."""
    rng = np.random.default_rng(0)
    q, v, x = rng.uniform(-0.5, 0.5, (3, *lead, robot.nv))
    return (q,) if query == "mass_matrix" else (q, v, x)


def table(title: str, cases: dict[str, Callable[[], object]], blocks: int, calls: int) -> None:
    """Prints medians of a call, and their ratio to the first."""
    durations: dict[str, list[float]] = {name: [] for name in cases}
    for call in cases.values():
        for _ in range(calls):
            call()
    # Blocks of all calls in turn, so that a slow minute is in each of them.
    for _ in range(blocks):
        for name, call in cases.items():
            start_ns = perf_counter_ns()
            for _ in range(calls):
                call()
            durations[name].append((perf_counter_ns() - start_ns) / calls / 1e3)
    first = median(durations["plain"])
    print(f"  {title}")
    for name, times in durations.items():
        print(f"    {name:24}{median(times):11.2f} us{median(times) / first:8.2f}")


if __name__ == "__main__":
    main()
