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
from collections.abc import Callable, Mapping
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
    """A reference: q (..., nq) rad | m, v (..., nv) rad/s | m/s, a (..., nv) rad/s^2 | m/s^2."""

    q: Array
    v: Array
    a: Array

    def then(self, configuration: Configuration, x: Array, rate: Array, bend: Array) -> Reference:
        """Returns this motion followed by the motion x (..., nv) rad | m in the body's axes; for a joint with several
        degrees of freedom, always along one direction. rate, bend: (..., nv) dx/dt and d2x/dt2.
        """
        v, a = self.v, self.a
        for _, part in configuration.several:
            # A motion at rest is the same in any axes: the usual case costs nothing.
            if v[..., part].any() or a[..., part].any():
                v, a = configuration.carried(x, np.stack([v, a]))
                a = a - configuration.bracket(rate, v)
                break
        return Reference(configuration.integrate(self.q, x), v + rate, a + bend)


class ReferenceTrajectory(ABC):
    """A reference motion. kind: its name in messages."""

    kind: ClassVar[str]

    @abstractmethod
    def sample(self, t: ArrayLike) -> Reference:
        """Returns the reference at the times `t` (...) s; for t < 0 that at 0."""

    def to_wire(self) -> dict[str, Any]:
        """Returns the motion as a map of plain numbers, for `from_wire`."""
        values: dict[str, Any] = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}  # type: ignore[arg-type]
        configuration: Configuration = values.pop("configuration")
        plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        return {"kind": self.kind, **plain, **({} if configuration.flat else {"joints": configuration.to_wire()})}


TrajectoryMaker = Callable[[Array, Array], ReferenceTrajectory]
"""(q0, v0) -> the reference motion from that state."""


@dataclass(frozen=True, eq=False)
class MultiSine(ReferenceTrajectory):
    """Sines about a centre, faded in over `ramp_s`.

    q0, centre: (nq,). v0: (nv,). amplitude: (K, nv) rad | m. frequency: (K,) rad/s. phase: (K, nv) rad.
    configuration: the joints; by default positions add.

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
    configuration: Configuration = FLAT

    def __post_init__(self) -> None:
        for name, part in self.configuration.several:
            if np.any(self.phase[:, part] != self.phase[:, part][:, :1]) or not _parallel(self.amplitude[:, part]):
                raise InvalidArgumentError(f"multi_sine: the sines of joint '{name}' are not along one direction")

    def sample(self, t: ArrayLike) -> Reference:
        """The reference at the times `t` (...) s."""
        time = np.maximum(np.asarray(t, dtype=np.float64), 0.0)[..., None]
        angle = time[..., None] * self.frequency[:, None] + self.phase
        by_sine, by_cosine = self._weights
        # Summed over the harmonics and not by a matrix product, whose last bits depend on the size of the batch.
        terms = by_sine * np.sin(angle)[..., None, :, :] + by_cosine * np.cos(angle)[..., None, :, :]
        sines = np.add.reduce(terms, -2)
        q, v, a = sines[..., 0, :], sines[..., 1, :], sines[..., 2, :]
        if min(time.flat, default=0.0) >= self.ramp_s:  # the same numbers in half of the time
            return Reference(self.configuration.integrate(self._arrived, q), v, a)
        shares = powers(time, self.ramp_s)
        fade, rise, bend = polynomials(_MIN_JERK, shares, self.ramp_s)
        start = quintic(self.q0, self.v0, self.centre, self.ramp_s, shares, self.configuration)
        return start.then(self.configuration, fade * q, rise * q + fade * v, bend * q + 2.0 * rise * v + fade * a)

    @cached_property
    def _arrived(self) -> Array:
        """(nq,), where the quintic ends: the centre, up to rounding."""
        return self.configuration.integrate(self.q0, self.configuration.difference(self.q0, self.centre))

    @cached_property
    def _weights(self) -> tuple[Array, Array]:
        """Weights (3, K, nv) of sine and cosine in the sum of the sines, its rate and its second derivative."""
        rate, zeros = self.frequency[:, None], np.zeros_like(self.amplitude)
        by_sine = [self.amplitude, zeros, -rate * rate * self.amplitude]
        return np.stack(by_sine), np.stack([zeros, rate * self.amplitude, zeros])


@dataclass(frozen=True, eq=False)
class PointToPoint(ReferenceTrajectory):
    """Moves between waypoints in a cycle: each move takes `move_s`, then a pause of `dwell_s`.

    q0: (nq,). v0: (nv,). points: (K, nq) rad | m. configuration: the joints; by default positions add.
    """

    kind = "point_to_point"
    q0: Array
    v0: Array
    points: Array
    move_s: float
    dwell_s: float
    configuration: Configuration = FLAT

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
        shares = powers((time - leg * cycle)[..., None], self.move_s)
        return quintic(begin, speed, end, self.move_s, shares, self.configuration)


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
    configuration: Configuration = FLAT

    def sample(self, t: ArrayLike) -> Reference:
        """The reference at the times `t` (...) s."""
        time = np.asarray(t, dtype=np.float64)
        has_ended = (time >= self.knots[-1])[..., None]
        q, v, a = (self._polynomials(np.clip(time, 0.0, self.knots[-1]), order) for order in range(3))
        return Reference(q, np.where(has_ended, 0.0, v), np.where(has_ended, 0.0, a))

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
    design: MultiSineDesign, limits: Limits, q0: ArrayLike, v0: ArrayLike, configuration: Configuration = FLAT
) -> MultiSine:
    """Returns a multi-sine from q0 (nq,), v0 (nv,) within the limits: faded in, |q - centre| and |v| are within the
    design's fractions of them. A joint with several degrees of freedom oscillates along one direction in its body's
    axes. limits: position limits of joints with several degrees of freedom are ignored. configuration: the joints;
    by default positions add.

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
        sizes = f"{limits.lower.size} positions and {limits.velocity.size} velocities"
        raise InvalidArgumentError(f"limits are of {sizes}, the state has {start.size} and {speed.size}")
    bounded = np.isfinite(limits.lower) & np.isfinite(limits.upper)
    with np.errstate(invalid="ignore"):
        middle = np.where(bounded, 0.5 * (limits.lower + limits.upper), start)
    if design.centre:
        if len(design.centre) != start.size:
            raise InvalidArgumentError(f"centre has {len(design.centre)} numbers, the robot {start.size} positions")
        middle = np.array(design.centre)
        configuration.check_unit(middle, "the centre", "multi_sine.centre")
    room = _by_velocity(configuration, np.minimum(middle - limits.lower, limits.upper - middle))
    if np.any(room < 0.0):
        tightest = int(np.argmin(room))
        name = repr(configuration.velocity_names[tightest]) if configuration.names else tightest
        raise InvalidArgumentError(f"the centre of joint {name} is outside of its limits")
    order = np.arange(1, design.harmonics + 1, dtype=np.float64)
    weight = (1.0 / order) / np.sum(1.0 / order)
    frequency = 2.0 * np.pi / design.period_s * order
    size = np.minimum(design.range_fraction * room, design.max_amplitude)
    # |v| <= size (1.875 / ramp_s + sum_k w_k omega_k): the fade's steepest slope is 1.875 / ramp_s.
    fastest = 1.875 / design.ramp_s + float(weight @ frequency)
    size = np.minimum(size, design.velocity_fraction * limits.velocity / fastest)
    joint = np.arange(speed.size, dtype=np.float64)
    for _, part in configuration.several:
        # One phase for all entries of a joint, because it must oscillate along one direction.
        joint[part] = joint[part][0]
        index = np.arange(part.stop - part.start)
        size[part] *= (-1.0) ** index * (1.0 - 0.5 * index / index.size)  # so that its entries differ
    # Multiples of the golden ratio: however many joints and harmonics there are, no two begin nearly in phase.
    phase = 2.0 * np.pi * np.modf(0.6180339887498949 * (joint[None, :] * design.harmonics + order[:, None]))[0]
    return MultiSine(start, speed, middle, weight[:, None] * size, frequency, phase, design.ramp_s, configuration)


_EXPONENTS = np.arange(6.0)
_MIN_JERK = np.array([[0, 0, 0, 10, -15, 6], [0, 0, 30, -60, 30, 0], [0, 60, -180, 120, 0, 0.0]])
"""Coefficients of 10 x^3 - 15 x^4 + 6 x^5 and of its first two derivatives: 0 to 1, at rest at both ends."""
_COAST = np.array([[0, 1, 0, -6, 8, -3], [1, 0, -18, 32, -15, 0], [0, -36, 96, -60, 0, 0.0]])
"""Of x - 6 x^3 + 8 x^4 - 3 x^5: slope 1 at 0; value, slope and curvature 0 at 1."""


def powers(t: Array, duration_s: float) -> Array:
    """Returns 1, x, .., x^5 (..., 1, 6) of the share x of the duration at the times t (..., 1), within 0 .. 1."""
    # Not np.clip, which takes twice as long for the few numbers of a robot.
    shares: Array = np.minimum(np.maximum(t / duration_s, 0.0), 1.0)[..., None] ** _EXPONENTS
    return shares


def polynomials(coefficients: Array, shares: Array, duration_s: float) -> tuple[Array, Array, Array]:
    """Returns a polynomial in the share of the duration, and its first two derivatives by time, each (..., 1).

    coefficients: (3, 6), of the polynomial and its derivatives by the share. shares: of `powers`.
    """
    # a sum, because a product of matrices has other last bits in a batch
    sums = np.add.reduce(coefficients * shares, -1)
    return sums[..., :1], sums[..., 1:2] / duration_s, sums[..., 2:] / duration_s**2


def quintic(
    q0: Array, v0: Array, q1: Array, duration_s: float, shares: Array, configuration: Configuration = FLAT
) -> Reference:
    """Returns the motion from (q0, v0, zero acceleration) to rest at q1 in `duration_s`. shares: of `powers`.

    A joint with several degrees of freedom follows the `difference` from q0 to q1, followed by a motion along v0.
    """
    blend, rise, bend = polynomials(_MIN_JERK, shares, duration_s)
    way = configuration.difference(q0, q1)
    transfer = Reference(configuration.integrate(q0, way * blend), way * rise, way * bend)
    if not v0.any():
        return transfer
    coast, slope, curve = polynomials(duration_s * _COAST, shares, duration_s)
    return transfer.then(configuration, v0 * coast, v0 * slope, v0 * curve)


def splines() -> Any:
    """Imports `scipy.interpolate`, or raises `MissingLibraryError`; slow, not for a loop."""
    return load("a trajectory goal", "scipy.interpolate")


def from_wire(wire: Mapping[str, Any]) -> ReferenceTrajectory:
    """Returns the motion written by `to_wire`.

    Raises:
        InvalidArgumentError: The kind is unknown or a number is missing.
    """
    kinds: dict[str, type[Any]] = {motion.kind: motion for motion in (MultiSine, PointToPoint, Piecewise)}
    values = dict(wire)
    joints = values.pop("joints", ())
    kind = str(values.pop("kind", None))
    if kind not in kinds:
        hint = did_you_mean(kind, kinds)
        raise InvalidArgumentError(f"unknown trajectory {kind!r}: expected one of {', '.join(sorted(kinds))}{hint}")
    try:
        motion: ReferenceTrajectory = kinds[kind](
            **{k: np.asarray(v, dtype=np.float64) if isinstance(v, list) else float(v) for k, v in values.items()},
            configuration=Configuration.from_wire(joints) if joints else FLAT,
        )
    except (TypeError, KeyError) as error:
        raise InvalidArgumentError(f"trajectory {kind!r}: {error}") from None
    return motion


def _parallel(rows: Array) -> bool:
    """Whether all rows are parallel, up to rounding."""
    size = np.abs(rows).max(initial=0.0)
    if size == 0.0:
        return True
    unit = rows[np.argmax(np.abs(rows).max(axis=1))] / size
    unit /= np.linalg.norm(unit)
    return bool(np.abs(rows - np.outer(rows @ unit, unit)).max() <= 1e-12 * size)


def _by_velocity(configuration: Configuration, x: Array) -> Array:
    """Entries (nq,) of positions as entries (nv,) of velocities; infinite for multi-degree-of-freedom joints."""
    if configuration.flat:
        return x
    entries = np.full(configuration.nv, np.inf)
    for joint, in_q, in_v in zip(configuration.joints, configuration.q_slices, configuration.v_slices, strict=True):
        if joint.nv == 1:
            entries[in_v] = x[in_q]
    return entries
