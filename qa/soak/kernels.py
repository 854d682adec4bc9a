"""Robots that come and go: `python -m qa.soak.kernels --cycles 10000`, or `--compile --cycles 200`.

Each cycle loads a robot, answers four queries (single states, a batch) with kernels from the store on disk, and drops
it; with `--compile` it is another robot each time, and its kernels are compiled. After a warm-up the process must hold
no more memory, memory maps and descriptors than before: a line every tenth of the run, and a status other than zero
where it grew.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dyn_service.engine.robot import Robot
from tests.random_robots import random_urdf

_URDF = Path(__file__).parent.parent.parent / "urdf"
_ROBOTS = ("pendulum", "scara", "panda")
WARM_UP = 30
"""Cycles until every cache of Python, NumPy and LLVM is as full as it gets."""


@dataclass(frozen=True)
class Resources:
    """What this process holds. memory: resident, in bytes."""

    memory: int
    maps: int
    descriptors: int

    @classmethod
    def now(cls) -> Resources:
        """After the collector has had its turn."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        maps = Path("/proc/self/maps").read_text().count("\n")
        return cls(pages * os.sysconf("SC_PAGESIZE"), maps, len(os.listdir("/proc/self/fd")))

    def grown(self, earlier: Resources) -> list[str]:
        """What is more than it was, beyond what an allocator keeps in hand."""
        growth = []
        if self.memory > earlier.memory + (8 << 20):
            growth.append(f"memory grew from {earlier.memory >> 20} to {self.memory >> 20} MB")
        if self.maps > earlier.maps + 8:
            growth.append(f"memory maps grew from {earlier.maps} to {self.maps}")
        if self.descriptors > earlier.descriptors:
            growth.append(f"descriptors grew from {earlier.descriptors} to {self.descriptors}")
        return growth


def shipped_robot(k: int) -> Robot:
    """One of a few robots."""
    return Robot.from_urdf(_URDF / f"{_ROBOTS[k % len(_ROBOTS)]}.urdf")


def new(k: int) -> Robot:
    """A robot of its own."""
    return Robot.from_urdf(random_urdf(k, movable=3))


def cycle(robot: Robot, k: int) -> None:
    """Asks one robot."""
    q, v, a = np.random.default_rng(k).normal(size=(3, robot.nv))
    for _ in range(3):  # the first call takes the slow path, later ones the fast path
        tau = robot.inverse_dynamics(q, v, a)
        np.testing.assert_allclose(robot.forward_dynamics(q, v, tau), a, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(robot.mass_matrix(np.stack([q] * 20))[7], robot.mass_matrix(q))
    robot.gravity_forces(q)


def main() -> int:
    """Runs the cycles that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--compile", action="store_true", help="another robot each time, no kernel kept")
    options = parser.parse_args()
    cycles, robot = options.cycles, new if options.compile else shipped_robot
    if options.compile:
        # Loading a stored kernel takes other paths than making one, and it is the making whose memory is in question.
        os.environ["DYN_SERVICE_CACHE"] = ""
    # The allocator keeps what it has got: growth counts from when it has its fill.
    for k in range(WARM_UP):
        cycle(robot(k), k)
    after_warm_up = Resources.now()
    start_s = time.monotonic()
    print(
        f"after warm-up   {after_warm_up.memory >> 10} kB, {after_warm_up.maps} maps, {after_warm_up.descriptors} "
        "descriptors",
        flush=True,
    )
    for k in range(cycles):
        cycle(robot(WARM_UP + k), k)
        if (k + 1) % max(1, cycles // 10) == 0:
            now = Resources.now()
            print(
                f"{k + 1:8} cycles {now.memory >> 10} kB, {now.maps} maps, {now.descriptors} descriptors, "
                f"{time.monotonic() - start_s:.0f} s",
                flush=True,
            )
    for line in (growth := Resources.now().grown(after_warm_up)):
        print(line)
    return 1 if growth else 0


if __name__ == "__main__":
    sys.exit(main())
