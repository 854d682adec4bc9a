"""Shared by the tests of nodes: robots of ours, compiled once, and nodes in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dyn_service import Robot
from tests.conftest import URDF
from tests.nodes.in_process import Nodes, nodes_in


@pytest.fixture(scope="session")
def pendulum() -> Robot:
    return Robot.from_urdf(URDF / "pendulum.urdf")


@pytest.fixture(scope="session")
def arm() -> Robot:
    """Two joints that swing: the double pendulum."""
    return Robot.from_urdf(URDF / "double_pendulum.urdf")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with nodes_in(tmp_path) as made:
        yield made
