"""Settings of sensors, one struct per kind, and the reader of sensor files.

An error of three axes is one number for all, or three. Units are those of the quantity, here u: N, N m, m/s^2, rad/s.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from dyn_service.errors import InvalidArgumentError
from dyn_service.support.documents import Document, read_document
from dyn_service.support.validation import MismatchError, convert, dotted

LARGEST = 1e300
"""Numbers in sensor files are finite."""

MAX_SENSORS = 1000
"""Of one robot."""

MAX_LATENCY_SAMPLES = 100_000
"""Maximum number of delayed readings in flight."""

Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Size = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Positive = Annotated[float, Meta(gt=0.0, le=LARGEST)]
Three = tuple[float, float, float]
# Bounds are checked by `_bounded`: msgspec 0.22 reads wrong ones of a union with a tuple.
Numbers = float | Three
"""One number for all axes, or one for each."""
Section = tuple[float, float, float, float, float, float]


def _per_axis(numbers: float | tuple[float, ...]) -> tuple[float, ...]:
    return numbers if isinstance(numbers, tuple) else (numbers,)


def _bounded(name: str, numbers: float | tuple[float, ...], minimum: float = -LARGEST) -> None:
    for number in _per_axis(numbers):
        if not minimum <= number <= LARGEST:
            expected = "a finite number" if minimum < 0.0 else "a finite number, at least 0"
            raise InvalidArgumentError(f"{name} must be {expected}, found {number:g}")


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all settings: unknown keys are errors."""


class Filter(_Settings, frozen=True, kw_only=True):
    """Low-pass filter applied before clipping and rounding: by its cutoff, or section by section.

    cutoff_hz: where a Butterworth filter of `order` 1 or 2 has half the power. sections: b0 b1 b2 a0 a1 a2 of each
    second-order section, as SciPy's `sos`, instead of both.
    """

    cutoff_hz: Positive | None = None
    order: Literal[1, 2] = 1
    sections: tuple[Section, ...] | None = None

    def __post_init__(self) -> None:
        if (self.cutoff_hz is None) == (self.sections is None):
            count = "neither" if self.sections is None else "both"
            raise InvalidArgumentError(f"a filter has a cutoff_hz or sections, found {count}")
        for section in self.sections or ():
            _bounded("sections", section)
        for k, (_, _, _, a0, a1, a2) in enumerate(self.sections or ()):
            if not (abs(a2) < abs(a0) and abs(a1) < abs(a0) * (1.0 + a2 / a0)):  # the triangle in which poles are < 1
                raise InvalidArgumentError(f"sections[{k}] is not stable: a0, a1, a2 are {a0:g}, {a1:g}, {a2:g}")


class Errors(_Settings, frozen=True, kw_only=True):
    """Errors of a three-axis sensor.

    bias: u, the same in every run. bias_spread: u, standard deviation of a further bias drawn at each reset: that of
    switching on. bias_walk: u/sqrt(s), of a bias that wanders, by that much in the first second, by twice as much in
    four. noise_density: u/sqrt(Hz), white, as in Allan plots: the mean over T s has the standard deviation
    noise_density / sqrt(T). (A one-sided density, as of a spectrum analyser, is sqrt(2) of it.) range: u, readings end
    at +-range. step: u, of one count; readings are whole counts.
    """

    bias: Numbers = 0.0
    bias_spread: Numbers = 0.0
    bias_walk: Numbers = 0.0
    noise_density: Numbers = 0.0
    range: Numbers | None = None
    step: Numbers = 0.0

    def __post_init__(self) -> None:
        _bounded("bias", self.bias)
        for name in ("bias_spread", "bias_walk", "noise_density", "step"):
            _bounded(name, getattr(self, name), minimum=0.0)
        if self.range is not None:
            _bounded("range", self.range, minimum=0.0)
            if 0.0 in _per_axis(self.range):
                raise InvalidArgumentError("range must be more than 0, found 0")


class _Sampled(_Settings, frozen=True, kw_only=True):
    """rate_hz: how often it samples. latency_s: how long after it a sample is handed out."""

    rate_hz: Positive
    latency_s: Size = 0.0

    def _check(self, name: str, low_pass: Filter | None) -> None:
        if low_pass is not None and (low_pass.cutoff_hz or 0.0) >= 0.5 * self.rate_hz:
            form = f"expected less than half of rate_hz, {0.5 * self.rate_hz:g}"
            raise InvalidArgumentError(f"{name}.cutoff_hz is {low_pass.cutoff_hz:g}, {form}")
        if self.latency_s * self.rate_hz > MAX_LATENCY_SAMPLES:
            limit = f"{MAX_LATENCY_SAMPLES} samples, {MAX_LATENCY_SAMPLES / self.rate_hz:g} s"
            raise InvalidArgumentError(f"latency_s is {self.latency_s:g}, expected at most {limit}")


class _Mounted(_Sampled, frozen=True, kw_only=True):
    """xyz, rpy: m, rad, as in the queries `force_torque` and `imu`."""

    xyz: Three = (0.0, 0.0, 0.0)
    rpy: Three = (0.0, 0.0, 0.0)
    filter: Filter | None = None

    def __post_init__(self) -> None:
        self._check("filter", self.filter)
        _bounded("xyz", self.xyz)
        _bounded("rpy", self.rpy)


class ForceTorqueSettings(_Mounted, frozen=True, kw_only=True):
    """A force/torque sensor in a joint. direction: as in the query `force_torque`."""

    joint: str
    direction: Literal["parent_on_child", "child_on_parent"] = "parent_on_child"
    force: Errors = Errors()
    torque: Errors = Errors()


class ImuSettings(_Mounted, frozen=True, kw_only=True):
    """An inertial measurement unit on a link."""

    link: str
    accelerometer: Errors = Errors()
    gyroscope: Errors = Errors()


class EncoderSettings(_Sampled, frozen=True, kw_only=True):
    """An encoder of a joint that turns about or slides along one axis.

    step: rad | m per count; or counts_per_turn of the encoder, and gear_ratio, its turns for one of the joint. offset:
    rad | m, added to the position. noise: rad | m, standard deviation of each sample. velocity_samples: the velocity is
    the difference of positions so many samples apart, over that time. velocity_filter: what it then goes through.
    """

    step: Positive | None = None
    counts_per_turn: Positive | None = None
    gear_ratio: Positive = 1.0
    offset: Number = 0.0
    noise: Size = 0.0
    velocity_samples: Annotated[int, Meta(ge=1, le=10_000)] = 1
    velocity_filter: Filter | None = None

    def __post_init__(self) -> None:
        self._check("velocity_filter", self.velocity_filter)
        if (self.step is None) == (self.counts_per_turn is None):
            count = "neither" if self.step is None else "both"
            raise InvalidArgumentError(f"an encoder has a step or counts_per_turn, found {count}")

    @property
    def count(self) -> float:
        """rad | m of the joint, per count."""
        return self.step or 2.0 * math.pi / ((self.counts_per_turn or 1.0) * self.gear_ratio)


class SensorSettings(_Settings, frozen=True, kw_only=True):
    """The sensors of one robot. robot: its name. force_torque, imus: by names of their own. encoders: by joint.

    seed: of all they draw; each draws by itself, so that one more sensor leaves the others' bits as they are.
    """

    robot: str
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    force_torque: dict[str, ForceTorqueSettings] = {}
    imus: dict[str, ImuSettings] = {}
    encoders: dict[str, EncoderSettings] = {}

    def __post_init__(self) -> None:
        names = [*self.force_torque, *self.imus, *self.encoders]
        if len(names) > MAX_SENSORS:
            raise InvalidArgumentError(f"there are {len(names)} sensors, expected at most {MAX_SENSORS}")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidArgumentError(f"two sensors are called '{twice}'")


T = TypeVar("T", bound=_Settings)


def checked(settings: T) -> T:
    """The same settings, made in code, held to what a file of theirs is.

    Raises:
        InvalidArgumentError: A number is out of range; `path` names it.
    """
    try:
        return convert(msgspec.to_builtins(settings), type(settings))
    except MismatchError as error:
        raise InvalidArgumentError(error.message, path=dotted(error.place) or None) from None


class _SensorFile(_Settings, frozen=True, kw_only=True):
    """As `SensorSettings`, its sensors still to be read one by one: a fault then knows its sensor."""

    robot: str
    seed: int = 0
    force_torque: dict[str, Any] = {}
    imus: dict[str, Any] = {}
    encoders: dict[str, Any] = {}


_KINDS: dict[str, type[_Sampled]] = {
    "force_torque": ForceTorqueSettings, "imus": ImuSettings, "encoders": EncoderSettings,
}  # fmt: skip


def read_settings(path: str | os.PathLike[str]) -> tuple[SensorSettings, Document]:
    """Reads a sensor file; returns the settings and the document, for later error messages.

    Raises:
        NotFoundError: There is no such file.
        ConfigurationError: It is not a sensor file, or a number is out of range; names file, line and key.
    """
    document = read_document(Path(path))
    file = document.convert(document.value, _SensorFile)
    read: dict[str, Any] = {}
    for section, kind in _KINDS.items():
        sensors: dict[str, Any] = getattr(file, section)
        read[section] = {name: document.convert(sensor, kind, (section, name)) for name, sensor in sensors.items()}
    whole = {"robot": file.robot, "seed": file.seed}
    return document.convert({**whole, **read}, SensorSettings), document
