"""Records topics of all publishers on this machine, present and future."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path

import zmq

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.graph.middleware.graph import Graph
from dyn_service.graph.middleware.pubsub import RawSubscription
from dyn_service.graph.middleware.zmq_sockets import Context, close_context
from dyn_service.messages import Message, by_type, decode

_WAIT_MS = 50


QUEUE = 10_000
"""Queue length per publisher."""
LOOK_S = 0.1
"""Seconds between searches for publishers."""
MAX_TOPICS = 1000
"""Maximum number of topics; later ones are ignored."""
_TURN = 1000
"""Maximum number of messages of one topic per turn."""
Folders = Callable[[], Sequence[Path]]
"""Returns the current folders of nodes, see `graph.runtime_folders`."""


class TopicListener:
    """Receives the messages of topics.

    topics: Full names, or patterns such as `/arm/*`; "*" is all. folders: See `Folders`. say: Called with each problem,
    once. done: What happens to the messages, for problem texts: "recorded".
    """

    def __init__(
        self, topics: Sequence[str], folders: Folders, say: Callable[[str], None], done: str = "recorded"
    ) -> None:
        self._topics, self._folders, self._say, self._done = tuple(topics), folders, say, done
        self._graphs: dict[Path, Graph] = {}
        self._context: Context = zmq.Context()
        self._subscriptions: dict[tuple[str, str], tuple[type[Message], RawSubscription]] = {}
        self._refused: set[tuple[str, str]] = set()
        self._published_twice: set[str] = set()
        self._poller = zmq.Poller()
        self._next_look = 0.0

    @property
    def missed(self) -> int:
        """Messages that were published and did not come, by their publishers' counts."""
        return sum(subscription.missed for _, subscription in self._subscriptions.values())

    def receive(self, wait_ms: int, take: Callable[[str, type[Message], memoryview], None]) -> None:
        """Waits for messages up to a timeout; calls `take` with topic, type and frame of each."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            self._look()
        self._poller.poll(wait_ms)
        for (topic, _), (kind, subscription) in self._subscriptions.items():
            for _ in range(_TURN):
                frame = subscription.take_frame()
                if frame is None:
                    break
                take(topic, kind, frame)

    def topics(self) -> list[tuple[str, type[Message]]]:
        """The received topics with their types; a topic with several types has several entries."""
        topics = ((topic, kind) for (topic, _), (kind, _) in self._subscriptions.items())
        return sorted(topics, key=itemgetter(0))

    def close(self) -> None:
        """Ends it."""
        close_context(self._context)

    def _look(self) -> None:
        self._graphs = {folder: self._graphs.get(folder) or Graph(folder) for folder in self._folders()}
        nodes, folders_of = [], dict[str, set[Path]]()
        for folder, graph in self._graphs.items():
            for node in graph.nodes():
                nodes.append(node)
                for end in node.publishers:
                    if any(fnmatch.fnmatchcase(end.name, pattern) for pattern in self._topics):
                        self._subscribe(end.name, end.type)
                        folders_of.setdefault(end.name, set()).add(folder)
        for _, subscription in self._subscriptions.values():
            subscription.look(nodes)
        for topic, places in folders_of.items():
            if len(places) > 1 and topic not in self._published_twice:
                self._published_twice.add(topic)
                self._say(
                    f"topic {topic!r} is published in several launches, and {self._done} from all: "
                    f"$DYN_RUNTIME_DIR names one, {', '.join(sorted(map(str, places)))}"
                )

    def _subscribe(self, topic: str, type_name: str) -> None:
        key = (topic, type_name)
        if key in self._subscriptions or key in self._refused:
            return
        if len(self._subscriptions) + len(self._refused) >= MAX_TOPICS:
            return
        try:
            kind = by_type(type_name)
        except NotFoundError as error:
            self._refused.add(key)
            self._say(f"topic {topic!r} is not {self._done}: {error}")
            return
        # Publishers of a topic with different types have separate subscriptions.
        subscription = RawSubscription(self._context, topic, type_name, QUEUE, say=lambda sentence: None)
        self._subscriptions[key] = kind, subscription
        self._poller.register(subscription.socket, zmq.POLLIN)


class TopicRecorder(TopicListener):
    """Writes the messages of topics to a bag; see `TopicListener`."""

    def __init__(self, writer: BagWriter, topics: Sequence[str], folders: Folders, say: Callable[[str], None]) -> None:
        super().__init__(topics, folders, say)
        self._writer = writer
        self._clock = WallClock()
        self.malformed = 0

    def run(self, going_on: Callable[[], bool]) -> None:
        """Records while `going_on()` is true; it is called at least ten times per second.

        Raises:
            ResourceExhaustedError: The disk is full; the bag has been ended.
        """
        while going_on():
            self.turn(_WAIT_MS)

    def turn(self, wait_ms: int) -> None:
        """Waits for messages up to a timeout and writes them."""
        self.receive(wait_ms, self._write)
        self._writer.flush_when_due()

    def _write(self, topic: str, kind: type[Message], frame: memoryview) -> None:
        arrival_ns = self._clock.now_ns()
        try:
            message = decode(kind, frame)
        except InvalidArgumentError as error:
            self.malformed += 1
            if self.malformed == 1:
                self._say(f"topic {topic!r}: {error}; it is not recorded")
            return
        self._writer.write(topic, message, arrival_ns)


class WallClock:
    """Nanoseconds since 1970: the system time at creation plus a monotonic clock."""

    def __init__(self) -> None:
        # the system's clock may be set back while it records, and times of a bag must not fall
        self._wall_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Returns the current time."""
        return self._wall_ns + time.monotonic_ns()
