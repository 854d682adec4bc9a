"""The short version of `python -m qa.faults floods`."""

from __future__ import annotations

import pytest

from qa.faults.floods import FLOODS, run
from tests.service.server.raw_peers import MECHANISMS

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", FLOODS)
def test_new_clients_are_answered_and_memory_is_bounded_in_a_flood(name: str, mechanism: str) -> None:
    line, is_good = run(FLOODS[name], mechanism, 2.0)
    assert is_good, line
    assert not line.lstrip().startswith("0;"), line
