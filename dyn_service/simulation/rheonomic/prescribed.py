"""Motions that are given: what the prescribed joints of a rheonomic system do, as samples that a step can ask for.

RK4 asks for the given motion at t, twice at t + dt/2, and at t + dt. Samples therefore stand on the half grid, row 2k
at t0 + k dt and row 2k + 1 half a step later; or on the grid alone, row k at t0 + k dt. Then what lies half a step
later is that of the quintic through position x, velocity v and acceleration a at both ends, h = dt:

    x_m = (x_0 + x_1)/2 + 5h/32 (v_0 - v_1) + h^2/64 (a_0 + a_1)
    v_m = 15/(8h) (x_1 - x_0) - 7/16 (v_0 + v_1) + h/32 (a_1 - a_0)
    a_m = 3/(2h) (v_1 - v_0) - (a_0 + a_1)/4

of order h^6, h^6 and h^4: no less than the step itself. A client and a server that take the same rows get the same
motion to the last bit, since neither computes a time. NumPy alone is needed here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arguments import GivenMotion, Prescription
from dyn_service.api.arrays import found
from dyn_service.api.results import Array
from dyn_service.errors import InvalidArgumentError
from dyn_service.simulation.grid import Grid, check_grid


def sampled(
    prescribed: GivenMotion, *, dt: float, steps: int, t0: float = 0.0, first_step: int = 0
) -> tuple[tuple[str, ...], Array]:
    """The prescribed joints' names, and their motion on the half grid, (..., 2 steps + 1, np, 3).

    Args:
        prescribed: See `GivenMotion`. That the rates are the position's derivatives is up to the caller.
        dt: s, of a step.
        steps: How many.
        t0: s, the time of step 0.
        first_step: The step of the first row: functions are called at t0 + (first_step + j / 2) dt.

    Raises:
        InvalidArgumentError: A joint's samples are not (..., rows, 3) finite numbers with one of the two numbers of
            rows, or there is no such grid.
    """
    grid = check_grid(dt, steps, first_step=first_step, t0=t0)
    if not isinstance(prescribed, Mapping):
        raise InvalidArgumentError(
            f"prescribed must be a map from joints to their motions, found {found(prescribed)}", path="prescribed"
        )
    if not prescribed:
        return (), np.zeros((2 * grid.steps + 1, 0, 3))
    rows = [_rows(name, given, grid) for name, given in prescribed.items()]
    try:
        together = np.broadcast_arrays(*rows)
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape[:-2]}" for name, x in zip(prescribed, rows, strict=True))
        raise InvalidArgumentError(
            f"the leading axes of the prescribed motions {shapes} do not broadcast", path="prescribed"
        ) from None
    return tuple(prescribed), np.stack(together, axis=-2)


def on_half_grid(samples: Array, dt: float) -> Array:
    """Rows (..., steps + 1, 3) on the grid, with those of the module's quintic between them: (..., 2 steps + 1, 3)."""
    x, v, a = samples[..., 0], samples[..., 1], samples[..., 2]
    x0, x1, v0, v1, a0, a1 = (part for y in (x, v, a) for part in (y[..., :-1], y[..., 1:]))
    full = np.empty((*samples.shape[:-2], 2 * samples.shape[-2] - 1, 3))
    full[..., ::2, :] = samples
    full[..., 1::2, 0] = (x0 + x1) / 2 + 5 * dt / 32 * (v0 - v1) + dt * dt / 64 * (a0 + a1)
    full[..., 1::2, 1] = 15 / (8 * dt) * (x1 - x0) - 7 / 16 * (v0 + v1) + dt / 32 * (a1 - a0)
    full[..., 1::2, 2] = 3 / (2 * dt) * (v1 - v0) - (a0 + a1) / 4
    return full


def _rows(name: str, given: ArrayLike | Prescription, grid: Grid) -> Array:
    path, steps = f"prescribed.{name}", grid.steps
    expected = f"({2 * steps + 1}, 3) on the half grid or ({steps + 1}, 3) on the grid"
    if callable(given):
        # Whole steps first: k dt is then the time that the grid's row k has, to the last bit.
        times = (grid.time(j // 2) + (j % 2) * (grid.dt / 2) for j in range(2 * steps + 1))
        values: ArrayLike = [given(t) for t in times]
    else:
        values = given
    try:
        rows = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"the motion of joint '{name}' must be numbers of shape {expected}: position, velocity, acceleration",
            path=path,
        ) from None
    if rows.ndim < 2 or rows.shape[-1] != 3 or rows.shape[-2] not in (steps + 1, 2 * steps + 1):
        raise InvalidArgumentError(
            f"the motion of joint '{name}' has shape {rows.shape}, expected {expected}: position, velocity, "
            "acceleration",
            path=path,
        )
    if not np.isfinite(rows).all():
        index = np.argwhere(~np.isfinite(rows))[0].tolist()
        raise InvalidArgumentError(
            f"the motion of joint '{name}' must be finite, found {rows[tuple(index)]} at {index}", path=path
        )
    return rows if rows.shape[-2] == 2 * steps + 1 else on_half_grid(rows, grid.dt)
