"""Integration steps: the solution loop of the Newton-Euler document, Step 1 and Step 2.

    explicit Euler        q' = q + dt v,  v' = v + dt a(q, v)                          order 1
    semi-implicit Euler   v' = v + dt a(q, v),  q' = q + dt v'                         order 1, symplectic
    RK4                   the classical Runge-Kutta step on (q-dot, v-dot) = (v, a)    order 4

The formulas apply to symbols, where a step becomes one kernel (`dynamics/integration.py`), and to arrays, where a is
any function. `Positions` defines q + dt v for joints with quaternions: Euler steps follow the exponential map; RK4
computes its stages with quaternions that are not normalised (pose and rate do not depend on their length) and
normalises the result.

Source of the steps: Hairer, Lubich, Wanner, Geometric Numerical Integration, (1.5) and (1.9) of chapter I and (1.8) of
chapter II; explicit Euler is also what the program of the Matrix Formalism document does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol


class Positions(Protocol):
    """Integration of positions."""

    def rate(self, q: Any, v: Any) -> Any:
        """Returns q-dot."""

    def integrate(self, q: Any, v: Any, dt: Any) -> Any:
        """Returns the position after dt with constant v."""

    def normalised(self, q: Any) -> Any:
        """Returns the position with normalised quaternions."""


class Flat:
    """Positions with q-dot = v."""

    def rate(self, q: Any, v: Any) -> Any:
        """v."""
        return v

    def integrate(self, q: Any, v: Any, dt: Any) -> Any:
        """q + dt v."""
        return q + dt * v

    def normalised(self, q: Any) -> Any:
        """q."""
        return q


FLAT = Flat()


class Step(Protocol):
    """(a, q, v, dt in s) -> q and v one step later. acceleration: a(q, v)."""

    def __call__(
        self, acceleration: Callable[[Any, Any], Any], q: Any, v: Any, dt: Any, on: Positions = FLAT
    ) -> tuple[Any, Any]:
        """Returns q and v one step later."""


def explicit_euler_step(
    acceleration: Callable[[Any, Any], Any], q: Any, v: Any, dt: Any, on: Positions = FLAT
) -> tuple[Any, Any]:
    """Returns the state after dt: q += dt v, v += dt a(q, v), both evaluated at the start of the step."""
    return on.integrate(q, v, dt), v + dt * acceleration(q, v)


def semi_implicit_euler_step(
    acceleration: Callable[[Any, Any], Any], q: Any, v: Any, dt: Any, on: Positions = FLAT
) -> tuple[Any, Any]:
    """Returns the state after dt: v += dt a(q, v), then q += dt v."""
    v_next = v + dt * acceleration(q, v)
    return on.integrate(q, v_next, dt), v_next


def rk4_step(acceleration: Callable[[Any, Any], Any], q: Any, v: Any, dt: Any, on: Positions = FLAT) -> tuple[Any, Any]:
    """Returns the state after dt by the classical Runge-Kutta step."""
    half, sixth = dt / 2, dt / 6
    a1, r1 = acceleration(q, v), on.rate(q, v)
    # Stages add rates to the entries of a quaternion, whose length then differs from 1: no pose or rate depends on it.
    q2, v2 = q + half * r1, v + half * a1
    a2, r2 = acceleration(q2, v2), on.rate(q2, v2)
    q3, v3 = q + half * r2, v + half * a2
    a3, r3 = acceleration(q3, v3), on.rate(q3, v3)
    q4, v4 = q + dt * r3, v + dt * a3
    a4, r4 = acceleration(q4, v4), on.rate(q4, v4)
    return on.normalised(q + sixth * (r1 + 2 * (r2 + r3) + r4)), v + sixth * (a1 + 2 * (a2 + a3) + a4)


STEPS: Mapping[str, Step] = MappingProxyType(
    {"rk4": rk4_step, "semi_implicit_euler": semi_implicit_euler_step, "explicit_euler": explicit_euler_step}
)
"""Steps by name; each is also a kernel of the row `step`."""

WEIGHTS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"rk4": (1 / 6, 1 / 3, 1 / 3, 1 / 6), "semi_implicit_euler": (1.0,), "explicit_euler": (1.0,)}
)
"""Weights b_i of v' = v + dt (b_1 a_1 + b_2 a_2 + ..)."""
