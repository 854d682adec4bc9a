"""Where a server listens: which endpoints only this machine can reach, and which are taken already."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass

import zmq

from dyn_service.errors import InvalidArgumentError, UnavailableError
from dyn_service.protocol.sockets import SCHEMES


def check_endpoint(endpoint: str) -> str:
    """The endpoint, if it is one that a server can listen on.

    Raises:
        InvalidArgumentError: It is none; the message says how one looks.
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
    return endpoint


def is_local(endpoint: str) -> bool:
    """Whether only processes of this machine can connect to it."""
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
class Bound:
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


def bind(router: zmq.Socket[bytes], endpoint: str) -> Bound:
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
        _refuse_taken(path)
    try:
        router.bind(endpoint)
    except zmq.ZMQError as fault:
        taken = fault.errno == errno.EADDRINUSE
        cause = "another server listens there" if taken else str(fault).partition(" (")[0].lower()
        raise UnavailableError(f"cannot listen on {endpoint}: {cause}", path="endpoints") from None
    bound = router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
    if path is not None and not path.startswith("@"):
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        found = os.stat(path)
        return Bound(bound, (path, found.st_dev, found.st_ino))
    return Bound(bound)


def _refuse_taken(path: str) -> None:
    """ZeroMQ would take the file over from a server that is still alive."""
    if path.startswith("@") or not os.path.exists(path):
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
