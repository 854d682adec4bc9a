"""The long run of `test_retries.py`: clients over a hostile network in simulated time, for which no machine is slow."""

from __future__ import annotations

import argparse
import json
from random import Random

from tests.service.client.simulated_network import Faults
from tests.service.client.test_retries import SLACK_S, calls_through

SHARES = (0.0, 0.01, 0.1, 0.3)


def main() -> int:
    """Status 0 where every answer was right and no call outlasted its limit by more than 10 ms."""
    parser = argparse.ArgumentParser(prog="python -m qa.faults simulated", description=__doc__)
    parser.add_argument("--networks", type=int, default=500)
    options = parser.parse_args()
    calls = answer_count = 0
    worst_s = -1.0
    for seed in range(options.networks):
        random = Random(seed)
        # Rates are drawn for each network: with all at their worst no call would ever get through, and nothing be
        # checked.
        faults = Faults(
            drop=random.choice(SHARES),
            double=random.choice(SHARES),
            replay=random.choice(SHARES),
            truncate=random.choice(SHARES),
            restart=random.choice((0.0, 0.02, 0.2)),
            other_model=random.choice((0.0, 0.0, 0.5)),
            delay_s=random.choice((0.0, 0.02, 0.3)),
            work_s=random.choice((0.0, 0.02, 0.3)),
        )
        for limit_s, took_s, ok in calls_through(("Client", "AsyncClient")[seed % 2], seed, faults, rounds=25):
            calls += 1
            answer_count += ok
            worst_s = max(worst_s, took_s - limit_s)
    print(
        json.dumps({"calls": calls, "answered": answer_count, "wrong": 0, "over_deadline_ms": round(worst_s * 1e3, 3)})
    )
    return int(worst_s > SLACK_S)
