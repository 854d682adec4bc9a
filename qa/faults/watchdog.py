"""The plant's watchdog: a real plant at 1 kHz, a real controller that goes wrong, real sockets.

    python -m qa.faults.watchdog --times 100

In each trial the controller holds a UR5e's pose for a while, then is killed, suspended, or sends nothing or something
wrong. The plant must stop within 25 ms of its own time after the last command it took, stay stopped whatever comes,
and be armed again by the next right controller, with efforts and their rates within the limits all along.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zmq

from dyn_service.control.plant.safety import ACTIVE, RUNNING, STOPPED
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware import telemetry
from dyn_service.graph.middleware.pubsub import split_trailer
from dyn_service.graph.middleware.telemetry import TelemetryStore
from dyn_service.graph.nodes.plant.factory import PlantParameters, initial_position, safety_settings
from dyn_service.messages import decode
from dyn_service.messages.dyn_service_msgs import PlantState
from qa.faults.scripted_controller import WRONG_COMMANDS

REPOSITORY = Path(__file__).parents[2]
ROBOT = REPOSITORY / "urdf" / "ur5e.urdf"
FAULTS = ("kill", "stop", *WRONG_COMMANDS)
BOUND_S = 0.025
PATIENCE_S = 240.0
UNDER_COMMAND = 40
"""States in a row that show the plant under command before a fault."""
HOLDS = 30
"""States in a row in which it must stay stopped while the fault goes on."""


@dataclass
class Outcome:
    """Of one kind of fault. latency_s: from the last command that was taken to the stop, in the plant's time. seen_s:
    from when the fault was made to the first state that shows the stop, by this process's clock. faults: what was not
    as it should be.
    """

    latency_s: list[float] = field(default_factory=list)
    seen_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Rig:
    """A plant node and one controller after the other."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.folder, self.context = folder, zmq.Context()
        self.telemetry = self.context.socket(zmq.PULL)
        self.telemetry.bind(f"ipc://{folder}/telemetry")
        self.store = TelemetryStore()
        robot = Robot.from_urdf(ROBOT)
        limits = safety_settings(PlantParameters(robot=str(ROBOT)), robot.limits)
        self.effort_limit, self.rate = limits.effort_limit, limits.effort_rate
        self.rearm = limits.rearm_velocity
        q = initial_position([], robot.configuration, robot.limits)
        gravity = robot.gravity_forces(q)
        law = {"pose": q.tolist(), "effort": gravity.tolist(), "inertia": robot.mass_matrix(q).tolist()}
        self.law = json.dumps(law)
        ends = [f"{name}:=ipc://{folder}/{name}" for name in ("plant_state", "joint_commands")]
        parameters = [
            word for assignment in (f"robot:={ROBOT}", f"safe_stop:={policy}", *ends) for word in ("-p", assignment)
        ]
        self.plant = subprocess.Popen(
            [sys.executable, "-m", "dyn_service.graph.nodes.plant.node", "--ros-args", *parameters],
            cwd=REPOSITORY,
            env={**os.environ, "DYN_RUNTIME_DIR": str(folder), telemetry.ENDPOINT: f"ipc://{folder}/telemetry"},
        )
        self.states = self.context.socket(zmq.SUB)
        # No limit: each state is checked against the one before, and a dropped one would look like a jump.
        self.states.setsockopt(zmq.RCVHWM, 0)
        self.states.setsockopt(zmq.SUBSCRIBE, b"")
        self.states.connect(f"ipc://{folder}/plant_state")
        self.controller: subprocess.Popen[str] | None = None
        self.last: PlantState | None = None
        self.violations: list[str] = []

    def close(self) -> None:
        """Ends both processes."""
        self.end_controller()
        self.plant.send_signal(signal.SIGINT)
        self.plant.wait(PATIENCE_S)
        self._listen()
        self.context.destroy(linger=0)

    def end_controller(self) -> None:
        """Kills it."""
        if self.controller is not None:
            self.controller.kill()
            self.controller.wait()
            assert self.controller.stdin is not None
            self.controller.stdin.close()
            self.controller = None

    def tell(self, behaviour: str) -> None:
        """Sets the behaviour of the controller, which it starts if none runs."""
        if self.controller is None:
            self.controller = subprocess.Popen(
                [
                    sys.executable, "-m", "qa.faults.scripted_controller", f"ipc://{self.folder}/plant_state",
                    f"ipc://{self.folder}/joint_commands", self.law,
                ],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        assert self.controller.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.controller.stdin.write(behaviour + "\n")
            self.controller.stdin.flush()

    def state(self) -> PlantState:
        """The next state, held against the one before."""
        if not self.states.poll(1e3 * PATIENCE_S):
            raise TimeoutError(f"no state came for {PATIENCE_S:g} s; the plant's status is {self.plant.poll()}")
        state = decode(PlantState, split_trailer(self.states.recv())[0])
        self._check(state)
        self.last = state
        self._listen()
        return state

    def wait_for(self, count: int) -> None:
        """Waits until so many states in a row show the plant under command, each time with a newer one."""
        deadline, seen, last_seq = time.monotonic() + PATIENCE_S, 0, -1
        while seen < count:
            state = self.state()
            if state.mode != ACTIVE:
                seen = 0
            elif state.command_seq > last_seq:
                seen += 1
            last_seq = state.command_seq
            if time.monotonic() > deadline:
                raise TimeoutError(f"the plant is {state.mode} ({state.cause}), not under command")

    def _check(self, state: PlantState) -> None:
        last, effort = self.last, np.array(state.effort)
        numbers = (*state.position, *state.velocity, *state.effort)
        if not np.isfinite(numbers).all() or (np.abs(effort) > self.effort_limit).any():
            self.violations.append(f"state {state.seq} is beyond its limits")
        if last is None:
            return
        change = np.abs(effort - np.array(last.effort))
        if (change > self.rate * (state.stamp - last.stamp) * (1.0 + 1e-9)).any():
            self.violations.append(f"efforts of state {state.seq} changed by more than their rate")
        if last.mode not in RUNNING and state.mode in RUNNING and (np.abs(last.velocity) > self.rearm).any():
            self.violations.append(f"state {state.seq} was armed at speed")

    def _listen(self) -> None:
        while self.telemetry.poll(0):
            with contextlib.suppress(InvalidArgumentError):
                self.store.take(telemetry.decode(self.telemetry.recv()))


def trial(rig: Rig, fault: str, outcome: Outcome) -> None:
    """One fault, the stop after it, and the plant under command again."""
    rig.tell("good")
    # The fault falls on another phase of the period each time.
    rig.wait_for(UNDER_COMMAND + random.randrange(20))
    controller = rig.controller
    assert controller is not None
    began = time.monotonic()
    if fault == "kill":
        rig.end_controller()
    elif fault == "stop":
        controller.send_signal(signal.SIGSTOP)
    else:
        rig.tell(fault)
    deadline, state = time.monotonic() + 5.0, rig.state()
    while state.mode in RUNNING and time.monotonic() < deadline:
        state = rig.state()
    outcome.seen_s.append(time.monotonic() - began)
    # In the plant's time, of which a busy machine takes nothing: the watchdog counts periods, not seconds.
    outcome.latency_s.append(state.since - (state.command_seq * 0.001 + state.command_delay))
    if state.mode != STOPPED or state.cause not in ("missed", "velocity"):  # as a robot that sinks is thrown back
        outcome.faults.append(f"the plant is {state.mode} ({state.cause})")
    for _ in range(HOLDS):
        held_state = rig.state()
        if (held_state.mode, held_state.epoch, held_state.command_seq) != (STOPPED, state.epoch, state.command_seq):
            outcome.faults.append(f"the stop did not hold: {held_state.mode}")
    if fault == "stop":
        controller.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def rig_at_work(policy: str) -> Iterator[Rig]:
    """A plant and its observer in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="dyn-watchdog-") as folder:
        rig = Rig(Path(folder), policy)
        try:
            yield rig
        finally:
            rig.close()


def run(
    times: int, faults: tuple[str, ...] = FAULTS, policy: str = "brake"
) -> tuple[dict[str, Outcome], dict[str, int], list[str]]:
    """So many trials of each fault: outcomes, what the plant counted, and states that were beyond limits."""
    outcomes = {fault: Outcome() for fault in faults}
    with rig_at_work(policy) as rig:
        rig.tell("good")
        for _ in range(times):
            for fault in faults:
                trial(rig, fault, outcomes[fault])
    (plant,) = rig.store.nodes.values()
    plant_counts = {name: int(value) for name, value in plant.stats.items() if isinstance(value, int)}
    return outcomes, plant_counts, rig.violations


def main() -> int:
    """Prints a line per fault; the status is 0 where all went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this one; may be given often")
    parser.add_argument("--policy", default="brake", choices=["brake", "damping", "zero"], help="how the plant stops")
    arguments = parser.parse_args()
    outcomes, plant_counts, violations = run(arguments.times, tuple(arguments.fault or FAULTS), arguments.policy)
    well = not violations
    for fault, outcome in outcomes.items():
        in_time = sum(latency <= BOUND_S for latency in outcome.latency_s)
        worst, seen, latest = 1e3 * np.array([max(outcome.latency_s), np.median(outcome.seen_s), max(outcome.seen_s)])
        well &= in_time == len(outcome.latency_s) == arguments.times and not outcome.faults
        print(
            f"{fault:12} {in_time} of {arguments.times} stopped within {1e3 * BOUND_S:g} ms: worst {worst:.1f} ms of "
            f"the plant's time; by this process's clock {seen:.1f} ms (median), {latest:.1f} ms (worst) "
            f"{'; '.join(outcome.faults[:3])}"
        )
    nonzero = {name: count for name, count in plant_counts.items() if count and ("refused" in name or "stop" in name)}
    print("plant:", ", ".join(f"{count} {name}" for name, count in nonzero.items()))
    print(f"states beyond limits: {len(violations)} {'; '.join(violations[:3])}")
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
