"""Detection of motions that diverge, with the step and the joint.

States are checked every few steps, and the states since the last check are kept. When one is not finite, the first such
step is found among them, and the joint that was fastest at its start is named: the equations couple all joints, so that
one diverging joint makes all states NaN within a step or two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.arrays import all_finite
from dyn_service.api.queries import Array
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.configuration import Configuration

if TYPE_CHECKING:
    from dyn_service.simulation.task import Motion

_LOOK_EVERY = 32
"""Steps between checks of a small state; a check costs about as much as two steps of a small robot."""

_SMALL = 4096
"""Largest size of a small state; larger states are checked at each step instead of kept."""


class DivergedError(FailedPreconditionError):
    """A motion is no longer finite or too fast for its steps, or the iteration of a step does not converge."""


def diverged(step: int, t: float, cause: str) -> DivergedError:
    """Returns the error for a motion that diverged in a step, counted from 1, which ends at t (s)."""
    return DivergedError(f"the simulation diverged in step {step} (t = {t:g} s): {cause}")


def no_longer_finite(
    configuration: Configuration,
    step: int,
    t: float,
    dt: float,
    last_finite: tuple[Array, Array, Array],
    finite: NDArray[np.bool_],
) -> DivergedError:
    """Returns the error for a motion whose state is not finite after a step, counted from 1, which ends at t (s).

    last_finite: positions, velocities and accelerations at its start. finite: (..., nv) whether the state of each
    entry's joint is finite after it.
    """
    diverging = ~finite
    member = tuple(np.argwhere(diverging.any(axis=-1))[0].tolist())
    v, a = (np.broadcast_to(x, diverging.shape)[member] for x in last_finite[1:])
    speed = np.abs(v) + dt * np.where(np.isfinite(a), np.abs(a), 0.0)
    joint = configuration.velocity_joints[int(np.argmax(np.where(diverging[member], speed, -1.0)))]
    place = f" of member {list(member)} of the batch" if member else ""
    cause = f"the state of joint '{joint}'{place} is no longer finite"
    return diverged(step, t, f"{cause}; try a step shorter than dt = {dt:g} s")


class FiniteCheck:
    """Checks every few steps whether a motion, which begins at (q, x), is finite. x: velocities or momenta.

    motion: (k, q, x) -> velocities and accelerations at the state at the start of step k of this part. progress: called
    with the completed fraction at each check.
    """

    def __init__(
        self,
        task: Motion,
        q: Array,
        x: Array,
        motion: Callable[[int, Array, Array], tuple[Array, Array]],
        progress: Callable[[float], None] | None,
    ) -> None:
        self._task, self._motion, self._progress = task, motion, progress
        # With functions each step, so that they never get a state that is not finite.
        self._stride = 1 if task.by_function or task.q.size > _SMALL else _LOOK_EVERY
        self._states: list[tuple[Array, Array]] = [(q, x)]

    def step(self, k: int, q: Array, x: Array) -> None:
        """Records the state (q, x) after step k of this part, counted from 1, and checks it if a check is due.

        Raises:
            FailedPreconditionError: A state since the last check is not finite; names the first such step, its time and
                the joint.
        """
        self._states.append((q, x))
        if not k % self._stride or k == self._task.last:
            self._check(k)

    def restart_at(self, k: int, q: Array, x: Array) -> None:
        """As `step`, for the finite state (q, x) after step k, without the states before it."""
        self._states = [(q, x)]
        self._check(k)

    def _check(self, k: int) -> None:
        if not all(map(all_finite, self._states[-1])):
            raise self._fault(k)
        del self._states[:-1]
        if self._progress is not None:
            self._progress(k / self._task.last)

    def _fault(self, k: int) -> FailedPreconditionError:
        configuration, dt = self._task.configuration, self._task.dt
        finite = [configuration.finite(q, x) for q, x in self._states]
        index = next(i for i, entries in enumerate(finite) if not entries.all())
        step = k - (len(finite) - 1) + index
        q, x = self._states[index - 1]
        v, a = self._motion(step - 1, q, x)
        number = self._task.first_step + step
        return no_longer_finite(configuration, number, number * dt, dt, (q, v, a), finite[index])
