"""Reference motions with exact velocity and acceleration.

    q_ref(t), v_ref = d q_ref / dt, a_ref = d v_ref / dt        t in s since the reference began

Every motion begins at a measured state (q0, v0) with zero acceleration, and is twice continuously differentiable:

- `MultiSine`: from (q0, v0) to a centre by a quintic, while sines about the centre fade in. With the same minimum-jerk
  fade s(t) for both, a start at rest gives (1 - s) q0 + s (centre + sines): a blend of two positions within the limits,
  so within the limits itself.
- `PointToPoint`: minimum-jerk moves from waypoint to waypoint, each from rest to rest, with a pause between.

Source of the quintic: Flash and Hogan, The coordination of arm movements, J. Neurosci. 5 (1985), with a first velocity.
Checked by: tests/nodes/test_trajectory.py, against finite differences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError
from dyn_service.suggestions import did_you_mean


class Reference(NamedTuple):
    """q (..., n) rad | m, v (..., n) rad/s | m/s, a (..., n) rad/s^2 | m/s^2."""

    q: Array
    v: Array
    a: Array


class ReferenceTrajectory(ABC):
    """A reference motion."""

    @abstractmethod
    def sample(self, t: ArrayLike) -> Reference:
        """The reference at the times `t` (...) s; before 0 it is that of 0."""

    @abstractmethod
    def to_wire(self) -> dict[str, Any]:
        """The motion as a map of plain numbers; `from_wire` reads it."""


@dataclass(frozen=True, eq=False)
class MultiSine(ReferenceTrajectory):
    """Sines about a centre, faded in over `ramp_s`.

    q0, v0, centre: (n,). amplitude: (K, n) rad | m. frequency: (K,) rad/s. phase: (K, n) rad.
    """

    q0: Array
    v0: Array
    centre: Array
    amplitude: Array
    frequency: Array
    phase: Array
    ramp_s: float

    def sample(self, t: ArrayLike) -> Reference:
        """The reference at the times `t` (...) s."""
        time = np.maximum(np.asarray(t, dtype=np.float64), 0.0)[..., None]
        rate = self.frequency[:, None]
        angle = time[..., None] * rate + self.phase
        sine, cosine = self.amplitude * np.sin(angle), self.amplitude * np.cos(angle)
        q = sine.sum(axis=-2)
        v = (rate * cosine).sum(axis=-2)
        a = -(rate * rate * sine).sum(axis=-2)
        fade, rise, bend = min_jerk(time / self.ramp_s)
        rise, bend = rise / self.ramp_s, bend / self.ramp_s**2
        start = quintic(self.q0, self.v0, self.centre, self.ramp_s, time)
        return Reference(
            start.q + fade * q,
            start.v + rise * q + fade * v,
            start.a + bend * q + 2.0 * rise * v + fade * a,
        )

    def to_wire(self) -> dict[str, Any]:
        """The motion as a map of plain numbers."""
        return {"kind": "multi_sine", **_plain(self)}


@dataclass(frozen=True, eq=False)
class PointToPoint(ReferenceTrajectory):
    """Moves between waypoints, over and over: each takes `move_s`, then a pause of `dwell_s`.

    q0, v0: (n,). points: (K, n) rad | m.
    """

    q0: Array
    v0: Array
    points: Array
    move_s: float
    dwell_s: float

    def sample(self, t: ArrayLike) -> Reference:
        """The reference at the times `t` (...) s."""
        time = np.maximum(np.asarray(t, dtype=np.float64), 0.0)
        cycle = self.move_s + self.dwell_s
        leg = np.floor_divide(time, cycle).astype(np.int64)
        count = len(self.points)
        first = (leg == 0)[..., None]
        begin = np.where(first, self.q0, self.points[(leg - 1) % count])
        speed = np.where(first, self.v0, 0.0)
        return quintic(begin, speed, self.points[leg % count], self.move_s, (time - leg * cycle)[..., None])

    def to_wire(self) -> dict[str, Any]:
        """The motion as a map of plain numbers."""
        return {"kind": "point_to_point", **_plain(self)}


@dataclass(frozen=True)
class Bounds:
    """What a designed motion keeps to: lower and upper (n,) rad | m, velocity (n,) rad/s | m/s; infinite where free."""

    lower: Array
    upper: Array
    velocity: Array

    def __post_init__(self) -> None:
        if not self.lower.shape == self.upper.shape == self.velocity.shape:
            raise InvalidArgumentError("lower, upper and velocity limits differ in length")


@dataclass(frozen=True)
class MultiSineDesign:
    """How large and fast a multi-sine is.

    period_s: of the first harmonic. harmonics: how many. range_fraction: of the way from the centre to the nearer
    limit. velocity_fraction: of the velocity limit. max_amplitude: rad | m, also where there is no limit.
    """

    period_s: float = 6.0
    harmonics: int = 3
    range_fraction: float = 0.5
    velocity_fraction: float = 0.5
    max_amplitude: float = 0.6
    ramp_s: float = 2.0
    centre: list[float] = field(default_factory=list)


def design_multi_sine(design: MultiSineDesign, bounds: Bounds, q0: ArrayLike, v0: ArrayLike) -> MultiSine:
    """A multi-sine within the limits: |q - centre| and |v| never exceed the design's fractions of them once faded in.

    Raises:
        InvalidArgumentError: A number of the design is out of its range, or the centre is outside of the limits.
    """
    start, speed = np.asarray(q0, dtype=np.float64), np.asarray(v0, dtype=np.float64)
    if design.period_s <= 0.0 or design.ramp_s <= 0.0 or design.harmonics < 1:
        raise InvalidArgumentError("period_s, ramp_s and harmonics of a multi-sine must be positive")
    bounded = np.isfinite(bounds.lower) & np.isfinite(bounds.upper)
    with np.errstate(invalid="ignore"):
        middle = np.where(bounded, 0.5 * (bounds.lower + bounds.upper), start)
    if design.centre:
        if len(design.centre) != start.size:
            raise InvalidArgumentError(f"centre has {len(design.centre)} numbers, the robot {start.size} joints")
        middle = np.array(design.centre)
    room = np.minimum(middle - bounds.lower, bounds.upper - middle)
    if np.any(room < 0.0):
        raise InvalidArgumentError(f"the centre of joint {int(np.argmin(room))} is outside of its limits")
    order = np.arange(1, design.harmonics + 1, dtype=np.float64)
    weight = (1.0 / order) / np.sum(1.0 / order)
    frequency = 2.0 * np.pi / design.period_s * order
    size = np.minimum(design.range_fraction * room, design.max_amplitude)
    # |v| <= size (1.875 / ramp_s + sum_k w_k omega_k): the fade's steepest slope is 1.875 / ramp_s.
    fastest = 1.875 / design.ramp_s + float(weight @ frequency)
    size = np.minimum(size, design.velocity_fraction * bounds.velocity / fastest)
    joint = np.arange(start.size, dtype=np.float64)
    phase = 2.0 * np.pi * np.modf(0.6180339887498949 * (joint[None, :] * design.harmonics + order[:, None]))[0]
    return MultiSine(start, speed, middle, weight[:, None] * size, frequency, phase, design.ramp_s)


def min_jerk(s: Array) -> tuple[Array, Array, Array]:
    """10 s^3 - 15 s^4 + 6 s^5 and its first two derivatives by s, held at 0 before 0 and at 1 after 1."""
    x = np.clip(s, 0.0, 1.0)
    rest = 1.0 - x
    return (
        x * x * x * (10.0 + x * (6.0 * x - 15.0)),
        30.0 * x * x * rest * rest,
        60.0 * x * rest * (1.0 - 2.0 * x),
    )


def quintic(q0: Array, v0: Array, q1: Array, duration_s: float, t: Array) -> Reference:
    """From (q0, v0, zero acceleration) to rest at q1 in `duration_s`, then still. `t` broadcasts with the joints."""
    x = np.clip(t / duration_s, 0.0, 1.0)
    rest = 1.0 - x
    blend, rise, bend = min_jerk(x)
    # x - 6 x^3 + 8 x^4 - 3 x^5: slope 1 at 0; value, slope and curvature 0 at 1.
    coast = x * rest**3 * (1.0 + 3.0 * x)
    slope = rest * rest * (1.0 + x * (2.0 - 15.0 * x))
    curve = -12.0 * x * rest * (3.0 - 5.0 * x)
    way = q1 - q0
    return Reference(
        q0 + way * blend + v0 * duration_s * coast,
        way * rise / duration_s + v0 * slope,
        way * bend / duration_s**2 + v0 * curve / duration_s,
    )


def from_wire(wire: Mapping[str, Any]) -> ReferenceTrajectory:
    """The motion that `to_wire` wrote.

    Raises:
        InvalidArgumentError: The kind is unknown or a number is missing.
    """
    kinds: dict[str, type[Any]] = {"multi_sine": MultiSine, "point_to_point": PointToPoint}
    values = dict(wire)
    kind = str(values.pop("kind", None))
    if kind not in kinds:
        near = did_you_mean(kind, kinds)
        raise InvalidArgumentError(f"unknown trajectory {kind!r}: expected one of {', '.join(sorted(kinds))}{near}")
    try:
        built: ReferenceTrajectory = kinds[kind](
            **{k: np.asarray(v, dtype=np.float64) if isinstance(v, list) else float(v) for k, v in values.items()}
        )
    except TypeError as error:
        raise InvalidArgumentError(f"trajectory {kind!r}: {error}") from None
    return built


def _plain(trajectory: Any) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(trajectory).items()
    }
