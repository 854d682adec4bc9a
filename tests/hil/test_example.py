"""The worked examples: each fault is caught, for the right reason; on a usual day nobody cries wolf; a quadruped walks.

Two hundred usual days: `pytest examples/hil --seeds 200`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import fenced
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

TOLD, IN_TIME, ENCODERS, RUNS_AWAY = (
    "test_it_goes_where_it_is_told", "test_answers_come_in_time", "test_encoders_count", "test_nothing_runs_away",
)  # fmt: skip
ALL = {TOLD, IN_TIME, ENCODERS, RUNS_AWAY}
EXAMPLES = ROOT / "examples" / "hil"
PYTEST = (sys.executable, "-m", "pytest", "-p", "dyn_service.hil.plugin", "-p", "no:cacheprovider", "-W", "error")
CAUGHT = {  # by which test, with which words, and which tests pass: none about a time in which the plant was stopped
    "payload": (TOLD, r"panda_joint6: tracking error 0\.01\d* rad at .* allowed below 1e-3 rad \(first", ALL - {TOLD}),
    "order": (RUNS_AWAY, r"safe stops \d+ \(velocity at 0\.04 s", set()),
    "late": (
        IN_TIME,
        r"missed deadlines 2\d\d \(the first at 0\.50\d s, the deadline is 2e-3 s, the latest took 6e-3 s\)",
        ALL - {IN_TIME},
    ),
    "encoder": (
        ENCODERS,
        r"panda_joint4: way of the reference while the encoder stood still 0\.0\d+ rad \(from 0\.5 s to 0\.\d+ s\)",
        set(),
    ),
}
Outcome = dict[str, dict[str, tuple[bool, str]]]


@pytest.fixture(scope="module")
def outcomes() -> Outcome:
    """By what was wrong and by test: whether it passed, and what it said. One session for all of them."""
    wrongs = [word for name in ("nothing", *CAUGHT) for word in ("--wrong", name)]
    run = subprocess.run(
        [*PYTEST, "-rA", "--tb=line", str(EXAMPLES / "test_panda.py"), *wrongs],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "COLUMNS": "2000"},
    )
    assert run.returncode == 1, run.stdout + run.stderr
    by_fault: Outcome = {}
    for line in run.stdout.splitlines():
        words = re.fullmatch(r"(PASSED|FAILED) \S*::(\w+)\[0-(\w+)\](?: - (.*))?", line)
        if words:
            by_fault.setdefault(words[3], {})[words[2]] = (words[1] == "PASSED", words[4] or "")
    return by_fault


@pytest.mark.parametrize("wrong", CAUGHT)
def test_each_fault_is_caught_by_what_looks_for_it(outcomes: Outcome, wrong: str) -> None:
    caught_by, reason, untouched = CAUGHT[wrong]
    assert set(outcomes[wrong]) == ALL
    has_passed, message = outcomes[wrong][caught_by]
    assert not has_passed
    assert re.match(f"AssertionError: {reason}", message)
    assert {name for name in ALL if outcomes[wrong][name][0]} >= untouched
    assert untouched or all(
        "the plant is stopped (velocity): panda_joint" in message for _, message in outcomes[wrong].values()
    )


def test_nobody_cries_wolf_on_a_usual_day(outcomes: Outcome) -> None:
    assert outcomes["nothing"] == dict.fromkeys(ALL, (True, ""))


def test_the_quadruped_stands_and_walks() -> None:
    program = [*PYTEST, "-q", str(EXAMPLES / "test_solo12.py")]
    run = subprocess.run(program, capture_output=True, text=True, timeout=250)
    assert "6 passed" in run.stdout, run.stdout + run.stderr


def test_the_pages_tests(tmp_path: Path) -> None:
    """docs/hil.md, as it stands: of its first file two tests pass, the third says what the page says that it says; that
    of a robot by positions passes.
    """
    page = (ROOT / "docs" / "hil.md").read_text("utf-8")
    [ini], codes = fenced(page, "ini"), fenced(page, "py")
    (tmp_path / "pytest.ini").write_text(ini)
    (tmp_path / "test_arm.py").write_text("\n\n".join(codes))
    run = subprocess.run([*PYTEST, "--hil-report", "report"], capture_output=True, text=True, timeout=250, cwd=tmp_path)
    assert "1 failed, 3 passed" in run.stdout, run.stdout + run.stderr
    page_text = " ".join(line.removeprefix("    ").removeprefix("E") for line in page.splitlines())
    [failure_text] = [line.removeprefix("E").strip() for line in run.stdout.splitlines() if line.startswith("E  ")]
    assert re.sub(r"\s+", " ", failure_text) in re.sub(r"\s+", " ", page_text)
