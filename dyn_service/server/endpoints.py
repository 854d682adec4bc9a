"""Where a server listens: which endpoints only this machine can reach, and which are taken already."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass

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


def peer_is_owner(connected: socket.socket) -> bool:
    """Whether the process at the other end of an ipc connection runs as this one's user, or as root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the file's mode alone keeps others out
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return user in (os.geteuid(), 0)


def refuse_taken(path: str) -> None:
    """Refuses a path on which a server listens that is still alive, or at which there is something else.

    Raises:
        UnavailableError: So it is.
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
