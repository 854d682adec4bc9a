"""Rheonomic motion through the service: the same answers as in this process to the last bit, with no engine needed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service import AsyncClient, Client, Robot, Server, Wrench
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.simulation import parts
from dyn_service.simulation.parts import RHEONOMIC_STEPS
from tests.conftest import ROOT, URDF
from tests.phrases import naming, unnamed
from tests.service.conftest import array, request


def swing(t: float) -> tuple[float, float, float]:
    return 0.3 * np.sin(2 * t), 0.6 * np.cos(2 * t), -1.2 * np.sin(2 * t)


def given(robot: Robot, count: int = 1) -> dict[str, Any]:
    return {robot.joint_names[k]: swing for k in (1, 3)[:count]}


PART = 16
"""Steps per request where parts are short."""
LONG = 2 * PART + 13
"""Three parts, the last one short."""
REALLY_LONG = 2 * RHEONOMIC_STEPS + 37
"""The same as clients really cut."""


def on_grid(steps: int) -> np.ndarray:
    return np.array([swing(k * 1e-3) for k in range(steps + 1)])


MOTIONS: list[dict[str, Any]] = [
    {"steps": 1},
    {"steps": LONG},
    {"steps": LONG, "every": 7, "t0": 0.4},
    {"steps": LONG, "every": PART + 11},
    {"steps": 5, "every": 9},
    {"steps": LONG, "tau": np.linspace(-1.0, 1.0, 3 * LONG).reshape(LONG, 3)},
    {"steps": LONG, "tau": np.linspace(-1.0, 1.0, 3 * LONG).reshape(LONG, 3), "every": 4},
    {"steps": 30, "tau": [1.0, 2.0, 0.1], "gravity": (0.0, 0.0, -1.6)},
    {"steps": 20, "tau": lambda t, q, v: 0.1 * np.cos(50.0 * t + q) - 1e-3 * v, "every": 3, "t0": 0.7},
    {"steps": 12, "wrenches": True},
    {"steps": PART + 20, "on grid": True},
    {
        "steps": np.int64(9),
        "dt": np.float64(1e-3),
        "every": np.int32(2),
        "first_step": np.uint8(3),
        "t0": np.float32(0.5),
    },
    {"steps": LONG, "gravity": np.array([[[0.0, 0.0, -9.81]], [[1.0, 0.0, 0.0]]])},
    {"steps": 7, "wrenches": np.array([[[1.0, 2.0, 3.0]], [[0.0, 0.0, -1.0]]])},
    {"steps": 5, "tau": lambda t, q, v: np.array([[[0.1] * 3], [[-0.2] * 3], [[t] * 3]]) - 1e-3 * v},
]


def arguments(robot: Robot, motion: dict[str, Any], *lead: int) -> dict[str, Any]:
    q0, v0 = 0.2 * np.random.default_rng(0).normal(size=(2, *lead, 3))
    options = {"prescribed": given(robot), "q0": q0, "v0": v0, "dt": 1e-3} | motion
    if options.pop("on grid", False):
        options["prescribed"] = {robot.joint_names[1]: on_grid(options["steps"])}
    if "wrenches" in options:
        force = (1.0, 2.0, 3.0) if options["wrenches"] is True else options["wrenches"]
        options["wrenches"] = [Wrench(robot.link_names[-1], force=force, point=(0.1, 0.0, 0.0))]
    return options


@pytest.mark.parametrize("lead", [(), (2,)], ids=str)
@pytest.mark.parametrize("motion", MOTIONS, ids=range(len(MOTIONS)))
def test_part_by_part_is_the_whole(
    scara: Robot, client: Client, motion: dict[str, Any], lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "RHEONOMIC_STEPS", PART)
    call = arguments(scara, motion, *lead)
    local, remote = scara.simulate_rheonomic(**call), client.robot("scara").simulate_rheonomic(**call)
    for name in ("t", "q", "v", "a", "tau"):
        np.testing.assert_array_equal(getattr(remote, name), getattr(local, name), err_msg=name)


def test_asynchronously(scara: Robot, scara_server: Server) -> None:
    seen: list[float] = []
    call = arguments(scara, {"steps": REALLY_LONG, "every": 5})

    async def run() -> Any:
        async with AsyncClient(scara_server.endpoints[0], timeout_s=240.0) as client:
            robot = await client.robot("scara")
            return await robot.simulate_rheonomic(**call, progress=seen.append)

    motion, expected = asyncio.run(run()), scara.simulate_rheonomic(**call)
    for name in ("t", "q", "v", "a", "tau"):
        np.testing.assert_array_equal(getattr(motion, name), getattr(expected, name))
    assert seen == sorted(seen)
    assert len(seen) == 3
    assert seen[-1] == 1.0


def test_nested_lists_on_the_grid_alone(scara: Robot, scara_server: Server, bare: Callable[..., Any]) -> None:
    """As a stranger would ask: rows on the grid, midpoints by the page's quintic, nothing else."""
    joint = scara.joint_names[1]
    inputs = {
        "q": [0.1, 0.2, 0.05],
        "v": [0.0, 0.1, 0.0],
        "prescribed": on_grid(4)[:, None, :].tolist(),
    }
    options = {"joints": [joint], "dt": 1e-3, "steps": 4}
    reply = bare(scara_server.endpoints[0]).ask(request("simulate_rheonomic", "scara", inputs=inputs, options=options))
    expected = scara.simulate_rheonomic({joint: on_grid(4)}, inputs["q"], inputs["v"], dt=1e-3, steps=4)
    for name in ("t", "q", "v", "a", "tau"):
        output = reply["outputs"][name]
        values = np.frombuffer(output["data"]).reshape(output["shape"])
        np.testing.assert_array_equal(values, getattr(expected, name))


def test_divergence_tells_the_true_step_and_time(scara: Robot, client: Client) -> None:
    """Beyond the first part, so that the server's own count is not the whole motion's."""

    def burst(t: float) -> tuple[float, float, float]:
        return 0.0, 0.0, 0.0 if t < 0.305 else 1e308

    call = arguments(scara, {"steps": REALLY_LONG, "prescribed": {scara.joint_names[1]: burst}, "t0": 0.0})
    messages = []
    for robot in (scara, client.robot("scara")):
        with pytest.raises(FailedPreconditionError, match="diverged before step 30") as excinfo:
            robot.simulate_rheonomic(**call)
        messages.append(str(excinfo.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("options", "inputs", "path", "values"),
    [
        ({"joints": "all"}, {}, "options.joints", ["joints", "str", "'all'"]),
        ({"joints": [3]}, {}, "options.joints", ["joints", "list", "[3]"]),
        ({"joints": ["a", "a"]}, {}, "options.joints", ["joints", "different"]),
        (
            {"steps": 20001},
            {},
            "options.steps",
            ["simulate_rheonomic", "20001", "20000"],
        ),
        ({"speed": 1.0}, {}, "options.speed", ["simulate_rheonomic", "'speed'"]),
        (
            {},
            {"prescribed": [[1.0, 2.0, 3.0]]},
            "inputs.prescribed",
            ["prescribed", "(1, 3)"],
        ),
        ({}, {"wrenches": 3}, "inputs.wrenches", ["wrenches must be a map"]),
        ({}, {"a": [1.0]}, "inputs.a", ["simulate_rheonomic", "'a'"]),
    ],
)
def test_refusals_on_the_wire(
    scara: Robot,
    scara_server: Server,
    bare: Callable[..., Any],
    options: dict[str, Any],
    inputs: dict[str, Any],
    path: str,
    values: list[str],
) -> None:
    wire_inputs = {"q": array([0.0] * 3), "v": array([0.0] * 3), "prescribed": array(np.zeros((3, 1, 3)))} | inputs
    wire_options = {"joints": [scara.joint_names[1]], "dt": 1e-3, "steps": 1} | options
    reply = bare(scara_server.endpoints[0]).ask(
        request("simulate_rheonomic", "scara", inputs=wire_inputs, options=wire_options)
    )
    assert (reply["ok"], reply["error"]["path"]) == (False, path)
    assert unnamed(reply["error"]["message"], *values) == []


def test_refusals_through_the_client(scara: Robot, client: Client) -> None:
    robot = client.robot("scara")
    with pytest.raises(NotFoundError, match="no movable joint 'wheel'"):
        robot.simulate_rheonomic(**arguments(scara, {"steps": 2, "prescribed": {"wheel": swing}}))
    with pytest.raises(InvalidArgumentError, match="dt must be a positive time"):
        robot.simulate_rheonomic(**arguments(scara, {"steps": 2, "dt": -1.0}))
    for robot_here in (scara, robot):  # as many rows as one part has steps would fit part by part
        with pytest.raises(InvalidArgumentError, match=naming(f"({RHEONOMIC_STEPS}, 3)", "tau", "(3,)")):
            robot_here.simulate_rheonomic(
                **arguments(scara, {"steps": REALLY_LONG, "tau": np.zeros((RHEONOMIC_STEPS, 3))})
            )
    with pytest.raises(InvalidArgumentError, match=r"v0 has shape \(2,\)"):
        robot.simulate_rheonomic(**arguments(scara, {"steps": 2, "v0": [0.0, 0.0]}))


def test_another_robot_of_that_name(scara: Robot, scara_server: Server, bare: Callable[..., Any]) -> None:
    message = request("simulate_rheonomic", "scara", inputs={}, options={}, model="f00")
    reply = bare(scara_server.endpoints[0]).ask(message)
    assert (reply["error"]["code"], reply["error"]["path"]) == ("FAILED_PRECONDITION", "model")


BASE_INSTALL = """
import sys
for name in ("casadi", "llvmlite", "scipy", "defusedxml", "yaml", "typer", "rich", "matplotlib"):
    sys.modules[name] = None  # what the base install leaves out cannot be imported
import math
from dyn_service import Client
from dyn_service.simulation.rheonomic import RheonomicRobot
from dyn_service.simulation import simulate
swing = lambda t: (0.3 * math.sin(2 * t), 0.6 * math.cos(2 * t), -1.2 * math.sin(2 * t))
with Client(sys.argv[1], timeout_s=240.0) as client:
    robot = client.robot("scara")
    joint = robot.joint_names[1]
    motion = RheonomicRobot(robot, {joint: swing}).simulate([0.1, 0.2, 0.05], [0.0] * 3, dt=1e-3, steps=5)
    print(*motion.q[-1].tolist(), *motion.tau[-1].tolist())
    print(*robot.simulate_rheonomic({joint: swing}, [0.1, 0.2, 0.05], [0.0] * 3, dt=1e-3, steps=5).q[-1].tolist())
    print(*simulate(robot, [0.1] * 4, [0.0] * 4, dt=1e-3, steps=3).q[-1].tolist())
"""


def test_a_base_install_is_enough(scara: Robot, scara_server: Server) -> None:
    """numpy, pyzmq, msgpack and msgspec: driven motions on the client's side, on the server's, and plain ones."""
    done = subprocess.run(
        [sys.executable, "-c", BASE_INSTALL, scara_server.endpoints[0]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    output_rows = [np.array(line.split(), dtype=float) for line in done.stdout.splitlines()]
    from dyn_service.simulation.rheonomic import RheonomicRobot

    start = [0.1, 0.2, 0.05], [0.0] * 3
    local = RheonomicRobot(scara, given(scara)).simulate(*start, dt=1e-3, steps=5)
    np.testing.assert_array_equal(output_rows[0], np.concatenate([local.q[-1], local.tau[-1]]))
    np.testing.assert_array_equal(
        output_rows[1], scara.simulate_rheonomic(given(scara), *start, dt=1e-3, steps=5).q[-1]
    )
    np.testing.assert_array_equal(output_rows[2], scara.simulate([0.1] * 4, [0.0] * 4, dt=1e-3, steps=3).q[-1])


def test_a_quaternion_that_is_none_is_refused() -> None:
    flying = Robot.from_urdf(URDF / "ur5e.urdf", root="floating")
    motions, q = {flying.joint_names[1]: np.zeros((3, 3))}, np.delete(flying.neutral(), 7)
    message = "q of joint 'root_joint' has a quaternion of length 2"
    with (
        Server([flying], endpoints=["tcp://127.0.0.1:0"]) as server,
        Client(server.endpoints[0], timeout_s=240.0) as client,
        pytest.raises(InvalidArgumentError, match=message) as excinfo,
    ):
        client.robot("ur5e").simulate_rheonomic(motions, 2 * q, np.zeros(11), dt=1e-3, steps=1)
    assert excinfo.value.path == "inputs.q"
