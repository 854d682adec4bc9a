"""xacro files: run for who names one, and for nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, NotFoundError, UrdfError
from dyn_service.parsing.conversion import urdf_of
from dyn_service.service.client.flows import read_description
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.phrases import naming

pytest.importorskip("xacro", reason="the extra `xacro` is not installed")

MAIN = """<?xml version="1.0"?>
<robot name="made" xmlns:xacro="http://www.ros.org/wiki/xacro">
  <xacro:arg name="mass" default="2"/>
  <xacro:arg name="idle" default="0"/>
  <xacro:arg name="joints" default="3"/>
  <xacro:include filename="parts/rod.xacro"/>
  <xacro:property name="length" value="0.4"/>
  <link name="link_0"/>
  <xacro:macro name="chain" params="n of">
    <xacro:rod n="${n}" mass="${$(arg mass) * n}" length="${length}"/>
    <xacro:if value="${n &lt; of}"><xacro:chain n="${n + 1}" of="${of}"/></xacro:if>
  </xacro:macro>
  <xacro:chain n="1" of="${int('$(arg joints)')}"/>
  <xacro:unless value="${length &lt; 1}"><link name="never"/></xacro:unless>
</robot>"""

ROD = """<robot xmlns:xacro="http://www.ros.org/wiki/xacro">
  <xacro:macro name="rod" params="n mass length">
    <link name="link_${n}"><inertial><origin xyz="0 0 ${length / 2}"/><mass value="${mass}"/>
      <inertia ixx="${mass * length**2 / 12}" iyy="${mass * length**2 / 12}" izz="1e-4" ixy="0" ixz="0"
      iyz="0"/></inertial></link>
    <joint name="joint_${n}" type="continuous"><origin xyz="0 0 ${length}" rpy="${pi / 2} 0 0"/>
      <parent link="link_${n - 1}"/><child link="link_${n}"/><axis xyz="0 1 0"/></joint>
  </xacro:macro>
</robot>"""


@pytest.fixture
def main(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "rod.xacro").write_text(ROD)
    path = tmp_path / "made.urdf.xacro"
    path.write_text(MAIN)
    return path


def test_properties_macros_conditions_includes_and_arguments(main: Path) -> None:
    robot = Robot.from_file(main)
    assert robot.name == "made"
    assert robot.joint_names == ("joint_1", "joint_2", "joint_3")
    assert robot.receipt.after.mass == pytest.approx(2 + 4 + 6)
    assert robot.receipt.source == f"{main} (expanded)"
    other = Robot.from_file(main, arguments={"joints": "5", "mass": "3", "idle": "1"})
    assert other.nv == 5
    assert other.receipt.after.mass == pytest.approx(3 * 15)


def test_who_reads_urdf_alone_is_given_what_it_makes(main: Path) -> None:
    text = urdf_of(main)
    assert Robot.from_urdf(text).description.joints == Robot.from_file(main).description.joints
    ElementTree.fromstring(text)
    assert "<xacro:" not in text


def test_an_argument_that_it_does_not_take(main: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("'joint'", "'joints'")):
        Robot.from_file(main, arguments={"joint": "5"})
    with pytest.raises(InvalidArgumentError, match="takes no arguments: only files named"):
        Robot.from_file(URDF / "panda.urdf", arguments={"joints": "5"})


def test_a_real_one(tmp_path: Path) -> None:
    folder = path_of("panda_description/urdf/panda.urdf").parents[2] / "hector_description" / "robots"
    main = tmp_path / "quadrotor.urdf.xacro"
    main.write_text(
        '<robot name="quadrotor" xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:quadrotor_base_macro/></robot>'.replace(
            "<xacro:q", f'<xacro:include filename="{folder}/quadrotor_base.urdf.xacro"/><xacro:q'
        )
    )
    robot = Robot.from_file(main, root="floating")
    assert robot.nv == 6
    assert robot.receipt.after.mass == 1.477


def test_packages_without_ros(tmp_path: Path) -> None:
    package = tmp_path / "src" / "arm_description"
    (package / "urdf").mkdir(parents=True)
    (package / "package.xml").write_text("<package/>")
    (package / "urdf" / "rod.xacro").write_text(ROD)
    robot = package / "urdf" / "arm.xacro"
    robot.write_text(
        '<robot name="arm" xmlns:xacro="http://www.ros.org/wiki/xacro"><link name="link_0"/>'
        '<xacro:include filename="$(find arm_description)/urdf/rod.xacro"/><xacro:rod n="1" mass="1" '
        'length="1"/></robot>'
    )
    assert Robot.from_file(robot).joint_names == ("joint_1",)
    assert import_module("xacro.substitution_args")._eval_find.__module__ == "xacro.substitution_args"
    sibling = tmp_path / "src" / "rod_description"
    (sibling / "urdf").mkdir(parents=True)
    (sibling / "package.xml").write_text("<package/>")
    (sibling / "urdf" / "rod.xacro").write_text(ROD.replace("joint_${n}", "beside_${n}"))
    robot.write_text(robot.read_text().replace("$(find arm", "$(find rod"))
    assert Robot.from_file(robot).joint_names == ("beside_1",)
    robot.write_text(robot.read_text().replace("$(find rod", "$(find leg"))
    with pytest.raises(UrdfError, match="'leg_description'"):
        Robot.from_file(robot)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<robot", "malformed XML: unclosed token"),
        ('<robot xmlns:xacro="http://www.ros.org/wiki/xacro" name="${1/0}"/>', "xacro: division by zero"),
        ('<robot xmlns:xacro="http://www.ros.org/wiki/xacro" name="${nothing}"/>', "xacro: name 'nothing' is "
            "not defined"),
        ('<robot xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:nothing/></robot>', "xacro: unknown macro "
            "name: xacro:nothing"),
        ('<robot xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:include filename="no.xacro"/></robot>',
         "xacro: No such file"),
        ('<robot xmlns:xacro="http://www.ros.org/wiki/xacro" name="$(arg x)"/>', "xacro: Undefined substitution "
            "argument x"),
        ('<robot xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:macro '
         'name="m"><xacro:m/></xacro:macro><xacro:m/></robot>', "xacro: "),
        ('<robot name="r"/>', "there are no <link> elements"),
    ],
)  # fmt: skip
def test_faults(text: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.xacro"
    path.write_text(text)
    with pytest.raises(UrdfError) as excinfo:
        Robot.from_file(path)
    assert words in str(excinfo.value)
    assert str(path) in str(excinfo.value)
    assert "\n" not in str(excinfo.value)
    assert capfd.readouterr() == ("", "")
    # The xacro package keeps its state in its modules; the next file is not affected.
    path.write_text('<robot name="r"><link name="a"/></robot>')
    assert Robot.from_file(path).name == "r"


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        Robot.from_file(tmp_path / "a.xacro")


EVIL = (
    '<robot name="r" xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:property name="x" '
    'value="${xacro.load_yaml(\'{file}\')}"/><xacro:include filename="{file}"/><link name="a${x}"/></robot>'
)


def test_what_is_not_named_so_is_not_run(tmp_path: Path) -> None:
    """A text, or a file that is called a URDF, is read as one: parts of it are missing, and no other file is opened."""
    secret = tmp_path / "secret.yaml"
    secret.write_text("robot: 1")
    evil = EVIL.replace("{file}", str(secret))
    path = tmp_path / "a.urdf"
    path.write_text(evil)
    paths: list[str] = []
    sys.addaudithook(lambda event, args: paths.append(str(args[0])) if event == "open" else None)
    for give in (lambda: Robot.from_text(evil), lambda: Robot.from_file(path), lambda: Robot.from_urdf(evil)):
        with pytest.raises(UrdfError, match=naming("xacro", "URDF")):
            give()
    assert str(secret) not in paths


def test_a_client_expands_its_own(main: Path) -> None:
    text = read_description(main)
    assert "xacro:" not in text
    assert Robot.from_text(text).fingerprint == Robot.from_file(main).fingerprint


def test_without_the_package(main: Path) -> None:
    program = f"import sys; sys.modules['xacro'] = None; from dyn_service import Robot; Robot.from_file({str(main)!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    sentence = f"the xacro file {main} needs 'xacro', which is not installed: pip install 'dyn_service[xacro]'"
    assert f"MissingLibraryError: {sentence}" in done.stderr
