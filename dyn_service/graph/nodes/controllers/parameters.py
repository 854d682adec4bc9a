"""Parameters of all controllers: of the loop, and of reference motions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from dyn_service.control.controller import hold_maker
from dyn_service.control.trajectory import MultiSineDesign, PointToPoint, TrajectoryMaker, design_multi_sine
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

    endpoint: of the dynamics server. robot: its name there; may be empty if the server has one robot. rate_hz: commands
    per second. deadline_s: a later response counts as a deadline miss; 0 is one period. request_timeout_s: a later
    response is lost, except in lockstep. connect_timeout_s: longest wait for the server and the plant at the start.
    state_timeout_s: longest time without a state of the plant. rearm: whether it arms a plant again that stopped under
    its command, or under that of a controller that a launcher has replaced by it; else it ends. loads_rate_hz: rate of
    requests for joint loads; 0 is never. delay_compensation: whether state and reference are taken at the middle of the
    time during which the command will act; by default, except with closed loops, which a predicted position opens.
    assemble: whether the loops of measured states are closed first, by the independent joints: errors of encoders open
    them. keys: the key file, for a server with keys. plant_state: topic or endpoint of the plant's states.
    joint_commands: topic or endpoint of the commands. record: whether the recording goes to the launcher. late_share: a
    run is clean if at most this share of responses was late or lost. state_rate_hz: rate, in plant time, at which
    reference, error and signals are published to subscribers; 0 is never.
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
    delay_compensation: bool | None = None
    assemble: bool = False
    plant_state: Annotated[str, on_topic("subscribes", ros_type(PlantState))] = "plant_state"
    joint_commands: Annotated[str, on_topic("publishes", ros_type(JointCommand))] = "joint_commands"
    keys: InputFile = ""
    record: bool = True
    late_share: Share = 0.01
    state_rate_hz: NotNegative = 50.0


class PointToPointParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Moves between waypoints in a cycle.

    points: waypoints, rad | m, one number per position each. move_s: duration of a move. dwell_s: pause at a waypoint.
    """

    points: list[list[float]] = []
    move_s: Positive = 2.0
    dwell_s: NotNegative = 0.5


class MotionParameters(LoopParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a controller that follows a reference motion. trajectory: the motion; `hold` keeps the position."""

    trajectory: Motion = "multi_sine"
    multi_sine: MultiSineDesign = msgspec.field(default_factory=MultiSineDesign)
    point_to_point: PointToPointParameters = msgspec.field(default_factory=PointToPointParameters)


def trajectory_maker(p: MotionParameters, configuration: Configuration, limits: Limits) -> TrajectoryMaker:
    """Returns the function that begins the reference motion of the parameters: q (nq,), v (nv,) -> trajectory.

    Raises:
        InvalidArgumentError: A point of `point_to_point` has another length, or is outside of the limits.
    """
    if p.trajectory == "hold":
        return hold_maker(configuration)
    if p.trajectory == "multi_sine":
        return lambda q, v: design_multi_sine(p.multi_sine, limits, q, v, configuration)
    settings = p.point_to_point
    points = np.array(settings.points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != configuration.nq:
        text = f"point_to_point needs points of {configuration.nq} numbers"
        raise InvalidArgumentError(text, path="point_to_point.points")
    configuration.check_unit(points, "a point", "point_to_point.points")
    if np.any(points < limits.lower) or np.any(points > limits.upper):
        raise InvalidArgumentError("point_to_point: a point is outside of the joints' limits")
    return lambda q, v: PointToPoint(q, v, points, settings.move_s, settings.dwell_s, configuration)


def own_parameters(p: LoopParameters) -> dict[str, Any]:
    """Returns the law's own parameters, without those of every controller, as plain values for a report."""
    common = {field.name for field in msgspec.structs.fields(LoopParameters)}
    return {name: value for name, value in msgspec.to_builtins(p).items() if name not in common}
