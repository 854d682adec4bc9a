"""The short version of `python -m qa.faults kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.faults.kills import TYPED, server_killed, server_stopped, workers_killed

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_killed_server_is_missed_and_found_again(tmp_path: Path, encrypted: bool) -> None:
    seen = server_killed(2, tmp_path, encrypted=encrypted)
    assert seen.wrong == 0
    assert set(seen.errors) <= TYPED
    assert seen.answers >= 60
    assert seen.over_ms < 1000.0  # whatever the machine does; the long run prints it


def test_a_stopped_server_is_missed_and_found_again() -> None:
    seen = server_stopped(1, 1.0)
    assert seen.wrong == 0
    assert set(seen.errors) == {"DEADLINE_EXCEEDED"}
    assert len(seen.back_s) == 1


def test_a_killed_worker_costs_no_answer() -> None:
    seen = workers_killed(4)
    assert (seen.answers, seen.wrong, seen.errors) == (4, 0, {})
