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
class Held:
    """What this process holds. memory: resident, in bytes."""

    memory: int
    maps: int
    descriptors: int

    @classmethod
    def now(cls) -> Held:
        """After the collector has had its turn."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        maps = Path("/proc/self/maps").read_text().count("\n")
        return cls(pages * os.sysconf("SC_PAGESIZE"), maps, len(os.listdir("/proc/self/fd")))

    def grown(self, before: Held) -> list[str]:
        """What is more than it was, beyond what an allocator keeps in hand."""
        found = []
        if self.memory > before.memory + (8 << 20):
            found.append(f"memory grew from {before.memory >> 20} to {self.memory >> 20} MB")
        if self.maps > before.maps + 8:
            found.append(f"memory maps grew from {before.maps} to {self.maps}")
        if self.descriptors > before.descriptors:
            found.append(f"descriptors grew from {before.descriptors} to {self.descriptors}")
        return found


def known(k: int) -> Robot:
    """One of a few robots."""
    return Robot.from_urdf(_URDF / f"{_ROBOTS[k % len(_ROBOTS)]}.urdf")


def new(k: int) -> Robot:
    """A robot of its own."""
    return Robot.from_urdf(random_urdf(k, movable=3))


def cycle(robot: Robot, k: int) -> None:
    """Asks one robot."""
    q, v, a = np.random.default_rng(k).normal(size=(3, robot.nv))
    for _ in range(3):  # the first call goes the general way, later ones the short way
        tau = robot.inverse_dynamics(q, v, a)
        np.testing.assert_allclose(robot.forward_dynamics(q, v, tau), a, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(robot.mass_matrix(np.stack([q] * 20))[7], robot.mass_matrix(q))
    robot.gravity_forces(q)


def main() -> int:
    """Runs the cycles that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--compile", action="store_true", help="another robot each time, no kernel kept")
    given = parser.parse_args()
    cycles, robot = given.cycles, new if given.compile else known
    if given.compile:
        os.environ["DYN_SERVICE_CACHE"] = ""
    for k in range(WARM_UP):
        cycle(robot(k), k)
    before = Held.now()
    begun = time.monotonic()
    print(f"after warm-up   {before.memory >> 10} kB, {before.maps} maps, {before.descriptors} descriptors", flush=True)
    for k in range(cycles):
        cycle(robot(WARM_UP + k), k)
        if (k + 1) % max(1, cycles // 10) == 0:
            now = Held.now()
            print(
                f"{k + 1:8} cycles {now.memory >> 10} kB, {now.maps} maps, {now.descriptors} descriptors, "
                f"{time.monotonic() - begun:.0f} s",
                flush=True,
            )
    for line in (found := Held.now().grown(before)):
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
