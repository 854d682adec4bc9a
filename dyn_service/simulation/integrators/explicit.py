"""Explicit integration steps of the equations of motion, with any leading axes.

    q-dot = N(q) v,    v-dot = a(q, v)        with the joint efforts held through the step

The state is an array `q` (..., nq) and an array `v` (..., nv).

| step | order | evaluations of a | use |
|---|---|---|---|
| `semi_implicit_euler` | 1, symplectic | 1 | energy stays bounded over long runs; cheap |
| `rk4` | 4 | 4 | small error per step; the default |
| `explicit_euler` | 1 | 1 | to reproduce programs that use it: it adds energy to each oscillation |

The formulas are in `model/steps.py`, which kernels use too; here they take any acceleration function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.steps import FLAT, STEPS, Positions, Step
from dyn_service.support.suggestions import did_you_mean

Acceleration = Callable[[Array, Array], Array]
"""a(q, v), rad/s^2 or m/s^2."""
ForwardDynamics = Callable[[Array, Array, Array], Array]
"""(q, v, tau) -> a, e.g. `robot.forward_dynamics`."""

INTEGRATORS: Mapping[str, Step] = STEPS
"""Steps by name."""


def integrator(name: str) -> Step:
    """Returns a step by name.

    Raises:
        InvalidArgumentError: Unknown name.
    """
    if name not in INTEGRATORS:
        near = did_you_mean(name, INTEGRATORS)
        raise InvalidArgumentError(
            f"unknown integrator {name!r}: expected one of {', '.join(sorted(INTEGRATORS))}{near}"
        )
    return INTEGRATORS[name]


def held(forward_dynamics: ForwardDynamics, tau: Array) -> Acceleration:
    """Returns the acceleration function for constant efforts `tau` (..., n) N m | N."""
    return lambda q, v: forward_dynamics(q, v, tau)


def advance(
    step: Step,
    acceleration: Acceleration,
    q: Array,
    v: Array,
    dt_s: float,
    substeps: int = 1,
    on: Positions = FLAT,
) -> tuple[Array, Array]:
    """Returns the state after `dt_s`, computed in `substeps` equal steps."""
    inner = dt_s / substeps
    for _ in range(substeps):
        q, v = step(acceleration, q, v, inner, on=on)
    return q, v
