"""A body's inertia as ten numbers that add: mass, first moment, second moment about the body's origin.

They are the entries of M_i, (16) of the Newton-Euler document,

    M = [ I - m s~ s~    m s~ ]      mass m,  moment h = m s,  about_origin = I - m s~ s~
        [ -m s~          m e  ]

and for bodies that move as one, seen from one frame, they add. Seen from a frame in which the body stands at R, p:

    m,   R h + m p,   R J R^T - p~ (R h)~ - (R h)~ p~ - m p~ p~

Leading axes of the numbers are those of many robots: all here broadcasts over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dyn_service.model.arrays import Matrix, Vector


@dataclass(frozen=True, eq=False)
class BodyInertia:
    """mass: kg. moment: (..., 3) kg m. about_origin: (..., 3, 3) kg m^2. Both at the body's origin, in its axes.

    centre: centre of mass (..., 3) m, axes (3, 3) in which the inertia was given, and inertia about the centre in them
    (..., 3, 3) kg m^2, where the body was given so; None of differences. What is small there has lost digits about a
    far origin.
    """

    mass: Any
    moment: Vector
    about_origin: Matrix
    centre: tuple[Vector, Matrix, Matrix] | None = None

    @classmethod
    def of_centre(cls, mass: Any, com: Vector, inertia: Matrix, rotation: Matrix | None = None) -> BodyInertia:
        """From the centre of mass (..., 3) m, and the inertia (..., 3, 3) kg m^2 about it, in axes that stand at
        `rotation` in the body's; None is the body's own.
        """
        axes = np.eye(3, dtype=inertia.dtype) if rotation is None else rotation
        about_com = axes @ inertia @ axes.T
        about_origin = about_com - _on(mass, 2) * skew(com) @ skew(com)
        return cls(mass, _on(mass, 1) * com, about_origin, (com, axes, inertia))

    @property
    def com(self) -> Vector:
        """Centre of mass, (..., 3) m; the origin where there is no mass."""
        if self.centre is not None:
            return self.centre[0]
        return _per_mass(self.moment, self.mass)

    @property
    def about_com(self) -> Matrix:
        """Inertia about the centre of mass, (..., 3, 3) kg m^2."""
        if self.centre is not None:
            _, axes, inertia = self.centre
            return axes @ inertia @ axes.T
        s = skew(self.com)
        return np.asarray(self.about_origin + _on(self.mass, 2) * s @ s)

    @property
    def matrix(self) -> Matrix:
        """M, (..., 6, 6), the module's docstring."""
        blocks = (self.about_origin, skew(self.moment), _on(self.mass, 2) * np.eye(3))
        about, h, m = np.broadcast_arrays(*blocks)
        return np.block([[about, h], [h.mT, m]])

    def mapped(self, of: Callable[[Any, int], Any]) -> BodyInertia:
        """With a function of each of its arrays and the number of its own axes."""
        centre = None
        if self.centre is not None:
            com, axes, inertia = self.centre
            centre = (of(com, 1), axes, of(inertia, 2))
        return BodyInertia(float(of(self.mass, 0)), of(self.moment, 1), of(self.about_origin, 2), centre)

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of its numbers."""
        return np.broadcast_shapes(np.shape(self.mass), self.moment.shape[:-1], self.about_origin.shape[:-2])

    def placed(self, rotation: Matrix, origin: Vector) -> BodyInertia:
        """The same inertia seen from a frame A in which the body's frame B stands at R_AB, p_AB."""
        moment, p = _turned(rotation, self.moment), skew(origin)
        cross = p @ skew(moment)
        about = rotation @ self.about_origin @ rotation.T - cross - cross.mT - _on(self.mass, 2) * p @ p
        centre = None
        if self.centre is not None:
            com, axes, inertia = self.centre
            centre = (_turned(rotation, com) + origin, rotation @ axes, inertia)
        return BodyInertia(self.mass, moment + _on(self.mass, 1) * origin, about, centre)

    def __add__(self, other: BodyInertia) -> BodyInertia:
        mass, moment = self.mass + other.mass, self.moment + other.moment
        centre = None
        if self.centre is not None and other.centre is not None:
            # About the common centre, not by way of the origin: there a small inertia keeps its digits.
            com = _per_mass(_on(self.mass, 1) * self.com + _on(other.mass, 1) * other.com, mass)
            about = sum(
                part.about_com - _on(part.mass, 2) * skew(part.com - com) @ skew(part.com - com)
                for part in (self, other)
            )
            centre = (com, np.eye(3), np.asarray(about))
        return BodyInertia(mass, moment, self.about_origin + other.about_origin, centre)

    def __sub__(self, other: BodyInertia) -> BodyInertia:
        return BodyInertia(self.mass - other.mass, self.moment - other.moment, self.about_origin - other.about_origin)


def skew(a: Vector) -> Matrix:
    """(..., 3, 3) matrix a~ with a~ b = a x b."""
    found = np.zeros((*a.shape, 3), dtype=a.dtype)
    found[..., 0, 1], found[..., 0, 2], found[..., 1, 2] = -a[..., 2], a[..., 1], -a[..., 0]
    found[..., 1, 0], found[..., 2, 0], found[..., 2, 1] = a[..., 2], -a[..., 1], a[..., 0]
    return found


def _on(mass: Any, axes: int) -> Any:
    """A mass of each robot as a factor of arrays with so many axes of their own."""
    return mass[(..., *(None,) * axes)] if isinstance(mass, np.ndarray) else mass


def _turned(rotation: Matrix, x: Vector) -> Vector:
    """R x, of vectors (..., 3)."""
    return np.asarray((rotation @ x[..., None])[..., 0])


def _per_mass(moment: Vector, mass: Any) -> Vector:
    """moment / mass; 0 where there is none."""
    if not isinstance(mass, np.ndarray):
        return moment / mass if mass else 0 * moment
    none = mass == 0.0
    return np.where(none[..., None], 0.0, moment / np.where(none, 1.0, mass)[..., None])


NOTHING = BodyInertia.of_centre(0.0, np.zeros(3), np.zeros((3, 3)))


def combine(parts: Iterable[BodyInertia]) -> BodyInertia:
    """The inertia of bodies that move as one, all seen from the same frame."""
    first, *others = tuple(parts) or (NOTHING,)
    return sum(others, first)


def principal_moments(about_com: Matrix) -> Vector:
    """(..., 3) kg m^2, ascending."""
    return np.asarray(np.linalg.eigvalsh(0.5 * (about_com + about_com.mT)))


def above(matrix: Matrix, least: Any) -> Any:
    """Whether symmetric matrices (..., 3, 3) have no eigenvalue at or below `least`, (...,): by their pivots, which
    takes a hundredth of what the eigenvalues of thousands do.
    """
    A = matrix - np.asarray(least)[..., None, None] * np.eye(3)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = A[..., 0, 0]
        share = A[..., 0, 1:] / first[..., None]
        B = A[..., 1:, 1:] - share[..., :, None] * A[..., 0, None, 1:]
        second = B[..., 0, 0]
        third = B[..., 1, 1] - B[..., 0, 1] / second * B[..., 0, 1]
    return (first > 0.0) & (second > 0.0) & (third > 0.0)
