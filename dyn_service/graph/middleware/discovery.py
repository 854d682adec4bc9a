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
from dyn_service.graph.middleware.zmq_sockets import open_context
from dyn_service.support.suggestions import closest

R = TypeVar("R")
T = TypeVar("T")


class RunningNode(NamedTuple):
    """A node and its runtime folder: the user's or a launch's."""

    folder: Path
    entry: NodeEntry


class Discovery:
    """Finds the nodes in the user's folder and in all running launches, or only those in `$DYN_RUNTIME_DIR` if set."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._graphs: dict[Path, Graph] = {}
        self._launches: dict[str, Path] = {}  # by topic

    def nodes(self) -> list[RunningNode]:
        """Returns all nodes, sorted by name."""
        folders = runtime_folders(self._environment)
        self._graphs = {folder: self._graphs.get(folder) or Graph(folder) for folder in folders}
        nodes = [RunningNode(folder, entry) for folder, graph in self._graphs.items() for entry in graph.nodes()]
        return sorted(nodes, key=lambda node: node.entry.name)

    def entries(self, topic: str = "") -> list[NodeEntry]:
        """Returns the registered entries of all nodes; with a topic, of the launch that publishes it."""
        launch = self.launch_of(topic) if topic else None
        return [node.entry for node in self.nodes() if launch in (None, node.folder)]

    def launch_of(self, topic: str) -> Path | None:
        """Returns the folder of the launch that publishes a topic, or None. As long as it does, launches that begin
        later are ignored.

        Raises:
            FailedPreconditionError: Several launches publish it.
        """
        folders = {node.folder for node in self.nodes() if any(e.name == topic for e in node.entry.publishers)}
        launch = self._launches.get(topic)
        if launch not in folders:
            # a choice by chance could show the topics of another experiment
            if len(folders) > 1:
                raise ambiguous(f"there are several topics {topic!r}", folders)
            launch = next(iter(folders), None)
        if launch is not None:
            self._launches[topic] = launch
        return launch

    def node(self, name: str) -> RunningNode:
        """Returns the node with this full name.

        Raises:
            NotFoundError: The node does not exist.
            FailedPreconditionError: Several nodes have this name.
        """
        return self._only("node", name, [(node.entry.name, node.folder, node) for node in self.nodes()])

    def servers(self) -> list[tuple[RunningNode, str]]:
        """Returns the dynamics servers of running launches, each with its first endpoint."""
        return [(node, node.entry.answers_at[0]) for node in self.nodes() if node.entry.answers_at]

    def service(self, name: str) -> tuple[RunningNode, End]:
        """Returns the node and the endpoint of the service with this full name."""
        ends = [(end.name, node.folder, (node, end)) for node in self.nodes() for end in node.entry.services]
        return self._only("service", name, ends)

    def placed(self, pairs: Iterable[tuple[str, Path]]) -> list[str]:
        """Returns names, each with the folder of its launch if nodes of several launches are running."""
        folders = {node.folder for node in self.nodes()}
        return [f"{name}  {folder}" if len(folders) > 1 else name for name, folder in sorted(pairs)]

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
        types_of = self.topics()
        if name not in types_of:
            pairs = [(e.name, f.folder) for f in self.nodes() for e in (*f.entry.publishers, *f.entry.subscriptions)]
            raise NotFoundError(f"there is no topic {name!r}{_hint(name, pairs, 'topics')}")
        if len(types_of[name]) > 1:
            kinds = ", ".join(sorted(types_of[name]))
            raise FailedPreconditionError(f"topic {name!r} is of several types: {kinds}: name one")
        self.launch_of(name)
        return next(iter(types_of[name]))

    def call(self, service: str, request: msgspec.Struct | Mapping[str, Any], kind: type[R], timeout_s: float) -> R:
        """Calls a service and returns its response.

        service: full name. kind: class of the response.

        Raises:
            NotFoundError: The service does not exist.
            DeadlineExceededError: It did not answer in time.
            DynError: The service's error.
        """

        def find(name: str) -> str:
            return self.service(name)[1].endpoint

        with open_context() as context:
            client = ServiceClient(context, service, kind, find)
            try:
                return client.call(request, timeout_s)
            finally:
                client.close()

    def _only(self, kind: str, name: str, ends: list[tuple[str, Path, T]]) -> T:
        matching = [(folder, end) for other, folder, end in ends if other == name]
        if not matching:
            pairs = [(other, folder) for other, folder, _ in ends]
            raise NotFoundError(f"there is no {kind} {name!r}{_hint(name, pairs, f'{kind}s')}")
        if len(matching) > 1:
            raise ambiguous(f"there are {len(matching)} {kind}s {name!r}", {folder for folder, _ in matching})
        return matching[0][1]


def full(name: str) -> str:
    """Returns a name with its leading slash."""
    return name if name.startswith("/") or "://" in name else f"/{name}"


def ambiguous(message: str, folders: Iterable[Path]) -> FailedPreconditionError:
    """Returns the error of a name that nodes of several launches have."""
    choices = ", ".join(sorted(map(str, folders)))
    return FailedPreconditionError(f"{message}: choose a launch by {RUNTIME_DIR}=FOLDER, one of {choices}")


def _hint(name: str, candidates: Iterable[tuple[str, Path]], plural: str) -> str:
    """Returns the nearest of the candidates, or else all, with the launches that they belong to."""
    pairs = sorted(set(candidates))
    nearest = closest(name, (candidate for candidate, _ in pairs))
    launches: dict[Path, list[str]] = {}
    for candidate, folder in pairs:
        if nearest in (None, candidate):
            launches.setdefault(folder, []).append(candidate)
    if nearest is not None:
        return f"; did you mean {nearest!r}? It is in {' and '.join(map(str, launches))}"
    text = "; ".join(f"{', '.join(names[:12])} in {folder}" for folder, names in launches.items())
    return f"; the {plural} are {text}" if text else f"; there are no {plural}"
