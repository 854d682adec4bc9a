"""The launch of the delta robot: motors follow their reference, passive joints the loops."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from rich.console import Console

from dyn_service import Robot
from dyn_service.graph.launch import launch_file
from tests.conftest import ROOT, URDF


def test_the_delta_robot_follows_its_motors(tmp_path: Path) -> None:
    screen, file = io.StringIO(), ROOT / "launch" / "delta_computed_torque.launch.yaml"
    console = Console(file=screen, width=300)
    arguments = {"rate_hz": "125.0", "plant_rate_hz": "250.0", "clock": "lockstep"}
    status = launch_file(file, arguments, duration_s=0.32, report_dir=tmp_path, console=console, check=True)
    assert status == 0, screen.getvalue()
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert "clean" in screen.getvalue().splitlines()[-1]
    assert [joint["name"] for joint in report["tracking"]["joints"]] == ["motor_1", "motor_2", "motor_3"]
    assert 0.0 < report["tracking"]["max"] < 1e-3
    robot = Robot.from_file(URDF / "delta.urdf")
    with np.load(tmp_path / "recording.npz") as recording:
        columns = recording["plant.plant.columns"].tolist()
        table = recording["plant.plant"]
    q = table[:, [k for k, name in enumerate(columns) if name.startswith("q.")]]
    assert np.ptp(q[:, 0]) > 0.01
    assert np.abs(robot.loop_error(q)).max() < 1e-9
