"""The plant node: a simulated robot in wall time, by default at 1 kHz.

Each period: sleep to the deadline, integrate the steps that are due, take the newest command, publish the state.
After an overrun of k periods the k steps are integrated at once under the effort that was held, as the arm itself
would have moved, and one state is published; commands and states never come in bursts. Time beyond `max_catch_up_s`
is slipped: the simulated time then falls behind wall time for good, and the slip is counted.
"""

from __future__ import annotations

import secrets
import time

import numpy as np
import zmq

from dyn_service.control.plant_core import Plant
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages import decode, encode
from dyn_service.messages.dyn_service_msgs import JointCommand
from dyn_service.nodes import plant_report
from dyn_service.nodes.kinds import NodeKind
from dyn_service.nodes.pacing import Pacer, precise_sleep
from dyn_service.nodes.plant_making import differences, make_plant
from dyn_service.nodes.plant_parameters import PlantParameters
from dyn_service.nodes.plant_recording import PlantRecording, counts
from dyn_service.nodes.runtime import Node
from dyn_service.shipped import find_robot

STATS_PERIOD_S = 0.5


def main(node: Node[PlantParameters]) -> None:
    """Runs the plant until it is asked to stop."""
    from dyn_service.engine.robot import (
        Robot,  # the engine: a launcher, which reads the declaration below, does without
    )

    p = node.parameters
    if not 0.0 <= p.state_rate_hz <= p.rate_hz or p.rate_hz <= 0.0 or p.substeps < 1:
        raise InvalidArgumentError("rate_hz and substeps must be positive, and state_rate_hz at most rate_hz")
    with node.stop.at_once():
        robot = Robot.from_file(find_robot(p.robot), root=p.root, joints=p.joints or None, mimic=p.mimic)
        plant = make_plant(robot, p, session=secrets.randbits(53))
    states = node.socket(zmq.PUB, p.joint_states, bind=True)
    commands = node.socket(zmq.PULL, p.joint_commands, bind=True)
    node.telemetry.facts(
        {
            "role": "plant",
            "robot": robot.name,
            "fingerprint": robot.fingerprint,
            "joints": list(robot.joint_names),
            "configuration": robot.configuration.to_wire(),
            "effort_limit": plant.safety.settings.effort_limit.tolist(),
            "effort_rate": plant.safety.settings.effort_rate.tolist(),
            "velocity_limit": plant.safety.settings.velocity_limit.tolist(),
            "lower": plant.limits.lower.tolist(),
            "upper": plant.limits.upper.tolist(),
            "session": plant.safety.session,
            "integrator": p.integrator,
            "substeps": p.substeps,
            "rate_hz": p.rate_hz,
            "safe_stop": p.safe_stop,
            "hold_s": plant.safety.settings.hold_s,
            **differences(p),
        }
    )
    _Loop(node, plant, states, commands).run()


class _Loop:
    """The plant's loop and what it counts."""

    def __init__(
        self, node: Node[PlantParameters], plant: Plant, states: zmq.Socket[bytes], commands: zmq.Socket[bytes]
    ) -> None:
        p = node.parameters
        self.node, self.plant, self.states, self.commands = node, plant, states, commands
        self.recording = PlantRecording(node.telemetry, plant) if p.record else None
        self.pacer = Pacer(1.0 / p.rate_hz, busy_poll_s=node.busy_poll_s())
        self.most = max(1, round(p.max_catch_up_s * p.rate_hz))
        self.publish_every = round(p.rate_hz / p.state_rate_hz) if p.state_rate_hz > 0.0 else 1
        self.published = self.malformed = self.slipped = 0
        self.late_s: list[float] = []
        self._next_publish = 0
        self._begun_s = 0.0

    def run(self) -> None:
        """Runs until the node is asked to stop."""
        precise_sleep()
        self.node.freeze_garbage_collector()
        self.node.telemetry.ready()
        self.pacer.restart()
        self._begun_s = time.monotonic()
        next_stats = self._begun_s + STATS_PERIOD_S
        while not self.node.stop.requested:
            self._period()
            self.node.beat()
            now = time.monotonic()
            if now >= next_stats:
                next_stats = now + STATS_PERIOD_S
                self._stats(now)
        if self.recording is not None:
            self.recording.flush()
        self._stats(time.monotonic())

    def _period(self) -> None:
        plant = self.plant
        due = self.pacer.wait()
        self.late_s.append(self.pacer.late_s)
        self.slipped += max(0, due - self.most)
        plant.advance(min(due, self.most))
        self._take_command()
        steps = plant.counters.steps
        if steps >= self._next_publish:
            self.states.send(encode(plant.publish()), zmq.NOBLOCK)
            self._next_publish = (steps // self.publish_every + 1) * self.publish_every
            self.published += 1
        if self.recording is not None:
            self.recording.row()

    def _take_command(self) -> None:
        try:
            frame = self.commands.recv(zmq.NOBLOCK)
        except zmq.Again:
            return  # no new command: the last one is held, for a while
        try:
            self.plant.offer(decode(JointCommand, frame))
        except InvalidArgumentError:
            self.malformed += 1

    def _stats(self, now: float) -> None:
        plant, pacer, safety = self.plant, self.pacer, self.plant.safety
        late_us = 1e6 * np.array(self.late_s or [0.0])
        self.late_s.clear()
        self.node.telemetry.stats(
            {
                "time_s": plant.time_s,
                "step_rate_hz": plant.counters.steps / max(now - self._begun_s, 1e-9),
                "published": self.published,
                "mode": safety.mode,
                "cause": safety.cause,
                "overruns": pacer.overruns,
                "caught_up": pacer.skipped - self.slipped,
                "slipped": self.slipped,
                "malformed": self.malformed,
                "late_p50_us": float(np.percentile(late_us, 50)),
                "late_max_us": float(late_us.max()),
                "telemetry_dropped": self.node.telemetry.dropped,
                **counts(plant),
            }
        )


NODE = NodeKind(
    "plant", PlantParameters, main, panels=plant_report.PANELS, columns=plant_report.COLUMNS, at_end=plant_report.at_end
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
