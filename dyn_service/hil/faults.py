"""Faults to inject: into the channel of the states, into that of the commands, into the plant, into a process.

    run(4.0, faults=[Delay(0.02, from_s=1.0), Loss(0.1, channel="states"), Stale(joints=["panda_joint4"], from_s=2.0)])

A channel's fault takes messages as they are sent and says which of them arrive, and when. In lockstep the channels lie
in one process, in real time in a proxy between processes: the same objects serve both. Random numbers come from a seed,
one stream per fault, so that a run can be repeated and faults do not disturb each other.

Several faults of a channel act one after the other, in their order. The times of a fault are the plant's, from its
start.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from dyn_service.errors import InvalidArgumentError
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

    def check(self, at: Configuration) -> None:
        """Checks the fault against the robot."""


@dataclass(frozen=True, kw_only=True)
class ChannelFault(Fault, ABC):
    """A fault of the messages on one channel. channel: `states`, to the controller, or `commands`, to the plant."""

    channel: ChannelName = "commands"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "channel", self.channel, get_args(ChannelName))

    @abstractmethod
    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """The fault's action in one run, with its own memory and random numbers."""


@dataclass(frozen=True)
class Delay(ChannelFault):
    """Messages arrive `by_s` later: a late controller, a slow line."""

    by_s: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self, "by_s", self.by_s)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Adds the delay."""
        return lambda t, message: [(t + self.by_s, message)]


@dataclass(frozen=True)
class Jitter(ChannelFault):
    """Messages arrive up to `most_s` later, each by a random delay of its own, none before an earlier one."""

    most_s: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self, "most_s", self.most_s)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Adds random delays."""
        last = -math.inf

        def pass_on(t: float, message: Any) -> list[Delivery]:
            nonlocal last
            last = max(last, t + float(random.uniform(0.0, self.most_s)))
            return [(last, message)]

        return pass_on


@dataclass(frozen=True)
class Loss(ChannelFault):
    """A share of the messages, 0 to 1, never arrives; `burst` of them in a row each time."""

    share: float
    burst: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self, self.share)
        if not isinstance(self.burst, int) or self.burst < 1:
            raise InvalidArgumentError(f"Loss: burst is {self.burst}: expected a whole number of at least 1")

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Drops some messages."""
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

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self, self.share)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Holds some back until the next one has passed."""
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
    mass: float
    com: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.mass) or self.mass <= 0.0:
            raise InvalidArgumentError(f"WrongPayload: mass is {self.mass:g}: expected a positive number of kg")
        if self.from_s or self.until_s != math.inf:
            raise InvalidArgumentError("WrongPayload: it is there from the start to the end")

    @property
    def payload(self) -> dict[str, Any]:
        """As in the `overlay` of a plant's parameters."""
        return {"link": self.link, "mass": self.mass, "com": list(self.com)}


@dataclass(frozen=True)
class Killed(Fault):
    """A process is killed at `from_s`: the controller, or its server. It stays away until `until_s`, when
    it is started again; a controller then arms the plant only with `rearm`.
    """

    node: Process = "controller"

    def __post_init__(self) -> None:
        super().__post_init__()
        if str(self.node) == "plant":
            raise InvalidArgumentError(
                "Killed: node is 'plant': a simulated robot ends with its plant, and no signal goes on; what a "
                "controller sees of it is Loss(1.0, channel='states')"
            )
        check_choice(self, "node", self.node, get_args(Process))


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


def joint_index(fault: Fault, name: str, at: Configuration) -> int:
    """Which joint that is."""
    if name not in at.names:
        near = did_you_mean(name, at.names)
        raise InvalidArgumentError(
            f"{type(fault).__name__}: no joint {name!r}; the joints are {', '.join(at.names)}{near}"
        )
    return at.names.index(name)


def check_choice(fault: Fault, name: str, found: str, expected: Sequence[str]) -> None:
    """Rejects an unknown name: the fault would have no effect."""
    if found not in expected:
        near = did_you_mean(str(found), expected)
        raise InvalidArgumentError(
            f"{type(fault).__name__}: {name} is {found!r}: expected {' or '.join(map(repr, expected))}{near}"
        )


def check_finite(fault: Fault, name: str, value: float) -> None:
    """Rejects values that are not finite: `NotANumber` is the fault for that."""
    if not math.isfinite(value):
        raise InvalidArgumentError(f"{type(fault).__name__}: {name} is {value:g}: expected a finite number")


def check_share(fault: Fault, share: float) -> None:
    """Checks that a share is from 0 to 1."""
    if not 0.0 <= share <= 1.0:
        raise InvalidArgumentError(f"{type(fault).__name__}: share is {share:g}: expected 0 to 1")


def check_size(fault: Fault, name: str, value: float) -> None:
    """Checks a magnitude, such as a duration."""
    if not 0.0 <= value < math.inf:
        raise InvalidArgumentError(
            f"{type(fault).__name__}: {name} is {value:g}: expected a finite number of at least 0"
        )


@dataclass(frozen=True, kw_only=True)
class ValueFault(ChannelFault, ABC):
    """A fault of the values of joints; without `joints`, of all. On states it is what the controller gets to see, on
    commands what the drives get: the plant itself is as it is.
    """

    joints: Sequence[str] = ()

    def check(self, at: Configuration) -> None:
        """Checks that the robot has these joints."""
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

    channel: ChannelName = "states"

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Holds the first positions."""
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

    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self, self.share)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Writes NaN."""
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

    by: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_finite(self, "by", self.by)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Adds the offset."""
        _, of_v = self.entries(at)
        off = np.zeros(at.nv)
        off[of_v] = self.by
        return _on_either(self, at, lambda q, v: (at.integrate(q, off), v), lambda effort: effort + off)


@dataclass(frozen=True)
class Noise(ValueFault):
    """Normal noise: `deviation` on positions, rad | m, `rate_deviation` on velocities; on commands, on efforts."""

    deviation: float
    rate_deviation: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self, "deviation", self.deviation)
        check_size(self, "rate_deviation", self.rate_deviation)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Adds noise, drawn for each message."""
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

    limit: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self, "limit", self.limit)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Clips the values."""
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
        """Checks that the robot has both joints, and that they have equal sizes."""
        joints = [at.joints[joint_index(self, name, at)] for name in (self.one, self.other)]
        sizes = [(joint.nq, joint.nv) for joint in joints]
        if sizes[0] != sizes[1]:
            raise InvalidArgumentError(f"Swapped: {self.one!r} and {self.other!r} have different numbers of positions")

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Exchanges their values."""
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
    """What changes (q, v) of states."""
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
