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

    dt_s: the step. effort_limit: (nv,) N m | N, infinite where there is none. delay_steps: so many steps, 0 or more,
    pass before anything comes of what is told. lag_s: (nv,) s, the time constant T; 0 is none. saturated: (nv,) steps
    in which a motor was at its limit.

    Raises:
        InvalidArgumentError: A limit or a lag is negative or not finite, or not one per entry.
    """

    dt_s: float
    effort_limit: Array
    delay_steps: int
    lag_s: Array
    saturated: Array = field(init=False)

    def __post_init__(self) -> None:
        n = self.effort_limit.shape
        if not (self.effort_limit >= 0.0).all():
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
        self._on_way: deque[Array] = deque([none] * self.delay_steps)
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
