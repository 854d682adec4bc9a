"""A body's inertia as ten numbers that add: mass, first moment, second moment about the body's origin.

They are the entries of M_i, (16) of the Newton-Euler document,

    M = [ I - m s~ s~    m s~ ]      mass m,  moment h = m s,  about_origin = I - m s~ s~
        [ -m s~          m e  ]

and for bodies that move as one, seen from one frame, they add. Seen from a frame in which the body stands at R, p:

    m,   R h + m p,   R J R^T - p~ (R h)~ - (R h)~ p~ - m p~ p~
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dyn_service.model.arrays import Matrix, Vector


@dataclass(frozen=True, eq=False)
class BodyInertia:
    """mass: kg. moment: (3,) kg m. about_origin: (3, 3) kg m^2. Both at the body's origin, in its axes.

    centre: centre of mass (3,) m, axes (3, 3) in which the inertia was given, and inertia about the centre in them
    (3, 3) kg m^2, where the body was given so; None of differences. What is small there has lost digits about a far
    origin.
    """

    mass: float
    moment: Vector
    about_origin: Matrix
    centre: tuple[Vector, Matrix, Matrix] | None = None

    @classmethod
    def of_centre(cls, mass: float, com: Vector, inertia: Matrix, rotation: Matrix | None = None) -> BodyInertia:
        """From the centre of mass (3,) m, and the inertia (3, 3) kg m^2 about it, in axes that stand at `rotation` in
        the body's; None is the body's own.
        """
        axes = np.eye(3, dtype=inertia.dtype) if rotation is None else rotation
        about_com = axes @ inertia @ axes.T
        return cls(mass, mass * com, about_com - mass * skew(com) @ skew(com), (com, axes, inertia))

    @property
    def com(self) -> Vector:
        """Centre of mass, (3,) m; the origin where there is no mass."""
        if self.centre is not None:
            return self.centre[0]
        return self.moment / self.mass if self.mass else 0 * self.moment

    @property
    def about_com(self) -> Matrix:
        """Inertia about the centre of mass, (3, 3) kg m^2."""
        if self.centre is not None:
            _, axes, inertia = self.centre
            return axes @ inertia @ axes.T
        return self.about_origin + self.mass * skew(self.com) @ skew(self.com)

    @property
    def matrix(self) -> Matrix:
        """M, (6, 6), the module's docstring."""
        h = skew(self.moment)
        return np.block([[self.about_origin, h], [h.T, self.mass * np.eye(3)]])

    def placed(self, rotation: Matrix, origin: Vector) -> BodyInertia:
        """The same inertia seen from a frame A in which the body's frame B stands at R_AB, p_AB."""
        moment, p = rotation @ self.moment, skew(origin)
        cross = p @ skew(moment)
        about = rotation @ self.about_origin @ rotation.T - cross - cross.T - self.mass * p @ p
        centre = None
        if self.centre is not None:
            com, axes, inertia = self.centre
            centre = (rotation @ com + origin, rotation @ axes, inertia)
        return BodyInertia(self.mass, moment + self.mass * origin, about, centre)

    def __add__(self, other: BodyInertia) -> BodyInertia:
        mass, moment = self.mass + other.mass, self.moment + other.moment
        centre = None
        if self.centre is not None and other.centre is not None:
            # About the common centre, not by way of the origin: there a small inertia keeps its digits.
            com = (self.mass * self.com + other.mass * other.com) / mass if mass else 0 * self.com
            about = sum(
                part.about_com - part.mass * skew(part.com - com) @ skew(part.com - com) for part in (self, other)
            )
            centre = (com, np.eye(3), np.asarray(about))
        return BodyInertia(mass, moment, self.about_origin + other.about_origin, centre)

    def __sub__(self, other: BodyInertia) -> BodyInertia:
        return BodyInertia(self.mass - other.mass, self.moment - other.moment, self.about_origin - other.about_origin)


def skew(a: Vector) -> Matrix:
    """(3, 3) matrix a~ with a~ b = a x b."""
    return np.array([[0, -a[2], a[1]], [a[2], 0, -a[0]], [-a[1], a[0], 0]])


NOTHING = BodyInertia.of_centre(0.0, np.zeros(3), np.zeros((3, 3)))


def combine(parts: Iterable[BodyInertia]) -> BodyInertia:
    """The inertia of bodies that move as one, all seen from the same frame."""
    first, *others = tuple(parts) or (NOTHING,)
    return sum(others, first)


def principal_moments(about_com: Matrix) -> Vector:
    """(3,) kg m^2, ascending."""
    return np.asarray(np.linalg.eigvalsh(0.5 * (about_com + about_com.T)))
