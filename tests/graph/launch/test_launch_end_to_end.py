"""Launches of a plant, a server and a controller as processes, and their report."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from dyn_service.engine.robot import Robot
from dyn_service.graph.launch import launch_file
from tests.graph.launches import PENDULUM
from tests.graph.many_ways import MANY_WAYS

REPOSITORY = Path(__file__).parents[3]
PATIENCE_S = 240.0
PATIENT = (
    ("request_timeout_s", "20.0"),
    ("missed_cycles", "20\\n    control_rate_hz: 1.0"),
    ("natural_frequency", "10.0"),
)
"""Natural frequency in rad/s: with answers 20 ms late a loop of 30 rad/s oscillates, one of 10 rad/s does not."""

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""


@pytest.fixture
def endpoint() -> str:
    """A loopback endpoint that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def children(pid: int) -> dict[str, int]:
    """Process ids of a launcher's nodes, by the last part of their module's name."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text(encoding="utf-8", errors="replace")
            command = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        module = next((word for word in command if ".nodes." in word), None)
        if int(fields[1]) == pid and fields[0] != "Z" and module is not None:
            found[module.rpartition(".")[2]] = int(path.name)
    return found


@pytest.fixture
def patient_config(tmp_path: Path) -> Path:
    """Returns the Panda's parameters with time limits and gains that tolerate a busy machine."""
    folder = tmp_path / "config"
    folder.mkdir()
    for path in (REPOSITORY / "config").glob("panda_*.yaml"):
        text = path.read_text(encoding="utf-8")
        for name, patient in PATIENT:
            text = re.sub(rf"{name}: [0-9.]+", f"{name}: {patient}", text)
        (folder / path.name).write_text(text, encoding="utf-8")
    return folder


def test_a_joint_file_is_for_plant_and_server(tmp_path: Path) -> None:
    """Plant and server have the damped robot; with different fingerprints the controller would end."""
    urdf, file = REPOSITORY / "urdf" / "pendulum.urdf", tmp_path / "joints.yaml"
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


def test_panda_tracks_over_the_socket(endpoint: str, patient_config: Path, tmp_path: Path) -> None:
    screen = io.StringIO()
    status = launch_file(
        REPOSITORY / "launch" / "panda_computed_torque.launch.yaml",
        {"endpoint": endpoint, "config": str(patient_config)},
        duration_s=4.0,
        report_dir=tmp_path / "report",
        console=Console(file=screen, width=200),
    )
    said = screen.getvalue()
    assert status == 0, said
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["robot"]["name"] == "panda"
    judged = {one["what"]: one["passed"] for one in report["outcome"]["verdicts"]}
    in_time = {"lateness", "time lost", "late answers"}  # of the machine, which may be busy
    assert {what for what, passed in judged.items() if passed is not True} <= in_time, said
    assert {"safe stops", "time under command", "tracking error", "time at limits"} <= set(judged)
    assert [process["state"] for process in report["processes"]] == ["stopped"] * 3
    requests, tracking, plant = report["requests"], report["tracking"], report["plant"]
    assert requests["lost"] == 0, said
    assert requests["answered"] == requests["sent"] > 0
    assert plant["refused"] == plant["malformed"] == plant["stops"] == 0
    assert len(tracking["joints"]) == 8
    assert tracking["samples"] > 0
    assert tracking["rms"] < 5e-3, said  # rad and m; a quiet machine gives 1e-6, one that stalls for 0.3 s up to 2e-3
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
        {{name: initial_position, param: [{{name: rails.theta, value: 0.5}}, {{name: swing, value: 0.3}}]}},
        {{name: undriven, value: []}}, {{name: control_rate_hz, value: 1.0}}]}}
  - node:
      {{pkg: dyn_service, exec: controller, param: [{{name: endpoint, value: "{endpoint}"}},
        {{name: request_timeout_s, value: 20.0}}, {{name: natural_frequency, value: 10.0}}]}}
"""


def test_joints_with_several_ways_to_move_track_over_the_socket(endpoint: str, tmp_path: Path) -> None:
    robot, file, screen = tmp_path / "many_ways.urdf", tmp_path / "many.launch.yaml", io.StringIO()
    robot.write_text(MANY_WAYS, encoding="utf-8")
    file.write_text(SEVERAL_WAYS.format(robot=robot, endpoint=endpoint), encoding="utf-8")
    status = launch_file(
        file, {}, duration_s=3.0, report_dir=tmp_path / "report", console=Console(file=screen, width=200)
    )
    said = screen.getvalue()
    assert status == 0, said
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["robot"]["joints"] == ["root_joint", "rails", "ball", "swing", "hoist"]
    requests, tracking, plant = report["requests"], report["tracking"], report["plant"]
    assert (requests["lost"], plant["refused"], plant["malformed"], plant["stops"]) == (0, 0, 0, 0), said
    assert requests["answered"] == requests["sent"] > 0
    assert [(joint["name"], joint["unit"]) for joint in tracking["joints"]][3:9] == [
        ("root_joint.wx", "rad"), ("root_joint.wy", "rad"), ("root_joint.wz", "rad"),
        ("rails.vx", "m"), ("rails.vy", "m"), ("rails.omega", "rad"),
    ]  # fmt: skip
    assert len(tracking["joints"]) == 14
    assert tracking["samples"] > 0
    assert tracking["rms"] < 5e-3, said  # as for the Panda
    assert len(report["loads"]["joints"]) == 5
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {
        "report.json", "recording.npz", "index.html",
    }  # fmt: skip


def test_nodes_that_are_killed_come_back(endpoint: str, tmp_path: Path) -> None:
    file = REPOSITORY / "launch" / "panda_computed_torque.launch.yaml"
    code = (
        "from pathlib import Path; from dyn_service.graph.launch import launch_file\n"
        f"file, given, report = {str(file)!r}, {{'endpoint': {endpoint!r}}}, Path({str(tmp_path)!r})\n"
        "raise SystemExit(launch_file(file, given, report_dir=report))"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + PATIENCE_S
    try:
        assert launcher.stdout is not None
        said = [launcher.stdout.readline(), launcher.stdout.readline()]
        assert said[0].startswith("[server] panda: 9 kernels for control in ")
        assert said[1] == "[launch] ready: 3 processes\n"
        first = children(launcher.pid)
        assert sorted(first) == ["computed_torque", "node", "server"]
        for name in ("server", "computed_torque"):
            os.kill(first[name], signal.SIGKILL)
            while children(launcher.pid).get(name, first[name]) == first[name]:
                assert time.monotonic() < deadline, f"{name} did not come back"
                time.sleep(0.02)
        time.sleep(2.0)  # both are up and at work again; how soon is not judged
        launcher.send_signal(signal.SIGINT)
        rest, _ = launcher.communicate(timeout=PATIENCE_S)
        said.append(rest)
    finally:
        launcher.kill()
        launcher.communicate()
    text = "".join(said)
    assert launcher.returncode == 1, text
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert {process["name"]: process["restarts"] for process in report["processes"]} == {
        "server": 1, "plant": 0, "controller": 1,
    }  # fmt: skip
    assert "SIGINT" in report["outcome"]["reason"]
    assert [fault.partition(":")[0] for fault in report["outcome"]["faults"]] == [
        "server was restarted 1 times", "controller was restarted 1 times",
    ]  # fmt: skip
    last = children(launcher.pid)
    assert not last
    for pid in first.values():
        assert not Path(f"/proc/{pid}").exists()
