"""What a controller has to know of the plant it commands, whatever its law. No sockets, no clock.

A command computed from the state at time t begins to act at t + delay and then acts for one period T. With delay
compensation the reference, and the state predicted under the reference's acceleration, are taken at the middle of
that time, t + delay + T/2: the held effort is then right to second order in T instead of to first. The delay is what
the plant reports of earlier commands, the median of the last ones.

The reference begins at the measured state, whenever the plant was not under this controller's command before: at
the start, and after a stop. So taking over never jumps.


Where a controller is, and what became of each goal of a follower of goals, as messages.

Which plant a controller may command, and as what: what it arms, whom it leaves alone, when it gives up.

The controller arms a plant that it finds stopped when it starts: to start it is to say so. One that stops under its
command it arms again only with `rearm`; else that ends the controller, with the cause; so does one that went away under
its command, and is there again, started anew. Without `rearm` one that a
launcher has started again takes over nothing that was under command before, and ends: a launcher is nobody who could
say so. No sockets, no clock.


A controller without its process: from a plant's state to the command that answers it. No sockets, no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import Command, Interface
from dyn_service.control.law import Law, RobotState, checked_command, reset_law
from dyn_service.control.plant.safety import ACTIVE, RUNNING, STOPPED
from dyn_service.control.trajectory import PointToPoint, Reference, ReferenceTrajectory
from dyn_service.errors import FailedPreconditionError
from dyn_service.messages.builtin_interfaces import Duration, Time
from dyn_service.messages.control_msgs import JointTrajectoryControllerState
from dyn_service.messages.dyn_service_msgs import GoalStatus, JointCommand, PlantState
from dyn_service.messages.std_msgs import Header
from dyn_service.messages.trajectory_msgs import JointTrajectoryPoint
from dyn_service.model.configuration import Configuration

TrajectoryMaker = Callable[[Array, Array], ReferenceTrajectory]
"""(q0, v0) -> the reference motion from there."""
LOOKS = 50
"""States from which their rate is known."""
HOLD_S = 1.0
"""A plant that moves when it is taken over comes back to that place in this time, where it is to stay there."""


def hold_maker(on: Configuration) -> TrajectoryMaker:
    """The motion that stays where it began; a plant that moved then comes back there within `HOLD_S`."""
    return lambda q, v: PointToPoint(q, v, q[None], HOLD_S, 0.0, on)


@dataclass(frozen=True, eq=False)
class Moment:
    """What a law is asked about. state and reference are of the same time, `horizon_s` after the plant's state.

    error: (nv,), the difference from the measured q to the reference at the time of the measurement. dt: s since the
    last update that was answered.
    """

    state: RobotState
    reference: Reference
    dt: float
    error: Array
    horizon_s: float


@dataclass
class Tracking:
    """Running sums of the tracking error while the plant was under command. Sums of squares, by entry of v."""

    count: int = 0
    squares: Array = field(default_factory=lambda: np.zeros(0))
    worst: float = 0.0

    def add(self, error: Array) -> None:
        """Takes one error (nv,) over."""
        square = error * error
        self.squares = square if self.count == 0 else self.squares + square
        self.count += 1
        self.worst = max(self.worst, float(square.max()))

    @property
    def rms(self) -> float:
        """Root of the mean square over entries and time; rad and m alike."""
        return math.sqrt(float(self.squares.mean()) / self.count) if self.count else 0.0

    @property
    def maximum(self) -> float:
        """Largest magnitude of any entry of the error."""
        return math.sqrt(self.worst)


@dataclass
class ReferenceTracker:
    """When a command is due, where the reference began, how late commands act.

    configuration, fingerprint: the joints in the model's order, and the model. make: begins a reference at a state.
    rate_hz: commands per second.
    """

    configuration: Configuration
    fingerprint: str
    make: TrajectoryMaker
    rate_hz: float
    delay_compensation: bool = True
    tracking: Tracking = field(default_factory=Tracking)
    skipped: int = 0
    restarts: int = 0

    def __post_init__(self) -> None:
        self.trajectory: ReferenceTrajectory | None = None
        self.begin_s = 0.0
        self.session = -1
        self._engaged = False
        self._period = -1
        self._delays: deque[float] = deque(maxlen=31)
        self._order: tuple[list[int], list[int]] | None = None
        self._fresh = True
        self._updated_s: float | None = None
        self._heard_s = 0.0
        self._impulse = np.zeros(self.configuration.nv)  # of the efforts since the last update
        self._stamps: list[float] = []

    def rate_warning(self, state: PlantState) -> str:
        """Why the law cannot run at its rate, once `LOOKS` states have come; else, and from then on, empty.

        The shortest time between two states counts, for a busy machine loses some.
        """
        if len(self._stamps) >= LOOKS or state.stamp in self._stamps[-1:]:
            return ""
        if self._stamps and state.stamp < self._stamps[-1]:  # another run of the plant
            self._stamps.clear()
        self._stamps.append(state.stamp)
        rate_hz = 1.0 / max(1e-9, min(np.diff(self._stamps))) if len(self._stamps) == LOOKS else self.rate_hz
        times = rate_hz / self.rate_hz
        if round(times) >= 1 and abs(times - round(times)) <= 0.02 * times:
            return ""
        return (
            f"the plant's states come at {rate_hz:.4g} Hz, no whole multiple of rate_hz, {self.rate_hz:g}: the law is "
            "asked less often, or unevenly; let rate_hz and the plant's state_rate_hz, or control_rate_hz, agree"
        )

    def due(self, state: PlantState) -> bool:
        """Whether this state is the first one in a new control period; periods without a state are counted.

        Raises:
            FailedPreconditionError: The plant is another robot than the model.
        """
        if state.session != self.session:
            self._new_plant(state)
        self._hear(state, self.measured(state)[2])
        period = math.floor(state.stamp * self.rate_hz + 1e-6)
        if period <= self._period:
            return False
        if self._period >= 0:
            self.skipped += period - self._period - 1
        self._period = period
        return True

    def _hear(self, state: PlantState, effort: Array) -> None:
        """Adds the effort (nv,) that acted until this state to those since the last update."""
        self._impulse = self._impulse + (state.stamp - self._heard_s) * effort
        self._heard_s = state.stamp

    def moment(self, state: PlantState) -> Moment:
        """What to ask the law about this state; begins the reference anew if the plant was not under command."""
        at = self.configuration
        q, v, effort = self.measured(state)
        self._hear(state, effort)  # nothing, if `due` was asked about this state
        if state.mode != ACTIVE or self.trajectory is None:
            self.restarts += self._engaged
            self._engaged = False
            self._fresh = True
            self.begin(self.make(q, v), state.stamp)
        trajectory = self.trajectory
        assert trajectory is not None  # begun above, or before
        time = state.stamp - self.begin_s
        if state.mode == ACTIVE and self._engaged:
            self._delays.append(state.command_delay)
        delay = sorted(self._delays)[len(self._delays) // 2] if self._delays else 0.5 / self.rate_hz
        horizon = delay + 0.5 / self.rate_hz if self.delay_compensation else 0.0
        reference = trajectory.sample(np.array([time, time + horizon]))
        error = at.error(q, reference.q[0])
        if state.mode == ACTIVE:
            self._engaged = True
            self.tracking.add(error)
        mean = 0.5 * (reference.a[0] + reference.a[1])
        dt = 1.0 / self.rate_hz
        if self._updated_s is not None and not self._fresh and state.stamp > self._updated_s:
            dt = state.stamp - self._updated_s
            effort = self._impulse / dt
        here = RobotState(state.stamp, q, v, effort)
        predicted = RobotState(
            state.stamp + horizon,
            at.integrate(q, horizon * v + (0.5 * horizon * horizon) * mean),
            v + horizon * mean,
            effort,
            here,
        )
        return Moment(
            state=predicted if self.delay_compensation else here,
            reference=Reference(reference.q[1], reference.v[1], reference.a[1]),
            dt=dt,
            error=error,
            horizon_s=horizon,
        )

    def answer(self, law: Law, moment: Moment) -> Command:
        """The law's command at this moment; the law is reset first where it is taken over anew.

        A position that goes on with a velocity is of the middle of the time in which the command will act; what is
        returned is where that motion is at its beginning.

        Raises:
            LawError: The law failed, or returned what is no command.
            DynError: What the law or its model raised.
        """
        if self._fresh:
            reset_law(law, moment.state.measured)
        command = checked_command(law, moment.state, moment.reference, moment.dt, self.configuration.velocity_names)
        self._fresh = False
        self._updated_s = moment.state.measured.t
        self._impulse = np.zeros_like(self._impulse)
        chosen = law.motion()
        if chosen is not None and chosen[0] is not self.trajectory:
            self.begin(*chosen)
        if law.interface == "position" and command.velocity is not None and self.delay_compensation:
            begins = command.value - (0.5 / self.rate_hz) * command.velocity
            return Command(begins, command.velocity, command.effort)
        return command

    def begin(self, trajectory: ReferenceTrajectory, at_s: float) -> None:
        """Follows this motion from the plant's time `at_s` on."""
        self.trajectory, self.begin_s = trajectory, at_s

    def reset_law_next(self) -> None:
        """Has the law reset before it is asked again; the reference goes on."""
        self._fresh = True

    @property
    def engaged(self) -> bool:
        """Whether the plant follows this controller's reference."""
        return self._engaged

    def measured(self, state: PlantState) -> tuple[Array, Array, Array]:
        """q (nq,), v and effort (nv,) of a state of this plant, in the order of the model's joints."""
        q, v, effort = np.array(state.position), np.array(state.velocity), np.array(state.effort)
        if self._order is None:
            return q, v, effort
        in_q, in_v = self._order
        return q[in_q], v[in_v], effort[in_v]

    def _new_plant(self, state: PlantState) -> None:
        at = self.configuration
        if state.fingerprint != self.fingerprint:
            raise FailedPreconditionError(
                f"the plant's robot has fingerprint {state.fingerprint}, the server's {self.fingerprint}: both must be "
                "the same model"
            )
        of = dict(zip(at.velocity_names, at.velocity_joints, strict=True))
        joints = list(dict.fromkeys(of.get(name, "") for name in state.name))  # in the plant's order
        if sorted(joints) != sorted(at.names) or at.chosen(joints)[0].velocity_names != state.name:
            raise FailedPreconditionError(
                f"the plant's joints are {', '.join(state.name)}, the server's {', '.join(at.velocity_names)}"
            )
        plant, _, _ = at.chosen(joints)
        _, in_q, in_v = plant.chosen(at.names)
        self._order = None if plant.names == at.names else (in_q, in_v)
        self._heard_s = state.stamp
        self._impulse = np.zeros(at.nv)
        self.session = state.session
        self.trajectory = None
        self.restarts += self._engaged
        self._engaged = False
        self._period = -1
        self._delays.clear()


State = Literal["waiting", "following", "succeeded", "aborted", "preempted", "canceled", "refused"]

_IN_ROS: dict[State, str] = {
    "waiting": "accepted",
    "following": "executing",
    "succeeded": "succeeded",
    "aborted": "aborted",
    "preempted": "canceled",
    "canceled": "canceled",
    "refused": "rejected",
}
"""What ROS's actions call them."""


def goal_status(stamp_s: float, number: int, state: State, reason: str, error_code: int) -> GoalStatus:
    """What has become of a goal. number: 0 where it was never taken."""
    return GoalStatus(Header(Time.from_seconds(stamp_s)), number, _IN_ROS[state], error_code, reason)


def controller_state(
    state: PlantState, following: ReferenceTracker, output: JointCommand
) -> JointTrajectoryControllerState:
    """Where a controller is that follows a motion: `output` answers `state`. Positions are left out where a joint has
    several ways to move; their error is not.
    """
    on, elapsed_s = following.configuration, state.stamp - following.begin_s
    q, v, effort = following.measured(state)
    assert following.trajectory is not None  # begun before a state was answered
    now = following.trajectory.sample(elapsed_s)
    plain = on.nq == on.nv
    return JointTrajectoryControllerState(
        Header(Time.from_seconds(state.stamp)),
        list(on.velocity_names),
        reference=_point(now.q if plain else None, now.v, now.a, since_s=elapsed_s),
        feedback=_point(q if plain else None, v, effort=effort),
        error=_point(on.error(q, now.q), now.v - v),
        output=JointTrajectoryPoint(output.position, output.velocity, [], output.effort),
    )


def _point(
    q: Array | None, v: Array, a: Array | None = None, effort: Array | None = None, since_s: float = 0.0
) -> JointTrajectoryPoint:
    position, velocity, acceleration, efforts = ([] if each is None else each.tolist() for each in (q, v, a, effort))
    return JointTrajectoryPoint(position, velocity, acceleration, efforts, Duration.from_seconds(since_s))


@dataclass
class Arming:
    """What a controller knows of who commands the plant.

    names: of the entries of v, in the order of its commands. fingerprint: of its model. number: no other run of a
    controller has it. rearm: whether it takes over anew what stopped under its command. restarted: whether a launcher
    has started it again. interface: what its commands are.
    """

    names: tuple[str, ...]
    fingerprint: str
    number: int
    rearm: bool
    restarted: bool
    interface: Interface = "effort"

    def __post_init__(self) -> None:
        self._armed = (-1, -1)
        self._went_on = False  # after the command that armed the plant

    def may_command(self, state: PlantState) -> bool:
        """Whether it may answer this state; not where the plant is too fast to be armed, or is another controller's.

        Raises:
            FailedPreconditionError: The plant does not take such commands; or it stopped, and it is not this
                controller's to arm it again.
        """
        if self.interface not in state.interfaces:
            raise FailedPreconditionError(
                f"the controller commands by {self.interface}, the plant is commanded by {', '.join(state.interfaces)}"
            )
        arm = state.mode not in RUNNING
        session, epoch = self._armed
        under_us = session == state.session and epoch != state.epoch
        if state.mode == STOPPED and under_us and not self.rearm:
            alone = state.cause == "missed" and not self._went_on
            hint = " (no second command came in time: control_rate_hz of the plant is to be the controller's rate)"
            raise FailedPreconditionError(
                f"the plant stopped ({state.cause}) at {state.since:g} s, and rearm is off: start the controller anew"
                f"{hint if alone else ''}"
            )
        if arm and session not in (-1, state.session) and not self.rearm:
            raise FailedPreconditionError(
                "the plant was started anew under this controller, and rearm is off: start the controller anew"
            )
        new_session = session != state.session and state.cause != "start"
        if arm and new_session and self.restarted and not self.rearm:
            raise FailedPreconditionError(
                f"the plant is {state.mode} ({state.cause}), and rearm is off: a controller that the launcher has "
                "started again does not take it over"
            )
        return state.armable if arm else self._armed == (state.session, state.epoch)

    def command(self, state: PlantState, command: Command) -> JointCommand:
        """The answer to a state, which arms the plant where it is not armed."""
        arm = state.mode not in RUNNING
        if arm:
            self._armed = (state.session, state.epoch)
        self._went_on = not arm
        return self._answer(state, command, arm=arm)

    def release(self, state: PlantState | None) -> JointCommand | None:
        """The last word to the plant, by its last state; None where it is not this controller's."""
        if state is None or self._armed != (state.session, state.epoch):
            return None
        return self._answer(state, Command(np.zeros(len(self.names))), release=True)

    def _answer(self, state: PlantState, command: Command, *, arm: bool = False, release: bool = False) -> JointCommand:
        value: list[float] = command.value.tolist()
        effort = [0.0] * len(value) if command.effort is None else command.effort.tolist()
        goes_on = [] if command.velocity is None else command.velocity.tolist()
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
            {"effort": [], "position": goes_on, "velocity": value}[self.interface],
        )


Ask = Callable[[Callable[[], Command]], Command | None]
"""Asks the law, by calling what it is given; None where the answer is lost."""


@dataclass
class Commander:
    """What it follows, the law, and whom it may command."""

    following: ReferenceTracker
    law: Law
    arming: Arming

    def answer(self, state: PlantState, ask: Ask = lambda question: question()) -> JointCommand | None:
        """The command that answers a state that is due, or None where there is none.

        Raises:
            FailedPreconditionError: The plant does not take the law's commands; or it stopped, and it is not this
                controller's to arm it again.
            LawError: The law failed, or returned what is no command.
            DynError: What the law or its model raised.
        """
        if not self.arming.may_command(state):
            return None
        moment = self.following.moment(state)
        command = ask(lambda: self.following.answer(self.law, moment))
        return None if command is None else self.arming.command(state, command)

    def exchange(self, law: Law) -> None:
        """Asks this law from now on, which is reset first, or the present one that goes on with what is other in it.
        The reference goes on where it is.

        Raises:
            FailedPreconditionError: Its interface is another one.
        """
        if law.interface != self.law.interface:
            raise FailedPreconditionError(
                f"the controller commands by {self.law.interface}: another interface is for its next start"
            )
        before, self.law = self.law, self.law.exchanged(law)
        if self.law is not before:
            self.following.reset_law_next()
