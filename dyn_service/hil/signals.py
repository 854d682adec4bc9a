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
from itertools import compress, groupby
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
            shapes = f"{self.t.shape} and {self.values.shape}"
            raise InvalidArgumentError(f"signal {self.name!r}: expected times and values (k,), found {shapes}")

    def between(self, from_s: float, until_s: float) -> Signal:
        """The part from `from_s` on and before `until_s`."""
        in_span = (self.t >= from_s) & (self.t < until_s)
        return Signal(self.name, self.unit, self.t[in_span], self.values[in_span])

    def rate(self) -> Signal:
        """The rate of change: the difference from one value to the next over their time, at the later one's time."""
        # The rate between two infinities is no number, which fails every bound.
        with np.errstate(invalid="ignore"):
            return Signal(self.name, f"{self.unit}/s", self.t[1:], np.diff(self.values) / np.diff(self.t))


class Group(NamedTuple):
    """Signals of a kind. names, units: (n,). values: (k, n)."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    values: Array

    def chosen(self, flags: NDArray[np.bool_]) -> Group:
        """Returns the signals with these flags (n,)."""
        names, units = (tuple(compress(x, flags)) for x in (self.names, self.units))
        return Group(names, units, self.values[:, flags])


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
            hint = did_you_mean(kind, self.groups)
            raise InvalidArgumentError(f"no signals {kind!r}; the record has {', '.join(self.groups)}{hint}")
        names, units, values = self.groups[kind]
        indices = [k for k, name in enumerate(names) if joint is None or name == joint or name.startswith(joint + ".")]
        if not indices:
            hint = did_you_mean(joint or "", names)
            raise InvalidArgumentError(f"no joint {joint!r}; the joints are {', '.join(names)}{hint}")
        return [Signal(names[k], units[k], self.t, values[:, k]) for k in indices]

    def signal(self, kind: str, joint: str) -> Signal:
        """The one signal of a joint."""
        signals = self.signals(kind, joint)
        if len(signals) > 1:
            raise InvalidArgumentError(f"joint {joint!r} has several: {', '.join(signal.name for signal in signals)}")
        return signals[0]

    def at(self, t: float) -> Change:
        """The plant's mode at the time t."""
        earlier = [change for change in self.changes if change.t <= t]
        if not earlier:
            raise InvalidArgumentError(f"the record begins after {t:g} s")
        return earlier[-1]

    def under(self, mode: str) -> NDArray[np.bool_]:
        """(k,): whether the plant was in this mode at each time."""
        begins = np.array([change.t for change in self.changes])
        change_index = np.searchsorted(begins, self.t, side="right") - 1
        return np.array([change.mode == mode for change in self.changes])[change_index]

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
            other_group = other.groups[kind]
            if other_group.names != names or other_group.values.shape != values.shape:
                return f"{kind}: the joints differ"
            # as bits, by which NaN equals NaN and 0.0 differs from -0.0
            bits = (np.ascontiguousarray(array).view(np.uint64) for array in (values, other_group.values))
            differs = np.not_equal(*bits)
            if differs.any():
                row, column = np.unravel_index(int(np.argmax(differs)), differs.shape)
                entry = f"{float(values[row, column])!r} here and {float(other_group.values[row, column])!r} there"
                return f"{names[column]}: {kind} {entry} at {self.t[row]:g} s"
        if self.changes != other.changes:
            return "the plant's modes differ"
        answers = [(record.answers.t.tobytes(), record.answers.values.tobytes()) for record in (self, other)]
        return None if answers[0] == answers[1] else "the commands' times differ"


class ReceivedState(NamedTuple):
    """A message that the controller took, at which row of the states."""

    row: int
    state: PlantState


@dataclass
class MessageLog:
    """configuration: the plant's joints. messages: what makes ROS's of its states. bounds: of these. control_s,
    deadline_s: the controller's. title: of the robot.

    states: as the plant sent them. motions: where it really was, one (q, v) for each state, where that is known.
    received: what the controller took of them, where that is known. commands: as they were sent, with their times.
    followed: the references. notes: other events, with their times. ends, asked_s: as in `Record`.
    """

    configuration: Configuration
    messages: JointStates
    bounds: Limits
    control_s: float
    deadline_s: float
    title: str
    states: list[PlantState] = field(default_factory=list)
    motions: list[tuple[Array, Array]] = field(default_factory=list)
    received: list[ReceivedState] = field(default_factory=list)
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
        configuration, deadline_s = robot.configuration, controller.deadline_s or control_s
        return cls(configuration, JointStates.of(robot), bounds, control_s, deadline_s, robot.description.name)

    def end(self, now_s: float, why: str, faults: Sequence[Any]) -> None:
        """Notes that a node ended. faults: those that are injected. They explain the end of a controller because of its
        plant once one has begun, but no error of its law.
        """
        of_plant = REARM_OFF in why or NO_STATE in why
        self.ends.append(End(now_s, why, of_plant and any(fault.from_s <= now_s for fault in faults)))

    def record(self, counts: Mapping[str, int]) -> Record:
        """Returns the messages as signals."""
        configuration, states = self.configuration, self.states
        t = np.array([state.stamp for state in states])
        effort = _table([state.effort for state in states], configuration.nv)
        q = _table([q for q, _ in self.motions] or [state.position for state in states], configuration.nq)
        v = _table([v for _, v in self.motions] or [state.velocity for state in states], configuration.nv)
        session = np.array([state.session for state in states])
        reference, rate = followed_at(configuration, t, session, self.followed)
        # Joints that the loops of a robot move have no reference, so no tracking error either.
        in_q, in_v = (np.asarray(np.isfinite(x).any(axis=0) | ~np.isfinite(x).any()) for x in (reference, rate))
        active = np.array([state.mode == ACTIVE for state in states], dtype=bool)
        # No numbers, so that no bound holds while the plant follows no reference.
        reference[~active], rate[~active] = np.nan, np.nan
        error = np.full_like(v, np.nan)
        error[active] = configuration.error(q[active], reference[active])  # NaN without a reference
        entries = zip(configuration.shifts, configuration.angles, strict=True)
        lengths = tuple("m" if shift else "rad" if angle else "" for shift, angle in entries)
        groups = {"position": Group(configuration.position_names, lengths, q)}
        if self.received:
            groups["measured"] = Group(configuration.position_names, lengths, self._received_positions(len(t)))
        groups["reference"] = Group(configuration.position_names, lengths, reference).chosen(in_q)
        for kind, table, units in (
            ("velocity", v, ("rad/s", "m/s")),
            ("reference_velocity", rate, ("rad/s", "m/s")),
            ("effort", effort, ("N m", "N")),
            ("error", error, ("rad", "m")),
        ):
            entry_units = tuple(units[0] if turn else units[1] for turn in configuration.turns)
            group = Group(configuration.velocity_names, entry_units, table)
            groups[kind] = group.chosen(in_v) if kind in ("error", "reference_velocity") else group
        for interface, table in self._commanded().items():
            group = groups["error" if interface == "position" else interface]
            groups[COMMANDED + interface] = Group(group.names, group.units, table)
        return Record(
            t, groups, self._changes(), self._answers(), self.bounds, self.control_s, self.deadline_s,
            dict(counts), self.title, tuple(self.notes), tuple(self.ends), self.asked_s,
        )  # fmt: skip

    def _received_positions(self, count: int) -> Array:
        """The last position that the controller had received at each row; the first position before that."""
        rows = np.array([received.row for received in self.received])
        received_index = np.maximum(np.searchsorted(rows, np.arange(count), side="right") - 1, 0)
        return _table([received.state.position for received in self.received], self.configuration.nq)[received_index]

    def _commanded(self) -> dict[str, Array]:
        """For each commanded interface, the values of the active command at each row; NaN without a command."""
        names, answers = self.configuration.velocity_names, {command.state_seq: command for _, command in self.commands}
        tables: dict[str, Array] = {}
        for row, state in enumerate(self.states):
            command = answers.get(state.command_seq) if state.mode in RUNNING else None
            if command is None or command.session != state.session:
                continue
            order = joint_order(command.name, names)
            if order is not None:
                table = tables.setdefault(command.interface, np.full((len(self.states), len(names)), np.nan))
                table[row] = interface_values(command)[order]
        return tables

    def _changes(self) -> tuple[Change, ...]:
        runs = groupby(self.states, key=lambda state: (state.mode, state.cause, state.reason))
        return tuple(Change(next(states).stamp, *key) for key, states in runs)

    def _answers(self) -> Signal:
        """When a command took effect, and how long after the state that it answered."""
        # To the ns, because a delay is a difference of times with rounding errors.
        answers = [
            (state.stamp, round(state.command_delay, 9))
            for previous_state, state in zip([None, *self.states], self.states, strict=False)
            if state.command_seq >= 0 and (previous_state is None or state.command_seq != previous_state.command_seq)
        ]
        t, delay = np.array(answers).reshape(-1, 2).T
        return Signal("answers", "s", t.copy(), delay.copy())


def _table(rows: list[Any], width: int) -> Array:
    return np.array(rows, dtype=np.float64).reshape(-1, width)
