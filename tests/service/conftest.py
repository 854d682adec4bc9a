"""Robots, servers on each transport, and a libzmq socket for messages that our clients never send."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
import zmq

from dyn_service import QUERIES, Robot, Server, Wrench
from dyn_service.api.spec import DIRECTIONS
from dyn_service.parsing.urdf.reader import read
from dyn_service.service.protocol.keys import Keys, read_keys
from dyn_service.service.protocol.messages import ADMINISTRATION, Role
from dyn_service.service.server.administration.access import KeyFolder
from tests.conftest import URDF
from tests.mimics import drawn
from tests.passive import restless

TRANSPORTS = ("tcp", "ipc", "curve")
"""TCP and Unix sockets without encryption, and TCP encrypted by CURVE."""

WAIT_MS = 50_000
"""Far beyond what anything here takes, so that a slow machine fails no test, and less than the limit of a test."""
WAIT_S = WAIT_MS / 1e3


def eventually(holds: Callable[[], Any]) -> None:
    """Waits until it holds."""
    until_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.005)


@pytest.fixture(scope="session")
def scara() -> Robot:
    return Robot.from_urdf(URDF / "scara.urdf")


class Transport(NamedTuple):
    """A way to reach a server."""

    endpoint: str
    """What the server is to listen at; TCP chooses the port."""
    keys: Keys | None
    """The client's keys; None: the server requires none."""
    server_options: dict[str, Any]
    """More arguments of `Server`."""
    client_options: dict[str, Any]
    """More arguments of `Client`, `AsyncClient` and `connect`."""


def make_transport(name: str, folder: Path) -> Transport:
    """Returns one of `TRANSPORTS`.

    folder: for a socket or for keys; its path is short (`socket_folder`) and no other transport has it.
    """
    if name != "curve":
        return Transport({"tcp": "tcp://127.0.0.1:0", "ipc": f"ipc://{folder}/s"}[name], None, {}, {})
    key_folder = KeyFolder(folder / "keys")
    key_file = key_folder.make("test", Role.ADMIN)
    assert key_file is not None
    keys = read_keys(key_file)
    return Transport("tcp://127.0.0.1:0", keys, {"keys": "required", "key_folder": key_folder}, {"keys": keys})


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, socket_folder: Path) -> Transport:
    """Each transport in turn; a client of `server` needs its `client_options`."""
    return make_transport(request.param, socket_folder)


@pytest.fixture
def server(panda: Robot, pendulum: Robot, transport: Transport) -> Iterator[Server]:
    """A server on each transport in turn."""
    with Server([panda, pendulum], endpoints=[transport.endpoint], **transport.server_options) as server:
        yield server


class Bare:
    """A socket that sends arbitrary messages.

    keys: those of a client, for an encrypted endpoint. routing_id: the name that the socket sends of itself.
    """

    def __init__(
        self, endpoint: str, kind: int = zmq.DEALER, keys: Keys | None = None, routing_id: bytes = b""
    ) -> None:
        self.socket = zmq.Context.instance().socket(kind)
        self.socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        self.socket.setsockopt(zmq.SNDTIMEO, WAIT_MS)
        self.socket.setsockopt(zmq.LINGER, 0)
        if routing_id:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if keys is not None:
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
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
    peers: list[Bare] = []

    def make(*args: Any, **options: Any) -> Bare:
        peers.append(Bare(*args, **options))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


@functools.cache
def following() -> Robot:
    """Four joints that do all a joint can do by themselves, of which the first two follow the others."""
    robot = restless(drawn(read(URDF / "scara.urdf"), 3, share=0.5), 1)
    assert (robot.nv, robot.tree.nr) == (2, 4)
    return robot


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


def assert_same(answer: Any, expected: Any) -> None:
    """The same answer to the last bit, shape and names."""
    assert type(answer) is type(expected)
    if isinstance(expected, np.ndarray | np.float64):
        assert answer.dtype == expected.dtype
        assert answer.shape == expected.shape
        assert answer.tobytes() == expected.tobytes()
        return
    for name in expected.__dataclass_fields__:
        left, right = getattr(answer, name), getattr(expected, name)
        if isinstance(right, tuple):
            assert left == right
        else:
            assert_same(left, right)
