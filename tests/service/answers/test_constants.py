"""Queries without inputs, over the wire: what is the robot's alone, the same at every state."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from dyn_service import AsyncClient, Client, InvalidArgumentError, NotFoundError, Robot, RobotQueries, Server
from dyn_service.cli.calling import ask
from dyn_service.service.client.flows import Ask
from tests.phrases import naming
from tests.service.conftest import array, assert_same


def test_constraint_basis_of_remote_robots(tcp_server: Server, panda: Robot) -> None:
    """The same call, and the same numbers, for every joint: moving, sliding and fixed."""

    async def ask_all() -> list[np.ndarray]:
        async with AsyncClient(tcp_server.endpoints[0], timeout_s=240.0) as client:
            robot = await client.robot("panda")
            with pytest.raises(NotFoundError, match=naming("'panda'", "'nose'", "panda_joint1")):
                await robot.constraint_basis("nose")
            return [await robot.constraint_basis(joint) for joint in robot.all_joint_names]

    awaited = asyncio.run(ask_all())
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        remote: RobotQueries = client.robot("panda")
        widths = set()
        for joint, waited in zip(panda.all_joint_names, awaited, strict=True):
            expected = panda.constraint_basis(joint)
            widths.add(expected.shape)
            assert_same(remote.constraint_basis(joint), expected)
            assert_same(waited, expected)
        assert widths == {(6, 5), (6, 6)}
        with pytest.raises(NotFoundError, match=naming("'panda'", "'nose'", "panda_joint1")):
            remote.constraint_basis("nose")


def test_topology_of_a_remote_robot(tcp_server: Server, panda: Robot) -> None:
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        topology = client.robot("panda").topology(bodies="links")
        assert_same(topology, panda.topology(bodies="links"))
        assert topology.branch_of("panda_hand") == panda.topology(bodies="links").branch_of("panda_hand")
        assert topology.parent_of("panda_leftfinger") == "panda_hand"


def test_operators_of_a_remote_robot_assemble_on_the_client(tcp_server: Server, panda: Robot) -> None:
    q = np.linspace(-0.5, 0.5, 9)
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        remote = client.robot("panda").influence_operators(q, operator="beta", frame="world").dense()
    for block, expected in zip(
        remote, panda.influence_operators(q, operator="beta", frame="world").dense(), strict=True
    ):
        np.testing.assert_array_equal(block, expected)


def test_command_line_asks_them(tcp_server: Server, panda: Robot) -> None:
    answer = ask(tcp_server.endpoints[0], "constraint_bases", "panda", {"joints": ["panda_joint1"]}, 20.0, 0.0, None)
    assert answer["joints"] == ["panda_joint1"]
    assert answer["directions"] == [5.0]
    np.testing.assert_array_equal(np.array(answer["basis"])[0, :, :5], panda.constraint_basis("panda_joint1"))
    assert ask(tcp_server.endpoints[0], "topology", "panda", {}, 20.0, 0.0, None)["nilpotency"] == 8.0


def test_nothing_to_verify_and_no_inputs(tcp_server: Server, panda: Robot) -> None:
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        head = client.ask(Ask("topology", "panda", {}, {"verify": True}, panda.fingerprint))
        assert head.error == {
            "code": "INVALID_ARGUMENT",
            "message": "topology takes no state, so there is nothing to verify",
            "path": "options.verify",
            "type": "InvalidArgumentError",
        }
        head = client.ask(Ask("topology", "panda", {"q": array([0.0])}, {}, panda.fingerprint))
        assert head.error["message"] == "topology has no input 'q'; there are none"
    with pytest.raises(InvalidArgumentError, match=naming("topology", "'q'")):
        panda.evaluate("topology", {"q": [0.0]})
