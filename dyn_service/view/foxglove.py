"""A Foxglove server for live topics, with ROS 2's schemas and bytes, as in bags.

Clients can neither publish nor call. Topics without a viewer are received but not decoded. A new viewer gets the last
message of a topic first, latched or not, because a robot's description is published once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import foxglove
from foxglove.websocket import ChannelView, Client, ServerListener

from dyn_service.errors import InvalidArgumentError, UnavailableError
from dyn_service.graph.bags.topic_recorder import Folders, TopicListener, WallClock
from dyn_service.messages import Message, decode, ros_type, schema
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.cdr import to_cdr
from dyn_service.view.web_proxy import WebProxy

NAME = "dyn_service"
PORT = 8765
"""Foxglove's own default."""
ORIGINS = ("https://app.foxglove.dev", "file://")
"""Origins of Foxglove's page and program; a web site cannot have the origin `file://`."""
AGAIN_S = 1.0
"""Seconds: stamps that go back further belong to another run; those of several publishers differ by less."""
_WAIT_MS = 50


class FoxgloveServer:
    """Serves the messages of topics to Foxglove and other clients of its protocol.

    url: its address. on_topic: called with the name and type of each new topic.

    topics: Full names, or patterns such as `/arm/*`; "*" is all. folders: See `recording.Folders`. say: Called with
    each problem, once. port: The port; 0 chooses a free one. origins: Pages that may connect, in addition to `ORIGINS`
    and those of this machine.
    """

    def __init__(
        self,
        topics: Sequence[str],
        folders: Folders,
        say: Callable[[str], None],
        on_topic: Callable[[str, str], None],
        host: str = "127.0.0.1",
        port: int = PORT,
        origins: Sequence[str] = (),
    ) -> None:
        self._say, self._on_topic = say, on_topic
        self._context = foxglove.Context()
        self._channels: dict[str, _Channel] = {}
        self._second_types: set[tuple[str, type[Message]]] = set()
        self._clock = WallClock()
        self._new_viewers = _NewViewers()
        self.malformed = 0
        self._proxy = WebProxy("Foxglove's server", host, port, {*ORIGINS, *origins}, say)
        inner_host, inner_port = self._proxy.inner
        try:
            self._server = foxglove.start_server(
                name=NAME,
                host=inner_host,
                port=inner_port,
                server_listener=self._new_viewers,
                supported_encodings=["cdr"],
                context=self._context,
            )
        except RuntimeError:
            # Another process took the port since the proxy chose it; the library's message does not say so.
            self._proxy.close()
            raise UnavailableError(f"Foxglove's server cannot listen on {inner_host}:{inner_port}") from None
        self._listener = TopicListener(topics, folders, say, "shown")
        self.url = f"ws://{host}:{self._proxy.port}"

    @property
    def missed(self) -> int:
        """Messages that were published and not received, by the publishers' sequence numbers."""
        return self._listener.missed

    def run(self, going_on: Callable[[], bool]) -> None:
        """Serves while `going_on()` is true; it is called at least ten times per second."""
        while going_on():
            self.turn(_WAIT_MS)

    def turn(self, wait_ms: int) -> None:
        """Waits for messages up to a timeout and forwards them."""
        for topic in self._new_viewers.take():
            channel = self._channels.get(topic)
            if channel is not None and channel.last is not None:
                self._send(channel, *channel.last)
        self._listener.receive(wait_ms, self._take)
        for topic, kind in self._listener.topics():
            self._channel(topic, kind)

    def close(self) -> None:
        """Closes the server and its connections."""
        self._server.stop()
        self._proxy.close()
        self._listener.close()

    def _take(self, topic: str, kind: type[Message], frame: memoryview) -> None:
        channel = self._channel(topic, kind)
        if channel.kind is not kind:
            if (topic, kind) not in self._second_types:
                self._second_types.add((topic, kind))
                kinds = f"{ros_type(channel.kind)} and as {ros_type(kind)}"
                self._say(f"topic {topic!r} is published as {kinds}: the second is not shown")
            return
        # For a new viewer: a robot's description is published once.
        channel.last = frame, self._clock.now_ns()
        if channel.out.has_sinks():
            self._send(channel, *channel.last)

    def _channel(self, topic: str, kind: type[Message]) -> _Channel:
        """Returns the channel of a topic, created if necessary; an existing one may have another type."""
        channel = self._channels.get(topic)
        if channel is None:
            channel = self._channels[topic] = _Channel(topic, kind, self._context)
            self._on_topic(topic, ros_type(kind))
        return channel

    def _send(self, channel: _Channel, frame: memoryview, came_ns: int) -> None:
        try:
            message = decode(channel.kind, frame)
            data = to_cdr(message)
        except InvalidArgumentError as error:
            self.malformed += 1
            if self.malformed == 1:
                self._say(f"topic {channel.topic!r}: {error}; it is not shown")
            return
        stamp_s = _stamp_s(message)
        if stamp_s is not None:
            if stamp_s < channel.stamp_s - AGAIN_S:
                self._begin_again()
            channel.stamp_s = stamp_s
        channel.out.log(data, log_time=came_ns)

    def _begin_again(self) -> None:
        """Clears the clients' state, because later stamps of an earlier run would hide new messages."""
        self._server.clear_session()
        for channel in self._channels.values():
            channel.stamp_s = float("-inf")
            if channel.out.has_sinks():
                self._new_viewers.add(channel.topic)


class _Channel:
    """An advertised topic. last: its last frame and arrival time, ns."""

    def __init__(self, topic: str, kind: type[Message], context: foxglove.Context) -> None:
        self.topic, self.kind = topic, kind
        self.last: tuple[memoryview, int] | None = None
        self.stamp_s = float("-inf")
        schema_of_topic = foxglove.Schema(name=ros_type(kind), encoding="ros2msg", data=schema(kind).encode())
        self.out = foxglove.Channel(topic, schema=schema_of_topic, message_encoding="cdr", context=context)


class _NewViewers(ServerListener):
    """The topics with new viewers; filled by the server in its thread."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[str] = SimpleQueue()

    def on_subscribe(self, client: Client, channel: ChannelView) -> None:
        """Called by the server for a new subscription."""
        self.add(channel.topic)

    def add(self, topic: str) -> None:
        self._waiting.put(topic)

    def take(self) -> set[str]:
        return {self._waiting.get_nowait() for _ in range(self._waiting.qsize())}


def _stamp_s(message: Any) -> float | None:
    """Returns the time of a message from its header, clock or first transform, or None."""
    header = getattr(message, "header", None)
    if header is None and (transforms := getattr(message, "transforms", None)):
        header = transforms[0].header
    stamp = getattr(message, "clock", None) if header is None else header.stamp
    return stamp.seconds() if isinstance(stamp, Time) else None
