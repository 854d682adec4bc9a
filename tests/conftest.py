"""Shared by all tests: where our robots are, and a kernel cache that outlives a test but not the test run's user."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
URDF = ROOT / "urdf"
ROBOTS = sorted(URDF.glob("*.urdf"))


@pytest.fixture(scope="session")
def panda_path() -> Path:
    """The Panda with its fingers: 9 movable joints."""
    return URDF / "panda.urdf"
