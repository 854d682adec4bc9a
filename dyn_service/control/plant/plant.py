"""The plant: a simulated or real robot behind its safety supervisor. No sockets, no clock.

Commands go to `safety.SafetySupervisor`. In each cycle of the drive the supervisor returns the effort, the plant writes
and reads the `hardware.Hardware`, and time advances by `dt_s`.
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
    """Counts of steps since the plant started. stale_readings: steps without a new measurement."""

    steps: int = 0
    stopped_steps: int = 0
    out_of_range_steps: int = 0
    stale_readings: int = 0


@dataclass
class Plant:
    """A robot and its state.

    dt_s: the drive's cycle. stale_cycles: number of cycles in a row without a new reading after which one more stops
    the robot.
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
        """(nv,), in the cycle that has just ended."""
        return self.safety.effort if self.reading.effort is None else self.reading.effort

    @property
    def motion(self) -> Motion:
        """The true motion if known, else the measured one."""
        return self.reading.motion

    @property
    def time_s(self) -> float:
        """Time since the plant started: cycles times `dt_s`."""
        return self.counters.steps * self.dt_s

    def offer(self, command: JointCommand) -> bool:
        """Passes the command to the supervisor, and returns whether it was accepted."""
        return self.safety.offer(command, self.time_s, self.v, self.q)

    def advance(self, steps: int) -> None:
        """Advances by `steps` cycles. A simulated robot does each; for a real one they have passed already, and it is
        written and read once.

        Raises:
            DynError: Raised by the robot, for example when its simulation diverges.
        """
        each = 1 if self.robot.simulated else steps
        for _ in range(0, steps, max(1, each)):
            self._cycle(each)

    def look(self) -> None:
        """Reads the robot between two cycles, after its state was set."""
        self.reading = self.robot.read()

    def publish(self) -> PlantState:
        """Returns the state to publish now; from here on commands may answer it."""
        self.safety.published(self.counters.steps, self.time_s)
        return self.state()

    def state(self) -> PlantState:
        """Returns the present state."""
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
        """Does one cycle of the drive, the last of `steps`."""
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
