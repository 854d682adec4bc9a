"""A run as named signals over time, and the messages of a run, from which they are made.

A record has groups of signals, one signal per entry of q or v, all of them at the plant's own times:

    position, reference      entries of q, rad | m; quaternions' parts have no unit
    measured                 entries of q as the controller got them, where that is known
    velocity, reference_velocity    entries of v, rad/s | m/s
    effort                   entries of v, N m | N: the efforts that acted until that time, in the cycle that ended then
    error                    entries of v, rad | m: `Configuration.error` from the position to the reference
    commanded_effort, commanded_position, commanded_velocity    entries of v: as received from the controller

`reference` and `error` are NaN where the plant follows no reference, and the commanded signals without a command,
so that they cannot pass a bound there.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.arrays import read_npz
from dyn_service.api.queries import RobotQueries
from dyn_service.control.command import interface_values, joint_order
from dyn_service.control.controller import NO_STATE, REARM_OFF
from dyn_service.control.joint_states import JointStates
from dyn_service.control.plant.safety import ACTIVE, RUNNING, SafetySettings
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.nodes.controllers.parameters import LoopParameters
from dyn_service.graph.nodes.plant.report import Followed, followed_at
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.support.suggestions import did_you_mean

Array = NDArray[np.float64]
COMMANDED = "commanded_"
"""Before an interface: the signals of what was commanded."""


@dataclass(frozen=True, eq=False)
class Signal:
    """One quantity over time. name: whose, such as a joint. t: (k,) s, ascending. values: (k,) in `unit`."""

    name: str
    unit: str
    t: Array
    values: Array

    def __post_init__(self) -> None:
        if self.t.ndim != 1 or self.t.shape != self.values.shape:
            raise InvalidArgumentError(
                f"signal {self.name!r} has times of shape {self.t.shape} and values of shape {self.values.shape}: "
                "expected (k,) of both"
            )

    def between(self, from_s: float, until_s: float) -> Signal:
        """The part from `from_s` on and before `until_s`."""
        chosen = (self.t >= from_s) & (self.t < until_s)
        return Signal(self.name, self.unit, self.t[chosen], self.values[chosen])

    def rate(self) -> Signal:
        """The rate of change: the difference from one value to the next over their time, at the later one's time."""
        with np.errstate(invalid="ignore"):  # between two infinities is no number
            return Signal(self.name, f"{self.unit}/s", self.t[1:], np.diff(self.values) / np.diff(self.t))


class Group(NamedTuple):
    """Signals of a kind. names, units: (n,). values: (k, n)."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    values: Array


class Change(NamedTuple):
    """From the time `t` on the plant is in this mode, for this cause; see `control.safety`."""

    t: float
    mode: str
    cause: str
    reason: str = ""

    @property
    def words(self) -> str:
        """`stopped (velocity): elbow reaches 3.1 rad/s, beyond its limit, 3 rad/s`."""
        words = f"{self.mode} ({self.cause})" if self.cause else self.mode
        return f"{words}: {self.reason}" if self.reason else words


class End(NamedTuple):
    """A node ended, or stopped answering, at the time `t`. injected: because of a fault that the test injected."""

    t: float
    why: str
    injected: bool = False


@dataclass(frozen=True, eq=False)
class Record:
    """A run.

    t: (k,) s of the plant's time. groups: by their kind. changes: of the plant's mode, the first at the first time.
    answers: one value per command that was taken, s from the state that it answers to its effect, at the time of that.
    bounds: of the joints. control_s: the controller's period. deadline_s: what an answer may take. counts: what the
    plant and the controller counted, `refused`, `stops`, .. where they could be asked. title: of the robot.
    notes: what else happened, with its time. ends: of nodes that ended by themselves. asked_s: until when the run was
    to go; NaN if that is unknown.
    """

    t: Array
    groups: Mapping[str, Group]
    changes: tuple[Change, ...]
    answers: Signal
    bounds: Limits
    control_s: float
    deadline_s: float
    counts: Mapping[str, int] = field(default_factory=dict)
    title: str = ""
    notes: tuple[tuple[float, str], ...] = ()
    ends: tuple[End, ...] = ()
    asked_s: float = math.nan

    def signals(self, kind: str, joint: str | None = None) -> list[Signal]:
        """The signals of a kind: of one joint, all its entries, or of all.

        Raises:
            InvalidArgumentError: There is no such kind or no such joint in it; it says which there are.
        """
        if kind not in self.groups:
            near = did_you_mean(kind, self.groups)
            raise InvalidArgumentError(f"no signals {kind!r}; the record has {', '.join(self.groups)}{near}")
        names, units, values = self.groups[kind]
        chosen = [k for k, name in enumerate(names) if joint is None or name == joint or name.startswith(joint + ".")]
        if not chosen:
            near = did_you_mean(joint or "", names)
            raise InvalidArgumentError(f"no joint {joint!r}; the joints are {', '.join(names)}{near}")
        return [Signal(names[k], units[k], self.t, values[:, k]) for k in chosen]

    def signal(self, kind: str, joint: str) -> Signal:
        """The one signal of a joint."""
        found = self.signals(kind, joint)
        if len(found) > 1:
            raise InvalidArgumentError(f"joint {joint!r} has several: {', '.join(one.name for one in found)}")
        return found[0]

    def at(self, t: float) -> Change:
        """The plant's mode at the time t."""
        before = [change for change in self.changes if change.t <= t]
        if not before:
            raise InvalidArgumentError(f"the record begins after {t:g} s")
        return before[-1]

    def under(self, mode: str) -> NDArray[np.bool_]:
        """(k,): whether the plant was in this mode at each time."""
        begins = np.array([change.t for change in self.changes])
        which = np.searchsorted(begins, self.t, side="right") - 1
        return np.array([change.mode == mode for change in self.changes])[which]

    @property
    def begun_s(self) -> float:
        """When the plant was first under command; infinite where it never was."""
        return next((change.t for change in self.changes if change.mode == "active"), math.inf)

    @property
    def running(self) -> list[tuple[float, float]]:
        """The spans, s, in which the plant was armed: (from, until)."""
        ends = [*(change.t for change in self.changes[1:]), math.inf]
        spans: list[tuple[float, float]] = []
        for change, end in zip(self.changes, ends, strict=True):
            if change.mode not in RUNNING:
                continue
            if spans and spans[-1][1] == change.t:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((change.t, end))
        return spans

    def save(self, path: Path) -> None:
        """Writes the record as an `.npz` that `load` reads, and NumPy alone: `run` is a JSON text with the names."""
        names = ("changes", "control_s", "deadline_s", "counts", "title", "notes", "ends", "asked_s")
        groups = {kind: (group.names, group.units) for kind, group in self.groups.items()}
        run = json.dumps({"groups": groups, **{name: getattr(self, name) for name in names}})
        arrays: dict[str, Any] = {"run": np.array(run), "t": self.t}
        arrays |= {"answers.t": self.answers.t, "answers.values": self.answers.values}
        arrays |= {kind: group.values for kind, group in self.groups.items()}
        arrays |= {f"bounds.{name}": value for name, value in vars(self.bounds).items()}
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Record:
        """The record that `save` wrote.

        Raises:
            InvalidArgumentError: The file cannot be read, or is no record.
        """
        try:
            arrays = read_npz(path)
            run = json.loads(str(arrays["run"]))
            texts = run.pop("groups").items()
            groups = {kind: Group(tuple(names), tuple(units), arrays[kind]) for kind, (names, units) in texts}
            for name, kind in (("changes", Change), ("ends", End), ("notes", lambda *note: note)):
                run[name] = tuple(kind(*entry) for entry in run[name])
            answers = Signal("answers", "s", arrays["answers.t"], arrays["answers.values"])
            bounds = Limits(*(arrays[f"bounds.{name}"] for name in ("lower", "upper", "velocity", "effort")))
            return cls(t=arrays["t"], groups=groups, answers=answers, bounds=bounds, **run)
        except InvalidArgumentError:
            raise
        except OSError as error:
            raise InvalidArgumentError(f"record {str(path)!r} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, zipfile.BadZipFile):
            raise InvalidArgumentError(f"{str(path)!r} is no record of a run: expected a file of `save`") from None

    def same_as(self, other: Record) -> str | None:
        """Describes the first difference from another run; None if both are bit-identical."""
        if self.t.tobytes() != other.t.tobytes():
            return f"the times differ: {len(self.t)} of them here, {len(other.t)} there"
        if list(self.groups) != list(other.groups):
            return f"the signals differ: {', '.join(self.groups)} here, {', '.join(other.groups)} there"
        for kind, (names, _, values) in self.groups.items():
            there = other.groups[kind]
            if there.names != names or there.values.shape != values.shape:
                return f"{kind}: the joints differ"
            bits = (np.ascontiguousarray(one).view(np.uint64) for one in (values, there.values))
            differs = np.not_equal(*bits)
            if differs.any():
                row, column = np.unravel_index(int(np.argmax(differs)), differs.shape)
                found = f"{float(values[row, column])!r} here and {float(there.values[row, column])!r} there"
                return f"{names[column]}: {kind} {found} at {self.t[row]:g} s"
        if self.changes != other.changes:
            return "the plant's modes differ"
        answers = [(one.answers.t.tobytes(), one.answers.values.tobytes()) for one in (self, other)]
        return None if answers[0] == answers[1] else "the commands' times differ"


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
    followed: the references. notes: other events, with their times. ends, asked_s: as in `Record`.
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
    ends: list[End] = field(default_factory=list)
    asked_s: float = math.nan

    @classmethod
    def of(cls, robot: RobotQueries, safety: SafetySettings, controller: LoopParameters) -> MessageLog:
        """An empty one of a plant and its controller. robot: the one of the plant's file. safety: the plant's."""
        limits, control_s = robot.limits, 1.0 / controller.rate_hz
        bounds = Limits(limits.lower, limits.upper, safety.velocity_limit, safety.effort_limit)
        at, deadline_s = robot.configuration, controller.deadline_s or control_s
        return cls(at, JointStates.of(robot), bounds, control_s, deadline_s, robot.description.name)

    def end(self, now_s: float, why: str, faults: Sequence[Any]) -> None:
        """Notes that a node ended. faults: those that are injected. They explain the end of a controller because of its
        plant once one has begun, but no error of its law.
        """
        of_plant = REARM_OFF in why or NO_STATE in why
        self.ends.append(End(now_s, why, of_plant and any(fault.from_s <= now_s for fault in faults)))

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
        reference[~active], rate[~active] = np.nan, np.nan
        error = np.full_like(v, np.nan)
        error[active] = at.error(q[active], reference[active])  # NaN without a reference
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
            dict(counts), self.title, tuple(self.notes), tuple(self.ends), self.asked_s,
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
        runs = groupby(self.states, key=lambda state: (state.mode, state.cause, state.reason))
        return tuple(Change(next(states).stamp, *key) for key, states in runs)

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
