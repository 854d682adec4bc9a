"""Reference motions with exact velocity and acceleration.

    q_ref(t), q_ref-dot = N(q_ref) v_ref, a_ref = d v_ref / dt        t in s since the reference began

Every motion begins at a measured state (q0, v0) with zero acceleration, and is twice continuously differentiable:

- `MultiSine`: from (q0, v0) to a centre by a quintic, while sines about the centre fade in. With the same minimum-jerk
  fade s(t) for both, a start at rest gives (1 - s) q0 + s (centre + sines): a convex combination of two positions
  within the limits, therefore within the limits.
- `PointToPoint`: minimum-jerk moves between waypoints, from rest to rest, with a pause at each.
- `Piecewise`: polynomials from `joint_goals.py`; their accelerations may jump if a goal has no accelerations.

For joints with several degrees of freedom, whose positions do not add, these sums become motions in sequence, each
along its own direction in the body's axes. A motion x(t) after one with q, v, a gives

    q_ref = q exp(x),    v_ref = Ad v + x',    a_ref = Ad a + x'' - [x', Ad v],    Ad = Ad(exp(-x))

with the Lie bracket: exact if x, x' and x'' of a joint are parallel. A point-to-point move therefore follows the
`difference` of its ends, and in a multi-sine the entries of one joint share their phases. For joints whose positions
add, Ad is 1 and the bracket 0.

Source of the quintic: Flash and Hogan, The coordination of arm movements, J. Neurosci. 5 (1985), with a first velocity.
Of motions in sequence: Murray, Li, Sastry, A Mathematical Introduction to Robotic Manipulation (1994), 2.4.
Checked by: tests/control/test_trajectory.py, against finite differences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.support.optional import load
from dyn_service.support.suggestions import did_you_mean


class _AnyFlat(Configuration):
    """Any number of joints whose positions add."""

    def integrate(self, q: ArrayLike, v: ArrayLike, dt: ArrayLike = 1.0) -> Array:
        return np.asarray(q + np.multiply(v, dt))

    def difference(self, q: ArrayLike, to: ArrayLike) -> Array:
        return np.subtract(to, q)


FLAT = _AnyFlat((), ())


class Reference(NamedTuple):
    """q (..., nq) rad | m, v (..., nv) rad/s | m/s, a (..., nv) rad/s^2 | m/s^2."""

    q: Array
    v: Array
    a: Array

    def then(self, on: Configuration, x: Array, rate: Sequence[Array], bend: Sequence[Array]) -> Reference:
        """Returns this motion followed by the motion x (..., nv) rad | m in the body's axes; for a joint with several
        degrees of freedom, always along one direction. rate, bend: terms (..., nv) of dx/dt and of d2x/dt2.
        """
        v, a = self.v, self.a
        if any(v[..., part].any() or a[..., part].any() for _, part in _several(on)):
            v, a = on.carried(x, np.stack([v, a]))
            a = a - on.bracket(sum(rate[1:], rate[0]), v)
        return Reference(on.integrate(self.q, x), sum(rate, v), sum(bend, a))


class ReferenceTrajectory(ABC):
    """A reference motion. kind: its name in messages."""

    kind: ClassVar[str]

    @abstractmethod
    def sample(self, t: ArrayLike) -> Reference:
        """Returns the reference at the times `t` (...) s; for t < 0 that at 0."""

    def to_wire(self) -> dict[str, Any]:
        """Returns the motion as a map of plain numbers, for `from_wire`."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        on: Configuration = values.pop("on")
        plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        return {"kind": self.kind, **plain, **({} if on.flat else {"joints": on.to_wire()})}


@dataclass(frozen=True, eq=False)
class MultiSine(ReferenceTrajectory):
    """Sines about a centre, faded in over `ramp_s`.

    q0, centre: (nq,). v0: (nv,). amplitude: (K, nv) rad | m. frequency: (K,) rad/s. phase: (K, nv) rad. on: the joints;
    by default positions add.

    Raises:
        InvalidArgumentError: The sines of a joint with several degrees of freedom are not along one direction: their
            phases differ, or the ratios of their amplitudes differ between harmonics.
    """

    kind = "multi_sine"
    q0: Array
    v0: Array
    centre: Array
    amplitude: Array
    frequency: Array
    phase: Array
    ramp_s: float
    on: Configuration = FLAT

    def __post_init__(self) -> None:
        for name, part in _several(self.on):
            if np.any(self.phase[:, part] != self.phase[:, part][:, :1]) or not _parallel(self.amplitude[:, part]):
                raise InvalidArgumentError(f"multi_sine: the sines of joint '{name}' are not along one direction")

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
        start = quintic(self.q0, self.v0, self.centre, self.ramp_s, time, self.on)
        return start.then(self.on, fade * q, (rise * q, fade * v), (bend * q, 2.0 * rise * v, fade * a))


@dataclass(frozen=True, eq=False)
class PointToPoint(ReferenceTrajectory):
    """Moves between waypoints in a cycle: each move takes `move_s`, then a pause of `dwell_s`.

    q0: (nq,). v0: (nv,). points: (K, nq) rad | m. on: the joints; by default positions add.
    """

    kind = "point_to_point"
    q0: Array
    v0: Array
    points: Array
    move_s: float
    dwell_s: float
    on: Configuration = FLAT

    def sample(self, t: ArrayLike) -> Reference:
        """The reference at the times `t` (...) s."""
        time = np.maximum(np.asarray(t, dtype=np.float64), 0.0)
        cycle = self.move_s + self.dwell_s
        leg = np.floor_divide(time, cycle).astype(np.int64)
        count = len(self.points)
        first = (leg == 0)[..., None]
        begin = np.where(first, self.q0, self.points[(leg - 1) % count])
        speed = np.where(first, self.v0, 0.0)
        end = self.points[leg % count]
        return quintic(begin, speed, end, self.move_s, (time - leg * cycle)[..., None], self.on)


@dataclass(frozen=True, eq=False)
class Piecewise(ReferenceTrajectory):
    """Polynomials in time for joints whose positions add; holds the last position afterwards.

    knots: (k + 1,) s, increasing from 0. coefficients: (k, 6, n), of 1, s, .., s^5 with s the time since the knot.

    Raises:
        MissingLibraryError: SciPy is not installed.
    """

    kind = "piecewise"
    knots: Array
    coefficients: Array
    on: Configuration = FLAT

    def sample(self, t: ArrayLike) -> Reference:
        """The reference at the times `t` (...) s."""
        time = np.asarray(t, dtype=np.float64)
        over = (time >= self.knots[-1])[..., None]
        q, v, a = (self._polynomials(np.clip(time, 0.0, self.knots[-1]), order) for order in range(3))
        return Reference(q, np.where(over, 0.0, v), np.where(over, 0.0, a))

    @cached_property
    def _polynomials(self) -> Any:
        coefficients = np.moveaxis(self.coefficients[:, ::-1], 0, 1)  # the highest power first
        return splines().PPoly(np.ascontiguousarray(coefficients), self.knots)

    @property
    def duration_s(self) -> float:
        """Duration of the motion, s."""
        return float(self.knots[-1])


class MultiSineDesign(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sines about a centre.

    period_s: of the first harmonic. harmonics: their number. range_fraction: share of the distance from the centre to
    the nearer limit. velocity_fraction: share of the velocity limit. max_amplitude: rad | m. ramp_s: time from rest to
    full motion. centre: rad | m, one number per position; empty is the middle of the limits, or the plant's position at
    the beginning for joints without limits.
    """

    period_s: Annotated[float, msgspec.Meta(gt=0)] = 6.0
    harmonics: Annotated[int, msgspec.Meta(ge=1)] = 3
    range_fraction: float = 0.5
    velocity_fraction: float = 0.5
    max_amplitude: float = 0.6
    ramp_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    centre: list[float] = []


def design_multi_sine(
    design: MultiSineDesign, limits: Limits, q0: ArrayLike, v0: ArrayLike, on: Configuration = FLAT
) -> MultiSine:
    """Returns a multi-sine from q0 (nq,), v0 (nv,) within the limits: faded in, |q - centre| and |v| are within the
    design's fractions of them. A joint with several degrees of freedom oscillates along one direction in its body's
    axes. limits: position limits of joints with several degrees of freedom are ignored. on: the joints; by default
    positions add.

    Raises:
        InvalidArgumentError: A number of the design is out of range, the limits have another length, the centre is
            outside of them, or one of its quaternions is not of length 1.
    """
    start, speed = np.asarray(q0, dtype=np.float64), np.asarray(v0, dtype=np.float64)
    if design.period_s <= 0.0 or design.ramp_s <= 0.0 or design.harmonics < 1:
        raise InvalidArgumentError("period_s, ramp_s and harmonics of a multi-sine must be positive")
    if limits.lower.shape != limits.upper.shape:
        raise InvalidArgumentError("lower and upper limits differ in length")
    if limits.lower.shape != start.shape or limits.velocity.shape != speed.shape:
        raise InvalidArgumentError(
            f"limits are of {limits.lower.size} positions and {limits.velocity.size} velocities, the state has "
            f"{start.size} and {speed.size}"
        )
    bounded = np.isfinite(limits.lower) & np.isfinite(limits.upper)
    with np.errstate(invalid="ignore"):
        middle = np.where(bounded, 0.5 * (limits.lower + limits.upper), start)
    if design.centre:
        if len(design.centre) != start.size:
            raise InvalidArgumentError(f"centre has {len(design.centre)} numbers, the robot {start.size} positions")
        middle = np.array(design.centre)
        on.check_unit(middle, "the centre", "multi_sine.centre")
    room = _by_velocity(on, np.minimum(middle - limits.lower, limits.upper - middle))
    if np.any(room < 0.0):
        tightest = int(np.argmin(room))
        name = repr(on.velocity_names[tightest]) if on.names else tightest
        raise InvalidArgumentError(f"the centre of joint {name} is outside of its limits")
    order = np.arange(1, design.harmonics + 1, dtype=np.float64)
    weight = (1.0 / order) / np.sum(1.0 / order)
    frequency = 2.0 * np.pi / design.period_s * order
    size = np.minimum(design.range_fraction * room, design.max_amplitude)
    # |v| <= size (1.875 / ramp_s + sum_k w_k omega_k): the fade's steepest slope is 1.875 / ramp_s.
    fastest = 1.875 / design.ramp_s + float(weight @ frequency)
    size = np.minimum(size, design.velocity_fraction * limits.velocity / fastest)
    joint = np.arange(speed.size, dtype=np.float64)
    for _, part in _several(on):
        joint[part] = joint[part][0]
        along = np.arange(part.stop - part.start)
        size[part] *= (-1.0) ** along * (1.0 - 0.5 * along / along.size)  # so that its entries differ
    phase = 2.0 * np.pi * np.modf(0.6180339887498949 * (joint[None, :] * design.harmonics + order[:, None]))[0]
    return MultiSine(start, speed, middle, weight[:, None] * size, frequency, phase, design.ramp_s, on)


def min_jerk(s: Array) -> tuple[Array, Array, Array]:
    """10 s^3 - 15 s^4 + 6 s^5 and its first two derivatives by s, with s clipped to 0 .. 1."""
    x = np.clip(s, 0.0, 1.0)
    rest = 1.0 - x
    return (
        x * x * x * (10.0 + x * (6.0 * x - 15.0)),
        30.0 * x * x * rest * rest,
        60.0 * x * rest * (1.0 - 2.0 * x),
    )


def quintic(q0: Array, v0: Array, q1: Array, duration_s: float, t: Array, on: Configuration = FLAT) -> Reference:
    """Motion from (q0, v0, zero acceleration) to rest at q1 in `duration_s`. `t` broadcasts with the joints.

    A joint with several degrees of freedom follows the `difference` from q0 to q1, followed by a motion along v0.
    """
    x = np.clip(t / duration_s, 0.0, 1.0)
    rest = 1.0 - x
    blend, rise, bend = min_jerk(x)
    # x - 6 x^3 + 8 x^4 - 3 x^5: slope 1 at 0; value, slope and curvature 0 at 1.
    coast = x * rest**3 * (1.0 + 3.0 * x)
    slope = rest * rest * (1.0 + x * (2.0 - 15.0 * x))
    curve = -12.0 * x * rest * (3.0 - 5.0 * x)
    way = on.difference(q0, q1)
    moved = Reference(on.integrate(q0, way * blend), way * rise / duration_s, way * bend / duration_s**2)
    if not on.flat and not np.any(v0):
        return moved
    return moved.then(on, v0 * duration_s * coast, (v0 * slope,), (v0 * curve / duration_s,))


def splines() -> Any:
    """Imports `scipy.interpolate`, or raises `MissingLibraryError`; slow, not for a loop."""
    return load("a trajectory goal", "scipy.interpolate")


def from_wire(wire: Mapping[str, Any]) -> ReferenceTrajectory:
    """Returns the motion written by `to_wire`.

    Raises:
        InvalidArgumentError: The kind is unknown or a number is missing.
    """
    kinds: dict[str, type[Any]] = {each.kind: each for each in (MultiSine, PointToPoint, Piecewise)}
    values = dict(wire)
    joints = values.pop("joints", ())
    kind = str(values.pop("kind", None))
    if kind not in kinds:
        near = did_you_mean(kind, kinds)
        raise InvalidArgumentError(f"unknown trajectory {kind!r}: expected one of {', '.join(sorted(kinds))}{near}")
    try:
        built: ReferenceTrajectory = kinds[kind](
            **{k: np.asarray(v, dtype=np.float64) if isinstance(v, list) else float(v) for k, v in values.items()},
            on=Configuration.from_wire(joints) if joints else FLAT,
        )
    except (TypeError, KeyError) as error:
        raise InvalidArgumentError(f"trajectory {kind!r}: {error}") from None
    return built


def _parallel(rows: Array) -> bool:
    """Whether all rows are parallel, up to rounding."""
    size = np.abs(rows).max(initial=0.0)
    if size == 0.0:
        return True
    unit = rows[np.argmax(np.abs(rows).max(axis=1))] / size
    unit /= np.linalg.norm(unit)
    return bool(np.abs(rows - np.outer(rows @ unit, unit)).max() <= 1e-12 * size)


def _several(on: Configuration) -> list[tuple[str, slice]]:
    """Names and velocity slices of joints with several degrees of freedom."""
    joints = zip(on.names, on.joints, on.v_slices, strict=True)
    return [(name, part) for name, joint, part in joints if joint.nv > 1]


def _by_velocity(on: Configuration, x: Array) -> Array:
    """Entries (nq,) of positions as entries (nv,) of velocities; infinite for multi-degree-of-freedom joints."""
    if on.flat:
        return x
    found = np.full(on.nv, np.inf)
    for joint, in_q, in_v in zip(on.joints, on.q_slices, on.v_slices, strict=True):
        if joint.nv == 1:
            found[in_v] = x[in_q]
    return found
