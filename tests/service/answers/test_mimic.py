"""Joints that follow others over the wire: the same bits as in this process, and robots that are loaded without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dyn_service import QUERIES, AsyncClient, Client, Robot, Server, connect
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, UrdfError
from dyn_service.graph.nodes.plant.factory import PlantParameters
from dyn_service.service.server.app import open_server
from dyn_service.service.server.settings import ServerSettings
from tests.conftest import URDF
from tests.phrases import naming
from tests.service.conftest import WAIT_S, assert_same, following, sample, variants

PANDA = URDF / "panda.urdf"


@pytest.fixture(scope="module")
def robot() -> Robot:
    return following()


@pytest.fixture(scope="module", params=[0, 1], ids=["one thread", "a worker"])
def endpoint(request: pytest.FixtureRequest, robot: Robot) -> Iterator[str]:
    with Server([robot], endpoints=["tcp://127.0.0.1:0"], workers=request.param) as server:
        yield server.endpoints[0]


def answer(robot: Any, query: str, vectors: dict[str, Any], options: dict[str, Any]) -> Any:
    """What is answered, or the code and the words of a refusal."""
    try:
        return getattr(robot, query)(*vectors.values(), **options)
    except DynError as refusal:
        return np.array([hash((refusal.code, str(refusal)))])


@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_those_of_this_process(robot: Robot, endpoint: str, query: str) -> None:
    """To the last bit; where a row has no answer for joints that follow, in the same words."""
    with Client(endpoint, timeout_s=WAIT_S) as client:
        remote = client.robot(robot.name)
        for lead in ((), (5,)):
            vectors, numbers = sample(robot, query, lead)
            for arguments in variants(robot, query, lead):
                local, from_server = (
                    answer(answering, query, vectors, {**numbers, **arguments}) for answering in (robot, remote)
                )
                assert_same(from_server, local)


def test_what_is_refused_says_why(robot: Robot, endpoint: str) -> None:
    with Client(endpoint, timeout_s=WAIT_S) as client:
        remote = client.robot(robot.name)
        with pytest.raises(FailedPreconditionError, match=r"joint '.*' follows '.*'.*\(19b\)"):
            remote.branch_inertias(robot.neutral())


def test_computations_do_the_same(robot: Robot, endpoint: str) -> None:
    q, v, a = np.random.default_rng(0).uniform(-0.1, 0.1, (3, robot.nv))
    with Client(endpoint, timeout_s=WAIT_S) as client:
        remote = client.robot(robot.name)
        local, from_server = (asked_robot.verify(q, v, a) for asked_robot in (robot, remote))
        assert {name: float(x) for name, x in local.items()} == {name: float(x) for name, x in from_server.items()}
        assert max(map(float, local.values())) < 1e-12
        for integrator in ("rk4", "implicit_midpoint", "stick_slip"):
            arguments: dict[str, Any] = {"dt": 1e-3, "steps": 6, "integrator": integrator}
            local_motion, remote_motion = (asked_robot.simulate(q, v, **arguments) for asked_robot in (robot, remote))
            assert local_motion.q.tobytes() == remote_motion.q.tobytes()
            assert local_motion.v.tobytes() == remote_motion.v.tobytes()


def test_a_client_knows_who_follows(robot: Robot, endpoint: str) -> None:
    with Client(endpoint, timeout_s=WAIT_S) as client:
        description = client.robot(robot.name).description
    assert description.joints == robot.description.joints
    assert description.sizes == robot.sizes
    assert sum(joint.mimic is not None for joint in description.joints) == 2


def test_an_asynchronous_client(robot: Robot, endpoint: str) -> None:
    q, v, a = np.full((3, robot.nv), 0.1)

    async def ask() -> None:
        async with AsyncClient(endpoint, timeout_s=WAIT_S) as client:
            remote = await client.robot(robot.name)
            assert_same(await remote.forward_dynamics(q, v, a), robot.forward_dynamics(q, v, a))

    asyncio.run(ask())


@pytest.mark.parametrize("workers", [0, 1])
def test_robots_are_loaded_with_and_without(workers: int) -> None:
    with (
        Server([], endpoints=["tcp://127.0.0.1:0"], allow_load=True, workers=workers) as server,
        Client(server.endpoints[0], timeout_s=WAIT_S) as client,
    ):
        for mimic, nv in ((True, 8), (False, 9)):
            local = Robot.from_urdf(PANDA, mimic=mimic)
            remote = client.load_robot(PANDA, mimic=mimic)
            assert (remote.nv, remote.fingerprint) == (nv, local.fingerprint)
            q, v, a = np.full((3, nv), 0.01)
            assert_same(remote.inverse_dynamics(q, v, a), local.inverse_dynamics(q, v, a))
            client.unload_robot("panda")
        with pytest.raises(InvalidArgumentError, match="mimic must be true or false, found") as excinfo:
            client.load_robot(PANDA, mimic="no")  # type: ignore[arg-type]
        assert excinfo.value.path == "options.mimic"
        text = '<robot name="r"><link name="a"/><link name="b"/><link name="c"/>' + "".join(
            f'<joint name="{name}" type="{kind}"><parent link="a"/><child link="{name}"/>{inner}</joint>'
            for name, kind, inner in (("b", "ball", ""), ("c", "continuous", '<mimic joint="b"/>'))
        )
        with pytest.raises(UrdfError, match=naming("'b'", "spherical")):
            client.load_robot(text + "</robot>")

        async def ask() -> int:
            async with AsyncClient(server.endpoints[0], timeout_s=WAIT_S) as other:
                return (await other.load_robot(PANDA, mimic=False)).nv

        assert asyncio.run(ask()) == 9


def test_connecting_to_either() -> None:
    assert connect(PANDA).nv == 8
    assert connect(PANDA, mimic=False).nv == 9
    with Server([Robot.from_urdf(PANDA)], endpoints=["tcp://127.0.0.1:0"]) as server:
        target = f"{server.endpoints[0]}/panda"
        for mimic in (None, True):
            with connect(target, mimic=mimic, timeout_s=WAIT_S) as robot:
                assert robot.nv == 8
        with pytest.raises(InvalidArgumentError, match=naming("mimic", "joint")) as excinfo:
            connect(target, mimic=False, timeout_s=WAIT_S)
        assert excinfo.value.path == "mimic"


@pytest.mark.parametrize(("mimic", "nv"), [(True, 8), (False, 9)])
def test_a_server_and_a_plant_have_the_option(mimic: bool, nv: int) -> None:
    settings = ServerSettings(robots=[str(PANDA)], endpoints=["tcp://127.0.0.1:0"], prepare=False, mimic=mimic)
    assert open_server(settings, lambda line: None).service.robots["panda"].nv == nv
    assert ServerSettings().mimic is PlantParameters(robot="-").mimic is True
