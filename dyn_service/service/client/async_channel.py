"""The channel of the asyncio client; see `channels`."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from time import monotonic

from dyn_service.errors import PermissionDeniedError
from dyn_service.service.client.channels import BaseChannel
from dyn_service.service.client.retries import MAX_WAIT_S
from dyn_service.service.protocol import zmtp
from dyn_service.service.protocol.keys import Keys


class AsyncChannel(BaseChannel):
    """A channel for asyncio. It belongs to the event loop in which it was made.

    deliver: called with each message.
    """

    def __init__(self, endpoint: str, keys: Keys | None, deliver: Callable[[bytes | memoryview], None]) -> None:
        super().__init__(endpoint, keys)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._connecting: asyncio.Task[PermissionDeniedError | None] | None = None

    async def close(self) -> None:
        """Closes the connection for good."""
        self._is_closed = True
        connecting = self._connecting
        if connecting is not None and not connecting.done() and not self._loop.is_closed():
            connecting.cancel()
            await asyncio.wait((connecting,))
        self._drop()

    async def is_connected(self, timeout_s: float = 0.0) -> bool:
        """As `Channel.is_connected`."""
        if self.is_open() or self._is_closed:
            return self.is_ready
        if self._connecting is None or self._connecting.done():
            self._connecting = self._loop.create_task(self._connect_in_steps())
        connecting = self._connecting
        # if this call is cancelled, others go on waiting
        await asyncio.wait((connecting,), timeout=timeout_s)
        if connecting.done() and not connecting.cancelled() and (refusal := connecting.result()) is not None:
            raise PermissionDeniedError(str(refusal), path=refusal.path)
        return self.is_ready

    async def _connect_in_steps(self) -> PermissionDeniedError | None:
        """Attempts to connect until a server is connected; returns the error of `_step`, or None."""
        try:
            while not self.is_ready:
                if self._awaited is None:
                    await asyncio.sleep(max(0.0, self._next_attempt_s - monotonic()))
                    self._step()
                    continue
                try:
                    async with asyncio.timeout(min(self._step_limit_s - monotonic(), MAX_WAIT_S)):
                        await self._event(*self._awaited)
                except TimeoutError as fault:
                    self._step(fault)
                else:
                    self._step()
        except PermissionDeniedError as refusal:
            return refusal
        return None

    async def _event(self, waiting: socket.socket, event: int) -> None:
        """Waits for an event of a socket."""
        loop, occurred = self._loop, self._loop.create_future()

        def note() -> None:
            if not occurred.done():
                occurred.set_result(None)

        is_input = event == select.POLLIN
        (loop.add_reader if is_input else loop.add_writer)(waiting, note)
        try:
            await occurred
        finally:
            (loop.remove_reader if is_input else loop.remove_writer)(waiting)

    def _open(self, connected: socket.socket) -> None:
        self._loop.add_reader(connected, self._receive)

    def _drop(self) -> None:
        if self._socket is not None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        super()._drop()

    def _flush(self) -> bool:
        is_connected = super()._flush()
        if self._unsent:
            self._loop.add_writer(self._socket, self._flush_rest)  # type: ignore[arg-type]  # it is connected
        return is_connected

    def _flush_rest(self) -> None:
        """Sends more of a message that did not fit into the system's buffer."""
        if self._flush() and not self._unsent:
            self._loop.remove_writer(self._socket)  # type: ignore[arg-type]

    def _receive(self) -> None:
        """Delivers the messages that have arrived."""
        try:
            self._read()
            while self.is_ready and (payload := self._next_payload()) is not None:
                self._deliver(payload)
        except BlockingIOError:
            pass
        except (OSError, zmtp.ProtocolError):
            self._drop()
