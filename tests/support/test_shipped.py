"""Robots, parameter files and launch files come along: in a checkout, in a wheel, in other packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dyn_service import Robot, connect
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support import shipped
from tests.conftest import ROOT, URDF
from tests.phrases import naming


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the module path, as a substitute for `site-packages`."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    return site


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("launch: [executable: {cmd: 'true'}]\n")
    return path


def test_names_are_those_of_the_files() -> None:
    assert list(shipped.robots()) == sorted(path.stem for path in URDF.glob("*.urdf"))
    assert list(shipped.launch_files()) == [
        path.name.removesuffix(".launch.yaml") for path in sorted((ROOT / "launch").iterdir())
    ]
    assert shipped.find_robot("panda") == URDF / "panda.urdf"
    assert shipped.find_launch_file("panda_computed_torque") == ROOT / "launch" / "panda_computed_torque.launch.yaml"


def test_parameter_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    payload = ROOT / "config" / "panda_payload.yaml"
    for name in ("config/panda_payload.yaml", "panda_payload.yaml", "panda_payload", Path("config", "panda_payload")):
        assert shipped.find_parameter_file(name) == payload
    for missing_path in ("elsewhere/panda_payload.yaml", "config/mine.yaml"):  # its reader says that it is not there
        assert shipped.find_parameter_file(missing_path) == Path(missing_path)
    made(tmp_path / "config" / "panda_payload.yaml")
    assert shipped.find_parameter_file("config/panda_payload.yaml") == Path("config/panda_payload.yaml")


def test_a_file_that_is_there_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("panda", "panda_computed_torque", "other.launch.yaml"):
        made(tmp_path / name)
    assert shipped.find_robot("panda") == Path("panda")
    assert shipped.find_launch_file("panda_computed_torque") == Path("panda_computed_torque")
    assert shipped.find_launch_file("other.launch.yaml") == Path("other.launch.yaml")
    assert shipped.find_robot("gone.urdf") == Path("gone.urdf")  # its reader says that it is not there
    with pytest.raises(NotFoundError, match=naming("cart_pendulum", "'ur5e'")):
        shipped.find_robot("ur5")


def test_where_packages_have_theirs(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("inside", "beside", "shared", "bare"):
        made(packages / name / "__init__.py")
    inside_file = made(packages / "inside" / "launch" / "a.launch.yaml")
    share = made(packages / "shared" / "share" / "launch" / "deep" / "a.launch.yaml")
    (packages / "shared" / "launch").mkdir()  # a module of such a name holds Python only
    (packages / "shared" / "launch" / "__init__.py").touch()
    assert shipped.find_launch_file("a", "inside") == inside_file
    (packages / "launch").mkdir()
    made(packages / "launch" / "b.launch.yaml")  # files next to an installed package belong to another package
    with pytest.raises(InvalidArgumentError, match="package 'beside' ships no files"):
        shipped.launch_files("beside")
    made(packages / "shared" / "share" / "config" / "p.yaml")
    assert shipped.find_launch_file("a.launch.yaml", "shared") == share
    prefix = tmp_path / "prefix"
    ros = made(prefix / "share" / "no_python_at_all" / "launch" / "c.launch.yaml")
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"{tmp_path / 'other'}{os.pathsep}{prefix}")
    assert shipped.find_launch_file("c", "no_python_at_all") == ros
    (packages / "pyproject.toml").touch()  # now it is a checkout
    assert shipped.find_launch_file("b", "beside") == packages / "launch" / "b.launch.yaml"


@pytest.mark.slow
def test_a_wheel_brings_them(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("dyn_service", "urdf", "config", "launch"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, sources)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", tmp_path, sources], check=True, timeout=240)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", *offline, "--target", tmp_path / "site", wheel], check=True, timeout=240)
    shutil.rmtree(sources)

    user_folder = tmp_path / "elsewhere"
    user_folder.mkdir()
    # only what the wheel has, and the libraries: no path of a checkout that is installed in place
    libraries = os.pathsep.join([str(tmp_path / "site"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    program = "import sys; sys.argv[0] = 'dyn'; from dyn_service.__main__ import main; main()"

    def dyn(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-S", "-c", program, *arguments],
            cwd=user_folder, env={**os.environ, "PYTHONPATH": libraries}, capture_output=True, text=True, timeout=240,
        )  # fmt: skip

    listing = dyn("robots", "--json")
    assert (listing.returncode, listing.stderr) == (0, "")
    rows = {row["name"]: row for row in json.loads(listing.stdout)}
    assert list(rows) == list(shipped.robots())
    assert rows["ur5e"]["joints"] == list(Robot.from_file(URDF / "ur5e.urdf").joint_names)
    share = tmp_path / "site" / "dyn_service" / "share"
    assert rows["ur5e"]["file"] == str(share / "urdf" / "ur5e.urdf")
    for folder in ("urdf", "config", "launch"):
        for path in (ROOT / folder).rglob("*"):
            assert not path.is_file() or (share / path.relative_to(ROOT)).read_bytes() == path.read_bytes()

    planning = """
import json, sys
from pathlib import Path
from dyn_service.support import shipped
from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.schema import read_launch_file
for file in shipped.launch_files().values():
    for process in make_plan(read_launch_file(file), {}, folder=Path()).processes:
        robots = process.parameters.get("robots", [process.parameters.get("robot")])
        for robot in robots if process.name.rpartition("/")[2] != "controller" else ():
            assert Path(robot).is_file(), robot
            print(Path(robot).resolve())
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", planning],
        cwd=user_folder, env={**os.environ, "PYTHONPATH": libraries}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert {Path(line).parent for line in done.stdout.split()} == {share / "urdf"}
    arguments_page = dyn("launch", "panda_computed_torque", "--show-args")
    assert arguments_page.stderr == f"panda_computed_torque: {share / 'launch' / 'panda_computed_torque.launch.yaml'}\n"


def test_a_missing_file_with_the_name_of_a_shipped_robot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for read in (Robot.from_urdf, Robot.from_file, connect):
        for name in ("panda", "panda.urdf", "urdf/panda.urdf"):  # the last as the pages have it, in a checkout
            with pytest.raises(NotFoundError, match=naming("the name of a shipped robot", "find_robot('panda')")):
                read(name)
        with pytest.raises(NotFoundError) as error:
            read("nobody")
        assert str(error.value) == "the file nobody does not exist"
    assert Robot.from_file(shipped.find_robot("panda")).nv == 8
