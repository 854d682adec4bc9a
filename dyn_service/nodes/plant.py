"""The plant node: a simulated robot in wall time, by default at 1 kHz.

Each period: sleep to the deadline, integrate the steps that are due, take the newest command, publish the state.
After an overrun of k periods the k steps are integrated at once under the effort that was held, as the arm itself
would have moved, and one state is published; commands and states never come in bursts. Time beyond `max_catch_up_s`
is slipped: the simulated time then falls behind wall time for good, and the slip is counted.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import zmq

from dyn_service.errors import InvalidArgumentError
from dyn_service.nodes.messages import decode_command, encode
from dyn_service.nodes.pacing import Pacer, precise_sleep
from dyn_service.nodes.plant_core import MODES, JointLimits, Plant, PlantSettings
from dyn_service.nodes.runtime import Node, run_node
from dyn_service.nodes.settings import PlantParameters
from dyn_service.nodes.telemetry import Recorder
from dyn_service.queries import Array
from dyn_service.robot import Robot

STATS_PERIOD_S = 0.5


def main(node: Node[PlantParameters]) -> None:
    """Runs the plant until it is asked to stop."""
    p = node.parameters
    if not 0.0 <= p.state_rate_hz <= p.rate_hz or p.rate_hz <= 0.0 or p.substeps < 1:
        raise InvalidArgumentError("rate_hz and substeps must be positive, and state_rate_hz at most rate_hz")
    robot = Robot.from_urdf(Path(p.robot))
    robot.prepare()
    limits = JointLimits(robot.limits.lower, robot.limits.upper, robot.limits.effort)
    plant = Plant(
        robot.forward_dynamics,
        tuple(robot.joint_names),
        limits,
        initial_position(p.initial_position, tuple(robot.joint_names), limits),
        PlantSettings(1.0 / p.rate_hz, p.integrator, p.substeps, p.command_timeout_s, p.stale_policy, p.clamp_effort),
        session=secrets.randbits(53),
    )
    robot.forward_dynamics(plant.q, plant.v, plant.effort)  # whatever is compiled late is compiled here
    states = node.socket(zmq.PUB, p.joint_states, bind=True)
    commands = node.socket(zmq.PULL, p.joint_commands, bind=True)
    node.telemetry.facts(
        {
            "role": "plant",
            "robot": robot.name,
            "fingerprint": robot.fingerprint,
            "joints": list(robot.joint_names),
            "units": units(robot),
            "effort_limit": limits.effort.tolist(),
            "lower": limits.lower.tolist(),
            "upper": limits.upper.tolist(),
            "session": plant.session,
            "integrator": p.integrator,
            "substeps": p.substeps,
            "rate_hz": p.rate_hz,
            "stale_policy": p.stale_policy,
            "command_timeout_s": p.command_timeout_s,
        }
    )
    _loop(node, plant, states, commands)


def initial_position(given: list[float] | dict[str, float], names: tuple[str, ...], limits: JointLimits) -> Array:
    """The first position: the middle of the limits (0 where there are none), with what is given over it.

    Raises:
        InvalidArgumentError: A joint is unknown, or the list's length is not the number of joints.
    """
    bounded = np.isfinite(limits.lower) & np.isfinite(limits.upper)
    with np.errstate(invalid="ignore"):
        q = np.where(bounded, 0.5 * (limits.lower + limits.upper), np.clip(0.0, limits.lower, limits.upper))
    if isinstance(given, dict):
        for name, value in given.items():
            if name not in names:
                raise InvalidArgumentError(f"initial_position: no joint {name!r}; the joints are {', '.join(names)}")
            q[names.index(name)] = value
    elif given:
        if len(given) != len(names):
            raise InvalidArgumentError(f"initial_position has {len(given)} numbers, the robot {len(names)} joints")
        q = np.array(given, dtype=np.float64)
    return q


def units(robot: Robot) -> list[str]:
    """`rad` or `m` per movable joint."""
    kinds = {joint.name: joint.kind for joint in robot.tree.joints}
    return ["m" if kinds.get(name) == "prismatic" else "rad" for name in robot.joint_names]


def _loop(
    node: Node[PlantParameters], plant: Plant, states: zmq.Socket[bytes], commands: zmq.Socket[bytes]
) -> None:
    p = node.parameters
    n = len(plant.names)
    columns = ["t", "mode", *(f"{kind}.{name}" for kind in ("q", "v", "tau") for name in plant.names)]
    recorder = Recorder(node.telemetry, "plant", columns)
    publish_every = round(p.rate_hz / p.state_rate_hz) if p.state_rate_hz > 0.0 else 1
    most = max(1, round(p.max_catch_up_s * p.rate_hz))
    published = malformed = slipped = 0
    late: list[float] = []
    precise_sleep()
    node.settle()
    pacer = Pacer(1.0 / p.rate_hz)
    next_publish = 0
    next_stats = time.monotonic() + STATS_PERIOD_S
    node.telemetry.ready()
    pacer.restart()
    while not node.stop.requested:
        due = pacer.wait()
        late.append(pacer.late_s)
        slipped += max(0, due - most)
        plant.advance(min(due, most))
        try:
            frame = commands.recv(zmq.NOBLOCK)
        except zmq.Again:
            pass
        else:
            try:
                plant.offer(decode_command(frame))
            except InvalidArgumentError:
                malformed += 1
        if plant.counters.steps >= next_publish:
            states.send(encode(plant.state()), zmq.NOBLOCK)
            next_publish = (plant.counters.steps // publish_every + 1) * publish_every
            published += 1
        if p.record:
            row = recorder.row()
            row[0], row[1] = plant.time_s, MODES.index(plant.mode)
            row[2 : 2 + n], row[2 + n : 2 + 2 * n], row[2 + 2 * n :] = plant.q, plant.v, plant.effort
        now = time.monotonic()
        if now >= next_stats:
            next_stats = now + STATS_PERIOD_S
            late_us = 1e6 * np.array(late)
            late.clear()
            node.telemetry.stats(
                {
                    "time_s": plant.time_s,
                    "wall_s": now - node.started_s,
                    "published": published,
                    "mode": plant.mode,
                    "overruns": pacer.overruns,
                    "caught_up": pacer.skipped - slipped,
                    "slipped": slipped,
                    "malformed": malformed,
                    "late_p50_us": float(np.percentile(late_us, 50)),
                    "late_max_us": float(late_us.max()),
                    "telemetry_dropped": node.telemetry.dropped,
                    **asdict(plant.counters),
                }
            )
    recorder.flush()


if __name__ == "__main__":
    raise SystemExit(run_node(main, PlantParameters, "plant"))
