"""Lists of queries over the wire: one request, the results of the robot in this process, bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import (
    AsyncClient,
    Client,
    InvalidArgumentError,
    NotFoundError,
    Overlay,
    Payload,
    Robot,
    Server,
    Wrench,
)
from dyn_service.api.cost import CALL_S, of_query
from dyn_service.api.lists import row_of
from dyn_service.cli.calling import ask
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.answering import registry
from dyn_service.service.server.answering.service import Service
from tests.overlays import State
from tests.passive import small
from tests.phrases import naming
from tests.service.conftest import array, assert_same, request

NAMES = ["inverse_dynamics", "mass_matrix", "link_poses"]
LIST = "inverse_dynamics+mass_matrix+link_poses"


@pytest.fixture(scope="module")
def cart() -> Robot:
    return small()


@pytest.fixture(scope="module")
def endpoint(cart: Robot, tmp_path_factory: Any) -> Iterator[Server]:
    with Server([cart], endpoints=[f"ipc://{tmp_path_factory.mktemp('s')}/s"]) as server:
        yield server


def inputs(robot: Robot) -> dict[str, Any]:
    state = State(robot, 3)
    return {"q": state.q, "v": state.v, "a": state.a}


def same(answers: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(answers) == list(expected)
    for name in expected:
        assert_same(answers[name], expected[name])


def test_answers_of_clients_are_those_of_the_robot(endpoint: Server, cart: Robot) -> None:
    state, link = inputs(cart), cart.link_names[-1]
    batch = {**state, "v": np.linspace(-1.0, 1.0, 6).reshape(3, 1, 2), "link": [link, link], "point": np.ones(3)}
    calls: list[tuple[list[str], dict[str, Any]]] = [
        (NAMES, state),
        (NAMES[::-1], {**state, "wrenches": Wrench(link, force=(1.0, 2.0, 3.0)), "passive": False}),
        (NAMES, {**state, "overlay": Overlay(payloads=Payload(link, [1.0, 2.0])), "gravity": (0.0, 0.0, -1.6)}),
        (["point_motion", *NAMES], batch),
        (["mass_matrix", "bias_forces"], {"q": state["q"], "v": np.zeros((0, 2))}),
        (["mass_matrix"], {"q": state["q"]}),
        (
            ["mass_matrix", "energy"],
            {"q": state["q"], "v": state["v"], "overlay": Overlay(gravity=np.arange(6.0).reshape(2, 3))},
        ),
    ]

    async def awaited() -> list[dict[str, Any]]:
        async with AsyncClient(endpoint.endpoints[0], timeout_s=240.0) as client:
            robot = await client.robot(cart.name)
            return [await robot.evaluate(names, **arguments) for names, arguments in calls]

    with Client(endpoint.endpoints[0], timeout_s=240.0) as client:
        robot = client.robot(cart.name)
        for (names, arguments), waited in zip(calls, asyncio.run(awaited()), strict=True):
            expected = cart.evaluate(names, **arguments)
            same(robot.evaluate(names, **arguments), expected)
            same(waited, expected)
        order = cart.joint_names[::-1]
        reordered = client.robot(cart.name, names=order)
        answer = reordered.evaluate("whole_body_terms", q=state["q"][::-1], v=state["v"][::-1], link=link)
        expected = cart.evaluate("whole_body_terms", q=state["q"], v=state["v"], link=link)
        np.testing.assert_array_equal(answer["mass_matrix"], expected["mass_matrix"][::-1, ::-1])
        np.testing.assert_array_equal(answer["point_motion"].jacobian, expected["point_motion"].jacobian[:, ::-1])


def test_a_list_is_one_request(endpoint: Server, cart: Robot) -> None:
    traffic = endpoint.service.metrics.traffic
    with Client(endpoint.endpoints[0], timeout_s=240.0) as client:
        robot = client.robot(cart.name)
        robot.evaluate(NAMES, **inputs(cart))
        received_before = traffic.received
        for _ in range(3):
            robot.evaluate(NAMES, **inputs(cart))
        assert traffic.received == received_before + 3
        assert client.stats()["requests"]["evaluate"]["answered"] >= 4


def test_errors_of_clients(endpoint: Server, cart: Robot) -> None:
    state = inputs(cart)
    with Client(endpoint.endpoints[0], timeout_s=240.0) as client:
        robot = client.robot(cart.name)
        with pytest.raises(InvalidArgumentError, match=naming("mass_matrix twice")):
            robot.evaluate(["mass_matrix", "mass_matrix"], **state)
        with pytest.raises(InvalidArgumentError, match=naming("needs the input 'a'")):
            robot.evaluate(NAMES, q=state["q"], v=state["v"])
        with pytest.raises(NotFoundError, match=naming("thumb")):
            robot.evaluate("whole_body_terms", q=state["q"], v=state["v"], link="thumb")
        with pytest.raises(InvalidArgumentError, match=naming(f"{LIST} gives inverse_dynamics.tau")) as error:
            robot.evaluate(NAMES, **{**state, "v": np.full(2, 1e200)})
        assert error.value.path == "inputs.v"
    reply = ask(endpoint.endpoints[0], LIST, cart.name, {n: x.tolist() for n, x in state.items()}, 60.0, 0.0, None)
    np.testing.assert_array_equal(reply["mass_matrix.mass_matrix"], cart.mass_matrix(state["q"]))


def message(robot: Robot, query: str, state: dict[str, Any], **fields: Any) -> bytes:
    packed: bytes = msgpack.packb(request(query, robot.name, inputs={n: array(x) for n, x in state.items()}, **fields))
    return packed


def test_single_states_take_the_fast_path(cart: Robot) -> None:
    """In any order of the names; with the bits of the slow path."""
    service = Service([cart])
    state = inputs(cart)
    now = perf_counter_ns()
    for query in (LIST, "link_poses+mass_matrix+inverse_dynamics"):
        slow = msgpack.unpackb(service.handle(message(cart, query, state), now))["outputs"]
        fast = service.answer_single_state(message(cart, query, state), now)
        assert fast is not None
        assert msgpack.unpackb(fast)["outputs"] == slow


@pytest.mark.parametrize(
    ("query", "code", "text"),
    [
        ("mass_matrix+dance", "UNIMPLEMENTED", "no query 'mass_matrix+dance'"),
        ("mass_matrix+", "UNIMPLEMENTED", "no query 'mass_matrix+'"),
        ("mass_matrix+mass_matrix", "INVALID_ARGUMENT", "mass_matrix twice"),
        ("mass_matrix+topology", "INVALID_ARGUMENT", "topology has no inputs"),
        ("branch_inertias+link_poses", "INVALID_ARGUMENT", "call them separately"),
        ("mass_matrix+bias_forces", "INVALID_ARGUMENT", "needs the input 'v'"),
    ],
)
def test_wrong_requests(cart: Robot, query: str, code: str, text: str) -> None:
    service = Service([cart])
    payload = message(cart, query, {"q": np.zeros(2)})
    assert service.answer_single_state(payload, perf_counter_ns()) is None
    error = msgpack.unpackb(service.handle(payload, perf_counter_ns()))["error"]
    assert error["code"] == code
    assert text in error["message"]


def test_plans_of_lists_are_bounded(cart: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_LIST_PLANS", 3)
    service = Service([cart])
    for other in ("bias_forces", "gravity_forces", "jacobians", "momentum", "imu", "energy"):
        service.handle(message(cart, f"mass_matrix+{other}", {}), perf_counter_ns())
    assert len(service.registry.served[cart.name].plans._lists) == 3
    assert set(service.metrics.to_dict()["errors"]) == {"INVALID_ARGUMENT"}


def test_limits_of_requests_hold(cart: Robot) -> None:
    """The cost is that of all queries; the size of the answer that of all their outputs."""
    state = {name: np.zeros((1000, 2)) for name in ("q", "v", "a")}
    row, sizes = row_of(LIST), cart.sizes
    cost = of_query(row, sizes, state, {"passive": True})
    costs = [of_query(p, sizes, {n: state[n] for n in p.required}, dict.fromkeys(p.options, True)) for p in row.parts]
    assert cost.reply_bytes == sum(part.reply_bytes for part in costs)
    assert cost.work_s == pytest.approx(sum(part.work_s for part in costs) - 2 * CALL_S)
    service = Service([cart], limits=RequestLimits(max_reply_bytes=cost.reply_bytes - 1))
    error = msgpack.unpackb(service.handle(message(cart, LIST, state), perf_counter_ns()))["error"]
    assert error["code"] == "RESOURCE_EXHAUSTED"
    assert f"{cost.reply_bytes} bytes" in error["message"]
