"""Shared by all tests: where our robots are, and a kernel cache that outlives a test but not the test run's user."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import settings

from dyn_service.config.parameters import NoParameters
from dyn_service.nodes.node import Node

ROOT = Path(__file__).parent.parent
URDF = ROOT / "urdf"
ROBOTS = sorted(URDF.glob("*.urdf"))

# The same examples each time: a red run is red again, for anybody. `--hypothesis-profile=default` draws others.
settings.register_profile("the same each time", derandomize=True)
settings.load_profile("the same each time")


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: whoever collects garbage need not walk through them, and halts nothing."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def panda_path() -> Path:
    """The Panda with its fingers: 9 joints that move, of which one follows another."""
    return URDF / "panda.urdf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the nodes of one launch share."""
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def node(folder: Path) -> Iterator[Node[NoParameters]]:
    """An active node in this process, for those who look on."""
    context = zmq.Context()
    made = Node.alone("/arm/plant", NoParameters(), folder, context)
    made.state = "active"
    yield made
    made.close()
    context.term()
