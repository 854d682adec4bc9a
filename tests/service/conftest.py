"""Robots, servers on every transport, and a bare socket for what no client of ours would send."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from dyn_service import QUERIES, Robot, Server, Wrench
from dyn_service.api.spec import DIRECTIONS
from dyn_service.parsing.urdf.reader import read
from dyn_service.service.protocol.messages import ADMINISTRATION
from tests.conftest import URDF
from tests.mimics import drawn
from tests.passive import restless

TRANSPORTS = ("tcp", "ipc", "inproc")
WAIT_MS = 50_000
"""Far beyond what anything here takes, so that a slow machine fails no test, and less than the limit of a test."""

_counter = itertools.count()


@pytest.fixture
def new_endpoint(tmp_path: Path) -> Callable[[str], str]:
    """Makes endpoints that no other test uses."""

    def make(transport: str) -> str:
        number = next(_counter)
        endpoints = {
            "tcp": "tcp://127.0.0.1:0",
            "ipc": f"ipc://{tmp_path}/s{number}",
            "inproc": f"inproc://test-{number}",
        }
        return endpoints[transport]

    return make


@pytest.fixture(params=TRANSPORTS)
def server(request: pytest.FixtureRequest, panda: Robot, pendulum: Robot, new_endpoint: Any) -> Iterator[Server]:
    with Server([panda, pendulum], endpoints=[new_endpoint(request.param)]) as server:
        yield server


class Bare:
    """A socket that sends arbitrary messages."""

    def __init__(self, endpoint: str, kind: int = zmq.DEALER) -> None:
        self.socket = zmq.Context.instance().socket(kind)
        self.socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        self.socket.setsockopt(zmq.SNDTIMEO, WAIT_MS)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def send(self, message: Any) -> None:
        self.socket.send(message if isinstance(message, bytes) else msgpack.packb(message))

    def receive(self) -> Any:
        return msgpack.unpackb(self.socket.recv())

    def ask(self, message: Any) -> Any:
        self.send(message)
        return self.receive()

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def bare() -> Iterator[Callable[..., Bare]]:
    made: list[Bare] = []

    def make(endpoint: str, kind: int = zmq.DEALER) -> Bare:
        made.append(Bare(endpoint, kind))
        return made[-1]

    yield make
    for each in made:
        each.close()


@functools.cache
def following() -> Robot:
    """Four joints that do all a joint can do by themselves, of which the first two follow the others."""
    made = restless(drawn(read(URDF / "scara.urdf"), 3, share=0.5), 1)
    assert (made.nv, made.tree.nr) == (2, 4)
    return made


@functools.cache
def floating() -> Robot:
    """The pendulum on a cart, on a base that floats."""
    base = '<inertial><mass value="3"/><inertia ixx="1" iyy="2" izz="2" ixy="0" ixz="0" iyz="0"/></inertial>'
    text = (URDF / "cart_pendulum.urdf").read_text().replace('<link name="base">', f'<link name="base">{base}')
    return Robot.from_urdf(text, root="floating")


def array(value: Any) -> dict[str, Any]:
    """An array as a stranger's client would write it."""
    data = np.asarray(value, dtype="<f8")
    return {"dtype": "<f8", "shape": list(data.shape), "data": data.tobytes()}


def request(query: str = "gravity_forces", robot: str = "pendulum", **fields: Any) -> dict[str, Any]:
    """A valid request, with fields replaced or added."""
    inputs = {} if query in ADMINISTRATION else {"q": array([0.5])}
    message = {"v": 1, "id": 7, "query": query, "robot": robot, "inputs": inputs, **fields}
    return {key: value for key, value in message.items() if value is not ...}


def sample(robot: Any, query: str, lead: tuple[int, ...] = (), seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random required inputs of a query, positional and keyword, with the given leading axes."""
    rng = np.random.default_rng(seed)
    row = QUERIES[query]
    sizes = {"nq": robot.nq, "nv": robot.nv}
    required = [name for name in row.inputs if name not in row.optional]
    values = {
        name: robot.link_names[-1]
        if row.inputs[name].kind == "link"
        else float(rng.uniform(1e-3, 2e-3) if name == "dt" else rng.uniform(1.0, 50.0))
        if row.inputs[name].scalar
        else rng.uniform(-1.0, 1.0, lead + row.inputs[name].dims(sizes))
        for name in required
    }
    numbers = {n: value for n, value in values.items() if row.inputs[n].scalar or row.inputs[n].kind == "link"}
    numbers |= {n: [moving(robot)] for n, spec in row.inputs.items() if spec.kind == "directions"}
    return {name: value for name, value in values.items() if name not in numbers}, numbers


def moving(robot: Any) -> str:
    """A direction in which the last link moves at any state: in which it turns, if it does."""
    q = robot.random_configuration(seed=1)
    J = robot.point_motion(q, np.zeros(robot.nv), robot.link_names[-1], point=(0.1, 0.2, 0.3)).jacobian
    turns, shifts = np.linalg.norm(J[:3], axis=1), np.linalg.norm(J[3:], axis=1)
    return DIRECTIONS[int(np.argmax(turns) if turns.any() else 3 + np.argmax(shifts))]


def variants(robot: Any, query: str, lead: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """The ways in which a query can be asked beyond its required inputs, some with leading axes of their own."""
    size = lead[-1] if lead else 4
    row = QUERIES[query]
    last, first = robot.link_names[-1], robot.link_names[0]
    ways: list[dict[str, Any]] = [{}]
    if "gravity" in row.inputs:
        ways += [{"gravity": [0.5, -1.0, -9.0]}, {"gravity": np.random.default_rng(1).uniform(-9, 9, (size, 3))}]
    if "wrenches" in row.inputs:
        ways += [
            {"wrenches": Wrench(last, force=(1.0, 2.0, 3.0))},
            {
                "wrenches": [
                    Wrench(last, torque=[0.1, 0.2, 0.3], force=np.ones((size, 3)), point=(0.1, 0.0, 0.0), frame=last),
                    Wrench(first, torque=(1.0, 0.0, 0.0)),
                ]
            },
        ]
    if "link" in row.inputs:
        ways += [{"point": np.random.default_rng(2).uniform(-1, 1, (size, 3)), "link": [last] * size}]
    if "directions" in row.inputs and robot.nv > 6:
        ways += [{"directions": None}, {"directions": ["x", "y", "rz"]}]
    for option in row.options.values():
        if option.choices is not None:
            ways += [{option.name: choice} for choice in option.choices]
        if option.type == "flag":
            ways += [{option.name: not option.default}]
    if "joints" in row.options:
        ways += [{"joints": [robot.all_joint_names[-1], robot.all_joint_names[0]]}, {"joints": []}]
    return ways


def assert_same(found: Any, expected: Any) -> None:
    """The same answer to the last bit, shape and names."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray | np.float64):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
        return
    for name in expected.__dataclass_fields__:
        left, right = getattr(found, name), getattr(expected, name)
        if isinstance(right, tuple):
            assert left == right
        else:
            assert_same(left, right)
