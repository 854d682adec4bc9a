"""Newton-Euler document: Def. 1, 2, (P1)-(P4), (1)-(20), Figs. 2 and 3, Examples 1 and 2, each under its number."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dyn_service.dynamics import articulated, newton_euler
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.structure import nilpotency
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.formulations.world_equations import WorldEquations, phi, psi
from dyn_service.model.building import tree_of
from dyn_service.model.composite import weld
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read_file, read_text
from tests.conftest import URDF
from tests.phrases import naming
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.trees import columns, dofs, motions

EXACT = 1e-12
"""Relative: both sides are sums of the same few products in another order."""

GRAVITY = np.array([0.3, 1.0, -9.81])


def same(x: object, y: object, tolerance: float = EXACT) -> None:
    a, b = (z.toarray() if sparse.issparse(z) else np.asarray(z, dtype=float) for z in (x, y))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max(initial=0.0)))


@pytest.fixture(scope="module")
def fig_2() -> tuple[Tree, np.ndarray]:
    """The tree of Fig. 2 and, per body of ours, the document's number."""
    tree = weld(tree_of(read_file(URDF / "ten_body_tree.urdf"))).tree
    return tree, np.array([int(name.removeprefix("body_")) for name in tree.links])


@pytest.fixture(scope="module", params=range(8))
def state(request: pytest.FixtureRequest) -> tuple[Robot, WorldEquations, np.ndarray, np.ndarray]:
    """A random robot, its equations at a random state with weight and wrenches, an acceleration, efforts."""
    robot = interpreting(random_urdf(40 + request.param))
    rng = np.random.default_rng(request.param)
    q, v, a = rng.normal(size=(3, robot.nv))
    wrenches = rng.normal(size=(len(robot.tree), 6))
    world = WorldEquations(robot.tree, q, v, GRAVITY, wrenches)
    return robot, world, a, world.mass_matrix @ a + world.C


def star(bodies: int) -> Tree:
    """Fig. 3: every body on the first."""
    links = "".join(f'<link name="l{i}"/>' for i in range(bodies + 1))
    joints = "".join(
        f'<joint name="j{i}" type="continuous"><parent link="l{min(i - 1, 1)}"/><child link="l{i}"/></joint>'
        for i in range(1, bodies + 1)
    )
    return weld(tree_of(read_text(f'<robot name="star">{links}{joints}</robot>'))).tree


class TestInfluence:
    def test_def_1_and_def_2_pattern_of_fig_2(self, fig_2: tuple[Tree, np.ndarray]) -> None:
        tree, number = fig_2
        matrix = phi(tree, np.arange(1.0, 11.0)[:, None, None] * np.ones((10, 1, 1))).toarray()
        parents = {2: 1, 3: 1, 9: 1, 4: 3, 5: 3, 7: 4, 8: 7, 6: 5, 10: 9}
        pairs = {(int(number[i]), int(number[j])) for i, j in zip(*np.nonzero(matrix), strict=True)}
        assert pairs == set(parents.items())
        for i, j in zip(*np.nonzero(matrix), strict=True):
            assert matrix[i, j] == i + 1.0  # the block of the child
        transposed = {(int(number[i]), int(number[j])) for i, j in zip(*np.nonzero(matrix.T), strict=True)}
        assert transposed == {(parent, child) for child, parent in parents.items()}

    def test_psi_of_fig_2(self, fig_2: tuple[Tree, np.ndarray]) -> None:
        """Each block is the product the document prints, such as A_8 A_7 A_4 A_3 in row 8, column 1."""
        tree, number = fig_2
        A = np.random.default_rng(0).normal(size=(10, 2, 2))
        place = {int(n): i for i, n in enumerate(number)}
        products = {
            (2, 1): (2,), (3, 1): (3,), (4, 1): (4, 3), (5, 1): (5, 3), (6, 1): (6, 5, 3), (7, 1): (7, 4, 3),
            (8, 1): (8, 7, 4, 3), (9, 1): (9,), (10, 1): (10, 9), (4, 3): (4,), (5, 3): (5,), (6, 3): (6, 5),
            (7, 3): (7, 4), (8, 3): (8, 7, 4), (7, 4): (7,), (8, 4): (8, 7), (6, 5): (6,), (8, 7): (8,), (10, 9): (10,),
        }  # fmt: skip
        matrix = psi(tree, A).toarray()
        for row in range(1, 11):
            for column in range(1, 11):
                expected = np.eye(2) if row == column else np.zeros((2, 2))
                if (row, column) in products:
                    expected = np.linalg.multi_dot(
                        [np.eye(2), *(A[place[k]] for k in products[row, column]), np.eye(2)]
                    )
                i, j = place[row], place[column]
                same(matrix[2 * i : 2 * i + 2, 2 * j : 2 * j + 2], expected)

    def test_nilpotency_of_figs_2_and_3(self, fig_2: tuple[Tree, np.ndarray]) -> None:
        assert nilpotency(fig_2[0]) == 5
        assert nilpotency(star(7)) == 2
        tree = star(7)
        A = np.random.default_rng(0).normal(size=(7, 3, 3))
        same(psi(tree, A), sparse.eye_array(21) + phi(tree, A))

    @pytest.mark.parametrize("seed", range(10))
    def test_p1_to_p4(self, seed: int) -> None:
        """Products with Phi are steps, the power series is the inverse, the sweeps are the products with Psi."""
        tree = tree_of(read_text(random_urdf(seed)))
        rng = np.random.default_rng(seed)
        N, k = len(tree), 3
        A, x = rng.normal(size=(N, k, k)), rng.normal(size=(N, k))
        P, m = phi(tree, A), nilpotency(tree)
        outward, inward = np.zeros((N, k)), np.zeros((N, k))
        for i, parent in enumerate(tree.parent):
            if parent >= 0:
                outward[i] = A[i] @ x[parent]
                inward[parent] += A[i].T @ x[i]
        same((P @ x.ravel()).reshape(N, k), outward)  # (P1)
        same((P.T @ x.ravel()).reshape(N, k), inward)  # (P2)
        same(P, sparse.tril(P, -1))  # strictly lower triangular
        series, power = sparse.eye_array(N * k), sparse.eye_array(N * k)
        for _ in range(m - 1):
            power = power @ P
            series = series + power
        assert abs(power).max() > 0.0
        assert abs(power @ P).max() == 0.0
        same(psi(tree, A), series)  # (P3)
        same(np.linalg.inv(np.eye(N * k) - P.toarray()), series, 1e-9)
        same(psi(tree, A).T, np.linalg.inv(np.eye(N * k) - P.T.toarray()), 1e-9)  # (P4)
        z, y = x.copy(), x.copy()
        for i, parent in enumerate(tree.parent):
            if parent >= 0:
                z[i] = A[i] @ z[parent] + x[i]
        for i in range(N - 1, -1, -1):
            if tree.parent[i] >= 0:
                y[tree.parent[i]] += A[i].T @ y[i]
        same((psi(tree, A) @ x.ravel()).reshape(N, k), z)
        same((psi(tree, A).T @ x.ravel()).reshape(N, k), y)


class TestEquations:
    def test_1_and_v_4_velocities_are_rates_of_places(self, state: tuple) -> None:
        """(1), (4): V and v-bar are what moving along v does to joints and centres of mass."""
        robot, world, *_ = state
        h = 1e-6
        ahead_world, earlier = (
            WorldEquations(robot.tree, world.q + s * h * world.v, world.v, GRAVITY) for s in (1, -1)
        )
        same(world.velocity[:, 3:], (ahead_world.eta - earlier.eta) / (2 * h), 1e-8)
        spin = (ahead_world.rotation - earlier.rotation) @ np.swapaxes(world.rotation, 1, 2) / (2 * h)
        same(world.velocity[:, :3], np.stack([spin[:, 2, 1], spin[:, 0, 2], spin[:, 1, 0]], axis=1), 1e-8)
        centre = np.einsum("nij,nj->ni", world.S, world.velocity)
        same(centre[:, 3:], (ahead_world.eta + ahead_world.s - earlier.eta - earlier.s) / (2 * h), 1e-8)

    def test_2_3_5_to_8_accelerations_are_rates_of_velocities(self, state: tuple) -> None:
        """(2), (3), (5)-(8), with (5a) for prismatic joints too."""
        robot, world, a, _ = state
        h = 1e-6
        ahead_world, earlier = (
            WorldEquations(robot.tree, world.q + s * h * world.v + h * h / 2 * a, world.v + s * h * a, GRAVITY)
            for s in (1, -1)
        )
        same(world.acceleration(a), (ahead_world.velocity - earlier.velocity) / (2 * h), 1e-7)
        centre = [np.einsum("nij,nj->ni", w.S, w.velocity) for w in (ahead_world, earlier)]
        same(world.centre_acceleration(a), (centre[0] - centre[1]) / (2 * h), 1e-7)

    def test_9_and_10_newton_and_euler_for_each_body(self, state: tuple) -> None:
        _, world, a, _ = state
        tree, F, at_centre = world.tree, world.forces(a), world.centre_acceleration(a)
        for i, body in enumerate(tree.inertia):
            moment, force, omega = F[i, :3], F[i, 3:], world.velocity[i, :3]
            I, s = world.inertia_about_com[i], world.s[i]
            external_moment = world.applied[i, :3] - np.cross(s, world.applied[i, 3:])
            given_on = [F[k] for k in tree.children[i]]
            euler = I @ at_centre[i, :3] + np.cross(omega, I @ omega) - external_moment
            newton = body.mass * at_centre[i, 3:] - world.applied[i, 3:]
            for k, load in zip(tree.children[i], given_on, strict=True):
                euler = euler + load[:3] + np.cross(world.d[k] - s, load[3:])
                newton = newton + load[3:]
            same(moment - np.cross(s, force), euler, 1e-11)  # (9)
            same(force, newton, 1e-11)  # (10)

    def test_11_to_15_stacked(self, state: tuple) -> None:
        _, world, a, _ = state
        F = world.forces(a).ravel()
        S, M_bar = (sparse.block_diag(list(x)) for x in (world.S, world.M_bar))
        B_bar = np.concatenate(
            [
                np.concatenate([np.cross(w[:3], I @ w[:3]), np.zeros(3)])
                for w, I in zip(world.velocity, world.inertia_about_com, strict=True)
            ]
        )
        right = S.T @ (M_bar @ world.centre_acceleration(a).ravel()) + B_bar - world.applied.ravel()
        same(F - world.Phi.T @ F, right, 1e-11)  # (11), (12)
        same(F, world.Psi.T @ right, 1e-11)  # (13), (14)
        M = sparse.block_diag(list(world.M))
        rest = world.Psi.T @ (M @ (world.Psi @ world.A.ravel()) + world.B.ravel() - world.applied.ravel())
        same(F, world.Psi.T @ (M @ (world.Psi @ (world.G @ a))) + rest, 1e-11)  # (15)

    def test_16_and_17_entries(self, state: tuple) -> None:
        _, world, *_ = state
        for i, body in enumerate(world.tree.inertia):
            s, omega = world.s[i], world.velocity[i, :3]
            skew = np.array([[0, -s[2], s[1]], [s[2], 0, -s[0]], [-s[1], s[0], 0]])
            about_joint = world.inertia_about_com[i] - body.mass * skew @ skew
            m = body.mass
            same(world.M[i], np.block([[about_joint, m * skew], [-m * skew, m * np.eye(3)]]))
            B = [np.cross(omega, about_joint @ omega), m * np.cross(omega, np.cross(omega, s))]
            same(world.B[i], np.concatenate(B))

    def test_18_equation_of_motion(self, state: tuple) -> None:
        robot, world, a, tau = state
        same(world.G.T @ world.forces(a).ravel(), tau, 1e-11)  # (18a)
        same(world.mass_matrix @ a, tau - world.C, 1e-11)  # (18)
        same(robot.mass_matrix(world.q), world.mass_matrix)  # (18c), compiled and explicit

    def test_18b_compiled_and_explicit(self, state: tuple) -> None:
        robot, world, *_ = state
        unpushed = WorldEquations(robot.tree, world.q, world.v, GRAVITY)
        same(robot.bias_forces(world.q, world.v, gravity=GRAVITY), unpushed.C, 1e-11)

    def test_19a_and_19b(self, state: tuple) -> None:
        robot, world, a, tau = state
        same(np.linalg.solve(world.mass_matrix, tau - world.C), a, 1e-9)  # (19a)
        same(world.forward_dynamics(tau), a, 1e-9)  # (19b), operator by operator
        _, R, K, beta = world.branches
        np.testing.assert_array_equal(R, np.diag(np.diag(R)))
        explicit = (
            (sparse.eye_array(robot.nv) - world._columns(K).T @ world.Phi @ psi(robot.tree, beta) @ world.G)
            @ sparse.diags_array(1 / np.diag(R))
            @ (sparse.eye_array(robot.nv) - world.G.T @ psi(robot.tree, beta).T @ world.Phi.T @ world._columns(K))
        )
        same(explicit @ world.mass_matrix, np.eye(robot.nv), 1e-9)

    def test_branch_inertias_of_the_kernel_are_those_of_the_document(self, state: tuple) -> None:
        robot, world, *_ = state
        J, R, *_ = world.branches
        tree = robot.tree
        D, G, M = (
            f(tree, *x)
            for f, x in (
                (newton_euler.influences, (ex.matrix(world.q),)),
                (newton_euler.motion_subspaces, ()),
                (newton_euler.inertias, ()),
            )
        )
        branches = articulated.branches(tree, D, G, M)
        for i, k in enumerate(dofs(tree)):
            if k >= 0:
                assert float(branches.R_inverse[i]) == pytest.approx(1.0 / R[k, k], rel=1e-10)
            X = np.kron(np.eye(2), world.rotation[i])
            block = branches.J[i]
            full = np.block([[block.I.array(), block.H.array()], [block.H.array().T, block.m.array()]])
            same(X @ full @ X.T, J[i], 1e-10)


def test_20_constraint_basis(state: tuple) -> None:
    """G^T G^ = 0, G^^T G^ = e; the constraint is G^ G^^T F, and with the actuation it is the whole wrench."""
    robot, world, a, tau = state
    free = robot.inverse_dynamics(world.q, world.v, a)
    loads = robot.constraint_forces(world.q, world.v, free)
    assert {motions(robot.tree)[robot.tree.joints.index(name)] for name in loads.joints} > {"fixed"}
    for row, name in enumerate(loads.joints):
        i = robot.tree.joints.index(name)
        G_hat = robot.constraint_basis(name)
        assert G_hat.shape == ((6, 6) if motions(robot.tree)[i] == "fixed" else (6, 5))
        same(G_hat.T @ G_hat, np.eye(G_hat.shape[1]))
        axis = columns(world.axes)[i]
        G = np.concatenate([world.rotation[i].T @ axis[:3], world.rotation[i].T @ axis[3:]])
        same(G @ G_hat, np.zeros(G_hat.shape[1]))
        same(G_hat @ (G_hat.T @ loads.wrench[row]), loads.constraint[row], 1e-11)
        same(G_hat @ (G_hat.T @ loads.wrench[row]) + G * loads.actuation[row], loads.wrench[row], 1e-11)
        same(loads.component(name, "force z"), loads.constraint[row, 5])
    with pytest.raises(NotFoundError, match="has no joint 'nose'"):
        robot.constraint_basis("nose")
    with pytest.raises(InvalidArgumentError, match=naming("torque x", "'force w'")):
        loads.component(loads.joints[0], "force w")
    assert tau.shape == free.shape


class TestExamples:
    @pytest.mark.parametrize("seed", range(5))
    def test_m4_pendulum(self, seed: int) -> None:
        """(I + m L^2) theta-ddot = tau - m g L sin theta."""
        robot = Robot.from_urdf(URDF / "pendulum.urdf")
        body = robot.bodies.tree.inertia[0]
        L, m = float(np.linalg.norm(body.com)), body.mass
        axis = robot.bodies.tree.inboard[0].axis
        I_zz = float(axis @ body.about_com @ axis)
        theta, rate, tau = np.random.default_rng(seed).normal(size=3)
        expected = (tau - m * 9.81 * L * np.sin(theta)) / (I_zz + m * L**2)
        assert robot.forward_dynamics([theta], [rate], [tau])[0] == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("seed", range(5))
    def test_n4_pendulum_on_a_moving_base(self, seed: int) -> None:
        robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
        cart, bob = robot.bodies.tree.inertia
        L, axis = float(np.linalg.norm(bob.com)), robot.bodies.tree.inboard[1].axis
        I_zz = float(axis @ bob.about_com @ axis)
        (x, theta), (_, rate), (force, tau) = np.random.default_rng(seed).normal(size=(3, 2))
        m1, m2, g = cart.mass, bob.mass, 9.81
        M = [[m1 + m2, m2 * L * np.cos(theta)], [m2 * L * np.cos(theta), I_zz + m2 * L**2]]
        right = [force + m2 * L * np.sin(theta) * rate**2, tau - m2 * g * L * np.sin(theta)]
        a = robot.forward_dynamics([x, theta], [0.3, rate], [force, tau])
        same(a, np.linalg.solve(M, right))
        same(robot.mass_matrix([x, theta]), M)

    def test_n4_over_symbols_of_the_state(self) -> None:
        """The generic sweeps, traced over symbols, are the hand-derived equations term by term.

        With the parameters as symbols too, (M4) and (N4): `test_symbolic.py`.
        """
        tree = weld(tree_of(read_file(URDF / "cart_pendulum.urdf"))).tree
        q, v, a, g = ex.sym("q", 2), ex.sym("v", 2), ex.sym("a", 2), ex.sym("g")
        cart, bob = tree.inertia
        L, m1, m2 = float(np.linalg.norm(bob.com)), cart.mass, bob.mass
        I_zz = float(tree.inboard[1].axis @ bob.about_com @ tree.inboard[1].axis)
        theta, rate = q[1], v[1]
        by_hand = ex.vertcat(
            (m1 + m2) * a[0] + m2 * L * ex.cos(theta) * a[1] - m2 * L * ex.sin(theta) * rate**2,
            m2 * L * ex.cos(theta) * a[0] + (I_zz + m2 * L**2) * a[1] + m2 * g * L * ex.sin(theta),
        )
        generic = newton_euler.inverse_dynamics(tree, q, v, a, ex.vertcat(0, 0, -g))
        unknowns = ex.vertcat(a, v, g)
        # Both are linear in a and g and quadratic in v: equal derivatives of every order are equal expressions.
        difference = generic - by_hand
        first = ex.jacobian(difference, unknowns)
        second = ex.jacobian(ex.vec(first), unknowns)
        for seed in range(20):
            rng = np.random.default_rng(seed)
            values = (rng.normal(size=2), rng.normal(size=2), rng.normal(size=2), rng.normal())
            for value in ex.substitute([difference, first, second], [q, v, a, g], values):
                assert np.abs(value.array()).max() < 1e-12


@pytest.mark.parametrize("seed", [12, 28, 40])
def test_moving_bodies_alone_have_the_same_equations(seed: int) -> None:
    """The first body of the full tree is the ground; of the other it moves, and others stand on it."""
    full = tree_of(read_text(random_urdf(seed)))
    rng = np.random.default_rng(seed)
    q, v, tau = rng.normal(size=(3, full.nv))
    links, bodies = (WorldEquations(tree, q, v, GRAVITY) for tree in (full, weld(full).tree))
    same(bodies.mass_matrix, links.mass_matrix)
    same(bodies.C, links.C)
    same(bodies.forward_dynamics(tau), links.forward_dynamics(tau), 1e-10)  # the mass matrix's condition number is 1e3
    rows = [full.links.index(name) for name in bodies.tree.links]
    same(bodies.eta, links.eta[rows])
    same(bodies.velocity, links.velocity[rows])


def test_fixed_joints_do_not_yield() -> None:
    """Where there is no free axis K has no column and beta is D: the branch moves with its parent as one."""
    tree = tree_of(read_text(random_urdf(12)))
    q, v = np.random.default_rng(0).normal(size=(2, tree.nv))
    world = WorldEquations(tree, q, v, GRAVITY)
    _, _, K, beta = world.branches
    fixed = [i for i, k in enumerate(dofs(tree)) if k < 0]
    assert len(fixed) > 2
    assert {K[i].shape for i in fixed} == {(6, 0)}
    np.testing.assert_array_equal(beta[fixed], world.D[fixed])
