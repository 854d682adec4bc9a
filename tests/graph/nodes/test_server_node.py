"""A server has the same settings and errors with `dyn serve --config` and in a launch file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from dyn_service import Client, PermissionDeniedError, ResourceExhaustedError
from dyn_service.graph.launch.planner import ProcessPlan, make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.middleware import telemetry
from dyn_service.graph.middleware.graph import Graph
from dyn_service.graph.middleware.topics import RUNTIME_DIR
from dyn_service.graph.nodes.server import NODE
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import Role
from dyn_service.service.server.administration.access import KeyFolder
from dyn_service.service.server.settings import ServerSettings, read_settings
from dyn_service.support.arguments import parse_arguments
from dyn_service.support.realtime import Realtime
from tests.conftest import ROOT, URDF
from tests.phrases import unnamed
from tests.wide import wide

WAIT_S = 240.0
EVERYTHING = """
server:
  ros__parameters:
    robots: [robots/pendulum.urdf]
    joints: [joints.yaml]
    root: planar
    mimic: false
    loops: cut
    endpoints: ["tcp://127.0.0.1:0", "ipc://$(env WHERE)"]
    allow_load: false
    prepare: [control, energy]
    workers: 1
    limits: {max_waiting: 3, max_reply_bytes: 1000}
    realtime: {freeze_collector: true}
    keys: required
    keys_folder: keys
    audit: audit.jsonl
"""


def process_plan(tmp_path: Path, parameters: str, **node: str) -> ProcessPlan:
    """The process that a launch file starts with these parameters."""
    (tmp_path / "scratch").mkdir(exist_ok=True)
    keys = "".join(f", {name}: {value}" for name, value in node.items())
    file = tmp_path / "launch" / "a.launch.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"launch: [{{node: {{pkg: dyn_service, exec: server{keys}, param: [{parameters}]}}}}]", "utf-8")
    plan = make_plan(
        read_launch_file(file), {}, environment={"WHERE": f"{tmp_path}/socket"}, folder=tmp_path / "scratch"
    )
    return plan.processes[0]


def as_the_node_reads_it(process: ProcessPlan) -> ServerSettings:
    command = process.command[process.command.index("--ros-args") :]
    return parse_arguments(command, default_name="server").parameters.to(NODE.parameters)


@pytest.mark.parametrize("substitutions", [False, True])
def test_one_file_both_ways(tmp_path: Path, substitutions: bool) -> None:
    file = tmp_path / "config" / "server.yaml"
    (file.parent / "robots").mkdir(parents=True)
    (file.parent / "robots" / "pendulum.urdf").touch()
    (file.parent / "joints.yaml").touch()
    text = EVERYTHING if substitutions else EVERYTHING.replace("$(env WHERE)", f"{tmp_path}/socket")
    file.write_text(text, "utf-8")
    substitution_text = ", allow_substs: true" if substitutions else ""
    process = process_plan(tmp_path, f"{{from: {file}{substitution_text}}}")
    expected = ServerSettings(
        robots=[str(tmp_path / "config" / "robots" / "pendulum.urdf")],
        joints=[str(tmp_path / "config" / "joints.yaml")],
        root="planar",
        mimic=False,
        loops="cut",
        endpoints=["tcp://127.0.0.1:0", f"ipc://{tmp_path}/socket"],
        allow_load=False,
        prepare=["control", "energy"],
        workers=1,
        limits=RequestLimits(max_waiting=3, max_reply_bytes=1000),
        realtime=Realtime(freeze_collector=True),
        keys="required",
        keys_folder=str(tmp_path / "config" / "keys"),
        audit=str(tmp_path / "config" / "audit.jsonl"),
    )
    assert as_the_node_reads_it(process) == expected
    assert msgspec.convert(process.parameters, ServerSettings) == expected
    if not substitutions:
        assert read_settings(file) == expected
    for field in msgspec.structs.fields(ServerSettings):
        assert getattr(expected, field.name) != getattr(ServerSettings(), field.name), f"{field.name} is not tried"


def test_the_example_file_both_ways(tmp_path: Path) -> None:
    file = ROOT / "config" / "server.yaml"
    assert as_the_node_reads_it(process_plan(tmp_path, f"{{from: {file}}}")) == read_settings(file)


def test_what_the_launch_file_says_comes_after_and_is_from_the_working_directory(tmp_path: Path) -> None:
    file = ROOT / "config" / "server.yaml"
    own_parameters = "{name: robots, value: [urdf/scara.urdf]}, {name: limits.max_robots, value: 2}"
    settings = as_the_node_reads_it(process_plan(tmp_path, f"{{from: {file}}}, {own_parameters}"))
    assert settings.robots == ["urdf/scara.urdf"]
    assert settings.limits == RequestLimits(max_robots=2)
    last = as_the_node_reads_it(process_plan(tmp_path, f"{own_parameters}, {{from: {file}}}"))
    assert last == read_settings(file)


def test_nothing_at_all_is_private(tmp_path: Path) -> None:
    private = {"endpoints": [f"ipc://{tmp_path}/scratch/dynamics"], "allow_load": False}
    assert as_the_node_reads_it(process_plan(tmp_path, "{name: root, value: fixed}")) == ServerSettings(**private)
    parameters = as_the_node_reads_it(process_plan(tmp_path, "{name: root, value: fixed}", namespace="/left/arm"))
    assert parameters.endpoints == [f"ipc://{tmp_path}/scratch/left.arm.dynamics"]


def test_settings_are_applied(tmp_path: Path) -> None:
    parameters = "{name: endpoints, value: ['tcp://127.0.0.1:0']}, {name: allow_load, value: true}"
    settings = as_the_node_reads_it(process_plan(tmp_path, parameters))
    assert (settings.endpoints, settings.allow_load) == (["tcp://127.0.0.1:0"], True)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("{name: endpoint, value: tcp://127.0.0.1:1}", "unknown key 'endpoint'; did you mean 'endpoints'?"),
        ("{name: endpoints, value: [nowhere]}", "endpoint must look like"),
        ("{name: prepare, value: [verfy]}", "did you mean 'verify'?"),
        ("{name: limits, param: [{name: max_waiting, value: 0}]}", "must be positive"),
    ],
)
def test_faults_are_found_before_anything_starts(tmp_path: Path, parameter: str, message: str) -> None:
    with pytest.raises(Exception, match=r"a\.launch\.yaml:1: ") as excinfo:
        process_plan(tmp_path, parameter)
    assert message in str(excinfo.value)


RUN_NODE = "import runpy\nrunpy.run_module('dyn_service.graph.nodes.server', run_name='__main__', alter_sys=True)"


@contextmanager
def run_node(tmp_path: Path, **parameters: Any) -> Iterator[tuple[subprocess.Popen[str], Callable[[], Any]]]:
    """The node as a launcher starts it, and what gives the next message of its telemetry."""
    launcher = zmq.Context.instance().socket(zmq.PULL)
    launcher.rcvtimeo = int(WAIT_S * 1000)
    launcher.bind(f"ipc://{tmp_path}/launcher")
    words = [word for name, value in parameters.items() for word in ("-p", f"{name}:={json.dumps(value)}")]
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_NODE, "--ros-args", *words],
        cwd=ROOT,
        env={
            **os.environ,
            telemetry.ENDPOINT: f"ipc://{tmp_path}/launcher",
            telemetry.NODE: "server",
            RUNTIME_DIR: str(tmp_path),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, lambda: telemetry.decode(launcher.recv())
    finally:
        process.kill()
        process.communicate()
        launcher.close()


def test_parameters_of_the_node_are_applied(tmp_path: Path) -> None:
    with run_node(
        tmp_path,
        robots=[str(URDF / "pendulum.urdf")],
        endpoints=["tcp://127.0.0.1:0", f"ipc://{tmp_path}/socket"],
        allow_load=False,
        prepare=["gravity_forces"],
        limits={"max_reply_bytes": 1000},
    ) as (process, next_message):
        facts = next_message()
        assert isinstance(facts, telemetry.Facts)
        assert isinstance(next_message(), telemetry.Ready)
        assert (facts.values["role"], list(facts.values["robots"])) == ("server", ["pendulum"])
        assert len(facts.values["endpoints"]) == 2
        assert [entry.answers_at for entry in Graph(tmp_path).nodes()] == [tuple(facts.values["endpoints"])]
        for endpoint in facts.values["endpoints"]:
            with Client(endpoint, timeout_s=WAIT_S) as client:
                pendulum = client.robot("pendulum")
                assert pendulum.gravity_forces(np.array([0.5])).shape == (1,)
                with pytest.raises(ResourceExhaustedError, match="the limit is 1000"):
                    pendulum.gravity_forces(np.zeros((1000, 1)))
                with pytest.raises(PermissionDeniedError):
                    client.unload_robot("pendulum")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert errors.startswith("pendulum: 1 kernel for gravity_forces in ")


def test_a_node_that_asks_for_keys_asks_itself_with_its_own(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path / "keys")
    file = folder.make("lab", Role.LOAD)
    with run_node(
        tmp_path,
        robots=[str(URDF / "pendulum.urdf")],
        endpoints=["tcp://127.0.0.1:0"],
        prepare=["gravity_forces"],
        keys="required",
        keys_folder=str(folder.folder),
        audit=str(tmp_path / "audit.jsonl"),
    ) as (process, next_message):
        facts = next_message()
        assert isinstance(facts, telemetry.Facts)
        assert isinstance(next_message(), telemetry.Ready)
        (endpoint,) = facts.values["endpoints"]
        with Client(endpoint, timeout_s=WAIT_S, keys=file) as client:
            client.load_robot(URDF / "scara.urdf")  # by a worker, which has the serving process write it down
            client.unload_robot("scara")
            assert client.list_robots() == ["pendulum"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert [(line["who"], line["query"], line["robot"], line["outcome"]) for line in lines] == [
            ("key lab", "load_robot", "scara", "ok"),
            ("key lab", "unload_robot", "scara", "ok"),
        ]


@pytest.mark.parametrize("pause_s", wide([0.0, 0.05, 0.2, 0.5], {0.0, 0.2}.__contains__))
def test_a_signal_while_it_starts_to_listen_ends_it(tmp_path: Path, pause_s: float) -> None:
    """Wherever between the making of its sockets and its first answer: it used to wait for that answer to the limit."""
    with run_node(
        tmp_path,
        robots=[str(URDF / "pendulum.urdf")],
        endpoints=[f"ipc://{tmp_path}/socket"],
        prepare=["gravity_forces"],
    ) as (process, next_message):
        assert isinstance(next_message(), telemetry.Facts)
        time.sleep(pause_s)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert errors.count("\n") == 1
        assert not (tmp_path / "socket").exists()


def test_a_node_that_cannot_serve_says_why(tmp_path: Path) -> None:
    with run_node(tmp_path, endpoints=["tcp://127.0.0.1:0"], allow_load=False) as (process, next_message):
        fault = next_message()
        assert isinstance(fault, telemetry.Fault)
        assert unnamed(fault.message, "serve", "file") == []
        assert process.wait(WAIT_S) == 2  # invalid settings: a launcher does not restart it
