"""Motions from efforts: the forward dynamics of a robot integrated over a grid of times, for a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.errors import InvalidArgumentError
from dyn_service.queries import Array
from dyn_service.sim.integrators import ForwardDynamics, advance, held, integrator


@dataclass(frozen=True, eq=False)
class Rollout:
    """A motion: t (T+1,) s, q (..., T+1, n) rad or m, v (..., T+1, n) rad/s or m/s."""

    t: Array
    q: Array
    v: Array


def rollout(
    forward_dynamics: ForwardDynamics,
    q: ArrayLike,
    v: ArrayLike,
    tau: ArrayLike,
    *,
    dt_s: float,
    method: str = "rk4",
    substeps: int = 1,
) -> Rollout:
    """The motion from the state `q`, `v` under the efforts `tau`, each held for `dt_s`.

    Args:
        forward_dynamics: (q, v, tau) -> a over any leading axes.
        q: (..., n) rad or m, the first state; the leading axes of q, v and tau broadcast.
        v: (..., n) rad/s or m/s.
        tau: (..., T, n) N m or N.
        dt_s: Time for which one effort is held.
        method: A name in `INTEGRATORS`.
        substeps: Steps of the integrator per effort.

    Raises:
        InvalidArgumentError: The last axes differ, or `dt_s` or `substeps` is not positive.

    Checked by: tests/nodes/test_integrators.py
    """
    efforts = np.asarray(tau, dtype=np.float64)
    q_now, v_now = np.asarray(q, dtype=np.float64), np.asarray(v, dtype=np.float64)
    if efforts.ndim < 2 or not efforts.shape[-1] == q_now.shape[-1] == v_now.shape[-1]:
        raise InvalidArgumentError(
            f"tau {efforts.shape}, q {q_now.shape}, v {v_now.shape}: expected (..., T, n), (..., n), (..., n)"
        )
    if not dt_s > 0.0 or substeps < 1:
        raise InvalidArgumentError(f"dt_s {dt_s} and substeps {substeps}: expected positive numbers")
    step = integrator(method)
    shape = np.broadcast_shapes(q_now.shape, v_now.shape, (*efforts.shape[:-2], efforts.shape[-1]))
    count = efforts.shape[-2]
    q_all = np.empty((*shape[:-1], count + 1, shape[-1]))
    v_all = np.empty_like(q_all)
    q_now, v_now = np.broadcast_to(q_now, shape), np.broadcast_to(v_now, shape)
    q_all[..., 0, :], v_all[..., 0, :] = q_now, v_now
    for k in range(count):
        acceleration = held(forward_dynamics, efforts[..., k, :])
        q_now, v_now = advance(step, acceleration, q_now, v_now, dt_s, substeps)
        q_all[..., k + 1, :], v_all[..., k + 1, :] = q_now, v_now
    return Rollout(dt_s * np.arange(count + 1), q_all, v_all)
