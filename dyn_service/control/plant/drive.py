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
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import SetPoint
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
