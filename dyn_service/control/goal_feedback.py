"""Where a controller is, and what became of each goal of a follower of goals, as messages."""

from __future__ import annotations

from typing import Literal

from dyn_service.api.queries import Array
from dyn_service.control.following import Following
from dyn_service.messages.builtin_interfaces import Duration, Time
from dyn_service.messages.control_msgs import JointTrajectoryControllerState
from dyn_service.messages.dyn_service_msgs import GoalStatus, JointCommand, PlantState
from dyn_service.messages.std_msgs import Header
from dyn_service.messages.trajectory_msgs import JointTrajectoryPoint

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


def controller_state(state: PlantState, following: Following, output: JointCommand) -> JointTrajectoryControllerState:
    """Where a controller is that follows a motion: `output` answers `state`. Positions are left out where a joint has
    several ways to move; their error is not.
    """
    on, elapsed_s = following.configuration, state.stamp - following.begin_s
    q, v, effort = following.measured(state)
    assert following.trajectory is not None  # begun before a state was answered
    now = following.trajectory.sample(elapsed_s)
    plain = on.nq == on.nv
    return JointTrajectoryControllerState(
        Header(Time.from_seconds(state.stamp)),
        list(on.velocity_names),
        reference=_point(now.q if plain else None, now.v, now.a, since_s=elapsed_s),
        feedback=_point(q if plain else None, v, effort=effort),
        error=_point(on.error(q, now.q), now.v - v),
        output=JointTrajectoryPoint(output.position, output.velocity, [], output.effort),
    )


def _point(
    q: Array | None, v: Array, a: Array | None = None, effort: Array | None = None, since_s: float = 0.0
) -> JointTrajectoryPoint:
    position, velocity, acceleration, efforts = ([] if each is None else each.tolist() for each in (q, v, a, effort))
    return JointTrajectoryPoint(position, velocity, acceleration, efforts, Duration.from_seconds(since_s))
