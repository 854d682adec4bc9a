"""A few trials of each fault of `qa.faults.watchdog`, with real processes. Times are the plant's own."""

import pytest

from qa.faults.watchdog import BOUND_S, FAULTS, run

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""

TIMES = 2
REASON = {"nan": "not_finite", "stale": "stale", "absurd": "ahead", "fingerprint": "fingerprint"}


def test_the_plant_stops_in_time_whatever_its_controller_does() -> None:
    outcomes, counts, violations = run(TIMES)
    assert tuple(outcomes) == FAULTS
    for fault, outcome in outcomes.items():
        assert outcome.faults == [], fault
        assert len(outcome.latency_s) == TIMES
        assert max(outcome.latency_s) <= BOUND_S, fault
    assert violations == []
    assert counts["stops"] >= TIMES * len(FAULTS)
    for reason in REASON.values():
        assert counts[f"refused_{reason}"] > 0, reason
