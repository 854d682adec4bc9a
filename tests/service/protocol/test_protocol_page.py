"""The client, golden bytes and figures of `docs/protocol.md`, and all of `docs/queries.md`, agree with the code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot, Server
from dyn_service.service.protocol.arrays import DTYPES
from dyn_service.service.protocol.limits import (
    DEFAULT_ENDPOINT,
    MAX_DIMENSIONS,
    MAX_ENTRIES,
    MAX_LIST,
    MAX_MAP,
    MAX_NESTING,
    RequestLimits,
)
from dyn_service.service.server.answering.plan import SLOW_BYTES
from tests.conftest import ROOT
from tests.service.protocol.test_golden_bytes import GOLDEN
from tools.protocol_reference import render

PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_reference_is_up_to_date() -> None:
    page = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
    assert page == render(), "run python -m tools.protocol_reference docs/queries.md"


def test_bytes_are_the_golden_ones() -> None:
    for name in ("request", "reply"):
        assert (GOLDEN / f"{name}.hex").read_text() in PAGE


def test_minimal_client_works(tcp_server: Server, pendulum: Robot) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert set(re.findall(r"^import (\w+)", code, re.MULTILINE)) == {"itertools", "struct", "msgpack", "zmq"}
    patient = code.replace("1000", "30000")  # ms: its time limits are for a machine that is not busy
    space: dict[str, Any] = {}
    exec(compile(patient, "docs/protocol.md", "exec"), space)
    client = space["MinimalClient"](tcp_server.endpoints[0])
    try:
        for q in (0.5, -1.0):
            (forces,) = client.ask("gravity_forces", "pendulum", q=space["array"]([q]))["forces"]
            assert forces == pendulum.gravity_forces(np.array([q]))[0]
        outputs = client.ask("inverse_dynamics_regressor", "pendulum", q=[[0.5], [0.6]], v=[0.1], a=[0.2])
        regressor = pendulum.inverse_dynamics_regressor([[0.5], [0.6]], [0.1], [0.2])
        assert outputs["regressor"] == regressor.regressor.tolist()
        assert outputs["parameters"] == list(regressor.parameters)
        assert client.ask("energy", "pendulum", q=[0.5], v=[0.1])["kinetic"] == pendulum.energy([0.5], [0.1]).kinetic
        assert client.ask("health")["status"] == "ok"
        with pytest.raises(RuntimeError, match="NOT_FOUND: there is no robot 'r2d2'"):
            client.ask("gravity_forces", "r2d2", q=space["array"]([0.0]))
    finally:
        client.socket.close()


def test_figures_are_those_of_the_code() -> None:
    limits = RequestLimits()
    for text in (
        f"{limits.max_message_bytes >> 20} MiB",
        f"{MAX_LIST} entries, {MAX_MAP} entries",
        f"{MAX_ENTRIES} entries",
        f"{MAX_NESTING} levels; arrays {MAX_DIMENSIONS} dimensions",
        f"{SLOW_BYTES >> 10} KiB",
        f"{limits.max_waiting} of them may wait",
        DEFAULT_ENDPOINT,
        *(f"`{dtype}`" for dtype in DTYPES),
    ):
        assert text in PAGE, text


def test_every_limit_is_listed_with_its_default() -> None:
    rows = re.findall(r"^\| (`max_[^|]*) \|[^|]*\| ([^|]*) \|$", PAGE, re.MULTILINE)
    defaults_listed = {}
    for names, defaults in rows:
        defaults_listed |= dict(zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=True))
    limits = RequestLimits()
    assert defaults_listed == {name: str(getattr(limits, name)) for name in RequestLimits.__struct_fields__}
