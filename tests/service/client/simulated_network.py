"""A simulated network that loses, delays and corrupts messages, and a server behind it that restarts.

The clients and the service are the real ones; only the sockets, the clock and the event loop's selector are not.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections.abc import Callable
from dataclasses import dataclass, fields
from random import Random
from time import perf_counter_ns
from typing import Any

from dyn_service import Robot
from dyn_service.service.server.answering.service import Service


@dataclass
class Faults:
    """Probabilities of faults, and maximum durations in seconds."""

    drop: float = 0.0
    double: float = 0.0
    replay: float = 0.0
    """Delivers an earlier reply as well, possibly that to another client."""
    truncate: float = 0.0
    restart: float = 0.0
    """Restarts the server instead of answering; it is unreachable for up to 0.3 s."""
    other_model: float = 0.0
    """The restarted server serves a different robot of the same name."""
    delay_s: float = 0.0
    """Maximum delay in each direction; messages may overtake each other."""
    work_s: float = 0.0
    """Maximum time that the server works on a request."""

    def end(self) -> None:
        """Sets all faults to zero."""
        for field in fields(self):
            setattr(self, field.name, 0.0)


class World:
    """The time, the network, the server.

    Args:
        models: Robots of the same name; the server starts with the first one.
        faults: The faults; may be changed at any time.
        seed: Seed of all random numbers.
    """

    def __init__(self, models: list[Robot], faults: Faults, seed: int) -> None:
        self.now_s = 100.0
        self.faults = faults
        self.up = True
        self.connections = 1
        """Number of connections of each client so far."""
        self.sent: list[bytes] = []
        """All messages that clients sent."""
        self._models = models
        self._random = Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._old_replies: list[bytes] = []
        self.service = Service(models[:1])

    def time(self) -> float:
        return self.now_s

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), event))

    def run_until(self, until_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Advances the time to `until_s`, or until `done` returns True."""
        while not done() and self._events and self._events[0][0] <= until_s:
            at_s, _, event = heapq.heappop(self._events)
            self.now_s = max(self.now_s, at_s)
            event()
        if not done():
            self.now_s = max(self.now_s, until_s)

    def next_s(self) -> float | None:
        return self._events[0][0] if self._events else None

    def request(self, payload: bytes, deliver: Callable[[bytes], None]) -> None:
        """Sends a message to the server, subject to the faults; `deliver` gets the replies."""
        self.sent.append(payload)
        for message in self._mangled(payload):
            self.at(self._delay(), lambda message=message: self.arrive(message, deliver))

    def restart(self) -> None:
        """Restarts the server. Unlike with real sockets, replies in flight from the old server still arrive."""
        model = self._models[-1] if self._chance(self.faults.other_model) else self._models[0]
        self.service = Service([model])
        self.up = False
        self.at(self._random.uniform(0.0, 0.3), self._back)

    def _back(self) -> None:
        self.up = True
        self.connections += 1

    def arrive(self, payload: bytes, deliver: Callable[[bytes], None]) -> None:
        if not self.up:
            return
        if self._chance(self.faults.restart):
            self.restart()
            return
        work_s = self._random.uniform(0.0, self.faults.work_s)
        received_ns = perf_counter_ns() - int(work_s * 1e9)
        reply = self.service.handle(payload, received_ns)
        replies = self._mangled(reply)
        if self._old_replies and self._chance(self.faults.replay):
            replies.append(self._random.choice(self._old_replies))
        self._old_replies.append(reply)
        for message in replies:
            self.at(work_s + self._delay(), lambda message=message: deliver(message))

    def _mangled(self, message: bytes) -> list[bytes]:
        if self._chance(self.faults.drop):
            return []
        if self._chance(self.faults.truncate):
            return [message[: self._random.randrange(len(message))]]
        return [message] * (1 + self._chance(self.faults.double))

    def _delay(self) -> float:
        return 1e-4 + self._random.uniform(0.0, self.faults.delay_s)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share


class SimulatedChannel:
    """A channel for the blocking client."""

    is_sending = False
    failure = None

    def __init__(self, world: World) -> None:
        self._world = world
        self._inbox: list[bytes] = []

    @property
    def connections(self) -> int:
        return self._world.connections

    def send(self, payload: bytes) -> bool:
        if self._world.up:
            self._world.request(payload, self._inbox.append)
        return self._world.up

    def receive(self, timeout_s: float) -> bytes | None:
        self._world.run_until(self._world.now_s + max(0.0, timeout_s), lambda: bool(self._inbox))
        return self._inbox.pop(0) if self._inbox else None

    def is_connected(self, timeout_s: float = 0.0) -> bool:
        self._world.run_until(self._world.now_s + timeout_s, lambda: self._world.up)
        return self._world.up

    def renew(self) -> None:
        """Does nothing: messages in flight still arrive."""

    def close(self) -> None:
        pass


class SimulatedAsyncChannel:
    """A channel for the asyncio client."""

    is_sending = False
    failure = None

    def __init__(self, world: World, deliver: Callable[[bytes], None]) -> None:
        self._world = world
        self._deliver = deliver

    @property
    def connections(self) -> int:
        return self._world.connections

    def send(self, payload: bytes) -> bool:
        if self._world.up:
            self._world.request(payload, self._deliver)
        return self._world.up

    def is_open(self) -> bool:
        return self._world.up

    async def is_connected(self, timeout_s: float = 0.0) -> bool:
        until_s = self._world.now_s + timeout_s
        while not self._world.up and self._world.now_s < until_s:
            await asyncio.sleep(1e-3)
        return self._world.up

    def renew(self) -> None:
        """Does nothing: messages in flight still arrive."""

    async def close(self) -> None:
        pass


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with simulated time: waiting advances the time of the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__(_Waiting(world))

    def time(self) -> float:
        return self._world.now_s


class _Waiting(selectors.SelectSelector):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            next_s = self._world.next_s()
            until_s = self._world.now_s + (60.0 if timeout is None else timeout)
            self._world.run_until(until_s if next_s is None else min(until_s, next_s))
        return []
