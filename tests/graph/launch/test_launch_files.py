"""Plans of launch files; each fault with file, line and place."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.launch import launch_file, show_arguments
from dyn_service.graph.launch.planner import LaunchPlan, make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.support.documents import ConfigurationError, parse_document
from dyn_service.support.logs import Level
from tests.conftest import ROOT
from tests.phrases import in_our_words, naming, unnamed


@pytest.fixture
def plan(tmp_path: Path):
    """Returns a function that plans a launch file given as text."""

    def make(text: str, /, **arguments: str) -> LaunchPlan:
        path = tmp_path / "test.launch.yaml"
        path.write_text(text, encoding="utf-8")
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        return make_plan(read_launch_file(path), arguments, environment={"HOME": "/home/arm"}, folder=scratch)

    return make


def fault_of(plan, text: str, **arguments: str) -> str:
    """Returns the fault's text without its folder."""
    with pytest.raises(InvalidArgumentError) as excinfo:
        plan(text, **arguments)
    file = getattr(excinfo.value, "file", None)
    assert in_our_words(str(excinfo.value))
    return str(excinfo.value).replace(file, Path(file).name, 1) if file else str(excinfo.value)


def test_arguments_and_order(plan) -> None:
    launch_plan = plan(
        """
launch:
  - arg: {name: rate, default: 500}
  - arg: {name: half, default: "$(var rate)/2"}
  - executable: {cmd: "echo $(var half) 'two words'", args: more, name: first}
  - executable: {cmd: sleep 1, env: [{name: A, value: $(env HOME)}], respawn: true, respawn_delay: 0.5}
  - executable: {cmd: sleep 2}
""",
        rate="100",
    )
    assert launch_plan.arguments == {"rate": "100", "half": "100/2"}
    assert [process.name for process in launch_plan.processes] == ["first", "sleep", "sleep-2"]
    assert launch_plan.processes[0].command == ("echo", "100/2", "two words", "more")
    assert launch_plan.processes[1].env == {"A": "/home/arm"}
    assert launch_plan.processes[1].respawn
    assert launch_plan.processes[1].respawn_delay_s == 0.5


def test_node_becomes_a_ros_command_line(plan) -> None:
    launch_plan = plan(
        """
launch:
  - push_ros_namespace: {namespace: lab}
  - node:
      pkg: my_robot
      exec: driver
      name: left
      namespace: arm
      args: --fast
      remap: [{from: joint_states, to: /all/joint_states}]
      param:
        - {name: gains.kp, value: 3.0}
        - {name: gains, param: [{name: kd, value: 1e-3}, {name: active, value: true}]}
        - {name: who, value: $(env HOME)}
"""
    )
    (node,) = launch_plan.processes
    assert node.name == "lab/arm/left"
    assert node.reports
    assert node.command == (
        sys.executable, "-P", "-m", "my_robot.nodes.driver", "--fast", "--ros-args",
        "-r", "__node:=left", "-r", "__ns:=/lab/arm", "-r", "joint_states:=/all/joint_states",
        "-p", "gains.kp:=3.0", "-p", 'gains:={"kd": 0.001, "active": true}', "-p", 'who:="/home/arm"',
    )  # fmt: skip
    assert node.parameters == {"gains": {"kp": 3.0, "kd": 0.001, "active": True}, "who": "/home/arm"}


def test_conditions_scopes_and_includes(plan, tmp_path: Path) -> None:
    (tmp_path / "inner.launch.yaml").write_text(
        "launch: [{arg: {name: word}}, {executable: {cmd: echo $(var word), name: inner}}]", encoding="utf-8"
    )
    launch_plan = plan(
        """
launch:
  - let: {name: x, value: outer}
  - group:
      - let: {name: x, value: inside}
      - executable: {cmd: echo $(var x), name: grouped}
  - group:
      if: $(equals $(var x) inside)
      children: [{executable: {cmd: never}}]
  - group:
      scoped: false
      children: [{let: {name: y, value: kept}}]
  - executable: {cmd: "echo $(var x) $(var y)", name: after, unless: "false"}
  - include: {file: inner.launch.yaml, arg: [{name: word, value: given}]}
  - include: {file: inner.launch.yaml, let: [{name: word, value: again}], arg: [{name: word, value: not}]}
"""
    )
    assert [(p.name, *p.command[1:]) for p in launch_plan.processes] == [
        ("grouped", "inside"),
        ("after", "outer", "kept"),
        ("inner", "given"),
        ("inner-2", "again"),
    ]


def test_parameters_of_own_nodes_are_typed_and_later_ones_win(plan, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("/**: {ros__parameters: {robot: a.urdf, rate_hz: 100.0}}", encoding="utf-8")
    (tmp_path / "a.urdf").touch()
    (tmp_path / "b.yaml").write_text(
        "other: {ros__parameters: {rate_hz: 1.0}}\nplant: {ros__parameters: {rate_hz: $(var r), substeps: 2}}",
        encoding="utf-8",
    )
    launch_plan = plan(
        """
launch:
  - let: {name: r, value: "200.0"}
  - node:
      pkg: dyn_service
      exec: plant
      param:
        - {from: $(dirname)/a.yaml}
        - {from: $(dirname)/b.yaml, allow_substs: true}
        - {name: substeps, value: 4}
  - node: {pkg: dyn_service, exec: controller, name: other}
"""
    )
    assert launch_plan.processes[0].name == "plant"
    assert launch_plan.processes[0].parameters == {"robot": f"{tmp_path}/a.urdf", "rate_hz": 200.0, "substeps": 4}


EXECUTABLE = "  - executable: {cmd: sleep 1}\n"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: 1", ["test.launch.yaml:1", "'launch'"]),
        ("launch: 5", ["test.launch.yaml:1: launch", "actions", "number"]),
        ("launch:\n  - sleep", ["test.launch.yaml:2: launch[0]", "action", "with"]),
        (
            "launch:\n  - nod: {pkg: a}",
            ["test.launch.yaml:2: launch[0]", "'nod'", "'node'"],
        ),
        (
            "launch:\n  - timer: {period: 5}",
            ["test.launch.yaml:2: launch[0]", "'timer'", "-ros-namespace", "push_ros_namespace"],
        ),
        (
            "launch:\n  - executable:\n      cmd: sleep 1\n      respawm: true",
            ["test.launch.yaml:4: launch[0].executable.respawm", "'respawm'", "'respawn'"],
        ),
        (
            "launch:\n  - node: {pkg: p, exec: e, param: [{name: a, valu: 1}]}",
            ["test.launch.yaml:2: launch[0].node.param[0].valu", "'valu'", "'value'"],
        ),
        (
            "launch:\n  - node: {exec: e}",
            ["test.launch.yaml:2: launch[0].node", "'pkg'", "'exec'"],
        ),
        (
            "launch:\n  - executable: {cmd: [sleep]}",
            ["test.launch.yaml:2: launch[0].executable.cmd", "false", "number"],
        ),
        (
            "launch:\n  - group:\n      - arg: {name: a, default: b}\n      - lett: {}",
            ["test.launch.yaml:4: launch[0].group[1]", "'lett'", "'let'"],
        ),
        ("launch:\n  - arg: {name: a}\n" + EXECUTABLE,
         ["test.launch.yaml:2: launch[0].arg", "'a'", "VALUE"]),
        ("launch:\n  - arg: {name: a, default: x, choice: [{value: y}]}\n" + EXECUTABLE,
         ["test.launch.yaml:2: launch[0].arg", "'a'", "'x'"]),
        ("launch:\n  - executable:\n      cmd: echo $(var b)",
         ["test.launch.yaml:3: launch[0].executable.cmd", "'b'"]),
        ("launch:\n  - executable: {cmd: sleep, respawn_delay: soon}",
         ["test.launch.yaml:2: launch[0].executable.respawn_delay", "'soon'"]),
        ("launch:\n  - executable: {cmd: sleep, respawn_delay: -1}",
         ["test.launch.yaml:2: launch[0].executable.respawn_delay", "0", "-1"]),
        ("launch:\n  - executable: {cmd: sleep, respawn: sometimes}",
         ["test.launch.yaml:2: launch[0].executable.respawn", "'sometimes'"]),
        ("launch:\n  - executable: {cmd: sleep, on_exit: explode}",
         ["test.launch.yaml:2: launch[0].executable.on_exit", "'shutdown'", "'explode'"]),
        ("launch:\n  - executable: {cmd: \"echo 'a\"}",
         ["test.launch.yaml:2: launch[0].executable.cmd", "closing", "quotation"]),
        ("launch:\n  - executable: {cmd: ''}", ["test.launch.yaml:2: launch[0].executable.cmd", "command", "empty"]),
        ("launch: []", ["test.launch.yaml:1: launch", "launch", "process"]),
        ("launch:\n  - node: {pkg: dyn_service, exec: plan}",
         ["test.launch.yaml:2: launch[0].node.exec", "'dyn_service'", "'plan'", "'plant'"]),
        ("launch:\n  - node: {pkg: os; ls, exec: e}",
         ["test.launch.yaml:2: launch[0].node.pkg", "'os; ls'"]),
        ("launch:\n  - node:\n      pkg: dyn_service\n      exec: plant\n      param:\n"
         "        - {name: robot, value: r}\n        - {name: rate_hz, value: fast}",
         ["test.launch.yaml:7: launch[0].node.param[1]", "'rate_hz'"]),
        ("launch:\n  - node: {pkg: dyn_service, exec: plant, param: [{name: robot, value: r}, {name: rate, value: 1}]}",
         ["test.launch.yaml:2: launch[0].node.param[1]", "'rate'", "'rate_hz'"]),
        ("launch:\n  - node: {pkg: dyn_service, exec: plant}",
         ["test.launch.yaml:2: launch[0].node.param", "'robot'"]),
        ("launch:\n  - node: {pkg: p, exec: e, param: [{value: 1}]}",
         ["test.launch.yaml:2: launch[0].node.param[0]", "'from'", "'name'"]),
        ("launch:\n  - node: {pkg: p, exec: e, param: [{name: a}]}",
         ["test.launch.yaml:2: launch[0].node.param[0]", "'a'"]),
        ("launch:\n  - include: {file: test.launch.yaml, arg: [{name: b, value: c}], let: [{name: a, value: c}]}\n"
         "  - arg: {name: b}",
         ["test.launch.yaml:2: launch[0].include.let[0]", "test.launch.yaml", "'a'"]),
        ("launch:\n  - include: {file: test.launch.yaml}",
         ["test.launch.yaml:1", "16"]),
        ("launch:\n  - arg: {name: a, name: b}", ["test.launch.yaml:2: launch[0].arg", "'name'"]),
        ("launch: [", ["test.launch.yaml:1", "YAML", "'<stream end>'"]),
    ],
)  # fmt: skip
def test_fault(plan, text: str, values: list[str]) -> None:
    assert unnamed(fault_of(plan, text), *values) == []


def test_messages_are_read_with_their_levels(plan) -> None:
    messages_plan = plan(
        "launch:\n  - arg: {name: level, default: high}\n  - log: {level: warning, message: a}\n"
        "  - log_debug: {message: b}\n  - log_info: {message: $(string-join ' ' level $(var level))}\n"
        "  - log_warning: {message: c}\n  - log_error: {message: d, if: 'false'}\n  - log: {message: e}\n"
        "  - group: [log_error: {message: f}]\n" + EXECUTABLE
    )
    assert messages_plan.messages == (
        ("warning", "a"), ("debug", "b"), ("info", "level high"), ("warning", "c"), ("info", "e"), ("error", "f"),
    )  # fmt: skip
    for action, values in (
        ("log: {level: loud, message: a}", ["test.launch.yaml:2: launch[0].log.level", "'loud'", "warning"]),
        ("log_info: {}", ["test.launch.yaml:2: launch[0].log_info", "'message'"]),
        ("log_warn: {message: a}", ["test.launch.yaml:2: launch[0]", "'log_warn'", "'log_warning'"]),
    ):
        assert unnamed(fault_of(plan, f"launch:\n  - {action}\n{EXECUTABLE}"), *values) == []


@pytest.mark.parametrize(
    ("log_level", "messages"),
    [("debug", ["debug: b", "a", "warning: c"]), ("info", ["a", "warning: c"]), ("error", [])],
)
def test_messages_are_printed_before_anything_starts(tmp_path: Path, log_level: Level, messages: list[str]) -> None:
    file, screen = tmp_path / "a.launch.yaml", io.StringIO()
    actions = "[{log_debug: {message: b}}, {log_info: {message: a}}, {log_warning: {message: c}}, "
    file.write_text(f"launch: {actions}{{executable: {{name: done, cmd: 'true'}}}}]", "utf-8")
    assert launch_file(file, console=Console(file=screen, width=200), log_level=log_level) == 0
    lines = screen.getvalue().splitlines()
    ready = lines.index("[launch] ready: 1 processes")
    first_lines = [line.removeprefix("[launch] ") for line in lines[:ready] if "done: " not in line]
    assert first_lines == messages


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!!str yes", "yes"), ("!!str 1234", "1234"), ("!!int '7'", 7), ("!!float 3", 3.0), ("!!bool 'on'", True),
        ("[!!str 1, !!str 2]", ["1", "2"]), ("!!seq [1]", [1]), ("!!map {a: 1}", {"a": 1}), ("!!null null", None),
        ("~", None), ("", None),
    ],
)  # fmt: skip
def test_tags_of_parameter_files_are_read(text: str, value: object) -> None:
    document = parse_document(f"x: {text}", "f").value["x"]
    assert (document, type(document)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("!!binary aGVsbG8=", "!!binary"), ("!!set {a, b}", "!!set"), ("!!omap [a: 1]", "!!omap"),
        ("!!pairs [a: 1]", "!!pairs"), ("!own 3", "!own"), ("!!null lost", "!!null"), ("!!str {a: 1}", "!!str"),
        ("!!python/none ''", "!!python/none"),
    ],
)  # fmt: skip
def test_other_tags_are_refused_by_name(text: str, tag: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_document(f"y: 1\nx: {text}", "f")
    assert str(error.value) == f"f:2: x: tag {tag} is not supported: expected !!str, !!int, !!float or !!bool"


def test_unknown_argument_lists_the_declared_ones(plan) -> None:
    text = "launch:\n  - arg: {name: a, default: 1}\n  - arg: {name: b}\n" + EXECUTABLE
    assert unnamed(fault_of(plan, text, b="2", c="3"), "'c'", "a (default '1'), b") == []


def test_misspelt_argument_names_the_nearest(plan) -> None:
    text = "launch:\n  - arg: {name: gravity, default: 1}\n" + EXECUTABLE
    assert fault_of(plan, text, gravty="2").endswith("(default '1'); did you mean 'gravity'?")


def test_fault_in_a_parameter_file_names_that_file(plan, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("plant:\n  ros__parameters:\n    robot: r\n    substeps: 1.5\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as excinfo:
        plan("launch: [{node: {pkg: dyn_service, exec: plant, param: [{from: $(dirname)/p.yaml}]}}]")
    assert unnamed(excinfo.value, f"{tmp_path}/p.yaml:4", "plant.ros__parameters.substeps", "'substeps'") == []


def test_missing_files(plan, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=naming("nothing.yaml", "No such file")):
        read_launch_file(tmp_path / "nothing.yaml")
    fault = fault_of(plan, "launch: [{node: {pkg: p, exec: e, param: [{from: /nowhere/p.yaml}]}}]")
    assert (
        unnamed(
            fault, "test.launch.yaml:1: launch[0].node.param[0].from", "'/nowhere/p.yaml'", "No such file or directory"
        )
        == []
    )


@pytest.mark.parametrize("path", sorted((ROOT / "launch").glob("*.launch.yaml")), ids=lambda path: path.name)
def test_the_launch_files_here_are_sound(path: Path, tmp_path: Path) -> None:
    launch_plan = make_plan(read_launch_file(path), {}, folder=tmp_path)
    names = [process.name.rpartition("/")[2] for process in launch_plan.processes]
    assert names[0] == "server"
    assert names[1:] == ["plant", "controller"] * (len(names) // 2)
    assert len(names) >= 3
    for process in launch_plan.processes:
        files = process.parameters.get("robots", [])
        if process.name.endswith("plant"):  # a controller's robot is a name
            files = [process.parameters["robot"]]
        assert all(Path(name).is_file() for name in files)


def test_arguments_are_shown_and_nothing_is_started(tmp_path: Path) -> None:
    path = tmp_path / "a.launch.yaml"
    path.write_text(
        """
launch:
  - arg: {name: robot, description: path of the URDF}
  - arg: {name: where, default: $(endpoint dynamics)}
  - arg: {name: way, default: a, choice: [{value: a}, {value: b}], description: which}
  - executable: {cmd: touch started}
"""
    )
    own_sections = [
        "robot: path of the URDF", "    must be given",
        "where", "    default: $(endpoint dynamics)",
        "way: which", "    default: a", "    one of: a, b",
    ]  # fmt: skip
    params = ["params: a parameter file with priority over the launch file", "    default: "]
    assert show_arguments(path) == [*own_sections, *params]
    outer = tmp_path / "outer.launch.yaml"
    outer.write_text(
        """
launch:
  - arg: {name: extra, default: 1}
  - group:
      - include: {file: $(dirname)/a.launch.yaml, arg: [{name: robot, value: r.urdf}]}
  - include: {file: "$(var extra).yaml"}
"""
    )
    assert show_arguments(outer) == [
        "extra", "    default: 1", *own_sections[2:], *params,
        "and the arguments of $(var extra).yaml: its path depends on arguments",
    ]  # fmt: skip
    outer.write_text("launch: [executable: {cmd: touch started}]")
    assert show_arguments(outer) == params
    outer.write_text("launch: [arg: {name: params, default: a}, executable: {cmd: touch started}]")
    assert show_arguments(outer) == ["params", "    default: a"]
    assert not (tmp_path / "started").exists()


def test_endpoints_are_in_the_launchs_folder_and_the_current_namespace(plan, tmp_path: Path) -> None:
    launch_plan = plan(
        """
launch:
  - let: {name: outside, value: $(endpoint dynamics)}
  - push_ros_namespace: {namespace: lab}
  - executable: {cmd: echo $(var outside) $(endpoint dynamics) $(endpoint /all)}
"""
    )
    folder = tmp_path / "scratch"
    assert launch_plan.processes[0].command[1:] == (
        f"ipc://{folder}/dynamics", f"ipc://{folder}/lab.dynamics", f"ipc://{folder}/all",
    )  # fmt: skip
