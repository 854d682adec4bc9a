"""Simulations over the wire: whatever is asked, and however it is cut, the motion is that of a robot here."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service import AsyncClient, Client, Payload, Robot, Server, Wrench
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.simulation import parts as client_motion
from tests.phrases import naming
from tests.service.conftest import array, floating, request
from tests.trees import configuration
from tests.wide import wide

ALL = ["rk4", "semi_implicit_euler", "explicit_euler", "implicit_midpoint", "adaptive"]
METHODS = ["articulated", "mass_matrix"]
STEPS = 16
SAMPLES = np.random.default_rng(1).normal(size=(STEPS, 4)) * [10.0, 5.0, 40.0, 1e-3]
FORCES = np.random.default_rng(2).normal(size=(STEPS, 3)) * 20.0
BRICK = Payload("quill", 1.5, com=(0.05, 0.0, -0.1), inertia=np.diag([0.01, 0.02, 0.02]))


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of at most 5 steps, so that 16 steps take four."""
    monkeypatch.setattr(client_motion, "PART_STEPS", 5)
    monkeypatch.setattr(client_motion, "SEARCHING_STEPS", 5)


def start(robot: Robot, *lead: int) -> tuple[np.ndarray, np.ndarray]:
    q, v = 0.3 * np.random.default_rng(0).normal(size=(2, *lead, robot.nv))
    return q, v


def feedback(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
    return [5.0, 5.0, 20.0, 1e-3] * np.cos(100.0 * t + q) - [1.0, 1.0, 1.0, 1e-5] * v


def pushing(t: float, q: np.ndarray, v: np.ndarray) -> list[Wrench]:
    force = 10.0 * np.stack([np.cos(50.0 * t + q[..., 0]), v[..., 1], q[..., 1]], axis=-1)
    return [Wrench("outer_link", force=force, point=(0.1, 0.0, 0.0)), Wrench("quill", torque=(0.1, 0.2, 1e-3))]


LOADS: dict[str, dict[str, Any]] = {
    "none": {},
    "constant": {"tau": SAMPLES[0], "wrenches": Wrench("outer_link", force=FORCES[0], frame="outer_link")},
    "samples": {"tau": SAMPLES, "wrenches": [Wrench("outer_link", force=FORCES, point=FORCES[:1] / 100.0)]},
    "function": {"tau": feedback},
    "functions": {"tau": feedback, "wrenches": pushing, "payload": BRICK, "gravity": (0.0, 1.0, -5.0)},
    "samples and a function": {"tau": SAMPLES, "wrenches": pushing},
    "payload": {"tau": SAMPLES[0], "payload": BRICK},
}


def steps_of(integrator: str, loads: str) -> int:
    """With adaptive steps and a function the client integrates, by a request for each stage: in one part."""
    return 4 if integrator == "adaptive" and loads == "functions" else STEPS


def same(remote: Any, local: Any) -> None:
    for name in ("t", "q", "v", "p"):
        if getattr(local, name) is None:
            assert getattr(remote, name) is None
        else:
            np.testing.assert_array_equal(getattr(remote, name), getattr(local, name), err_msg=name)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize(
    ("method", "loads"),
    wide(
        itertools.product(METHODS, LOADS),
        lambda case: case[0] == "articulated" or case[1] in ("samples", "samples and a function"),
    ),
)
@pytest.mark.parametrize("integrator", ALL)
def test_remote_motions_are_local_ones_to_the_last_bit(
    scara: Robot, client: Client, integrator: Any, method: Any, loads: str
) -> None:
    steps = steps_of(integrator, loads)
    options: dict[str, Any] = {"dt": 1.3e-3, "steps": steps, "integrator": integrator, "method": method, "every": 2}
    arguments = {**options, **LOADS[loads]}
    same(client.robot("scara").simulate(*start(scara), **arguments), scara.simulate(*start(scara), **arguments))


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("loads", ["constant", "samples", "functions"])
@pytest.mark.parametrize("integrator", ALL)
def test_batches_too(scara: Robot, client: Client, integrator: Any, loads: str) -> None:
    steps = steps_of(integrator, loads)
    arguments: dict[str, Any] = {"dt": 1e-3, "steps": steps, "integrator": integrator, **LOADS[loads]}
    local = scara.simulate(*start(scara, 2, 3), **arguments)
    assert local.q.shape == (2, 3, steps + 1, 4)
    same(client.robot("scara").simulate(*start(scara, 2, 3), **arguments), local)


@pytest.mark.parametrize("integrator", ALL)
def test_long_motions(scara: Robot, client: Client, integrator: Any) -> None:
    """Beyond the steps of one request as clients really cut them."""
    steps = 4500 if integrator not in ("adaptive", "implicit_midpoint") else 450
    tau = 0.01 * np.random.default_rng(5).normal(size=(steps, 4)) * [10.0, 5.0, 40.0, 1e-3]
    arguments: dict[str, Any] = {"dt": 1e-3, "steps": steps, "integrator": integrator, "every": 100}
    same(
        client.robot("scara").simulate(*start(scara), tau, **arguments), scara.simulate(*start(scara), tau, **arguments)
    )


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("integrator", ALL)
def test_remote_motions_go_on(scara: Robot, client: Client, integrator: Any) -> None:
    options: dict[str, Any] = {"dt": 1e-3, "integrator": integrator}
    whole = scara.simulate(*start(scara), feedback, steps=20, **options)
    p0 = None if whole.p is None else whole.p[10]
    part = client.robot("scara").simulate(whole.q[10], whole.v[10], feedback, steps=10, p0=p0, first_step=10, **options)
    np.testing.assert_array_equal(part.q, whole.q[10:])
    np.testing.assert_array_equal(part.v, whole.v[10:])
    np.testing.assert_array_equal(part.t, whole.t[10:])


@pytest.mark.parametrize("integrator", ALL)
def test_fewer_steps_than_are_recorded(scara: Robot, client: Client, integrator: Any) -> None:
    arguments: dict[str, Any] = {"dt": 1e-3, "steps": 5, "every": 9, "integrator": integrator, "first_step": 4}
    local = scara.simulate(*start(scara, 2), **arguments)
    assert local.q.shape == (2, 1, 4)
    assert local.t.tolist() == [0.004]
    same(client.robot("scara").simulate(*start(scara, 2), **arguments), local)


@pytest.mark.parametrize("tau", [None, feedback], ids=["none", "function"])
@pytest.mark.parametrize("integrator", ["rk4", "adaptive"])
def test_fewer_steps_asynchronously(scara: Robot, scara_server: Server, integrator: Any, tau: Any) -> None:
    """With adaptive steps and a function there is nothing to ask the server at all."""
    arguments: dict[str, Any] = {"dt": 1e-3, "steps": 2, "every": 5, "integrator": integrator}

    async def run() -> Any:
        async with AsyncClient(scara_server.endpoints[0], timeout_s=240.0) as client:
            return await (await client.robot("scara")).simulate(*start(scara), tau, **arguments)

    same(asyncio.run(run()), scara.simulate(*start(scara), tau, **arguments))


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("loads", ["samples", "functions"])
@pytest.mark.parametrize("integrator", ["rk4", "implicit_midpoint", "adaptive"])
def test_asynchronously(scara: Robot, scara_server: Server, integrator: Any, loads: str) -> None:
    arguments: dict[str, Any] = {
        "dt": 1e-3, "steps": steps_of(integrator, loads), "integrator": integrator, **LOADS[loads],
    }  # fmt: skip

    async def run() -> Any:
        async with AsyncClient(scara_server.endpoints[0], timeout_s=240.0) as client:
            robot = await client.robot("scara")
            return await robot.simulate(*start(scara), **arguments)

    same(asyncio.run(run()), scara.simulate(*start(scara), **arguments))


def jolt(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.array([0.0, 1e180 if t > 0.0115 else 0.0, 0.0, 0.0])


def nothing(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.array([0.0, 0.0, np.inf if t > 0.0115 else 0.0, 0.0])


JOLTS = np.zeros((STEPS, 4))
JOLTS[12:, 1] = 1e180


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize(
    ("method", "tau"),
    wide(itertools.product(METHODS, (jolt, nothing, JOLTS)), lambda case: case[0] == "articulated" or case[1] is JOLTS),
)
@pytest.mark.parametrize("integrator", ALL)
def test_divergence_is_told_alike(scara: Robot, client: Client, integrator: Any, method: Any, tau: Any) -> None:
    """The first step that is not finite, its time and its joint, in the third request as in one piece."""
    arguments: dict[str, Any] = {"dt": 1e-3, "steps": STEPS, "integrator": integrator, "method": method}
    messages = []
    for robot in (scara, client.robot("scara")):
        with pytest.raises(
            FailedPreconditionError, match=naming(re.compile("step 1[1234]"), re.compile(r"t = 0\.01\d* s"))
        ) as excinfo:
            robot.simulate(*start(scara), tau, **arguments)
        messages.append(str(excinfo.value))
    assert messages[1] == messages[0]


REFUSALS: list[tuple[dict[str, Any], type[DynError], str, str]] = [
    ({"wrenches": Wrench("hand")}, NotFoundError, "inputs.wrenches[0].link", "robot 'scara' has no link 'hand'"),
    ({"payload": Payload("hand", 1.0)}, NotFoundError, "inputs.payload.link", "robot 'scara' has no link 'hand'"),
    (
        {"payload": Payload("quill", -1.0)},
        InvalidArgumentError,
        "inputs.payload.mass",
        "payload.mass must be a mass of at least 0 kg, found -1",
    ),
    ({"payload": 3}, InvalidArgumentError, "inputs.payload", "payload must be a Payload, found int"),
    ({"wrenches": "push"}, InvalidArgumentError, "wrenches", "wrenches must be a Wrench, a list of them or a function"),
    ({"p0": np.zeros(4)}, InvalidArgumentError, "p0", "p0 needs the integrator implicit_midpoint, found auto"),
    ({"method": "magic"}, InvalidArgumentError, "method", "method must be one of articulated, mass_matrix"),
]


@pytest.mark.parametrize(("arguments", "kind", "path", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_refusals(
    scara: Robot, client: Client, arguments: dict[str, Any], kind: type[DynError], path: str, message: str
) -> None:
    with pytest.raises(kind) as excinfo:
        client.robot("scara").simulate(*start(scara), dt=1e-3, steps=2, **arguments)
    assert excinfo.value.path == path
    assert str(excinfo.value).startswith(message)


def test_the_first_request_holds_nothing_that_older_servers_refuse() -> None:
    joints = configuration(["a", "b", "c", "d"], ["revolute", "continuous", "prismatic", "revolute"])
    asking = client_motion.simulate(joints, np.zeros(4), np.zeros(4), None, dt=1e-3, steps=10)
    inputs, options = next(asking)
    assert {name for name, value in inputs.items() if value is not None} == {"q", "v"}
    assert set(options) == {"dt", "steps", "every", "method"}


BARE: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({}, {"integrator": 3}, "options.integrator", "integrator must be 'auto' or 'rk4'"),
    ({}, {"speed": 3}, "options.speed", "simulate has no option 'speed'"),
    ({"wrench": []}, {}, "inputs.wrench", "simulate has no input 'wrench'"),
    ({}, {"first_step": -1}, "options.first_step", "first_step must be a whole number, at least 0, found int -1"),
    ({}, {"steps": -1}, "options.steps", "steps must be a whole number, at least 0, found int -1"),
    ({"payload": 3.0}, {}, "inputs.payload", "payload must be a map with link and mass, found a float"),
    (
        {"payload": {"link": "quill", "mass": 1.0, "cog": [0, 0, 0]}},
        {},
        "inputs.payload",
        "payload has no 'cog'; did you mean 'com'?",
    ),
    ({"payload": {"mass": 1.0}}, {}, "inputs.payload.link", "payload.link must be a name, found nil"),
    (
        {"payload": {"link": "quill", "mass": "1"}},
        {},
        "inputs.payload.mass",
        "payload.mass must be real numbers, found a string",
    ),
]


@pytest.mark.parametrize(("inputs", "options", "path", "message"), BARE, ids=range(len(BARE)))
def test_bare_requests_are_refused_by_name(
    scara_server: Server,
    bare: Callable[..., Any],
    inputs: dict[str, Any],
    options: dict[str, Any],
    path: str,
    message: str,
) -> None:
    state = {name: array([0.1, 0.2, 0.3, 0.4]) for name in ("q", "v")}
    payload = request("simulate", "scara", inputs={**state, **inputs}, options={"dt": 1e-3, "steps": 2, **options})
    error = bare(scara_server.endpoints[0]).ask(payload)["error"]
    assert (error["code"], error["path"]) == ("INVALID_ARGUMENT", path)
    assert error["message"].startswith(message)


def test_no_steps_are_accelerations(scara: Robot, scara_server: Server, bare: Callable[..., Any]) -> None:
    """As a client in another language asks for them, with a payload and a wrench."""
    state = {name: array([0.1, 0.2, 0.3, 0.4]) for name in ("q", "v", "tau")}
    payload = {"link": "quill", "mass": 1.5, "com": [0.05, 0.0, -0.1]}
    wrench = {"link": "outer_link", "force": [1.0, 2.0, 3.0]}
    for method in METHODS:
        message = request(
            "simulate",
            "scara",
            inputs={**state, "payload": payload, "wrenches": wrench, "gravity": [0.0, 1.0, -9.0]},
            options={"dt": 1e-3, "steps": 0, "method": method},
        )
        reply = bare(scara_server.endpoints[0]).ask(message)
        assert set(reply["outputs"]) == {"a", "finite"}
        expected = scara.with_payload(Payload("quill", 1.5, (0.05, 0.0, -0.1))).forward_dynamics(
            *([0.1, 0.2, 0.3, 0.4],) * 3,
            gravity=(0.0, 1.0, -9.0),
            wrenches=Wrench("outer_link", force=(1.0, 2.0, 3.0)),
            method=method,  # type: ignore[arg-type]
        )
        np.testing.assert_array_equal(np.frombuffer(reply["outputs"]["a"]["data"]), expected)


class Enough(Exception):
    """Raised by a caller to stop a simulation."""


def enough(share: float) -> None:
    if share >= 0.5:
        raise Enough


@pytest.mark.parametrize("place", ["here", "remote", "awaited"])
def test_what_progress_raises_ends_the_motion(scara: Robot, client: Client, place: str) -> None:
    """And what comes after it is as if the motion had not been."""
    q, zeros = np.full(4, 0.1), np.zeros(4)
    arguments = {"dt": 1e-3, "steps": 6000, "every": 10, "progress": enough}

    async def awaited() -> None:
        async with AsyncClient(client.endpoint, timeout_s=240.0) as other:
            robot = await other.robot("scara")
            with pytest.raises(Enough):
                await robot.simulate(q, zeros, **arguments)
            assert (await robot.mass_matrix(q)).tobytes() == scara.mass_matrix(q).tobytes()

    if place == "awaited":
        asyncio.run(awaited())
    else:
        robot = scara if place == "here" else client.robot("scara")
        with pytest.raises(Enough):
            robot.simulate(q, zeros, **arguments)
        assert robot.mass_matrix(q).tobytes() == scara.mass_matrix(q).tobytes()


def test_adaptive_motion_of_quaternions_by_a_function() -> None:
    """Stages of a step have quaternions off the unit sphere; a control law receives unit ones, locally and remotely."""
    robot = floating()
    q, v, seen = robot.neutral(), np.full(robot.nv, 1.5), []

    def drag(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        seen.append(np.linalg.norm(q[3:7]))
        return -0.1 * v

    arguments: dict[str, Any] = {"dt": 0.05, "steps": 2, "integrator": "adaptive"}
    with (
        Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server,
        Client(server.endpoints[0], timeout_s=240.0) as client,
    ):
        remote = client.robot(robot.name).simulate(q, v, drag, **arguments)
    local = robot.simulate(q, v, drag, **arguments)
    np.testing.assert_array_equal(remote.q, local.q)
    np.testing.assert_array_equal(remote.v, local.v)
    assert np.abs(np.array(seen) - 1.0).max() < 1e-15
