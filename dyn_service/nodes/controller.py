"""The controller node: a computed-torque controller that asks a dynamics server for every torque, by default at 500 Hz.

For the first joint state in each period: predict, ask `computed_torque` over the socket, send the efforts to the plant.
Now and then, when the command is on its way, ask `constraint_forces` for the loads of all joints, for the record.

Deadlines. An answer that takes longer than `deadline_s` is counted as a miss; the plant holds its last command until
then, and the late answer is still sent, for it is newer than what is held. States that come meanwhile are skipped,
never queued: there is no burst. An answer that has not come after `request_timeout_s` is counted as lost, and the
next state is asked about; a server that went away and came back is simply asked again. One that came back with another
model under the robot's name refuses, and so ends the controller: only the plant's model is obeyed.

Taking over. The controller arms a plant that it finds stopped when it starts: to start it is to say so. One that stops
under its command it arms again only with `rearm`; else it ends with the cause. Without `rearm` one that a launcher has
started again takes over nothing that was under command before, and ends: a launcher is nobody who could say so.
Whenever it ends, it releases the plant.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
import zmq

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.client.sync import Client
from dyn_service.config.parameters import FilePath
from dyn_service.control.computed_torque import ComputedTorque, Question, TrajectoryMaker
from dyn_service.control.safety import ACTIVE, RUNNING, STOPPED
from dyn_service.control.trajectory import Bounds, MultiSineDesign, PointToPoint, design_multi_sine
from dyn_service.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from dyn_service.messages import decode, encode
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.nodes import controller_report
from dyn_service.nodes.kinds import NodeKind
from dyn_service.nodes.pacing import precise_sleep, readable
from dyn_service.nodes.runtime import Node
from dyn_service.nodes.telemetry import Recorder

STATS_PERIOD_S = 0.5
WAIT_MS = 100
RELEASE_S = 0.1
"""How long an ending controller waits for its release to leave: a socket that keeps the newest message alone, closed
at once, forgets that one too."""
_PASSING = (DeadlineExceededError, UnavailableError, ResourceExhaustedError)
"""What a later request may not meet again."""
TORQUE, LOADS = 0, 1
"""Kinds of requests in the recording."""


class MultiSineParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sines about a centre; see `trajectory.MultiSineDesign`.

    centre: rad | m, one number per position; empty is the middle of the limits, and for joints without limits, such as
    all with several ways to move, where the plant stands when the motion begins.
    """

    period_s: float = 6.0
    harmonics: int = 3
    range_fraction: float = 0.5
    velocity_fraction: float = 0.5
    max_amplitude: float = 0.6
    ramp_s: float = 2.0
    centre: list[float] = []


class PointToPointParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Moves between waypoints (each rad | m, one number per position), in a circle."""

    points: list[list[float]] = []
    move_s: float = 2.0
    dwell_s: float = 0.5


class ControllerParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the computed-torque controller.

    endpoint: of the dynamics server. robot: its name there; empty where the server has one robot. rate_hz: commands
    per second. natural_frequency: rad/s of the tracking error, with damping_ratio; one number or one per velocity.
    deadline_s: an answer after it counts as a deadline miss; 0 is one period. request_timeout_s: an answer after it
    is lost. connect_timeout_s: patience with a server and a plant that are not there yet; state_timeout_s: with a plant
    that falls silent. rearm: whether it takes over anew a plant that stopped under its command, or that of the one in
    whose place a launcher has started it; else that ends it.
    loads_rate_hz: how often joint loads are asked for; 0 is never. delay_compensation: whether state and
    reference are taken at the middle of the time during which the command will act. trajectory: which motion. keys: the
    key file, for a server that asks for keys.
    """

    endpoint: str = "tcp://127.0.0.1:5755"
    robot: str = ""
    rate_hz: float = 500.0
    natural_frequency: float | list[float] = 30.0
    damping_ratio: float = 1.0
    deadline_s: float = 0.0
    request_timeout_s: float = 0.25
    connect_timeout_s: float = 30.0
    state_timeout_s: float = 2.0
    rearm: bool = False
    loads_rate_hz: float = 25.0
    delay_compensation: bool = True
    trajectory: Literal["multi_sine", "point_to_point"] = "multi_sine"
    multi_sine: MultiSineParameters = msgspec.field(default_factory=MultiSineParameters)
    point_to_point: PointToPointParameters = msgspec.field(default_factory=PointToPointParameters)
    joint_states: str = "joint_states"
    joint_commands: str = "joint_commands"
    keys: FilePath = ""
    record: bool = True


class Asker:
    """Asks the server and counts: requests sent, answered and lost, deadline misses, round trips."""

    def __init__(self, deadline_s: float, recorder: Recorder | None) -> None:
        self.sent = self.answered = self.lost = self.deadline_misses = 0
        self.round_trips_us: list[float] = []
        self._deadline_us = 1e6 * deadline_s
        self._recorder = recorder

    def flush(self) -> None:
        """Sends what was recorded."""
        if self._recorder is not None:
            self._recorder.flush()

    def ask(self, stamp: float, kind: int, question: Callable[[], Any]) -> Any:
        """The answer, or None where it is lost."""
        self.sent += 1
        begun = time.perf_counter_ns()
        try:
            answer = question()
        except _PASSING:
            self.lost += 1
            return None
        took_us = 1e-3 * (time.perf_counter_ns() - begun)
        self.answered += 1
        missed = kind == TORQUE and took_us > self._deadline_us
        self.deadline_misses += missed
        if kind == TORQUE:
            self.round_trips_us.append(took_us)
        if self._recorder is not None:
            self._recorder.row()[:] = (stamp, kind, took_us, missed)
        return answer


def main(node: Node[ControllerParameters]) -> None:
    """Runs the controller until it is asked to stop."""
    p = node.parameters
    if min(p.rate_hz, p.request_timeout_s, p.state_timeout_s) <= 0.0 or min(p.deadline_s, p.loads_rate_hz) < 0.0:
        raise InvalidArgumentError("rate_hz and timeouts must be positive, other times and rates not negative")
    with Client(p.endpoint, timeout_s=p.connect_timeout_s, keys=p.keys or None) as client:
        with node.stop.at_once():  # a server that is not there is not waited for to the end
            robot = client.robot(p.robot or only_robot(client.list_robots()))
        client.timeout_s, client.compile_wait_s = p.request_timeout_s, 0.0  # no control loop waits for a compiler
        _Controller(node, robot).run()


def only_robot(names: list[str]) -> str:
    """The one robot that the server has.

    Raises:
        InvalidArgumentError: It has none or several.
    """
    if len(names) != 1:
        raise InvalidArgumentError(f"the server has {len(names)} robots ({', '.join(names)}): name one by 'robot'")
    return names[0]


def trajectory_maker(p: ControllerParameters, on: Configuration, limits: Limits) -> TrajectoryMaker:
    """What begins the reference motion that the parameters choose.

    Raises:
        InvalidArgumentError: The motion does not fit the robot.
    """
    bounds = Bounds(limits.lower, limits.upper, limits.velocity)
    if p.trajectory == "multi_sine":
        design = MultiSineDesign(**msgspec.structs.asdict(p.multi_sine))
        return lambda q, v: design_multi_sine(design, bounds, q, v, on)
    chosen = p.point_to_point
    points = np.array(chosen.points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != on.nq or chosen.move_s <= 0.0 or chosen.dwell_s < 0.0:
        raise InvalidArgumentError(f"point_to_point needs points of {on.nq} numbers, move_s > 0 and dwell_s >= 0")
    on.check_unit(points, "a point", "point_to_point.points")
    if np.any(points < bounds.lower) or np.any(points > bounds.upper):
        raise InvalidArgumentError("point_to_point: a point is outside of the joints' limits")
    return lambda q, v: PointToPoint(q, v, points, chosen.move_s, chosen.dwell_s, on)


def gains(p: ControllerParameters, n: int) -> tuple[Array, Array]:
    """Gains kp (n,) 1/s^2 and kd (n,) 1/s.

    Raises:
        InvalidArgumentError: The natural frequency is not positive, or not one number or n.
    """
    omega = np.atleast_1d(np.array(p.natural_frequency, dtype=np.float64))
    if omega.shape not in ((1,), (n,)) or not np.all(omega > 0.0) or p.damping_ratio <= 0.0:
        raise InvalidArgumentError(f"natural_frequency must be positive, one number or {n}, and damping_ratio positive")
    omega = np.broadcast_to(omega, (n,)).copy()
    return omega * omega, 2.0 * p.damping_ratio * omega


class _Controller:
    """The loop and what it needs."""

    def __init__(self, node: Node[ControllerParameters], robot: RobotQueries) -> None:
        p, at = node.parameters, robot.configuration
        self.node, self.robot, self.at = node, robot, at
        self.names = at.velocity_names
        self.kp, self.kd = gains(p, at.nv)
        fingerprint, make = robot.description.fingerprint, trajectory_maker(p, at, robot.limits)
        self.law = ComputedTorque(at, fingerprint, make, p.rate_hz, p.delay_compensation)
        self.number = secrets.randbits(53)
        columns = ["t", "kind", "round_trip_us", "missed"]
        self.deadline_s = p.deadline_s or 1.0 / p.rate_hz
        self.asker = Asker(self.deadline_s, Recorder(node.telemetry, "requests", columns) if p.record else None)
        self.loads: Recorder | None = None
        self.commands = self.command_drops = self.malformed = 0
        self.states = node.socket(zmq.SUB, p.joint_states, bind=False)
        self.efforts = node.socket(zmq.PUSH, p.joint_commands, bind=False)
        self._armed = (-1, -1)
        self._last: PlantState | None = None
        self.busy_poll_s = node.busy_poll_s()
        self._next_load = -1
        self._announced: object = None
        self._rate_mark = (time.monotonic(), 0)
        self._first_s = 0.0

    def run(self) -> None:
        """Runs until the node is asked to stop, and releases the plant however it ends.

        Raises:
            DeadlineExceededError: No state of the plant came for `state_timeout_s`.
            FailedPreconditionError: The plant or the server has another model; the plant stopped, and `rearm` is off.
        """
        self._facts()
        with self.node.stop.at_once():
            self._warm_up()
        precise_sleep()
        self.node.freeze_garbage_collector()
        self.node.telemetry.ready()
        try:
            self._loop()
        finally:
            last = self._last
            if last is not None and self._armed == (last.session, last.epoch):
                self._send(self._command(last, [0.0] * len(self.names), release=True))
                time.sleep(RELEASE_S)
            self._stats(time.monotonic())
            self.asker.flush()
            if self.loads is not None:
                self.loads.flush()

    def _loop(self) -> None:
        p = self.node.parameters
        next_stats = time.monotonic() + STATS_PERIOD_S
        # waits are counted, not time: one who was himself suspended has not waited
        silent, patience_s = 0, p.connect_timeout_s
        while not self.node.stop.requested:
            self.node.beat(2.0 * p.request_timeout_s)  # it may wait for two answers in a turn
            state = self._receive()
            if state is not None:
                self._last, silent, patience_s = state, 0, p.state_timeout_s
                if self.law.due(state):
                    self._control(state)
            elif not self.states.poll(0, zmq.POLLIN):
                silent += 1
                if silent > math.ceil(1e3 * patience_s / WAIT_MS):
                    raise DeadlineExceededError(f"no joint state came for {patience_s:g} s: is the plant at work?")
            now = time.monotonic()
            if now >= next_stats:
                next_stats = now + STATS_PERIOD_S
                self._stats(now)

    def _receive(self) -> PlantState | None:
        if not readable(self.states, WAIT_MS, self.busy_poll_s):
            return None
        try:
            return decode(PlantState, self.states.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None
        except InvalidArgumentError:
            self.malformed += 1
            return None

    def _control(self, state: PlantState) -> None:
        arm = state.mode not in RUNNING
        session, epoch = self._armed
        under_us = session == state.session and epoch != state.epoch
        if state.mode == STOPPED and under_us and not self.node.parameters.rearm:
            raise FailedPreconditionError(
                f"the plant stopped ({state.cause}) at {state.since:g} s, and rearm is off: start the controller anew"
            )
        anew = self._armed[0] != state.session and state.cause != "start"
        if arm and anew and self.node.restarted and not self.node.parameters.rearm:
            raise FailedPreconditionError(
                f"the plant is {state.mode} ({state.cause}), and rearm is off: a controller that the launcher has "
                "started again does not take it over"
            )
        if not (state.armable if arm else self._armed == (state.session, state.epoch)):
            return  # still too fast, or another controller's
        question = self.law.question(state)
        tau = self.asker.ask(state.stamp, TORQUE, lambda: self._torque(question))
        if tau is None:
            return
        self._send(self._command(state, tau.tolist(), arm=arm))
        if arm:
            self._armed = (state.session, state.epoch)
        if self.law.engaged and self._announced is not self.law.trajectory:
            self._announce(state)
        rate = self.node.parameters.loads_rate_hz
        if rate > 0.0 and state.mode == ACTIVE and int(state.stamp * rate) > self._next_load:
            self._next_load = int(state.stamp * rate)
            self._record_loads(state)

    def _torque(self, x: Question) -> Array:
        return self.robot.computed_torque(x.q, x.v, x.q_ref, x.v_ref, x.a_ref, kp=self.kp, kd=self.kd)

    def _command(
        self, state: PlantState, effort: list[float], *, arm: bool = False, release: bool = False
    ) -> JointCommand:
        """The answer to a state of this plant."""
        return JointCommand(
            state.session, state.seq, state.epoch, self.law.fingerprint, self.number, self.names, effort, arm, release
        )

    def _send(self, command: JointCommand) -> None:
        try:
            self.efforts.send(encode(command), zmq.NOBLOCK)
            self.commands += 1
            self._first_s = self._first_s or time.monotonic()
        except zmq.Again:
            self.command_drops += 1

    def _record_loads(self, state: PlantState) -> None:
        q, v, tau = self.law.measured(state)
        answer = self.asker.ask(state.stamp, LOADS, lambda: self.robot.constraint_forces(q, v, tau))
        if answer is None or not self.node.parameters.record:
            return
        if self.loads is None:
            names = [f"{kind}.{name}" for kind in ("force", "torque") for name in answer.joints]
            self.loads = Recorder(self.node.telemetry, "loads", ["t", *names], block_rows=16)
        magnitude = np.linalg.norm(answer.constraint.reshape(-1, 2, 3), axis=-1)
        row = self.loads.row()
        row[0] = state.stamp
        row[1:] = np.concatenate([magnitude[:, 1], magnitude[:, 0]])

    def _warm_up(self) -> None:
        """Asks each question once, so that what the server makes late is made before the loop begins."""
        q, zero = self.at.neutral, np.zeros(self.at.nv)
        deadline = time.monotonic() + self.node.parameters.connect_timeout_s
        while not self.node.stop.requested:
            try:
                self.robot.computed_torque(q, zero, q, zero, zero, kp=self.kp, kd=self.kd)
                self.robot.constraint_forces(q, zero, zero)
                return
            except _PASSING:
                if time.monotonic() > deadline:
                    raise

    def _facts(self) -> None:
        p = self.node.parameters
        self.node.telemetry.facts(
            {
                "role": "controller",
                "robot": self.robot.description.name,
                "fingerprint": self.robot.description.fingerprint,
                "endpoint": p.endpoint,
                "rate_hz": p.rate_hz,
                "deadline_s": self.deadline_s,
                "natural_frequency": p.natural_frequency,
                "damping_ratio": p.damping_ratio,
                "trajectory": p.trajectory,
            }
        )

    def _announce(self, state: PlantState) -> None:
        trajectory = self.law.trajectory
        if trajectory is not None:
            self._announced = trajectory
            reference = {"session": state.session, "begin_s": self.law.begin_s, "joints": list(self.at.names)}
            self.node.telemetry.facts({"reference": {**reference, "motion": trajectory.to_wire()}})

    def _stats(self, now: float) -> None:
        asker, law = self.asker, self.law
        since, before = self._rate_mark
        self._rate_mark = (now, self.commands)
        values: dict[str, float | int | str] = {
            "rate_hz": (self.commands - before) / max(now - since, 1e-9),
            "mean_rate_hz": self.commands / max(now - self._first_s, 1e-9) if self._first_s else 0.0,
            "sent": asker.sent,
            "answered": asker.answered,
            "lost": asker.lost,
            "deadline_misses": asker.deadline_misses,
            "skipped": law.skipped,
            "commands": self.commands,
            "command_drops": self.command_drops,
            "malformed": self.malformed,
            "reference_restarts": law.restarts,
            "error_rms": law.tracking.rms,
            "error_max": law.tracking.maximum,
            "telemetry_dropped": self.node.telemetry.dropped,
        }
        if asker.round_trips_us:
            p50, p99 = np.percentile(asker.round_trips_us, (50, 99))
            values |= {"round_trip_p50_us": float(p50), "round_trip_p99_us": float(p99)}
            asker.round_trips_us.clear()
        self.node.telemetry.stats(values)


NODE = NodeKind(
    "controller",
    ControllerParameters,
    main,
    panels=controller_report.PANELS,
    columns=controller_report.COLUMNS,
    launched={"endpoint": "$(endpoint dynamics)"},
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
