"""Which server is meant where none is named: that of the running launch, else the one at the usual endpoint."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from dyn_service.errors import FailedPreconditionError
from dyn_service.service.protocol.defaults import DEFAULT_ENDPOINT

_LISTENS_S = 0.2
"""In which who listens on this machine takes a connection."""


def find_server(said: str | None) -> str:
    """The endpoint that was said, else that of the one server that there is; the usual one where there is none.

    Raises:
        FailedPreconditionError: There are several.
        PermissionDeniedError: A folder of running nodes belongs to another user, or others can write to it.
    """
    if said is not None:
        return said
    from dyn_service.graph.middleware.discovery import Discovery

    servers = {endpoint: f"{found.entry.name} in {found.folder}" for found, endpoint in Discovery().servers()}
    if servers and DEFAULT_ENDPOINT not in servers and _listens(DEFAULT_ENDPOINT):
        servers[DEFAULT_ENDPOINT] = "by itself"
    if len(servers) > 1:
        each = "; ".join(f"--server {endpoint} ({who})" for endpoint, who in servers.items())
        raise FailedPreconditionError(f"{len(servers)} servers are running, name one: {each}")
    return next(iter(servers), DEFAULT_ENDPOINT)


def _listens(endpoint: str) -> bool:
    """Whether anybody does there, a server or not."""
    place = urlsplit(endpoint)
    try:
        socket.create_connection((place.hostname, place.port), _LISTENS_S).close()
    except OSError:
        return False
    return True
