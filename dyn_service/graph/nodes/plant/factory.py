"""Makes the plant from its parameters: drives, driver or simulated robot, engine, sensors; `motors` makes the motors.

The model is the robot's file. Its fingerprint is published, and a controller must have the same one. The overlay
specifies how the simulated robot differs from the model; controllers do not receive it, as they would not with a real
robot and an unknown payload. The report shows it.

A real robot's driver is a Python file whose function `connect` returns an object with the interface of
`control/plant/plant.py`.

Also the parameters of the plant, and the safety settings and first position made from them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dyn_service.api.arguments import Integrator
from dyn_service.api.closed_motion import ClosedMotion
from dyn_service.api.queries import Array
from dyn_service.control.command import EFFORT_ONLY, INTERFACES, Interface
from dyn_service.control.law import per_joint
from dyn_service.control.plant.drives import Drive, Servo
from dyn_service.control.plant.gears import EncoderSide
from dyn_service.control.plant.motors import SupplySag
from dyn_service.control.plant.plant import Driver, Hardware, Plant, TakesSetPoints
from dyn_service.control.plant.safety import (
    MAX_CONTROL_S,
    MAX_MISSED_CYCLES,
    LimitPolicy,
    SafetySettings,
    SafetySupervisor,
    StopPolicy,
)
from dyn_service.control.plant.simulated import MAX_DELAY_STEPS, RobotSensors, SimulatedRobot, Velocities
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from dyn_service.graph.nodes.plant.motors import (
    current_gains,
    engine_inputs,
    make_actuators,
    make_gears,
    make_motors,
)
from dyn_service.graph.nodes.plant.srvs import Values
from dyn_service.graph.nodes.registry import run_file
from dyn_service.graph.report.verdicts import PlantBounds
from dyn_service.messages import ros_type
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.messages.nav_msgs import Odometry
from dyn_service.messages.sensor_msgs import JointState, MultiDOFJointState
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.model.description import LoopHandling, RootType
from dyn_service.sensors import Sensors
from dyn_service.service.protocol.inputs import unpack_contacts, unpack_overlay
from dyn_service.simulation.contact.supports import SupportedDynamics, in_brakes
from dyn_service.simulation.engines import EffortsOf, Engine, ForwardDynamics, OwnEngine, StepKernel, StickSlipEngine
from dyn_service.simulation.stability import check_step, chosen
from dyn_service.simulation.task import checked
from dyn_service.support.parameter_descriptions import on_topic
from dyn_service.support.parameters import InputFile, NotNegative, Positive, Rate, RobotFile, in_range
from dyn_service.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.api.queries import Wrench
    from dyn_service.engine.robot import Robot


USUAL_W = 60.0
"""Default natural frequency of drives, rad/s."""
EFFORT_SHARE = 0.25
"""Share of the effort limits for default accelerations; the rest is for the weight and stretched postures."""
RISE_S = 0.2
"""Shortest default time to reach a velocity limit."""


def interfaces_of(
    p: PlantParameters, configuration: Configuration, robot: Hardware, closed_motion: ClosedMotion | None = None
) -> tuple[Interface, ...]:
    """Returns the interfaces that the plant accepts, in the order of `INTERFACES`.

    Raises:
        InvalidArgumentError: The joints or the driver do not support an interface of the parameters.
    """
    interfaces = tuple(kind for kind in INTERFACES if kind in p.command_interfaces)
    joints = zip(configuration.names, configuration.joints, strict=True)
    multi_dof_joint = next((name for name, joint in joints if not joint.single_dof), None)
    if multi_dof_joint is not None:
        supported, reason = EFFORT_ONLY, f"joint '{multi_dof_joint}' has several degrees of freedom"
    elif closed_motion is not None:
        supported, reason = EFFORT_ONLY, "servos move each joint by itself, which opens the robot's loops"
    elif robot.simulated:
        supported, reason = INTERFACES, ""
    else:
        driver_interfaces = robot.interfaces if isinstance(robot, TakesSetPoints) else EFFORT_ONLY
        supported, reason = tuple(kind for kind in INTERFACES if kind in driver_interfaces), "the driver takes no more"
    unsupported = [kind for kind in interfaces if kind not in supported]
    if unsupported:
        raise InvalidArgumentError(
            f"command_interfaces: {', '.join(unsupported)} cannot be commanded, expected "
            f"{', '.join(supported)}: {reason}",
            path="command_interfaces",
        )
    return interfaces or supported


def make_servo(robot: Robot, p: PlantParameters) -> Servo:
    """Returns the servos of a simulated robot. robot: the model."""
    drive = p.drive
    gains = [value if isinstance(value, list) else [value] for value in (drive.stiffness, drive.damping)]
    if bool(gains[0]) != bool(gains[1]):
        raise InvalidArgumentError("drive: expected stiffness and damping, or neither, found one of them", path="drive")
    if gains[0]:
        default = DriveParameters()
        if (drive.natural_frequency, drive.damping_ratio) != (default.natural_frequency, default.damping_ratio):
            raise InvalidArgumentError(
                "drive: natural_frequency and damping_ratio are for servos with a model, stiffness and damping for "
                "those without: expected one pair",
                path="drive",
            )
        return Drive.of_gains(drive.stiffness, drive.damping, robot.nv).effort
    # plants with few steps per second get softer drives, with a margin to `MAX_PHASE`
    w = drive.natural_frequency or min(USUAL_W, 0.2 * p.rate_hz / drive.damping_ratio)
    return Drive.of_model(robot.inverse_dynamics, w, drive.damping_ratio, robot.nv, 1.0 / p.rate_hz).effort


def approach(robot: Robot, p: PlantParameters) -> Array:
    """Returns the accelerations (nv,) rad/s^2 | m/s^2 towards far positions. robot: the model.

    By default all joints can accelerate together, in the middle of their limits, with `EFFORT_SHARE` of their efforts,
    and within the robot's own limits of acceleration.
    """
    n, acceleration, limits = robot.nv, p.drive.acceleration, robot.limits
    if acceleration != []:
        return per_joint("drive.acceleration", acceleration, n, positive=True)
    zeros, q = np.zeros(n), limits.middle(otherwise=robot.configuration.neutral)
    weight = robot.inverse_dynamics(q, zeros, zeros)
    inertia = robot.inverse_dynamics(np.tile(q, (n, 1)), np.zeros((n, n)), np.eye(n)) - weight
    with np.errstate(divide="ignore"):
        available = EFFORT_SHARE * limits.efforts / np.abs(inertia).sum(axis=0)
    available = np.minimum(np.where(available > 0.0, available, np.inf), limits.acceleration)
    return np.minimum(available, limits.speeds / RISE_S)


def prepare(robot: Robot, interfaces: tuple[Interface, ...], p: PlantParameters) -> None:
    """Compiles the drives' queries, because compiling in the loop would miss its deadlines."""
    if interfaces != EFFORT_ONLY and not p.driver:
        zeros = np.zeros(robot.nv)
        robot.inverse_dynamics(robot.configuration.neutral, zeros, zeros)


Connect = Callable[[Configuration, Limits, float, Mapping[str, Any]], Hardware]
"""(joints of the model, their limits, cycle in s, settings) -> the robot, not opened yet."""

_MEMBERS = ("configuration", "simulated", "open", "write", "read", "close")
"""Members of `Hardware`."""
_OF_SIMULATED = ("overlay", "sensors", "mjcf", "position_limits", "contacts", "initial_position")
"""Parameters of simulated robots only."""


def make_hardware(robot: Robot, p: PlantParameters) -> Hardware:
    """Returns the robot of the driver file in the parameters. robot: the model.

    Raises:
        NotFoundError: The file does not exist.
        InvalidArgumentError: It has no `connect`, fails, or a parameter is for simulated robots only.
        FailedPreconditionError: The driver's joints are not the model's.
        DynError: Raised by the driver.
    """
    configuration, limits = robot.configuration, robot.limits
    for name in _OF_SIMULATED:
        if getattr(p, name):
            raise InvalidArgumentError(f"{name}: for simulated robots only, expected none with a driver", path=name)
    has_defaults = p.actuators == type(p.actuators)() and p.drive == type(p.drive)()
    if p.clock != "real_time" or p.engine != "own" or not has_defaults:
        raise InvalidArgumentError(
            "clock, engine, actuators, drive: for simulated robots only, expected their defaults with a driver",
            path="driver",
        )
    path = Path(p.driver)
    if not path.is_file():
        raise NotFoundError(f"driver: there is no file {p.driver!r}", path="driver")
    gain = current_gains(robot, undriven_entries(p, robot)) if p.driver_effort == "current" else None
    hardware = _connected(path, configuration, limits, p)
    missing = [name for name in _MEMBERS if not hasattr(hardware, name)]
    if missing:
        raise InvalidArgumentError(
            f"driver {p.driver!r}: 'connect' gave {type(hardware).__name__} without {', '.join(missing)}: expected the "
            "interface of control/plant/plant.py",
            path="driver",
        )
    driver_joints, joints = hardware.configuration.names, configuration.names
    driver_sizes = (hardware.configuration.nq, hardware.configuration.nv)
    if driver_joints != joints or driver_sizes != (configuration.nq, configuration.nv):
        driver_text, model_text = ", ".join(driver_joints), ", ".join(joints)
        raise FailedPreconditionError(f"the driver's joints are {driver_text}, the model's {model_text}")
    # a driver is foreign code: its readings and errors are checked at each call
    return Driver(hardware, gain)


def _connected(path: Path, configuration: Configuration, limits: Limits, p: PlantParameters) -> Hardware:
    try:
        connect: Connect | None = getattr(run_file(path), "connect", None)
        if callable(connect):
            return connect(configuration, limits, 1.0 / p.rate_hz, p.driver_settings)
    except DynError:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise InvalidArgumentError(f"driver {p.driver!r} cannot be used: {cause}", path="driver") from error
    raise InvalidArgumentError(f"driver {p.driver!r} has no function 'connect'", path="driver")


_MOST_PARTS = 4
"""Most parts of a step of rk4 that `auto` chooses: in real time `stick_slip` takes less than more of them."""
_LOG = logging.getLogger(__name__)


def make_plant(robot: Robot, p: PlantParameters, session: int) -> Plant:
    """Makes the plant from its parameters. robot: the model.

    Raises:
        InvalidArgumentError: A parameter is out of range.
        NotFoundError: The overlay, a contact or a sensor names a link or joint that the robot does not have.
        ConfigurationError: The sensor file is invalid, or not for this robot.
        DynError: Raised by a driver.
    """
    configuration, limits, p = robot.configuration, robot.limits, in_range(p)
    if not configuration.nv:
        raise InvalidArgumentError(f"robot {robot.name!r} has no movable joint: expected at least one", path="robot")
    settings = safety_settings(p, limits).without_motors(undriven_entries(p, robot))

    # without external forces any motion then decays as exp(-t / damping_s)
    def damping() -> Array:
        loops = robot.closed_motion
        matrix: Array = robot.mass_matrix(plant.q) if loops is None else loops.drive_inertia(plant.q)
        return matrix / p.damping_s

    # compiled now: a stop must not wait for a compiler
    robot.prepare(["mass_matrix"] if p.safe_stop == "damping" else [])
    if p.safe_stop == "damping" and robot.closed_motion is not None:
        robot.closed_motion.drive_inertia(configuration.neutral)
    safety = SafetySupervisor(settings, configuration.velocity_names, session, robot.fingerprint, damping)
    safety.turns = tuple(map(bool, configuration.turns))
    if p.driver_effort != "effort" and not p.driver:
        raise InvalidArgumentError("driver_effort: expected a driver with it, found none", path="driver_effort")
    hardware = make_hardware(robot, p) if p.driver else make_simulated(robot, p, settings)
    try:
        safety.interfaces = interfaces_of(p, configuration, hardware, robot.closed_motion)
        if safety.interfaces != EFFORT_ONLY:
            safety.points.approach_by(approach(robot, p))
            if not p.driver:
                safety.servo = make_servo(robot, p)
    except DynError:
        hardware.close()
        raise
    plant = Plant(hardware, limits, safety, 1.0 / p.rate_hz, p.stale_cycles)
    return plant


def make_simulated(robot: Robot, p: PlantParameters, settings: SafetySettings) -> SimulatedRobot:
    """Makes the simulated robot from the parameters. robot: the model."""
    configuration = robot.configuration
    # drives, limits and fingerprint are the model's: a controller does not see the overlay, as with a real robot
    real = real_robot(robot, p)
    q = first_position(p, robot)
    limit, free = settings.velocity_limit, settings.undriven
    gears = make_gears(robot, real, p)
    engine, actuators, measuring = make_engine(*engine_inputs(real, p, gears), q), make_actuators(p, robot.nv), None
    if p.sensors:
        measuring = RobotSensors(Sensors.from_file(real, p.sensors, seed=p.sensor_seed), configuration, p.velocities)
    brakes_hold_all = free is not None and held_by_brakes(robot, free)
    parts = actuators, measuring, free, brakes_hold_all, make_motors(robot, real, p, free, gears), gears
    return SimulatedRobot(engine, configuration, q, 1.0 / p.rate_hz, p.brake_s, limit, *parts)


def held_by_brakes(robot: Robot, free: NDArray[np.bool_]) -> bool:
    """Whether brakes of the other joints hold the entries of v without one (nv,), because loops are closed."""
    if robot.closed_motion is None:
        return False
    N = robot.closed_motion.basis(robot.closed_motion.samples)
    ranks = (np.linalg.matrix_rank(x, tol=1e-6) for x in (N, N[..., ~free, :]))  # columns of N have size 1
    return bool(np.equal(*ranks).all())


def differences(p: PlantParameters, gears: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters by which the plant differs from its model, and its elastic gears, for a report."""
    engine = {"engine": p.engine, "mjcf": p.mjcf} if p.engine != "own" else {}
    engine |= {"fmu": p.fmu} if p.fmu else {}
    actuators = msgspec.to_builtins(p.actuators)
    values = {"engine": engine, "overlay": p.overlay, "actuators": actuators, "sensors": p.sensors, "gears": gears}
    default_actuators = msgspec.to_builtins(ActuatorParameters())
    defaults = {"engine": {}, "overlay": {}, "actuators": default_actuators, "sensors": "", "gears": {}}
    changed_values = {key: value for key, value in values.items() if value != defaults[key]}
    return {"differences": changed_values} if changed_values else {}


def real_robot(robot: Robot, p: PlantParameters) -> Robot:
    """Returns the simulated robot: the model with the overlay applied."""
    if not p.overlay:
        return robot
    real = robot.overlaid(unpack_overlay(p.overlay, "overlay"))
    if real.lead:
        raise InvalidArgumentError("overlay: found a batch of robots, expected one robot", path="overlay")
    if real.closed_motion is not None and not real.free.all():
        raise FailedPreconditionError(
            f"overlay: it locks joints of robot '{robot.name}', which has closed loops; make them fixed in the robot's "
            "file",
            path="overlay",
        )
    return real


def make_engine(robot: Robot, p: PlantParameters, q: Array) -> Engine:
    """Makes the engine that simulates the robot.

    Raises:
        InvalidArgumentError: A parameter is out of range, or excludes another.
        NotFoundError: A contact names a link that the robot does not have; the MJCF file does not exist.
        FailedPreconditionError: The library of the engine is not installed.
        UnimplementedError: The engine does not support a joint or the integrator.
    """
    _check_engine_files(p)
    if robot.closed_motion is not None and p.engine != "own":
        raise UnimplementedError(
            f"engine {p.engine!r}: robot '{robot.name}' has closed loops, which MuJoCo holds by springs and units "
            "lack; expected 'own'",
            path="engine",
        )
    if p.engine == "mujoco":
        return _mujoco(robot, p)

    # J^T f does not depend on an overlay's numbers, and with the model's kernel a new payload compiles nothing
    efforts_of = wrench_efforts(robot.base)
    if p.engine == "fmu":
        return _fmu(robot, p, q, efforts_of)
    (integrator, substeps), zeros = steps_of(robot, p), np.zeros(robot.nv)
    configuration, step_s = robot.configuration, 1.0 / p.rate_hz / substeps
    check_step(robot, step_s, integrator)
    contacts, limits = unpack_contacts(p.contacts, "contacts"), p.position_limits
    settings: dict[str, Any] = {"contacts": contacts, "position_limits": limits}
    one_step = checked(configuration, q, zeros, None, dt=step_s, steps=1, integrator=integrator, **settings)
    engine: Engine
    if integrator == "stick_slip":
        engine = StickSlipEngine(robot, one_step, substeps)
    else:
        loops = robot.closed_motion
        robot.prepare(["forward_dynamics"])
        dynamics: ForwardDynamics = robot.forward_dynamics if loops is None else loops.accelerations
        whole_step: StepKernel | None = None
        if limits or contacts:
            dynamics = SupportedDynamics(robot, one_step)
        elif loops is None:
            whole_step = partial(robot.step, integrator=integrator)  # type: ignore[arg-type]  # an explicit one here
            whole_step(q, zeros, zeros, step_s)  # compiles it now
        brakes = partial(in_brakes, robot)
        closed_state = None if loops is None else loops.closed_state
        engine = OwnEngine(dynamics, configuration, integrator, substeps, efforts_of, brakes, whole_step, closed_state)
    # compiles now what is compiled at the first call
    engine.acceleration(q, zeros, zeros)
    free = undriven_entries(p, robot)
    # the step of joints without brakes is compiled before the loop too
    if free.any():
        engine.step(q, zeros, zeros, 1.0 / p.rate_hz, np.where(free, np.nan, 0.0))
    return engine


def wrench_efforts(robot: Robot) -> EffortsOf:
    """Returns J^T f of a robot, which does not depend on its masses."""
    if robot.closed_motion is not None:
        of_loops: EffortsOf = robot.closed_motion.efforts_of
        return of_loops

    def efforts_of(q: Array, wrenches: Sequence[Wrench]) -> Array:
        zeros = np.zeros(robot.nv)
        efforts: Array = robot.inverse_dynamics(q, zeros, zeros)
        return efforts - robot.inverse_dynamics(q, zeros, zeros, wrenches=list(wrenches))

    return efforts_of


def _check_engine_files(p: PlantParameters) -> None:
    if p.mjcf and p.engine != "mujoco":
        raise InvalidArgumentError("mjcf: a file for MuJoCo, expected engine 'mujoco'", path="mjcf")
    if p.engine == "fmu" and not p.fmu:
        raise InvalidArgumentError("fmu: engine 'fmu' needs the path of an FMU", path="fmu")
    if p.fmu and p.engine != "fmu":
        raise InvalidArgumentError(f"fmu: only engine 'fmu' takes an FMU, found engine '{p.engine}'", path="fmu")


def _mujoco(robot: Robot, p: PlantParameters) -> Engine:
    from dyn_service.simulation.mujoco import MujocoEngine

    if p.contacts:
        raise InvalidArgumentError("contacts: MuJoCo uses those of its MJCF file, set them there", path="contacts")
    if p.mjcf and p.overlay:
        raise InvalidArgumentError(
            "overlay: the MJCF file specifies the simulated robot, expected one of 'overlay' and 'mjcf'", path="overlay"
        )
    tree = robot.tree
    mimics = zip(tree.movable, tree.mimic, strict=True)
    engine = MujocoEngine(
        Path(p.mjcf) if p.mjcf else robot.as_described,
        robot.configuration,
        {tree.joints[i]: mimic for i, mimic in mimics if mimic is not None},
        dt_s=1.0 / p.rate_hz,
        substeps=p.substeps,
        integrator=steps_of(robot, p)[0],
        gravity=None if p.mjcf else robot.gravity,
        limits=p.position_limits,
        links=dict(zip(tree.joints, tree.links, strict=True)),
    )
    for note in engine.notes:
        _LOG.info("MuJoCo: %s", note)
    return engine


def _fmu(robot: Robot, p: PlantParameters, q: Array, efforts_of: EffortsOf) -> Engine:
    from dyn_service.simulation.fmu import FmuEngine

    for name in ("overlay", "contacts", "position_limits"):
        if getattr(p, name):
            raise InvalidArgumentError(f"{name}: the FMU specifies the simulated robot, expected none", path=name)
    if undriven_entries(p, robot).any():
        raise UnimplementedError("engine 'fmu': the robot has joints without brakes, which a unit cannot hold")
    engine = FmuEngine(Path(p.fmu), robot.configuration, 1.0 / p.rate_hz, p.substeps, efforts_of)
    zeros = np.zeros(robot.nv)
    # reports a unit that cannot start before the plant is ready
    engine.acceleration(q, zeros, zeros)
    return engine


REARM_SPEED = 0.3
"""rad/s | m/s, largest speed at which joints without a velocity limit can be armed."""
MAX_SUBSTEPS = 1000
"""Limit of `substeps`; more are too slow for any robot."""


class ActuatorParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Delay, lag and limit between the commanded and the acting effort; see `control/plant/simulated.py`.

    effort_limit: N m | N, one per effort, of the motor itself; empty is unlimited. delay_steps: steps before a command
    takes effect. lag_s: s, time constant of the lag after the delay, one number or one per effort; 0 is no lag.
    winding_celsius: of motors at the begin, by joint; else their ambient_celsius. supply_sags: times in which the
    supply gives a share of the motors' voltage limits, such as {share: 0.5, from_s: 1, until_s: 2}. encoder_side: what
    encoders of joints with elastic gears measure: the motor's position through the gear ratio, or the link's.
    backlash: rad | m, by joint; replaces the joint file's, such as by a worn gear's.
    """

    effort_limit: list[float] = []
    delay_steps: Annotated[int, msgspec.Meta(ge=0, le=MAX_DELAY_STEPS)] = 0
    lag_s: float | list[float] = 0.0
    winding_celsius: dict[str, float] = {}
    supply_sags: list[SupplySag] = []
    encoder_side: EncoderSide = "motor"
    backlash: dict[str, NotNegative] = {}


class DriveParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Servos that track commanded positions and velocities; see `control/plant/drives.py`.

    natural_frequency: rad/s of a joint's error, for servos with the robot's model; 0 is 60, or a fifth of rate_hz if
    that is less. damping_ratio: of that error; 1 is critical. stiffness: N m/rad | N/m, one number or one per effort,
    for servos without a model; empty selects servos with a model. damping: N m s/rad | N s/m, with the stiffness.
    acceleration: rad/s^2 | m/s^2, one number or one per effort, towards far positions; empty is the acceleration at a
    quarter of the effort limits, and at least 0.2 s to the velocity limit.
    """

    natural_frequency: NotNegative = 0.0
    damping_ratio: Positive = 1.0
    stiffness: float | list[float] = []
    damping: float | list[float] = []
    acceleration: float | list[float] = []


class PlantParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the plant.

    robot: path of its URDF, MJCF, SDFormat or xacro file: the model that a controller must have. joints: path of a
    joint file (damping, friction, springs, motors), or empty. root: how its root link moves in the world. undriven:
    joints without motor and brake, in addition to passive joints of closed loops; by default those with six degrees of
    freedom, such as a floating root. mimic: whether mimic joints follow their leaders, as on the server. loops: `cut`
    simulates the tree that is left of closed loops. rate_hz: integration steps per second of wall time. integrator: of
    a step; auto is stick_slip with contacts, else rk4, in up to four parts if damping or friction of a light joint
    needs them, or stick_slip if it needs more. substeps: number of parts of a step, which auto divides. state_rate_hz:
    joint states per second, at most rate_hz; 0 is every step. initial_position: rad | m, by joint (and its part,
    `joint.part` or a nested map, if it has several) or in order; empty is the middle of the limits, neutral for joints
    without limits; closed loops move the joints that it does not name.

    overlay: differences of the simulated robot from its file, with the fields of `Overlay`; states still carry the
    fingerprint of the file's model. actuators: its motors. sensors: path of a sensor file. velocities: of
    joints with encoders; `encoders` are differences of encoder readings, `measured` true velocities. sensor_seed:
    replaces the file's seed.

    command_interfaces: accepted interfaces, of `effort`, `position` and `velocity`; empty is all that are supported:
    effort only if a joint has several degrees of freedom, else those of the driver. drive: the servos of a simulated
    robot, for positions and velocities.

    missed_cycles: control cycles, 1 to 20, without a command before the plant stops. control_rate_hz: their rate, at
    least 1 Hz; 0 is rate_hz. safe_stop: how it stops: by its brakes, by damping only, or without effort. brake_s: time
    in which the brakes stop it. damping_s: time in which a motion decays to 1/e under `damping`. beyond_limits: whether
    efforts and their rates beyond the limits are clipped and counted, or refused with a stop. effort_ramp_s: time from
    no effort to the limit of the URDF, which gives the largest rate of efforts. effort_rate: N m/s | N/s, one number
    per effort, replaces effort_ramp_s. rearm_share: share of its velocity limit below which each joint must be when the
    plant is armed; 0.3 rad/s | m/s without a limit.

    engine: of the simulation: our own, MuJoCo with a model of the same file, or a unit of FMI. mjcf: an MJCF file with
    the same joints for MuJoCo instead, whose contacts then act. fmu: the unit, with the variables that
    `dyn export --fmu` writes.

    driver: path of a Python file whose `connect` returns a real robot, see `control/plant/plant.py`.
    driver_settings: passed to `connect`. driver_effort: whether efforts of the driver are efforts, or currents, A,
    converted by gear_ratio and torque_constant of the motors. stale_cycles: cycles without a new reading
    that are tolerated; one more stops the robot.

    position_limits: whether joints have stops at their limits. contacts: points of links that touch planes, such as
    {link: FL_foot, radius: 0.016}. Both cost time: with stick_slip some tenths of a millisecond a step, with rk4 one or
    two milliseconds, so that rate_hz should be some hundreds.

    clock: what advances its time: wall time, `speed` times wall time (`faster`), or commands (`lockstep`): then states
    are published at state_rate_hz, else at control_rate_hz, and the plant goes on when a state is answered. With
    `faster` and `lockstep` the time is published on `/clock`. speed: of `faster`, relative to wall time.
    lockstep_timeout_s: wall time after which the plant continues without an answer; 0: never.

    max_catch_up_s: missed time that is integrated after an overrun; the rest is slipped. plant_state: topic or endpoint
    of its states, for its controller. joint_states: the same as ROS message. multi_dof_joint_states, odom: of joints
    with several degrees of freedom, and of a moving base. joint_commands: of accepted commands. record: whether the
    recording goes to the launcher. bounds: within which a run is clean, see `graph/report/verdicts.py`.
    """

    robot: RobotFile
    joints: InputFile = ""
    root: RootType = "fixed"
    undriven: list[str] | None = None
    mimic: bool = True
    loops: LoopHandling = "closed"
    rate_hz: Rate = 1000.0
    integrator: Literal["auto", "rk4", "semi_implicit_euler", "explicit_euler", "stick_slip"] = "auto"
    substeps: Annotated[int, msgspec.Meta(ge=1, le=MAX_SUBSTEPS)] = 1
    state_rate_hz: NotNegative = 0.0
    initial_position: Values = []
    overlay: dict[str, Any] = {}
    actuators: ActuatorParameters = msgspec.field(default_factory=ActuatorParameters)
    sensors: InputFile = ""
    velocities: Velocities = "encoders"
    sensor_seed: int | None = None
    command_interfaces: list[Interface] = []
    drive: DriveParameters = msgspec.field(default_factory=DriveParameters)
    missed_cycles: Annotated[int, msgspec.Meta(ge=1, le=MAX_MISSED_CYCLES)] = 20
    control_rate_hz: NotNegative = 0.0
    safe_stop: StopPolicy = "brake"
    brake_s: Positive = 0.1
    damping_s: Positive = 0.01
    beyond_limits: LimitPolicy = "clip"
    effort_ramp_s: Positive = 0.05
    effort_rate: list[float] = []
    rearm_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    engine: Literal["own", "mujoco", "fmu"] = "own"
    mjcf: InputFile = ""
    fmu: InputFile = ""
    driver: InputFile = ""
    driver_settings: dict[str, Any] = {}
    driver_effort: Literal["effort", "current"] = "effort"
    stale_cycles: Annotated[int, msgspec.Meta(ge=0)] = 5
    position_limits: bool = False
    contacts: list[dict[str, Any]] = []
    clock: Literal["real_time", "faster", "lockstep"] = "real_time"
    speed: Positive = 10.0
    lockstep_timeout_s: NotNegative = 10.0
    max_catch_up_s: NotNegative = 0.01
    plant_state: Annotated[str, on_topic("publishes", ros_type(PlantState))] = "plant_state"
    joint_states: Annotated[str, on_topic("publishes", ros_type(JointState))] = "joint_states"
    multi_dof_joint_states: Annotated[str, on_topic("publishes", ros_type(MultiDOFJointState))] = (
        "multi_dof_joint_states"
    )
    odom: Annotated[str, on_topic("publishes", ros_type(Odometry))] = "odom"
    joint_commands: Annotated[str, on_topic("subscribes", ros_type(JointCommand))] = "joint_commands"
    record: bool = True
    bounds: PlantBounds = msgspec.field(default_factory=PlantBounds)


def steps_of(robot: Robot, p: PlantParameters) -> tuple[Integrator, int]:
    """Returns the integrator and the parts of a step of the simulated robot: of `auto` those that hold feet in contact,
    and are stable for damping and friction.
    """
    integrator: Integrator = "rk4" if p.integrator == "auto" else p.integrator
    if p.integrator != "auto" or p.engine != "own" or p.driver:
        return integrator, p.substeps
    if p.contacts:
        return "stick_slip", p.substeps
    integrator, parts = chosen(robot, 1.0 / p.rate_hz / p.substeps, _MOST_PARTS)
    return integrator, p.substeps * parts


def undriven_entries(p: PlantParameters, robot: Robot) -> NDArray[np.bool_]:
    """Returns a mask (nv,) of the entries of v without motor and brake; with closed loops also the passive joints."""
    configuration = robot.configuration
    names = [name for name, joint in zip(configuration.names, configuration.joints, strict=True) if joint.nv == 6]
    for k, name in enumerate(p.undriven or []):
        if name not in configuration.names:
            raise InvalidArgumentError(f"undriven: {_no_joint(name, configuration.names)}", path=f"undriven[{k}]")
    names = names if p.undriven is None else p.undriven
    undriven = np.array([name in names for name in configuration.velocity_joints], dtype=np.bool_)
    driven = None if robot.closed_motion is None else robot.closed_motion.driven
    return undriven if driven is None else undriven | (driven == 0.0)


def safety_settings(p: PlantParameters, limits: Limits) -> SafetySettings:
    """Returns the safety settings from the parameters and the robot's limits."""
    # efforts that are held through a step would overshoot
    if p.safe_stop == "damping" and not p.damping_s * p.rate_hz >= 2.0:
        raise InvalidArgumentError(f"damping_s is {p.damping_s:g}: expected at least two steps, {2.0 / p.rate_hz:g} s")
    for name in ("control_rate_hz", "state_rate_hz"):
        if getattr(p, name) > p.rate_hz:
            value = getattr(p, name)
            raise InvalidArgumentError(f"{name} is {value:g}: expected at most rate_hz, {p.rate_hz:g}", path=name)
    effort, velocity = limits.efforts, limits.speeds
    rate = np.array(p.effort_rate, dtype=np.float64) if p.effort_rate else effort / p.effort_ramp_s
    control_s = 1.0 / (p.control_rate_hz or p.rate_hz)
    if control_s > MAX_CONTROL_S:
        name = "control_rate_hz" if p.control_rate_hz else "rate_hz"
        raise InvalidArgumentError(
            f"{name} is {getattr(p, name):g}: expected at least {1.0 / MAX_CONTROL_S:g} Hz, because the last effort "
            f"acts through {p.missed_cycles} missed cycles",
            path=name,
        )
    bounded: dict[str, Any] = {}
    if limits.lower.shape == velocity.shape:
        bounded = {"lower": limits.lower, "upper": limits.upper}
    return SafetySettings(
        cycle_s=1.0 / p.rate_hz,
        hold_s=p.missed_cycles * control_s,
        effort_limit=effort,
        effort_rate=rate,
        velocity_limit=velocity,
        rearm_velocity=np.where(np.isfinite(velocity), p.rearm_share * velocity, REARM_SPEED),
        stop=p.safe_stop,
        beyond_limits=p.beyond_limits,
        control_s=control_s,
        **bounded,
    )


def initial_position(values: Values, configuration: Configuration, limits: Limits) -> Array:
    """Returns the first position: the given values, else the middle of the limits, else neutral.

    Raises:
        InvalidArgumentError: A joint is unknown, a position is beyond its limits, or the list has another length than
        q.
    """
    q = limits.middle(otherwise=np.clip(configuration.neutral, limits.lower, limits.upper))
    q = values_by_joint(values, configuration.position_names, q, "initial_position")
    for name, value, lower, upper in zip(configuration.position_names, q, limits.lower, limits.upper, strict=True):
        if value < lower or value > upper:  # most often degrees
            raise InvalidArgumentError(
                f"initial_position: {name!r} is {value:g}, beyond its limits: expected {lower:g} to {upper:g} (rad, m)"
            )
    configuration.check_unit(q, "initial_position", "initial_position")
    return q


def first_position(p: PlantParameters, robot: Robot) -> Array:
    """Returns `initial_position`; with closed loops the nearest closed position in which the given joints stand.

    Raises:
        FailedPreconditionError: The loops do not close there.
    """
    q = initial_position(p.initial_position, robot.configuration, robot.limits)
    return q if robot.closed_motion is None else closed_position(robot, q, p.initial_position, "initial_position")


def closed_position(robot: Robot, q: Array, values: Values, subject: str) -> Array:
    """Returns the closed position nearest to q (nq,) in which the joints with values by name stand still, and logs how
    far the others moved. subject: of the log.

    Raises:
        FailedPreconditionError: The loops do not close there.
    """
    names = {name.partition(".")[0] for name in values} if isinstance(values, dict) else set()
    configuration = robot.configuration
    closed: Array = robot.assemble(q, fixed=[name for name in configuration.names if name in names])
    change = np.abs(configuration.difference(q, closed))
    _LOG.info(
        "%s: the loops were closed at the nearest position; '%s' moved most, by %.3g rad | m",
        subject, configuration.velocity_names[int(np.argmax(change))], change.max(),
    )  # fmt: skip
    return closed


def values_by_joint(given_values: Values, names: Sequence[str], base: Array, subject: str) -> Array:
    """Returns `base` (n,) with the given values, by name or all in order.

    names: of its entries. subject: of errors.
    """
    values = base.copy()
    if isinstance(given_values, dict):
        for name, value in _by_entry(given_values):
            if name not in names:
                raise InvalidArgumentError(f"{subject}: {_no_joint(name, names)}")
            values[names.index(name)] = value
    elif given_values:
        if len(given_values) != len(base):
            kind = "velocities" if subject == "velocity" else "positions"
            raise InvalidArgumentError(f"{subject} has {len(given_values)} numbers, the robot {len(base)} {kind}")
        values = np.array(given_values, dtype=np.float64)
    return values


def _no_joint(name: str, names: Sequence[str]) -> str:
    return f"no joint {name!r}; the joints are {', '.join(names)}{did_you_mean(name, names)}"


def _by_entry(values: dict[str, float | dict[str, float]]) -> Iterator[tuple[str, float]]:
    """Yields values by the names of their entries; a nested map is the same as a dot in a name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{part}", inner) for part, inner in value.items())
        else:
            yield name, value
