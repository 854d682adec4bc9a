"""What a plant takes commands of, and the servos that make efforts of them, as the parameters say.

A robot's driver from a Python file: the file's `connect` gives what `control/plant/hardware.py` asks of a robot.

Makes the plant that the parameters describe: the model, the robot that really moves, its motors, its sensors.

The model is what the robot's file says. Its fingerprint is published, and whoever commands must have the same one: the
handshake compares what the plant is taken to be. The overlay says what it is instead. No controller learns of it, as it
would not of a real robot that carries what nobody told; the report shows it.
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
from dyn_service.control.gains import per_joint
from dyn_service.control.plant.drive import Drive
from dyn_service.control.plant.hardware import Driver, Hardware, TakesSetPoints
from dyn_service.control.plant.plant import Plant
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
from dyn_service.service.protocol.contacts import unpack_contacts
from dyn_service.service.protocol.overlays import unpack_overlay
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
"""rad/s, of drives of which nothing else is said."""
EFFORT_SHARE = 0.25
"""Of the limits of effort, for accelerations: the rest is for weights, and for arms that are stretched."""
RISE_S = 0.2
"""The least time to a limit of velocity."""
Servo = Callable[[SetPoint, Array, Array], Array]


def interfaces_of(p: PlantParameters, at: Configuration, robot: Hardware) -> tuple[Interface, ...]:
    """What the plant takes commands of, in the order of `INTERFACES`.

    Raises:
        InvalidArgumentError: The parameters ask for what the joints, or the driver, do not do.
    """
    asked = tuple(kind for kind in INTERFACES if kind in p.command_interfaces)
    several = next((name for name, joint in zip(at.names, at.joints, strict=True) if not joint.adds_up), None)
    if several is not None:
        can, why = EFFORT_ONLY, f"joint '{several}' has several ways to move"
    elif robot.simulated:
        can, why = INTERFACES, ""
    else:
        said = robot.interfaces if isinstance(robot, TakesSetPoints) else EFFORT_ONLY
        can, why = tuple(kind for kind in INTERFACES if kind in said), "the driver takes no others"
    beyond = [kind for kind in asked if kind not in can]
    if beyond:
        raise InvalidArgumentError(
            f"command_interfaces: {', '.join(beyond)} cannot be commanded, expected {', '.join(can)}: {why}",
            path="command_interfaces",
        )
    return asked or can


def make_servo(robot: Robot, p: PlantParameters) -> Servo:
    """The drives of a simulated robot. robot: the model, which is all that they know.

    Raises:
        InvalidArgumentError: A parameter is out of its range, or does not go with another.
    """
    said = p.drive
    gains = [value if isinstance(value, list) else [value] for value in (said.stiffness, said.damping)]
    if bool(gains[0]) != bool(gains[1]):
        raise InvalidArgumentError("drive: stiffness and damping are of one servo: expected both or none", path="drive")
    if gains[0]:
        bare = DriveParameters()
        if (said.natural_frequency, said.damping_ratio) != (bare.natural_frequency, bare.damping_ratio):
            raise InvalidArgumentError(
                "drive: natural_frequency and damping_ratio are of servos with a model, stiffness and damping of those "
                "without: expected one of the two",
                path="drive",
            )
        return Drive.of_gains(said.stiffness, said.damping, robot.nv).effort
    # plants of few steps a second have drives too, softer ones, with room to the bound that a drive has
    w = said.natural_frequency or min(USUAL_W, 0.2 * p.rate_hz / said.damping_ratio)

    def inverse_dynamics(q: Array, v: Array, a: Array) -> Array:
        efforts: Array = robot.inverse_dynamics(q, v, a)
        return efforts

    return Drive.of_model(inverse_dynamics, w, said.damping_ratio, robot.nv, 1.0 / p.rate_hz).effort


def approach(robot: Robot, p: PlantParameters) -> Array:
    """(nv,) rad/s^2 | m/s^2, with which commanded positions that are far are gone to. robot: the model.

    Left out, all joints may begin at once, in the middle of their limits, and take `EFFORT_SHARE` of their efforts.

    Raises:
        InvalidArgumentError: A number is not positive and finite, or there are too many or too few.
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
    """Makes now what the drives ask: who waits for a compiler in the loop misses its time."""
    if interfaces != EFFORT_ONLY and not p.driver:
        still = np.zeros(robot.nv)
        robot.inverse_dynamics(robot.configuration.neutral, still, still)


Connect = Callable[[Configuration, Limits, float, Mapping[str, Any]], Hardware]
"""(the model's joints, their limits, s of a cycle, settings) -> the robot, not opened yet."""

_MEMBERS = ("configuration", "simulated", "open", "write", "read", "close")
"""Of `Hardware`."""
_OF_SIMULATED = ("overlay", "sensors", "mjcf", "position_limits", "contacts", "initial_position")
"""Parameters that say what a simulated robot is; a real one is what it is."""


def make_hardware(at: Configuration, limits: Limits, p: PlantParameters) -> Hardware:
    """The robot behind the driver that the parameters name.

    Raises:
        NotFoundError: There is no such file.
        InvalidArgumentError: It has no `connect`, fails, or a parameter is one of simulated robots only.
        FailedPreconditionError: The driver's joints are not the model's.
        DynError: What the driver raises.
    """
    for name in _OF_SIMULATED:
        if getattr(p, name):
            raise InvalidArgumentError(f"{name}: of a simulated robot, expected none beside a driver", path=name)
    bare = p.actuators == type(p.actuators)() and p.drive == type(p.drive)()
    if p.clock != "real_time" or p.engine != "own" or not bare:
        raise InvalidArgumentError(
            "clock, engine, actuators, drive: of a simulated robot, expected their defaults beside a driver",
            path="driver",
        )
    path = Path(p.driver)
    if not path.is_file():
        raise NotFoundError(f"driver: there is no file {p.driver!r}", path="driver")
    robot = _connected(path, at, limits, p)
    missing = [name for name in _MEMBERS if not hasattr(robot, name)]
    if missing:
        raise InvalidArgumentError(
            f"driver {p.driver!r}: 'connect' gave {type(robot).__name__} without {', '.join(missing)}: expected a "
            "robot as control/plant/hardware.py has it",
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
"""Joints that one sentence names."""
_PATIENT = 50
"""Substeps beyond which a remedy is none."""
_LOG = logging.getLogger(__name__)


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


def make_measuring(robot: Robot, p: PlantParameters) -> RobotSensors | None:
    """Its sensors, on the robot that really moves; None where there are none.

    Raises:
        ConfigurationError: It is no sensor file, or not one of this robot.
    """
    if not p.sensors:
        return None
    sensors = Sensors.from_file(robot, p.sensors, seed=p.sensor_seed)
    return RobotSensors(sensors, robot.configuration, p.velocities)


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
