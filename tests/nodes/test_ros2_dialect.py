"""The launch files here are ROS 2's as well: held against what its own parser takes, as a small table.

ROS 2's `launch` and `launch_ros` are on no package index, so their rules stand here as data, read off their sources
(github.com/ros2/launch and github.com/ros2/launch_ros, rolling): which keys an action reads (`parse` in
launch/actions/*.py and launch_ros/actions/*.py), that a key which none reads is an error
(launch/frontend/expose.py, launch_yaml/entity.py), which types of YAML's a key may have
(launch/utilities/type_utils.py: text, or exactly the type; a whole number is no float), which substitutions there are
(launch/substitutions/*.py, launch_ros/substitutions/*.py) and how they are written (launch/frontend/grammar.lark).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dyn_service.launching.plan import make_plan
from dyn_service.launching.schema import read_launch_file
from tests.conftest import ROOT

ANY = "any scalar, or a list of one kind of them"
PAIR = [{"name": (str, True), "value": (str, True)}]
PARAMETER: dict[str, Any] = {"name": (str, True), "value": (ANY, False), "type": (str, False)}
PARAMETER["param"] = ([PARAMETER], False)
CONDITIONS = {"if": (str, False), "unless": (str, False)}
PROCESS = CONDITIONS | {
    "cwd": (str, False), "name": (str, False), "on_exit": (str, False), "launch-prefix": (str, False),
    "output": (str, False), "respawn": (str, False), "respawn_max_retries": (int, False),
    "respawn_delay": (float, False), "sigkill_timeout": (float, False), "sigterm_timeout": (float, False),
    "shell": (bool, False), "emulate_tty": (bool, False), "env": (PAIR, False),
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
        "param": ([{"from": (str, False), "allow_substs": (bool, False)} | PARAMETER | {"name": (str, False)}], False),
    },
    "include": CONDITIONS | {"file": (str, True), "arg": (PAIR, False)},
    "group": CONDITIONS | {
        "scoped": (bool, False), "forwarding": (bool, False), "keep": (PAIR, False), "children": ("actions", True),
    },
    "push_ros_namespace": CONDITIONS | {"namespace": (str, True)},
    "push-ros-namespace": CONDITIONS | {"namespace": (str, True)},
}  # fmt: skip
SUBSTITUTIONS = {
    "var", "env", "dirname", "filename", "find-exec", "eval", "command", "anon", "and", "or", "not", "any", "all",
    "equals", "not-equals", "if", "file-content", "find-pkg-share", "find-pkg-prefix", "exec-in-pkg", "param",
}  # fmt: skip
CALL = re.compile(r"\$\(([A-Za-z][\w-]*)((?: [^ '\"\\$()]+| '[^'$]*'| \x00)*)\)")
"""An innermost substitution: one blank before each argument. What is inside it has been read already (`\\x00`)."""


def faults_of(tree: Any) -> list[str]:
    """What ROS 2's parser would refuse in a launch file, as YAML gives it."""
    if not isinstance(tree, dict) or set(tree) != {"launch"} or not isinstance(tree["launch"], list):
        return ["expected the root 'launch' with a list"]
    return list(_actions(tree["launch"], "launch"))


def _actions(entries: list[Any], at: str) -> Iterator[str]:
    for k, entry in enumerate(entries):
        ((name, body),) = entry.items()
        here = f"{at}[{k}].{name}"
        if name not in ACTIONS:
            yield f"{here}: unrecognized entity"
        elif name == "group" and isinstance(body, list):
            yield from _actions(body, here)
        else:
            if "if" in body and "unless" in body:
                yield f"{here}: 'if' and 'unless' together"
            yield from _keys(body, ACTIONS[name], here)


def _keys(body: dict[str, Any], rules: dict[str, tuple[Any, bool]], at: str) -> Iterator[str]:
    for key, (_, required) in rules.items():
        if required and key not in body:
            yield f"{at}: lacks {key}"
    for key, value in body.items():
        here = f"{at}.{key}"
        if key not in rules:
            yield f"{here}: unexpected key"
            continue
        kind = rules[key][0]
        if kind == "actions":
            yield from _actions(value, here)
        elif isinstance(kind, list):
            if not (isinstance(value, list) and value and isinstance(value[0], dict)):
                yield f"{here}: expected a list of maps"
                continue
            for k, inner in enumerate(value):
                yield from _keys(inner, kind[0], f"{here}[{k}]")
        elif not _is(value, kind):
            yield f"{here}: {type(value).__name__}, expected {kind if kind == ANY else kind.__name__} or text"
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield from (f"{here}: {fault}" for fault in _text(text))


def _is(value: Any, kind: Any) -> bool:
    if kind == ANY:
        items = value if isinstance(value, list) else [value]
        return all(isinstance(x, int | float | bool | str) for x in items) and len({type(x) for x in items}) <= 1
    return isinstance(value, (str, kind))


def _text(text: str) -> Iterator[str]:
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


@pytest.mark.parametrize("path", sorted((ROOT / "launch").glob("*.launch.yaml")), ids=lambda path: path.name)
def test_the_launch_files_here_are_ros2s_too(path: Path) -> None:
    assert faults_of(yaml.safe_load(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("node: {pkg: p, exec: e, respawn: true}", "launch[0].node.respawn: bool, expected str or text"),
        ("executable: {cmd: ls, args: -l}", "launch[0].executable.args: unexpected key"),
        ("executable: {cmd: ls, respawn_delay: 1}", "launch[0].executable.respawn_delay: int, expected float or text"),
        ("executable: {cmd: ls, respawn_delay: 1e-3}", None),  # text to YAML 1.1, which is taken as a substitution
        ("arg: {name: n, default: 5}", "launch[0].arg.default: int, expected str or text"),
        ("arg: {name: n, default: $(endpoint dynamics)}", "launch[0].arg.default: unknown substitution endpoint"),
        ("let: {name: n, value: $(not $(var  x))}", None),
        ("let: {name: n, value: '$(env A $(env B c)/d)'}", None),
        ("node: {exec: e, heartbeat_timeout: 1.0}", "launch[0].node.heartbeat_timeout: unexpected key"),
        (
            "node: {exec: e, param: [{name: n, value: [1, 2.0]}]}",
            "launch[0].node.param[0].value: list, expected any ",
        ),
        (
            "node: {exec: e, param: [{name: n, value: {a: 1}}]}",
            "launch[0].node.param[0].value: dict, expected any ",
        ),
        ("node: {pkg: p}", "launch[0].node: lacks exec"),
        ("group: [{timer: {period: 1.0}}]", "launch[0].group[0].timer: unrecognized entity"),
        ("let: {name: n, value: a, if: 'true', unless: 'true'}", "launch[0].let: 'if' and 'unless' together"),
    ],
)
def test_the_table_finds_what_ros2_refuses(text: str, fault: str | None) -> None:
    found = faults_of(yaml.safe_load("launch:\n  - " + text))
    if "  x" in text:
        assert found == ["launch[0].let.value: cannot be read as substitutions: '$(not $(var  x))'"]
    elif fault is None:
        assert found == []
    else:
        assert len(found) == 1
        assert found[0].startswith(fault)


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
        given = [process.parameters for process in plan.processes]
        return {
            where for p in given for where in [*p.get("endpoints", []), *([p["endpoint"]] if "endpoint" in p else [])]
        }

    assert endpoints({}, {}) == {f"ipc://{tmp_path}/dynamics"}
    assert endpoints({}, {"DYN_SERVER_ENDPOINT": "tcp://127.0.0.1:1"}) == {"tcp://127.0.0.1:1"}
    assert endpoints({"endpoint": "tcp://127.0.0.1:2"}, {}) == {"tcp://127.0.0.1:2"}
