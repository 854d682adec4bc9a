"""The short run of `qa.faults.proxy`; only the long run checks times."""

from __future__ import annotations

import pytest

from qa.faults.proxy import Mischief, run

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or hang: `python -m pytest -m slow`."""


@pytest.mark.parametrize(
    ("mischief", "limit_s", "most_errors"),
    [(Mischief(), 5.0, 0), (Mischief(drop=0.3, double=0.3, reorder=0.3), 0.5, 600)],
    ids=["as stated", "much more"],
)
def test_messages_that_are_dropped_doubled_reordered_and_delayed(
    mischief: Mischief, limit_s: float, most_errors: int
) -> None:
    found = run(600, 2, mischief, limit_s)
    assert found["requests"] == 600
    assert found["wrong"] == 0
    assert found["foreign"] == []
    assert found["errors"].keys() <= {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
    assert sum(found["errors"].values()) <= most_errors
    assert found["proxy"]["dropped"] > 0
    assert found["client"]["retries"] > 0
    assert found["client"]["dropped"] > 0  # the second replies
