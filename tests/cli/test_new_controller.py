"""`dyn new controller`: the package that it writes passes the checks and runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from dyn_service.cli.new import check_name, new_package
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.schema import read_launch_file
from tests.conftest import ROOT
from tests.graph.launches import Launched

NAME = "soft_arm"
FILES = [
    "README.md", "pyproject.toml", "soft_arm/__init__.py", "soft_arm/config/soft_arm.yaml", "soft_arm/controller.py",
    "soft_arm/launch/soft_arm.launch.yaml", "tests/test_hil_soft_arm.py", "tests/test_soft_arm.py",
]  # fmt: skip


def dyn(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "dyn_service", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package that the command writes."""
    folder = tmp_path_factory.mktemp("new")
    done = dyn("new", "controller", NAME, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sorted(lines[: len(FILES)]) == sorted(f"{NAME}/{file}" for file in FILES)
    law = f"the law    {NAME}/{NAME}/controller.py; it lags behind motions and friction until you add terms for them"
    assert law in lines
    assert f"test it    pip install pytest; python -m pytest {NAME}" in lines
    launch = f"{NAME}/{NAME}/launch/{NAME}.launch.yaml"
    assert f"run it     dyn launch {launch} clock:=lockstep --duration 10 --report report" in lines
    return folder / NAME


def own_tests(package: Path, *options: str) -> str:
    """Returns what the tests of the package print."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.stdout + done.stderr


def test_its_own_tests_pass(package: Path) -> None:
    assert "6 passed" in own_tests(package)


def test_its_own_tests_are_of_the_robot_that_was_named(tmp_path: Path) -> None:
    """They pass, and the wrong sign of one joint, which no test of a pendulum can see, fails those of the law alone."""
    shutil.copy(ROOT / "urdf" / "scara.urdf", tmp_path / "arm.urdf")
    done = dyn("new", "controller", NAME, "--robot", "arm.urdf", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    launch, law = tmp_path / NAME / NAME / "launch" / f"{NAME}.launch.yaml", tmp_path / NAME / NAME / "controller.py"
    assert "name: robot, default: $(dirname)/../../../arm.urdf," in launch.read_text("utf-8")
    text = own_tests(tmp_path / NAME)
    assert "6 passed" in text, text
    source = law.read_text("utf-8")
    law.write_text(
        source.replace(
            "        return self.model.gravity", "        pull[2] = -pull[2]\n        return self.model.gravity"
        )
    )
    text = own_tests(tmp_path / NAME)
    failed = {line.partition("::")[2].partition(" ")[0] for line in text.splitlines() if line.startswith("FAILED")}
    assert failed >= {"test_each_term_of_the_law", "test_each_joint_is_pulled_to_its_reference"}, text


TURNTABLE = """<robot name="turntable"><link name="base"/><link name="plate"><inertial><mass value="1"/>
  <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="turn" type="continuous">
  <parent link="base"/><child link="plate"/><axis xyz="0 0 1"/></joint></robot>"""


def test_its_weight_is_missed_where_gravity_is_lost(package: Path, tmp_path: Path) -> None:
    """A pendulum in the middle of its limits hangs; nothing has weight about a vertical axis."""
    shutil.copytree(package, tmp_path / NAME)
    law = tmp_path / NAME / NAME / "controller.py"
    law.write_text(law.read_text("utf-8").replace("self.model.gravity_forces", "0.0 * self.model.gravity_forces"))
    text = own_tests(tmp_path / NAME, "-k", "test_it_carries_its_weight")
    assert "hinge: tracking error" in text, text
    (turntable := tmp_path / "turntable.urdf").write_text(TURNTABLE)
    assert dyn("new", "controller", "turner", "--robot", str(turntable), cwd=tmp_path).returncode == 0
    assert "1 skipped" in own_tests(tmp_path / "turner", "-k", "test_it_carries_its_weight")


def test_an_unknown_robot_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = dyn("new", "controller", NAME, "--robot", "no_such_arm", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: there is no robot 'no_such_arm'")
    assert not (tmp_path / NAME).exists()


def test_a_robot_with_loops_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnimplementedError, match="'four_bar' has closed loops"):
        new_package("controller", NAME, tmp_path, robot="four_bar")
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    "term", ["self.model.gravity_forces", "self.model.mass_matrix", "w * w", "2.0 * d", "state.v", "reference.v"]
)
def test_its_tests_are_red_where_a_term_is_lost(
    package: Path, pendulum: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    """The tests of the template fail if the law is wrong."""
    shutil.copytree(package, tmp_path / NAME)
    law = tmp_path / NAME / NAME / "controller.py"
    whole = law.read_text("utf-8")
    assert f" {term}" in whole.replace("(", " ")
    law.write_text(whole.replace(term, f"0.0 * {term}"), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / NAME))
    spec = importlib.util.spec_from_file_location("its_tests", tmp_path / NAME / "tests" / f"test_{NAME}.py")
    its_tests = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(its_tests)
        soft_arm = its_tests.SoftArm(its_tests.SoftArmParameters(natural_frequency=10.0, damping_ratio=0.7), pendulum)
        with pytest.raises(AssertionError):
            its_tests.test_each_term_of_the_law(pendulum, soft_arm, np.array([0.3]))
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


def test_no_placeholder_is_left_and_its_launch_file_plans(package: Path, tmp_path: Path) -> None:
    for file in FILES:
        text = (package / file).read_text("utf-8")
        assert not re.search(r"law_?name", text.replace("law_names", ""), re.IGNORECASE), file
    project = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["dyn_service.nodes"] == {NAME: f"{NAME}.controller:NODE"}
    launch = package / NAME / "launch" / f"{NAME}.launch.yaml"
    default = make_plan(read_launch_file(launch), {}, folder=tmp_path).processes[-1].parameters
    assert (default["natural_frequency"], default["damping_ratio"]) == (15.0, 1.0)  # of the parameter file
    (unit := tmp_path / "a.fmu").touch()
    arguments = {
        "natural_frequency": "8.0",
        "trajectory": "hold",
        "rate_hz": "250.0",
        "clock": "lockstep",
        "substeps": "2",
    }
    plan = make_plan(
        read_launch_file(launch), {**arguments, "engine": "fmu", "fmu": str(unit), "rearm": "false"}, folder=tmp_path
    )
    *_, plant, controller = plan.processes
    assert {name: plant.parameters[name] for name in ("engine", "fmu", "clock", "substeps")} == {
        "engine": "fmu", "fmu": str(unit), "clock": "lockstep", "substeps": 2,
    }  # fmt: skip
    assert [plant.parameters["state_rate_hz"], plant.parameters["control_rate_hz"]] == [250.0, 250.0]
    assert (controller.parameters["rate_hz"], controller.parameters["rearm"]) == (250.0, False)
    assert controller.kind.name == NAME
    assert dict(controller.parameters)["natural_frequency"] == 8.0
    assert [panel.section for panel in controller.kind.panels] == ["requests", "law", "loads"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Arm", "at most 40 .*found 'My-Arm'$"),
        ("../arm", "at most 40 .*found '../arm'$"),
        ("", "at most 40 .*found ''$"),
        ("lambda", "'lambda' is a Python keyword"),
        ("json", "'json' .* existing module"),
        ("numpy", "'numpy' .* existing module"),
        ("dyn_service", "'dyn_service' .* existing module"),
    ],
)
def test_bad_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as excinfo:
        check_name(name)
    assert excinfo.value.path == "name"


def test_nothing_is_written_over_and_no_folder_made_up(package: Path) -> None:
    law = package / NAME / "controller.py"
    law_source = law.read_bytes()
    with pytest.raises(InvalidArgumentError, match=r"soft_arm' already exists"):
        new_package("controller", NAME, package.parent)
    with pytest.raises(InvalidArgumentError, match=r"folder '.*/nowhere' does not exist"):
        new_package("controller", "other", package / "nowhere")
    assert law.read_bytes() == law_source
    done = dyn("new", "controller", NAME, "--folder", str(package.parent), cwd=package)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: '{package}' already exists")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_it_is_launched_and_reported(package: Path, tmp_path: Path) -> None:
    launch, report = package / NAME / "launch" / f"{NAME}.launch.yaml", tmp_path / "report"
    with Launched(launch, "--duration", "2", "--report", str(report), cwd=package) as run:
        assert run.wait() == 0, run.text
    content = json.loads((report / "report.json").read_text("utf-8"))
    assert content["law"]["name"] == NAME
    assert content["law"]["parameters"]["natural_frequency"] == 15.0
    assert [signal["name"] for signal in content["law"]["signals"]["stretch"]] == ["hinge"]
    assert content["tracking"]["samples"] > 0
    assert f"<h3>{NAME}: stretch</h3>" in (report / "index.html").read_text("utf-8")
