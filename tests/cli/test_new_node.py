"""`dyn new node` and `dyn new launch`: the files that they write run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dyn_service.cli.console import UsageError
from dyn_service.cli.main import app
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.planner import LaunchPlan, make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.support.shipped import launch_files
from tests.conftest import ROOT
from tests.graph.in_process import nodes_in
from tests.graph.launches import Launched, wait_for


def new(folder: Path, kind: str, name: str) -> str:
    done = CliRunner().invoke(app, ["new", kind, name, "--folder", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def fault_of(folder: Path, kind: str, name: str) -> str:
    with pytest.raises(UsageError) as excinfo:
        new(folder, kind, name)
    return str(excinfo.value)


def plan_of(file: Path, **arguments: str) -> LaunchPlan:
    return make_plan(read_launch_file(file), arguments)


def test_a_new_node_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"run it     dyn launch {tmp_path}/smooth_arm/smooth_arm.launch.yaml" in new(tmp_path, "node", "smooth_arm")
    file_names = sorted(path.name for path in (tmp_path / "smooth_arm").iterdir())
    assert file_names == ["smooth_arm.launch.yaml", "smooth_arm.py"]
    assert not any("law_name" in (tmp_path / "smooth_arm" / name).read_text("utf-8").lower() for name in file_names)
    spec = importlib.util.spec_from_file_location("smooth_arm", tmp_path / "smooth_arm" / "smooth_arm.py")
    its = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "smooth_arm", its)
    spec.loader.exec_module(its)
    (tmp_path / "run").mkdir()
    with nodes_in(tmp_path / "run") as nodes:
        node = nodes.make("/smooth_arm", its.SmoothArmParameters(share=0.25), its.SmoothArm)
        source, sink, received = nodes.make("/source"), nodes.make("/sink"), []
        states = source.create_publisher(JointState, "joint_states", latched=True)
        sink.create_subscription(JointState, "/smooth_arm/joint_states", received.append, queue=10)
        node.change_state("configure")
        node.change_state("activate")
        nodes.until(lambda: states.subscribers == 1)
        nodes.until(lambda: states.publish(JointState(name=["a"], position=[3.0], velocity=[0.0])) and received)
        for share in (0.25, 0.5):
            node.set_parameters({"share": share})
            speed = received[-1].velocity[0]  # several of the first messages, at rest, may still be under way
            states.publish(JointState(name=["a"], position=[3.0], velocity=[8.0]))
            nodes.until(lambda speed=speed: received[-1].velocity[0] > speed)
        with pytest.raises(InvalidArgumentError, match="share"):
            node.set_parameters({"share": 0.0})
    assert [message.velocity for message in received[-2:]] == [[2.0], [5.0]]
    assert received[-1].position == [3.0]


def test_a_new_node_s_launch_file_plans(tmp_path: Path) -> None:
    new(tmp_path, "node", "smooth_arm")
    plan = plan_of(tmp_path / "smooth_arm" / "smooth_arm.launch.yaml", share="0.5", robot="panda")
    assert [process.name for process in plan.processes] == ["plant", "smooth_arm"]
    assert plan.processes[1].parameters == {"share": 0.5}
    assert plan.processes[0].parameters["robot"] == "panda"


def test_a_new_launch_file_plans_what_the_shipped_one_does(tmp_path: Path) -> None:
    """The launch file works in any folder: it has no path to the folder of the template."""
    output = new(tmp_path, "launch", "my_robot")
    file = tmp_path / "my_robot.launch.yaml"
    assert f"run it     dyn launch {file} --duration 10 --report report" in output
    assert "dyn launch my_robot.launch.yaml robot:=" in file.read_text("utf-8")
    for arguments in ({"robot": "panda"}, {"robot": "panda", "controller": "joint_impedance", "rate_hz": "250.0"}):
        ours, shipped = plan_of(file, **arguments), plan_of(launch_files()["robot"], **arguments)
        assert [process.parameters for process in ours.processes] == [
            process.parameters for process in shipped.processes
        ]
        assert [process.kind.name for process in ours.processes] == [process.kind.name for process in shipped.processes]
    assert plan_of(file).processes[1].parameters["robot"] == "ur5e"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    for kind, file in (("node", "mine/mine.py"), ("launch", "mine.launch.yaml")):
        new(tmp_path, kind, "mine")
        (tmp_path / file).write_text("kept", "utf-8")
        assert f"{Path(file).parts[0]}' already exists" in fault_of(tmp_path, kind, "mine")
        assert (tmp_path / file).read_text("utf-8") == "kept"
        assert "found '../mine'" in fault_of(tmp_path, kind, "../mine")
    new(tmp_path, "launch", "json")  # a launch file is not a module: names of modules are allowed
    assert "existing module" in fault_of(tmp_path, "node", "json")


@pytest.mark.slow
def test_a_new_node_is_launched_and_heard(tmp_path: Path) -> None:
    new(tmp_path, "node", "smooth_arm")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}
    file = tmp_path / "smooth_arm" / "smooth_arm.launch.yaml"
    with Launched(file, cwd=tmp_path, env={"XDG_RUNTIME_DIR": str(tmp_path)}) as run:
        words = ("topic", "echo", "--once", "/smooth_arm/joint_states")
        wait_for(lambda: run.process.poll() is not None or "smooth_arm" in run.text, "it never began")
        done = subprocess.run(
            [sys.executable, "-P", "-m", "dyn_service", *words],
            env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + run.text
        assert "name:\n- hinge\n" in done.stdout
        assert run.stop() == 0, run.text


@pytest.mark.slow
def test_a_new_launch_file_runs(tmp_path: Path) -> None:
    new(tmp_path, "launch", "my_robot")
    options = ("--duration", "1", "--report", str(tmp_path / "report"))
    with Launched(tmp_path / "my_robot.launch.yaml", "robot:=pendulum", *options, cwd=tmp_path) as run:
        assert run.wait() == 0, run.text
    assert (tmp_path / "report" / "report.json").is_file()
