"""Parameters of the plant, and the safety settings and first position made from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dyn_service.api.arguments import Integrator
from dyn_service.api.queries import Array
from dyn_service.control.command import Interface
from dyn_service.control.plant.safety import (
    MAX_CONTROL_S,
    MAX_MISSED_CYCLES,
    LimitPolicy,
    SafetySettings,
    StopPolicy,
)
from dyn_service.control.plant.simulated import MAX_DELAY_STEPS, Velocities
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.report.verdicts import PlantBounds
from dyn_service.messages import ros_type
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.messages.nav_msgs import Odometry
from dyn_service.messages.sensor_msgs import JointState, MultiDOFJointState
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.model.description import RootType
from dyn_service.support.parameter_descriptions import on_topic
from dyn_service.support.parameters import InputFile, NotNegative, Positive, Rate, RobotFile
from dyn_service.support.suggestions import did_you_mean

REARM_SPEED = 0.3
"""rad/s | m/s, largest speed at which joints without a velocity limit can be armed."""
MAX_SUBSTEPS = 1000
"""Limit of `substeps`; more are too slow for any robot."""


class ActuatorParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Delay, lag and limit between the commanded and the acting effort; see `control/plant/simulated.py`.

    effort_limit: N m | N, one per effort, of the motor itself; empty is unlimited. delay_steps: steps before a command
    takes effect. lag_s: s, time constant of the lag after the delay, one number or one per effort; 0 is no lag.
    """

    effort_limit: list[float] = []
    delay_steps: Annotated[int, msgspec.Meta(ge=0, le=MAX_DELAY_STEPS)] = 0
    lag_s: float | list[float] = 0.0


class DriveParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Servos that track commanded positions and velocities; see `control/plant/drive.py`.

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
    joints without motor and brake; by default those with six degrees of freedom, such as a floating root. mimic:
    whether mimicked joints follow, as on the server. rate_hz: integration steps per second of wall time. integrator: of
    a step; auto is stick_slip with contacts, else rk4. substeps: number of parts of a step. state_rate_hz: joint states
    per second, at most rate_hz; 0 is every step. initial_position: rad | m, by joint (and its part, `joint.part` or a
    nested map, if it has several) or in order; empty is the middle of the limits, neutral for joints without limits.

    overlay: differences of the simulated robot from its file, with the fields of `Overlay`; states still carry the
    fingerprint of the file's model. actuators: its motors. sensors: path of a sensor file. velocities: whether the
    velocities of joints with encoders are the encoders' differences, or true. sensor_seed: replaces the file's seed.

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

    engine: of the simulation: our own, or MuJoCo with a model of the same file. mjcf: an MJCF file with the same joints
    instead, whose contacts then act.

    driver: path of a Python file whose `connect` returns a real robot, see `control/plant/plant.py`.
    driver_settings: passed to `connect`. stale_cycles: cycles in a row without a new reading after which one more stops
    the robot.

    position_limits: whether joints have stops at their limits. contacts: points of links that touch planes, such as
    {link: FL_foot, radius: 0.016}. Both cost time: with stick_slip some tenths of a millisecond a step, with rk4 one or
    two milliseconds, so that rate_hz should be some hundreds.

    clock: what advances its time: wall time, `speed` times wall time (`faster`), or commands (`lockstep`): then states
    are published at state_rate_hz, else at control_rate_hz, and the plant goes on when a state is answered. With
    `faster` and `lockstep` the time is published on `/clock`. speed: of `faster`, relative to wall time.
    lockstep_patience_s: wall time after which it goes on unanswered; 0 is never.

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
    rate_hz: Rate = 1000.0
    integrator: Literal["auto", "rk4", "semi_implicit_euler", "explicit_euler", "stick_slip"] = "auto"
    substeps: Annotated[int, msgspec.Meta(ge=1, le=MAX_SUBSTEPS)] = 1
    state_rate_hz: NotNegative = 0.0
    initial_position: list[float] | dict[str, float | dict[str, float]] = []
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
    engine: Literal["own", "mujoco"] = "own"
    mjcf: InputFile = ""
    driver: InputFile = ""
    driver_settings: dict[str, Any] = {}
    stale_cycles: Annotated[int, msgspec.Meta(ge=0)] = 5
    position_limits: bool = False
    contacts: list[dict[str, Any]] = []
    clock: Literal["real_time", "faster", "lockstep"] = "real_time"
    speed: Positive = 10.0
    lockstep_patience_s: NotNegative = 10.0
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


def integrator_of(p: PlantParameters) -> Integrator:
    """Returns the integrator; `auto` selects one that holds feet in contact."""
    if p.integrator != "auto":
        return p.integrator
    return "stick_slip" if p.contacts and p.engine == "own" else "rk4"


def undriven_entries(p: PlantParameters, at: Configuration) -> NDArray[np.bool_]:
    """Returns a mask (nv,) of the entries of v without motor and brake.

    Raises:
        InvalidArgumentError: A joint does not exist.
    """
    names = [name for name, joint in zip(at.names, at.joints, strict=True) if joint.nv == 6]
    for k, name in enumerate(p.undriven or []):
        if name not in at.names:
            near = did_you_mean(name, at.names)
            known = ", ".join(at.names)
            raise InvalidArgumentError(
                f"undriven: no joint {name!r}; the joints are {known}{near}", path=f"undriven[{k}]"
            )
    names = names if p.undriven is None else p.undriven
    return np.array([name in names for name in at.velocity_joints], dtype=np.bool_)


def safety_settings(p: PlantParameters, limits: Limits) -> SafetySettings:
    """Returns the safety settings from the parameters and the robot's limits.

    Raises:
        InvalidArgumentError: A parameter is out of range.
    """
    if (
        p.safe_stop == "damping" and not p.damping_s * p.rate_hz >= 2.0
    ):  # efforts that are held through a step would overshoot
        raise InvalidArgumentError(f"damping_s is {p.damping_s:g}: expected at least two steps, {2.0 / p.rate_hz:g} s")
    for name in ("control_rate_hz", "state_rate_hz"):
        if getattr(p, name) > p.rate_hz:
            raise InvalidArgumentError(
                f"{name} is {getattr(p, name):g}: expected at most rate_hz, {p.rate_hz:g}", path=name
            )
    effort = limits.efforts
    rate = np.array(p.effort_rate, dtype=np.float64) if p.effort_rate else effort / p.effort_ramp_s
    velocity = limits.speeds
    control_s = 1.0 / (p.control_rate_hz or p.rate_hz)
    if control_s > MAX_CONTROL_S:
        name = "control_rate_hz" if p.control_rate_hz else "rate_hz"
        raise InvalidArgumentError(
            f"{name} is {getattr(p, name):g}: expected at least {1.0 / MAX_CONTROL_S:g} Hz, because the last effort "
            f"acts through {p.missed_cycles} missed cycles",
            path=name,
        )
    bounded: dict[str, Any] = (
        {"lower": limits.lower, "upper": limits.upper} if limits.lower.shape == velocity.shape else {}
    )
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


def initial_position(
    given: list[float] | dict[str, float | dict[str, float]], at: Configuration, limits: Limits
) -> Array:
    """Returns the first position: the given values, else the middle of the limits, else neutral.

    Raises:
        InvalidArgumentError: A joint is unknown, a position is beyond its limits, or the list has another length than
        q.
    """
    q = limits.middle(otherwise=np.clip(at.neutral, limits.lower, limits.upper))
    q = values_by_joint(given, at.position_names, q, "initial_position")
    for name, value, lower, upper in zip(at.position_names, q, limits.lower, limits.upper, strict=True):
        if value < lower or value > upper:  # most often degrees
            raise InvalidArgumentError(
                f"initial_position: {name!r} is {value:g}, beyond its limits: expected {lower:g} to {upper:g} (rad, m)"
            )
    at.check_unit(q, "initial_position", "initial_position")
    return q


def values_by_joint(
    given: list[float] | dict[str, float | dict[str, float]], names: Sequence[str], base: Array, what: str
) -> Array:
    """Returns `base` (n,) with the given values, by name or all in order. names: of its entries. what: for errors.

    Raises:
        InvalidArgumentError: A name is unknown, or the list has another length.
    """
    values = base.copy()
    if isinstance(given, dict):
        for name, value in _by_entry(given):
            if name not in names:
                near = did_you_mean(name, names)
                raise InvalidArgumentError(f"{what}: no joint {name!r}; the joints are {', '.join(names)}{near}")
            values[names.index(name)] = value
    elif given:
        if len(given) != len(base):
            kind = "velocities" if what == "velocity" else "positions"
            raise InvalidArgumentError(f"{what} has {len(given)} numbers, the robot {len(base)} {kind}")
        values = np.array(given, dtype=np.float64)
    return values


def _by_entry(given: dict[str, float | dict[str, float]]) -> Iterator[tuple[str, float]]:
    """Yields values by the names of their entries; a nested map is the same as a dot in a name."""
    for name, value in given.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{part}", inner) for part, inner in value.items())
        else:
            yield name, value
