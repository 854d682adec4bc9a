"""Momentum observer: estimates external torques on the joints from the generalised momenta.

    p-dot = tau + C^T v - g - p(q, v) + tau_ext,    p = M v                                    Hamilton (P.3b)
    r = K (p - p_0 - integral of (tau + C^T v - g - p(q, v) + r) dt)

so that r-dot = K (tau_ext - r), joint by joint: the residual r is tau_ext through a first-order filter with the time
constant 1/K. It needs no acceleration measurement and no inverse of the mass matrix. The integral uses the trapezoidal
rule, also for r, and is stable for any K and period.

In closed loops r estimates forces on the independent joints, with v = G u, and the a and loads of the loops at tau = 0,
u-dot = 0: G^T times the loads is zero, so that

    (G^T p)-dot = tau_u + G^T (M-dot v + M a) - G^T (C + M a) + G-dot^T p + tau_ext

Source: De Luca, Albu-Schaeffer, Haddadin, Hirzinger, Collision detection and safe reaction with the DLR-III, IROS 2006.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.independent_joints import IndependentJoints
from dyn_service.control.law import RobotState, per_joint


class MomentumObserver:
    """The residual r and the integral. gain: K, 1/s.

    Raises:
        InvalidArgumentError: The gain is not positive.
        FailedPreconditionError: An independent joint of closed loops has no motor.
    """

    def __init__(self, model: RobotQueries, gain: float) -> None:
        self.model = model
        self.gain = float(per_joint("observer_gain", gain, 1, positive=True)[0])
        self.residual = np.zeros(model.configuration.nv)
        self._balance = np.zeros(model.configuration.nv)  # p less the integral
        self._rate_without_effort: Array | None = None  # rate of p without efforts
        self._independent = IndependentJoints.driven_ones(model, "momentum_observer")
        self._directions = np.zeros(0)  # G and M v of the previous state, of closed loops
        self._momentum = np.zeros(0)

    def reset(self, state: RobotState) -> None:
        """Begins at this state with zero external torques."""
        self.residual = np.zeros_like(self.residual)
        self._rate_without_effort = None

    def update(self, state: RobotState, dt: float) -> Array:
        """Returns the residual (nv,) N m | N, dt s after the previous state, since which the state's `effort` acted; 0
        at joints that loops move. Queries: `momentum`, `momentum_rate`; in closed loops `momentum`,
        `independent_motion`, `momentum_derivative`.
        """
        momentum, rate_without_effort, impulse = self._terms(state.measured, dt)
        if self._rate_without_effort is None:
            self._balance = momentum
        else:
            mean = 0.5 * dt * (self._rate_without_effort + rate_without_effort + self.residual)
            momentum_change = impulse + mean
            self._balance = self._balance + momentum_change
            correction = self.gain * (momentum - self._balance)
            # Solved for the residual at the end of the step, hence stable for any gain and period.
            self.residual = correction / (1.0 + 0.5 * self.gain * dt)
            self._balance = self._balance + 0.5 * dt * self.residual
        self._rate_without_effort = rate_without_effort
        return self.residual

    def _terms(self, state: RobotState, dt: float) -> tuple[Array, Array, Array]:
        """Returns the momenta (nv,), their rate without efforts, and their change by efforts and by turning axes."""
        model, joints = self.model, self._independent
        momentum = model.momentum(state.q, state.v)
        if joints is None:
            efforts = np.array([state.effort, np.zeros_like(state.effort)])
            # In one call: their difference is the part of the effort, a mean over the step; the rest are samples.
            rate_with_effort, rate = model.momentum_rate(state.q, momentum, efforts)
            return momentum, rate, dt * (rate_with_effort - rate)
        motion, nv = model.independent_motion(state.q, state.v), len(momentum)
        G_T, previous_G_T, previous = motion.jacobian.T, self._directions, self._momentum
        self._directions, self._momentum = G_T, momentum
        impulse = dt * state.effort[joints.in_v]
        if self._rate_without_effort is not None:
            # The product rule of differences: exact with the mean momentum.
            impulse = impulse + 0.5 * (G_T - previous_G_T) @ (previous + momentum)
        rate = G_T @ model.momentum_derivative(state.q, state.v, motion.bias_accelerations) - motion.bias_forces
        expanded = partial(joints.expanded, nv=nv)
        return expanded(G_T @ momentum), expanded(rate), expanded(impulse)
