"""Recorded motions, from the report of a launch or from a bag, in the order of a robot's joints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.model.configuration import Configuration
from dyn_service.suggestions import did_you_mean

RECORDING, REPORT = "recording.npz", "report.json"
_PLANT = ".plant"
"""How the arrays of a plant's motion end."""


@dataclass(frozen=True, eq=False)
class Motion:
    """A motion. t (k,) s, rising; q (k, nq); v, tau (k, nv), zero where nothing is known of them; reference (k, nq),
    NaN where there is none.
    """

    t: Array
    q: Array
    v: Array
    tau: Array
    reference: Array

    def at(self, time_s: float) -> int:
        """The last row not later than a time; the first one before all."""
        return max(0, int(np.searchsorted(self.t, time_s, side="right")) - 1)


@dataclass(frozen=True)
class Recorded:
    """A plant of a launch's report. node: its name. parameters: what it was started with, its robot among them."""

    node: str
    parameters: Mapping[str, Any]
    tables: Mapping[str, tuple[tuple[str, ...], Array]]

    def motion(self, at: Configuration) -> Motion:
        """Its motion, of a robot with these joints.

        Raises:
            InvalidArgumentError: Its joints are not these.
        """
        columns, table = self.tables["plant"]
        t = _rising(_of(columns, table, ["t"], self.node)[:, 0])
        names = at.position_names, at.velocity_names
        q = _of(columns, table, [f"q.{name}" for name in names[0]], self.node)
        v, tau = (_of(columns, table, [f"{kind}.{name}" for name in names[1]], self.node) for kind in ("v", "tau"))
        reference = np.full_like(q, np.nan)
        if "reference" in self.tables:
            columns, table = self.tables["reference"]
            reference = _of(columns, table, [f"q.{name}" for name in names[0]], self.node)
        return Motion(t, q, v, tau, reference)


def of_report(folder: Path, node: str | None = None) -> Recorded:
    """A plant of a launch's report: the one of that name, or the first.

    Raises:
        NotFoundError: The folder has no report, or no such plant.
        InvalidArgumentError: The report cannot be read.
    """
    try:
        report = json.loads((folder / REPORT).read_text("utf-8"))
        with np.load(folder / RECORDING) as kept:
            arrays = {name: kept[name] for name in kept.files}
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise NotFoundError(f"{str(folder)!r} is no report of a launch: it has no {name}") from None
    except (OSError, ValueError, BadZipFile) as error:
        raise InvalidArgumentError(f"the report in {str(folder)!r} cannot be read: {error}") from None
    plants = {process["name"]: process for process in report["processes"]}
    found = [name for name in plants if f"{name.replace('/', '.')}{_PLANT}" in arrays]
    if not found:
        raise NotFoundError(f"the report in {str(folder)!r} has no plant that recorded its motion")
    chosen = found[0] if node is None else node.lstrip("/")
    if chosen not in found:
        near = did_you_mean(chosen, found) or f"; it has {', '.join(found)}"
        raise NotFoundError(f"the report in {str(folder)!r} has no plant {chosen!r} that recorded its motion{near}")
    key = chosen.replace("/", ".")
    tables = {
        channel: (tuple(arrays[f"{key}.{channel}.columns"].tolist()), arrays[f"{key}.{channel}"])
        for channel in ("plant", "reference")
        if f"{key}.{channel}" in arrays
    }
    return Recorded(chosen, plants[chosen]["parameters"], tables)


@dataclass(frozen=True, eq=False)
class State:
    """A robot at a time t s: q (nq,), v, tau (nv,). What nothing is known of is neutral, or zero."""

    t: float
    q: Array
    v: Array
    tau: Array


def of_joint_state(message: Any, at: Configuration) -> State | None:
    """What a message of joint states says, `sensor_msgs/msg/JointState`; None where it names no joint of the robot.

    Names are those of joints with one way to move, and `joint.part` of the velocities of others. Positions that are
    not as many as names, as those of a plant with quaternions, are all of q, in the order of the robot's joints.
    """
    names = list(message.name)
    q, v, tau = at.neutral.copy(), np.zeros(at.nv), np.zeros(at.nv)
    positions = {name: n for n, name in enumerate(at.position_names)}
    velocities = {name: n for n, name in enumerate(at.velocity_names)}
    if not velocities.keys() & set(names) or not len(message.position):
        return None
    if len(message.position) != len(names) and len(message.position) == at.nq:
        q[:] = message.position
    for table, values, entries in (
        (q, message.position, positions),
        (v, message.velocity, velocities),
        (tau, message.effort, velocities),
    ):
        if len(values) == len(names):
            for name, value in zip(names, values, strict=True):
                if name in entries:
                    table[entries[name]] = value
    stamp = message.header.stamp
    return State(stamp.sec + 1e-9 * stamp.nanosec, q, v, tau)


def of_joint_states(messages: Iterable[Any], at: Configuration, source: str) -> Motion:
    """The motion that messages of joint states tell, its time from the first one on.

    Raises:
        InvalidArgumentError: No message names a joint of the robot.
    """
    states = [state for message in messages if (state := of_joint_state(message, at)) is not None]
    if not states:
        raise InvalidArgumentError(f"{source} names no joint of the robot, which has {', '.join(at.names)}")
    motion = of_states(states)
    return replace(motion, t=_rising(motion.t - motion.t[0]))


def of_states(states: Sequence[State]) -> Motion:
    """The motion through states, of which there is at least one."""
    q, v, tau = (np.array(rows) for rows in zip(*((one.q, one.v, one.tau) for one in states), strict=True))
    return Motion(np.array([one.t for one in states]), q, v, tau, np.full_like(q, np.nan))


def _of(columns: Sequence[str], table: Array, names: Sequence[str], node: str) -> Array:
    missing = [name for name in names if name not in columns]
    if missing:
        raise InvalidArgumentError(f"the recording of {node!r} has no column {missing[0]!r}: it is of another robot")
    return np.ascontiguousarray(table[:, [columns.index(name) for name in names]])


def _rising(t: Array) -> Array:
    """Times of several runs, one after the other."""
    step = np.diff(t, prepend=t[:1])
    return np.cumsum(np.where(step < 0.0, 0.0, step)) + (t[0] if len(t) else 0.0)
