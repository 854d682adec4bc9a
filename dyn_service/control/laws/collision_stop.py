"""Collision reaction: switches to another law when an external torque exceeds its threshold.

    |r_k| > threshold_k at any joint k,    r of `momentum_observer.py`

From then until the plant is armed again: `stop` ends the controller, which releases the plant and shuts its brakes;
`hold` holds the position of the detection by springs; `float` yields without weight.

A constant torque of size s shows as s (1 - exp(-K t)): it is detected after -ln(1 - threshold / s) / K, and not at all
below the threshold. Model errors show as well, so a threshold must exceed the weight of a wrong payload.
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
    """Raised on a collision with the action `stop`; ends the controller."""


class CollisionStop(EffortLaw):
    """A law with collision detection.

    law: used until a collision. after: used from then on, reset at the position of the detection, which becomes its
    reference; None ends the controller. threshold: (nv,) N m | N.
    """

    name = "collision_stop"

    def __init__(self, law: EffortLaw, observer: MomentumObserver, threshold: Array, after: EffortLaw | None) -> None:
        self.law, self.observer, self.threshold, self.after = law, observer, threshold, after
        self._place: Reference | None = None

    def reset(self, state: RobotState) -> None:
        """Begins without a collision."""
        self._place = None
        self.observer.reset(state)
        self.law.reset(state)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """Efforts of the law in use.

        Raises:
            CollisionError: A collision was detected and the action is `stop`.
        """
        excess = np.abs(self.observer.update(state, dt)) - self.threshold
        if self._place is None and not (excess <= 0.0).all():  # NaN counts as a collision
            self._met(state, int(np.argmax(excess)))
        if self._place is None or self.after is None:
            return self.law.update(state, reference, dt)
        return self.after.update(state.measured, self._place, dt)  # the prediction is along the abandoned reference

    def signals(self) -> Mapping[str, Array | float]:
        """residual: r, N m | N. collision: 1 after a detection, else 0. Also the law's signals."""
        return {**self.law.signals(), "residual": self.observer.residual, "collision": float(self._place is not None)}

    def _met(self, state: RobotState, k: int) -> None:
        found = f"external torque {self.observer.residual[k]:.3g}, the threshold is {self.threshold[k]:.3g}"
        if self.after is None:
            joint = self.observer.model.configuration.velocity_names[k]
            raise CollisionError(f"collision at {state.measured.t:.3f} s: joint '{joint}': {found}")
        rest = np.zeros_like(state.v)
        self._place = Reference(state.measured.q, rest, rest)
        self.after.reset(state.measured)


def thresholds(given: Sequence[float], share: float, efforts: Array, names: Sequence[str]) -> Array:
    """Returns the thresholds (nv,) N m | N.

    given: one per entry of v, or empty: then a share of the effort limits. efforts: these limits (nv,) N m | N,
    infinite for joints without one. names: of the entries of v.

    Raises:
        InvalidArgumentError: A threshold is not positive, their number is wrong, or a joint has no effort limit.
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
            f"threshold must be given as {efforts.size} numbers, because joint '{without[0]}' has no effort limit "
            f"(threshold_share {share:g})",
            path="threshold",
        )
    return share * efforts
