"""Motors of joints, as data: gear, winding, supply and heat.

A motor has the current i and the winding voltage u at the joint's velocity v and effort tau,

    tau = N K i,    u = R i + K N v,    armature = N^2 J

so a supply of voltage U leaves the efforts up to the torque-speed line N K (U - K N v) / R. Its winding is at
theta above the surroundings:

    T dtheta/dt + theta = R_th R i^2

With a constant current theta tends to R_th R i^2 by exp(-t / T); the continuous current is the one at which it tends to
the largest rise, sqrt((limit - ambient) / (R_th R)).

Its gear is rigid, or a spring with damping and play between rotor and link, see `control/plant/gears.py`.

Source: A. Hughes, B. Drury, Electric Motors and Drives (2019), chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from dyn_service.model.arrays import Vector


class Motor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The motor of one joint. None and infinity: not given, the limit does not exist. Without a temperature limit the
    winding's temperature is computed and limits nothing.

    gear_ratio: N, rad of the rotor per rad or m of the joint. torque_constant: K, N m/A at the rotor, the same number
    as the voltage constant in V s/rad. rotor_inertia: J, kg m^2. resistance: R, ohm, of the current of
    `torque_constant`: the heat is R i^2. current_limit: A. voltage_limit: U, V. thermal_resistance: R_th, K/W, winding
    to surroundings. thermal_time_constant_s: T. temperature_limit_celsius: of the winding. ambient_celsius: of the
    surroundings. gear_stiffness: N m/rad | N/m at the joint; without it the gear is rigid. gear_damping: N m s/rad |
    N s/m at the joint. backlash: full width of the gap, rad | m at the joint.
    """

    torque_constant: float
    gear_ratio: float | None = None
    rotor_inertia: float | None = None
    resistance: float | None = None
    current_limit: float = math.inf
    voltage_limit: float = math.inf
    thermal_resistance: float | None = None
    thermal_time_constant_s: float | None = None
    temperature_limit_celsius: float | None = None
    ambient_celsius: float = 25.0
    gear_stiffness: float | None = None
    gear_damping: float = 0.0
    backlash: float = 0.0

    @property
    def gain(self) -> float:
        """N K, effort per current, N m/A | N/A."""
        assert self.gear_ratio is not None  # a joint file with a motor has one, or the robot's file
        return self.gear_ratio * self.torque_constant

    def __str__(self) -> str:
        """Returns the numbers that are given, such as `torque_constant 0.1, gear_ratio 50`."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} {x:g}" for name, x in values if x is not None and x != getattr(_DEFAULT, name))

    def fault(self) -> tuple[str, str]:
        """Returns the first wrong field, and a sentence about it; empty if all are right."""
        thermal = ("thermal_resistance", "thermal_time_constant_s", "temperature_limit_celsius")
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None or value == getattr(_DEFAULT, name):
                continue
            expected, is_right = "a positive, finite number", value > 0.0
            if name == "gear_ratio":
                expected, is_right = "a finite number other than 0", value != 0.0
            elif name.endswith("celsius"):
                expected, is_right = "a finite number", True
            elif name in _AT_LEAST_0:
                expected, is_right = "a finite number of at least 0", value >= 0.0
            if not (math.isfinite(value) and is_right):
                return name, f"expected {expected}, found {value:g}"
        for name in _AT_LEAST_0:
            if getattr(self, name) and self.gear_stiffness is None:
                return name, f"expected a gear_stiffness with the {name}, found none"
        if math.isfinite(self.voltage_limit) and self.resistance is None:
            return "voltage_limit", "expected a resistance with the voltage_limit, found none"
        if any(getattr(self, name) is not None for name in thermal):
            for name in (*thermal[:2], "resistance"):
                if getattr(self, name) is None:
                    return name, f"expected {', '.join(thermal[:2])} and resistance together, found no {name}"
        if self.temperature_limit_celsius is not None and self.temperature_limit_celsius <= self.ambient_celsius:
            text = f"expected more than ambient_celsius, {self.ambient_celsius:g}"
            return "temperature_limit_celsius", f"{text}, found {self.temperature_limit_celsius:g}"
        return "", ""


_AT_LEAST_0 = ("gear_damping", "backlash")
_DEFAULT = Motor(torque_constant=math.nan)


@dataclass(frozen=True, eq=False)
class MotorArrays:
    """The numbers of a robot's motors by entry of v, (nv,) each; an entry without a motor has gain 1 and no limit.

    gain: N K, N m/A | N/A. resistance: R, ohm. current_limit: A. voltage_limit: U, V. heat: R_th R, K/A^2, 0 without
    heat. time_constant: T, s. ambient: degrees Celsius. largest_rise: K above it.
    """

    gain: Vector
    resistance: Vector
    current_limit: Vector
    voltage_limit: Vector
    heat: Vector
    time_constant: Vector
    ambient: Vector
    largest_rise: Vector

    @property
    def continuous_current(self) -> Vector:
        """A, whose heat ends at the largest rise; infinite without heat or limit."""
        squares = np.divide(self.largest_rise, self.heat, out=np.full_like(self.heat, np.inf), where=self.heat > 0.0)
        return np.sqrt(squares)

    @property
    def braking(self) -> Vector:
        """(N K)^2 / R, N m s/rad | N s/m, by which the back EMF brakes a joint at its voltage limit; 0 without one."""
        return np.where(np.isfinite(self.voltage_limit), self.gain**2 / self.resistance, 0.0)

    def voltage(self, current: Vector, v: Vector) -> Vector:
        """Returns u, V, (.., nv)."""
        return self.resistance * current + self.gain * v

    def current_range(self, voltage: Vector, v: Vector) -> tuple[Vector, Vector]:
        """Returns the least and the largest current, A, of a supply of this voltage at the velocity v, (.., nv)."""
        back_emf = self.gain * v
        return (-voltage - back_emf) / self.resistance, (voltage - back_emf) / self.resistance

    def heating(self, dt_s: float | Vector) -> tuple[Vector, Vector]:
        """Returns what a time with constant current leaves of the rise, and the rise per squared current, K/A^2."""
        return np.exp(-dt_s / self.time_constant), self.heat * -np.expm1(-dt_s / self.time_constant)

    def rises(self, t: Vector, current: Vector, begin: Vector) -> Vector:
        """Returns the rises of the windings, K, (n, nv), at the times t (n,), s, of currents (n, nv), A.

        Between two times the heat is constant, the mean of both ends. begin: (nv,) K, at the first time.
        """
        decay, heat = self.heating(np.diff(t)[:, np.newaxis])
        squares = current**2
        gain = heat * 0.5 * (squares[1:] + squares[:-1])
        rises = np.empty_like(squares)
        rises[0] = begin
        for k in range(len(gain)):
            rises[k + 1] = decay[k] * rises[k] + gain[k]
        return rises


def motor_arrays(motors: Mapping[int, Motor], nv: int) -> MotorArrays:
    """Returns the numbers of the motors, by index in v."""

    def array(name: str, default: float) -> Vector:
        values = np.full(nv, default)
        for index, motor in motors.items():
            value = getattr(motor, name)
            if value is not None:
                values[index] = value
        return values

    # without a resistance there is neither a voltage limit nor heat
    resistance, ambient = array("resistance", 1.0), array("ambient_celsius", np.nan)
    return MotorArrays(
        gain=array("gain", 1.0),
        resistance=resistance,
        current_limit=array("current_limit", np.inf),
        voltage_limit=array("voltage_limit", np.inf),
        heat=resistance * array("thermal_resistance", 0.0),
        time_constant=array("thermal_time_constant_s", np.inf),
        ambient=ambient,
        largest_rise=array("temperature_limit_celsius", np.inf) - np.nan_to_num(ambient),
    )
