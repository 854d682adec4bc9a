"""Playback of a bag: publishes its messages with their original timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.reader import BagReader, Recorded, Topic
from dyn_service.graph.bags.requests import REPLIES, REQUESTS
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.pubsub import Publisher
from dyn_service.graph.middleware.topics import is_latched
from dyn_service.graph.middleware.zmq_sockets import Context, close_context
from dyn_service.messages import Message, by_type
from dyn_service.support.parameters import NoParameters

_STEP_S = 0.05


class Player:
    """Publishes the topics of a bag under their names, as one node.

    topics: The topics to play; empty: all. folder: The folder of the node, see `topics.runtime_dir`. start_s: Start, s
    from the start of the bag. say: Called with each topic that is skipped.

    Raises:
        NotFoundError: The bag does not have a topic, or none can be played.
        InvalidArgumentError: The rate is not positive, or the start is outside the bag.
    """

    def __init__(
        self,
        bag: BagReader,
        topics: Sequence[str],
        folder: Path,
        *,
        rate: float = 1.0,
        start_s: float = 0.0,
        say: Callable[[str], None],
    ) -> None:
        if not rate > 0.0:
            raise InvalidArgumentError(f"--rate must be positive, found {rate:g}", path="rate")
        begin, end = bag.span_ns
        duration_s = 1e-9 * (end - begin)
        if not 0.0 <= start_s <= duration_s:
            raise InvalidArgumentError(f"--start must be 0 to {duration_s:g} s, found {start_s:g}", path="start")
        self._bag, self._rate = bag, rate
        self._begin_ns = begin + round(1e9 * start_s)
        self._names = [name for name in topics or sorted(bag.names()) if name not in (REQUESTS, REPLIES)]
        self._context: Context = zmq.Context()
        self._node = Node.alone(f"/player_{time.monotonic_ns() % 10**6}", NoParameters(), folder, self._context)
        self._publishers: dict[str, Publisher[Any]] = {}
        self.played = 0
        self.latest_s = 0.0
        """By how much the latest message was late."""
        try:
            bag.check(self._names)
            for topic in bag.topics:
                if topic.name in self._names:
                    self._publish(topic, say)
            if not self._publishers:
                raise NotFoundError(f"bag {str(bag.path)!r} has no topic that can be played")  # noqa: TRY301
        except BaseException:
            self.close()
            raise

    def run(self, going_on: Callable[[], bool], delay_s: float = 0.5) -> None:
        """Plays the bag once, after `delay_s` for subscribers to find the topics."""
        clock_start_s = time.monotonic() + delay_s
        for recorded in self._bag.messages(sorted(self._publishers), self._begin_ns):
            due_s = clock_start_s + 1e-9 * (recorded.log_time_ns - self._begin_ns) / self._rate
            if not self._wait(due_s, going_on):
                return
            self.latest_s = max(self.latest_s, time.monotonic() - due_s)
            self._send(recorded)

    def close(self) -> None:
        """Ends the node."""
        self._node.close()
        close_context(self._context)

    def _wait(self, due_s: float, going_on: Callable[[], bool]) -> bool:
        """Waits; returns whether to continue."""
        while (left := due_s - time.monotonic()) > 0.0:
            if not going_on():
                return False
            # a turn of the node may take some milliseconds, so it is not done shortly before a message is due
            if left > 2.0 * _STEP_S:
                self._node.spin_once(_STEP_S)
            else:
                time.sleep(min(left, _STEP_S))
        return going_on()

    def _send(self, recorded: Recorded) -> None:
        publisher = self._publishers[recorded.topic]
        if isinstance(recorded.message, publisher.kind):
            publisher.publish(recorded.message)
            publisher.turn()
            self.played += 1

    def _publish(self, topic: Topic, say: Callable[[str], None]) -> None:
        if topic.name in self._publishers:
            say(f"topic {topic.name!r} is in the bag with several types: only the first is played")
            return
        try:
            kind: type[Message] = by_type(topic.type)
        except NotFoundError as error:
            say(f"topic {topic.name!r} is not played: {error}")
            return
        publisher = self._node.create_publisher(kind, topic.name, latched=is_latched(topic.name))
        self._publishers[topic.name] = publisher
