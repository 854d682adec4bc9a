"""How late a launched plant comes to its periods, compared with a loop that does nothing but sleep.

    python benchmarks/jitter.py [--duration 600] [LAUNCH ARGUMENT ..]

The bare loop (absolute deadlines, the same timer slack, 20 lines of Python) runs while the launch does, in a process
of its own, so that both meet the same machine in the same minutes; and alone before and after. It shows the floor:
what the machine and the interpreter leave to any loop. `launch panda_computed_torque` with both rates at 1 kHz is what
runs. It does not show a machine whose processors are all taken by others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dyn_service.graph.middleware.pacing import LATE, Lateness, Pacer, precise_sleep

ALONE_S = 30.0


def bare(duration_s: float) -> dict[str, float]:
    """Lateness of a loop at 1 kHz with nothing in it."""
    # The plant has the same timer slack; with the system's 50 us the floor would be higher than the plant.
    precise_sleep()
    lateness, pacer = Lateness(), Pacer(1e-3)
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        pacer.wait()
        lateness.add(pacer.late_s)
    return {**lateness.microseconds(), "overruns": pacer.overruns}


def row(name: str, figures: dict[str, float]) -> None:
    print(f"{name:22}", *(f"{figures[key]:9.0f}" for key in LATE), f"{figures['overruns']:9.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=float, default=600.0, help="seconds of the launch (600)")
    parser.add_argument("--bare", type=float, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help="launch arguments, NAME:=VALUE")
    options = parser.parse_args()
    if options.bare:
        print(json.dumps(bare(options.bare)))
        return
    print(f"{'late, us':22} {'p50':>9} {'p99':>9} {'p99.9':>9} {'max':>9} {'overruns':>9}")
    row("bare loop, alone", bare(ALONE_S))
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "dyn_service", "launch", "panda_computed_torque", "rate_hz:=1000"]
        launch += [*options.arguments, "--duration", str(options.duration), "--report", folder]
        with subprocess.Popen(launch, stdout=subprocess.DEVNULL) as running:
            # In a process of its own, as the plant is.
            bare_loop = subprocess.run(
                [sys.executable, __file__, "--bare", str(options.duration)], stdout=subprocess.PIPE, check=True
            )
        if running.returncode:
            raise SystemExit(running.returncode)
        report = json.loads((Path(folder) / "report.json").read_text())
    row("bare loop, meanwhile", json.loads(bare_loop.stdout))
    row("plant", report["plant"])
    row("bare loop, alone", bare(ALONE_S))
    requests, trips, plant = report["requests"], report["requests"]["update_us"], report["plant"]
    print(f"plant: {plant['steps']} steps, {plant['slipped']} slipped, {plant['stops']} safe stops")
    print(
        f"requests: {requests['sent']} sent, {requests['lost']} lost, round trip p50 {trips['p50']:.0f}, "
        f"p99 {trips['p99']:.0f}, p99.9 {trips['p99_9']:.0f}, max {trips['max']:.0f} us; "
        f"{requests['deadline_misses']} later than {1e3 * requests['deadline_s']:.0f} ms, {requests['skipped']} skipped"
    )


if __name__ == "__main__":
    main()
