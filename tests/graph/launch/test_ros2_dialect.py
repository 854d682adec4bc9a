"""The launch files here are valid for ROS 2 too: they are checked against a table of its parser's rules.

ROS 2's `launch` and `launch_ros` are on no package index, so their rules stand here as data, read off their sources
(github.com/ros2/launch and github.com/ros2/launch_ros, rolling): which keys an action reads (`parse` in
launch/actions/*.py and launch_ros/actions/*.py), that a key which none reads is an error
(launch/frontend/expose.py, launch_yaml/entity.py), which types of YAML's a key may have
(launch/utilities/type_utils.py: text, or exactly the type; a whole number is no float), which substitutions there are
(launch/substitutions/*.py, launch_ros/substitutions/*.py) and how they are written (launch/frontend/grammar.lark).
docs/ros2.md names the commits that were read. In four places this table asks for more than the parser, where the parser
takes a text and what runs later does not, or misreads it: see `Itself`. And it wants no key that nothing reads in a
`choice`, which the parser does not look for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.schema import read_launch_file
from tests.conftest import ROOT

ANY = "any scalar, or a list of one kind of them"


@dataclass(frozen=True)
class Itself:
    """A value of the type itself, and no text, though attributes take texts for their substitutions: the text is
    compared with a number when it is read (`respawn_delay`, the timeouts) or when a process ends
    (`respawn_max_retries`), or is true whatever its value (`shell`, `emulate_tty`, `scoped`, `forwarding`), or is
    refused by its receiver (`allow_substs`, launch_ros/parameter_descriptions.py).
    """

    kind: type
    at_least: float = -math.inf


FLAG, SECONDS = Itself(bool), Itself(float, at_least=0.0)
TYPES = {
    "str": str, "bool": bool, "float": float, "int": int, "list_of_str": [str], "list_of_bool": [bool],
    "list_of_float": [float], "list_of_int": [int], "yaml": ANY,
}  # fmt: skip
"""What a parameter's `type` may be: launch/frontend/type_utils.py."""
PAIR = [{"name": (str, True), "value": (str, True)}]
PARAMETER: dict[str, Any] = {"name": (str, True), "value": (ANY, False), "type": (str, False)}
PARAMETER["param"] = ([PARAMETER], False)
CONDITIONS = {"if": (str, False), "unless": (str, False)}
PROCESS = CONDITIONS | {
    "cwd": (str, False), "name": (str, False), "on_exit": (str, False), "launch-prefix": (str, False),
    "output": (str, False), "respawn": (str, False), "respawn_max_retries": (Itself(int), False),
    "respawn_delay": (SECONDS, False), "sigkill_timeout": (SECONDS, False), "sigterm_timeout": (SECONDS, False),
    "shell": (FLAG, False), "emulate_tty": (FLAG, False), "env": (PAIR, False),
}  # fmt: skip
ACTIONS: dict[str, dict[str, tuple[Any, bool]]] = {
    "arg": CONDITIONS | {
        "name": (str, True), "default": (str, False), "description": (str, False),
        "choice": ([{"value": (str, True)}], False),
    },
    "let": CONDITIONS | {"name": (str, True), "value": (str, True)},
    "executable": PROCESS | {"cmd": (str, True)},
    "node": PROCESS | {
        "pkg": (str, False), "exec": (str, True), "namespace": (str, False), "args": (str, False),
        "ros_args": (str, False), "exec_name": (str, False), "node-name": (str, False),
        "remap": ([{"from": (str, True), "to": (str, True)}], False),
        "param": ([{"from": (str, False), "allow_substs": (FLAG, False)} | PARAMETER | {"name": (str, False)}], False),
    },
    "include": CONDITIONS | {"file": (str, True), "arg": (PAIR, False), "let": (PAIR, False)},
    "group": CONDITIONS | {
        "scoped": (FLAG, False), "forwarding": (FLAG, False), "keep": (PAIR, False), "children": ("actions", True),
    },
    "push_ros_namespace": CONDITIONS | {"namespace": (str, True)},
    "push-ros-namespace": CONDITIONS | {"namespace": (str, True)},
    "log": CONDITIONS | {"message": (str, True), "level": (str, False)},
    **{f"log_{level}": CONDITIONS | {"message": (str, True)} for level in ("debug", "info", "warning", "error")},
}  # fmt: skip
SUBSTITUTIONS = {
    "var", "env", "dirname", "filename", "find-exec", "eval", "command", "anon", "and", "or", "not", "any", "all",
    "for-var", "index", "string-join", "path-join", "launch_log_dir", "log_dir",
    "equals", "not-equals", "if", "file-content", "find-pkg-share", "find-pkg-prefix", "exec-in-pkg", "param",
}  # fmt: skip
CALL = re.compile(r"\$\(([A-Za-z][\w-]*)((?: [^ '\"\\$()]+| '[^'$]*'| \"[^\"$]*\"| \x00)*)\)")
"""An innermost substitution: one blank before each argument. What is inside it has been read already (`\\x00`)."""


def faults_of(tree: Any) -> list[str]:
    """Returns the faults that ROS 2's parser would report in a parsed YAML launch file."""
    if not isinstance(tree, dict) or set(tree) != {"launch"} or not isinstance(tree["launch"], list):
        return ["expected the root 'launch' with a list"]
    return list(_actions(tree["launch"], "launch"))


def _actions(entries: list[Any], place: str) -> Iterator[str]:
    for k, entry in enumerate(entries):
        ((name, body),) = entry.items()
        entry_place = f"{place}[{k}].{name}"
        if name not in ACTIONS:
            yield f"{entry_place}: unrecognized entity"
        elif name == "group" and isinstance(body, list):
            yield from _actions(body, entry_place)
        else:
            if "if" in body and "unless" in body:
                yield f"{entry_place}: 'if' and 'unless' together"
            if body.get("on_exit", "shutdown") != "shutdown":
                yield f"{entry_place}.on_exit: {body['on_exit']!r}, expected shutdown"
            yield from _keys(body, ACTIONS[name], entry_place)
            for k, parameter in enumerate(body.get("param", [])):
                yield from _parameter(parameter, f"{entry_place}.param[{k}]")


def _parameter(body: dict[str, Any], place: str) -> Iterator[str]:
    """One file, or one value, or a group; and a value of the type that is said."""
    if "from" in body:
        yield from (f"{place}.{key}: together with 'from'" for key in body if key not in ("from", "allow_substs"))
        return
    if "name" not in body or "allow_substs" in body:
        yield f"{place}: expected 'from', with which 'allow_substs' may stand, or 'name'"
    if ("value" in body) == bool(body.get("param")):
        yield f"{place}: expected either 'value' or 'param'"
    kind = TYPES.get(body.get("type", "yaml"))
    if kind is None:
        yield f"{place}.type: {body['type']!r}, expected one of {', '.join(TYPES)}"
    elif "type" in body and "param" in body:
        yield f"{place}.type: together with 'param'"
    elif "value" in body and kind != ANY and not _is(body["value"], kind):
        yield f"{place}.value: {type(body['value']).__name__}, expected {body['type']} or text"
    for k, inner in enumerate(body.get("param", [])):
        yield from _parameter(inner, f"{place}.param[{k}]")


def _keys(body: dict[str, Any], rules: dict[str, tuple[Any, bool]], place: str) -> Iterator[str]:
    for key, (_, required) in rules.items():
        if required and key not in body:
            yield f"{place}: lacks {key}"
    for key, value in body.items():
        key_place = f"{place}.{key}"
        if key not in rules:
            yield f"{key_place}: unexpected key"
            continue
        kind = rules[key][0]
        if kind == "actions":
            yield from _actions(value, key_place)
        elif isinstance(kind, list):  # of maps
            if not (isinstance(value, list) and value and isinstance(value[0], dict)):
                yield f"{key_place}: expected a list of maps"
                continue
            for k, inner in enumerate(value):
                yield from _keys(inner, kind[0], f"{key_place}[{k}]")
        elif not _is(value, kind):
            yield f"{key_place}: {_named(value, kind)}"
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield from (f"{key_place}: {fault}" for fault in _text(text))


def _is(value: Any, kind: Any) -> bool:
    if kind == ANY:
        items = value if isinstance(value, list) else [value]
        types = {type(x) for x in items if not (isinstance(x, str) and "$(" in x)}  # substitutions are of any
        return types <= {int, float, bool, str} and len(types) <= 1
    if isinstance(kind, Itself):
        return isinstance(value, kind.kind) and value >= kind.at_least
    if isinstance(kind, list):
        return isinstance(value, str) or (isinstance(value, list) and all(_is(x, kind[0]) for x in value))
    return isinstance(value, (str, kind))


def _named(value: Any, kind: Any) -> str:
    if isinstance(kind, Itself):
        minimum = "" if kind.at_least == -math.inf else f" of at least {kind.at_least:g}"
        return f"{type(value).__name__} {value!r}, expected {kind.kind.__name__}{minimum}"
    return f"{type(value).__name__}, expected {kind if kind == ANY else kind.__name__} or text"


def _text(text: str) -> Iterator[str]:
    if re.search(r"(?<!\\)\$(?!\()", text):
        yield f"a $ that begins no substitution wants a backslash: {text!r}"
    while True:
        for name in CALL.findall(text):
            if name[0] not in SUBSTITUTIONS:
                yield f"unknown substitution {name[0]}"
        inner = CALL.sub("\x00", text)
        if inner == text:
            break
        text = re.sub(r"[^ ()]*\x00[^ ()]*(?=[^$]*\))", "\x00", inner)
    if "$(" in text:
        yield f"cannot be read as substitutions: {text!r}"


SHIPPED = [
    *sorted((ROOT / "launch").glob("*.launch.yaml")),
    *sorted((ROOT / "examples").glob("**/*.launch.yaml")),
    *sorted((ROOT / "dyn_service" / "cli" / "templates").glob("**/*.launch.yaml")),
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_launch_files_here_are_ros2s_too(path: Path) -> None:
    assert faults_of(yaml.safe_load(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("node: {pkg: p, exec: e, respawn: true}", "launch[0].node.respawn: bool, expected str or text"),
        ("executable: {cmd: ls, args: -l}", "launch[0].executable.args: unexpected key"),
        ("executable: {cmd: ls, respawn_delay: 1}", "launch[0].executable.respawn_delay: int 1, expected float"),
        ("executable: {cmd: ls, respawn_delay: '0.5'}", "launch[0].executable.respawn_delay: str '0.5', expected flo"),
        ("executable: {cmd: ls, respawn_delay: 1e-3}", "launch[0].executable.respawn_delay: str '1e-3', expected f"),
        ("executable: {cmd: ls, sigterm_timeout: -1.0}", "launch[0].executable.sigterm_timeout: float -1.0, expected "),
        ("executable: {cmd: ls, respawn_max_retries: '3'}", "launch[0].executable.respawn_max_retries: str '3', exp"),
        ("executable: {cmd: ls, respawn_max_retries: -1}", None),
        ("executable: {cmd: ls, on_exit: stop}", "launch[0].executable.on_exit: 'stop', expected shutdown"),
        ("group: {scoped: 'false', children: []}", "launch[0].group.scoped: str 'false', expected bool"),
        ("node: {exec: e, param: [{from: f, allow_substs: 'true'}]}", "launch[0].node.param[0].allow_substs: str 'tr"),
        ("node: {exec: e, param: [{from: f, value: 1}]}", "launch[0].node.param[0].value: together with 'from'"),
        ("node: {exec: e, param: [{name: n}]}", "launch[0].node.param[0]: expected either 'value' or 'param'"),
        (
            "node: {exec: e, param: [{name: n, param: [{name: m, value: 1}], type: int}]}",
            "launch[0].node.param[0].type: together with",
        ),
        (
            "node: {exec: e, param: [{name: n, value: 1, type: double}]}",
            "launch[0].node.param[0].type: 'double', expec",
        ),
        (
            "node: {exec: e, param: [{name: n, value: 1, type: float}]}",
            "launch[0].node.param[0].value: int, expected f",
        ),
        ("node: {exec: e, param: [{name: n, value: [1, $(var x)]}]}", None),
        ("node: {exec: e, param: [{name: n, value: [1, x]}]}", "launch[0].node.param[0].value: list, expected any "),
        ("let: {name: n, value: costs $5}", "launch[0].let.value: a $ that begins no substitution wants a backslash"),
        ("let: {name: n, value: 'costs \\$5'}", None),
        ("""let: {name: n, value: '$(eval "1 + 1")'}""", None),
        ("arg: {name: n, default: 5}", "launch[0].arg.default: int, expected str or text"),
        ("arg: {name: n, default: $(endpoint dynamics)}", "launch[0].arg.default: unknown substitution endpoint"),
        ("let: {name: n, value: $(not $(var  x))}", None),
        ("let: {name: n, value: '$(env A $(env B c)/d)'}", None),
        ("node: {exec: e, heartbeat_timeout: 1.0}", "launch[0].node.heartbeat_timeout: unexpected key"),
        ("node: {exec: e, param: [{name: n, value: [1, 2.0]}]}", "launch[0].node.param[0].value: list, expected any "),
        ("node: {exec: e, param: [{name: n, value: {a: 1}}]}", "launch[0].node.param[0].value: dict, expected any "),
        ("node: {pkg: p}", "launch[0].node: lacks exec"),
        ("group: [{timer: {period: 1.0}}]", "launch[0].group[0].timer: unrecognized entity"),
        ("let: {name: n, value: a, if: 'true', unless: 'true'}", "launch[0].let: 'if' and 'unless' together"),
    ],
)
def test_the_table_finds_what_ros2_refuses(text: str, fault: str | None) -> None:
    faults = faults_of(yaml.safe_load("launch:\n  - " + text))
    if "  x" in text:
        assert faults == ["launch[0].let.value: cannot be read as substitutions: '$(not $(var  x))'"]
    elif fault is None:
        assert faults == []
    else:
        assert len(faults) == 1
        assert faults[0].startswith(fault)


def test_both_spellings_are_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.launch.yaml"
    path.write_text(
        """
launch:
  - executable: {cmd: sleep 5, respawn: "true", respawn_delay: "0.5", respawn_max_retries: 3}
  - executable: {cmd: sleep, args: "5", respawn: true, respawn_delay: 0.5, respawn_max_retries: "3"}
  - push-ros-namespace: {namespace: arm}
"""
    )
    first, second = make_plan(read_launch_file(path), {}).processes
    assert (first.command, first.respawn, first.respawn_delay_s) == (second.command, True, 0.5)
    assert (second.respawn, second.respawn_delay_s, second.respawn_max_retries) == (True, 0.5, 3)


@pytest.mark.parametrize("path", sorted((ROOT / "launch").glob("*.launch.yaml")), ids=lambda path: path.name)
def test_its_socket_is_the_launchs_own_unless_said_otherwise(path: Path, tmp_path: Path) -> None:
    def endpoints(arguments: dict[str, str], environment: dict[str, str]) -> set[str]:
        plan = make_plan(read_launch_file(path), arguments, environment=environment, folder=tmp_path)
        parameters = [process.parameters for process in plan.processes]
        return {
            endpoint
            for p in parameters
            for endpoint in [*p.get("endpoints", []), *([p["endpoint"]] if "endpoint" in p else [])]
        }

    assert endpoints({}, {}) == {f"ipc://{tmp_path}/dynamics"}
    assert endpoints({}, {"DYN_SERVER_ENDPOINT": "tcp://127.0.0.1:1"}) == {"tcp://127.0.0.1:1"}
    assert endpoints({"endpoint": "tcp://127.0.0.1:2"}, {}) == {"tcp://127.0.0.1:2"}
