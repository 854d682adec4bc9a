"""The command `dyn`: output, error output and exit status; some commands of each kind run as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dyn_service import QUERIES, Client, Robot, Server, Wrench, __version__
from dyn_service.api.lists import row_of
from dyn_service.api.queries import COMPUTATIONS
from dyn_service.cli import main as cli
from dyn_service.cli.calling import read_values
from dyn_service.cli.yaml_text import parsed
from dyn_service.messages import Message
from dyn_service.service.protocol.messages import ADMINISTRATION
from dyn_service.service.server.settings import ServerSettings, read_settings
from tests.conftest import ROOT, URDF
from tests.service.conftest import assert_same, moving, sample

DYN = [sys.executable, "-W", "error", "-m", "dyn_service"]
WAIT_S = 240.0


def dyn(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [*DYN, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)


def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Runs `dyn` in this process, which is faster than a new one; returns status, output and error output."""
    monkeypatch.setattr(sys, "argv", ["dyn", *arguments])
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        cli.main()
    status = end.value.code
    assert isinstance(status, int)
    return status, *capsys.readouterr()


Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dyn_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Returns `here` for these arguments."""
    return lambda *arguments: here(monkeypatch, capsys, *map(str, arguments))


class Serving:
    """A `dyn serve` process that has reported `ready`."""

    def __init__(self, *arguments: Any, lines: int = 1) -> None:
        command = [*DYN, "serve", *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline().rstrip("\n") for _ in range(lines)]
        assert self.lines[0], self.process.communicate(timeout=WAIT_S)[1]
        self.endpoints = [line.split()[1] for line in self.lines]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, err


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    servings: list[Serving] = []

    def make(*arguments: Any, lines: int = 1) -> Serving:
        servings.append(Serving(*arguments, lines=lines))
        return servings[-1]

    yield make
    for serving in servings:
        if serving.process.poll() is None:
            serving.process.kill()
        serving.process.communicate()


@pytest.mark.parametrize(("number", "words"), [(signal.SIGTERM, ()), (signal.SIGINT, ("--no-prepare",))])
def test_serve_until_a_signal(serve: Any, pendulum: Robot, tmp_path: Path, number: int, words: tuple[str, ...]) -> None:
    path = tmp_path / "socket"
    places = ("--bind", f"ipc://{path}", "--bind", "tcp://127.0.0.1:0")
    serving = serve(URDF / "pendulum.urdf", *places, *words, lines=2)
    assert serving.lines[0] == f"ready: ipc://{path} robots: pendulum"
    assert serving.lines[1].startswith("ready: tcp://127.0.0.1:")
    for endpoint in serving.endpoints:
        with Client(endpoint, timeout_s=WAIT_S) as client:
            q = np.array([0.5])
            assert_same(client.robot("pendulum").gravity_forces(q), pendulum.gravity_forces(q))
    status, out, err = serving.end(number)
    assert (status, out) == (0, "")
    rows = ["control", "verify", "simulate", "contact_dynamics", "simulate_rheonomic"]
    rows += ["constraint_force_causes", "ground_reactions"]
    assert (f"kernels for {', '.join(rows)} in" in err) == (not words)  # all are prepared
    assert "Traceback" not in err
    assert not path.exists()


@pytest.mark.slow
def test_second_signal_ends_at_once(serve: Any) -> None:
    """Two signals in a row, as soon as it is ready: the server exits in order or by the second signal."""
    for _ in range(2):
        serving = serve(URDF / "pendulum.urdf", "--bind", "tcp://127.0.0.1:0", "--no-prepare")
        serving.process.send_signal(signal.SIGINT)
        status, _, err = serving.end(signal.SIGTERM)
        assert status in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGTERM)
        assert "Traceback" not in err


def test_serve_several_robots_from_a_file(serve: Any, tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(
        f"""
server:
  ros__parameters:
    robots: [{os.path.relpath(URDF / "pendulum.urdf", tmp_path)}]
    endpoints: ["tcp://127.0.0.1:0"]
    allow_load: false
    prepare: false
    limits: {{max_reply_bytes: 1000}}
plant:
  ros__parameters: {{rate_hz: 1000.0}}
"""
    )
    serving = serve(URDF / "scara.urdf", "--config", config, "--workers", "0")
    assert serving.lines[0].endswith("robots: pendulum, scara")
    with Client(serving.endpoints[0], timeout_s=WAIT_S) as client:
        assert client.list_robots() == ["pendulum", "scara"]
        with pytest.raises(Exception, match="the limit is 1000") as excinfo:
            client.robot("pendulum").gravity_forces(np.zeros((1000, 1)))
        assert excinfo.value.code == "RESOURCE_EXHAUSTED"
        with pytest.raises(PermissionError):
            client.unload_robot("scara")


def test_serve_says_what_it_prepared(serve: Any) -> None:
    words = ("--prepare-for", "simulate", "--prepare-for", "energy", "--workers", "0")
    serving = serve(URDF / "pendulum.urdf", "--bind", "tcp://127.0.0.1:0", *words)
    assert "kernels for simulate, energy in" in serving.end()[2]


def test_the_example_file_is_valid() -> None:
    settings = read_settings(ROOT / "config" / "server.yaml")
    assert [Path(path).resolve() for path in settings.robots] == [URDF / "panda.urdf", URDF / "ur5e.urdf"]
    assert settings.endpoints == ServerSettings().endpoints
    assert settings.limits == ServerSettings().limits


def test_help_states_the_defaults_of_the_settings(dyn_here: Here) -> None:
    default = ServerSettings()
    words = " ".join(dyn_here("serve", "--help")[1].replace("│", " ").split())
    *first_purposes, last = default.purposes
    for text in (*default.endpoints, default.root, "prepare", f"{', '.join(first_purposes)} and {last}"):
        assert f"(default: {text})" in words
    assert default.allow_load is None
    assert "(default: only if no other machine can reach the server)" in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server: {ros__parameters: {robots: panda.urdf}}", ["server.yaml:1", "robots"]),
        ("server:\n  ros__parameters:\n    endpoint: tcp://x", ["server.yaml:3", "endpoint", "endpoints"]),
        ("server: {ros__parameters: {limits: {max_reply_bytes: many}}}", ["server.yaml:1", "max_reply_bytes"]),
        ("server: {ros__parameters: {limits: {max_waiting: 0}}}", ["max_waiting", "must be positive"]),
        ("server: {ros__parameters: {endpoints: []}}", ["endpoints must name at least one endpoint"]),
        ("server: {ros__parameters: {endpoints: [nowhere]}}", ["endpoint must look like", "nowhere"]),
        ("server: [", ["server.yaml:1", "not YAML"]),
        ("dyn_server: {ros__parameters: {}}", ["server.yaml:1", "no section is for the server: name one 'server'"]),
        ("server: {ros__parameters: {robots: [gone.urdf]}}", ["gone.urdf"]),
    ],
)
def test_faults_in_the_file_are_named(dyn_here: Here, tmp_path: Path, text: str, words: list[str]) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(text)
    status, out, err = dyn_here("serve", "--config", config)
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["serve", "--no-allow-load", "--bind", "tcp://127.0.0.1:0"], 1, "there is nothing to serve"),
        (["serve", "nowhere.urdf"], 1, "nowhere.urdf"),
        (["serve", "--config", "nowhere.yaml"], 1, "nowhere.yaml"),
        (["serve", "urdf/pendulum.urdf", "--bind", "5755"], 1, "endpoint must look like"),
        (["serve", "urdf/pendulum.urdf", "--prepare-for", "verfy"], 1, "names of queries, found 'verfy'"),
        (["serve", "--no-prepare", "--prepare-for", "verify"], 2, "--prepare, --no-prepare and --prepare-for"),
        (["check", "nowhere.urdf"], 1, "nowhere.urdf"),
        (["serve", "pnda"], 1, "there is no robot 'pnda', neither a file nor a shipped one: cart_pend"),
        (["check", "pnda"], 1, "ur5e; did you mean 'panda'?"),
        (["bench"], 2, "name a robot to time, such as panda; dyn robots lists the shipped ones"),
        (["call"], 2, "name a query; dyn call --list prints them all"),
        (["call", "divination", "--server", "tcp://127.0.0.1:9"], 1, "there is no query 'divination'"),
        (["call", "health", "--server", "tcp://127.0.0.1:9", "--timeout", "0.05"], 1, "no server answers at"),
        (["call", "health", "--server", "5755"], 1, "endpoint must look like"),
        (["launch"], 2, "name a launch file; dyn_service ships delta_computed_torque, panda"),
        (["launch", "panda_computed_torque", "rate=5"], 2, "must look like name:=value, found 'rate=5'"),
        (["excite", "scara", "--jerk", "9", "--jerk", "roll_joint:=2"], 2, "--jerk: expected one number, or JOINT:=X"),
        (["launch", "robot", "params:=a", "params:=b"], 2, "params is given twice, 'a' and 'b': expected it once"),
        (["launch", "x.yaml"], 2, "there is no launch file 'x.yaml'; dyn_service ships delta_computed_torque, panda"),
        (["launch", "panda_computed_torqe"], 2, "; did you mean 'panda_computed_torque'?"),
        (
            ["launch", "dyn_service", "gone"],
            2,
            "no launch file 'gone'; package 'dyn_service' has delta_computed_torque, panda",
        ),
        (["launch", "no_such_package", "gone"], 2, "package 'no_such_package' is not installed"),
        (["launch", "email", "gone"], 2, "package 'email' ships no files: neither it, nor its folder share, nor sha"),
        (["run"], 2, "dyn_service/server, dyn_service/plant, dyn_service/control"),
        (["run", "dyn_servic", "plant"], 2, "package 'dyn_servic' has no registered nodes; did you mean 'dyn_ser"),
        (["run", "dyn_service", "plnt"], 2, "package 'dyn_service' has no node 'plnt'; it has server, plant, contr"),
        (["convert", "urdf/pendulum.urdf", "/nowhere/out.sdf"], 1, "/nowhere/out.sdf cannot be written: No such file"),
        (["export", "urdf/pendulum.urdf", "--target", "arm64"], 1, "target must be one of host, x86-64-v2, "),
        (
            ["export", "urdf/pendulum.urdf", "--queries", "step:rk5", "-o", "/nowhere"],
            1,
            "step has no 'rk5': its choices of ",
        ),
        (["export", "urdf/pendulum.urdf", "--queries", "topology"], 1, "topology has the same answer at every state"),
        (["export", "urdf/pendulum.urdf", "-o", "README.md/c"], 1, "README.md/c cannot be created: Not a directory"),
        (
            ["export", "urdf/pendulum.urdf", "--name", "1"],
            1,
            "name must begin with a letter, and have letters, digits and",
        ),
        (["export", "urdf/pendulum.urdf", "--imus", "base"], 1, "--imus needs --fmu"),
        (["export", "urdf/pendulum.urdf", "--effort-limits"], 1, "--effort-limits needs --fmu"),
        (["export", "urdf/pendulum.urdf", "--fmu", "3", "--queries", "energy"], 1, "--queries is for functions, not "),
        (["export", "urdf/pendulum.urdf", "--fmu", "3", "--wrenches", "base"], 1, "--wrenches is for functions, not "),
        (
            ["export", "urdf/pendulum.urdf", "--fmu", "3", "--payload", "a, b"],
            1,
            "--payload of an FMU must be one link, found a, b",
        ),
        (["export", "urdf/pendulum.urdf", "--fmu", "3", "--imus", "base, bub"], 1, "has no link 'bub'"),
        (["check"], 2, "FILE"),
        (["divine"], 2, "divine"),
        (["param", "list"], 2, "'NODE'. `dyn node list` prints"),
        (["topic", "echo"], 2, "'TOPIC'. `dyn topic list` prints"),
        (["service", "call"], 2, "'SERVICE'. `dyn service list` prints"),
        (["serve", "--speed", "9"], 2, "--speed"),
        (["bench", "--batch", "0"], 2, "--batch"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_one_clear_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, words: str
) -> None:
    exit_status, out, err = here(monkeypatch, capsys, *arguments)
    assert (exit_status, out) == (status, "")
    assert words in err
    if status == 1 or "Usage:" not in err:
        assert err.startswith("error: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (".5", 0.5),
        ("-0.5", -0.5),
        ("-.5", -0.5),
        (".5,-.5", [0.5, -0.5]),
        ("[.5, -.5, 1.5,.25e1]", [0.5, -0.5, 1.5, 2.5]),
        ('{"link": "a .5", "mass": .5}', {"link": "a .5", "mass": 0.5}),
        ('["a\\" .5"]', ['a" .5']),
        ('{"a.5": -0.5}', {"a.5": -0.5}),
    ],
)
def test_a_number_may_begin_with_its_point(text: str, value: Any) -> None:
    assert read_values(None, [f"q={text}"]) == {"q": value}
    if text[0] in "[{":
        assert read_values(f'{{"q": {text}}}', []) == {"q": value}
    if text[0] in "[{" or "," not in text:
        assert parsed(text, "VALUE") == value  # as `dyn param set` reads it


def test_commands_are_listed_by_use(dyn_here: Here) -> None:
    text = dyn_here("--help")[1]
    names = ("check ", "view ", "serve ", "call ", "launch ", "run ", "topic ", "node ", "service ", "param ", "bag ")
    places = [text.index(f"│ {name}") for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize(("name", "folder"), [("../evil", "_evil"), ("..", "robot"), ("/evil", "_evil")])
def test_files_of_exports_are_in_this_folder(
    dyn_here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, folder: str
) -> None:
    """Whatever the file calls its robot."""
    text = (ROOT / "urdf/pendulum.urdf").read_text().replace('name="pendulum"', f'name="{name}"', 1)
    monkeypatch.setitem(globals(), "ROOT", tmp_path / "in")  # where `dyn` runs
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "robot.urdf").write_text(text)
    status, output, _ = dyn_here("export", "robot.urdf", "--queries", "energy")
    assert (status, output.split("/")[0]) == (0, folder)
    assert [*tmp_path.iterdir()] == [tmp_path / "in"]


@pytest.mark.parametrize("command", [[], ["serve"], ["call"], ["check"], ["launch"], ["bench"], ["export"]], ids=str)
def test_help(dyn_here: Here, command: list[str]) -> None:
    status, out, err = dyn_here(*command, "--help")
    assert (status, err) == (0, "")
    assert "Usage: dyn" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [(["bag", "plot"], "position[elbow]"), (["service", "call"], "{names: [rate_hz]}"), (["run"], "PACKAGE")],
    ids=str,
)
def test_help_shows_brackets_and_needs_no_node(dyn_here: Here, words: list[str], text: str) -> None:
    """Brackets in help texts are not markup: `position[elbow]` was shown as `position`."""
    status, out, err = dyn_here(*words, "--help")
    assert (status, err) == (0, "")
    assert text in re.sub(r"[│\s]+", " ", out)


@pytest.mark.parametrize("value", ["-0.5", "-.5", ".5", "-1.5", "-5e-1", "-12", "{data: -.5}"])
def test_negative_numbers_are_no_options(dyn_here: Here, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """`-1.5` was read as the option -1, others as options that do not exist."""

    class Float64(Message, frozen=True):
        data: float = 0.0

    publications: list[Any] = []
    monkeypatch.setattr("dyn_service.messages.by_type", lambda name: Float64)
    monkeypatch.setattr(
        "dyn_service.graph.middleware.topic_tools.publish",
        lambda *arguments: bool(publications.append(arguments)) or True,
    )
    assert dyn_here("topic", "pub", "/t", "std_msgs/msg/Float64", value, "-t", "3") == (0, "", "")
    ((_, topic, message, _, times, _),) = publications
    number = float(value.removeprefix("{data: ").removesuffix("}"))
    assert (topic, message.data, times) == ("/t", number, 3)
    assert dyn_here("topic", "pub", "/t", "std_msgs/msg/Float64", "-1")[0] == 0
    assert publications[1][2:5] == (type(message)(), 1.0, 1)


def test_check_shows_what_it_reads_on_a_terminal(dyn_here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("check", URDF / "scara.urdf", "--no-kernels")
    assert dyn_here(*words)[2] == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any stream for a terminal then
    assert "reading" in dyn_here(*words)[2]


def test_version() -> None:
    assert dyn("--version").stdout.strip() == __version__


def test_check(dyn_here: Here) -> None:
    robot = Robot.from_urdf(URDF / "scara.urdf")
    imported = json.loads(dyn_here("check", URDF / "scara.urdf", "--no-kernels", "--json")[1])
    assert imported == json.loads(json.dumps(robot.receipt.to_dict()))
    assert imported["certificates"] == {}
    robot.prepare()
    assert robot.receipt.certificates.keys() == robot.certificates.keys() != set()
    assert dyn("check", URDF / "scara.urdf").stdout.rstrip("\n") == robot.receipt.render().rstrip("\n")
    receipt = json.loads(dyn_here("check", URDF / "scara.urdf", "--json")[1])
    assert receipt == json.loads(json.dumps(robot.receipt.to_dict()))


@pytest.mark.parametrize("options", [["--no-kernels"], ["--no-kernels", "--json"], ["--dynamics", "--states", "1"]])
@pytest.mark.parametrize("effort", ["1", "0"])
def test_strict_check_fails_with_warnings(dyn_here: Here, tmp_path: Path, effort: str, options: list[str]) -> None:
    file = tmp_path / "robot.urdf"
    scara = (URDF / "pendulum.urdf").read_text("utf-8")
    file.write_text(re.sub(r'effort="[0-9.]+"', f'effort="{effort}"', scara), "utf-8")
    assert dyn_here("check", file, *options)[0] == 0
    status, _, errors = dyn_here("check", file, *options, "--strict")
    warns = effort == "0"
    assert (status, "warnings and notes of kind loop: 1, expected none with --strict" in errors) == (warns, warns)


def listed(dyn_here: Here) -> dict[str, tuple[list[str], list[str]]]:
    """Inputs and options as `--list` prints them, and outputs, by query."""
    text = dyn_here("call", "--list")[1]
    rows = re.findall(r"^(\w+)\((.*)\) -> (.*)$", text.partition("\n\n")[2], re.MULTILINE)
    return {
        name: (input_names.split(", ") if input_names else [], output_names.split(", "))
        for name, input_names, output_names in rows
    }


def test_call_lists_all_queries(dyn_here: Here) -> None:
    queries = listed(dyn_here)
    assert list(queries) == [*QUERIES, *COMPUTATIONS, *ADMINISTRATION]
    for name, row in {**QUERIES, **COMPUTATIONS}.items():
        assert {
            word.rstrip("?").partition("=")[0] for word in queries[name][0]
        } == row.inputs.keys() | row.options.keys()
    for name, computation in COMPUTATIONS.items():
        required = {option.name for option in computation.options.values() if option.required}
        marked = {word for word in queries[name][0] if not word.endswith("?") and "=" not in word}
        assert marked == {*computation.required, *required}
    for name, entry in ADMINISTRATION.items():
        assert {word for word in queries[name][0] if not word.endswith("?")} == set(entry.required)
        assert {word.rstrip("?") for word in queries[name][0]} == entry.inputs.keys() | entry.options.keys()


NUMBERS = {"dt": 1e-3, "steps": 4}
"""Options without a default that are numbers."""


def example(robot: Robot, query: str, names: list[str]) -> dict[str, Any]:
    """Returns valid values for these inputs and options of a query, from their declaration."""
    if query in QUERIES:
        vectors, numbers = sample(robot, query)
        inputs = {name: value.tolist() for name, value in vectors.items()} | numbers
        return {name: inputs[name] for name in names}
    # One joint is given, the others are free.
    sizes: dict[str, Any] = {"n": 2, "nq": robot.nq, "nv": robot.nv, "nf": robot.nv - 1, "np": 1}
    sizes["2 steps + 1"] = 2 * NUMBERS["steps"] + 1
    inputs: dict[str, Any] = {}
    for name in names:
        if name == "urdf":
            inputs[name] = str(URDF / "scara.urdf")
        elif name == "overlay":
            inputs[name] = {"payloads": [{"link": robot.link_names[-1], "mass": 0.5}]}
        elif name == "name":
            inputs[name] = "loaded"
        elif name == "joints":
            inputs[name] = [robot.joint_names[0]]
        elif name == "contacts":
            inputs[name] = [{"link": robot.link_names[-1]}]
        elif query in COMPUTATIONS and name in COMPUTATIONS[query].inputs:
            core = COMPUTATIONS[query].inputs[name].shape
            inputs[name] = np.full([int(sizes.get(str(part), part)) for part in core], 0.5).tolist()
        else:
            inputs[name] = NUMBERS[name]  # a new option needs a value in NUMBERS
    return inputs


def test_call_asks_what_it_lists(tcp_server: Server, pendulum: Robot, dyn_here: Here) -> None:
    """Every query succeeds with only the required inputs of the list, and is refused without any of them."""

    def ask(query: str, inputs: dict[str, Any]) -> tuple[int, str, str]:
        robot = "scara" if query == "unload_robot" else "pendulum"
        words = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in inputs.items()]
        options = ["--server", tcp_server.endpoints[0], "--timeout", str(WAIT_S)]
        about_one = (
            COMPUTATIONS[query].robot
            if query in COMPUTATIONS
            else (query in QUERIES or ADMINISTRATION[query].names_robot)
        )
        options += ["--robot", robot] if about_one else []
        return dyn_here("call", query, *words, *options)

    for query, (input_names, outputs) in listed(dyn_here).items():
        required = [word for word in input_names if not word.endswith("?") and "=" not in word]
        inputs = example(pendulum, query, required)
        assert list(inputs) == required
        for name in required:
            status, out, err = ask(query, {key: value for key, value in inputs.items() if key != name})
            assert (status, out) == (1, "")
            assert re.match(f"error: {query} needs the (input|option) '{name}'", err)
        status, out, err = ask(query, inputs)
        if query in QUERIES and "directions" in QUERIES[query].inputs:
            assert status == 1
            assert "link 'pendulum' cannot move in all of the" in err  # a pendulum's has one
            status, out, err = ask(query, {**inputs, "directions": moving(pendulum)})
        # With an empty kernel cache the server has to compile, and says so.
        assert status == 0, (query, err)
        assert all(line.startswith("waiting: ") for line in err.splitlines()), (query, err)
        answer = json.loads(out)
        if query == "verify":
            assert len(answer) == 14
        elif query == "simulate":
            assert answer.keys() == {"t", "q", "v", "substeps", "integrator"}  # the last two tell what `auto` chose
            assert (answer["integrator"], repr(answer["substeps"])) == ("rk4", "1")
        else:
            assert answer.keys() == {*outputs}


def test_call_warns_beyond_limits(tcp_server: Server, panda: Robot, dyn_here: Here) -> None:
    """In the caller's order of joints, and at each state; the answer stays the same."""
    options = ["--server", tcp_server.endpoints[0], "--timeout", str(WAIT_S), "--robot", "panda"]
    names = list(reversed(panda.joint_names))
    q, v, tau = np.zeros((3, panda.nv)).tolist()
    q[names.index("panda_joint4")] = -1.0  # zero is beyond its limits
    q[-1], v[-2], tau[-3] = 90.0, -3.0, 100.0
    values = [f"{name}={numbers}" for name, numbers in (("q", q), ("v", v), ("tau", tau))] + [
        f"names={','.join(names)}"
    ]
    status, out, err = dyn_here("call", "forward_dynamics", *values, *options)
    assert (status, len(json.loads(out)["a"])) == (0, panda.nv)
    first, second, third = names[-1], names[-2], names[-3]
    limits, places = panda.limits, {name: k for k, name in enumerate(panda.joint_names)}
    lower, upper = limits.lower[places[first]], limits.upper[places[first]]
    speed, effort = limits.velocity[places[second]], limits.effort[places[third]]
    warnings = [line for line in err.splitlines() if line.startswith("warning:")]
    assert warnings == [
        f"warning: q of joint '{first}' is 90, beyond its limits {lower:g} to {upper:g} (rad | m)",
        f"warning: v of joint '{second}' is -3, beyond its limits {-speed:g} to {speed:g} (rad/s | m/s)",
        f"warning: tau of joint '{third}' is 100, beyond its limits {-effort:g} to {effort:g} (N m | N)",
    ]
    q_within = [-1.0 if name == "panda_joint4" else 0.0 for name in panda.joint_names]
    states = [q_within, *([90.0, *q_within[1:]] for _ in range(3))]
    warnings = dyn_here("call", "gravity_forces", f"q={states}", *options)[2].splitlines()
    assert [line for line in warnings if "warning" in line] == [
        f"warning: q of joint '{first}' at state [1] is 90, beyond its limits {lower:g} to {upper:g} (rad | m)"
    ]


@pytest.mark.parametrize("query", [*QUERIES, *COMPUTATIONS, *ADMINISTRATION, "mass_matrix+energy"])
def test_call_help_prints_the_query(dyn_here: Here, query: str) -> None:
    """Its inputs, options and outputs with their meaning, without a server."""
    status, out, err = dyn_here("call", query, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"{query}(")
    row: Any = COMPUTATIONS.get(query) or ADMINISTRATION.get(query) or row_of(query)
    lines = {line.split()[0].rstrip("?"): line for line in out.splitlines()[1:] if line.strip()}
    for name in (*row.inputs, *row.options, *row.outputs):
        assert name in lines
    if query == "step":
        assert lines["tau"].split(maxsplit=1)[1].startswith("array (.., nv), N m | N, joint efforts")
        assert lines["integrator"].split("'")[1] == "rk4"


def test_call_help(dyn_here: Here) -> None:
    assert "Usage: dyn call" in dyn_here("call", "--help")[1] == dyn_here("call", "-h")[1]
    status, _, err = dyn_here("call", "stepp", "--help")
    assert status == 1
    assert "did you mean 'step'?" in err


COMPLETED = {
    "dyn check pan": ["panda"],
    "dyn serve panda ur": ["ur5e"],
    "dyn call inverse_dynamics_r": ["inverse_dynamics_regressor"],
    "dyn call load_": ["load_robot"],
    "dyn call forward_dynamics me": ["method="],
    "dyn call simulate q=0 every": ["every="],
    "dyn launch panda_": ["panda_computed_torque"],
    "dyn launch panda eng": ["engine:="],
    "dyn launch nothing en": [],
}


@pytest.mark.parametrize("words", COMPLETED)
def test_shells_complete_robots_queries_and_launch_files(words: str) -> None:
    place = {"_DYN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = CliRunner().invoke(cli.app, [], prog_name="dyn", env=place)
    assert done.output.split() == COMPLETED[words]


def test_call_simulate(tcp_server: Server, pendulum: Robot, dyn_here: Here) -> None:
    words = ["q=[0.5]", "v=[0]", "tau=[0.1]", "dt=1e-3", "steps=20", "every=5", "integrator=implicit_midpoint"]
    status, out, err = dyn_here(
        "call", "simulate", *words, "--robot", "pendulum", "--server", tcp_server.endpoints[0], "--timeout", WAIT_S
    )
    assert status == 0, err
    answer = json.loads(out)
    expected = pendulum.simulate([0.5], [0.0], [0.1], dt=1e-3, steps=20, every=5, integrator="implicit_midpoint")
    assert expected.p is not None
    assert answer == {
        "t": expected.t.tolist(),
        "q": expected.q.tolist(),
        "v": expected.v.tolist(),
        "p": expected.p.tolist(),
    }


def test_call_verifies(tcp_server: Server, pendulum: Robot, dyn_here: Here) -> None:
    words = ["q=[0.5]", "v=[0.1]", "a=[0.2]", "verify=true", "--timeout", WAIT_S]
    options = ["--server", tcp_server.endpoints[0]]
    answer = json.loads(dyn_here("call", "inverse_dynamics", *words, "--robot", "pendulum", *options)[1])
    assert answer["tau"] == pendulum.inverse_dynamics([0.5], [0.1], [0.2]).tolist()
    expected = pendulum.verify([0.5], [0.1], [0.2])
    assert answer["residuals"] == {name: residual.tolist() for name, residual in expected.items()}


def test_call(tcp_server: Server, pendulum: Robot, panda: Robot, dyn_here: Here) -> None:
    options = ["--server", tcp_server.endpoints[0], "--timeout", WAIT_S]

    def ask(*arguments: Any) -> Any:
        status, out, err = dyn_here("call", *arguments, *options)
        assert status == 0, err
        return json.loads(out)

    done = dyn("call", "list_robots", *options)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"robots": ["panda", "pendulum"]}), done.stderr
    assert ask("health")["status"] == "ok"
    assert ask("describe_robot", "--robot", "panda") == panda.description.to_dict()
    q = [0.1 * k for k in range(9)]
    words = ["q=" + ",".join(map(str, q)), f"v={q}", f"tau={q}"]
    expected = panda.forward_dynamics(q, q, q, method="mass_matrix").tolist()
    assert ask("forward_dynamics", *words, "method=mass_matrix", "--robot", "panda") == {"a": expected}
    load = {"link": "panda_hand", "force": [0, 0, 1]}
    inputs = json.dumps({"q": q, "v": q, "a": q, "wrenches": load})
    expected = panda.inverse_dynamics(q, q, q, wrenches=Wrench("panda_hand", force=(0, 0, 1))).tolist()
    assert ask("inverse_dynamics", "--inputs", inputs, "--robot", "panda") == {"tau": expected}
    answer = ask("constraint_forces", "--inputs", '{"q": [0.5], "v": [0], "tau": [0]}', "--robot", "pendulum")
    assert answer["joints"] == list(pendulum.all_joint_names)
    loaded = ask("load_robot", f"urdf={URDF / 'scara.urdf'}")
    assert loaded["name"] == "scara"
    assert ask("unload_robot", "--robot", "scara") == {"robot": "scara"}
    assert "health" in ask("stats")["requests"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gravity_forces", "q=0.5"], "name a robot with --robot; the robots are panda, pendulum"),
        (["gravity_forces", "--robot", "r2d2", "q=[0]"], "there is no robot 'r2d2'"),
        (["gravity_forces", "--robot", "pendulum"], "gravity_forces needs the input 'q'"),
        (
            ["gravity_forces", "--robot", "pendulum", "q=[0]", "x=1"],
            "gravity_forces has no input or option 'x'; it takes q, gravity",
        ),
        (["gravity_forces", "--robot", "pendulum", "0.5"], "an input must look like name=value, found '0.5': dyn call"),
        (["gravity_forces", "--robot", "pendulum", "--inputs", "{"], "--inputs must be a JSON object"),
        (["gravity_forces", "--robot", "pendulum", "--inputs", "[]"], "--inputs must be a JSON object, found []"),
        (["gravity_forces", "--robot", "pendulum", "q=x"], "q must be real numbers"),
        (["gravity_forces", "--robot", "pendulum", "q=1,2"], "q has shape (2,)"),
        (
            ["inverse_dynamics", "--robot", "pendulum", "q=[0]", "v=[0]", "a=[0]", 'wrenches={"x": 1}'],
            "wrenches has no 'x'; its keys are",
        ),
        (["health", "q=1"], "health has no input or option 'q'; there are none"),
        (["load_robot"], "load_robot needs the input 'urdf'"),
        (["load_robot", "urdf=x", "name=y"], "load_robot has no input or option 'name'; it takes urdf"),
        (["simulate", "--robot", "pendulum", "q=[0]", "v=[0]", "dt=1"], "simulate needs the option 'steps'"),
        (
            ["simulate", "--robot", "pendulum", "q=[0]", "v=[0]", "dt=1", "steps=[2]"],
            "steps must be a whole number, at least 0, found list [2]",
        ),
        (["simulate", "--robot", "pendulum", "q=x", "v=[0]", "dt=1", "steps=2"], "q must be real numbers"),
        (
            ["segment_inverse_dynamics", "mass=[1]"],
            "segment_inverse_dynamics needs the input 'inertia': array (.., n, 3, 3), kg m^2",
        ),
        (["gravity_forces", "--robot", "pendulum", "q=[0]", "verify=2"], "verify must be true or false, found 2"),
        (["load_robot", "urdf=nowhere.urdf"], "there is no file 'nowhere.urdf'"),
        (["load_robot", "urdf=urdf/ur5e.urdf", "--robot", "ur"], "load_robot takes no robot: leave out --robot 'ur'"),
        (["health", "--robot", "pendulum"], "health takes no robot: leave out --robot"),
        (["segment_inverse_dynamics", "--robot", "pendulum"], "segment_inverse_dynamics takes no robot"),
        (["health", "--server-key", "x"], "server_key needs keys"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_call_says_what_is_wrong(
    tcp_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    options = ("--server", tcp_server.endpoints[0], "--timeout", str(WAIT_S))
    status, out, err = here(monkeypatch, capsys, "call", *arguments, *options)
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_interrupt_is_quiet(tcp_server: Server) -> None:
    """While it waits for a server that is gone after its first attempt."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        command = [*DYN, "call", "health", "--server", endpoint, "--timeout", "60"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        listener.settimeout(WAIT_S)
        listener.accept()[0].close()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (130, "", "")
