"""Gains per joint from parameters, and the damping that belongs to a stiffness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError


def per_joint(name: str, given: float | Sequence[float], n: int, *, positive: bool = False) -> Array:
    """Returns one number, or n, as an array (n,).

    Args:
        name: Its name in errors.
        given: The number or numbers.
        n: Entries of v.
        positive: Whether 0 is invalid.

    Raises:
        InvalidArgumentError: There are neither one nor n numbers, or one is negative, infinite or NaN.
    """
    values = np.atleast_1d(np.array(given, dtype=np.float64))
    sound = np.isfinite(values) & ((values > 0.0) if positive else (values >= 0.0))
    if values.shape not in ((1,), (n,)) or not sound.all():
        what = "positive" if positive else "not negative"
        shown = f"{values.size} numbers" if sound.all() else f"{values[~sound][0]:g}"
        raise InvalidArgumentError(f"{name} must be one number or {n}, {what} and finite, found {shown}", path=name)
    return np.broadcast_to(values, (n,)).copy()


def modal_damping(mass: Array, stiffness: Array, ratio: float) -> Array:
    """The matrix D (n, n) with which every mode of M x-ddot + D x-dot + K x = 0 has this damping ratio.

        M = A A^T,  K = A S A^T  with S diagonal,   D = A (2 ratio S^1/2) A^T

    Args:
        mass: M (n, n), positive definite.
        stiffness: K (n, n), symmetric and not negative.
        ratio: 1 is critical.

    Source: Albu-Schaeffer, Ott, Frese, Hirzinger, Cartesian impedance control of redundant robots, ICRA 2003, "double
    diagonalisation".
    """
    L = np.linalg.cholesky(mass)
    half = np.linalg.solve(L, stiffness)
    squares, U = np.linalg.eigh(np.linalg.solve(L, half.T))
    A = L @ U
    return np.asarray((A * (2.0 * ratio * np.sqrt(np.maximum(squares, 0.0)))) @ A.T)
