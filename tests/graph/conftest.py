"""Shared by the tests of nodes: robots of ours, compiled once, and nodes in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.graph.in_process import Nodes, nodes_in


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with nodes_in(tmp_path) as nodes:
        yield nodes
