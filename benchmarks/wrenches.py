"""What external wrenches add to the cost of one state: in process, and over a socket from a `dyn serve` process.

Calls without wrenches and with one to four alternate in blocks, so that all see the same machine. The figures are
medians over the blocks; the ratio is that to the call without. A wrench is made once, or for each call ("made").

    python benchmarks/wrenches.py [--blocks 200] [--wire]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import numpy as np

from dyn_service import Client, Robot, RobotQueries, Wrench

URDF = Path(__file__).parents[1] / "urdf"
BLOCK = 50
POINT, FORCE = (0.0, 0.01, 0.02), (1.0, 2, -20)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=200, help=f"of {BLOCK} calls of each kind")
    parser.add_argument("--wire", action="store_true", help="over a socket too")
    arguments = parser.parse_args()
    for name in ("panda", "ur5e", "upper_body"):
        robot = Robot.from_urdf(URDF / f"{name}.urdf")
        for query in ("inverse_dynamics", "forward_dynamics"):
            table(f"in process, {name}, {query}", calls(robot, query), arguments.blocks)
    if arguments.wire:
        with serving(URDF / "panda.urdf") as endpoint, Client(endpoint, timeout_s=60.0) as client:
            table("ipc, panda, inverse_dynamics", calls(client.robot("panda"), "inverse_dynamics"), arguments.blocks)


def calls(robot: RobotQueries, query: str) -> dict[str, Callable[[], object]]:
    """One state without and with wrenches, by name."""
    ask = getattr(robot, query)
    q, v, x = np.random.default_rng(0).uniform(-0.5, 0.5, (3, robot.nv))
    links = robot.link_names[-4:]
    pushes = [Wrench(link, force=FORCE, point=POINT) for link in links]
    link_frame_wrench = Wrench(links[-1], force=FORCE, point=POINT, frame=links[-1])
    new_wrench = lambda: Wrench(links[-1], force=FORCE, point=POINT)
    return {
        "without": lambda: ask(q, v, x),
        "one": lambda: ask(q, v, x, wrenches=pushes[0]),
        "one, made": lambda: ask(q, v, x, wrenches=new_wrench()),
        "one, in its link's axes": lambda: ask(q, v, x, wrenches=link_frame_wrench),
        "two": lambda: ask(q, v, x, wrenches=pushes[:2]),
        "four": lambda: ask(q, v, x, wrenches=pushes),
    }


def table(title: str, cases: dict[str, Callable[[], object]], blocks: int) -> None:
    """Prints medians of a call, and their ratio to the first."""
    durations: dict[str, list[float]] = {name: [] for name in cases}
    for call in cases.values():
        for _ in range(BLOCK):
            call()
    for _ in range(blocks):
        for name, call in cases.items():
            start_ns = perf_counter_ns()
            for _ in range(BLOCK):
                call()
            durations[name].append((perf_counter_ns() - start_ns) / BLOCK / 1e3)
    first = median(durations["without"])
    print(f"\n{title}")
    for name, times in durations.items():
        print(f"  {name:26}{median(times):9.2f} us{median(times) / first:7.2f}")


@contextmanager
def serving(urdf: Path) -> Iterator[str]:
    """A server process, and the endpoint that it says it listens on."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dyn_service", "serve", str(urdf), "--bind", f"ipc://{folder}/serve"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().split()[1]
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
