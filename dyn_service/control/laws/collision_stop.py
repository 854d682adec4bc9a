"""A law that is left for another where something unforeseen acts on the joints.

    |r_k| > threshold_k at any joint k,    r of `momentum_observer.py`

then, until the plant is armed anew: `stop` ends the controller, which releases the plant, whose brakes shut; `hold`
holds the place where it was noticed by springs; `float` gives way, without weight.

A constant push of size s shows as s (1 - exp(-K t)): it is noticed after -ln(1 - threshold / s) / K, and not at all
below the threshold. What the model lacks shows as well: a threshold has to be above a wrong payload's weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.law import EffortLaw, RobotState
from dyn_service.control.laws.momentum_observer import MomentumObserver
from dyn_service.control.trajectory import Reference
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError

Action = Literal["stop", "hold", "float"]


class CollisionError(FailedPreconditionError):
    """Something unforeseen acts on a joint, and the controller is to end then."""


class CollisionStop(EffortLaw):
    """Another law, watched.

    law: what is done as long as nothing is met. after: what is done then; None ends the controller. It is reset where
    it takes over, and its reference is that place. threshold: (nv,) N m | N.
    """

    name = "collision_stop"

    def __init__(self, law: EffortLaw, observer: MomentumObserver, threshold: Array, after: EffortLaw | None) -> None:
        self.law, self.observer, self.threshold, self.after = law, observer, threshold, after
        self._place: Reference | None = None

    def reset(self, state: RobotState) -> None:
        """Nothing is met yet."""
        self._place = None
        self.observer.reset(state)
        self.law.reset(state)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The questions of the observer, and of the law in force.

        Raises:
            CollisionError: Something was met, and that is to end it.
        """
        excess = np.abs(self.observer.update(state, dt)) - self.threshold
        if self._place is None and not (excess <= 0.0).all():  # a residual that is no number has noticed nothing
            self._met(state, int(np.argmax(excess)))
        if self._place is None or self.after is None:
            return self.law.update(state, reference, dt)
        return self.after.update(state.measured, self._place, dt)  # predicted along a reference that is left

    def signals(self) -> Mapping[str, Array | float]:
        """residual: r, N m | N. collision: 1 where one was noticed. And what the law shows."""
        return {**self.law.signals(), "residual": self.observer.residual, "collision": float(self._place is not None)}

    def _met(self, state: RobotState, k: int) -> None:
        found = f"{self.observer.residual[k]:.3g} beside the model, the threshold is {self.threshold[k]:.3g}"
        if self.after is None:
            joint = self.observer.model.configuration.velocity_names[k]
            raise CollisionError(f"a collision at {state.measured.t:.3f} s: on joint '{joint}' act {found}")
        rest = np.zeros_like(state.v)
        self._place = Reference(state.measured.q, rest, rest)
        self.after.reset(state.measured)


def thresholds(given: Sequence[float], share: float, efforts: Array, names: Sequence[str]) -> Array:
    """The thresholds (nv,) N m | N.

    Args:
        given: One per velocity, or none.
        share: Of the efforts' limits, where none are given.
        efforts: The limits (nv,) N m | N, infinite where there are none.
        names: Of the entries of v.

    Raises:
        InvalidArgumentError: One is not positive, there are too many or too few, or a joint has no limit to take a
            share of.
    """
    if given:
        found = np.array(given, dtype=np.float64)
        if found.shape != efforts.shape or not (np.isfinite(found) & (found > 0.0)).all():
            raise InvalidArgumentError(f"threshold must be {efforts.size} positive numbers, found {list(given)}")
        return found
    if not 0.0 < share < np.inf:
        raise InvalidArgumentError(f"threshold_share must be positive, found {share:g}", path="threshold_share")
    without = [name for name, most in zip(names, efforts, strict=True) if not 0.0 < most < np.inf]
    if without:
        raise InvalidArgumentError(
            f"threshold must be given, {efforts.size} numbers: joint '{without[0]}' has no limit of its effort to take "
            f"{share:g} of",
            path="threshold",
        )
    return share * efforts
