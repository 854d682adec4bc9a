"""The plant node: a simulated or real robot under commands, in wall time, in a multiple of it, or in lockstep.

Paced, in wall time or a multiple of it. Each period: sleep to the deadline, do the steps that are due, accept the
newest command, publish the state. After an overrun of k periods a simulated robot does k steps at once under the held
effort, and one state is published: commands and states never come in bursts. Time beyond `max_catch_up_s` is slipped:
simulated time then falls behind permanently, and the slip is counted.

In lockstep wall time has no influence. The plant publishes a state, repeats it for late subscribers, and goes on to the
next due state when the answering command has arrived, accepted or refused. If no command could be accepted, because the
robot is stopped and too fast to be armed, the plant goes on by itself. Wall time matters only if a controller falls
silent while the robot is under its command: after `lockstep_timeout_s` the plant does the watchdog's cycles without
commands, the watchdog stops the robot, and the plant waits again. The result thus depends on the commands, not on their
timing.

A simulated plant's services: set_state, reset, push, set_payload, step.

    dyn service call /plant/push '{link: panda_hand, force: [0, 20, 0], duration: 0.1}'

Pushes and payloads also act on a robot under command. `set_state` and `reset` are refused while the robot is under
command, because a controller would see the jump as a motion. Requests are checked against the robot before any change.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dyn_service.api.queries import Overlay, Payload, Wrench
from dyn_service.control.joint_states import MULTI_DOF, JointStates
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import RUNNING
from dyn_service.control.plant.simulated import RobotSensors, SimulatedRobot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.node_kind import NodeKind
from dyn_service.graph.middleware.pacing import Lateness, Pacer, precise_sleep
from dyn_service.graph.middleware.pubsub import Publisher
from dyn_service.graph.middleware.telemetry import ROUNDING_S
from dyn_service.graph.nodes.plant import report, srvs
from dyn_service.graph.nodes.plant.factory import (
    PlantParameters,
    closed_position,
    differences,
    first_position,
    make_engine,
    make_plant,
    prepare,
    real_robot,
    steps_of,
    values_by_joint,
    wrench_efforts,
)
from dyn_service.graph.nodes.plant.motors import engine_inputs, gear_facts
from dyn_service.graph.nodes.plant.srvs import MAX_PUSH_S, Values
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.messages.geometry_msgs import Vector3, WrenchStamped
from dyn_service.messages.geometry_msgs import Wrench as WrenchMessage
from dyn_service.messages.nav_msgs import Odometry
from dyn_service.messages.rosgraph_msgs import Clock
from dyn_service.messages.sensor_msgs import Imu, JointState, MultiDOFJointState
from dyn_service.messages.std_msgs import Header
from dyn_service.service.protocol.inputs import unpack_overlay
from dyn_service.support.optional import require
from dyn_service.support.shipped import find_robot

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

STATS_PERIOD_S = 0.5
AGAIN_S = 0.05
"""Period at which an unanswered state is repeated in lockstep."""
_WAIT_MS = 20
_WHOLE = 1e-9
_LOG = logging.getLogger(__name__)


class PlantLoop:
    """The plant's loop and its counters."""

    def __init__(self, node: Node[Any], plant: Plant, topics: PlantTopics) -> None:
        p: PlantParameters = node.parameters
        self.node, self.plant, self.topics = node, plant, topics
        self.recording = report.PlantRecording(node.telemetry, plant) if p.record else None
        self._lockstep = p.clock == "lockstep"
        self.steps_per_state = steps_between_states(p)
        per_second = p.speed if p.clock == "faster" else 1.0
        self.pacer = Pacer(1.0 / (p.rate_hz * per_second), busy_poll_s=node.busy_poll_s())
        self.max_steps = max(1, round(p.max_catch_up_s * p.rate_hz))
        self.slipped = self.unanswered = 0
        self.lateness = Lateness()
        self._answer_timeout_s = p.lockstep_timeout_s or math.inf
        self._end_s = node.duration_s - ROUNDING_S if self._lockstep else math.inf
        self._next_publish = 0
        self._sent_seq, self._sent_s, self._first_sent_s = -1, 0.0, 0.0
        self._start_s = 0.0
        self._commanded = False

    def run(self) -> None:
        """Runs until the node is asked to stop, then closes the robot."""
        precise_sleep()
        self.node.freeze_garbage_collector()
        self.node.telemetry.ready()
        self.pacer.restart()
        self._start_s = time.monotonic()
        next_stats = self._start_s + STATS_PERIOD_S
        turn = self._step_locked if self._lockstep else self._period
        try:
            while not self.node.stop.requested:
                turn()
                self.node.spin_once()
                self.node.beat()
                now = time.monotonic()
                if now >= next_stats:
                    next_stats = now + STATS_PERIOD_S
                    self._stats(now)
        finally:
            self.plant.robot.close()
        if self.recording is not None:
            self.recording.flush()
        self._stats(time.monotonic())

    def step_unanswered(self, steps: int) -> None:
        """In lockstep, does steps without a command."""
        if not self._lockstep:
            raise FailedPreconditionError("step: only a plant with clock: lockstep is stepped")
        self._advance(steps)

    def _period(self) -> None:
        plant = self.plant
        steps_due = self.pacer.wait()
        # until then other nodes were starting
        if plant.safety.counters.armed and not self._commanded:
            self._commanded, self.lateness, self.slipped = True, Lateness(), 0
            self.pacer.overruns = self.pacer.skipped = 0
        self.lateness.add(self.pacer.late_s)
        # after a long stall, such as a suspended machine, the robot must not move for seconds at once
        if steps_due > self.max_steps:
            self.slipped += steps_due - self.max_steps
            steps_due = self.max_steps
        plant.advance(steps_due)
        command = self.topics.take()
        if command is not None:
            plant.offer(command)
        steps = plant.counters.steps
        if steps >= self._next_publish:
            self.topics.send(plant.publish())
            # at multiples of the period, so that states do not drift after an overrun
            self._next_publish = (steps // self.steps_per_state + 1) * self.steps_per_state
        if self.recording is not None:
            self.recording.row()

    def _step_locked(self) -> None:
        """Does the next steps if the present state has been answered."""
        plant, now = self.plant, time.monotonic()
        newest = plant.counters.steps
        if newest != self._sent_seq:
            self._sent_seq, self._first_sent_s = newest, now
            self._send(now)
        # controllers hear the last state until the launcher stops them
        if plant.time_s >= self._end_s:
            self.topics.take(_WAIT_MS)
            if now - self._sent_s > AGAIN_S:
                self._send(now)
            self._stats(now)
            return
        if not (plant.safety.mode in RUNNING or plant.safety.armable(plant.v)):
            self._advance(self.steps_per_state)
            return
        command = self.topics.take(_WAIT_MS)
        if command is not None:
            plant.offer(command)
            # a refused command answers as well: else one bad command would stop the time
            if (command.session, command.state_seq) == (plant.safety.session, newest):
                self._advance(self.steps_per_state)
        elif plant.safety.mode in RUNNING and now - self._first_sent_s > self._answer_timeout_s:
            self.unanswered += 1
            _LOG.warning(
                "state %d (t = %g s) was not answered within %g s: the plant goes on without commands until it stops",
                newest, plant.time_s, self._answer_timeout_s,
            )  # fmt: skip
            # cycles without commands until the watchdog acts, so that the result does not depend on when the controller
            # fell silent
            while plant.safety.mode in RUNNING and plant.time_s < self._end_s:
                self._advance(1)
        elif now - self._sent_s > AGAIN_S:
            self._send(now)

    def _send(self, now: float) -> None:
        self._sent_s = now
        self.topics.send(msgspec.structs.replace(self.plant.publish(), answer_timeout=self._answer_timeout_s))

    def _advance(self, steps: int) -> None:
        for _ in range(steps):
            if self.plant.time_s >= self._end_s:
                return
            self.plant.advance(1)
            if self.recording is not None:
                self.recording.row()

    def _stats(self, now: float) -> None:
        plant, pacer, safety = self.plant, self.pacer, self.plant.safety
        self.node.telemetry.stats(
            {
                "time_s": plant.time_s,
                "step_rate_hz": plant.counters.steps / max(now - self._start_s, 1e-9),
                "published": self.topics.published,
                "mode": safety.mode,
                "cause": safety.cause,
                "overruns": pacer.overruns,
                "caught_up": pacer.skipped - self.slipped,
                "slipped": self.slipped,
                "unanswered": self.unanswered,
                "malformed": self.topics.malformed,
                **self.lateness.microseconds(),
                "telemetry_dropped": self.node.telemetry.dropped,
                **report.counts(plant),
            }
        )


def steps_between_states(p: PlantParameters) -> int:
    """Returns the number of steps between published states; in lockstep the controller's rate decides."""
    rate_hz = p.state_rate_hz
    if p.clock == "lockstep":
        name = "state_rate_hz" if rate_hz else "control_rate_hz"
        rate_hz = rate_hz or p.control_rate_hz
        steps = p.rate_hz / (rate_hz or p.rate_hz)
        if abs(steps - round(steps)) > _WHOLE * steps:
            raise InvalidArgumentError(
                f"in lockstep rate_hz must be a whole multiple of {name}, found {p.rate_hz:g} and {rate_hz:g} Hz",
                path=name,
            )
    return round(p.rate_hz / rate_hz) if rate_hz > 0.0 else 1


CLOCK = "/clock"
"""A global topic, as in ROS."""
NO_ORIENTATION = [-1.0, *[0.0] * 8]
"""Covariance by which ROS's `Imu` marks a missing orientation; zeros would mean an exact one."""


class PlantTopics:
    """The topics of one plant. published: number of published states.

    `plant_state` is for controllers; `joint_states` is the same as a ROS message, with `multi_dof_joint_states` and
    `odom` for robots with such joints. The plant uses the newest message of `joint_commands` from any publisher, and
    binds if an endpoint is specified. A simulated robot's sensors other than encoders have `NAME/wrench` (force/torque
    sensors) and `NAME/imu`, in the sensor's axes, stamped with the sampling time.
    """

    def __init__(self, node: Node[Any], p: PlantParameters, messages: JointStates, plant: Plant | None = None) -> None:
        self._states = node.create_publisher(PlantState, p.plant_state, name="plant_state")
        self._joints = node.create_publisher(JointState, p.joint_states, name="joint_states")
        # the plant binds: it outlives its controllers, and a restarted one connects to the same endpoint
        self._commands = node.create_subscription(JointCommand, p.joint_commands, name="joint_commands", binds=True)
        self._clock = node.create_publisher(Clock, CLOCK) if p.clock != "real_time" else None
        self._messages = messages
        self._multi_dof = self._odometry = None
        if messages.has_several:
            self._multi_dof = node.create_publisher(MultiDOFJointState, p.multi_dof_joint_states, name=MULTI_DOF)
        if messages.has_odometry:
            self._odometry = node.create_publisher(Odometry, p.odom, name="odom")
        self._ros_topics = [topic for topic in (self._joints, self._multi_dof, self._odometry) if topic is not None]
        simulated = plant.robot if plant is not None and isinstance(plant.robot, SimulatedRobot) else None
        self._sensors_of_robot = simulated.measuring if simulated is not None else None
        self._sensors: dict[str, Publisher[Any]] = {}
        self._last_seq: dict[str, int] = {}
        if self._sensors_of_robot is not None:
            settings = self._sensors_of_robot.sensors.settings
            for name in settings.force_torque:
                self._sensors[name] = node.create_publisher(WrenchStamped, f"{name}/wrench")
            for name in settings.imus:
                self._sensors[name] = node.create_publisher(Imu, f"{name}/imu")
        self.published = 0

    @property
    def malformed(self) -> int:
        """Number of malformed commands."""
        return self._commands.malformed

    def send(self, state: PlantState) -> None:
        """Publishes a state and the time; topics without subscribers are left out."""
        if self._clock is not None:
            self._clock.publish(Clock(Time.from_seconds(state.stamp)))
        self._states.publish(state)
        if any(topic.has_subscribers() for topic in self._ros_topics):
            messages = self._messages.of_state(state)
            # joint_states is last, so that a subscriber that receives it can have the others
            if self._odometry is not None and messages.odometry is not None:
                self._odometry.publish(messages.odometry)
            if self._multi_dof is not None and messages.multi_dof is not None:
                self._multi_dof.publish(messages.multi_dof)
            self._joints.publish(messages.joints)
        if self._sensors_of_robot is not None:
            self._send_readings(self._sensors_of_robot)
        self.published += 1

    def _send_readings(self, measuring: RobotSensors) -> None:
        """Publishes the newest reading of each sensor that has one since the last call."""
        for name, reading in measuring.readings.items():
            if reading.seq == self._last_seq.get(name) or name not in self._sensors:
                continue
            self._last_seq[name] = reading.seq
            header = Header(Time.from_seconds(reading.stamp), name)
            first, second = (Vector3(*reading.value[k : k + 3].tolist()) for k in (0, 3))
            if self._sensors[name].kind is WrenchStamped:
                self._sensors[name].publish(WrenchStamped(header, WrenchMessage(first, second)))
            else:
                motion = Imu(
                    header, orientation_covariance=NO_ORIENTATION, angular_velocity=second, linear_acceleration=first
                )
                self._sensors[name].publish(motion)

    def take(self, wait_ms: int = 0) -> JointCommand | None:
        """Returns the newest command, or None if no valid one arrives in time; malformed ones are counted."""
        if wait_ms:
            self._commands.socket.poll(wait_ms)
        return self._commands.take()


MAX_PUSHES = 32
"""Largest number of simultaneous pushes."""


class PlantChanges:
    """Changes of a simulated plant at runtime. payloads: those that were set, by link. model: the robot of its
    parameters p.

    Raises:
        FailedPreconditionError: The plant's robot is a real one.
    """

    def __init__(self, plant: Plant, model: Robot, p: PlantParameters) -> None:
        if not isinstance(plant.robot, SimulatedRobot):
            raise FailedPreconditionError("the plant's robot is a real one: its state and payload cannot be set")
        self.plant, self._robot, self._model, self._p = plant, plant.robot, model, p
        self._overlay = unpack_overlay(p.overlay, "overlay")
        self.payloads: dict[str, Payload] = {}

    def prepare(self) -> None:
        """Compiles the queries of pushes and payloads, because compiling in the loop would miss its deadlines."""
        model, zeros = self._model, np.zeros(self._model.nv)
        q = self._robot.q
        wrench_efforts(model)(q, [Wrench(model.link_names[-1])])
        if self._p.engine == "own":
            model.overlaid(Overlay(gravity=model.gravity)).forward_dynamics(q, zeros, zeros)

    def set_state(self, position: Values, velocity: Values) -> None:
        """Sets the robot's state; joints that are left out keep their position, at rest.

        Raises:
            FailedPreconditionError: The robot is under command.
            InvalidArgumentError: A joint does not exist, or a value is beyond its limit or not finite.
        """
        self._check_idle("set_state")
        configuration, limits = self._model.configuration, self._model.limits
        q = values_by_joint(position, configuration.position_names, self._robot.q, "position")
        v = values_by_joint(velocity, configuration.velocity_names, np.zeros(configuration.nv), "velocity")
        configuration.check_unit(q, "position", "position")
        if (loops := self._model.closed_motion) is not None:
            q = closed_position(self._model, q, position, "set_state")
            loops.check_start(q, v)
        for name, values, lower, upper, names in (
            ("position", q, limits.lower, limits.upper, configuration.position_names),
            ("velocity", v, -limits.speeds, limits.speeds, configuration.velocity_names),
        ):
            # NaN is outside; limits may be infinite
            is_outside = ~((values >= lower) & (values <= upper) & np.isfinite(values))
            if is_outside.any():
                k = int(np.argmax(is_outside))
                raise InvalidArgumentError(
                    f"{name} of '{names[k]}' is {values[k]:g}: expected a number, {lower[k]:g} to {upper[k]:g}",
                    path=name,
                )
        self._robot.set_state(q, v)
        self.plant.look()

    def reset(self) -> None:
        """Resets the robot to its first position, at rest, without pushes and with its parameters' payload."""
        self._check_idle("reset")
        if self.payloads:
            self._set_payloads({})
        self._robot.end_pushes()
        configuration = self._model.configuration
        q = first_position(self._p, self._model)
        self._robot.set_state(q, np.zeros(configuration.nv))
        self.plant.look()

    def push(self, wrench: Wrench, duration_s: float) -> None:
        """Applies a wrench for `duration_s`.

        Raises:
            NotFoundError: The robot has no such link.
            InvalidArgumentError: A number is not finite, the wrench is a batch, or the duration is out of range.
            ResourceExhaustedError: `MAX_PUSHES` act already.
        """
        if not 0.0 < duration_s <= MAX_PUSH_S:
            raise InvalidArgumentError(
                f"duration is {duration_s:g}: expected more than 0 and at most {MAX_PUSH_S:g} s", path="duration"
            )
        if len(self._robot.pushes) >= MAX_PUSHES:
            raise ResourceExhaustedError(f"{MAX_PUSHES} pushes act already")
        for name in ("force", "torque", "point"):
            values = np.asarray(getattr(wrench, name))
            if values.shape != (3,) or not np.isfinite(values).all():
                raise InvalidArgumentError(f"{name} is {values.tolist()}: expected 3 finite numbers", path=name)
        # checks the wrench and compiles its kernel
        wrench_efforts(self._model)(self._robot.q, [wrench])
        self._robot.push(wrench, max(1, round(duration_s / self.plant.dt_s)))

    def set_payload(self, payload: Payload) -> None:
        """Sets the payload of a link; a mass of 0 removes it.

        Raises:
            NotFoundError: The robot has no such link.
            InvalidArgumentError: The payload is physically impossible, or the plant's robot is of an MJCF file or FMU.
        """
        shapes = [np.shape(part) for part in (payload.mass, payload.com, payload.inertia)]
        if shapes != [(), (3,), (3, 3)]:
            raise InvalidArgumentError(
                f"mass, com and inertia are of the shapes {', '.join(map(str, shapes))}: expected those of one payload",
                path="mass",
            )
        # checks the payload
        self._model.overlaid(Overlay(payloads=payload if payload.mass else replace(payload, mass=1.0)))
        payloads = {link: payload_of_link for link, payload_of_link in self.payloads.items() if link != payload.link}
        self._set_payloads({**payloads, payload.link: payload} if payload.mass else payloads)

    def _set_payloads(self, payloads: dict[str, Payload]) -> None:
        if self._p.mjcf or self._p.fmu:
            raise InvalidArgumentError("payloads cannot be set for a robot of an MJCF file or FMU: specify them there")
        model_payloads = self._overlay.payloads
        first = [model_payloads] if isinstance(model_payloads, Payload) else model_payloads
        all_payloads = [*first, *payloads.values()]
        overlay = replace(self._overlay, payloads=all_payloads)
        plain = not (all_payloads or overlay.links or overlay.joints or overlay.locked or overlay.gravity is not None)
        # the plain model has compiled kernels without an overlay's inputs
        real = self._model if plain else self._model.overlaid(overlay)
        gears = self._robot.gears
        robot, p = engine_inputs(real, self._p, gears)
        self._robot.change_engine(make_engine(robot, p, self._robot.q))
        if gears is not None:
            gears.links = robot
        if self._robot.measuring is not None:
            self._robot.measuring.sensors.of(real)
        self.payloads = payloads

    def _check_idle(self, change: str) -> None:
        mode = self.plant.safety.mode
        if mode in RUNNING:
            raise FailedPreconditionError(f"{change}: the robot is under command ({mode}): stop its controller first")


def create_services(node: Node[Any], loop: PlantLoop, changes: PlantChanges) -> None:
    """Creates the services of a plant's node."""

    def serve(name: str, kind: type[msgspec.Struct], change: Callable[[Any], None]) -> None:
        def handle(request: Any) -> srvs.PlantTimeResponse:
            change(request)
            return srvs.PlantTimeResponse(round(changes.plant.time_s, 9), changes.plant.safety.mode)

        node.create_service(f"~/{name}", kind, handle)

    def push(request: srvs.PushRequest) -> None:
        wrench = msgspec.structs.asdict(request)
        duration_s = wrench.pop("duration")
        changes.push(Wrench(**wrench), duration_s)

    serve("set_state", srvs.SetStateRequest, lambda request: changes.set_state(request.position, request.velocity))
    serve("reset", srvs.ResetRequest, lambda request: changes.reset())
    serve("push", srvs.PushRequest, push)
    serve("set_payload", srvs.SetPayloadRequest, lambda r: changes.set_payload(Payload(**msgspec.structs.asdict(r))))
    serve("step", srvs.StepRequest, lambda request: loop.step_unanswered(request.steps))


def main(node: Node[PlantParameters]) -> None:
    """Runs the plant until it is asked to stop."""
    # imported late: a launcher reads only the declaration below and needs no engine
    from dyn_service.engine.robot import Robot

    p = node.parameters
    with node.stop.at_once():
        robot = Robot.from_file(find_robot(p.robot), root=p.root, joints=p.joints or None, mimic=p.mimic, loops=p.loops)
        plant = make_plant(robot, p, session=secrets.randbits(53))
        changes = None if p.driver else PlantChanges(plant, robot, p)
        if changes is not None:
            changes.prepare()
            prepare(robot, plant.safety.interfaces, p)
        messages = JointStates.of(robot)
        gears = plant.robot.gears if isinstance(plant.robot, SimulatedRobot) else None
        integrator, substeps = steps_of(*engine_inputs(real_robot(robot, p), p, gears))
    topics = PlantTopics(node, p, messages, plant)
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
            "integrator": integrator,
            "substeps": substeps,
            "rate_hz": p.rate_hz,
            "clock": p.clock,
            "speed": p.speed if p.clock == "faster" else 1.0,
            "driver": p.driver,
            "safe_stop": p.safe_stop,
            "hold_s": plant.safety.settings.hold_s,
            "command_interfaces": list(plant.safety.interfaces),
            "bounds": msgspec.to_builtins(p.bounds),
            **differences(p, gear_facts(plant.robot)),
        }
    )
    loop = PlantLoop(node, plant, topics)
    if changes is not None:
        create_services(node, loop, changes)
    loop.run()


def check(p: PlantParameters) -> None:
    """Checks that the engine is installed."""
    if p.engine != "own":
        require(f"engine '{p.engine}'", {"mujoco": "mujoco", "fmu": "fmpy"}[p.engine])


NODE = NodeKind(
    "plant",
    PlantParameters,
    main,
    panels=report.PANELS,
    columns=report.COLUMNS,
    at_end=report.at_end,
    check=check,
    about="A simulated robot in wall time, by default at 1 kHz: accepts efforts and publishes its state.",
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
