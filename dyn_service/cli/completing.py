"""Names for shells to complete: those of nodes, topics, services and parameters that there are now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from typer import Context

from dyn_service.errors import DynError

if TYPE_CHECKING:
    from dyn_service.graph.middleware.discovery import Discovery


def _matching(incomplete: str, names: Callable[[Discovery], Iterable[str]]) -> list[str]:
    """Those that begin so; none where they cannot be found out: a shell has no place for errors."""
    from dyn_service.graph.middleware.discovery import Discovery

    found: list[str] = []
    with suppress(DynError, OSError):
        found = sorted({name for name in names(Discovery()) if name.startswith(incomplete) and name.isprintable()})
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
    from dyn_service.graph.middleware.lifecycle import TRANSITIONS

    return [name for name in TRANSITIONS if name.startswith(incomplete)]


def parameters(context: Context, incomplete: str) -> list[str]:
    """Names of the parameters of the node that stands before."""
    from dyn_service.graph.middleware.discovery import full
    from dyn_service.graph.middleware.dyn_service_srvs import ListParametersRequest, ListParametersResponse

    def of(discovery: Discovery) -> list[str]:
        service = f"{full(context.params.get('name') or '')}/list_parameters"
        return discovery.call(service, ListParametersRequest(), ListParametersResponse, 0.5).names

    return _matching(incomplete, of)
