"""Faults of the values in messages: of the positions and velocities of states, and of what commands command."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from dyn_service.errors import InvalidArgumentError
from dyn_service.hil.faults import (
    ChannelFault,
    ChannelName,
    Delivery,
    Injector,
    check_finite,
    check_share,
    check_size,
    joint_index,
)
from dyn_service.hil.signals import Array
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration


@dataclass(frozen=True, kw_only=True)
class ValueFault(ChannelFault, ABC):
    """A fault of the values of joints; without `joints`, of all. On states it is what the controller gets to see, on
    commands what the drives get: the plant itself is as it is.
    """

    joints: Sequence[str] = ()

    def check(self, at: Configuration) -> None:
        """Refuses joints that the robot has not."""
        if isinstance(self.joints, str):
            raise InvalidArgumentError(
                f"{type(self).__name__}: joints is {self.joints!r}: expected a list of names, [{self.joints!r}]"
            )
        for name in self.joints:
            joint_index(self, name, at)

    def entries(self, at: Configuration) -> tuple[list[int], list[int]]:
        """Where the joints stand in q and in v."""
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
        """Keeps the first positions it sees."""
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
        """Adds it."""
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
        """Adds it, anew for each message."""
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
    """Efforts are cut to +-limit, N m | N, by a drive that says nothing of it; on states, positions, rad | m."""

    limit: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self, "limit", self.limit)

    def injector(self, random: np.random.Generator, at: Configuration) -> Injector:
        """Cuts them."""
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
        """Refuses joints that the robot has not, or of different sizes."""
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
    """What changes (q, v) of states.

    Raises:
        InvalidArgumentError: The fault is of the commands.
    """
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
