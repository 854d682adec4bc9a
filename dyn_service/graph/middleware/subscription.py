"""A node's end of a topic that it listens to: the frames of all who publish it, and the messages in them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import zmq

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError
from dyn_service.graph.middleware import topics
from dyn_service.graph.middleware.graph import End, NodeEntry
from dyn_service.graph.middleware.sequence_trailer import MARK_BYTES, split
from dyn_service.messages import MAX_BYTES, Message, decode, ros_type
from dyn_service.service.protocol.sockets import is_readable, receive_checked

M = TypeVar("M", bound=Message)
_PUBLISHERS = 256
"""Whose counts are kept; of more that come and go, the oldest are forgotten."""
_TRIES = 8
"""Frames that one call looks at: who sends nothing but garbage does not hold a loop up."""
_LOG = logging.getLogger(__name__)


class Frames:
    """Frames of a topic, whatever is in them.

    received: frames taken. missed: those that publishers sent in between and that were not taken, by their counts.

    Args:
        context: ZeroMQ's.
        topic: The full name.
        kind: The type's name; publishers of another type are not listened to. Empty is any.
        queue: 1 keeps the newest frame of each publisher alone; n lets n wait of each.
        written: An endpoint that is written down: then publishers are not looked for.
        binds: Whether it listens there, or connects to one who does.
        say: Told once of each fault; by default the log is.

    Raises:
        InvalidArgumentError: `queue` is not positive, or the endpoint cannot be listened at.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        topic: str,
        kind: str = "",
        queue: int = 1,
        *,
        written: str = "",
        binds: bool = False,
        say: Callable[[str], None] = _LOG.warning,
    ) -> None:
        if queue < 1:
            raise InvalidArgumentError(f"topic {topic!r}: queue is {queue}, expected 1 (the newest alone) or more")
        self.topic, self.kind, self.written, self.queue = topic, kind, written, queue
        self.end = End(topic, kind, written if binds else "")
        self.received = self.missed = 0
        self._say = say
        self._said: set[str] = set()
        self._connected: set[str] = set()
        self._counts: dict[int, int] = {}
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES + MARK_BYTES)
        if queue == 1:
            self.socket.setsockopt(zmq.CONFLATE, 1)
        else:
            self.socket.setsockopt(zmq.RCVHWM, queue)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            if written and binds:
                topics.listen(self.socket, written)
            elif written:
                self.socket.connect(written)
        except zmq.ZMQError as error:
            self.socket.close()
            raise InvalidArgumentError(f"topic {topic!r} at {written!r}: {error.strerror}") from None

    @property
    def publishers(self) -> int:
        """How many publishers it listens to, of those that were found."""
        return len(self._connected)

    def look(self, nodes: Iterable[NodeEntry]) -> None:
        """Connects to the publishers among these nodes, and leaves those that are no longer there."""
        if self.written:
            return
        found = {}
        for node in nodes:
            for end in node.publishers:
                if end.name == self.topic and end.endpoint:
                    if self.kind and end.type != self.kind:
                        self.fault(
                            f"topic {self.topic!r}: node {node.name!r} publishes {end.type}, expected {self.kind}; "
                            "it is not listened to"
                        )
                    else:
                        found[end.endpoint] = node.name
        for gone in self._connected - found.keys():
            self._connected.remove(gone)
            self.socket.disconnect(gone)
        for new in found.keys() - self._connected:
            try:
                self.socket.connect(new)
            except zmq.ZMQError as error:
                self.fault(f"topic {self.topic!r}: node {found[new]!r} at {new!r}: {error.strerror}")
            else:
                self._connected.add(new)

    def take_frame(self) -> memoryview | None:
        """The next frame's message, or None where none waits."""
        for _ in range(_TRIES):
            if not is_readable(self.socket):
                break
            try:
                frame = receive_checked(self.socket, self.written or "ipc:// publisher", zmq.NOBLOCK)
            except PermissionDeniedError as error:
                self.fault(f"topic {self.topic!r}: {error}; its messages are dropped")
                continue
            payload, publisher, count = split(frame)
            if publisher >= 0:
                last = self._counts.get(publisher, count - 1)
                if count == last:
                    continue  # sent again, for another one who came late
                self.missed += max(0, count - last - 1)
                if publisher not in self._counts and len(self._counts) >= _PUBLISHERS:
                    self._counts.pop(next(iter(self._counts)))
                self._counts[publisher] = count
            self.received += 1
            return payload
        return None

    def forget(self) -> None:
        """Drops what waits."""
        for _ in range(self.queue):
            if self.take_frame() is None:
                break

    def fault(self, sentence: str) -> None:
        """Says it, once."""
        if sentence not in self._said and len(self._said) < _PUBLISHERS:
            self._said.add(sentence)
            self._say(sentence)

    def close(self) -> None:
        """Ends it."""
        self.socket.close()


class Subscription(Frames, Generic[M]):
    """Messages of one type of a topic. malformed: frames that were none; each cause is said once.

    callback: called with each message by the node's `spin_once`; without one, `take` is for the node's own loop.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: type[M],
        topic: str,
        callback: Callable[[M], object] | None = None,
        queue: int = 1,
        *,
        written: str = "",
        binds: bool = False,
        say: Callable[[str], None] = _LOG.warning,
    ) -> None:
        super().__init__(context, topic, ros_type(kind), queue, written=written, binds=binds, say=say)
        self.malformed = 0
        self.callback = callback
        self._kind = kind

    def take(self) -> M | None:
        """The next message, or None where none waits."""
        for _ in range(_TRIES):
            frame = self.take_frame()
            if frame is None:
                break
            try:
                return decode(self._kind, frame)
            except InvalidArgumentError as error:
                self.malformed += 1
                self.fault(f"topic {self.topic!r}: {error}")
        return None

    def turn(self) -> bool:
        """Gives the callback what waits, at most as much as may wait; whether there was anything."""
        if self.callback is None:
            return False
        for count in range(self.queue):
            message = self.take()
            if message is None:
                return count > 0
            self.callback(message)
        return True
