"""Turns in any arithmetic: about an axis, in a plane, by quaternions (x, y, z, w); and series for small ones.

The matrix of a quaternion is a list of nine scalars, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dyn_service.model.inertia import skew
from dyn_service.model.joints.base import Arithmetic, Array, Scalar, Scalars, Terms, dot

SMALL = 0.25
"""rad^2, below which a series takes the place of a difference that cancels."""

SINE_REST = tuple((-1.0) ** k / math.factorial(2 * k + 3) for k in range(9))
"""(x - sin x) / x^3 in powers of x^2."""

COTANGENT_REST = (1 / 12, 1 / 720, 1 / 30240, 1 / 1209600, 1 / 47900160, 691 / 1307674368000, 1 / 74724249600)
"""(1 - x/2 cot(x/2)) / x^2 in powers of x^2: Bernoulli numbers B_2k / (2k)!."""


def turned_about(axis: Array, cosine: Scalar, sine: Scalar) -> Terms:
    """cos (e - a a^T) + a a^T + sin a~."""
    outer = np.outer(axis, axis)
    return ((cosine, np.eye(3) - outer), (None, outer), (sine, skew(axis)))


def turned_in_plane(x: Scalars, cosine: Scalar, sine: Scalar) -> tuple[Scalar, Scalar]:
    """Returns the first two entries of a vector, rotated from x to y."""
    return cosine * x[0] - sine * x[1], sine * x[0] + cosine * x[1]


def shorter(angle: Scalar, m: Arithmetic) -> Scalar:
    """Returns the same angle in -pi to pi."""
    return m.atan2(m.sin(angle), m.cos(angle))


def matrix(q: Scalars) -> list[Scalar]:
    """Returns the rotation of a quaternion of any length."""
    x, y, z, w = q
    # Divided by the square of the length, so that stages of RK4 and inputs with rounding need no normalisation.
    s = 2.0 / dot(q, q)
    return [
        1.0 - s * (y * y + z * z),
        s * (x * y - w * z),
        s * (x * z + w * y),
        s * (x * y + w * z),
        1.0 - s * (x * x + z * z),
        s * (y * z - w * x),
        s * (x * z - w * y),
        s * (y * z + w * x),
        1.0 - s * (x * x + y * y),
    ]


def transposed(R: list[Scalar]) -> list[Scalar]:
    """R^T."""
    return [R[3 * j + i] for i in range(3) for j in range(3)]


def times(R: list[Scalar], x: Scalars) -> list[Scalar]:
    """R x."""
    return [R[3 * i] * x[0] + R[3 * i + 1] * x[1] + R[3 * i + 2] * x[2] for i in range(3)]


def cross(a: Scalars, b: Scalars) -> list[Scalar]:
    """a x b."""
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def quaternion_product(a: Scalars, b: Scalars) -> list[Scalar]:
    """Returns a b, Hamilton's product."""
    crossed = cross(a, b)
    imaginary = [a[3] * b[k] + b[3] * a[k] + crossed[k] for k in range(3)]
    return [*imaginary, a[3] * b[3] - dot(a[:3], b[:3])]


def unit(q: Scalars, m: Arithmetic) -> list[Scalar]:
    """Returns q with unit length."""
    length = m.sqrt(dot(q, q))
    return [x / length for x in q]


def series(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Returns a power series in x; the first coefficient is that of x^0."""
    value: Scalar = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value
