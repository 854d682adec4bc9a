"""How far a robot may be off while it follows a goal, and at the goal's end.

A goal may bring tolerances of its own, as `control_msgs/JointTolerance` has them: 0 says nothing, and the follower's
own holds; a negative number is any. Fields are ROS's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.references.joint_goals import GoalError
from dyn_service.messages.builtin_interfaces import Duration
from dyn_service.model.configuration import Configuration


class JointTolerance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one joint. position: rad | m. velocity: rad/s | m/s. acceleration: is not measured, and has none."""

    name: str
    position: float = 0.0
    velocity: float = 0.0
    acceleration: float = 0.0


class GoalTolerances(msgspec.Struct, frozen=True):
    """What a goal itself says: of joints on its way, at its end, and how long after its end it may come there."""

    path: Sequence[JointTolerance] = ()
    goal: Sequence[JointTolerance] = ()
    time: Duration = Duration()


NO_TOLERANCES = GoalTolerances()


@dataclass(frozen=True, eq=False)
class Tolerances:
    """The largest errors; infinite is any. path, goal: (n,) rad | m, on the way and at the end. goal_time_s: so long
    after its end a goal may be reached. path_velocity, goal_velocity: (n,) rad/s | m/s, or one number.
    """

    path: Array
    goal: Array
    goal_time_s: float
    path_velocity: Array | float = np.inf
    goal_velocity: Array | float = np.inf

    def of_goal(self, said: GoalTolerances, on: Configuration) -> Tolerances:
        """Those of a goal that says some itself.

        Raises:
            GoalError: It names a joint that is not the robot's, or twice, or a number that is none.
        """
        path, path_velocity = _said("path_tolerance", said.path, on, self.path, self.path_velocity)
        goal, goal_velocity = _said("goal_tolerance", said.goal, on, self.goal, self.goal_velocity)
        after_s = said.time.seconds()
        return replace(
            self,
            path=path,
            goal=goal,
            goal_time_s=self.goal_time_s if after_s == 0.0 else after_s if after_s > 0.0 else np.inf,
            path_velocity=path_velocity,
            goal_velocity=goal_velocity,
        )

    def broken(self, error: Array, rate: Array, over_s: float, names: Sequence[str]) -> str:
        """Which joint is beyond them, in words; empty where none is.

        Args:
            error: (n,) rad | m, from the robot to the reference.
            rate: (n,) rad/s | m/s, the same of velocities.
            over_s: How long ago the goal's end was; negative on the way.
            names: Of the joints.
        """
        under_way = over_s < 0.0
        for unit, off, most in (
            ("", np.abs(error), self.path if under_way else self.goal),
            ("/s", np.abs(rate), self.path_velocity if under_way else self.goal_velocity),
        ):
            allowed = np.broadcast_to(most, off.shape)
            if not (off <= allowed).all():  # what is no number is beyond
                k = int(np.argmax(off - np.where(np.isfinite(allowed), allowed, np.inf)))
                where = "on the way" if under_way else f"{over_s:.3g} s after its end"
                return f"joint '{names[k]}' is {off[k]:.3g}{unit} off {where}, the tolerance is {allowed[k]:.3g}{unit}"
        return ""


def _said(
    what: str, given: Sequence[JointTolerance], on: Configuration, position: Array, velocity: Array | float
) -> tuple[Array, Array]:
    positions, velocities = (np.broadcast_to(values, (on.nv,)).copy() for values in (position, velocity))
    seen: set[str] = set()
    for one in given:
        if one.name not in on.names or one.name in seen:
            found = f"'{one.name}'{' twice' if one.name in seen else ''}"
            raise GoalError(f"{what}: expected joints of the robot, {', '.join(on.names)}, each once, found {found}")
        seen.add(one.name)
        if not np.isfinite([one.position, one.velocity]).all():
            raise GoalError(f"{what} of '{one.name}' must be finite numbers, negative for any")
        if one.acceleration > 0.0 or np.isnan(one.acceleration):
            raise GoalError(f"{what} of '{one.name}': accelerations are not measured, expected 0 or less")
        k = on.names.index(one.name)
        for values, value in ((positions, one.position), (velocities, one.velocity)):
            if value:
                values[k] = value if value > 0.0 else np.inf
    return positions, velocities
