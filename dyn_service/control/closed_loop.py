"""A plant and who commands it in one process, step by step in simulated time: no sockets, no clock, no waiting.

    loop = ClosedLoop(plant, answer)                 # answer: a state -> the command to it, or None
    loop.run(4.0)

It is the lockstep of the plant node: a state is sent out, the command that answers it is offered, and only then does
the plant go on. Nothing depends on how fast the machine is, so that the same run gives the same bits. A state that is
not answered is a missed cycle: the plant goes on and holds its last effort, until its watchdog stops it. A law alone,
without a plant's safety, brakes and limits, is tried by `dry_run.dry_run`.
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
    """A plant under command. answer: asked about every state that is sent out. every: steps of the plant from one
    such state to the next. delay_steps: so many steps later a command is offered.

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
        """Sends a state out, has it answered, and goes on to the next; the state.

        Raises:
            DynError: What the plant or who commands it raised.
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
        """Goes on for so many s of the plant's time. seen: called after each cycle, with the state that it began with.

        Raises:
            InvalidArgumentError: That is no time to go on for.
            DynError: What the plant or who commands it raised.
        """
        if not 0.0 <= seconds < math.inf:
            raise InvalidArgumentError(f"seconds is {seconds:g}: expected a finite number that is not negative")
        end = self.plant.counters.steps + round(seconds / self.plant.dt_s)
        while self.plant.counters.steps < end:
            state = self.cycle()
            if seen is not None:
                seen(self.plant, state)
