"""Adaptive steps: extrapolation of the explicit midpoint rule, the method of Gragg, Bulirsch and Stoer.

A step of length H is done with 2, 4, 6, .. substeps. What they arrive at differs from the motion by a series in even
powers of the substep, so each further result takes one more power away (Aitken and Neville): order 2 j after j of them.
The last two columns of that table tell the error, and so when to stop and how long the next step may be.

The integrator computes no acceleration. It is a generator that asks for one at a time, so that the one loop serves a
robot in this process, one behind a socket and one behind an event loop, to the same bits.

Source: Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, II.9. Held against SciPy's DOP853 by
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
"""Asks for the acceleration at (t, q, v), and is sent it; the state at the end is what comes back."""

RELATIVE, ABSOLUTE = 1e-12, 1e-14
"""Largest error of a step by its own estimate, of each state: RELATIVE |x| + ABSOLUTE."""

MOST_EVALUATIONS = 100_000
"""Accelerations between two times of the grid."""

_SUBSTEPS = (2, 4, 6, 8, 10, 12, 14, 16)
_SHORTEST = 1e-13
"""Share of the whole, below which a step is lost in the rounding of time."""


class StepLostError(ArithmeticError):
    """No step is short enough: the motion leaves the finite numbers. q, v: the state that was reached, a: there."""

    def __init__(self, q: Array, v: Array, a: Array) -> None:
        super().__init__("no step is short enough")
        self.q, self.v, self.a = q, v, a


class Stage(NamedTuple):
    """The state (..., n) at which an acceleration is asked for, and what acts there."""

    q: Array
    v: Array
    tau: Array
    wrenches: list[Wrench] | None


def between(task: Task, k: int, q: Array, v: Array) -> Generator[Stage, Array, tuple[Array, Array]]:
    """From the state at the grid's time k to the next one: asks for accelerations, the state there is what comes back.

    Functions for efforts and wrenches are asked at every stage; all else is held.

    Raises:
        FailedPreconditionError: The motion diverges, or takes too many evaluations; names step, time and joint.
        InvalidArgumentError: A function's value has the wrong shape.
    """
    number, begin = task.first_step + k + 1, task.time(k)
    integration = extrapolated(task.at, q, v, begin, task.dt)
    fault: FailedPreconditionError | None = None
    try:
        t, q, v = next(integration)
        for _ in range(MOST_EVALUATIONS):
            a = np.full_like(v, np.nan)
            # A stage of a step that is far too long may be anything: no function is asked there, the step is refused.
            if np.isfinite(q).all() and np.isfinite(v).all():
                try:
                    acting = (task.efforts.at(k, number, t, q, v), task.wrenches.at(k, number, t, q, v))
                    a = yield Stage(q, v, *acting)
                except FailedPreconditionError as not_finite:
                    fault = not_finite
            t, q, v = integration.send(a)
    except StopIteration as done:
        state: tuple[Array, Array] = done.value
        return state
    except StepLostError as lost:
        if fault is not None:
            raise fault from None
        finite = np.zeros(lost.v.shape, dtype=bool)
        end = (task.first_step + k + 1) * task.dt
        raise no_longer_finite(task.at, number, end, task.dt, (lost.q, lost.v, lost.a), finite) from None
    raise diverged(
        number,
        t,
        f"it needs more than {MOST_EVALUATIONS} evaluations between two times of the grid, since it grows beyond all "
        f"bounds or dt = {task.dt:g} s is too long for so fast a motion",
    )


def extrapolated(at: Configuration, q: Array, v: Array, t: float, dt: float) -> Integration:
    """The state dt after t.

    Args:
        at: The joints. Their positions move through the space around them: quaternions leave the unit length by what
            a step is wrong, and are brought back after it, and for whoever is asked for accelerations.
        q: (..., nq) positions at t; leading axes share the steps that the fastest of them needs.
        v: (..., nv) velocities.
        t: s.
        dt: s.

    Raises:
        StepLostError: The motion diverges.
    """
    x = np.concatenate([q, v], axis=-1)
    done, length = 0.0, dt
    while done < dt:
        left = dt - done
        length = left if length > 0.999 * left else length
        rates = yield from _rates(at, t + done, x)
        table: list[Array] = []
        error = np.inf
        for j, count in enumerate(_SUBSTEPS):
            row = [(yield from _midpoints(at, x, rates, t + done, length, count))]
            for i in range(j):
                ratio = (count / _SUBSTEPS[j - 1 - i]) ** 2
                row.append(row[i] + (row[i] - table[i]) / (ratio - 1.0))
            table = row
            if j:
                before, error = error, _error(x, row[-1], row[-2])
                accepted = j > 1 and error <= 1.0
                # A table that no longer converges is left: a shorter step costs less than more columns.
                if accepted or not np.isfinite(error) or (j > 3 and error > before):
                    break
        # The error of the last columns goes with the length to the power 2 j + 1 (j from 0).
        growth = 0.1 if not np.isfinite(error) else 0.9 * max(error, 1e-30) ** (-1.0 / (2 * j + 1))
        if accepted:
            x = np.concatenate([at.normalised(table[-1][..., : at.nq]), table[-1][..., at.nq :]], axis=-1)
            done = dt if length == left else done + length
            length *= min(growth, 4.0)
        else:
            length *= min(max(growth, 0.05), 0.5)
            if not length > _SHORTEST * max(abs(t), dt):
                raise StepLostError(x[..., : at.nq], x[..., at.nq :], rates[..., at.nq :])
    return x[..., : at.nq], x[..., at.nq :]


def _rates(at: Configuration, t: float, x: Array) -> Generator[tuple[float, Array, Array], Array, Array]:
    """(q-dot, a) of the state x = (q, v)."""
    q, v = x[..., : at.nq], x[..., at.nq :]
    a = yield t, at.normalised(q), v  # whoever is asked meets positions as there are, here and remote
    return np.concatenate([at.rate(q, v), np.broadcast_to(a, v.shape)], axis=-1)


def _midpoints(
    at: Configuration, x: Array, rates: Array, t: float, length: float, count: int
) -> Generator[tuple[float, Array, Array], Array, Array]:
    """The state `length` later, by `count` substeps of the explicit midpoint rule, the first of them Euler's."""
    h = length / count
    before, here = x, x + h * rates
    for m in range(1, count):
        moved = yield from _rates(at, t + m * h, here)
        before, here = here, before + (2.0 * h) * moved
    return here


def _error(x: Array, better: Array, worse: Array) -> float:
    """The largest error of any member, in units of what is allowed: root mean square over its positions and speeds."""
    allowed = ABSOLUTE + RELATIVE * np.maximum(np.abs(x), np.abs(better))
    squares = np.sum(((better - worse) / allowed) ** 2, axis=-1)
    return float(np.sqrt(squares.max(initial=0.0) / max(x.shape[-1], 1)))
