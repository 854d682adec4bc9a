"""The cost of a call with options, relative to the same call without: each option alone, and in pairs.

One state in process, a batch of 64 states in process, and one state over a socket from a `dyn serve` process. Calls
alternate in blocks, so that all see the same machine. Figures are medians over the blocks; the ratio is that to the
plain call.

`--outputs`: the time of a state in large batches, compared with a fill of the same bytes: in new arrays, in arrays of
the caller (`out=`), of selected rows, and in two threads.

    python benchmarks/options.py [ROBOT.urdf] [--blocks 100] [--wire] [--outputs]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from dyn_service import Client, Robot, RobotQueries, Wrench
from dyn_service.api.queries import Overlay, Payload

URDF = Path(__file__).parents[1] / "urdf"
BLOCK = 20
MOON = np.array([0.0, 0.0, -1.62])

Calls = Mapping[str, Callable[[], object]]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robot", nargs="?", type=Path, default=URDF / "panda.urdf")
    parser.add_argument("--blocks", type=int, default=100, help=f"of {BLOCK} calls of each kind")
    parser.add_argument("--wire", action="store_true", help="over a socket too")
    parser.add_argument("--outputs", action="store_true", help="large results only")
    arguments = parser.parse_args()
    robot = Robot.from_urdf(arguments.robot)
    if arguments.outputs:
        for states in (64, 512, 4096):
            table(f"{states} states, {robot.name}, per call", outputs(robot, states), arguments.blocks, 1)
        return
    for lead, title in (((), "one state"), ((64,), "64 states")):
        for query, calls in (
            ("inverse_dynamics", dynamics(robot, "inverse_dynamics", lead)),
            ("forward_dynamics", dynamics(robot, "forward_dynamics", lead)),
            ("constraint_forces", selections(robot, lead)),
        ):
            table(f"in process, {title}, {robot.name}, {query}", calls, arguments.blocks)
        table(f"held views, {title}, {robot.name}, inverse_dynamics", views(robot, lead), arguments.blocks)
    if arguments.wire:
        with serving(arguments.robot) as endpoint, Client(endpoint, timeout_s=60.0) as client:
            remote = client.robot(robot.name)
            for query in ("inverse_dynamics", "forward_dynamics"):
                table(f"ipc, one state, {robot.name}, {query}", dynamics(remote, query, ()), arguments.blocks)


def state(robot: RobotQueries, lead: tuple[int, ...]) -> list[np.ndarray]:
    """Returns positions, velocities, and accelerations or efforts."""
    rng = np.random.default_rng(0)
    q = robot.integrate(robot.neutral(), rng.uniform(-0.5, 0.5, (*lead, robot.nv)), 1.0)
    return [q, *rng.uniform(-0.5, 0.5, (2, *lead, robot.nv))]


def dynamics(robot: RobotQueries, query: str, lead: tuple[int, ...]) -> Calls:
    """Returns calls of a query with options of their own, alone and in pairs."""
    ask, inputs = getattr(robot, query), state(robot, lead)
    link = robot.link_names[-1]
    options: dict[str, dict[str, Any]] = {
        "gravity": {"gravity": MOON},
        "wrench": {"wrenches": [Wrench(link, force=(1.0, 2.0, -20.0), point=(0.0, 0.01, 0.02))]},
        "overlay": {"overlay": Overlay(Payload(link, 1.0))},
        "passive": {"passive": False},
    }
    if query == "forward_dynamics":
        options["method"] = {"method": "mass_matrix"}
    calls: dict[str, Callable[[], object]] = {"plain": lambda: ask(*inputs)}
    for count in (1, 2):
        for names in combinations(options, count):
            call_options = {key: value for name in names for key, value in options[name].items()}
            calls[" and ".join(names)] = lambda call_options=call_options: ask(*inputs, **call_options)  # type: ignore[misc]
    lists, single = [x.tolist() for x in inputs], [x.astype(np.float32) for x in inputs]
    if not lead:
        calls["lists"] = lambda: ask(*lists)
    return calls | {"single precision": lambda: ask(*single)}


def selections(robot: RobotQueries, lead: tuple[int, ...]) -> Calls:
    """Returns calls of `constraint_forces` with selected joints and other axes."""
    inputs = state(robot, lead)
    ask, joint = robot.constraint_forces, robot.joint_names[3]
    return {
        "plain": lambda: ask(*inputs),
        "a joint": lambda: ask(*inputs, joints=[joint]),
        "a joint and gravity": lambda: ask(*inputs, joints=[joint], gravity=MOON),
        "world axes": lambda: ask(*inputs, frame="world"),
    }


def views(robot: Robot, lead: tuple[int, ...]) -> Calls:
    """Returns calls of robots with an overlay."""
    q, v, a = state(robot, lead)
    link, joint = robot.link_names[-1], robot.joint_names[1]
    view, locked = robot.overlaid(Overlay(Payload(link, 1.0))), robot.overlaid(Overlay(locked=[joint]))
    push = [Wrench(link, force=(1.0, 2.0, -20.0), point=(0.0, 0.01, 0.02))]
    v0, a0 = v * locked.free, a * locked.free
    return {
        "plain": lambda: robot.inverse_dynamics(q, v, a),
        "view": lambda: view.inverse_dynamics(q, v, a),
        "view and wrench": lambda: view.inverse_dynamics(q, v, a, wrenches=push),
        "view and gravity": lambda: view.inverse_dynamics(q, v, a, gravity=MOON),
        "locked joint": lambda: locked.inverse_dynamics(q, v0, a0),
    }


def outputs(robot: Robot, states: int) -> Calls:
    """Returns calls with large results; the first one is of another kind: a fill of the mass matrices' memory."""
    q, v, a = state(robot, (states,))
    M, J, link = robot.mass_matrix(q), robot.jacobians(q), robot.link_names[-1]
    tau = robot.forward_dynamics(q, v, a)
    return {
        "fill of mass matrices": lambda: M.fill(1.0),
        "mass matrix": lambda: robot.mass_matrix(q),
        "mass matrix, out": lambda: robot.mass_matrix(q, out=M),
        "mass matrix, 2 threads": lambda: robot.mass_matrix(q, out=M, workers=2),
        "fill of Jacobians": lambda: (J.translation.fill(1.0), J.rotation.fill(1.0)),
        "Jacobians": lambda: robot.jacobians(q),
        "Jacobians, out": lambda: robot.jacobians(q, out=J),
        "Jacobians of a link": lambda: robot.jacobians(q, links=[link]),
        "forward dynamics, out": lambda: robot.forward_dynamics(q, v, a, out=tau),
        "forward dynamics, 2 threads": lambda: robot.forward_dynamics(q, v, a, out=tau, workers=2),
    }


def table(title: str, calls: Calls, blocks: int, block: int = BLOCK) -> None:
    """Prints medians of each call, and their ratio to the first."""
    durations: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    # Blocks of all calls in turn, so that a slow minute is in each of them.
    for _ in range(blocks):
        for name, call in calls.items():
            start_ns = perf_counter_ns()
            for _ in range(block):
                call()
            durations[name].append((perf_counter_ns() - start_ns) / block / 1e3)
    print(f"\n{title}")
    for name, times in durations.items():
        ratio = median(t / plain for t, plain in zip(times, durations[next(iter(durations))], strict=True))
        print(f"  {name:28}{median(times):10.2f} us{ratio:9.2f}")


@contextmanager
def serving(urdf: Path) -> Iterator[str]:
    """A server process; yields its endpoint."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dyn_service", "serve", str(urdf), "--bind", f"ipc://{folder}/serve"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().split()[1]
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
