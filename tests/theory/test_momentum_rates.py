"""Hamilton document, (P.1d)-(P.1g), as computed results: the query `system_momentum_rate` against differentiation.

The left sides are taken by differentiating the expressions of momentum and centre of mass in world axes along the
motion, exactly (CasADi's directional derivative), so they know nothing of forces; the right sides are loads at the
joints and from outside. The document states them for revolute joints; the robots here have prismatic ones too.
"""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.api.queries import Wrench
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import hamilton, kinematics
from dyn_service.engine.robot import Robot
from dyn_service.formulations.world_equations import WorldEquations
from dyn_service.model.tree import Tree
from tests.conftest import URDF
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.theory.test_newton_euler import GRAVITY, same
from tests.trees import columns

DIFFERENTIATED = 1e-10
"""Relative to the largest entry: the derivative sums some thousand products per entry, each rounded at 1e-16 of rates
that are up to a hundred times the largest result, since velocities here are of the order of 1 rad/s."""


@pytest.fixture(scope="module", params=range(6))
def state(request: pytest.FixtureRequest) -> tuple[Robot, np.ndarray, np.ndarray, np.ndarray, Wrench]:
    robot = interpreting(random_urdf(700 + request.param, movable=6, bushy=0.6))
    rng = np.random.default_rng(request.param)
    q, v, a = rng.normal(size=(3, robot.nv))
    push = Wrench(robot.link_names[-1], *rng.normal(size=(3, 3)), frame="world")
    return robot, q, v, a, push


def differentiated(
    tree: Tree, q: np.ndarray, v: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """d/dt of K (N, 6), of c (N, 3) and of H^c (N, 3), all in world axes, along q-dot = v, v-dot = a."""
    q_, v_ = ex.sym("q", tree.nv), ex.sym("v", tree.nv)
    momentum, poses = hamilton.system_momentum(tree, q_, v_), kinematics.link_poses(tree, q_)
    rows = []
    for i, (K, c) in enumerate(
        zip(ex.vertsplit(momentum["momentum"], 6), ex.vertsplit(momentum["centre"], 3), strict=True)
    ):
        R = ex.reshape(poses["rotation"][9 * i : 9 * i + 9], 3, 3).T
        H, P, c = R @ K[:3], R @ K[3:], R @ c
        rows.append(ex.vertcat(H, P, c, H - ex.cross(c, P)))
    world = ex.horzcat(*rows)
    rate = ex.jtimes(ex.vec(world), ex.vertcat(q_, v_), ex.vertcat(ex.matrix(v), ex.matrix(a)))
    values = ex.substitute([rate], [q_, v_], [q, v])[0].array().reshape(len(tree), 12)
    return values[:, :6], values[:, 6:9], values[:, 9:]


def test_p_1d_to_p_1g_are_the_derivatives(state: tuple) -> None:
    robot, q, v, a, push = state
    rates = robot.system_momentum_rate(q, v, a, frame="world", gravity=GRAVITY, wrenches=push)
    K_rate, c_rate, about_rate = differentiated(robot.tree, q, v, a)
    same(rates.rate[:, 3:], K_rate[:, 3:], DIFFERENTIATED)  # (P.1e)
    same(rates.rate[:, :3], K_rate[:, :3], DIFFERENTIATED)  # (P.1g)
    heavy = robot.system_momentum(q, v).mass > 0.0
    same(rates.centre_rate[heavy], c_rate[heavy], DIFFERENTIATED)  # (P.1d)
    same(rates.central_rate, about_rate, DIFFERENTIATED)  # (P.1f)
    assert heavy.any()


def test_p_1e_to_p_1g_name_their_forces(state: tuple) -> None:
    """Each right side from the document's world-frame loads: joint by (15), outside by Psi^T Y^T F-bar."""
    robot, q, v, a, push = state
    rates = robot.system_momentum_rate(q, v, a, frame="world", gravity=GRAVITY, wrenches=push)
    poses = robot.link_poses(q)
    wrenches = np.zeros((len(robot.tree), 6))
    wrenches[-1] = np.concatenate([push.torque + np.cross(poses.rotation[-1] @ push.point, push.force), push.force])
    world = WorldEquations(robot.tree, q, v, GRAVITY, wrenches)
    F, E = world.forces(a), (world.Psi.T @ world.applied.ravel()).reshape(-1, 6)
    same(rates.load, F, 1e-11)
    same(rates.external, E, 1e-11)
    momentum = robot.system_momentum(q, v, frame="world")
    K, c, eta_dot = momentum.momentum, momentum.centre, world.velocity[:, 3:]
    same(rates.rate[:, 3:], F[:, 3:] + E[:, 3:], 1e-11)  # (P.1e)
    same(rates.rate[:, :3], -np.cross(eta_dot, K[:, 3:]) + F[:, :3] + E[:, :3], 1e-11)  # (P.1g)
    same(rates.central_rate, F[:, :3] - np.cross(c, F[:, 3:]) + E[:, :3] - np.cross(c, E[:, 3:]), 1e-11)  # (P.1f)
    same(rates.central_momentum, K[:, :3] - np.cross(c, K[:, 3:]), 1e-11)  # H^c, its proof's first line


def test_frames_differ_by_the_links_rotation(state: tuple) -> None:
    robot, q, v, a, push = state
    body, world = (robot.system_momentum_rate(q, v, a, frame=frame, wrenches=push) for frame in ("body", "world"))
    R = robot.link_poses(q).rotation
    for name in ("rate", "centre_rate", "central_momentum", "central_rate", "load", "external"):
        in_body, in_world = getattr(body, name), getattr(world, name)
        for k in range(0, in_body.shape[1], 3):
            same(np.einsum("nij,nj->ni", R, in_body[:, k : k + 3]), in_world[:, k : k + 3])


def test_momentum_rate_is_its_part_along_the_axes(state: tuple) -> None:
    """(P.3b) from (P.1e), (P.1g): p-dot = G^T [H-dot; P-dot] + G-dot^T K."""
    robot, q, v, a, push = state
    tau = robot.inverse_dynamics(q, v, a, gravity=GRAVITY, wrenches=push)
    p_dot = robot.momentum_rate(q, robot.momentum(q, v), tau, gravity=GRAVITY, wrenches=push)
    world = WorldEquations(robot.tree, q, v, GRAVITY)
    rate = robot.system_momentum_rate(q, v, a, frame="world", gravity=GRAVITY, wrenches=push).rate
    K = robot.system_momentum(q, v, frame="world").momentum
    omega, axes = world.velocity[:, :3], columns(world.axes)
    G_dot = np.hstack([np.cross(omega, axes[:, :3]), np.cross(omega, axes[:, 3:])])
    axial_rates = np.einsum("ni,ni->n", axes, rate) + np.einsum("ni,ni->n", G_dot, K)
    same(axial_rates[list(robot.tree.movable)], p_dot, 1e-10)


def test_free_fall_and_push_of_a_cart() -> None:
    """Closed form: what leaves the cart's rail without force keeps its momentum along it; a push adds its force."""
    robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
    q, v = np.array([0.2, 0.6]), np.array([0.4, -1.1])
    for force in (0.0, 7.0):
        push = Wrench("pendulum", force=(force, 0.0, 0.0), point=(0.0, 0.0, -0.3), frame="world")
        a = robot.forward_dynamics(q, v, [0.0, 0.0], wrenches=push)
        rates = robot.system_momentum_rate(q, v, a, frame="world", wrenches=push)
        # The rail holds the cart up and does nothing along x: what is left is the push.
        assert rates.rate[1, 3] == pytest.approx(force, abs=1e-12)
        assert rates.external[1, 5] == pytest.approx(-9.81 * 3.2, rel=1e-13)
        centre = robot.system_momentum(q, v, frame="world").centre[2]
        np.testing.assert_allclose(
            rates.centre_rate[2], v[1] * 0.5 * np.array([np.cos(0.6), 0, np.sin(0.6)]), atol=1e-13
        )
        np.testing.assert_allclose(centre, 0.5 * np.array([np.sin(0.6), 0, -np.cos(0.6)]), atol=1e-13)


def test_branch_without_mass_has_no_centre_that_moves() -> None:
    robot = Robot.from_urdf(
        '<robot name="r"><link name="a"/><link name="b"><inertial><mass value="1"/>'
        '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link><link name="tip"/>'
        '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>'
        '<joint name="k" type="fixed"><parent link="b"/><child link="tip"/><origin xyz="1 2 3"/></joint></robot>'
    )
    rates = robot.system_momentum_rate([0.3], [2.0], [1.0])
    tip = rates.links.index("tip")
    assert not rates.centre_rate[tip].any()
    assert not rates.rate[tip].any()
