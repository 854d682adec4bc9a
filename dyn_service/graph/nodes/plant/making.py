"""Makes the plant that the parameters describe: the model, the robot that really moves, its motors, its sensors.

The model is what the robot's file says. Its fingerprint is published, and whoever commands must have the same one: the
handshake compares what the plant is taken to be. The overlay says what it is instead. No controller learns of it, as it
would not of a real robot that carries what nobody told; the report shows it.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import EFFORT_ONLY
from dyn_service.control.plant.actuators import Actuators
from dyn_service.control.plant.encoders import Measuring
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import SafetySettings, SafetySupervisor
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.graph.nodes.plant.drive import approach, interfaces_of, make_servo
from dyn_service.graph.nodes.plant.hardware import make_hardware
from dyn_service.graph.nodes.plant.parameters import (
    ActuatorParameters,
    PlantParameters,
    initial_position,
    integrator_of,
    safety_settings,
    undriven_entries,
)
from dyn_service.sensors import Sensors
from dyn_service.service.protocol.contacts import unpack_contacts
from dyn_service.service.protocol.overlays import unpack_overlay
from dyn_service.simulation.contact.supports import SupportedDynamics, in_brakes
from dyn_service.simulation.integrators.explicit import ForwardDynamics
from dyn_service.simulation.stepping import Engine, OwnEngine, StickSlipEngine, unstable
from dyn_service.simulation.task import Task, checked
from dyn_service.support.parameters import in_range

_SHOWN = 6
"""Joints that one sentence names."""
_PATIENT = 50
"""Substeps beyond which a remedy is none."""
_LOG = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dyn_service.api.queries import Wrench
    from dyn_service.engine.robot import Robot


def make_plant(robot: Robot, p: PlantParameters, session: int) -> Plant:
    """The plant as the parameters say. robot: the model.

    Raises:
        InvalidArgumentError: A parameter is out of its range.
        NotFoundError: The overlay, a contact or a sensor names what the robot does not have.
        ConfigurationError: The sensor file is none, or not one of this robot.
        DynError: What a driver raises.
    """
    at, limits, p = robot.configuration, robot.limits, in_range(p)
    if not at.nv:
        raise InvalidArgumentError(
            f"robot {robot.name!r} has no joint that moves: nothing is to be driven", path="robot"
        )
    settings = safety_settings(p, limits).without_motors(undriven_entries(p, at))

    def damping() -> Array:  # every motion then dies out as exp(-t / damping_s), but for what pulls at it
        matrix: Array = robot.mass_matrix(plant.q) / p.damping_s
        return matrix

    robot.prepare(["mass_matrix"] if p.safe_stop == "damping" else [])
    safety = SafetySupervisor(settings, at.velocity_names, session, robot.fingerprint, damping)
    moving = make_hardware(at, limits, p) if p.driver else make_simulated(robot, p, settings)
    try:
        safety.interfaces = interfaces_of(p, at, moving)
        if safety.interfaces != EFFORT_ONLY:
            safety.points.approach_by(approach(robot, p))
            if not p.driver:
                safety.servo = make_servo(robot, p)
    except DynError:
        moving.close()
        raise
    plant = Plant(moving, limits, safety, 1.0 / p.rate_hz, p.stale_cycles)
    return plant


def make_simulated(robot: Robot, p: PlantParameters, settings: SafetySettings) -> SimulatedRobot:
    """The simulated robot as the parameters say. robot: the model.

    Raises:
        DynError: As `make_plant`.
    """
    at = robot.configuration
    real = real_robot(robot, p)
    q = initial_position(p.initial_position, at, robot.limits)
    engine, actuators = make_engine(real, p, q), make_actuators(p, at.nv)
    limit, free = settings.velocity_limit, settings.undriven
    return SimulatedRobot(engine, at, q, 1.0 / p.rate_hz, p.brake_s, limit, actuators, make_measuring(real, p), free)


def differences(p: PlantParameters) -> dict[str, Any]:
    """What of the plant is otherwise than its model, for a report: only what there is."""
    engine = {"engine": p.engine, "mjcf": p.mjcf} if p.engine != "own" else {}
    said = {"engine": engine, "overlay": p.overlay, "actuators": msgspec.to_builtins(p.actuators), "sensors": p.sensors}
    bare = {"engine": {}, "overlay": {}, "actuators": msgspec.to_builtins(ActuatorParameters()), "sensors": ""}
    found = {key: value for key, value in said.items() if value != bare[key]}
    return {"differences": found} if found else {}


def real_robot(robot: Robot, p: PlantParameters) -> Robot:
    """The robot that really moves: the model, otherwise as the overlay says.

    Raises:
        InvalidArgumentError: The overlay is none, or of many robots; `path` says where.
        NotFoundError: It names a link or a joint that the robot does not have.
    """
    if not p.overlay:
        return robot
    real = robot.overlaid(unpack_overlay(p.overlay, "overlay"))
    still = np.zeros(real.nv)
    if np.ndim(real.forward_dynamics(real.configuration.neutral, still, still)) != 1:
        raise InvalidArgumentError("overlay: its numbers are those of many robots, expected one", path="overlay")
    return real


def make_engine(robot: Robot, p: PlantParameters, q: Array) -> Engine:
    """What moves the robot.

    Raises:
        InvalidArgumentError: A parameter is out of its range, or does not go with another.
        NotFoundError: A contact names what the robot does not have; there is no MJCF file.
        FailedPreconditionError: MuJoCo is asked for and not installed.
        UnimplementedError: MuJoCo has not such joints, or not such steps.
    """
    from dyn_service.engine.overlaid import Overlaid

    if p.engine == "mujoco":
        return _mujoco(robot, p)
    if p.mjcf:
        raise InvalidArgumentError("mjcf: a file for MuJoCo, expected engine 'mujoco' beside it", path="mjcf")

    bare = robot.base if isinstance(robot, Overlaid) else robot

    def efforts_of(q: Array, wrenches: Sequence[Wrench]) -> Array:  # J^T f, which no mass has a part in
        still = np.zeros(bare.nv)
        efforts: Array = bare.inverse_dynamics(q, still, still)
        return efforts - bare.inverse_dynamics(q, still, still, wrenches=list(wrenches))

    integrator, still = integrator_of(p), np.zeros(robot.nv)
    engine: Engine
    if integrator == "stick_slip":
        engine = StickSlipEngine(robot, _task(robot, p, q), p.substeps)
    else:
        robot.prepare(["forward_dynamics"])
        engine = OwnEngine(
            _forward_dynamics(robot, p, q),
            robot.configuration,
            integrator,
            p.substeps,
            efforts_of,
            partial(in_brakes, robot),
        )
        _warn_of_chatter(robot, p, q)
    engine.acceleration(q, still, still)  # whatever is compiled late is compiled here
    free = undriven_entries(p, robot.configuration)
    if free.any():
        engine.step(q, still, still, 1.0 / p.rate_hz, np.where(free, np.nan, 0.0))
    return engine


def _warn_of_chatter(robot: Robot, p: PlantParameters, q: Array) -> None:
    """Says which joints the plant's steps do not follow, before they are seen to run away."""
    still = np.zeros(robot.nv)
    free = np.ones(robot.nv) if robot.tree.free is None else robot.tree.free
    step_s = 1.0 / p.rate_hz / p.substeps
    found = unstable(lambda v: robot.forward_dynamics(q, v, still), free, step_s, integrator_of(p))
    if found is None:
        return
    names = robot.configuration.velocity_names
    joints = ", ".join(names[k] for k in found.joints[:_SHOWN])
    more = f" and {len(found.joints) - _SHOWN} more" if len(found.joints) > _SHOWN else ""
    enough = p.substeps * found.least
    _LOG.warning(
        "damping or friction stops %s%s within %.2g s, which steps of %g s do not follow: such joints chatter, and the "
        "plant may stop for their velocity. A joint file gives them the inertia of their motors (armature), or a wider "
        "friction; or set integrator to stick_slip%s",
        joints,
        more,
        1.0 / found.rate,
        step_s,
        f", or substeps to {enough}" if enough <= _PATIENT else "",
    )


def _mujoco(robot: Robot, p: PlantParameters) -> Engine:
    """MuJoCo, from the robot's own description or from its MJCF file."""
    from dyn_service.simulation.mujoco.engine import MujocoEngine

    if p.contacts:
        raise InvalidArgumentError(
            "contacts: MuJoCo has those of its own file, expected them in an MJCF file, 'mjcf'", path="contacts"
        )
    if p.mjcf and p.overlay:
        raise InvalidArgumentError(
            "overlay: the MJCF file says what the robot is that moves, expected one of 'overlay' and 'mjcf'",
            path="overlay",
        )
    tree = robot.tree
    mimics = zip(tree.movable, tree.mimic, strict=True)
    engine = MujocoEngine(
        Path(p.mjcf) if p.mjcf else robot.as_described,
        robot.configuration,
        {tree.joints[i]: mimic for i, mimic in mimics if mimic is not None},
        dt_s=1.0 / p.rate_hz,
        substeps=p.substeps,
        integrator=integrator_of(p),
        gravity=None if p.mjcf else robot.gravity,
        limits=p.position_limits,
        links=dict(zip(tree.joints, tree.links, strict=True)),
    )
    for note in engine.notes:
        _LOG.info("MuJoCo: %s", note)
    return engine


def make_actuators(p: PlantParameters, nv: int) -> Actuators | None:
    """The motors; None where they do at once what they are told.

    Raises:
        InvalidArgumentError: A number is out of its range, or not one per effort.
    """
    said = p.actuators
    if not said.effort_limit and not said.delay_steps and not np.any(said.lag_s):
        return None
    limit = np.array(said.effort_limit or np.full(nv, np.inf), dtype=np.float64)
    if limit.shape != (nv,):
        raise InvalidArgumentError(
            f"actuators.effort_limit has {len(limit)} numbers, the robot {nv} efforts", path="actuators.effort_limit"
        )
    lag = np.array(said.lag_s, dtype=np.float64)
    return Actuators(1.0 / p.rate_hz, limit, said.delay_steps, lag if lag.ndim else np.full(nv, float(lag)))


def make_measuring(robot: Robot, p: PlantParameters) -> Measuring | None:
    """Its sensors, on the robot that really moves; None where there are none.

    Raises:
        ConfigurationError: It is no sensor file, or not one of this robot.
    """
    if not p.sensors:
        return None
    sensors = Sensors.from_file(robot, p.sensors, seed=p.sensor_seed)
    return Measuring(sensors, robot.configuration, p.velocities)


def _forward_dynamics(robot: Robot, p: PlantParameters, q: Array) -> ForwardDynamics:
    """The robot's, with stops and contacts where there are any."""
    if not p.position_limits and not p.contacts:
        return robot.forward_dynamics
    supported = SupportedDynamics(robot, _task(robot, p, q))
    return supported


def _task(robot: Robot, p: PlantParameters, q: Array) -> Task:
    """A step, with what supports the robot in it."""
    return checked(
        robot.configuration,
        q,
        np.zeros(robot.nv),
        None,
        dt=1.0 / p.rate_hz / p.substeps,
        steps=1,
        integrator=integrator_of(p),
        contacts=unpack_contacts(p.contacts, "contacts"),
        position_limits=p.position_limits,
    )
