"""`JointTrajectory` goals, followed by efforts, positions or velocities: see `control/trajectory_following.py`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.config.documents import read_document
from dyn_service.config.parameters import FilePath, NotNegative
from dyn_service.control.command import Interface
from dyn_service.control.computed_torque import ComputedTorque, gains
from dyn_service.control.following import TrajectoryMaker, hold_maker
from dyn_service.control.gains import per_joint
from dyn_service.control.joint_goals import motion_limits, read
from dyn_service.control.law import Law
from dyn_service.control.reference_command import FeedForward, ReferenceCommand
from dyn_service.control.trajectory_following import Tolerances, TrajectoryFollowing
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.control_msgs import JointTrajectoryControllerState
from dyn_service.messages.dyn_service_msgs import GoalStatus
from dyn_service.messages.trajectory_msgs import JointTrajectory
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.nodes.control_loop import controller_kind
from dyn_service.nodes.controller_parameters import LoopParameters
from dyn_service.nodes.law_interface import Input, Output, Service


class TrajectoryFollowingParameters(LoopParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters beside those of the loop.

    goals: a YAML file, a list of `trajectory_msgs/JointTrajectory`, followed one after the other. velocity_share: of
    the robot's limits. max_acceleration: rad/s^2 | m/s^2, max_jerk: rad/s^3 | m/s^3, of goals without times, one number
    or one per velocity. path_tolerance, goal_tolerance: rad | m, one number or one per velocity; 0 is any. goal_time_s:
    so long after its end a goal may be reached. state_rate_hz: how often it says where it is, in the plant's time; 0 is
    never.

    command_interface: what is commanded: efforts of computed torque, positions, or velocities. natural_frequency,
    damping_ratio: of the computed torque. position_gain: 1/s of the error of position in commanded velocities.
    feed_forward: the efforts beside commanded positions and velocities: none, those of the reference's acceleration for
    drives that know their robot's model, or all of inverse dynamics for those that do not.
    """

    goals: FilePath = ""
    velocity_share: float = 0.5
    max_acceleration: float | list[float] = 5.0
    max_jerk: float | list[float] = 50.0
    path_tolerance: float | list[float] = 0.05
    goal_tolerance: float | list[float] = 0.01
    goal_time_s: float = 0.5
    state_rate_hz: NotNegative = 50.0
    command_interface: Interface = "effort"
    natural_frequency: float | list[float] = 30.0
    damping_ratio: float = 1.0
    position_gain: float = 10.0
    feed_forward: FeedForward = "none"


def make_law(p: TrajectoryFollowingParameters, model: RobotQueries) -> TrajectoryFollowing:
    """The law that the parameters say, with the goals of the file.

    Raises:
        InvalidArgumentError: A parameter is out of its range, or a goal is none for this robot; names file and line.
        NotFoundError: There is no such file.
    """
    at = model.configuration
    acceleration, jerk = (
        per_joint(name, value, at.nv, positive=True)
        for name, value in (("max_acceleration", p.max_acceleration), ("max_jerk", p.max_jerk))
    )
    limits = motion_limits(at, model.limits, p.velocity_share, acceleration, jerk)
    if not p.goal_time_s >= 0.0:
        raise InvalidArgumentError(f"goal_time_s must not be negative, found {p.goal_time_s:g}", path="goal_time_s")
    tolerances = Tolerances(
        _tolerance("path_tolerance", p.path_tolerance, at.nv),
        _tolerance("goal_tolerance", p.goal_tolerance, at.nv),
        p.goal_time_s,
    )
    inside: Law = ComputedTorque(model, *gains(p.natural_frequency, p.damping_ratio, at.nv))
    if p.command_interface != "effort":
        inside = ReferenceCommand(model, p.command_interface, p.position_gain, p.feed_forward)
    goals = goals_of(Path(p.goals), at) if p.goals else ()
    return TrajectoryFollowing(inside, at, limits, tolerances, goals, p.state_rate_hz)


def goals_of(path: Path, on: Configuration) -> tuple[JointTrajectory, ...]:
    """The goals of a file.

    Raises:
        NotFoundError: There is no such file.
        ConfigurationError: It is no list of goals, or one is none for this robot; names file and line.
    """
    document = read_document(path)
    goals = document.convert(document.value, list[JointTrajectory])
    for k, goal in enumerate(goals):
        try:
            read(goal, on)
        except InvalidArgumentError as error:
            raise document.fault(error.message, (k,)) from None
    return tuple(goals)


def hold(p: TrajectoryFollowingParameters, on: Configuration, limits: Limits) -> TrajectoryMaker:
    """Where it stands until the first goal begins."""
    return hold_maker(on)


class CancelGoalsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ends the goal that is followed and all that wait."""


class CancelGoalsResponse(msgspec.Struct, frozen=True):
    """The numbers of the goals that were ended."""

    canceled: list[int]


def cancel(law: TrajectoryFollowing, request: CancelGoalsRequest) -> CancelGoalsResponse:
    """Ends all goals; the robot comes to rest under command."""
    return CancelGoalsResponse(law.cancel())


def _tolerance(name: str, given: float | list[float], n: int) -> Array:
    values = per_joint(name, given, n)
    return np.where(values > 0.0, values, np.inf)


NODE = controller_kind(
    "trajectory_following",
    TrajectoryFollowingParameters,
    make_law,
    make_motion=hold,
    inputs=(Input("joint_trajectory", JointTrajectory, TrajectoryFollowing.offer),),
    outputs=(
        Output("~/controller_state", JointTrajectoryControllerState, TrajectoryFollowing.states),
        Output("~/goal_status", GoalStatus, TrajectoryFollowing.events),
    ),
    services=(Service("~/cancel_goals", CancelGoalsRequest, cancel),),
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
