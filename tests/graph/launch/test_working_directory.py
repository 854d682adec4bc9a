"""Neither nodes nor `dyn` import modules from the working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.launch.supervisor import python_path
from tests.conftest import ROOT
from tests.graph.launch.test_hung import NODE
from tests.graph.launches import Launched, pendulum

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""

TAKEN = ("json", "dyn_service", "numpy", "zmq", "sitecustomize", "secrets", "gc")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """Returns a folder with modules that write a file when they are imported."""
    folder = tmp_path / "trap"
    folder.mkdir()
    for name in TAKEN:
        code = f"open({str(tmp_path / 'sprung')!r}, 'a').write('{name} ')\n"
        (folder / f"{name}.py").write_text(code, "utf-8")
        (folder / name / "nodes").mkdir(parents=True)
        for package in (folder / name, folder / name / "nodes"):
            (package / "__init__.py").write_text(code, "utf-8")
    for node in ("server", "plant", "controller"):
        (folder / "dyn_service" / "nodes" / f"{node}.py").write_text(code, "utf-8")
    return folder


@pytest.mark.parametrize("stray_colon", [False, True])
def test_nodes_import_nothing_from_the_working_directory(trap: Path, tmp_path: Path, stray_colon: bool) -> None:
    """Not from the launcher's or the nodes' working directory, nor by an empty part of PYTHONPATH."""
    file = trap / "a.launch.yaml"
    (trap / "moody.py").write_text(NODE, "utf-8")  # a node that the launch file names by its file does run
    own_node = f"  - node: {{exec: moody.py, cwd: {trap}}}\n"
    cwd_text = f"cwd: {trap},"
    file.write_text(pendulum(server=cwd_text, plant=cwd_text, controller=cwd_text) + own_node, "utf-8")
    options = {"cwd": ROOT, "env": {"PYTHONPATH": f":{ROOT}"}} if stray_colon else {"cwd": trap}
    with Launched(file, **options) as launch:
        launch.wait_line("[launch] ready: 4 processes")
        assert launch.stop() == 0, launch.text
    assert not (tmp_path / "sprung").exists()


def test_the_trap_would_spring(trap: Path, tmp_path: Path) -> None:
    """Without `-P` they are imported, so the test above can fail."""
    subprocess.run([sys.executable, "-m", "dyn_service.graph.nodes.server"], cwd=trap, capture_output=True, timeout=240)
    assert (tmp_path / "sprung").exists()


def test_the_command_imports_nothing_from_the_working_directory(trap: Path, tmp_path: Path) -> None:
    code = "import sys; from dyn_service.cli.main import main; sys.argv = ['dyn', '--version']; main()"
    script = tmp_path / "bin" / "dyn"  # as installed: Python searches the script's folder, not the working directory
    script.parent.mkdir()
    script.write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=trap, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=240
    )
    assert done.returncode == 0
    assert not (tmp_path / "sprung").exists()


def test_a_stray_colon_is_not_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert python_path({"PYTHONPATH": ":/one::two:"}) == {"PYTHONPATH": f"/one:{tmp_path}/two"}
    assert python_path({"PYTHONPATH": ":"}) == {"PYTHONPATH": ""}
    assert python_path({}) == {}


@pytest.mark.parametrize(
    ("node", "content", "fault"),
    [
        ("{exec: none.py}", "", "there is no file '{folder}/none.py'"),
        ("{exec: own.py}", "", "node '{folder}/own.py': 'NODE' is not a NodeKind"),
        ("{exec: own.py}", "1 / 0", "node '{folder}/own.py' cannot be loaded: ZeroDivisionError: division by zero"),
        ("{exec: own.py, param: [{name: mod, value: x}]}", NODE, "parameter 'mod': unknown key 'mod'; did you mean"),
    ],
)
def test_a_node_of_a_file_is_held_to_its_declaration(tmp_path: Path, node: str, content: str, fault: str) -> None:
    (tmp_path / "own.py").write_text(content, "utf-8")
    file = tmp_path / "own.launch.yaml"
    file.write_text(f"launch: [{{node: {node}}}]", "utf-8")
    with pytest.raises(InvalidArgumentError, match=r"own\.launch\.yaml:1: ") as excinfo:
        make_plan(read_launch_file(file), {})
    assert fault.format(folder=tmp_path) in str(excinfo.value)


def test_a_file_belongs_to_no_package(tmp_path: Path) -> None:
    file = tmp_path / "own.launch.yaml"
    file.write_text("launch: [{node: {pkg: dyn_service, exec: own.py}}]", "utf-8")
    with pytest.raises(InvalidArgumentError, match=r"node\.pkg: 'own.py' is a Python file"):
        make_plan(read_launch_file(file), {})
