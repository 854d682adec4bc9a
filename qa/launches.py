"""The long run of what is done to launches: `python -m qa.launches --rounds 50`, about a minute a round.

Each round stops (SIGSTOP) and kills server and controller, stops the plant, kills it, lets nodes hang and crash again
and again, and fills the disk under the report; every test is one of the gate's.
"""

import argparse
import collections
import tempfile
import time
import traceback
from pathlib import Path

from tests.graph.launch import test_full_disk, test_hung

FAULTS = {
    "server and controller stopped and killed, plant stopped": (
        test_hung.test_our_nodes_come_back_stopped_or_killed_and_without_the_plant_all_ends
    ),
    "plant killed": test_hung.test_without_the_plant_all_ends,
    "a node hangs again and again": test_hung.test_a_node_that_hangs_is_killed_and_brought_back_and_then_given_up,
    "a node crashes again and again": test_hung.test_a_crash_loop_is_given_up,
    "full disk": lambda folder: test_full_disk.test_a_full_disk_under_the_report_stops_nothing(folder, 0),
}


def main() -> int:
    """Runs the rounds; 0 if nothing went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    start_s, wrong = time.monotonic(), collections.Counter()
    for k in range(rounds):
        for name, test in FAULTS.items():
            with tempfile.TemporaryDirectory() as folder:
                try:
                    test(Path(folder))
                except Exception:
                    wrong[name] += 1
                    traceback.print_exc()
        print(f"round {k + 1} of {rounds}: {sum(wrong.values())} wrong, {time.monotonic() - start_s:.0f} s", flush=True)
    for name in FAULTS:
        print(f"{name}: {rounds - wrong[name]} of {rounds}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
