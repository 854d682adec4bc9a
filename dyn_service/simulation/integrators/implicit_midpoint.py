"""The implicit midpoint step, x' = x + dt f((x + x') / 2), solved by iteration to rounding.

The iterates f_k+1 = f(x + dt/2 f_k) of the flow at the midpoint converge linearly. A step ends when it has

    converged         the remaining error, estimated by the last change times the slower of its last two
                      contractions, is below one rounding of the state
    reached rounding  the smallest change so far is some iterations old, and the change is not larger than the measured
                      effect of one rounding of the midpoint on the flow

The second criterion is needed if the rounding of the flow, magnified by the condition of the mass matrix, exceeds that
of the state. If neither is met, the step fails with an error.

Each member of a batch stops independently, so that its motion does not depend on the others. A step depends only on its
initial state, so that a motion can be continued from any of its states with the same bits.

For joints with quaternions, q moves along the exponential map, and momenta are expressed in the parents' frames:
q' = q (+) dt v, with v and the rate at q (+) dt/2 v. A free floating robot then conserves its momentum to rounding.

Source: Hairer, Lubich, Wanner, Geometric Numerical Integration, (1.7) of chapter I, VIII.6. Checked by
tests/simulation/test_midpoint.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.model.configuration import Configuration

Flow = Callable[[Array, Array], tuple[Array, Array]]
"""(q, p) -> q-dot, p-dot."""

_ROUNDING = float(np.finfo(np.float64).eps)
_MAX_ITERATIONS = 100
_PATIENCE = 4
"""Iterations without a smaller change after which the rounding of the flow is measured, which costs two flows per
joint. Positions and momenta contract alternately, so that every second change may be no smaller than the previous
one."""

_SPREAD = 16.0
"""Factor on the measured rounding of the flow, which covers roundings of the state, not those inside the flow."""

_MAX_ROUNDING = 1e-6
"""Largest change, relative to the state, that can count as rounding; beyond it the iteration has diverged."""


def midpoint_step(
    flow: Flow, configuration: Configuration, q: Array, p: Array, dt: float, unit: float
) -> tuple[Array, Array] | None:
    """Returns q, p after dt (s), not finite if the motion diverges, or None if the iteration does not converge.

    flow: Hamilton's equations with constant loads. unit: N m s, the scale of momenta: rounding is relative to it, or to
    p if that is larger.
    """
    half = dt / 2
    # In units of the state: rad and m relative to 1, momenta relative to those of a motion of 1 rad/s.
    q_size = np.maximum(_largest(q), 1.0) / dt
    p_size = np.maximum(_largest(p), unit or 1.0) / dt
    pi = configuration.momentum_on_parent(q, p)
    v, p_dot = _flow_on_parents(flow, configuration, q, p)
    # Only operators: for a single state these are plain numbers, ten times as fast as arrays.
    contraction: Any = np.inf
    last_change = least_change = np.inf
    converged: Any = np.zeros(q.shape[:-1], dtype=bool)[()]
    iterations: Any = 0
    for _ in range(_MAX_ITERATIONS):
        q_mid, p_mid = _state_after(configuration, q, pi, v, p_dot, half)
        v_next, p_dot_next = _flow_on_parents(flow, configuration, q_mid, p_mid)
        change = np.maximum(_largest(v_next - v) / q_size, _largest(p_dot_next - p_dot) / p_size)
        if converged.any():
            frozen = converged[..., None]
            v, p_dot = np.where(frozen, v, v_next), np.where(frozen, p_dot, p_dot_next)
        else:
            v, p_dot = v_next, p_dot_next
        slower, contraction = contraction, change / last_change if last_change is not np.inf else np.inf
        converged = converged | (np.maximum(contraction, slower) * change <= _ROUNDING) | (change == 0.0)
        iterations = (iterations + 1) * (change >= least_change)
        stalled = (iterations >= _PATIENCE) & ~converged
        if stalled.any():
            on_parents = partial(_flow_on_parents, flow, configuration)
            rounding = _effect_of_rounding(on_parents, q_mid, p_mid, (v_next, p_dot_next), q_size, p_size)
            # The rounding of a diverged state is of its own size, so a change of this size is not a midpoint.
            converged = converged | (stalled & (change <= np.minimum(_SPREAD * rounding, _MAX_ROUNDING)))
        if converged.all():
            return _end_of_step(configuration, q, pi, v, p_dot, dt)
        last_change, least_change = change, np.minimum(least_change, change)
    if np.isfinite(v).all() and np.isfinite(p_dot).all():
        return None
    return _end_of_step(configuration, q, pi, v, p_dot, dt)


def _end_of_step(
    configuration: Configuration, q: Array, pi: Array, v: Array, rate: Array, dt: float
) -> tuple[Array, Array]:
    """Returns the state at the end of a step, with the p that converts back to the same pi."""
    q_end, p = _state_after(configuration, q, pi, v, rate, dt)
    if not configuration.flat:
        # Rounding of the conversion would accumulate over many steps, with one sign while a body turns slowly.
        p = p + configuration.momentum_on_body(q_end, pi + dt * rate - configuration.momentum_on_parent(q_end, p))
    return q_end, p


def _flow_on_parents(flow: Flow, configuration: Configuration, q: Array, p: Array) -> tuple[Array, Array]:
    """Returns v and the rates of the momenta in the parents' frames."""
    v, p_dot = flow(q, p)
    return v, p_dot if configuration.flat else configuration.momentum_on_parent(q, p_dot + configuration.turning(v, p))


def _state_after(
    configuration: Configuration, q: Array, pi: Array, v: Array, rate: Array, dt: float
) -> tuple[Array, Array]:
    """Returns the state after dt from q, with momenta pi in the parents' frames."""
    q_end = configuration.integrate(q, v, dt)
    return q_end, configuration.momentum_on_body(q_end, pi + dt * rate)


def _largest(x: Array) -> Any:
    """Returns the largest absolute entry of each state, (...)."""
    return np.abs(x).max(axis=-1, initial=0.0)


def _effect_of_rounding(
    flow: Flow, q: Array, p: Array, flow_here: tuple[Array, Array], q_size: Any, p_size: Any
) -> Array:
    """Returns (...), the effect of one rounding of the state on the flow, in units of the state, summed over it."""
    # Each entry is perturbed alone, because roundings of two entries may cancel in the flow.
    total = np.zeros(q_size.shape)
    for perturbed, is_q in ((q, True), (p, False)):
        for k in range(perturbed.shape[-1]):
            neighbour = perturbed.copy()
            size = np.maximum(np.abs(neighbour[..., k]), 1.0) if is_q else np.abs(neighbour[..., k])
            neighbour[..., k] += _ROUNDING * size
            v, p_dot = flow(neighbour, p) if is_q else flow(q, neighbour)
            total += np.maximum(_largest(v - flow_here[0]) / q_size, _largest(p_dot - flow_here[1]) / p_size)
    return total
