"""Several nodes in one process and thread, in a folder of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import zmq

from dyn_service.graph.middleware.node import Node
from dyn_service.support.parameters import NoParameters

PATIENCE_S = 240.0
"""Far longer than anything here takes."""


class Nodes:
    """Makes nodes, turns all of them, closes them at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context: zmq.Context = zmq.Context()
        self.all: list[Node[Any]] = []

    def make(self, name: str, parameters: msgspec.Struct | None = None, kind: type[Node[Any]] = Node) -> Node[Any]:
        node = kind.alone(name, parameters or NoParameters(), self.folder, self.context)
        self.all.append(node)
        return node

    def end(self, node: Node[Any]) -> None:
        self.all.remove(node)
        node.close()

    def until(self, condition: Callable[[], Any], message: str = "it never came") -> Any:
        """Turns the nodes until the condition says something; that."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, message
            for node in list(self.all):
                node.spin_once(0.001)
        return value

    def turns(self, count: int) -> None:
        for _ in range(count):
            for node in self.all:
                node.spin_once()


@contextmanager
def nodes_in(folder: Path) -> Iterator[Nodes]:
    folder.chmod(0o700)
    nodes = Nodes(folder)
    try:
        yield nodes
    finally:
        for node in nodes.all:
            node.close()
        nodes.context.destroy(linger=0)
