"""Motors of joints, as data: gear, winding, supply and heat.

A motor has the current i and the winding voltage u at the joint's velocity v and effort tau,

    tau = N K i,    u = R i + K N v,    armature = N^2 J

so a supply of voltage U leaves the efforts up to the torque-speed line N K (U - K N v) / R. Its winding is at
theta above the surroundings:

    T dtheta/dt + theta = R_th R i^2

Its gear is rigid, or a spring with damping and play between rotor and link, see `control/plant/gears.py`.

Source: A. Hughes, B. Drury, Electric Motors and Drives (2019), chapter 3.
"""

from __future__ import annotations

import math

import msgspec


class Motor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The motor of one joint. None and infinity: not given, the limit does not exist.

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
        numbers = [getattr(self, name) for name in (*thermal, "resistance")]
        if any(number is not None for number in numbers[:3]) and None in numbers:
            missing = (*thermal, "resistance")[numbers.index(None)]
            return missing, f"expected {', '.join(thermal)} and resistance together, found no {missing}"
        if self.temperature_limit_celsius is not None and self.temperature_limit_celsius <= self.ambient_celsius:
            text = f"expected more than ambient_celsius, {self.ambient_celsius:g}"
            return "temperature_limit_celsius", f"{text}, found {self.temperature_limit_celsius:g}"
        return "", ""


_AT_LEAST_0 = ("gear_damping", "backlash")
_DEFAULT = Motor(torque_constant=math.nan)
