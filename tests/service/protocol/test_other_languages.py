"""Example clients in C++ and JavaScript, written from docs/protocol.md alone, call a real server.

The tests need g++ with the headers of libzmq and msgpack-cxx (Debian: libzmq3-dev, libmsgpack-cxx-dev), and node with
npm, which downloads two packages. They are skipped without these tools.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from dyn_service import Robot, Server
from dyn_service.support.shipped import find_robot
from tests.phrases import unnamed

CLIENTS = Path(__file__).parents[3] / "examples" / "clients"
STATE = 0.1
"""rad | m, position of every joint in both examples."""

pytestmark = pytest.mark.slow  # compilers and a package manager, some seconds each


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_urdf(CLIENTS.parents[1] / "urdf" / "panda.urdf")


@pytest.fixture(scope="module")
def endpoint(robot: Robot) -> Iterator[str]:
    with Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server:
        yield server.endpoints[0]


def built(source: Path, program: Path, *includes: Path) -> list[str]:
    """Compiles the program and returns its command; skips the test without compiler or headers."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    for header in ("zmq.h", "msgpack.hpp"):
        flags_found = subprocess.run(
            ["g++", "-x", "c++", "-E", "-"], input=f"#include <{header}>", capture_output=True, text=True
        )
        if flags_found.returncode and "No such file" in flags_found.stderr:
            pytest.skip(f"no {header}: install libzmq3-dev and libmsgpack-cxx-dev")
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *(f"-I{folder}" for folder in includes)]
    compilation = subprocess.run(
        ["g++", *flags, str(source), "-lzmq", "-o", str(program)], capture_output=True, text=True
    )
    assert compilation.returncode == 0, compilation.stderr
    return [str(program)]


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return built(CLIENTS / "cpp" / "example.cpp", tmp_path_factory.mktemp("cpp") / "example")


@pytest.fixture(scope="module")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if shutil.which("npm") is None:
        pytest.skip("no npm")
    folder = tmp_path_factory.mktemp("js") / "client"
    shutil.copytree(CLIENTS / "js", folder, ignore=shutil.ignore_patterns("node_modules"))
    fetched = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund", "--prefer-offline"], cwd=folder, capture_output=True, text=True
    )
    if fetched.returncode and any(word in fetched.stderr for word in ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED")):
        pytest.skip("npm reaches no registry")
    assert fetched.returncode == 0, fetched.stderr
    return ["node", str(folder / "example.mjs")]


@pytest.mark.parametrize("language", ["cpp", "javascript"])
def test_torques_agree_and_errors_are_reported(
    language: str, robot: Robot, endpoint: str, request: pytest.FixtureRequest
) -> None:
    command = request.getfixturevalue(language)
    ran = subprocess.run([*command, endpoint], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    tau = robot.inverse_dynamics(np.full(robot.nq, STATE), np.zeros(robot.nv), np.zeros(robot.nv))
    assert lines[: robot.nv] == [f"{name}: {value:.6f}" for name, value in zip(robot.joint_names, tau, strict=True)]
    assert "batch of 1000: the same bits" in lines
    assert unnamed(lines[-1], "INVALID_ARGUMENT inputs.q", "nan", "[0]") == []


@pytest.mark.parametrize("language", ["cpp", "javascript"])
def test_no_server_is_one_line(language: str, request: pytest.FixtureRequest) -> None:
    command = request.getfixturevalue(language)
    ran = subprocess.run([*command, "tcp://127.0.0.1:1"], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: no server took the request at tcp://127.0.0.1:1")
    assert len(ran.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def take_over(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    package = CLIENTS.parents[1] / "ros2" / "dyn_service_hardware"
    folder = tmp_path_factory.mktemp("ros2")
    return built(package / "test" / "take_over.cpp", folder / "take_over", package / "include")


PATIENT = {"control_rate_hz": "1.0"}
"""The plant detects a missing controller only after 20 s, so that only a release ends control on a busy machine."""
SOLO = {
    "robot": find_robot("solo12"),
    "root": "floating",
    "undriven": "[]",
    "initial_position": '{"HR_KFE": 0.25}',
    **PATIENT,
}
"""Its floating base has one more position than velocities, and precedes the legs in `q` and `v`."""
PENDULUM = {"robot": find_robot("pendulum"), "initial_position": "[0.2]", **PATIENT}


@pytest.mark.parametrize(
    ("interface", "parameters", "message"),
    [
        ("effort", SOLO, r"HR_KFE at 0\.250000, moving at -?0\.000: active, commanded\nbraked \(released\)\n"),
        # the drives (60 rad/s) settle within a second
        ("position", PENDULUM, r"hinge at 0\.210000, moving at -?0\.000: active, commanded\nbraked \(released\)\n"),
        ("velocity", PENDULUM, r"hinge at \d\.\d+, moving at 0\.100: active, commanded\nbraked \(released\)\n"),
        ("position", SOLO, r"not commanded by position\n"),
    ],
)
def test_a_plant_is_taken_over_and_released(
    take_over: list[str], tmp_path: Path, interface: str, parameters: dict[str, str], message: str
) -> None:
    """The sequence of the ros2_control component, without ROS."""
    states, commands = (f"ipc://{tmp_path}/{name}" for name in ("states", "commands"))
    parameters = {**parameters, "plant_state": states, "joint_commands": commands}
    words = [word for name, value in parameters.items() for word in ("-p", f"{name}:={value}")]
    environment = {**os.environ, "DYN_RUNTIME_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    plant = subprocess.Popen(
        [sys.executable, "-m", "dyn_service.graph.nodes.plant.node", "--ros-args", *words], env=environment
    )
    try:
        with zmq.Context() as context, context.socket(zmq.SUB) as seen:
            seen.subscribe(b"")
            seen.connect(states)
            assert seen.poll(240_000)  # the program waits for a plant that runs, not for one that starts
        program = [*take_over, states, commands, interface]
        ran = subprocess.run(program, capture_output=True, text=True, timeout=240)
    finally:
        plant.terminate()
        plant.wait(240)
    assert re.fullmatch(message, ran.stdout), ran.stdout + ran.stderr
