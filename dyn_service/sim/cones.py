"""Velocities after a step whose joints rub, whose stops and planes push, and whose points slide: one minimisation.

    v' = the least of  v^T A v / 2 - v^T r                                       A = M + h d,  r = M v + h (tau - ..)
                       + sum over pushers of  (l - K x)+^2 / (2 K)               x = J v: pushes with (l - K x)+
                       + sum over rubbing pairs of  g |X|                        X = J v: rubs with g X / |X|, or holds
                       + sum over held rows of  (x - x_0)^2 / (2 R)

A pusher's force falls as what it pushes moves away and is never below zero; a rubbing pair, of a contact its two
tangents, of a joint itself and nothing, is held by at most g. Each is the slope of a convex function of v, so that
there is exactly one v', found by Newton's method with a search along each step. |X| is rounded below epsilon = R g,
with R the millionth part of how easily the pair moves: what is held creeps by 1e-6 of the velocity that one step would
give it alone, nanometres a second, and points that hold each other in more ways than one still have one answer. Each
state of a batch by itself.

Cost: O(n^3) an iteration, 2 to 10 a step, in NumPy: some tenths of a millisecond a state. Source: A. M. Castro, F. N.
Permenter, X. Han, 2022, and with the friction of the step's beginning A. M. Castro et al., 2023, 'lagged'. Checked by
tests/theory/test_cones.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array

_YIELD = 1e-6
"""R of a held direction, as a share of what one unit of impulse moves it by."""

_MOST_ITERATIONS = 200
_MOST_TRIES = 40
"""Along one step."""

_SETTLED = 1e-22
"""Share of the step's energy below which what an iteration changes is rounding: of velocities 1e-11."""


class Pushers(NamedTuple):
    """rows: (m, n). most: (m,) l, impulses at x = 0. slope: (m,) K, more than 0."""

    rows: Array
    most: Array
    slope: Array

    def impulses(self, x: Array) -> Array:
        """(m,) at velocities x."""
        return np.maximum(self.most - self.slope * x, 0.0)


class Rubbing(NamedTuple):
    """rows: (p, 2, n). bound: (p,) g, impulses, at least 0."""

    rows: Array
    bound: Array


class HeldRows(NamedTuple):
    """rows: (s, n). target: (s,) velocities x_0."""

    rows: Array
    target: Array


class Found(NamedTuple):
    """v: (n,). pushing: (m,), rubbing: (p, 2), held: (s,) impulses on the robot along the rows. sticks: (p,)."""

    v: Array
    pushing: Array
    rubbing: Array
    held: Array
    sticks: NDArray[np.bool_]


def velocities(A: Array, r: Array, start: Array, push: Pushers, rub: Rubbing, held: HeldRows) -> Found | None:
    """v' of this module's docstring for one state, and the impulses; None where it is not found.

    Args:
        A: (n, n), symmetric, positive definite.
        r: (n,) N m s | N s.
        start: (n,) where to look first.
        push: What pushes one way.
        rub: What rubs.
        held: What is held.

    Raises:
        np.linalg.LinAlgError: A is singular.
    """
    n = len(r)
    everything = (A, r, start, *push, *rub, *held)
    if not all(np.isfinite(x).all() for x in everything):  # a motion that diverges
        sizes = ((n,), push.most.shape, rub.rows.shape[:2], held.target.shape)
        v, pushing, rubbing, slipping = (np.full(size, np.nan) for size in sizes)
        return Found(v, pushing, rubbing, slipping, np.zeros(len(rub.bound), dtype=bool))
    inverse = np.linalg.inv(A)
    pairs, bound = rub.rows, rub.bound
    ease = np.einsum("pin,nm,pim->p", pairs, inverse, pairs) / 2.0
    epsilon = np.maximum(_YIELD * ease * bound, np.finfo(float).tiny)
    stiff = 1.0 / (_YIELD * np.maximum(np.einsum("sn,nm,sm->s", held.rows, inverse, held.rows), 1e-300))
    enough = _SETTLED * float(r @ inverse @ r)

    def slope(v: Array, p: Array) -> float:
        """That of the function at v, along p."""
        return float(p @ gradient(v))

    def gradient(v: Array) -> Array:
        found: Array = A @ v - r - push.impulses(push.rows @ v) @ push.rows
        X = pairs @ v
        found += np.einsum("pi,pin->n", X * (bound / np.maximum(_lengths(X), epsilon))[:, None], pairs)
        found += (stiff * (held.rows @ v - held.target)) @ held.rows
        return found

    v, least = np.array(start), np.inf
    for _ in range(_MOST_ITERATIONS):
        X = pairs @ v
        speed = _lengths(X)
        slides = speed > epsilon
        along = np.where(slides[:, None], X / np.maximum(speed, epsilon)[:, None], 0.0)
        curved = np.eye(2) - along[:, :, None] * along[:, None, :]
        curved *= (bound / np.maximum(speed, epsilon))[:, None, None]
        pushed = push.rows[push.impulses(push.rows @ v) > 0.0]
        slopes = push.slope[push.impulses(push.rows @ v) > 0.0]
        H = A + (pushed.T * slopes) @ pushed + (held.rows.T * stiff) @ held.rows
        H += np.einsum("pin,pij,pjm->nm", pairs, curved, pairs)
        g = gradient(v)
        p = -np.linalg.solve(H, g)
        left = -float(g @ p)
        if left <= enough or (left >= least and left <= 1e4 * enough):  # or as far as rounding lets it come
            return _found(v, push, rub, held, epsilon, stiff)
        least = min(least, left)
        v = v + _along(slope, v, p, left) * p
    return None


def _along(slope: Callable[[Array, Array], float], v: Array, p: Array, left: float) -> float:
    """How far to go along p: where the slope is near zero, by false position with bisection."""
    low, high, at_low, at_high = 0.0, 1.0, -left, slope(v + p, p)
    if at_high <= 0.1 * left:
        return 1.0
    for k in range(_MOST_TRIES):
        middle = (low * at_high - high * at_low) / (at_high - at_low) if k % 3 else 0.5 * (low + high)
        at_middle = slope(v + middle * p, p)
        if abs(at_middle) <= 1e-3 * left:
            return middle
        if at_middle < 0.0:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return high if low == 0.0 else low


def _found(v: Array, push: Pushers, rub: Rubbing, held: HeldRows, epsilon: Array, stiff: Array) -> Found:
    X = rub.rows @ v
    speed = _lengths(X)
    rubbing = -X * (rub.bound / np.maximum(speed, epsilon))[:, None]
    return Found(v, push.impulses(push.rows @ v), rubbing, -stiff * (held.rows @ v - held.target), speed <= epsilon)


def _lengths(X: Array) -> Array:
    return np.asarray(np.sqrt(X[:, 0] ** 2 + X[:, 1] ** 2))
