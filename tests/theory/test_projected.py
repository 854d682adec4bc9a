"""Multi Body Dynamics document, projected Newton-Euler for trees: 5.1 to 5.6, Problem 40, each under its number."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.api.queries import Wrench
from dyn_service.engine.robot import Robot
from dyn_service.formulations.bodies import virtual_power
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.theory.test_newton_euler import GRAVITY, same
from tests.wide import wide


def rate(function: object, h: float = 1e-4) -> np.ndarray:
    """d/ds at s = 0 by fourth-order central differences: h^4 of a fifth derivative, and rounding over h."""
    return (8 * (function(h) - function(-h)) - (function(2 * h) - function(-2 * h))) / (12 * h)


@pytest.fixture(scope="module", params=wide(range(6), {1, 4}.__contains__))
def state(request: pytest.FixtureRequest) -> tuple[Robot, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A random branched robot with prismatic and fixed joints; q, v, a, tau."""
    robot = interpreting(random_urdf(80 + request.param))
    return robot, *np.random.default_rng(request.param).normal(size=(4, robot.nv))


def centres(robot: Robot, q: np.ndarray) -> np.ndarray:
    """Centres of mass in the world, from the poses alone."""
    poses = robot.link_poses(q)
    com = np.array([body.com for body in robot.tree.inertia])
    return poses.position + np.einsum("nij,nj->ni", poses.rotation, com)


def world(robot: Robot, q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Link axes to world axes, whatever else the rows carry."""
    return np.einsum("nij,nj...->ni...", robot.link_poses(q).rotation, x)


class TestJacobians:
    """5.2, 5.6: v = J_S q-dot, omega = J_R q-dot. In inertial axes J is the derivative of the place."""

    def test_5_6_j_s_is_the_derivative_of_the_centres(self, state: tuple) -> None:
        robot, q, *_ = state
        columns = [rate(lambda s, e=e: centres(robot, q + s * e)) for e in np.eye(robot.nv)]
        same(world(robot, q, robot.jacobians(q).translation), np.stack(columns, axis=-1), 1e-9)

    def test_5_6_j_r_is_the_derivative_of_the_rotations(self, state: tuple) -> None:
        robot, q, *_ = state
        R, J_R = robot.link_poses(q).rotation, robot.jacobians(q).rotation
        for k, e in enumerate(np.eye(robot.nv)):
            turning = np.einsum(
                "nij,nik->njk", R, rate(lambda s, e=e: robot.link_poses(q + s * e).rotation)
            )  # R^T R-dot
            same(J_R[:, :, k], np.stack([turning[:, 2, 1], turning[:, 0, 2], turning[:, 1, 0]], axis=-1), 1e-9)

    def test_5_1_efforts_of_a_force_by_the_transposed_jacobian(self, state: tuple) -> None:
        """tau = J_f^T F."""
        robot, q, v, a, tau = state
        link = robot.link_names[-1]
        force, com = np.array([1.0, -2.0, 3.0]), robot.tree.inertia[-1].com
        push = Wrench(link, force=force, point=com, frame=link)
        expected = robot.jacobians(q).translation[-1].T @ force
        terms = robot.equation_terms(q, v, tau, gravity=GRAVITY, wrenches=push)
        same(terms.external_forces, expected)
        unpushed = robot.inverse_dynamics(q, v, a, gravity=GRAVITY)
        same(unpushed - robot.inverse_dynamics(q, v, a, gravity=GRAVITY, wrenches=push), expected, 1e-11)

    def test_5_2_5_6_accelerations_are_jacobian_times_q_ddot_plus_bias(self, state: tuple) -> None:
        """x-ddot = J q-ddot + sigma, and sigma is x-ddot at q-ddot = 0, against the path itself."""
        robot, q, v, a, _ = state
        J, bias = robot.jacobians(q), robot.bias_accelerations(q, v)

        def velocity(s: float, a: np.ndarray) -> np.ndarray:
            q_s = q + s * v + s * s / 2 * a
            return world(robot, q_s, robot.jacobians(q_s).translation @ (v + s * a))

        def spin(s: float, a: np.ndarray) -> np.ndarray:
            q_s = q + s * v + s * s / 2 * a
            return world(robot, q_s, robot.jacobians(q_s).rotation @ (v + s * a))

        zero_a = np.zeros_like(a)
        same(world(robot, q, bias.translation), rate(lambda s: velocity(s, zero_a)), 1e-8)
        same(world(robot, q, bias.rotation), rate(lambda s: spin(s, zero_a)), 1e-8)
        same(world(robot, q, J.translation @ a + bias.translation), rate(lambda s: velocity(s, a)), 1e-8)
        same(world(robot, q, J.rotation @ a + bias.rotation), rate(lambda s: spin(s, a)), 1e-8)

    def test_5_6_recursion_agrees_with_the_link_motions(self, state: tuple) -> None:
        robot, q, v, a, _ = state
        J, bias = robot.jacobians(q), robot.bias_accelerations(q, v)
        motion = robot.link_motion(q, v, a)
        omega, omega_dot = motion.velocity[:, :3], motion.acceleration[:, :3]
        s = np.array([body.com for body in robot.tree.inertia])
        at_centre = motion.acceleration[:, 3:] + np.cross(omega_dot, s) + np.cross(omega, np.cross(omega, s))
        same(J.rotation @ v, omega, 1e-11)
        same(J.translation @ v, motion.velocity[:, 3:] + np.cross(omega, s), 1e-11)
        same(J.rotation @ a + bias.rotation, omega_dot, 1e-11)
        same(J.translation @ a + bias.translation, at_centre, 1e-11)


class TestSums:
    """5.4, 5.6: M, f, g as the document sums them, from queries, against kernels that share none of it."""

    def test_5_6_m(self, state: tuple) -> None:
        robot, q, v, _, tau = state
        J = robot.jacobians(q)
        M = sum(
            body.mass * S.T @ S + R.T @ body.about_com @ R
            for body, S, R in zip(robot.tree.inertia, J.translation, J.rotation, strict=True)
        )
        # Here and below: sums over bodies at their centres of mass, against recursions in other frames.
        same(M, robot.mass_matrix(q), 1e-11)
        same(robot.equation_terms(q, v, tau).mass_matrix, M, 1e-11)

    def test_5_6_f(self, state: tuple) -> None:
        """- sum of J_S^T m sigma_S + J_R^T (I sigma_R + Omega~ I Omega): with Omega, where the document has Omega~."""
        robot, q, v, _, tau = state
        J, bias = robot.jacobians(q), robot.bias_accelerations(q, v)
        f = np.zeros(robot.nv)
        for i, body in enumerate(robot.tree.inertia):
            omega, I = J.rotation[i] @ v, body.about_com
            f -= J.translation[i].T @ (body.mass * bias.translation[i])
            f -= J.rotation[i].T @ (I @ bias.rotation[i] + np.cross(omega, I @ omega))
        same(f, -robot.bias_forces(q, v, gravity=np.zeros(3)), 1e-11)
        same(robot.equation_terms(q, v, tau).velocity_forces, f, 1e-11)

    def test_5_6_g(self, state: tuple) -> None:
        """sum of J_S^T F_A + J_R^T M_A, in body axes and, as the summary says, in inertial ones alike."""
        robot, q, v, _, tau = state
        rotation, J_S = robot.link_poses(q).rotation, robot.jacobians(q).translation
        masses = [body.mass for body in robot.tree.inertia]
        in_body = sum(m * S.T @ (R.T @ GRAVITY) for m, S, R in zip(masses, J_S, rotation, strict=True))
        in_world = sum(m * S.T @ GRAVITY for m, S in zip(masses, world(robot, q, J_S), strict=True))
        same(in_body, in_world, 1e-11)
        same(in_body, -robot.gravity_forces(q, gravity=GRAVITY), 1e-11)
        same(robot.equation_terms(q, v, tau, gravity=GRAVITY).gravity_forces, in_body, 1e-11)

    def test_5_4_virtual_power_of_all_bodies(self, state: tuple) -> None:
        """sum of J_S^T (F - p-dot) + J_R^T (M - L-dot) = 0, F and M from the joints, weight and efforts included."""
        robot, q, v, a, _ = state
        J, R = robot.jacobians(q), robot.link_poses(q).rotation
        bias = robot.bias_accelerations(q, v)
        rows = np.zeros((len(robot.tree), robot.nv))
        push = np.random.default_rng(2).normal(size=(len(robot.tree), 6))  # [M; F] at each centre of mass, link axes
        for i, body in enumerate(robot.tree.inertia):
            p_dot = body.mass * (J.translation[i] @ a + bias.translation[i])
            omega = J.rotation[i] @ v
            L_dot = body.about_com @ (J.rotation[i] @ a + bias.rotation[i]) + np.cross(omega, body.about_com @ omega)
            F = body.mass * R[i].T @ GRAVITY + push[i, 3:]
            rows[i] = J.translation[i].T @ (F - p_dot) + J.rotation[i].T @ (push[i, :3] - L_dot)
        same(virtual_power(robot, q, v, a, gravity=GRAVITY, loads=push), rows, 1e-11)
        pushes = [
            Wrench(link, torque=push[i, :3], force=push[i, 3:], point=body.com, frame=link)
            for i, (link, body) in enumerate(zip(robot.link_names, robot.tree.inertia, strict=True))
        ]
        same(rows.sum(axis=0), -robot.inverse_dynamics(q, v, a, gravity=GRAVITY, wrenches=pushes), 1e-11)
        batch = virtual_power(robot, np.stack([0.5 * q, q]), v, np.stack([a, 2 * a])[:, None], gravity=GRAVITY)
        assert batch.shape == (2, 2, len(robot.tree), robot.nv)
        same(batch[0, 1], virtual_power(robot, q, v, a, gravity=GRAVITY), 1e-12)


class TestConstraints:
    def test_5_3_power_of_constraint_forces_is_zero(self, state: tuple) -> None:
        """Sum of J^T F_c = 0 over all bodies: each joint's load on both its bodies, for every q-dot at once."""
        robot, q, v, a, _ = state
        tau = robot.inverse_dynamics(q, v, a, gravity=GRAVITY)
        loads = robot.constraint_forces(q, v, tau, gravity=GRAVITY, frame="world")
        R = robot.link_poses(q).rotation
        J = robot.jacobians(q)
        J_R = np.einsum("nij,njk->nik", R, J.rotation)
        # Of the link's origin, where the joint is: the centre's less J_R's share of the lever.
        s = np.einsum("nij,nj->ni", R, [body.com for body in robot.tree.inertia])
        J_O = np.einsum("nij,njk->nik", R, J.translation) - np.cross(J_R, s[:, :, None], axis=1)
        origin = robot.link_poses(q).position
        total, scale = np.zeros(robot.nv), np.zeros(robot.nv)
        for i in range(1, len(robot.tree)):
            k, parent = loads.joints.index(robot.tree.joints[i]), robot.tree.parent[i]
            torque, force = np.split(loads.constraint[k], 2)
            lever = origin[i] - origin[parent]
            on_child = J_R[i].T @ torque + J_O[i].T @ force
            on_parent = -J_R[parent].T @ (torque + np.cross(lever, force)) - J_O[parent].T @ force
            total += on_child + on_parent
            scale += np.abs(on_child) + np.abs(on_parent)
        assert np.all(np.abs(total) <= 1e-12 * max(1.0, scale.max()))
        moving = np.abs(J_R).sum(axis=(1, 2)) + np.abs(J_O).sum(axis=(1, 2)) > 0.0
        if any(moving[robot.tree.parent[i]] for i in range(1, len(robot.tree))):
            assert scale.max() > 1.0  # there is something to cancel

    def test_5_3_efforts_are_what_is_left_of_the_joint_loads(self, state: tuple) -> None:
        robot, q, v, a, _ = state
        tau = robot.inverse_dynamics(q, v, a, gravity=GRAVITY)
        loads = robot.constraint_forces(q, v, tau, gravity=GRAVITY, joints=robot.joint_names)
        same(loads.actuation, tau, 1e-10)


class TestDynamics:
    def test_5_5_a_inverse_dynamics(self, state: tuple) -> None:
        """tau = M q-ddot - f - g (- E)."""
        robot, q, v, a, tau = state
        push = Wrench(robot.link_names[-1], torque=(0.3, 0.1, -0.2), force=(1.0, 2.0, 3.0))
        t = robot.equation_terms(q, v, tau, gravity=GRAVITY, wrenches=push)
        expected = t.mass_matrix @ a - t.velocity_forces - t.gravity_forces - t.external_forces
        same(robot.inverse_dynamics(q, v, a, gravity=GRAVITY, wrenches=push), expected, 1e-11)
        same(t.efforts, tau)

    def test_5_5_b_forward_dynamics(self, state: tuple) -> None:
        """q-ddot = M^-1 (f + g + tau), compared as efforts."""
        robot, q, v, _, tau = state
        t = robot.equation_terms(q, v, tau, gravity=GRAVITY)
        right = t.velocity_forces + t.gravity_forces + t.efforts
        a = robot.forward_dynamics(q, v, tau, gravity=GRAVITY)
        same(t.mass_matrix @ a, right, 1e-10)

    def test_5_5_first_order_form(self, state: tuple) -> None:
        """y = (q, q-dot), y-dot = (q-dot, M^-1 (f + g + tau)): what a step integrates, to its first order."""
        robot, q, v, _, tau = state
        dt = 1e-6
        stepped = robot.step(q, v, tau, dt, gravity=GRAVITY, integrator="rk4")
        a = robot.forward_dynamics(q, v, tau, gravity=GRAVITY)
        # To first order in dt only: the accelerations are large, and their change with q is what is left.
        same((stepped.q - q) / dt, v, 1e-3)
        np.testing.assert_allclose((stepped.v - v) / dt, a, atol=1e-3 * max(1.0, np.abs(a).max() ** 1.5))


M1, M2, L1, L2, G = 1.3, 0.7, 0.9, 0.6, 9.81


@pytest.fixture(scope="module")
def point_masses() -> Robot:
    """Problem 40: point masses at the ends of massless rods, q_1 from the vertical, q_2 from the first rod."""

    def link(name: str, mass: float, length: float) -> str:
        return (
            f'<link name="{name}"><inertial><origin xyz="0 0 {-length}"/><mass value="{mass}"/>'
            '<inertia ixx="0" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        )

    def joint(name: str, parent: str, child: str, z: float) -> str:
        return (
            f'<joint name="{name}" type="continuous"><parent link="{parent}"/><child link="{child}"/>'
            f'<origin xyz="0 0 {z}"/><axis xyz="0 -1 0"/></joint>'
        )

    parts = ['<link name="base"/>', link("first", M1, L1), link("second", M2, L2)]
    parts += [joint("q1", "base", "first", 0.0), joint("q2", "first", "second", -L1)]
    return Robot.from_urdf(f'<robot name="problem_40">{"".join(parts)}</robot>')


@pytest.fixture(params=range(10))
def drawn_state(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.random.default_rng(request.param).normal(size=(3, 2)) * 2.0)


class TestProblem40:
    """Term by term as printed; every sign is right for M q-ddot - f - g = tau, g positive downwards."""

    def test_problem_40_m(self, point_masses: Robot, drawn_state: tuple) -> None:
        q, v, tau = drawn_state
        coupling = M2 * L2 * (L2 + L1 * np.cos(q[1]))
        first = M1 * L1**2 + M2 * (L1**2 + 2 * L1 * L2 * np.cos(q[1]) + L2**2)
        expected = [[first, coupling], [coupling, M2 * L2**2]]
        same(point_masses.equation_terms(q, v, tau).mass_matrix, expected)
        same(point_masses.mass_matrix(q), expected)

    def test_problem_40_f(self, point_masses: Robot, drawn_state: tuple) -> None:
        q, v, tau = drawn_state
        expected = M2 * L1 * L2 * np.sin(q[1]) * np.array([v[1] * (2 * v[0] + v[1]), -(v[0] ** 2)])
        same(point_masses.equation_terms(q, v, tau).velocity_forces, expected)

    def test_problem_40_g(self, point_masses: Robot, drawn_state: tuple) -> None:
        q, v, tau = drawn_state
        outer_moment = M2 * L2 * np.sin(q[0] + q[1])
        expected = -G * np.array([(M1 + M2) * L1 * np.sin(q[0]) + outer_moment, outer_moment])
        same(point_masses.equation_terms(q, v, tau).gravity_forces, expected)

    def test_problem_40_equation_of_motion(self, point_masses: Robot, drawn_state: tuple) -> None:
        q, v, tau = drawn_state
        t = point_masses.equation_terms(q, v, tau)
        a = point_masses.forward_dynamics(q, v, tau)
        same(t.mass_matrix @ a - t.velocity_forces - t.gravity_forces, tau)
        a = np.array([0.3, -1.2])
        same(t.mass_matrix @ a - t.velocity_forces - t.gravity_forces, point_masses.inverse_dynamics(q, v, a))
