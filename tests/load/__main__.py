"""python -m tests.load [--seconds S] [--rate HZ]: a control loop alone and beside others, and eight loops at once.

Prints what each saw, beside a bare echo of the same run, and ends with 1 if an answer was lost, doubled or wrong.
"""

from __future__ import annotations

import argparse
import sys

from tests.load.clients import OTHERS, Loop, beside, echoed, echoing, loops
from tests.load.serving import served


def row(name: str, seen: list[Loop]) -> str:
    """One line of the table; several loops as one."""
    whole = Loop(0, 0, 0, {}, [us for loop in seen for us in loop.us])
    quantiles = "".join(f"{value:9.0f}" for value in whole.quantiles().values())
    counts = [sum(getattr(loop, field) for loop in seen) for field in ("asked", "answered", "wrong")]
    errors = {code: count for loop in seen for code, count in loop.errors.items()}
    return f"{name:<26}{quantiles}{counts[0]:>10}{counts[0] - counts[1]:>6}{counts[2]:>6}  {errors or ''}"


def main() -> int:
    """Runs everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the parts (default: 20)")
    parser.add_argument("--rate", type=float, default=1000.0, help="of the one control loop, in Hz (default: 1000)")
    parser.add_argument("--together", type=float, default=60.0, help="seconds of the eight loops at 250 Hz")
    given = parser.parse_args()
    every: list[Loop] = []
    print(f"{'us':<26}{'p50':>9}{'p99':>9}{'p99.9':>9}{'max':>9}{'asked':>10}{'lost':>6}{'wrong':>6}", flush=True)
    with echoing() as bare, served() as (endpoint, _):
        for kind in (None, *OTHERS):
            for name, other in (("alone", None), (f"beside {kind}", kind)) if kind else (("warm-up", None),):
                with beside(endpoint, other):
                    seen = loops(endpoint, 1, given.rate, given.seconds)
                    every += seen
                    print(row(name, seen), flush=True)
                    print(row(f"  echo {name}", [echoed(bare, given.rate, given.seconds / 4)]), flush=True)
        seen = loops(endpoint, 8, 250.0, given.together)
        every += seen
        print(row("8 loops at 250 Hz", seen), flush=True)
    lost = sum(loop.asked - loop.answered for loop in every)
    wrong = sum(loop.wrong for loop in every)
    print(f"{sum(loop.asked for loop in every)} requests, {lost} lost, {wrong} wrong")
    return 1 if lost or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
