"""The problems and exercises of the matrix document and of the projected one, worked: docs/theory/problems.md."""

from __future__ import annotations

import itertools

import casadi as ca
import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.formulations import segments
from dyn_service.formulations.systems import LagrangianSystem, ParticleSystem
from tests.conftest import URDF
from tests.phrases import naming
from tests.theory.test_newton_euler import same

G = 9.81
M1, M2, L1, L2 = 1.0, 1.0, 1.0, 0.5
"""The bars of `urdf/double_pendulum.urdf`, which are the document's."""


def bars() -> LagrangianSystem:
    """Two uniform bars hinged in a row, angles from the vertical: T and V written down, y up."""

    def kinetic(q: ca.SX, v: ca.SX) -> ca.SX:
        first = ca.vertcat(ca.sin(q[0]), -ca.cos(q[0]))
        second = ca.vertcat(ca.sin(q[1]), -ca.cos(q[1]))
        centres = [first * L1 / 2, first * L1 + second * L2 / 2]
        T = (M1 * L1**2 / 12 * v[0] ** 2 + M2 * L2**2 / 12 * v[1] ** 2) / 2
        for m, centre in zip((M1, M2), centres, strict=True):
            rate = ca.jtimes(centre, q, v)
            T += m * ca.dot(rate, rate) / 2
        return T

    def potential(q: ca.SX) -> ca.SX:
        return -G * (M1 * L1 / 2 * ca.cos(q[0]) + M2 * (L1 * ca.cos(q[0]) + L2 / 2 * ca.cos(q[1])))

    return LagrangianSystem(kinetic, potential, 2)


LEG, BELOW_HIP, LEG_MASS, HIP_MASS, LEG_INERTIA = 0.9, 0.35, 10.0, 40.0, 0.7


def legs() -> LagrangianSystem:
    """Two straight legs and a hip, one foot on the ground: phi_1 of the stance leg from upright, leaning forward,
    phi_2 of the swinging leg from hanging, foot forward."""

    def places(q: ca.SX) -> list[ca.SX]:
        up = ca.vertcat(ca.sin(q[0]), ca.cos(q[0]))
        swung = ca.vertcat(ca.sin(q[1]), -ca.cos(q[1]))
        return [(LEG - BELOW_HIP) * up, LEG * up, LEG * up + BELOW_HIP * swung]

    masses = (LEG_MASS, HIP_MASS, LEG_MASS)

    def kinetic(q: ca.SX, v: ca.SX) -> ca.SX:
        rates = [ca.jtimes(x, q, v) for x in places(q)]
        return (sum(m * ca.dot(x, x) for m, x in zip(masses, rates, strict=True)) + LEG_INERTIA * ca.dot(v, v)) / 2

    return LagrangianSystem(kinetic, lambda q: G * sum(m * x[1] for m, x in zip(masses, places(q), strict=True)), 2)


def legs_robot() -> Robot:
    """The same as a URDF: about y, the hip's mass at the upper end of the stance leg."""

    def link(name: str, com: float) -> str:
        inertia = f'<inertia ixx="{LEG_INERTIA}" iyy="{LEG_INERTIA}" izz="0.01" ixy="0" ixz="0" iyz="0"/>'
        inertial = f'<inertial><origin xyz="0 0 {com}"/><mass value="{LEG_MASS}"/>{inertia}</inertial>'
        return f'<link name="{name}">{inertial}</link>'

    def hinge(name: str, kind: str, parent: str, child: str, z: float) -> str:
        return (
            f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
            f'<origin xyz="0 0 {z}"/><axis xyz="0 1 0"/></joint>'
        )

    hip = (
        f'<link name="hip"><inertial><mass value="{HIP_MASS}"/>'
        '<inertia ixx="0" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )
    parts = ['<link name="ground"/>', link("stance", LEG - BELOW_HIP), hip, link("swing", -BELOW_HIP)]
    parts += [hinge("foot", "continuous", "ground", "stance", 0.0), hinge("neck", "fixed", "stance", "hip", LEG)]
    parts += [hinge("crotch", "continuous", "hip", "swing", 0.0)]
    return Robot.from_urdf(f'<robot name="legs">{"".join(parts)}</robot>')


@pytest.fixture(params=range(6))
def drawn_state(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Angles, their rates, efforts."""
    return tuple(np.random.default_rng(request.param).normal(size=(3, 2)) * [[1.5], [2.0], [3.0]])


class TestMatrixProblem1:
    """By the Lagrangian formalism, then by the matrix formalism to the angular accelerations."""

    def test_bars_terms_are_the_documents(self, drawn_state: tuple) -> None:
        theta, rates, _ = drawn_state
        t, angle_between = bars().terms(theta, rates), theta[0] - theta[1]
        coupling = M2 * L1 * L2 / 2
        same(
            t.mass_matrix,
            [
                [M1 * L1**2 / 3 + M2 * L1**2, coupling * np.cos(angle_between)],
                [coupling * np.cos(angle_between), M2 * L2**2 / 3],
            ],
        )
        same(t.velocity_forces, coupling * np.sin(angle_between) * np.array([-(rates[1] ** 2), rates[0] ** 2]))
        weight = [-(M1 / 2 + M2) * G * L1 * np.sin(theta[0]), -M2 * G * L2 / 2 * np.sin(theta[1])]
        same(t.gravity_forces, weight)

    def test_bars_angular_accelerations(self, drawn_state: tuple) -> None:
        """Solved by hand, and by the robot, whose second angle counts from the first."""
        theta, rates, (m_1, m_12) = drawn_state
        angle_between = theta[0] - theta[1]
        m11, m12, m22 = M1 * L1**2 / 3 + M2 * L1**2, M2 * L1 * L2 / 2 * np.cos(angle_between), M2 * L2**2 / 3
        b1 = (
            -M2 * L1 * L2 / 2 * np.sin(angle_between) * rates[1] ** 2
            - (M1 / 2 + M2) * G * L1 * np.sin(theta[0])
            + m_1
            - m_12
        )
        b2 = M2 * L1 * L2 / 2 * np.sin(angle_between) * rates[0] ** 2 - M2 * G * L2 / 2 * np.sin(theta[1]) + m_12
        by_hand = np.array([m22 * b1 - m12 * b2, m11 * b2 - m12 * b1]) / (m11 * m22 - m12**2)
        same(bars().forward_dynamics(theta, rates, [m_1 - m_12, m_12]), by_hand, 1e-12)
        relative = np.array([[1.0, 0.0], [-1.0, 1.0]])
        robot = Robot.from_urdf(URDF / "double_pendulum.urdf")
        q_ddot = robot.forward_dynamics(relative @ theta, relative @ rates, np.array([m_1, m_12]))
        same(by_hand, np.cumsum(q_ddot), 1e-11)

    def test_legs_terms(self, drawn_state: tuple) -> None:
        phi, rates, _ = drawn_state
        t, angle_sum = legs().terms(phi, rates), phi[0] + phi[1]
        coupling = LEG_MASS * LEG * BELOW_HIP
        upper = LEG - BELOW_HIP
        first = LEG_INERTIA + LEG_MASS * upper**2 + (HIP_MASS + LEG_MASS) * LEG**2
        second = LEG_INERTIA + LEG_MASS * BELOW_HIP**2
        same(t.mass_matrix, [[first, coupling * np.cos(angle_sum)], [coupling * np.cos(angle_sum), second]])
        same(t.velocity_forces, coupling * np.sin(angle_sum) * np.array([rates[1] ** 2, rates[0] ** 2]))
        first_moment = LEG_MASS * upper + (HIP_MASS + LEG_MASS) * LEG
        same(t.gravity_forces, G * np.array([first_moment * np.sin(phi[0]), -LEG_MASS * BELOW_HIP * np.sin(phi[1])]))

    def test_legs_angular_accelerations(self, drawn_state: tuple) -> None:
        """The robot's swing angle counts from the stance leg and the other way: phi = J q, J its own inverse."""
        phi, rates, efforts = drawn_state
        t, robot, J = legs().terms(phi, rates, efforts), legs_robot(), np.array([[1.0, 0.0], [-1.0, -1.0]])
        b = t.velocity_forces + t.gravity_forces + t.efforts
        (m11, m12), (_, m22) = t.mass_matrix
        by_hand = np.array([m22 * b[0] - m12 * b[1], m11 * b[1] - m12 * b[0]]) / (m11 * m22 - m12**2)
        same(legs().forward_dynamics(phi, rates, efforts), by_hand, 1e-12)
        same(J @ robot.forward_dynamics(J @ phi, J @ rates, J.T @ efforts), by_hand, 1e-11)

    def test_energy_is_kept(self) -> None:
        """dT/dt + dV/dt = q-dot . Q along the motion that the equations give."""
        system = legs()
        q, v, tau = np.array([0.2, 0.3]), np.array([0.5, -1.0]), np.array([2.0, -3.0])
        a, h = system.forward_dynamics(q, v, tau), 1e-4
        ends = [sum(system.energies(q + s * v + s * s / 2 * a, v + s * a)) for s in (-h, h)]
        # h^2 of the third derivative, some 1e3 J/s^3, over rounding of some 400 J by h.
        assert (ends[1] - ends[0]) / (2 * h) == pytest.approx(v @ tau, abs=1e-5)

    def test_batches_and_both_directions(self) -> None:
        q, v, a = np.random.default_rng(2).normal(size=(3, 4, 5, 2))
        system = legs()
        tau = system.inverse_dynamics(q, v, a, external=[1.0, 2.0])
        assert tau.shape == (4, 5, 2)
        same(system.forward_dynamics(q, v, tau, [1.0, 2.0]), a, 1e-11)
        same(tau[2, 3], system.inverse_dynamics(q[2, 3], v[2, 3], a[2, 3], external=[1.0, 2.0]))
        assert system.energies(q, v[0, 0])[0].shape == (4, 5)

    def test_refusals(self) -> None:
        zero_energy = lambda q: 0.0
        for arguments, path, message in (
            ((lambda q, v: v, zero_energy, 2), "kinetic", "kinetic gives 2 x 1 numbers, expected one"),
            ((lambda q, v: v[0] ** 4, zero_energy, 1), "kinetic", "not of second degree"),
            ((lambda q, v: v[0] ** 2, lambda q: ca.SX.sym("x"), 1), "potential", "potential depends on x"),
            ((lambda q, v: v[0] ** 2, zero_energy, 0), "nq", "nq must be a whole number"),
        ):
            with pytest.raises(InvalidArgumentError, match=message) as error:
                LagrangianSystem(*arguments)
            assert error.value.path == path
        with pytest.raises(InvalidArgumentError, match=naming("q_dot", "(3,)", "(..., 2)")):
            legs().terms([0.0, 0.0], np.zeros(3))
        with pytest.raises(FailedPreconditionError, match="singular"):
            LagrangianSystem(lambda q, v: v[0] ** 2, zero_energy, 2).forward_dynamics([0, 0], [0, 0])


BAR_MASS, BAR_LENGTH, BAR_RADIUS = np.array([0.8, 1.2]), np.array([0.5, 0.7]), np.array([0.03, 0.04])
"""Of Problem 2's bars, lower and upper: the order of the matrices, from the free end up."""


def cylinder(m: float, l: float, r: float) -> np.ndarray:
    """Inertia about the centre of a cylinder along z."""
    I_xx = m * (3 * r**2 + l**2) / 12
    return np.diag([I_xx, I_xx, m * r**2 / 2])


def bars_in_space() -> Robot:
    """Each bar hangs from a ball joint: three hinges about x, y, z with massless links between them."""

    def turning(bar: str, root: str, z: float) -> str:
        text, links = "", [root, f"{bar}_x", f"{bar}_y", bar]
        for axis, (parent, child) in enumerate(itertools.pairwise(links)):
            place = z if axis == 0 else 0.0
            direction = " ".join("1" if k == axis else "0" for k in range(3))
            text += (
                f'<joint name="{bar}_{"xyz"[axis]}" type="continuous"><parent link="{parent}"/><child link="{child}"/>'
                f'<origin xyz="0 0 {place}"/><axis xyz="{direction}"/></joint>'
            )
        return text + f'<link name="{bar}_x"/><link name="{bar}_y"/>'

    def bar(name: str, k: int) -> str:
        I_xx, _, I_zz = np.diag(cylinder(BAR_MASS[k], BAR_LENGTH[k], BAR_RADIUS[k]))
        return (
            f'<link name="{name}"><inertial><origin xyz="0 0 {-BAR_LENGTH[k] / 2}"/><mass value="{BAR_MASS[k]}"/>'
            f'<inertia ixx="{I_xx}" iyy="{I_xx}" izz="{I_zz}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        )

    text = '<link name="base"/>' + bar("upper", 1) + bar("lower", 0)
    return Robot.from_urdf(
        f'<robot name="bars">{text}{turning("upper", "base", 0.0)}{turning("lower", "upper", -BAR_LENGTH[1])}</robot>'
    )


class TestMatrixProblem2:
    """The matrices for forces and torques in a 3-D double pendulum of two cylindrical bars."""

    @staticmethod
    def motion(robot: Robot, seed: int) -> tuple[dict, np.ndarray, np.ndarray]:
        """What the problem takes as known, and the loads at the two joints: forces in the world, moments in the bar."""
        rng = np.random.default_rng(seed)
        q, v, a = rng.uniform(-1.0, 1.0, size=(3, 6)) * [[1.0], [3.0], [8.0]]
        rows = [robot.link_names.index(name) for name in ("lower", "upper")]
        R = robot.link_poses(q).rotation[rows]
        world, in_body = robot.link_motion(q, v, a, frame="world"), robot.link_motion(q, v, a)
        s = np.einsum("nij,nj->ni", R, np.outer(-BAR_LENGTH / 2, [0.0, 0.0, 1.0]))
        w, w_dot = world.velocity[rows, :3], world.acceleration[rows, :3]
        inputs = {
            "mass": BAR_MASS,
            "inertia": [cylinder(*x) for x in zip(BAR_MASS, BAR_LENGTH, BAR_RADIUS, strict=True)],
            "rotation": np.swapaxes(R, -1, -2),
            "acceleration": world.acceleration[rows, 3:] + np.cross(w_dot, s) + np.cross(w, np.cross(w, s)),
            "omega": in_body.velocity[rows, :3],
            "omega_dot": in_body.acceleration[rows, :3],
            "proximal": -s,
            "distal": s,
            "gravity": [0.0, 0.0, -G],
        }
        tau = robot.inverse_dynamics(q, v, a)
        loads = [
            robot.constraint_forces(q, v, tau, joints=["lower_z", "upper_z"], frame=frame).wrench
            for frame in ("world", "joint")
        ]
        return inputs, loads[0][:, 3:], loads[1][:, :3]

    @pytest.mark.parametrize("seed", range(4))
    def test_solution_is_what_the_joints_carry(self, seed: int) -> None:
        inputs, force, moment = self.motion(bars_in_space(), seed)
        matrices = segments.matrices(**inputs)
        # The linear system has blocks of masses and of levers, which magnify rounding.
        same(matrices.loads.reshape(2, 6)[:, :3], force, 1e-9)
        same(matrices.loads.reshape(2, 6)[:, 3:], moment, 1e-9)

    def test_matrices_block_by_block(self) -> None:
        """As in the page: the lower bar, 2, first; weight is the only external load."""
        inputs, *_ = self.motion(bars_in_space(), 9)
        matrices = segments.matrices(**inputs)
        (m2, m1), (I2, I1), (R2, R1) = inputs["mass"], inputs["inertia"], inputs["rotation"]
        (w2, w1), (r2, _), (_, r12) = inputs["omega"], inputs["proximal"], inputs["distal"]
        r1 = inputs["proximal"][1]
        S = lambda r: np.array([[0, -r[2], r[1]], [r[2], 0, -r[0]], [-r[1], r[0], 0]])
        e, O, zero, g = np.eye(3), np.zeros((3, 3)), np.zeros(3), np.array(inputs["gravity"])
        same(matrices.mass_matrix, np.block([[m2 * e, O, O, O], [O, I2, O, O], [O, O, m1 * e, O], [O, O, O, I1]]))
        same(matrices.velocity_forces, [*zero, *-np.cross(w2, I2 @ w2), *zero, *-np.cross(w1, I1 @ w1)])
        same(matrices.gravity_forces, [*(m2 * g), *zero, *(m1 * g), *zero])
        assert not matrices.external_forces.any()
        A = [[e, O, O, O], [R2 @ S(r2), e, O, O], [-e, O, e, O], [-R1 @ S(r12), -R1 @ R2.T, R1 @ S(r1), e]]
        same(matrices.load_matrix, np.block(A))
        (a2, a1), (u2, u1) = inputs["acceleration"], inputs["omega_dot"]
        same(matrices.acceleration, [*a2, *u2, *a1, *u1])


class TestProjectedExercises:
    """5.1 to 5.3 of the projected document."""

    @staticmethod
    def slide_and_rod() -> ParticleSystem:
        """A slide q_1 along y with m_1, a rod l_2 with m_2 at its end, turned by q_2 from x."""
        places = lambda q, t: [0, q[0], 0.6 * ca.cos(q[1]), q[0] + 0.6 * ca.sin(q[1])]
        return ParticleSystem([1.3, 0.7], places, 2, dimension=2)

    @pytest.mark.parametrize("q2", [0.4, 3 * np.pi / 4, -2.0])
    def test_5_1_jacobian_to_fill_in(self, q2: float) -> None:
        """x = (x_1, y_1, r_1, x_2, y_2, r_2): the places by the particles, the angles by what turns."""
        J = self.slide_and_rod().terms([0.2, q2], [0.0, 0.0]).jacobian
        expected = [[0, 0], [1, 0], [0, 0], [0, -0.6 * np.sin(q2)], [1, 0.6 * np.cos(q2)], [0, 1]]
        same(np.concatenate([J[0], [[0, 0]], J[1], [[0, 1]]]), expected)

    def test_5_1_efforts_of_the_weights(self) -> None:
        """tau = J_f^T F_G with the printed J_f and F_G: what gravity makes of the two coordinates."""
        m1, m2, l2, h = 1.3, 0.7, 0.6, np.sqrt(0.5)
        J = np.array([[0, 0], [1, 0], [0, 0], [0, -l2 * h], [1, -l2 * h], [0, 1]])
        F_G = np.array([0, -m1 * G, 0, 0, -m2 * G, 0])
        same(J.T @ F_G, [-(m1 + m2) * G, m2 * G * l2 * h])
        same(self.slide_and_rod().terms([0.2, 3 * np.pi / 4], [0.0, 0.0]).gravity_forces, J.T @ F_G)

    @pytest.mark.parametrize("q", [0.3, -1.2])
    def test_5_2_a_single_particle(self, q: float) -> None:
        """J^T m J q-ddot + J^T m sigma - J^T F_g = 0 of a pendulum: m l^2 q-ddot + m g l sin q = 0."""
        m, l, v = 0.9, 0.7, 1.1
        system = ParticleSystem([m], lambda q, t: [l * ca.sin(q), -l * ca.cos(q)], 1, dimension=2)
        t = system.terms([q], [v])
        same(t.jacobian[0], [[l * np.cos(q)], [l * np.sin(q)]])
        same(t.bias[0], l * v**2 * np.array([-np.sin(q), np.cos(q)]))
        same(t.velocity_forces, [0.0])  # sigma lies along the rod
        same(system.forward_dynamics([q], [v]), [-G / l * np.sin(q)])

    def test_5_3_b_manipulator_that_turns_and_extends(self, drawn_state: tuple) -> None:
        """f = m r [-2 q_1-dot q_2-dot; q_1-dot^2]: Coriolis on the turn, centrifugal on the slide."""
        (q1, q2), v, tau = drawn_state
        m, r = 0.9, 0.5 + q2
        arm = ParticleSystem(
            [m], lambda q, t: [(0.5 + q[1]) * ca.cos(q[0]), (0.5 + q[1]) * ca.sin(q[0])], 2, dimension=2
        )
        expected = m * r * np.array([-2 * v[0] * v[1], v[0] ** 2])
        terms = arm.terms([q1, q2], v)
        same(terms.mass_matrix, np.diag([m * r**2, m]))
        same(terms.velocity_forces, expected)
        same(terms.gravity_forces, -m * G * np.array([r * np.cos(q1), np.sin(q1)]))
        robot = Robot.from_urdf(
            '<robot name="polar"><link name="base"/><link name="turn"/>'
            f'<link name="tip"><inertial><mass value="{m}"/>'
            '<inertia ixx="0" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/></inertial></link>'
            '<joint name="q1" type="continuous"><parent link="base"/><child link="turn"/><axis xyz="0 -1 0"/></joint>'
            '<joint name="q2" type="prismatic"><parent link="turn"/><child link="tip"/><origin xyz="0.5 0 0"/>'
            '<axis xyz="1 0 0"/><limit lower="-9" upper="9" effort="9" velocity="9"/></joint></robot>'
        )
        same(robot.equation_terms([q1, q2], v, tau).velocity_forces, expected)

    def test_5_3_a_centrifugal_and_coriolis_of_problem_40(self) -> None:
        """f is quadratic in the rates: squares are centrifugal, the product is Coriolis."""
        m2, l1, l2 = 0.7, 0.9, 0.6

        def places(q: ca.SX, t: ca.SX) -> list[ca.SX]:
            x, y = l1 * ca.sin(q[0]), -l1 * ca.cos(q[0])
            return [x, y, x + l2 * ca.sin(q[0] + q[1]), y - l2 * ca.cos(q[0] + q[1])]

        system, q, v = ParticleSystem([1.3, m2], places, 2, dimension=2), [0.3, 0.5], np.array([1.0, -2.0])
        centrifugal = sum(system.terms(q, v * e).velocity_forces for e in np.eye(2))
        coriolis = system.terms(q, v).velocity_forces - centrifugal
        k = m2 * l1 * l2 * np.sin(q[1])
        same(centrifugal, k * np.array([v[1] ** 2, -(v[0] ** 2)]))
        same(coriolis, k * np.array([2 * v[0] * v[1], 0.0]))
