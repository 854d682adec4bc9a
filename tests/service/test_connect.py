"""`connect`: a URDF here or a robot there, by one name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import InvalidArgumentError, NotFoundError, RemoteRobot, Robot, Server, UnavailableError, connect
from tests.conftest import URDF
from tests.phrases import naming, unnamed
from tests.service.conftest import Transport, assert_same

Q = np.array([0.5])


@pytest.mark.parametrize(
    "target", [URDF / "pendulum.urdf", str(URDF / "pendulum.urdf"), (URDF / "pendulum.urdf").read_text()]
)
def test_a_description_is_a_robot_in_this_process(target: Any, pendulum: Robot) -> None:
    robot = connect(target)
    assert isinstance(robot, Robot)
    assert_same(robot.gravity_forces(Q), pendulum.gravity_forces(Q))
    robot.close()


@pytest.mark.parametrize("target", [URDF / "panda.urdf", (URDF / "panda.urdf").read_text()])
def test_a_joint_file_goes_with_a_description(target: Any) -> None:
    joints = URDF.parent / "config" / "panda_joints.yaml"
    robot = connect(target, joints=joints)
    assert robot.fingerprint == Robot.from_urdf(URDF / "panda.urdf", joints=joints).fingerprint
    assert robot.fingerprint != connect(target).fingerprint


def test_a_joint_file_is_none_of_a_servers_robot(server: Server) -> None:
    with pytest.raises(InvalidArgumentError, match="joints go with a file") as excinfo:
        connect(f"{server.endpoints[0]}/pendulum", joints="joints.yaml")
    assert excinfo.value.path == "joints"


def test_names_order_the_arrays_of_a_servers_robot(server: Server, transport: Transport, panda: Robot) -> None:
    target, names = f"{server.endpoints[0]}/panda", [*reversed(panda.joint_names)]
    q = np.linspace(0.1, 0.4, panda.nv)
    with connect(target, names=names, timeout_s=20.0, **transport.client_options) as robot:  # type: ignore[attr-defined]
        assert robot.joint_names == tuple(names)
        assert_same(robot.gravity_forces(q[::-1]), panda.gravity_forces(q)[::-1])
    with pytest.raises(NotFoundError, match="panda_joint8"):
        connect(target, names=["panda_joint8", *names[1:]], timeout_s=20.0, **transport.client_options)


def test_names_are_none_of_a_robot_in_this_process() -> None:
    with pytest.raises(InvalidArgumentError, match="names go with the robot of a server") as excinfo:
        connect(URDF / "pendulum.urdf", names=["joint"])
    assert excinfo.value.path == "names"


def test_an_endpoint_is_a_robot_of_a_server(server: Server, transport: Transport, pendulum: Robot) -> None:
    robot = connect(f"{server.endpoints[0]}/pendulum", timeout_s=20.0, **transport.client_options)
    assert isinstance(robot, RemoteRobot)
    with robot:
        assert_same(robot.gravity_forces(Q), pendulum.gravity_forces(Q))
    with pytest.raises(Exception, match="the client is closed"):
        robot.gravity_forces(Q)


def test_a_robot_that_shares_its_connection_leaves_it_open(server: Server, transport: Transport) -> None:
    target = f"{server.endpoints[0]}/pendulum"
    with connect(target, timeout_s=20.0, **transport.client_options) as robot:  # type: ignore[attr-defined]
        robot.with_timeout(10.0).close()
        robot.client.robot("panda").close()
        robot.gravity_forces(Q)


@pytest.mark.parametrize("slash", ["", "/"])
def test_an_endpoint_without_a_robot_names_those_there(server: Server, transport: Transport, slash: str) -> None:
    (endpoint,) = server.endpoints
    with pytest.raises(InvalidArgumentError) as excinfo:
        connect(endpoint + slash, timeout_s=20.0, **transport.client_options)
    assert unnamed(excinfo.value, "target", endpoint, "panda, pendulum", f"{endpoint}/ROBOT") == []
    assert excinfo.value.path == "target"


def test_an_empty_server() -> None:
    with (
        Server([], endpoints=["tcp://127.0.0.1:0"]) as server,
        pytest.raises(InvalidArgumentError, match="it serves no robot"),
    ):
        connect(server.endpoints[0], timeout_s=20.0)


def test_no_server_and_no_robot() -> None:
    with pytest.raises(InvalidArgumentError, match=naming("tcp://127.0.0.1:9/ROBOT")):
        connect("tcp://127.0.0.1:9", timeout_s=0.05)
    with pytest.raises(UnavailableError, match=naming("tcp://127.0.0.1:9", "0.05 s")):
        connect("tcp://127.0.0.1:9/panda", timeout_s=0.05)


def test_unknown_robot(server: Server, transport: Transport) -> None:
    with pytest.raises(NotFoundError, match=naming("'r2d2'", "panda, pendulum")):
        connect(f"{server.endpoints[0]}/r2d2", timeout_s=20.0, **transport.client_options)


@pytest.mark.parametrize("target", ["http://127.0.0.1/panda", "udp://127.0.0.1:1/panda"])
def test_unknown_scheme(target: str) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("target", "URDF", "tcp://", "ipc://")):
        connect(target)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        connect(tmp_path / "nowhere.urdf")


def test_a_robot_of_a_server_has_its_own_root(scara_floating: str) -> None:
    with connect(scara_floating) as robot, connect(scara_floating, root="floating") as same:
        assert robot.nq == same.nq == 11
    for root in ("fixed", "planar"):
        with pytest.raises(InvalidArgumentError, match=f"'floating', found '{root}'"):
            connect(scara_floating, root=root)  # type: ignore[arg-type]


@pytest.fixture
def scara_floating() -> Iterator[str]:
    robot = Robot.from_urdf(URDF / "scara.urdf", root="floating")
    with Server([robot], endpoints=["tcp://127.0.0.1:0"]) as serving:
        yield f"{serving.endpoints[0]}/{robot.name}"
