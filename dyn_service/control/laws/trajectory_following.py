"""Positions or velocities along the reference, for a robot whose drives do the rest.

| commanded | command | with the drives of `drive.py` |
|---|---|---|
| positions | q_ref, which goes on with v_ref | e = a_ref / w^2: what the drive does not know of the reference |
| velocities | v_ref + k (q_ref - q) | e = a_ref / (k w), for k below w / 4 without overshoot |

Beside them may go, as efforts, M(q) a_ref, to drives that know their robot's model: then no error is left but what the
model lacks; or all of inverse dynamics, to drives without a model, which else lag by K^-1 times the efforts that they
miss.


Following of goals, one after the other: taken or refused with the reason, watched, ended, put aside by a newer one.

    waiting ──► following ──► succeeded          within the goal's tolerance, at the end or `goal_time_s` later
                  │   │ └───► aborted            a joint was beyond `path_tolerance`, or not there in time; from where
                  │   │                          it was to begin, it would have left the limits
                  │   └─────► preempted          another goal came
                  │           canceled           it was asked to: the robot comes to rest
                  └─ every update: progress and errors

A goal may say its own tolerances, `goal_tolerances.py`.

What moves the joints is another law. An aborted motion ends where the robot is, a canceled one where the reference is,
by a motion to rest of its own. What becomes of goals goes out as messages: `goal_feedback.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.command import Command, Interface
from dyn_service.control.controller import State, goal_status, hold_maker
from dyn_service.control.gains import per_joint
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
from dyn_service.control.law import Law, RobotState
from dyn_service.control.trajectory import Piecewise, Reference, ReferenceTrajectory
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.dyn_service_msgs import GoalStatus
from dyn_service.messages.trajectory_msgs import JointTrajectory
from dyn_service.model.configuration import Configuration

FeedForward = Literal["none", "acceleration", "inverse_dynamics"]


class ReferenceCommand(Law):
    """The reference, as a command. position_gain: k, 1/s, where velocities are commanded. feed_forward: the efforts.

    Raises:
        InvalidArgumentError: The interface is that of efforts, or the gain negative or no number.
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
        """One question, `mass_matrix` or `inverse_dynamics`, or none."""
        effort = self._efforts(state, reference)
        if self.interface == "position":
            return Command(reference.q, reference.v, effort)
        away = self.model.configuration.error(state.q, reference.q)
        return Command(reference.v + self.position_gain * away, effort=effort)

    def _efforts(self, state: RobotState, reference: Reference) -> Array | None:
        if self.feed_forward == "none":
            return None
        if self.feed_forward == "acceleration":
            return self.model.mass_matrix(state.q) @ reference.a
        return self.model.inverse_dynamics(state.q, state.v, reference.a)


KEPT = 100
"""Goals that are over and still known; and what became of goals, where nobody asks."""


@dataclass(eq=False)
class Goal:
    """A goal and what became of it. number: since the robot was taken over, from 1. tolerances: that it says itself.
    reason: why it was refused, aborted or preempted.
    """

    trajectory: JointTrajectory
    number: int
    tolerances: GoalTolerances = NO_TOLERANCES
    state: State = "waiting"
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.state not in ("waiting", "following")


@dataclass
class Feedback:
    """Of the last update. progress: 0 to 1 of the goal's time. error: (n,) rad | m, from the robot to the reference."""

    progress: float = 0.0
    error: Array = field(default_factory=lambda: np.zeros(0))


class TrajectoryFollowing(Law):
    """Another law, whose reference is the motion of goals.

    law: what moves the joints, whose interface is this one's. first: goals that wait when it begins, and anew whenever
    the plant was taken over. goals: those since then, but of those that are over the last `KEPT`: goals may come all
    day. partial: whether goals may leave out joints, which stay where they are.
    """

    name = "trajectory_following"

    def __init__(
        self,
        law: Law,
        on: Configuration,
        limits: MotionLimits,
        tolerances: Tolerances,
        first: tuple[JointTrajectory, ...] = (),
        partial: bool = False,
    ) -> None:
        self.law, self.on, self.limits, self.tolerances, self.first = law, on, limits, tolerances, first
        self.partial = partial
        self._kept = tolerances
        self.interface = law.interface
        self.goals: list[Goal] = []
        self._offered = self._begun = 0
        self.feedback = Feedback(error=np.zeros(on.nv))
        self._waiting: deque[Goal] = deque()
        self._goal: Goal | None = None
        self._newer: Goal | None = None
        self._motion: tuple[ReferenceTrajectory, float] | None = None
        self._settled = False
        self._notes: list[str] = []
        self._now_s, self._canceled = 0.0, False
        self._events: deque[GoalStatus] = deque(maxlen=KEPT)
        for trajectory in first:
            self._checked(trajectory)

    def offer(self, trajectory: JointTrajectory, tolerances: GoalTolerances = NO_TOLERANCES) -> Goal:
        """Takes a goal. At the next update it begins, and puts aside the one that is followed and all that wait.

        A goal is planned before it is taken, as far as it is known from where: one beyond the limits is refused here.

        Raises:
            GoalError: It is none for this robot, or beyond its limits; the sentence says why. What is followed goes on.
            FailedPreconditionError: It has no times, and the library that finds them is not there.
        """
        try:
            self._checked(trajectory)
            if self._motion is None or not self._settled:
                self.tolerances.of_goal(tolerances, self.on)
            else:
                motion, begun_s = self._motion
                self._planned(trajectory, tolerances, motion.sample(self._now_s - begun_s))
        except GoalError as error:
            code = GoalStatus.INVALID_JOINTS if isinstance(error, GoalJointsError) else GoalStatus.INVALID_GOAL
            self._events.append(goal_status(self._now_s, 0, "refused", str(error), code))
            raise
        if self._newer is not None:
            self._end(self._newer, "preempted", "another goal came")
        self._newer = self._taken(trajectory, tolerances)
        return self._newer

    def cancel(self) -> list[int]:
        """Ends the goal that is followed and all that wait; the reference comes to rest. The numbers of those goals."""
        ended = [goal for goal in self.goals if not goal.over]
        self._canceled = self._goal is not None
        for goal in ended:
            self._end(goal, "canceled", "it was asked to")
        self._newer = None
        self._waiting.clear()
        return [goal.number for goal in ended]

    def exchanged(self, law: Law) -> Law:
        """Itself, with what is other in that law: goals go on, those that begin from now on under its tolerances."""
        if not isinstance(law, TrajectoryFollowing):
            return law
        self.law, self.limits, self.tolerances = law.law, law.limits, law.tolerances
        return self

    def reset(self, state: RobotState) -> None:
        """Stands where the robot is, and begins the first goals anew."""
        self._now_s = state.t
        for goal in self.goals:
            offered = not any(goal.trajectory is one for one in self.first)  # the first ones just begin anew
            if goal.state == "following" or (goal.state == "waiting" and offered):
                self._end(goal, "aborted", "the robot was not under command")
        self.goals.clear()
        self._offered = self._begun = 0
        self._settled = self._canceled = False
        self._goal, self._motion = None, (hold_maker(self.on)(state.q, state.v), state.t)
        self._newer = None
        self._waiting = deque(self._taken(trajectory) for trajectory in self.first)
        self.law.reset(state)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array | Command:
        """The questions of the law inside."""
        here = state.measured
        motion, begun_s = self._motion or (hold_maker(self.on)(here.q, here.v), here.t)
        elapsed = here.t - begun_s
        now = motion.sample(elapsed)
        self._now_s = here.t
        if self._canceled:
            self._motion, self._canceled = (hold_maker(self.on)(now.q, now.v), here.t), False
        self.feedback = Feedback(0.0, self.on.error(here.q, now.q))
        if isinstance(motion, Piecewise) and self._goal is not None:
            self.feedback.progress = min(1.0, elapsed / motion.duration_s)
            self._watch(self._goal, elapsed - motion.duration_s, now.v - here.v, here)
        if self._newer is not None and self._settled:
            newer, self._newer = self._newer, None
            self._begin(newer, now, here)
        if self._goal is None and self._waiting and self._settled:
            self._begin(self._waiting.popleft(), now, here)
        self._settled = True  # while a robot is armed each update is a first one: nothing is planned for naught
        return self.law.update(state, reference, dt)

    def events(self) -> Sequence[GoalStatus]:
        """What has become of goals since it was last asked for."""
        found = list(self._events)
        self._events.clear()
        return found

    def motion(self) -> tuple[ReferenceTrajectory, float] | None:
        """That of the goal that is followed, or where it stands."""
        return self._motion

    def signals(self) -> Mapping[str, Array | float]:
        """goal: how many were begun. progress, error: of the feedback. And what the law inside shows."""
        shown: dict[str, Array | float] = {
            "goal": float(self._begun),
            "progress": self.feedback.progress,
            "error": self.feedback.error,
        }
        return {**self.law.signals(), **shown}

    def notes(self) -> list[str]:
        """What became of goals since it was last asked for."""
        said, self._notes = self._notes, []
        return said

    def _end(self, goal: Goal, state: State, reason: str = "", code: int = GoalStatus.SUCCESSFUL) -> None:
        self._becomes(goal, state, reason, code)
        self._notes.append(f"goal {goal.number} {state}{f': {reason}' if reason else ''}")
        if goal is self._goal:
            self._goal = None

    def _becomes(self, goal: Goal, state: State, reason: str = "", code: int = GoalStatus.SUCCESSFUL) -> None:
        goal.state, goal.reason = state, reason
        self._events.append(goal_status(self._now_s, goal.number, state, reason, code))

    def _checked(self, trajectory: JointTrajectory) -> None:
        """Refuses now what could not be planned later, in the middle of a motion."""
        if read(trajectory, self.on, partial=self.partial).time is None:
            library()

    def _taken(self, trajectory: JointTrajectory, tolerances: GoalTolerances = NO_TOLERANCES) -> Goal:
        self._offered += 1
        goal = Goal(trajectory, self._offered, tolerances)
        over = [one for one in self.goals if one.over]
        if len(over) > KEPT:
            self.goals.remove(over[0])
        self.goals.append(goal)
        self._becomes(goal, "waiting")
        return goal

    def _planned(
        self, trajectory: JointTrajectory, tolerances: GoalTolerances, now: Reference
    ) -> tuple[ReferenceTrajectory, Tolerances]:
        kept = self.tolerances.of_goal(tolerances, self.on)
        return plan(trajectory, now, self.on, self.limits, near=kept.path, partial=self.partial), kept

    def _begin(self, goal: Goal, now: Reference, here: RobotState) -> None:
        """Follows the goal in place of all that it puts aside; one beyond the limits ends, and puts nothing aside."""
        try:
            motion, kept = self._planned(goal.trajectory, goal.tolerances, now)
        except GoalError as error:
            self._end(goal, "aborted", str(error), GoalStatus.INVALID_GOAL)
            return
        if goal.number > len(self.first):  # it was offered
            for other in (*([] if self._goal is None else [self._goal]), *self._waiting):
                self._end(other, "preempted", "another goal came")
            self._waiting.clear()
        self._motion = motion, here.t
        self._goal, self._kept = goal, kept
        self._becomes(goal, "following")
        self._begun += 1

    def _watch(self, goal: Goal, over_s: float, rate: Array, here: RobotState) -> None:
        """Ends the goal where it is reached, or is not."""
        broken = self._kept.broken(self.feedback.error, rate, over_s, self.on.names)
        if over_s >= 0.0 and not broken:
            self._end(goal, "succeeded")
        elif broken and (over_s < 0.0 or over_s > self._kept.goal_time_s):
            code = GoalStatus.PATH_TOLERANCE_VIOLATED if over_s < 0.0 else GoalStatus.GOAL_TOLERANCE_VIOLATED
            self._end(goal, "aborted", broken, code)
            self._motion = hold_maker(self.on)(here.q, here.v), here.t
