"""Adaptive steps: extrapolation of the explicit midpoint rule, the method of Gragg, Bulirsch and Stoer.

A step of length H is computed with n_j = 2, 4, 6, .. substeps. The error of each result is a series in even powers of
the substep, so that each further result eliminates one power (Aitken and Neville): order 2 j after j results. The
difference d_j of the last two columns of row j estimates the error, which decides when to stop and how long the next
step is.

One difference is no proof. For v' = -k v it is d_j = c_j x^(2j+1) (x - n_j), x = H k: it vanishes at k = n_j / H, where
the step is far beyond stability. A row is therefore accepted only if the row before it is near as well, d_(j-1) at most
`NEAR` tolerances. The factors x - n_j and x - n_(j-1) cannot vanish together: for any x above 3 the larger of the two
differences is at least 4e-6 of the mode, 4e6 tolerances. So only a mode that is smaller than 1e-4 of its entry may be
carried by a step that is too long, until it has grown so far: from 1e-12 to 2e-7, measured.

The integrator is a generator that asks for accelerations, so that the same loop gives the same bits for a robot in this
process, behind a socket and behind an event loop.

Source: Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, II.9. Compared with SciPy's DOP853 by
tests/simulation/test_simulate_loads.py.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from dyn_service.api.queries import Array, Wrench
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.divergence import diverged, no_longer_finite
from dyn_service.simulation.task import Task

Integration = Generator[tuple[float, Array, Array], Array, tuple[Array, Array]]
"""A generator that yields stages (t, q, v), is sent their accelerations and returns the final state."""

RELATIVE, ABSOLUTE = 1e-12, 1e-14
"""Largest estimated error of a step: RELATIVE |x| + ABSOLUTE."""

NEAR = 1e2
"""Largest d_(j-1) of an accepted row, in tolerances; it costs 36 % more evaluations in motions of four arms."""

MAX_EVALUATIONS = 100_000
"""Maximum number of accelerations between two times of the grid."""

_SUBSTEPS = (2, 4, 6, 8, 10, 12, 14, 16)
_SHORTEST = 1e-13
"""Fraction of the interval below which a step is lost in the rounding of time."""


class StepLostError(ArithmeticError):
    """No step is short enough: the motion diverges. q, v: the last state; a: its acceleration."""

    def __init__(self, q: Array, v: Array, a: Array) -> None:
        super().__init__("no step is short enough")
        self.q, self.v, self.a = q, v, a


class Stage(NamedTuple):
    """A state (..., n) whose acceleration is needed, and its loads."""

    q: Array
    v: Array
    tau: Array
    wrenches: list[Wrench] | None


def between(task: Task, k: int, q: Array, v: Array) -> Generator[Stage, Array, tuple[Array, Array]]:
    """Integrates from the state at time k of the grid to the next time; yields stages and returns the state.

    Functions for efforts and wrenches are called at each stage; other loads are held.

    Raises:
        FailedPreconditionError: The motion diverges, or takes too many evaluations; names step, time and joint.
        InvalidArgumentError: A function's value has the wrong shape.
    """
    step, begin_s = task.first_step + k + 1, task.time(k)
    integration = extrapolated(task.configuration, q, v, begin_s, task.dt)
    fault: FailedPreconditionError | None = None
    try:
        t, q, v = next(integration)
        for _ in range(MAX_EVALUATIONS):
            a = np.full_like(v, np.nan)
            # A stage of a step that is far too long may overflow: functions are not called there, and the step is
            # rejected.
            if np.isfinite(q).all() and np.isfinite(v).all():
                try:
                    if task.closed_state is not None:
                        q, v = task.closed_state(q, v)
                    # yielded, not called: a kernel, a socket or an event loop answers it
                    a = yield Stage(q, v, *task.loads_at(k, q, v, t))
                except FailedPreconditionError as not_finite:
                    fault = not_finite
            t, q, v = integration.send(a)
    except StopIteration as end_of_integration:
        state: tuple[Array, Array] = end_of_integration.value
        return state
    except StepLostError as error:
        if fault is not None:
            raise fault from None
        finite = np.zeros(error.v.shape, dtype=bool)
        end_s = step * task.dt
        raise no_longer_finite(task.configuration, step, end_s, task.dt, (error.q, error.v, error.a), finite) from None
    raise diverged(
        step,
        t,
        f"it needs more than {MAX_EVALUATIONS} evaluations between two times of the grid: it grows without bound, "
        f"or dt = {task.dt:g} s is too long for such a fast motion",
    )


def extrapolated(configuration: Configuration, q: Array, v: Array, t: float, dt: float) -> Integration:
    """Returns the state at t + dt (s). All members of a batch share the steps that the fastest of them needs.

    Quaternions deviate from unit length by the error of a step; they are normalised after it and before accelerations
    are computed.

    Raises:
        StepLostError: The motion diverges.
    """
    x, nq = np.concatenate([q, v], axis=-1), configuration.nq
    elapsed, length = 0.0, dt
    while elapsed < dt:
        remaining = dt - elapsed
        length = remaining if length > 0.999 * remaining else length
        rates = yield from _rates(configuration, t + elapsed, x)
        table: list[Array] = []
        error = difference = np.inf
        for j, count in enumerate(_SUBSTEPS):
            row = [(yield from _midpoints(configuration, x, rates, t + elapsed, length, count))]
            for i in range(j):
                ratio = (count / _SUBSTEPS[j - 1 - i]) ** 2
                row.append(row[i] + (row[i] - table[i]) / (ratio - 1.0))
            table = row
            if j:
                last_error, previous, difference = error, difference, _error(x, row[-1], row[-2])
                error = max(difference, previous / NEAR) if j > 1 else difference
                accepted = j > 1 and error <= 1.0
                # If the table no longer converges, a shorter step costs less than more columns.
                if accepted or not np.isfinite(error) or (j > 3 and error > last_error):
                    break
        # The error of column j is proportional to the length to the power 2 j + 1 (j from 0).
        growth = 0.1 if not np.isfinite(error) else 0.9 * max(error, 1e-30) ** (-1.0 / (2 * j + 1))
        if accepted:
            x = np.concatenate([configuration.normalised(table[-1][..., :nq]), table[-1][..., nq:]], axis=-1)
            elapsed = dt if length == remaining else elapsed + length
            length *= min(growth, 4.0)
        else:
            length *= min(max(growth, 0.05), 0.5)
            if not length > _SHORTEST * max(abs(t), dt):
                raise StepLostError(x[..., :nq], x[..., nq:], rates[..., nq:])
    return x[..., :nq], x[..., nq:]


def _rates(configuration: Configuration, t: float, x: Array) -> Generator[tuple[float, Array, Array], Array, Array]:
    """Returns (q-dot, a) of the state x = (q, v)."""
    q, v = x[..., : configuration.nq], x[..., configuration.nq :]
    # Accelerations are computed at valid positions, locally and remotely.
    a = yield t, configuration.normalised(q), v
    return np.concatenate([configuration.rate(q, v), np.broadcast_to(a, v.shape)], axis=-1)


def _midpoints(
    configuration: Configuration, x: Array, rates: Array, t: float, length: float, count: int
) -> Generator[tuple[float, Array, Array], Array, Array]:
    """Returns the state after `length`, by `count` substeps of the explicit midpoint rule, the first an Euler step."""
    h = length / count
    x_previous, x_now = x, x + h * rates
    for m in range(1, count):
        rates_now = yield from _rates(configuration, t + m * h, x_now)
        x_previous, x_now = x_now, x_previous + (2.0 * h) * rates_now
    return x_now


def _error(x: Array, better: Array, worse: Array) -> float:
    """Returns the largest error of any member relative to the tolerance, the root mean square over its state."""
    tolerance = ABSOLUTE + RELATIVE * np.maximum(np.abs(x), np.abs(better))
    squares = np.sum(((better - worse) / tolerance) ** 2, axis=-1)
    return float(np.sqrt(squares.max(initial=0.0) / max(x.shape[-1], 1)))
