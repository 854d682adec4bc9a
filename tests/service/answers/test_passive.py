"""What joints do by themselves over the wire: the same bits as in this process, with and without, from every client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dyn_service import QUERIES, AsyncClient, Client, Robot, Server, Wrench
from dyn_service.api.queries import COMPUTATIONS
from dyn_service.cli.main import app
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.service.server.app import open_server
from dyn_service.service.server.settings import ServerSettings
from tests.conftest import URDF
from tests.passive import restless
from tests.service.conftest import WAIT_S, assert_same, sample

CHOOSING = [name for name, row in QUERIES.items() if row.passive_option is not None]


@pytest.fixture(scope="module")
def robot() -> Robot:
    return restless(URDF / "cart_pendulum.urdf", 1)


@pytest.fixture(scope="module", params=[0, 1], ids=["one thread", "a worker"])
def endpoint(request: pytest.FixtureRequest, robot: Robot) -> Iterator[str]:
    with Server([robot], endpoints=["tcp://127.0.0.1:0"], workers=request.param) as server:
        yield server.endpoints[0]


def same_motion(motion: Any, expected: Any) -> bool:
    """To the last bit."""
    return motion.q.tobytes() == expected.q.tobytes() and motion.v.tobytes() == expected.v.tobytes()


def test_every_row_on_a_state_has_the_choice_where_it_matters() -> None:
    assert len(CHOOSING) == 28
    assert [name for name, row in COMPUTATIONS.items() if row.passive_option] == [
        "verify",
        "simulate",
        "contact_dynamics",
        "independent_motion",
        "simulate_rheonomic",
        "constraint_force_causes",
        "ground_reactions",
    ]


def test_a_client_knows_what_acts(robot: Robot, endpoint: str) -> None:
    with Client(endpoint, timeout_s=WAIT_S) as client:
        parts = client.robot("cart_pendulum").description.passive
    assert parts == robot.description.passive == ("damping", "friction", "armature", "springs")
    assert robot.without_passive.description.passive == ()


@pytest.mark.parametrize("query", CHOOSING)
def test_both_answers_are_those_of_this_process(robot: Robot, endpoint: str, query: str) -> None:
    with Client(endpoint, timeout_s=WAIT_S) as client:
        remote = client.robot("cart_pendulum")
        for lead in ((), (5,)):
            vectors, numbers = sample(robot, query, lead)
            with_passive = getattr(robot, query)(*vectors.values(), **numbers)
            bare = getattr(robot.without_passive, query)(*vectors.values(), **numbers)
            for passive, expected in ((True, with_passive), (False, bare), (False, bare)):
                assert_same(getattr(remote, query)(*vectors.values(), **numbers, passive=passive), expected)
                assert_same(getattr(robot, query)(*vectors.values(), **numbers, passive=passive), expected)


def test_computations_do_the_same(robot: Robot, endpoint: str) -> None:
    q, v, a = np.random.default_rng(0).uniform(-1.0, 1.0, (3, 2))
    functions: tuple[Any, ...] = (None, lambda t, q, v: -v)
    with Client(endpoint, timeout_s=WAIT_S) as client:
        remote = client.robot("cart_pendulum")
        for passive in (True, False):
            local, from_server = (asked_robot.verify(q, v, a, passive=passive) for asked_robot in (robot, remote))
            assert {name: float(x) for name, x in local.items()} == {name: float(x) for name, x in from_server.items()}
            for integrator in ("rk4", "implicit_midpoint", "adaptive"):
                for tau in functions:
                    arguments: dict[str, Any] = {"dt": 1e-2, "steps": 6, "integrator": integrator, "passive": passive}
                    assert same_motion(remote.simulate(q, v, tau, **arguments), robot.simulate(q, v, tau, **arguments))
            prescribed = {robot.joint_names[0]: np.full((5, 3), 0.1)}
            arguments = {"dt": 1e-2, "steps": 4, "passive": passive}
            expected = robot.simulate_rheonomic(prescribed, [0.2], [0.3], **arguments)
            assert same_motion(remote.simulate_rheonomic(prescribed, [0.2], [0.3], **arguments), expected)


def test_an_asynchronous_client(robot: Robot, endpoint: str) -> None:
    q, v, a = np.full((3, 2), 0.4)

    async def ask() -> None:
        async with AsyncClient(endpoint, timeout_s=WAIT_S) as client:
            remote = await client.robot("cart_pendulum")
            for passive in (True, False):
                torque = await remote.inverse_dynamics(q, v, a, passive=passive)
                assert_same(torque, robot.inverse_dynamics(q, v, a, passive=passive))
                motion = await remote.simulate(q, v, dt=1e-2, steps=3, passive=passive)
                assert same_motion(motion, robot.simulate(q, v, dt=1e-2, steps=3, passive=passive))

    asyncio.run(ask())


def test_verification_beside_an_answer_is_of_who_answers(robot: Robot, endpoint: str) -> None:
    q, v, a = np.full((3, 2), 0.4)
    command = ["call", "inverse_dynamics", "--server", endpoint, "--timeout", str(WAIT_S)]
    words = [f"{name}={x.tolist()}".replace(" ", "") for name, x in (("q", q), ("v", v), ("a", a))]
    for option_words, expected in ((), robot), (("passive=false",), robot.without_passive):
        done = CliRunner().invoke(app, [*command, *words, *option_words, "verify=true"])
        assert done.exit_code == 0, done.output
        answer = json.loads(done.stdout)
        assert answer["tau"] == expected.inverse_dynamics(q, v, a).tolist()
        assert max(answer["residuals"].values()) < 1e-12


def test_a_wrong_choice_is_refused_with_its_path(endpoint: str) -> None:
    q = np.zeros(2)
    with Client(endpoint, timeout_s=WAIT_S) as client:
        remote = client.robot("cart_pendulum")
        for ask in (
            lambda: remote.mass_matrix(q, passive="no"),  # type: ignore[arg-type]
            lambda: remote.simulate(q, q, dt=1e-3, steps=1, passive=0.5),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidArgumentError, match="passive must be true or false, found") as excinfo:
                ask()
            assert excinfo.value.path == "options.passive"


def test_what_has_no_answer_without_its_rotor_says_so(ipc_endpoint: str) -> None:
    text = (
        '<robot name="r"><link name="a"/><link name="b"/>'
        '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint></robot>'
    )
    with (
        Server([restless(text, 0, {"armature"})], endpoints=[ipc_endpoint]),
        Client(ipc_endpoint, timeout_s=WAIT_S) as client,
    ):
        remote = client.robot("r")
        assert np.isfinite(remote.forward_dynamics([0.1], [0.2], [3.0])).all()
        with pytest.raises(FailedPreconditionError, match="has no answer for robot 'r'"):
            remote.forward_dynamics([0.1], [0.2], [3.0], passive=False)


def test_a_push_on_the_bare_robot(robot: Robot, endpoint: str) -> None:
    """A kernel of its own again: with wrenches, without what joints do."""
    q = np.full(2, 0.2)
    push = Wrench(robot.link_names[-1], force=(1.0, 2.0, 3.0), frame="world")
    with Client(endpoint, timeout_s=WAIT_S) as client:
        torque = client.robot("cart_pendulum").inverse_dynamics(q, q, q, wrenches=push, passive=False)
    assert_same(torque, robot.without_passive.inverse_dynamics(q, q, q, wrenches=push))


def joint_file(folder: Path, robot: str = "cart_pendulum", **joints: Any) -> str:
    path = folder / f"{robot}.yaml"
    path.write_text(json.dumps({"robot": robot, "joints": joints}))
    return str(path)


def test_a_server_takes_joint_files(tmp_path: Path) -> None:
    urdf = str(URDF / "cart_pendulum.urdf")
    names = Robot.from_urdf(urdf).joint_names
    file = joint_file(tmp_path, **{names[0]: {"damping": 0.25}})
    settings = ServerSettings(robots=[urdf], joints=[file], endpoints=["tcp://127.0.0.1:0"], prepare=False)
    server = open_server(settings, lambda line: None)
    assert server.service.robots["cart_pendulum"].tree.passive.damping.tolist() == [0.25, 0.0]
    for joints, message in (
        ([file, file], "are both for robot 'cart_pendulum'"),
        ([joint_file(tmp_path, "scara")], "is for robot 'scara', which is not served"),
    ):
        with pytest.raises(InvalidArgumentError, match=message) as excinfo:
            open_server(ServerSettings(robots=[urdf], joints=joints, prepare=False), lambda line: None)
        assert excinfo.value.path == "joints"
