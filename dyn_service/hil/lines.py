"""The way of messages between a plant and its controller, with the faults that are on it.

In lockstep both ways lie in one process, in real time in a proxy between processes: a `Line` serves both.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from dyn_service.hil.faults import Fault, Meddler, Sent, Way, WayFault
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration

M = TypeVar("M", PlantState, JointCommand)

_ROUNDING_S = 1e-9
"""Times are products of a step and a count: a message that is just due must not be late by their rounding."""


class Line(Generic[M]):
    """The way of the states, or of the commands, with what goes wrong on it.

    Args:
        faults: Those of both ways; the others are left out.
        path: Which way it is.
        seed: Of all chance.
        at: The robot's joints.

    Raises:
        InvalidArgumentError: A fault does not fit the robot.
    """

    def __init__(self, faults: Sequence[Fault], path: Way, seed: int, at: Configuration) -> None:
        self._stages: list[tuple[WayFault, Meddler]] = []
        self._path, self._seed, self._at = path, seed, at
        self._streams = itertools.count()
        self._under_way: list[tuple[float, int, M]] = []
        self._number = itertools.count()
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """One more fault, after the others; one that is not of this way changes nothing.

        Raises:
            InvalidArgumentError: It does not fit the robot.
        """
        stream = next(self._streams)
        fault.check(self._at)
        if isinstance(fault, WayFault) and fault.path == self._path:
            self._stages.append((fault, fault.meddler(np.random.default_rng((self._seed, stream)), self._at)))

    def send(self, message: M, now_s: float, plant_s: float | None = None) -> None:
        """Sends a message at `now_s`, by any clock; plant_s: the plant's time, where that is another."""
        time = now_s if plant_s is None else plant_s
        arriving: list[Sent] = [(now_s, message)]
        for fault, meddle in self._stages:
            if fault.there(time):
                arriving = [found for t, one in arriving for found in meddle(t, one)]
        for t, one in arriving:
            heapq.heappush(self._under_way, (t, next(self._number), one))

    def due(self, now_s: float) -> list[M]:
        """What has arrived by `now_s` since the last call, in the order of arrival."""
        arrived = []
        while self._under_way and self._under_way[0][0] <= now_s + _ROUNDING_S:
            arrived.append(heapq.heappop(self._under_way)[2])
        return arrived

    def newest(self, now_s: float) -> M | None:
        """What arrived last: who reads keeps the newest message only."""
        arrived = self.due(now_s)
        return arrived[-1] if arrived else None

    @property
    def next_s(self) -> float:
        """When the next message arrives; infinite where none is under way."""
        return self._under_way[0][0] if self._under_way else math.inf
