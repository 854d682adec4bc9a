"""The trajectory-following controller: see `control/laws/trajectory_following.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.command import Interface
from dyn_service.control.controller import hold_maker
from dyn_service.control.independent_joints import IndependentJoints
from dyn_service.control.joint_goals import (
    GoalTolerances,
    JointTolerance,
    Tolerances,
    has_times,
    library,
    motion_limits,
    read,
)
from dyn_service.control.law import Law, per_joint
from dyn_service.control.laws.computed_torque import ComputedTorque
from dyn_service.control.laws.trajectory_following import FeedForward, ReferenceCommand, TrajectoryFollowing
from dyn_service.control.trajectory import TrajectoryMaker
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.node_kind import Panel, Section
from dyn_service.graph.middleware.telemetry import NodeTelemetry, TelemetryStore
from dyn_service.graph.nodes.controllers.controller_kind import Input, Output, Service, controller_kind
from dyn_service.graph.nodes.controllers.parameters import LoopParameters
from dyn_service.graph.report.verdicts import Verdict
from dyn_service.messages.builtin_interfaces import Duration
from dyn_service.messages.dyn_service_msgs import GoalStatus
from dyn_service.messages.trajectory_msgs import JointTrajectory
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.support.documents import read_document
from dyn_service.support.parameter_descriptions import settable
from dyn_service.support.parameters import FilePath, NotNegative


class TrajectoryFollowingParameters(LoopParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters in addition to those of the loop.

    goals: a YAML file, a list of `trajectory_msgs/JointTrajectory`, followed in sequence; in closed loops of
    independent joints. velocity_share: share of the robot's velocity limits. max_acceleration: rad/s^2 | m/s^2, of
    goals without times, one number or one per velocity. max_jerk: rad/s^3 | m/s^3, as max_acceleration. path_tolerance,
    goal_tolerance: rad | m, one number or one per velocity; 0 is unlimited. stopped_velocity_tolerance: rad/s | m/s, of
    speeds at a goal's end; 0 is unlimited. goal_time_s: time after its end in which a goal may be reached; negative is
    unlimited. allow_partial_joints_goal: whether goals may leave out joints, which then do not move.

    command_interface: efforts of computed torque, positions, or velocities. natural_frequency, damping_ratio: of the
    computed torque. position_gain: 1/s, of the position error in commanded velocities. feed_forward: efforts sent with
    positions and velocities: none, those of the reference's acceleration for drives with the robot's model, or inverse
    dynamics for drives without one. aborted_goals: number of aborted goals up to which a launch is clean.
    """

    goals: FilePath = ""
    velocity_share: Annotated[float, settable] = 0.5
    max_acceleration: Annotated[float | list[float], settable] = 5.0
    max_jerk: Annotated[float | list[float], settable] = 50.0
    path_tolerance: Annotated[float | list[float], settable] = 0.05
    goal_tolerance: Annotated[float | list[float], settable] = 0.01
    stopped_velocity_tolerance: Annotated[float | list[float], settable] = 0.0
    goal_time_s: Annotated[float, settable] = 10.0
    allow_partial_joints_goal: bool = False
    command_interface: Interface = "effort"
    natural_frequency: Annotated[float | list[float], settable] = 30.0
    damping_ratio: Annotated[float, settable] = 1.0
    position_gain: Annotated[float, settable] = 10.0
    feed_forward: FeedForward = "none"
    aborted_goals: NotNegative = 0.0


def make_law(p: TrajectoryFollowingParameters, model: RobotQueries) -> TrajectoryFollowing:
    """Makes the law from the parameters, with the goals of the file.

    Raises:
        InvalidArgumentError: A parameter is out of range, or a goal does not fit this robot; names file and line.
        NotFoundError: The file does not exist.
    """
    configuration, robot_limits, joints = model.configuration, model.limits, IndependentJoints.of(model)
    if joints is not None:
        configuration, robot_limits = joints.configuration, joints.limits(robot_limits)
    acceleration, jerk = (
        per_joint(name, value, configuration.nv, positive=True)
        for name, value in (("max_acceleration", p.max_acceleration), ("max_jerk", p.max_jerk))
    )
    limits = motion_limits(configuration, robot_limits, p.velocity_share, acceleration, jerk)
    tolerances = Tolerances(
        _tolerance("path_tolerance", p.path_tolerance, configuration.nv),
        _tolerance("goal_tolerance", p.goal_tolerance, configuration.nv),
        p.goal_time_s if p.goal_time_s >= 0.0 else np.inf,
        goal_velocity=_tolerance("stopped_velocity_tolerance", p.stopped_velocity_tolerance, configuration.nv),
    )
    inner_law: Law = ComputedTorque.of_frequency(model, p.natural_frequency, p.damping_ratio)
    if p.command_interface != "effort":
        inner_law = ReferenceCommand(model, p.command_interface, p.position_gain, p.feed_forward)
    partial = p.allow_partial_joints_goal
    goals = goals_of(Path(p.goals), configuration, partial=partial) if p.goals else ()
    return TrajectoryFollowing(inner_law, configuration, limits, tolerances, goals, partial, joints)


def goals_of(path: Path, configuration: Configuration, *, partial: bool = False) -> tuple[JointTrajectory, ...]:
    """Returns the goals of a file. partial: whether they may leave out joints."""
    document = read_document(path)
    goals = document.convert(document.value, list[JointTrajectory])
    for k, goal in enumerate(goals):
        try:
            read(goal, configuration, partial=partial)
        except InvalidArgumentError as error:
            raise document.fault(error.message, (k,)) from None
    return tuple(goals)


def hold(p: TrajectoryFollowingParameters, configuration: Configuration, limits: Limits) -> TrajectoryMaker:
    """Holds the position until the first goal begins."""
    return hold_maker(configuration)


class CancelGoalsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cancels the present and all waiting goals."""


class CancelGoalsResponse(msgspec.Struct, frozen=True):
    """The numbers of the canceled goals."""

    canceled: list[int]


def cancel(law: TrajectoryFollowing, request: CancelGoalsRequest) -> CancelGoalsResponse:
    """Cancels all goals; the robot comes to rest under command."""
    return CancelGoalsResponse(law.cancel())


class FollowJointTrajectoryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A goal with its own tolerances, with the fields of the goal of ROS's `control_msgs/action/FollowJointTrajectory`.

    path_tolerance, goal_tolerance: of joints, on the way and at the end. goal_time_tolerance: time after its end in
    which it may be reached. 0 selects the parameters' value, a negative number is unlimited.
    """

    trajectory: JointTrajectory
    path_tolerance: list[JointTolerance] = []
    goal_tolerance: list[JointTolerance] = []
    goal_time_tolerance: Duration = Duration()


class FollowJointTrajectoryResponse(msgspec.Struct, frozen=True):
    """The goal's number in `goal_status`."""

    number: int


def follow(law: TrajectoryFollowing, request: FollowJointTrajectoryRequest) -> FollowJointTrajectoryResponse:
    """Accepts the goal, like one from the topic.

    Raises:
        GoalError: The goal does not fit this robot.
        FailedPreconditionError: The goal has no times, and ruckig is not installed.
    """
    tolerances = GoalTolerances(request.path_tolerance, request.goal_tolerance, request.goal_time_tolerance)
    return FollowJointTrajectoryResponse(law.offer(request.trajectory, tolerances).number)


def _tolerance(name: str, tolerance: float | list[float], n: int) -> Array:
    values = per_joint(name, tolerance, n)
    return np.where(values > 0.0, values, np.inf)


def check(p: TrajectoryFollowingParameters) -> None:
    """Checks that the goals of the file can be planned here."""
    path = Path(p.goals)
    if path.is_file():
        document = read_document(path)
        if not all(map(has_times, document.convert(document.value, list[JointTrajectory]))):
            library()


_STATES = ("succeeded", "aborted", "preempted", "canceled", "refused", "unfinished")


def goals_section(controller: NodeTelemetry, store: TelemetryStore) -> Section:
    """Returns the section of the numbers of goals by their ends, with the verdict on aborted ones."""
    counts = {state: controller.total(f"goals_{state}") for state in _STATES}
    last = str(controller.stats.get("last_abort") or "")
    maximum = float((controller.fact("law_parameters") or {}).get("aborted_goals", 0.0))
    total, unfinished = counts["succeeded"] + counts["aborted"], counts["unfinished"]
    detail = (f"of {total}" + (f"; the last: {last}" if last else "")) if total else "no goal ended"
    verdicts = [Verdict("aborted goals", counts["aborted"] if total else None, maximum, "", detail)]
    if unfinished:
        verdicts.append(Verdict("unfinished goals", None, 0.0, "", f"{unfinished} when the launch ended"))
    numbers = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return Section({**counts, "last_abort": last}, [f"goals: {numbers or 'none'}"], verdicts=verdicts)


NODE = controller_kind(
    "trajectory_following",
    TrajectoryFollowingParameters,
    make_law,
    make_motion=hold,
    inputs=(Input("joint_trajectory", JointTrajectory, TrajectoryFollowing.offer),),
    outputs=(Output("~/goal_status", GoalStatus, TrajectoryFollowing.events),),
    services=(
        Service("~/follow_joint_trajectory", FollowJointTrajectoryRequest, follow),
        Service("~/cancel_goals", CancelGoalsRequest, cancel),
    ),
    panels=(Panel("goals", goals_section),),
    check=check,
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
