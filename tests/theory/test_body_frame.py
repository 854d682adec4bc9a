"""Newton/Euler Equations document: the recursion in body frames, each formula of it in its own test."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.api.queries import Wrench
from dyn_service.api.results import BodyRecursion
from dyn_service.engine.robot import Robot
from dyn_service.formulations.bodies import wrench
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.theory.test_newton_euler import GRAVITY, same
from tests.trees import dofs, motions

NO_AXIS = np.full(3, np.nan)
"""Of a fixed joint."""

Formula = tuple[Robot, np.ndarray, np.ndarray, np.ndarray, BodyRecursion]


@pytest.fixture(scope="module", params=[(0.0, 92), (0.0, 95), (0.5, 91), (0.5, 93), (1.0, 92)])
def state(request: pytest.FixtureRequest) -> Formula:
    """A chain, a tree or a bushy tree of revolute, prismatic and fixed joints, and its recursion, weight included."""
    bushy, seed = request.param
    robot = interpreting(random_urdf(seed, movable=8, bushy=bushy))
    assert {"revolute", "prismatic", "fixed"} <= {
        motion for motion, parent in zip(motions(robot.tree), robot.tree.parent, strict=True) if parent > 0
    }
    q, v, a = np.random.default_rng(seed).normal(size=(3, robot.nv))
    return robot, q, v, a, robot.body_recursion(q, v, a, gravity=GRAVITY)


def places(robot: Robot, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """{i+1}R{i} and {i}p{i+1} of every link against its parent, from its poses in the world."""
    poses = robot.link_poses(q)
    R, p = np.zeros((len(robot.tree), 3, 3)), np.zeros((len(robot.tree), 3))
    for i, parent in enumerate(robot.tree.parent):
        R_WP, p_WP = (np.eye(3), np.zeros(3)) if parent < 0 else (poses.rotation[parent], poses.position[parent])
        R[i] = poses.rotation[i].T @ R_WP
        p[i] = R_WP.T @ (poses.position[i] - p_WP)
    return R, p


def links(robot: Robot, motion: str) -> list[tuple[int, int, np.ndarray, int]]:
    """Link, parent, axis and joint of the links that hang on another by a joint of this kind."""
    tree = robot.tree
    return [
        (i, tree.parent[i], getattr(tree.inboard[i], "axis", NO_AXIS), dofs(tree)[i])
        for i, kind in enumerate(motions(tree))
        if kind == motion and tree.parent[i] >= 0
    ]


def test_revolute_omega(state: Formula) -> None:
    robot, q, v, _, recursion = state
    R, _ = places(robot, q)
    for i, parent, z, k in links(robot, "revolute"):
        # Here and below: rounding of a recursion through up to ten bodies, whose terms are larger than its results.
        same(recursion.omega[i], R[i] @ recursion.omega[parent] + v[k] * z, 1e-11)


def test_prismatic_omega(state: Formula) -> None:
    robot, q, _, _, recursion = state
    R, _ = places(robot, q)
    for i, parent, _, _ in links(robot, "prismatic"):
        same(recursion.omega[i], R[i] @ recursion.omega[parent], 1e-11)


def test_revolute_omega_dot(state: Formula) -> None:
    robot, q, v, a, recursion = state
    R, _ = places(robot, q)
    for i, parent, z, k in links(robot, "revolute"):
        turning = np.cross(R[i] @ recursion.omega[parent], v[k] * z)
        same(recursion.omega_dot[i], R[i] @ recursion.omega_dot[parent] + turning + a[k] * z, 1e-11)


def test_prismatic_omega_dot(state: Formula) -> None:
    robot, q, _, _, recursion = state
    R, _ = places(robot, q)
    for i, parent, _, _ in links(robot, "prismatic"):
        same(recursion.omega_dot[i], R[i] @ recursion.omega_dot[parent], 1e-11)


def test_revolute_v_dot(state: Formula) -> None:
    robot, q, _, _, recursion = state
    R, p = places(robot, q)
    for i, parent, _, _ in links(robot, "revolute"):
        w, w_dot = recursion.omega[parent], recursion.omega_dot[parent]
        inner = recursion.v_dot[parent] + np.cross(w_dot, p[i]) + np.cross(w, np.cross(w, p[i]))
        same(recursion.v_dot[i], R[i] @ inner, 1e-11)


def test_prismatic_v_dot(state: Formula) -> None:
    """With p = constant offset + d x^, where the document has d x^ alone; x^ in the axes of frame i."""
    robot, q, v, a, recursion = state
    R, p = places(robot, q)
    for i, parent, axis, k in links(robot, "prismatic"):
        w, w_dot, x = recursion.omega[parent], recursion.omega_dot[parent], R[i].T @ axis
        same(p[i], robot.tree.origin[i] + q[k] * x, 1e-11)
        inner = recursion.v_dot[parent] + a[k] * x + 2 * np.cross(w, v[k] * x)
        inner = inner + np.cross(w_dot, p[i]) + np.cross(w, np.cross(w, p[i]))
        same(recursion.v_dot[i], R[i] @ inner, 1e-11)


def test_fixed_joints_carry_motion_on(state: Formula) -> None:
    robot, q, _, _, recursion = state
    R, p = places(robot, q)
    for i, parent, _, _ in links(robot, "fixed"):
        w, w_dot = recursion.omega[parent], recursion.omega_dot[parent]
        same(recursion.omega[i], R[i] @ w, 1e-11)
        same(recursion.omega_dot[i], R[i] @ w_dot, 1e-11)
        same(
            recursion.v_dot[i],
            R[i] @ (recursion.v_dot[parent] + np.cross(w_dot, p[i]) + np.cross(w, np.cross(w, p[i]))),
            1e-11,
        )


def test_motion_of_a_point_of_a_moving_frame(state: Formula) -> None:
    """p_Q, v_Q, v-dot_Q of the document's derivation: the link origins' paths, differentiated twice."""
    robot, q, v, a, recursion = state
    h = 1e-3

    def positions(s: float) -> np.ndarray:
        return robot.link_poses(q + s * v + s * s / 2 * a).position

    second = (-positions(2 * h) + 16 * positions(h) - 30 * positions(0.0) + 16 * positions(-h) - positions(-2 * h)) / (
        12 * h * h
    )
    # Second differences of fourth order at h = 1e-3: rounding eps / h^2, truncation h^4.
    same(np.einsum("nij,nj->ni", robot.link_poses(q).rotation, recursion.v_dot), second, 1e-6)


def test_v_dot_cm(state: Formula) -> None:
    """v-dot_cm = omega-dot x p_cm + omega x (omega x p_cm) + v-dot; and J_S a + sigma_S, which comes another way."""
    robot, q, v, a, recursion = state
    p_cm = np.array([body.com for body in robot.tree.inertia])
    spinning = np.cross(recursion.omega, np.cross(recursion.omega, p_cm))
    same(recursion.centre_acceleration, np.cross(recursion.omega_dot, p_cm) + spinning + recursion.v_dot, 1e-11)
    expected = robot.jacobians(q).translation @ a + robot.bias_accelerations(q, v).translation
    same(recursion.centre_acceleration, expected, 1e-11)


def test_f_and_n_are_outputs(state: Formula) -> None:
    """F = m (v-dot_cm - g) and N = M omega-dot + omega x M omega, in link axes; wrenches have no part in them."""
    robot, q, v, a, recursion = state
    mass = np.array([body.mass for body in robot.tree.inertia])
    weight = np.einsum("nji,j->ni", robot.link_poses(q).rotation, GRAVITY)
    same(recursion.centre_force, mass[:, None] * (recursion.centre_acceleration - weight), 1e-11)
    M = np.array([body.about_com for body in robot.tree.inertia])
    spin = np.cross(recursion.omega, np.einsum("nij,nj->ni", M, recursion.omega))
    same(recursion.centre_moment, np.einsum("nij,nj->ni", M, recursion.omega_dot) + spin, 1e-11)
    push = Wrench(robot.link_names[-1], force=(1.0, 2.0, 3.0))
    pushed = robot.body_recursion(q, v, a, gravity=GRAVITY, wrenches=push)
    for name in ("centre_acceleration", "centre_force", "centre_moment"):
        same(getattr(pushed, name), getattr(recursion, name))


def test_f_and_n_are_rates_of_momentum(state: Formula) -> None:
    """Newton: F = d/dt (m v) in inertial axes; Euler: N = d/dt (R M omega)."""
    robot, q, v, a, recursion = state
    h = 1e-4
    M = np.array([body.about_com for body in robot.tree.inertia])
    mass = np.array([body.mass for body in robot.tree.inertia])

    def momenta(s: float) -> np.ndarray:
        q_s, rate = q + s * v + s * s / 2 * a, v + s * a
        J, R = robot.jacobians(q_s), robot.link_poses(q_s).rotation
        angular = np.einsum("nij,njk,nk->ni", R, M, J.rotation @ rate)
        pushed = mass[:, None] * np.einsum("nij,nj->ni", R, J.translation @ rate)
        return np.hstack([pushed, angular])

    rates = (8 * (momenta(h) - momenta(-h)) - (momenta(2 * h) - momenta(-2 * h))) / (12 * h)
    R = robot.link_poses(q).rotation
    F, N = (np.einsum("nij,nj->ni", R, x) for x in (recursion.centre_force, recursion.centre_moment))
    # First differences of fourth order at h = 1e-4 of momenta that are larger than their rates.
    same(F + mass[:, None] * GRAVITY, rates[:, :3], 1e-7)
    same(N, rates[:, 3:], 1e-7)


def test_f_i(state: Formula) -> None:
    """f_i = F_i + sum over children of R f_{i+1}."""
    robot, q, _, _, recursion = state
    R, _ = places(robot, q)
    F = recursion.centre_force
    for i in range(len(robot.tree)):
        child_forces = sum((R[k].T @ recursion.force[k] for k in robot.tree.children[i]), np.zeros(3))
        same(recursion.force[i], F[i] + child_forces, 1e-11)


def test_eta_i(state: Formula) -> None:
    """eta_i = N_i + sum of R eta_{i+1} + p_cm x F_i + sum of p_{i+1} x R f_{i+1}."""
    robot, q, _, _, recursion = state
    R, p = places(robot, q)
    F, N = recursion.centre_force, recursion.centre_moment
    for i, body in enumerate(robot.tree.inertia):
        expected = N[i] + np.cross(body.com, F[i])
        for k in robot.tree.children[i]:
            expected = expected + R[k].T @ recursion.moment[k] + np.cross(p[k], R[k].T @ recursion.force[k])
        same(recursion.moment[i], expected, 1e-11)


def test_sum_of_torques_about_the_centre_of_mass(state: Formula) -> None:
    """N_i = eta_i - eta_{i+1} - p_cm x f_i - (p_{i+1} - p_cm) x f_{i+1}: with f_{i+1}, where the document has f_i."""
    robot, q, _, _, recursion = state
    R, p = places(robot, q)
    N = recursion.centre_moment
    for i, body in enumerate(robot.tree.inertia):
        total = recursion.moment[i] - np.cross(body.com, recursion.force[i])
        for k in robot.tree.children[i]:
            total = total - R[k].T @ recursion.moment[k] - np.cross(p[k] - body.com, R[k].T @ recursion.force[k])
        # N is a small difference of large moments.
        same(total, N[i], 1e-10)


def test_wrench_form(state: Formula) -> None:
    """[m 0; 0 M] [v-dot; omega-dot] + [omega x m v; omega x M omega] = W: v-dot there is of v's components."""
    robot, q, v, a, recursion = state
    h = 1e-4

    def velocity(s: float) -> np.ndarray:
        return robot.jacobians(q + s * v + s * s / 2 * a).translation @ (v + s * a)

    v_dot = (8 * (velocity(h) - velocity(-h)) - (velocity(2 * h) - velocity(-2 * h))) / (12 * h)
    bodies = robot.tree.inertia
    mass, M = np.array([body.mass for body in bodies]), np.array([body.about_com for body in bodies])
    weight = np.einsum("nji,j->ni", robot.link_poses(q).rotation, GRAVITY)
    W = wrench(mass, M, recursion.omega, recursion.omega_dot, velocity(0.0), v_dot)
    same(W[:, :3], recursion.centre_moment, 1e-11)
    same(W[:, 3:] - mass[:, None] * weight, recursion.centre_force, 1e-7)


def test_equals_link_motion_and_inverse_dynamics(state: Formula) -> None:
    robot, q, v, a, recursion = state
    push = Wrench(robot.link_names[-1], torque=(0.3, 0.1, -0.2), force=(1.0, 2.0, 3.0), point=(0.1, 0.0, 0.2))
    for wrenches in (None, push):
        recursion = robot.body_recursion(q, v, a, gravity=GRAVITY, wrenches=wrenches)
        motion = robot.link_motion(q, v, a, gravity=GRAVITY, wrenches=wrenches)
        assert recursion.links == motion.links
        same(np.hstack([recursion.omega_dot, recursion.v_dot]), motion.acceleration, 1e-11)
        same(recursion.omega, motion.velocity[:, :3], 1e-11)
        same(np.hstack([recursion.moment, recursion.force]), motion.load, 1e-11)
        same(recursion.tau, robot.inverse_dynamics(q, v, a, gravity=GRAVITY, wrenches=wrenches), 1e-11)


def test_efforts_are_components_along_the_axes(state: Formula) -> None:
    robot, _, _, _, recursion = state
    for motion, loads in (("revolute", recursion.moment), ("prismatic", recursion.force)):
        for i, _, axis, k in links(robot, motion):
            assert recursion.tau[k] == pytest.approx(axis @ loads[i], rel=1e-12, abs=1e-12)


def test_batches(state: Formula) -> None:
    robot, q, v, a, recursion = state
    rows = robot.body_recursion(np.stack([q, 0 * q, q]), v, a, gravity=GRAVITY)
    same(rows.moment[0], recursion.moment)
    same(rows.moment[2], recursion.moment)
    same(rows.moment[1], robot.body_recursion(0 * q, v, a, gravity=GRAVITY).moment)
