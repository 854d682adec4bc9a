"""Makes the plant from its parameters: drives, driver or simulated robot, engine, motors, sensors.

The model is the robot's file. Its fingerprint is published, and a controller must have the same one. The overlay
specifies how the simulated robot differs from the model; controllers do not receive it, as they would not with a real
robot and an unknown payload. The report shows it.

A real robot's driver is a Python file whose function `connect` returns an object with the interface of
`control/plant/plant.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import EFFORT_ONLY, INTERFACES, Interface, SetPoint
from dyn_service.control.law import per_joint
from dyn_service.control.plant.drive import Drive
from dyn_service.control.plant.plant import Driver, Hardware, Plant, TakesSetPoints
from dyn_service.control.plant.safety import SafetySettings, SafetySupervisor
from dyn_service.control.plant.simulated import Actuators, RobotSensors, SimulatedRobot
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.graph.nodes.plant.parameters import (
    ActuatorParameters,
    DriveParameters,
    PlantParameters,
    initial_position,
    integrator_of,
    safety_settings,
    undriven_entries,
)
from dyn_service.graph.nodes.registry import run_file
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.sensors import Sensors
from dyn_service.service.protocol.inputs import unpack_contacts, unpack_overlay
from dyn_service.simulation.contact.supports import SupportedDynamics, in_brakes
from dyn_service.simulation.integrators.explicit import ForwardDynamics
from dyn_service.simulation.stepping import Engine, OwnEngine, StickSlipEngine, unstable
from dyn_service.simulation.task import Task, checked
from dyn_service.support.parameters import in_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dyn_service.api.queries import Wrench
    from dyn_service.engine.robot import Robot

USUAL_W = 60.0
"""Default natural frequency of drives, rad/s."""
EFFORT_SHARE = 0.25
"""Share of the effort limits for default accelerations; the rest is for the weight and stretched postures."""
RISE_S = 0.2
"""Shortest default time to reach a velocity limit."""
Servo = Callable[[SetPoint, Array, Array], Array]


def interfaces_of(p: PlantParameters, at: Configuration, robot: Hardware) -> tuple[Interface, ...]:
    """Returns the interfaces that the plant accepts, in the order of `INTERFACES`.

    Raises:
        InvalidArgumentError: The joints or the driver do not support an interface of the parameters.
    """
    asked = tuple(kind for kind in INTERFACES if kind in p.command_interfaces)
    several = next((name for name, joint in zip(at.names, at.joints, strict=True) if not joint.adds_up), None)
    if several is not None:
        can, why = EFFORT_ONLY, f"joint '{several}' has several degrees of freedom"
    elif robot.simulated:
        can, why = INTERFACES, ""
    else:
        said = robot.interfaces if isinstance(robot, TakesSetPoints) else EFFORT_ONLY
        can, why = tuple(kind for kind in INTERFACES if kind in said), "the driver accepts no others"
    beyond = [kind for kind in asked if kind not in can]
    if beyond:
        raise InvalidArgumentError(
            f"command_interfaces: {', '.join(beyond)} cannot be commanded, expected {', '.join(can)}: {why}",
            path="command_interfaces",
        )
    return asked or can


def make_servo(robot: Robot, p: PlantParameters) -> Servo:
    """Returns the servos of a simulated robot. robot: the model.

    Raises:
        InvalidArgumentError: A parameter is out of range, or excludes another.
    """
    said = p.drive
    gains = [value if isinstance(value, list) else [value] for value in (said.stiffness, said.damping)]
    if bool(gains[0]) != bool(gains[1]):
        raise InvalidArgumentError("drive: expected stiffness and damping, or neither, found one of them", path="drive")
    if gains[0]:
        bare = DriveParameters()
        if (said.natural_frequency, said.damping_ratio) != (bare.natural_frequency, bare.damping_ratio):
            raise InvalidArgumentError(
                "drive: natural_frequency and damping_ratio are for servos with a model, stiffness and damping for "
                "those without: expected one pair",
                path="drive",
            )
        return Drive.of_gains(said.stiffness, said.damping, robot.nv).effort
    # plants with few steps per second get softer drives, with a margin to `MAX_PHASE`
    w = said.natural_frequency or min(USUAL_W, 0.2 * p.rate_hz / said.damping_ratio)

    def inverse_dynamics(q: Array, v: Array, a: Array) -> Array:
        efforts: Array = robot.inverse_dynamics(q, v, a)
        return efforts

    return Drive.of_model(inverse_dynamics, w, said.damping_ratio, robot.nv, 1.0 / p.rate_hz).effort


def approach(robot: Robot, p: PlantParameters) -> Array:
    """Returns the accelerations (nv,) rad/s^2 | m/s^2 towards far positions. robot: the model.

    By default all joints can accelerate together, in the middle of their limits, with `EFFORT_SHARE` of their efforts.

    Raises:
        InvalidArgumentError: A number is not positive and finite, or their count is wrong.
    """
    n, said, limits = robot.nv, p.drive.acceleration, robot.limits
    if said != []:
        return per_joint("drive.acceleration", said, n, positive=True)
    still, q = np.zeros(n), limits.middle(otherwise=robot.configuration.neutral)
    weight = robot.inverse_dynamics(q, still, still)
    inertia = robot.inverse_dynamics(np.tile(q, (n, 1)), np.zeros((n, n)), np.eye(n)) - weight
    with np.errstate(divide="ignore"):
        able = EFFORT_SHARE * limits.efforts / np.abs(inertia).sum(axis=0)
    return np.minimum(np.where(able > 0.0, able, np.inf), limits.speeds / RISE_S)


def prepare(robot: Robot, interfaces: tuple[Interface, ...], p: PlantParameters) -> None:
    """Compiles the drives' queries, because compiling in the loop would miss its deadlines."""
    if interfaces != EFFORT_ONLY and not p.driver:
        still = np.zeros(robot.nv)
        robot.inverse_dynamics(robot.configuration.neutral, still, still)


Connect = Callable[[Configuration, Limits, float, Mapping[str, Any]], Hardware]
"""(joints of the model, their limits, cycle in s, settings) -> the robot, not opened yet."""

_MEMBERS = ("configuration", "simulated", "open", "write", "read", "close")
"""Members of `Hardware`."""
_OF_SIMULATED = ("overlay", "sensors", "mjcf", "position_limits", "contacts", "initial_position")
"""Parameters of simulated robots only."""


def make_hardware(at: Configuration, limits: Limits, p: PlantParameters) -> Hardware:
    """Returns the robot of the driver file in the parameters.

    Raises:
        NotFoundError: The file does not exist.
        InvalidArgumentError: It has no `connect`, fails, or a parameter is for simulated robots only.
        FailedPreconditionError: The driver's joints are not the model's.
        DynError: Raised by the driver.
    """
    for name in _OF_SIMULATED:
        if getattr(p, name):
            raise InvalidArgumentError(f"{name}: for simulated robots only, expected none with a driver", path=name)
    bare = p.actuators == type(p.actuators)() and p.drive == type(p.drive)()
    if p.clock != "real_time" or p.engine != "own" or not bare:
        raise InvalidArgumentError(
            "clock, engine, actuators, drive: for simulated robots only, expected their defaults with a driver",
            path="driver",
        )
    path = Path(p.driver)
    if not path.is_file():
        raise NotFoundError(f"driver: there is no file {p.driver!r}", path="driver")
    robot = _connected(path, at, limits, p)
    missing = [name for name in _MEMBERS if not hasattr(robot, name)]
    if missing:
        raise InvalidArgumentError(
            f"driver {p.driver!r}: 'connect' gave {type(robot).__name__} without {', '.join(missing)}: expected the "
            "interface of control/plant/plant.py",
            path="driver",
        )
    theirs = robot.configuration
    if (theirs.names, theirs.nq, theirs.nv) != (at.names, at.nq, at.nv):
        raise FailedPreconditionError(
            f"the driver's joints are {', '.join(theirs.names)}, the model's {', '.join(at.names)}"
        )
    return Driver(robot)


def _connected(path: Path, at: Configuration, limits: Limits, p: PlantParameters) -> Hardware:
    try:
        connect: Connect | None = getattr(run_file(path), "connect", None)
        if callable(connect):
            return connect(at, limits, 1.0 / p.rate_hz, p.driver_settings)
    except DynError:
        raise
    except Exception as error:
        raise InvalidArgumentError(
            f"driver {p.driver!r} cannot be used: {type(error).__name__}: {error}", path="driver"
        ) from error
    raise InvalidArgumentError(f"driver {p.driver!r} has no function 'connect'", path="driver")


_SHOWN = 6
"""Number of joints that a warning names."""
_MAX_SUGGESTED = 50
"""Largest number of substeps that a warning suggests."""
_LOG = logging.getLogger(__name__)


def make_plant(robot: Robot, p: PlantParameters, session: int) -> Plant:
    """Makes the plant from its parameters. robot: the model.

    Raises:
        InvalidArgumentError: A parameter is out of range.
        NotFoundError: The overlay, a contact or a sensor names a link or joint that the robot does not have.
        ConfigurationError: The sensor file is invalid, or not for this robot.
        DynError: Raised by a driver.
    """
    at, limits, p = robot.configuration, robot.limits, in_range(p)
    if not at.nv:
        raise InvalidArgumentError(
            f"robot {robot.name!r} has no movable joint: a plant needs at least one", path="robot"
        )
    settings = safety_settings(p, limits).without_motors(undriven_entries(p, at))

    def damping() -> Array:  # without external forces any motion then decays as exp(-t / damping_s)
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
    """Makes the simulated robot from the parameters. robot: the model.

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
    """Returns the parameters by which the plant differs from its model, for a report."""
    engine = {"engine": p.engine, "mjcf": p.mjcf} if p.engine != "own" else {}
    said = {"engine": engine, "overlay": p.overlay, "actuators": msgspec.to_builtins(p.actuators), "sensors": p.sensors}
    bare = {"engine": {}, "overlay": {}, "actuators": msgspec.to_builtins(ActuatorParameters()), "sensors": ""}
    found = {key: value for key, value in said.items() if value != bare[key]}
    return {"differences": found} if found else {}


def real_robot(robot: Robot, p: PlantParameters) -> Robot:
    """Returns the simulated robot: the model with the overlay applied.

    Raises:
        InvalidArgumentError: The overlay is invalid, or contains a batch of robots; `path` says where.
        NotFoundError: It names a link or a joint that the robot does not have.
    """
    if not p.overlay:
        return robot
    real = robot.overlaid(unpack_overlay(p.overlay, "overlay"))
    still = np.zeros(real.nv)
    if np.ndim(real.forward_dynamics(real.configuration.neutral, still, still)) != 1:
        raise InvalidArgumentError("overlay: found a batch of robots, expected one robot", path="overlay")
    return real


def make_engine(robot: Robot, p: PlantParameters, q: Array) -> Engine:
    """Makes the engine that simulates the robot.

    Raises:
        InvalidArgumentError: A parameter is out of range, or excludes another.
        NotFoundError: A contact names a link that the robot does not have; the MJCF file does not exist.
        FailedPreconditionError: MuJoCo is selected and not installed.
        UnimplementedError: MuJoCo does not support a joint or the integrator.
    """
    from dyn_service.engine.overlaid import Overlaid

    if p.engine == "mujoco":
        return _mujoco(robot, p)
    if p.mjcf:
        raise InvalidArgumentError("mjcf: a file for MuJoCo, expected engine 'mujoco'", path="mjcf")

    bare = robot.base if isinstance(robot, Overlaid) else robot

    def efforts_of(q: Array, wrenches: Sequence[Wrench]) -> Array:  # J^T f, independent of masses
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
    engine.acceleration(q, still, still)  # compiles now what is compiled at the first call
    free = undriven_entries(p, robot.configuration)
    if free.any():
        engine.step(q, still, still, 1.0 / p.rate_hz, np.where(free, np.nan, 0.0))
    return engine


def _warn_of_chatter(robot: Robot, p: PlantParameters, q: Array) -> None:
    """Warns of joints that are unstable with the plant's steps."""
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
        "damping or friction stops %s%s within %.2g s, too fast for steps of %g s: such joints chatter, and the plant "
        "may stop for their velocity. Specify their motors' inertia (armature) or a wider friction in a joint file, or "
        "set integrator to stick_slip%s",
        joints,
        more,
        1.0 / found.rate,
        step_s,
        f", or substeps to {enough}" if enough <= _MAX_SUGGESTED else "",
    )


def _mujoco(robot: Robot, p: PlantParameters) -> Engine:
    """Makes MuJoCo's engine from the robot's description or from the MJCF file."""
    from dyn_service.simulation.mujoco.engine import MujocoEngine

    if p.contacts:
        raise InvalidArgumentError(
            "contacts: MuJoCo uses those of its MJCF file, specify them there ('mjcf')", path="contacts"
        )
    if p.mjcf and p.overlay:
        raise InvalidArgumentError(
            "overlay: the MJCF file specifies the simulated robot, expected one of 'overlay' and 'mjcf'",
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
    """Returns the motors, or None for ideal ones.

    Raises:
        InvalidArgumentError: A number is out of range, or the count is not one per effort.
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


def make_measuring(robot: Robot, p: PlantParameters) -> RobotSensors | None:
    """Returns the sensors of the simulated robot, or None.

    Raises:
        ConfigurationError: The sensor file is invalid, or not for this robot.
    """
    if not p.sensors:
        return None
    sensors = Sensors.from_file(robot, p.sensors, seed=p.sensor_seed)
    return RobotSensors(sensors, robot.configuration, p.velocities)


def _forward_dynamics(robot: Robot, p: PlantParameters, q: Array) -> ForwardDynamics:
    """Returns the robot's forward dynamics, with position limits and contacts if selected."""
    if not p.position_limits and not p.contacts:
        return robot.forward_dynamics
    supported = SupportedDynamics(robot, _task(robot, p, q))
    return supported


def _task(robot: Robot, p: PlantParameters, q: Array) -> Task:
    """Returns one step with its contacts and position limits."""
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
