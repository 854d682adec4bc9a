"""Laws that follow a reference with positions or velocities, and that follow trajectory goals with any of them.

`ReferenceCommand` is for a robot whose drives close the loop (`control/plant/drives.py`):

| interface | command | tracking error e |
|---|---|---|
| `position` | q_ref, with velocity v_ref | a_ref / w^2 |
| `velocity` | v_ref + k (q_ref - q) | a_ref / (k w), without overshoot for k < w / 4 |

The efforts sent with these commands may be M(q) a_ref, for drives that have the robot's model: the remaining error is
then that of the model. For drives without a model they may be the full inverse dynamics: otherwise such a drive lags
by K^-1 times the missing efforts.

`TrajectoryFollowing` moves another law's reference along the goals, one after the other:

    waiting ──► following ──► succeeded          within the goal tolerance, at the end or up to `goal_time_s` later
                  │   │ └───► aborted            a joint exceeded `path_tolerance` or was late, or the motion from the
                  │   │                          present reference would have left the limits
                  │   └─────► preempted          a new goal arrived
                  │           canceled           requested by a client: the robot comes to rest
                  └─ every update: progress and errors

A goal may contain its own tolerances (`joint_goals.GoalTolerances`). After an abort the reference comes to rest at the
robot's position, after a cancel at the reference's position.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.command import Command, Interface
from dyn_service.control.controller import State, goal_status, hold_maker
from dyn_service.control.independent_joints import IndependentJoints
from dyn_service.control.joint_goals import (
    NO_TOLERANCES,
    GoalError,
    GoalJointsError,
    GoalTolerances,
    MotionLimits,
    Tolerances,
    library,
    plan,
    read,
)
from dyn_service.control.law import Law, RobotState, per_joint
from dyn_service.control.trajectory import Piecewise, Reference, ReferenceTrajectory, splines
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.dyn_service_msgs import GoalStatus
from dyn_service.messages.trajectory_msgs import JointTrajectory
from dyn_service.model.configuration import Configuration

FeedForward = Literal["none", "acceleration", "inverse_dynamics"]


class ReferenceCommand(Law):
    """Sends the reference as a command. position_gain: k, 1/s, for velocities. feed_forward: the efforts sent with it.

    Raises:
        InvalidArgumentError: The interface is `effort`, or the gain is negative or not finite.
    """

    name = "reference_command"

    def __init__(
        self, model: RobotQueries, interface: Interface, position_gain: float, feed_forward: FeedForward = "none"
    ) -> None:
        if interface == "effort":
            raise InvalidArgumentError("command_interface: expected position or velocity, found effort")
        self.model, self.interface, self.feed_forward = model, interface, feed_forward
        self.position_gain = float(per_joint("position_gain", position_gain, 1)[0])
        self._rest = np.zeros(model.configuration.nv)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Command:
        """The command; calls `mass_matrix`, `inverse_dynamics` or nothing, by `feed_forward`."""
        effort = self._efforts(state, reference)
        if self.interface == "position":
            return Command(reference.q, reference.v, effort)
        error = self.model.configuration.error(state.q, reference.q)
        return Command(reference.v + self.position_gain * error, effort=effort)

    def _efforts(self, state: RobotState, reference: Reference) -> Array | None:
        if self.feed_forward == "none":
            return None
        if self.feed_forward == "acceleration":
            return self.model.mass_matrix(state.q) @ reference.a
        return self.model.inverse_dynamics(state.q, state.v, reference.a)


KEPT = 100
"""Number of ended goals, and of unread status messages, that are kept."""


@dataclass(eq=False)
class Goal:
    """A goal and its state. number: from 1, counted since the robot was armed. tolerances: the goal's own. reason: why
    it was refused, aborted or preempted.
    """

    trajectory: JointTrajectory
    number: int
    tolerances: GoalTolerances = NO_TOLERANCES
    state: State = "waiting"
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether the goal has ended."""
        return self.state not in ("waiting", "following")


class TrajectoryFollowing(Law):
    """Follows goals by another law, whose reference is the goals' motion.

    law: moves the joints; its interface is also this law's. first: goals that wait at the start and again each time the
    plant is armed. goals: all goals since then, of ended ones the last `KEPT`. partial: whether goals may leave out
    joints, which then do not move. progress, error: of the last update: 0 to 1, share of the goal's time; (n,) rad | m,
    reference minus position. independent: the joints of goals, and of `configuration`, in closed loops.
    """

    name = "trajectory_following"
    closed_loops = True

    def __init__(
        self,
        law: Law,
        configuration: Configuration,
        limits: MotionLimits,
        tolerances: Tolerances,
        first: tuple[JointTrajectory, ...] = (),
        partial: bool = False,
        independent: IndependentJoints | None = None,
    ) -> None:
        self.law, self.configuration, self.limits, self.independent = law, configuration, limits, independent
        self.tolerances, self.first, self.partial = tolerances, first, partial
        self._goal_tolerances = tolerances
        # Now, because importing SciPy takes longer than a control period.
        splines()
        self.interface = law.interface
        self.goals: list[Goal] = []
        self._offered_count = self._begun_count = 0
        self.progress, self.error = 0.0, np.zeros(configuration.nv)
        self._waiting: deque[Goal] = deque()
        self._goal: Goal | None = None
        self._offered_goal: Goal | None = None
        self._motion: tuple[ReferenceTrajectory, float] | None = None
        self._has_updated = False
        self._notes: list[str] = []
        self._ended: Counter[str] = Counter()
        self._last_abort = ""
        self._now_s, self._canceled = 0.0, False
        self._events: deque[GoalStatus] = deque(maxlen=KEPT)
        for trajectory in first:
            self._checked(trajectory)

    def offer(self, trajectory: JointTrajectory, tolerances: GoalTolerances = NO_TOLERANCES) -> Goal:
        """Accepts a goal, which begins at the next update and preempts the present and all waiting goals.

        Once the starting point is known, the goal is planned here, so that a goal beyond the limits is refused.

        Raises:
            GoalError: The goal does not fit this robot, or exceeds its limits. The present goal goes on.
            FailedPreconditionError: The goal has no times, and ruckig is not installed.
        """
        try:
            self._checked(trajectory)
            if self._motion is None or not self._has_updated:
                self.tolerances.of_goal(tolerances, self.configuration)
            else:
                motion, begun_s = self._motion
                # Planned twice, here and at its beginning: a client learns at once that its goal is impossible.
                self._planned(trajectory, tolerances, motion.sample(self._now_s - begun_s))
        except GoalError as error:
            code = GoalStatus.INVALID_JOINTS if isinstance(error, GoalJointsError) else GoalStatus.INVALID_GOAL
            self._events.append(goal_status(self._now_s, 0, "refused", str(error), code))
            self._ended["refused"] += 1
            raise
        if self._offered_goal is not None:
            self._end(self._offered_goal, "preempted", "another goal arrived")
        self._offered_goal = self._queued(trajectory, tolerances)
        return self._offered_goal

    def cancel(self) -> list[int]:
        """Cancels the present and all waiting goals, brings the reference to rest, and returns the goals' numbers."""
        canceled_goals = [goal for goal in self.goals if not goal.over]
        self._canceled = self._goal is not None
        for goal in canceled_goals:
            self._end(goal, "canceled", "requested")
        self._offered_goal = None
        self._waiting.clear()
        return [goal.number for goal in canceled_goals]

    def exchanged(self, law: Law) -> Law:
        """Takes over the other law's limits and tolerances and goes on; they count for goals that begin from now on."""
        if not isinstance(law, TrajectoryFollowing):
            return law
        # The present goal keeps its own tolerances, so that a parameter set while it runs cannot abort it.
        self.law, self.limits, self.tolerances = law.law, law.limits, law.tolerances
        return self

    def reset(self, state: RobotState) -> None:
        """Holds the robot's position and queues the first goals again."""
        self._now_s = state.t
        for goal in self.goals:
            is_first = any(goal.trajectory is trajectory for trajectory in self.first)
            if goal.state == "following" or (goal.state == "waiting" and not is_first):
                self._end(goal, "aborted", "the robot was not under command")
        self.goals.clear()
        self._offered_count = self._begun_count = 0
        self._has_updated = self._canceled = False
        goal_state = self._of_goals(state)
        self._goal, self._motion = None, (hold_maker(self.configuration)(goal_state.q, goal_state.v), state.t)
        self._offered_goal = None
        self._waiting = deque(self._queued(trajectory) for trajectory in self.first)
        self.law.reset(state)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array | Command:
        """The inner law's command along the goals' motion."""
        measured_state, hold = self._of_goals(state.measured), hold_maker(self.configuration)
        motion, begun_s = self._motion or (hold(measured_state.q, measured_state.v), measured_state.t)
        elapsed = measured_state.t - begun_s
        now = motion.sample(elapsed)
        self._now_s = measured_state.t
        if self._canceled:
            # From the reference and its velocity, not the robot's, so that the command does not jump.
            self._motion, self._canceled = (hold(now.q, now.v), measured_state.t), False
        self.progress, self.error = 0.0, self.configuration.error(measured_state.q, now.q)
        if isinstance(motion, Piecewise) and self._goal is not None:
            self.progress = min(1.0, elapsed / motion.duration_s)
            self._watch(self._goal, elapsed - motion.duration_s, now.v - measured_state.v, measured_state)
        if self._offered_goal is not None and self._has_updated:
            goal, self._offered_goal = self._offered_goal, None
            self._begin(goal, now, measured_state)
        if self._goal is None and self._waiting and self._has_updated:
            self._begin(self._waiting.popleft(), now, measured_state)
        self._has_updated = True  # while a robot is being armed each update is a first one: do not plan yet
        return self.law.update(state, reference, dt)

    def events(self) -> Sequence[GoalStatus]:
        """Returns the status messages since the last call."""
        statuses = list(self._events)
        self._events.clear()
        return statuses

    def motion(self) -> tuple[ReferenceTrajectory, float] | None:
        """The present goal's motion, or the position held."""
        return self._motion

    def signals(self) -> Mapping[str, Array | float]:
        """goal: number of goals begun. progress, error. Also the inner law's signals."""
        return {**self.law.signals(), "goal": float(self._begun_count), "progress": self.progress, "error": self.error}

    def _of_goals(self, state: RobotState) -> RobotState:
        return state if self.independent is None else self.independent.state(state)

    def counters(self) -> Mapping[str, int | str]:
        """`goals_STATE`: number of goals that ended so since the start, `goals_unfinished`: that have not ended."""
        counts = {f"goals_{state}": count for state, count in self._ended.items()}
        unfinished = sum(not goal.over for goal in self.goals)
        return {**counts, "goals_unfinished": unfinished, "last_abort": self._last_abort}

    def notes(self) -> list[str]:
        """Returns one log line for each goal that ended since the last call."""
        log_lines, self._notes = self._notes, []
        return log_lines

    def _end(self, goal: Goal, state: State, reason: str = "", code: int = GoalStatus.SUCCESSFUL) -> None:
        self._becomes(goal, state, reason, code)
        self._ended[state] += 1
        if state == "aborted":
            self._last_abort = f"goal {goal.number} at {self._now_s:.2f} s: {reason}"
        self._notes.append(f"goal {goal.number} {state}{f': {reason}' if reason else ''}")
        if goal is self._goal:
            self._goal = None

    def _becomes(self, goal: Goal, state: State, reason: str = "", code: int = GoalStatus.SUCCESSFUL) -> None:
        goal.state, goal.reason = state, reason
        self._events.append(goal_status(self._now_s, goal.number, state, reason, code))

    def _checked(self, trajectory: JointTrajectory) -> None:
        """Raises for a goal that could not be planned later, in the middle of a motion."""
        if read(trajectory, self.configuration, partial=self.partial).time is None:
            library()

    def _queued(self, trajectory: JointTrajectory, tolerances: GoalTolerances = NO_TOLERANCES) -> Goal:
        self._offered_count += 1
        goal = Goal(trajectory, self._offered_count, tolerances)
        finished_goals = [known_goal for known_goal in self.goals if known_goal.over]
        if len(finished_goals) > KEPT:
            self.goals.remove(finished_goals[0])
        self.goals.append(goal)
        self._becomes(goal, "waiting")
        return goal

    def _planned(
        self, trajectory: JointTrajectory, overrides: GoalTolerances, now: Reference
    ) -> tuple[ReferenceTrajectory, Tolerances]:
        tolerances = self.tolerances.of_goal(overrides, self.configuration)
        options: dict[str, Any] = {"start_tolerance": tolerances.path, "partial": self.partial}
        return plan(trajectory, now, self.configuration, self.limits, **options), tolerances

    def _begin(self, goal: Goal, now: Reference, measured_state: RobotState) -> None:
        """Begins the goal and preempts the others; a goal beyond the limits is aborted and preempts nothing."""
        try:
            motion, tolerances = self._planned(goal.trajectory, goal.tolerances, now)
        except GoalError as error:
            self._end(goal, "aborted", str(error), GoalStatus.INVALID_GOAL)
            return
        if goal.number > len(self.first):  # it was offered
            for other in (*([] if self._goal is None else [self._goal]), *self._waiting):
                self._end(other, "preempted", "another goal arrived")
            self._waiting.clear()
        self._motion = motion, measured_state.t
        self._goal, self._goal_tolerances = goal, tolerances
        self._becomes(goal, "following")
        self._begun_count += 1

    def _watch(self, goal: Goal, over_s: float, rate: Array, measured_state: RobotState) -> None:
        """Ends the goal if it is reached, or if a tolerance is exceeded."""
        broken = self._goal_tolerances.broken(self.error, rate, over_s, self.configuration.names)
        if over_s >= 0.0 and not broken:
            self._end(goal, "succeeded")
        elif broken and (over_s < 0.0 or over_s > self._goal_tolerances.goal_time_s):
            code = GoalStatus.PATH_TOLERANCE_VIOLATED if over_s < 0.0 else GoalStatus.GOAL_TOLERANCE_VIOLATED
            self._end(goal, "aborted", broken, code)
            # At the robot and not at the reference, which it could not follow.
            self._motion = hold_maker(self.configuration)(measured_state.q, measured_state.v), measured_state.t
