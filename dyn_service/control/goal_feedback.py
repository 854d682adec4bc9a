"""What a follower of goals tells of itself, as messages: where it is, and what became of each goal."""

from __future__ import annotations

from typing import Literal

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import Command, Interface
from dyn_service.control.law import RobotState
from dyn_service.control.trajectory import Reference
from dyn_service.messages.builtin_interfaces import Duration, Time
from dyn_service.messages.control_msgs import JointTrajectoryControllerState
from dyn_service.messages.dyn_service_msgs import GoalStatus
from dyn_service.messages.std_msgs import Header
from dyn_service.messages.trajectory_msgs import JointTrajectoryPoint
from dyn_service.model.configuration import Configuration

State = Literal["waiting", "following", "succeeded", "aborted", "preempted", "canceled", "refused"]

_IN_ROS: dict[State, str] = {
    "waiting": "accepted",
    "following": "executing",
    "succeeded": "succeeded",
    "aborted": "aborted",
    "preempted": "canceled",
    "canceled": "canceled",
    "refused": "rejected",
}
"""What ROS's actions call them."""


def goal_status(stamp_s: float, number: int, state: State, reason: str, error_code: int) -> GoalStatus:
    """What has become of a goal. number: 0 where it was never taken."""
    return GoalStatus(Header(Time.from_seconds(stamp_s)), number, _IN_ROS[state], error_code, reason)


def controller_state(
    here: RobotState, now: Reference, elapsed_s: float, on: Configuration, interface: Interface, output: Command
) -> JointTrajectoryControllerState:
    """Where the follower is.

    Args:
        here: As measured.
        now: The reference at that time.
        elapsed_s: Since its motion began.
        on: The joints, each with one way to move.
        interface: What is commanded.
        output: The last command.
    """
    return JointTrajectoryControllerState(
        Header(Time.from_seconds(here.t)),
        list(on.names),
        reference=_point(now.q, now.v, now.a, since_s=elapsed_s),
        feedback=_point(here.q, here.v, effort=here.effort),
        error=_point(on.difference(here.q, now.q), now.v - here.v),
        output=_commanded(interface, output),
    )


def _commanded(interface: Interface, output: Command) -> JointTrajectoryPoint:
    if interface == "effort":
        return _point(effort=output.value)
    if interface == "velocity":
        return _point(velocities=output.value, effort=output.effort)
    return _point(output.value, output.velocity, effort=output.effort)


def _point(
    positions: Array | None = None,
    velocities: Array | None = None,
    accelerations: Array | None = None,
    effort: Array | None = None,
    since_s: float = 0.0,
) -> JointTrajectoryPoint:
    kinds = (positions, velocities, accelerations, effort)
    q, v, a, tau = ([] if each is None else np.asarray(each).tolist() for each in kinds)
    return JointTrajectoryPoint(q, v, a, tau, Duration.from_seconds(since_s))
