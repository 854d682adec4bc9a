"""Endpoints of a server: which addresses are valid, local, in use or need keys; and the interface of transports."""

from __future__ import annotations

import errno
import ipaddress
import math
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import zmq

from dyn_service.errors import InvalidArgumentError, UnavailableError
from dyn_service.service.protocol.sockets import SCHEMES, check_port
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.transport.zmtp import Message

KeyPolicy = Literal["remote", "required"]
"""Where keys are required: at endpoints that other machines can reach, or at all except `inproc`."""

_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of the process at the other end of an ipc connection


def check_endpoint(endpoint: str) -> str:
    """Returns the endpoint if a server can listen on it.

    Raises:
        InvalidArgumentError: It is malformed, its port is invalid, or it is an abstract ipc name, to which every user
            of the machine could connect.
    """
    scheme = next((scheme for scheme in SCHEMES if endpoint.startswith(scheme)), None)
    rest = endpoint.removeprefix(scheme or "")
    port = rest.rpartition(":")[2]
    if (
        scheme is None
        or not rest
        or (scheme == "tcp://" and (":" not in rest or not (port.isdecimal() or port == "*")))
    ):
        raise InvalidArgumentError(
            f"endpoint must look like tcp://127.0.0.1:5755, ipc:///path or inproc://name, found '{endpoint}'",
            path="endpoints",
        )
    if scheme == "ipc://" and rest[0] in "@*":
        raise InvalidArgumentError(
            f"endpoint must name a file, which only its owner can connect to, found '{endpoint}': write ipc:///path",
            path="endpoints",
        )
    return check_port(endpoint, "endpoints")


def needs_keys(endpoint: str, where: KeyPolicy) -> bool:
    """Returns whether clients need a key at this endpoint."""
    return not is_local(endpoint) or (where == "required" and not endpoint.startswith("inproc://"))


def is_local(endpoint: str) -> bool:
    """Returns whether only this machine can connect: all of its users over tcp, the same user over ipc."""
    if not endpoint.startswith("tcp://"):
        return True
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class BoundEndpoint:
    """An endpoint that a server listens on. file: the socket file of an ipc endpoint, its device and inode."""

    endpoint: str
    file: tuple[str, int, int] | None = None

    def clear(self) -> None:
        """Removes the socket file, unless another server has replaced it."""
        if self.file is None:
            return
        path, device, inode = self.file
        with suppress(FileNotFoundError):
            found = os.stat(path)
            if (found.st_dev, found.st_ino) == (device, inode):
                os.unlink(path)


def bind(router: zmq.Socket[bytes], endpoint: str) -> BoundEndpoint:
    """Binds a ZeroMQ socket; returns the endpoint, with the port chosen for a port of 0 or `*`.

    An ipc endpoint is a file that only its owner may connect to; the file of a running server is not replaced.

    Raises:
        InvalidArgumentError: The endpoint is invalid.
        UnavailableError: It is in use, or this machine has no such address.
    """
    check_endpoint(endpoint)
    path = endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else None
    if path is not None:
        check_not_in_use(path)
    try:
        with nullcontext() if path is None else owner_only():
            router.bind(endpoint)
    except zmq.ZMQError as fault:
        raise listen_error(endpoint, fault) from None
    return bound_endpoint(router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))


def listen_error(endpoint: str, fault: OSError | zmq.ZMQError) -> UnavailableError:
    """Returns the error for an endpoint on which the system refuses to listen."""
    taken = fault.errno == errno.EADDRINUSE
    cause = "another server listens there" if taken else (fault.strerror or str(fault)).partition(" (")[0].lower()
    return UnavailableError(f"cannot listen on {endpoint}: {cause}", path="endpoints")


def bound_endpoint(endpoint: str) -> BoundEndpoint:
    """Returns an endpoint that a socket listens on."""
    if not endpoint.startswith("ipc://"):
        return BoundEndpoint(endpoint)
    path = endpoint.removeprefix("ipc://")
    found = os.stat(path)
    return BoundEndpoint(endpoint, (path, found.st_dev, found.st_ino))


@contextmanager
def owner_only() -> Iterator[None]:
    """Files made within this context belong to their owner only; a later chmod would leave a gap."""
    before = os.umask(stat.S_IXUSR | stat.S_IRWXG | stat.S_IRWXO)
    try:
        yield
    finally:
        os.umask(before)


def peer_is_owner(connected: socket.socket) -> bool:
    """Returns whether the process at the other end of an ipc connection runs as this server's user; True if unknown."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def check_not_in_use(path: str) -> None:
    """Raises `UnavailableError` if a server listens on this file, which ZeroMQ would replace, or it is no socket."""
    if not os.path.exists(path):
        return
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise UnavailableError(f"cannot listen on ipc://{path}: it is a file, not a socket", path="endpoints")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError:
            pass
    raise UnavailableError(f"cannot listen on ipc://{path}: another server listens there", path="endpoints")


UNREAD_REPLIES = 4000  # maximum number of replies queued for a client at a libzmq socket; later ones are dropped

NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.SNDMORE) | NOBLOCK


class Peer(Protocol):
    """The sender of a message; see `quotas.Connection`."""

    received_ns: int
    caller: Caller | None

    def close(self) -> None:
        """Closes its connection, if it has one."""


class Transport(Protocol):
    """Listens on endpoints of one kind. All calls come from one thread; only `close` may block."""

    def listen(self, endpoint: str) -> BoundEndpoint:
        """Listens on the endpoint, or raises a `DynError`."""

    @property
    def pending(self) -> bool:
        """Whether `messages` has work that the selector does not signal."""

    def messages(self, most: int, until_ns: float = math.inf) -> Iterator[tuple[Any, Message]]:
        """Yields up to `most` messages with their peers, one per peer in turn. The iterator must be exhausted.

        Args:
            most: Maximum number of messages.
            until_ns: On the clock of `time.perf_counter_ns`; messages not started by then are left for the next call.
        """

    def send(self, peer: Any, is_req: bool, reply: bytes | memoryview) -> None:
        """Sends a reply to a peer, or counts that it could not be sent."""

    def check(self) -> None:
        """Closes connections that are dead or no longer allowed; called ten times a second."""

    def close(self, linger_s: float) -> None:
        """Closes everything, after at most `linger_s` for replies to be sent."""
