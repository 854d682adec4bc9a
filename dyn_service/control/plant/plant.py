"""The plant: a simulated or real robot behind its safety supervisor. No sockets, no clock.

Commands go to `safety.SafetySupervisor`. In each cycle of the drive the supervisor returns the effort, the plant writes
and reads the `Hardware`, and time advances by `dt_s`.

**Drivers.** The interface of a robot's driver, shared by real and simulated robots, and the checks of what a driver
returns.

    reading = hardware.open()                      # connected; brakes shut, no efforts
    each period of the loop:
        hardware.write(effort, brakes=...)         # acts until the next write
        reading = hardware.read()                  # measured since the last read
    hardware.close()                               # brakes shut, however the loop ended

Efforts are N m | N, one per entry of v, in the order of `configuration`; positions rad | m, velocities rad/s | m/s.
Efforts passed to `write` have passed the safety supervisor: they are finite, and within the limits and their rates.
`brakes` requests shut brakes, whatever the efforts. Hardware whose drives accept positions or velocities implements
`TakesSetPoints`. `write` and `read` are called once every period, `1 / rate_hz` of the plant; neither may wait longer
than a small part of it.

Errors. Transient conditions are no errors: `read` reports that nothing new was measured (`fresh`) or that the drive has
a fault (`fault`). Both lead to a safe stop, after which a controller may arm the robot again. A permanent failure is
raised as an error of this package and ends the loop after `close`. A driver whose computer hangs calls nothing: the
drive itself must shut its brakes when writes stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

import numpy as np

from dyn_service.api.arrays import all_finite
from dyn_service.api.queries import Array
from dyn_service.control.command import EFFORT_ONLY, INTERFACES, Interface, SetPoint
from dyn_service.control.law import guarded
from dyn_service.control.plant.safety import STOPPED, SafetySupervisor
from dyn_service.errors import FailedPreconditionError
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration, Limits


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

    time_s: time since the plant started, cycles times `dt_s`. dt_s: the drive's cycle. stale_cycles: number of
    consecutive cycles without a new reading that are tolerated; one more stops the robot.
    """

    robot: Hardware
    limits: Limits
    safety: SafetySupervisor
    dt_s: float
    stale_cycles: int = 0
    counters: PlantCounters = field(default_factory=PlantCounters)

    def __post_init__(self) -> None:
        self.time_s = 0.0
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

    def offer(self, command: JointCommand) -> bool:
        """Passes the command to the supervisor, and returns whether it was accepted."""
        return self.safety.offer(command, self.time_s, self.v, self.q)

    def advance(self, steps: int) -> None:
        """Advances by `steps` cycles. A simulated robot does each; for a real one they have passed already, and it is
        written and read once.

        Raises:
            DynError: Raised by the robot, for example when its simulation diverges.
        """
        if self.robot.simulated:
            for _ in range(steps):
                self._cycle(1)
        elif steps:
            self._cycle(steps)

    def look(self) -> None:
        """Reads the robot between two cycles, after its state was set."""
        self.reading = self.robot.read()

    def publish(self) -> PlantState:
        """Returns the state to publish now; from here on commands may answer it."""
        self.safety.published(self.counters.steps, self.time_s)
        return self.state()

    def state(self) -> PlantState:
        """Returns the present state."""
        safety, reading = self.safety, self.reading
        return PlantState(
            session=safety.session,
            seq=self.counters.steps,
            stamp=self.time_s,
            name=self.names,
            position=reading.q.tolist(),
            velocity=reading.v.tolist(),
            effort=self.effort.tolist(),
            mode=safety.mode,
            cause=safety.cause,
            since=safety.since_s,
            epoch=safety.epoch,
            armable=safety.armable(reading.v),
            command_seq=safety.command_seq,
            command_delay=safety.command_delay_s,
            fingerprint=safety.fingerprint,
            interfaces=safety.interfaces,
            reason=safety.reason,
        )

    def _cycle(self, steps: int) -> None:
        """Does one cycle of the drive, the last of `steps`."""
        counters, safety, robot, reading = self.counters, self.safety, self.robot, self.reading
        counters.steps += steps
        # The cycle that begins now starts one period before the time at which it ends.
        effort, brakes = safety.cycle((counters.steps - 1) * self.dt_s, reading.v, reading.q)
        self.time_s = counters.steps * self.dt_s
        counters.stopped_steps += steps * (safety.mode == STOPPED)
        if safety.set_point is not None and safety.servo is None and isinstance(robot, TakesSetPoints):
            robot.write_set_point(safety.set_point, brakes=brakes)
        else:
            robot.write(effort, brakes=brakes)
        self.reading = reading = robot.read()
        if reading.fault:
            safety.shut(reading.fault, reading.reason or "the driver reports a fault")
        self._stale = 0 if reading.fresh else self._stale + 1
        counters.stale_readings += not reading.fresh
        if self._stale > self.stale_cycles:
            safety.shut("driver", f"the driver had no new reading for {self._stale} cycles")
        # By the true position if it is known: an encoder's offset is no excursion.
        q = reading.q if reading.truth is None else reading.truth.q
        is_out_of_range = (q < self.limits.lower) | (q > self.limits.upper)
        if any(is_out_of_range.tolist()):
            counters.out_of_range_steps += 1
            self.out_of_range += is_out_of_range


Fault = Literal["", "velocity", "driver"]


class Motion(NamedTuple):
    """q (nq,) rad | m, v (nv,) rad/s | m/s."""

    q: Array
    v: Array


@dataclass(frozen=True, eq=False)
class Reading:
    """The latest measurement of a robot.

    q: (nq,) rad | m. v: (nv,) rad/s | m/s. effort: (nv,) N m | N that acted until then; None if it is not measured,
    then the written effort counts. fresh: whether it was measured since the last `read`. fault: empty, or why the drive
    does not follow: `velocity`, a joint is at its velocity limit, or `driver`, anything else. reason: the fault in
    words. truth: true motion of a simulated robot with sensors.
    """

    q: Array
    v: Array
    effort: Array | None = None
    fresh: bool = True
    fault: Fault = ""
    truth: Motion | None = None
    reason: str = ""

    @property
    def motion(self) -> Motion:
        """The true motion if known, else the measured one; used for recordings."""
        return Motion(self.q, self.v) if self.truth is None else self.truth


class Hardware(Protocol):
    """One robot. A permanent failure is raised as a `DynError`."""

    @property
    def configuration(self) -> Configuration:
        """The joints, in the order of all arrays."""

    @property
    def simulated(self) -> bool:
        """Whether time advances by writes alone: k writes after an overrun of k periods, to a real robot only one."""

    def open(self) -> Reading:
        """Connects with shut brakes and no efforts, and returns the first reading.

        Raises:
            DynError: The robot is unreachable or not ready.
        """

    def write(self, effort: Array, *, brakes: bool) -> None:
        """Sets the efforts (nv,) until the next write, and whether the brakes are shut."""

    def read(self) -> Reading:
        """Returns the latest measurement."""

    def close(self) -> None:
        """Shuts the brakes and disconnects; raises nothing."""


@runtime_checkable
class TakesSetPoints(Protocol):
    """Further members of hardware whose drives accept positions or velocities."""

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """Accepted interfaces, including `effort` if efforts are accepted."""

    def write_set_point(self, to: SetPoint, *, brakes: bool) -> None:
        """Sets the set point until the next write; called instead of `write` while positions or velocities are
        commanded. The set point is within the limits of position and velocity and never jumps; the drive limits the
        efforts. In a stop `write` is called.
        """


T = TypeVar("T")
_FAULTS: tuple[str, ...] = get_args(Fault)
_LOG = logging.getLogger(__name__)


class DriverError(FailedPreconditionError):
    """Raised if a driver fails or returns an invalid reading; names the method and the value."""


@dataclass
class Driver:
    """A `Hardware` that checks another one. hardware: the driver. gain: (nv,) N m/A | N/A, if the driver's efforts are
    currents, A, which are converted here both ways; else None. not_finite: readings with numbers that are not finite;
    the last valid reading is used then, and the robot stops safely.

    All methods but `close`, which logs errors, raise `DriverError` if the driver fails or returns a reading of another
    size, and pass on its own errors of this package.
    """

    hardware: Hardware
    gain: Array | None = None
    not_finite: int = 0
    _last: Reading | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.configuration: Configuration = self.hardware.configuration
        self.simulated = bool(self.hardware.simulated)
        self.interfaces: tuple[Interface, ...] = EFFORT_ONLY
        if isinstance(self.hardware, TakesSetPoints):
            self.interfaces = tuple(kind for kind in INTERFACES if kind in self.hardware.interfaces)

    def open(self) -> Reading:
        reading = self._sized("open", self._guarded("open", self.hardware.open))
        # There is no earlier reading yet that could be used instead.
        if not _finite(reading):
            raise DriverError("the driver's first reading has numbers that are not finite")
        self._last = reading
        return reading

    def write(self, effort: Array, *, brakes: bool) -> None:
        values = effort if self.gain is None else effort / self.gain
        self._guarded("write", lambda: self.hardware.write(values, brakes=brakes))

    def write_set_point(self, to: SetPoint, *, brakes: bool) -> None:
        hardware = self.hardware
        if not isinstance(hardware, TakesSetPoints):
            raise DriverError(f"the driver accepts efforts only, found a set point of {to.interface}")
        point = to if self.gain is None else replace(to, effort=to.effort / self.gain)
        self._guarded("write_set_point", lambda: hardware.write_set_point(point, brakes=brakes))

    def read(self) -> Reading:
        reading = self._sized("read", self._guarded("read", self.hardware.read))
        if not _finite(reading):
            self.not_finite += 1
            if self.not_finite == 1:
                _LOG.warning("the driver read numbers that are not finite: the robot stops")
            assert self._last is not None  # `open` comes first
            reason = "it read numbers that are not finite"
            return replace(self._last, fresh=False, fault=reading.fault or "driver", reason=reason)
        self._last = reading
        return reading

    def close(self) -> None:
        try:
            self.hardware.close()
        except Exception:  # noqa: BLE001  the loop is ending, and its own error counts
            _LOG.exception("the driver failed in its close")

    def _guarded(self, method: str, call: Callable[[], T]) -> T:
        return guarded(DriverError, f"the driver failed in its {method}", call)

    def _sized(self, method: str, reading: object) -> Reading:
        """Returns the reading as arrays of the joints' sizes."""
        if not isinstance(reading, Reading):
            raise DriverError(f"the driver's {method} gave {type(reading).__name__}: expected a Reading")
        fault = reading.fault or ""
        if fault not in _FAULTS:
            raise DriverError(f"the driver's {method} gave the fault {fault!r}: expected 'velocity' or 'driver'")
        configuration = self.configuration
        q = _numbers(method, "q", reading.q, configuration.nq)
        v = _numbers(method, "v", reading.v, configuration.nv)
        effort = None if reading.effort is None else _numbers(method, "effort", reading.effort, configuration.nv)
        if effort is not None and self.gain is not None:
            effort = effort * self.gain
        return replace(reading, q=q, v=v, effort=effort, fault=fault)


def _numbers(method: str, name: str, numbers: object, n: int) -> Array:
    """Returns a copy, because a driver may reuse its arrays."""
    try:
        values: Array = np.array(numbers, dtype=np.float64)
    except (TypeError, ValueError):
        raise DriverError(f"the driver's {method} gave no numbers as {name}: expected {n}") from None
    if values.shape != (n,):
        raise DriverError(f"the driver's {method} gave {name} of shape {values.shape}: expected {n} numbers")
    return values


def _finite(reading: Reading) -> bool:
    return all(all_finite(array) for array in (reading.q, reading.v, reading.effort) if array is not None)
