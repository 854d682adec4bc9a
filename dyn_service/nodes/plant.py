"""The plant node: a simulated robot in wall time, by default at 1 kHz.

Each period: sleep to the deadline, integrate the steps that are due, take the newest command, publish the state.
After an overrun of k periods the k steps are integrated at once under the effort that was held, as the arm itself
would have moved, and one state is published; commands and states never come in bursts. Time beyond `max_catch_up_s`
is slipped: the simulated time then falls behind wall time for good, and the slip is counted.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import zmq

from dyn_service.api.queries import Array
from dyn_service.config.parameters import FilePath
from dyn_service.control.plant_core import Plant, PlantSettings
from dyn_service.control.safety import (
    ACTIVE,
    MAX_MISSED_CYCLES,
    MODES,
    LimitPolicy,
    SafetySettings,
    SafetySupervisor,
    StopPolicy,
)
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages import decode, encode
from dyn_service.messages.dyn_service_msgs import JointCommand
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.model.description import RootType
from dyn_service.nodes import plant_report
from dyn_service.nodes.kinds import NodeKind
from dyn_service.nodes.pacing import Pacer, precise_sleep
from dyn_service.nodes.runtime import Node
from dyn_service.nodes.telemetry import Recorder
from dyn_service.protocol.contacts import unpack_contacts
from dyn_service.shipped import find_robot
from dyn_service.sim.integrators import ForwardDynamics
from dyn_service.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

STATS_PERIOD_S = 0.5
REARM_SPEED = 0.3
"""rad/s | m/s."""


class PlantParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the plant.

    robot: path of its URDF, MJCF, SDFormat or xacro file. joints: of a file on what its joints do by themselves, or
    none. root: how its root link moves in the world. mimic: whether joints that mimic others follow them, as on the
    server. rate_hz: integration steps per second of wall time. integrator, substeps: how one step is done.
    state_rate_hz: joint states per second, at most rate_hz; 0 is every step. initial_position: rad | m, by joint (and
    its part where it has several, `joint.part` or in a map of its own) or in order; empty is the middle of the limits,
    neutral where there are none.

    missed_cycles: how many control cycles, 1 to 20, may go by without a command before the plant stops.
    control_rate_hz: their rate; 0 is rate_hz. safe_stop: how it stops, see `SafetySettings.stop`. brake_s: how long the
    brakes take to bring it to rest. damping_s: how long a motion takes to fall to 1/e under `damping`. beyond_limits:
    see `SafetySettings`. effort_ramp_s: from no effort to the limit of the URDF; the largest rate of efforts is their
    quotient. effort_rate:
    N m/s | N/s, one number per effort, instead. rearm_share: of its velocity limit, how fast a joint may be when the
    plant is armed; one without a limit, `REARM_SPEED`.

    position_limits: whether joints meet stops at their limits. contacts: points of links that meet planes, maps with
    the fields of `Contact`; friction is smoothed, see `sim/supports.py`. Both take their time, with RK4 one or two
    milliseconds a step, so that rate_hz wants to be some hundreds.

    max_catch_up_s: how much missed time is integrated after an overrun; what is beyond is slipped. joint_states,
    joint_commands: topics or endpoints. record: whether the recording goes to the launcher.
    """

    robot: FilePath
    joints: FilePath = ""
    root: RootType = "fixed"
    mimic: bool = True
    rate_hz: float = 1000.0
    integrator: Literal["rk4", "semi_implicit_euler", "explicit_euler"] = "rk4"
    substeps: int = 1
    state_rate_hz: float = 0.0
    initial_position: list[float] | dict[str, float | dict[str, float]] = []
    missed_cycles: int = 20
    control_rate_hz: float = 0.0
    safe_stop: StopPolicy = "brake"
    brake_s: float = 0.1
    damping_s: float = 0.01
    beyond_limits: LimitPolicy = "clip"
    effort_ramp_s: float = 0.05
    effort_rate: list[float] = []
    rearm_share: float = 0.1
    position_limits: bool = False
    contacts: list[dict[str, Any]] = []
    max_catch_up_s: float = 0.01
    joint_states: str = "joint_states"
    joint_commands: str = "joint_commands"
    record: bool = True


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
        robot.prepare(["forward_dynamics", *(["mass_matrix"] if p.safe_stop == "damping" else [])])
        plant = make_plant(robot, p, session=secrets.randbits(53))
        robot.forward_dynamics(plant.q, plant.v, plant.safety.effort)  # whatever is compiled late is compiled here
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
        }
    )
    _Loop(node, plant, states, commands).run()


def make_plant(robot: Robot, p: PlantParameters, session: int) -> Plant:
    """The plant as the parameters say.

    Raises:
        InvalidArgumentError: A parameter is out of its range.
    """
    at, limits = robot.configuration, robot.limits

    def damping() -> Array:  # every motion then dies out as exp(-t / damping_s), but for what pulls at it
        matrix: Array = robot.mass_matrix(plant.q) / p.damping_s
        return matrix

    safety = SafetySupervisor(safety_settings(p, limits), at.velocity_names, session, robot.fingerprint, damping)
    q = initial_position(p.initial_position, at, limits)
    settings = PlantSettings(1.0 / p.rate_hz, p.integrator, p.substeps, p.brake_s)
    plant: Plant = Plant(_forward_dynamics(robot, p, q), at, limits, q, settings, safety)
    return plant


def _forward_dynamics(robot: Robot, p: PlantParameters, q: Array) -> ForwardDynamics:
    """The robot's, with stops and contacts where there are any."""
    if not p.position_limits and not p.contacts:
        return robot.forward_dynamics
    from dyn_service.sim.supports import forward_dynamics
    from dyn_service.sim.task import checked

    task = checked(
        robot.configuration,
        q,
        np.zeros(robot.nv),
        None,
        dt=1.0 / p.rate_hz / p.substeps,
        steps=1,
        integrator=p.integrator,
        contacts=unpack_contacts(p.contacts, "contacts"),
        position_limits=p.position_limits,
    )
    supported = forward_dynamics(robot, task)
    supported(q, np.zeros(robot.nv), np.zeros(robot.nv))  # makes its kernels now
    return supported


def safety_settings(p: PlantParameters, limits: Limits) -> SafetySettings:
    """The limits and times that the parameters and the URDF give.

    Raises:
        InvalidArgumentError: A parameter is out of its range.
    """
    for name in ("brake_s", "effort_ramp_s"):
        if not getattr(p, name) > 0.0:
            raise InvalidArgumentError(f"{name} is {getattr(p, name):g}: expected a positive number")
    if (
        p.safe_stop == "damping" and not p.damping_s * p.rate_hz >= 2.0
    ):  # efforts that are held through a step would overshoot
        raise InvalidArgumentError(f"damping_s is {p.damping_s:g}: expected at least two steps, {2.0 / p.rate_hz:g} s")
    if not 1 <= p.missed_cycles <= MAX_MISSED_CYCLES:
        raise InvalidArgumentError(
            f"missed_cycles is {p.missed_cycles}: expected 1 to {MAX_MISSED_CYCLES}; a slower controller needs its "
            "rate, control_rate_hz",
            path="missed_cycles",
        )
    if not 0.0 <= p.control_rate_hz <= p.rate_hz or not 0.0 < p.rearm_share <= 1.0:
        raise InvalidArgumentError("control_rate_hz must be at most rate_hz, rearm_share above 0 and at most 1")
    effort = limits.efforts
    rate = np.array(p.effort_rate, dtype=np.float64) if p.effort_rate else effort / p.effort_ramp_s
    velocity = limits.speeds
    control_s = 1.0 / (p.control_rate_hz or p.rate_hz)
    return SafetySettings(
        cycle_s=1.0 / p.rate_hz,
        hold_s=p.missed_cycles * control_s,
        effort_limit=effort,
        effort_rate=rate,
        velocity_limit=velocity,
        rearm_velocity=np.where(np.isfinite(velocity), p.rearm_share * velocity, REARM_SPEED),
        stop=p.safe_stop,
        beyond_limits=p.beyond_limits,
        control_s=control_s,
    )


def initial_position(
    given: list[float] | dict[str, float | dict[str, float]], at: Configuration, limits: Limits
) -> Array:
    """The first position: the middle of the limits (neutral where there are none), with what is given over it.

    Raises:
        InvalidArgumentError: A joint is unknown, or the list's length is not that of q.
    """
    bounded, names = np.isfinite(limits.lower) & np.isfinite(limits.upper), at.position_names
    with np.errstate(invalid="ignore"):
        q = np.where(bounded, 0.5 * (limits.lower + limits.upper), np.clip(at.neutral, limits.lower, limits.upper))
    if isinstance(given, dict):
        for name, value in _by_entry(given):
            if name not in names:
                near = did_you_mean(name, names)
                raise InvalidArgumentError(
                    f"initial_position: no joint {name!r}; the joints are {', '.join(names)}{near}"
                )
            q[names.index(name)] = value
    elif given:
        if len(given) != at.nq:
            raise InvalidArgumentError(f"initial_position has {len(given)} numbers, the robot {at.nq} positions")
        q = np.array(given, dtype=np.float64)
    at.check_unit(q, "initial_position", "initial_position")
    return q


def _by_entry(given: dict[str, float | dict[str, float]]) -> Iterator[tuple[str, float]]:
    """Positions by the names of their entries: of parameters, dots in names and maps in maps are the same thing."""
    for name, value in given.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{part}", inner) for part, inner in value.items())
        else:
            yield name, value


class _Loop:
    """The plant's loop and what it counts."""

    def __init__(
        self, node: Node[PlantParameters], plant: Plant, states: zmq.Socket[bytes], commands: zmq.Socket[bytes]
    ) -> None:
        p = node.parameters
        self.node, self.plant, self.states, self.commands = node, plant, states, commands
        at = plant.configuration
        columns = ["t", "session", "mode", *(f"q.{name}" for name in at.position_names)]
        columns += [f"{kind}.{name}" for kind in ("v", "tau") for name in at.velocity_names]
        self.recorder = Recorder(node.telemetry, "plant", columns) if p.record else None
        self.pacer = Pacer(1.0 / p.rate_hz, busy_poll_s=node.busy_poll_s())
        self.most = max(1, round(p.max_catch_up_s * p.rate_hz))
        self.publish_every = round(p.rate_hz / p.state_rate_hz) if p.state_rate_hz > 0.0 else 1
        self.published = self.malformed = self.slipped = 0
        self.late_s: list[float] = []
        self._next_publish = self.active_steps = 0
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
        if self.recorder is not None:
            self.recorder.flush()
        self._stats(time.monotonic())

    def _period(self) -> None:
        plant = self.plant
        due = self.pacer.wait()
        self.late_s.append(self.pacer.late_s)
        self.slipped += max(0, due - self.most)
        before = plant.counters.steps
        plant.advance(min(due, self.most))
        self.active_steps += (plant.counters.steps - before) * (plant.safety.mode == ACTIVE)
        self._take_command()
        steps = plant.counters.steps
        if steps >= self._next_publish:
            self.states.send(encode(plant.publish()), zmq.NOBLOCK)
            self._next_publish = (steps // self.publish_every + 1) * self.publish_every
            self.published += 1
        if self.recorder is not None:
            nq, nv = plant.configuration.nq, plant.configuration.nv
            row = self.recorder.row()
            row[0], row[1], row[2] = plant.time_s, plant.safety.session, MODES.index(plant.safety.mode)
            row[3 : 3 + nq], row[3 + nq : 3 + nq + nv], row[3 + nq + nv :] = plant.q, plant.v, plant.safety.effort

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
        counters = asdict(safety.counters)
        refused, stops = counters.pop("refused"), counters.pop("stops")
        late_us = 1e6 * np.array(self.late_s or [0.0])
        self.late_s.clear()
        self.node.telemetry.stats(
            {
                "time_s": plant.time_s,
                "step_rate_hz": plant.counters.steps / max(now - self._begun_s, 1e-9),
                "published": self.published,
                "active_steps": self.active_steps,
                "mode": safety.mode,
                "cause": safety.cause,
                "overruns": pacer.overruns,
                "caught_up": pacer.skipped - self.slipped,
                "slipped": self.slipped,
                "malformed": self.malformed,
                "late_p50_us": float(np.percentile(late_us, 50)),
                "late_max_us": float(late_us.max()),
                "telemetry_dropped": self.node.telemetry.dropped,
                **asdict(plant.counters),
                **counters,
                "refused": sum(refused.values()),
                "last_refusal": safety.refusal.sentence if safety.refusal else "",
                **{f"refused_{reason}": count for reason, count in refused.items()},
                "stops": sum(stops.values()),
                **{f"stops_{cause}": count for cause, count in stops.items()},
            }
        )


NODE = NodeKind(
    "plant", PlantParameters, main, panels=plant_report.PANELS, columns=plant_report.COLUMNS, at_end=plant_report.at_end
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
