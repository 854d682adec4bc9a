"""Recording topics: whoever publishes them, now or later, on this machine."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.graph.middleware.graph import Graph
from dyn_service.graph.middleware.pubsub import Frames
from dyn_service.messages import Message, by_type, decode

_WAIT_MS = 50


class TopicRecorder:
    """Writes the messages of topics into a bag.

    Args:
        writer: The bag.
        topics: Full names, or patterns such as `/arm/*`; "*" is all.
        folders: Gives the folders in which nodes are now, see `nodes.graph.runtime_folders`.
        say: Told what goes wrong, once each.
    """

    def __init__(
        self,
        writer: BagWriter,
        topics: Sequence[str],
        folders: Callable[[], Sequence[Path]],
        say: Callable[[str], None],
    ) -> None:
        self._writer, self._say = writer, say
        self._listener = TopicListener(topics, folders, say)
        self._clock = WallClock()
        self.malformed = 0

    @property
    def missed(self) -> int:
        """Messages that were published and did not come, by their publishers' counts."""
        return self._listener.missed

    def run(self, going_on: Callable[[], bool]) -> None:
        """Records as long as `going_on`, which is asked ten times a second and more.

        Raises:
            ResourceExhaustedError: The disk is full; the bag has been ended.
        """
        while going_on():
            self.turn(_WAIT_MS)

    def turn(self, wait_ms: int) -> None:
        """Waits for messages, at most so long, and writes what has come.

        Raises:
            ResourceExhaustedError: The disk is full; the bag has been ended.
        """
        self._listener.turn(wait_ms, self._take)
        self._writer.flush_when_due()

    def topics(self) -> list[str]:
        """Those that it listens to."""
        return sorted({topic for topic, _ in self._listener.topics()})

    def close(self) -> None:
        """Ends it; the bag is its owner's to close."""
        self._listener.close()

    def _take(self, topic: str, kind: type[Message], frame: memoryview) -> None:
        came = self._clock.now_ns()
        try:
            message = decode(kind, frame)
        except InvalidArgumentError as error:
            self.malformed += 1
            if self.malformed == 1:
                self._say(f"topic {topic!r}: {error}; it is not recorded")
            return
        self._writer.write(topic, message, came)


QUEUE = 10_000
"""Messages of each publisher that may wait while others are taken."""
LOOK_S = 0.1
"""How often it looks for publishers."""
MAX_TOPICS = 1000
"""That it listens to; those that come later are not."""
_TURN = 1000
"""Messages of one topic that are taken before the others have their turn."""


class TopicListener:
    """The messages of topics, as they come.

    Args:
        topics: Full names, or patterns such as `/arm/*`; "*" is all.
        folders: Gives the folders in which nodes are now, see `nodes.graph.runtime_folders`.
        say: Told what goes wrong, once each.
        done: What becomes of the messages, in what is said: "recorded".
    """

    def __init__(
        self,
        topics: Sequence[str],
        folders: Callable[[], Sequence[Path]],
        say: Callable[[str], None],
        done: str = "recorded",
    ) -> None:
        self._topics, self._folders, self._say, self._done = tuple(topics), folders, say, done
        self._graphs: dict[Path, Graph] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._heard: dict[tuple[str, str], tuple[type[Message], Frames]] = {}
        self._refused: set[tuple[str, str]] = set()
        self._mixed: set[str] = set()
        self._poller = zmq.Poller()
        self._next_look = 0.0

    @property
    def missed(self) -> int:
        """Messages that were published and did not come, by their publishers' counts."""
        return sum(heard.missed for _, heard in self._heard.values())

    def turn(self, wait_ms: int, take: Callable[[str, type[Message], memoryview], None]) -> None:
        """Waits for messages, at most so long, and hands on what has come: its topic, its type, its frame."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            self._look()
        self._poller.poll(wait_ms)
        for (topic, _), (kind, heard) in self._heard.items():
            for _ in range(_TURN):
                frame = heard.take_frame()
                if frame is None:
                    break
                take(topic, kind, frame)

    def topics(self) -> list[tuple[str, type[Message]]]:
        """Those that it listens to, by name, and their types; one that is published with several stands with each."""
        return sorted(((topic, kind) for (topic, _), (kind, _) in self._heard.items()), key=lambda one: one[0])

    def close(self) -> None:
        """Ends it."""
        for _, heard in self._heard.values():
            heard.close()
        self._context.term()

    def _look(self) -> None:
        self._graphs = {folder: self._graphs.get(folder) or Graph(folder) for folder in self._folders()}
        nodes, where = [], dict[str, set[Path]]()
        for folder, graph in self._graphs.items():
            for node in graph.nodes():
                nodes.append(node)
                for end in node.publishers:
                    if any(fnmatch.fnmatchcase(end.name, each) for each in self._topics):
                        self._hear(end.name, end.type)
                        where.setdefault(end.name, set()).add(folder)
        for _, heard in self._heard.values():
            heard.look(nodes)
        for topic, places in where.items():
            if len(places) > 1:
                self._tell_apart(topic)

    def _tell_apart(self, topic: str) -> None:
        """Says that a topic is one of several launches at once, which are not told apart."""
        if topic not in self._mixed:
            self._mixed.add(topic)
            self._say(
                f"topic {topic!r} is published in several launches, and {self._done} from all: "
                "$DYN_RUNTIME_DIR names one"
            )

    def _hear(self, topic: str, called: str) -> None:
        key = (topic, called)
        if key in self._heard or key in self._refused:
            return
        if len(self._heard) + len(self._refused) >= MAX_TOPICS:
            return
        try:
            kind = by_type(called)
        except NotFoundError as error:
            self._refused.add(key)
            self._say(f"topic {topic!r} is not {self._done}: {error}")
            return
        # Publishers of a topic that differ in their type have a subscription each, and each hears its own kind alone.
        heard = Frames(self._context, topic, called, QUEUE, say=lambda sentence: None)
        self._heard[key] = kind, heard
        self._poller.register(heard.socket, zmq.POLLIN)


class WallClock:
    """Nanoseconds since 1970 as they were when it was made, and from there on by a clock that nobody sets."""

    def __init__(self) -> None:
        self._wall_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Now."""
        return self._wall_ns + time.monotonic_ns()
