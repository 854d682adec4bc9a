"""The long run: `python -m tests.oracle`, every query's machine code against Pinocchio on all robots, compiled.

The gate interprets most of these kernels. Progress on the terminal, the table of docs/oracle.md on standard output.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from dyn_service.engine.robot import Robot
from tests.conftest import ROBOTS
from tests.oracle.example_robots import SUPPORTED, path_of
from tests.oracle.many_types import ManyTypes
from tests.oracle.test_many_types import TREES as MANY_TREES
from tests.oracle.test_many_types import assert_agrees, many_types_urdf
from tests.oracle.test_pinocchio import FREE, STATES, TREES, worst_errors
from tests.random_robots import random_urdf


def _worst_of_robot(task: tuple[str, str]) -> tuple[str, dict[str, float]]:
    name, key = task
    if name == "random trees":
        return name, worst_errors(random_urdf(int(key)), Robot.from_urdf, seed=int(key))
    if name == "trees of every joint type":
        robot = Robot.from_urdf(many_types_urdf(int(key)))
        assert_agrees(robot, ManyTypes(robot.tree), int(key))
        return name, {}
    path = path_of(key) if name == "example-robot-data" else next(p for p in ROBOTS if p.stem == key)
    return name, worst_errors(path.read_text(), FREE)


def main() -> None:
    """Runs all robots and prints each group's worst share of what is allowed, query by query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    tasks = [("our robots", path.stem) for path in ROBOTS]
    tasks += [("example-robot-data", name) for name in SUPPORTED]
    tasks += [("random trees", str(seed)) for seed in range(TREES)]
    tasks += [("trees of every joint type", str(seed)) for seed in range(MANY_TREES)]
    start_s, worst, count = time.monotonic(), dict[str, dict[str, float]](), dict[str, int]()
    with ProcessPoolExecutor(options.jobs) as pool:
        for done, (group, shares) in enumerate(pool.map(_worst_of_robot, tasks, chunksize=2), start=1):
            count[group] = count.get(group, 0) + 1
            for query, share in shares.items():
                worst_shares = worst.setdefault(group, {})
                worst_shares[query] = max(share, worst_shares.get(query, 0.0))
            if sys.stderr.isatty() or not done % 20:
                print(f"{done} of {len(tasks)} robots, {time.monotonic() - start_s:.0f} s", file=sys.stderr)
    queries = list(next(iter(worst.values())))
    many_type_count = count.pop("trees of every joint type")
    print(f"{many_type_count} trees of every joint type agree with Pinocchio in every query.\n")
    print(f"{STATES} states of each robot; the worst error as a share of what is allowed\n")
    print("| | robots | " + " | ".join(queries) + " |")
    print("|---" * (len(queries) + 2) + "|")
    for group, shares in worst.items():
        print(f"| {group} | {count[group]} | " + " | ".join(f"{shares[query]:.2g}" for query in queries) + " |")
    if any(share > 1.0 for shares in worst.values() for share in shares.values()):
        raise SystemExit("a query is further off than allowed")


if __name__ == "__main__":
    main()
