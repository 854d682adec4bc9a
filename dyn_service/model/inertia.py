"""The ten inertial numbers of a body: mass, first moment, second moment about the body's origin.

They are the entries of M_i, (16) of the Newton-Euler document,

    M = [ I - m s~ s~    m s~ ]      mass m,  moment h = m s,  about_origin = I - m s~ s~
        [ -m s~          m e  ]

and are additive for bodies that move as one, in one frame. In a frame in which the body has the pose R, p:

    m,   R h + m p,   R J R^T - p~ (R h)~ - (R h)~ p~ - m p~ p~

Numbers may have leading axes, for many robots at once; all functions broadcast over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dyn_service.model.arrays import Matrix, Vector


@dataclass(frozen=True, eq=False)
class BodyInertia:
    """mass: kg. moment: (..., 3) kg m. about_origin: (..., 3, 3) kg m^2. Both about the body's origin, in its axes.

    centre: centre of mass (..., 3) m, axes (3, 3) in which the inertia was given, and inertia about the centre in them
    (..., 3, 3) kg m^2; None for differences of inertias. It is kept because small inertias lose digits when they are
    moved to a distant origin.
    """

    mass: Any
    moment: Vector
    about_origin: Matrix
    centre: tuple[Vector, Matrix, Matrix] | None = None

    @classmethod
    def from_com(cls, mass: Any, com: Vector, inertia: Matrix, rotation: Matrix | None = None) -> BodyInertia:
        """Creates it from the centre of mass (..., 3) m and the inertia (..., 3, 3) kg m^2 about it, in axes with
        `rotation` relative to the body's axes; None is the body's axes.
        """
        axes = np.eye(3, dtype=inertia.dtype) if rotation is None else rotation
        about_com = axes @ inertia @ axes.T
        about_origin = about_com - _with_axes(mass, 2) * skew(com) @ skew(com)
        return cls(mass, _with_axes(mass, 1) * com, about_origin, (com, axes, inertia))

    @property
    def com(self) -> Vector:
        """Centre of mass, (..., 3) m; the origin if the mass is zero."""
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
        return np.asarray(self.about_origin + _with_axes(self.mass, 2) * s @ s)

    @property
    def matrix(self) -> Matrix:
        """M, (..., 6, 6), as in the module's docstring."""
        blocks = (self.about_origin, skew(self.moment), _with_axes(self.mass, 2) * np.eye(3))
        I, h, m = np.broadcast_arrays(*blocks)
        return np.block([[I, h], [h.mT, m]])

    def mapped(self, f: Callable[[Any, int], Any]) -> BodyInertia:
        """Applies a function to each array; it also gets the array's number of axes."""
        centre = None
        if self.centre is not None:
            com, axes, inertia = self.centre
            centre = (f(com, 1), axes, f(inertia, 2))
        return BodyInertia(float(f(self.mass, 0)), f(self.moment, 1), f(self.about_origin, 2), centre)

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of its numbers."""
        return np.broadcast_shapes(np.shape(self.mass), self.moment.shape[:-1], self.about_origin.shape[:-2])

    def transformed(self, rotation: Matrix, origin: Vector) -> BodyInertia:
        """Returns the inertia in a frame A in which the body frame B has the pose R_AB, p_AB."""
        moment, p = _rotated(rotation, self.moment), skew(origin)
        cross = p @ skew(moment)
        about_origin = rotation @ self.about_origin @ rotation.T - cross - cross.mT - _with_axes(self.mass, 2) * p @ p
        centre = None
        if self.centre is not None:
            com, axes, inertia = self.centre
            centre = (_rotated(rotation, com) + origin, rotation @ axes, inertia)
        return BodyInertia(self.mass, moment + _with_axes(self.mass, 1) * origin, about_origin, centre)

    def __add__(self, other: BodyInertia) -> BodyInertia:
        mass, moment = self.mass + other.mass, self.moment + other.moment
        centre = None
        if self.centre is not None and other.centre is not None:
            # About the common centre, because a small inertia would lose digits about the origin.
            com = _per_mass(_with_axes(self.mass, 1) * self.com + _with_axes(other.mass, 1) * other.com, mass)
            about_com = sum(
                part.about_com - _with_axes(part.mass, 2) * skew(part.com - com) @ skew(part.com - com)
                for part in (self, other)
            )
            centre = (com, np.eye(3), np.asarray(about_com))
        return BodyInertia(mass, moment, self.about_origin + other.about_origin, centre)

    def __sub__(self, other: BodyInertia) -> BodyInertia:
        # Without `centre`: what an inertia transfer leaves may have no mass.
        return BodyInertia(self.mass - other.mass, self.moment - other.moment, self.about_origin - other.about_origin)


def skew(a: Vector) -> Matrix:
    """Returns the matrix a~ (..., 3, 3) with a~ b = a x b."""
    matrix = np.zeros((*a.shape, 3), dtype=a.dtype)
    matrix[..., 0, 1], matrix[..., 0, 2], matrix[..., 1, 2] = -a[..., 2], a[..., 1], -a[..., 0]
    matrix[..., 1, 0], matrix[..., 2, 0], matrix[..., 2, 1] = a[..., 2], -a[..., 1], a[..., 0]
    return matrix


def _with_axes(mass: Any, axes: int) -> Any:
    """Reshapes masses so that they multiply arrays with this number of axes."""
    return mass[(..., *(None,) * axes)] if isinstance(mass, np.ndarray) else mass


def _rotated(rotation: Matrix, x: Vector) -> Vector:
    """Returns R x for vectors (..., 3)."""
    return np.asarray((rotation @ x[..., None])[..., 0])


def _per_mass(moment: Vector, mass: Any) -> Vector:
    """Returns moment / mass, or 0 if the mass is zero."""
    if not isinstance(mass, np.ndarray):
        return moment / mass if mass else 0 * moment
    is_massless = mass == 0.0
    return np.where(is_massless[..., None], 0.0, moment / np.where(is_massless, 1.0, mass)[..., None])


ZERO_INERTIA = BodyInertia.from_com(0.0, np.zeros(3), np.zeros((3, 3)))


def combine(parts: Iterable[BodyInertia]) -> BodyInertia:
    """Returns the inertia of bodies that move as one, all in the same frame."""
    first, *rest = tuple(parts) or (ZERO_INERTIA,)
    return sum(rest, first)


def principal_moments(about_com: Matrix) -> Vector:
    """Returns the principal moments of inertia (..., 3), kg m^2, ascending."""
    return np.asarray(np.linalg.eigvalsh(0.5 * (about_com + about_com.mT)))


def eigenvalues_exceed(matrix: Matrix, threshold: Any) -> Any:
    """Returns whether all eigenvalues of symmetric matrices (..., 3, 3) exceed `threshold` (...,).

    It uses pivots, which takes a hundredth of the time that eigenvalues of thousands of matrices take.
    """
    A = matrix - np.asarray(threshold)[..., None, None] * np.eye(3)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = A[..., 0, 0]
        share = A[..., 0, 1:] / first[..., None]
        B = A[..., 1:, 1:] - share[..., :, None] * A[..., 0, None, 1:]
        second = B[..., 0, 0]
        third = B[..., 1, 1] - B[..., 0, 1] / second * B[..., 0, 1]
    return (first > 0.0) & (second > 0.0) & (third > 0.0)
