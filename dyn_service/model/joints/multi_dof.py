"""Joints with several degrees of freedom: planar, spherical, floating. Their positions do not add up as velocities
do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

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
class Planar(JointWithAxis):
    """Moves in the plane across its axis; x and y are the joint frame's, rotated the shorter way so that z is the
    axis.
    """

    type: ClassVar[str] = "planar"
    rate_is_velocity: ClassVar[bool] = False
    driven: ClassVar[bool] = False
    mujoco: ClassVar[str | None] = "slide slide hinge"
    positions: ClassVar[tuple[str, ...]] = ("x", "y", "theta")
    velocities: ClassVar[tuple[str, ...]] = ("vx", "vy", "omega")
    angles: ClassVar[tuple[bool, ...]] = (False, False, True)

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
        none, (e_x, e_y) = 0 * self.axis, self._plane
        return np.column_stack([np.concatenate(pair) for pair in ((none, e_x), (none, e_y), (self.axis, none))])

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return turned_about(self.axis, m.cos(q[2]), m.sin(q[2]))

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return tuple(zip(q[:2], self._plane, strict=True))

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        e_x, e_y = self._plane
        about = float(self.axis @ np.asarray(rotation[:3]))
        return [float(e_x @ np.asarray(p)), float(e_y @ np.asarray(p)), 2.0 * math.atan2(about, rotation[3])]

    def to_pose(self, q: Sequence[float]) -> tuple[list[float], list[float]]:
        e_x, e_y = self._plane
        half = math.remainder(q[2], 2.0 * math.pi) / 2.0  # of the two quaternions that with w >= 0
        turned: list[float] = (math.sin(half) * self.axis).tolist()
        shifted: list[float] = (q[0] * e_x + q[1] * e_y).tolist()
        return [*turned, math.cos(half)], shifted

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*turned_in_plane(v, m.cos(q[2]), m.sin(q[2])), v[2]]

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        angle = step[2] + m.copysign(_TINY, step[2])
        half = m.sin(angle / 2)
        along, across = m.sin(angle) / angle, 2 * half * (half / angle)
        moved = (along * step[0] - across * step[1], across * step[0] + along * step[1])
        x, y = turned_in_plane(moved, m.cos(q[2]), m.sin(q[2]))
        return [q[0] + x, q[1] + y, q[2] + step[2]]

    def difference(self, q: Scalars, to: Scalars, m: Arithmetic) -> list[Scalar]:
        angle = shorter(to[2] - q[2], m)
        x, y = turned_in_plane((to[0] - q[0], to[1] - q[1]), m.cos(q[2]), -m.sin(q[2]))
        half = angle / 2 + m.copysign(_TINY, angle)
        along = half * m.cos(half) / m.sin(half)
        return [along * x + half * y, along * y - half * x, angle]

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

    def difference(self, q: Scalars, to: Scalars, m: Arithmetic) -> list[Scalar]:
        *imaginary, real = quaternion_product((-q[0], -q[1], -q[2], q[3]), to)
        sine = m.sqrt(dot(imaginary, imaginary) + _TINY * _TINY)
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
        found = rng.normal(size=4)
        return np.asarray(found / np.linalg.norm(found))


_SPHERICAL = Spherical()


@dataclass(frozen=True, eq=False)
class Floating(Joint):
    """Translates and rotates freely."""

    type: ClassVar[str] = "floating"
    rate_is_velocity: ClassVar[bool] = False
    driven: ClassVar[bool] = False
    mujoco: ClassVar[str | None] = "free"
    positions: ClassVar[tuple[str, ...]] = ("x", "y", "z", *Spherical.positions)
    velocities: ClassVar[tuple[str, ...]] = ("vx", "vy", "vz", *Spherical.velocities)
    angles: ClassVar[tuple[bool, ...]] = (False,) * 7

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

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*times(matrix(q[3:]), v[:3]), *_SPHERICAL.rate(q[3:], v[3:], m)]

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        # The exponential of SE(3): p' = p + R (u + a w x u + b w x (w x u)), a = (1 - cos) / w^2, b = (w - sin) / w^3.
        u, w = step[:3], step[3:]
        square = dot(w, w)
        angle = m.sqrt(square + _TINY * _TINY)
        half = m.sin(angle / 2) / angle
        once = cross(w, u)
        twice = cross(w, once)
        wide = m.sqrt(m.less(square, SMALL, SMALL, square))
        b = m.less(square, SMALL, series(square, SINE_REST), (wide - m.sin(wide)) / (wide * wide * wide))
        moved = [u_k + 2 * half * half * x + b * y for u_k, x, y in zip(u, once, twice, strict=True)]
        shifted = times(matrix(q[3:]), moved)
        return [*(x + dx for x, dx in zip(q[:3], shifted, strict=True)), *_SPHERICAL.integrate(q[3:], w, m)]

    def difference(self, q: Scalars, to: Scalars, m: Arithmetic) -> list[Scalar]:
        w = _SPHERICAL.difference(q[3:], to[3:], m)
        moved = times(transposed(matrix(q[3:])), [y - x for x, y in zip(q[:3], to[:3], strict=True)])
        square = dot(w, w)
        half = m.sqrt(m.less(square, SMALL, SMALL, square)) / 2
        once = cross(w, moved)
        twice = cross(w, once)
        direct = (1 - half * m.cos(half) / m.sin(half)) / (4 * half * half)
        c = m.less(square, SMALL, series(square, COTANGENT_REST), direct)
        return [*(u - x / 2 + c * y for u, x, y in zip(moved, once, twice, strict=True)), *w]

    def normalised(self, q: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*q[:3], *unit(q[3:], m)]

    def momentum_on_parent(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        R = matrix(q[3:])
        linear = times(R, p[:3])
        return [*linear, *(x + y for x, y in zip(times(R, p[3:]), cross(q[:3], linear), strict=True))]

    def momentum_on_body(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        R = transposed(matrix(q[3:]))
        about = [x - y for x, y in zip(p[3:], cross(q[:3], p[:3]), strict=True)]
        return [*times(R, p[:3]), *times(R, about)]

    def turning(self, v: Scalars, p: Scalars) -> list[Scalar]:
        angular = [x + y for x, y in zip(cross(v[3:], p[3:]), cross(v[:3], p[:3]), strict=True)]
        return [*cross(v[3:], p[:3]), *angular]

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        return np.concatenate([rng.uniform(-1.0, 1.0, 3), _SPHERICAL.random(rng, lower[3:], upper[3:])])
