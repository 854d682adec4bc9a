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
    outcome = run(600, 2, mischief, limit_s)
    assert outcome["requests"] == 600
    assert outcome["wrong"] == 0
    assert outcome["foreign"] == []
    assert outcome["errors"].keys() <= {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
    assert sum(outcome["errors"].values()) <= most_errors
    assert outcome["proxy"]["dropped"] > 0
    assert outcome["client"]["retries"] > 0
    assert outcome["client"]["dropped"] > 0  # the second replies
