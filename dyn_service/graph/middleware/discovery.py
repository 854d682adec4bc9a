"""Discovery of all nodes of this user on this machine, for commands and recorders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from dyn_service.errors import FailedPreconditionError, NotFoundError
from dyn_service.graph.middleware.graph import End, Graph, NodeEntry, runtime_folders
from dyn_service.graph.middleware.services import ServiceClient
from dyn_service.graph.middleware.topics import RUNTIME_DIR
from dyn_service.service.protocol.sockets import own_context
from dyn_service.support.suggestions import did_you_mean

R = TypeVar("R")
T = TypeVar("T")


class Found(NamedTuple):
    """A node and its runtime folder: the user's or a launch's."""

    folder: Path
    entry: NodeEntry


class Discovery:
    """Finds the nodes in the user's folder and in all running launches, or only those in `$DYN_RUNTIME_DIR` if set."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._graphs: dict[Path, Graph] = {}

    def nodes(self) -> list[Found]:
        """Returns all nodes, sorted by name."""
        folders = runtime_folders(self._environment)
        self._graphs = {folder: self._graphs.get(folder) or Graph(folder) for folder in folders}
        found = [Found(folder, entry) for folder, graph in self._graphs.items() for entry in graph.nodes()]
        return sorted(found, key=lambda one: one.entry.name)

    def entries(self) -> list[NodeEntry]:
        """Returns the registered entries of all nodes."""
        return [found.entry for found in self.nodes()]

    def node(self, name: str) -> Found:
        """Returns the node with this full name.

        Raises:
            NotFoundError: The node does not exist.
            FailedPreconditionError: Several nodes have this name.
        """
        return self._one("node", name, [(found.entry.name, found) for found in self.nodes()])

    def servers(self) -> list[tuple[Found, str]]:
        """Returns the dynamics servers of running launches, each with its first endpoint."""
        return [(found, found.entry.answers_at[0]) for found in self.nodes() if found.entry.answers_at]

    def service(self, name: str) -> tuple[Found, End]:
        """Returns the node and the endpoint of the service with this full name."""
        ends = [(end.name, (found, end)) for found in self.nodes() for end in found.entry.services]
        return self._one("service", name, ends)

    def topics(self) -> dict[str, set[str]]:
        """Returns the types of each topic, by its full name."""
        types: dict[str, set[str]] = {}
        for entry in self.entries():
            for end in (*entry.publishers, *entry.subscriptions):
                types.setdefault(end.name, set()).add(end.type)
        return dict(sorted(types.items()))

    def topic_type(self, name: str) -> str:
        """Returns the type of a topic.

        Raises:
            NotFoundError: The topic does not exist.
            FailedPreconditionError: Nodes use different types, or the topic is published in several launches.
        """
        known = self.topics()
        if name not in known:
            raise NotFoundError(f"there is no topic {name!r}{_hint(name, known, 'topics')}")
        if len(known[name]) > 1:
            raise FailedPreconditionError(
                f"topic {name!r} is of several types: {', '.join(sorted(known[name]))}: name one"
            )
        where = {str(found.folder) for found in self.nodes() if any(end.name == name for end in found.entry.publishers)}
        if len(where) > 1:
            folders = ", ".join(sorted(where))
            raise FailedPreconditionError(
                f"there are several topics {name!r}: choose a launch by {RUNTIME_DIR}=FOLDER, one of {folders}"
            )
        return next(iter(known[name]))

    def call(self, service: str, request: msgspec.Struct | Mapping[str, Any], kind: type[R], timeout_s: float) -> R:
        """Calls a service and returns its response."""

        def find(name: str) -> str:
            return self.service(name)[1].endpoint

        with own_context() as context:
            client = ServiceClient(context, service, kind, find)
            try:
                return client.call(request, timeout_s)
            finally:
                client.close()

    def _one(self, what: str, name: str, ends: list[tuple[str, T]]) -> T:
        matching = [one for called, one in ends if called == name]
        if not matching:
            names = sorted({called for called, _ in ends})
            raise NotFoundError(f"there is no {what} {name!r}{_hint(name, names, f'{what}s')}")
        if len(matching) > 1:
            nodes = self.nodes()
            serving = {found.folder for found in nodes for end in found.entry.services if end.name == name}
            where = sorted(map(str, serving | {found.folder for found in nodes if found.entry.name == name}))
            raise FailedPreconditionError(
                f"there are {len(matching)} {what}s {name!r}: choose a launch by {RUNTIME_DIR}=FOLDER, "
                f"one of {', '.join(where)}"
            )
        return matching[0]


def full(name: str) -> str:
    """Returns a name with its leading slash."""
    return name if name.startswith("/") or "://" in name else f"/{name}"


def _hint(name: str, known: Iterable[str], what: str) -> str:
    names = sorted(known)
    return did_you_mean(name, names) or (
        f"; the {what} are {', '.join(names[:12])}" if names else f"; there are no {what}"
    )
