"""Momentum observer: estimates external torques on the joints from the generalised momenta.

    p-dot = tau + C^T v - g - p(q, v) + tau_ext,    p = M v                                    Hamilton (P.3b)
    r = K (p - p_0 - integral of (tau + C^T v - g - p(q, v) + r) dt)

so that r-dot = K (tau_ext - r), joint by joint: the residual r is tau_ext through a first-order filter with the time
constant 1/K. It needs no acceleration measurement and no inverse of the mass matrix. The integral uses the trapezoidal
rule, also for r, and is stable for any K and period.

Source: De Luca, Albu-Schaeffer, Haddadin, Hirzinger, Collision detection and safe reaction with the DLR-III, IROS 2006.
"""

from __future__ import annotations

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.law import RobotState, per_joint


class MomentumObserver:
    """The residual r and the integral. gain: K, 1/s.

    Raises:
        InvalidArgumentError: The gain is not positive.
    """

    def __init__(self, model: RobotQueries, gain: float) -> None:
        self.model = model
        self.gain = float(per_joint("observer_gain", gain, 1, positive=True)[0])
        self.residual = np.zeros(model.configuration.nv)
        self._balance = np.zeros(model.configuration.nv)  # p less the integral
        self._rate_without_effort: Array | None = None  # rate of p without efforts

    def reset(self, state: RobotState) -> None:
        """Begins at this state with zero external torques."""
        self.residual = np.zeros_like(self.residual)
        self._rate_without_effort = None

    def update(self, state: RobotState, dt: float) -> Array:
        """Returns the residual (nv,) N m | N, dt s after the previous state, since which the state's `effort` acted.
        Queries: `momentum`, `momentum_rate`.
        """
        measured_state = state.measured
        momentum = self.model.momentum(measured_state.q, measured_state.v)
        efforts = np.array([measured_state.effort, np.zeros_like(measured_state.effort)])
        # In one call: their difference is the part of the effort, which is a mean over the step; the rest are samples.
        rate_with_effort, rate_without_effort = self.model.momentum_rate(measured_state.q, momentum, efforts)
        if self._rate_without_effort is None:
            self._balance = momentum
        else:
            mean = 0.5 * dt * (self._rate_without_effort + rate_without_effort + self.residual)
            momentum_change = dt * (rate_with_effort - rate_without_effort) + mean
            self._balance = self._balance + momentum_change
            correction = self.gain * (momentum - self._balance)
            # Solved for the residual at the end of the step, hence stable for any gain and period.
            self.residual = correction / (1.0 + 0.5 * self.gain * dt)
            self._balance = self._balance + 0.5 * dt * self.residual
        self._rate_without_effort = rate_without_effort
        return self.residual
