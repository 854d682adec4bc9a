"""The short version of `python -m qa.faults streams`."""

from __future__ import annotations

import pytest

from qa.faults.streams import run

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""


def test_random_streams_harm_nobody() -> None:
    seen, errors = run(300, seed=1)
    assert seen.asked > 0
    assert seen.wrong == 0
    assert "INTERNAL" not in errors
