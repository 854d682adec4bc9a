"""Unknown fields in a request, of any number, size and position, do not change its reply."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import QUERIES, Robot, Server
from dyn_service.service.protocol.messages import ADMINISTRATION, RequestLimits
from dyn_service.service.server.answering.plan import SLOW_BYTES
from tests.conftest import URDF
from tests.service.conftest import Bare, array, eventually, request, sample
from tests.service.server.pools import handles_of, simulate
from tests.service.server.raw_peers import gauges

FORMS: dict[str, dict[str, Any]] = {
    "padded": {"x": "y" * 300},
    "crowded": {"x": [None] * 600},
    "long": {"x": b"y" * (SLOW_BYTES + 1)},
    "long and crowded": {"x": [[None] * 1000] * 3, "y": b"y" * SLOW_BYTES},
}
VARYING = ("timing", "epoch")
RECORDING = {"dt": 1e-3, "steps": 3}
INPUTS: dict[str, dict[str, Any]] = {
    "verify": {name: [0.5] for name in ("q", "v", "a")},
    "simulate": {"q": [0.5], "v": [0.0]},
    "unknown": {},
}


def written(message: dict[str, Any], form: str, *, first: bool) -> bytes:
    """The encoded request with the unknown fields of that form, before or after the known ones."""
    fields = FORMS[form]
    return msgpack.packb({**fields, **message} if first else {**message, **fields})


def comparable(reply: dict[str, Any]) -> dict[str, Any]:
    """The fields of a reply that must not depend on the request's form."""
    reply = {key: value for key, value in reply.items() if key not in VARYING}
    outputs = reply.get("outputs", {})
    return {**reply, "outputs": {key: value for key, value in outputs.items() if key != "uptime_s"}}


def asked(robot: Robot, query: str) -> dict[str, Any]:
    """A request of each kind, for one state."""
    if query in ADMINISTRATION:
        inputs: dict[str, Any] = {}
        if query == "load_robot":
            inputs = {"urdf": (URDF / "pendulum.urdf").read_text()}
        if query == "overlay_robot":
            inputs = {"overlay": {"gravity": array([0.0, 0.0, -1.6])}, "name": "on the moon"}
        return request(query, inputs=inputs or ...)
    if query in QUERIES:
        positional, by_name = sample(robot, query)
        vectors = {name: array(value) if isinstance(value, np.ndarray) else value for name, value in positional.items()}
        return request(query, inputs={**vectors, **by_name})
    options = RECORDING if query == "simulate" else {}
    return request(query, inputs=INPUTS[query], options=options or ...)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    limits = RequestLimits(max_robots=3)
    with Server([robot], endpoints=["tcp://127.0.0.1:0"], workers=2, limits=limits) as server:
        yield server


@pytest.fixture
def peer(server: Server) -> Iterator[Bare]:
    peer = Bare(server.endpoints[0])
    yield peer
    peer.close()


def counted(server: Server) -> dict[str, tuple[int, int]]:
    counts = server.service.metrics.to_dict()["requests"]
    return {
        query: (counts_of_query["answered"], counts_of_query["refused"]) for query, counts_of_query in counts.items()
    }


SOME = ["unknown", "inverse_dynamics", "mass_matrix", "link_poses", "verify", "simulate"]


@pytest.mark.parametrize("query", [name for name in ADMINISTRATION if name not in ("unload_robot", "stats")] + SOME)
def test_every_form_gets_the_same_reply(server: Server, peer: Bare, query: str) -> None:
    plain = asked(server.service.robots["pendulum"], query)
    expected = peer.ask(plain)
    if "robot" in plain and query == "describe_robot":
        expected = peer.ask(plain)
    for form in FORMS:
        for first in (True, False):
            counts_before = counted(server)
            assert comparable(peer.ask(written(plain, form, first=first))) == comparable(expected), (form, first)
            counts_after = counted(server)
            changed_names = {name for name in counts_after if counts_after[name] != counts_before.get(name, (0, 0))}
            assert changed_names == ({query} if query != "unknown" else set()), (form, first)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", [True, False])
def test_unload_in_every_form(
    server: Server, peer: Bare, form: str, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert peer.ask(asked(server.service.robots["pendulum"], "overlay_robot"))["ok"]
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="dyn.audit"):
        reply = peer.ask(written(request("unload_robot", "on the moon", inputs=...), form, first=first))
        assert reply["outputs"] == {"robot": "on the moon"}
        assert "on the moon" not in server.service.robots
        reply = peer.ask(written(request("unload_robot", "on the moon", inputs=...), form, first=first))
    plain = peer.ask(request("unload_robot", "on the moon", inputs=...))
    assert comparable(reply) == comparable(plain)
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "dyn.audit"]
    assert (lines[0]["query"], lines[0]["outcome"]) == ("unload_robot", "ok")
    assert [line["outcome"] for line in lines[1:]] in ([], ["NOT_FOUND"])  # one refusal a second, in whichever process


@pytest.mark.parametrize("form", FORMS)
def test_stats_in_every_form(server: Server, peer: Bare, form: str) -> None:
    peer.ask(request("stats", inputs=...))
    plain = peer.ask(request("stats", inputs=...))["outputs"]
    outputs = peer.ask(written(request("stats", inputs=...), form, first=True))["outputs"]
    assert outputs.keys() == plain.keys()
    assert outputs["gauges"].keys() == plain["gauges"].keys()
    assert outputs["uptime_s"] > plain["uptime_s"]
    assert outputs["counters"]["received"] > plain["counters"]["received"]
    assert outputs["requests"]["stats"]["answered"] == plain["requests"]["stats"]["answered"] + 1


@pytest.mark.parametrize("query", ["list_robots", "health", "inverse_dynamics", "unload_robot", "overlay_robot"])
@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_robot_in_every_form(server: Server, peer: Bare, form: str, query: str) -> None:
    """Queries on a robot reply with the names of the loaded robots; other queries ignore `robot`."""
    plain = {**asked(server.service.robots["pendulum"], query), "robot": "pendulun"}
    expected = comparable(peer.ask(plain))
    for first in (True, False):
        assert comparable(peer.ask(written(plain, form, first=first))) == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_cancel_in_every_form(server: Server, peer: Bare, form: str) -> None:
    """A cancel has no reply and stops the request that it names."""
    peer.send(simulate(1))
    eventually(lambda: any(worker.task is not None for worker in handles_of(server)))  # type: ignore[union-attr]
    peer.send(written({"v": 1, "id": 1, "query": "cancel"}, form, first=False))
    assert (reply := peer.receive())["id"] == 1
    assert reply["error"]["code"] == "DEADLINE_EXCEEDED"
    assert peer.ask(request("health", id=2, inputs=...))["id"] == 2


def test_a_retry_of_a_long_request_adds_no_work(server: Server, peer: Bare) -> None:
    motion = {"q": array(np.full((5_000, 1), 0.5)), "v": array(np.zeros((5_000, 1)))}
    message = request("simulate", id=1, inputs=motion, options={"dt": 1e-6, "steps": 250, "every": 250})
    count_before = counted(server).get("simulate", (0, 0))[0]
    peer.send(message)
    for retry in (1, 2):
        peer.send({**message, "retry": retry})
    peer.ask(request("health", id=2, inputs=...))
    assert gauges(server)["waiting"] == 1
    assert peer.receive()["ok"]
    assert counted(server)["simulate"][0] == count_before + 1
    assert peer.ask(request("health", id=3, inputs=...))["id"] == 3


@pytest.mark.parametrize("form", ["plain", *FORMS])
@pytest.mark.parametrize("query", ADMINISTRATION)
@pytest.mark.parametrize("part", ["input", "option"])
def test_unknown_inputs_and_options_of_administration(
    server: Server, peer: Bare, part: str, query: str, form: str
) -> None:
    """They are refused like those of other queries, in whichever process reads the request, and change nothing."""
    message = asked(server.service.robots["pendulum"], query)
    place, row = f"{part}s", ADMINISTRATION[query]
    message[place] = {**message.get(place, {}), "rooot": "floating"}
    names = row.inputs if part == "input" else row.options
    hint = f"its {place} are {', '.join(names)}" if names else "there are none"
    hint = "did you mean 'root'?" if "root" in names else hint
    robots_before = list(server.service.robots)
    error = peer.ask(message if form == "plain" else written(message, form, first=True))["error"]
    assert (error["code"], error["path"]) == ("INVALID_ARGUMENT", f"{place}.rooot")
    assert error["message"] == f"{query} has no {part} 'rooot'; {hint}"
    assert list(server.service.robots) == robots_before
