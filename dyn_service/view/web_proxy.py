"""A proxy in front of a library's web server that checks the origin of browser connections.

Browsers connect for any page, and name it in `Origin`. Pages of this machine, pages of the server itself and configured
pages may connect; others get a 403. Clients other than browsers send no origin and may connect. The library's server
listens on an address that no page can guess: on Linux, one of 16 million loopback addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from dyn_service.errors import UnavailableError
from dyn_service.support.threads import join_within

_CLOSE_S = 5.0
_HEAD_BYTES, _HEAD_S = 1 << 14, 10.0
"""Maximum size of a request's head, and seconds until it must be complete."""

_MAX_REPORTED = 100
"""Maximum number of refused origins that are reported."""


class WebProxy:
    """Listens on a port and forwards allowed connections to the server at `inner`, a free host and port.

    port: The port; 0 chooses a free one. origins: Pages that may connect, such as `https://app.foxglove.dev`. say:
    Called with each refused origin, once.

    Raises:
        UnavailableError: The port is in use, or this machine does not have the address.
    """

    def __init__(
        self, server_name: str, host: str, port: int, origins: Collection[str], say: Callable[[str], None]
    ) -> None:
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            cause = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise UnavailableError(f"{server_name} cannot listen on {host}:{port}: {cause}; try --port") from None
        self.port: int = self._socket.getsockname()[1]
        hidden = ".".join(str(1 + secrets.randbelow(254)) for _ in range(3))
        # No page can guess one of 16 million loopback addresses, which other systems than Linux do not have.
        inner = f"127.{hidden}" if sys.platform == "linux" else "127.0.0.1"
        with socket.create_server((inner, 0)) as probe:
            self.inner: tuple[str, int] = probe.getsockname()
        self._server_name, self._origins, self._say, self._reported_origins = server_name, origins, say, set[str]()
        self._loop, self._closed = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="dyn_service web proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes all connections; raises `DeadlineExceededError` if their thread does not end."""
        self._loop.call_soon_threadsafe(self._closed.set)
        join_within(self._thread, _CLOSE_S, f"{self._server_name}'s proxy")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, sock=self._socket, limit=_HEAD_BYTES)
        await self._closed.wait()
        server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.closing(writer),
            # `close` cancels a handler, and asyncio in Python 3.11 prints a traceback for one that ends cancelled.
            contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError),
        ):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
            origin = refused_origin(head.decode("latin-1"), self._origins)
            if origin is None:
                await self._forward(head, reader, writer)
            else:
                writer.write(self._refusal(origin))
                await writer.drain()

    def _refusal(self, origin: str) -> bytes:
        """Returns the response to a refused origin, and reports the origin once."""
        text = f"{self._server_name}: pages of {origin!r} may not connect; --origin names pages that may\n"
        # Pages choose their origin: without a bound they would fill the log, and the memory.
        if len(self._reported_origins) < _MAX_REPORTED and origin not in self._reported_origins:
            self._reported_origins.add(origin)
            self._say(text.rstrip())
        response = f"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n{text}"
        return response.encode("latin-1", "replace")

    async def _forward(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connects a client to the server, until one of them closes the connection."""
        server_reader, server_writer = await asyncio.open_connection(*self.inner)
        with contextlib.closing(server_writer):
            server_writer.write(head)
            copies = [
                asyncio.create_task(_copy(reader, server_writer)),
                asyncio.create_task(_copy(server_reader, writer)),
            ]
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()


def refused_origin(head: str, origins: Collection[str]) -> str | None:
    """Returns the origin in a request's head if it must not connect, else None."""
    fields = [line.partition(":")[::2] for line in head.split("\r\n")[1:]]
    origin, host = (
        ",".join(value.strip() for name, value in fields if name.strip().lower() == field)
        for field in ("origin", "host")
    )
    if not origin or origin in origins:
        return None
    try:
        page = urlsplit(origin)
        name = page.hostname or ""
    except ValueError:
        return origin
    with contextlib.suppress(ValueError):
        # Not a name: an attacker's name server could resolve one to this machine.
        address = ipaddress.ip_address(name)
        return None if address.is_loopback or page.netloc == host else origin
    is_own_page = page.netloc == host and name in (socket.gethostname().lower(), socket.getfqdn().lower())
    return None if is_own_page or name == "localhost" else origin
