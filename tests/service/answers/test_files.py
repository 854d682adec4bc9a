"""Robots in MJCF and SDFormat wherever a URDF may be given: in process, served, loaded over a socket, checked,
converted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Client, Robot, Server, UrdfError, connect
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.parsing.files import read_file, read_text, root_of
from dyn_service.service.server.settings import ServerSettings
from tests.cli.test_command_line import Here, Serving, dyn_here, serve  # noqa: F401  # fixtures
from tests.conftest import URDF
from tests.parsing.test_mjcf import MODELS
from tests.parsing.test_sdf import WAYS
from tests.phrases import naming, unnamed
from tests.service.conftest import assert_same

TEXTS = {"mjcf": MODELS["several joints"], "sdf": WAYS["in the parent"], "urdf": (URDF / "scara.urdf").read_text()}


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """Files without a known suffix: the content determines the format."""
    paths_by_name = {name: tmp_path / f"a_robot_of_{name}" for name in TEXTS}
    for name, path in paths_by_name.items():
        path.write_text(TEXTS[name])
    return paths_by_name


@pytest.mark.parametrize("name", TEXTS)
def test_one_proxy(name: str, paths: dict[str, Path]) -> None:
    robot = Robot.from_file(paths[name])
    assert robot.receipt.source == str(paths[name])
    same = [
        Robot.from_text(TEXTS[name]),
        Robot.from_text(TEXTS[name].encode()),
        connect(paths[name]),
        connect(TEXTS[name]),
    ]
    assert {proxy.fingerprint for proxy in same} == {robot.fingerprint}
    assert connect(str(paths[name]), root="floating").joint_names[0] == "root_joint"


def test_what_stands_before_the_root() -> None:
    text = "\ufeff\n<?xml version='1.0'?>\n<!-- <robot> --><!-- more -->\n<?pi <sdf?>\n<mujoco model='m'/>"
    assert root_of(text) == "mujoco"
    assert root_of("") == root_of("<!--") == root_of("< mujoco") == ""
    with pytest.raises(UrdfError, match="there is no <worldbody>"):
        read_text(text)


def test_urdf_is_asked_for_by_name() -> None:
    """`from_urdf` goes on taking nothing else, and says who does."""
    for name, title in {"mjcf": "MuJoCo's MJCF", "sdf": "SDFormat"}.items():
        with pytest.raises(UrdfError, match=naming(title, "Robot.from_file", "URDF")):
            Robot.from_urdf(TEXTS[name])
    with pytest.raises(NotFoundError, match=r"the file no\.xml does not exist"):
        Robot.from_file("no.xml")


def test_served(paths: dict[str, Path], serve: Callable[..., Serving]) -> None:  # noqa: F811
    serving = serve(*paths.values(), "--bind", "tcp://127.0.0.1:0", "--no-prepare", "--workers", "0")
    with Client(serving.endpoints[0], timeout_s=240.0) as client:
        for path in paths.values():
            robot = Robot.from_file(path)
            remote = client.robot(robot.name)
            assert remote.fingerprint == robot.fingerprint
            q = robot.random_configuration(seed=0)
            assert_same(remote.gravity_forces(q), robot.gravity_forces(q))


@pytest.mark.parametrize("name", ["mjcf", "sdf"])
def test_loaded_over_a_socket(name: str, paths: dict[str, Path], tcp_server: Server) -> None:
    robot = Robot.from_file(paths[name])
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        remote = client.load_robot(paths[name])
        assert remote.fingerprint == robot.fingerprint
        v = np.ones(robot.nv)
        q = robot.random_configuration(seed=0)
        assert_same(remote.inverse_dynamics(q, v, v), robot.inverse_dynamics(q, v, v))


def test_notes_of_a_remote_robot_have_the_numbers_of_their_rules(tcp_server: Server) -> None:
    """A mass below 1e-6 kg is a finding; the geometry that dynamics does not use is not."""
    text = (URDF / "pendulum.urdf").read_text("utf-8").replace('name="pendulum"', 'name="light"', 1)
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        for mass in ("1", "1e-7"):
            remote = client.load_robot(re.sub('<mass value="[^"]*"', f'<mass value="{mass}"', text))
            rules = {note.rule for note in remote.description.notes}
            assert ("DYN105" in rules, "" in rules) == (mass == "1e-7", True)
            client.unload_robot("light")


@pytest.mark.parametrize(
    "text",
    [
        "<mujoco><include file='/etc/passwd'/></mujoco>",
        "<mujoco><worldbody><body><include file='secret.xml'/></body></worldbody></mujoco>",
        "<sdf version='1.9'><model name='m'><include><uri>/etc/passwd</uri></include></model></sdf>",
    ],
)
def test_a_server_opens_no_file_for_a_client(text: str, tcp_server: Server) -> None:
    with (
        Client(tcp_server.endpoints[0], timeout_s=240.0) as client,
        pytest.raises(UrdfError, match="given as text cannot open files") as excinfo,
    ):
        client.load_robot(text)
    assert excinfo.value.line == 1


def test_a_server_runs_nothing_for_a_client(tcp_server: Server, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = (
        '<robot name="r" xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:property name="x" '
        f"value=\"${{open('{mark}', 'w')}}\"/><link name=\"${{x}}\"/></robot>"
    )
    with (
        Client(tcp_server.endpoints[0], timeout_s=240.0) as client,
        pytest.raises(UrdfError, match="run xacro first"),
    ):
        client.load_robot(text)
    assert not mark.exists()


@pytest.mark.parametrize("name", TEXTS)
def test_checked(name: str, paths: dict[str, Path], dyn_here: Here) -> None:  # noqa: F811
    status, out, err = dyn_here("check", paths[name], "--json", "--no-kernels")
    assert status == 0, err
    assert json.loads(out)["fingerprint"] == Robot.from_file(paths[name]).fingerprint
    status, out, err = dyn_here("check", paths[name], "x:=1")
    assert (status, out) == (1, "")
    assert unnamed(err, paths[name], "*.xacro") == []


def test_converted(paths: dict[str, Path], tmp_path: Path, dyn_here: Here) -> None:  # noqa: F811
    q: Any = None
    for name, path in paths.items():
        for suffix in ("urdf", "xml", "sdf"):
            out = tmp_path / f"{name}.{suffix}"
            status, output, err = dyn_here("convert", path, out)
            assert status == 0, err
            assert output.splitlines()[-1].startswith(f"{out} is written")
            original, copy = Robot(read_file(path)), Robot(read_file(out))
            assert original.joint_names == copy.joint_names
            q = original.random_configuration(seed=3)
            answer, expected = copy.gravity_forces(q), original.gravity_forces(q)
            assert np.abs(answer - expected).max() <= 1e-12 * max(1.0, np.abs(expected).max())


def test_converting_says_what_is_missing(tmp_path: Path, dyn_here: Here) -> None:  # noqa: F811
    panda, out, other = URDF / "panda.urdf", tmp_path / "panda.sdf", tmp_path / "panda.step"
    joints = URDF.parent / "config" / "panda_joints.yaml"
    notes = json.loads(dyn_here("convert", panda, out, "--joints", joints, "--json")[1])["notes"]
    for joint in [f"panda_joint{k}" for k in range(1, 8)]:
        texts = [note["text"] for note in notes if note["element"] == f"joint '{joint}'"]
        assert any("its friction width" in text for text in texts), joint  # rotors are, as Drake has them
    status, _, err = dyn_here("convert", panda, out)
    assert (status, err) == (1, f"error: {out} already exists: --force overwrites it\n")
    assert dyn_here("convert", panda, out, "--force")[0] == 0
    assert unnamed(dyn_here("convert", panda, other)[2], ".urdf, .mjcf, .xml, .sdf", "urdf, mjcf, sdf") == []
    assert dyn_here("convert", panda, other, "--to", "mjcf")[0] == 0
    assert other.read_text().splitlines()[1] == '<mujoco model="panda">'


def test_where_files_are_named_in_settings(paths: dict[str, Path]) -> None:
    from dyn_service.service.server.app import open_server

    settings = ServerSettings(
        robots=list(map(str, paths.values())), prepare=False, endpoints=["tcp://127.0.0.1:0"], workers=0
    )
    server = open_server(settings, lambda line: None)
    try:
        assert set(server.service.robots) == {Robot.from_file(path).name for path in paths.values()}
    finally:
        server.stop()


def test_arguments_of_what_takes_none() -> None:
    with pytest.raises(InvalidArgumentError, match="takes no arguments") as excinfo:
        read_file(URDF / "panda.urdf", arguments={"x": "1"})
    assert excinfo.value.path == "arguments"
