"""Admittance: what pushes on the joints moves the reference, as it would move a mass on a spring with a damper.

    M_d x-ddot + D_d x-dot + K_d x = r,    r of `momentum_observer.py`
    q_ref' = q_ref exp(x),  v_ref' = v_ref + x-dot,  a_ref' = a_ref + x-ddot
    tau = computed torque along this reference - r

So a robot with stiff joints gives way, with an inertia of choice. A constant push tau_ext moves it by K_d^-1 tau_ext;
without a spring it goes on at the speed D_d^-1 tau_ext. The law inside follows as if nothing pushed: r is taken off.
The residual is late by 1/K: stable while the admittance is slower than the observer, and that slower than the law
inside, D_d / M_d < K < natural frequency. A weight that the model lacks counts as a push.

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
    """A mass, a spring and a damper per joint, between what pushes and the reference of the law inside.

    law: what follows the reference. inertia, damping, stiffness: (nv,), kg m^2 | kg, N m s/rad | N s/m, N m/rad | N/m.
    """

    name = "admittance"

    def __init__(
        self, law: EffortLaw, observer: MomentumObserver, inertia: Array, damping: Array, stiffness: Array
    ) -> None:
        self.law, self.observer = law, observer
        self.inertia, self.damping, self.stiffness = inertia, damping, stiffness
        self._x = self._rate = np.zeros_like(inertia)

    def reset(self, state: RobotState) -> None:
        """Nothing has pushed yet."""
        self._x = self._rate = np.zeros_like(self._x)
        self.observer.reset(state)
        self.law.reset(state)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The questions of the observer and of the law inside."""
        residual = self.observer.update(state, dt)
        before, M = self._rate, self.inertia
        # backwards: stable however stiff it is
        self._rate = (M * before + dt * (residual - self.stiffness * self._x)) / (
            M + dt * self.damping + dt * dt * self.stiffness
        )
        self._x = self._x + dt * self._rate
        bend = (self._rate - before) / dt
        at = self.observer.model.configuration
        return self.law.update(state, reference.then(at, self._x, [self._rate], [bend]), dt) - residual

    def signals(self) -> Mapping[str, Array | float]:
        """residual: r, N m | N. given_way: x, rad | m. And what the law inside shows."""
        return {**self.law.signals(), "residual": self.observer.residual, "given_way": self._x}
