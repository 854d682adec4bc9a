"""`dyn bench`: the queries that it times and compares. The tests judge no figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.cli import bench
from tests.conftest import URDF


def test_a_batch_is_held_against_the_peers_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 2)
    monkeypatch.setattr(bench, "SINGLE_CALLS", 2)
    assert bench.run([URDF / "scara.urdf"], batch=8, json_output=True) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["query"], row["states"], row["against"]) for row in rows] == [
        ("inverse_dynamics", 1, "rnea"),
        ("inverse_dynamics", 8, "rnea, loop"),
        ("inverse_dynamics", 8, "rneaInParallel(1)"),
        ("forward_dynamics", 1, "aba"),
        ("forward_dynamics", 8, "aba, loop"),
        ("forward_dynamics", 8, "abaInParallel(1)"),
        ("mass_matrix", 1, "crba"),
        ("mass_matrix", 8, "crba, loop"),
    ]
    assert all(row["ours_us"] > 0.0 and row["theirs_us"] > 0.0 for row in rows)
    assert bench.run([URDF / "scara.urdf"], batch=8, json_output=False) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 110


def test_the_peers_batch_answers_the_same_question() -> None:
    peer = pytest.importorskip("pinocchio")
    robot = Robot.from_file(URDF / "ur5e.urdf")
    q, v, a = np.random.default_rng(3).uniform(-1.0, 1.0, (3, 16, robot.nv))
    model = peer.buildModelFromUrdf(str(URDF / "ur5e.urdf"))
    in_parallel = bench._in_parallel(peer, model, 16)
    tau = robot.inverse_dynamics(q, v, a)
    columns = [np.asfortranarray(x.T) for x in (q, v, a, tau)]
    # rounding of two engines; for `aba`, times the condition number of the arm's mass matrix
    tau_of_batch = in_parallel["inverse_dynamics"](*columns[:3])
    np.testing.assert_allclose(tau_of_batch.T, tau, rtol=1e-10, atol=1e-10)
    a_of_batch = in_parallel["forward_dynamics"](*columns[:2], columns[3])
    np.testing.assert_allclose(a_of_batch.T, a, rtol=1e-9, atol=1e-9)


def test_robots_with_loops_are_timed_at_closed_states() -> None:
    assert {row.query for row in bench._rows(URDF / "four_bar.urdf", None, 4)} == {
        "inverse_dynamics", "forward_dynamics", "mass_matrix",
    }  # fmt: skip
