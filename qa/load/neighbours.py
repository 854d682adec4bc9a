"""python -m qa.load.neighbours [--seconds S]: batches of one client while the work of others is stopped.

The others send 20,000 states of forward dynamics ten times a second: one client with a deadline of 5 ms, or three that
cancel each request after 10 ms. Prints the batches per second without and with these clients; exit status 1 if fewer
than half are left.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack

import numpy as np

from dyn_service import Client
from qa.load.clients import ROBOT, busy_client
from qa.load.serving import served

STOPPED = {"late": 1, "cancelled": 3}
"""Number of other clients by kind; see `clients.busy`."""


def batches(endpoint: str, duration_s: float) -> list[int]:
    """Returns the number of batches of 1000 states in each second."""
    counts = [0] * max(1, int(duration_s))
    with Client(endpoint, timeout_s=60.0) as client:
        robot = client.robot(ROBOT)
        q = np.random.default_rng(0).uniform(-1.0, 1.0, (1000, robot.nv))
        robot.forward_dynamics(q, q, q)
        begin_s = time.perf_counter()
        while (second := int(time.perf_counter() - begin_s)) < len(counts):
            robot.forward_dynamics(q, q, q)
            counts[second] += 1
    return counts


def main() -> int:
    """Runs both kinds, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each of the parts (default: 6)")
    seconds = parser.parse_args().seconds
    starved = False
    with served(quiet=True) as (endpoint, _):
        for kind, count in STOPPED.items():
            undisturbed = batches(endpoint, seconds)
            with ExitStack() as stack:
                for _ in range(count):
                    stack.enter_context(busy_client(endpoint, kind))
                crowded = batches(endpoint, seconds)
            # Medians of seconds: one second in which the machine did something else decides nothing.
            share = np.median(crowded) / np.median(undisturbed)
            starved |= bool(share < 0.5)
            print(f"{kind}: batches per second {undisturbed} without, {crowded} with them: {share:.2f}", flush=True)
    return int(starved)


if __name__ == "__main__":
    sys.exit(main())
