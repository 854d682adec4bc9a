"""Task space of points on links: the link is an input, and one kernel serves all links."""

from __future__ import annotations

import math
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import Overlay, Wrench
from dyn_service.api.queries import QUERIES
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.kernels.frames import kernel_tree
from dyn_service.kernels.graph import trace
from dyn_service.service.server.answering.service import Service
from tests.conftest import URDF
from tests.phrases import unnamed
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreted_robot, interpreting

TOOL = "tool0"


@pytest.fixture(scope="module")
def ur5e() -> Robot:
    return Robot.from_urdf(URDF / "ur5e.urdf")


@pytest.fixture(scope="module")
def state(ur5e: Robot) -> tuple[np.ndarray, np.ndarray]:
    return ur5e.random_configuration(seed=2), np.linspace(-1.0, 1.0, 6)


def test_one_kernel_serves_every_link(ur5e: Robot, state: tuple[np.ndarray, np.ndarray]) -> None:
    q, v = state
    poses = ur5e.link_poses(q)
    names_before = None
    for k, link in enumerate(ur5e.link_names):
        motion = ur5e.point_motion(q, v, link)
        # The same product; only the one-hot row that selects the link adds a rounding.
        np.testing.assert_allclose(motion.rotation, poses.rotation[k], atol=1e-15)
        np.testing.assert_allclose(motion.position, poses.position[k], atol=1e-15)
        names_now = {name for name in ur5e.certificates if name.startswith("point_motion")}
        assert names_before in (None, names_now)
        names_before = names_now


def test_several_points_in_one_call(ur5e: Robot, state: tuple[np.ndarray, np.ndarray]) -> None:
    """Link names may have leading axes."""
    q, v = state
    links, points = ["wrist_1_link", TOOL], np.random.default_rng(0).normal(size=(3, 1, 3))
    both_links = ur5e.point_motion(q, v, links, point=points)
    assert both_links.jacobian.shape == (3, 2, 6, 6)
    for k in range(3):
        for n, link in enumerate(links):
            single = ur5e.point_motion(q, v, link, point=points[k, 0])
            np.testing.assert_array_equal(both_links.jacobian[k, n], single.jacobian)
            np.testing.assert_array_equal(both_links.bias[k, n], single.bias)
    grid = ur5e.point_motion(np.tile(q, (5, 1, 1)), v, np.array(links))
    assert grid.position.shape == (5, 2, 3)


def test_bias_is_the_derivative_without_acceleration(ur5e: Robot, state: tuple[np.ndarray, np.ndarray]) -> None:
    """The derivative of the velocity is J a + bias in every frame; central differences have errors h^2 and eps / h."""
    (q, v), a, h = state, np.array([0.3, -0.5, 0.7, 0.2, -0.9, 0.4]), 1e-6
    for frame in ("world_aligned", "local", "world"):
        motion = ur5e.point_motion(q, v, TOOL, point=(0.1, 0.2, 0.3), frame=frame)
        positions = (ur5e.integrate(q, v + s * h / 2 * a, [s * h]) for s in (1.0, -1.0))
        V_after, V_before = (
            ur5e.point_motion(p, v + s * h * a, TOOL, point=(0.1, 0.2, 0.3), frame=frame).velocity
            for p, s in zip(positions, (1.0, -1.0), strict=True)
        )
        np.testing.assert_allclose((V_after - V_before) / (2 * h), motion.jacobian @ a + motion.bias, atol=1e-8)


def test_a_wrench_on_the_point_accelerates_it_by_its_mobility(
    ur5e: Robot, state: tuple[np.ndarray, np.ndarray]
) -> None:
    """A wrench F adds Omega F to the point's acceleration, by forward dynamics, and Lambda is the inverse of Omega."""
    q, v = state
    point, tau, F = (0.1, -0.2, 0.05), np.zeros(6), np.array([1.0, -2.0, 0.5, 4.0, 3.0, -6.0])
    motion = ur5e.point_motion(q, v, TOOL, point=point)
    push = Wrench(TOOL, torque=F[:3], force=F[3:], point=point)
    acceleration = ur5e.forward_dynamics(q, v, tau, wrenches=push) - ur5e.forward_dynamics(q, v, tau)
    space = ur5e.operational_space(q, TOOL, point=point)
    scale = np.abs(motion.jacobian @ acceleration).max()
    # The acceleration is a difference of two solutions, which loses the digits that they share.
    np.testing.assert_allclose(space.mobility @ F, motion.jacobian @ acceleration, atol=1e-11 * scale)
    np.testing.assert_allclose(space.inertia @ (motion.jacobian @ acceleration), F, rtol=1e-9)


def test_directions(ur5e: Robot, state: tuple[np.ndarray, np.ndarray]) -> None:
    """The inverse of a block of Omega in the order of [omega; v], for any order of names; zero elsewhere."""
    space = ur5e.operational_space(state[0], TOOL, directions=("z", "x", "ry"))
    axes = [1, 3, 5]
    np.testing.assert_allclose(
        space.inertia[np.ix_(axes, axes)] @ space.mobility[np.ix_(axes, axes)], np.eye(3), atol=1e-12
    )
    other_axes = [0, 2, 4]
    assert not space.inertia[other_axes].any()
    assert not space.inertia[:, other_axes].any()


def test_a_direction_without_motion_has_nan_inertia() -> None:
    """The inertia is NaN for this state only, the mobility is finite."""
    scara = Robot.from_urdf(URDF / "scara.urdf")
    q = np.array([[0.3, 0.9, 0.05, 0.0], [0.3, 0.0, 0.05, 0.0]])
    tool = scara.link_names[-1]
    space = scara.operational_space(q, tool, directions=["x", "y", "z"])
    assert np.isfinite(space.mobility).all()
    assert np.isfinite(space.inertia[0]).all()
    assert np.isnan(space.inertia[1]).all()  # stretched out
    assert np.isnan(scara.operational_space(q, tool).inertia).all()
    assert np.isnan(scara.operational_space(q, scara.link_names[0], directions=["x"]).inertia).all()


@pytest.mark.parametrize(("exponent", "finite"), [(-19.5, True), (-20.5, False)])
def test_a_mobility_of_rounding_only_has_nan_inertia(exponent: float, finite: bool) -> None:
    """Two slides at an angle of sine s, of 1 kg each: with x held, y yields by s^2 / m.

    Its share of the mobility of translations is s^2 too, and numbers of 52 bits leave 12 of it at the bound of 2^-40.
    """
    s = 2.0**exponent
    links = [
        f"<link name='{name}'><inertial><mass value='1'/><inertia ixx='1' iyy='1' izz='1' ixy='0' ixz='0' iyz='0'/>"
        "</inertial></link>"
        for name in ("first", "second")
    ]
    joints = [
        f"<joint name='of_{child}' type='prismatic'><parent link='{parent}'/><child link='{child}'/>"
        f"<axis xyz='{axis}'/><limit lower='-1' upper='1' effort='1' velocity='1'/></joint>"
        for parent, child, axis in (("base", "first", "1 0 0"), ("first", "second", f"{math.sqrt(1 - s * s)} {s} 0"))
    ]
    text = "<robot name='slides'><link name='base'/>" + "".join([*links, *joints]) + "</robot>"
    robot = interpreted_robot(Robot.from_text(text))
    inertia = robot.operational_space(np.zeros(2), "second", directions=["x", "y"]).inertia
    assert np.isfinite(inertia).all() == finite
    if finite:  # a mobility with 13 bits, of which the last ones are rounding
        np.testing.assert_allclose(inertia[4, 4], 1.0 + (1.0 - s * s) / s**2, rtol=2e-3)


def test_a_server_reports_a_direction_without_motion() -> None:
    service = Service([Robot.from_urdf(URDF / "scara.urdf")])
    tool = service.robots["scara"].link_names[-1]
    message: dict[str, Any] = {"v": 1, "id": 1, "query": "operational_space", "robot": "scara"}

    def ask(**inputs: Any) -> Any:
        payload = msgpack.packb({**message, "inputs": {"link": tool, **inputs}})
        return msgpack.unpackb(service.handle(payload, perf_counter_ns()))

    assert ask(q=[0.3, 0.9, 0.05, 0.0], directions=["x", "y", "z"])["ok"]
    error = ask(q=[[0.3, 0.9, 0.05, 0.0], [0.3, 0.0, 0.05, 0.0]], directions=["x", "y", "z"])["error"]
    assert error["code"] == "FAILED_PRECONDITION"
    assert unnamed(error["message"], "[1]", f"link '{tool}'") == []


WRONG_ARGUMENTS: dict[str, tuple[dict[str, Any], type[DynError], str, str]] = {
    "a link that is not there": (
        {"link": "tool9"},
        NotFoundError,
        "robot 'ur5e' has no link 'tool9'; did you mean 'tool0'",
        "inputs.link",
    ),
    "one of several": ({"link": [[TOOL, "hand"]]}, NotFoundError, "no link 'hand'", "inputs.link[0][1]"),
    "a number": (
        {"link": 3},
        InvalidArgumentError,
        "link must be a link's name, or lists of names .*int 3",
        "inputs.link",
    ),
    "unequal lists": ({"link": [[TOOL], [TOOL, TOOL]]}, InvalidArgumentError, "lists of names", "inputs.link"),
    "none": ({"link": None}, InvalidArgumentError, "needs the input 'link'", "inputs.link"),
    "a text for directions": (
        {"directions": "xy"},
        InvalidArgumentError,
        "directions must be a list of rx, ry, rz, x, y, z, found str 'xy'",
        "inputs.directions",
    ),
    "no direction": ({"directions": []}, InvalidArgumentError, "found none", "inputs.directions"),
    "another direction": ({"directions": ["x", "w"]}, InvalidArgumentError, "found 'w'", "inputs.directions"),
    "links that do not fit": (
        {"q": np.zeros((3, 6)), "link": [TOOL, TOOL]},
        InvalidArgumentError,
        r"the leading axes of q \(3,\) and link \(2,\)",
        "inputs",
    ),
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_errors_name_path_and_value(ur5e: Robot, case: str) -> None:
    arguments, kind, words, path = WRONG_ARGUMENTS[case]
    with pytest.raises(kind, match=words) as error:
        ur5e.operational_space(**{"q": np.zeros(6), "link": TOOL, **arguments})
    assert error.value.path == path


def test_locked_joints_move_nothing(state: tuple[np.ndarray, np.ndarray]) -> None:
    (q, v), ur5e = state, interpreting(URDF / "ur5e.urdf")
    locked = ur5e.joint_names[2]
    overlay = Overlay(locked=[locked])
    v = np.where(np.arange(6) == 2, 0.0, v)
    J = ur5e.point_motion(q, v, TOOL, overlay=overlay).jacobian
    assert not J[:, 2].any()
    free = [0, 1, 3, 4, 5]
    M = ur5e.mass_matrix(q)[np.ix_(free, free)]
    space = ur5e.operational_space(q, TOOL, overlay=overlay)
    # NumPy solves with M, the kernel by the articulated body: apart by rounding times M's condition.
    np.testing.assert_allclose(space.mobility, J[:, free] @ np.linalg.solve(M, J[:, free].T), rtol=1e-10, atol=1e-10)
    assert np.isnan(space.inertia).all()  # five joints


def test_massless_branches_have_kinematics_but_no_inertia() -> None:
    xml = (
        '<robot name="bare"><link name="base"/><link name="arm"/><joint name="j" type="continuous">'
        '<parent link="base"/><child link="arm"/><axis xyz="0 0 1"/></joint></robot>'
    )
    robot = interpreting(xml)
    assert robot.point_motion([0.1], [2.0], "arm", point=(1, 0, 0)).velocity[2] == 2.0
    with pytest.raises(FailedPreconditionError, match="no inertia along it"):
        robot.operational_space([0.1], "arm", directions=["rz"])


def operations(query: str, bodies: int) -> int:
    """Returns the operations of a query on a random chain."""
    robot = Robot.from_urdf(random_urdf(5, movable=bodies, bushy=0.0, types=("revolute",)))
    signature = robot.signature(QUERIES[query], "world_aligned")
    return trace(kernel_tree(robot.tree, "links"), signature).operations


@pytest.mark.parametrize("query", ["point_motion", "operational_space"])
def test_operations_grow_linearly_with_the_bodies(query: str) -> None:
    """O(N): each ten further bodies add the same number, up to the random share of fixed joints."""
    counts = [operations(query, bodies) for bodies in (10, 20, 40)]
    first, later_slope = (counts[1] - counts[0]) / 10, (counts[2] - counts[1]) / 20
    assert 0.75 < later_slope / first < 1.33
    assert counts[0] > 0.5 * 10 * later_slope
