"""Gravity compensation with damping: the robot floats, can be led by hand, and comes to rest.

    tau = g(q) - c M(q) v

g is the weight, and springs in the joints. Kinetic energy K = v^T M v / 2 then only falls,
K-dot = -2 c K + v^T tau_ext, for M-dot - 2 C is skew: whatever the motion, speed dies out as exp(-c t). One question:
M(q) a + g(q) is inverse dynamics at rest, with a = -c v.
"""

from __future__ import annotations

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.gains import per_joint
from dyn_service.control.law import EffortLaw, RobotState
from dyn_service.control.trajectory import Reference


class GravityCompensation(EffortLaw):
    """Weightless, with damping. damping: c, 1/s; 0 is none.

    Raises:
        InvalidArgumentError: The damping is negative or no number.
    """

    name = "gravity_compensation"

    def __init__(self, model: RobotQueries, damping: float) -> None:
        self.model = model
        self.damping = float(per_joint("damping", damping, 1)[0])
        self._rest = np.zeros(model.configuration.nv)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """One question: `inverse_dynamics` at rest. There is no reference."""
        return self.model.inverse_dynamics(state.q, self._rest, -self.damping * state.v)
