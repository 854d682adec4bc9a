"""Detection of motions that diverge.

States are checked every few steps, and the states since the last check are kept. When one is not finite, the first such
step is found among them, and the joint that was fastest at its start is named: the equations couple all joints, so that
one diverging joint makes all states NaN within a step or two.
"""

from __future__ import annotations

from collections.abc import Callable

from dyn_service.api.arrays import all_finite
from dyn_service.api.queries import Array
from dyn_service.errors import FailedPreconditionError
from dyn_service.simulation.divergence import no_longer_finite
from dyn_service.simulation.task import Motion

_LOOK_EVERY = 32
"""Steps between checks of a small state; a check costs about as much as two steps of a small robot."""

_SMALL = 4096
"""Largest size of a small state; larger states are checked at each step instead of kept."""


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
