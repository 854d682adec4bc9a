"""Rigid-body inertia as numbers: moving it to another frame, adding it up, asking whether a body can have it.

A body's inertia is ten numbers: mass m (kg), centre of mass s (m), rotational inertia I about the centre (kg m^2). Two
bodies that move as one have

    m = m1 + m2,   s = (m1 s1 + m2 s2) / m,   I = sum_k I_k - m_k (s_k - s)~ (s_k - s)~

which is (16) of the Newton-Euler document read at the common centre.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dyn_service.model.description import Matrix, Vector


@dataclass(frozen=True, eq=False)
class BodyInertia:
    """mass: kg. com: (3,) m, from the body's origin in body axes. about_com: (3, 3) kg m^2, in body axes."""

    mass: float
    com: Vector
    about_com: Matrix

    def placed(self, rotation: Matrix, origin: Vector) -> BodyInertia:
        """The same inertia seen from a frame A in which the body's frame B stands at R_AB, p_AB."""
        return BodyInertia(self.mass, origin + rotation @ self.com, rotation @ self.about_com @ rotation.T)


NOTHING = BodyInertia(0.0, np.zeros(3), np.zeros((3, 3)))


def skew(a: Vector) -> Matrix:
    """(3, 3) matrix a~ with a~ b = a x b."""
    return np.array([[0.0, -a[2], a[1]], [a[2], 0.0, -a[0]], [-a[1], a[0], 0.0]])


def combine(parts: Iterable[BodyInertia]) -> BodyInertia:
    """The inertia of bodies that move as one, all seen from the same frame.

    Where the mass is zero the centre of mass is the origin, and rotational inertias add as they are.
    """
    parts = list(parts)
    mass = sum(part.mass for part in parts)
    com = sum((part.mass * part.com for part in parts), np.zeros(3))
    com = com / mass if mass > 0.0 else np.zeros(3)
    about_com = np.zeros((3, 3))
    for part in parts:
        offset = skew(part.com - com)
        about_com = about_com + part.about_com - part.mass * offset @ offset
    return BodyInertia(mass, com, about_com)


def principal_moments(about_com: Matrix) -> Vector:
    """(3,) kg m^2, ascending."""
    return np.asarray(np.linalg.eigvalsh(0.5 * (about_com + about_com.T)))
