"""Joints with several degrees of freedom: cylindrical, planar, spherical, floating.

Positions of a cylindrical joint add up as velocities do; those of the others do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dyn_service.model.inertia import BodyInertia
from dyn_service.model.joints.axial import JointWithAxis
from dyn_service.model.joints.base import Arithmetic, Array, Joint, Scalar, Scalars, Terms, dot
from dyn_service.model.joints.rotations import (
    COTANGENT_REST,
    SINE_REST,
    SMALL,
    cross,
    matrix,
    quaternion_product,
    series,
    shorter,
    times,
    transposed,
    turned_about,
    turned_in_plane,
    unit,
)

_TINY = 1e-150
"""Its square is a double too. Added in squares, it keeps quotients such as sin(x) / x defined at zero."""

_ONE_AT = np.eye(9).reshape(3, 3, 3, 3)
"""_ONE_AT[i, j] is the matrix with a one at (i, j)."""


@dataclass(frozen=True, eq=False)
class Cylindrical(JointWithAxis):
    """Rotates about its axis and translates along it, each by itself."""

    type: ClassVar[str] = "cylindrical"
    urdf: ClassVar[str | None] = None
    sdf: ClassVar[str | None] = None
    mujoco: ClassVar[str | None] = "hinge slide"
    positions: ClassVar[tuple[str, ...]] = ("angle", "distance")
    velocities: ClassVar[tuple[str, ...]] = ("rate", "speed")
    angles: ClassVar[tuple[bool, ...]] = (True, False)
    wraps: ClassVar[bool] = True

    @property
    def line(self) -> Array | None:
        return self.axis

    def along_z(self, turn: Array) -> Joint:
        return replace(self, axis=np.array([0.0, 0.0, 1.0]))

    @property
    def subspace(self) -> Array:
        zero = 0 * self.axis
        return np.column_stack([np.concatenate([self.axis, zero]), np.concatenate([zero, self.axis])])

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return turned_about(self.axis, m.cos(q[0]), m.sin(q[0]))

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return ((q[1], self.axis),)

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        return [_angle_about(self.axis, rotation), float(self.axis @ np.asarray(p))]

    def to_pose(self, q: Sequence[float]) -> tuple[list[float], list[float]]:
        distance: list[float] = (q[1] * self.axis).tolist()
        return _quaternion_about(self.axis, q[0]), distance

    def transferable_inertia(self, body: BodyInertia) -> BodyInertia | None:
        # As for a screw: only the inertia of a rod across the axis, without mass, is the same at every q.
        transverse = min(body.about_origin[0, 0], body.about_origin[1, 1])
        return BodyInertia(0 * body.mass, 0 * body.moment, np.diag([transverse, transverse, 0]))


@dataclass(frozen=True, eq=False)
class Planar(JointWithAxis):
    """Moves in the plane across its axis; x and y are the joint frame's, rotated the shorter way so that z is the
    axis.
    """

    type: ClassVar[str] = "planar"
    urdf: ClassVar[str | None] = "planar"
    sdf: ClassVar[str | None] = None
    rate_is_velocity: ClassVar[bool] = False
    has_motor: ClassVar[bool] = False
    mujoco: ClassVar[str | None] = "slide slide hinge"
    positions: ClassVar[tuple[str, ...]] = ("x", "y", "theta")
    velocities: ClassVar[tuple[str, ...]] = ("vx", "vy", "omega")
    angles: ClassVar[tuple[bool, ...]] = (False, False, True)
    linear: ClassVar[slice] = slice(0, 2)

    @property
    def _plane(self) -> tuple[Array, Array]:
        x, y, z = self.axis
        if z < 0:
            # Near -z 1 + z has no digits left: 1 / (1 + z) = (1 - z) / (x^2 + y^2), and x, y in units of the larger.
            larger = max(abs(x), abs(y))
            if larger == 0:
                return np.array([1, 0, 0]) + 0 * self.axis, np.array([0, -1, 0]) + 0 * self.axis
            u, w = x / larger, y / larger
            c = (1 - z) / (u * u + w * w)
            return np.array([1 - c * u * u, -c * u * w, -x]), np.array([-c * u * w, 1 - c * w * w, -y])
        e_x = np.array([1 - x * x / (1 + z), -x * y / (1 + z), -x])
        return e_x, np.array([-x * y / (1 + z), 1 - y * y / (1 + z), -y])

    @property
    def subspace(self) -> Array:
        zero, (e_x, e_y) = 0 * self.axis, self._plane
        return np.column_stack([np.concatenate(pair) for pair in ((zero, e_x), (zero, e_y), (self.axis, zero))])

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return turned_about(self.axis, m.cos(q[2]), m.sin(q[2]))

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return tuple(zip(q[:2], self._plane, strict=True))

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        e_x, e_y = self._plane
        return [float(e_x @ np.asarray(p)), float(e_y @ np.asarray(p)), _angle_about(self.axis, rotation)]

    def to_pose(self, q: Sequence[float]) -> tuple[list[float], list[float]]:
        e_x, e_y = self._plane
        shifted: list[float] = (q[0] * e_x + q[1] * e_y).tolist()
        return _quaternion_about(self.axis, q[2]), shifted

    def axes(self, q: Array) -> Array:
        c, s = np.cos(q[..., 2]), np.sin(q[..., 2])
        return np.stack([np.stack([c, -s], axis=-1), np.stack([s, c], axis=-1)], axis=-2)

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*turned_in_plane(v, m.cos(q[2]), m.sin(q[2])), v[2]]

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        angle = step[2] + m.copysign(_TINY, step[2])
        half = m.sin(angle / 2)
        # (1 - cos) / angle as a product, which does not cancel for small angles.
        sine_share, cosine_share = m.sin(angle) / angle, 2 * half * (half / angle)
        translation = (sine_share * step[0] - cosine_share * step[1], cosine_share * step[0] + sine_share * step[1])
        x, y = turned_in_plane(translation, m.cos(q[2]), m.sin(q[2]))
        return [q[0] + x, q[1] + y, q[2] + step[2]]

    def difference(self, q: Scalars, q_to: Scalars, m: Arithmetic) -> list[Scalar]:
        angle = shorter(q_to[2] - q[2], m)
        x, y = turned_in_plane((q_to[0] - q[0], q_to[1] - q[1]), m.cos(q[2]), -m.sin(q[2]))
        half = angle / 2 + m.copysign(_TINY, angle)
        cotangent_share = half * m.cos(half) / m.sin(half)
        return [cotangent_share * x + half * y, cotangent_share * y - half * x, angle]

    def momentum_on_parent(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        x, y = turned_in_plane(p, m.cos(q[2]), m.sin(q[2]))
        return [x, y, p[2] + q[0] * y - q[1] * x]

    def momentum_on_body(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*turned_in_plane(p, m.cos(q[2]), -m.sin(q[2])), p[2] - (q[0] * p[1] - q[1] * p[0])]

    def turning(self, v: Scalars, p: Scalars) -> list[Scalar]:
        return [-v[2] * p[1], v[2] * p[0], v[0] * p[1] - v[1] * p[0]]


@dataclass(frozen=True, eq=False)
class Spherical(Joint):
    """Rotates about its origin."""

    type: ClassVar[str] = "spherical"
    urdf: ClassVar[str | None] = None
    drake: ClassVar[str | None] = "ball"
    sdf: ClassVar[str | None] = "ball"
    rate_is_velocity: ClassVar[bool] = False
    mujoco: ClassVar[str | None] = "ball"
    positions: ClassVar[tuple[str, ...]] = ("qx", "qy", "qz", "qw")
    velocities: ClassVar[tuple[str, ...]] = ("wx", "wy", "wz")
    angles: ClassVar[tuple[bool, ...]] = (False, False, False, False)

    @property
    def quaternion(self) -> slice:
        return slice(0, 4)

    @property
    def subspace(self) -> Array:
        return np.eye(6)[:, :3]

    @property
    def neutral(self) -> Array:
        return np.array([0.0, 0.0, 0.0, 1.0])

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return tuple((entry, _ONE_AT[k // 3, k % 3]) for k, entry in enumerate(matrix(q)))

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        return list(map(float, rotation))

    def to_pose(self, q: Sequence[float]) -> tuple[list[float], list[float]]:
        return list(q), [0.0, 0.0, 0.0]

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        return [x / 2 for x in quaternion_product(q, (*v, 0.0))]

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        angle = m.sqrt(dot(step, step) + _TINY * _TINY)
        share = m.sin(angle / 2) / angle
        return unit(quaternion_product(q, (*(share * x for x in step), m.cos(angle / 2))), m)

    def difference(self, q: Scalars, q_to: Scalars, m: Arithmetic) -> list[Scalar]:
        *imaginary, real = quaternion_product((-q[0], -q[1], -q[2], q[3]), q_to)
        sine = m.sqrt(dot(imaginary, imaginary) + _TINY * _TINY)
        # Both signs of a quaternion are one rotation: the sign of the real part selects the shorter way.
        share = m.copysign(2 * m.atan2(sine, m.fabs(real)) / sine, real)
        return [share * x for x in imaginary]

    def normalised(self, q: Scalars, m: Arithmetic) -> list[Scalar]:
        return unit(q, m)

    def momentum_on_parent(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        return times(matrix(q), p)

    def momentum_on_body(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        return times(transposed(matrix(q)), p)

    def turning(self, v: Scalars, p: Scalars) -> list[Scalar]:
        return cross(v, p)

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        quaternion = rng.normal(size=4)
        return np.asarray(quaternion / np.linalg.norm(quaternion))


_SPHERICAL = Spherical()


@dataclass(frozen=True, eq=False)
class Floating(Joint):
    """Translates and rotates freely."""

    type: ClassVar[str] = "floating"
    urdf: ClassVar[str | None] = "floating"
    sdf: ClassVar[str | None] = None
    rate_is_velocity: ClassVar[bool] = False
    has_motor: ClassVar[bool] = False
    mujoco: ClassVar[str | None] = "free"
    positions: ClassVar[tuple[str, ...]] = ("x", "y", "z", *Spherical.positions)
    velocities: ClassVar[tuple[str, ...]] = ("vx", "vy", "vz", *Spherical.velocities)
    angles: ClassVar[tuple[bool, ...]] = (False,) * 7
    linear: ClassVar[slice] = slice(0, 3)

    @property
    def quaternion(self) -> slice:
        return slice(3, 7)

    @property
    def subspace(self) -> Array:
        return np.eye(6)[:, [3, 4, 5, 0, 1, 2]]

    @property
    def neutral(self) -> Array:
        return np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return _SPHERICAL.rotation(q[3:], m)

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return tuple(zip(q[:3], np.eye(3), strict=True))

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        return [*map(float, p), *map(float, rotation)]

    def to_pose(self, q: Sequence[float]) -> tuple[list[float], list[float]]:
        return list(q[3:]), list(q[:3])

    def axes(self, q: Array) -> Array:
        return self.pose(q)[0]

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*times(matrix(q[3:]), v[:3]), *_SPHERICAL.rate(q[3:], v[3:], m)]

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        # The exponential of SE(3): p' = p + R (u + a w x u + b w x (w x u)), a = (1 - cos) / w^2, b = (w - sin) / w^3.
        u, w = step[:3], step[3:]
        square = dot(w, w)
        angle = m.sqrt(square + _TINY * _TINY)
        half = m.sin(angle / 2) / angle
        w_cross_u = cross(w, u)
        w_cross_w_cross_u = cross(w, w_cross_u)
        wide = m.sqrt(m.if_less(square, SMALL, SMALL, square))
        b = m.if_less(square, SMALL, series(square, SINE_REST), (wide - m.sin(wide)) / (wide * wide * wide))
        translation = [
            u_k + 2 * half * half * x + b * y for u_k, x, y in zip(u, w_cross_u, w_cross_w_cross_u, strict=True)
        ]
        shifted = times(matrix(q[3:]), translation)
        return [*(x + dx for x, dx in zip(q[:3], shifted, strict=True)), *_SPHERICAL.integrate(q[3:], w, m)]

    def difference(self, q: Scalars, q_to: Scalars, m: Arithmetic) -> list[Scalar]:
        w = _SPHERICAL.difference(q[3:], q_to[3:], m)
        translation = times(transposed(matrix(q[3:])), [y - x for x, y in zip(q[:3], q_to[:3], strict=True)])
        square = dot(w, w)
        half = m.sqrt(m.if_less(square, SMALL, SMALL, square)) / 2
        w_cross_p = cross(w, translation)
        w_cross_w_cross_p = cross(w, w_cross_p)
        direct = (1 - half * m.cos(half) / m.sin(half)) / (4 * half * half)
        c = m.if_less(square, SMALL, series(square, COTANGENT_REST), direct)
        return [*(u - x / 2 + c * y for u, x, y in zip(translation, w_cross_p, w_cross_w_cross_p, strict=True)), *w]

    def normalised(self, q: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*q[:3], *unit(q[3:], m)]

    def momentum_on_parent(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        R = matrix(q[3:])
        linear = times(R, p[:3])
        return [*linear, *(x + y for x, y in zip(times(R, p[3:]), cross(q[:3], linear), strict=True))]

    def momentum_on_body(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        R = transposed(matrix(q[3:]))
        moment = [x - y for x, y in zip(p[3:], cross(q[:3], p[:3]), strict=True)]
        return [*times(R, p[:3]), *times(R, moment)]

    def turning(self, v: Scalars, p: Scalars) -> list[Scalar]:
        angular = [x + y for x, y in zip(cross(v[3:], p[3:]), cross(v[:3], p[:3]), strict=True)]
        return [*cross(v[3:], p[:3]), *angular]

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        return np.concatenate([rng.uniform(-1.0, 1.0, 3), _SPHERICAL.random(rng, lower[3:], upper[3:])])


def _angle_about(axis: Array, rotation: Scalars) -> float:
    """Returns the angle about an axis, rad, that is nearest to the rotation of a unit quaternion."""
    return 2.0 * math.atan2(float(axis @ np.asarray(rotation[:3])), rotation[3])


def _quaternion_about(axis: Array, angle: float) -> list[float]:
    """Returns the unit quaternion of a rotation about an axis, of the two that with w >= 0."""
    half = math.remainder(angle, 2.0 * math.pi) / 2.0
    return [*(math.sin(half) * axis).tolist(), math.cos(half)]
