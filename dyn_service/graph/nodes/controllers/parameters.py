"""Parameters that controllers have in common: those of the loop, and those of a reference motion."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from dyn_service.control.controller import TrajectoryMaker, hold_maker
from dyn_service.control.trajectory import Bounds, MultiSineDesign, PointToPoint, design_multi_sine
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.report.verdicts import Share
from dyn_service.messages import ros_type
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.support.parameter_descriptions import on_topic
from dyn_service.support.parameters import InputFile, NotNegative, Positive, Rate

Motion = Literal["multi_sine", "point_to_point", "hold"]


class LoopParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of every controller.

    endpoint: of the dynamics server. robot: its name there; empty where the server has one robot. rate_hz: commands
    per second.
    deadline_s: an answer after it counts as a deadline miss; 0 is one period. request_timeout_s: an answer after it
    is lost. connect_timeout_s: patience with a server and a plant that are not there yet; state_timeout_s: with a plant
    that falls silent. rearm: whether it takes over anew a plant that stopped under its command, or that of the one in
    whose place a launcher has started it; else that ends it.
    loads_rate_hz: how often joint loads are asked for; 0 is never. delay_compensation: whether state and
    reference are taken at the middle of the time during which the command will act. keys: the key file, for a server
    that asks for keys. plant_state: topic or endpoint of the plant's states. joint_commands: of the commands to it.
    record: whether the recording goes to the launcher. late_share: a run is clean if at most this share of answers came
    after their deadline or never: the plant holds its last command through one that is missing, not through many.
    state_rate_hz: how often reference, error and signals are published where a node listens, in the plant's time; 0 is
    never.
    """

    endpoint: str = "tcp://127.0.0.1:5755"
    robot: str = ""
    rate_hz: Rate = 500.0
    deadline_s: NotNegative = 0.0
    request_timeout_s: Positive = 0.25
    connect_timeout_s: Positive = 30.0
    state_timeout_s: Positive = 2.0
    rearm: bool = False
    loads_rate_hz: NotNegative = 25.0
    delay_compensation: bool = True
    plant_state: Annotated[str, on_topic("subscribes", ros_type(PlantState))] = "plant_state"
    joint_commands: Annotated[str, on_topic("publishes", ros_type(JointCommand))] = "joint_commands"
    keys: InputFile = ""
    record: bool = True
    late_share: Share = 0.01
    state_rate_hz: NotNegative = 50.0


class MultiSineParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sines about a centre.

    period_s: of the first harmonic. harmonics: how many there are. range_fraction: of the way from the centre to the
    nearer limit that is used. velocity_fraction: of the velocity limit that is used. max_amplitude: rad | m.
    ramp_s: from rest to full motion.
    centre: rad | m, one number per position; empty is the middle of the limits, and for joints without limits, such as
    all with several ways to move, where the plant stands when the motion begins.
    """

    period_s: Positive = 6.0
    harmonics: Annotated[int, msgspec.Meta(ge=1)] = 3
    range_fraction: float = 0.5
    velocity_fraction: float = 0.5
    max_amplitude: float = 0.6
    ramp_s: Positive = 2.0
    centre: list[float] = []


class PointToPointParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Moves between waypoints, in a circle.

    points: waypoints, rad | m, one number per position each. move_s: how long a move takes. dwell_s: how long it rests
    at a waypoint.
    """

    points: list[list[float]] = []
    move_s: Positive = 2.0
    dwell_s: NotNegative = 0.5


class MotionParameters(LoopParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a controller that follows a reference motion. trajectory: which; `hold` stays where it began."""

    trajectory: Motion = "multi_sine"
    multi_sine: MultiSineParameters = msgspec.field(default_factory=MultiSineParameters)
    point_to_point: PointToPointParameters = msgspec.field(default_factory=PointToPointParameters)


def trajectory_maker(p: MotionParameters, on: Configuration, limits: Limits) -> TrajectoryMaker:
    """What begins the reference motion that the parameters choose.

    Raises:
        InvalidArgumentError: The motion does not fit the robot.
    """
    bounds = Bounds(limits.lower, limits.upper, limits.velocity)
    if p.trajectory == "hold":
        return hold_maker(on)
    if p.trajectory == "multi_sine":
        design = MultiSineDesign(**msgspec.structs.asdict(p.multi_sine))
        return lambda q, v: design_multi_sine(design, bounds, q, v, on)
    chosen = p.point_to_point
    points = np.array(chosen.points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != on.nq:
        raise InvalidArgumentError(f"point_to_point needs points of {on.nq} numbers", path="point_to_point.points")
    on.check_unit(points, "a point", "point_to_point.points")
    if np.any(points < bounds.lower) or np.any(points > bounds.upper):
        raise InvalidArgumentError("point_to_point: a point is outside of the joints' limits")
    return lambda q, v: PointToPoint(q, v, points, chosen.move_s, chosen.dwell_s, on)


def own_parameters(p: LoopParameters) -> dict[str, Any]:
    """The parameters that are not those of every controller, as plain values: what a report tells of the law."""
    common = {field.name for field in msgspec.structs.fields(LoopParameters)}
    return {name: value for name, value in msgspec.to_builtins(p).items() if name not in common}
