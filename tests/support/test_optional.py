"""Optional libraries: the table is what pyproject.toml installs, and what is missing is said before it is needed."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from dyn_service import Robot
from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.simulation.mujoco import MujocoEngine
from dyn_service.support.documents import ConfigurationError
from dyn_service.support.optional import LIBRARIES, MissingLibraryError, load, missing, require
from tests.conftest import ROOT
from tests.phrases import naming, unnamed

DEVELOPERS = {"test"}
"""Extras of those who work on the package: none of its own code asks for them."""


def test_the_table_is_the_projects_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    pyproject_libraries = {
        (re.match(r"[\w-]+", requirement).group(), extra)  # type: ignore[union-attr]
        for extra, requirements in extras.items()
        if extra not in DEVELOPERS
        for requirement in requirements
    }
    table_libraries = {
        (library.distribution, library.extra) for library in LIBRARIES.values() if library.extra is not None
    }
    # one library may come with several extras: the table has one of them
    assert table_libraries <= pyproject_libraries
    assert {name for name, _ in table_libraries} == {name for name, _ in pyproject_libraries}


def test_the_sentence() -> None:
    assert (
        unnamed(
            missing("dyn foxglove", "foxglove"), "dyn foxglove", "'foxglove-sdk'", "pip install 'dyn_service[foxglove]'"
        )
        == []
    )
    assert missing("it", "prometheus_client.core").endswith("pip install 'dyn_service[server]'")
    assert missing("to_pinocchio", "pinocchio").endswith("pip install pin")
    assert missing("it", "nowhere_at_all") == "it needs 'nowhere_at_all', which is not installed"


def test_what_is_there_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    require("it", "mujoco", "ruckig")
    assert load("it", "ruckig").__name__ == "ruckig"
    monkeypatch.setitem(sys.modules, "ruckig", None)
    for ask in (require, load):
        with pytest.raises(MissingLibraryError, match=naming("'ruckig'", "'dyn_service[trajectories]'")):
            ask("it", "ruckig")


NODES = {
    "mujoco": ("plant", "[{name: robot, value: panda}, {name: engine, value: mujoco}]"),
    "fmpy": ("plant", "[{name: robot, value: panda}, {name: engine, value: fmu}]"),
    "cyclonedds": ("ros2_bridge", "[]"),
    "ruckig": ("trajectory_following", "[{name: goals, value: $(dirname)/goals.yaml}]"),
    "xacro": ("plant", "[{name: robot, value: $(dirname)/arm.urdf.xacro}]"),
}
"""By the library, a node that needs it, with its parameters."""


@pytest.mark.parametrize("module", NODES)
def test_a_launch_that_needs_one_is_refused_while_it_is_planned(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "goals.yaml").write_text("- {joint_names: [a], points: [{positions: [0.1]}]}\n", "utf-8")
    (tmp_path / "arm.urdf.xacro").write_text("<robot/>", "utf-8")
    node, parameters = NODES[module]
    path = tmp_path / "it.launch.yaml"
    path.write_text(f"launch:\n- node: {{pkg: dyn_service, exec: {node}, param: {parameters}}}\n", "utf-8")
    assert make_plan(read_launch_file(path), {}, folder=tmp_path).processes
    monkeypatch.setitem(sys.modules, module, None)
    sentence = rf"^{re.escape(str(path))}:2: .*needs '{module}', which is not installed: pip install 'dyn_service\["
    with pytest.raises(ConfigurationError, match=sentence):
        make_plan(read_launch_file(path), {}, folder=tmp_path)


def test_goals_with_times_need_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goals = "- {joint_names: [a], points: [{positions: [0.1], time_from_start: {sec: 1}}]}\n"
    (tmp_path / "goals.yaml").write_text(goals, "utf-8")
    node, parameters = NODES["ruckig"]
    path = tmp_path / "it.launch.yaml"
    path.write_text(f"launch:\n- node: {{pkg: dyn_service, exec: {node}, param: {parameters}}}\n", "utf-8")
    monkeypatch.setitem(sys.modules, "ruckig", None)
    assert make_plan(read_launch_file(path), {}, folder=tmp_path).processes


def test_a_folder_called_mujoco_is_not_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace package, as mujoco-studio is without mujoco-core: the import succeeds and has no simulator."""
    (tmp_path / "mujoco").mkdir()
    for name in [name for name in sys.modules if name.partition(".")[0] == "mujoco"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(path for path in sys.path if "site-packages" not in path)])
    importlib.invalidate_caches()
    robot = Robot.from_file(ROOT / "urdf" / "pendulum.urdf")
    with pytest.raises(MissingLibraryError, match=naming("'mujoco'", "'dyn_service[mujoco]'")):
        MujocoEngine(robot.as_described, robot.configuration, {}, dt_s=1e-3)
    del sys.modules["mujoco"]  # not by `monkeypatch`, which would bring the folder back for later tests
