"""Recorded motions, from the report of a launch or from a bag, in the order of a robot's joints."""

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
        plants = {str(process["name"]): process for process in report["processes"]}
        arrays = read_npz(folder / RECORDING)
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise NotFoundError(f"{str(folder)!r} is no report of a launch: it has no {name}") from None
    except (OSError, ValueError, LookupError, TypeError, EOFError, RecursionError, MemoryError, BadZipFile) as error:
        cause = str(error) if isinstance(error, OSError | ValueError | BadZipFile) else "it is none that a launch wrote"
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
    """A robot at a time t s: q (nq,), v, tau (nv,). What nothing is known of is neutral, or zero."""

    t: float
    q: Array
    v: Array
    tau: Array


class States:
    """States of a robot from messages of joint states, each of one degree of freedom or of several, as they come."""

    def __init__(self, at: Configuration) -> None:
        self._heard = ReceivedJointStates(at)

    def take(self, messages: Iterable[Any]) -> State | None:
        """Where the robot is by these messages, of about one time, and by all before; None where they name no joint of
        it.

        Raises:
            InvalidArgumentError: One is none.
        """
        stamps = [stamp_of(message) for message in messages if self._heard.take(message)]
        if not stamps:
            return None
        return State(max(stamps), self._heard.q.copy(), self._heard.v.copy(), self._heard.tau.copy())


def of_joint_states(messages: Iterable[Any], at: Configuration, source: str) -> Motion:
    """The motion that messages of joint states tell, its time from the first one on; those of one time are one state.

    Raises:
        InvalidArgumentError: No message names a joint of the robot, or one is none.
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
    """Messages with their time and the number of the run: another has begun where the time of a kind goes back. Those
    of one kind came in order, those of two kinds may not have come so.
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
    """Whether a joint of the robot has several degrees of freedom, which other messages tell of."""
    return any(joint.nv > 1 for joint in at.joints)


def beside(topic: str) -> str | None:
    """The topic of joints with several degrees of freedom, beside that of the others; None where that is an
    endpoint.
    """
    return None if "://" in topic else f"{topic.rpartition('/')[0]}/{MULTI_DOF}"


def stamp_of(message: Any) -> float:
    """s, of the message's header."""
    stamp = message.header.stamp
    return float(stamp.sec + 1e-9 * stamp.nanosec)


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


STATES, TEXT = ros_type(JointState), ros_type(String)
DESCRIPTION = "robot_description"


def states_topic(bag: BagReader, named: str | None) -> str:
    """The topic of joint states that was named, or the only one there is.

    Raises:
        NotFoundError: There is no such topic, or none of joint states.
        InvalidArgumentError: It is of another type, or there are several and none is named, or it has no message.
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
    """The topic and the text of the robot whose joint states a topic has: its neighbour `robot_description`, or the
    only one there is; None where the bag has none.
    """
    found = [one.name for one in bag.topics if one.type == TEXT and one.name.rpartition("/")[2] == DESCRIPTION]
    beside = f"{states.rpartition('/')[0]}/{DESCRIPTION}"
    topic = beside if beside in found else found[0] if len(found) == 1 else None
    text = "" if topic is None else "".join(str(one.message.data) for one in list(bag.messages([topic]))[-1:])
    return (topic, text) if topic is not None and text else None
