"""The messages of a plant and its controller in one run, from which `record` builds signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dyn_service.api.queries import RobotQueries
from dyn_service.control.command import interface_values, joint_order
from dyn_service.control.joint_states import JointStates
from dyn_service.control.plant.safety import ACTIVE, RUNNING, SafetySettings
from dyn_service.graph.nodes.controllers.parameters import LoopParameters
from dyn_service.graph.nodes.plant.report import Followed, followed_at
from dyn_service.hil.signals import COMMANDED, Array, Change, Group, Record, Signal
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration, Limits


class Seen(NamedTuple):
    """A message that the controller took, at which row of the states."""

    row: int
    state: PlantState


@dataclass
class MessageLog:
    """at: the plant's joints. messages: what makes ROS's of its states. bounds: of these. control_s, deadline_s: the
    controller's. title: of the robot.

    states: as the plant sent them. motions: where it really was, one (q, v) for each state, where that is known.
    seen: what the controller took of them, where that is known. commands: as they were sent, with their times.
    followed: the references. notes: other events, with their times.
    """

    at: Configuration
    messages: JointStates
    bounds: Limits
    control_s: float
    deadline_s: float
    title: str
    states: list[PlantState] = field(default_factory=list)
    motions: list[tuple[Array, Array]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    commands: list[tuple[float, JointCommand]] = field(default_factory=list)
    followed: list[Followed] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    def of(cls, robot: RobotQueries, safety: SafetySettings, controller: LoopParameters) -> MessageLog:
        """An empty one of a plant and its controller. robot: the one of the plant's file. safety: the plant's."""
        limits, control_s = robot.limits, 1.0 / controller.rate_hz
        bounds = Limits(limits.lower, limits.upper, safety.velocity_limit, safety.effort_limit)
        at, deadline_s = robot.configuration, controller.deadline_s or control_s
        return cls(at, JointStates.of(robot), bounds, control_s, deadline_s, robot.description.name)

    def record(self, counts: Mapping[str, int]) -> Record:
        """Returns the messages as signals."""
        at, states = self.at, self.states
        t = np.array([state.stamp for state in states])
        effort = _table([state.effort for state in states], at.nv)
        if self.motions:
            q, v = (_table([motion[k] for motion in self.motions], n) for k, n in ((0, at.nq), (1, at.nv)))
        else:
            q = _table([state.position for state in states], at.nq)
            v = _table([state.velocity for state in states], at.nv)
        session = np.array([state.session for state in states])
        reference, rate = followed_at(at, t, session, self.followed)
        active = np.array([state.mode == ACTIVE for state in states], dtype=bool)
        known = active & ~np.isnan(reference).any(axis=1)
        reference[~known], rate[~known] = np.nan, np.nan
        error = np.full_like(v, np.nan)
        error[known] = at.error(q[known], reference[known])
        lengths = ["m" if shift else "rad" if angle else "" for shift, angle in zip(at.shifts, at.angles, strict=True)]
        turning = [bool(turn) for turn in at.turns]
        groups = {"position": Group(at.position_names, tuple(lengths), q)}
        if self.seen:
            groups["measured"] = Group(at.position_names, tuple(lengths), self._measured(len(t)))
        groups["reference"] = Group(at.position_names, tuple(lengths), reference)
        for kind, table, units in (
            ("velocity", v, ("rad/s", "m/s")),
            ("reference_velocity", rate, ("rad/s", "m/s")),
            ("effort", effort, ("N m", "N")),
            ("error", error, ("rad", "m")),
        ):
            groups[kind] = Group(at.velocity_names, tuple(units[0] if turn else units[1] for turn in turning), table)
        for interface, table in self._commanded().items():
            like = groups["error" if interface == "position" else interface]
            groups[COMMANDED + interface] = Group(like.names, like.units, table)
        return Record(
            t, groups, self._changes(), self._answers(), self.bounds, self.control_s, self.deadline_s,
            dict(counts), self.title, tuple(self.notes),
        )  # fmt: skip

    def _measured(self, count: int) -> Array:
        """The last position that the controller had received at each row; the first position before that."""
        rows = np.array([one.row for one in self.seen])
        which = np.maximum(np.searchsorted(rows, np.arange(count), side="right") - 1, 0)
        return _table([one.state.position for one in self.seen], self.at.nq)[which]

    def _commanded(self) -> dict[str, Array]:
        """For each commanded interface, the values of the active command at each row; NaN without a command."""
        names, answers = self.at.velocity_names, {command.state_seq: command for _, command in self.commands}
        found: dict[str, Array] = {}
        for row, state in enumerate(self.states):
            command = answers.get(state.command_seq) if state.mode in RUNNING else None
            if command is None or command.session != state.session:
                continue
            order = joint_order(command.name, names)
            if order is not None:
                table = found.setdefault(command.interface, np.full((len(self.states), len(names)), np.nan))
                table[row] = interface_values(command)[order]
        return found

    def _changes(self) -> tuple[Change, ...]:
        changes: list[Change] = []
        for state in self.states:
            if not changes or (changes[-1].mode, changes[-1].cause) != (state.mode, state.cause):
                changes.append(Change(state.stamp, state.mode, state.cause))
        return tuple(changes)

    def _answers(self) -> Signal:
        """When a command took effect, and how long after the state that it answered."""
        taken = [
            (after.stamp, round(after.command_delay, 9))  # a difference of times: to the ns, without their rounding
            for before, after in zip([None, *self.states], self.states, strict=False)
            if after.command_seq >= 0 and (before is None or after.command_seq != before.command_seq)
        ]
        t, delay = np.array(taken).reshape(-1, 2).T
        return Signal("answers", "s", t.copy(), delay.copy())


def _table(rows: list[Any], width: int) -> Array:
    return np.array(rows, dtype=np.float64).reshape(-1, width)
