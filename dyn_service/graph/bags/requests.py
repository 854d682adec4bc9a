"""Recording what is asked of a server: a proxy between clients and it, in a process of its own.

The server and the clients are as they were, but that clients connect to the proxy. What is said goes on first, and is
recorded then; where the disk is full, it goes on unrecorded, for a robot may hang on it.
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
"""The note with what the server said of its robots: fingerprints by name."""
MAX_CLIENTS = 256
"""At a time; beyond, the connection that was silent longest is taken anew for the next."""
MAX_PARTS = 16
QUEUE = 1000
"""Messages that wait on each side for one peer; those beyond are dropped and counted."""
_WAIT_MS = 100


class RequestRecorder:
    """Listens as the server does, and speaks to the server for each client by a connection of its own.

    Args:
        server: The server's endpoint.
        where: Where to listen: an endpoint of this machine, `ipc://` or tcp on 127.0.0.1; port 0 is any.
        writer: The bag.
        say: Told what goes wrong, once each.

    Raises:
        InvalidArgumentError: An endpoint is none, is taken, or other machines could reach it.
    """

    def __init__(self, server: str, where: str, writer: BagWriter, say: Callable[[str], None]) -> None:
        if not where.startswith(("ipc:///", "tcp://127.0.0.1:", "tcp://localhost:")):
            raise InvalidArgumentError(
                f"--listen must be an endpoint of this machine, such as tcp://127.0.0.1:5756, found {where!r}: "
                "whoever can connect to it uses the server as this recorder"
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
        """Carries messages both ways as long as `going_on`, which is asked ten times a second and more."""
        while going_on():
            for socket, _ in self._poller.poll(_WAIT_MS):
                if socket is self._front:
                    self._forward()
                else:
                    self._back(socket)
            if self._recording:
                self._record(self._writer.flush_when_due)

    def close(self) -> None:
        """Ends all connections."""
        for _, socket in self._backs.values():
            socket.close()
        self._front.close()
        self._context.term()

    @property
    def whole(self) -> bool:
        """Whether all was recorded."""
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
        except zmq.ZMQError:  # nobody takes it, or who asked has gone
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
    """The fingerprints of the robots that a server has, by name.

    Raises:
        DynError: It does not answer, or not without a key.
    """
    with Client(server, timeout_s=timeout_s) as client:
        return {name: client.robot(name).fingerprint for name in client.list_robots()}


def describe(writer: BagWriter, fingerprints: Mapping[str, str], files: list[Path]) -> None:
    """Puts into the bag what is known of the robots: their fingerprints, and files of them.

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
