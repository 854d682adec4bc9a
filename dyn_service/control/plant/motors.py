"""Electric limits of a simulated robot's motors, in each step of the plant. Equations: `model/motors.py`.

    i = tau / (N K)                          clipped to +-current_limit
    i^2 <= i_max^2                           by which the winding ends the step at its temperature limit
    -U <= R i + N K v <= U                   with v at the begin of the step
    theta' = theta_inf + (theta - theta_inf) exp(-dt / T),    theta_inf = R_th R i^2

The current is constant in a step, so the exponential is exact. At the temperature limit i_max is the continuous current
sqrt(theta_limit / (R_th R)). The voltage comes last, because it is physics and not a setting of the drive: beyond the
no-load speed U / (N K) the motor brakes, whatever the drive commands. R does not change with the temperature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np

from dyn_service.api.queries import Array
from dyn_service.model.motors import Motor, motor_arrays


class SupplySag(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A supply that gives `share` of each motor's voltage limit from from_s to until_s, s of the plant's time."""

    share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    from_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    until_s: float = math.inf


@dataclass
class Motors:
    """The motors of one robot by entry of v; an entry without one has no limit.

    motors: by index in v. nv: entries. dt_s: the step. sags: times of a low supply; the lowest counts.
    start_celsius: winding temperatures at the begin by index; the others begin at their ambient temperature.
    current_limited, heat_limited, voltage_limited: (nv,) steps in which that limit changed the current. current: (nv,)
    A in the last step, NaN without a motor. gain: (nv,) N K, N m/A | N/A.
    """

    motors: Mapping[int, Motor]
    nv: int
    dt_s: float
    sags: Sequence[SupplySag] = ()
    start_celsius: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_motor = np.isin(np.arange(self.nv), [*self.motors])
        self._arrays = arrays = motor_arrays(self.motors, self.nv)
        self.gain, self.resistance, self.voltage_limit = arrays.gain, arrays.resistance, arrays.voltage_limit
        self._decay, self._heat_in_step = arrays.heating(self.dt_s)
        self.current_limited, self.heat_limited, self.voltage_limited = np.zeros((3, self.nv), dtype=np.int64)
        self.reset()

    def reset(self) -> None:
        """Sets the windings to their first temperatures, without current."""
        self.current = np.where(self.is_motor, 0.0, np.nan)
        self._rise = np.zeros(self.nv)
        for index, celsius in self.start_celsius.items():
            self._rise[index] = celsius - self._arrays.ambient[index]

    @property
    def celsius(self) -> Array:
        """(nv,) winding temperatures; NaN where the motor's heat is not given."""
        return np.where(self._arrays.heat > 0.0, self._arrays.ambient + self._rise, np.nan)

    def act(self, effort: Array, v: Array, t: float) -> Array:
        """Returns the efforts (nv,) N m | N that act in the step that begins at t, s, with the velocity v (nv,)."""
        requested = effort / self.gain
        within_current = np.clip(requested, -self._arrays.current_limit, self._arrays.current_limit)
        left = np.maximum(self._arrays.largest_rise - self._decay * self._rise, 0.0)
        continuous = np.sqrt(left / self._heat_in_step)
        within_heat = np.clip(within_current, -continuous, continuous)
        share = min((sag.share for sag in self.sags if sag.from_s <= t < sag.until_s), default=1.0)
        # no supply is no limit of a motor without one
        voltage = np.multiply(
            self.voltage_limit, share, out=self.voltage_limit.copy(), where=np.isfinite(self.voltage_limit)
        )
        current = np.clip(within_heat, *self._arrays.current_range(voltage, v))
        self.current_limited += within_current != requested
        self.heat_limited += within_heat != within_current
        self.voltage_limited += current != within_heat
        self._rise = self._decay * self._rise + self._heat_in_step * current**2
        self.current = np.where(self.is_motor, current, np.nan)
        # an effort within all limits keeps its bits
        return np.where(current == requested, effort, self.gain * current)
