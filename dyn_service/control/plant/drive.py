"""A servo at each joint: what makes efforts of commanded positions and velocities, once in each cycle of the plant.

    u = K e + D (b v_d - v),    e = q_d - q,    K = w^2, D = 2 d w

    tau = M(q) u + C(q, v) v + g(q) + tau_ff          the model's: K 1/s^2, D 1/s
    tau = u + tau_ff                                  without one: K N m/rad, D N m s/rad, as they are given

q_d is the set point, v_d its velocity, and b = 1 where positions are commanded. Where velocities are, q_d is their
integral and b = 1/2: for d = 1 the velocity then follows as w / (s + w), without overshoot and, by the integral,
without a lasting error. It lags by e = v_d / w; where the set point stops at a limit the joint then comes to it as
e exp(-w t), and never passes it.

With its own model the errors of all joints are decoupled wherever the arm stands. What the model lacks, tau_x, moves it
by M^-1 tau_x / w^2, a reference that accelerates by a / w^2; without a model the error is K^-1 times what efforts are
missing, the weight among them. Efforts are held through a cycle T: stable while D T < 2 - w^2 T^2 / 2, and damped as
they are asked to be while w T is small.


Where commanded positions and velocities lead, cycle by cycle, within limits. No model, no clock.

A set point begins where the robot is when it is taken over, and never jumps: it goes on with the velocity that was
commanded beside a position, and stops at the limits of position. A commanded velocity moves it; where it would leave
the limits, or go on beyond them, the velocity is 0.

A commanded position that is further from the one before than a joint may go since then, at `SHARE` of its velocity
limit, is gone to as a motor can follow: with an acceleration up to that speed, and down again before it is there. On
its way a set point has no velocity for its drive: what a drive of two real poles makes of its position alone is never
faster than it, nor beyond where it ends. What is streamed, a little further each time, is never so far: the set point
stands there as soon as that speed allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import Interface, SetPoint
from dyn_service.control.gains import per_joint
from dyn_service.errors import InvalidArgumentError

InverseDynamics = Callable[[Array, Array, Array], Array]
"""(q, v, a) -> (nv,) N m | N."""
MAX_PHASE = 0.25
"""Largest d w T of a drive with a model: its poles are then within a third of where they are asked to be."""
VELOCITY_WEIGHT = 0.5
"""b where velocities are commanded."""


class Drive:
    """The servos of one robot. stiffness: K, damping: D, (nv,). inverse_dynamics: the model's, or None without one."""

    def __init__(self, stiffness: Array, damping: Array, inverse_dynamics: InverseDynamics | None = None) -> None:
        self.stiffness, self.damping, self._inverse_dynamics = stiffness, damping, inverse_dynamics

    @classmethod
    def of_model(
        cls, inverse_dynamics: InverseDynamics, natural_frequency: float, damping_ratio: float, n: int, cycle_s: float
    ) -> Drive:
        """Servos that know the robot's model. natural_frequency: w, rad/s. damping_ratio: d. n: entries of v.

        Raises:
            InvalidArgumentError: A number is not positive, or too large for efforts that are held through a cycle.
        """
        w, d = natural_frequency, damping_ratio
        if not (w > 0.0 and d > 0.0 and w * d * cycle_s <= MAX_PHASE):
            raise InvalidArgumentError(
                f"drive.natural_frequency is {w:g} and drive.damping_ratio {d:g}: expected positive numbers, their "
                f"product at most {MAX_PHASE / cycle_s:g} rad/s, a quarter of rate_hz",
                path="drive.natural_frequency",
            )
        return cls(np.full(n, w * w), np.full(n, 2.0 * d * w), inverse_dynamics)

    @classmethod
    def of_gains(cls, stiffness: float | list[float], damping: float | list[float], n: int) -> Drive:
        """Servos without a model. stiffness: N m/rad | N/m, damping: N m s/rad | N s/m, one number or n of each.

        Raises:
            InvalidArgumentError: They are neither one nor n, or one is not positive and finite.
        """
        return cls(
            per_joint("drive.stiffness", stiffness, n, positive=True),
            per_joint("drive.damping", damping, n, positive=True),
        )

    def effort(self, to: SetPoint, q: Array, v: Array) -> Array:
        """The efforts (nv,) N m | N at q, v (nv,), before any limit."""
        weight = VELOCITY_WEIGHT if to.interface == "velocity" else 1.0
        u = self.stiffness * (to.position - q) + self.damping * (weight * to.velocity - v)
        return (u if self._inverse_dynamics is None else self._inverse_dynamics(q, v, u)) + to.effort


SHARE = 0.9
"""Of a velocity limit. Near the limit itself the robot is stopped."""
STREAM_S = 0.01
"""Commands that come less often are no stream."""
BRAKING = 0.8
"""Of the acceleration, with which a set point comes to rest at a position that was far."""

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
        self._at = self._target = self._rate = self._speed = self._effort = np.zeros(n)
        self.approach_by(np.full(n, np.inf))
        self._far: Flags = np.zeros(n, dtype=np.bool_)
        self.held_back: Flags = np.zeros(n, dtype=np.bool_)
        self._cycles = 0
        self._newly = False

    def approach_by(self, acceleration: Array) -> None:
        """Goes to positions that are far with this acceleration (nv,) rad/s^2 | m/s^2; infinite, at once at its speed,
        as it does where nothing was said.
        """
        # where there is no limit of velocity nothing is far
        at_once = np.where(np.isfinite(self._fastest), self._fastest / self.cycle_s, 1.0)
        self._acceleration = np.minimum(acceleration, at_once)

    def begin(self, q: Array) -> None:
        """The robot stands at q (nv,), and the set point with it."""
        self._at = self._target = q
        self._rate = self._speed = np.zeros_like(q)
        self._far = self.held_back = np.zeros(q.size, dtype=np.bool_)
        self._cycles = 0
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
            since_s = self.cycle_s * min(max(1, self._cycles), max(1, round(STREAM_S / self.cycle_s)))
            self._far = self._far | (np.abs(value - self._target) > since_s * self._fastest)
            self._target, self._rate, self._cycles = value, self.within("velocity", velocity), 0
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
        self._cycles += 1
        by_velocity = self._interface == "velocity"
        if by_velocity:  # one that stands beyond a limit goes no further, and is not drawn back
            target = self._at + np.where(saturated, 0.0, step * self._rate)
            target = self._no_further(target, self._at)
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
            self._approach(target)
            rate = np.where(self.held_back, 0.0, rate)
        return SetPoint(self._interface, self._at, rate, self._effort)

    def _approach(self, target: Array) -> None:
        """One cycle towards the target: at the most speed, or to one that was far by the acceleration."""
        step, before = self.cycle_s, self._at
        most = step * self._fastest
        self._at = np.minimum(np.maximum(target, before - most), before + most)
        if self._far.any():
            gap, change = target - before, step * self._acceleration
            # as fast as it can still be braked from, with a reserve for the cycles
            wanted = np.minimum(self._fastest, np.sqrt(2.0 * BRAKING * self._acceleration * np.abs(gap)))
            speed = np.minimum(np.maximum(np.sign(gap) * wanted, self._speed - change), self._speed + change)
            on_the_way = self._no_further(before + step * speed, before)
            self._far = self._far & ((np.abs(gap) > most) | (np.abs(gap) > step * (np.abs(speed) + change)))
            self._at = np.where(self._far, on_the_way, self._at)
        self.held_back = self._at != target
        self._speed = (self._at - before) / step

    def _no_further(self, to: Array, before: Array) -> Array:
        """Cut to the limits of position; one that stood beyond a limit goes no further, and is not drawn back."""
        return np.minimum(np.maximum(to, np.minimum(self.lower, before)), np.maximum(self.upper, before))
