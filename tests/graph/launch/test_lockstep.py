"""A launch in lockstep: its length is that of the plant's time, and goals that were aborted make it not clean."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dyn_service.graph.launch import launch_file, supervisor
from tests.conftest import URDF

GOALS = """- joint_names: [hinge]
  points: [{positions: [0.05], time_from_start: {sec: 0, nanosec: 200000000}}]
- joint_names: [hinge]
  points: [{positions: [0.1], time_from_start: {sec: 5}}]
"""


def launched(folder: Path, duration_s: float, **parameters: str) -> tuple[int, dict, list[str], dict]:
    """Status, outcome and report of the pendulum with two goals, and its recording."""
    folder.mkdir(exist_ok=True)
    (folder / "goals.yaml").write_text(GOALS, "utf-8")
    parameter_text = "".join(f", {{name: {name}, value: {value}}}" for name, value in parameters.items())
    pendulum = URDF / "pendulum.urdf"
    text = f"""launch:
  - node: {{pkg: dyn_service, exec: server,
      param: [{{name: robots, value: [{pendulum}]}}, {{name: prepare, value: [control]}}]}}
  - node: {{pkg: dyn_service, exec: plant, param: [{{name: robot, value: {pendulum}}},
      {{name: control_rate_hz, value: 500.0}}, {{name: clock, value: lockstep}}]}}
  - node: {{pkg: dyn_service, exec: trajectory_following, name: controller, param: [{{name: rate_hz, value: 500.0}},
      {{name: goals, value: {folder / "goals.yaml"}}}{parameter_text}]}}
"""
    (folder / "goals.launch.yaml").write_text(text, "utf-8")
    screen, report = io.StringIO(), folder / "report"
    console = Console(file=screen, width=300)
    status = launch_file(
        folder / "goals.launch.yaml", {}, duration_s=duration_s, report_dir=report, console=console, check=True
    )
    content = json.loads((report / "report.json").read_text("utf-8"))
    with np.load(report / "recording.npz") as recording:
        return status, content, screen.getvalue().splitlines(), dict(recording)


def test_a_launch_in_lockstep_ends_at_the_plant_s_time(tmp_path: Path) -> None:
    """Two launches give equal rows, all of them, and as many as steps; both state what was simulated."""
    tables = []
    for k in range(2):
        status, report, lines, recording = launched(tmp_path / f"run{k}", 1.0)
        assert status == 0, lines
        assert report["simulated_s"] == pytest.approx(1.0, abs=1e-9)
        last = "clean, 5 bounds met; simulated 1 s in lockstep"
        assert last in lines[-1]
        page = (tmp_path / f"run{k}" / "report" / "index.html").read_text("utf-8")
        assert "simulated <b>1 s in lockstep</b>" in page
        table = recording["plant.plant"]
        assert len(table) == report["plant"]["steps"] == 1000
        columns = recording["plant.plant.columns"].tolist()
        tables.append(np.delete(table, columns.index("session"), axis=1))
    np.testing.assert_array_equal(tables[0], tables[1])
    assert report["goals"] == {
        "succeeded": 1, "aborted": 0, "preempted": 0, "canceled": 0, "refused": 0, "unfinished": 1, "last_abort": ""
    }  # fmt: skip
    assert any("unfinished goals not judged (1 when the launch ended)" in line for line in lines)


def test_a_launch_with_an_aborted_goal_is_not_clean(tmp_path: Path) -> None:
    """The tolerance is below the error of discretization, so that each goal is aborted."""
    status, report, lines, _ = launched(tmp_path, 0.5, path_tolerance="1.0e-12")
    assert status == supervisor.NOT_CLEAN
    (sentence,) = [verdict["sentence"] for verdict in report["outcome"]["verdicts"] if verdict["passed"] is False]
    assert sentence.startswith("aborted goals 2 (of 2; the last: goal 2 at 0.")
    assert sentence.endswith("), allowed at most 0")
    assert "status 3: not clean, 1 of 5 bounds broken" in lines[-1]
    assert sentence.replace("'", "&#x27;") in (tmp_path / "report" / "index.html").read_text("utf-8")


def test_a_plant_whose_time_stands_still_ends_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing commands it: the launch ends after a time of the wall, and says so."""
    monkeypatch.setattr(supervisor, "STALLED_S", 0.5)
    file, screen = tmp_path / "alone.launch.yaml", io.StringIO()
    file.write_text(
        f"launch: [{{node: {{pkg: dyn_service, exec: plant, param: [{{name: robot, value: {URDF / 'pendulum.urdf'}}}, "
        "{name: control_rate_hz, value: 500.0}, {name: clock, value: lockstep}]}}]\n",
        "utf-8",
    )
    assert launch_file(file, {}, duration_s=1.0, console=Console(file=screen, width=300)) == 1
    last = screen.getvalue().splitlines()[-1]
    assert "status 1: the plant's time has stood still at 0 of 1 s for 0.5 s" in last
