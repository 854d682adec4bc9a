"""`zmtp` over plain blocking sockets, for one connection at a time: the smallest client and server of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from dyn_service.service.protocol.zmtp import Connection, Mechanism, Message, ProtocolError

READ_BYTES = 1 << 18
MAX_BYTES = 200_000_000
"""Larger than the largest message of the run."""


class Wire:
    """A connected socket that speaks ZMTP. timeout_s: limit of each wait for the peer."""

    def __init__(self, stream: socket.socket, connection: Connection, timeout_s: float = 120.0) -> None:
        stream.settimeout(timeout_s)
        self.stream = stream
        self.connection = connection
        self.commands = 0
        """How many commands `receive` has handled: PINGs, mostly."""

    @classmethod
    def connect(cls, endpoint: str, mechanism: Mechanism, timeout_s: float = 120.0) -> Self:
        """Connects a client and completes the handshake."""
        scheme, _, address = endpoint.partition("://")
        if scheme == "ipc":
            stream = socket.socket(socket.AF_UNIX)
            stream.settimeout(timeout_s)
            stream.connect(address)
        else:
            host, _, port = address.rpartition(":")
            stream = socket.create_connection((host, int(port)), timeout_s)
        wire = cls(stream, Connection(mechanism, b"DEALER", MAX_BYTES), timeout_s)
        try:
            wire.shake_hands()
        except BaseException:
            wire.close()
            raise
        return wire

    def shake_hands(self) -> None:
        """Completes the handshake.

        Raises:
            ConnectionError: The peer closed the connection.
            ProtocolError: The handshake failed; the peer has got the farewell.
            TimeoutError: The peer was silent.
        """
        while not self.connection.ready:
            self.receive_command()
        self.flush()

    def receive_command(self) -> None:
        """Handles one command, for example of the handshake."""
        _, parts, _ = self._next()
        assert parts == 0, "a message in place of a command"

    def flush(self) -> None:
        """Sends what the connection has to send."""
        if output := self.connection.take_output():
            self.stream.sendall(output)

    def send(self, payload: bytes | memoryview, *, is_req: bool = False) -> None:
        """Sends a message."""
        self.flush()
        for piece in self.connection.encode(payload, is_req=is_req):
            self.stream.sendall(piece)

    def receive(self) -> Message:
        """Returns the next message; handles commands."""
        while not (message := self._next())[1]:  # its parts; a command has none
            self.commands += 1
            self.flush()
        return message

    def _next(self) -> Message:
        connection = self.connection
        try:
            while (message := connection.next()) is None:
                self.flush()
                buffer = connection.buffer
                if buffer is not None:
                    count = self.stream.recv_into(buffer)
                    connection.wrote(count)
                else:
                    data = self.stream.recv(READ_BYTES)
                    count = len(data)
                    connection.feed(data)
                if not count:
                    raise ConnectionResetError("the peer closed the connection")
        except ProtocolError as error:
            with suppress(OSError):
                self.stream.sendall(error.farewell)
            raise
        return message

    def close(self) -> None:
        """Closes the socket."""
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class EchoServer:
    """Returns each message of one part, or of a REQ socket, to its sender.

    mechanism: makes that of each connection. errors: why connections ended, except that the peer closed them. closed:
    the number of connections that were closed.
    """

    def __init__(self, mechanism: Callable[[], Mechanism], endpoint: str = "tcp://127.0.0.1:0") -> None:
        self._mechanism = mechanism
        scheme, _, address = endpoint.partition("://")
        if scheme == "ipc":
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(address)
            self.endpoint = endpoint
        else:
            host, _, port = address.rpartition(":")
            self._listener = socket.socket()
            # The cases restart a server at the same port while connections of the previous one are in TIME_WAIT.
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((host, int(port)))
            self.endpoint = f"tcp://{host}:{self._listener.getsockname()[1]}"
        self._listener.listen()
        self.errors: list[Exception] = []
        self.closed = 0
        self.wires: list[Wire] = []
        """All that were ever accepted."""
        self._streams: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._streams.append(stream)
            thread = threading.Thread(target=self._serve, args=(stream,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, stream: socket.socket) -> None:
        with Wire(stream, Connection(self._mechanism(), b"ROUTER", MAX_BYTES)) as wire:
            self.wires.append(wire)
            try:
                wire.shake_hands()
                while True:
                    payload, _, is_req = wire.receive()
                    wire.send(payload, is_req=is_req)
            except ConnectionError:
                pass
            except (ProtocolError, OSError) as error:
                self.errors.append(error)
            self.closed += 1

    def close_connections(self) -> None:
        """Cuts all connections off, as a crash does; the server stays."""
        for stream in self._streams:
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
        self._streams.clear()

    def close(self) -> None:
        """Ends the server and its threads."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        while any(thread.is_alive() for thread in self._threads):
            self.close_connections()
            for thread in list(self._threads):
                thread.join(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
