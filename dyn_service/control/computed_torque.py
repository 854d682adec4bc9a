"""The computed-torque law as questions to a dynamics server. No sockets, no clock.

    tau = inverse_dynamics(q, v, a_ref + kd (v_ref - v) + kp (q_ref - q)),     kp = w^2, kd = 2 d w

so that the tracking error obeys e-ddot + kd e-dot + kp e = 0 while the model is the plant's. Of a joint with several
ways to move, q_ref - q is the `difference`, and velocities stand in the axes of their own bodies, the reference's and
the plant's: its error obeys the same up to terms of the size of v e, which are gone with e.

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
from dyn_service.control.safety import ACTIVE
from dyn_service.control.trajectory import ReferenceTrajectory
from dyn_service.errors import FailedPreconditionError
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.model.configuration import Configuration

TrajectoryMaker = Callable[[Array, Array], ReferenceTrajectory]
"""(q0, v0) -> the reference motion from there."""


@dataclass(frozen=True)
class Question:
    """What to ask `computed_torque`: state and reference at the same time.

    q, q_ref: (nq,). v, v_ref, a_ref: (nv,). error: (nv,), the difference from q to q_ref at the state's time.
    """

    q: Array
    v: Array
    q_ref: Array
    v_ref: Array
    a_ref: Array
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
class ComputedTorque:
    """The controller's state: when it is due, where its reference began, how late its commands act.

    configuration, fingerprint: the joints in the server's order, and its model. make: begins a reference at a state.
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

    def due(self, state: PlantState) -> bool:
        """Whether this state is the first one in a new control period; periods without a state are counted.

        Raises:
            FailedPreconditionError: The plant is another robot than the server's.
        """
        if state.session != self.session:
            self._new_plant(state)
        period = math.floor(state.stamp * self.rate_hz + 1e-6)
        if period <= self._period:
            return False
        if self._period >= 0:
            self.skipped += period - self._period - 1
        self._period = period
        return True

    def question(self, state: PlantState) -> Question:
        """What to ask about this state; begins the reference anew if the plant was not under command."""
        at = self.configuration
        q, v, _ = self.measured(state)
        if state.mode != ACTIVE or self.trajectory is None:
            self.restarts += self._engaged
            self._engaged = False
            self.trajectory, self.begin_s = self.make(q, v), state.stamp
        time = state.stamp - self.begin_s
        if state.mode == ACTIVE and self._engaged:
            self._delays.append(state.command_delay)
        delay = sorted(self._delays)[len(self._delays) // 2] if self._delays else 0.5 / self.rate_hz
        horizon = delay + 0.5 / self.rate_hz if self.delay_compensation else 0.0
        reference = self.trajectory.sample(np.array([time, time + horizon]))
        error = at.difference(q, reference.q[0])
        if state.mode == ACTIVE:
            self._engaged = True
            self.tracking.add(error)
        mean = 0.5 * (reference.a[0] + reference.a[1])
        return Question(
            q=at.integrate(q, horizon * v + (0.5 * horizon * horizon) * mean),
            v=v + horizon * mean,
            q_ref=reference.q[1],
            v_ref=reference.v[1],
            a_ref=reference.a[1],
            error=error,
            horizon_s=horizon,
        )

    @property
    def engaged(self) -> bool:
        """Whether the plant follows this controller's reference."""
        return self._engaged

    def measured(self, state: PlantState) -> tuple[Array, Array, Array]:
        """q (nq,), v and effort (nv,) of a state of this plant, in the order of the server's joints."""
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
        self.session = state.session
        self.trajectory = None
        self.restarts += self._engaged
        self._engaged = False
        self._period = -1
        self._delays.clear()
