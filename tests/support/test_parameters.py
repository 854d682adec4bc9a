"""Parameter files of ROS 2, and the command line of a node."""

from pathlib import Path

import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.nodes.controllers.computed_torque import ControllerParameters
from dyn_service.graph.nodes.plant.factory import PlantParameters
from dyn_service.support import documents
from dyn_service.support.arguments import parse_arguments
from dyn_service.support.documents import ConfigurationError, parse_document
from dyn_service.support.parameters import NoParameters, Parameters
from tests.phrases import unnamed


def merged(text: str, node: str) -> dict:
    parameters = Parameters()
    parameters.merge_file(parse_document(text, "p.yaml"), node)
    return parameters.values


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("/**", {"/plant", "/arm/plant", "/lab/arm/plant"}),
        ("plant", {"/plant"}),
        ("/plant", {"/plant"}),
        ("/*", {"/plant"}),
        ("/*/plant", {"/arm/plant"}),
        ("/arm/*", {"/arm/plant"}),
        ("/**/plant", {"/plant", "/arm/plant", "/lab/arm/plant"}),
        ("/lab/**", {"/lab/arm/plant"}),
        ("/arm/plant", {"/arm/plant"}),
        ("controller", set()),
    ],
)
def test_patterns(pattern: str, matches: set[str]) -> None:
    nodes = ("/plant", "/arm/plant", "/lab/arm/plant")
    text = f"{pattern}: {{ros__parameters: {{x: 1}}}}"
    assert {node for node in nodes if merged(text, node)} == matches


def test_nested_namespaces_dots_and_precedence() -> None:
    text = """
/**: {ros__parameters: {a: 1, gains: {kp: 1.0, kd: 1.0}, list: [1, 2]}}
arm:
  plant:
    ros__parameters:
      gains.kp: 2.0
      list: [3]
"""
    assert merged(text, "/arm/plant") == {"a": 1, "gains": {"kp": 2.0, "kd": 1.0}, "list": [3]}


def test_numbers_as_in_yaml_1_2() -> None:
    assert merged("/**: {ros__parameters: {a: 1e-3, b: 2E5, c: -1.e+2, d: 1_e3}}", "/n") == {
        "a": 1e-3, "b": 2e5, "c": -100.0, "d": "1_e3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("ros__parameters: {a: 1}", ["p.yaml:1: ros__parameters", "'ros__parameters'"]),
        ("plant: 5", ["p.yaml:1: plant", "'ros__parameters'"]),
        ("plant: {ros__parameters: [1]}", ["p.yaml:1: plant.ros__parameters", "parameters", "list"]),
        ("n: {ros__parameters: {a.: 1}}", ["p.yaml:1: n.ros__parameters.a.", "'a.'"]),
    ],
)
def test_file_faults(text: str, values: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        merged(text, "/n")
    assert unnamed(error.value, *values) == []


def test_type_fault_names_the_place_deep_inside() -> None:
    parameters = Parameters()
    parameters.merge_file(
        parse_document("c:\n  ros__parameters:\n    multi_sine:\n      period_s: long\n", "p.yaml"), "/c"
    )
    with pytest.raises(ConfigurationError) as error:
        parameters.to(ControllerParameters)
    assert (
        unnamed(
            error.value, "p.yaml:4: c.ros__parameters.multi_sine.period_s", "'multi_sine.period_s'", "number", "text"
        )
        == []
    )


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{brake_s: .inf}", ["'brake_s'", "inf"]),  # brakes that never brake
        ("{max_catch_up_s: .inf}", ["'max_catch_up_s'", "inf"]),
        ("{actuators: {lag_s: [0.1, .nan]}}", ["'actuators.lag_s[1]'", "nan"]),
        ("{initial_position: {elbow: -.inf}}", ["'initial_position.elbow'", "-inf"]),
    ],
)
def test_parameters_are_finite(text: str, values: list[str]) -> None:
    parameters = Parameters()
    parameters.merge_file(parse_document(f"/n: {{ros__parameters: {text}}}", "p.yaml"), "/n")
    with pytest.raises(ConfigurationError) as error:
        parameters.to(PlantParameters)
    assert str(error.value).startswith("p.yaml:1: ")
    assert unnamed(error.value, *values) == []


def test_command_line(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("/arm/left: {ros__parameters: {robot: a.urdf, rate_hz: 10.0}}", encoding="utf-8")
    arguments = parse_arguments(
        ["--ros-args", "--params-file", str(file), "-p", "rate_hz:=20.5", "-p", "joint_states:=/js",
         "-r", "__node:=left", "-r", "__ns:=/arm", "-r", "a:=b", "--", "rest"],
        default_name="plant",
    )  # fmt: skip
    assert arguments.full_name == "/arm/left"
    assert arguments.remaps == {"a": "b"}
    assert arguments.rest == ["rest"]
    parameters = arguments.parameters.to(PlantParameters)
    assert (parameters.robot, parameters.rate_hz, parameters.joint_states) == (
        f"{tmp_path}/a.urdf", 20.5, "/js",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        (["--ros-args", "-p"], ["'-p'"]),
        (["--ros-args", "--fast"], ["'--fast'", "--log-level", "--param", "--params-file", "--remap", "-p", "-r"]),
        (["--ros-args", "-r", "a"], ["'a'"]),
        (["--ros-args", "-p", "a=1"], ["'a=1'"]),
        (["--ros-args", "-p", "a:=[1"], ["1", "YAML", "','", "']'", "'<stream end>'"]),
    ],
)
def test_command_line_faults(argv: list[str], values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        parse_arguments(argv, default_name="plant")
    assert unnamed(error.value, *values) == []


def merge_bomb(depth: int) -> str:
    """A map that merges the one within it twice, and so on: some 20 bytes a level, twice the keys with each."""
    text = "&a0 {x: 1}"
    for k in range(1, depth):
        text = f"&a{k} {{<<: [{text}, *a{k - 1}]}}"
    return text


def test_merged_keys_do_not_multiply() -> None:
    """PyYAML alone makes 2^60 pairs of it."""
    assert parse_document(merge_bomb(60), "p.yaml").value == {"x": 1}


def test_values_are_counted_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_NODES", 100)
    with pytest.raises(ConfigurationError) as error:
        parse_document("- 1\n" * 250 + "- [", "p.yaml")
    assert str(error.value) == "p.yaml:201: more than 100 values"


def test_own_keys_override_merged_ones_and_the_first_of_several_those_after_it() -> None:
    text = "- &a {x: 1, y: 1}\n- &b {y: 2, z: 2}\n- {<<: [*a, *b], z: 3}\n- {z: 3, <<: *b}\n"
    assert parse_document(text, "p.yaml").value[2:] == [{"x": 1, "y": 1, "z": 3}, {"y": 2, "z": 3}]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: &a\n  <<: *a", ["p.yaml:1: a", "mapping", "merged"]),
        ("<<: [{a: 1}, 2]", ["p.yaml:1", "YAML"]),
        ("? [a]\n: 1", ["p.yaml:1", "list", "text"]),
        ("a:\n  b: 1\n  b: 2", ["p.yaml:3: a", "'b'"]),
        ("a: 1" + ":1" * 500_000, ["p.yaml:1", "1000001", "256"]),
        ("- &a [" + "1," * 1000 + "]\n" + "- *a\n" * 200, ["p.yaml:1", "100000"]),
        (
            "- &a {" + "".join(f"k{k}: 1, " for k in range(500)) + "}\n- <<: [" + "*a," * 1000 + "]\n",
            ["p.yaml:2", "100000"],
        ),
    ],
)
def test_what_would_grow_beyond_its_bytes(text: str, values: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_document(text, "p.yaml")
    assert unnamed(error.value, *values) == []


def test_a_fault_in_a_section_for_several_nodes_names_the_node() -> None:
    """`/**` is for every node; the file and its line do not tell which one does not know the key."""
    document = parse_document("/**: {ros__parameters: {loops: cut}}", "p.yaml")
    parameters = Parameters()
    parameters.merge_file(document, "/arm/controller")
    with pytest.raises(ConfigurationError, match=r"parameter 'loops' of /arm/controller: unknown key 'loops'"):
        parameters.to(NoParameters)
