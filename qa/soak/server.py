"""A server whose robots come and go: `python -m qa.soak.server --minutes 60`.

Clients load robots under new names, ask sixteen queries of each (single states, batches, a motion), and unload them,
while a control loop asks the robot that stays. After a warm-up the server must hold no more memory, memory maps and
descriptors than before, in its own process, the fork_server and the workers, and every answer must be the right one. A
line a tenth of the run, and a status other than zero where something grew or was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dyn_service import QUERIES, Client, Robot
from dyn_service.errors import DynError
from qa.faults.kills import children
from qa.load.clients import scaled_urdf
from qa.load.serving import served
from tests.conftest import URDF

ROBOTS = ("pendulum", "scara", "double_pendulum", "ur5e")
SOAKED_QUERIES = [
    name
    for name, row in QUERIES.items()
    if row.inputs and "link" not in row.inputs and name not in ("integrate", "difference")
][:16]

SLACK = (1.05, 16, 64, 8)
"""What may come on top of what there was after the warm-up: a factor, then megabytes, maps and descriptors. A worker
that was busy at one look and fresh at the other makes as much.
"""


@dataclass
class Seen:
    """What the clients saw."""

    cycles: int = 0
    answers: int = 0
    loop_answers: int = 0
    wrong: int = 0
    errors: dict[str, int] = field(default_factory=dict)


def resources(pid: int) -> tuple[int, int, int]:
    """Resident megabytes, memory maps and descriptors of the server's process, and of the largest of its workers."""
    usages = []
    with suppress(OSError, ValueError):
        fork_server = children(pid)
        for process_id in (pid, *fork_server, *(worker for parent in fork_server for worker in children(parent))):
            pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
            maps = Path(f"/proc/{process_id}/maps").read_text().count("\n")
            usages.append((pages * os.sysconf("SC_PAGESIZE") >> 20, maps, len(os.listdir(f"/proc/{process_id}/fd"))))
    return tuple(map(sum, zip(*usages, strict=True)))  # type: ignore[return-value]


def come_and_go(endpoint: str, stop: threading.Event, seen: Seen) -> None:
    """Loads, asks and unloads; the same four models under new names, so that their kernels are compiled once."""
    texts = {name: (URDF / f"{name}.urdf").read_text() for name in ROBOTS}
    local = {name: Robot.from_urdf(text) for name, text in texts.items()}
    rng = np.random.default_rng(0)
    with Client(endpoint, timeout_s=60.0, compile_wait_s=600.0, on_wait=lambda *_: None) as client:
        while not stop.is_set():
            model = ROBOTS[seen.cycles % len(ROBOTS)]
            try:
                robot = client.load_robot(scaled_urdf(texts[model], f"guest{seen.cycles % 7}", 1.0))
                for name in SOAKED_QUERIES:
                    row, lead = QUERIES[name], (600,) if seen.cycles % 5 == 0 else ()
                    inputs = {
                        key: rng.uniform(0.1, 0.9, (*lead, *row.inputs[key].dims(robot.dimensions)))
                        for key in row.required
                    }
                    result = getattr(robot, name)(**inputs)
                    seen.answers += 1
                    if name == "inverse_dynamics":
                        seen.wrong += result.tobytes() != local[model].inverse_dynamics(**inputs).tobytes()
                if seen.cycles % 3 == 0:
                    robot.simulate(np.zeros(robot.nq), np.zeros(robot.nv), dt=1e-3, steps=50)
                client.unload_robot(robot.name)
            except DynError as error:
                seen.errors[error.code] = seen.errors.get(error.code, 0) + 1
                with suppress(DynError):
                    client.unload_robot(f"guest{seen.cycles % 7}")
            seen.cycles += 1


def loop(endpoint: str, stop: threading.Event, seen: Seen) -> None:
    """A control loop that runs meanwhile."""
    local = Robot.from_urdf(URDF / "panda.urdf")
    q = np.random.default_rng(1).uniform(-1.0, 1.0, (16, local.nv))
    expected = [local.gravity_forces(position).tobytes() for position in q]
    with Client(endpoint, timeout_s=20.0) as client:
        robot = client.robot("panda")
        while not stop.wait(0.01):
            k = seen.loop_answers % len(q)
            seen.wrong += robot.gravity_forces(q[k]).tobytes() != expected[k]
            seen.loop_answers += 1


def main() -> int:
    """Runs it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    seen, stop = Seen(), threading.Event()
    with served("--prepare-for", "control", quiet=True) as (endpoint, pid), ThreadPoolExecutor(2) as clients:
        running = [clients.submit(client_loop, endpoint, stop, seen) for client_loop in (come_and_go, loop)]
        usages = []
        for tenth in range(11):
            time.sleep(6.0 * options.minutes)
            usages.append(resources(pid))
            memory, maps, files = usages[-1]
            print(
                f"{'warm-up' if not tenth else f'{tenth} of 10':<10}{seen.cycles:>8} robots{seen.answers:>10} answers"
                f"{seen.loop_answers:>10} of the loop{memory:>7} MB{maps:>7} maps{files:>5} files  {seen.errors or ''}",
                flush=True,
            )
            if any(client.done() for client in running):  # only where it failed
                break
        stop.set()
        for client in running:
            client.result()
    first, last = usages[0], usages[-1]
    grown = [b > SLACK[0] * a + slack for a, b, slack in zip(first, last, SLACK[1:], strict=True)]
    return int(any(grown) or seen.wrong > 0 or bool(seen.errors) or not (seen.answers and seen.loop_answers))


if __name__ == "__main__":
    sys.exit(main())
