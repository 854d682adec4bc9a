"""What a plant does now: its joint states, from whichever launch of this user publishes them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dyn_service.errors import InvalidArgumentError
from dyn_service.messages import decode
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.model.configuration import Configuration
from dyn_service.nodes.everywhere import Everywhere, full
from dyn_service.nodes.listening import listening
from dyn_service.nodes.subscription import Frames
from dyn_service.nodes.turns import LOOK_S
from dyn_service.view.motions import Motion, State, of_joint_state, of_states

KEPT = 600
"""States of the recent past, some 20 s of pictures."""
TYPE = "sensor_msgs/msg/JointState"


class Live:
    """The newest of a topic of joint states. topic: its full name, or an endpoint. say: takes what is wrong, once."""

    def __init__(
        self, topic: str, at: Configuration, heard: Frames, everywhere: Everywhere, say: Callable[[str], None]
    ) -> None:
        self.topic = topic
        self._at, self._heard, self._everywhere, self._say = at, heard, everywhere, say
        self._kept: deque[State] = deque(maxlen=KEPT)
        self._next_look_s = 0.0
        self._told = False

    def take(self) -> State | None:
        """The newest state that came since, or None."""
        if time.monotonic() >= self._next_look_s:
            self._heard.look(self._everywhere.entries())
            self._next_look_s = time.monotonic() + LOOK_S
        newest = None
        while (frame := self._heard.take_frame()) is not None:
            newest = bytes(frame)
        if newest is None:
            return None
        try:
            state = of_joint_state(decode(JointState, newest), self._at)
            fault = "" if state is not None else "its states name no joint of the robot"
        except InvalidArgumentError as error:
            state, fault = None, str(error)
        if state is None:
            if not self._told:
                self._told = True
                self._say(f"topic {self.topic!r}: {fault}")
            return None
        if self._kept and state.t <= self._kept[-1].t:  # another run has begun
            self._kept.clear()
        self._kept.append(state)
        return state

    def recent(self) -> Motion:
        """The states that were taken of late; there has been one."""
        return of_states(list(self._kept))


@contextmanager
def live(topic: str, at: Configuration, say: Callable[[str], None]) -> Iterator[Live]:
    """The newest joint states of a topic, or of an endpoint, of a robot with these joints."""
    name, everywhere = full(topic), Everywhere()
    with listening(name, TYPE, everywhere, say) as heard:
        yield Live(name, at, heard, everywhere, say)
