"""python -m qa.load [--seconds S] [--rate HZ] [--realtime] [--curve]: a control loop alone, among others, and eight.

Prints what each saw, and a bare echo of the same run. Ends with 1 if an answer was lost, doubled or wrong, or if a
loop with other clients is slower than 1.3 times (p50) or twice (p99) the loop alone, times the same ratio of the echo.
With --realtime the server, the loops and the echo run with `realtime:`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from dyn_service.support.realtime import Realtime
from qa.load.clients import OTHERS, Loop, busy_client, echoed, echoing, loops
from qa.load.serving import make_keys, served

MAX_SLOWDOWN = {"p50": 1.3, "p99": 2.0}
"""Largest ratio of a loop's time with other clients to its time alone."""


def row(name: str, seen: list[Loop]) -> str:
    """One line of the table; several loops as one."""
    whole = Loop(0, 0, 0, {}, [us for loop in seen for us in loop.us])
    quantiles = "".join(f"{value:9.0f}" for value in whole.quantiles().values())
    requests, answers, wrong = (
        sum(counts) for counts in zip(*((loop.requests, loop.answers, loop.wrong) for loop in seen), strict=True)
    )
    errors = {code: count for loop in seen for code, count in loop.errors.items()}
    return f"{name:<26}{quantiles}{requests:>10}{requests - answers:>6}{wrong:>6}  {errors or ''}"


def main() -> int:
    """Runs everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the parts (default: 20)")
    parser.add_argument("--rate", type=float, default=1000.0, help="of the one control loop, in Hz (default: 1000)")
    parser.add_argument("--together", type=float, default=60.0, help="seconds of the eight loops at 250 Hz")
    parser.add_argument("--realtime", action="store_true", help="in the scheduling class fifo, where that is allowed")
    parser.add_argument("--curve", action="store_true", help="over an encrypted endpoint; the echo is not encrypted")
    options = parser.parse_args()
    realtime = Realtime(policy="fifo", priority=10) if options.realtime else Realtime()
    all_loops: list[Loop] = []
    print(f"{'us':<26}{'p50':>9}{'p99':>9}{'p99.9':>9}{'max':>9}{'requests':>10}{'lost':>6}{'wrong':>6}", flush=True)
    late: list[str] = []

    def seen_by_one(name: str, other: str | None) -> tuple[Loop, Loop]:
        """What a loop and an echo see, one after the other."""
        with busy_client(endpoint, other, keys):
            pair = (
                loops(endpoint, 1, options.rate, options.seconds, realtime, keys)[0],
                echoed(bare, options.rate, options.seconds / 2, realtime),
            )
        print(row(name, [pair[0]]), row(f"  echo {name}", [pair[1]]), sep="\n", flush=True)
        all_loops.append(pair[0])
        return pair

    with tempfile.TemporaryDirectory() as folder, echoing(realtime) as bare:
        config = Path(folder) / "server.yaml"
        config.write_bytes(msgspec.json.encode({"server": {"ros__parameters": {"realtime": realtime}}}))
        keys_folder = Path(folder) / "keys" if options.curve else None
        keys = None if keys_folder is None else make_keys(keys_folder)
        with served("--config", str(config), quiet=True, keys_folder=keys_folder) as (endpoint, _):
            # The first loop pays for imports and page faults of both ends; its figures count for nothing.
            seen_by_one("warm-up", None)
            for kind in OTHERS:
                # Alone again before each kind, since the machine changes within minutes.
                alone_pair, busy_pair = seen_by_one("alone", None), seen_by_one(f"with {kind}", kind)
                ratios = []
                for quantile, max_ratio in MAX_SLOWDOWN.items():
                    ratio, echo = (
                        busy_loop.quantiles()[quantile] / alone_loop.quantiles()[quantile]
                        for busy_loop, alone_loop in zip(busy_pair, alone_pair, strict=True)
                    )
                    ratios.append(f"{quantile} {ratio:.2f} of alone (echo {echo:.2f})")
                    # Relative to the echo's own ratio: what the machine adds to any process is not the server's.
                    if ratio > max_ratio * max(1.0, echo):
                        late.append(f"{quantile} with {kind}")
                print(f"  with {kind}: {', '.join(ratios)}", flush=True)
            seen = loops(endpoint, 8, 250.0, options.together, realtime, keys)
            all_loops += seen
            print(row("8 loops at 250 Hz", seen), flush=True)
    lost_count = sum(loop.requests - loop.answers for loop in all_loops)
    wrong = sum(loop.wrong for loop in all_loops)
    print(f"{sum(loop.requests for loop in all_loops)} requests, {lost_count} lost, {wrong} wrong")
    print(f"too late: {', '.join(late)}" if late else "none too late")
    return 1 if lost_count or wrong or late else 0


if __name__ == "__main__":
    sys.exit(main())
