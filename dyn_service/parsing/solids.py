"""Volumes and moments of inertia of solids and shells, for files that give a shape with a density or a mass.

Moments are about the centre of mass, per kilogram, along the axes of the shape; the axis of cylinders, capsules and
cones is z. Shells have uniform surface density.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dyn_service.model.arrays import Vector
from dyn_service.model.description import Inertial
from dyn_service.parsing.pose import Pose


class Solid(NamedTuple):
    """size: m^3, or m^2 for a shell. moments: (3,) m^2, the moments of inertia per kilogram."""

    size: float
    moments: Vector


def box(a: float, b: float, c: float) -> Solid:
    """A box with half lengths a, b, c, m."""
    return Solid(8.0 * a * b * c, np.array([b * b + c * c, a * a + c * c, a * a + b * b]) / 3.0)


def ellipsoid(a: float, b: float, c: float) -> Solid:
    """An ellipsoid with semi-axes a, b, c, m."""
    return Solid(4.0 / 3.0 * math.pi * a * b * c, np.array([b * b + c * c, a * a + c * c, a * a + b * b]) / 5.0)


def sphere(r: float) -> Solid:
    """A sphere of radius r, m."""
    return ellipsoid(r, r, r)


def cylinder(r: float, h: float) -> Solid:
    """A cylinder of radius r and half length h, m."""
    across = r * r / 4.0 + h * h / 3.0
    return Solid(2.0 * math.pi * r * r * h, np.array([across, across, r * r / 2.0]))


def capsule(r: float, h: float) -> Solid:
    """A cylinder of radius r and half length h, m, with two half balls."""
    rod, ball = cylinder(r, h), sphere(r)
    size = rod.size + ball.size
    # The centre of mass of a half ball is 3 r / 8 from its flat side, which is h from the middle.
    ends = np.array([1.0, 1.0, 0.0]) * (h * h + 3.0 / 4.0 * h * r)
    return Solid(size, (rod.size * rod.moments + ball.size * (ball.moments + ends)) / size)


def box_shell(a: float, b: float, c: float) -> Solid:
    """Six plates."""
    x, y, z = b * c, a * c, a * b  # areas of the three pairs, divided by 8
    total = x + y + z
    squares = np.array([x + (y + z) / 3.0, y + (x + z) / 3.0, z + (x + y) / 3.0]) * np.array([a * a, b * b, c * c])
    return Solid(
        8.0 * total, np.array([squares[1] + squares[2], squares[0] + squares[2], squares[0] + squares[1]]) / total
    )


def sphere_shell(r: float) -> Solid:
    """A thin ball."""
    return Solid(4.0 * math.pi * r * r, np.full(3, 2.0 / 3.0 * r * r))


def cylinder_shell(r: float, h: float) -> Solid:
    """A thin tube and its two lids."""
    tube, lids = 4.0 * math.pi * r * h, 2.0 * math.pi * r * r
    of_tube = np.array([r * r / 2.0 + h * h / 3.0] * 2 + [r * r])
    of_lids = np.array([r * r / 4.0 + h * h] * 2 + [r * r / 2.0])
    return Solid(tube + lids, (tube * of_tube + lids * of_lids) / (tube + lids))


def capsule_shell(r: float, h: float) -> Solid:
    """A thin tube between two thin half balls."""
    tube, ball = 4.0 * math.pi * r * h, 4.0 * math.pi * r * r
    of_tube = np.array([r * r / 2.0 + h * h / 3.0] * 2 + [r * r])
    # The centre of mass of a thin half ball is r / 2 from its open side.
    of_ball = np.full(3, 2.0 / 3.0 * r * r) + np.array([1.0, 1.0, 0.0]) * (h * h + h * r)
    return Solid(tube + ball, (tube * of_tube + ball * of_ball) / (tube + ball))


def ellipsoid_shell(a: float, b: float, c: float) -> Solid:
    """A thin ellipsoid as MuJoCo has it: 1e-6 m thick along each axis, its area by Thomsen's formula."""
    p, thick = 1.6075, 1e-6
    area = 4.0 * math.pi * (((a * b) ** p + (a * c) ** p + (b * c) ** p) / 3.0) ** (1.0 / p)
    outer, inner = ellipsoid(a + thick, b + thick, c + thick), ellipsoid(a, b, c)
    return Solid(area, (outer.size * outer.moments - inner.size * inner.moments) / (outer.size - inner.size))


SOLIDS: Mapping[str, Callable[..., Solid]] = {
    "sphere": sphere,
    "capsule": capsule,
    "ellipsoid": ellipsoid,
    "cylinder": cylinder,
    "box": box,
}
"""Solids by the names of MuJoCo and SDFormat; `SIZES` is the number of sizes of each."""

SHELLS: Mapping[str, Callable[..., Solid]] = {
    "sphere": sphere_shell,
    "capsule": capsule_shell,
    "ellipsoid": ellipsoid_shell,
    "cylinder": cylinder_shell,
    "box": box_shell,
}

FIRST_HIDDEN = 3
"""The first geom group that MuJoCo's viewer hides by default."""

SIZES = {"sphere": 1, "capsule": 2, "ellipsoid": 3, "cylinder": 2, "box": 3}


def stretched(kind: str, sizes: Sequence[float], by: float) -> tuple[float, ...]:
    """Scales the lengths of boxes, cylinders and capsules: `by` = 2 converts half lengths to those of `Shape`."""
    radii = {"box": 0, "cylinder": 1, "capsule": 1}.get(kind, 3)
    return (*sizes[:radii], *(by * size for size in sizes[radii:]))


def together(parts: Sequence[tuple[float, Pose, Vector]]) -> Inertial | None:
    """Combines bodies, each with mass, kg, pose and moments (3,) kg m^2; returns None for an empty list."""
    if not parts:
        return None
    if len(parts) == 1:
        mass, pose, moments = parts[0]
        return Inertial(mass, pose.origin, pose.rotation, np.diag(moments))
    total = sum(mass for mass, _, _ in parts)
    com = np.sum([mass * pose.origin for mass, pose, _ in parts], axis=0) / total
    about = np.zeros((3, 3))
    for mass, pose, moments in parts:
        away = pose.origin - com
        about += pose.rotation @ np.diag(moments) @ pose.rotation.T
        about += mass * (away @ away * np.eye(3) - np.outer(away, away))
    return Inertial(total, com, np.eye(3), (about + about.T) / 2.0)
