"""Publishing and subscribing without a node: for `dyn topic`, recorders and viewers."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dyn_service.graph.middleware.discovery import Discovery, ambiguous
from dyn_service.graph.middleware.graph import runtime_folders
from dyn_service.graph.middleware.node import LOOK_S, Node
from dyn_service.graph.middleware.pubsub import RawSubscription
from dyn_service.graph.middleware.stop import Stop
from dyn_service.graph.middleware.zmq_sockets import open_context
from dyn_service.messages import Message
from dyn_service.support.parameters import NoParameters

QUEUE = 10_000


@contextmanager
def listening(topic: str, kind: str, discovery: Discovery, say: Callable[[str], None]) -> Iterator[RawSubscription]:
    """Context with the frames of a topic or endpoint from all publishers of one type; see `frames`."""
    with open_context() as context:
        explicit_endpoint = topic if "://" in topic else ""
        subscription = RawSubscription(context, topic, kind, QUEUE, explicit_endpoint=explicit_endpoint, say=say)
        try:
            subscription.look(discovery.entries(topic))
            yield subscription
        finally:
            subscription.close()


def frames(
    subscription: RawSubscription, discovery: Discovery, pause_s: float | None = None
) -> Iterator[memoryview | None]:
    """Yields each message, also from later publishers, without end; None if nothing arrived for `pause_s`."""
    next_look = time.monotonic() + LOOK_S
    silent_since = time.monotonic()
    while True:
        frame = subscription.take_frame()
        if frame is not None:
            silent_since = time.monotonic()
            yield frame
        else:
            subscription.socket.poll(int(1e3 * LOOK_S))
        now = time.monotonic()
        if now >= next_look:
            subscription.look(discovery.entries(subscription.topic))
            next_look = time.monotonic() + LOOK_S
        if pause_s is not None and now - silent_since >= pause_s:
            silent_since = now
            yield None


class Rate:
    """Rate of messages, from the times of the last `window` messages."""

    def __init__(self, window: int) -> None:
        self._times: deque[float] = deque(maxlen=window + 1)

    def add(self, at_s: float) -> None:
        """Adds the time of a message."""
        self._times.append(at_s)

    def lines(self, missed_count: int) -> list[str]:
        """Returns the rate in the format of `ros2 topic hz`, with the number of missed messages."""
        times = list(self._times)
        if len(times) < 2:
            return ["no new messages"]
        gaps = [second - first for first, second in itertools.pairwise(times)]
        mean = statistics.fmean(gaps)
        spread_text = f"min: {min(gaps):.6f}s max: {max(gaps):.6f}s std dev: {statistics.pstdev(gaps):.6f}s"
        return [
            f"average rate: {1.0 / mean if mean > 0.0 else float('inf'):.3f}",
            f"\t{spread_text} window: {len(gaps)}" + (f" missed: {missed_count}" if missed_count else ""),
        ]


WAIT_S = 2.0
"""Time to wait for a subscriber before a limited number of messages."""
_STAY_S = 0.2
"""Time before closing after the last message."""


def publish(discovery: Discovery, topic: str, message: Message, rate_hz: float, times: int, stop: Stop) -> int:
    """Publishes a message from a temporary node, in the launch that has the topic.

    times: Number of messages; 0 is unlimited. If limited, waits up to `WAIT_S` for a subscriber first.

    Returns:
        The number of subscribers at the end.
    """
    with open_context() as context:
        node = Node.alone(f"/_dyn_topic_pub_{os.getpid()}", NoParameters(), folder_of(discovery, topic), context)
        try:
            out = node.create_publisher(type(message), topic, latched=True)
            node.telemetry.before_ready = node.begin
            node.telemetry.ready()
            deadline_s = time.monotonic() + WAIT_S
            while times and not out.subscribers and time.monotonic() < deadline_s and not stop.requested:
                node.spin_once(0.05)
            timer = node.create_timer(1.0 / rate_hz, lambda: out.publish(message))
            out.publish(message)
            while (not times or out.sent < times) and not stop.requested:
                node.spin_once(0.1)
            timer.cancel()
            # a socket that closes at once drops what the subscriber has not received yet
            deadline_s = time.monotonic() + _STAY_S
            while time.monotonic() < deadline_s and not stop.requested:
                node.spin_once(0.05)
            return out.subscribers
        finally:
            node.close()


def folder_of(discovery: Discovery, topic: str) -> Path:
    """Returns the runtime folder of a topic's subscribers, else publishers, else of any nodes, else the user's."""
    nodes = discovery.nodes()
    for candidates in (
        {node.folder for node in nodes if any(end.name == topic for end in node.entry.subscriptions)},
        {node.folder for node in nodes if any(end.name == topic for end in node.entry.publishers)},
        {node.folder for node in nodes},
    ):
        if len(candidates) > 1:
            raise ambiguous(f"several launches may have {topic!r}", candidates)
        if candidates:
            return candidates.pop()
    return runtime_folders()[0]
