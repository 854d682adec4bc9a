"""A plant and its controller in one process, step by step in simulated time: no sockets, no clock, no waiting.

    loop = ClosedLoop(plant, answer)                 # answer: a state -> its command, or None
    loop.run(4.0)

It is the lockstep of the plant node: the plant publishes a state, receives the command, then advances. The result does
not depend on the machine's speed, so equal runs give equal bits. A state without a command is a missed cycle: the plant
holds its last effort until its watchdog stops it. `dry_run.dry_run` runs a law without a plant's safety, brakes and
limits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dyn_service.control.plant.plant import Plant
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState

Answer = Callable[[PlantState], JointCommand | None]
Seen = Callable[[Plant, PlantState], None]


@dataclass
class ClosedLoop:
    """A plant and its controller. answer: called with every published state. every: plant steps between published
    states. delay_steps: plant steps after which a command arrives.

    Raises:
        InvalidArgumentError: A number of steps is out of its range.
    """

    plant: Plant
    answer: Answer
    every: int = 1
    delay_steps: int = 0
    _under_way: deque[tuple[int, JointCommand]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        whole = isinstance(self.every, int) and isinstance(self.delay_steps, int)
        if not whole or self.every < 1 or self.delay_steps < 0:
            raise InvalidArgumentError(
                f"every is {self.every}, delay_steps {self.delay_steps}: expected whole numbers, from 1 and from 0 on"
            )

    def cycle(self) -> PlantState:
        """Publishes a state, passes its command to the plant, advances, and returns the state.

        Raises:
            DynError: Raised by the plant or its controller.
        """
        plant = self.plant
        state = plant.publish()
        command = self.answer(state)
        if command is not None:
            self._under_way.append((plant.counters.steps + self.delay_steps, command))
        for _ in range(self.every):
            while self._under_way and self._under_way[0][0] <= plant.counters.steps:
                plant.offer(self._under_way.popleft()[1])
            plant.advance(1)
        return state

    def run(self, seconds: float, seen: Seen | None = None) -> None:
        """Runs for `seconds` of plant time. seen: called after each cycle with the state at its beginning.

        Raises:
            InvalidArgumentError: `seconds` is negative or not finite.
            DynError: Raised by the plant or its controller.
        """
        if not 0.0 <= seconds < math.inf:
            raise InvalidArgumentError(f"seconds is {seconds:g}: expected a finite number that is not negative")
        end = self.plant.counters.steps + round(seconds / self.plant.dt_s)
        while self.plant.counters.steps < end:
            state = self.cycle()
            if seen is not None:
                seen(self.plant, state)
