"""A simulated robot: forward dynamics in time under the efforts that its safety lets through. No sockets, no clock.

    v-dot = forward_dynamics(q, v, tau),  q-dot = v,      tau held through each step

Commands go to `safety.SafetySupervisor`, which is what hardware has too; a step of the plant is a cycle of its drive.

Brakes are modelled as strong ones: once shut they bring every joint to rest within `brake_s`, at a deceleration that is
constant and the same share of each joint's speed, whatever pulls at it, and hold it there. Motors that work against
them move nothing. A joint that would pass its velocity limit within a step is braked from that step's beginning, as by
a drive whose own loop is quicker than its commands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.safety import STOPPED, SafetySupervisor
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.sim.divergence import no_longer_finite
from dyn_service.sim.integrators import ForwardDynamics, advance, held, integrator


@dataclass
class PlantCounters:
    """Counts since the plant started, in integration steps."""

    steps: int = 0
    stopped_steps: int = 0
    out_of_range_steps: int = 0


@dataclass
class PlantSettings:
    """How the plant integrates and brakes; see `plant.PlantParameters`."""

    dt_s: float
    integrator: str
    substeps: int
    brake_s: float


@dataclass
class Plant:
    """A simulated robot at its present state.

    forward_dynamics: (q, v, tau) -> a. configuration: the joints, in order. q: where it stands at first.
    """

    forward_dynamics: ForwardDynamics
    configuration: Configuration
    limits: Limits
    q: Array
    settings: PlantSettings
    safety: SafetySupervisor
    counters: PlantCounters = field(default_factory=PlantCounters)

    def __post_init__(self) -> None:
        self.names = self.safety.names
        self.v: Array = np.zeros(self.configuration.nv)
        self._step = integrator(self.settings.integrator)
        self._deceleration: Array | None = None

    @property
    def time_s(self) -> float:
        """Simulated time since the plant started."""
        return self.counters.steps * self.settings.dt_s

    def offer(self, command: JointCommand) -> bool:
        """Takes the command for the next step, or refuses it; whether it was taken."""
        return self.safety.offer(command, self.time_s, self.v)

    def advance(self, steps: int) -> None:
        """Integrates `steps` steps under the effort in force.

        Raises:
            FailedPreconditionError: The state is no longer finite; names the first such step, its time and the joint.
        """
        settings, counters = self.settings, self.counters
        for _ in range(steps):
            effort, brakes = self.safety.cycle(self.time_s, self.v)
            counters.steps += 1
            counters.stopped_steps += self.safety.mode == STOPPED
            acceleration = held(self.forward_dynamics, effort)
            before = self.q, self.v
            if brakes:
                self._brake()
            else:
                self._deceleration = None
                self.q, self.v = advance(
                    self._step, acceleration, *before, settings.dt_s, settings.substeps, on=self.configuration
                )
                if np.isfinite(self.v).all() and self.safety.trip(self.v):
                    self.q, self.v = before
                    self._brake()
            if not math.isfinite(self.q.sum() + self.v.sum()):  # or the sum alone has overflowed
                finite = self.configuration.finite(self.q, self.v)
                if not finite.all():
                    motion = (*before, acceleration(*before))
                    step, inner = counters.steps, settings.dt_s / settings.substeps
                    raise no_longer_finite(self.configuration, step, self.time_s, inner, motion, finite)
            counters.out_of_range_steps += bool(((self.q < self.limits.lower) | (self.q > self.limits.upper)).any())

    def publish(self) -> PlantState:
        """The state, to be sent out now: from here on it can be answered."""
        self.safety.published(self.counters.steps, self.time_s)
        return self.state()

    def state(self) -> PlantState:
        """The state as it is published."""
        safety = self.safety
        return PlantState(
            session=safety.session,
            seq=self.counters.steps,
            stamp=self.time_s,
            name=self.names,
            position=self.q.tolist(),
            velocity=self.v.tolist(),
            effort=safety.effort.tolist(),
            mode=safety.mode,
            cause=safety.cause,
            since=safety.since_s,
            epoch=safety.epoch,
            armable=safety.armable(self.v),
            command_seq=safety.command_seq,
            command_delay=safety.command_delay_s,
            fingerprint=safety.fingerprint,
        )

    def _brake(self) -> None:
        """One step towards rest, at the deceleration that was due when the brakes were shut."""
        if not self.v.any():
            return
        if self._deceleration is None:
            self._deceleration = np.abs(self.v) / self.settings.brake_s
        slower = np.maximum(np.abs(self.v) - self._deceleration * self.settings.dt_s, 0.0) * np.sign(self.v)
        self.q = self.configuration.integrate(self.q, 0.5 * (self.v + slower), self.settings.dt_s)
        self.v = slower
