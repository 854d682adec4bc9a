"""python -m qa.load [--seconds S] [--rate HZ] [--realtime]: a control loop alone, beside others, and eight at once.

Prints what each saw, and a bare echo of the same run. Ends with 1 if an answer was lost, doubled or wrong, or if a
loop beside others took longer than it may: its p50 1.3 times and its p99 twice that of the loop alone, times what the
machine itself made of the echo meanwhile. With --realtime server, loops and echo are set apart by `realtime:`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from dyn_service.support.realtime import Realtime
from qa.load.clients import OTHERS, Loop, beside, echoed, echoing, loops
from qa.load.serving import served

MOST = {"p50": 1.3, "p99": 2.0}
"""How much longer than alone a loop may take beside others."""


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
    parser.add_argument("--realtime", action="store_true", help="in the scheduling class fifo, where that is allowed")
    given = parser.parse_args()
    realtime = Realtime(policy="fifo", priority=10) if given.realtime else Realtime()
    every: list[Loop] = []
    print(f"{'us':<26}{'p50':>9}{'p99':>9}{'p99.9':>9}{'max':>9}{'asked':>10}{'lost':>6}{'wrong':>6}", flush=True)
    late: list[str] = []

    def seen_by_one(name: str, other: str | None) -> tuple[Loop, Loop]:
        """What a loop and an echo see, one after the other."""
        with beside(endpoint, other):
            pair = (
                loops(endpoint, 1, given.rate, given.seconds, realtime)[0],
                echoed(bare, given.rate, given.seconds / 2, realtime),
            )
        print(row(name, [pair[0]]), row(f"  echo {name}", [pair[1]]), sep="\n", flush=True)
        every.append(pair[0])
        return pair

    with tempfile.TemporaryDirectory() as folder, echoing(realtime) as bare:
        config = Path(folder) / "server.yaml"
        config.write_bytes(msgspec.json.encode({"server": {"ros__parameters": {"realtime": realtime}}}))
        with served("--config", str(config), quiet=True) as (endpoint, _):
            seen_by_one("warm-up", None)
            for kind in OTHERS:
                alone, busy = seen_by_one("alone", None), seen_by_one(f"beside {kind}", kind)
                words = []
                for quantile, most in MOST.items():
                    ratio, echo = (
                        one.quantiles()[quantile] / other.quantiles()[quantile]
                        for one, other in zip(busy, alone, strict=True)
                    )
                    words.append(f"{quantile} {ratio:.2f} of alone (echo {echo:.2f})")
                    if ratio > most * max(1.0, echo):
                        late.append(f"{quantile} beside {kind}")
                print(f"  beside {kind}: {', '.join(words)}", flush=True)
            seen = loops(endpoint, 8, 250.0, given.together, realtime)
            every += seen
            print(row("8 loops at 250 Hz", seen), flush=True)
    lost = sum(loop.asked - loop.answered for loop in every)
    wrong = sum(loop.wrong for loop in every)
    print(f"{sum(loop.asked for loop in every)} requests, {lost} lost, {wrong} wrong")
    print(f"too late: {', '.join(late)}" if late else "none too late")
    return 1 if lost or wrong or late else 0


if __name__ == "__main__":
    sys.exit(main())
