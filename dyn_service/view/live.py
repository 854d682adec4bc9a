"""What a plant does now: its joint states, from whichever launch of this user publishes them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.discovery import Discovery, full
from dyn_service.graph.middleware.executor import LOOK_S
from dyn_service.graph.middleware.listening import listening
from dyn_service.graph.middleware.subscription import Frames
from dyn_service.messages import Message, decode, ros_type
from dyn_service.messages.sensor_msgs import JointState, MultiDOFJointState
from dyn_service.model.configuration import Configuration
from dyn_service.view.motions import Motion, State, States, beside, of_states, several, stamp_of

KEPT = 600
"""States of the recent past, some 20 s of pictures."""


class Live:
    """The newest of a topic of joint states, and of that beside it where the robot wants one. topic: its full name, or
    an endpoint. say: takes what is wrong, once.
    """

    def __init__(
        self,
        topic: str,
        at: Configuration,
        heard: Mapping[type[Message], Frames],
        discovery: Discovery,
        say: Callable[[str], None],
    ) -> None:
        self.topic = topic
        self._at, self._heard, self._discovery, self._say = at, heard, discovery, say
        self._states = States(at)
        self._kept: deque[State] = deque(maxlen=KEPT)
        self._next_look_s = 0.0
        self._told = False

    def take(self) -> State | None:
        """The newest state that came since, or None."""
        if time.monotonic() >= self._next_look_s:
            for heard in self._heard.values():
                heard.look(self._discovery.entries())
            self._next_look_s = time.monotonic() + LOOK_S
        try:
            came = [message for kind, heard in self._heard.items() if (message := _newest(kind, heard)) is not None]
            if not came:
                return None
            if self._kept and max(map(stamp_of, came)) <= self._kept[-1].t:  # another run has begun
                self._kept.clear()
                self._states = States(self._at)
            state = self._states.take(came)
            fault = "its states name no joint of the robot"
        except InvalidArgumentError as error:
            state, fault = None, str(error)
        if state is None:
            if not self._told:
                self._told = True
                self._say(f"topic {self.topic!r}: {fault}")
            return None
        self._kept.append(state)
        return state

    def recent(self) -> Motion:
        """The states that were taken of late; there has been one."""
        return of_states(list(self._kept))


@contextmanager
def live(topic: str, at: Configuration, say: Callable[[str], None]) -> Iterator[Live]:
    """The newest joint states of a topic, or of an endpoint, of a robot with these joints."""
    name, discovery = full(topic), Discovery()
    other = beside(name) if several(at) else None
    with ExitStack() as stack:
        topics: dict[type[Message], str] = {JointState: name} | ({MultiDOFJointState: other} if other else {})
        heard = {
            kind: stack.enter_context(listening(each, ros_type(kind), discovery, say)) for kind, each in topics.items()
        }
        yield Live(name, at, heard, discovery, say)


def _newest(kind: type[Message], heard: Frames) -> Message | None:
    """The last of what came.

    Raises:
        InvalidArgumentError: It is none of that kind.
    """
    newest = None
    while (frame := heard.take_frame()) is not None:
        newest = bytes(frame)
    return None if newest is None else decode(kind, newest)
