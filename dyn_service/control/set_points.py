"""Where commanded positions and velocities lead, cycle by cycle, within limits. No model, no clock.

A set point begins where the robot is when it is taken over, and never jumps: it comes to a commanded position no faster
than `SHARE` of the joint's velocity limit, goes on with the velocity that was commanded beside it, and stops at the
limits of position. A commanded velocity moves it; where it would leave the limits, or go on beyond them, the velocity
is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import Interface, SetPoint

SHARE = 0.9
"""Of a velocity limit. Near the limit itself the robot is stopped."""

Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass
class SetPoints:
    """The set point of one robot. cycle_s: s. lower, upper: (nv,) rad | m. velocity_limit: (nv,) rad/s | m/s. All may
    be infinite. held_back: (nv,), which joints do not stand where the last position commanded, for it was too far.
    """

    cycle_s: float
    lower: Array
    upper: Array
    velocity_limit: Array

    def __post_init__(self) -> None:
        n = self.lower.size
        self._fastest = SHARE * self.velocity_limit
        self._interface: Interface = "position"
        self._at = self._target = self._rate = self._effort = np.zeros(n)
        self.held_back: Flags = np.zeros(n, dtype=np.bool_)
        self._newly = False

    def begin(self, q: Array) -> None:
        """The robot stands at q (nv,), and the set point with it."""
        self._at = self._target = q
        self._rate = np.zeros_like(q)
        self._newly = False

    def within(self, interface: Interface, value: Array) -> Array:
        """The command (nv,), cut to the limits of position, or of velocity."""
        if interface == "position":
            return np.minimum(np.maximum(value, self.lower), self.upper)
        return np.minimum(np.maximum(value, -self._fastest), self._fastest)

    def too_far(self, value: Array, elapsed_s: float) -> bool:
        """Whether a commanded position (nv,) is further from the set point than a joint may go in that time."""
        return bool((np.abs(value - self._at) > self.velocity_limit * elapsed_s).any())

    def take(self, interface: Interface, value: Array, velocity: Array, effort: Array) -> None:
        """Takes a command over, from the next cycle on. value: (nv,) within the limits. velocity: of positions."""
        self._interface, self._effort = interface, effort
        if interface == "position":
            self._target, self._rate = value, self.within("velocity", velocity)
        else:
            self._rate = value
        self._newly = True

    def advance(self, q: Array, saturated: Flags, *, moves: bool) -> SetPoint:
        """The set point of the cycle that begins now.

        Args:
            q: (nv,) where the robot is.
            saturated: (nv,) whose motors are at their limits: where velocities are commanded, these wait.
            moves: Whether its brakes are open; until then the set point stays at q.
        """
        step = self.cycle_s
        by_velocity = self._interface == "velocity"
        if by_velocity:  # one that stands beyond a limit goes no further, and is not drawn back
            target = self._at + np.where(saturated, 0.0, step * self._rate)
            target = np.minimum(np.maximum(target, np.minimum(self.lower, self._at)), np.maximum(self.upper, self._at))
        else:
            target = self.within("position", self._target if self._newly else self._target + step * self._rate)
        self._newly = False
        self._target = target
        if not moves:
            self._at = q
            return SetPoint(self._interface, q, np.zeros_like(q), self._effort)
        rate = np.where((target <= self.lower) & (self._rate < 0.0), 0.0, self._rate)
        rate = np.where((target >= self.upper) & (self._rate > 0.0), 0.0, rate)
        if by_velocity:
            self._at = target
        else:
            most = step * self._fastest
            self._at = np.minimum(np.maximum(target, self._at - most), self._at + most)
            self.held_back = self._at != target
            rate = np.where(self.held_back, 0.0, rate)
        return SetPoint(self._interface, self._at, rate, self._effort)
