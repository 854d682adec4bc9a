"""Sensor devices: they take true values at any time and produce readings at their own rate.

    bias, wandering bias, white noise -> low-pass filter -> range -> counts -> tare -> latency

The filter precedes the converter, so a reading, before it is tared, is within the range and a whole number of
counts. Samples are taken at multiples of 1 / rate; an offered value is used for the sample that was due last. The
same seed gives the same bits, with the same NumPy, whatever other sensors there are.

`Sensors` are those of a robot, local or remote: it computes the true values, the devices the readings.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.queries import RobotQueries, Wrench
from dyn_service.api.results import Array
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.sensors.settings import (
    EncoderSettings,
    Errors,
    Filter,
    ForceTorqueSettings,
    ImuSettings,
    Numbers,
    SensorSettings,
    checked,
    read_settings,
)
from dyn_service.support.suggestions import did_you_mean

# Times of a simulation are sums of steps, so they miss a sample's time by roundings.
_EARLY = 1e-6
"""Share of a period before its time from which a sample is due."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A reading as the sensor's driver reports it.

    stamp: s, when the sample was taken. seq: its number since time 0. value: by channel; of force/torque sensors force,
    then torque; of IMUs specific force, then angular velocity; of encoders position, velocity. clipped: the channels
    that were beyond their range.
    """

    stamp: float
    seq: int
    value: Array
    clipped: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Record:
    """Readings one after the other: stamp (S,), s; value (S, channels); clipped (S, channels)."""

    stamp: Array
    value: Array
    clipped: NDArray[np.bool_]


class Device:
    """One sensor. channels: number of true values per sample. outputs: number of values of a reading.

    Args:
        name: With the seed it says what is drawn.
        rate_hz: How often it samples.
        latency_s: How long a reading is on its way.
        errors: Of each three axes, or of one channel.
        low_pass: The filter of all channels, or none.
        seed: As for `reset`.
    """

    def __init__(
        self,
        name: str,
        rate_hz: float,
        latency_s: float,
        errors: Sequence[Errors],
        low_pass: Filter | None = None,
        *,
        axes: int = 3,
        seed: int = 0,
    ) -> None:
        self.name, self.rate_hz, self.latency_s = name, rate_hz, latency_s

        def each(numbers: Iterable[Numbers]) -> Array:
            return np.concatenate([np.broadcast_to(np.asarray(n, dtype=np.float64), axes) for n in numbers])

        self._bias, self._bias_spread = each(e.bias for e in errors), each(e.bias_spread for e in errors)
        self.channels = self.outputs = len(self._bias)
        self._bias_walk = each(e.bias_walk for e in errors)
        self._noise = each(e.noise_density for e in errors) * math.sqrt(rate_hz)
        self._range = each(math.inf if e.range is None else e.range for e in errors)
        step = each(e.step for e in errors)
        self._counts = step > 0.0
        self._unit = np.where(self._counts, step, 1.0)
        # A range of whole counts must not lose one by rounding.
        self._most = np.where(self._counts, np.floor(self._range / self._unit * (1.0 + 1e-12)), self._range)
        self._filter = _cascade(low_pass, rate_hz)
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Restarts the sensor: no samples, no tare, new biases. The same `seed` gives the same bits."""
        # By name, so that another sensor, or another order of them, does not change what this one draws.
        self._rng = np.random.default_rng([seed, *self.name.encode()])
        self._wandering = self._bias + self._bias_spread * self._rng.standard_normal(self.channels)
        self.tared = np.zeros(self.channels)
        self._taring: list[Array] = []
        self._to_tare = 0
        self._sampled: int | None = None
        self._last: Reading | None = None
        self._on_way: deque[Reading] = deque()
        if self._filter is not None:
            self._filter.reset()

    def tare(self, samples: int = 1) -> None:
        """From the last of the next `samples` on their mean is taken off what is read; until then nothing changes.

        Raises:
            InvalidArgumentError: That is no number of samples.
        """
        if samples < 1:
            raise InvalidArgumentError(f"samples is {samples}, expected at least 1", path="samples")
        self._taring, self._to_tare = [], samples

    def due(self, t: float) -> bool:
        """Whether a sample is to be taken at `t`, s.

        Raises:
            InvalidArgumentError: Time went back behind the last one.
        """
        k = self._number(t)
        if self._sampled is None:
            return True
        if k < self._sampled:
            text = f"was at {self._sampled / self.rate_hz:g} s, found t = {t:g}: reset it first"
            raise InvalidArgumentError(f"sensor '{self.name}' {text}", path="t")
        return k > self._sampled

    def offer(self, t: float, truth: ArrayLike) -> None:
        """What is true at `t`, s: (channels,). A sample is taken if one is due, one only however many are.

        Raises:
            InvalidArgumentError: Time went back, or these are not so many finite numbers.
        """
        x = np.asarray(truth, dtype=np.float64)
        if x.shape != (self.channels,) or not np.isfinite(x).all():
            text = f"sensor '{self.name}' takes {self.channels} finite numbers, found {x.tolist()}"
            raise InvalidArgumentError(text, path="truth")
        if not self.due(t):
            return
        k = self._number(t)
        value, clipped = self._measured(x, 1 if self._sampled is None else k - self._sampled)
        self._sampled = k
        self._on_way.append(Reading(k / self.rate_hz, k, value, clipped))

    def read(self, t: float) -> Reading | None:
        """Returns the newest reading available at `t`, s; None before the first."""
        while self._on_way and self._on_way[0].stamp + self.latency_s <= t + _EARLY / self.rate_hz:
            self._last = self._on_way.popleft()
        return self._last

    def record(self, t: ArrayLike, truth: ArrayLike) -> Record:
        """All samples of a motion, whenever they would come: t (K,), s, truth (K, channels).

        Raises:
            InvalidArgumentError: As `offer`.
        """
        times = np.asarray(t, dtype=np.float64)
        values = np.broadcast_to(np.asarray(truth, dtype=np.float64), (len(times), self.channels))
        readings: list[Reading] = []
        for time_s, x in zip(times.tolist(), values, strict=True):
            if self.due(time_s):
                self.offer(time_s, x)
                readings.append(self._on_way[-1])
        self.read(math.inf)
        return Record(
            np.array([reading.stamp for reading in readings]),
            np.array([reading.value for reading in readings]).reshape(-1, self.outputs),
            np.array([reading.clipped for reading in readings], dtype=bool).reshape(-1, self.outputs),
        )

    def _number(self, t: float) -> int:
        if not math.isfinite(t):
            raise InvalidArgumentError(f"t is {t}, expected a finite time", path="t")
        return math.floor(t * self.rate_hz + _EARLY)

    def _measured(self, truth: Array, periods: int) -> tuple[Array, NDArray[np.bool_]]:
        """One sample, so many periods after the one before, and which of its channels were beyond their range."""
        # Always both, so that no setting of a sensor changes the bits of its other errors.
        white, walked = self._rng.standard_normal((2, self.channels))
        if self._sampled is not None:
            self._wandering = self._wandering + self._bias_walk * math.sqrt(periods / self.rate_hz) * walked
        x = truth + self._wandering + self._noise * white
        if self._filter is not None:
            # Before the converter, as the analog filter is, so that range and resolution hold exactly.
            x = self._filter(x)
        clipped = np.abs(x) > self._range
        x = np.where(self._counts, np.rint(x / self._unit), x)
        x = np.clip(x, -self._most, self._most) * self._unit
        if self._to_tare:
            self._taring.append(x)
            if len(self._taring) == self._to_tare:
                self.tared, self._to_tare = np.mean(self._taring, axis=0), 0
        return x - self.tared, clipped


class Encoder(Device):
    """Positions in counts, and velocities as their differences: value is [position, velocity]."""

    def __init__(self, name: str, settings: EncoderSettings, *, seed: int = 0) -> None:
        settings = checked(settings)
        self._apart = settings.velocity_samples
        self._velocity_filter = _cascade(settings.velocity_filter, settings.rate_hz)
        density = settings.noise / math.sqrt(settings.rate_hz)
        errors = Errors(bias=settings.offset, noise_density=density, step=settings.count)
        super().__init__(name, settings.rate_hz, settings.latency_s, [errors], axes=1, seed=seed)
        self.outputs = 2

    def reset(self, seed: int) -> None:
        """As `Device.reset`; the velocity of its first sample is 0."""
        super().reset(seed)
        self._time = 0
        self._positions: deque[tuple[int, float]] = deque(maxlen=self._apart + 1)
        if self._velocity_filter is not None:
            self._velocity_filter.reset()

    def _measured(self, truth: Array, periods: int) -> tuple[Array, NDArray[np.bool_]]:
        position, clipped = super()._measured(truth, periods)
        self._time += periods
        # Without the tare, which would otherwise be a jump of the velocity.
        raw = float(position[0] + self.tared[0])
        self._positions.append((self._time, raw))
        first_index, first_position = self._positions[0]
        elapsed = self._time - first_index
        velocity = np.array([(raw - first_position) * self.rate_hz / elapsed if elapsed > 0 else 0.0])
        if self._velocity_filter is not None:
            velocity = self._velocity_filter(velocity)
        return np.concatenate([position, velocity]), np.append(clipped, False)


def force_torque(name: str, settings: ForceTorqueSettings, *, seed: int = 0) -> Device:
    """A force/torque sensor: 6 channels, force, then torque."""
    settings = checked(settings)
    errors = [settings.force, settings.torque]
    return Device(name, settings.rate_hz, settings.latency_s, errors, settings.filter, seed=seed)


def imu(name: str, settings: ImuSettings, *, seed: int = 0) -> Device:
    """An inertial measurement unit: 6 channels, specific force, then angular velocity."""
    settings = checked(settings)
    errors = [settings.accelerometer, settings.gyroscope]
    return Device(name, settings.rate_hz, settings.latency_s, errors, settings.filter, seed=seed)


def sections_of(low_pass: Filter, rate_hz: float) -> Array:
    """The filter's sections, (n, 6), b0 b1 b2 1 a1 a2 each."""
    if low_pass.sections is not None:
        sections = np.array(low_pass.sections, dtype=np.float64).reshape(-1, 6)
        return sections / sections[:, 3:4]
    # The bilinear transform of the analog filter, its cutoff where it belongs.
    k = math.tan(math.pi * (low_pass.cutoff_hz or 0.0) / rate_hz)
    if low_pass.order == 1:
        return np.array([[k / (1.0 + k), k / (1.0 + k), 0.0, 1.0, (k - 1.0) / (k + 1.0), 0.0]])
    damped = 1.0 + math.sqrt(2.0) * k + k * k
    b = k * k / damped
    return np.array([[b, 2.0 * b, b, 1.0, 2.0 * (k * k - 1.0) / damped, (damped - 2.0 * math.sqrt(2.0) * k) / damped]])


class Cascade:
    """Second-order sections in series, initialised in steady state at the first sample."""

    def __init__(self, sections: Array) -> None:
        self._sections: list[tuple[float, ...]] = [tuple(row) for row in sections.tolist()]
        self._state: list[tuple[Array, Array]] | None = None

    def __call__(self, x: Array) -> Array:
        """The output that belongs to the sample x (n,)."""
        if self._state is None:
            # In the steady state of the first sample: from zero, the filter would begin with a step.
            self._state, steady = [], x
            for b0, b1, b2, _, a1, a2 in self._sections:
                y = steady * ((b0 + b1 + b2) / (1.0 + a1 + a2))
                z2 = b2 * steady - a2 * y
                self._state.append((b1 * steady - a1 * y + z2, z2))
                steady = y
        for k, (b0, b1, b2, _, a1, a2) in enumerate(self._sections):
            z1, z2 = self._state[k]
            y = b0 * x + z1
            self._state[k] = (b1 * x - a1 * y + z2, b2 * x - a2 * y)
            x = y
        return x

    def reset(self) -> None:
        """Clears the filter's state."""
        self._state = None


def _cascade(low_pass: Filter | None, rate_hz: float) -> Cascade | None:
    return None if low_pass is None else Cascade(sections_of(low_pass, rate_hz))


Pushes = Wrench | Sequence[Wrench] | None


class Sensors:
    """The sensors of one robot.

    settings: what they are. devices: by name.

    Args:
        robot: A robot in this process, or one of a `Client`.
        settings: Of this robot.
        seed: In place of that of the settings.

    Raises:
        InvalidArgumentError: The settings are for another robot, or for none.
        NotFoundError: The robot has no such joint or link.
    """

    def __init__(self, robot: RobotQueries, settings: SensorSettings, *, seed: int | None = None) -> None:
        self._robot, self.settings = robot, checked(settings)
        fault = misfit(robot, self.settings)
        if fault is not None:
            place, message = fault
            kind = InvalidArgumentError if place == ("robot",) else NotFoundError
            raise kind(message, path=".".join(place))
        checked_settings = self.settings
        self._seed = seed = checked_settings.seed if seed is None else seed
        self.devices: dict[str, Device] = {
            **{name: force_torque(name, sensor, seed=seed) for name, sensor in checked_settings.force_torque.items()},
            **{name: imu(name, sensor, seed=seed) for name, sensor in checked_settings.imus.items()},
            **{name: Encoder(name, sensor, seed=seed) for name, sensor in checked_settings.encoders.items()},
        }
        slices = dict(zip(robot.configuration.names, robot.configuration.q_slices, strict=True))
        self._entry = {joint: slices[joint].start for joint in checked_settings.encoders}

    @classmethod
    def from_file(cls, robot: RobotQueries, path: str | os.PathLike[str], *, seed: int | None = None) -> Sensors:
        """Those that a sensor file says, see `sensors/settings.py`.

        Raises:
            NotFoundError: There is no such file.
            ConfigurationError: It is no sensor file, or none of this robot; names file, line and key.
        """
        settings, document = read_settings(path)
        fault = misfit(robot, settings)
        if fault is not None:
            raise document.fault(fault[1], fault[0])
        return cls(robot, settings, seed=seed)

    def of(self, robot: RobotQueries) -> None:
        """Replaces the robot that computes the ideal values by one of the same links and joints, say with a payload."""
        self._robot = robot

    def reset(self, seed: int | None = None) -> None:
        """Restarts all sensors with the seed that they were made with, or another; it determines all bits."""
        self._seed = self._seed if seed is None else seed
        for device in self.devices.values():
            device.reset(self._seed)

    def read(
        self,
        t: float,
        q: ArrayLike,
        v: ArrayLike,
        a: ArrayLike,
        *,
        gravity: ArrayLike | None = None,
        wrenches: Pushes = None,
        encoder_q: ArrayLike | None = None,
    ) -> dict[str, Reading]:
        """The newest reading that has come from each sensor by `t`, s, in the state q (nq,), v, a (nv,).

        encoder_q: (nq,) positions at the encoders, where these are not at the links; None: q.

        Those that are due sample this state: ask at least as often as they do. Sensors without a
        reading yet are omitted. The robot is not queried for sensors that are not due.

        Raises:
            DynError: What the robot raises; or time went back, and there was no `reset`.
        """
        due_names = [name for name, device in self.devices.items() if device.due(t)]
        for name, truth in self._truths(due_names, q, v, a, gravity, wrenches, encoder_q):
            self.devices[name].offer(t, truth)
        newest = {name: device.read(t) for name, device in self.devices.items()}
        return {name: reading for name, reading in newest.items() if reading is not None}

    def record(
        self,
        t: ArrayLike,
        q: ArrayLike,
        v: ArrayLike,
        a: ArrayLike,
        *,
        gravity: ArrayLike | None = None,
        wrenches: Pushes = None,
    ) -> dict[str, Record]:
        """All samples of a motion, such as one of `simulate`: t (K,), q (K, nq), v, a (K, nv); K to be at least as
        dense as the fastest sensor. They go on from those before; latency has no bearing on what is recorded.

        Raises:
            DynError: What the robot raises; or time goes back.
        """
        truths = self._truths(self.devices, q, v, a, gravity, wrenches)
        return {name: self.devices[name].record(t, truth) for name, truth in truths}

    def tare(self, samples: int = 1) -> None:
        """Tares all force/torque sensors with the mean of their next samples; `devices[name].tare` does one."""
        for name in self.settings.force_torque:
            self.devices[name].tare(samples)

    def _truths(
        self,
        names: Collection[str],
        q: ArrayLike,
        v: ArrayLike,
        a: ArrayLike,
        gravity: ArrayLike | None,
        loads: Pushes,
        encoder_q: ArrayLike | None = None,
    ) -> list[tuple[str, Array]]:
        """What ideal sensors of these names read, (..., channels), in their order; force/torque sensors that are
        mounted alike are asked for at once.
        """
        settings, robot = self.settings, self._robot
        truths: dict[str, Array] = {}
        mounts: dict[tuple[Any, ...], list[str]] = {}
        for name in names:
            if name in settings.encoders:
                k = self._entry[name]
                truths[name] = np.asarray(q if encoder_q is None else encoder_q, dtype=np.float64)[..., k : k + 1]
            elif name in settings.imus:
                unit = settings.imus[name]
                k = robot.link_names.index(unit.link)
                reading = robot.imu(q, v, a, xyz=_offset(unit.xyz), rpy=_offset(unit.rpy), gravity=gravity)
                parts = reading.specific_force, reading.angular_velocity
                truths[name] = np.concatenate([part[..., k, :] for part in parts], axis=-1)
            else:
                mounting = settings.force_torque[name]
                mounts.setdefault((mounting.xyz, mounting.rpy, mounting.direction), []).append(name)
        for (xyz, rpy, direction), sensor_names in mounts.items():
            mounted: dict[str, Any] = {"xyz": _offset(xyz), "rpy": _offset(rpy), "direction": direction}
            wrench = robot.force_torque(q, v, a, **mounted, gravity=gravity, wrenches=loads)
            truth = np.concatenate([wrench.force, wrench.torque], axis=-1)
            joints = robot.all_joint_names
            truths |= {name: truth[..., joints.index(settings.force_torque[name].joint), :] for name in sensor_names}
        return [(name, truths[name]) for name in names]


def _offset(offset: tuple[float, float, float]) -> tuple[float, float, float] | None:
    """The offset as an argument of queries: None if it is zero."""
    # Without offsets, and without a selection of rows, the robot takes the fast path for one state.
    return offset if any(offset) else None


def misfit(robot: RobotQueries, settings: SensorSettings) -> tuple[tuple[str, ...], str] | None:
    """Place and reason of the first setting that does not fit the robot; None if all fit."""
    if settings.robot != robot.name:
        return ("robot",), f"the sensors are for robot '{settings.robot}', the robot is '{robot.name}'"
    configuration, joints, links = robot.configuration, robot.all_joint_names, robot.link_names
    single = {name for name, joint in zip(configuration.names, configuration.joints, strict=True) if joint.nq == 1}
    mimics = {joint.name: joint.mimic for joint in robot.description.joints}
    for name, sensor in settings.force_torque.items():
        if sensor.joint not in joints:
            text = f"the robot has no joint '{sensor.joint}'{did_you_mean(sensor.joint, joints)}"
            return ("force_torque", name, "joint"), text
    loop_joints = {joint.name for joint in robot.description.loop_joints}
    for name in settings.encoders:
        if name in loop_joints:
            return ("encoders", name), f"joint '{name}' closes a loop and has no entry in q: name a joint of the tree"
        if name not in joints:
            return ("encoders", name), f"the robot has no joint '{name}'{did_you_mean(name, joints)}"
        if (followed := mimics.get(name)) is not None:
            text = f"joint '{name}' follows '{followed.joint}' and has no entry in q: name that one"
            return ("encoders", name), text
        if name not in single:
            text = f"joint '{name}' has no encoder, expected one that turns about or slides along one axis"
            return ("encoders", name), text
    for name, unit in settings.imus.items():
        if unit.link not in links:
            return ("imus", name, "link"), f"the robot has no link '{unit.link}'{did_you_mean(unit.link, links)}"
    return None
