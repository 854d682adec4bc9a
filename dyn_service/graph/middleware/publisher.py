"""A node's end of a topic that it publishes."""

from __future__ import annotations

import secrets
from typing import Any, Generic, TypeVar

import zmq

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware import topics
from dyn_service.graph.middleware.graph import End
from dyn_service.graph.middleware.sequence_trailer import marked
from dyn_service.messages import Message, encode, ros_type
from dyn_service.service.protocol.sockets import is_readable

M = TypeVar("M", bound=Message)
QUEUE = 1000
"""Messages that wait for one subscriber, unless it is said otherwise; those beyond are dropped for it alone."""
_LINGER_MS = 200


class Publisher(Generic[M]):
    """Publishes messages of one type, to whoever listens; it never waits for anybody.

    sent: messages published. muted: nothing is, while the node is not active. latched: the last message is sent again
    when a subscriber comes. subscribers: how many listen, as counted in the last `turn`.

    Args:
        context: ZeroMQ's.
        kind: The type of the messages.
        end: The topic's full name, its type, and the endpoint to listen at.
        queue: Messages that may wait for one subscriber.
        latched: Whether those who come late get the last message.
        written: A further endpoint that is written down.
        binds: Whether it listens there, or connects to one who does.

    Raises:
        InvalidArgumentError: An endpoint cannot be listened at.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: type[M],
        end: End,
        *,
        queue: int = QUEUE,
        latched: bool = False,
        written: str = "",
        binds: bool = True,
    ) -> None:
        self.kind, self.end = kind, end
        self.sent = self.subscribers = 0
        self.muted = False
        self._number = secrets.randbits(32)
        self._last: bytes | None = None
        self.latched = latched
        self.socket = context.socket(zmq.XPUB)
        self.socket.setsockopt(zmq.SNDHWM, queue)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self.socket.setsockopt(zmq.XPUB_VERBOSER, 1)  # tells of every subscriber, not of the first and last alone
        try:
            _attach(self.socket, end.endpoint, end.name, binds=True)
            if written:
                _attach(self.socket, written, end.name, binds=binds)
        except BaseException:
            self.socket.close(linger=0)
            raise

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self.end.name

    def publish(self, message: M) -> bool:
        """Sends the message to all who listen; False where the node is not active.

        Raises:
            InvalidArgumentError: It is of another type, or a value in it has no place in a message.
            ResourceExhaustedError: It is too large.
        """
        if self.muted:
            return False
        if not isinstance(message, self.kind):
            raise InvalidArgumentError(
                f"topic {self.topic!r} is of {ros_type(self.kind)}, found a {_called(message)} to publish"
            )
        self.sent += 1
        frame = marked(encode(message), self._number, self.sent)
        if self.latched:
            self._last = frame
        self.socket.send(frame, zmq.NOBLOCK)
        return True

    def turn(self) -> None:
        """Counts the subscribers; a latched one sends its last message again where one has come since."""
        came = False
        while is_readable(self.socket):
            begins = self.socket.recv(zmq.NOBLOCK)[:1] == b"\x01"
            came |= begins
            self.subscribers += 1 if begins else -1
        if came and self._last is not None and not self.muted:
            self.socket.send(self._last, zmq.NOBLOCK)

    def close(self) -> None:
        """Ends it; what waits is sent within a moment."""
        self.socket.close()
        topics.remove_file(self.end.endpoint)


def _attach(socket: zmq.Socket[Any], where: str, topic: str, *, binds: bool) -> None:
    try:
        if binds:
            topics.listen(socket, where)
        else:
            socket.connect(where)
    except zmq.ZMQError as error:
        raise InvalidArgumentError(f"topic {topic!r} at {where!r}: {error.strerror}") from None


def _called(message: object) -> str:
    return ros_type(message) if isinstance(message, Message) else type(message).__name__
