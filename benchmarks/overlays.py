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
            table(f"{query}, one state", alone(robot, query), arguments.blocks, 50)
            table(f"{query}, {arguments.states} states", many(robot, query, arguments.states), arguments.blocks, 1)


def alone(robot: Robot, query: str) -> dict[str, Callable[[], object]]:
    """One state."""
    ask, given = getattr(robot, query), state(robot, query, ())
    carried = Overlay(Payload(robot.link_names[-1], 1.0))
    view = getattr(robot.overlaid(carried), query)
    return {
        "plain": lambda: ask(*given),
        "view": lambda: view(*given),
        "passed": lambda: ask(*given, overlay=carried),
    }


def many(robot: Robot, query: str, states: int) -> dict[str, Callable[[], object]]:
    """A batch."""
    rng = np.random.default_rng(1)
    ask, given = getattr(robot, query), state(robot, query, (states,))
    one = getattr(robot.overlaid(Overlay(Payload(robot.link_names[-1], 1.0))), query)
    heavy = [name for name, body in zip(robot.link_names, robot.tree.inertia, strict=True) if body.mass > 0.0]
    drawn = Overlay(links={name: Inertial(mass=rng.uniform(0.5, 2.0, states)) for name in heavy})
    each = getattr(robot.overlaid(drawn), query)
    return {
        "plain": lambda: ask(*given),
        "view of one robot": lambda: one(*given),
        f"view of {states} robots": lambda: each(*given),
        f"{states} robots passed": lambda: ask(*given, overlay=drawn),
    }


def state(robot: Robot, query: str, lead: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Positions, velocities and accelerations or efforts, as far as the query takes them."""
    rng = np.random.default_rng(0)
    q, v, x = rng.uniform(-0.5, 0.5, (3, *lead, robot.nv))
    return (q,) if query == "mass_matrix" else (q, v, x)


def table(title: str, asked: dict[str, Callable[[], object]], blocks: int, calls: int) -> None:
    """Prints medians of a call, and their ratio to the first."""
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for call in asked.values():
        for _ in range(calls):
            call()
    for _ in range(blocks):
        for name, call in asked.items():
            begun = perf_counter_ns()
            for _ in range(calls):
                call()
            taken[name].append((perf_counter_ns() - begun) / calls / 1e3)
    first = median(taken["plain"])
    print(f"  {title}")
    for name, times in taken.items():
        print(f"    {name:24}{median(times):11.2f} us{median(times) / first:8.2f}")


if __name__ == "__main__":
    main()
