"""What an attack of 21 November found: each of these fails until it is mended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dyn_service import Client, Robot
from dyn_service.conventions import from_ros, to_mujoco
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.kernels.provenance import digest_of
from dyn_service.model.joints import Planar
from dyn_service.server.app import Server

URDF = Path(__file__).parents[2] / "urdf"
PLANAR = """<robot name="p"><link name="w"/><link name="b"><inertial><origin xyz="0.1 0.2 0.3"/><mass value="2"/>
<inertia ixx="0.3" iyy="0.2" izz="0.15" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="j" type="planar"><parent link="w"/><child link="b"/><axis xyz="0 {tilt} -1"/></joint></robot>"""


@pytest.mark.parametrize("tilt", [1e-2, 1e-3, 1e-5, 1e-7, 2e-8, 1.1e-8])
def test_the_axes_of_a_plane_are_orthonormal(tilt: float) -> None:
    axis = np.array([0.0, tilt, -1.0]) / np.hypot(tilt, 1.0)
    axes = np.column_stack([*Planar(axis)._plane, axis])
    np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-14)


@pytest.mark.parametrize("tilt", ["1e-5", "1e-7", "1.1e-8"])
def test_a_plane_that_looks_down_keeps_its_masses(tilt: str) -> None:
    M = Robot.from_urdf(PLANAR.format(tilt=tilt)).mass_matrix([0.3, 0.4, 0.5])
    np.testing.assert_allclose(np.diag(M)[:2], 2.0, rtol=1e-12)


@pytest.mark.parametrize("root", ["fixed", "floating"])
def test_neutral_is_the_callers_own(root: str) -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf", root=root)  # type: ignore[arg-type]
    first = robot.neutral()
    kept = first.copy()
    first += 0.5
    np.testing.assert_array_equal(robot.neutral(), kept)


@pytest.mark.parametrize("seed", range(12))
def test_a_midpoint_that_was_not_found_is_no_answer(seed: int) -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    q, v = robot.random_configuration(seed=seed), np.array([1.0] * 7 + [0.0] * 2)
    try:
        motion = robot.simulate(q, v, dt=0.25, steps=1, integrator="implicit_midpoint")
    except DynError:
        return
    assert np.isfinite(motion.v).all()
    assert np.abs(motion.q[1] - motion.q[0]).max() < 1e3


def test_remote_adaptive_motion_of_quaternions() -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf", root="floating")
    q, v = robot.neutral(), np.full(robot.nv, 1.5)
    given = {"dt": 0.05, "steps": 2, "integrator": "adaptive"}
    drag = lambda t, q, v: -0.1 * v
    with (
        Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server,
        Client(server.endpoints[0], timeout_s=20) as client,
    ):
        remote = client.robot(robot.name).simulate(q, v, drag, **given)  # type: ignore[arg-type]
    np.testing.assert_array_equal(remote.q, robot.simulate(q, v, drag, **given).q)  # type: ignore[arg-type]


CHANGES = {
    "a star": ("def f(*terms):\n    return sum(terms)\n", "def f(terms):\n    return sum(terms)\n"),
    "a text that a docstring equals": (
        'class A:\n    "xyz"\n    order = "xyz"\n',
        'class A:\n    "zyx"\n    order = "zyx"\n',
    ),
    "a name that a docstring equals": (
        'def f(a):\n    "sin"\n    return a["sin"]\n',
        'def f(a):\n    "cos"\n    return a["cos"]\n',
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_these_change_the_digest(change: tuple[str, str]) -> None:
    one, other = (digest_of(compile(text, "module.py", "exec"))[0] for text in change)
    assert one != other


def test_messages_of_ros_as_arrays() -> None:
    at = Robot.from_urdf(URDF / "ur5e.urdf").configuration
    back = from_ros(at, {"name": list(at.names), "position": np.arange(6.0), "velocity": np.zeros(6)})
    np.testing.assert_array_equal(back.q, np.arange(6.0))
    with pytest.raises(InvalidArgumentError):
        from_ros(at, {"name": list(at.names), "position": [0.1, 0.2]})


def test_mujoco_has_no_screws() -> None:
    from dyn_service.model.configuration import Configuration
    from dyn_service.model.joints import Screw

    with pytest.raises(InvalidArgumentError):
        to_mujoco(Configuration(("j",), (Screw(np.array([0.0, 0.0, 1.0]), 0.1),)), [0.3])
