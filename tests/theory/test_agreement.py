"""Every formulation against every other, `robot.verify`, on trees and robots: all agree.

`test_verification.py` tests that a residual detects a difference.

The whole of it, 200 random trees and every supported robot of example-robot-data, takes half an hour of compiling:

    python -m tests.theory.test_agreement

The test suite runs a part, chosen so that every kind of joint, branch and weld is in it; of the random trees the
kernels are interpreted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dyn_service.cli import main as cli
from dyn_service.engine.robot import Robot
from dyn_service.formulations.verification import survey
from tests.comparing import assert_formulations_agree
from tests.conftest import ROBOTS
from tests.oracle.example_robots import SUPPORTED, path_of
from tests.random_robots import random_urdf
from tests.tables import assert_complete
from tests.terms.interpreting import interpreting
from tests.wide import one_in, wide

BOUND = 1e-9
TREES = 200
STATES = 10
TESTED_SEEDS = range(0, TREES, 20)
COMPILED = ("cart_pendulum", "scara")
FORMULATIONS = {
    "mass_matrix",
    "projected",
    "body_recursion",
    "constraint_forces",
    "influence_operators",
    "articulated",
    "mass_matrix_solution",
    "influence_solution",
    "momentum",
    "velocity_from_momentum",
    "momentum_rate",
    "energy",
    "power",
    "constraint_power",
}
PLACE = "FORMULATIONS in tests/theory/test_agreement.py"


@pytest.mark.parametrize("seed", wide(TESTED_SEEDS, one_in(40)))
def test_random_trees(seed: int) -> None:
    report = assert_formulations_agree(interpreting(random_urdf(seed)), BOUND, STATES)
    assert_complete(FORMULATIONS, report["residuals"], PLACE, "add it")


@pytest.mark.parametrize("path", wide(ROBOTS, lambda path: path.stem in COMPILED), ids=lambda path: path.stem)
def test_our_robots(path: Path) -> None:
    report = assert_formulations_agree(Robot.from_urdf(path), BOUND, STATES)
    assert_complete(FORMULATIONS, report["residuals"], PLACE, "add it")


def test_command_prints_the_residuals() -> None:
    command = [sys.executable, "-m", "dyn_service", "check", "--dynamics", str(ROBOTS[0]), "--json", "--states", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert_complete(FORMULATIONS, report["residuals"], PLACE, "add it")
    assert report["worst"] == max(report["residuals"].values()) < BOUND
    assert report["states"] == 3


def test_command_fails_above_its_bound(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["dyn", "check", "--dynamics", str(ROBOTS[0]), "--states", "3", "--bound", "1e-30"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    error = capsys.readouterr().err
    assert end.value.code == 1
    assert error.startswith(f"error: {ROBOTS[0]}: ")
    assert " expected at most 1e-30: mass_matrix, " in error  # and the others that differ by more
    assert error.count("\n") == 1


if __name__ == "__main__":
    worst: dict[str, float] = {}
    for seed in range(TREES):
        worst[f"random tree {seed}"] = survey(Robot.from_urdf(random_urdf(seed)), states=STATES)["worst"]
        print(f"\r{seed + 1} of {TREES} trees, worst {max(worst.values()):.1e}", end="", file=sys.stderr)
    for name in SUPPORTED:
        worst[name] = survey(Robot.from_urdf(path_of(name)), states=STATES)["worst"]
        print(f"\n{name}: {worst[name]:.1e}", end="", file=sys.stderr)
    print(json.dumps({"cases": len(worst), "worst": max(worst.values()), "of": max(worst, key=lambda k: worst[k])}))
    sys.exit(not max(worst.values()) < BOUND)
