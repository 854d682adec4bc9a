"""Faults to inject: into the channel of the states, into that of the commands, into the plant, into a process.

    run(4.0, faults=[Delay(0.02, from_s=1.0), Loss(0.1, channel="states"), Stale(joints=["panda_joint4"], from_s=2.0)])

A channel's fault takes messages as they are sent and says which of them arrive, and when. In lockstep the channels lie
in one process, in real time in a proxy between processes: the same objects serve both. Random numbers come from a seed,
one stream per fault, so that a run can be repeated and faults do not disturb each other.

Several faults of a channel act one after the other, in their order. The times of a fault are the plant's, from its
start.
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar, get_args

import msgspec
import numpy as np

from dyn_service.errors import DeadlineExceededError, InvalidArgumentError
from dyn_service.hil.signals import Array
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration
from dyn_service.support.suggestions import did_you_mean

ChannelName = Literal["states", "commands"]
Process = Literal["controller", "server"]
Delivery = tuple[float, Any]
"""(time of arrival in s, the message)."""
Injector = Callable[[float, Any], list[Delivery]]
"""(time of sending, or of arrival so far; message) -> what is delivered of it, and when."""
_Check = Mapping[str, Any]
"""Metadata of a field: `holds`, whether a value is allowed, and `expected`, what is allowed."""
_SIZE: _Check = {"holds": lambda x: 0.0 <= x < math.inf, "expected": "a finite number of at least 0"}
_SHARE: _Check = {"holds": lambda x: 0.0 <= x <= 1.0, "expected": "0 to 1"}
_FINITE: _Check = {"holds": math.isfinite, "expected": "a finite number"}
_MASS: _Check = {"holds": lambda x: 0.0 < x < math.inf, "expected": "a positive number of kg"}
_CHANNELS: _Check = {"names": get_args(ChannelName)}
_COUNT: _Check = {"holds": lambda n: isinstance(n, int) and n >= 1, "expected": "a whole number of at least 1"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault. from_s, until_s: when it is active, s of the plant's time."""

    from_s: float = 0.0
    until_s: float = math.inf

    def active_at(self, t: float) -> bool:
        """Whether it is active at the plant's time t."""
        return self.from_s <= t < self.until_s

    def __post_init__(self) -> None:
        if not 0.0 <= self.from_s < self.until_s:
            raise InvalidArgumentError(
                f"{type(self).__name__}: from_s is {self.from_s:g}, until_s {self.until_s:g}: expected 0 <= from_s < "
                "until_s"
            )
        for one in fields(self):
            value, names = getattr(self, one.name), one.metadata.get("names")
            if names is not None and value not in names:
                near = did_you_mean(str(value), names)
                raise InvalidArgumentError(
                    f"{type(self).__name__}: {one.name} is {value!r}: expected {' or '.join(map(repr, names))}{near}"
                )
            if "holds" in one.metadata and not one.metadata["holds"](value):
                raise InvalidArgumentError(
                    f"{type(self).__name__}: {one.name} is {value:g}: expected {one.metadata['expected']}"
                )

    def check(self, at: Configuration) -> None:
        """Checks the fault against the robot."""


@dataclass(frozen=True, kw_only=True)
class ChannelFault(Fault, ABC):
    """A fault of the messages on one channel. channel: `states`, to the controller, or `commands`, to the plant."""

    channel: ChannelName = field(default="commands", metadata=_CHANNELS)

    @abstractmethod
    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """The fault's action in one run, with its own memory and random numbers."""


@dataclass(frozen=True)
class Delay(ChannelFault):
    """Messages arrive `by_s` later: a late controller, a slow line."""

    by_s: float = field(metadata=_SIZE)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        return lambda t, message: [(t + self.by_s, message)]


@dataclass(frozen=True)
class Jitter(ChannelFault):
    """Messages arrive up to `most_s` later, each by a random delay of its own, none before an earlier one."""

    most_s: float = field(metadata=_SIZE)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        last = -math.inf

        def pass_on(t: float, message: Any) -> list[Delivery]:
            nonlocal last
            last = max(last, t + float(random.uniform(0.0, self.most_s)))
            return [(last, message)]

        return pass_on


@dataclass(frozen=True)
class Loss(ChannelFault):
    """A share of the messages, 0 to 1, never arrives; `burst` of them in a row each time."""

    share: float = field(metadata=_SHARE)
    burst: int = field(default=1, metadata=_COUNT)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        begins = self.share / (self.burst - (self.burst - 1) * self.share)  # so that the share of all is lost
        left = 0

        def pass_on(t: float, message: Any) -> list[Delivery]:
            nonlocal left
            chance = float(random.random())
            if left == 0 and chance < begins:
                left = self.burst
            if left:
                left -= 1
                return []
            return [(t, message)]

        return pass_on


@dataclass(frozen=True)
class Reorder(ChannelFault):
    """A share of the messages, 0 to 1, arrives right after the next message; the last message may never arrive."""

    share: float = field(metadata=_SHARE)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        held: list[Any] = []

        def pass_on(t: float, message: Any) -> list[Delivery]:
            chance = float(random.random())
            if not held and chance < self.share:
                held.append(message)
                return []
            passed = [(t, message), *((t, one) for one in held)]
            held.clear()
            return passed

        return pass_on


@dataclass(frozen=True)
class WrongPayload(Fault):
    """The plant carries what its controller does not know of: a body of `mass` kg welded to a link, from the start.

    com: (3,) m, its centre of mass in the link's frame.
    """

    link: str
    mass: float = field(metadata=_MASS)
    com: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.from_s or self.until_s != math.inf:
            raise InvalidArgumentError("WrongPayload acts during the whole run: omit from_s and until_s")

    @property
    def payload(self) -> dict[str, Any]:
        """As in the `overlay` of a plant's parameters."""
        return {"link": self.link, "mass": self.mass, "com": list(self.com)}


@dataclass(frozen=True)
class Killed(Fault):
    """A process is killed at `from_s`: the controller, or its server. It stays away until `until_s`, when
    it is started again; a controller then arms the plant only with `rearm`.
    """

    node: Process = field(default="controller", metadata={"names": get_args(Process)})

    def __post_init__(self) -> None:
        if str(self.node) == "plant":
            raise InvalidArgumentError(
                "Killed: node is 'plant': a simulated robot ends with its plant, and no signal goes on; what a "
                "controller sees of it is Loss(1.0, channel='states')"
            )
        super().__post_init__()


def check_faults(faults: Sequence[Fault], seconds: float = math.inf) -> None:
    """Rejects faults that have no effect within the run's duration: a test that passes with them shows nothing."""
    if not seconds > 0.0:
        raise InvalidArgumentError(f"a run of {seconds:g} s: expected a positive number of seconds")
    for fault in faults:
        if not isinstance(fault, Fault):
            raise InvalidArgumentError(f"faults: found {fault!r}: expected faults, such as Delay(0.02)")
        if fault.from_s >= seconds:
            raise InvalidArgumentError(
                f"{type(fault).__name__}: it begins at {fault.from_s:g} s, after the end of the run of {seconds:g} s"
            )


WALL_S, WALL_SHARE = 30.0, 10.0
"""By default a run may take `WALL_S` of wall time, and `WALL_SHARE` times the plant's time in addition."""


def wall_limit(seconds: float, limit_s: float | None) -> float:
    """Returns the wall time, s, in which a run of some seconds must end; limit_s: as specified, None by default."""
    return WALL_S + WALL_SHARE * max(0.0, seconds) if limit_s is None else limit_s


def too_long(limit_s: float, now_s: float, until_s: float, detail: str = "") -> DeadlineExceededError:
    """Returns the error of a run that did not come to its end in its wall time."""
    return DeadlineExceededError(
        f"after {limit_s:g} s of wall time the plant's time is {now_s:.4g} s, not {until_s:g} s{detail}; "
        "--hil-wall-limit sets the limit"
    )


def joint_index(fault: Fault, name: str, at: Configuration) -> int:
    """Returns the index of a joint after checking that the robot has it."""
    if name not in at.names:
        near = did_you_mean(name, at.names)
        raise InvalidArgumentError(
            f"{type(fault).__name__}: no joint {name!r}; the joints are {', '.join(at.names)}{near}"
        )
    return at.names.index(name)


@dataclass(frozen=True, kw_only=True)
class ValueFault(ChannelFault, ABC):
    """A fault of the values of joints; without `joints`, of all. On states it is what the controller gets to see, on
    commands what the drives get: the plant itself is as it is.
    """

    joints: Sequence[str] = ()

    def check(self, at: Configuration) -> None:
        if isinstance(self.joints, str):
            raise InvalidArgumentError(
                f"{type(self).__name__}: joints is {self.joints!r}: expected a list of names, [{self.joints!r}]"
            )
        for name in self.joints:
            joint_index(self, name, at)

    def entries(self, at: Configuration) -> tuple[list[int], list[int]]:
        """Indices of the joints in q and in v."""
        of_q: list[int] = []
        of_v: list[int] = []
        for name, in_q, in_v in zip(at.names, at.q_slices, at.v_slices, strict=True):
            if not self.joints or name in self.joints:
                of_q += range(in_q.start, in_q.stop)
                of_v += range(in_v.start, in_v.stop)
        return of_q, of_v


@dataclass(frozen=True, kw_only=True)
class Stale(ValueFault):
    """A frozen encoder: the positions stay what they were when it froze, and velocities, their differences, are 0."""

    channel: ChannelName = field(default="states", metadata=_CHANNELS)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        of_q, of_v = self.entries(at)
        kept: list[float] = []

        def freeze(q: Array, v: Array) -> tuple[Array, Array]:
            if not kept:
                kept.extend(q[of_q].tolist())
            q[of_q], v[of_v] = kept, 0.0
            return q, v

        return _on_states(self, freeze)


@dataclass(frozen=True, kw_only=True)
class NotANumber(ValueFault):
    """Values are NaN, in a share of the messages."""

    share: float = field(default=1.0, metadata=_SHARE)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        of_q, of_v = self.entries(at)

        def spoil_state(q: Array, v: Array) -> tuple[Array, Array]:
            if float(random.random()) < self.share:
                q[of_q] = v[of_v] = math.nan
            return q, v

        def spoil_command(effort: Array) -> Array:
            if float(random.random()) < self.share:
                effort[of_v] = math.nan
            return effort

        return _on_either(self, at, spoil_state, spoil_command)


@dataclass(frozen=True)
class Bias(ValueFault):
    """Positions are off by this, rad | m; on commands, efforts, N m | N."""

    by: float = field(metadata=_FINITE)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        _, of_v = self.entries(at)
        off = np.zeros(at.nv)
        off[of_v] = self.by
        return _on_either(self, at, lambda q, v: (at.integrate(q, off), v), lambda effort: effort + off)


@dataclass(frozen=True)
class Noise(ValueFault):
    """Normal noise: `deviation` on positions, rad | m, `rate_deviation` on velocities; on commands, on efforts."""

    deviation: float = field(metadata=_SIZE)
    rate_deviation: float = field(default=0.0, metadata=_SIZE)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        _, of_v = self.entries(at)

        def noise(deviation: float) -> Array:
            off = np.zeros(at.nv)
            off[of_v] = deviation * random.standard_normal(len(of_v))
            return off

        return _on_either(
            self,
            at,
            lambda q, v: (at.integrate(q, noise(self.deviation)), v + noise(self.rate_deviation)),
            lambda effort: effort + noise(self.deviation),
        )


@dataclass(frozen=True)
class Saturation(ValueFault):
    """Efforts are cut to +-limit, N m | N, by a drive that does not report it; on states, positions, rad | m."""

    limit: float = field(metadata=_SIZE)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        of_q, of_v = self.entries(at)

        def cut(values: Array, where: list[int]) -> Array:
            values[where] = np.clip(values[where], -self.limit, self.limit)
            return values

        return _on_either(self, at, lambda q, v: (cut(q, of_q), v), lambda effort: cut(effort, of_v))


@dataclass(frozen=True)
class Swapped(ChannelFault):
    """Two joints of one type are taken for each other: by their drives (commands), or by their encoders (states)."""

    one: str
    other: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.one == self.other:
            raise InvalidArgumentError(f"Swapped: both are {self.one!r}: expected two joints")

    def check(self, at: Configuration) -> None:
        joints = [at.joints[joint_index(self, name, at)] for name in (self.one, self.other)]
        sizes = [(joint.nq, joint.nv) for joint in joints]
        if sizes[0] != sizes[1]:
            raise InvalidArgumentError(f"Swapped: {self.one!r} and {self.other!r} have different numbers of positions")

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        k, n = at.names.index(self.one), at.names.index(self.other)

        def swap(values: Array, slices: Sequence[slice]) -> Array:
            values[slices[k]], values[slices[n]] = values[slices[n]].copy(), values[slices[k]].copy()
            return values

        return _on_either(
            self,
            at,
            lambda q, v: (swap(q, at.q_slices), swap(v, at.v_slices)),
            lambda effort: swap(effort, at.v_slices),
        )


def _on_states(fault: ChannelFault, change: Callable[[Array, Array], tuple[Array, Array]]) -> Injector:
    if fault.channel != "states":
        raise InvalidArgumentError(f"{type(fault).__name__}: commands have no positions: expected channel='states'")

    def pass_on(t: float, message: PlantState) -> list[Delivery]:
        q, v = change(np.array(message.position), np.array(message.velocity))
        return [(t, msgspec.structs.replace(message, position=q.tolist(), velocity=v.tolist()))]

    return pass_on


def _on_either(
    fault: ChannelFault,
    at: Configuration,
    state: Callable[[Array, Array], tuple[Array, Array]],
    command: Callable[[Array], Array],
) -> Injector:
    """What changes (q, v) of states, or what commands say, by efforts, positions or velocities, in any order."""
    if fault.channel == "states":
        return _on_states(fault, state)
    names = at.velocity_names

    def pass_on(t: float, message: JointCommand) -> list[Delivery]:
        order = [message.name.index(name) for name in names]
        values = np.array(getattr(message, message.interface))
        changed = values.copy()
        changed[order] = command(values[order].copy())
        return [(t, msgspec.structs.replace(message, **{message.interface: changed.tolist()}))]

    return pass_on


M = TypeVar("M", PlantState, JointCommand)

_ROUNDING_S = 1e-9
"""Times are products of a step and a count: a message that is just due must not be late by their rounding."""


class Channel(Generic[M]):
    """The channel of the states, or that of the commands, between a plant and its controller, with its faults.

    faults: Those of both channels; the other channel's are left out.
    """

    def __init__(self, faults: Sequence[Fault], channel: ChannelName, seed: int, at: Configuration) -> None:
        self._stages: list[tuple[ChannelFault, Injector]] = []
        self._name, self._seed, self._at = channel, seed, at
        self._streams = itertools.count()
        self._under_way: list[tuple[float, int, M]] = []
        self._number = itertools.count()
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """One more fault, after the others; one of the other channel changes nothing."""
        stream = next(self._streams)
        fault.check(self._at)
        if isinstance(fault, ChannelFault) and fault.channel == self._name:
            self._stages.append((fault, fault.injector(np.random.default_rng((self._seed, stream)), self._at)))

    def send(self, message: M, now_s: float, plant_s: float | None = None) -> None:
        """Sends a message at `now_s`, by any clock; plant_s: the plant's time, where that is another."""
        time = now_s if plant_s is None else plant_s
        arriving: list[Delivery] = [(now_s, message)]
        for fault, inject in self._stages:
            if fault.active_at(time):
                arriving = [found for t, one in arriving for found in inject(t, one)]
        for t, one in arriving:
            heapq.heappush(self._under_way, (t, next(self._number), one))

    def due(self, now_s: float) -> list[M]:
        """Returns the messages that arrived by `now_s` since the last call, in the order of arrival."""
        arrived = []
        while self._under_way and self._under_way[0][0] <= now_s + _ROUNDING_S:
            arrived.append(heapq.heappop(self._under_way)[2])
        return arrived

    def newest(self, now_s: float) -> M | None:
        """Returns the last message that arrived by `now_s`, and drops older ones; None if there is no new one."""
        arrived = self.due(now_s)
        return arrived[-1] if arrived else None

    @property
    def next_s(self) -> float:
        """When the next message arrives; infinite where none is under way."""
        return self._under_way[0][0] if self._under_way else math.inf
