"""Records requests to a server: a proxy process between clients and server.

Clients connect to the proxy. Messages are forwarded first and recorded afterwards; if the disk is full they are
forwarded without recording, because a robot may depend on them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import zmq

from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.graph.bags.recording import WallClock
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.graph.middleware.topics import listen
from dyn_service.messages.dyn_service_msgs import ServerReply, ServerRequest
from dyn_service.parsing import xacro
from dyn_service.service.client.sync import Client
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.sockets import check_port, receive_checked

REQUESTS, REPLIES = "/server/requests", "/server/replies"
ABOUT = "dyn_service requests"
"""Name of the note with the fingerprints of the server's robots."""
MAX_CLIENTS = 256
"""Maximum number of connections; beyond it, the one idle longest is reused."""
MAX_PARTS = 16
QUEUE = 1000
"""Queue length per peer and direction; more messages are dropped and counted."""
_WAIT_MS = 100


class RequestRecorder:
    """Listens like the server, and has one connection to the server per client.

    Args:
        server: The server's endpoint.
        where: The endpoint to listen on: `ipc://` or tcp on 127.0.0.1; port 0 chooses a free one.
        writer: The bag.
        say: Called with each problem, once.

    Raises:
        InvalidArgumentError: An endpoint is invalid, in use, or reachable from other machines.
    """

    def __init__(self, server: str, where: str, writer: BagWriter, say: Callable[[str], None]) -> None:
        if not where.startswith(("ipc:///", "tcp://127.0.0.1:", "tcp://localhost:")):
            raise InvalidArgumentError(
                f"--listen must be an endpoint of this machine, such as tcp://127.0.0.1:5756, found {where!r}: "
                "requests to it reach the server with this recorder's permissions"
            )
        self._server, self._writer, self._say = check_port(server, "server"), writer, say
        self._clock = WallClock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._backs: OrderedDict[bytes, tuple[int, zmq.Socket[bytes]]] = OrderedDict()
        self._whose: dict[zmq.Socket[bytes], bytes] = {}
        self._recording = True
        self.requests = self.replies = self.dropped = self.clients = 0
        self._front = self._socket(zmq.ROUTER)
        try:
            self._connection(self._server).close()
            listen(self._front, check_port(where, "listen"))
        except zmq.ZMQError as error:
            self.close()
            raise InvalidArgumentError(f"endpoints {server!r} and {where!r}: {error.strerror}") from None
        self.endpoint = self._front.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller.register(self._front, zmq.POLLIN)

    def run(self, going_on: Callable[[], bool]) -> None:
        """Forwards messages while `going_on()` is true; it is called at least ten times per second."""
        while going_on():
            for socket, _ in self._poller.poll(_WAIT_MS):
                if socket is self._front:
                    self._forward()
                else:
                    self._back(socket)
            if self._recording:
                self._record(self._writer.flush_when_due)

    def close(self) -> None:
        """Closes all connections."""
        for _, socket in self._backs.values():
            socket.close()
        self._front.close()
        self._context.term()

    @property
    def whole(self) -> bool:
        """Whether everything was recorded."""
        return self._recording

    def _forward(self) -> None:
        identity, *parts = self._front.recv_multipart()
        if not 1 <= len(parts) <= MAX_PARTS:
            self.dropped += 1
            return
        number, back = self._of(identity)
        if not self._send(back, parts):
            return
        self.requests += 1
        self._note(REQUESTS, ServerRequest(number, parts[-1]))

    def _back(self, socket: zmq.Socket[bytes]) -> None:
        identity = self._whose.get(socket)
        if identity is None:  # it has just been closed
            return
        parts = [receive_checked(socket, self._server)]
        while socket.getsockopt(zmq.RCVMORE):
            parts.append(socket.recv())
        if self._send(self._front, [identity, *parts]):
            self.replies += 1
            self._note(REPLIES, ServerReply(self._backs[identity][0], parts[-1]))

    def _of(self, identity: bytes) -> tuple[int, zmq.Socket[bytes]]:
        found = self._backs.get(identity)
        if found is None:
            if len(self._backs) >= MAX_CLIENTS:
                _, (_, oldest) = self._backs.popitem(last=False)
                self._poller.unregister(oldest)
                del self._whose[oldest]
                oldest.close()
            self.clients += 1
            found = self._backs[identity] = (self.clients, self._connection(self._server))
            self._whose[found[1]] = identity
            self._poller.register(found[1], zmq.POLLIN)
        self._backs.move_to_end(identity)
        return found

    def _connection(self, server: str) -> zmq.Socket[bytes]:
        socket = self._socket(zmq.DEALER)
        try:
            socket.connect(server)
        except zmq.ZMQError:
            socket.close()
            raise
        return socket

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, QUEUE)
        socket.setsockopt(zmq.RCVHWM, QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, RequestLimits().max_message_bytes)
        return socket

    def _send(self, socket: zmq.Socket[bytes], parts: list[bytes]) -> bool:
        try:
            socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ZMQError:  # the peer is gone
            self.dropped += 1
            return False
        return True

    def _note(self, topic: str, message: ServerRequest | ServerReply) -> None:
        if self._recording:
            self._record(lambda: self._writer.write(topic, message, self._clock.now_ns()))

    def _record(self, step: Callable[[], None]) -> None:
        try:
            step()
        except DynError as error:
            self._recording = False
            self._say(f"{error}; requests go on unrecorded")


def fingerprints(server: str, timeout_s: float = 5.0) -> dict[str, str]:
    """Returns the fingerprints of a server's robots by name.

    Raises:
        DynError: The server does not answer, or needs a key.
    """
    with Client(server, timeout_s=timeout_s) as client:
        return {name: client.robot(name).fingerprint for name in client.list_robots()}


def describe(writer: BagWriter, fingerprints: Mapping[str, str], files: list[Path]) -> None:
    """Writes the fingerprints and files of the robots to the bag.

    Raises:
        InvalidArgumentError: A file cannot be read.
        ResourceExhaustedError: The disk is full.
    """
    writer.note(ABOUT, dict(fingerprints))
    for file in files:
        try:
            text = xacro.expanded(file, {}) if file.suffix == ".xacro" else file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"robot {str(file)!r} cannot be read: {error}") from None
        writer.attach(file.name, "application/xml", text.encode(), time.time_ns())
