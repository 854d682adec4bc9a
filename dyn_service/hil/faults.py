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
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

import msgspec
import numpy as np

from dyn_service.errors import DeadlineExceededError, InvalidArgumentError
from dyn_service.hil.signals import Array
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration
from dyn_service.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.graph.nodes.plant.factory import PlantParameters

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
        kind = type(self).__name__
        if not 0.0 <= self.from_s < self.until_s:
            span = f"from_s is {self.from_s:g}, until_s {self.until_s:g}"
            raise InvalidArgumentError(f"{kind}: {span}: expected 0 <= from_s < until_s")
        for parameter in fields(self):
            value, rule = getattr(self, parameter.name), parameter.metadata
            if "names" in rule and value not in rule["names"]:
                expected = " or ".join(map(repr, rule["names"])) + did_you_mean(str(value), rule["names"])
                raise InvalidArgumentError(f"{kind}: {parameter.name} is {value!r}: expected {expected}")
            if "holds" in rule and not rule["holds"](value):
                raise InvalidArgumentError(f"{kind}: {parameter.name} is {value:g}: expected {rule['expected']}")

    def check(self, configuration: Configuration) -> None:
        """Checks the fault against the robot."""


@dataclass(frozen=True, kw_only=True)
class ChannelFault(Fault, ABC):
    """A fault of the messages on one channel. channel: `states`, to the controller, or `commands`, to the plant."""

    channel: ChannelName = field(default="commands", metadata=_CHANNELS)

    @abstractmethod
    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        """The fault's action in one run, with its own memory and random numbers."""


@dataclass(frozen=True)
class Delay(ChannelFault):
    """Messages arrive `by_s` later: a late controller, a slow line."""

    by_s: float = field(metadata=_SIZE)

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        return lambda t, message: [(t + self.by_s, message)]


@dataclass(frozen=True)
class Jitter(ChannelFault):
    """Messages arrive up to `most_s` later, each by a random delay of its own, none before an earlier one."""

    most_s: float = field(metadata=_SIZE)

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
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

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        # A burst begins less often than a message is lost, so that the share of all messages is `share`.
        p_start = self.share / (self.burst - (self.burst - 1) * self.share)
        remaining = 0

        def pass_on(t: float, message: Any) -> list[Delivery]:
            nonlocal remaining
            # Drawn for each message, also in a burst, so that later losses do not depend on the length of bursts.
            chance = float(random.random())
            if remaining == 0 and chance < p_start:
                remaining = self.burst
            if remaining:
                remaining -= 1
                return []
            return [(t, message)]

        return pass_on


@dataclass(frozen=True)
class Reorder(ChannelFault):
    """A share of the messages, 0 to 1, arrives right after the next message; the last message may never arrive."""

    share: float = field(metadata=_SHARE)

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        waiting: list[Any] = []

        def pass_on(t: float, message: Any) -> list[Delivery]:
            chance = float(random.random())
            if not waiting and chance < self.share:
                waiting.append(message)
                return []
            delivered = [(t, message), *((t, late) for late in waiting)]
            waiting.clear()
            return delivered

        return pass_on


@dataclass(frozen=True, kw_only=True)
class PlantFault(Fault, ABC):
    """A fault of the simulated robot, which its plant gets as a parameter before the run."""

    @abstractmethod
    def parameters(self, plant: PlantParameters) -> dict[str, Any]:
        """Returns the plant's parameters that the fault changes; plant: those so far."""

    def _check_whole_run(self) -> None:
        if self.from_s or self.until_s != math.inf:
            text = "acts from the start of the whole run: omit from_s and until_s"
            raise InvalidArgumentError(f"{type(self).__name__} {text}")


@dataclass(frozen=True)
class WrongPayload(PlantFault):
    """The plant carries what its controller does not know of: a body of `mass` kg welded to a link, from the start.

    com: (3,) m, its centre of mass in the link's frame.
    """

    link: str
    mass: float = field(metadata=_MASS)
    com: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole_run()

    @property
    def payload(self) -> dict[str, Any]:
        """As in the `overlay` of a plant's parameters."""
        return {"link": self.link, "mass": self.mass, "com": list(self.com)}

    def parameters(self, plant: PlantParameters) -> dict[str, Any]:
        payloads = plant.overlay.get("payloads", [])
        # a single payload may be written without a list
        return {"overlay": {"payloads": [*(payloads if isinstance(payloads, list) else [payloads]), self.payload]}}


@dataclass(frozen=True)
class HotMotor(PlantFault):
    """The winding of a joint's motor is at `celsius` when the run begins. The robot's files have the motor's heat."""

    joint: str
    celsius: float = field(metadata=_FINITE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole_run()

    def parameters(self, plant: PlantParameters) -> dict[str, Any]:
        return {"actuators": {"winding_celsius": {self.joint: self.celsius}}}


@dataclass(frozen=True)
class WornGear(PlantFault):
    """The gear of a joint's motor has a wider gap, `backlash` rad | m at the joint, than in the joint file, which has
    the gear's stiffness.
    """

    joint: str
    backlash: float = field(metadata=_SIZE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole_run()

    def parameters(self, plant: PlantParameters) -> dict[str, Any]:
        return {"actuators": {"backlash": {self.joint: self.backlash}}}


@dataclass(frozen=True)
class SaggingSupply(PlantFault):
    """The supply gives a share, 0 to 1, of the voltage limits of all motors, which the robot's files have."""

    share: float = field(metadata=_SHARE)

    def parameters(self, plant: PlantParameters) -> dict[str, Any]:
        sag = {"share": self.share, "from_s": self.from_s}
        if self.until_s < math.inf:  # JSON has no infinity
            sag["until_s"] = self.until_s
        return {"actuators": {"supply_sags": [*msgspec.to_builtins(plant.actuators.supply_sags), sag]}}


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
            begin = f"{type(fault).__name__}: it begins at {fault.from_s:g} s"
            raise InvalidArgumentError(f"{begin}, after the end of the run of {seconds:g} s")


WALL_S, WALL_SHARE = 30.0, 10.0
"""By default a run may take `WALL_S` of wall time, and `WALL_SHARE` times the plant's time in addition."""


def wall_limit(seconds: float, limit_s: float | None) -> float:
    """Returns the wall time, s, within which a run of some seconds must end; limit_s: None for the default."""
    return WALL_S + WALL_SHARE * max(0.0, seconds) if limit_s is None else limit_s


def wall_time_error(limit_s: float, now_s: float, until_s: float, detail: str = "") -> DeadlineExceededError:
    """Returns the error of a run that exceeded its wall time.

    limit_s: s, wall time. now_s, until_s: s, the plant's time and the end of the run. detail: a text after them.
    """
    text = f"the plant's time is {now_s:.4g} s, not {until_s:g} s{detail}; --hil-wall-limit sets the limit"
    return DeadlineExceededError(f"after {limit_s:g} s of wall time {text}")


def joint_index(fault: Fault, name: str, configuration: Configuration) -> int:
    """Returns the index of a joint after checking that the robot has it."""
    if name not in configuration.names:
        names = f"{', '.join(configuration.names)}{did_you_mean(name, configuration.names)}"
        raise InvalidArgumentError(f"{type(fault).__name__}: no joint {name!r}; the joints are {names}")
    return configuration.names.index(name)


@dataclass(frozen=True, kw_only=True)
class ValueFault(ChannelFault, ABC):
    """A fault of the values of joints; without `joints`, of all. On states it is what the controller gets to see, on
    commands what the drives get: the plant itself is as it is.
    """

    joints: Sequence[str] = ()

    def check(self, configuration: Configuration) -> None:
        if isinstance(self.joints, str):
            form = f"expected a list of names, [{self.joints!r}]"
            raise InvalidArgumentError(f"{type(self).__name__}: joints is {self.joints!r}: {form}")
        for name in self.joints:
            joint_index(self, name, configuration)

    def entries(self, configuration: Configuration) -> tuple[list[int], list[int]]:
        """Indices of the joints in q and in v."""
        q_indices: list[int] = []
        v_indices: list[int] = []
        for name, in_q, in_v in zip(configuration.names, configuration.q_slices, configuration.v_slices, strict=True):
            if not self.joints or name in self.joints:
                q_indices += range(in_q.start, in_q.stop)
                v_indices += range(in_v.start, in_v.stop)
        return q_indices, v_indices


@dataclass(frozen=True, kw_only=True)
class Stale(ValueFault):
    """A frozen encoder: the positions stay what they were when it froze, and velocities, their differences, are 0."""

    channel: ChannelName = field(default="states", metadata=_CHANNELS)

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        in_q, in_v = self.entries(configuration)
        frozen: list[float] = []

        def freeze(q: Array, v: Array) -> tuple[Array, Array]:
            if not frozen:
                frozen.extend(q[in_q].tolist())
            q[in_q], v[in_v] = frozen, 0.0
            return q, v

        return _on_states(self, freeze)


@dataclass(frozen=True, kw_only=True)
class NotANumber(ValueFault):
    """Values are NaN, in a share of the messages."""

    share: float = field(default=1.0, metadata=_SHARE)

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        in_q, in_v = self.entries(configuration)

        def spoil_state(q: Array, v: Array) -> tuple[Array, Array]:
            if float(random.random()) < self.share:
                q[in_q] = v[in_v] = math.nan
            return q, v

        def spoil_command(effort: Array) -> Array:
            if float(random.random()) < self.share:
                effort[in_v] = math.nan
            return effort

        return _on_either(self, configuration, spoil_state, spoil_command)


@dataclass(frozen=True)
class Bias(ValueFault):
    """Positions are off by this, rad | m; on commands, efforts, N m | N."""

    by: float = field(metadata=_FINITE)

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        _, in_v = self.entries(configuration)
        offset = np.zeros(configuration.nv)
        offset[in_v] = self.by
        return _on_either(
            self, configuration, lambda q, v: (configuration.integrate(q, offset), v), lambda effort: effort + offset
        )


@dataclass(frozen=True)
class Noise(ValueFault):
    """Normal noise: `deviation` on positions, rad | m, `rate_deviation` on velocities; on commands, on efforts."""

    deviation: float = field(metadata=_SIZE)
    rate_deviation: float = field(default=0.0, metadata=_SIZE)

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        _, in_v = self.entries(configuration)

        def noise(deviation: float) -> Array:
            offset = np.zeros(configuration.nv)
            offset[in_v] = deviation * random.standard_normal(len(in_v))
            return offset

        def state(q: Array, v: Array) -> tuple[Array, Array]:
            return configuration.integrate(q, noise(self.deviation)), v + noise(self.rate_deviation)

        return _on_either(self, configuration, state, lambda effort: effort + noise(self.deviation))


@dataclass(frozen=True)
class Saturation(ValueFault):
    """Efforts are cut to +-limit, N m | N, by a drive that does not report it; on states, positions, rad | m."""

    limit: float = field(metadata=_SIZE)

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        in_q, in_v = self.entries(configuration)

        def clip(values: Array, entries: list[int]) -> Array:
            values[entries] = np.clip(values[entries], -self.limit, self.limit)
            return values

        return _on_either(self, configuration, lambda q, v: (clip(q, in_q), v), lambda effort: clip(effort, in_v))


@dataclass(frozen=True)
class Swapped(ChannelFault):
    """Two joints of one type are taken for each other: by their drives (commands), or by their encoders (states)."""

    one: str
    other: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.one == self.other:
            raise InvalidArgumentError(f"Swapped: both are {self.one!r}: expected two joints")

    def check(self, configuration: Configuration) -> None:
        joints = [configuration.joints[joint_index(self, name, configuration)] for name in (self.one, self.other)]
        sizes = [(joint.nq, joint.nv) for joint in joints]
        if sizes[0] != sizes[1]:
            raise InvalidArgumentError(f"Swapped: {self.one!r} and {self.other!r} have different numbers of positions")

    def injector(self, random: np.random.Generator, configuration: Configuration) -> Injector:
        k, n = configuration.names.index(self.one), configuration.names.index(self.other)

        def swap(values: Array, slices: Sequence[slice]) -> Array:
            values[slices[k]], values[slices[n]] = values[slices[n]].copy(), values[slices[k]].copy()
            return values

        in_q, in_v = configuration.q_slices, configuration.v_slices
        return _on_either(
            self, configuration, lambda q, v: (swap(q, in_q), swap(v, in_v)), lambda effort: swap(effort, in_v)
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
    configuration: Configuration,
    state: Callable[[Array, Array], tuple[Array, Array]],
    command: Callable[[Array], Array],
) -> Injector:
    """What changes (q, v) of states, or what commands say, by efforts, positions or velocities, in any order."""
    if fault.channel == "states":
        return _on_states(fault, state)
    names = configuration.velocity_names

    def pass_on(t: float, message: JointCommand) -> list[Delivery]:
        order = [message.name.index(name) for name in names]
        values = np.array(getattr(message, message.interface))
        values_sent = values.copy()
        values_sent[order] = command(values[order].copy())
        return [(t, msgspec.structs.replace(message, **{message.interface: values_sent.tolist()}))]

    return pass_on


Message = TypeVar("Message", PlantState, JointCommand)

_ROUNDING_S = 1e-9
"""Times are products of a step and a count: a message that is just due must not be late by their rounding."""


class Channel(Generic[Message]):
    """The channel of the states, or that of the commands, between a plant and its controller, with its faults.

    faults: Those of both channels; the other channel's are left out.
    """

    def __init__(self, faults: Sequence[Fault], channel: ChannelName, seed: int, configuration: Configuration) -> None:
        self._stages: list[tuple[ChannelFault, Injector]] = []
        self._name, self._seed, self._configuration = channel, seed, configuration
        self._streams = itertools.count()
        self._in_flight: list[tuple[float, int, Message]] = []
        self._number = itertools.count()
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """One more fault, after the others; one of the other channel changes nothing."""
        # a random stream for each fault, so that one more fault leaves the others as they were
        stream = next(self._streams)
        fault.check(self._configuration)
        if isinstance(fault, ChannelFault) and fault.channel == self._name:
            injector = fault.injector(np.random.default_rng((self._seed, stream)), self._configuration)
            self._stages.append((fault, injector))

    def send(self, message: Message, now_s: float, plant_s: float | None = None) -> None:
        """Sends a message at `now_s`, by any clock; plant_s: the plant's time, where that is another."""
        time = now_s if plant_s is None else plant_s
        deliveries: list[Delivery] = [(now_s, message)]
        for fault, inject in self._stages:
            if fault.active_at(time):
                deliveries = [delivery for t, delivered in deliveries for delivery in inject(t, delivered)]
        for t, delivered in deliveries:
            # the number keeps the order of messages that arrive at the same time
            heapq.heappush(self._in_flight, (t, next(self._number), delivered))

    def due(self, now_s: float) -> list[Message]:
        """Returns the messages that arrived by `now_s` since the last call, in the order of arrival."""
        arrived = []
        while self._in_flight and self._in_flight[0][0] <= now_s + _ROUNDING_S:
            arrived.append(heapq.heappop(self._in_flight)[2])
        return arrived

    def newest(self, now_s: float) -> Message | None:
        """Returns the last message that arrived by `now_s`, and drops older ones; None if there is no new one."""
        arrived = self.due(now_s)
        return arrived[-1] if arrived else None

    @property
    def next_s(self) -> float:
        """When the next message arrives; infinite where none is under way."""
        return self._in_flight[0][0] if self._in_flight else math.inf
