"""Endpoints, which clients, servers and nodes share: their schemes, their form, and the user at the other end."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError

SCHEMES = ("tcp://", "ipc://")
"""Supported transports."""

MAX_PORT = 65535

_MAX_PATH_BYTES = 107
"""Longest path of an ipc socket on Linux."""

# pid, uid and gid of the process at the other end of an ipc connection
_CREDENTIALS = struct.Struct("3i")


def check_port(endpoint: str, path: str) -> str:
    """Returns the endpoint if its TCP port is valid; other transports are not checked.

    path: the name of the parameter that specifies it, for the error.

    Raises:
        InvalidArgumentError: The port exceeds `MAX_PORT`.
    """
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdecimal() and int(port[:9]) > MAX_PORT:
        raise InvalidArgumentError(f"{path}: the port of '{endpoint[:200]}' must be at most {MAX_PORT}", path=path)
    return endpoint


def check_connectable(endpoint: Any) -> str:
    """Returns the endpoint if a client can connect to it; else raises `InvalidArgumentError`."""
    text = endpoint if isinstance(endpoint, str) else ""
    scheme, _, rest = text.partition("://")
    host, _, port = rest.rpartition(":")
    is_tcp = scheme == "tcp" and host.strip("[]") not in ("", "*") and port.isdecimal() and int(port[:9]) > 0
    is_ipc = scheme == "ipc" and "\0" not in rest and 0 < len(os.fsencode(rest)) <= _MAX_PATH_BYTES
    if not is_tcp and not is_ipc:
        raise InvalidArgumentError(
            f"endpoint must look like tcp://127.0.0.1:5755 or ipc:///path (at most {_MAX_PATH_BYTES} bytes), found "
            f"{endpoint!r}",
            path="endpoint",
        )
    return check_port(text, "endpoint")


def peer_uid(connected: socket.socket) -> int | None:
    """Returns the user id of the process at the other end of a Unix socket; None if the system does not report it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    _, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


def check_uid(uid: int | None, endpoint: str) -> None:
    """Raises `PermissionDeniedError` unless an ipc peer runs as this user or root; None: its user is unknown."""
    allowed_uids = {0, os.geteuid()}
    if uid not in allowed_uids:
        raise PermissionDeniedError(
            f"{endpoint}: the process at the other end runs as {'an unknown uid' if uid is None else f'uid {uid}'}, "
            f"allowed: {', '.join(map(str, sorted(allowed_uids)))}; run both as the same user",
            path="endpoint",
        )
