"""Admittance: external torques move the reference as they would move a mass on a spring and a damper.

    M_d x-ddot + D_d x-dot + K_d x = r,    r of `momentum_observer.py`
    q_ref' = q_ref exp(x),  v_ref' = v_ref + x-dot,  a_ref' = a_ref + x-ddot
    tau = computed torque along this reference - r

A robot with stiff joints thus yields with a chosen inertia. A constant torque tau_ext moves it by K_d^-1 tau_ext;
without a spring it moves on at the speed D_d^-1 tau_ext. r is subtracted so that the inner law tracks as if there were
no external torque. The residual lags by 1/K: the loop is stable while the admittance is slower than the observer, and
the observer slower than the inner law, D_d / M_d < K < natural frequency. A weight that the model lacks counts as an
external torque.

Source: Newman, Stability and performance limits of interaction controllers, J. Dyn. Sys. Meas. Control 114 (1992).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.law import EffortLaw, RobotState
from dyn_service.control.laws.momentum_observer import MomentumObserver
from dyn_service.control.trajectory import Reference


class Admittance(EffortLaw):
    """A mass, a spring and a damper per joint, which move the inner law's reference.

    law: follows the reference. inertia, damping, stiffness: (nv,), kg m^2 | kg, N m s/rad | N s/m, N m/rad | N/m.
    """

    name = "admittance"
    closed_loops = True

    def __init__(
        self, law: EffortLaw, observer: MomentumObserver, inertia: Array, damping: Array, stiffness: Array
    ) -> None:
        self.law, self.observer = law, observer
        self.inertia, self.damping, self.stiffness = inertia, damping, stiffness
        self._x = self._rate = np.zeros_like(inertia)

    def reset(self, state: RobotState) -> None:
        """Begins at this state without external torques."""
        self._x = self._rate = np.zeros_like(self._x)
        self.observer.reset(state)
        self.law.reset(state)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """Efforts of the inner law along the moved reference, less the residual."""
        residual = self.observer.update(state, dt)
        previous_rate, M = self._rate, self.inertia
        # implicit Euler: stable for any stiffness
        impulse = M * previous_rate + dt * (residual - self.stiffness * self._x)
        self._rate = impulse / (M + dt * self.damping + dt * dt * self.stiffness)
        self._x = self._x + dt * self._rate
        bend = (self._rate - previous_rate) / dt
        configuration = self.observer.model.configuration
        # The inner law would resist the external torque as an error of the model: it is subtracted.
        return self.law.update(state, reference.then(configuration, self._x, self._rate, bend), dt) - residual

    def signals(self) -> Mapping[str, Array | float]:
        """residual: r, N m | N. given_way: x, rad | m. Also the inner law's signals."""
        return {**self.law.signals(), "residual": self.observer.residual, "given_way": self._x}
