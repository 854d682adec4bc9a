"""Bugs of controllers, planted into the generated one, against every assertion: docs/hil.md has the table that this
file measures.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dyn_service.cli.new import new_package
from dyn_service.hil import Delay
from dyn_service.hil.bench import RobotCache, Run, Setup, open_bench, run_for
from dyn_service.hil.checks import Check
from tests.conftest import ROOT
from tests.phrases import unnamed

NAME = "planted"
LAW = "        return self.model.gravity_forces(state.q) + self.model.mass_matrix(state.q) @ pull\n"
SECONDS = 2.0
BUGS = {
    "none": LAW,
    "sign": LAW.replace("return", "tau =") + "        tau[2] = -tau[2]\n        return tau\n",
    "mN m": LAW.replace("return ", "return 1e-3 * (").replace("pull\n", "pull)\n"),
    "degrees": "        pull = 57.3 * pull\n" + LAW,
    "gravity": LAW.replace("return", "return 0.0 *"),
    "order": LAW.replace("return", "tau =") + "        return tau[[0, 2, 1, 3, 4, 5]]\n",
    "crash": "        if state.t > 1.0:\n            pull = pull * gain\n" + LAW,
}
"""The last line of the law's update: right; with a wrong sign of one joint, efforts in mN m, errors in degrees, no
weight, two joints exchanged, a name that does not exist.
"""
HALF = {"positions in degrees": "        pull = pull + 56.3 * w * w * self.stretch\n" + LAW}
"""As degrees, with the damping in the right unit."""
CHECKS: dict[str, Callable[[Check], object]] = {
    "tracking().below(0.1)": lambda check: check.tracking().below(0.1),
    "position().within_limits()": lambda check: check.position().within_limits(),
    "velocity().within_limits()": lambda check: check.velocity().within_limits(),
    "effort().within_limits()": lambda check: check.effort().within_limits(),
    "commanded().within_limits()": lambda check: check.commanded().within_limits(),
    "power().below(100)": lambda check: check.power().below(100.0),
    "energy().below(100)": lambda check: check.energy().below(100.0),
    "settling(band=0.1).below(0.1)": lambda check: check.settling(band=0.1, from_s=1.0).below(0.1),
    'overshoot("elbow_joint", to=0).below(2)': lambda check: check.overshoot("elbow_joint", to=0.0).below(2.0),
    "delay().below(6e-3)": lambda check: check.delay().below(6e-3),
    "jitter().below(1e-3)": lambda check: check.jitter().below(1e-3),
    "deadlines().at_most(0)": lambda check: check.deadlines().at_most(0),
    "stops().at_most(0)": lambda check: check.stops().at_most(0),
    "under_command().at_least(0.95)": lambda check: check.under_command().at_least(0.95),
    'count("refused").at_most(0)': lambda check: check.count("refused").at_most(0),
    "frozen().below(1e-3)": lambda check: check.frozen().below(1e-3),
    "clean()": lambda check: check.clean(),
}
STOP = "safe_stop(after_s=1.5).below(0.4)"
"""With the fault `Delay(0.5, from_s=1.5)`."""


@pytest.fixture(scope="module")
def cache() -> RobotCache:
    return RobotCache()


@pytest.fixture
def run(tmp_path: Path, cache: RobotCache) -> Iterator[Callable[..., Run]]:
    """(bug, faults) -> a run of the generated controller with the bug."""
    new_package("controller", NAME, tmp_path, "ur5e")
    law = tmp_path / NAME / NAME / "controller.py"
    source = law.read_text("utf-8")
    assert LAW in source

    def go(bug: str, *faults: Delay) -> Run:
        law.write_text(source.replace(LAW, {**BUGS, **HALF}[bug]), "utf-8")
        setup = Setup(str(tmp_path / NAME / NAME / "launch" / f"{NAME}.launch.yaml"))
        return run_for(open_bench("lockstep", setup, cache, faults, 0), SECONDS, "lockstep", 0, faults)

    yield go
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def message_of(run: Run, assertion: Callable[[Check], object]) -> str:
    """Returns the message of the failed assertion; empty if it holds."""
    try:
        assertion(run.check)
    except AssertionError as error:
        return str(error)
    return ""


def cell(sentence: str) -> str:
    """Returns what detected the bug: a value beyond its bound, too little time under command, or nothing."""
    return "" if not sentence else "time" if re.match(r"[^,;(]*: judged on|[^,;(]*: controller:", sentence) else "value"


def documented(title: str) -> dict[str, list[str]]:
    """The rows of the table of docs/hil.md below this title, by their first cell."""
    text = (ROOT / "docs" / "hil.md").read_text("utf-8").partition(f"### {title}\n")[2].partition("\n## ")[0]
    rows = [
        [part.strip().strip("`") for part in line.strip("|").split("|")] for line in text.split("\n") if line[:1] == "|"
    ]
    return {first: rest for first, *rest in rows[:1] + rows[2:]}


@pytest.mark.parametrize("bug", BUGS)
def test_the_table_of_detected_bugs_is_documented(run: Callable[..., Run], bug: str) -> None:
    done, late = run(bug), run(bug, Delay(0.5, from_s=1.5))
    cells = {name: cell(message_of(done, assertion)) for name, assertion in CHECKS.items()}
    cells[STOP] = cell(message_of(late, lambda check: check.safe_stop(after_s=1.5).below(0.4)))
    table = documented("Which assertion detects which bug")
    if bug == "none":
        assert set(cells.values()) == {""}
        assert set(cells) == set(table) - {"assertion"}
    else:
        column = table["assertion"].index(bug)
        assert cells == {name: table[name][column] for name in cells}


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (
            "sign",
            [
                "elbow_joint: tracking error",
                "(velocity): elbow_joint would reach",
                "98 % of its limit, 3.142 rad/s",
                "grows against",
            ],
        ),
        ("order", ["elbow_joint: tracking error", "(velocity): elbow_joint would reach", "order of joints"]),
        ("degrees", ["(velocity): wrist_3_joint would reach", "changes its direction", "a gain too large"]),
        ("positions in degrees", ["(velocity): elbow_joint would reach", "elbow_joint swings ever wider", "degrees?"]),
        ("mN m", ["shoulder_lift_joint: tracking error", "(velocity): shoulder_lift_joint would reach"]),
        ("gravity", ["wrist_1_joint: tracking error"]),
        (
            "crash",
            ["NameError: name 'gain' is not defined (controller.py, line 49), at 0.995 s", "judged on 0.98 of 1.975 s"],
        ),
    ],
)
def test_the_assertion_carries_the_cause(run: Callable[..., Run], bug: str, words: list[str]) -> None:
    sentence = message_of(run(bug), CHECKS["tracking().below(0.1)"])
    assert unnamed(sentence, *words) == []
    assert ("hint" in sentence) == (bug in ("sign", "order", "degrees", *HALF))
