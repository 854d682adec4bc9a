"""`dyn node | topic | param | service | lifecycle`, with nodes that run in a thread of the test's process."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
import yaml
from msgspec import Meta
from typer.testing import CliRunner

from dyn_service.cli import nodes as commands
from dyn_service.cli.main import app
from dyn_service.cli.yaml_text import edited
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.graph import Node, settable
from dyn_service.graph.middleware import topic_tools
from dyn_service.graph.middleware.discovery import Discovery
from dyn_service.graph.middleware.graph import Graph, announce_launch
from dyn_service.graph.middleware.topic_tools import Rate, folder_of, frames, listening
from dyn_service.graph.middleware.topics import RUNTIME_DIR
from dyn_service.messages import Message, decode
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import String
from tests.conftest import ROOT
from tests.graph.in_process import PATIENCE_S, Nodes, nodes_in
from tests.phrases import naming


class WaveParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    rate_hz: float = 500.0
    amplitude: Annotated[float, Meta(ge=0, le=1), settable] = 0.5


class Wave(Node[WaveParameters]):
    def on_configure(self) -> None:
        self.out = self.create_publisher(JointState, "joint_states")
        self.odd = self.create_publisher(Odd, "odd")
        self.told: list[str] = []
        self.create_subscription(String, "told", lambda message: self.told.append(message.data), queue=10)
        self.create_timer(1.0 / self.parameters.rate_hz, self.tick)

    def tick(self) -> None:
        self.out.publish(JointState(name=["elbow"], position=[self.parameters.amplitude]))
        self.odd.publish(Odd("?"))


class Odd(Message, frozen=True):
    """A message type that is in no package."""

    data: str = ""


@pytest.fixture(scope="module")
def wave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wave]:
    """A node that runs in its own thread."""
    with nodes_in(tmp_path_factory.mktemp("r")) as nodes:
        wave = spun(nodes, "/arm/wave")
        thread = threading.Thread(target=wave.run)
        thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while [node.state for node in Graph(wave.runtime_dir).read()] != ["active"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            yield wave
        finally:
            wave.stop.request()
            thread.join()


def spun(nodes: Nodes, name: str) -> Wave:
    node = nodes.make(name, WaveParameters(), Wave)
    assert isinstance(node, Wave)
    return node


Dyn = Callable[..., str]


@pytest.fixture
def dyn(wave: Wave, monkeypatch: pytest.MonkeyPatch) -> Dyn:
    """Runs a command and returns its output on both streams; raises its error."""
    monkeypatch.setenv(RUNTIME_DIR, str(wave.runtime_dir))

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_nodes(dyn: Dyn, wave: Wave) -> None:
    assert dyn("node", "list") == "/arm/wave\n"
    assert dyn("node", "info", "arm/wave").splitlines()[:9] == [
        "/arm/wave",
        "  State: active",
        f"  Process: {wave._entry().pid}",
        f"  Folder: {wave.runtime_dir}",
        "  Subscribers:",
        "    /arm/told: std_msgs/msg/String",
        "  Publishers:",
        "    /arm/joint_states: sensor_msgs/msg/JointState",
        "    /arm/odd: test_looking_on/msg/Odd",
    ]


def test_topics(dyn: Dyn) -> None:
    assert dyn("topic", "list").splitlines() == ["/arm/joint_states", "/arm/odd", "/arm/told"]
    assert "/arm/told [std_msgs/msg/String]" in dyn("topic", "list", "-t").splitlines()
    assert dyn("topic", "info", "/arm/joint_states").splitlines() == [
        "Type: sensor_msgs/msg/JointState",
        "Publisher count: 1",
        "Subscription count: 0",
    ]
    assert "  /arm/wave (active, process " in dyn("topic", "info", "-v", "/arm/told")


def test_echo(dyn: Dyn) -> None:
    text = dyn("topic", "echo", "--once", "arm/joint_states")
    assert text.endswith("effort: []\n---\n")
    message = yaml.safe_load(text.removesuffix("---\n"))
    assert message == msgspec.to_builtins(JointState(name=["elbow"], position=[0.5]))
    assert dyn("topic", "echo", "--once", "/arm/joint_states", "--field", "header.stamp") == "sec: 0\nnanosec: 0\n---\n"
    assert "position: <sequence of 1>" in dyn("topic", "echo", "--once", "/arm/joint_states", "--no-arr")
    odd = dyn("topic", "echo", "--once", "/arm/odd")
    assert "warning: message type test_looking_on/msg/Odd is unknown" in odd
    assert "data: '?'\n---\n" in odd


def test_pub_is_heard(dyn: Dyn, wave: Wave) -> None:
    assert dyn("topic", "pub", "/arm/told", "std_msgs/String", "{data: one}", "--once") == ""
    assert wave.told == ["one"]
    assert dyn("topic", "pub", "arm/told", "std_msgs/msg/String", "{data: x}", "-t", "3", "-r", "200") == ""
    assert wave.told == ["one", "x", "x", "x"]
    assert "/_dyn" not in dyn("node", "list")
    assert dyn("topic", "pub", "/nobody", "std_msgs/String", "--once") == "warning: /nobody has no subscriber\n"


def test_parameters(dyn: Dyn, wave: Wave) -> None:
    assert dyn("param", "list", "/arm/wave") == "rate_hz\namplitude\n"
    assert dyn("param", "describe", "/arm/wave", "amplitude") == (
        "  amplitude  (number; at least 0, at most 1; default 0.5; settable)\n"
    )
    assert dyn("param", "set", "/arm/wave", "amplitude", "0.25") == "amplitude = 0.25\n"
    with pytest.raises(InvalidArgumentError, match=naming("0", "-0.25")):
        dyn("param", "set", "/arm/wave", "amplitude", "-0.25")  # a value, not an option
    assert wave.parameters.amplitude == 0.25
    assert dyn("param", "get", "arm/wave", "amplitude") == "0.25\n"
    whole = {"/arm/wave": {"ros__parameters": {"rate_hz": 500.0, "amplitude": 0.25}}}
    assert yaml.safe_load(dyn("param", "dump", "/arm/wave")) == whole
    dyn("param", "set", "/arm/wave", "amplitude", "0.5")


TUNED = """# tuned on the bench
/**/wave:                       # by its name
  ros__parameters: {rate_hz: 100.0, amplitude:   0.10}   # small
other: {ros__parameters: {amplitude: 0.1}}
"""


def test_tuned_values_are_written_back_and_nothing_else(dyn: Dyn, tmp_path: Path) -> None:
    file = tmp_path / "wave.yaml"
    file.write_bytes(TUNED.replace("\n", "\r\n").encode())
    dyn("param", "set", "/arm/wave", "amplitude", "0.75")
    result = CliRunner().invoke(app, ["param", "save", "/arm/wave", str(file)], input="n\n")
    assert "-  ros__parameters: {rate_hz: 100.0, amplitude:   0.10}   # small\n" in result.output
    assert "+  ros__parameters: {rate_hz: 100.0, amplitude:   0.75}   # small\n" in result.output
    assert file.read_bytes().decode() == TUNED.replace("\n", "\r\n")  # the prompt was declined
    dyn("param", "save", "/arm/wave", str(file), "--yes")
    # rate_hz is 500 in the node but read-only, so it is not written
    assert file.read_bytes().decode() == TUNED.replace("0.10", "0.75").replace("\n", "\r\n")
    assert dyn("param", "save", "/arm/wave", str(file)) == ""
    file.write_text("/arm/wave: {ros__parameters: {rate_hz: 1.0}}", "utf-8")
    assert dyn("param", "save", "/arm/wave", str(file)) == f"not in {file}: amplitude = 0.75\n"
    file.write_text(
        "a: &a {amplitude: 0.1}\n/arm/wave: {ros__parameters: {<<: *a}}".replace(
            "a: &a", "b: {ros__parameters: &a"
        ).replace("}\n", "}}\n"),
        "utf-8",
    )
    text = file.read_text("utf-8")
    with pytest.raises(InvalidArgumentError, match=naming("amplitude")):
        dyn("param", "save", "/arm/wave", str(file), "--yes")
    assert file.read_text("utf-8") == text
    file.write_text("left: {ros__parameters: {amplitude: 0.1}}", "utf-8")
    with pytest.raises(InvalidArgumentError, match=naming("/arm/wave", "left")):
        dyn("param", "save", "/arm/wave", str(file))
    dyn("param", "set", "/arm/wave", "amplitude", "0.5")


@pytest.mark.parametrize(
    ("text", "value", "new_text"),
    [
        ("a: [1.0, 2.0]  # two", [1.0, 2.5], "a: [1.0, 2.5]  # two"),
        ("a: [1.0, 2.0]", [3.0], "a: [3.0]"),
        ("a:\n- 1.0  # first\n- 2.0\nb: 1", [1.0, 9.0], "a:\n- 1.0  # first\n- 9.0\nb: 1"),
        ("a: 'x'", "y: z", "a: 'y: z'"),
        ("a: &x 1.0\nb: 2.0", 7.0, "a: 7.0\nb: 2.0"),
    ],
)
def test_a_value_is_edited_where_it_stands(text: str, value: object, new_text: str) -> None:
    assert yaml.safe_load(edited(text, "f", {("a",): value})) == yaml.safe_load(new_text)
    assert edited(text, "f", {("a",): value}).replace("&x ", "") == new_text


def test_services(dyn: Dyn) -> None:
    assert "/arm/wave/get_state [dyn_service_srvs/srv/GetState]" in dyn("service", "list", "-t").splitlines()
    assert dyn("service", "call", "/arm/wave/get_parameters", "{names: [rate_hz]}") == "values:\n  rate_hz: 500.0\n"
    command = ("service", "call", "arm/wave/get_state", "dyn_service_srvs/srv/GetState")
    assert dyn(*command) == "state: active\ntransitions:\n- deactivate\n- shutdown\n"


def test_a_lifecycle(dyn: Dyn) -> None:
    assert dyn("lifecycle", "get", "/arm/wave") == "active\n"
    assert dyn("lifecycle", "set", "/arm/wave", "deactivate") == "/arm/wave is inactive\n"
    assert dyn("lifecycle", "list", "/arm/wave") == "activate\ncleanup\nshutdown\n"
    assert dyn("lifecycle", "set", "/arm/wave", "activate") == "/arm/wave is active\n"


FAULTS = {
    "node info /arm/waev": "there is no node '/arm/waev'; did you mean '/arm/wave'?",
    "node info /zzz": "there is no node '/zzz'; the nodes are /arm/wave",
    "topic echo /arm/joint_stats": "there is no topic '/arm/joint_stats'; did you mean '/arm/joint_states'?",
    "topic echo /arm/told std_msgs/Sting --once": "there is no message type 'std_msgs/Sting'; did you mean",
    "topic echo /arm/joint_states --once --field nmae": "sensor_msgs/msg/JointState has no 'nmae'; did you mean",
    "topic echo tcp://127.0.0.1:1": "tcp://127.0.0.1:1: name the type of its messages",
    "topic pub /x std_msgs/String {daat:1}": "not a std_msgs/msg/String: daat:1: unknown key 'daat:1'; ",
    "topic pub /x std_msgs/String [": "VALUES: not YAML: ",
    "topic pub /x std_msgs/String --rate -1": "--rate is -1: expected a positive number",
    "param get /arm/wave amplitud": "node '/arm/wave' has no parameter 'amplitud'; did you mean 'amplitude'?",
    "param set /arm/wave amplitude 7": "parameter 'amplitude': expected a number of at most 1, found 7",
    "param set /arm/wave rate_hz 7": "parameter 'rate_hz' of node '/arm/wave' is read-only while it runs",
    "service call /arm/wave/get_stat": "there is no service '/arm/wave/get_stat'; did you mean",
    "service call /arm/wave/get_state a/srv/B": "service '/arm/wave/get_state' has the type dyn_service_srvs/srv/Get",
    "service call /arm/wave/get_state [1]": "VALUES must be one map",
    "lifecycle set /arm/wave activat": "there is no transition 'activat'",
}


@pytest.mark.parametrize(("words", "sentence"), FAULTS.items(), ids=FAULTS)
def test_faults_are_one_sentence(dyn: Dyn, words: str, sentence: str) -> None:
    with pytest.raises(Exception) as excinfo:
        dyn(*words.split())
    assert str(excinfo.value).startswith(sentence)
    assert "\n" not in str(excinfo.value)


def test_two_nodes_of_one_name_are_not_mixed_up(dyn: Dyn, wave: Wave, tmp_path: Path) -> None:
    nodes = Nodes(wave.runtime_dir)
    try:
        spun(nodes, "/arm/wave").services()
        with pytest.raises(Exception, match=naming("2", "'/arm/wave'", "DYN_RUNTIME_DIR=FOLDER")):
            dyn("param", "get", "/arm/wave", "amplitude")
    finally:
        nodes.all[0].close()
        nodes.context.destroy(linger=0)


def test_launches_are_not_mixed(tmp_path: Path) -> None:
    """A topic that exists in two launches is ambiguous."""
    for name in "ab":
        (tmp_path / name).mkdir()
    with nodes_in(tmp_path / "a") as first, nodes_in(tmp_path / "b") as second:
        discovery = Discovery({"XDG_RUNTIME_DIR": str(tmp_path)})
        for nodes in (first, second):
            announce_launch(nodes.folder, {"XDG_RUNTIME_DIR": str(tmp_path)})
            nodes.make("/plant").create_publisher(String, "x")
            assert [running.folder for running in discovery.nodes()] == [first.folder, second.folder][
                : len(discovery.nodes())
            ]
        assert discovery.topics() == {"/x": {"std_msgs/msg/String"}}
        for ask in (lambda: discovery.topic_type("/x"), lambda: discovery.node("/plant")):
            with pytest.raises(FailedPreconditionError) as excinfo:
                ask()
            assert str(excinfo.value).endswith(f"DYN_RUNTIME_DIR=FOLDER, one of {first.folder}, {second.folder}")
        with pytest.raises(FailedPreconditionError, match="choose a launch by"):
            folder_of(discovery, "/x")
        nodes.end(nodes.all[0])
        assert discovery.topic_type("/x") == "std_msgs/msg/String"
        assert folder_of(discovery, "/x") == first.folder


def test_names_say_which_launch_they_belong_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Two people launch under one account; one of them mistypes, and looks at a topic that only the other has."""
    for name in "ab":
        (tmp_path / name).mkdir()
    monkeypatch.delenv(RUNTIME_DIR, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def dyn(*words: str) -> str:
        return CliRunner().invoke(app, list(words), catch_exceptions=False).output

    with nodes_in(tmp_path / "a") as first_nodes, nodes_in(tmp_path / "b") as second_nodes:
        for nodes, names in ((first_nodes, ("/plant", "/server")), (second_nodes, ("/plant",))):
            announce_launch(nodes.folder, {"XDG_RUNTIME_DIR": str(tmp_path)})
            for name in names:
                nodes.make(name).services()
            if nodes is first_nodes:  # a single launch needs no folder
                assert dyn("node", "list") == "/plant\n/server\n"
                assert "/server/get_state\n" in dyn("service", "list")
        assert dyn("node", "list").splitlines() == [
            f"/plant  {first_nodes.folder}", f"/plant  {second_nodes.folder}", f"/server  {first_nodes.folder}",
        ]  # fmt: skip
        assert f"/server/get_state  {first_nodes.folder}\n" in dyn("service", "list")
        assert f"/plant/get_state  {second_nodes.folder}\n" in dyn("service", "list")
        for words, end in (
            (
                ("service", "call", "/server/get_stat"),
                f"; did you mean '/server/get_state'? It is in {first_nodes.folder}",
            ),
            (("node", "info", "/servr"), f"; did you mean '/server'? It is in {first_nodes.folder}"),
            (
                ("node", "info", "/plnt"),
                f"; did you mean '/plant'? It is in {first_nodes.folder} and {second_nodes.folder}",
            ),
            (
                ("node", "info", "/x"),
                f"; the nodes are /plant, /server in {first_nodes.folder}; /plant in {second_nodes.folder}",
            ),
        ):
            with pytest.raises(NotFoundError) as error:
                dyn(*words)
            assert str(error.value).endswith(end)


def test_a_topic_of_two_launches_is_never_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command goes on with the launch whose topic it began with; another one that begins later is not heard."""
    monkeypatch.setattr(topic_tools, "LOOK_S", 0.0)  # for new publishers, in each turn
    for name in "ab":
        (tmp_path / name).mkdir()
    with nodes_in(tmp_path / "a") as first_nodes, nodes_in(tmp_path / "b") as second_nodes:
        discovery, texts, notes = Discovery({"XDG_RUNTIME_DIR": str(tmp_path)}), [], []
        for nodes in (first_nodes, second_nodes):
            announce_launch(nodes.folder, {"XDG_RUNTIME_DIR": str(tmp_path)})
        assert discovery.launch_of("/x") is None
        first = first_nodes.make("/plant").create_publisher(String, "x")
        with listening("/x", "std_msgs/msg/String", discovery, notes.append) as subscription:
            second = second_nodes.make("/plant").create_publisher(String, "x")
            assert [entry.pid for entry in discovery.entries()] == [os.getpid()] * 2
            assert len(discovery.entries("/x")) == 1
            received = frames(subscription, discovery, 0.01)

            def both() -> bool:
                first.publish(String("first"))
                second.publish(String("later"))
                frame = next(received)
                if frame is not None:
                    texts.append(decode(String, bytes(frame)).data)
                return len(texts) >= 20

            for nodes in (first_nodes, second_nodes):
                nodes.turns(1)
            first_nodes.until(both)
        assert set(texts) == {"first"}
        with pytest.raises(
            FailedPreconditionError, match=naming("'/x'", str(first_nodes.folder), str(second_nodes.folder))
        ):
            Discovery({"XDG_RUNTIME_DIR": str(tmp_path)}).entries("/x")  # one that begins now has to choose
        first_nodes.end(first_nodes.all[0])  # the first launch has ended
        assert discovery.launch_of("/x") == second_nodes.folder


def test_shells_complete_names(dyn: Dyn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert commands.nodes("/a") == ["/arm/wave"]
    assert commands.topics("/arm/j") == ["/arm/joint_states"]
    assert "/arm/wave/get_state" in commands.services("")
    assert "sensor_msgs/msg/JointState" in commands.types("sensor")
    assert commands.transitions("de") == ["deactivate"]
    done = CliRunner().invoke(app, [], prog_name="dyn", env={
        "_DYN_COMPLETE": "complete_bash", "COMP_WORDS": "dyn param get /arm/wave am", "COMP_CWORD": "4",
    })  # fmt: skip
    assert done.output.split() == ["amplitude"]
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "gone"))
    assert commands.nodes("") == []  # no traceback in the shell


def test_rates() -> None:
    rate = Rate(3)
    assert rate.lines(0) == ["no new messages"]
    for time_s in (0.0, 9.0, 10.0, 12.0, 13.0):
        rate.add(time_s)
    assert rate.lines(7) == [
        "average rate: 0.750",
        "\tmin: 1.000000s max: 2.000000s std dev: 0.471405s window: 3 missed: 7",
    ]


def test_it_needs_no_engine(wave: Wave) -> None:
    """The commands import neither the engine nor the launcher nor NumPy, so that they start quickly."""
    code = (
        "import sys; from dyn_service.cli.main import app\n"
        "assert not {'numpy', 'zmq', 'yaml'} & set(sys.modules)\n"
        "from dyn_service.graph.middleware import topic_tools\n"
        "from dyn_service.cli import yaml_text\n"
        "heavy = {'casadi', 'llvmlite', 'scipy', 'matplotlib', 'dyn_service.engine.robot',"
        " 'dyn_service.service.server.app'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["topic echo /arm/joint_states", "topic hz /arm/joint_states", "topic pub /y std_msgs/String -r 100"]
)
def test_ctrl_c_leaves_nothing_and_says_nothing(wave: Wave, words: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dyn_service", *words.split()],
        cwd=ROOT,
        env={"PATH": "", RUNTIME_DIR: str(wave.runtime_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if "pub" in words:
        while not any(
            "_dyn_topic_pub" in entry.name for entry in Discovery({RUNTIME_DIR: str(wave.runtime_dir)}).entries()
        ):
            time.sleep(0.02)
    else:
        assert re.match("header|average", process.stdout.readline())
    process.send_signal(2)
    _, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (130, "")
    names = [entry.name for entry in Discovery({RUNTIME_DIR: str(wave.runtime_dir)}).entries()]
    assert names == ["/arm/wave"]
