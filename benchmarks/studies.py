"""A study of inverse dynamics with reductions, compared with the kernel's own time.

    python -m benchmarks.studies [--states 1e9] [--workers 2] [--store DIR] [--sampled]

Positions are 2^20 points of Sobol's sequence, velocities and accelerations pairs of another one, multiplied to the
number of states: `min`, `max` and `rms` of every torque of the Panda. With `--sampled` all 24 numbers of a state are
points of one sequence. The kernel's own time is that of the same calls in the same threads on arrays in the cache,
measured before and after. Prints seconds, the ratio of processor times, the largest memory of the process, and a digest
of the results: equal after `kill -9` and a second run with the same `--store`, for any number of workers.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dyn_service import Robot
from dyn_service.studies.plan import TILE

URDF = Path(__file__).parent.parent / "urdf" / "panda.urdf"
POSES = 1 << 20


def kernel_seconds(robot: Robot, workers: int, sampled: bool, calls: int = 2000) -> float:
    """Returns the processor time of a state, s, of calls in several threads."""
    rng = np.random.default_rng(0)
    q, v, a = rng.normal(size=(3, TILE, robot.nv))
    # As the tiles of the plan have them: without --sampled the poses of a tile share one motion.
    v, a = (v, a) if sampled else (v[0], a[0])

    def share_of_calls(_: int) -> None:
        for _ in range(calls // workers):
            robot.inverse_dynamics(q, v, a)

    start_s = time.process_time()
    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(share_of_calls, range(workers)))
    return (time.process_time() - start_s) / (calls // workers * workers * TILE)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--states", type=float, default=1e7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store")
    parser.add_argument("--sampled", action="store_true")
    parser.add_argument("--scheduler")
    options = parser.parse_args()
    robot = Robot.from_urdf(URDF)
    motion = "sample" if options.sampled else "motion"
    vary = {"q": {"uniform": "limits"}, "v": {"uniform": "limits", "dim": motion}}
    vary["a"] = {"uniform": [-10.0, 10.0], "dim": motion}
    samples = {"sample": {"count": int(options.states) if options.sampled else POSES}}
    if not options.sampled:
        samples["motion"] = {"count": max(1, round(options.states / POSES)), "seed": 1}
    study = robot.study(vary, {"tau": {"query": "inverse_dynamics", "reduce": ["min", "max", "rms"]}}, samples=samples)
    print(study.explain(workers=options.workers))
    kernel_s_before = kernel_seconds(robot, options.workers, options.sampled)
    start_s, of_processor = time.perf_counter(), time.process_time()
    results = study.run(options.store, workers=options.workers, scheduler=options.scheduler)
    duration_s, worked = time.perf_counter() - start_s, time.process_time() - of_processor
    kernel_s = (kernel_s_before + kernel_seconds(robot, options.workers, options.sampled)) / 2 * study.plan.states
    digest = hashlib.sha256(b"".join(results[name].values.tobytes() for name in sorted(results.data_vars)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{study.plan.states:,} states: {duration_s:.1f} s, processor time {worked:.1f} s, kernel alone "
        f"{kernel_s:.1f} s, "
        f"ratio {worked / kernel_s:.2f}"
    )
    print(f"largest memory {memory:.0f} MB; digest {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
