"""One suite over `Robot`, `Client` and `AsyncClient`: the same answers to the last bit, the same errors."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import QUERIES, AsyncClient, AsyncRemoteRobot, Client, DynError, Robot, RobotQueries, Server, Wrench
from tests.phrases import naming
from tests.service.conftest import TRANSPORTS, assert_same, make_transport, sample, variants
from tests.wide import wide

QUERY_NAMES = tuple(QUERIES)
SLOPES = tuple(name for name in QUERIES if name.endswith(("_derivatives", "_hessian")))
"""Asked of the pendulum, by one kind of client: their kernels take longest to compile, in each of their forms."""


CLIENTS = ("Client", "AsyncClient")
KEPT = {
    (TRANSPORTS[(place + k) % len(TRANSPORTS)], client, query)
    for place, query in enumerate(QUERY_NAMES)
    for k, client in enumerate(CLIENTS)
}
EACH = wide(
    itertools.product(TRANSPORTS, CLIENTS, [name for name in QUERY_NAMES if name not in SLOPES]), KEPT.__contains__
)
"""Each query by each kind of client, over one transport each."""


class _Awaited:
    """An asynchronous robot behind plain calls, each run to its end in the client's event loop."""

    def __init__(self, robot: AsyncRemoteRobot, run: Callable[[Any], Any]) -> None:
        self._robot = robot
        self._run = run

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._robot, name)
        return (lambda *args, **kwargs: self._run(attribute(*args, **kwargs))) if name in QUERIES else attribute


@pytest.fixture(scope="module", params=TRANSPORTS)
def served(request: pytest.FixtureRequest, panda: Robot, pendulum: Robot, cart: Robot) -> Iterator[dict[str, Any]]:
    """One server for all tests of a transport, by the arguments of its clients."""
    with tempfile.TemporaryDirectory(prefix="dyn-") as folder:
        transport = make_transport(request.param, Path(folder))
        robots = [panda, pendulum, cart]
        with Server(robots, endpoints=[transport.endpoint], **transport.server_options) as server:
            yield {"endpoint": server.endpoints[0], "timeout_s": 240.0, **transport.client_options}


@pytest.fixture(scope="module", params=CLIENTS)
def make_robot(request: pytest.FixtureRequest, served: dict[str, Any]) -> Iterator[Callable[[str], Any]]:
    """Each robot of the server through each kind of client."""
    if request.param == "Client":
        with Client(**served) as client:
            yield client.robot
    else:
        with asyncio.Runner() as runner:
            client = AsyncClient(**served)
            yield lambda name: _Awaited(runner.run(client.robot(name)), runner.run)
            runner.run(client.close())


@pytest.fixture(scope="module")
def remote(make_robot: Callable[[str], Any]) -> Any:
    return make_robot("panda")


@pytest.fixture(scope="module")
def remote_cart(make_robot: Callable[[str], Any]) -> Any:
    return make_robot("cart_pendulum")


def assert_same_answers(remote: Any, local: Robot, query: str) -> None:
    for lead in ((), (4,), (3, 1, 4), (0,)):
        vectors, numbers = sample(local, query, lead)
        for arguments in variants(local, query, lead):
            expected = getattr(local, query)(*vectors.values(), **{**numbers, **arguments})
            answer = getattr(remote, query)(*vectors.values(), **{**numbers, **arguments})
            assert_same(answer, expected)


@pytest.mark.parametrize(("served", "make_robot", "query"), EACH, indirect=["served", "make_robot"])
def test_answers_are_the_same_to_the_last_bit(remote_cart: Any, cart: Robot, query: str) -> None:
    assert_same_answers(remote_cart, cart, query)


def test_directions_in_which_the_panda_moves(remote: Any, panda: Robot) -> None:
    """The cart moves in few."""
    q = np.random.default_rng(0).uniform(-1.0, 1.0, (4, panda.nv))
    for directions in (None, ["x", "y", "rz"]):
        arguments = {"link": panda.link_names[-1], "directions": directions}
        assert_same(remote.operational_space(q, **arguments), panda.operational_space(q, **arguments))


@pytest.mark.parametrize("query", SLOPES)
def test_derivatives_are_the_same_to_the_last_bit(served: dict[str, Any], pendulum: Robot, query: str) -> None:
    with Client(**served) as client:
        assert_same_answers(client.robot(pendulum.name), pendulum, query)


@pytest.mark.parametrize(("served", "make_robot", "query"), EACH, indirect=["served", "make_robot"])
def test_second_call_is_like_the_first(remote_cart: Any, cart: Robot, query: str) -> None:
    """The first call makes the kernel and goes another way through the server than those that follow."""
    for seed in range(4):
        vectors, numbers = sample(cart, query, seed=seed)
        expected = getattr(cart, query)(*vectors.values(), **numbers)
        assert_same(getattr(remote_cart, query)(*vectors.values(), **numbers), expected)
        assert_same(getattr(remote_cart, query)(**vectors, **numbers), expected)


def test_inputs_of_other_types_mean_the_same_numbers(remote: Any, panda: Robot) -> None:
    q, v, a = ([0] * 9, np.arange(9, dtype=np.int32), tuple(np.float32([0.5] * 9)))
    for _ in range(2):
        assert_same(remote.inverse_dynamics(q, v, a), panda.inverse_dynamics(q, v, a))
    strided = np.arange(18.0)[::2]
    assert_same(remote.gravity_forces(strided), panda.gravity_forces(strided))


def test_gains_may_be_numbers_or_vectors(remote: Any, panda: Robot) -> None:
    q = np.linspace(-0.5, 0.5, 9)
    for kp in (100.0, 100, np.float64(100.0), np.full(9, 100.0), [100.0] * 9):
        torque = remote.computed_torque(q, q, q, q, q, kp=kp, kd=20.0)
        assert_same(torque, panda.computed_torque(q, q, q, q, q, kp=100.0, kd=20.0))


def test_answers_can_be_written_to(remote: Any) -> None:
    for _ in range(2):
        remote.gravity_forces(np.zeros(9))[0] = 1.0
        remote.mass_matrix(np.zeros((2, 9)))[0, 0, 0] = 1.0


def test_results_unpack(remote: Any, panda: Robot) -> None:
    q, v = np.zeros(panda.nq), np.ones(panda.nv)
    for robot in (remote, panda):
        next_q, next_v = robot.step(q, v, 0 * v, dt=1e-3)
        rotation, position = robot.link_poses(q)
        assert (next_q.shape, next_v.shape, rotation.shape[1:], position.shape[1:]) == (q.shape, v.shape, (3, 3), (3,))


def test_answers_are_copied_into_given_arrays(remote: Any, panda: Robot) -> None:
    q, v, tau = np.random.default_rng(0).normal(size=(3, 4, panda.nv))
    for robot in (panda, remote):
        out = np.empty((4, panda.nv))
        assert robot.forward_dynamics(q, v, tau, out=out, workers=2) is out
        assert out.tobytes() == panda.forward_dynamics(q, v, tau).tobytes()
        place = np.empty((4, len(panda.link_names), 3))
        poses = robot.link_poses(q, out=(None, place))
        assert poses.position is place
        assert_same(poses, panda.link_poses(q))
        links = [panda.link_names[3]]
        assert_same(robot.jacobians(q, links=links), panda.jacobians(q, links=links))
        with pytest.raises(DynError, match=naming("(4, 3)", f"(4, {panda.nv})")) as excinfo:
            robot.forward_dynamics(q, v, tau, out=np.empty((4, 3)))
        assert excinfo.value.path == "out"
        with pytest.raises(DynError, match=naming("workers", "0")):
            robot.forward_dynamics(q, v, tau, workers=0)


def test_properties_are_those_of_the_robot(remote: Any, panda: Robot) -> None:
    for name in ("name", "nq", "nv", "joint_names", "all_joint_names", "link_names", "fingerprint"):
        assert getattr(remote, name) == getattr(panda, name), name
    # Kernels were made since the client asked.
    local, from_server = panda.description.to_dict(), remote.description.to_dict()
    assert {**from_server, "certificates": None} == {**local, "certificates": None}
    assert from_server["certificates"].items() <= local["certificates"].items()


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "axes that do not broadcast": (
        "inverse_dynamics",
        {"q": np.zeros((3, 9)), "v": np.zeros((4, 9)), "a": np.zeros(9)},
    ),
    "short q": ("gravity_forces", {"q": np.zeros(3)}),
    "number for q": ("gravity_forces", {"q": 1.0}),
    "axes that do not broadcast at the end": ("mass_matrix", {"q": np.zeros((9, 2))}),
    "unknown method": (
        "forward_dynamics",
        {"q": np.zeros(9), "v": np.zeros(9), "tau": np.zeros(9), "method": "guess"},
    ),
    "unknown frame": (
        "constraint_forces",
        {"q": np.zeros(9), "v": np.zeros(9), "tau": np.zeros(9), "frame": "moon"},
    ),
    "unknown joint": (
        "constraint_forces",
        {"q": np.zeros(9), "v": np.zeros(9), "tau": np.zeros(9), "joints": ["elbow"]},
    ),
    "joints as a text": (
        "constraint_forces",
        {"q": np.zeros(9), "v": np.zeros(9), "tau": np.zeros(9), "joints": "elbow"},
    ),
    "unknown link": (
        "inverse_dynamics",
        {"q": np.zeros(9), "v": np.zeros(9), "a": np.zeros(9), "wrenches": Wrench("tail")},
    ),
    "unknown wrench frame": (
        "inverse_dynamics",
        {"q": np.zeros(9), "v": np.zeros(9), "a": np.zeros(9), "wrenches": Wrench("panda_hand", frame="moon")},
    ),
    "gravity of two numbers": ("gravity_forces", {"q": np.zeros(9), "gravity": [0.0, 1.0]}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_are_the_same(remote: Any, panda: Robot, fault: str) -> None:
    query, inputs = FAULTS[fault]
    with pytest.raises(DynError) as expected:
        getattr(panda, query)(**inputs)
    for _ in range(2):
        with pytest.raises(DynError) as excinfo:
            getattr(remote, query)(**inputs)
        assert type(excinfo.value) is type(expected.value)
        assert excinfo.value.to_wire() == expected.value.to_wire()


@pytest.mark.parametrize(
    "value", ["text", [None] * 9, [1j] * 9, [[1.0], [1.0, 2.0]], object()], ids=lambda v: str(v)[:12]
)
def test_inputs_that_are_no_numbers_are_refused_with_their_path(remote: Any, panda: Robot, value: Any) -> None:
    for robot in (panda, remote):
        with pytest.raises(DynError) as excinfo:
            robot.gravity_forces(value)
        assert (excinfo.value.code, excinfo.value.path) == ("INVALID_ARGUMENT", "inputs.q")


def test_truth_values_are_no_numbers_on_the_wire(remote: Any) -> None:
    with pytest.raises(ValueError, match="q must be real numbers, found list") as excinfo:
        remote.gravity_forces([True] * 9)
    assert excinfo.value.path == "inputs.q"


def test_not_finite_numbers_stay_here_and_are_refused_there(remote: Any, panda: Robot) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        q = np.zeros(9)
        q[3] = bad
        assert not np.isfinite(panda.gravity_forces(q)).all()
        for _ in range(2):
            with pytest.raises(ValueError, match=naming("q", re.compile("found -?(nan|inf) at"))) as excinfo:
                remote.gravity_forces(q)
            assert excinfo.value.path == "inputs.q"


def test_huge_numbers_are_refused_where_the_answer_overflows(remote: Any, panda: Robot) -> None:
    q, v, a = np.zeros((3, 9))
    a[0] = 1e305
    expected = panda.inverse_dynamics(q, v, a)
    assert np.isfinite(expected).all()
    v[0] = 1e305
    for _ in range(2):
        assert_same(remote.inverse_dynamics(q, np.zeros(9), a), expected)
        with pytest.raises(
            ValueError, match=naming("bias_forces", re.compile(r"joint '\w+' = "), re.compile("'panda_joint1' = 1e"))
        ):
            remote.bias_forces(q, v)


@pytest.mark.parametrize("query", QUERY_NAMES)
def test_methods_have_the_same_signature(query: str) -> None:
    signature = inspect.signature(getattr(RobotQueries, query))
    assert inspect.signature(getattr(AsyncRemoteRobot, query)) == signature
    assert getattr(AsyncRemoteRobot, query).__doc__ == getattr(RobotQueries, query).__doc__


def test_method_of_a_remote_robot_takes_what_is_declared(tcp_server: Server) -> None:
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        robot = client.robot("panda")
        for query in QUERIES:
            parameters = inspect.signature(getattr(RobotQueries, query)).parameters
            remote_parameters = inspect.signature(getattr(robot, query)).parameters
            assert list(remote_parameters) == [name for name in parameters if name != "self"]
            assert getattr(robot, query).__doc__ == getattr(RobotQueries, query).__doc__
        with pytest.raises(TypeError):
            robot.gravity_forces()
        with pytest.raises(TypeError):
            robot.gravity_forces(np.zeros(9), speed=1)


def test_threads_may_share_a_client(tcp_server: Server, panda: Robot) -> None:
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client, ThreadPoolExecutor(4) as pool:
        robot = client.robot("panda")
        states = np.random.default_rng(0).uniform(-1, 1, (200, 9))
        for state, forces in zip(states, pool.map(robot.gravity_forces, states), strict=True):
            assert_same(forces, panda.gravity_forces(state))


def test_many_calls_in_flight_find_their_answers(tcp_server: Server, panda: Robot) -> None:
    panda.prepare(["gravity_forces", "mass_matrix"])  # calls that wait for a compiler are limited to 128
    states = np.random.default_rng(0).uniform(-1, 1, (300, 9))

    async def ask() -> list[Any]:
        async with AsyncClient(tcp_server.endpoints[0], timeout_s=240.0) as client:
            robot = await client.robot("panda")
            calls = [robot.gravity_forces(s) if k % 2 else robot.mass_matrix(s) for k, s in enumerate(states)]
            return await asyncio.gather(*calls)

    for k, (state, forces) in enumerate(zip(states, asyncio.run(ask()), strict=True)):
        assert_same(forces, panda.gravity_forces(state) if k % 2 else panda.mass_matrix(state))
