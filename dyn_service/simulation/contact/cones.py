"""Velocities after a step whose joints rub, whose stops and planes push, and whose points slide: one minimisation.

    v' = the least of  v^T A v / 2 - v^T r                                       A = M + h d,  r = M v + h (tau - ..)
                       + sum over pushers of  (l - K x)+^2 / (2 K)               x = J v: pushes with (l - K x)+
                       + sum over rubbing pairs of  g |X|                        X = J v: rubs with g X / |X|, or holds
                       + sum over held rows of  (x - x_0)^2 / (2 R)

A pusher's force falls as what it pushes moves away and is never below zero; a rubbing pair, of a contact its two
tangents, of a joint itself and nothing, is held by at most g. Each is the slope of a convex function of v, so that
there is exactly one v', found by Newton's method with a search along each step. |X| is rounded below epsilon = R g,
with R the millionth part of how easily the pair moves: what is held creeps by 1e-6 of the velocity that one step would
give it alone, nanometres a second, and points that hold each other in more ways than one still have one answer. What
bounds friction, mu times a push, is not known before v' is: `steps.py` asks again until the two agree. Each
state of a batch by itself.

Cost: O(n^3) an iteration, 2 to 10 a step, in NumPy: some tenths of a millisecond a state. Source: A. M. Castro, F. N.
Permenter, X. Han, 2022, and with friction's bound given A. M. Castro et al., 2023, 'lagged'. Checked by
tests/simulation/test_cones.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
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

_ROUNDED = 1e4
"""How much above that an iteration may end that changes no less than one before."""

_ENOUGH = 0.1
"""Share of the slope at which a search along a step ends."""

_TINY = 1e-300


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
    everything = (A, r, start, *push, *rub, *held)
    if not isfinite(sum(float(x.sum()) for x in everything)):  # a motion that diverges
        sizes = (r.shape, push.most.shape, rub.rows.shape[:2], held.target.shape)
        v, pushing, rubbing, holding = (np.full(size, np.nan) for size in sizes)
        return Found(v, pushing, rubbing, holding, np.zeros(len(rub.bound), dtype=bool))
    inverse = np.asarray(np.linalg.inv(A), dtype=np.float64)
    laws = _Laws.of(inverse, push, rub, held)
    enough = _SETTLED * float(r @ inverse @ r)
    v, least = laws.guess(A, r, laws.rows @ start), np.inf
    for _ in range(_MOST_ITERATIONS):
        x = laws.rows @ v
        g = A @ v - r - laws.impulses(x) @ laws.rows
        p = -np.linalg.solve(A + laws.curvature(x), g)
        left = -float(g @ p)
        if left <= enough or (left >= least and left <= _ROUNDED * enough):
            return laws.found(v, x)
        least = min(least, left)
        v = v + _along(laws, x, laws.rows @ p, float(p @ (A @ v - r)), float(p @ A @ p), left) * p
    return None


@dataclass(frozen=True, eq=False)
class _Laws:
    """All rows, one below the other: pushers, the pairs' first and second rows, held ones; and their impulses."""

    rows: Array
    push: Pushers
    bound: Array
    epsilon: Array
    stiff: Array
    target: Array

    @classmethod
    def of(cls, inverse: Array, push: Pushers, rub: Rubbing, held: HeldRows) -> _Laws:
        rows = np.concatenate([push.rows, rub.rows[:, 0], rub.rows[:, 1], held.rows])
        ease = np.sum((rows @ inverse) * rows, axis=-1)
        m, p = len(push.most), len(rub.bound)
        of_pairs = (ease[m : m + p] + ease[m + p : m + 2 * p]) / 2.0
        epsilon = np.maximum(_YIELD * of_pairs * rub.bound, _TINY)
        return cls(rows, push, rub.bound, epsilon, 1.0 / np.maximum(_YIELD * ease[m + 2 * p :], _TINY), held.target)

    def parts(self, x: Array) -> tuple[Array, Array, Array]:
        """Of velocities along the rows, those of pushers, of pairs, (2, p), and of what is held."""
        m, p = len(self.push.most), len(self.bound)
        return x[:m], x[m : m + 2 * p].reshape(2, p), x[m + 2 * p :]

    def impulses(self, x: Array) -> Array:
        """On the robot, along each row."""
        away, across, off = self.parts(x)
        rubbing = -across * (self.bound / np.maximum(_lengths(across), self.epsilon))
        return np.concatenate([self.push.impulses(away), rubbing.ravel(), -self.stiff * (off - self.target)])

    def guess(self, A: Array, r: Array, x: Array) -> Array:
        """v' if what pushes, and what is too fast to be held by one step, were the same as at velocities x."""
        away, across, _ = self.parts(x)
        speed = _lengths(across)
        slides = speed > self.epsilon / _YIELD
        stick = np.where(slides, 0.0, self.bound / self.epsilon)
        rubbing = -across * np.where(slides, self.bound / np.maximum(speed, _TINY), 0.0)
        pushes = self.push.impulses(away) > 0.0
        slopes = np.concatenate([np.where(pushes, self.push.slope, 0.0), stick, stick, self.stiff])
        most = np.concatenate([np.where(pushes, self.push.most, 0.0), rubbing.ravel(), self.stiff * self.target])
        found: Array = np.linalg.solve(A + (self.rows.T * slopes) @ self.rows, r + most @ self.rows)
        return found

    def curvature(self, x: Array) -> Array:
        """(n, n), how the impulses change with the velocities, in those of the joints; with the sign of A."""
        away, across, _ = self.parts(x)
        m, p = len(self.push.most), len(self.bound)
        diagonal = np.empty(len(x))
        diagonal[:m] = np.where(self.push.impulses(away) > 0.0, self.push.slope, 0.0)
        diagonal[m + 2 * p :] = self.stiff
        speed = _lengths(across)
        slope = self.bound / np.maximum(speed, self.epsilon)
        slides = speed > self.epsilon
        first, second = np.where(slides, across / np.maximum(speed, self.epsilon), 0.0)
        diagonal[m : m + p], diagonal[m + p : m + 2 * p] = slope * (1.0 - first**2), slope * (1.0 - second**2)
        mixed = (self.rows[m : m + p].T * (slope * first * second)) @ self.rows[m + p : m + 2 * p]
        found: Array = (self.rows.T * diagonal) @ self.rows - mixed - mixed.T
        return found

    def found(self, v: Array, x: Array) -> Found:
        pushing, rubbing, held = self.parts(self.impulses(x))
        _, across, _ = self.parts(x)
        return Found(v, pushing, rubbing.T, held, _lengths(across) <= self.epsilon)


def _along(laws: _Laws, x: Array, dx: Array, linear: float, square: float, left: float) -> float:
    """How far to go from velocities x along dx: where the slope is near zero, by false position with bisection.

    Args:
        laws: The impulses.
        x: Along the rows.
        dx: Their change.
        linear: The slope of what is no impulse, where the search begins.
        square: How it changes.
        left: The slope there, its sign changed.
    """

    def slope(share: float) -> float:
        return linear + share * square - float(laws.impulses(x + share * dx) @ dx)

    low, high, at_low, at_high = 0.0, 1.0, -left, slope(1.0)
    if at_high <= _ENOUGH * left:
        return 1.0
    for k in range(_MOST_TRIES):
        middle = (low * at_high - high * at_low) / (at_high - at_low) if k % 3 else 0.5 * (low + high)
        at_middle = slope(middle)
        if abs(at_middle) <= _ENOUGH * left:
            return middle
        if at_middle < 0.0:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return high if low == 0.0 else low


def _lengths(across: Array) -> Array:
    """(p,), of (2, p)."""
    return np.asarray(np.sqrt(across[0] ** 2 + across[1] ** 2))
