"""What lies between the effort that a motor is told and the one it gives: a dead time, a lag, an end of its strength.

    told  ->  n steps later  ->  x-dot = (u - x) / T  ->  cut to +-limit  ->  acts

The effort that is told is held through a step. The lag is then exact, and what acts in a step is its mean over that
step, so that no impulse is lost whatever the step.


What a simulated robot measures of itself: its encoders' positions and velocities, and what its other sensors read.

The devices are those of `dyn_service.sensors`; here they are sampled as the robot moves. A joint without an encoder is
measured as it is. Velocities are the encoders' differences, or what is true of them, as of drives with a tachometer.


A simulated robot: an engine that moves it, its brakes, its motors, its sensors. No sockets, no clock.

Brakes are modelled as strong ones: once shut they bring every joint to rest within `brake_s`, at a deceleration that
is constant and the same share of each joint's speed, whatever pulls at it, and hold it there. Motors that work
against them move nothing. A base has no brake: it falls, and the ground carries it with its legs held. A joint that
would pass its velocity limit within a step is braked from that step's beginning, as by a drive whose own loop is
quicker than its commands; the reading then has the fault `velocity`.

Sensors are given the mean acceleration of the step behind them, which every engine and the brakes have, and what
contacts did to the links in it, mean over it too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array, Wrench
from dyn_service.control.plant.hardware import Fault, Motion, Reading
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.sensors import Reading as SensorReading
from dyn_service.sensors import Sensors
from dyn_service.simulation.divergence import no_longer_finite
from dyn_service.simulation.stepping import Engine

MAX_DELAY_STEPS = 10_000


@dataclass
class Actuators:
    """The motors of one robot, one per entry of v.

    dt_s: the step. effort_limit: (nv,) N m | N, infinite where there is none. delay_steps: so many steps, at most
    `MAX_DELAY_STEPS`, pass before anything comes of what is told. lag_s: (nv,) s, the time constant T; 0 is none.
    saturated: (nv,) steps in which a motor was at its limit.

    Raises:
        InvalidArgumentError: The step is not positive, the delay no such number of steps; a limit or a lag is negative
            or not finite, or not one per entry.
    """

    dt_s: float
    effort_limit: Array
    delay_steps: int
    lag_s: Array
    saturated: Array = field(init=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.dt_s < np.inf:
            raise InvalidArgumentError(f"dt_s is {self.dt_s:g}: expected a positive number of seconds", path="dt_s")
        steps = self.delay_steps
        if isinstance(steps, bool) or not (isinstance(steps, int | np.integer) and 0 <= steps <= MAX_DELAY_STEPS):
            raise InvalidArgumentError(
                f"actuators.delay_steps is {steps}: expected a whole number, 0 to {MAX_DELAY_STEPS}",
                path="actuators.delay_steps",
            )
        self.effort_limit, self.lag_s = np.array(self.effort_limit, float), np.array(self.lag_s, float)
        n = self.effort_limit.shape
        if len(n) != 1 or not (self.effort_limit >= 0.0).all():
            raise InvalidArgumentError(
                f"actuators.effort_limit is {self.effort_limit.tolist()}: expected numbers that are not negative",
                path="actuators.effort_limit",
            )
        if self.lag_s.shape != n or not (np.isfinite(self.lag_s) & (self.lag_s >= 0.0)).all():
            raise InvalidArgumentError(
                f"actuators.lag_s is {self.lag_s.tolist()}: expected times of at least 0 s, one number or one per "
                "effort",
                path="actuators.lag_s",
            )
        with np.errstate(divide="ignore"):
            ratio = np.where(self.lag_s > 0.0, self.dt_s / self.lag_s, np.inf)
        self._left = np.exp(-ratio)  # of the difference at a step's end
        self._mean = np.where(self.lag_s > 0.0, (1.0 - self._left) / ratio, 0.0)  # of it, over the step
        self.saturated = np.zeros(n, dtype=np.int64)
        self.reset()

    def reset(self) -> None:
        """Nothing was told, nothing acts."""
        none = np.zeros(self.effort_limit.shape)
        self._on_way: deque[Array] = deque([none] * int(self.delay_steps))
        self._lagged = none

    def act(self, told: Array) -> Array:
        """The efforts (nv,) that act in the coming step, of which `told` (nv,) is what the motors are told at its
        beginning.
        """
        self._on_way.append(told)
        arrived = self._on_way.popleft()
        behind = self._lagged - arrived
        self._lagged = arrived + self._left * behind
        wanted = arrived + self._mean * behind
        acting: Array = np.clip(wanted, -self.effort_limit, self.effort_limit)
        self.saturated += acting != wanted
        return acting


Velocities = Literal["encoders", "measured"]


class RobotSensors:
    """The sensors of one simulated robot. readings: the newest of each that has come, by name.

    Args:
        sensors: Of the robot that really moves.
        at: Its joints.
        velocities: Where those of joints with encoders are from.
    """

    def __init__(self, sensors: Sensors, at: Configuration, velocities: Velocities = "encoders") -> None:
        self.sensors, self.readings = sensors, dict[str, SensorReading]()
        places = {
            name: (in_q.start, in_v.start) for name, in_q, in_v in zip(at.names, at.q_slices, at.v_slices, strict=True)
        }
        self._places = {name: places[name] for name in sensors.settings.encoders}
        self._differences = velocities == "encoders"
        self._begun: tuple[Array, Array] | None = None

    @property
    def feels(self) -> bool:
        """Whether any of them is told what pushes: force/torque sensors are."""
        return bool(self.sensors.settings.force_torque)

    @property
    def others(self) -> tuple[str, ...]:
        """The names of those that are no encoders."""
        return (*self.sensors.settings.force_torque, *self.sensors.settings.imus)

    def sample(self, t: float, q: Array, v: Array, a: Array, pushes: Sequence[Wrench] = ()) -> None:
        """Those that are due sample the state q (nq,), v, a (nv,) at t, s, while these wrenches act."""
        if self._begun is None:
            self._begun = q, v
        self.readings = self.sensors.read(t, q, v, a, wrenches=tuple(pushes) or None)

    def measured(self, q: Array, v: Array) -> tuple[Array, Array]:
        """What is measured of q and v; until an encoder's first reading has come, as it was when it was switched on."""
        if self._begun is None or not self._places:
            return q, v
        q, v = q.copy(), v.copy()
        for name, (in_q, in_v) in self._places.items():
            reading = self.readings.get(name)
            position, velocity = (self._begun[0][in_q], 0.0) if reading is None else reading.value
            q[in_q] = position
            if self._differences:
                v[in_v] = velocity
        return q, v


@dataclass
class SimulatedRobot:
    """A simulated robot at its present state: `hardware.Hardware`.

    q: (nq,) where it stands at first. dt_s: a step. brake_s: in which the brakes bring it to rest. velocity_limit:
    (nv,), infinite where there is none. actuators, measuring: None are motors and sensors that do all they are told.
    free: (nv,) which entries of v have no brake; None is no one.

    Raises:
        InvalidArgumentError: A time is not positive and finite.
    """

    engine: Engine
    configuration: Configuration
    q: Array
    dt_s: float
    brake_s: float
    velocity_limit: Array
    actuators: Actuators | None = None
    measuring: RobotSensors | None = None
    free: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for name, time_s in (("dt_s", self.dt_s), ("brake_s", self.brake_s)):
            if not 0.0 < time_s < math.inf:
                raise InvalidArgumentError(f"{name} is {time_s:g}: expected a positive number of seconds", path=name)
        self.v: Array = np.zeros(self.configuration.nv)
        self.steps = 0
        self.simulated = True
        self._acting: Array = np.zeros(self.configuration.nv)
        self._fault: Fault = ""
        self._deceleration: Array | None = None
        self._pushes: list[tuple[Wrench, int]] = []
        self._feels = self.measuring is not None and self.measuring.feels
        if self._feels:
            self.engine.feel()

    def open(self) -> Reading:
        """As `Hardware.open`."""
        self._sample(np.zeros_like(self.v), braked=True)
        return self.read()

    def close(self) -> None:
        """As `Hardware.close`."""

    def write(self, effort: Array, *, brakes: bool) -> None:
        """One step under these efforts.

        Raises:
            FailedPreconditionError: The state is no longer finite; names the step, its time and the joint.
        """
        self._end_pushes()
        told = effort if self.actuators is None else self.actuators.act(effort)
        before = self.q, self.v
        self.steps += 1
        self._acting, self._fault = told, ""
        braked = brakes
        if brakes:
            self._brake(told)
        else:
            self._deceleration = None
            self.q, self.v = self.engine.step(*before, told, self.dt_s)
            if np.isfinite(self.v).all() and not (np.abs(self.v) < self.velocity_limit).all():
                self.q, self.v = before
                self._brake(told)
                braked, self._fault = True, "velocity"
        if not math.isfinite(self.q.sum() + self.v.sum()):  # or the sum alone has overflowed
            finite = self.configuration.finite(self.q, self.v)
            if not finite.all():
                motion = (*before, self.engine.acceleration(*before, told))
                inner = self.dt_s / self.engine.substeps
                raise no_longer_finite(self.configuration, self.steps, self.time_s, inner, motion, finite)
        self._sample((self.v - before[1]) / self.dt_s, braked=braked)

    def read(self) -> Reading:
        """As `Hardware.read`."""
        if self.measuring is None:
            return Reading(self.q, self.v, self._acting, fault=self._fault)
        q, v = self.measuring.measured(self.q, self.v)
        return Reading(q, v, self._acting, fault=self._fault, truth=Motion(self.q, self.v))

    @property
    def time_s(self) -> float:
        """Simulated time since it was made."""
        return self.steps * self.dt_s

    def push(self, wrench: Wrench, steps: int) -> None:
        """Lets a wrench act for the coming steps, beside those that act already.

        Raises:
            UnimplementedError: The engine takes none.
        """
        self.engine.push([*(each for each, _ in self._pushes), wrench])
        self._pushes.append((wrench, self.steps + steps))

    @property
    def pushes(self) -> Sequence[Wrench]:
        """The wrenches that act."""
        return [wrench for wrench, _ in self._pushes]

    def end_pushes(self) -> None:
        """Nothing pushes any more."""
        if self._pushes:
            self._pushes = []
            self.engine.push([])

    def change_engine(self, engine: Engine) -> None:
        """Lets another engine go on from here, pushed as the one before."""
        if self._pushes:
            engine.push(self.pushes)
        if self._feels:
            engine.feel()
        self.engine = engine

    def set_state(self, q: Array, v: Array) -> None:
        """Puts it at q (nq,), v (nv,): motors and brakes begin anew. Sensors go on from there."""
        self.q, self.v = q, v
        self._deceleration = None
        self._acting = np.zeros_like(v)
        if self.actuators is not None:
            self.actuators.reset()

    def _end_pushes(self) -> None:
        if self._pushes and any(end <= self.steps for _, end in self._pushes):
            self._pushes = [(wrench, end) for wrench, end in self._pushes if end > self.steps]
            self.engine.push(self.pushes)

    def _sample(self, a: Array, *, braked: bool) -> None:
        if self.measuring is None:
            return
        acting = self.pushes
        if self._feels:
            engine = self.engine
            held = braked and (self.free is None or not self.steps)
            acting = [*acting, *(engine.felt_at(self.q, self.v, a) if held else engine.felt())]
        self.measuring.sample(self.time_s, self.q, self.v, a, acting)

    def _brake(self, told: Array) -> None:
        """One step towards rest, at the deceleration that was due when the brakes were shut."""
        if not self.v.any() and self.free is None:
            return
        if self._deceleration is None:
            self._deceleration = np.abs(self.v) / self.brake_s
        slower = np.maximum(np.abs(self.v) - self._deceleration * self.dt_s, 0.0) * np.sign(self.v)
        if self.free is not None:
            slower[self.free] = np.nan
            self.q, self.v = self.engine.step(self.q, self.v, np.where(self.free, told, 0.0), self.dt_s, slower)
            return
        self.q = self.configuration.integrate(self.q, 0.5 * (self.v + slower), self.dt_s)
        self.v = slower
