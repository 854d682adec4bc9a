"""Motors of MJCF: constants, supply and heat of `<dcmotor>`, and the effort limits of actuators on joints.

    K = sqrt(Kt Ke), or the one that is positive;  R = resistance;  of a `nominal` point, as far as these are missing:
    Ke = voltage / no-load speed, less viscous damping B:  no-load speed = voltage Ke / (Ke^2 + R B)
    R = K voltage / stall torque
    effort limit = |gear| times the end of `forcerange`, and of the `ctrlrange` of a `<motor>`

An element begins with the compiled numbers of its class, as in MuJoCo. The control of a `<motor>` is a torque before
the gear and no current, and its gear is often a scale, so it has an effort limit and no electric constants.

Source: MuJoCo 4, XML reference, actuator/dcmotor, and DC Motor Model (technical note), sections 2.1 to 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, sqrt

import numpy as np

from dyn_service.model.arrays import Vector
from dyn_service.model.motors import Motor
from dyn_service.parsing.mjcf.values import Values

TAG = "dcmotor"
_SIZES = {
    "motorconst": 2, "resistance": 1, "nominal": 3, "saturation": 3, "inductance": 2, "cogging": 3, "controller": 6,
    "thermal": 6, "lugre": 5,
}  # fmt: skip


def dc_motor(values: Values, ratio: float) -> tuple[Motor | None, list[str]]:
    """Returns the motor of a `<dcmotor>` with this gear, and a text on everything that it cannot represent."""
    range_end, _ = _end(values, "forcerange", "forcelimited")
    begin = {"torque": np.array([range_end]), **{name: np.zeros(size) for name, size in _SIZES.items()}}
    class_values = replace(values, attributes=values.inherited, inherited={})
    of_class = _compiled(class_values, begin, _damping(class_values))
    numbers = _compiled(replace(values, inherited={}), of_class, _damping(values))
    K, R = float(numbers["motorconst"][0]), float(numbers["resistance"][0])
    tokens = (values.text("input") or "voltage").split()
    if not (K > 0.0 and R > 0.0 and ratio):
        return None, [f"its motor is ignored: motor constant {K:g} N m/A, resistance {R:g} ohm and gear {ratio:g}"]
    if tokens == ["none"]:
        return None, ["its motor is ignored: without an input it is a brake"]
    voltage, texts = _voltage_limit(values, tokens, float(numbers["controller"][5]))
    thermal_resistance, capacitance, _, coefficient, _, ambient = map(float, numbers["thermal"])
    heat = {}
    if thermal_resistance > 0.0:
        time_constant = thermal_resistance * capacitance
        heat = {
            "thermal_resistance": thermal_resistance,
            "thermal_time_constant_s": time_constant,
            "ambient_celsius": ambient,
        }
    motor = Motor(
        torque_constant=K,
        gear_ratio=ratio,
        resistance=R,
        current_limit=float(numbers["torque"][0]) / K,
        voltage_limit=voltage,
        **heat,
    )
    field, message = motor.fault()
    if field:
        return None, [f"its motor is ignored: {field}: {message}"]
    unused = {
        "inductance": numbers["inductance"][1],
        "the limit of the current's rate": numbers["saturation"][2],
        "cogging": numbers["cogging"][0],
        "LuGre friction": numbers["lugre"][0],
        "the resistance's change with temperature": coefficient if heat else 0.0,
    }
    names = [name for name, number in unused.items() if number]
    return motor, [*texts, *([f"ignored of its motor: {', '.join(names)}"] if names else [])]


def effort_limit(values: Values, tag: str, ratio: float) -> tuple[float, list[str]]:
    """Returns the largest effort on its joint of an actuator other than a `<dcmotor>`, infinite without a limit."""
    force, texts = _end(values, "forcerange", "forcelimited")
    if tag == "motor":
        control, control_texts = _end(values, "ctrlrange", "ctrllimited")
        force, texts = min(force, control), [*texts, *control_texts]
    return (abs(ratio) * force if ratio else inf), texts


def _end(values: Values, name: str, flag: str) -> tuple[float, list[str]]:
    """Returns the end of a range that is the same both ways, else infinity, and a text if it is not."""
    bounds = values.limited(name, flag)
    if bounds is None:
        return inf, []
    if bounds[0] == -bounds[1] and bounds[1] > 0.0:
        return float(bounds[1]), []
    return inf, [f"{name} {bounds[0]:g} to {bounds[1]:g}: no limit; only symmetric ranges are supported"]


def _damping(values: Values) -> float:
    numbers = values.numbers("damping", 1, 3)
    return 0.0 if numbers is None else float(numbers[0])


def _compiled(values: Values, begin: Mapping[str, Vector], damping: float) -> dict[str, Vector]:
    """Returns the numbers of an element, or of a class, that begins with others. damping: N m s/rad of the rotor.

    motorconst: (K, 0). inductance: (0, s). thermal: (K/W, J/K, 0, 1/K, degrees Celsius, degrees Celsius). torque: N m,
    the limit at the rotor.
    """
    numbers = {name: begin[name].copy() for name in begin}
    for name, size in _SIZES.items():
        attribute = values.numbers(name, 1, size)
        if attribute is not None:
            numbers[name][: len(attribute)] = attribute
    Kt, Ke = map(float, numbers["motorconst"])
    R = float(numbers["resistance"][0])
    voltage, stall_torque, no_load_speed = map(float, numbers["nominal"])
    if voltage > 0.0 and no_load_speed > 0.0 and Ke <= 0.0:
        Ke = _no_load_constant(voltage, stall_torque, no_load_speed, R, damping)
    K = sqrt(Kt * Ke) if Kt > 0.0 and Ke > 0.0 else Kt if Kt > 0.0 else Ke
    if R == 0.0 and voltage > 0.0 and stall_torque > 0.0 and K > 0.0:
        R = K * voltage / stall_torque
    torque, current, rate = map(float, numbers["saturation"])
    if torque > 0.0 or current > 0.0:
        numbers["torque"] = np.array([torque if torque > 0.0 else K * current])
    inductance, time_constant = map(float, numbers["inductance"])
    resistance, capacitance, seconds, *temperatures = map(float, numbers["thermal"])
    if seconds > 0.0 and resistance > 0.0 and capacitance == 0.0:
        capacitance = seconds / resistance
    elif seconds > 0.0 and capacitance > 0.0 and resistance == 0.0:
        resistance = seconds / capacitance
    return {
        **numbers,
        "motorconst": np.array([K, 0.0]),
        "resistance": np.array([R]),
        "nominal": np.zeros(3),
        "saturation": np.array([0.0, 0.0, rate]),
        "inductance": np.array([0.0, inductance / R if inductance > 0.0 and R > 0.0 else time_constant]),
        "thermal": np.array([resistance, capacitance, 0.0, *temperatures]),
    }


def _no_load_constant(voltage: float, stall_torque: float, speed: float, R: float, damping: float) -> float:
    """Returns Ke, V s/rad, of the no-load speed under viscous damping, where that is possible."""
    undamped = voltage / speed
    if damping > 0.0 and R > 0.0:
        rest = voltage**2 - 4.0 * R * damping * speed**2
        return (voltage + sqrt(rest)) / (2.0 * speed) if rest > 0.0 else undamped
    if damping > 0.0 and stall_torque > 0.0:
        lower = undamped - voltage * damping / stall_torque
        return lower if lower > 0.0 else undamped
    return undamped


def _voltage_limit(values: Values, tokens: list[str], largest: float) -> tuple[float, list[str]]:
    """Returns the limit of the voltage, V: the range of a voltage input, or that of the controller."""
    if tokens == ["voltage"]:
        return _end(values, "ctrlrange", "ctrllimited")
    if largest > 0.0 and "voltage" in tokens:
        return inf, [f"Vmax {largest:g} V: no voltage limit, because the input voltage has none"]
    return (largest if largest > 0.0 else inf), []
