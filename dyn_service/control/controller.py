"""A controller without its process: from a plant's state to the command that answers it. No sockets, no clock.

`ReferenceTracker` decides when a command is due and which state and reference the law gets; `Arming` decides whether
the plant may be commanded; `Commander` combines them with a law.

Delay compensation. A command computed from the state at time t acts from t + delay for one period T. Reference and
state are therefore taken at the middle of that time, t + delay + T/2, the state predicted under the reference's
acceleration: the error of the held effort is then of second order in T instead of first. The delay is the median of the
last ones that the plant reported.

The reference begins at the measured state whenever the plant was not under this controller's command, at the start and
after a stop, so that it never jumps.

Arming. A controller arms a plant that is stopped when the controller starts. If the plant stops under its command, the
controller arms it again only with `rearm`; otherwise it ends with the cause. The same holds if the plant was restarted,
and, for a controller that a launcher has restarted, if the plant was under command before.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import Command, Interface
from dyn_service.control.independent_joints import IndependentJoints
from dyn_service.control.law import Law, RobotState, checked_command, reset_law
from dyn_service.control.plant.safety import ACTIVE, RUNNING, STOPPED
from dyn_service.control.trajectory import PointToPoint, Reference, ReferenceTrajectory, TrajectoryMaker
from dyn_service.errors import FailedPreconditionError
from dyn_service.messages.builtin_interfaces import Duration, Time
from dyn_service.messages.control_msgs import JointTrajectoryControllerState
from dyn_service.messages.dyn_service_msgs import GoalStatus, JointCommand, PlantState
from dyn_service.messages.std_msgs import Header
from dyn_service.messages.trajectory_msgs import JointTrajectoryPoint
from dyn_service.model.configuration import Configuration

REARM_OFF = "and rearm is off"
NO_STATE = "no joint state arrived for"
"""In the errors with which a controller ends because of its plant, not of its law."""
LOOKS = 50
"""Number of states from which their rate is measured."""
HOLD_S = 1.0
"""Time in which a plant that moves when it is armed returns to its position then, if that is to be held."""


def hold_maker(configuration: Configuration) -> TrajectoryMaker:
    """Returns the motion that holds the first position; a moving plant returns to it within `HOLD_S`."""
    return lambda q, v: PointToPoint(q, v, q[None], HOLD_S, 0.0, configuration)


@dataclass(frozen=True, eq=False)
class Moment:
    """Input of a law. state and reference are at the same time, `horizon_s` after the plant's state.

    error: (nv,), from the measured q to the reference at the time of the measurement. dt: s since the last update that
    returned a command.
    """

    state: RobotState
    reference: Reference
    dt: float
    error: Array
    horizon_s: float


@dataclass
class Tracking:
    """Sums of squares of the tracking error, by entry of v, while the plant was under command."""

    count: int = 0
    squares: Array = field(default_factory=lambda: np.zeros(0))
    worst: float = 0.0

    def add(self, error: Array) -> None:
        """Adds one error (nv,)."""
        # Squares by entry and not the errors: a run of hours keeps no more than nv numbers.
        square = error * error
        # The number of entries is known with the first error only.
        self.squares = square if self.count == 0 else self.squares + square
        self.count += 1
        self.worst = max(self.worst, *square.tolist())

    @property
    def rms(self) -> float:
        """Root mean square over entries and time; rad and m are mixed."""
        return math.sqrt(float(self.squares.mean()) / self.count) if self.count else 0.0

    @property
    def maximum(self) -> float:
        """Largest magnitude of an entry of the error."""
        return math.sqrt(self.worst)


@dataclass
class ReferenceTracker:
    """When a command is due, when the reference began, and the delay of commands.

    configuration: the joints in the model's order. fingerprint: of the model. make: begins a reference at a state.
    rate_hz: commands per second. independent: the joints that `make` moves; None: all. close: closes the loops of
    measured states q, v; None: they are closed. engaged: whether the plant follows this controller's reference. fresh:
    whether the law is reset before its next update.
    """

    configuration: Configuration
    fingerprint: str
    make: TrajectoryMaker
    rate_hz: float
    delay_compensation: bool = True
    independent: IndependentJoints | None = None
    close: Callable[[Array, Array], tuple[Array, Array]] | None = None
    tracking: Tracking = field(default_factory=Tracking)
    skipped: int = 0
    restarts: int = 0

    def __post_init__(self) -> None:
        self.trajectory: ReferenceTrajectory | None = None
        self.begin_s = 0.0
        self.session = -1
        self.engaged = False
        self._period = -1
        self._delays: deque[float] = deque(maxlen=31)
        self._order: tuple[list[int], list[int]] | None = None
        self._closed: tuple[tuple[int, int], tuple[Array, Array]] | None = None
        self.fresh = True
        self._updated_s: float | None = None
        self._impulse_until_s = 0.0
        self._impulse = np.zeros(self.configuration.nv)  # of the efforts since the last update
        self._stamps: list[float] = []

    @property
    def moved(self) -> Configuration:
        """The joints that the reference moves."""
        return self.configuration if self.independent is None else self.independent.configuration

    def rate_warning(self, state: PlantState, updates_us: Sequence[float] = ()) -> str:
        """Returns a warning, once, if after `LOOKS` states the law cannot run at its rate; otherwise an empty string.

        The median of the times between two states counts, because a busy machine drops some and delays others.
        updates_us: times of the law's last updates; a law that takes longer than its period is itself the cause.
        """
        if len(self._stamps) >= LOOKS or state.stamp in self._stamps[-1:]:
            return ""
        if self._stamps and state.stamp < self._stamps[-1]:  # the plant was restarted
            self._stamps.clear()
        self._stamps.append(state.stamp)
        is_measured = len(self._stamps) == LOOKS
        rate_hz = 1.0 / max(1e-9, float(np.median(np.diff(self._stamps)))) if is_measured else self.rate_hz
        times = rate_hz / self.rate_hz
        if round(times) >= 1 and abs(times - round(times)) <= 0.02 * times:
            return ""
        update_ms, period_ms = 1e-3 * float(np.median(updates_us or 0.0)), 1e3 / self.rate_hz
        if update_ms > period_ms:
            return (
                f"an update of the law takes {update_ms:.3g} ms of its {period_ms:.3g} ms: it runs at "
                f"{rate_hz:.4g} Hz instead of {self.rate_hz:g}; make its update faster, or lower rate_hz"
            )
        busy = ", or the machine is busy" if times < 1 else ""
        return (
            f"the plant's states come at {rate_hz:.4g} Hz, not a whole multiple of rate_hz, {self.rate_hz:g}: the law "
            "runs less often, or unevenly; make rate_hz and the plant's state_rate_hz, or control_rate_hz, agree"
            f"{busy}"
        )

    def due(self, state: PlantState) -> bool:
        """Whether this state is the first in a new control period; periods without a state are counted.

        Raises:
            FailedPreconditionError: The plant's robot is not the model.
        """
        if state.session != self.session:
            self._new_plant(state)
        self._add_impulse(state)
        # A stamp is a count times a step: its rounding must not put a punctual state into the period before.
        period = math.floor(state.stamp * self.rate_hz + 1e-6)
        if period <= self._period:
            return False
        if self._period >= 0:
            self.skipped += period - self._period - 1
        self._period = period
        return True

    def _add_impulse(self, state: PlantState) -> None:
        """Adds the impulse of the effort that acted until this state."""
        if state.stamp != self._impulse_until_s:
            effort = np.array(state.effort)
            effort = effort if self._order is None else effort[self._order[1]]
            # Over all states, not only those that are due: an observer needs the mean effort between two updates.
            self._impulse = self._impulse + (state.stamp - self._impulse_until_s) * effort
            self._impulse_until_s = state.stamp

    def moment(self, state: PlantState) -> Moment:
        """Returns the law's input at this state; begins the reference again if the plant was not under command."""
        configuration = self.configuration
        self._add_impulse(state)  # adds nothing after `due` of the same state
        q, v, effort = self.measured(state)
        if state.mode != ACTIVE or self.trajectory is None:
            self.restarts += self.engaged
            self.engaged = False
            self.fresh = True
            # Again at each state while the brakes hold the robot, so that the motion begins where they let it go.
            self.begin(self.make(q, v), state.stamp)
        trajectory = self.trajectory
        assert trajectory is not None  # begun above, or before
        time = state.stamp - self.begin_s
        if state.mode == ACTIVE and self.engaged:
            self._delays.append(state.command_delay)
        # The median, because one late command must not move the prediction.
        delay = sorted(self._delays)[len(self._delays) // 2] if self._delays else 0.5 / self.rate_hz
        horizon = delay + 0.5 / self.rate_hz if self.delay_compensation else 0.0
        reference = trajectory.sample(np.array([time, time + horizon]))
        if self.independent is not None:
            reference = self.independent.complete(reference, q, v)
        error = configuration.error(q, reference.q[0])
        if state.mode == ACTIVE:
            self.engaged = True
            self.tracking.add(error if self.independent is None else error[self.independent.in_v])
        # Accelerations are not measured: over the horizon the robot is assumed to accelerate as its reference does.
        mean = 0.5 * (reference.a[0] + reference.a[1])
        dt = 1.0 / self.rate_hz
        if self._updated_s is not None and not self.fresh and state.stamp > self._updated_s:
            dt = state.stamp - self._updated_s
            effort = self._impulse / dt
        measured_state = RobotState(state.stamp, q, v, effort)
        q_mid = configuration.integrate(q, horizon * v + (0.5 * horizon * horizon) * mean)
        predicted = RobotState(state.stamp + horizon, q_mid, v + horizon * mean, effort, measured_state)
        law_state = predicted if self.delay_compensation else measured_state
        return Moment(law_state, Reference(*(x[1] for x in reference)), dt, error, horizon)

    def answer(self, law: Law, moment: Moment) -> Command:
        """Returns the law's command; resets the law first if the plant was not under command.

        A law's position with a velocity is that at the middle of the command's time; the position returned is that at
        its beginning.

        Raises:
            LawError: The law failed, or returned an invalid command.
            DynError: Raised by the law or its model.
        """
        if self.fresh:
            reset_law(law, moment.state.measured)
        command = checked_command(law, moment.state, moment.reference, moment.dt, self.configuration.velocity_names)
        self.fresh = False
        # Only after an answer: the impulse of an update whose answer was lost counts for the next one.
        self._updated_s = moment.state.measured.t
        self._impulse = np.zeros(self.configuration.nv)
        new_motion = law.motion()
        if new_motion is not None and new_motion[0] is not self.trajectory:
            self.begin(*new_motion)
        if law.interface == "position" and command.velocity is not None and self.delay_compensation:
            # The law answers for the middle of the command's time, a drive starts at its beginning.
            begins = command.value - (0.5 / self.rate_hz) * command.velocity
            return Command(begins, command.velocity, command.effort)
        return command

    def begin(self, trajectory: ReferenceTrajectory, at_s: float) -> None:
        """Follows this motion from the plant time `at_s` on."""
        self.trajectory, self.begin_s = trajectory, at_s

    def measured(self, state: PlantState) -> tuple[Array, Array, Array]:
        """q (nq,), v and effort (nv,) of a state of this plant, in the order of the model's joints."""
        q, v, effort = np.array(state.position), np.array(state.velocity), np.array(state.effort)
        if self._order is not None:
            in_q, in_v = self._order
            q, v, effort = q[in_q], v[in_v], effort[in_v]
        if self.close is not None:
            number = state.session, state.seq
            if self._closed is None or self._closed[0] != number:  # a controller asks up to three times
                self._closed = number, self.close(q, v)
            q, v = self._closed[1]
        return q, v, effort

    def _new_plant(self, state: PlantState) -> None:
        configuration = self.configuration
        if state.fingerprint != self.fingerprint:
            names = f"fingerprint {state.fingerprint}, the server's {self.fingerprint}"
            raise FailedPreconditionError(f"the plant's robot has {names}: both must be the same model")
        joint_of_entry = dict(zip(configuration.velocity_names, configuration.velocity_joints, strict=True))
        joints = list(dict.fromkeys(joint_of_entry.get(name, "") for name in state.name))  # in the plant's order
        # A plant may order its joints differently, but not leave out or separate entries of one joint.
        are_known = sorted(joints) == sorted(configuration.names)
        if not are_known or configuration.chosen(joints)[0].velocity_names != state.name:
            names = ", ".join(configuration.velocity_names)
            raise FailedPreconditionError(f"the plant's joints are {', '.join(state.name)}, the server's {names}")
        plant, _, _ = configuration.chosen(joints)
        _, in_q, in_v = plant.chosen(configuration.names)
        self._order = None if plant.names == configuration.names else (in_q, in_v)
        self._impulse_until_s = state.stamp
        self._impulse = np.zeros(configuration.nv)
        self.session = state.session
        self.trajectory = None
        self.restarts += self.engaged
        self.engaged = False
        self._period = -1
        self._delays.clear()


State = Literal["waiting", "following", "succeeded", "aborted", "preempted", "canceled", "refused"]

_ROS_STATES: dict[State, str] = {
    "waiting": "accepted",
    "following": "executing",
    "succeeded": "succeeded",
    "aborted": "aborted",
    "preempted": "canceled",
    "canceled": "canceled",
    "refused": "rejected",
}
"""Names of the states in ROS actions."""


def goal_status(stamp_s: float, number: int, state: State, reason: str, error_code: int) -> GoalStatus:
    """Returns the status message of a goal. stamp_s: s, the plant's time. number: 0 if it was refused."""
    return GoalStatus(Header(Time.from_seconds(stamp_s)), number, _ROS_STATES[state], error_code, reason)


def controller_state(
    state: PlantState, following: ReferenceTracker, output: JointCommand
) -> JointTrajectoryControllerState:
    """Returns the state message of a controller that follows a motion. output: the command that answers `state`.
    Positions are empty if a joint has several degrees of freedom; their error is not.
    """
    configuration, elapsed_s = following.configuration, state.stamp - following.begin_s
    q, v, effort = following.measured(state)
    assert following.trajectory is not None  # begun before a state was answered
    now = following.trajectory.sample(elapsed_s)
    now = now if following.independent is None else following.independent.complete(now, q, v)
    plain = configuration.nq == configuration.nv
    return JointTrajectoryControllerState(
        Header(Time.from_seconds(state.stamp)),
        list(configuration.velocity_names),
        reference=_point(now.q if plain else None, now.v, now.a, since_s=elapsed_s),
        feedback=_point(q if plain else None, v, effort=effort),
        error=_point(configuration.error(q, now.q), now.v - v),
        output=JointTrajectoryPoint(output.position, output.velocity, [], output.effort),
    )


def _point(
    q: Array | None, v: Array, a: Array | None = None, effort: Array | None = None, since_s: float = 0.0
) -> JointTrajectoryPoint:
    position, velocity, acceleration, efforts = ([] if x is None else x.tolist() for x in (q, v, a, effort))
    return JointTrajectoryPoint(position, velocity, acceleration, efforts, Duration.from_seconds(since_s))


@dataclass
class Arming:
    """Whether a controller may command the plant.

    names: of the entries of v, in the order of its commands. fingerprint: of its model. number: unique to this run of
    the controller. rearm: whether it arms a plant again that stopped under its command. restarted: whether a launcher
    has restarted it. interface: of its commands.
    """

    names: tuple[str, ...]
    fingerprint: str
    number: int
    rearm: bool
    restarted: bool
    interface: Interface = "effort"

    def __post_init__(self) -> None:
        self._armed = (-1, -1)
        self._sent_second_command = False  # whether a command followed the one that armed the plant

    def may_command(self, state: PlantState) -> bool:
        """Whether the controller may answer this state: the plant is slow enough to be armed, or armed by it.

        Raises:
            FailedPreconditionError: The plant does not accept the law's interface; or it stopped, and the controller
                may not arm it again.
        """
        if self.interface not in state.interfaces:
            interfaces = f"the plant is commanded by {', '.join(state.interfaces)}"
            raise FailedPreconditionError(f"the controller commands by {self.interface}, {interfaces}")
        arm = state.mode not in RUNNING
        session, epoch = self._armed
        # A stop under another controller's command does not prevent this one from arming.
        under_us = session == state.session and epoch != state.epoch
        if state.mode == STOPPED and under_us and not self.rearm:
            only_one_command = state.cause == "missed" and not self._sent_second_command
            hint = " (the second command was late: set the plant's control_rate_hz to the controller's rate)"
            why = f"{state.cause}: {state.reason}" if state.reason else state.cause
            text = f"the plant stopped ({why}) at {state.since:g} s, {REARM_OFF}: restart the controller"
            raise FailedPreconditionError(f"{text}{hint if only_one_command else ''}")
        if arm and session not in (-1, state.session) and not self.rearm:
            raise FailedPreconditionError(f"the plant was restarted, {REARM_OFF}: restart the controller")
        new_session = session != state.session and state.cause != "start"
        if arm and new_session and self.restarted and not self.rearm:
            rule = "a controller that the launcher has restarted does not arm it"
            raise FailedPreconditionError(f"the plant is {state.mode} ({state.cause}), {REARM_OFF}: {rule}")
        return state.armable if arm else self._armed == (state.session, state.epoch)

    def command(self, state: PlantState, command: Command) -> JointCommand:
        """Returns the message that answers a state; it arms the plant if needed."""
        arm = state.mode not in RUNNING
        if arm:
            self._armed = (state.session, state.epoch)
        # A plant that stops right after the arming command expects commands at another rate, see `may_command`.
        self._sent_second_command = not arm
        return self._answer(state, command, arm=arm)

    def release(self, state: PlantState | None) -> JointCommand | None:
        """Returns the message that releases the plant, or None if this controller has not armed it."""
        if state is None or self._armed != (state.session, state.epoch):
            return None
        return self._answer(state, Command(np.zeros(len(self.names))), release=True)

    def _answer(self, state: PlantState, command: Command, *, arm: bool = False, release: bool = False) -> JointCommand:
        value: list[float] = command.value.tolist()
        effort = [0.0] * len(value) if command.effort is None else command.effort.tolist()
        velocity = [] if command.velocity is None else command.velocity.tolist()
        return JointCommand(
            state.session,
            state.seq,
            state.epoch,
            self.fingerprint,
            self.number,
            self.names,
            value if self.interface == "effort" else effort,
            arm,
            release,
            self.interface,
            value if self.interface == "position" else [],
            {"effort": [], "position": velocity, "velocity": value}[self.interface],
        )


Ask = Callable[[Callable[[], Command]], Command | None]
"""Calls the law's update that it is given; returns None if a query's answer was lost."""


@dataclass
class Commander:
    """A controller: a reference tracker, a law and the arming of the plant."""

    following: ReferenceTracker
    law: Law
    arming: Arming

    def answer(self, state: PlantState, ask: Ask = lambda question: question()) -> JointCommand | None:
        """Returns the command that answers a state that is due, or None if there is no command; errors as
        `Arming.may_command` and `ReferenceTracker.answer`.
        """
        if not self.arming.may_command(state):
            return None
        # Closing the loops asks the model, whose answer may be lost.
        moment = self.following.moment(state) if self.following.close is None else None
        command = ask(lambda: self.following.answer(self.law, moment or self.following.moment(state)))
        return None if command is None else self.arming.command(state, command)

    def exchange(self, law: Law) -> None:
        """Replaces the law, or updates it (`Law.exchanged`); a new law is reset first. The reference goes on.

        Raises:
            FailedPreconditionError: The new law has another interface.
        """
        if law.interface != self.law.interface:
            text = f"the controller commands by {self.law.interface}: restart it to change the interface"
            raise FailedPreconditionError(text)
        previous_law, self.law = self.law, self.law.exchanged(law)
        if self.law is not previous_law:
            self.following.fresh = True
