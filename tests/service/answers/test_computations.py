"""Verification, simulation and gait through the service: the same answers as in this process, and typed refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service import AsyncClient, Client, Robot, Server
from dyn_service.errors import InvalidArgumentError
from dyn_service.formulations import segments
from dyn_service.service.client.flows import Ask, read_arrays
from tests.conftest import URDF
from tests.phrases import unnamed
from tests.service.conftest import array, request


def start(robot: Robot, *lead: int) -> tuple[np.ndarray, np.ndarray]:
    q, v = 0.2 * np.random.default_rng(0).normal(size=(2, *lead, robot.nv))
    return q, v


@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_verify(scara: Robot, client: Client, lead: tuple[int, ...]) -> None:
    q, v, a = np.random.default_rng(1).normal(size=(3, *lead, scara.nv))
    local, remote = scara.verify(q, v, a, gravity=(0, 1, -9)), client.robot("scara").verify(q, v, a, gravity=(0, 1, -9))
    assert local.keys() == remote.keys()
    for name, residual in local.items():
        np.testing.assert_array_equal(remote[name], residual)
        assert np.all(remote[name] < 1e-12)


@pytest.mark.parametrize("query", ["forward_dynamics", "gravity_forces", "constraint_forces", "mass_matrix"])
def test_verify_as_an_option_of_any_query(scara_server: Server, bare: Callable[..., Any], query: str) -> None:
    inputs = {name: array([0.1, 0.2, 0.3, 0.4]) for name in ("q", "v", "tau")}
    accepted_inputs = {"gravity_forces": {"q"}, "mass_matrix": {"q"}}.get(query, {"q", "v", "tau"})
    message = request(
        query, "scara", inputs={n: x for n, x in inputs.items() if n in accepted_inputs}, options={"verify": True}
    )
    reply = bare(scara_server.endpoints[0]).ask(message)
    assert reply["ok"]
    assert len(reply["residuals"]) == 14
    assert max(reply["residuals"].values()) < 1e-12
    assert "residuals" not in bare(scara_server.endpoints[0]).ask({**message, "options": {}})


def test_verify_with_a_wrench(scara_server: Server, bare: Callable[..., Any]) -> None:
    """The efforts and the wrench make the motion at which the formulations are compared."""
    inputs = {name: array([0.1, 0.2, 0.3, 0.4]) for name in ("q", "v", "tau")}
    link = Robot.from_urdf(URDF / "scara.urdf").link_names[-1]
    inputs["wrenches"] = {"link": link, "force": [1.0, 2.0, 3.0]}
    reply = bare(scara_server.endpoints[0]).ask(
        request("forward_dynamics", "scara", inputs=inputs, options={"verify": True})
    )
    assert max(reply["residuals"].values()) < 1e-12


def test_verify_must_be_true_or_false(scara_server: Server, bare: Callable[..., Any]) -> None:
    reply = bare(scara_server.endpoints[0]).ask(
        request("gravity_forces", "scara", inputs={"q": array([0.0] * 4)}, options={"verify": "yes"})
    )
    assert (reply["error"]["code"], reply["error"]["path"]) == ("INVALID_ARGUMENT", "options.verify")
    assert reply["error"]["message"].startswith("verify must be true or false, found ")


SIMULATIONS: list[dict[str, Any]] = [
    {"dt": 1e-3, "steps": 1},
    {"dt": 1e-3, "steps": 5000, "every": 7},
    {"dt": 1e-3, "steps": 100, "tau": np.ones((100, 4))},
    {"dt": 1e-3, "steps": 100, "tau": [1.0, 2.0, 30.0, 0.1], "method": "mass_matrix"},
    {
        "dt": 1e-3,
        "steps": 30,
        "tau": lambda t, q, v: 0.1 * np.cos(50.0 * t + q),
        "every": 3,
        "integrator": "semi_implicit_euler",
    },
    {"dt": 1e-2, "steps": 20, "integrator": "adaptive", "gravity": (0.0, 0.0, -1.6)},
    {"dt": 1e-3, "steps": 5, "every": 9},
]


@pytest.mark.parametrize("lead", [(), (2,)], ids=str)
@pytest.mark.parametrize("arguments", SIMULATIONS, ids=range(len(SIMULATIONS)))
def test_simulate_part_by_part_is_the_whole(
    scara: Robot, client: Client, arguments: dict[str, Any], lead: tuple[int, ...]
) -> None:
    local = scara.simulate(*start(scara, *lead), **arguments)
    remote = client.robot("scara").simulate(*start(scara, *lead), **arguments)
    np.testing.assert_array_equal(remote.q, local.q)
    np.testing.assert_array_equal(remote.v, local.v)
    np.testing.assert_allclose(remote.t, local.t, rtol=1e-15)


def test_simulate_asynchronously(scara: Robot, scara_server: Server) -> None:
    seen: list[float] = []

    async def run() -> np.ndarray:
        client = AsyncClient(scara_server.endpoints[0], timeout_s=240.0)
        robot = await client.robot("scara")
        motion = await robot.simulate(*start(scara), dt=1e-3, steps=4500, progress=seen.append)
        residuals = await robot.verify(*start(scara), np.zeros(4))
        await client.close()
        assert len(residuals) == 14
        return motion.q

    np.testing.assert_array_equal(asyncio.run(run()), scara.simulate(*start(scara), dt=1e-3, steps=4500).q)
    assert len(seen) > 2
    assert seen[-1] == 1.0


REFUSALS = [
    ({"dt": -1.0, "steps": 2}, "dt", "dt must be a positive time in s, found -1.0"),
    ({"dt": 1.0, "steps": 1, "integrator": 3}, "integrator", "integrator must be one of auto, rk4, "),
    (
        {"dt": 1.0, "steps": 1, "tau": np.zeros(3)},
        "tau",
        "tau has shape (3,), expected (4,), (..., 1, 4) or a function",
    ),
    # Of 5000 steps these go in parts; the length of a part must not pass for that of the motion.
    (
        {"dt": 1e-3, "steps": 5000, "tau": np.zeros((2000, 4))},
        "tau",
        "tau has shape (2000, 4), expected (4,), (..., 5000, 4) or a function",
    ),
]


@pytest.mark.parametrize(("arguments", "path", "message"), REFUSALS)
def test_refused_simulations(
    scara: Robot, client: Client, arguments: dict[str, Any], path: str, message: str | None
) -> None:
    with pytest.raises(InvalidArgumentError) as excinfo:
        client.robot("scara").simulate(*start(scara), **arguments)
    assert excinfo.value.path == path
    assert message is None or str(excinfo.value).startswith(message)


def test_too_many_steps_in_one_request(scara_server: Server, bare: Callable[..., Any]) -> None:
    inputs = {name: array([0.0] * 4) for name in ("q", "v")}
    reply = bare(scara_server.endpoints[0]).ask(
        request("simulate", "scara", inputs=inputs, options={"dt": 1e-3, "steps": 20001})
    )
    assert reply["error"] == {
        "code": "RESOURCE_EXHAUSTED",
        "type": "ResourceExhaustedError",
        "message": "simulate asks for one state and 20001 steps; the limit is 20000 steps in one request, continue "
        "from the last state in the next",
        "path": "options.steps",
    }


@pytest.mark.parametrize("method", ["recursion", "matrix"])
def test_segment_inverse_dynamics(client: Client, method: str) -> None:
    rng = np.random.default_rng(0)
    frames, n = 5, 3
    rotation = np.linalg.qr(rng.normal(size=(frames, n, 3, 3)))[0]
    arguments = {
        "mass": rng.uniform(1, 5, n),
        "inertia": np.tile(np.eye(3), (n, 1, 1)) * 0.1,
        "rotation": rotation * np.sign(np.linalg.det(rotation))[..., None, None],
        "ground_force": rng.normal(size=(frames, 3)),
    }
    for name in ("acceleration", "omega", "omega_dot", "proximal", "distal"):
        arguments[name] = rng.normal(size=(frames, n, 3))
    local, remote = (
        segments.inverse_dynamics(**arguments, method=method),
        client.segment_inverse_dynamics(**arguments, method=method),
    )
    np.testing.assert_array_equal(remote.force, local.force)
    np.testing.assert_array_equal(remote.moment, local.moment)

    async def awaited() -> Any:
        async with AsyncClient(client.endpoint, timeout_s=240.0) as other:
            return await other.segment_inverse_dynamics(**arguments, method=method)

    np.testing.assert_array_equal(asyncio.run(awaited()).moment, local.moment)


def test_segment_matrices_and_outer_loads(client: Client) -> None:
    """The same to the last bit, both ways of asking; loads from outside on any segment are plain inputs."""
    rng = np.random.default_rng(1)
    frames, n = 4, 2
    arguments = {name: rng.normal(size=(frames, n, 3)) for name in ("acceleration", "omega", "omega_dot", "proximal")}
    arguments |= {
        "mass": rng.uniform(1, 5, (frames, n)),  # of several people: leading axes, as of every input
        "inertia": np.eye(3) * rng.uniform(0.1, 0.2, (frames, n, 1, 1)),
        "gravity": rng.normal(size=(frames, 3)),
        "rotation": np.linalg.qr(rng.normal(size=(frames, n, 3, 3)))[0],
        "distal": rng.normal(size=(frames, n, 3)),
        "external_force": rng.normal(size=(frames, n, 3)),
        "external_moment": rng.normal(size=(n, 3)),
        "external_point": [0.1, 0.0, -0.2],
    }
    for method in ("recursion", "matrix"):
        local = segments.inverse_dynamics(**arguments, method=method)
        remote = client.segment_inverse_dynamics(**arguments, method=method)
        np.testing.assert_array_equal(remote.force, local.force)
        np.testing.assert_array_equal(remote.moment, local.moment)

    async def awaited() -> Any:
        async with AsyncClient(client.endpoint, timeout_s=240.0) as other:
            return await other.segment_matrices(**arguments)

    expected = segments.matrices(**arguments)
    for matrices in (client.segment_matrices(**arguments), asyncio.run(awaited())):
        for name in expected._fields:
            np.testing.assert_array_equal(getattr(matrices, name), getattr(expected, name), err_msg=name)
    with pytest.raises(TypeError, match="'speed'"):
        client.segment_matrices(**arguments, speed=1.0)
    with pytest.raises(InvalidArgumentError, match="segment_matrices has no input 'speed'"):
        read_arrays(client.ask(Ask("segment_matrices", inputs={"speed": 1.0})))


def test_segments_without_an_input(client: Client) -> None:
    with pytest.raises(TypeError, match="'inertia'"):
        client.segment_inverse_dynamics(mass=[1.0])  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError) as excinfo:
        read_arrays(client.ask(Ask("segment_inverse_dynamics", inputs={"mass": [1.0]})))
    assert unnamed(excinfo.value, "segment_inverse_dynamics", "'inertia'") == []
