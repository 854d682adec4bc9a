"""Hamilton document: (V.1)-(V.5), (1)-(11), (P.1a)-(P.5b), each under its number; and motion in (q, p)."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.api.queries import Wrench
from dyn_service.engine.robot import Robot
from dyn_service.formulations.world_equations import WorldEquations
from dyn_service.simulation import simulate
from tests.conftest import URDF
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.theory.test_newton_euler import GRAVITY, same
from tests.trees import columns, dofs, motions
from tests.wide import wide


@pytest.fixture(scope="module", params=wide(range(6), {1, 2, 5}.__contains__))
def state(request: pytest.FixtureRequest) -> tuple[Robot, np.ndarray, np.ndarray, np.ndarray]:
    robot = interpreting(random_urdf(60 + request.param))
    q, v, tau = np.random.default_rng(request.param).normal(size=(3, robot.nv))
    return robot, q, v, tau


def slope(function: object, x: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """Gradient by fourth-order central differences: error 1e-10 of the function."""

    def directional(unit: np.ndarray) -> float:
        difference_h, difference_2h = (function(x + k * unit) - function(x - k * unit) for k in (1, 2))
        return (8 * difference_h - difference_2h) / (12 * h)

    return np.array([directional(unit) for unit in np.eye(len(x)) * h])


def test_v_1_to_v_5_velocities(state: tuple) -> None:
    robot, q, v, _ = state
    world = WorldEquations(robot.tree, q, v, GRAVITY)
    V = (world.Psi @ world.G @ v).reshape(-1, 6)  # (V.4)
    same(V.ravel(), world.Phi @ V.ravel() + world.G @ v)  # (V.2), (V.3)
    motion = robot.link_motion(q, v, 0 * v, frame="world")
    same(motion.velocity, V, 1e-11)
    centre = np.einsum("nij,nj->ni", world.S, V)  # (V.1), (V.5)
    jacobians = robot.jacobians(q)
    same(np.einsum("nij,njk,k->ni", world.rotation, jacobians.translation, v), centre[:, 3:], 1e-11)


def test_1_q_dot_is_the_slope_of_h_in_p(state: tuple) -> None:
    robot, q, v, _ = state
    p = robot.momentum(q, v)
    # `slope` is exact to 1e-10 of the function, and the energy is larger than the velocities.
    same(slope(lambda x: robot.hamiltonian(q, x).hamiltonian, p), v, 1e-8)
    same(robot.velocity_from_momentum(q, p), v, 1e-10)  # (10)


def test_2_p_dot_is_minus_the_slope_of_h_in_q(state: tuple) -> None:
    robot, q, v, tau = state
    p = robot.momentum(q, v)
    gradient = slope(lambda x: robot.hamiltonian(x, p, gravity=GRAVITY).hamiltonian, q)
    # As above, of the gradient by q.
    same(robot.momentum_rate(q, p, tau, gravity=GRAVITY), tau - gradient, 1e-8)


def test_3_4_6_7_8_11_energies(state: tuple) -> None:
    robot, q, v, _ = state
    p = robot.momentum(q, v)
    energy, H = robot.energy(q, v, gravity=GRAVITY), robot.hamiltonian(q, p, gravity=GRAVITY)
    world = WorldEquations(robot.tree, q, v, GRAVITY)
    centre = np.einsum("nij,nj->ni", world.S, world.velocity)
    T = 0.5 * sum(
        c[:3] @ I @ c[:3] + body.mass * c[3:] @ c[3:]
        for c, I, body in zip(centre, world.inertia_about_com, robot.tree.inertia, strict=True)
    )  # (6)
    V = -sum(b.mass * GRAVITY @ (world.eta[i] + world.s[i]) for i, b in enumerate(robot.tree.inertia))
    same(energy.kinetic, T, 1e-11)
    same(energy.kinetic, 0.5 * v @ robot.mass_matrix(q) @ v, 1e-11)  # (7)
    same(H.kinetic, 0.5 * p @ np.linalg.solve(robot.mass_matrix(q), p), 1e-10)  # (11)
    same(energy.potential, V, 1e-11)
    same(energy.total, T + V, 1e-11)
    same(energy.lagrangian, T - V, 1e-11)  # (4)
    same(H.hamiltonian, v @ p - energy.lagrangian, 1e-10)  # (3)
    dL = slope(lambda x: robot.energy(x, v, gravity=GRAVITY).lagrangian, q)
    dH = slope(lambda x: robot.hamiltonian(x, p, gravity=GRAVITY).hamiltonian, q)
    same(dH, -dL, 1e-8)  # (8)


def test_5_and_9_momentum_is_the_slope_of_l_in_v(state: tuple) -> None:
    robot, q, v, _ = state
    same(slope(lambda x: robot.energy(q, x).lagrangian, v), robot.momentum(q, v), 1e-8)
    same(robot.momentum(q, v), robot.mass_matrix(q) @ v, 1e-11)


def test_p_1_to_p_4_momentum_of_every_branch(state: tuple) -> None:
    robot, q, v, _ = state
    system = robot.system_momentum(q, v, frame="world")
    world = WorldEquations(robot.tree, q, v, GRAVITY)
    centre = np.einsum("nij,nj->ni", world.S, world.velocity)
    r = world.eta + world.s
    for i in range(len(robot.tree)):
        branch = robot.tree.branch(i)
        masses = [robot.tree.inertia[k].mass for k in branch]
        H = sum(
            world.inertia_about_com[k] @ centre[k, :3] + m * np.cross(r[k] - world.eta[i], centre[k, 3:])
            for k, m in zip(branch, masses, strict=True)
        )
        P = sum(m * centre[k, 3:] for k, m in zip(branch, masses, strict=True))
        same(system.momentum[i], np.concatenate([H, P]), 1e-11)  # (P.1a), (P.1b)
        same(system.mass[i], sum(masses), 1e-12)
        if sum(masses) > 0.0:
            c = sum(m * (r[k] - world.eta[i]) for k, m in zip(branch, masses, strict=True)) / sum(masses)
            same(system.centre[i], c, 1e-11)  # (P.1c)
    K = world.Psi.T @ np.einsum("nij,nj->ni", world.M, world.velocity).ravel()
    same(system.momentum.ravel(), K, 1e-11)  # (P.2)
    same(world.G.T @ K, robot.momentum(q, v), 1e-11)  # (P.3a)
    same(
        world.G.T @ (world.Psi.T @ np.einsum("nij,nj->ni", world.M, (world.Psi @ world.G @ v).reshape(-1, 6)).ravel()),
        robot.momentum(q, v),
        1e-11,
    )  # (P.4)


def test_p_3a1_momentum_of_one_joint(state: tuple) -> None:
    """p_i = (d omega_i / d theta-dot_i)^T dL/d omega_i = g_i^T H_i = G_i^T K_i; g_i^T P_i where the joint slides.

    H_i, P_i are the slopes of T, (6), while what hangs on joint i turns about it, or shifts, as one.
    """
    robot, q, v, _ = state
    world, K = WorldEquations(robot.tree, q, v, GRAVITY), robot.system_momentum(q, v, frame="world").momentum
    p, G = robot.momentum(q, v), columns(world.axes)
    centre = np.einsum("nij,nj->ni", world.S, world.velocity)
    r = world.eta + world.s
    for i, k in enumerate(dofs(robot.tree)):
        if k < 0:
            continue

        def kinetic(change: np.ndarray, i: int = i) -> float:
            """T of the branch with `change`, [change of omega_i; change of eta-dot_i]."""
            T = 0.0
            for n in robot.tree.branch(i):
                omega = centre[n, :3] + change[:3]
                r_dot = centre[n, 3:] + change[3:] + np.cross(change[:3], r[n] - world.eta[i])
                T += omega @ world.inertia_about_com[n] @ omega / 2 + robot.tree.inertia[n].mass * r_dot @ r_dot / 2
            return T

        dL = slope(kinetic, np.zeros(6), 1e-2)  # T is of second degree: no error but rounding
        same(dL, K[i], 1e-11)
        part, motion = (slice(3), "revolute") if motions(robot.tree)[i] == "revolute" else (slice(3, 6), "prismatic")
        assert motions(robot.tree)[i] == motion
        g = world.rotation[i] @ robot.tree.inboard[i].axis
        assert p[k] == pytest.approx(g @ dL[part], rel=1e-10, abs=1e-10)
        assert p[k] == pytest.approx(G[i] @ K[i], rel=1e-10, abs=1e-10)


def test_p_1d_to_p_1g_rates_of_branch_momenta(state: tuple) -> None:
    """Along the motion: P-dot = f + sum of forces; H-dot = -eta-dot x P + tau + moments about the joint."""
    robot, q, v, tau = state
    a = robot.forward_dynamics(q, v, tau, gravity=GRAVITY)
    h = 1e-5

    def momentum_and_centre(s: float) -> tuple[np.ndarray, np.ndarray]:
        system = robot.system_momentum(q + s * v + s * s / 2 * a, v + s * a, frame="world")
        return system.momentum, system.centre

    rate, centre_rate = (
        (8 * (x1 - x2) - (y1 - y2)) / (12 * h)
        for (x1, x2, y1, y2) in zip(
            momentum_and_centre(h),
            momentum_and_centre(-h),
            momentum_and_centre(2 * h),
            momentum_and_centre(-2 * h),
            strict=True,
        )
    )
    world = WorldEquations(robot.tree, q, v, GRAVITY)
    F, K = world.forces(a), robot.system_momentum(q, v, frame="world").momentum
    branch_loads = (world.Psi.T @ world.applied.ravel()).reshape(-1, 6)
    system = robot.system_momentum(q, v, frame="world")
    for i in range(len(robot.tree)):
        same(rate[i, 3:], F[i, 3:] + branch_loads[i, 3:], 1e-7)  # (P.1e)
        moving = np.cross(world.velocity[i, 3:], K[i, 3:])
        same(rate[i, :3], F[i, :3] + branch_loads[i, :3] - moving, 1e-7)  # (P.1g)
        if system.mass[i] > 0.0:
            same(centre_rate[i], K[i, 3:] / system.mass[i] - world.velocity[i, 3:], 1e-7)  # (P.1d)
            central_momentum = K[i, :3] - np.cross(system.centre[i], K[i, 3:])
            about_rate = rate[i, :3] - np.cross(centre_rate[i], K[i, 3:]) - np.cross(system.centre[i], rate[i, 3:])
            c = system.centre[i]
            moment = F[i, :3] - np.cross(c, F[i, 3:]) + branch_loads[i, :3] - np.cross(c, branch_loads[i, 3:])
            same(about_rate, moment, 1e-6)  # (P.1f)
            assert central_momentum.shape == (3,)


def test_p_3b_rate_of_momentum(state: tuple) -> None:
    """For revolute joints the document's formula, for prismatic ones its counterpart, term by term."""
    robot, q, v, tau = state
    p = robot.momentum(q, v)
    push = Wrench(robot.link_names[-1], torque=(0.1, -0.2, 0.3), force=(1.0, 2.0, -3.0), frame="world")
    p_dot = robot.momentum_rate(q, p, tau, gravity=GRAVITY, wrenches=push)
    wrenches = np.zeros((len(robot.tree), 6))
    wrenches[-1] = [0.1, -0.2, 0.3, 1.0, 2.0, -3.0]
    world = WorldEquations(robot.tree, q, v, GRAVITY, wrenches)
    K = robot.system_momentum(q, v, frame="world").momentum
    branch_loads = (world.Psi.T @ world.applied.ravel()).reshape(-1, 6)
    axes = columns(world.axes)
    for i, k in enumerate(dofs(robot.tree)):
        if k < 0:
            continue
        omega, eta_dot, (H, P) = world.velocity[i, :3], world.velocity[i, 3:], np.split(K[i], 2)
        if motions(robot.tree)[i] == "revolute":
            rate = axes[i, :3] @ (-np.cross(omega, H) - np.cross(eta_dot, P) + branch_loads[i, :3])
        else:
            rate = axes[i, 3:] @ (-np.cross(omega, P) + branch_loads[i, 3:])
        assert p_dot[k] == pytest.approx(tau[k] + rate, rel=1e-9, abs=1e-9)


def test_p_3b_is_the_derivative_of_momentum(state: tuple) -> None:
    robot, q, v, tau = state
    a = robot.forward_dynamics(q, v, tau, gravity=GRAVITY)
    p = robot.momentum(q, v)
    same(robot.momentum_rate(q, p, tau, gravity=GRAVITY), robot.momentum_derivative(q, v, a), 1e-10)
    flow = robot.hamiltonian_flow(q, p, tau, gravity=GRAVITY)
    same(flow.v, v, 1e-10)
    # The same sweep in two kernels, whose frames round differently.
    same(flow.p_dot, robot.momentum_rate(q, p, tau, gravity=GRAVITY), 1e-12)


def test_p_4a_p_5a_p_5b(state: tuple) -> None:
    robot, q, v, _ = state
    world = WorldEquations(robot.tree, q, v, GRAVITY)
    p = world.mass_matrix @ v  # (P.4a)
    for method in ("articulated", "mass_matrix"):  # (P.5b), (P.5a)
        same(robot.velocity_from_momentum(q, p, method=method), v, 1e-10)


@pytest.fixture(scope="module")
def pendulum() -> Robot:
    return Robot.from_urdf(URDF / "double_pendulum.urdf")


class TestMotion:
    """Trajectories in (q, p) and in (q, v) are one motion."""

    def test_trajectories_agree_with_newton_euler(self, pendulum: Robot) -> None:
        start = np.array([[0.6, 0.9], [0.1, -0.4]]), np.array([[0.0, 0.0], [1.0, -2.0]])
        newton = simulate(pendulum, *start, dt=1e-3, steps=500, integrator="rk4")
        hamilton = simulate(pendulum, *start, dt=1e-3, steps=500, integrator="implicit_midpoint")
        adaptive = simulate(pendulum, *start, dt=1e-2, steps=50, integrator="adaptive")
        # The midpoint rule is of order 2: dt^2 times third derivatives of a swing of some 10 rad/s.
        np.testing.assert_allclose(hamilton.q, newton.q, atol=2e-5)
        np.testing.assert_allclose(hamilton.v, newton.v, atol=3e-4)
        # The local tolerance of the adaptive steps, summed over the motion.
        np.testing.assert_allclose(adaptive.q, newton.q[:, ::10], atol=1e-8)
        assert hamilton.p is not None
        same(hamilton.p, pendulum.momentum(hamilton.q, hamilton.v), 1e-10)

    def test_midpoint_is_of_order_2(self, pendulum: Robot) -> None:
        start = np.array([0.6, 0.9]), np.zeros(2)
        exact = simulate(pendulum, *start, dt=0.5, steps=1, integrator="adaptive").q[-1]
        errors = [
            np.abs(simulate(pendulum, *start, dt=0.5 / n, steps=n, integrator="implicit_midpoint").q[-1] - exact).max()
            for n in (50, 100, 200)
        ]
        np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 2.0, atol=0.1)

    def test_energy_stays_bounded_where_rk4_drifts(self, pendulum: Robot) -> None:
        """Coarse steps, so that some thousand show what a million of fine ones do."""
        start = np.array([0.45, 0.6]), np.zeros(2)

        def drift(integrator: str) -> np.ndarray:
            motion = simulate(pendulum, *start, dt=0.02, steps=2000, integrator=integrator, every=10)
            energy = pendulum.energy(motion.q, motion.v).total
            return np.abs(energy - energy[0])

        symplectic, rk4 = drift("implicit_midpoint"), drift("rk4")
        assert symplectic[-50:].max() < 1.5 * symplectic[:50].max()  # bounded: no larger late than early
        assert rk4[-50:].max() > 3.0 * rk4[:50].max()  # drifting, in proportion to time
