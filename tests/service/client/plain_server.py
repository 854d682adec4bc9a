"""A server by plain sockets, without encryption, that does with a connection what no server of ours would."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack

from dyn_service.service.protocol import zmtp

PING = zmtp.command(b"PING", bytes(2) + b"context")


def reply_to(request: bytes, **outputs: object) -> bytes:
    """Returns a successful reply, as one frame."""
    payload = msgpack.packb({"v": 1, "id": msgpack.unpackb(request)["id"], "ok": True, "outputs": outputs})
    return zmtp.frame_header(0, len(payload)) + payload


class PlainServer:
    """Listens on TCP, or on a Unix socket if `path` is given.

    answer: called with each request; returns bytes to send, or None to close the connection.
    reads: False: requests are not read after the handshake.
    """

    def __init__(
        self, answer: Callable[[bytes], bytes | None] = reply_to, path: Path | None = None, *, reads: bool = True
    ) -> None:
        self._answer, self._reads = answer, reads
        if path is None:
            self._listening = socket.create_server(("127.0.0.1", 0))
            self.endpoint = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        else:
            self._listening = socket.socket(socket.AF_UNIX)
            self._listening.bind(str(path))
            self._listening.listen()
            self.endpoint = f"ipc://{path}"
        self.requests: list[dict[str, object]] = []
        self.commands: list[bytes] = []
        """What clients sent besides messages, the handshake included."""
        self.connections: list[socket.socket] = []
        self.has_handshake = threading.Event()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> PlainServer:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # only afterwards are all connections in the list
        self._listening.close()
        self.drop()
        for thread in self._threads:
            thread.join()

    def drop(self) -> None:
        """Closes all connections."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def queries(self) -> list[object]:
        """Returns the queries of all requests."""
        return [request["query"] for request in self.requests]

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections.append(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        end = zmtp.Connection(zmtp.Null(), b"ROUTER", 1 << 30)
        with connection, suppress(OSError):
            connection.sendall(end.take_output())
            while data := connection.recv(1 << 16):
                self.commands.append(data)
                end.feed(data)
                while (message := end.next()) is not None:
                    content, parts, _ = message
                    if parts and self._reads:  # the handshake's last bytes may bring a request along
                        payload = bytes(content)
                        self.requests.append(msgpack.unpackb(payload))
                        answer = self._answer(payload)
                        if answer is None:
                            return
                        connection.sendall(answer)
                if end.ready:
                    self.has_handshake.set()
                    if not self._reads:
                        self._ended.wait()


def channel_of(client: Any) -> Any:
    """The connection of a client, which its callers never see."""
    return client._channel
