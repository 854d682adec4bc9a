"""External wrenches over the wire: few of them take the fast path, with the same bits as the slow path."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import Client, Robot, Wrench
from dyn_service.api.queries import QUERIES
from dyn_service.service.client.flows import pack_inputs
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import Request, encode
from dyn_service.service.server.answering.plan import FEW_WRENCHES
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.app import Server
from tests.conftest import URDF
from tests.service.conftest import sample

ROWS = [name for name, row in QUERIES.items() if row.wrenches is not None]
PUSH = Wrench("pendulum", (0.1, 0.2, 0.3), (4.0, 5.0, -6.0), (0.0, 0.1, 0.2))
OWN = Wrench("cart", force=[1, 2, 3], frame="cart")


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_urdf(URDF / "cart_pendulum.urdf")


@pytest.fixture
def service(robot: Robot) -> Service:
    return Service([robot])


def asking(robot: Robot, query: str, wrenches: Any, options: Mapping[str, Any] | None = None) -> bytes:
    """A request as clients write it."""
    vectors, numbers = sample(robot, query, ())
    row = QUERIES[query]
    inputs = pack_inputs({**vectors, **numbers, **({} if wrenches is None else {row.wrenches or "": wrenches})}, row)
    return encode(Request(1, 7, query, robot.name, {**inputs, **(options or {})}))


def short(service: Service, payload: bytes) -> Any:
    """The outputs by the fast path, or None."""
    reply = service.answer_single_state(payload, perf_counter_ns())
    return None if reply is None else msgpack.unpackb(reply)["outputs"]


def general(service: Service, payload: bytes) -> Any:
    """The reply by the slow path."""
    return msgpack.unpackb(service.handle(payload, perf_counter_ns()))


@pytest.mark.parametrize("query", ROWS)
def test_few_go_the_short_way_with_the_same_bits(service: Service, robot: Robot, query: str) -> None:
    for wrenches in ([PUSH], [PUSH, OWN], [OWN, PUSH, OWN, PUSH], []):
        payload = asking(robot, query, wrenches)
        expected = general(service, payload)  # makes the kernels
        assert expected["ok"]
        assert short(service, payload) == expected["outputs"]
    assert short(service, asking(robot, query, [PUSH] * (FEW_WRENCHES + 1))) is None


def test_either_kernel_opens_its_own_way() -> None:
    """Who never asks without wrenches needs no kernel for it, and the other way about."""
    for first, second in ((None, [PUSH]), ([PUSH], None)):
        robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
        service = Service([robot])
        with_wrenches, missing = (asking(robot, "inverse_dynamics", w) for w in (first, second))
        assert short(service, with_wrenches) is None
        assert general(service, with_wrenches)["ok"]
        assert short(service, with_wrenches) is not None
        assert short(service, missing) is None
        assert general(service, missing)["ok"]
        assert short(service, missing) is not None
        assert short(service, with_wrenches) is not None


def test_what_is_left_out_stands_at_its_default(service: Service, robot: Robot) -> None:
    force = pack_inputs({"q": np.array([1.0, 2.0, 3.0])}, QUERIES["mass_matrix"])["q"]
    for wrench in ({"link": "pendulum"}, {"link": "pendulum", "force": force}):
        payload = asking(robot, "inverse_dynamics", None, options={"wrenches": [wrench]})
        expected = general(service, payload)
        assert expected["ok"]
        assert short(service, payload) == expected["outputs"]


BAD: dict[str, tuple[Any, str, str]] = {
    "no such link": ([{"link": "none"}], "NOT_FOUND", "inputs.wrenches[0].link"),
    "no such frame": ([{"link": "pendulum", "frame": "none"}], "NOT_FOUND", "inputs.wrenches[0].frame"),
    "a misspelt key": ([{"link": "pendulum", "froce": [1.0, 2.0, 3.0]}], "INVALID_ARGUMENT", "inputs.wrenches[0]"),
    "no link": ([{"frame": "world"}], "INVALID_ARGUMENT", "inputs.wrenches[0]"),
    "not finite": (
        [{"link": "pendulum", "force": {"dtype": "<f8", "shape": [3], "data": np.array([np.nan, 0, 0]).tobytes()}}],
        "INVALID_ARGUMENT",
        "inputs.wrenches[0].force",
    ),
    "infinite, the second": (
        [
            {"link": "pendulum"},
            {"link": "pendulum", "point": {"dtype": "<f8", "shape": [3], "data": np.full(3, np.inf).tobytes()}},
        ],
        "INVALID_ARGUMENT",
        "inputs.wrenches[1].point",
    ),
    "two numbers": (
        [{"link": "pendulum", "torque": {"dtype": "<f8", "shape": [2], "data": np.ones(2).tobytes()}}],
        "INVALID_ARGUMENT",
        "inputs.wrenches[0].torque",
    ),
}


@pytest.mark.parametrize(("wrenches", "code", "path"), BAD.values(), ids=BAD)
def test_the_general_way_says_what_is_wrong(
    service: Service, robot: Robot, wrenches: Any, code: str, path: str
) -> None:
    general(service, asking(robot, "inverse_dynamics", [PUSH]))  # the way is open
    assert short(service, asking(robot, "inverse_dynamics", [PUSH])) is not None
    payload = asking(robot, "inverse_dynamics", None, options={"wrenches": wrenches})
    assert short(service, payload) is None
    error = general(service, payload)["error"]
    assert (error["code"], error["path"]) == (code, path)


def test_the_limit_holds_on_the_short_way(robot: Robot) -> None:
    service = Service([robot], limits=RequestLimits(max_wrenches=1))
    assert general(service, asking(robot, "inverse_dynamics", [PUSH]))["ok"]
    assert short(service, asking(robot, "inverse_dynamics", [PUSH])) is not None
    two = asking(robot, "inverse_dynamics", [PUSH, PUSH])
    assert short(service, two) is None
    assert general(service, two)["error"]["code"] == "RESOURCE_EXHAUSTED"


def test_answered_at_once_where_workers_are_processes(ipc_endpoint: str) -> None:
    """The first request has the kernels made elsewhere, with that of the poses; from the next ones on no worker hears
    of them.
    """
    robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
    push = Wrench("pendulum", force=(0.0, 0.0, 5.0))
    q, v, a = (np.array(x) for x in ([0.1, 0.2], [0.3, 0.4], [0.5, 0.6]))
    with (
        Server([robot], endpoints=[ipc_endpoint], workers=1) as server,
        Client(ipc_endpoint, timeout_s=240.0) as client,
    ):
        remote = client.robot("cart_pendulum")
        answers = {remote.inverse_dynamics(q, v, a, wrenches=push).tobytes()}
        durations = server.service.metrics.fast_path("inverse_dynamics")
        until_ns = perf_counter_ns() + 20_000_000_000
        while not sum(durations.buckets) and perf_counter_ns() < until_ns:
            answers.add(remote.inverse_dynamics(q, v, a, wrenches=push).tobytes())
        answers_before = sum(durations.buckets)
        for _ in range(5):
            answers.add(remote.inverse_dynamics(q, v, a, wrenches=push).tobytes())
        assert sum(durations.buckets) == answers_before + 5
    local = Robot.from_urdf(URDF / "cart_pendulum.urdf")
    assert answers == {local.inverse_dynamics(q, v, a, wrenches=push).tobytes()}
