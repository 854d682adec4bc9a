"""Channels: the transports of clients, which send and receive whole messages over one connection.

    channel = Channel("tcp://127.0.0.1:5755")
    channel.is_connected(timeout_s)             # connects; waits until a server is connected
    channel.send(request)                       # does not block; False: no server is connected
    reply = channel.receive(timeout_s)          # None: no message in time, or the connection was lost
    channel.close()

Channels do not know the contents of messages, match replies to requests, or set time limits.

`BaseChannel` has all that does not wait: how a connection is made, which bytes are sent and received. `Channel` waits
by blocking, `async_channel.AsyncChannel` by the event loop. Neither has a thread: connections are made, and PINGs
answered, while a call waits.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Generator
from contextlib import suppress
from math import inf
from time import monotonic, sleep
from typing import Any

from dyn_service.errors import PermissionDeniedError
from dyn_service.service.protocol import zmtp
from dyn_service.service.protocol.curve import CurveClient
from dyn_service.service.protocol.endpoints import check_uid, peer_uid
from dyn_service.service.protocol.keys import Keys, z85_decode
from dyn_service.service.protocol.limits import MAX_MESSAGE_BYTES

HANDSHAKE_S = 2.0
"""Time limit for connecting to one address, and for the handshake there."""

MIN_PAUSE_S, MAX_PAUSE_S = 0.02, 0.5
"""Least time from one attempt to connect to the next; it doubles with each, until a connection lasts."""

KEEPALIVE_S = 2
"""Interval of TCP keepalive; a connection whose host misses four is closed."""

_TCP_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": KEEPALIVE_S,
    "TCP_KEEPINTVL": KEEPALIVE_S,
    "TCP_KEEPCNT": 3,
    # while a request is unacknowledged; keepalive acts otherwise
    "TCP_USER_TIMEOUT": 4 * KEEPALIVE_S * 1000,
}

_RECEIVED_BYTES = 1 << 16
"""Maximum number of bytes taken from the system at a time: what an idle client stores at most, except a long reply."""

_REFUSED = b"400"
"""Reason by which a server refuses a key that it does not allow."""

# numbers, because each `|` of Python's flags is a hundred steps
_SEND_FLAGS = int(socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))
_PEEK_FLAGS = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)

Awaited = tuple[socket.socket, int]
"""A socket, and the event of it to wait for: `select.POLLIN` or `select.POLLOUT`."""


class _Forks:
    """How many forks lie between the first process and this one; a channel opened before a fork is unusable."""

    count = 0

    def increment(self) -> None:
        self.count += 1


forks = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forks.increment)


class BaseChannel:
    """A connection to a server, which is made again after each loss.

    endpoint: from `check_connectable`. keys: the client's keys and the server's public key; None: a server without.
    """

    def __init__(self, endpoint: str, keys: Keys | None = None) -> None:
        self.is_ready = False
        """Whether the handshake is complete, and no loss of the connection was noticed since."""
        self.connections = 0
        """Number of connections so far, which identifies the current one."""
        self.failure: Exception | None = None
        """Why the last failed attempt to connect failed."""
        self._endpoint = endpoint
        self._keys = keys
        self._scheme, _, self._address = endpoint.partition("://")
        self._is_closed = False
        self._socket: socket.socket | None = None
        self._peer: zmtp.Connection
        self._unsent: list[zmtp.Piece] = []
        self._attempt: Generator[Awaited] | None = None
        self._awaited: Awaited | None = None
        self._step_limit_s = self._next_attempt_s = 0.0
        self._pause_s = MIN_PAUSE_S

    # connecting

    def _step(self, fault: Exception | None = None) -> None:
        """Begins an attempt to connect, or continues it: its event has occurred, or it failed by `fault`.

        Afterwards the channel is ready, or `_awaited` is what the attempt waits for, or None: it has failed.

        Raises:
            PermissionDeniedError: The server's list does not contain this client's key, or it runs as another user.
        """
        attempt = self._attempt
        if attempt is None:
            attempt = self._attempt = self._connect()
            now_s = monotonic()
            # the last connection lasted, or no call needed one
            if now_s - self._next_attempt_s > MAX_PAUSE_S:
                self._pause_s = MIN_PAUSE_S
            self._next_attempt_s = now_s + self._pause_s
            self._pause_s = min(2.0 * self._pause_s, MAX_PAUSE_S)
        self._awaited = None
        try:
            self._awaited = next(attempt) if fault is None else attempt.throw(fault)
        except StopIteration:
            self._attempt = None
            self.connections += 1
            self.is_ready, self.failure = True, None
        except PermissionDeniedError:  # also an OSError
            self._drop()
            self._pause_s, self._next_attempt_s = MIN_PAUSE_S, 0.0
            raise
        except (OSError, zmtp.ProtocolError) as failure:
            self.failure = failure
            self._drop()
        except BaseException:  # no memory, an interrupt: the next step begins a new attempt
            self._drop()
            raise
        if self._is_closed:  # meanwhile, by a signal handler
            self._drop()

    def _connect(self) -> Generator[Awaited]:
        """Connects to the first address that answers, and completes the handshake; yields what it waits for.

        Raises:
            OSError: No address answers.
            zmtp.ProtocolError: The peer is not a server, or not one with these keys.
            PermissionDeniedError: See `_step`.
        """
        connected = self._socket = yield from self._connect_socket()
        # keys identify a server that has them
        if self._scheme == "ipc" and self._keys is None and (uid := peer_uid(connected)) is not None:
            check_uid(uid, self._endpoint)
        if self._scheme == "tcp":
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _TCP_OPTIONS.items():
                if hasattr(socket, name):
                    connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        mechanism = zmtp.Null() if self._keys is None else CurveClient(self._keys.pair, z85_decode(self._keys.server))
        peer = self._peer = zmtp.Connection(mechanism, b"DEALER", MAX_MESSAGE_BYTES)
        self._step_limit_s = monotonic() + HANDSHAKE_S
        try:
            while not peer.ready:
                connected.sendall(peer.take_output())  # shorter than any system's buffer
                yield connected, select.POLLIN
                self._read()
                while not peer.ready and peer.next() is not None:
                    pass
        except zmtp.PeerRefusedError as refused:
            if refused.reason != _REFUSED or self._keys is None:
                raise
            text = f"{self._endpoint} does not let the key '{self._keys.name}' in"
            raise PermissionDeniedError(text, path="keys") from None
        self._open(connected)

    def _connect_socket(self) -> Generator[Awaited, None, socket.socket]:
        """Returns a socket connected to the first address that answers, not blocking."""
        addresses = yield from self._addresses()
        if not addresses:
            raise OSError(errno.EADDRNOTAVAIL, "its host is unknown")
        number = 0
        for family, address in addresses:
            try:
                connecting = self._socket = socket.socket(family, socket.SOCK_STREAM)
                connecting.setblocking(False)
                self._step_limit_s = monotonic() + HANDSHAKE_S
                number = connecting.connect_ex(address)
                if number == errno.EINPROGRESS:
                    yield connecting, select.POLLOUT
                    number = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            except OSError as fault:  # also the TimeoutError of `_step`, or an unsupported family
                number = fault.errno or errno.ETIMEDOUT
            if number == 0:
                return connecting
            if self._socket is not None:
                self._socket.close()
        raise OSError(number, os.strerror(number))

    def _addresses(self) -> Generator[Awaited, None, list[tuple[int, Any]]]:
        """Returns the socket families and addresses of the endpoint, in the order of the system."""
        if self._scheme == "ipc":
            is_abstract = self._address.startswith("@")
            return [(socket.AF_UNIX, f"\0{self._address[1:]}" if is_abstract else self._address)]
        host, _, port = self._address.rpartition(":")
        host = host.strip("[]")
        hosts: list[tuple[Any, ...]]
        try:
            hosts = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (OSError, ValueError):  # a name
            hosts = yield from self._resolve(host, port)
        return [(family, address) for family, *_, address in hosts]

    def _resolve(self, host: str, port: str) -> Generator[Awaited, None, list[tuple[Any, ...]]]:
        """As `socket.getaddrinfo`, which may block for longer than the time limit of a call; so a thread calls it."""
        hosts: list[tuple[Any, ...]] = []
        reading, writing = socket.socketpair()

        def resolve() -> None:
            with writing, suppress(OSError, ValueError):  # its end wakes the reader
                hosts.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))

        self._step_limit_s = inf
        with reading:
            try:
                threading.Thread(target=resolve, daemon=True).start()
            except RuntimeError as fault:  # the system allows no further thread
                writing.close()
                raise OSError(str(fault)) from None
            yield reading, select.POLLIN
        return hosts

    def _open(self, connected: socket.socket) -> None:
        """Prepares the socket of a new connection for messages."""
        raise NotImplementedError

    def renew(self) -> None:
        """Drops the connection; the next one is made when a call needs it."""
        if self.is_ready:
            self._drop()

    def _drop(self) -> None:
        """Drops the connection, or the attempt to make one."""
        self.is_ready = False
        self._unsent = []
        self._attempt = self._awaited = None
        if self._socket is not None:
            # no shutdown: it would end the parent's connection in a forked child
            self._socket.close()

    # messages

    @property
    def is_sending(self) -> bool:
        """Whether a part of a message has not been sent yet."""
        return bool(self._unsent)

    def is_open(self) -> bool:
        """Returns whether a server is connected; notices a connection that was closed since the last call."""
        if self.is_ready:
            try:
                if self._socket.recv(1, _PEEK_FLAGS):  # type: ignore[union-attr]
                    return True
            except BlockingIOError:
                return True
            except OSError:
                pass
            self._drop()
        return False

    def send(self, payload: bytes) -> bool:
        """Sends a message; what does not fit into the system's buffer is sent while a call waits.

        Returns:
            False: no server is connected, and none has the whole message. A server that has just closed a TCP
            connection is noticed before sending, because the system would accept the message; over ipc it refuses.
        """
        if not self.is_ready or (self._scheme == "tcp" and not self.is_open()):
            return False
        self._unsent += self._peer.encode(payload)
        return self._flush()

    def _flush(self) -> bool:
        """Sends as much as the system accepts; returns False if the connection is lost."""
        unsent = self._unsent
        try:
            while unsent:
                piece = unsent[0]
                count = self._socket.send(piece, _SEND_FLAGS)  # type: ignore[union-attr]
                if count == len(piece):
                    del unsent[0]
                else:
                    unsent[0] = memoryview(piece)[count:]
        except BlockingIOError:
            pass
        except OSError:
            self._drop()
            return False
        return True

    def _read(self) -> None:
        """Takes bytes that have arrived; raises `OSError` if the connection is lost, `BlockingIOError` without any."""
        peer, connected = self._peer, self._socket
        assert connected is not None
        buffer = peer.buffer
        if buffer is None:
            if not (data := connected.recv(_RECEIVED_BYTES)):
                raise ConnectionResetError
            peer.feed(data)
        elif count := connected.recv_into(buffer):
            peer.wrote(count)
        else:
            raise ConnectionResetError

    def _next_payload(self) -> bytes | memoryview | None:
        """Returns the next complete message, or None, and answers commands; raises `zmtp.ProtocolError`."""
        peer = self._peer
        while (message := peer.next()) is not None:
            payload, parts, _ = message
            if parts:
                return payload
            output = peer.take_output()
            # PONGs only to a server that reads, or a flood of PINGs fills the memory
            if output and not self._unsent:
                self._unsent.append(output)
                self._flush()
        return None


class Channel(BaseChannel):
    """A channel for blocking calls."""

    def close(self) -> None:
        """Closes the connection for good."""
        self._is_closed = True
        self._drop()

    def is_connected(self, timeout_s: float = 0.0) -> bool:
        """Returns whether a server is connected; connects and waits for one.

        Raises:
            PermissionDeniedError: See `BaseChannel._step`.
        """
        if self.is_open():
            return True
        limit_s = monotonic() + timeout_s
        while not self.is_ready and not self._is_closed:
            now_s = monotonic()
            wait_s = limit_s - now_s
            awaited = self._awaited
            if awaited is None:
                pause_s = max(0.0, self._next_attempt_s - now_s)
                sleep(max(0.0, min(pause_s, wait_s)))
                if pause_s > max(0.0, wait_s):
                    break
                self._step()
            elif _wait_for(*awaited, min(self._step_limit_s - now_s, wait_s)):
                self._step()
            elif monotonic() >= self._step_limit_s:
                self._step(TimeoutError())
            elif wait_s <= 0.0:
                break
        return self.is_ready

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        """Returns the next message; None if none arrives in time, or the connection is lost. Sends what is unsent.

        The wait does not spin before it blocks: with busy cores and pauses of 2 ms a round trip took 1.14 to 1.33 times
        as long as a bare echo by spinning for 50 to 200 us, and 0.86 times without.

        Raises:
            PermissionDeniedError: See `BaseChannel._step`.
        """
        if not self.is_ready:
            self.is_connected(timeout_s)
            return None
        limit_s = monotonic() + timeout_s
        try:
            if self._peer.held and (payload := self._next_payload()) is not None:
                return payload
            while True:
                # Not a blocking `recv`, which Linux wakes also when a peer over ipc takes the request: 1.7 wake-ups
                # instead of 1 and 3 us more.
                if self._unsent:
                    events = _wait_for(self._socket, select.POLLIN | select.POLLOUT, timeout_s)
                    if events & select.POLLOUT and not self._flush():
                        return None
                    is_readable = bool(events & ~select.POLLOUT)
                else:
                    is_readable = bool(self._incoming.poll(1e3 * max(0.0, timeout_s)))
                if is_readable:
                    self._read()
                    if (payload := self._next_payload()) is not None:
                        return payload
                timeout_s = limit_s - monotonic()
                if timeout_s <= 0.0:
                    return None
        except BlockingIOError:
            return None
        except (OSError, zmtp.ProtocolError):
            self._drop()
            return None

    def _open(self, connected: socket.socket) -> None:
        self._incoming = select.poll()
        try:
            self._incoming.register(connected, select.POLLIN)
        except ValueError:  # closed meanwhile, by a signal handler
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None


def _wait_for(waiting: socket.socket | None, events: int, timeout_s: float) -> int:
    """Returns the events of a socket that occurred within a time, rounded up to milliseconds; 0: none."""
    poll = select.poll()
    try:
        poll.register(waiting, events)  # type: ignore[arg-type]  # None: a TypeError
    except (TypeError, ValueError):  # closed by a signal handler, perhaps within this function
        return select.POLLNVAL
    occurred = poll.poll(max(0.0, timeout_s) * 1e3)
    return occurred[0][1] if occurred else 0
