"""Makes the motors of a simulated robot from the plant's parameters: delay, lag and effort limit, electric limits,
elastic gears.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dyn_service.api.arguments import JointNumbers, Overlay
from dyn_service.api.queries import Array
from dyn_service.control.plant.gears import MAX_PARTS, PHASE, Gears
from dyn_service.control.plant.motors import Motors
from dyn_service.control.plant.plant import Hardware
from dyn_service.control.plant.simulated import Actuators, SimulatedRobot
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.model.description import motors_by_entry
from dyn_service.model.motors import Motor, motor_arrays
from dyn_service.simulation.stability import longest_held_step, mobility_of, mobility_samples

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot
    from dyn_service.graph.nodes.plant.factory import PlantParameters

_ABSOLUTE_ZERO = -273.15
"""Degrees Celsius."""


def make_actuators(p: PlantParameters, nv: int) -> Actuators | None:
    """Returns the motors, or None for ideal ones."""
    actuators = p.actuators
    if not actuators.effort_limit and not actuators.delay_steps and not np.any(actuators.lag_s):
        return None
    limit = np.array(actuators.effort_limit or np.full(nv, np.inf), dtype=np.float64)
    if limit.shape != (nv,):
        raise InvalidArgumentError(
            f"actuators.effort_limit has {len(limit)} numbers, the robot {nv} efforts", path="actuators.effort_limit"
        )
    lag = np.array(actuators.lag_s, dtype=np.float64)
    return Actuators(1.0 / p.rate_hz, limit, actuators.delay_steps, lag if lag.ndim else np.full(nv, float(lag)))


def motors_of(robot: Robot) -> dict[int, Motor]:
    """Returns the motors of a robot's files by index in v; see `motors_by_entry`."""
    return motors_by_entry(robot.base.as_described, robot.configuration.velocity_joints)


def current_gains(robot: Robot, undriven: NDArray[np.bool_]) -> Array:
    """Returns the effort per current (nv,) N m/A | N/A of the motors of a robot's files; 1 of undriven entries,
    whose efforts are 0.

    Raises:
        InvalidArgumentError: A driven joint has no motor there.
    """
    motors, joints = motors_of(robot), robot.configuration.velocity_joints
    missing = [name for index, name in enumerate(joints) if index not in motors and not undriven[index]]
    if missing:
        text = "expected a motor of each driven joint in the joint file, found none of"
        raise InvalidArgumentError(f"driver_effort is current: {text} {', '.join(missing)}", path="driver_effort")
    return np.array([1.0 if undriven[index] else motors[index].gain for index in range(robot.nv)])


def make_motors(
    robot: Robot, real: Robot, p: PlantParameters, free: NDArray[np.bool_] | None, gears: Gears | None = None
) -> Motors | None:
    """Returns the motors of the robot's files with their electric limits, or None without any.

    robot: the model. real: the robot that moves. free: entries of v without a motor. gears: elastic ones.
    """
    motors, names, dt = motors_of(robot), robot.configuration.velocity_joints, 1.0 / p.rate_hz
    for index in motors:
        if free is not None and free[index]:
            text = "has a motor in its files, and none in the plant: see undriven"
            raise InvalidArgumentError(f"joint '{names[index]}' {text}", path="undriven")
    start = {}
    for name, celsius in p.actuators.winding_celsius.items():
        motor = motors.get(names.index(name)) if name in names else None
        if motor is None or motor.thermal_resistance is None:
            hot = ", ".join(names[k] for k, motor in motors.items() if motor.thermal_resistance is not None) or "none"
            text = f"'{name}' has no motor with a thermal_resistance in its files; joints with one: {hot}"
            raise InvalidArgumentError(f"actuators.winding_celsius: {text}", path="actuators.winding_celsius")
        if not _ABSOLUTE_ZERO < celsius < np.inf:
            text = f"'{name}' is {celsius:g}: expected more than {_ABSOLUTE_ZERO} and finite"
            raise InvalidArgumentError(f"actuators.winding_celsius: {text}", path=f"actuators.winding_celsius.{name}")
        start[names.index(name)] = celsius
    for k, sag in enumerate(p.actuators.supply_sags):
        if not sag.from_s < sag.until_s:
            text = f"from_s is {sag.from_s:g}, until_s {sag.until_s:g}: expected from_s < until_s"
            raise InvalidArgumentError(f"actuators.supply_sags[{k}]: {text}", path=f"actuators.supply_sags[{k}]")
    if p.actuators.supply_sags and not any(np.isfinite(motor.voltage_limit) for motor in motors.values()):
        text = "expected none without a motor that has a voltage_limit in the robot's files"
        raise InvalidArgumentError(f"actuators.supply_sags: {text}", path="actuators.supply_sags")
    if not motors:
        return None
    model = Motors(motors, robot.nv, dt, p.actuators.supply_sags, start)
    braking = motor_arrays(motors, robot.nv).braking
    elastic = np.zeros(robot.nv, dtype=np.bool_)
    if gears is not None:
        elastic[gears.entries] = True
    longest, worst = longest_held_step(real if gears is None else gears.links, np.where(elastic, 0.0, braking))
    if gears is not None and braking[elastic].any():
        # behind an elastic gear the back EMF brakes the rotor alone
        with np.errstate(divide="ignore"):
            times = gears.rotor_inertia / braking[gears.entries]
        k = int(np.argmin(times))
        if times[k] < longest:
            longest, worst = float(times[k]), int(gears.entries[k])
    if dt > longest:
        raise InvalidArgumentError(
            f"rate_hz is {p.rate_hz:g}: expected at least {1.0 / longest:.4g} Hz, or a larger rotor_inertia of the "
            f"motor of joint '{names[worst]}', because its back EMF brakes it faster than a step",
            path="rate_hz",
        )
    return model


def without_rotors(real: Robot, names: Iterable[str]) -> Robot:
    """Returns the links of the robot that moves, without the rotors of these joints: gears move them."""
    return real.overlaid(Overlay(joints={name: JointNumbers(armature=0.0) for name in names}))


def engine_inputs(real: Robot, p: PlantParameters, gears: Gears | None) -> tuple[Robot, PlantParameters]:
    """Returns the robot that the engine moves, and the parameters with the rate of its steps. real: the robot that
    moves, with the rotors of its gears.
    """
    if gears is None:
        return real, p
    names = real.configuration.velocity_joints
    links = without_rotors(real, (names[index] for index in gears.entries))
    return links, msgspec.structs.replace(p, rate_hz=gears.parts * p.rate_hz)


def make_gears(robot: Robot, real: Robot, p: PlantParameters) -> Gears | None:
    """Returns the elastic gears of the joint file's motors, or None without any.

    robot: the model. real: the robot that moves.

    Raises:
        InvalidArgumentError: A joint with a gear has no rotor inertia, or a step of the plant is too long for it.
        UnimplementedError: The robot has closed loops, or the engine specifies the robot.
    """
    names = robot.configuration.velocity_joints
    motors = {k: motor for k, motor in _elastic_motors(robot, p).items() if names[k] not in real.tree.locked_joints}
    if not motors:
        return None
    reason = ""
    if robot.closed_motion is not None:
        reason = "the robot has closed loops, whose brakes would hold links and rotors at once"
    elif p.engine == "fmu" or p.mjcf:
        reason = f"the {'FMU' if p.engine == 'fmu' else 'MJCF file'} contains the rotors, which move by themselves here"
    if reason:
        joints = ", ".join(names[k] for k in motors)
        text = f"gear_stiffness of {joints} in the joint file: {reason}; expected none"
        raise UnimplementedError(text, path="joints")
    if p.integrator == "explicit_euler":
        raise InvalidArgumentError(
            "integrator is explicit_euler, which adds energy to elastic gears (gear_stiffness in the joint file): "
            "expected auto, rk4, semi_implicit_euler or stick_slip",
            path="integrator",
        )
    tree = real.tree
    armature = {tree.joints[i]: float(tree.passive.armature[tree.in_rates[i].start]) for i in tree.movable}
    entries = np.array([*motors])
    backlash = {k: p.actuators.backlash.get(names[k], motor.backlash) for k, motor in motors.items()}
    J, K, D, b = np.array(
        [[armature[names[k]], motor.gear_stiffness, motor.gear_damping, backlash[k]] for k, motor in motors.items()]
    ).T
    if not (J > 0.0).all():
        text = "has a gear_stiffness and no armature in the overlay: its rotor moves by itself, expected an armature"
        raise InvalidArgumentError(f"joint '{names[entries[np.argmin(J)]]}' {text}", path="overlay")
    links = without_rotors(real, (names[k] for k in motors))
    gears = Gears(entries, J, K, D, b, links, 1, p.actuators.encoder_side)
    gears.parts = _parts_of_step(gears, p, names)
    if p.safe_stop == "damping":
        _check_damping_stop(robot, p, gears)
    return gears


def _elastic_motors(robot: Robot, p: PlantParameters) -> dict[int, Motor]:
    """Returns the motors with a gear stiffness by index in v, after a check of the parameter `backlash`."""
    names = robot.configuration.velocity_joints
    motors = {k: motor for k, motor in motors_of(robot).items() if motor.gear_stiffness is not None}
    for name, width in p.actuators.backlash.items():
        if not math.isfinite(width):
            text = f"'{name}' is {width:g}, expected a finite number"
            raise InvalidArgumentError(f"actuators.backlash: {text}", path="actuators.backlash")
        if name not in names or names.index(name) not in motors:
            elastic = ", ".join(names[k] for k in motors) or "none"
            text = f"'{name}' has no motor with a gear_stiffness in the joint file; joints with one: {elastic}"
            raise InvalidArgumentError(f"actuators.backlash: {text}", path="actuators.backlash")
    return motors


def _parts_of_step(gears: Gears, p: PlantParameters, names: Sequence[str]) -> int:
    """Returns the number of parts of a step of the plant, each at most `PHASE` of the fastest motion of the gears.

    names: the joint of each entry of v.
    """
    oscillation, decay = (float(np.max(rate)) for rate in gears.rates(mobility_samples(gears.links)))
    parts = max(1, math.ceil(max(oscillation, decay) / p.rate_hz / PHASE))
    if parts > MAX_PARTS:
        slopes = gears.stiffness if oscillation > decay else gears.damping
        stiffest = names[gears.entries[np.argmax(slopes / gears.rotor_inertia)]]
        motion, unit = ("oscillates with", "rad/s") if oscillation > decay else ("is damped with", "1/s")
        raise InvalidArgumentError(
            f"rate_hz is {p.rate_hz:g}: a gear {motion} {max(oscillation, decay):.4g} {unit}, the stiffest for its "
            f"rotor is that of '{stiffest}'; expected at least {p.rate_hz * parts / MAX_PARTS:.4g} Hz, or no "
            "gear_stiffness, because a gear that stiff is rigid",
            path="rate_hz",
        )
    return parts


def gear_facts(robot: Hardware) -> dict[str, Any]:
    """Returns what a report shows of the elastic gears of a plant's robot at its present position; {} without any.

    frequency_hz: natural frequencies by joint, with the rotor free and held.
    """
    if not isinstance(robot, SimulatedRobot) or (gears := robot.gears) is None:
        return {}
    names = robot.configuration.velocity_joints
    frequencies = zip(*gears.frequencies_hz(mobility_of(gears.links, robot.q)), strict=True)
    by_joint = {names[k]: [float(x) for x in pair] for k, pair in zip(gears.entries, frequencies, strict=True)}
    return {"frequency_hz": by_joint, "parts": gears.parts, "encoder_side": gears.encoder_side}


def _check_damping_stop(robot: Robot, p: PlantParameters, gears: Gears) -> None:
    """Checks that the held efforts -M v / damping_s of a safe stop do not turn rotors around."""
    M = robot.mass_matrix(robot.configuration.neutral)[np.ix_(gears.entries, gears.entries)]
    root = np.sqrt(gears.rotor_inertia)
    shortest = float(np.linalg.eigvalsh(M / root / root[:, None])[-1]) / p.rate_hz
    if p.damping_s < shortest:
        raise InvalidArgumentError(
            f"damping_s is {p.damping_s:g}: expected at least {shortest:.3g} s with these elastic gears, because the "
            "efforts of a safe stop act on the rotors alone at first",
            path="damping_s",
        )
