"""Requests with joint names: arrays are in the order of the names, with bit-identical numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest
from typer.testing import CliRunner

from dyn_service import AsyncClient, Client, Contact, InvalidArgumentError, NotFoundError, Robot, Server, Wrench
from dyn_service.api.queries import COMPUTATIONS, QUERIES
from dyn_service.api.spec import Row
from dyn_service.cli.main import app
from dyn_service.errors import DynError, FailedPreconditionError
from dyn_service.model.order import Order
from dyn_service.service.client import flows
from dyn_service.service.server.answering.service import Service
from tests.conftest import URDF
from tests.counting import calls_of
from tests.service.conftest import array, floating, following, sample, variants
from tests.wide import wide

ORDERED = [name for name, row in QUERIES.items() if row.has_joint_order]
_ROBOTS: dict[str, Robot] = {}


def robot_of(root: Any) -> Robot:
    """The SCARA robot; "floating": the pendulum on a cart on a base that floats; "following": some joints follow."""
    if root not in _ROBOTS:
        robots = {"following": following, "floating": floating}.get(root)
        _ROBOTS[root] = Robot.from_urdf(URDF / "scara.urdf") if robots is None else robots()
    return _ROBOTS[root]


def shuffled(robot: Robot, seed: int = 5) -> list[str]:
    """The joints in a random order, the root joint not first."""
    names = list(robot.joint_names)
    order = np.random.default_rng(seed).permutation(len(names))
    reordered_names = [names[k] for k in order]
    return reordered_names if reordered_names[0] != names[0] else reordered_names[::-1]


def places(robot: Robot, names: list[str]) -> dict[str, list[int]]:
    """Indices of the joints' entries in the robot's arrays, by dimension. Does not use `Order`, which it tests."""
    configuration, indices = robot.configuration, {"nq": [], "nv": [], "nm": [], "nr": []}
    for name in names:
        k = configuration.names.index(name)
        indices["nq"] += range(configuration.q_slices[k].start, configuration.q_slices[k].stop)
        indices["nv"] += range(configuration.v_slices[k].start, configuration.v_slices[k].stop)
    moving = [joint for joint in robot.description.joints if joint.type != "fixed"]
    ways = {
        name: part.stop - part.start for name, part in zip(configuration.names, configuration.v_slices, strict=True)
    }
    of_joint = [joint.name for joint in moving for _ in range(ways.get(joint.name, 1))]
    for name in (*names, *(joint.name for joint in moving if joint.mimic is not None)):
        indices["nm"].append([joint.name for joint in moving].index(name))
        indices["nr"] += [k for k, other in enumerate(of_joint) if other == name]
    return indices


def inputs_in_order(robot: Robot, row: Row, values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Inputs in the order of the names."""
    indices, inputs = places(robot, names), {}
    for name, value in values.items():
        spec = row.inputs.get(name)
        is_array = spec is not None and spec.kind != "wrenches" and np.ndim(value) > 0
        inputs[name] = reordered(np.asarray(value), spec.shape, indices) if is_array and spec is not None else value
    return inputs


def reordered(value: Any, shape: tuple[str | int, ...], indices: dict[str, list[int]]) -> Any:
    for axis, symbol in enumerate(shape, start=-len(shape)):
        if symbol in indices:
            value = np.take(value, indices[str(symbol)], axis=axis)
    return value


def assert_answers(robot: Robot, row: Row, answer: Any, expected: Any, names: list[str]) -> None:
    """Checks that the answer is bit-identical to the expected one in the order of the names."""
    indices = places(robot, names)
    if row.result_type is None:
        pairs = dict.fromkeys(row.outputs, (answer, expected))
    else:
        pairs = {name: (getattr(answer, name), getattr(expected, name)) for name in row.result_names}
    for name, (actual, expected_part) in pairs.items():
        if name in row.outputs:
            expected_part = reordered(expected_part, row.outputs[name].shape, indices)
            assert np.asarray(actual).shape == np.asarray(expected_part).shape
            assert np.asarray(actual).tobytes() == np.ascontiguousarray(expected_part).tobytes(), name
        else:
            label = row.labels[name]
            expected_part = (
                tuple(expected_part[k] for k in indices[label.dimension])
                if label.dimension in indices
                else expected_part
            )
            assert tuple(actual) == tuple(expected_part)


ROOTS = ("fixed", "floating", "following")


@pytest.fixture(params=wide(ROOTS, {"floating", "following"}.__contains__), scope="module")
def robot(request: pytest.FixtureRequest) -> Robot:
    return robot_of(request.param)


@pytest.fixture(scope="module")
def endpoint(robot: Robot) -> Iterator[str]:
    with Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server:
        yield server.endpoints[0]


@pytest.fixture(scope="module")
def remote(robot: Robot, endpoint: str) -> Iterator[Any]:
    with Client(endpoint, timeout_s=240.0) as client:
        yield client.robot(robot.name, names=shuffled(robot))


def at_random(robot: Robot, query: str, lead: tuple[int, ...]) -> dict[str, Any]:
    vectors, numbers = sample(robot, query, lead)
    for name in vectors:
        if QUERIES[query].inputs[name].kind == "position":
            q = np.broadcast_to(robot.random_configuration(seed=3), (*lead, robot.nq))
            vectors[name] = np.array(q)
    return {**vectors, **numbers}


EACH = [(root, query) for root in ROOTS for query in ORDERED]
KEPT = {("floating" if place % 3 == 0 else "following", query) for place, query in enumerate(ORDERED)}


@pytest.mark.parametrize(("robot", "query"), wide(EACH, KEPT.__contains__), indirect=["robot"])
def test_inputs_and_outputs_of_each_query(robot: Robot, remote: Any, query: str) -> None:
    row, names = QUERIES[query], shuffled(robot)
    for lead in ((), (3,)) if not row.constant else ((),):
        values = at_random(robot, query, lead)
        for optional in variants(robot, query, lead):
            arguments = inputs_in_order(robot, row, {**values, **optional}, names)
            if (
                row.rejects_mimic
                and robot.tree.has_mimics
                and optional.get(str(row.kernel_option), "") in row.rejects_mimic
            ):
                with pytest.raises(FailedPreconditionError, match="follows"):
                    getattr(remote, query)(**arguments)
                continue
            expected = getattr(robot, query)(**{**values, **optional})
            for _ in range(2):  # the second time on the fast path
                answer = getattr(remote, query)(**arguments)
                assert_answers(robot, row, answer, expected, names)


@pytest.mark.parametrize("order", ["reversed", "shuffled", "as they are"])
def test_rows_of_the_pandas_fingers(order: str, ipc_endpoint: str) -> None:
    """The following joint is not named: its row is last. Each number is in the row of its joint."""
    panda = Robot.from_urdf(URDF / "panda.urdf")
    names = list(panda.joint_names)
    names = {"reversed": names[::-1], "shuffled": shuffled(panda), "as they are": names}[order]
    follower = "panda_finger_joint2"
    assert follower not in names
    values = at_random(panda, "newton_euler_blocks", ())
    rows = ("newton_euler_blocks", "mass_matrix_steps", "influence_operators")
    with Server([panda], endpoints=[ipc_endpoint]), Client(ipc_endpoint, timeout_s=240.0) as client:
        remote = client.robot(panda.name, names=names)
        for query in rows:
            row = QUERIES[query]
            required = {name: value for name, value in values.items() if name in row.inputs}
            expected = getattr(panda, query)(**required)
            for _ in range(2):
                answer = getattr(remote, query)(**inputs_in_order(panda, row, required, names))
                assert answer.joints == (*names, follower)
                assert_answers(panda, row, answer, expected, names)
            of_nm = next(name for name, spec in row.outputs.items() if spec.shape[:1] == ("nm",))
            for name in panda.tree.moving_joints:  # rows by joint name
                row_found, row_expected = (getattr(x, of_nm)[x.joints.index(name)] for x in (answer, expected))
                columns = {"nv": places(panda, names)["nv"]}
                assert np.array_equal(row_found, reordered(row_expected, row.outputs[of_nm].shape[1:], columns))
        with pytest.raises(NotFoundError, match=follower):
            client.robot(panda.name, names=[*names[:-1], follower])


def test_rows_without_joints_are_not_ordered() -> None:
    assert "topology" not in ORDERED
    assert "constraint_bases" not in ORDERED
    assert [name for name, row in COMPUTATIONS.items() if not row.has_joint_order] == [
        "segment_inverse_dynamics",
        "segment_matrices",
    ]


def test_both_clients_and_a_robot_with_another_time_limit(robot: Robot, endpoint: str) -> None:
    names = shuffled(robot)
    values = at_random(robot, "inverse_dynamics", ())
    arguments = inputs_in_order(robot, QUERIES["inverse_dynamics"], values, names)
    expected = robot.inverse_dynamics(**values)[places(robot, names)["nv"]]

    async def awaited() -> Any:
        async with AsyncClient(endpoint, timeout_s=240.0) as client:
            remote = await client.robot(robot.name, names=names)
            return [
                await remote_robot.inverse_dynamics(**arguments)
                for remote_robot in (remote, remote, remote.with_timeout(20.0))
            ]

    for torque in asyncio.run(awaited()):
        assert torque.tobytes() == expected.tobytes()
    with Client(endpoint, timeout_s=240.0) as client:
        remote = client.robot(robot.name, names=names)
        for remote_robot in (remote, remote.with_timeout(20.0)):
            assert remote_robot.inverse_dynamics(**arguments).tobytes() == expected.tobytes()


def test_properties_of_the_robot_are_in_the_order_of_the_names(robot: Robot, remote: Any) -> None:
    names, indices = shuffled(robot), places(robot, shuffled(robot))
    assert list(remote.joint_names) == names
    assert list(remote.configuration.names) == names
    types = dict(zip(robot.joint_names, robot.description.joint_types, strict=True))
    assert list(remote.description.joint_types) == [types[name] for name in names]
    for limit, dimension in (("lower", "nq"), ("upper", "nq"), ("velocity", "nv"), ("effort", "nv")):
        expected = getattr(robot.limits, limit)[indices[dimension]]
        assert (getattr(remote.limits, limit) == expected).all()
    q = robot.random_configuration(seed=1)
    v = np.arange(1.0, robot.nv + 1)
    expected = robot.integrate(q, v, 0.1)[indices["nq"]]
    assert np.allclose(remote.configuration.integrate(q[indices["nq"]], v[indices["nv"]], 0.1), expected, atol=1e-15)
    assert remote.fingerprint == robot.fingerprint


@pytest.mark.parametrize("integrator", ["rk4", "implicit_midpoint"])
def test_motions_in_parts(robot: Robot, remote: Any, integrator: Any) -> None:
    """Constant, sampled and computed efforts: the motion is bit-identical, in the caller's order."""
    indices = places(robot, shuffled(robot))
    q, v = robot.random_configuration(seed=2), np.linspace(-0.2, 0.3, robot.nv)
    grid: dict[str, Any] = {"dt": 1e-3, "steps": 6, "every": 2, "integrator": integrator}
    tau = np.linspace(0.1, 0.5, robot.nv)
    for efforts, local_efforts in (
        (tau[indices["nv"]], tau),
        (np.tile(tau, (6, 1))[:, indices["nv"]], np.tile(tau, (6, 1))),
        (lambda t, q, v: -0.1 * v, lambda t, q, v: -0.1 * v),
    ):
        motion = remote.simulate(q[indices["nq"]], v[indices["nv"]], efforts, **grid)
        expected = robot.simulate(q, v, local_efforts, **grid)
        assert motion.q.tobytes() == np.ascontiguousarray(expected.q[:, indices["nq"]]).tobytes()
        assert motion.v.tobytes() == np.ascontiguousarray(expected.v[:, indices["nv"]]).tobytes()
    residuals = remote.verify(q[indices["nq"]], v[indices["nv"]], tau[indices["nv"]])
    assert residuals == robot.verify(q, v, tau)


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip"])
def test_limits_and_contacts(robot: Robot, remote: Any, integrator: Any) -> None:
    """Stops, brakes, limited efforts, and held and pushed points, in the caller's order."""
    names, indices = shuffled(robot), places(robot, shuffled(robot))
    q, v = robot.configuration.neutral, np.linspace(-3.0, 4.0, robot.nv)
    tau = np.linspace(200.0, -300.0, robot.nv)
    foot = Contact(robot.link_names[-1], plane=robot.link_poses(q).position[-1] + [0.0, 0.0, 0.01])
    options: dict[str, Any] = {
        "position_limits": True,
        "effort_limits": True,
        "velocity_limits": True,
        "contacts": foot,
    }
    options |= {"dt": 1e-3, "steps": 12, "every": 3, "integrator": integrator}
    expected = robot.simulate(q, v, tau, **options)
    answer = remote.simulate(q[indices["nq"]], v[indices["nv"]], tau[indices["nv"]], **options)
    row = COMPUTATIONS["simulate"]
    for name, spec in row.outputs.items():
        actual, expected_part = getattr(answer, name), getattr(expected, name)
        assert (actual is None) == (expected_part is None)
        if expected_part is not None:
            expected_part = reordered(expected_part, spec.shape, indices)
            close = name in ("t", "work", "dissipated")  # sums over parts are rounded once more
            assert (
                np.allclose(actual, expected_part, rtol=1e-12, atol=1e-15)
                if close
                else np.array_equal(actual, expected_part)
            ), name
    contact = Contact(robot.link_names[-1], (0.1, 0.0, 0.0), rigid=True)
    expected = robot.contact_dynamics(q, v, tau, contact)
    answer = remote.contact_dynamics(q[indices["nq"]], v[indices["nv"]], tau[indices["nv"]], contact)
    assert_answers(robot, COMPUTATIONS["contact_dynamics"], answer, expected, names)
    expected = robot.ground_reactions(q, v, tau, contact)
    answer = remote.ground_reactions(q[indices["nq"]], v[indices["nv"]], tau[indices["nv"]], contact)
    assert_answers(robot, COMPUTATIONS["ground_reactions"], answer, expected, names)


def test_prescribed_motions(robot: Robot, remote: Any) -> None:
    """The free joints keep the caller's order."""
    names, indices = shuffled(robot), places(robot, shuffled(robot))
    prescribed_joint = robot.joint_names[-2]
    rows = {prescribed_joint: lambda t: (0.1 * t, 0.1, 0.0)}
    free = [name for name in robot.joint_names if name != prescribed_joint]
    their_free = [name for name in names if name != prescribed_joint]
    parts, their_q, their_v = robot.configuration.chosen(free)
    _, to_q, to_v = parts.chosen(their_free)
    q, v = robot.random_configuration(seed=4)[their_q], np.linspace(-0.2, 0.3, robot.nv)[their_v]
    tau = np.linspace(0.1, 0.2, len(v))
    expected = robot.simulate_rheonomic(rows, q, v, tau, dt=1e-3, steps=4)
    motion = remote.simulate_rheonomic(rows, q[to_q], v[to_v], tau[to_v], dt=1e-3, steps=4)
    assert motion.q.tobytes() == np.ascontiguousarray(expected.q[:, indices["nq"]]).tobytes()
    for name in ("v", "a", "tau"):
        assert (
            getattr(motion, name).tobytes() == np.ascontiguousarray(getattr(expected, name)[:, indices["nv"]]).tobytes()
        )


def test_names_on_the_command_line(robot: Robot, endpoint: str) -> None:
    names, indices = shuffled(robot), places(robot, shuffled(robot))
    q = robot.random_configuration(seed=1)
    inputs_json = json.dumps({"q": q[indices["nq"]].tolist()})
    command = ["call", "gravity_forces", "--server", endpoint, "--timeout", "30", "--inputs", inputs_json]
    done = CliRunner().invoke(app, [*command, f"names={','.join(names)}"])
    assert done.exit_code == 0, done.output
    assert np.array_equal(json.loads(done.stdout)["forces"], robot.gravity_forces(q)[indices["nv"]])
    done = CliRunner().invoke(app, [*command, f"names={','.join(names[1:])}"])
    assert done.exit_code != 0
    moving = json.dumps({"q": q[indices["nq"]].tolist(), "v": [0.0] * robot.nv, "dt": 1e-3, "steps": 2, "names": names})
    done = CliRunner().invoke(app, ["call", "simulate", "--server", endpoint, "--timeout", "30", "--inputs", moving])
    assert done.exit_code == 0, done.output
    expected = robot.simulate(q, np.zeros(robot.nv), dt=1e-3, steps=2)
    assert np.array_equal(json.loads(done.stdout)["q"], expected.q[:, indices["nq"]])


# Invalid names, in the client and on the wire.

WRONG: dict[str, tuple[Callable[[list[str]], Any], str, str, str]] = {
    "an unknown joint": (lambda n: [*n[:-1], "elbo"], "NOT_FOUND", "inputs.names[2]", "names[2] is 'elbo'"),
    "one misspelt": (lambda n: [n[0], n[1][:-1], *n[2:]], "NOT_FOUND", "inputs.names[1]", "did you mean"),
    "one missing": (lambda n: n[1:], "INVALID_ARGUMENT", "inputs.names", "all 3 movable joints, found no 'root_joint'"),
    "one twice": (lambda n: [*n, n[1]], "INVALID_ARGUMENT", "inputs.names[3]", "at 1 and at 3"),
    "a part of one": (lambda n: ["root_joint.qw", *n[1:]], "INVALID_ARGUMENT", "inputs.names[0]", "name the joint"),
    "none": (lambda n: [], "INVALID_ARGUMENT", "inputs.names", "found no 'root_joint', "),
    "a text": (lambda n: "root_joint", "INVALID_ARGUMENT", "inputs.names", "must be a list"),
    "numbers": (lambda n: [1, 2, 3], "INVALID_ARGUMENT", "inputs.names", "must be a list"),
    "a map": (lambda n: {"q": n}, "INVALID_ARGUMENT", "inputs.names", "must be a list"),
}


@pytest.mark.parametrize(("wrong", "code", "path", "words"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("query", ["inverse_dynamics", "simulate"])
def test_wrong_names_are_reported(
    wrong: Callable[[list[str]], Any], code: str, path: str, words: str, query: str
) -> None:
    robot = robot_of("floating")
    names = wrong(list(robot.joint_names))
    with pytest.raises((NotFoundError, InvalidArgumentError)) as excinfo:
        Order(robot.configuration, names)
    assert (excinfo.value.code, excinfo.value.path) == (code, path)
    assert words in str(excinfo.value)
    service = Service([robot])
    state = {"q": array(robot.neutral()), "v": array(np.zeros(robot.nv)), "names": names}
    state |= {"a": array(np.zeros(robot.nv))} if query == "inverse_dynamics" else {}
    options = {} if query == "inverse_dynamics" else {"options": {"dt": 1e-3, "steps": 1}}
    payload = msgpack.packb({"v": 1, "id": 1, "query": query, "robot": robot.name, "inputs": state, **options})
    for _ in range(2):
        assert service.answer_single_state(payload, perf_counter_ns()) is None
        error = msgpack.unpackb(service.handle(payload, perf_counter_ns()))["error"]
        assert (error["code"], error["path"]) == (code, path)
        assert words in error["message"]


def test_a_query_without_order_rejects_names() -> None:
    """Like a server of an earlier version, it reports an unknown input and does not ignore the order."""
    robot = robot_of("fixed")
    request = {"v": 1, "id": 1, "query": "topology", "robot": robot.name, "inputs": {"names": list(robot.joint_names)}}
    error = msgpack.unpackb(Service([robot]).handle(msgpack.packb(request), 0))["error"]
    assert (error["code"], error["path"]) == ("INVALID_ARGUMENT", "inputs.names")


def test_nil_is_ignored_and_wrong_shapes_are_reported_as_without_names() -> None:
    robot = robot_of("fixed")
    service = Service([robot])

    def ask(**inputs: Any) -> Any:
        request = {"v": 1, "id": 1, "query": "gravity_forces", "robot": robot.name, "inputs": inputs}
        return msgpack.unpackb(service.handle(msgpack.packb(request), perf_counter_ns()))

    q = array(np.linspace(0.1, 0.4, robot.nv))
    assert ask(q=q, names=None)["outputs"] == ask(q=q)["outputs"]
    short = array([0.1])
    assert ask(q=short, names=list(robot.joint_names)[::-1])["error"] == ask(q=short)["error"]


def test_a_result_that_is_not_finite_names_the_right_joint() -> None:
    """The error names the same joint in each order."""
    robot = robot_of("fixed")
    service, names = Service([robot]), list(robot.joint_names)[::-1]
    huge = np.zeros(robot.nv)
    huge[2] = 1e200  # the robot's second joint, which acts on the first one
    state = {"q": array(np.full(robot.nv, 0.4)), "v": array(huge), "a": array(huge), "names": names}
    plain = {**state, "v": array(huge[::-1]), "a": array(huge[::-1])}
    del plain["names"]
    replies = []
    for inputs in (state, plain):
        request = {"v": 1, "id": 1, "query": "inverse_dynamics", "robot": robot.name, "inputs": inputs}
        with np.errstate(all="ignore"):  # as in the process of a server
            replies.append(msgpack.unpackb(service.handle(msgpack.packb(request), perf_counter_ns())))
    replies = [reply["error"]["message"] for reply in replies]
    assert "of joint 'inner_joint' = " in replies[0]
    assert replies[0] == replies[1]


# Cost.


def test_one_state_takes_the_fast_path() -> None:
    robot = robot_of("floating")
    service, names = Service([robot]), shuffled(robot)
    values = at_random(robot, "inverse_dynamics", ())
    row = QUERIES["inverse_dynamics"]
    push = [Wrench(robot.link_names[-1], force=(1.0, 2.0, 3.0))]
    for optional in ({}, {"wrenches": push}):
        inputs = flows.pack_inputs({**inputs_in_order(robot, row, values, names), **optional}, row) | {"names": names}
        payload = flows.pack_request(7, flows.Ask(row.name, robot.name, inputs), 1e6)
        expected = msgpack.unpackb(service.handle(payload, perf_counter_ns()))
        assert expected["ok"]
        short = service.answer_single_state(payload, perf_counter_ns())
        assert short is not None
        assert msgpack.unpackb(short)["outputs"] == expected["outputs"]


def test_requests_without_names_cost_no_more_than_before() -> None:
    """Requests without names have as many bytes and cause as many function calls as before names were added."""
    robot = robot_of("fixed")
    service = Service([robot])
    values = at_random(robot, "inverse_dynamics", ())
    remote = flows.RemoteRobotProperties(robot.description)
    row = QUERIES["inverse_dynamics"]

    required = tuple(values.values())
    request = flows.query_request(remote, row, required, row.argument_defaults)
    assert set(request.inputs) == {"q", "v", "a"}
    payload = flows.pack_request(7, request, 1e6)
    assert b"names" not in payload
    service.handle(payload, perf_counter_ns())
    now = perf_counter_ns()
    assert service.answer_single_state(payload, now) is not None
    assert calls_of(lambda: flows.query_request(remote, row, required, row.argument_defaults)) <= 15
    assert calls_of(lambda: service.answer_single_state(payload, now)) <= 22
    assert calls_of(lambda: service.handle(payload, now)) <= 211
    assert len(payload) == 292


def test_the_number_of_stored_orders_is_limited() -> None:
    """Clients may send any order, so the server keeps a limited number."""
    robot = robot_of("fixed")
    orders = Service([robot]).registry.get(robot.name).orders
    seen = {id(orders.of(list(np.random.default_rng(k).permutation(robot.joint_names).tolist()))) for k in range(30)}
    assert len(seen) <= 24
    first = orders.of(list(robot.joint_names))
    assert orders.of(tuple(robot.joint_names)) is first
    with pytest.raises(DynError):
        orders.of(["x"])
