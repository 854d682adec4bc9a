"""Steps of the equations of motion in time, over any leading axes.

    q-dot = v,    v-dot = a(q, v)        with the joint efforts held through the step

The state is an array `q` (..., n) and an array `v` (..., n): every joint is revolute, continuous or prismatic, so a
position's rate is its velocity. Both steps are explicit; neither allocates anything that outlives it.

| step | order | evaluations of a | use |
|---|---|---|---|
| `semi_implicit_euler` | 1, symplectic | 1 | energy stays bounded over long runs; cheap |
| `rk4` | 4 | 4 | small error per step; the default |

Source: Hairer, Lubich, Wanner, Geometric Numerical Integration, (1.9) of chapter I and (1.8) of chapter II.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dyn_service.errors import InvalidArgumentError
from dyn_service.queries import Array

Acceleration = Callable[[Array, Array], Array]
"""a(q, v), rad/s^2 or m/s^2."""
ForwardDynamics = Callable[[Array, Array, Array], Array]
"""(q, v, tau) -> a, e.g. `robot.forward_dynamics`."""
Step = Callable[[Acceleration, Array, Array, float], tuple[Array, Array]]
"""(a, q, v, dt in s) -> the state one step later."""


def semi_implicit_euler(acceleration: Acceleration, q: Array, v: Array, dt_s: float) -> tuple[Array, Array]:
    """The state after `dt_s` by v += dt a(q, v), then q += dt v."""
    v_next = v + dt_s * acceleration(q, v)
    return q + dt_s * v_next, v_next


def rk4(acceleration: Acceleration, q: Array, v: Array, dt_s: float) -> tuple[Array, Array]:
    """The state after `dt_s` by the classical Runge-Kutta step."""
    half = 0.5 * dt_s
    a1 = acceleration(q, v)
    v2 = v + half * a1
    a2 = acceleration(q + half * v, v2)
    v3 = v + half * a2
    a3 = acceleration(q + half * v2, v3)
    v4 = v + dt_s * a3
    a4 = acceleration(q + dt_s * v3, v4)
    sixth = dt_s / 6.0
    return q + sixth * (v + 2.0 * (v2 + v3) + v4), v + sixth * (a1 + 2.0 * (a2 + a3) + a4)


INTEGRATORS: Mapping[str, Step] = MappingProxyType({"rk4": rk4, "semi_implicit_euler": semi_implicit_euler})
"""The steps by name."""


def integrator(name: str) -> Step:
    """The step of that name.

    Raises:
        InvalidArgumentError: There is none.
    """
    if name not in INTEGRATORS:
        raise InvalidArgumentError(f"unknown integrator {name!r}: expected one of {', '.join(sorted(INTEGRATORS))}")
    return INTEGRATORS[name]


def held(forward_dynamics: ForwardDynamics, tau: Array) -> Acceleration:
    """The acceleration under the efforts `tau` (..., n) N m | N, whatever the state does."""
    return lambda q, v: forward_dynamics(q, v, tau)


def advance(
    step: Step, acceleration: Acceleration, q: Array, v: Array, dt_s: float, substeps: int = 1
) -> tuple[Array, Array]:
    """The state after `dt_s`, in `substeps` equal steps."""
    inner = dt_s / substeps
    for _ in range(substeps):
        q, v = step(acceleration, q, v, inner)
    return q, v
