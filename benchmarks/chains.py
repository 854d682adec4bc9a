"""Chains of 4 to 4,096 bodies: seconds to make a kernel, time per body, and the error against Pinocchio.

    python -m benchmarks.chains [--bodies 4,16,64] [--rows inverse_dynamics,forward_dynamics]

Each kernel is made in a process of its own with an empty store, so that its seconds contain tracing, compiling and
certifying; importing and reading the robot are listed separately. The error is on the scale of each joint,
max |d_i| / sqrt(M_ii) over max |tau_i| / sqrt(M_ii), at one random state. Times are the least of several repetitions of
a batch of 8 and of 512 states, on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

BODIES = (4, 16, 64, 256, 1024, 4096)
ROWS = ("inverse_dynamics", "forward_dynamics", "mass_matrix")
LARGEST_PEER = 400
"""Bodies up to which the answer is compared: Pinocchio's data of 1,024 bodies takes more than 24 GB."""

LARGEST_MATRIX = 1024
"""Bodies up to which the mass matrix is made: eight states of 4,096 bodies take 1 GB."""


def figures_of_kernel(bodies: int, row: str) -> dict[str, Any]:
    """Returns the figures of one kernel, measured in this process."""
    from dyn_service import Robot
    from tests.kernels.test_rolled import chain

    text = chain(bodies)
    began = time.process_time()
    robot = Robot.from_text(text)
    read_s = time.process_time() - began
    Robot.from_text(chain(2)).inverse_dynamics([0.1, 0.2], [0.0, 0.0], [0.0, 0.0])  # imports
    rng = np.random.default_rng(0)
    q, v, x = rng.normal(size=(3, bodies))
    inputs = (q,) if row == "mass_matrix" else (q, v, x)
    query = getattr(robot, row)
    began, wall = time.process_time(), time.perf_counter()
    answer = query(*inputs)
    figures: dict[str, Any] = {"read_s": read_s, "made_s": time.process_time() - began}
    figures["wall_s"] = time.perf_counter() - wall
    for states in (8, 512) if row != "mass_matrix" or bodies <= 64 else (8,):
        batch = [np.broadcast_to(y, (states, *y.shape)) + 1e-3 * rng.normal(size=(states, 1)) for y in inputs]
        query(*batch)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            query(*batch)
            times.append(time.perf_counter() - began)
        figures[f"ns_{states}"] = min(times) / states / bodies * 1e9
    certificate = next(iter(robot.certificates.values())) if hasattr(robot, "certificates") else None
    figures["certificate"] = certificate and certificate.error
    figures["error"] = _error(text, row, inputs, np.asarray(answer)) if bodies <= LARGEST_PEER else None
    return figures


def _error(text: str, row: str, inputs: tuple[np.ndarray, ...], answer: np.ndarray) -> float:
    """Returns the difference from Pinocchio on the scale of each joint."""
    import pinocchio as pin

    model = pin.buildModelFromXML(text)
    data = model.createData()
    M = pin.crba(model, data, inputs[0])
    # Pinocchio fills the upper triangle only.
    M = np.triu(M) + np.triu(M, 1).T
    scale = np.sqrt(np.diag(M))
    if row == "mass_matrix":
        return float(np.max(np.abs(answer - M) / np.outer(scale, scale)))
    if row == "inverse_dynamics":
        difference, size = answer - pin.rnea(model, data, *inputs), answer
    else:  # the efforts of the difference, as the certificate compares accelerations
        difference, size = M @ (answer - pin.aba(model, data, *inputs)), inputs[2]
    return float(np.max(np.abs(difference) / scale) / np.max(np.abs(size) / scale))


def main() -> None:
    """Prints a Markdown table, or with `--one` the figures of one kernel as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", default=",".join(map(str, BODIES)))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--one", action="store_true", help="measure the first of both in this process")
    options = parser.parse_args()
    sizes, rows = [int(n) for n in options.bodies.split(",")], options.rows.split(",")
    if options.one:
        print(json.dumps(figures_of_kernel(sizes[0], rows[0])))
        return
    print("| row | bodies | read, s | made, s of one core | ns a body, batch of 8 | of 512 | error |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        for bodies in sizes:
            if row == "mass_matrix" and bodies > LARGEST_MATRIX:
                continue
            # A process and a store for each figure: kernels of an earlier one would be in memory or on disk.
            with tempfile.TemporaryDirectory() as store:
                command = [sys.executable, "-m", "benchmarks.chains", "--one", "--bodies", str(bodies), "--rows", row]
                run = subprocess.run(
                    command, env={**os.environ, "DYN_SERVICE_CACHE": store}, capture_output=True, text=True, check=True
                )
            figures = json.loads(run.stdout)
            batch = f"{figures['ns_512']:.0f}" if "ns_512" in figures else ""
            print(
                f"| {row} | {bodies} | {figures['read_s']:.2f} | {figures['made_s']:.2f} | {figures['ns_8']:.0f} "
                f"| {batch} "
                f"| {'' if figures['error'] is None else format(figures['error'], '.1e')} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
