"""The default server (that of the running launch, else the default endpoint) and completion of names."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from typer import Context

from dyn_service.errors import DynError, FailedPreconditionError
from dyn_service.service.protocol.limits import DEFAULT_ENDPOINT

if TYPE_CHECKING:
    from dyn_service.graph.middleware.discovery import Discovery

_LISTENS_S = 0.2
"""Timeout, s, for a connection to a process on this machine."""


def discovery() -> Discovery:
    """Returns the running nodes of all launches; imports them only now, so that `dyn` starts quickly."""
    from dyn_service.graph.middleware.discovery import Discovery

    return Discovery()


def full_name(name: str) -> str:
    """Returns the name of a node, topic or service with its leading slash."""
    from dyn_service.graph.middleware.discovery import full

    return full(name)


def find_server(given: str | None) -> str:
    """Returns the given endpoint, else that of the only running server, else the default.

    Raises:
        FailedPreconditionError: Several servers are running.
        PermissionDeniedError: A folder of running nodes belongs to another user, or others can write to it.
    """
    if given is not None:
        return given
    servers = {endpoint: f"{found.entry.name} in {found.folder}" for found, endpoint in discovery().servers()}
    if servers and DEFAULT_ENDPOINT not in servers and _listens(DEFAULT_ENDPOINT):
        servers[DEFAULT_ENDPOINT] = "by itself"
    if len(servers) > 1:
        each = "; ".join(f"--server {endpoint} ({who})" for endpoint, who in servers.items())
        raise FailedPreconditionError(f"{len(servers)} servers are running, name one: {each}")
    return next(iter(servers), DEFAULT_ENDPOINT)


def _listens(endpoint: str) -> bool:
    """Returns whether a process listens at this endpoint."""
    place = urlsplit(endpoint)
    try:
        socket.create_connection((place.hostname, place.port), _LISTENS_S).close()
    except OSError:
        return False
    return True


def _matching(incomplete: str, names: Callable[[Discovery], Iterable[str]]) -> list[str]:
    """Returns the completions; none after an error, because shells cannot show it."""
    found: list[str] = []
    with suppress(DynError, OSError):
        found = sorted({name for name in names(discovery()) if name.startswith(incomplete) and name.isprintable()})
    return found


def nodes(incomplete: str) -> list[str]:
    """Names of nodes."""
    return _matching(incomplete, lambda all_: [entry.name for entry in all_.entries()])


def topics(incomplete: str) -> list[str]:
    """Names of topics."""
    return _matching(incomplete, lambda all_: all_.topics())


def services(incomplete: str) -> list[str]:
    """Names of services."""
    return _matching(incomplete, lambda all_: [end.name for entry in all_.entries() for end in entry.services])


def types(incomplete: str) -> list[str]:
    """Types of messages."""
    from dyn_service.messages import all_types, ros_type

    return [name for name in map(ros_type, all_types()) if name.startswith(incomplete)]


def transitions(incomplete: str) -> list[str]:
    """Transitions of a lifecycle."""
    from dyn_service.graph.middleware.node import TRANSITIONS

    return [name for name in TRANSITIONS if name.startswith(incomplete)]


def parameters(context: Context, incomplete: str) -> list[str]:
    """Returns the parameter names of the node that the command line names."""
    from dyn_service.graph.middleware.dyn_service_srvs import ListParametersRequest, ListParametersResponse

    def of(network: Discovery) -> list[str]:
        service = f"{full_name(context.params.get('name') or '')}/list_parameters"
        return network.call(service, ListParametersRequest(), ListParametersResponse, 0.5).names

    return _matching(incomplete, of)
