"""A simulated robot: an engine, brakes, motors, gears and sensors. No sockets, no clock.

Motors, `Actuators`, delay, lag and limit the effort:

    command  ->  n steps later  ->  x-dot = (u - x) / T  ->  clipped to +-limit  ->  acts

The command is held through a step, so the lag is exact, and the acting effort is the mean over the step: no impulse is
lost for any step size. Then the limits of current, heat and voltage act (`motors.py`), with the rotor's velocity, and
elastic gears between rotors and links (`gears.py`).

Brakes are strong: once shut they stop every joint within `brake_s` at a constant deceleration, the same share of each
joint's speed, whatever acts on it, and hold it there. Motors working against shut brakes move nothing. A base has no
brake: it falls, and the ground supports it with its legs held. With an elastic gear they hold the rotor. A joint that
would exceed its velocity limit within a step is braked from the beginning of that step, as by a drive whose own loop is
faster than its commands; the reading then has the fault `velocity`.

Sensors, `RobotSensors`, are those of `dyn_service.sensors`, sampled as the robot moves. They get the mean acceleration
of the previous step, and the mean contact wrenches on the links in it. A joint without an encoder is measured exactly;
velocities are differences of encoder positions or, as of drives with a tachometer, the true ones. With elastic gears
encoders are at the rotors, or at the links. The velocity limit is that of the measured side.
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
from dyn_service.control.plant.gears import Gears
from dyn_service.control.plant.motors import Motors
from dyn_service.control.plant.plant import Fault, Motion, Reading
from dyn_service.control.plant.safety import is_too_fast, too_fast_words
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.sensors import Reading as SensorReading
from dyn_service.sensors import Sensors
from dyn_service.simulation.divergence import no_longer_finite
from dyn_service.simulation.engines import Engine

MAX_DELAY_STEPS = 10_000
_ROUNDING = 1e-9
"""Share of a step's first speeds that is rounding where they should end."""


@dataclass
class Actuators:
    """The motors of one robot, one per entry of v.

    dt_s: the step. effort_limit: (nv,) N m | N, infinite if unlimited. delay_steps: steps before a command takes
    effect, at most `MAX_DELAY_STEPS`. lag_s: (nv,) s, the time constant T; 0 is no lag. saturated: (nv,) steps in which
    a motor was at its limit.

    Raises:
        InvalidArgumentError: The step is not positive, the delay is out of range, or a limit or lag is negative, not
            finite, or not one per entry.
    """

    dt_s: float
    effort_limit: Array
    delay_steps: int
    lag_s: Array
    saturated: Array = field(init=False)

    def __post_init__(self) -> None:
        _check_time("dt_s", self.dt_s)
        steps = self.delay_steps
        if isinstance(steps, bool) or not (isinstance(steps, int | np.integer) and 0 <= steps <= MAX_DELAY_STEPS):
            raise _wrong("actuators.delay_steps", steps, f"a whole number, 0 to {MAX_DELAY_STEPS}")
        self.effort_limit, self.lag_s = np.array(self.effort_limit, float), np.array(self.lag_s, float)
        n = self.effort_limit.shape
        if len(n) != 1 or not (self.effort_limit >= 0.0).all():
            raise _wrong("actuators.effort_limit", self.effort_limit.tolist(), "numbers that are not negative")
        if self.lag_s.shape != n or not (np.isfinite(self.lag_s) & (self.lag_s >= 0.0)).all():
            raise _wrong("actuators.lag_s", self.lag_s.tolist(), "times of at least 0 s, one number or one per effort")
        with np.errstate(divide="ignore"):
            ratio = np.where(self.lag_s > 0.0, self.dt_s / self.lag_s, np.inf)
        self._end_share = np.exp(-ratio)  # share of the difference at the end of a step
        self._mean_share = np.where(self.lag_s > 0.0, (1.0 - self._end_share) / ratio, 0.0)  # its mean over the step
        self.saturated = np.zeros(n, dtype=np.int64)
        self.reset()

    def reset(self) -> None:
        """Clears all commands and efforts."""
        zeros = np.zeros(self.effort_limit.shape)
        self._pending_commands: deque[Array] = deque([zeros] * int(self.delay_steps))
        self._lagged = zeros

    def act(self, command: Array) -> Array:
        """Returns the efforts (nv,) that act in the coming step, with `command` (nv,) given at its beginning."""
        self._pending_commands.append(command)
        arrived = self._pending_commands.popleft()
        lag = self._lagged - arrived
        self._lagged = arrived + self._end_share * lag
        # The mean over the step: the value at its end would lose impulse in proportion to dt / T.
        unlimited = arrived + self._mean_share * lag
        acting_effort: Array = np.clip(unlimited, -self.effort_limit, self.effort_limit)
        self.saturated += acting_effort != unlimited
        return acting_effort


def _check_time(name: str, time_s: float) -> None:
    if not 0.0 < time_s < math.inf:
        raise _wrong(name, f"{time_s:g}", "a positive number of seconds")


def _wrong(path: str, value: object, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{path} is {value}: expected {expected}", path=path)


Velocities = Literal["encoders", "measured"]


class RobotSensors:
    """The sensors of one simulated robot. sensors: of the true robot. velocities: source for joints with encoders.
    readings: the latest of each sensor, by name.
    """

    def __init__(self, sensors: Sensors, configuration: Configuration, velocities: Velocities = "encoders") -> None:
        self.sensors, self.readings = sensors, dict[str, SensorReading]()
        slices = zip(configuration.q_slices, configuration.v_slices, strict=True)
        places = dict(zip(configuration.names, slices, strict=True))
        self._places = {name: places[name] for name in sensors.settings.encoders}
        self._differences = velocities == "encoders"
        self._first_state: tuple[Array, Array] | None = None

    def sample(
        self, t: float, q: Array, v: Array, a: Array, pushes: Sequence[Wrench] = (), encoder_q: Array | None = None
    ) -> None:
        """Samples the sensors that are due, at the state q (nq,), v, a (nv,) at t, s, under these wrenches.

        encoder_q: (nq,), positions at the encoders; None: q.
        """
        if self._first_state is None:
            self._first_state = (q if encoder_q is None else encoder_q), v
        self.readings = self.sensors.read(t, q, v, a, wrenches=tuple(pushes) or None, encoder_q=encoder_q)

    def measured(self, q: Array, v: Array) -> tuple[Array, Array]:
        """Returns the measured q and v, for those at the encoders; before its first reading an encoder shows its first
        position.
        """
        if self._first_state is None or not self._places:
            return q, v
        q, v = q.copy(), v.copy()
        for name, (in_q, in_v) in self._places.items():
            reading = self.readings.get(name)
            position, velocity = (self._first_state[0][in_q], 0.0) if reading is None else reading.value
            q[in_q] = position
            if self._differences:
                v[in_v] = velocity
        return q, v


@dataclass
class SimulatedRobot:
    """A simulated robot; implements `Hardware`.

    q: (nq,) first position. dt_s: a step. brake_s: time in which the brakes stop it. velocity_limit: (nv,), infinite if
    unlimited. actuators, measuring: motors and sensors; None are ideal ones. free: (nv,) entries of v without a brake;
    None if all have one. brakes_hold_all: whether the other brakes hold the free entries too, by closed loops. motors:
    their currents, voltages and heat; None has no limits. gears: elastic gears, with the engine of the links alone;
    None: all are rigid.

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
    brakes_hold_all: bool = False
    motors: Motors | None = None
    gears: Gears | None = None

    def __post_init__(self) -> None:
        _check_time("dt_s", self.dt_s)
        _check_time("brake_s", self.brake_s)
        self.v: Array = np.zeros(self.configuration.nv)
        if self.gears is not None:
            self.gears.reset(self.q, self.v)
        self.steps = 0
        self.simulated = True
        self._acting: Array = np.zeros(self.configuration.nv)
        self._fault: Fault = ""
        self._reason = ""
        self._deceleration: Array | None = None
        self._pushes: list[tuple[Wrench, int]] = []
        # by force/torque sensors only
        self._measures_wrenches = self.measuring is not None and bool(self.measuring.sensors.settings.force_torque)
        if self._measures_wrenches:
            self.engine.record_contacts()
            if self.gears is not None:
                self.gears.records_contacts = True

    def open(self) -> Reading:
        if self.measuring is not None:
            self._sample(self.measuring, np.zeros_like(self.v), braked=True)
        return self.read()

    def close(self) -> None:
        pass

    def write(self, effort: Array, *, brakes: bool) -> None:
        """Makes one step with these efforts.

        Raises:
            FailedPreconditionError: The state is no longer finite; names the step, its time and the joint.
        """
        if self._pushes:
            self._end_pushes()
        acting_effort = effort if self.actuators is None else self.actuators.act(effort)
        if self.motors is not None:
            acting_effort = self.motors.act(acting_effort, self._motor_velocity, self.time_s)
        previous_state, previous_gears = (self.q, self.v), None if self.gears is None else self.gears.state
        self.steps += 1
        self._acting, self._fault, self._reason = acting_effort, "", ""
        braked = brakes
        if brakes:
            self._brake(acting_effort)
        else:
            self._deceleration = None
            self._move(acting_effort)
            v = self.v if self.gears is None else self._at_encoders[1]
            if is_too_fast(v.tolist(), self.velocity_limit) and np.isfinite(v).all():
                joints = self.configuration
                # The step is done again, with brakes: a drive's own loop would have reacted within it.
                self._reason = too_fast_words(joints.velocity_names, joints.turns, v, self.velocity_limit)
                self.q, self.v = previous_state
                if self.gears is not None and previous_gears is not None:
                    self.gears.state = previous_gears
                self._brake(acting_effort)
                braked, self._fault = True, "velocity"
        # One sum, because NaN and infinity pass through it; the numbers are tested only if it fails.
        if not math.isfinite(sum(self.q.tolist() + self.v.tolist())):
            finite = self.configuration.finite(self.q, self.v)
            # Or only the sum has overflowed.
            if not finite.all():
                motion = (*previous_state, self.engine.acceleration(*previous_state, acting_effort))
                inner = self.dt_s / self.engine.substeps
                raise no_longer_finite(self.configuration, self.steps, self.time_s, inner, motion, finite)
        if self.measuring is not None:
            # The mean acceleration, because a sample of it would miss an impact within the step.
            self._sample(self.measuring, (self.v - previous_state[1]) / self.dt_s, braked=braked)

    def read(self) -> Reading:
        if self.measuring is None and self.gears is None:
            return Reading(self.q, self.v, self._acting, fault=self._fault, reason=self._reason)
        q, v = self._at_encoders
        if self.measuring is not None:
            q, v = self.measuring.measured(q, v)
        return Reading(q, v, self._acting, fault=self._fault, truth=Motion(self.q, self.v), reason=self._reason)

    @property
    def time_s(self) -> float:
        """Simulated time, s."""
        return self.steps * self.dt_s

    def push(self, wrench: Wrench, steps: int) -> None:
        """Adds a wrench for the coming steps.

        Raises:
            UnimplementedError: The engine does not support external wrenches.
        """
        self.engine.push([*(active for active, _ in self._pushes), wrench])
        self._pushes.append((wrench, self.steps + steps))

    @property
    def pushes(self) -> Sequence[Wrench]:
        """The external wrenches that act now."""
        return [wrench for wrench, _ in self._pushes]

    def end_pushes(self) -> None:
        """Removes all external wrenches."""
        if self._pushes:
            self._pushes = []
            self.engine.push([])

    def change_engine(self, engine: Engine) -> None:
        """Replaces the engine; external wrenches stay."""
        if self._pushes:
            engine.push(self.pushes)
        if self._measures_wrenches:
            engine.record_contacts()
        self.engine = engine

    def set_state(self, q: Array, v: Array) -> None:
        """Sets the state q (nq,), v (nv,) of the links and resets motors, gears and brakes, but not the sensors."""
        self.q, self.v = q, v
        if self.gears is not None:
            self.gears.reset(q, v)
        self._deceleration = None
        self._acting = np.zeros_like(v)
        if self.actuators is not None:
            self.actuators.reset()
        if self.motors is not None:
            self.motors.reset()

    def _end_pushes(self) -> None:
        if any(end <= self.steps for _, end in self._pushes):
            self._pushes = [(wrench, end) for wrench, end in self._pushes if end > self.steps]
            self.engine.push(self.pushes)

    def _sample(self, measuring: RobotSensors, a: Array, *, braked: bool) -> None:
        wrenches = self.pushes
        if self._measures_wrenches:
            engine = self.engine
            # Behind brakes the engine has made no step whose contact wrenches could be read.
            is_held = braked and ((self.free is None and self.gears is None) or not self.steps)
            source = engine if self.gears is None else self.gears
            contacts = engine.contact_wrenches_at(self.q, self.v, a) if is_held else source.contact_wrenches()
            wrenches = [*wrenches, *contacts]
        measuring.sample(self.time_s, self.q, self.v, a, wrenches, self._at_encoders[0])

    @property
    def _at_encoders(self) -> tuple[Array, Array]:
        """Position (nq,) and velocity (nv,) at the encoders."""
        return (self.q, self.v) if self.gears is None else self.gears.encoder_motion(self.q, self.v)

    @property
    def _motor_velocity(self) -> Array:
        """(nv,), where motors and brakes act."""
        return self.v if self.gears is None else self.gears.rotor_velocity(self.v)

    def _move(self, effort: Array, braked: Array | None = None) -> None:
        """Does one step of the engine, or of gears and engine. braked: as of `Engine.step`."""
        if self.gears is None:
            self.q, self.v = self.engine.step(self.q, self.v, effort, self.dt_s, braked)
        else:
            self.q, self.v = self.gears.step(self.engine, self.q, self.v, effort, self.dt_s, braked)

    def _brake(self, effort: Array) -> None:
        """Does one braked step, at the deceleration determined when the brakes were shut."""
        v = self._motor_velocity
        if self.gears is None and not v.any() and (self.free is None or self.brakes_hold_all):
            return
        if self._deceleration is None:
            self._deceleration = np.abs(v) / self.brake_s
        braked_speed = np.maximum(np.abs(v) - self._deceleration * self.dt_s, 0.0) * np.sign(v)
        if self.free is not None or self.gears is not None:
            free = np.zeros(v.shape, dtype=np.bool_) if self.free is None else self.free
            # NaN tells the engine which entries no brake holds.
            braked_speed[free] = np.nan
            previous_speed = np.abs(v).max()
            self._move(np.where(free, effort, 0.0), braked_speed)
            # What is left of a motion that brakes and loops have ended is rounding, which no loop closes.
            comes_to_rest = self.brakes_hold_all and not braked_speed[~free].any()
            if comes_to_rest and np.abs(self.v).max() <= _ROUNDING * previous_speed:
                self.v = np.zeros_like(self.v)
            return
        self.q = self.configuration.integrate(self.q, 0.5 * (self.v + braked_speed), self.dt_s)
        self.v = braked_speed
