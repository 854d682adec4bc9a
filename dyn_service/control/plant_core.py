"""A simulated robot: forward dynamics in time under the efforts it is sent. No sockets, no clock.

    v-dot = forward_dynamics(q, v, tau),  q-dot = v,      tau held from the step at which its command was taken

- A command is taken at the next step and acts until the next one is taken. It must answer a state of this very plant
  (`session`) that is no older than `command_timeout_s`, and name every joint; else it is refused and counted.
- Before the first command the plant is `braked`: it stands still, as an arm whose brakes are shut.
- A command that releases the plant makes it brake: it stands still at once until the next command.
- When no command was taken for `command_timeout_s`, the plant is `stale`, and counts it: `zero` effort acts, or the
  last effort is held, or the plant brakes and stands still at once, as the policy says. A later command ends that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.protocol.topic_messages import JointCommand, JointState
from dyn_service.sim.divergence import no_longer_finite
from dyn_service.sim.integrators import ForwardDynamics, advance, held, integrator

BRAKED, ACTIVE, STALE = "braked", "active", "stale"
MODES = (BRAKED, ACTIVE, STALE)

_ROUNDING_S = 1e-9
"""Times are products of a step and a count: a command just in time must not be late by their rounding."""


@dataclass
class PlantCounters:
    """Counts since the plant started. Steps are integration steps."""

    steps: int = 0
    commands: int = 0
    refused: int = 0
    stale_events: int = 0
    stale_steps: int = 0
    clamped_steps: int = 0
    over_effort_steps: int = 0
    out_of_range_steps: int = 0


@dataclass
class PlantSettings:
    """How the plant integrates and what it does without commands; see `plant.PlantParameters`."""

    dt_s: float
    integrator: str = "rk4"
    substeps: int = 1
    command_timeout_s: float = 0.1
    stale_policy: str = "zero"
    clamp_effort: bool = True


@dataclass
class Plant:
    """A simulated robot at its present state.

    forward_dynamics: (q, v, tau) -> a. configuration: the joints, in order. q, v: the state. session: see `JointState`.
    """

    forward_dynamics: ForwardDynamics
    configuration: Configuration
    limits: Limits
    q: Array
    settings: PlantSettings
    session: int
    counters: PlantCounters = field(default_factory=PlantCounters)

    def __post_init__(self) -> None:
        self.names = self.configuration.velocity_names
        self.v: Array = np.zeros(self.configuration.nv)
        self.effort: Array = np.zeros(self.configuration.nv)
        self.mode = BRAKED
        self._step = integrator(self.settings.integrator)
        self._accepted_s = 0.0
        self._command_seq = -1
        self._command_delay = 0.0
        self._clamped = self._over = False

    @property
    def time_s(self) -> float:
        """Simulated time since the plant started."""
        return self.counters.steps * self.settings.dt_s

    def offer(self, command: JointCommand) -> bool:
        """Takes the command for the next step, or refuses it; whether it was taken."""
        order = _order(tuple(command.name), self.names)
        age = self.time_s - command.stamp
        in_time = -_ROUNDING_S <= age <= self.settings.command_timeout_s + _ROUNDING_S
        fresh = in_time and command.state_seq >= self._command_seq
        if command.session != self.session or order is None or not fresh or len(command.effort) != len(order):
            self.counters.refused += 1
            return False
        effort = np.array(command.effort)[order]
        if not math.isfinite(effort.sum()):
            self.counters.refused += 1
            return False
        cut = np.clip(effort, -self.limits.effort, self.limits.effort)
        self._over = bool((cut != effort).any())
        self._clamped = self._over and self.settings.clamp_effort
        self.effort = cut if self.settings.clamp_effort else effort
        self.mode = ACTIVE
        if command.release:
            self._brake(BRAKED)
        self.counters.commands += 1
        self._accepted_s = self.time_s
        self._command_seq = command.state_seq
        self._command_delay = age
        return True

    def advance(self, steps: int) -> None:
        """Integrates `steps` steps under the effort in force.

        Raises:
            FailedPreconditionError: The state is no longer finite; names the first such step, its time and the joint.
        """
        settings, counters = self.settings, self.counters
        for _ in range(steps):
            # the age is a count of steps: half a step keeps rounding from deciding
            age_s = self.time_s - self._accepted_s - 0.5 * settings.dt_s
            if self.mode == ACTIVE and age_s > settings.command_timeout_s:
                self._go_stale()
            counters.steps += 1
            if self.mode == BRAKED:
                continue
            if self.mode == STALE:
                counters.stale_steps += 1
                if settings.stale_policy == "brake":
                    continue
            acceleration = held(self.forward_dynamics, self.effort)
            before = self.q, self.v
            self.q, self.v = advance(
                self._step, acceleration, *before, settings.dt_s, settings.substeps, on=self.configuration
            )
            if not math.isfinite(self.q.sum() + self.v.sum()):  # or the sum alone has overflowed
                finite = self.configuration.finite(self.q, self.v)
                if not finite.all():
                    motion = (*before, acceleration(*before))
                    step, inner = counters.steps, settings.dt_s / settings.substeps
                    raise no_longer_finite(self.configuration, step, self.time_s, inner, motion, finite)
            counters.clamped_steps += self._clamped
            counters.over_effort_steps += self._over
            counters.out_of_range_steps += bool(((self.q < self.limits.lower) | (self.q > self.limits.upper)).any())

    def state(self) -> JointState:
        """The state as it is published."""
        return JointState(
            session=self.session,
            seq=self.counters.steps,
            stamp=self.time_s,
            name=self.names,
            position=self.q.tolist(),
            velocity=self.v.tolist(),
            effort=self.effort.tolist(),
            mode=self.mode,
            command_seq=self._command_seq,
            command_delay=self._command_delay,
        )

    def _go_stale(self) -> None:
        self.counters.stale_events += 1
        if self.settings.stale_policy == "brake":
            self._brake(STALE)
            return
        self.mode = STALE
        if self.settings.stale_policy == "zero":
            self.effort = np.zeros_like(self.effort)
            self._clamped = self._over = False

    def _brake(self, mode: str) -> None:
        self.mode = mode
        self.effort, self.v = np.zeros_like(self.effort), np.zeros_like(self.v)
        self._clamped = self._over = False


@lru_cache(maxsize=16)
def _order(given: tuple[str, ...], names: tuple[str, ...]) -> list[int] | None:
    """Where in a command each joint of the plant stands; None where its names are not the plant's."""
    return [given.index(name) for name in names] if sorted(given) == sorted(names) else None
