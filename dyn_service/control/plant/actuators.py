"""What lies between the effort that a motor is told and the one it gives: a dead time, a lag, an end of its strength.

    told  ->  n steps later  ->  x-dot = (u - x) / T  ->  cut to +-limit  ->  acts

The effort that is told is held through a step. The lag is then exact, and what acts in a step is its mean over that
step, so that no impulse is lost whatever the step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError

MAX_DELAY_STEPS = 10_000


@dataclass
class Actuators:
    """The motors of one robot, one per entry of v.

    dt_s: the step. effort_limit: (nv,) N m | N, infinite where there is none. delay_steps: so many steps, at most
    `MAX_DELAY_STEPS`, pass before anything comes of what is told. lag_s: (nv,) s, the time constant T; 0 is none.
    saturated: (nv,) steps in which a motor was at its limit.

    Raises:
        InvalidArgumentError: The step is not positive, the delay no such number of steps; a limit or a lag is negative
            or not finite, or not one per entry.
    """

    dt_s: float
    effort_limit: Array
    delay_steps: int
    lag_s: Array
    saturated: Array = field(init=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.dt_s < np.inf:
            raise InvalidArgumentError(f"dt_s is {self.dt_s:g}: expected a positive number of seconds", path="dt_s")
        steps = self.delay_steps
        if isinstance(steps, bool) or not (isinstance(steps, int | np.integer) and 0 <= steps <= MAX_DELAY_STEPS):
            raise InvalidArgumentError(
                f"actuators.delay_steps is {steps}: expected a whole number, 0 to {MAX_DELAY_STEPS}",
                path="actuators.delay_steps",
            )
        self.effort_limit, self.lag_s = np.array(self.effort_limit, float), np.array(self.lag_s, float)
        n = self.effort_limit.shape
        if len(n) != 1 or not (self.effort_limit >= 0.0).all():
            raise InvalidArgumentError(
                f"actuators.effort_limit is {self.effort_limit.tolist()}: expected numbers that are not negative",
                path="actuators.effort_limit",
            )
        if self.lag_s.shape != n or not (np.isfinite(self.lag_s) & (self.lag_s >= 0.0)).all():
            raise InvalidArgumentError(
                f"actuators.lag_s is {self.lag_s.tolist()}: expected times of at least 0 s, one number or one per "
                "effort",
                path="actuators.lag_s",
            )
        with np.errstate(divide="ignore"):
            ratio = np.where(self.lag_s > 0.0, self.dt_s / self.lag_s, np.inf)
        self._left = np.exp(-ratio)  # of the difference at a step's end
        self._mean = np.where(self.lag_s > 0.0, (1.0 - self._left) / ratio, 0.0)  # of it, over the step
        self.saturated = np.zeros(n, dtype=np.int64)
        self.reset()

    def reset(self) -> None:
        """Nothing was told, nothing acts."""
        none = np.zeros(self.effort_limit.shape)
        self._on_way: deque[Array] = deque([none] * int(self.delay_steps))
        self._lagged = none

    def act(self, told: Array) -> Array:
        """The efforts (nv,) that act in the coming step, of which `told` (nv,) is what the motors are told at its
        beginning.
        """
        self._on_way.append(told)
        arrived = self._on_way.popleft()
        behind = self._lagged - arrived
        self._lagged = arrived + self._left * behind
        wanted = arrived + self._mean * behind
        acting: Array = np.clip(wanted, -self.effort_limit, self.effort_limit)
        self.saturated += acting != wanted
        return acting
