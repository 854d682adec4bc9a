"""Recording topics: whoever publishes them, now or later, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.bags.clock import WallClock
from dyn_service.graph.bags.topic_listener import TopicListener
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.messages import Message, decode

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
