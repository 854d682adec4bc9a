"""The plant: a robot, simulated or real, under the efforts that its safety lets through. No sockets, no clock.

Commands go to `safety.SafetySupervisor`; once in each cycle of the drive it says what acts, `hardware.Hardware` is
written and read, and time goes on by `dt_s`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.plant.hardware import Hardware, Motion, Reading, TakesSetPoints
from dyn_service.control.plant.safety import STOPPED, SafetySupervisor
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Limits


@dataclass
class PlantCounters:
    """Counts since the plant started, in steps. stale_readings: in which the robot had measured nothing new."""

    steps: int = 0
    stopped_steps: int = 0
    out_of_range_steps: int = 0
    stale_readings: int = 0


@dataclass
class Plant:
    """A robot at its present state.

    dt_s: the drive's cycle. stale_cycles: how many cycles in a row may bring no new reading; one more stops it safely.
    """

    robot: Hardware
    limits: Limits
    safety: SafetySupervisor
    dt_s: float
    stale_cycles: int = 0
    counters: PlantCounters = field(default_factory=PlantCounters)

    def __post_init__(self) -> None:
        self.names = self.safety.names
        self.configuration = self.robot.configuration
        try:
            self.reading: Reading = self.robot.open()
        except BaseException:
            self.robot.close()
            raise
        self.out_of_range: np.ndarray[tuple[int], np.dtype[np.int64]] = np.zeros(self.configuration.nq, np.int64)
        self._stale = 0

    @property
    def q(self) -> Array:
        """(nq,), as measured."""
        return self.reading.q

    @property
    def v(self) -> Array:
        """(nv,), as measured."""
        return self.reading.v

    @property
    def effort(self) -> Array:
        """(nv,), what acted in the cycle that ended now."""
        return self.safety.effort if self.reading.effort is None else self.reading.effort

    @property
    def motion(self) -> Motion:
        """Where it really is, as far as that is known."""
        return self.reading.motion

    @property
    def time_s(self) -> float:
        """Time since the plant started, in cycles of the drive."""
        return self.counters.steps * self.dt_s

    def offer(self, command: JointCommand) -> bool:
        """Takes the command for the next step, or refuses it; whether it was taken."""
        return self.safety.offer(command, self.time_s, self.v, self.q)

    def advance(self, steps: int) -> None:
        """Lets `steps` cycles pass under the effort in force. A simulated robot does each; for a real one they have
        passed, and it is written and read once.

        Raises:
            DynError: What the robot raises, such as that its simulation diverged.
        """
        each = 1 if self.robot.simulated else steps
        for _ in range(0, steps, max(1, each)):
            self._cycle(each)

    def look(self) -> None:
        """Reads the robot anew, between two cycles: it was put somewhere else."""
        self.reading = self.robot.read()

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
            effort=self.effort.tolist(),
            mode=safety.mode,
            cause=safety.cause,
            since=safety.since_s,
            epoch=safety.epoch,
            armable=safety.armable(self.v),
            command_seq=safety.command_seq,
            command_delay=safety.command_delay_s,
            fingerprint=safety.fingerprint,
            interfaces=safety.interfaces,
        )

    def _cycle(self, steps: int) -> None:
        """One cycle of the drive, at the end of so many."""
        counters, safety = self.counters, self.safety
        counters.steps += steps - 1
        effort, brakes = safety.cycle(self.time_s, self.v, self.q)
        counters.steps += 1
        counters.stopped_steps += steps * (safety.mode == STOPPED)
        if safety.set_point is not None and safety.servo is None and isinstance(self.robot, TakesSetPoints):
            self.robot.write_set_point(safety.set_point, brakes=brakes)
        else:
            self.robot.write(effort, brakes=brakes)
        self.reading = reading = self.robot.read()
        if reading.fault:
            safety.shut(reading.fault)
        self._stale = 0 if reading.fresh else self._stale + 1
        counters.stale_readings += not reading.fresh
        if self._stale > self.stale_cycles:
            safety.shut("driver")
        q = reading.motion.q
        outside = (q < self.limits.lower) | (q > self.limits.upper)
        if outside.any():
            counters.out_of_range_steps += 1
            self.out_of_range += outside
