"""Faults of a launch are reported once, before anything starts, with file and line, and status 2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dyn_service.cli import main as cli
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.support.arguments import parse_arguments
from dyn_service.support.documents import ConfigurationError
from tests.phrases import in_our_words, unnamed

LAUNCH = """
launch:
  - node: {pkg: dyn_service, exec: plant, name: plant, param: [{from: PLANT}, {name: robot, value: panda}]}
  - node: {pkg: dyn_service, exec: controller, name: control, param: [{from: BOTH}]}
"""
SECTION = "  ros__parameters:\n    rate_hz: 250.0\n"


def write_launch(folder: Path) -> None:
    """Writes a launch file without faults, and its parameter files."""
    (folder / "plant.yaml").write_text(f"plant:\n{SECTION}")
    (folder / "both.yaml").write_text(f"/**:\n{SECTION}control:\n{SECTION}")
    text = LAUNCH.replace("PLANT", str(folder / "plant.yaml")).replace("BOTH", str(folder / "both.yaml"))
    (folder / "a.launch.yaml").write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_launch(tmp_path)
    return tmp_path


def fault(folder: Path) -> str:
    with pytest.raises(InvalidArgumentError) as excinfo:
        make_plan(read_launch_file(folder / "a.launch.yaml"), {}, folder=folder)
    assert in_our_words(str(excinfo.value))
    return str(excinfo.value).replace(f"{folder}/", "")


def test_files_that_fit_are_taken(folder: Path) -> None:
    launch_plan = make_plan(read_launch_file(folder / "a.launch.yaml"), {}, folder=folder)
    assert [process.parameters["rate_hz"] for process in launch_plan.processes] == [250.0, 250.0]


@pytest.mark.parametrize(
    ("file", "text", "values"),
    [
        (
            "plant.yaml",
            f"controller:\n{SECTION}",
            ["a.launch.yaml:3: launch[0].node.param[0].from", "plant.yaml", "/plant"],
        ),
        (
            "plant.yaml",
            f"plant:\n{SECTION}contrl:\n{SECTION}",
            ["plant.yaml:4: contrl", "'contrl'", "/plant", "/control", "'control'"],
        ),
        (
            "both.yaml",
            f"/**:\n{SECTION}arm:\n  plant:\n  {SECTION.replace('    ', '      ')}",
            ["both.yaml:5: arm.plant", "'arm/plant'", "/plant", "/control", "'/plant'"],
        ),
        (
            "plant.yaml",
            f"plant:\n{SECTION}    joints: gone.yaml\n",
            ["plant.yaml:4: plant.ros__parameters.joints", "'joints'", "'gone.yaml'"],
        ),
        (
            "plant.yaml",
            f"plant:\n{SECTION}    joints: .\n",
            ["plant.yaml:4: plant.ros__parameters.joints", "'joints'", "'{folder}'"],
        ),
        (
            "both.yaml",
            "/**:\n  ros__parameters:\n    rate_hz: -5.0\n",
            ["both.yaml:3: /**.ros__parameters.rate_hz", "'rate_hz'", "0", "-5"],
        ),
        (
            "plant.yaml",
            "plant:\n  ros__parameters:\n    safe_stop: brak\n",
            [
                "plant.yaml:3: plant.ros__parameters.safe_stop",
                "'safe_stop'",
                "brake, damping, zero",
                "'brak'",
                "'brake'",
            ],
        ),
    ],
)
def test_faults_of_parameter_files(folder: Path, file: str, text: str, values: list[str]) -> None:
    (folder / file).write_text(text)
    assert unnamed(fault(folder), *(value.format(folder=folder) for value in values)) == []


@pytest.mark.parametrize(
    ("robot", "message"),
    [
        ("pnda", "parameter 'robot': there is no robot 'pnda', neither a file nor a shipped one"),
        ("/gone.urdf", "parameter 'robot': there is no file '/gone.urdf'"),
    ],
)
def test_a_robot_that_is_not_there(folder: Path, robot: str, message: str) -> None:
    path = folder / "a.launch.yaml"
    path.write_text(path.read_text().replace("value: panda", f"value: {robot}"))
    assert f"a.launch.yaml:3: launch[0].node.param[1]: {message}" in fault(folder)


def test_relative_paths_begin_where_the_node_will_be(folder: Path) -> None:
    path = folder / "a.launch.yaml"
    (folder / "robot.urdf").touch()
    path.write_text(path.read_text().replace("value: panda", "value: robot.urdf"))
    assert "there is no file 'robot.urdf'" in fault(folder)
    path.write_text(path.read_text().replace("name: plant,", f"name: plant, cwd: {folder},"))
    make_plan(read_launch_file(path), {}, folder=folder)


def test_a_node_by_itself_refuses_the_file_of_another(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="no section is for /plnt"):
        parse_arguments(["--ros-args", "--params-file", str(folder / "plant.yaml")], default_name="plnt")


def test_it_is_one_line_and_status_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "plant.yaml").write_text("plant:\n  ros__parameters:\n    rate_hz: fast\n")
    monkeypatch.setattr(sys, "argv", ["dyn", "launch", str(folder / "a.launch.yaml"), "--duration", "1"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    place = f"{folder}/plant.yaml:3: plant.ros__parameters.rate_hz"
    assert unnamed(err, place, "'rate_hz'", "number", "text") == []


LEFT_OUT = {
    "a node": "  - node: {pkg: dyn_service, exec: plant, name: $(var called), if: false, param: [{from: gone.yaml}]}\n",
    "a node by its program": "  - node: {pkg: dyn_service, exec: spare, unless: true, namespace: /}\n",
    "in a group": "  - group:\n"
    "      if: false\n"
    "      children:\n"
    "        - let: {name: inner, value: sp}\n"
    "        - node: {pkg: x, exec: y, name: $(var inner)are}\n",
    "in a file": "  - include: {file: b.launch.yaml, if: false, arg: [{name: it, value: spare}]}\n",
}  # fmt: skip


@pytest.mark.parametrize("action", LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_section_may_be_for_a_node_that_is_left_out(folder: Path, action: str) -> None:
    """A parameter file may have a section for a node that is not started; a section for an unknown node is a fault."""
    (folder / "b.launch.yaml").write_text(
        "launch:\n  - arg: {name: it}\n  - include: {file: b.launch.yaml, if: false, arg: [{name: it, value: spare}]}\n"
        "  - node: {pkg: dyn_service, exec: plant, name: $(var it), unless: false}\n"
    )
    file, both_file = folder / "a.launch.yaml", folder / "both.yaml"
    file.write_text(LAUNCH.replace("launch:", "launch:\n  - let: {name: called, value: spare}")
                    .replace("PLANT", str(folder / "plant.yaml")).replace("BOTH", str(both_file)) + action)  # fmt: skip
    both_file.write_text(f"/**:\n{SECTION}spare:\n{SECTION}")
    assert [process.name for process in make_plan(read_launch_file(file), {}, folder=folder).processes] == [
        "plant", "control",
    ]  # fmt: skip
    both_file.write_text(f"/**:\n{SECTION}spair:\n{SECTION}")
    assert unnamed(fault(folder), "both.yaml:4", "'spair'") == []


def test_what_is_left_out_leaves_nothing_behind(folder: Path) -> None:
    """Of its actions only the nodes' names are taken, also behind one that cannot be read, from files that include each
    other, and for each of their arguments.
    """
    for name, other in ("bc", "cb"):
        (folder / f"{name}.launch.yaml").write_text(
            "launch:\n  - arg: {name: it, default: plain}\n"
            f"  - include: {{file: {other}.launch.yaml, arg: [{{name: it, value: deep}}]}}\n"
            f"  - node: {{pkg: dyn_service, exec: plant, name: {name}_$(var it)}}\n"
        )
    file, parameter_file = folder / "a.launch.yaml", folder / "both.yaml"
    file.write_text(
        LAUNCH.replace("PLANT", str(folder / "plant.yaml")).replace("BOTH", str(parameter_file))
        + "  - group:\n      if: false\n      scoped: false\n      children:\n"
        "        - let: {name: a, value: $(var b)}\n        - let: {name: c, value: d}\n"
        "        - push_ros_namespace: {namespace: arm}\n        - log_info: {message: lost}\n"
        "        - executable: {cmd: 'true'}\n        - include: {file: gone.launch.yaml}\n"
        "        - include: {file: b.launch.yaml}\n"
        "        - include: {file: b.launch.yaml, arg: [{name: it, value: given}]}\n"
        "        - node: {pkg: x, exec: y, name: last}\n"
        "  - node: {pkg: dyn_service, exec: plant, name: here, param: [{name: robot, value: $(var c panda)}]}\n"
    )
    names = ["b_plain", "b_given", "c_deep", "arm/last"]
    parameter_file.write_text("/**:\n" + SECTION + "".join(f"/{name}:\n{SECTION}" for name in names))
    plan = make_plan(read_launch_file(file), {}, folder=folder)
    assert [process.name for process in plan.processes] == ["plant", "control", "here"]
    assert plan.processes[-1].parameters["robot"] == "panda"
    assert (plan.messages, dict(plan.arguments)) == ((), {})
    with pytest.raises(InvalidArgumentError, match="unknown launch argument 'it'"):
        make_plan(read_launch_file(file), {"it": "x"}, folder=folder)


@pytest.mark.parametrize(
    "broken", ["include: {file: gone.launch.yaml, if: false}", "let: {name: a, value: $(var b), if: 0}"]
)
def test_what_cannot_be_read_in_what_is_left_out_is_no_fault(folder: Path, broken: str) -> None:
    file = folder / "a.launch.yaml"
    file.write_text(f"{file.read_text()}  - {broken}\n")
    assert len(make_plan(read_launch_file(file), {}, folder=folder).processes) == 2
