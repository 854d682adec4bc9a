"""Newton-Euler document: the operators, blocks and topology as queries, under their numbers.

The expected numbers are `WorldEquations` on the tree of moving bodies, which shares no code with the kernels, and the
matrices that the document prints for its examples.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import sparse

from dyn_service.api.queries import Wrench
from dyn_service.dynamics.structure import nilpotency
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, NotFoundError
from dyn_service.formulations.bodies import external_loads
from dyn_service.formulations.world_equations import WorldEquations, phi, psi
from tests.conftest import ROBOTS, URDF
from tests.phrases import naming
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.theory.test_newton_euler import GRAVITY, same, star
from tests.trees import columns
from tests.wide import wide

OF_DOCUMENT = np.kron(np.eye(2), [[1, 0, 0], [0, 0, 1], [0, -1, 0]])
"""Six-vectors in our world axes into the document's: its x, y, z are our x, z, -y in the files of its examples."""

PRODUCTS = 1e-11
"""Relative to the largest entry: beta's products lose what joints give way to, some hundred times what is left."""


@pytest.fixture(scope="module", params=wide(range(6), {1, 2, 5}.__contains__))
def state(request: pytest.FixtureRequest) -> tuple[Robot, np.ndarray, np.ndarray, WorldEquations]:
    robot = interpreting(random_urdf(500 + request.param, movable=6, bushy=0.6))
    q, v = np.random.default_rng(request.param).normal(size=(2, robot.nv))
    return robot, q, v, WorldEquations(robot.bodies.tree, q, v, GRAVITY)


def rotation_blocks(world: WorldEquations) -> np.ndarray:
    """diag of diag(R_i, R_i): six-vectors of all bodies in their own axes into world axes."""
    return sparse.block_diag([np.kron(np.eye(2), R) for R in world.rotation]).toarray()


class TestOperators:
    @pytest.mark.parametrize("operator", ["D", "beta"])
    def test_def_1_and_p3_in_world_axes(self, state: tuple, operator: str) -> None:
        """Phi_A and Psi_A for A = D, (4), and A = beta, (19b)."""
        robot, q, _, world = state
        A = world.D if operator == "D" else world.branches[3]
        Phi, Psi = robot.influence_operators(q, operator=operator, frame="world").dense()
        same(Phi, phi(world.tree, A), PRODUCTS)
        same(Psi, psi(world.tree, A), PRODUCTS)

    @pytest.mark.parametrize("operator", ["D", "beta"])
    def test_body_axes_are_world_axes_turned_on_both_sides(self, state: tuple, operator: str) -> None:
        robot, q, _, world = state
        X = rotation_blocks(world)
        body = robot.influence_operators(q, operator=operator).dense()
        for block, expected in zip(
            body, robot.influence_operators(q, operator=operator, frame="world").dense(), strict=True
        ):
            same(X @ block @ X.T, expected, PRODUCTS)

    @pytest.mark.parametrize("operator", ["D", "beta"])
    def test_p3_and_p4_series_and_inverse(self, state: tuple, operator: str) -> None:
        """Psi = e + Phi + ... + Phi^(m-1) = (e - Phi)^-1, Phi^m = 0 with m of the topology."""
        robot, q, *_ = state
        Phi, Psi = robot.influence_operators(q, operator=operator).dense()
        m, e = int(robot.topology().nilpotency), np.eye(6 * robot.nv)
        assert np.abs(np.linalg.matrix_power(Phi, m - 1)).max() > 0.0
        assert np.abs(np.linalg.matrix_power(Phi, m)).max() == 0.0
        same(sum(np.linalg.matrix_power(Phi, k) for k in range(m)), Psi, PRODUCTS)
        same((e - Phi) @ Psi, e, PRODUCTS)
        same(Psi.T @ (e - Phi.T), e, PRODUCTS)

    def test_places_are_the_topology(self, state: tuple) -> None:
        robot, q, *_ = state
        operators, tree = robot.influence_operators(q), robot.topology()
        link = dict(zip(tree.joints, tree.links, strict=True))
        places = {(link[row], link[column]) for row, column in zip(operators.rows, operators.columns, strict=True)}
        assert places == {(i, j) for i in tree.links for j in tree.ancestors_of(i)}
        assert len(operators.rows) == len(places) == robot.sizes["na"]
        for joint, parent, block in zip(operators.joints, operators.parents, operators.phi, strict=True):
            assert (link[parent] if parent else None) == tree.parent_of(link[joint])
            assert (np.abs(block).max() > 0.0) == bool(parent)

    def test_7_and_13_are_products_with_them(self, state: tuple) -> None:
        """V = Psi_D G v, and tau = G^T Psi_D^T (M Psi_D G a + ...) at rest without weight is (18c) times a."""
        robot, q, v, _ = state
        _, Psi = robot.influence_operators(q).dense()
        blocks = robot.newton_euler_blocks(q, v)
        G = np.zeros((6 * robot.nv, robot.nv))
        for k, axis in enumerate(blocks.free_axis):
            G[6 * k : 6 * k + 6, k] = axis
        M = sparse.block_diag(list(blocks.inertia)).toarray()
        same(G.T @ Psi.T @ M @ Psi @ G, robot.mass_matrix(q), 1e-12)
        A, B = blocks.velocity_products.ravel(), blocks.velocity_loads.ravel()
        same(G.T @ Psi.T @ (M @ Psi @ A + B), robot.bias_forces(q, v, gravity=(0, 0, 0)), 1e-11)  # (18b)

    def test_19b_is_a_product_with_them(self, state: tuple) -> None:
        """[e - K^T Phi_D Psi_beta G] R^-1 [e - G^T Psi_beta^T Phi_D^T K] is the inverse of the mass matrix."""
        robot, q, v, _ = state
        Phi, _ = robot.influence_operators(q).dense()
        _, Psi = robot.influence_operators(q, operator="beta").dense()
        branch, axes = robot.branch_inertias(q), robot.newton_euler_blocks(q, v).free_axis
        G, K = np.zeros((2, 6 * robot.nv, robot.nv))
        for k in range(robot.nv):
            G[6 * k : 6 * k + 6, k], K[6 * k : 6 * k + 6, k] = axes[k], branch.gain[k]
        left = np.eye(robot.nv) - K.T @ Phi @ Psi @ G
        # The condition number of these mass matrices is below 1e4.
        same(left @ np.linalg.inv(branch.resistance) @ left.T @ robot.mass_matrix(q), np.eye(robot.nv), 1e-10)

    def test_batches(self, state: tuple) -> None:
        robot, q, *_ = state
        dense_batch = robot.influence_operators(np.stack([q, 2 * q, 3 * q]), frame="world").dense()
        for batch_operator, operator_at_2q in zip(
            dense_batch, robot.influence_operators(2 * q, frame="world").dense(), strict=True
        ):
            np.testing.assert_array_equal(batch_operator[1], operator_at_2q)

    def test_massless_mover_has_d_and_no_beta(self) -> None:
        robot = Robot.from_urdf(
            '<robot name="r"><link name="a"/><link name="b"/>'
            '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint></robot>'
        )
        same(robot.influence_operators([0.1]).dense()[1], np.eye(6))
        with pytest.raises(FailedPreconditionError, match=naming("influence_operators", "'r'")):
            robot.influence_operators([0.1], operator="beta")

    def test_robot_that_cannot_move(self) -> None:
        robot = Robot.from_urdf('<robot name="brick"><link name="a"/></robot>')
        Phi, Psi = robot.influence_operators(np.zeros((4, 0)), frame="world").dense()
        assert Phi.shape == Psi.shape == (4, 0, 0)
        assert robot.topology().nilpotency == 0
        assert robot.topology(bodies="links").nilpotency == 1


class TestBlocks:
    def test_1_to_17_in_world_axes(self, state: tuple) -> None:
        """S (1), A-bar (2), D and G (4), A (5a), M-bar and B-bar (11), M (16), B (17) of every moving body."""
        robot, q, v, world = state
        blocks = robot.newton_euler_blocks(q, v, frame="world")
        assert blocks.joints == robot.joint_names
        moving = np.array([parent >= 0 for parent in world.tree.parent])
        same(blocks.influence[moving], world.D[moving])
        assert not blocks.influence[~moving].any()
        same(blocks.free_axis, columns(world.axes))
        same(blocks.centre_lever, world.S)
        same(blocks.velocity_products, world.A, 1e-11)
        same(blocks.inertia, world.M)
        same(blocks.centre_inertia, world.M_bar)
        same(blocks.velocity_loads, world.B, 1e-11)
        omega = world.velocity[:, :3]
        same(blocks.centre_velocity_products[:, 3:], np.cross(omega, np.cross(omega, world.s)), 1e-11)
        assert not blocks.centre_velocity_products[:, :3].any()
        spin = np.cross(omega, np.einsum("nij,nj->ni", world.inertia_about_com, omega))
        same(blocks.centre_velocity_loads[:, :3], spin, 1e-11)
        assert not blocks.centre_velocity_loads[:, 3:].any()

    @pytest.mark.parametrize("frame", ["body", "world"])
    def test_16_and_17_from_the_blocks_about_the_centre(self, state: tuple, frame: str) -> None:
        """M = S^T M-bar S and B = S^T M-bar A-bar + B-bar, in whichever axes."""
        robot, q, v, _ = state
        x = robot.newton_euler_blocks(q, v, frame=frame)
        S_T = np.swapaxes(x.centre_lever, 1, 2)
        same(S_T @ x.centre_inertia @ x.centre_lever, x.inertia)
        B = np.einsum("nij,njk,nk->ni", S_T, x.centre_inertia, x.centre_velocity_products) + x.centre_velocity_loads
        same(B, x.velocity_loads, 1e-11)

    @pytest.mark.parametrize("frame", ["body", "world"])
    def test_11_and_18b_from_the_blocks(self, state: tuple, frame: str) -> None:
        """F_i - sum of D^T F = S^T M-bar v-bar-dot + B-bar - Y^T F-bar, and C = G^T Psi^T (M Psi A + B - Y^T F-bar),
        with weight and with pushes on several links, fixed ones among them.
        """
        robot, q, v, world = state
        a = np.random.default_rng(9).normal(size=robot.nv)
        rng, links = np.random.default_rng(3), [robot.link_names[k] for k in (-1, len(robot.tree) // 2, 2)]
        pushes = [Wrench(link, *rng.normal(size=(3, 3))) for link in links]
        x = robot.newton_euler_blocks(q, v, frame=frame, gravity=GRAVITY, wrenches=pushes)
        assert np.abs(x.external_loads[:, :3]).max() > 0.1  # a push does not go through the centre of mass
        rows = [robot.tree.joints.index(joint) for joint in x.joints]
        motion = robot.link_motion(q, v, a, frame=frame, gravity=GRAVITY, wrenches=pushes)
        F, v_dot = motion.load[rows], motion.acceleration[rows]
        S, Y = x.centre_lever, x.external_lever
        centre = np.einsum("nij,nj->ni", S, v_dot) + x.centre_velocity_products  # (2)
        inertial_loads = np.einsum("nji,njk,nk->ni", S, x.centre_inertia, centre) + x.centre_velocity_loads
        external_loads = np.einsum("nji,nj->ni", Y, x.external_loads)
        left = F.copy()
        for k, parent in enumerate(world.tree.parent):
            if parent >= 0:
                left[parent] -= x.influence[k].T @ F[k]
        same(left, inertial_loads - external_loads, 1e-11)  # (11)
        _, Psi = robot.influence_operators(q, frame=frame).dense()
        inertial = np.einsum("nij,nj->ni", x.inertia, (Psi @ x.velocity_products.ravel()).reshape(-1, 6))
        loads = (Psi.T @ (inertial + x.velocity_loads - external_loads).ravel()).reshape(-1, 6)
        C = np.einsum("ni,ni->n", x.free_axis, loads)  # (18b)
        same(C, robot.inverse_dynamics(q, v, 0 * v, gravity=GRAVITY, wrenches=pushes), 1e-11)

    def test_each_wrench_has_a_lever_of_its_own(self, state: tuple) -> None:
        """Y_i, (11): Y^T F-bar of each push and of the weight add up to those of the blocks."""
        robot, q, v, world = state
        rng, links = np.random.default_rng(4), robot.link_names
        frames = ["world", links[-1], links[2]]
        pushes = [
            Wrench(links[k], *rng.normal(size=(3, 3)), frame=frame)
            for k, frame in zip((-1, -1, 2), frames, strict=True)
        ]
        loads = external_loads(robot, q, pushes)
        assert (np.abs(loads.lever[:, 3:, :3]).max(axis=(1, 2)) > 1e-3).all()
        assert np.abs(loads.lever[0] - loads.lever[1]).max() > 1e-3  # of one link, at different points
        for push, load in zip(pushes, loads.load, strict=True):
            if push.frame == "world":
                same(load, np.concatenate([push.torque, push.force]))
        blocks = robot.newton_euler_blocks(q, v, frame="world", gravity=GRAVITY, wrenches=pushes)
        masses = np.array([[body.mass] for body in world.tree.inertia])
        weight = np.concatenate([0 * world.s, masses * GRAVITY], axis=1)
        total = np.einsum("nji,nj->ni", blocks.centre_lever, weight)
        for body, Y, load in zip(*loads, strict=True):
            if body >= 0:
                total[body] += Y.T @ load
        same(total, np.einsum("nji,nj->ni", blocks.external_lever, blocks.external_loads), 1e-11)

    def test_body_axes_hold_what_is_constant(self, state: tuple) -> None:
        """G, S, M and M-bar do not depend on the state where the body's own axes are taken."""
        robot, q, v, _ = state
        blocks, blocks_elsewhere = robot.newton_euler_blocks(q, v), robot.newton_euler_blocks(3 * q, -v)
        for name in ("free_axis", "centre_lever", "inertia", "centre_inertia"):
            np.testing.assert_array_equal(getattr(blocks, name), getattr(blocks_elsewhere, name))

    def test_18c_in_three_steps(self, state: tuple) -> None:
        """J = Psi_D G, Q = M J, J^T Q: each against the document's, and the last against the compiled mass matrix."""
        robot, q, _, world = state
        steps = robot.mass_matrix_steps(q, frame="world")
        J = (world.Psi @ world.G).toarray()
        same(steps.jacobian.reshape(-1, robot.nv), J)
        same(steps.momenta.reshape(-1, robot.nv), sparse.block_diag(list(world.M)) @ J)
        same(steps.mass_matrix, world.mass_matrix)
        same(steps.mass_matrix, robot.mass_matrix(q))
        body = robot.mass_matrix_steps(q)
        same(rotation_blocks(world) @ body.jacobian.reshape(-1, robot.nv), J)
        same(rotation_blocks(world) @ body.momenta.reshape(-1, robot.nv), steps.momenta.reshape(-1, robot.nv))

    @pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
    def test_18c_in_three_steps_on_our_robots(self, path: object) -> None:
        robot = interpreting(path)
        q = np.random.default_rng(0).normal(size=robot.nv)
        same(robot.mass_matrix_steps(q).mass_matrix, robot.mass_matrix(q))


class TestTopology:
    def test_fig_2(self) -> None:
        """Every set that Fig. 2 prints, by the numbers in the bodies' names."""
        tree = Robot.from_urdf(URDF / "ten_body_tree.urdf").topology()

        def numbers(names: tuple[str, ...]) -> set[int]:
            return {int(name.removeprefix("body_")) for name in names}

        assert numbers(tree.ancestors_of("body_2")) == {2, 1}
        assert numbers(tree.ancestors_of("body_5")) - {5} == {3, 1}
        assert numbers(tree.ancestors_of("body_6")) == {6, 5, 3, 1}
        assert numbers(tree.ancestors_of("body_10")) == {10, 9, 1}
        assert numbers(tree.branch_of("body_1")) == set(range(1, 11))
        assert numbers(tree.branch_of("body_2")) == {2}
        assert numbers(tree.branch_of("body_3")) == set(range(3, 9))
        assert numbers(tree.branch_of("body_4")) == {4, 7, 8}
        assert numbers(tree.children_of("body_1")) == {2, 3, 9}
        for leaf in (2, 6, 8, 10):
            assert tree.children_of(f"body_{leaf}") == ()
        assert numbers(tree.children_of("body_3")) == {4, 5}
        assert numbers(tree.children_of("body_4")) == {7}
        assert tree.parent_of("body_1") is None
        assert tree.parent_of("body_8") == "body_7"
        assert tree.nilpotency == 5
        with pytest.raises(NotFoundError, match=naming("'body_11'", "body_1")):
            tree.branch_of("body_11")

    def test_fig_3(self) -> None:
        """Nilpotency 2: all bodies on the first."""
        assert nilpotency(star(7)) == 2

    def test_patterns_are_those_of_phi_and_psi(self, state: tuple) -> None:
        robot, *_ = state
        for bodies, tree in (("moving", robot.bodies.tree), ("links", robot.tree)):
            topology = robot.topology(bodies=bodies)
            unit_blocks = np.ones((len(tree), 1, 1))
            assert topology.links == tree.links
            assert topology.joints == tree.joints
            np.testing.assert_array_equal(topology.children, phi(tree, unit_blocks).toarray().T)
            np.testing.assert_array_equal(topology.ancestors, psi(tree, unit_blocks).toarray())
            np.testing.assert_array_equal(topology.parent, tree.parent)
            assert (
                topology.nilpotency
                == nilpotency(tree)
                == max(len(topology.ancestors_of(name)) for name in topology.links)
            )


class TestExamples:
    """What the document prints for its two pendulums, in its axes."""

    @pytest.mark.parametrize("theta", [0.0, 0.7, -2.0])
    def test_m1_to_m3_pendulum(self, theta: float) -> None:
        """G = [e_z; 0], Phi_D = 0, Psi_D = e."""
        robot = Robot.from_urdf(URDF / "pendulum.urdf")
        (G,) = robot.newton_euler_blocks([theta], [0.3], frame="world").free_axis
        np.testing.assert_allclose(OF_DOCUMENT @ G, [0, 0, 1, 0, 0, 0], atol=1e-15)  # (M1)
        Phi, Psi = robot.influence_operators([theta], frame="world").dense()
        np.testing.assert_array_equal(Phi, np.zeros((6, 6)))  # (M2)
        np.testing.assert_allclose(Psi, np.eye(6), atol=1e-15)  # (M3)

    @pytest.mark.parametrize("theta", [0.0, 0.7, -2.0])
    def test_n1_to_n3_pendulum_on_a_moving_base(self, theta: float) -> None:
        """G_1 = [0; e_x], G_2 = [e_z; 0], Phi_D = [0 0; e 0], nilpotency 2, Psi_D = [e 0; e e]."""
        robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
        G = robot.newton_euler_blocks([0.4, theta], [0.1, 0.2], frame="world").free_axis @ OF_DOCUMENT.T
        np.testing.assert_allclose(G, [[0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0]], atol=1e-15)  # (N1)
        Phi, Psi = robot.influence_operators([0.4, theta], frame="world").dense()
        e, zero = np.eye(6), np.zeros((6, 6))
        np.testing.assert_allclose(Phi, np.block([[zero, zero], [e, zero]]), atol=1e-15)  # (N2)
        assert robot.topology().nilpotency == 2
        np.testing.assert_allclose(Psi, np.block([[e, zero], [e, e]]), atol=1e-15)  # (N3)
        np.testing.assert_allclose(Psi, e_plus(Phi), atol=1e-15)

    def test_blocks_of_both_examples(self) -> None:
        """The terms between (M3) and (M4), (N3) and (N4): A = 0, and B with the bar's centripetal force alone."""
        for file, q, v in (("pendulum", [0.7], [1.5]), ("cart_pendulum", [0.4, 0.7], [0.3, 1.5])):
            robot = Robot.from_urdf(URDF / f"{file}.urdf")
            blocks = robot.newton_euler_blocks(q, v, frame="world")
            s = 0.5 * np.array([np.sin(0.7), -np.cos(0.7), 0.0])  # L (sin e_x - cos e_y)
            same(blocks.velocity_products, np.zeros((len(q), 6)))
            same(blocks.velocity_loads[-1] @ OF_DOCUMENT.T, np.concatenate([np.zeros(3), -1.2 * 1.5**2 * s]))
            if len(q) > 1:
                same(blocks.velocity_loads[0], np.zeros(6))

    def test_example_1_between_m3_and_m4(self) -> None:
        """Psi^T (B - Y^T F-bar) = [s~ m g e_y; -m theta-dot^2 s + m g e_y], and f - C = tau - m g L sin(theta)."""
        robot, theta, rate, tau, m, g, L = Robot.from_urdf(URDF / "pendulum.urdf"), 0.7, 1.5, 0.4, 1.2, 9.81, 0.5
        blocks = robot.newton_euler_blocks([theta], [rate], frame="world")
        s, e_y = L * np.array([np.sin(theta), -np.cos(theta), 0.0]), np.eye(3)[1]
        Y = OF_DOCUMENT @ blocks.external_lever[0] @ OF_DOCUMENT.T
        same(Y.T, np.block([[np.eye(3), skew(s)], [np.zeros((3, 3)), np.eye(3)]]))
        loads = OF_DOCUMENT @ (blocks.velocity_loads[0] - blocks.external_lever[0].T @ blocks.external_loads[0])
        same(loads, np.concatenate([np.cross(s, m * g * e_y), -m * rate**2 * s + m * g * e_y]))
        same(tau - (OF_DOCUMENT @ blocks.free_axis[0]) @ loads, tau - m * g * L * np.sin(theta))
        same(robot.bias_forces([theta], [rate])[0], m * g * L * np.sin(theta))

    def test_y_and_f_bar_of_both_examples(self) -> None:
        """F-bar_1 = [0; -m_1 g e_y] and Y^T F-bar = [-s~ m g e_y; -m g e_y]; on the base f e_x too, and Y_1 = e."""
        s, g = 0.5 * np.array([np.sin(0.7), -np.cos(0.7), 0.0]), 9.81
        e_x, e_y, zero = np.eye(3)[0], np.eye(3)[1], np.zeros(3)
        pendulum = Robot.from_urdf(URDF / "pendulum.urdf").newton_euler_blocks([0.7], [1.5], frame="world")
        same(OF_DOCUMENT @ pendulum.external_loads[0], np.concatenate([zero, -1.2 * g * e_y]))
        cart = Robot.from_urdf(URDF / "cart_pendulum.urdf")
        push = Wrench("cart", force=(3.0, 0.0, 0.0), frame="world")
        cart_blocks = cart.newton_euler_blocks([0.4, 0.7], [0.3, 1.5], frame="world", wrenches=push)
        same(OF_DOCUMENT @ cart_blocks.external_loads[0], np.concatenate([zero, 3.0 * e_x - 2.0 * g * e_y]))
        same(cart_blocks.external_lever[0], np.eye(6))
        for blocks in (pendulum, cart_blocks):
            Y = OF_DOCUMENT @ blocks.external_lever[-1] @ OF_DOCUMENT.T
            external_load = Y.T @ (OF_DOCUMENT @ blocks.external_loads[-1])
            same(external_load, np.concatenate([-np.cross(s, 1.2 * g * e_y), -1.2 * g * e_y]))


@pytest.mark.parametrize("width", [1, 3])
def test_p4_and_both_algorithms(width: int) -> None:
    """The series (P3), (P4) and the two passes, for a matrix A_i of each body of Fig. 2."""
    tree = Robot.from_urdf(URDF / "ten_body_tree.urdf").topology()
    rng, parents, n = np.random.default_rng(0), tree.parent.astype(int), 10
    A, x = rng.normal(size=(n, width, width)), rng.normal(size=(n, width))
    blocks = np.zeros((n, width, n, width))
    for i, parent in enumerate(parents):
        if parent >= 0:
            blocks[i, :, parent] = A[i]
    Phi = blocks.reshape(n * width, n * width)
    powers = [np.linalg.matrix_power(Phi, k) for k in range(int(tree.nilpotency) + 1)]
    assert not powers[-1].any()
    assert powers[-2].any()
    outward, inward = np.zeros_like(x), x.copy()
    for i, parent in enumerate(parents):
        outward[i] = x[i] + (A[i] @ outward[parent] if parent >= 0 else 0.0)
    for i in range(n - 1, 0, -1):
        inward[parents[i]] += A[i].T @ inward[i]
    np.testing.assert_allclose(sum(powers[:-1]) @ x.ravel(), outward.ravel(), rtol=0, atol=1e-13)  # (P3)
    transposed = sum(np.linalg.matrix_power(Phi.T, k) for k in range(int(tree.nilpotency)))
    np.testing.assert_allclose(transposed @ x.ravel(), inward.ravel(), rtol=0, atol=1e-13)  # (P4)
    np.testing.assert_allclose(transposed, np.linalg.inv(np.eye(n * width) - Phi.T), rtol=0, atol=1e-13)


def test_composite_inertias_give_each_entry_of_the_mass_matrix() -> None:
    """M_ij = G_j^T D_k^T .. D_i^T M^c_i G_i, and 0 off the chains: the entries that Q2 counts."""
    robot = Robot.from_urdf(URDF / "ten_body_tree.urdf")
    q, tree = np.linspace(-0.9, 0.9, 10), robot.topology()
    blocks, parents = robot.newton_euler_blocks(q, 0 * q), tree.parent.astype(int)
    composite = blocks.inertia.copy()
    for i in range(9, 0, -1):
        composite[parents[i]] += blocks.influence[i].T @ composite[i] @ blocks.influence[i]
    M = np.zeros((10, 10))
    for i in range(10):
        load, j = composite[i] @ blocks.free_axis[i], i
        while j >= 0:
            M[i, j] = M[j, i] = blocks.free_axis[j] @ load
            load, j = blocks.influence[j].T @ load, parents[j]
    np.testing.assert_allclose(M, robot.mass_matrix(q), rtol=0, atol=1e-13)


def test_20_the_force_along_z_of_a_joint_that_turns_about_x() -> None:
    """The document's example: G = [e^x; 0], G-bar^c = [0; e^z], f-bar^c = G-bar^c . F, in the joint's frame."""
    text = (URDF / "double_pendulum.urdf").read_text(encoding="utf-8")
    robot = Robot.from_urdf(re.sub(r'<axis xyz="[^"]*"', '<axis xyz="1 0 0"', text))
    q, v, tau = np.array([0.3, 0.4]), np.array([0.5, -0.6]), np.array([1.0, 2.0])
    joint = robot.joint_names[1]
    loads = robot.constraint_forces(q, v, tau)
    row = list(robot.all_joint_names).index(joint)
    F, e = loads.wrench[row], np.eye(3)
    G, along_z = np.concatenate([e[0], 0 * e[0]]), np.concatenate([0 * e[2], e[2]])
    np.testing.assert_allclose(G @ F, tau[1], rtol=0, atol=1e-12)  # the free axis carries the effort
    np.testing.assert_allclose(robot.constraint_basis(joint).T @ G, 0.0, atol=1e-15)
    np.testing.assert_allclose(loads.component(joint, "force z"), along_z @ F, rtol=1e-14)
    assert abs(along_z @ F) > 1.0


def skew(a: np.ndarray) -> np.ndarray:
    """The matrix of the cross product with a."""
    return np.asarray(np.cross(np.eye(3), a))


def e_plus(Phi: np.ndarray) -> np.ndarray:
    """(P3) where the nilpotency is 2."""
    return np.eye(len(Phi)) + Phi
