"""Gravity compensation with damping: the robot floats, can be guided by hand, and comes to rest.

    tau = g(q) - c M(q) v

g contains the weight and joint springs. Kinetic energy K = v^T M v / 2 obeys K-dot = -2 c K + v^T tau_ext, because
M-dot - 2 C is skew: any motion decays as exp(-c t). M(q) a + g(q) is inverse dynamics at rest with a = -c v.
"""

from __future__ import annotations

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.gains import per_joint
from dyn_service.control.law import EffortLaw, RobotState
from dyn_service.control.trajectory import Reference


class GravityCompensation(EffortLaw):
    """Compensates the weight, with damping c, 1/s.

    Raises:
        InvalidArgumentError: The damping is negative or not finite.
    """

    name = "gravity_compensation"

    def __init__(self, model: RobotQueries, damping: float) -> None:
        self.model = model
        self.damping = float(per_joint("damping", damping, 1)[0])
        self._rest = np.zeros(model.configuration.nv)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The efforts; the reference is not used. Query: `inverse_dynamics` at rest."""
        return self.model.inverse_dynamics(state.q, self._rest, -self.damping * state.v)
