"""Collision reaction: switches to another law when an external torque exceeds its threshold.

    |r_k| > threshold_k at any joint k,    r of `momentum_observer.py`

From then until the plant is armed again: `stop` ends the controller, which releases the plant and shuts its brakes;
`hold` holds the position of the detection by springs; `float` yields without weight.

The error or the log names the touched link and the wrench on it, `touch.py`, of robots without closed loops.

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
from dyn_service.control.laws.touch import Touch, TouchFinder
from dyn_service.control.trajectory import Reference
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError

Action = Literal["stop", "hold", "float"]

_FELT = 0.2
"""Share of its threshold above which a joint feels a touch, since the residual of the outermost joint may be below its
threshold when another passes its own."""


class CollisionError(FailedPreconditionError):
    """Raised on a collision with the action `stop`; ends the controller."""


class CollisionStop(EffortLaw):
    """A law with collision detection.

    law: used until a collision. reaction: used from then on, reset at the position of the detection, which becomes its
    reference; None ends the controller. threshold: (nv,) N m | N.
    """

    name = "collision_stop"
    closed_loops = True

    def __init__(
        self, law: EffortLaw, observer: MomentumObserver, threshold: Array, reaction: EffortLaw | None
    ) -> None:
        self.law, self.observer, self.threshold, self.reaction = law, observer, threshold, reaction
        self._hold: Reference | None = None
        # In closed loops joints beyond the touched link feel a touch too, so that residuals do not tell the link.
        self._finder = None if observer.model.description.loop_joints else TouchFinder(observer.model)
        self.touch: Touch | None = None
        self._notes: list[str] = []

    def reset(self, state: RobotState) -> None:
        """Begins without a collision."""
        self._hold, self.touch = None, None
        self.observer.reset(state)
        self.law.reset(state)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """Efforts of the law in use.

        Raises:
            CollisionError: A collision was detected and the action is `stop`.
        """
        excess = np.abs(self.observer.update(state, dt)) - self.threshold
        if self._hold is None and not (excess <= 0.0).all():  # NaN counts as a collision
            self._begin_reaction(state, int(np.argmax(excess)))
        if self._hold is None or self.reaction is None:
            return self.law.update(state, reference, dt)
        return self.reaction.update(state.measured, self._hold, dt)  # the prediction is along the abandoned reference

    def signals(self) -> Mapping[str, Array | float]:
        """residual: r, N m | N. collision: 1 after a detection, else 0. Also the law's signals."""
        return {**self.law.signals(), "residual": self.observer.residual, "collision": float(self._hold is not None)}

    def notes(self) -> Sequence[str]:
        """Collisions since the last call, with the touched link."""
        notes, self._notes = [*self._notes, *self.law.notes()], []
        return notes

    def _begin_reaction(self, state: RobotState, k: int) -> None:
        cause = f"external torque {self.observer.residual[k]:.3g}, the threshold is {self.threshold[k]:.3g}"
        joint = self.observer.model.configuration.velocity_names[k]
        if self._finder is not None:
            self.touch = self._finder.touch(state.measured.q, self.observer.residual, _FELT * self.threshold)
        place = "" if self.touch is None else f"; {self.touch}"
        collision = f"collision at {state.measured.t:.3f} s: joint '{joint}': {cause}{place}"
        if self.reaction is None:
            raise CollisionError(collision)
        self._notes.append(collision)
        rest = np.zeros_like(state.v)
        self._hold = Reference(state.measured.q, rest, rest)
        self.reaction.reset(state.measured)


def thresholds(absolute: Sequence[float], share: float, efforts: Array, names: Sequence[str]) -> Array:
    """Returns the thresholds (nv,) N m | N.

    absolute: one per entry of v, or empty: then a share of the effort limits. efforts: these limits (nv,) N m | N,
    infinite for joints without one. names: of the entries of v.

    Raises:
        InvalidArgumentError: A threshold is not positive, their number is wrong, or a joint has no effort limit.
    """
    if absolute:
        threshold = np.array(absolute, dtype=np.float64)
        if threshold.shape != efforts.shape or not (np.isfinite(threshold) & (threshold > 0.0)).all():
            raise InvalidArgumentError(f"threshold must be {efforts.size} positive numbers, found {list(absolute)}")
        return threshold
    if not 0.0 < share < np.inf:
        raise InvalidArgumentError(f"threshold_share must be positive, found {share:g}", path="threshold_share")
    unlimited = [name for name, limit in zip(names, efforts, strict=True) if not 0.0 < limit < np.inf]
    if unlimited:
        reason = f"because joint '{unlimited[0]}' has no effort limit (threshold_share {share:g})"
        raise InvalidArgumentError(f"threshold must be given as {efforts.size} numbers, {reason}", path="threshold")
    return share * efforts
