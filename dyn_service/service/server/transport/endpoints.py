"""Endpoints of a server: which addresses are valid, local, in use or need keys; listening sockets and their files."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from dyn_service.errors import InvalidArgumentError, UnavailableError
from dyn_service.service.protocol.endpoints import check_port

KeyPolicy = Literal["remote", "required"]
"""Where keys are required: at endpoints that other machines can reach, or at all."""


def check_endpoint(endpoint: str) -> str:
    """Returns the endpoint if a server can listen on it.

    Raises:
        InvalidArgumentError: It is malformed, its port is invalid, or it is an abstract ipc name, to which every user
            of the machine could connect.
    """
    scheme, _, address = endpoint.partition("://")
    _, colon, port = address.rpartition(":")
    is_tcp = scheme == "tcp" and colon and (port.isdecimal() or port == "*")
    if not address or not (is_tcp or scheme == "ipc"):
        raise InvalidArgumentError(
            f"endpoint must look like tcp://127.0.0.1:5755 or ipc:///path, found '{endpoint}'", path="endpoints"
        )
    if scheme == "ipc" and address[0] in "@*":
        raise InvalidArgumentError(
            f"endpoint must name a file, which only its owner can connect to, found '{endpoint}': write ipc:///path",
            path="endpoints",
        )
    return check_port(endpoint, "endpoints")


def needs_keys(endpoint: str, policy: KeyPolicy) -> bool:
    """Returns whether clients need a key at this endpoint."""
    return policy == "required" or not is_local(endpoint)


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
            status = os.stat(path)
            if (status.st_dev, status.st_ino) == (device, inode):
                os.unlink(path)


def listen(endpoint: str) -> tuple[socket.socket, BoundEndpoint]:
    """Returns a listening socket that does not block, and its endpoint, with the port chosen for a port of 0 or `*`.

    An ipc endpoint is a file that only its owner may connect to; the file of a running server is not replaced.

    Raises:
        UnavailableError: The endpoint is in use, or this machine has no such address.
    """
    try:
        return _listen_ipc(endpoint) if endpoint.startswith("ipc://") else _listen_tcp(endpoint)
    except OSError as fault:
        in_use = fault.errno == errno.EADDRINUSE
        cause = "another server listens there" if in_use else (fault.strerror or str(fault)).lower()
        raise UnavailableError(f"cannot listen on {endpoint}: {cause}", path="endpoints") from None


def check_free(endpoint: str) -> None:
    """Raises `UnavailableError` if a server listens on the endpoint, or this machine has no such address."""
    if endpoint.startswith("ipc://"):
        _check_file_free(endpoint.removeprefix("ipc://"))
    else:
        listen(endpoint)[0].close()


def _listen_tcp(endpoint: str) -> tuple[socket.socket, BoundEndpoint]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    family, kind, protocol, _, address = socket.getaddrinfo(
        None if host == "*" else host, 0 if port == "*" else int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    host, port = listener.getsockname()[:2]
    return listener, BoundEndpoint(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")


def _listen_ipc(endpoint: str) -> tuple[socket.socket, BoundEndpoint]:
    path = endpoint.removeprefix("ipc://")
    _check_file_free(path)
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _owner_only():
            listener.bind(path)
        listener.listen(socket.SOMAXCONN)
        listener.setblocking(False)
        status = os.stat(path)
    except BaseException:
        listener.close()
        raise
    return listener, BoundEndpoint(endpoint, (path, status.st_dev, status.st_ino))


@contextmanager
def _owner_only() -> Iterator[None]:
    """Files made within this context belong to their owner only; a later chmod would leave a gap."""
    umask = os.umask(stat.S_IXUSR | stat.S_IRWXG | stat.S_IRWXO)
    try:
        yield
    finally:
        os.umask(umask)


def _check_file_free(path: str) -> None:
    """Raises `UnavailableError` if a server listens on this file, or it is not a socket."""
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
