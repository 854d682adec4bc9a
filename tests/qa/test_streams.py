"""The short version of `python -m qa.faults streams`."""

from __future__ import annotations

import pytest

from qa.faults.streams import run
from tests.service.server.raw_peers import MECHANISMS

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_random_streams_harm_nobody(mechanism: str) -> None:
    seen, errors = run(300, seed=1, mechanism=mechanism)
    assert seen.calls > 0
    assert seen.wrong == 0
    assert "INTERNAL" not in errors
