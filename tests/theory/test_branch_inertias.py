"""What (19b) and (20) are made of, by value: J, R, K, beta of `branch_inertias`, what a joint's inertia
loses where others yield, and the order of the constraint basis' columns.

The expected numbers are the document's equations in world axes (`WorldEquations`, held by tests of (18) and (19b) of
their own) and closed forms. The robots have skew axes, prismatic joints, turned frames and branches, so that no
transpose, swap, inverse or sign can pass for what was asked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dyn_service.dynamics.constraint import basis
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.formulations.world_equations import WorldEquations
from dyn_service.model import composite
from tests.conftest import URDF
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreting
from tests.theory.test_newton_euler import GRAVITY, same
from tests.trees import motions

CONDITIONED = 1e-10
"""Relative to the largest entry: J loses what the joints give way to, whose share of it is at most some thousand times
what is left on these robots, so 1e-16 becomes 1e-13; and a factor for the sums over the branch."""


@pytest.fixture(scope="module", params=range(8))
def posed_robot(request: pytest.FixtureRequest) -> tuple[Robot, np.ndarray, WorldEquations]:
    robot = interpreting(random_urdf(300 + request.param, movable=7, bushy=0.6))
    q = np.random.default_rng(request.param).normal(size=robot.nv)
    return robot, q, WorldEquations(robot.bodies.tree, q, 0 * q, GRAVITY)


def rotation_blocks(rotation: np.ndarray) -> np.ndarray:
    """diag(R, R): six-vectors in the link's axes into world axes."""
    return np.kron(np.eye(2), rotation)


def test_the_robots_are_skew_enough() -> None:
    """Both kinds of joint, bodies with several children, and axes that no frame is aligned with."""
    trees = [interpreting(random_urdf(300 + k, movable=7, bushy=0.6)).tree for k in range(8)]
    assert {motion for tree in trees for motion in motions(tree)} == {"revolute", "prismatic", "fixed"}
    assert any(len(children) > 1 for tree in trees for children in tree.children)
    assert all(np.abs(tree.inboard[i].axis).min() > 1e-3 for tree in trees for i in tree.movable)


def test_19b_factors_at_every_joint(posed_robot: tuple) -> None:
    """J_i, R_i, K_i, beta_i in body axes are those of the document turned from world axes; D_1 = 0."""
    robot, q, world = posed_robot
    branches = robot.branch_inertias(q)
    J, R, K, beta = world.branches
    assert branches.joints == robot.joint_names
    same(branches.resistance, R, CONDITIONED)
    np.testing.assert_array_equal(branches.resistance, np.diag(np.diag(branches.resistance)))
    for k, parent in enumerate(world.tree.parent):
        X = rotation_blocks(world.rotation[k])
        same(X @ branches.inertia[k] @ X.T, J[k], CONDITIONED)
        same(branches.inertia[k], branches.inertia[k].T)
        assert branches.resistance[k, k] == pytest.approx(R[k, k], rel=CONDITIONED)
        same(X @ branches.gain[k], K[k][:, 0], CONDITIONED)
        # None of these would be the same the other way round: the comparison above could not be passed by accident.
        if parent >= 0:
            same(X @ branches.influence[k] @ rotation_blocks(world.rotation[parent]).T, beta[k], CONDITIONED)
            assert np.abs(beta[k] - beta[k].T).max() > 1e-3
        else:
            np.testing.assert_array_equal(branches.influence[k], np.zeros((6, 6)))
        assert np.abs(J[k][:3, 3:] - J[k][3:, :3]).max() > 1e-3
        assert abs(R[k, k] - 1.0 / R[k, k]) > 1e-3
        assert np.abs(K[k]).max() > 1e-3


def test_19b_definitions_hold_among_the_answers(posed_robot: tuple) -> None:
    """R = G^T J G, K = J G / R and G^T K = 1 (so K has a sign), beta = (e - G K^T) D, J of a leaf is its M."""
    robot, q, world = posed_robot
    branches = robot.branch_inertias(q)
    for k in range(robot.nv):
        X = rotation_blocks(world.rotation[k])
        G = X.T @ world.axes[k][:, 0]
        assert branches.resistance[k, k] == pytest.approx(G @ branches.inertia[k] @ G, rel=CONDITIONED)
        same(branches.gain[k], branches.inertia[k] @ G / branches.resistance[k, k], CONDITIONED)
        assert G @ branches.gain[k] == pytest.approx(1.0, rel=CONDITIONED)
        # Whatever the parent does, a yielding joint passes no motion against K: K^T beta = 0.
        same(branches.gain[k] @ branches.influence[k], np.zeros(6), CONDITIONED)
        if not world.tree.children[k]:
            same(X @ branches.inertia[k] @ X.T, world.M[k], CONDITIONED)


CHAIN = """<robot name="chain">
  <link name="base"/><link name="one">%s</link><link name="plate">%s</link><link name="two">%s</link>
  <link name="three">%s</link>
  <joint name="j1" type="continuous"><parent link="base"/><child link="one"/>
    <origin xyz="0.1 0 0.2" rpy="0.3 0.1 0"/><axis xyz="0 0.6 0.8"/></joint>
  <joint name="bolt" type="fixed"><parent link="one"/><child link="plate"/>
    <origin xyz="0.3 0.1 0" rpy="0.2 -0.5 0.7"/></joint>
  <joint name="j2" type="continuous"><parent link="plate"/><child link="two"/>
    <origin xyz="0.1 0.2 0.3" rpy="0.7 0 0.4"/><axis xyz="1 0 0"/></joint>
  <joint name="j3" type="prismatic"><parent link="two"/><child link="three"/>
    <origin xyz="0 0.3 0.1"/><axis xyz="0 0.8 -0.6"/><limit effort="9" velocity="9" lower="-1" upper="1"/></joint>
</robot>""" % (
    (
        '<inertial><origin xyz="0.1 0.02 0.1"/><mass value="2"/>'
        '<inertia ixx="0.2" iyy="0.3" izz="0.25" ixy="0.01" ixz="0.02" iyz="0"/></inertial>',
    )
    * 4
)
MADE_OF = {
    "a fixed joint between": lambda: interpreting(CHAIN),
    "fixed joints at random": lambda: interpreting(random_urdf(316, movable=7, bushy=0.6)),
    "joints with several ways to move": lambda: interpreting(random_urdf(316, movable=7, types=MANY_TYPES)),
    "on a floating base": lambda: interpreting(random_urdf(316, movable=5), root="floating"),
    "fingers that no longer follow": lambda: interpreting(URDF / "panda.urdf", mimic=False),
}


@pytest.mark.parametrize("robot_maker", MADE_OF.values(), ids=MADE_OF)
def test_19b_built_from_the_answer_is_the_inverse_of_the_mass_matrix(robot_maker: Callable[[], Robot]) -> None:
    """[e - K^T Phi_D Psi_beta G] R^-1 [e - G^T Psi_beta^T Phi_D^T K] M = e, with Psi_beta = (e - Phi_beta)^-1."""
    robot = robot_maker()
    q = robot.random_configuration(seed=5)
    inner_parents = [robot.tree.parent[i] for i in robot.tree.movable if robot.tree.parent[i] >= 0]
    assert any(robot.bodies.body[p] >= 0 and not robot.tree.inboard[p].nv for p in inner_parents), (
        "no fixed joint between"
    )
    branches, D = robot.branch_inertias(q), robot.newton_euler_blocks(q, np.zeros(robot.nv))
    tree = robot.topology()
    assert branches.joints == tree.joints
    size = 6 * len(tree.joints)
    Phi_D, Phi_beta, G, K = np.zeros((size, size)), np.zeros((size, size)), *np.zeros((2, size, robot.nv))
    for k, parent in enumerate(tree.parent.astype(int)):
        rows, columns = slice(6 * k, 6 * k + 6), robot.bodies.tree.in_v[k]
        G[rows, columns], K[rows, columns] = D.free_axis[columns].T, branches.gain[columns].T
        if parent >= 0:
            parent_columns = slice(6 * parent, 6 * parent + 6)
            Phi_D[rows, parent_columns], Phi_beta[rows, parent_columns] = D.influence[k], branches.influence[k]
        else:
            np.testing.assert_array_equal(branches.influence[k], np.zeros((6, 6)))
    left = np.eye(robot.nv) - K.T @ Phi_D @ np.linalg.inv(np.eye(size) - Phi_beta) @ G
    same(left @ np.linalg.inv(branches.resistance) @ left.T @ robot.mass_matrix(q), np.eye(robot.nv), CONDITIONED)
    operators = robot.influence_operators(q, operator="beta")
    same(branches.influence, operators.phi)


def test_19b_closed_form_of_the_pendulum_on_a_cart() -> None:
    """R_2 = I + m L^2, R_1 = m_1 + m_2 - (m_2 L cos)^2 / R_2: Schur's complement of (N4)."""
    robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
    m1, m2, L, I = 2.0, 1.2, 0.5, 0.10025
    for theta in (0.0, 0.4, 1.3, -2.2):
        branches = robot.branch_inertias([0.2, theta])
        R2 = I + m2 * L**2
        coupling = m2 * L * np.cos(theta)
        np.testing.assert_allclose(branches.resistance, np.diag([m1 + m2 - coupling**2 / R2, R2]), rtol=1e-13)
        # Axis (0 -1 0), centre at (0 0 -L): an effort at the hinge pushes the bar's centre along its x.
        np.testing.assert_allclose(branches.gain[1], [0, -1, 0, m2 * L / R2, 0, 0], atol=1e-14)
        H = branches.inertia[1][:3, 3:]  # m s~ with s = (0 0 -L)
        np.testing.assert_allclose(H, m2 * np.array([[0, L, 0], [-L, 0, 0], [0, 0, 0]]), atol=1e-14)
        np.testing.assert_allclose(branches.inertia[1][3:, :3], H.T, atol=1e-14)


def test_what_is_left_of_an_inertia_where_others_yield(posed_robot: tuple) -> None:
    """R_i as a share of the diagonal of M: what a joint meets while those outward of it yield, and while they hold."""
    robot, q, world = posed_robot
    yielding, holding = np.diag(world.branches[1]), np.diag(world.mass_matrix)
    branch, size = composite.branch_inertias(robot.tree, q)
    np.testing.assert_allclose(branch / holding, yielding / holding, rtol=CONDITIONED)
    assert (size > holding * (1.0 - CONDITIONED)).all()


@pytest.mark.parametrize("motion", ["revolute", "prismatic", "fixed"])
def test_20_order_of_the_basis_columns(motion: str) -> None:
    """Torques first, then forces: two and three where a joint turns, three and two where it slides."""
    zero, three = np.zeros((3, 3)), np.eye(3)
    seen = 0
    for seed in range(300, 308):
        tree = interpreting(random_urdf(seed, movable=7, bushy=0.6)).tree
        for i in range(1, len(tree)):
            if motions(tree)[i] != motion:
                continue
            seen += 1
            G_hat = basis(tree, i)
            if motion == "fixed":
                np.testing.assert_array_equal(G_hat, np.eye(6))
                continue
            perpendicular = G_hat[:3, :2] if motion == "revolute" else G_hat[3:, 3:]
            same(perpendicular.T @ perpendicular, np.eye(2))
            same(tree.inboard[i].axis @ perpendicular, np.zeros(2))
            if motion == "revolute":
                expected = np.block([[perpendicular, zero], [np.zeros((3, 2)), three]])
            else:
                expected = np.block([[three, np.zeros((3, 2))], [zero, perpendicular]])
            np.testing.assert_array_equal(G_hat, expected)
    assert seen > 3


def test_20_components_of_a_slider_are_torques_then_forces() -> None:
    """The slide of the cart carries moments in the first three components, forces across it in the last two."""
    robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
    q, v, tau = np.array([0.1, 0.7]), np.array([0.3, 0.8]), np.array([1.0, 0.0])
    loads = robot.constraint_forces(q, v, tau)
    row = loads.joints.index("cart_slide")
    components = robot.constraint_basis("cart_slide").T @ loads.wrench[row]
    same(components[:3], loads.wrench[row, :3])
    assert np.linalg.norm(components[3:]) == pytest.approx(np.linalg.norm(loads.wrench[row, 4:]), rel=1e-13)


def chain(share: float) -> Robot:
    """Three light links on parallel axes with a heavy one at the end: j1 has no inertia left but rounding."""
    inertia = (
        '<inertial><mass value="{0:.17g}"/>'
        '<inertia ixx="{1:.17g}" iyy="{1:.17g}" izz="{1:.17g}" ixy="0" ixz="0" iyz="0"/></inertial>'
    )
    links = [
        f'<link name="l{k}">{inertia.format(mass, 0.01 * mass)}</link>'
        f'<joint name="j{k}" type="continuous"><parent link="{f"l{k - 1}" if k > 1 else "base"}"/><child link="l{k}"/>'
        '<origin xyz="0.1 0 0.3"/><axis xyz="0 1 0"/></joint>'
        for k, mass in enumerate((share, share, share, 1.0), start=1)
    ]
    return Robot.from_urdf(f'<robot name="chain"><link name="base"/>{"".join(links)}</robot>')


def test_a_joint_whose_inertia_is_rounding_has_none() -> None:
    """Links of 1e-17 kg silently made forward dynamics wrong by 270 rad/s^2."""
    for share in (1e-17, 1e-14):
        with pytest.raises(FailedPreconditionError, match="'j1'"):
            chain(share).forward_dynamics(np.zeros(4), np.zeros(4), np.ones(4))
    light = chain(1e-6)
    assert light.massless_joint is None
    q, a = np.array([0.3, -0.5, 0.7, 0.2]), np.array([1.0, 2.0, -1.0, 0.5])
    tau = light.inverse_dynamics(q, np.zeros(4), a)
    np.testing.assert_allclose(
        light.forward_dynamics(q, np.zeros(4), tau), a, rtol=0, atol=1e-6
    )  # 1e-16 / 1e-6, and room
