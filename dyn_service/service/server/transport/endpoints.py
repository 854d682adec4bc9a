"""Where a server listens: which endpoints only this machine can reach, which need keys, and which are taken already.

----
What a transport is to the server: `connections`, `keyed` and `inproc` each have one of these.
"""

from __future__ import annotations

import errno
import ipaddress
import math
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import zmq

from dyn_service.errors import InvalidArgumentError, UnavailableError
from dyn_service.service.protocol.sockets import SCHEMES, check_port
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.transport.zmtp import Message

KeyPolicy = Literal["remote", "required"]
"""Whether keys are asked for at endpoints that other machines can reach, or at all but `inproc`."""

_CREDENTIALS = struct.Struct("3i")
"""pid, uid and gid of the process at the other end of an ipc connection."""


def check_endpoint(endpoint: str) -> str:
    """The endpoint, if it is one that a server can listen on.

    Raises:
        InvalidArgumentError: It is none, the message says how one looks; its port is none; or it is an ipc name without
            a file, to which every user of the machine could connect.
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
            f"endpoint must name a file, whose owner alone can connect, found '{endpoint}': write ipc:///path",
            path="endpoints",
        )
    return check_port(endpoint, "endpoints")


def needs_keys(endpoint: str, where: KeyPolicy) -> bool:
    """Whether nobody may be let in here without a key."""
    return not is_local(endpoint) or (where == "required" and not endpoint.startswith("inproc://"))


def is_local(endpoint: str) -> bool:
    """Whether only processes of this machine can connect to it: over tcp of all its users, over ipc of the same one."""
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
    """Where a server listens. file: the socket file of an ipc endpoint, with its device and inode."""

    endpoint: str
    file: tuple[str, int, int] | None = None

    def clear(self) -> None:
        """Removes the socket file, unless another server has put its own in its place."""
        if self.file is None:
            return
        path, device, inode = self.file
        with suppress(FileNotFoundError):
            found = os.stat(path)
            if (found.st_dev, found.st_ino) == (device, inode):
                os.unlink(path)


def bind(router: zmq.Socket[bytes], endpoint: str) -> BoundEndpoint:
    """Listens on the endpoint.

    An ipc endpoint is a file: only its owner may connect, and a file that a live server listens on is left alone.

    Returns:
        The endpoint, with the port that was chosen for a port of 0 or `*`.

    Raises:
        InvalidArgumentError: The endpoint is none.
        UnavailableError: It is taken, or this machine has no such address.
    """
    check_endpoint(endpoint)
    path = endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else None
    if path is not None:
        check_not_in_use(path)
    try:
        with owner_only():
            router.bind(endpoint)
    except zmq.ZMQError as fault:
        taken = fault.errno == errno.EADDRINUSE
        cause = "another server listens there" if taken else str(fault).partition(" (")[0].lower()
        raise UnavailableError(f"cannot listen on {endpoint}: {cause}", path="endpoints") from None
    bound = router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
    if path is not None:
        found = os.stat(path)
        return BoundEndpoint(bound, (path, found.st_dev, found.st_ino))
    return BoundEndpoint(bound)


@contextmanager
def owner_only() -> Iterator[None]:
    """Files that are made meanwhile are their owner's alone from the start: a mode set later leaves others a moment."""
    before = os.umask(stat.S_IXUSR | stat.S_IRWXG | stat.S_IRWXO)
    try:
        yield
    finally:
        os.umask(before)


def peer_is_owner(connected: socket.socket) -> bool:
    """Whether the process at the other end of an ipc connection is of this server's user.

    Where the system does not tell, the mode of the file must do.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def check_not_in_use(path: str) -> None:
    """Sees to it that no live server listens on this file: ZeroMQ would take it over.

    Raises:
        UnavailableError: One does, or it is no socket.
    """
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


UNREAD_REPLIES = 4000
"""So many replies may wait for a client at a socket of libzmq's; it loses those that come when it has not read them."""

NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.SNDMORE) | NOBLOCK


class Peer(Protocol):
    """Whoever a message came from."""

    @property
    def received_ns(self) -> int:
        """When its last message came, on the clock of `time.perf_counter_ns`."""

    @property
    def caller(self) -> Caller | None:
        """Who that is; None is a process of this machine that the endpoint knows no more of."""


class Transport(Protocol):
    """Listens on endpoints of its kind. All calls come from one thread, and none of them waits, but `close`."""

    def listen(self, endpoint: str) -> BoundEndpoint:
        """Listens on the endpoint.

        Raises:
            DynError: It cannot.
        """

    @property
    def pending(self) -> bool:
        """Whether there is something for `messages` to do of which the selector would not tell."""

    def messages(self, most: int, until_ns: float = math.inf) -> Iterator[tuple[Any, Message]]:
        """Up to so many of the messages that have come, each with its `Peer`. The iterator is to be used up.

        Args:
            most: So many.
            until_ns: On the clock of `time.perf_counter_ns`: what was not begun by then is left for the next call.
        """

    def send(self, peer: Any, is_req: bool, reply: bytes | memoryview) -> None:
        """Sends a reply to an asker, or counts that it could not be sent."""

    def end(self, peer: Any) -> None:
        """Ends an asker's connection, where it has one: a reply to it is lost, which it is to know."""

    def check(self) -> None:
        """Ends what is dead or not let in any more; ten times a second."""

    def close(self, linger_s: float) -> None:
        """Ends everything, after replies have had so long to leave."""
