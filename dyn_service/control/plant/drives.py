"""Servos and set points of commanded positions and velocities, for the safety supervisor (`safety.py`).

Servos turn the set points of commanded positions and velocities into efforts, once per cycle of the plant:

    u = K e + D (b v_d - v),    e = q_d - q,    K = w^2, D = 2 d w

    tau = M(q) u + C(q, v) v + g(q) + tau_ff          with a model: K 1/s^2, D 1/s
    tau = u + tau_ff                                  without a model: K N m/rad, D N m s/rad, as given

q_d is the set point, v_d its velocity. b = 1 for commanded positions. For commanded velocities q_d is their integral
and b = 1/2: for d = 1 the velocity then follows as w / (s + w), without overshoot and without steady-state error. It
lags by e = v_d / w; at a limit of the set point the joint approaches as e exp(-w t) and never passes it.

A model decouples the errors of all joints in any posture. An external torque tau_x displaces the joints by
M^-1 tau_x / w^2, a reference acceleration a by a / w^2. Without a model the error is K^-1 times the missing efforts,
including the weight. Efforts are held for a cycle T: stable while D T < 2 - w^2 T^2 / 2, damped as specified while w T
is small.

Set points. A set point begins at the robot's position when the plant is armed, and never jumps. It moves with the
velocity given with a position, or with the commanded velocity, and stops at the position limits.

A commanded position is far if a joint cannot reach it, at `SHARE` of its velocity limit, in the time since the previous
command. The set point then approaches it with a limited acceleration, and without a velocity for the drive: a drive
with two real poles then neither exceeds the set point's speed nor overshoots its end. Streamed positions are never far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import Interface, SetPoint
from dyn_service.control.law import per_joint
from dyn_service.errors import InvalidArgumentError

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Servo = Callable[[SetPoint, Array, Array], Array]
"""(set point, q, v) -> efforts (nv,), before limits."""
InverseDynamics = Callable[[Array, Array, Array], Array]
"""(q, v, a) -> (nv,) N m | N."""
MAX_PHASE = 0.25
"""Largest d w T of a drive with a model: its poles are then within a third of the specified ones."""
VELOCITY_WEIGHT = 0.5
"""b for commanded velocities."""


class Drive:
    """Servos of one robot. stiffness: K, damping: D, (nv,). inverse_dynamics: of the model, or None without a model."""

    def __init__(self, stiffness: Array, damping: Array, inverse_dynamics: InverseDynamics | None = None) -> None:
        self.stiffness, self.damping, self._inverse_dynamics = stiffness, damping, inverse_dynamics

    @classmethod
    def of_model(
        cls, inverse_dynamics: InverseDynamics, natural_frequency: float, damping_ratio: float, n: int, cycle_s: float
    ) -> Drive:
        """Returns servos with the robot's model. natural_frequency: w, rad/s. damping_ratio: d. n: entries of v.

        Raises:
            InvalidArgumentError: A number is not positive, or their product is too large for the cycle.
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
        """Returns servos without a model. stiffness: N m/rad | N/m, damping: N m s/rad | N s/m, one number or n each.

        Raises:
            InvalidArgumentError: There are neither one nor n numbers, or one is not positive and finite.
        """
        K = per_joint("drive.stiffness", stiffness, n, positive=True)
        return cls(K, per_joint("drive.damping", damping, n, positive=True))

    def effort(self, set_point: SetPoint, q: Array, v: Array) -> Array:
        """Returns the efforts (nv,) N m | N at q, v (nv,), before limits."""
        weight = VELOCITY_WEIGHT if set_point.interface == "velocity" else 1.0
        u = self.stiffness * (set_point.position - q) + self.damping * (weight * set_point.velocity - v)
        return (u if self._inverse_dynamics is None else self._inverse_dynamics(q, v, u)) + set_point.effort


SHARE = 0.9
"""Share of a velocity limit that set points use; near the limit itself the robot is stopped."""
STREAM_S = 0.01
"""Largest time between commands that counts when testing whether a position is far."""
BRAKING = 0.8
"""Share of the acceleration used to brake towards a far position."""


@dataclass
class SetPoints:
    """Set points of one robot. cycle_s: s. lower, upper: (nv,) rad | m. velocity_limit: (nv,) rad/s | m/s. Limits may
    be infinite. held_back: (nv,), joints that have not reached the last commanded position, because it was far.
    """

    cycle_s: float
    lower: Array
    upper: Array
    velocity_limit: Array

    def __post_init__(self) -> None:
        n = self.lower.size
        self._fastest = SHARE * self.velocity_limit
        self._interface: Interface = "position"
        self._effort = np.zeros(n)
        self.approach_by(np.full(n, np.inf))
        self.begin(np.zeros(n))

    def approach_by(self, acceleration: Array) -> None:
        """Sets the acceleration (nv,) rad/s^2 | m/s^2 towards far positions; by default infinite."""
        # without a velocity limit no position is far
        at_once = np.where(np.isfinite(self._fastest), self._fastest / self.cycle_s, 1.0)
        self._acceleration = np.minimum(acceleration, at_once)

    def begin(self, q: Array) -> None:
        """Begins at the robot's position q (nv,), at rest."""
        self._position = self._target = q
        self._rate = self._speed = np.zeros_like(q)
        self._far: Flags = np.zeros(q.size, dtype=np.bool_)
        self.held_back = self._far
        self._cycles = 0
        self._newly = False

    def within(self, interface: Interface, value: Array) -> Array:
        """Returns the command (nv,) clipped to the limits of position or velocity."""
        if interface == "position":
            return np.minimum(np.maximum(value, self.lower), self.upper)
        return np.minimum(np.maximum(value, -self._fastest), self._fastest)

    def too_far(self, value: Array, elapsed_s: float) -> Flags:
        """Whether each commanded position (nv,) is out of reach of the set point within `elapsed_s`."""
        return np.asarray(np.abs(value - self._position) > self.velocity_limit * elapsed_s)

    def take(self, interface: Interface, value: Array, velocity: Array, effort: Array) -> None:
        """Accepts a command for the next cycle. value: (nv,) within the limits. velocity: that of positions."""
        self._interface, self._effort = interface, effort
        if interface == "position":
            since_s = self.cycle_s * min(max(1, self._cycles), max(1, round(STREAM_S / self.cycle_s)))
            self._far = self._far | (np.abs(value - self._target) > since_s * self._fastest)
            self._target, self._rate, self._cycles = value, self.within("velocity", velocity), 0
        else:
            self._rate = value
        self._newly = True

    def advance(self, q: Array, saturated: Flags, *, moves: bool) -> SetPoint:
        """Returns the set point of the cycle that begins now, for a robot at q (nv,).

        saturated: (nv,) motors at their effort limits; commanded velocities are not integrated there. moves: whether
        the brakes are open; before that the set point is at q.
        """
        step = self.cycle_s
        self._cycles += 1
        by_velocity = self._interface == "velocity"
        if by_velocity:  # a set point beyond a limit moves no further out, and is not moved back
            target = self._position + np.where(saturated, 0.0, step * self._rate)
            target = self._within_position_limits(target, self._position)
        else:
            target = self.within("position", self._target if self._newly else self._target + step * self._rate)
        self._newly = False
        self._target = target
        # Behind shut brakes the set point waits at the robot, so that it does not jump when they open.
        if not moves:
            self._position = q
            return SetPoint(self._interface, q, np.zeros_like(q), self._effort)
        # At a limit the velocity would make the drive push against it.
        rate = np.where((target <= self.lower) & (self._rate < 0.0), 0.0, self._rate)
        rate = np.where((target >= self.upper) & (self._rate > 0.0), 0.0, rate)
        if by_velocity:
            self._position = target
        else:
            self._approach(target)
            rate = np.where(self.held_back, 0.0, rate)
        return SetPoint(self._interface, self._position, rate, self._effort)

    def _approach(self, target: Array) -> None:
        """Moves one cycle towards the target, at full speed or, if it was far, with limited acceleration."""
        step, previous = self.cycle_s, self._position
        max_step = step * self._fastest
        self._position = np.minimum(np.maximum(target, previous - max_step), previous + max_step)
        if self._far.any():
            gap, change = target - previous, step * self._acceleration
            # the speed from which the set point can still brake, with a reserve for the cycle
            braking_speed = np.minimum(self._fastest, np.sqrt(2.0 * BRAKING * self._acceleration * np.abs(gap)))
            speed = np.minimum(np.maximum(np.sign(gap) * braking_speed, self._speed - change), self._speed + change)
            limited_position = self._within_position_limits(previous + step * speed, previous)
            # Until the rest fits into one cycle, both at full speed and from the present speed.
            self._far = self._far & ((np.abs(gap) > max_step) | (np.abs(gap) > step * (np.abs(speed) + change)))
            self._position = np.where(self._far, limited_position, self._position)
        self.held_back = self._position != target
        self._speed = (self._position - previous) / step

    def _within_position_limits(self, target: Array, previous: Array) -> Array:
        """Clips `target` to the position limits, or to `previous` where that is already beyond a limit."""
        return np.minimum(np.maximum(target, np.minimum(self.lower, previous)), np.maximum(self.upper, previous))
