"""Declares a controller node from a law, and runs it: requests, commands, arming, recording, reporting.

    NODE = controller_kind("damper", DamperParameters, lambda p, model: Damper(p.damping))

The loop. For the first joint state in each period it calls the law, which queries the dynamics server, and sends the
command to the plant. At `loads_rate_hz`, after sending, it requests `constraint_forces` and records the joint loads.

Deadlines. An update that takes longer than `deadline_s` counts as a miss; the plant holds its last command meanwhile,
and the late command is still sent, because it is newer than the held one. States that arrive meanwhile are skipped, not
queued: there are no bursts. A response later than `request_timeout_s` is lost, and the loop goes on with the next
state; a restarted server is simply queried again. If it has another model under the robot's name, it refuses the
requests and the controller ends. In lockstep no response is late: the loop waits for it as long as the plant does.

Arming: see `control/controller.py`. The controller releases the plant when it ends, also if the law fails.

`LawSpec` specifies a controller's law: how it is made, its topics and its services.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from dyn_service.api.queries import RobotQueries
from dyn_service.control.controller import (
    NO_STATE,
    Arming,
    Commander,
    Moment,
    ReferenceTracker,
    controller_state,
    hold_maker,
)
from dyn_service.control.independent_joints import IndependentJoints
from dyn_service.control.law import Law, RobotState
from dyn_service.control.plant.safety import ACTIVE
from dyn_service.control.trajectory import Reference, TrajectoryMaker
from dyn_service.errors import DeadlineExceededError, DynError, FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.node_kind import Column, NodeKind, Panel
from dyn_service.graph.middleware.pacing import precise_sleep, readable
from dyn_service.graph.middleware.pubsub import Publisher
from dyn_service.graph.middleware.telemetry import Recorder
from dyn_service.graph.middleware.zmq_sockets import is_readable
from dyn_service.graph.nodes.controllers import report
from dyn_service.graph.nodes.controllers.parameters import (
    LoopParameters,
    MotionParameters,
    own_parameters,
    trajectory_maker,
)
from dyn_service.messages import Message
from dyn_service.messages.control_msgs import DynamicJointState, JointTrajectoryControllerState
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.service.client.retries import MAX_WAIT_S
from dyn_service.service.client.sync import Client
from dyn_service.support.parameters import in_range

_LOG = logging.getLogger(__name__)
STATS_PERIOD_S = 0.5
WAIT_MS = 100
RELEASE_S = 0.1
"""Time for which an ending controller waits for its release to arrive, before it disconnects."""


@dataclass(frozen=True)
class Input:
    """A topic that a law subscribes to, in the node's namespace. take: called with the law and each message; a
    `DynError` that it raises is logged, and the law goes on.
    """

    topic: str
    type: type[Message]
    take: Callable[[Any, Any], object]


@dataclass(frozen=True)
class Output:
    """A topic that a law publishes, in the node's namespace, or below the node's name with `~/`. take: called with the
    law after each update; returns the messages to publish.
    """

    topic: str
    type: type[Message]
    take: Callable[[Any], Sequence[Message]]


@dataclass(frozen=True)
class Service:
    """A service of a law. request: the struct of its requests. answer: called with the law and each request."""

    name: str
    request: type[msgspec.Struct]
    answer: Callable[[Any, Any], msgspec.Struct | None]


L = TypeVar("L", bound=LoopParameters)
MakeLaw = Callable[[L, RobotQueries], Law]
"""(parameters, model) -> the law."""
MakeMotion = Callable[[L, Configuration, Limits], TrajectoryMaker]
"""(parameters, joints, limits) -> function that begins the reference motion at a state."""


@dataclass(frozen=True)
class LawSpec(Generic[L]):
    """Specification of a law. name: of its kind. make_motion: None if the law follows no reference."""

    name: str
    make_law: MakeLaw[L]
    make_motion: MakeMotion[L] | None
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    services: tuple[Service, ...] = ()


def commander(spec: LawSpec[L], p: L, model: RobotQueries, *, number: int, restarted: bool) -> Commander:
    """Makes the controller of a law, without its process.

    spec: Of the law: `ControllerKind.spec`. model: The robot whose queries the law uses. number: Unique to this run of
    the controller. restarted: Whether a launcher has restarted it.
    """
    p = in_range(p)
    configuration, fingerprint = model.configuration, model.description.fingerprint
    law, independent = spec.make_law(p, model), IndependentJoints.of(model)
    moving, limits = configuration, model.limits
    if independent is not None:
        _check_loops(law, p, model)
        moving, limits = independent.configuration, independent.limits(limits)
    make = hold_maker(moving) if spec.make_motion is None else spec.make_motion(p, moving, limits)
    make = make if independent is None else independent.maker(make)
    delay_compensation = independent is None if p.delay_compensation is None else p.delay_compensation
    close = partial(independent.closed, model) if independent is not None and p.assemble else None
    following = ReferenceTracker(configuration, fingerprint, make, p.rate_hz, delay_compensation, independent, close)
    names = configuration.velocity_names
    arming = Arming(names, fingerprint, number, rearm=p.rearm, restarted=restarted, interface=law.interface)
    return Commander(following, law, arming)


def _check_loops(law: Law, p: LoopParameters, model: RobotQueries) -> None:
    """Refuses what a robot with closed loops has no answer for."""
    if law.interface != "effort":
        raise FailedPreconditionError(
            f"law '{law.name}' commands by {law.interface}, which drives of single joints follow: they open the loops "
            f"of robot '{model.name}'; command efforts (command_interface: effort)"
        )
    if not law.closed_loops:
        raise FailedPreconditionError(
            f"law '{law.name}' commands all joints, of which loops move some in robot '{model.name}': command the "
            "independent joints alone and set closed_loops = True in its class, or use a shipped law"
        )
    if p.delay_compensation:
        raise InvalidArgumentError(
            f"delay_compensation must be false for robot '{model.name}': a predicted position opens its loops",
            path="delay_compensation",
        )


@dataclass(frozen=True)
class ControllerKind(NodeKind[L]):
    """A kind of node that runs a law. spec: of the law, also for use without a process: `law_spec.commander`."""

    spec: LawSpec[L] = field(kw_only=True)


def controller_kind(
    name: str,
    parameters: type[L],
    make_law: MakeLaw[L],
    *,
    make_motion: MakeMotion[L] | None = None,
    inputs: Sequence[Input] = (),
    outputs: Sequence[Output] = (),
    services: Sequence[Service] = (),
    panels: Sequence[Panel] = (),
    columns: Sequence[Column] = (),
    about: str = "",
    check: Callable[[L], None] = lambda parameters: None,
) -> ControllerKind[L]:
    """Returns the node of a control law.

    Args:
        name: Its name in launch files, `exec`.
        parameters: Its parameters: a subclass of `LoopParameters`, or of `MotionParameters` for a law that follows a
            reference motion.
        make_law: Makes the law from the parameters and the model; called once, before the loop begins.
        make_motion: Makes the function that begins the reference; by default from the parameter `trajectory`. Without
            such a parameter the reference is the position at arming, and no tracking error is reported.
        inputs: Topics that the law subscribes to.
        outputs: Topics that it publishes, latched.
        services: Its services.
        panels: Further parts of the report.
        columns: Further columns of the live table.
        about: A short description for `--help`.
        check: See `NodeKind.check`.

    Returns:
        The declaration; in its module, `NODE`.
    """
    if make_motion is None and issubclass(parameters, MotionParameters):
        make_motion = trajectory_maker  # type: ignore[assignment]  # L is below MotionParameters here
    spec = LawSpec(name, make_law, make_motion, tuple(inputs), tuple(outputs), tuple(services))
    return ControllerKind(
        name,
        parameters,
        lambda node: run_controller(node, spec),
        panels=(*report.PANELS, *panels),
        columns=(*report.COLUMNS, *columns),
        launched={"endpoint": "$(endpoint dynamics)"},
        about=about,
        check=check,
        spec=spec,
    )


def run_controller(node: Node[L], spec: LawSpec[L]) -> None:
    """Runs the controller until it is asked to stop."""
    p = node.parameters
    with Client(p.endpoint, timeout_s=p.connect_timeout_s, keys=p.keys or None) as client:
        with node.stop.at_once():  # a signal ends the wait for the server
            robot = client.robot(p.robot or only_robot(client.list_robots()))
        loop = ControlLoop(node, robot, spec, client)
        # never wait for a compiler
        client.timeout_s, client.compile_wait_s = p.request_timeout_s, 0.0
        loop.run()


def only_robot(names: list[str]) -> str:
    """Returns the server's only robot."""
    if len(names) != 1:
        text = f"the server has {len(names)} robots ({', '.join(names)})"
        raise InvalidArgumentError(f"{text}: choose one with the parameter 'robot'")
    return names[0]


class ControlLoop(Generic[L]):
    """The loop of one controller. client: of a robot on a server, for its time limit."""

    def __init__(self, node: Node[L], robot: RobotQueries, spec: LawSpec[L], client: Client | None = None) -> None:
        p, configuration = node.parameters, robot.configuration
        self.node, self.robot, self.configuration, self.spec, self.client = node, robot, configuration, spec, client
        self.request_timeout_s = p.request_timeout_s
        self.names = configuration.velocity_names
        # 53 bits, since clients in other languages may read integers as doubles
        self.commander = commander(spec, p, robot, number=secrets.randbits(53), restarted=node.restarted)
        self.following = self.commander.following
        self.signals = report.LawSignals(self.names, node.telemetry if p.record else None)
        self.deadline_s = p.deadline_s or 1.0 / p.rate_hz
        recorder = Recorder(node.telemetry, "requests", report.REQUEST_COLUMNS) if p.record else None
        self.requests = report.RequestMonitor(self.deadline_s, recorder)
        self.loads: Recorder | None = None
        self._commands, self._first_s, self._last_s = 0, 0.0, 0.0
        self._last_rate = (time.monotonic(), 0)
        self.states = node.create_subscription(PlantState, p.plant_state, name="plant_state")
        # latched, so that a plant that connects after the first command still gets it
        name, topic = "joint_commands", p.joint_commands
        self.efforts = node.create_publisher(JointCommand, topic, name=name, binds=False, latched=True)
        # messages without subscribers are not made, so that these topics cost nothing
        self._signals_publisher = node.create_publisher(DynamicJointState, "~/signals")
        self._loads_publisher = node.create_publisher(DynamicJointState, "~/loads")
        self._state_publisher: Publisher[JointTrajectoryControllerState] | None = None
        if spec.make_motion is not None:
            self._state_publisher = node.create_publisher(JointTrajectoryControllerState, "~/controller_state")
        for topic_input in spec.inputs:
            node.create_subscription(topic_input.type, topic_input.topic, partial(self._take, topic_input))
        self._outputs = [(out, node.create_publisher(out.type, out.topic, latched=True)) for out in spec.outputs]
        for service in spec.services:
            node.create_service(service.name, service.request, partial(self._serve, service))
        self.busy_poll_s = node.busy_poll_s()
        node.on_set(self._set)
        self._last: PlantState | None = None
        self._load_period = -1
        self._signals_period = 0
        self._reported_trajectory: object = None

    def run(self) -> None:
        """Runs until the node is asked to stop, and always releases the plant.

        Raises:
            DeadlineExceededError: No state of the plant arrived for `state_timeout_s`.
            FailedPreconditionError: The plant or the server has another model; the plant stopped, and `rearm` is off.
            LawError: The law failed, or returned an invalid command.
            DynError: Raised by the law.
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
            release = self.commander.arming.release(self._last)
            if release is not None:
                self.efforts.publish(release)
                # libzmq sends in the background, and the process ends after this
                time.sleep(RELEASE_S)
            self._stats(time.monotonic(), has_ended=True)
            self.requests.flush()
            self.signals.flush()
            if self.loads is not None:
                self.loads.flush()

    def _loop(self) -> None:
        p = self.node.parameters
        next_stats = time.monotonic() + STATS_PERIOD_S
        # counts missed waits, not seconds, so that a suspended process does not time out
        silent, timeout_s = 0, p.connect_timeout_s
        while not self.node.stop.requested:
            self.node.spin_once()
            # a turn may wait for two responses
            self.node.beat(2.0 * self.request_timeout_s)
            has_message = readable(self.states.socket, WAIT_MS, self.busy_poll_s)
            state = self.states.take(is_ready=True) if has_message else None
            if state is not None:
                self._last, silent, timeout_s = state, 0, p.state_timeout_s
                self._wait_with_plant(state)
                if warning := self.following.rate_warning(state, self.requests.updates_us):
                    _LOG.warning("%s", warning)
                if self.following.due(state):
                    self._control(state)
            elif not is_readable(self.states.socket):
                silent += 1
                if silent > math.ceil(1e3 * timeout_s / WAIT_MS):
                    raise DeadlineExceededError(f"{NO_STATE} {timeout_s:g} s: is the plant running?")
            now = time.monotonic()
            if now >= next_stats:
                next_stats = now + STATS_PERIOD_S
                self._stats(now)

    def _wait_with_plant(self, state: PlantState) -> None:
        """Sets the time limit of requests: in lockstep the plant never asks again, so its own limit holds."""
        timeout_s = max(self.node.parameters.request_timeout_s, min(state.answer_timeout, MAX_WAIT_S))
        if timeout_s != self.request_timeout_s:
            self.request_timeout_s = timeout_s
            if self.client is not None:
                self.client.timeout_s = timeout_s

    def _control(self, state: PlantState) -> None:
        command = self.commander.answer(state, lambda question: self.requests.ask(state.stamp, report.UPDATE, question))
        if command is None:
            return
        self._send(command)
        for note in self.commander.law.notes():
            _LOG.info(note)
        self._publish_outputs()
        if state.mode == ACTIVE:
            self.signals.take(state.stamp, self.commander.law)
            if self._signals_publisher.subscribers or (
                self._state_publisher is not None and self._state_publisher.subscribers
            ):
                self._show(state, command)
        if self.following.engaged and self._reported_trajectory is not self.following.trajectory:
            self._report_trajectory(state)
        rate = self.node.parameters.loads_rate_hz
        if rate > 0.0 and state.mode == ACTIVE and int(state.stamp * rate) != self._load_period:
            self._load_period = int(state.stamp * rate)
            self._record_loads(state)

    def _show(self, state: PlantState, command: JointCommand) -> None:
        """Publishes state and signals to subscribers, `state_rate_hz` times a second."""
        period = int(state.stamp * self.node.parameters.state_rate_hz + 1e-6)
        if period == self._signals_period:
            return
        self._signals_period = period
        if self._signals_publisher.subscribers and (signals := self.signals.message(state.stamp)).joint_names:
            self._signals_publisher.publish(signals)
        if self._state_publisher is not None and self._state_publisher.subscribers:
            self._state_publisher.publish(controller_state(state, self.following, command))

    def _publish_outputs(self) -> None:
        for out, publisher in self._outputs:
            for message in out.take(self.commander.law):
                publisher.publish(message)

    def _serve(self, service: Service, request: msgspec.Struct) -> msgspec.Struct | None:
        answer = service.answer(self.commander.law, request)
        self._publish_outputs()
        return answer

    def _take(self, topic_input: Input, message: Message) -> None:
        try:
            topic_input.take(self.commander.law, message)
        except DynError as error:
            _LOG.warning("%s: %s", topic_input.topic, error)
        self._publish_outputs()

    def _send(self, command: JointCommand) -> None:
        self.efforts.publish(command)
        self._commands += 1
        self._last_s = time.monotonic()
        self._first_s = self._first_s or self._last_s

    def _record_loads(self, state: PlantState) -> None:
        q, v, tau = self.following.measured(state)
        # after the command was sent: joint loads are for the report and must not delay it
        answer = self.requests.ask(state.stamp, report.LOADS, lambda: self.robot.constraint_forces(q, v, tau))
        if answer is not None and self._loads_publisher.subscribers:
            self._loads_publisher.publish(report.loads_message(state.stamp, answer))
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
        """Sends each query once, so that the server compiles it before the loop begins."""
        zero, following = np.zeros(self.configuration.nv), self.following
        # neutral may be a singular, stretched arm
        q, independent = self.robot.limits.middle(otherwise=self.configuration.neutral), following.independent
        q = q if independent is None else independent.rest
        at_rest = Moment(RobotState(0.0, q, zero, zero), Reference(q, zero, zero), 1.0 / following.rate_hz, zero, 0.0)
        deadline = time.monotonic() + self.node.parameters.connect_timeout_s
        while not self.node.stop.requested:
            try:
                following.answer(self.commander.law, at_rest)
                self.robot.constraint_forces(q, zero, zero)
                return
            except report.TRANSIENT_ERRORS:
                if time.monotonic() > deadline:
                    raise

    def _set(self, old: L, new: L) -> None:
        """Makes the law again with the new parameters; raises if they are invalid."""
        law = self.spec.make_law(new, self.robot)
        # a law is made again, because it derives gains from its parameters; it keeps its state by `Law.exchanged`
        self.commander.exchange(law)
        self.node.telemetry.facts({"law_parameters": own_parameters(new)})

    def _facts(self) -> None:
        p = self.node.parameters
        self.node.telemetry.facts(
            {
                "role": self.spec.name,
                "robot": self.robot.description.name,
                "fingerprint": self.robot.description.fingerprint,
                "endpoint": p.endpoint,
                "rate_hz": p.rate_hz,
                "deadline_s": self.deadline_s,
                "late_share": p.late_share,
                "law": self.commander.law.name,
                "law_parameters": own_parameters(p),
            }
        )

    def _report_trajectory(self, state: PlantState) -> None:
        following = self.following
        trajectory = self._reported_trajectory = following.trajectory
        if trajectory is not None and self.spec.make_motion is not None:
            names = list(following.moved.names)
            reference = {"session": state.session, "begin_s": following.begin_s, "joints": names}
            self.node.telemetry.facts({"reference": {**reference, "motion": trajectory.to_wire()}})

    def _stats(self, now: float, *, has_ended: bool = False) -> None:
        requests, following = self.requests, self.following
        previous_s, previous_count = self._last_rate
        self._last_rate = (now, self._commands)
        mean_rate_hz = max(self._commands - 1, 0) / max(self._last_s - self._first_s, 1e-9)
        rate_hz = (self._commands - previous_count) / max(now - previous_s, 1e-9)
        values: dict[str, float | int | str] = {
            # after the end that of the run: the last period also has the wait for the end, and is short
            "rate_hz": mean_rate_hz if has_ended else rate_hz,
            "mean_rate_hz": mean_rate_hz,
            "sent": requests.sent,
            "answered": requests.answered,
            "lost": requests.lost,
            "deadline_misses": requests.deadline_misses,
            "skipped": following.skipped,
            "commands": self._commands,
            "malformed": self.states.malformed,
            "reference_restarts": following.restarts,
            "telemetry_dropped": self.node.telemetry.dropped,
        }
        if self.spec.make_motion is not None:
            values |= {"error_rms": following.tracking.rms, "error_max": following.tracking.maximum}
        if requests.round_trips_us:
            p50, p99 = np.percentile(requests.round_trips_us, (50, 99))
            values |= {"round_trip_p50_us": float(p50), "round_trip_p99_us": float(p99)}
            requests.round_trips_us.clear()
        self.node.telemetry.stats({**values, **self.signals.latest(), **self.commander.law.counters()})
