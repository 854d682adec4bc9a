"""Publishers and subscriptions of a node.

A frame is two MessagePack objects: the message's map, and a trailer `[publisher, count]` with a unique number of the
publisher (32 bits) and the count of its messages including this one (64 bits). With the trailer a subscription counts
missed messages and recognises a latched message that was sent again for a late subscriber. Frames without a trailer are
accepted.
"""

from __future__ import annotations

import logging
import math
import secrets
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import zmq

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError
from dyn_service.graph.middleware import topics
from dyn_service.graph.middleware.graph import End, NodeEntry
from dyn_service.graph.middleware.zmq_sockets import Context, is_readable, receive_checked
from dyn_service.messages import MAX_BYTES, Message, decode, encode, ros_type

_TRAILER = struct.Struct(">BBIBQ")  # a list of two, a number of 32 bits, one of 64 bits
_LIST, _UINT32, _UINT64 = 0x92, 0xCE, 0xCF
TRAILER_BYTES = _TRAILER.size


def with_trailer(payload: bytes, publisher: int, count: int) -> bytes:
    """Returns the frame of a message."""
    # in the same frame as the message, because CONFLATE supports only one
    return payload + _TRAILER.pack(_LIST, _UINT32, publisher, _UINT64, count)


def split_trailer(frame: bytes) -> tuple[memoryview, int, int]:
    """Returns a frame's message, publisher and count; both are -1 without a trailer."""
    view = memoryview(frame)
    if len(frame) > TRAILER_BYTES:
        first, second, publisher, third, count = _TRAILER.unpack_from(frame, len(frame) - TRAILER_BYTES)
        if (first, second, third) == (_LIST, _UINT32, _UINT64):
            return view[:-TRAILER_BYTES], publisher, count
    return view, -1, -1


M = TypeVar("M", bound=Message)
QUEUE = 1000
"""Default number of messages that may wait for one subscriber; further ones are dropped for it."""
TURN_S = 0.1
"""For which callbacks of one subscription run in a turn of its node: short against the silence that counts as hung."""
_LINGER_MS = 200


class Publisher(Generic[M]):
    """Publishes messages of one type to all subscribers, and never waits.

    topic: its full name. sent: number of published messages. muted: whether publishing is off, while the node is not
    active. latched: whether the last message is sent again for a new subscriber. subscribers: their number in the last
    `turn`.

    end: The topic's full name, its type, and the endpoint to bind. explicit_endpoint: A further endpoint, from a
    parameter or remap. binds: Whether to bind to it, or to connect.
    """

    def __init__(
        self,
        context: Context,
        kind: type[M],
        end: End,
        *,
        queue: int = QUEUE,
        latched: bool = False,
        explicit_endpoint: str = "",
        binds: bool = True,
    ) -> None:
        self.kind, self.end, self.topic = kind, end, end.name
        self.sent = self.subscribers = 0
        self.muted = False
        self._number = secrets.randbits(32)
        self._last: bytes | None = None
        self.latched = latched
        self.socket = context.socket(zmq.XPUB)
        self.socket.setsockopt(zmq.SNDHWM, queue)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        # reports every subscriber, not only the first and the last
        self.socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        _attach(self.socket, end.endpoint, end.name, binds=True)
        if explicit_endpoint:
            _attach(self.socket, explicit_endpoint, end.name, binds=binds)

    def publish(self, message: M) -> bool:
        """Sends the message to all subscribers; returns False if the node is not active.

        Raises:
            InvalidArgumentError: The message has another type, or a value that cannot be encoded.
            ResourceExhaustedError: The message is too large.
        """
        if self.muted:
            return False
        if not isinstance(message, self.kind):
            message_type = ros_type(message) if isinstance(message, Message) else type(message).__name__
            topic_type = ros_type(self.kind)
            raise InvalidArgumentError(f"topic {self.topic!r} is of {topic_type}, found a {message_type} to publish")
        self.sent += 1
        frame = with_trailer(encode(message), self._number, self.sent)
        if self.latched:
            self._last = frame
        # XPUB drops messages for full queues, so it never raises `Again`
        self.socket.send(frame, zmq.NOBLOCK)
        return True

    def has_subscribers(self) -> bool:
        """Whether a message would be received, so that one that nobody would receive need not be made."""
        if not self.subscribers and is_readable(self.socket):
            self.turn()
        return self.subscribers > 0

    def turn(self) -> None:
        """Counts the subscribers; sends a latched message again if there is a new one."""
        has_new_subscriber = False
        while is_readable(self.socket):
            subscribes = self.socket.recv(zmq.NOBLOCK)[:1] == b"\x01"
            has_new_subscriber |= subscribes
            self.subscribers += 1 if subscribes else -1
        if has_new_subscriber and self._last is not None and not self.muted:
            self.socket.send(self._last, zmq.NOBLOCK)

    def close(self) -> None:
        """Closes the socket; waiting messages are still sent for a short time."""
        self.socket.close()
        topics.remove_file(self.end.endpoint)


def _attach(socket: zmq.Socket[Any], endpoint: str, topic: str, *, binds: bool) -> None:
    try:
        if binds:
            topics.listen(socket, endpoint)
        else:
            socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise InvalidArgumentError(f"topic {topic!r} at {endpoint!r}: {error.strerror}") from None


_PUBLISHERS = 256
"""Number of publishers whose counts are kept; the oldest are dropped."""
_MAX_FRAMES = 8
"""Frames that one call examines, so that a sender of garbage does not block a loop."""
_LOG = logging.getLogger(__name__)


class RawSubscription:
    """Undecoded frames of a topic.

    received: number of received frames. missed: number of frames that were sent and not received, by the trailers.

    kind: The type's name; publishers of another type are ignored. Empty is any. explicit_endpoint: An endpoint
    from a parameter or remap: publishers are then not searched. binds: Whether to bind to it, or to connect. say:
    Called once for each fault; by default logs it.
    """

    def __init__(
        self,
        context: Context,
        topic: str,
        kind: str = "",
        queue: int = 1,
        *,
        explicit_endpoint: str = "",
        binds: bool = False,
        say: Callable[[str], None] = _LOG.warning,
    ) -> None:
        if queue < 1:
            raise InvalidArgumentError(f"topic {topic!r}: queue is {queue}, expected 1 (the newest alone) or more")
        self.topic, self.kind, self.explicit_endpoint, self.queue = topic, kind, explicit_endpoint, queue
        self.end = End(topic, kind, explicit_endpoint if binds else "")
        self.received = self.missed = 0
        self._say = say
        self._reported: set[str] = set()
        self._connected: set[str] = set()
        self._counts: dict[int, int] = {}
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES + TRAILER_BYTES)
        if queue == 1:
            # a control loop must never work off old messages
            self.socket.setsockopt(zmq.CONFLATE, 1)
        else:
            self.socket.setsockopt(zmq.RCVHWM, queue)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        if explicit_endpoint:
            _attach(self.socket, explicit_endpoint, topic, binds=binds)

    @property
    def publishers(self) -> int:
        """Number of connected publishers."""
        return len(self._connected)

    def look(self, nodes: Iterable[NodeEntry]) -> None:
        """Connects to the publishers among these nodes, and disconnects from those that ended."""
        if self.explicit_endpoint:
            return
        publishers = {}
        for node in nodes:
            for end in node.publishers:
                if end.name == self.topic and end.endpoint:
                    if self.kind and end.type != self.kind:
                        text = f"node {node.name!r} publishes {end.type}, expected {self.kind}; it is ignored"
                        self.fault(f"topic {self.topic!r}: {text}")
                    else:
                        publishers[end.endpoint] = node.name
        for endpoint in self._connected - publishers.keys():
            self._connected.remove(endpoint)
            self.socket.disconnect(endpoint)
        for endpoint in publishers.keys() - self._connected:
            try:
                self.socket.connect(endpoint)
            except zmq.ZMQError as error:
                self.fault(f"topic {self.topic!r}: node {publishers[endpoint]!r} at {endpoint!r}: {error.strerror}")
            else:
                self._connected.add(endpoint)

    def take_frame(self, *, is_ready: bool = False) -> memoryview | None:
        """Returns the next frame's message, or None. is_ready: whether a poll has just reported one."""
        for _ in range(_MAX_FRAMES):
            if not is_ready and not is_readable(self.socket):
                break
            is_ready = False
            try:
                # at each message: the user is read per connection, and a socket may be connected again to another
                # process
                frame = receive_checked(self.socket, self.explicit_endpoint or "ipc:// publisher")
            except PermissionDeniedError as error:
                self.fault(f"topic {self.topic!r}: {error}; its messages are dropped")
                continue
            payload, publisher, count = split_trailer(frame)
            if publisher >= 0:
                last = self._counts.get(publisher, count - 1)
                if count == last:
                    continue  # sent again for another, late subscriber
                # counted, not estimated: a control loop that drops states has to say so exactly
                self.missed += max(0, count - last - 1)
                # bounded: each restart of a publisher has a new number
                if publisher not in self._counts and len(self._counts) >= _PUBLISHERS:
                    self._counts.pop(next(iter(self._counts)))
                self._counts[publisher] = count
            self.received += 1
            return payload
        return None

    def forget(self) -> None:
        """Drops waiting frames."""
        for _ in range(self.queue):
            if self.take_frame() is None:
                break

    def fault(self, sentence: str) -> None:
        """Reports a fault once."""
        if sentence not in self._reported and len(self._reported) < _PUBLISHERS:
            self._reported.add(sentence)
            self._say(sentence)

    def close(self) -> None:
        """Ends it."""
        self.socket.close()


class Subscription(RawSubscription, Generic[M]):
    """Messages of one type of a topic. malformed: number of malformed frames; each cause is logged once.

    callback: called with each message by the node's `spin_once`; without one, the node's loop calls `take`.
    """

    def __init__(
        self,
        context: Context,
        kind: type[M],
        topic: str,
        callback: Callable[[M], object] | None = None,
        queue: int = 1,
        *,
        explicit_endpoint: str = "",
        binds: bool = False,
    ) -> None:
        super().__init__(context, topic, ros_type(kind), queue, explicit_endpoint=explicit_endpoint, binds=binds)
        self.malformed = 0
        self.callback = callback
        self._kind = kind

    def take(self, *, is_ready: bool = False) -> M | None:
        """Returns the next message, or None. is_ready: whether a poll has just reported one."""
        for _ in range(_MAX_FRAMES):
            frame = self.take_frame(is_ready=is_ready)
            is_ready = False
            if frame is None:
                break
            try:
                return decode(self._kind, frame)
            except InvalidArgumentError as error:
                self.malformed += 1
                self.fault(f"topic {self.topic!r}: {error}")
        return None

    def turn(self) -> bool:
        """Calls the callback with waiting messages, at most `queue`, for `TURN_S`; returns whether there were any."""
        if self.callback is None:
            return False
        end_s = time.monotonic() + TURN_S if self.queue > 1 else math.inf
        for count in range(self.queue):
            if count and time.monotonic() > end_s:  # the rest waits, so that heartbeats go on behind a long queue
                break
            message = self.take()
            if message is None:
                return count > 0
            self.callback(message)
        return True
