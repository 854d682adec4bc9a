"""What a controller has to know of the plant it commands, whatever its law. No sockets, no clock.

A command computed from the state at time t begins to act at t + delay and then acts for one period T. With delay
compensation the reference, and the state predicted under the reference's acceleration, are taken at the middle of
that time, t + delay + T/2: the held effort is then right to second order in T instead of to first. The delay is what
the plant reports of earlier commands, the median of the last ones.

The reference begins at the measured state, whenever the plant was not under this controller's command before: at
the start, and after a stop. So taking over never jumps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import Command
from dyn_service.control.law import Law, RobotState, commanded, restarted
from dyn_service.control.plant.safety import ACTIVE
from dyn_service.control.references.trajectory import PointToPoint, Reference, ReferenceTrajectory
from dyn_service.errors import FailedPreconditionError
from dyn_service.messages.dyn_service_msgs import PlantState
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
class Following:
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

    def rate_doubt(self, state: PlantState) -> str:
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
        foretold = RobotState(
            state.stamp + horizon,
            at.integrate(q, horizon * v + (0.5 * horizon * horizon) * mean),
            v + horizon * mean,
            effort,
            here,
        )
        return Moment(
            state=foretold if self.delay_compensation else here,
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
            restarted(law, moment.state.measured)
        command = commanded(law, moment.state, moment.reference, moment.dt, self.configuration.velocity_names)
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

    def anew(self) -> None:
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
