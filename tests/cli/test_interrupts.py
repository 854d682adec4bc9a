"""Ctrl-C at any time, from the first imports of a program on: exit status 130 and no output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from dyn_service.service.server.app import open_server
from dyn_service.service.server.settings import ServerSettings
from dyn_service.service.server.workers.pool import ForkServer
from dyn_service.support.realtime import Realtime
from tests.conftest import ROOT, URDF

WAIT_S = 60.0
PENDULUM = str(URDF / "pendulum.urdf")
PROGRAMS = {
    "dyn serve": ["-m", "dyn_service", "serve", PENDULUM, "--bind", "tcp://127.0.0.1:0"],
    "dyn call": ["-m", "dyn_service", "call", "health", "--server", "tcp://127.0.0.1:9", "--timeout", "60"],
    "server node": ["-P", "-m", "dyn_service.graph.nodes.server", "--ros-args", "-p", f"robots:=[{PENDULUM}]"],
    "plant node": ["-P", "-m", "dyn_service.graph.nodes.plant.node", "--ros-args", "-p", f"robot:={PENDULUM}"],
    "controller node": [
        "-P",
        "-m",
        "dyn_service.graph.nodes.controllers.computed_torque",
        "--ros-args",
        "-p",
        "endpoint:=ipc:///nowhere",
    ],
}


@pytest.mark.parametrize("imports", [0, 1, 10, 60, 150])
@pytest.mark.parametrize("program", PROGRAMS)
def test_within_imports(program: str, imports: int) -> None:
    """Interrupts the process group, as a terminal does, after this number of imports."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *PROGRAMS[program]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        while "dyn_service.support.interrupts" not in process.stderr.readline():
            assert process.poll() is None
        for _ in range(1 + imports):
            process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()
    words = [line for line in errors.splitlines() if "import time:" not in line and "|" not in line]
    assert (process.returncode, out, words) == (130, "", [])


def test_the_process_that_makes_workers_never_hears_of_it() -> None:
    """The fork server starts with SIGINT blocked, so its imports are safe; the caller's signal mask is restored."""
    fork_server = ForkServer()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    fork_server.start()
    try:
        assert fork_server._process is not None
        status = Path(f"/proc/{fork_server._process.pid}/status").read_text("utf-8")
        blocked = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
        assert int(blocked.split()[1], 16) >> (signal.SIGINT - 1) & 1
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    finally:
        fork_server.close()


def test_a_library_leaves_signals_alone() -> None:
    code = "import signal\nbefore = signal.getsignal(signal.SIGINT)\n"  # SIG_IGN, where a shell's job runs the tests
    code += "import dyn_service.__main__, dyn_service.cli.main; dyn_service.Robot, dyn_service.Server\n"
    code += "print(signal.getsignal(signal.SIGINT) is before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout == "True\n", done.stderr


# settings are checked first: the robot's file, which does not exist, is never opened


def fault_of(**settings: object) -> Exception:
    messages: list[str] = []
    with pytest.raises((FailedPreconditionError, PermissionDeniedError, InvalidArgumentError)) as excinfo:
        open_server(ServerSettings(robots=["nowhere.urdf"], **settings), messages.append)  # type: ignore[arg-type]
    assert messages == []
    return excinfo.value


def test_keys_that_are_not_there_are_missed_before_anything_is_made(tmp_path: Path) -> None:
    fault = fault_of(endpoints=["tcp://0.0.0.0:0"], keys_folder=str(tmp_path))
    assert "an endpoint needs keys, and there is no file" in str(fault)


@pytest.mark.parametrize("part", [{"affinity": [4095]}, {"busy_poll_us": 50.0}])
def test_what_the_system_refuses_is_refused_before_anything_is_made(part: dict[str, object]) -> None:
    fault = fault_of(realtime=Realtime(**part))  # type: ignore[arg-type]
    assert f"realtime.{next(iter(part))} is refused: " in str(fault)


def test_a_node_refuses_it_first_too() -> None:
    words = ["-p", "robot:=nowhere.urdf", "-p", "realtime.affinity:=[4095]"]
    command = [sys.executable, "-P", "-m", "dyn_service.graph.nodes.plant.node", "--ros-args", *words]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, "realtime.affinity is refused" in done.stderr) == (2, True), done.stderr


# json


@pytest.mark.slow
def test_every_line_of_a_json_server_is_one_object() -> None:
    command = [sys.executable, "-m", "dyn_service", "serve", "--log-format", "json", PENDULUM]
    process = subprocess.Popen(
        [*command, "--bind", "tcp://127.0.0.1:0", "--prepare-for", "gravity_forces"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=WAIT_S)
    lines = [json.loads(line) for line in (ready, *out.splitlines(), *err.splitlines())]
    assert lines[0]["message"].startswith("ready: tcp://127.0.0.1:")
    assert {line["node"] for line in lines} == {"/server"}
    assert any("1 kernel for gravity_forces" in line["message"] for line in lines)
    done = subprocess.run([*command, "--bind", "nowhere"], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, json.loads(line)["level"]) == (1, "error")
    assert "endpoint must look like" in json.loads(line)["message"]
