"""A channel between a plant and its controller, with the faults that are injected into it.

In lockstep both channels are in one process; in real time they are in a proxy between processes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from dyn_service.hil.faults import ChannelFault, ChannelName, Delivery, Fault, Injector
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration

M = TypeVar("M", PlantState, JointCommand)

_ROUNDING_S = 1e-9
"""Times are products of a step and a count: a message that is just due must not be late by their rounding."""


class Channel(Generic[M]):
    """The channel of the states, or that of the commands, with its faults.

    Args:
        faults: Those of both channels; the other channel's are left out.
        channel: Which one this is.
        seed: Of the random generators.
        at: The robot's joints.

    Raises:
        InvalidArgumentError: A fault does not fit the robot.
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
