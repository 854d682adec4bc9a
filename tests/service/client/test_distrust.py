"""Clients reject replies with invalid numbers or shapes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import QUERIES, AsyncClient, Client, Contact, InternalError, Overlay, Payload, Robot, Wrench
from dyn_service.service.client.flows import RemoteRobotProperties, leading, pack_inputs, query_request
from dyn_service.service.protocol.messages import new_epoch
from dyn_service.service.server.answering.service import Service
from tests.cli.test_command_line import Here, dyn_here  # noqa: F401  # a fixture
from tests.counting import calls_of
from tests.phrases import unnamed
from tests.service.client.test_clients import Impostor
from tests.service.conftest import array

Change = Callable[[dict[str, Any]], None]


class Liar:
    """A real server whose replies to one query are changed."""

    def __init__(self, robot: Robot, query: str, change: Change) -> None:
        self._service = Service([robot], epoch=new_epoch())
        self._query, self._change = query, change

    def __call__(self, request: dict[str, Any]) -> list[Any]:
        if request["query"] == "cancel":
            return []
        reply = msgpack.unpackb(self._service.handle(msgpack.packb(request), perf_counter_ns()))
        if request["query"] == self._query:
            assert reply["ok"], reply
            self._change(reply["outputs"])
        return [reply]


def refusals(robot: Robot, query: str, change: Change, ask: Callable[[Any], Any]) -> list[str]:
    """Returns the error of each kind of client for the answer."""

    async def awaited(endpoint: str) -> None:
        async with AsyncClient(endpoint, timeout_s=240.0) as client:
            await ask(await client.robot(robot.name))

    ask(robot)  # compiled first: an impostor answers from one thread, so the client would assume that it has exited
    with Impostor(Liar(robot, query, change)) as impostor:
        with Client(impostor.endpoint, timeout_s=240.0) as client, pytest.raises(InternalError) as first:
            ask(client.robot(robot.name))
        with pytest.raises(InternalError) as second:
            asyncio.run(awaited(impostor.endpoint))
    return [str(first.value), str(second.value)]


def put(name: str, value: Any, shape: Any = ...) -> Change:
    packed = array(value)
    if shape is not ...:
        packed["shape"] = shape
    return lambda outputs: outputs.__setitem__(name, packed)


Z, N = np.zeros, "the server's reply is invalid: inverse_dynamics returns tau "
WRONG: dict[str, tuple[Change, str]] = {
    "any length": (put("tau", Z(9), [-1]), "the server's reply is invalid: its shape is (-1,)"),
    "a column": (put("tau", Z((9, 1))), N + "with shape (9, 1), expected (9,)"),
    "a batch": (put("tau", Z((2, 9))), N + "with shape (2, 9), expected (9,)"),
    "a batch of one": (put("tau", Z((1, 9))), N + "with shape (1, 9), expected (9,)"),
    "too many": (put("tau", Z(10)), N + "with shape (10,), expected (9,)"),
    "a number": (put("tau", 1.0), N + "with shape (), expected (9,)"),
    "none": (put("tau", Z(0)), N + "with shape (0,), expected (9,)"),
    "names": (lambda outputs: outputs.__setitem__("tau", ["a"] * 9), N + "with shape (9,), expected (9,)"),
    "NaN": (put("tau", [0.0] * 8 + [np.nan]), N + "with a number that is not finite"),
    "infinity": (put("tau", [np.inf] + [0.0] * 8), N + "with a number that is not finite"),
    "-infinity": (put("tau", [0.0] * 8 + [-np.inf]), N + "with a number that is not finite"),
    "another name": (lambda outputs: outputs.__setitem__("x", outputs.pop("tau")), "is invalid: it has no 'tau'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_answers_raise(panda: Robot, wrong: str) -> None:
    change, text = WRONG[wrong]
    for error in refusals(panda, "inverse_dynamics", change, lambda robot: robot.inverse_dynamics(Z(9), Z(9), Z(9))):
        assert text in error


def test_large_finite_numbers_are_returned(panda: Robot) -> None:
    large = [1.7e308, -1.7e308, 5e303, 5e-324, -0.0, 1.0, 2.0, 3.0, 4.0]
    with (
        Impostor(Liar(panda, "bias_forces", put("forces", large))) as impostor,
        Client(impostor.endpoint, timeout_s=240.0) as client,
    ):
        assert client.robot("panda").bias_forces(Z(9), Z(9)).tolist() == large


def turned(name: str) -> Change:
    """Changes the shape of an output, not its size."""

    def change(outputs: dict[str, Any]) -> None:
        outputs[name]["shape"] = [1, *outputs[name]["shape"]]

    return change


def not_finite(name: str) -> Change:
    def change(outputs: dict[str, Any]) -> None:
        outputs[name]["data"] = outputs[name]["data"][:-8] + np.array(np.nan).tobytes()

    return change


HAND = Contact("panda_hand", point=(0.0, 0.0, 0.1), rigid=True)
ASKED: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "rows": ("link_poses", "rotation", lambda robot: robot.link_poses(Z(9))),
    "chosen rows": (
        "constraint_forces",
        "wrench",
        lambda r: r.constraint_forces(Z(9), Z(9), Z(9), joints=["panda_joint2"]),
    ),
    "a batch": ("mass_matrix", "mass_matrix", lambda robot: robot.mass_matrix(Z((2, 9)))),
    "a batch of wrenches": (
        "inverse_dynamics",
        "tau",
        lambda robot: robot.inverse_dynamics(Z(9), Z(9), Z(9), wrenches=Wrench("panda_hand", force=Z((5, 3)))),
    ),
    "a batch of robots": (
        "gravity_forces",
        "forces",
        lambda robot: robot.gravity_forces(Z(9), overlay=Overlay(payloads=Payload("panda_hand", mass=np.ones(4)))),
    ),
    "a batch of links": (
        "point_motion",
        "position",
        lambda r: r.point_motion(Z(9), Z(9), ["panda_hand", "panda_link1"]),
    ),
    "what is constant": ("neutral", "q", lambda robot: robot.neutral()),
    "a motion": ("simulate", "v", lambda robot: robot.simulate(Z(9), Z(9), Z((3, 9)), dt=1e-3, steps=3)),
    "a batch of motions": ("simulate", "v", lambda robot: robot.simulate(Z((2, 9)), Z(9), dt=1e-3, steps=3)),
    "contacts": ("contact_dynamics", "forces", lambda robot: robot.contact_dynamics(Z(9), Z(9), Z(9), HAND)),
}


@pytest.mark.parametrize("change", [turned, not_finite])
@pytest.mark.parametrize("name", ASKED)
def test_invalid_answers_of_each_kind_raise(panda: Robot, name: str, change: Callable[[str], Change]) -> None:
    query, output, ask = ASKED[name]
    text = "with shape" if change is turned else "with a number that is not finite"
    for error in refusals(panda, query, change(output), ask):
        assert f"{query} returns {output} {text}" in error


def test_the_number_of_names_is_checked(panda: Robot) -> None:
    def change(outputs: dict[str, Any]) -> None:
        outputs["links"] = outputs["links"][:-1]

    links = len(panda.link_names)
    for error in refusals(panda, "link_poses", change, lambda robot: robot.link_poses(Z(9))):
        assert unnamed(error, "link_poses", f"{links - 1} names", links) == []


def test_residuals_of_formulations_are_checked(pendulum: Robot) -> None:
    def change(outputs: dict[str, Any]) -> None:
        outputs[next(iter(outputs))] = array(np.nan)

    for error in refusals(pendulum, "verify", change, lambda robot: robot.verify(Z(1), Z(1), Z(1))):
        assert "with a number that is not finite" in error


@pytest.mark.parametrize(
    ("part", "value"), [("nv", 8), ("nq", -9), ("link_names", ["panda_link0"])], ids=["nv", "nq", "link_names"]
)
def test_inconsistent_descriptions_raise(panda: Robot, part: str, value: Any) -> None:
    for error in refusals(
        panda, "describe_robot", lambda outputs: outputs.__setitem__(part, value), lambda robot: robot
    ):
        assert "the server's description of the robot is invalid" in error


def test_on_the_command_line(pendulum: Robot, dyn_here: Here) -> None:  # noqa: F811
    with Impostor(Liar(pendulum, "gravity_forces", put("forces", Z((3, 1))))) as impostor:
        status, out, err = dyn_here("call", "gravity_forces", "q=0.5", "--server", impostor.endpoint, "--timeout", 60)
    assert (status, out) == (1, "")
    assert unnamed(err, "gravity_forces", "(3, 1)", "(1,)") == []


def test_array_inputs_have_one_axis() -> None:
    """Array inputs of queries have one axis; each further axis is one of a batch."""
    for row in QUERIES.values():
        arrays = [
            spec for spec in row.inputs.values() if spec.kind not in ("wrenches", "overlay", "link", "directions")
        ]
        assert all(len(spec.shape) == 1 for spec in arrays), row.name


def test_a_state_with_gains_takes_the_fast_path(panda: Robot) -> None:
    """Checking a reply adds no more than a few function calls to the common call."""
    row, q = QUERIES["computed_torque"], np.zeros(9)
    inputs = pack_inputs({"q": q, "v": q, "q_ref": q, "v_ref": q, "a_ref": q, "kp": 100.0, "kd": 20.0}, row)
    assert leading(row, inputs) == ()
    assert calls_of(lambda: leading(row, inputs)) <= 12
    batch = pack_inputs({"q": np.zeros((4, 9)), "v": q, "q_ref": q, "v_ref": q, "a_ref": q, "kp": 100.0}, row)
    assert leading(row, batch) == (4,)


def test_wrenches_and_overlays_of_a_state_add_few_calls(panda: Robot) -> None:
    """To the request, and to the check of the reply's shape."""
    row, remote, q = QUERIES["inverse_dynamics"], RemoteRobotProperties(panda.description), np.zeros(9)
    push, load = Wrench("panda_hand", force=(0.0, 0.0, -1.0)), Overlay(Payload("panda_hand", 1.0))
    optional_inputs = {"wrenches": [push], "overlay": load}
    optional = tuple(
        optional_inputs.get(name, default)
        for name, default in zip(row.optional_arguments, row.argument_defaults, strict=True)
    )
    request = query_request(remote, row, (q, q, q), optional)
    assert leading(row, request.inputs) == ()
    assert calls_of(lambda: leading(row, request.inputs)) <= 8
    plain = calls_of(lambda: query_request(remote, row, (q, q, q), row.argument_defaults))
    assert calls_of(lambda: query_request(remote, row, (q, q, q), optional)) <= plain + 14
    for batch in (
        {"wrenches": [Wrench("panda_hand", np.zeros((2, 3)))]},
        {"overlay": Overlay(gravity=np.ones((2, 3)))},
    ):
        assert leading(row, pack_inputs(optional_inputs | batch, row)) == (2,)
