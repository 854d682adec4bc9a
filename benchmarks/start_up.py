"""How long from a URDF file to the first answer, in fresh processes: with an empty kernel cache, and with a full one.

    python benchmarks/start_up.py [ROBOT.urdf]

`first` is from `Robot.from_urdf` to the first inverse dynamics, imports done before; `all` makes every kernel that
control loops ask. Imports are printed next to them. It does not show a busy machine, nor a disk that has not cached the
libraries.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 5

PROGRAM = """
import json, sys, time
begun = time.perf_counter()
import numpy as np
from dyn_service.engine.robot import Robot
imported = time.perf_counter()
robot = Robot.from_urdf(sys.argv[1])
zero = np.zeros(robot.nv)
robot.inverse_dynamics(zero, zero, zero)
first = time.perf_counter()
robot.prepare()
done = time.perf_counter()
print(json.dumps({"imports": imported - begun, "first": first - imported, "all": done - imported}))
"""


def seconds_of_start(robot: Path, cache: str) -> dict[str, float]:
    """Seconds of one fresh process."""
    environment = {**os.environ, "DYN_SERVICE_CACHE": cache}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(robot)], env=environment, capture_output=True, text=True, check=True
    )
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def main() -> None:
    default = Path(__file__).parent.parent / "urdf" / "panda.urdf"
    robot = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    cold: list[dict[str, float]] = []
    warm: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        # A pair for each round: the first process fills the cache that the second one reads.
        with tempfile.TemporaryDirectory() as cache:
            cold.append(seconds_of_start(robot, cache))
            warm.append(seconds_of_start(robot, cache))
    print(f"{robot.stem}, {ROUNDS} rounds, seconds: median (smallest to largest)")
    for name, runs in (("cold", cold), ("warm", warm)):
        parts = []
        for key in ("imports", "first", "all"):
            values = sorted(run[key] for run in runs)
            parts.append(f"{key} {statistics.median(values):.3f} ({values[0]:.3f} to {values[-1]:.3f})")
        print(f"{name}: {', '.join(parts)}")


if __name__ == "__main__":
    main()
