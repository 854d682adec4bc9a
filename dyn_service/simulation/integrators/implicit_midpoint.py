"""The implicit midpoint step, x' = x + dt f((x + x') / 2), solved by iteration to rounding.

The iterates f_k of the flow at the midpoint, f_k+1 = f(x + dt/2 f_k), approach the solution by a factor each time. A
step ends for either of two reasons:

    converged    what is left, estimated by the last change times the slower of its last two contractions, is below one
                 rounding of the state
    at rounding  the change has reached no new least for some iterations, and is no larger than what one rounding of the
                 midpoint makes of the flow there, which is measured

The second is needed where the flow's own rounding, magnified by the mass matrix's condition, is larger than one of the
state: there no further iterate is nearer. What comes to neither end does not converge, and is an error.

Each member of a batch ends by itself and is kept from then on, so that its motion does not depend on the others. The
step decides by its own state alone: a motion may be cut and gone on with anywhere, to the last bit.

Where positions do not add up (quaternions), q moves along the exponential map, and momenta are those in the frames of
the parents: q' = q (+) dt v, with v and the rate taken at q (+) dt/2 v. A floating robot on which nothing acts keeps
its momentum in the world then, to rounding.

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
_MOST_ITERATIONS = 100
_PATIENCE = 4
"""Iterations without a new least change after which the flow's rounding is measured, which costs two flows a joint.
Positions and momenta contract in turn, so that every second change may be no smaller than the one before."""

_SPREAD = 16.0
"""Times the flow's measured rounding that a change at rounding may be: what is measured are roundings of the state, and
every body adds some of its own inside a flow."""

_MOST_ROUNDING = 1e-6
"""Of a change in units of the state: rounding beyond it is that of an iteration that has left, not of an answer."""


def midpoint_step(
    flow: Flow, at: Configuration, q: Array, p: Array, dt: float, unit: float
) -> tuple[Array, Array] | None:
    """The state after dt, or None where the iteration does not converge.

    Args:
        flow: Hamilton's equations, what acts held.
        at: The joints.
        q: (..., nq) positions.
        p: (..., nv) momenta.
        dt: s.
        unit: N m s, the size of momenta that counts as large: rounding is relative to it, or to p where that is larger.

    Returns:
        q, p one step later. Not finite where the motion diverges.
    """
    half = dt / 2
    # In units of the state: rad and m beside 1, momenta beside those of a motion of 1 rad/s.
    q_size = np.maximum(_largest(q), 1.0) / dt
    p_size = np.maximum(_largest(p), unit or 1.0) / dt
    pi = at.momentum_on_parent(q, p)
    v, p_dot = _flow_on_parents(flow, at, q, p)
    # Operators only: of a single state these are plain numbers, ten times as fast as arrays.
    contraction: Any = np.inf
    last = least = np.inf
    found: Any = np.zeros(q.shape[:-1], dtype=bool)[()]
    waited: Any = 0
    for _ in range(_MOST_ITERATIONS):
        q_mid, p_mid = _moved(at, q, pi, v, p_dot, half)
        v_next, p_dot_next = _flow_on_parents(flow, at, q_mid, p_mid)
        change = np.maximum(_largest(v_next - v) / q_size, _largest(p_dot_next - p_dot) / p_size)
        if found.any():
            kept = found[..., None]
            v, p_dot = np.where(kept, v, v_next), np.where(kept, p_dot, p_dot_next)
        else:
            v, p_dot = v_next, p_dot_next
        slower, contraction = contraction, change / last if last is not np.inf else np.inf
        found = found | (np.maximum(contraction, slower) * change <= _ROUNDING) | (change == 0.0)
        waited = (waited + 1) * (change >= least)
        stalled = (waited >= _PATIENCE) & ~found
        if stalled.any():
            on_parents = partial(_flow_on_parents, flow, at)
            rounding = _rounding(on_parents, q_mid, p_mid, (v_next, p_dot_next), q_size, p_size)
            # A state that has run away has a rounding of its own size: what changes so much is no midpoint.
            found = found | (stalled & (change <= np.minimum(_SPREAD * rounding, _MOST_ROUNDING)))
        if found.all():
            return _arrived(at, q, pi, v, p_dot, dt)
        last, least = change, np.minimum(least, change)
    return None if np.isfinite(v).all() and np.isfinite(p_dot).all() else _arrived(at, q, pi, v, p_dot, dt)


def _arrived(at: Configuration, q: Array, pi: Array, v: Array, rate: Array, dt: float) -> tuple[Array, Array]:
    """The state at a step's end. Its p is that from which the next step finds the same pi again: what the way back and
    forth rounds would add up over many steps, always to the same side while a body turns slowly.
    """
    moved, p = _moved(at, q, pi, v, rate, dt)
    if not at.flat:
        p = p + at.momentum_on_body(moved, pi + dt * rate - at.momentum_on_parent(moved, p))
    return moved, p


def _flow_on_parents(flow: Flow, at: Configuration, q: Array, p: Array) -> tuple[Array, Array]:
    """v, and the rates of the momenta in the frames of the parents."""
    v, p_dot = flow(q, p)
    return v, p_dot if at.flat else at.momentum_on_parent(q, p_dot + at.turning(v, p))


def _moved(at: Configuration, q: Array, pi: Array, v: Array, rate: Array, dt: float) -> tuple[Array, Array]:
    """The state dt on from q, with momenta pi in the frames of the parents."""
    moved = at.integrate(q, v, dt)
    return moved, at.momentum_on_body(moved, pi + dt * rate)


def _largest(x: Array) -> Any:
    """The largest size of each state's entries, (...)."""
    return np.abs(x).max(axis=-1, initial=0.0)


def _rounding(flow: Flow, q: Array, p: Array, here: tuple[Array, Array], q_size: Any, p_size: Any) -> Array:
    """(...), what one rounding of the state makes of the flow, in units of the state: the sum over its entries.

    Entry by entry, since the roundings of two entries may cancel in the flow.
    """
    total = np.zeros(q_size.shape)
    for shaken, of_positions in ((q, True), (p, False)):
        for k in range(shaken.shape[-1]):
            other = shaken.copy()
            size = np.maximum(np.abs(other[..., k]), 1.0) if of_positions else np.abs(other[..., k])
            other[..., k] += _ROUNDING * size
            v, p_dot = flow(other, p) if of_positions else flow(q, other)
            total += np.maximum(
                _largest(v - here[0]) / q_size,
                _largest(p_dot - here[1]) / p_size,
            )
    return total
