"""The robot and both clients reject the same inputs that are not real numbers, with the same message."""

from __future__ import annotations

import asyncio
from datetime import datetime
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dyn_service import AsyncClient, Client, InvalidArgumentError, Payload, Robot, Server

NV = 9
MASKED = np.ma.MaskedArray(np.zeros(NV), mask=[True] + [False] * (NV - 1))

REFUSED: dict[str, Any] = {
    "masked": MASKED,
    "masked batch": np.ma.MaskedArray(np.zeros((2, NV)), mask=np.eye(2, NV)),
    "list of masked": [MASKED, np.zeros(NV)],
    "masked entry": [np.ma.masked, *np.zeros(NV - 1)],
    "bool": np.zeros(NV, dtype=bool),
    "bool batch": np.zeros((2, NV), dtype=bool),
    "list of bool": [True] * NV,
    "object": np.zeros(NV, dtype=object),
    "complex": np.zeros(NV, dtype=complex),
    "text": np.zeros(NV, dtype="U1"),
    "list of text": ["0"] * NV,
    "bytes": np.zeros(NV, dtype="S1"),
    "datetime": np.zeros(NV, dtype="datetime64[s]"),
    "timedelta": np.zeros(NV, dtype="timedelta64[s]"),
    "list of datetime": [datetime(2026, 1, 1)] * NV,
    "list of Fraction": [Fraction(1, 2)] * NV,
    "unequal": [[0.0] * NV, [0.0] * (NV - 1)],
    "no objects": np.zeros((0, NV), dtype=object),
    "no truth values": np.zeros((0, NV), dtype=bool),
}
TAKEN: dict[str, Any] = {
    "mask without masked entries": np.ma.MaskedArray(np.full(NV, 0.25), mask=False),
    "list": [0.25] * NV,
    "integers": np.ones(NV, dtype=np.int16),
    "unsigned": np.ones(NV, dtype=np.uint8),
    "short floats": np.full(NV, 0.25, dtype=np.float32),
    "no states": np.zeros((0, NV)),
}
SAYS = {"masked": "masked entries: fill them", "bool": "of bool: convert it"}


def answers(robot: Robot, server: Server, query: str, *inputs: Any, **options: Any) -> list[Any]:
    """Returns the answer or error of `Robot`, `Client` and `AsyncClient`."""

    async def awaited() -> Any:
        async with AsyncClient(server.endpoints[0], timeout_s=60.0) as client:
            return await getattr(await client.robot(robot.name), query)(*inputs, **options)

    def remote() -> Any:
        with Client(server.endpoints[0], timeout_s=60.0) as client:
            return getattr(client.robot(robot.name), query)(*inputs, **options)

    outcomes = []
    for ask in (lambda: getattr(robot, query)(*inputs, **options), remote, lambda: asyncio.run(awaited())):
        try:
            outcomes.append(ask())
        except InvalidArgumentError as error:
            outcomes.append(error)
    return outcomes


@pytest.mark.filterwarnings("ignore:Warning. converting a masked element to nan")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("index", [0, 2])
def test_both_reject_what_is_not_a_real_number(panda: Robot, tcp_server: Server, name: str, index: int) -> None:
    inputs: list[Any] = [np.zeros(NV)] * 3
    inputs[index] = REFUSED[name]
    for error in answers(panda, tcp_server, "inverse_dynamics", *inputs):
        assert isinstance(error, InvalidArgumentError), error
        assert error.path == f"inputs.{'qva'[index]}"
        assert error.message.startswith(f"{'qva'[index]} must be real numbers")
        assert SAYS.get(name.removesuffix(" batch"), "found") in error.message


@pytest.mark.parametrize("name", TAKEN)
def test_both_accept_real_numbers(panda: Robot, tcp_server: Server, name: str) -> None:
    zero = np.zeros(NV)
    expected = panda.inverse_dynamics(np.array(TAKEN[name], dtype=np.float64), zero, zero)
    for tau in answers(panda, tcp_server, "inverse_dynamics", TAKEN[name], zero, zero):
        assert tau.shape == expected.shape
        assert tau.tobytes() == expected.tobytes()


@pytest.mark.parametrize("mass", [True, np.True_, np.ma.masked, 1j, "1"], ids=repr)
def test_no_payload_has_such_a_number(mass: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="mass"):
        Payload("panda_hand", mass)
