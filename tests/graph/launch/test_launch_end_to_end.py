"""Launches of a plant, a server and a controller as processes, and their report."""

import io
import json
import socket
from pathlib import Path

import pytest
from rich.console import Console

from dyn_service.engine.robot import Robot
from dyn_service.graph.launch import launch_file
from tests.conftest import ROOT
from tests.graph.launches import PENDULUM
from tests.graph.many_ways import MANY_WAYS

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""


@pytest.fixture
def endpoint() -> str:
    """A loopback endpoint that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def test_a_joint_file_is_for_plant_and_server(tmp_path: Path) -> None:
    """Plant and server have the damped robot; with different fingerprints the controller would end."""
    urdf, file = ROOT / "urdf" / "pendulum.urdf", tmp_path / "joints.yaml"
    name = Robot.from_urdf(urdf).joint_names[0]
    file.write_text(f"robot: pendulum\njoints:\n  {name}: {{damping: 0.1}}\n", encoding="utf-8")
    of_server, of_plant = (f"{{name: joints, value: {value}}}" for value in (f"[{file}]", str(file)))
    text = PENDULUM.replace("{name: prepare", f"{of_server}, {{name: prepare")
    text = text.replace("{name: control_rate_hz", f"{of_plant}, {{name: control_rate_hz")
    for word in ("SERVER", "PLANT", "CONTROLLER"):
        text = text.replace(f"{word}\n", "\n")
    launch = tmp_path / "damped.launch.yaml"
    launch.write_text(text, encoding="utf-8")
    screen = io.StringIO()
    report_dir = tmp_path / "report"
    status = launch_file(launch, {}, duration_s=2.0, report_dir=report_dir, console=Console(file=screen, width=200))
    assert status == 0, screen.getvalue()
    report = json.loads((report_dir / "report.json").read_text(encoding="utf-8"))
    assert report["robot"]["fingerprint"] == Robot.from_urdf(urdf, joints=file).fingerprint
    assert [process["state"] for process in report["processes"]] == ["stopped"] * 3
    assert all(process["cpu_s"] > 0.0 and process["cpu_share"] > 0.0 for process in report["processes"])


def test_panda_tracks_over_the_socket(endpoint: str, tmp_path: Path) -> None:
    """In lockstep, where a busy machine makes nothing late: all bounds are met, and the error is of the numerics."""
    screen = io.StringIO()
    status = launch_file(
        ROOT / "launch" / "panda_computed_torque.launch.yaml",
        {"endpoint": endpoint, "clock": "lockstep"},
        duration_s=4.0,
        report_dir=tmp_path / "report",
        console=Console(file=screen, width=200),
    )
    output = screen.getvalue()
    assert status == 0, output
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["robot"]["name"] == "panda"
    judged = {verdict["what"]: verdict["passed"] for verdict in report["outcome"]["verdicts"]}
    assert not [subject for subject, is_met in judged.items() if is_met is False], output
    assert {"safe stops", "time under command", "tracking error", "time at limits"} <= set(judged)
    assert [process["state"] for process in report["processes"]] == ["stopped"] * 3
    requests, tracking, plant = report["requests"], report["tracking"], report["plant"]
    assert requests["lost"] == 0, output
    assert requests["answered"] == requests["sent"] > 0
    assert plant["refused"] == plant["malformed"] == plant["stops"] == 0
    assert len(tracking["joints"]) == 8
    assert tracking["samples"] > 0
    assert tracking["rms"] < 5e-6, output  # rad and m; 8e-7, the same on every machine
    assert len(report["loads"]["joints"]) == 12
    assert report["loads"]["joints"][0]["force_max_n"] > 100.0  # the whole arm hangs on the first joint
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {
        "report.json", "recording.npz", "index.html",
    }  # fmt: skip


SEVERAL_WAYS = """launch:
  - node:
      {{pkg: dyn_service, exec: server, param: [{{name: robots, value: [{robot}]}}, {{name: root, value: floating}},
        {{name: endpoints, value: ["{endpoint}"]}}, {{name: prepare, value: [control]}}]}}
  - node:
      {{pkg: dyn_service, exec: plant, param: [{{name: robot, value: {robot}}}, {{name: root, value: floating}},
        {{name: clock, value: lockstep}},
        {{name: initial_position, param: [{{name: rails.theta, value: 0.5}}, {{name: swing, value: 0.3}}]}},
        {{name: undriven, value: []}}, {{name: control_rate_hz, value: 500.0}}]}}
  - node:
      {{pkg: dyn_service, exec: controller, param: [{{name: endpoint, value: "{endpoint}"}},
        {{name: natural_frequency, value: 10.0}}]}}
"""


def test_joints_with_several_ways_to_move_track_over_the_socket(endpoint: str, tmp_path: Path) -> None:
    robot, file, screen = tmp_path / "many_ways.urdf", tmp_path / "many.launch.yaml", io.StringIO()
    robot.write_text(MANY_WAYS, encoding="utf-8")
    file.write_text(SEVERAL_WAYS.format(robot=robot, endpoint=endpoint), encoding="utf-8")
    status = launch_file(
        file, {}, duration_s=3.0, report_dir=tmp_path / "report", console=Console(file=screen, width=200)
    )
    output = screen.getvalue()
    assert status == 0, output
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["robot"]["joints"] == ["root_joint", "rails", "ball", "swing", "hoist"]
    requests, tracking, plant = report["requests"], report["tracking"], report["plant"]
    assert (requests["lost"], plant["refused"], plant["malformed"], plant["stops"]) == (0, 0, 0, 0), output
    assert requests["answered"] == requests["sent"] > 0
    assert [(joint["name"], joint["unit"]) for joint in tracking["joints"]][3:9] == [
        ("root_joint.wx", "rad"), ("root_joint.wy", "rad"), ("root_joint.wz", "rad"),
        ("rails.vx", "m"), ("rails.vy", "m"), ("rails.omega", "rad"),
    ]  # fmt: skip
    assert len(tracking["joints"]) == 14
    assert tracking["samples"] > 0
    assert tracking["rms"] < 2e-5, output  # rad and m; 4e-6, as for the Panda
    assert len(report["loads"]["joints"]) == 5
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {
        "report.json", "recording.npz", "index.html",
    }  # fmt: skip
