"""Recorded motions from the report of a launch or from a bag, in the order of a robot's joints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dyn_service.api.arrays import read_npz
from dyn_service.api.queries import Array
from dyn_service.control.joint_states import MULTI_DOF, ReceivedJointStates
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.reader import BagReader
from dyn_service.messages import ros_type
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import String
from dyn_service.model.configuration import Configuration
from dyn_service.support.suggestions import did_you_mean

RECORDING, REPORT = "recording.npz", "report.json"
_PLANT = ".plant"
"""Suffix of the arrays of a plant's motion."""


@dataclass(frozen=True, eq=False)
class Motion:
    """A motion. t (k,) s, increasing; q (k, nq); v, tau (k, nv), zero if unknown; reference (k, nq), NaN if missing."""

    t: Array
    q: Array
    v: Array
    tau: Array
    reference: Array

    def at(self, time_s: float) -> int:
        """Returns the last row not later than a time, or the first row."""
        return max(0, int(np.searchsorted(self.t, time_s, side="right")) - 1)


@dataclass(frozen=True)
class Recorded:
    """A plant of a launch's report. node: its name. parameters: its parameters, including the robot."""

    node: str
    parameters: Mapping[str, Any]
    tables: Mapping[str, tuple[tuple[str, ...], Array]]

    def motion(self, at: Configuration) -> Motion:
        """Returns the motion for a robot with these joints.

        Raises:
            InvalidArgumentError: The plant has other joints.
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
    """Returns a plant of a launch's report: the one with the given name, or the first.

    Raises:
        NotFoundError: The folder has no report, or no such plant.
        InvalidArgumentError: The report cannot be read.
    """
    try:
        report = json.loads((folder / REPORT).read_text("utf-8"))
        plants = {str(process["name"]): process for process in report["processes"]}
        arrays = read_npz(folder / RECORDING)
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise NotFoundError(f"{str(folder)!r} is no report of a launch: it has no {name}") from None
    except (OSError, ValueError, LookupError, TypeError, EOFError, RecursionError, MemoryError, BadZipFile) as error:
        cause = str(error) if isinstance(error, OSError | ValueError | BadZipFile) else "it is not a report of a launch"
        raise InvalidArgumentError(f"the report in {str(folder)!r} cannot be read: {cause}") from None
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
    """A robot's state at time t s: q (nq,), v, tau (nv,). Unknown values are neutral or zero."""

    t: float
    q: Array
    v: Array
    tau: Array


class States:
    """Builds states of a robot from joint state messages, in the order of arrival."""

    def __init__(self, at: Configuration) -> None:
        self._heard = ReceivedJointStates(at)

    def take(self, messages: Iterable[Any]) -> State | None:
        """Returns the state after messages of about one time; None if they contain no joint of the robot.

        Raises:
            InvalidArgumentError: A message is invalid.
        """
        stamps = [stamp_of(message) for message in messages if self._heard.take(message)]
        if not stamps:
            return None
        return State(max(stamps), self._heard.q.copy(), self._heard.v.copy(), self._heard.tau.copy())


def of_joint_states(messages: Iterable[Any], at: Configuration, source: str) -> Motion:
    """Returns the motion of joint state messages, with time from the first; messages of one time form one state.

    Raises:
        InvalidArgumentError: No message contains a joint of the robot, or a message is invalid.
    """
    states, found = list[State](), dict[str, None]()
    heard, heard_run = States(at), 0
    for (run, _), group in groupby(sorted(_by_run(messages), key=_when), _when):
        if run != heard_run:
            heard, heard_run = States(at), run
        together = [message for *_, message in group]
        state = heard.take(together)
        if state is not None:
            states.append(state)
        elif not states:
            for message in together:
                found.update(dict.fromkeys(message.name if hasattr(message, "name") else message.joint_names))
    if not states:
        raise InvalidArgumentError(
            f"{source} names no joint of the robot, which has {', '.join(at.names)}: found {', '.join(found) or 'none'}"
        )
    motion = of_states(states)
    return replace(motion, t=_rising(motion.t - motion.t[0]))


def _by_run(messages: Iterable[Any]) -> Iterator[tuple[int, float, Any]]:
    """Yields messages with their time and the index of the run; a new run starts if the time of one type goes back.
    Messages of one type are in order, those of two types may not be.
    """
    last: dict[type, tuple[int, float]] = {}
    for message in messages:
        t = stamp_of(message)
        run, before = last.get(type(message), (0, t))
        last[type(message)] = (run + (t < before), t)
        yield *last[type(message)], message


def _when(one: tuple[int, float, Any]) -> tuple[int, float]:
    return one[:2]


def several(at: Configuration) -> bool:
    """Returns whether a joint of the robot has several degrees of freedom, which have messages of their own."""
    return any(joint.nv > 1 for joint in at.joints)


def companion(topic: str) -> str | None:
    """Returns the topic of joints with several degrees of freedom for a topic of joint states; None for an endpoint."""
    return None if "://" in topic else f"{topic.rpartition('/')[0]}/{MULTI_DOF}"


def stamp_of(message: Any) -> float:
    """Returns the header's stamp, s."""
    stamp = message.header.stamp
    return float(stamp.sec + 1e-9 * stamp.nanosec)


def of_states(states: Sequence[State]) -> Motion:
    """Returns the motion of at least one state."""
    q, v, tau = (np.array(rows) for rows in zip(*((one.q, one.v, one.tau) for one in states), strict=True))
    return Motion(np.array([one.t for one in states]), q, v, tau, np.full_like(q, np.nan))


def _of(columns: Sequence[str], table: Array, names: Sequence[str], node: str) -> Array:
    missing = [name for name in names if name not in columns]
    if missing:
        raise InvalidArgumentError(f"the recording of {node!r} has no column {missing[0]!r}: it is of another robot")
    return np.ascontiguousarray(table[:, [columns.index(name) for name in names]])


def _rising(t: Array) -> Array:
    """Concatenates the times of several runs."""
    step = np.diff(t, prepend=t[:1])
    return np.cumsum(np.where(step < 0.0, 0.0, step)) + (t[0] if len(t) else 0.0)


STATES, TEXT = ros_type(JointState), ros_type(String)
DESCRIPTION = "robot_description"


def states_topic(bag: BagReader, named: str | None) -> str:
    """Returns the given topic of joint states, or the only one of a bag.

    Raises:
        NotFoundError: The topic does not exist, or there are no joint states.
        InvalidArgumentError: It has another type or no messages, or there are several and none is given.
    """
    types = {topic.name: topic.type for topic in bag.topics}
    found = [name for name, kind in types.items() if kind == STATES]
    if named is not None:
        bag.check([named])
        if types[named] != STATES:
            raise InvalidArgumentError(
                f"topic {named!r} of bag {str(bag.path)!r} is of {types[named]}, expected {STATES}"
            )
        chosen = named
    elif not found:
        has = f"; it has {', '.join(sorted(types))}" if types else ": it is empty"
        raise NotFoundError(f"bag {str(bag.path)!r} has no topic of joint states, {STATES}{has}")
    elif len(found) > 1:
        raise InvalidArgumentError(
            f"bag {str(bag.path)!r} has several topics of joint states, {', '.join(sorted(found))}: name one, --topic"
        )
    else:
        chosen = found[0]
    if not any(len(topic.times) for topic in bag.topics if topic.name == chosen):
        raise InvalidArgumentError(f"topic {chosen!r} of bag {str(bag.path)!r} has no message")
    return chosen


def description_in(bag: BagReader, states: str) -> tuple[str, str] | None:
    """Returns the topic and text of the robot description for a topic of joint states: the `robot_description` in the
    same namespace, or the only one; None if the bag has none.
    """
    found = [one.name for one in bag.topics if one.type == TEXT and one.name.rpartition("/")[2] == DESCRIPTION]
    companion_topic = f"{states.rpartition('/')[0]}/{DESCRIPTION}"
    topic = companion_topic if companion_topic in found else found[0] if len(found) == 1 else None
    text = "" if topic is None else "".join(str(one.message.data) for one in list(bag.messages([topic]))[-1:])
    return (topic, text) if topic is not None and text else None
