"""The computed-torque law.

    tau = inverse_dynamics(q, v, a_ref + kd (v_ref - v) + kp (q_ref - q)),     kp = w^2, kd = 2 d w

so that the tracking error obeys e-ddot + kd e-dot + kp e = 0 if the model matches the plant. For joints with several
degrees of freedom q_ref - q is `Configuration.error`, and the velocities of reference and plant are each in their own
body axes: the error then obeys the same equation up to terms of order v e, which vanish with e.

Source: Newton-Euler (18) of the notes; Luh, Walker, Paul, IEEE Trans. Automatic Control 25 (1980).

**Gravity compensation** with damping: the robot floats, can be guided by hand, and comes to rest.

    tau = g(q) - c M(q) v

g contains the weight and joint springs. Kinetic energy K = v^T M v / 2 obeys K-dot = -2 c K + v^T tau_ext, because
M-dot - 2 C is skew: any motion decays as exp(-c t). M(q) a + g(q) is inverse dynamics at rest with a = -c v.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.independent_joints import commanded_count, of_all_joints
from dyn_service.control.law import EffortLaw, RobotState, per_joint
from dyn_service.control.trajectory import Reference
from dyn_service.errors import InvalidArgumentError


class ComputedTorque(EffortLaw):
    """Inverse dynamics with linear error feedback. kp: (nv,) 1/s^2. kd: (nv,) 1/s."""

    name = "computed_torque"
    closed_loops = True

    def __init__(self, model: RobotQueries, kp: Array, kd: Array) -> None:
        self.model, self.kp, self.kd = model, kp, kd

    @classmethod
    def of_frequency(
        cls, model: RobotQueries, natural_frequency: float | Sequence[float], damping_ratio: float
    ) -> ComputedTorque:
        """Makes the law with `gains`, one for each velocity; in closed loops for each of independent joints."""
        pair = gains(natural_frequency, damping_ratio, commanded_count(model))
        return cls(model, *(of_all_joints(model, gain, 0.0) for gain in pair))

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The efforts. Query: `computed_torque`."""
        return self.model.computed_torque(state.q, state.v, *reference, kp=self.kp, kd=self.kd)


def gains(natural_frequency: float | Sequence[float], damping_ratio: float, n: int) -> tuple[Array, Array]:
    """Returns the gains kp (n,) 1/s^2 and kd (n,) 1/s of e-ddot + kd e-dot + kp e = 0.

    natural_frequency: rad/s, one number or n. damping_ratio: 1 is critical.

    Raises:
        InvalidArgumentError: The natural frequency or the damping ratio is not positive and finite, or there are
            neither one nor n natural frequencies.
    """
    omega = np.atleast_1d(np.array(natural_frequency, dtype=np.float64))
    positive = np.isfinite(omega).all() and (omega > 0.0).all() and 0.0 < damping_ratio < np.inf
    if omega.shape not in ((1,), (n,)) or not positive:
        raise InvalidArgumentError(f"natural_frequency must be positive, one number or {n}, and damping_ratio positive")
    omega = np.broadcast_to(omega, (n,)).copy()
    return omega * omega, 2.0 * damping_ratio * omega


class GravityCompensation(EffortLaw):
    """Compensates the weight, with damping c, 1/s.

    Raises:
        InvalidArgumentError: The damping is negative or not finite.
    """

    name = "gravity_compensation"
    closed_loops = True

    def __init__(self, model: RobotQueries, damping: float) -> None:
        self.model = model
        self.damping = float(per_joint("damping", damping, 1)[0])
        self._rest = np.zeros(model.configuration.nv)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The efforts; the reference is not used. Query: `inverse_dynamics` at rest."""
        return self.model.inverse_dynamics(state.q, self._rest, -self.damping * state.v)
