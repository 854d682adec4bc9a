"""Matrix Formalism document: M q-ddot = C + G + Q + E of its double pendulum, its program, and gait in 3-D."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from dyn_service.api.queries import COMPUTATIONS, Wrench
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.formulations import segments
from tests.conftest import URDF
from tests.theory.test_newton_euler import same

M1, M2, L1, L2, G = 1.0, 1.0, 1.0, 0.5, 9.81
ABSOLUTE = np.array([[1.0, 0.0], [1.0, 1.0]])
"""theta = ABSOLUTE q: the document measures both angles from the vertical, the URDF the second from the first."""

TO_RELATIVE = np.linalg.inv(ABSOLUTE)


@pytest.fixture(scope="module")
def pendulum() -> Robot:
    return Robot.from_urdf(URDF / "double_pendulum.urdf")


class TestTerms:
    """Each term of M theta-ddot = C + G + Q + E as printed; efforts and forces transform with ABSOLUTE^-T."""

    @pytest.fixture(params=range(8))
    def drawn_state(self, request: pytest.FixtureRequest, pendulum: Robot) -> tuple:
        """theta, theta-dot, (M_1, M_12) and the robot's terms."""
        theta, rates, moments = np.random.default_rng(request.param).normal(size=(3, 2)) * [[2.0], [3.0], [1.0]]
        terms = pendulum.equation_terms(TO_RELATIVE @ theta, TO_RELATIVE @ rates, moments)
        return theta, rates, moments, terms

    def test_m(self, drawn_state: tuple) -> None:
        theta, _, _, terms = drawn_state
        coupling = M2 * L1 * L2 / 2 * np.cos(theta[0] - theta[1])
        expected = [[M1 * L1**2 / 3 + M2 * L1**2, coupling], [coupling, M2 * L2**2 / 3]]
        same(TO_RELATIVE.T @ terms.mass_matrix @ TO_RELATIVE, expected)

    def test_c(self, drawn_state: tuple) -> None:
        theta, rates, _, terms = drawn_state
        turning = M2 * L1 * L2 / 2 * np.sin(theta[0] - theta[1])
        same(TO_RELATIVE.T @ terms.velocity_forces, [-turning * rates[1] ** 2, turning * rates[0] ** 2])

    def test_g(self, drawn_state: tuple) -> None:
        """m_2 l_1 g sin(theta_1), as in the equation; the program has l_2 there."""
        theta, _, _, terms = drawn_state
        first = -M1 * G * L1 / 2 * np.sin(theta[0]) - M2 * L1 * G * np.sin(theta[0])
        same(TO_RELATIVE.T @ terms.gravity_forces, [first, -M2 * G * L2 / 2 * np.sin(theta[1])])

    def test_q(self, drawn_state: tuple) -> None:
        _, _, (m_1, m_12), terms = drawn_state
        same(TO_RELATIVE.T @ terms.efforts, [m_1 - m_12, m_12])

    def test_e(self, drawn_state: tuple, pendulum: Robot) -> None:
        """A spring's force at the lower end: (J_x^T f) with x = l_1 sin theta_1 + l_2 sin theta_2, and so for z."""
        theta, rates, moments, terms = drawn_state
        assert not terms.external_forces.any()
        pull = Wrench("lower_bar", force=(0.7, 0.0, -1.1), point=(0.0, 0.0, -L2))
        terms = pendulum.equation_terms(TO_RELATIVE @ theta, TO_RELATIVE @ rates, moments, wrenches=pull)
        lengths = np.array([L1, L2])
        expected = lengths * (0.7 * np.cos(theta) - 1.1 * np.sin(theta))
        same(TO_RELATIVE.T @ terms.external_forces, expected)

    def test_forward_dynamics(self, drawn_state: tuple, pendulum: Robot) -> None:
        """q-ddot = M^-1 (C + G + Q + E)."""
        theta, rates, moments, t = drawn_state
        right = t.velocity_forces + t.gravity_forces + t.efforts + t.external_forces
        a = np.linalg.solve(t.mass_matrix, right)
        same(pendulum.forward_dynamics(TO_RELATIVE @ theta, TO_RELATIVE @ rates, moments), a)


DT, STEPS = 1e-4, 1000
START = np.array([2 * np.pi, -6 * np.pi, np.pi / 10, np.pi / 3])
"""The program's omega_1, omega_2, theta_1, theta_2."""


def program(length_in_g: float) -> np.ndarray:
    """The document's program, line by line, with `l2` instead of `length_in_g`."""
    m1, m2, l1, l2, g, M1, M12, dt = 1, 1, 1, 0.5, 9.81, 0, 0, DT
    state = np.zeros((4, STEPS + 1))
    state[:, 0] = START
    for i in range(1, STEPS + 1):
        theta_diff = state[2, i - 1] - state[3, i - 1]
        M = np.array(
            [
                [m1 * l1**2 / 3 + m2 * l1**2, m2 * l1 * l2 * np.cos(theta_diff) / 2],
                [m2 * l1 * l2 * np.cos(theta_diff) / 2, m2 * l2**2 / 3],
            ]
        )
        C = np.array(
            [
                [-m2 * l1 * l2 * np.sin(theta_diff) * state[1, i - 1] ** 2 / 2],
                [m2 * l1 * l2 * np.sin(theta_diff) * state[0, i - 1] ** 2 / 2],
            ]
        )
        G = np.array(
            [
                [-m1 * g * l1 / 2 * np.sin(state[2, i - 1]) - m2 * g * length_in_g * np.sin(state[2, i - 1])],
                [-m2 * g * l2 / 2 * np.sin(state[3, i - 1])],
            ]
        )
        Q = np.array([[M1 - M12], [M12]])
        rates = np.vstack((np.linalg.inv(M) @ (C + G + Q), state[0, [i - 1]], state[1, [i - 1]]))
        state[:, [i]] = state[:, [i - 1]] + dt * rates
    return state


def by_robot(pendulum: Robot, slip: bool) -> np.ndarray:
    """Explicit Euler by the robot's named terms, in its own angles; with the slip as an effort if asked."""
    q, v = TO_RELATIVE @ START[2:], TO_RELATIVE @ START[:2]
    states = [START]
    for _ in range(STEPS):
        # What the program leaves out of gravity, m_2 g (l_1 - l_2) sin theta_1, acts on theta_1.
        missing = M2 * G * (L1 - L2) * np.sin(q[0]) if slip else 0.0
        t = pendulum.equation_terms(q, v, ABSOLUTE.T @ [missing, 0.0])
        a = np.linalg.solve(t.mass_matrix, t.velocity_forces + t.gravity_forces + t.efforts + t.external_forces)
        q, v = q + DT * v, v + DT * a
        states.append(np.concatenate([ABSOLUTE @ v, ABSOLUTE @ q]))
    return np.array(states).T


class TestProgram:
    """Step by step: two roundings of the same 1000 steps may part by some 1e-16 each, and grow a little."""

    def test_corrected_program_is_the_robot(self, pendulum: Robot) -> None:
        # The same steps with other formulas: their roundings, magnified by a chaotic pendulum.
        np.testing.assert_allclose(by_robot(pendulum, slip=False), program(L1), rtol=0, atol=1e-11)

    def test_printed_program_is_the_robot_with_the_slip(self, pendulum: Robot) -> None:
        np.testing.assert_allclose(by_robot(pendulum, slip=True), program(L2), rtol=0, atol=1e-11)

    def test_the_slip_matters(self) -> None:
        differences = np.abs(program(L1) - program(L2))[:, -1]
        assert np.all(differences > 1e-3)

    @pytest.mark.parametrize("method", ["articulated", "mass_matrix"])
    @pytest.mark.parametrize("length_in_g", [L1, L2], ids=["corrected", "printed"])
    def test_simulate_with_explicit_euler_is_the_program(
        self, pendulum: Robot, method: Literal["articulated", "mass_matrix"], length_in_g: float
    ) -> None:
        """What the printed program leaves out of gravity acts as an effort on theta_1."""
        q, v = TO_RELATIVE @ START[2:], TO_RELATIVE @ START[:2]

        def missing(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
            return ABSOLUTE.T @ [M2 * G * (L1 - length_in_g) * np.sin(q[0]), 0.0]

        motion = pendulum.simulate(q, v, missing, dt=DT, steps=STEPS, integrator="explicit_euler", method=method)
        states = np.concatenate([motion.v @ ABSOLUTE.T, motion.q @ ABSOLUTE.T], axis=-1)
        np.testing.assert_allclose(states.T, program(length_in_g), rtol=0, atol=1e-11)


def body(name: str, mass: float, com: str, inertia: tuple[float, ...]) -> str:
    entries = " ".join(f'{n}="{x}"' for n, x in zip(("ixx", "iyy", "izz", "ixy", "ixz", "iyz"), inertia, strict=True))
    inertial = f'<inertial><origin xyz="{com}"/><mass value="{mass}"/><inertia {entries}/></inertial>'
    return f'<link name="{name}">{inertial}</link>'


def hinge(name: str, parent: str, child: str, xyz: str, axis: str) -> str:
    return (
        f'<joint name="{name}" type="continuous"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{xyz}" rpy="0.1 -0.2 0.3"/><axis xyz="{axis}"/></joint>'
    )


FOOT = body("foot", 1.0, "0.06 0.01 -0.04", (0.001, 0.004, 0.0042, 0.0001, -0.0002, 0.0001))
SHANK = body("shank", 3.5, "0.01 0.0 -0.18", (0.05, 0.051, 0.006, 0.001, 0.0, -0.002))
THIGH = body("thigh", 8.0, "0.0 0.02 -0.2", (0.15, 0.14, 0.03, 0.0, 0.003, 0.002))
MASS = np.array([1.0, 3.5, 8.0])
LOW_G = np.array([0.2, -0.1, -9.7])
"""Gravity, m/s^2, off the vertical, so that no component is lost."""


def hanging() -> Robot:
    """Hip on the world, joints hip, knee, ankle: the ground pushes the foot from outside."""
    joints = hinge("hip", "pelvis", "thigh", "0 0 0.9", "0.1 1 0.2")
    joints += hinge("knee", "thigh", "shank", "0.01 0 -0.42", "0 1 -0.1")
    joints += hinge("ankle", "shank", "foot", "0 0.01 -0.4", "0.2 1 0")
    return Robot.from_urdf(f'<robot name="hanging"><link name="pelvis"/>{FOOT}{SHANK}{THIGH}{joints}</robot>')


def standing_leg() -> Robot:
    """Foot pivoting on the ground, the thigh's upper end free: what the joint `ground` carries is the reaction."""
    joints = hinge("ground", "world", "foot", "0.1 0.2 0", "0.1 1 0")
    joints += hinge("ankle", "foot", "shank", "-0.02 0 0.08", "0.2 1 0")
    joints += hinge("knee", "shank", "thigh", "0 0.01 0.4", "0 1 -0.1")
    return Robot.from_urdf(f'<robot name="standing"><link name="world"/>{FOOT}{SHANK}{THIGH}{joints}</robot>')


class Recording:
    """What a gait laboratory measures of foot, shank and thigh, frame by frame, taken from a simulated motion."""

    def __init__(self, robot: Robot, frames: int) -> None:
        drive = np.random.default_rng(3).normal(size=robot.nv) * [3.0, 1.5, 0.5]
        motion = robot.simulate(
            np.array([0.3, -0.4, 0.2]),
            np.array([1.0, -2.0, 1.5]),
            lambda t, q, v: drive * np.sin(5 * t) - 0.3 * v,
            dt=1e-3,
            steps=25 * (frames - 1),
            every=25,
            gravity=LOW_G,
        )
        self.robot, self.q, self.v = robot, motion.q, motion.v
        # Accelerations of any size: the loads that belong to them are the robot's, whatever made the motion.
        self.a = np.random.default_rng(4).normal(size=motion.q.shape) * 5.0
        self.rows = rows = [robot.link_names.index(name) for name in ("foot", "shank", "thigh")]
        poses = robot.link_poses(self.q)
        in_world = robot.link_motion(self.q, self.v, self.a, frame="world")
        in_body = robot.link_motion(self.q, self.v, self.a, frame="body")
        self.R_world = poses.rotation[:, rows]  # segment components to global ones
        self.rotation = np.swapaxes(self.R_world, -1, -2)  # the document's R_F, R_S: global to segment
        self.origin = poses.position[:, rows]
        inertias = [robot.tree.inertia[i] for i in rows]
        s = np.einsum("fnij,nj->fni", self.R_world, [b.com for b in inertias])
        self.centre = self.origin + s
        w, w_dot = in_world.velocity[:, rows, :3], in_world.acceleration[:, rows, :3]
        self.acceleration = in_world.acceleration[:, rows, 3:] + np.cross(w_dot, s) + np.cross(w, np.cross(w, s))
        self.omega, self.omega_dot = in_body.velocity[:, rows, :3], in_body.acceleration[:, rows, :3]
        self.inertia = np.array([b.about_com for b in inertias])

    def levers(self, joints: np.ndarray) -> dict[str, np.ndarray]:
        """From joints (frames, 4, 3), the centre of pressure first, then upward."""
        return {"distal": joints[:, :-1] - self.centre, "proximal": joints[:, 1:] - self.centre}

    def kinematics(self) -> dict[str, np.ndarray]:
        return {
            "mass": MASS,
            "inertia": self.inertia,
            "rotation": self.rotation,
            "acceleration": self.acceleration,
            "omega": self.omega,
            "omega_dot": self.omega_dot,
            "gravity": LOW_G,
        }


METHODS = pytest.mark.parametrize("method", ["recursion", "matrix"])


class TestGait:
    @METHODS
    def test_hanging_leg(self, method: str) -> None:
        """Forces and moments at ankle, knee and hip are the robot's joint loads, in both frames, under a known GRF."""
        robot = hanging()
        leg, rng = Recording(robot, 9), np.random.default_rng(8)
        grf, free = rng.normal(size=(9, 3)) * [50.0, 30.0, 200.0], rng.normal(size=(9, 3)) * 5.0
        cop_in_foot = np.array([0.1, 0.02, -0.07])
        cop = leg.origin[:, 0] + np.einsum("fij,j->fi", leg.R_world[:, 0], cop_in_foot)
        push = Wrench("foot", torque=free, force=grf, point=cop_in_foot, frame="world")
        tau = robot.inverse_dynamics(leg.q, leg.v, leg.a, gravity=LOW_G, wrenches=push)
        names = ["ankle", "knee", "hip"]
        loads = {
            frame: robot.constraint_forces(
                leg.q, leg.v, tau, joints=names, frame=frame, gravity=LOW_G, wrenches=push
            ).wrench
            for frame in ("world", "joint")
        }
        joints = np.stack([cop, *(leg.origin[:, k] for k in range(3))], axis=1)
        joint_loads = segments.inverse_dynamics(
            **leg.kinematics(), **leg.levers(joints), ground_force=grf, ground_moment=free, method=method
        )
        same(joint_loads.force, loads["world"][..., 3:], 1e-10)  # global basis
        same(joint_loads.moment, loads["joint"][..., :3], 1e-10)  # the segment's basis
        axes = np.array([robot.tree.inboard[i].axis for i in leg.rows])
        efforts = tau[:, [robot.joint_names.index(name) for name in names]]
        same(np.einsum("fni,ni->fn", joint_loads.moment, axes), efforts, 1e-10)

    @METHODS
    def test_standing_leg(self, method: str) -> None:
        """The other way up: from the load that the ground carries, to nothing at the free upper end of the thigh."""
        robot = standing_leg()
        leg = Recording(robot, 7)
        tau = robot.inverse_dynamics(leg.q, leg.v, leg.a, gravity=LOW_G)
        loads = robot.constraint_forces(
            leg.q, leg.v, tau, joints=["ground", "ankle", "knee"], frame="world", gravity=LOW_G
        ).wrench
        poses = robot.link_poses(leg.q)
        shank, thigh = (poses.position[:, robot.link_names.index(name)] for name in ("shank", "thigh"))
        thigh_end = thigh + np.einsum("fij,j->fi", leg.R_world[:, 2], [0.0, 0.0, 0.3])
        joints = np.stack([leg.origin[:, 0], shank, thigh, thigh_end], axis=1)
        joint_loads = segments.inverse_dynamics(
            **leg.kinematics(),
            **leg.levers(joints),
            ground_force=loads[:, 0, 3:],
            ground_moment=loads[:, 0, :3],
            method=method,
        )
        # Ankle and knee: the robot says what the lower segment does to the upper, the document the reverse.
        same(joint_loads.force[:, :2], -loads[:, 1:, 3:], 1e-10)
        moments = np.einsum("fnij,fnj->fni", leg.rotation[:, :2], -loads[:, 1:, :3])
        same(joint_loads.moment[:, :2], moments, 1e-10)
        # Nothing holds the free end: what is left is the rounding of all loads below it.
        assert np.abs(joint_loads.force[:, 2]).max() < 1e-10 * np.abs(joint_loads.force).max()
        assert np.abs(joint_loads.moment[:, 2]).max() < 1e-10 * np.abs(joint_loads.moment).max()

    @METHODS
    def test_document_block_system(self, method: str) -> None:
        """The document's M, C, G, E and matrix A for foot and shank, block by block as printed."""
        p = arbitrary(2)
        (m_F, m_S), (I_F, I_S), (R_F, R_S) = p["mass"], p["inertia"], p["rotation"]
        (w_F, w_S), (r_A_F, r_K_S) = p["omega"], p["proximal"]
        r_cop, r_A_S = p["distal"]
        I_3, O = np.eye(3), np.zeros((3, 3))
        S = lambda r: np.array([[0, -r[2], r[1]], [r[2], 0, -r[0]], [-r[1], r[0], 0]])
        M = np.block([[m_F * I_3, O, O, O], [O, I_F, O, O], [O, O, m_S * I_3, O], [O, O, O, I_S]])
        q_ddot = np.concatenate([p["acceleration"][0], p["omega_dot"][0], p["acceleration"][1], p["omega_dot"][1]])
        zero = np.zeros(3)
        C = np.concatenate([zero, -np.cross(w_F, I_F @ w_F), zero, -np.cross(w_S, I_S @ w_S)])
        weight = np.concatenate([m_F * p["gravity"], zero, m_S * p["gravity"], zero])
        E = np.concatenate([p["ground_force"], R_F @ np.cross(r_cop, p["ground_force"]), zero, zero])
        A = np.block(
            [
                [I_3, O, O, O],
                [R_F @ S(r_A_F), I_3, O, O],
                [-I_3, O, I_3, O],
                [-R_S @ S(r_A_S), -R_S @ R_F.T, R_S @ S(r_K_S), I_3],
            ]
        )
        F_A, M_A, F_K, M_K = np.split(np.linalg.inv(A) @ (M @ q_ddot - C - E - weight), 4)
        joint_loads = segments.inverse_dynamics(**p, method=method)
        # Loads are sums of large forces in another order; moments add their levers.
        same(joint_loads.force, [F_A, F_K], 1e-10)
        same(joint_loads.moment, [M_A, M_K], 1e-10)
        matrices = segments.matrices(**p)
        for matrix, expected in ((matrices.mass_matrix, M), (matrices.acceleration, q_ddot), (matrices.load_matrix, A)):
            np.testing.assert_array_equal(matrix, expected)
        same(matrices.velocity_forces, C)
        same(matrices.gravity_forces, weight)
        same(matrices.external_forces, E)
        same(matrices.efforts, M @ q_ddot - C - E - weight)
        same(matrices.loads, np.concatenate([F_A, M_A, F_K, M_K]), 1e-10)

    @METHODS
    def test_loads_from_outside_on_every_segment(self, method: str) -> None:
        """Pushes on foot, shank and thigh at points of their own, against the robot's joint loads under these."""
        robot = hanging()
        leg, rng = Recording(robot, 5), np.random.default_rng(21)
        force, moment = rng.normal(size=(5, 3, 3)) * 80.0, rng.normal(size=(5, 3, 3)) * 6.0
        place = rng.normal(size=(3, 3)) * 0.2  # in the link's frame
        pushes = [
            Wrench(link, torque=moment[:, k], force=force[:, k], point=place[k], frame="world")
            for k, link in enumerate(("foot", "shank", "thigh"))
        ]
        tau = robot.inverse_dynamics(leg.q, leg.v, leg.a, gravity=LOW_G, wrenches=pushes)
        loads = {
            frame: robot.constraint_forces(
                leg.q, leg.v, tau, joints=["ankle", "knee", "hip"], frame=frame, gravity=LOW_G, wrenches=pushes
            ).wrench
            for frame in ("world", "joint")
        }
        push_points = leg.origin + np.einsum("fnij,nj->fni", leg.R_world, place)
        joints = np.stack([leg.origin[:, 0], *(leg.origin[:, k] for k in range(3))], axis=1)
        joint_loads = segments.inverse_dynamics(
            **leg.kinematics(),
            **leg.levers(joints),
            external_force=force,
            external_moment=moment,
            external_point=push_points - leg.centre,
            method=method,
        )
        same(joint_loads.force, loads["world"][..., 3:], 1e-10)
        same(joint_loads.moment, loads["joint"][..., :3], 1e-10)

    @METHODS
    def test_the_ground_is_a_load_on_the_first_segment(self, method: str) -> None:
        p = arbitrary(3, (4,))
        grf, free = p.pop("ground_force"), np.array([0.3, -0.1, 2.0])
        by_ground = segments.inverse_dynamics(**p, ground_force=grf, ground_moment=free, method=method)
        push, twist = np.zeros((4, 3, 3)), np.zeros((3, 3))
        push[:, 0], twist[0] = grf, free
        by_load = segments.inverse_dynamics(
            **p, external_force=push, external_moment=twist, external_point=p["distal"], method=method
        )
        same(by_load.force, by_ground.force, 1e-12)
        same(by_load.moment, by_ground.moment, 1e-11)

    def test_one_load_for_all_is_a_weight(self) -> None:
        """A force m g at each centre of mass, given as a load, in place of gravity."""
        p = arbitrary(3) | {"mass": np.full(3, 2.0)}
        heavy = segments.inverse_dynamics(**p)
        p["gravity"] = np.zeros(3)
        pulled = segments.inverse_dynamics(**p, external_force=[0.0, -2.0 * 9.81, 0.0])
        same(pulled.force, heavy.force)
        same(pulled.moment, heavy.moment, 1e-12)

    def test_matrices_of_a_recording(self) -> None:
        """Each frame's equations hold, and their solution is what the recursion finds."""
        p = arbitrary(3, (2, 4)) | {"external_force": np.random.default_rng(5).normal(size=(3, 3))}
        matrices, loads = segments.matrices(**p), segments.inverse_dynamics(**p)
        stacked = np.concatenate([loads.force, loads.moment], axis=-1).reshape(2, 4, 18)
        same(matrices.loads, stacked, 1e-10)
        left = matrices.acceleration @ matrices.mass_matrix
        right = matrices.velocity_forces + matrices.gravity_forces + matrices.efforts + matrices.external_forces
        same(left, right)
        same(np.einsum("...ij,...j->...i", matrices.load_matrix, stacked), matrices.efforts, 1e-10)

    @pytest.mark.parametrize("n", [1, 2, 3, 6])
    def test_matrix_equals_recursion(self, n: int) -> None:
        for lead in ((), (4,), (2, 3)):
            p = arbitrary(n, lead)
            p["ground_moment"] = np.array([0.3, -0.1, 2.0])
            by_recursion, by_matrix = (
                segments.inverse_dynamics(**p, method=method) for method in ("recursion", "matrix")
            )
            assert by_recursion.force.shape == by_recursion.moment.shape == (*lead, n, 3)
            same(by_recursion.force, by_matrix.force, 1e-11)
            same(by_recursion.moment, by_matrix.moment, 1e-10)

    def test_static_standing(self) -> None:
        """At rest on one foot: the joints carry what stands above, straight down."""
        zero_rates = np.zeros((3, 3))
        up = np.array([[0.0, 0.05, 0.0], [0.0, 0.2, 0.0], [0.0, 0.2, 0.0]])
        grf = np.array([0.0, (MASS.sum() + 50.0) * 9.81, 0.0])
        joint_loads = segments.inverse_dynamics(
            MASS,
            np.tile(np.eye(3), (3, 1, 1)),
            np.tile(np.eye(3), (3, 1, 1)),
            zero_rates,
            zero_rates,
            zero_rates,
            up,
            -up,
            grf,
        )
        carried_mass = [MASS[1:].sum() + 50.0, MASS[2] + 50.0, 50.0]
        same(joint_loads.force, np.outer(carried_mass, [0.0, -9.81, 0.0]))
        same(joint_loads.moment, zero_rates)

    def test_a_frame_is_a_frame(self) -> None:
        """Row k of a batch is the answer for frame k alone; constants may be given once."""
        p = arbitrary(3, (5,))
        p["ground_force"] = p["ground_force"][2]
        rows = segments.inverse_dynamics(**p)
        frame_inputs = {name: x[3] if x.ndim > 2 and name != "inertia" else x for name, x in p.items()}
        frame_loads = segments.inverse_dynamics(**frame_inputs)
        same(rows.force[3], frame_loads.force)
        same(rows.moment[3], frame_loads.moment)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("inertia", np.eye(3)),
            ("omega", np.zeros((2, 3))),
            ("ground_force", np.zeros(2)),
            ("method", "guess"),
            ("external_point", np.zeros((2, 3))),
        ],
    )
    def test_refusals(self, name: str, value: object) -> None:
        with pytest.raises(InvalidArgumentError) as error:
            segments.inverse_dynamics(**{**arbitrary(3), name: value})
        assert error.value.path == name

    @pytest.mark.parametrize("name", list(COMPUTATIONS["segment_matrices"].inputs))
    def test_every_input_takes_leading_axes(self, name: str) -> None:
        """As the table says of all inputs: row k of the answer is that of row k of the input alone."""
        rng = np.random.default_rng(8)
        loads = {key: rng.normal(size=(3, 3)) for key in ("external_force", "external_moment", "external_point")}
        p = arbitrary(3) | loads | {"ground_moment": rng.normal(size=3), "gravity": rng.normal(size=3)}
        rows_of_input = np.stack([p[name] * scale for scale in (1.0, 1.7, 0.4)])
        for method in ("recursion", "matrix"):
            rows = segments.inverse_dynamics(**{**p, name: rows_of_input}, method=method)
            for k, value in enumerate(rows_of_input):
                row_loads = segments.inverse_dynamics(**{**p, name: value}, method=method)
                same(rows.force[k], row_loads.force)
                same(rows.moment[k], row_loads.moment, 1e-12)
        matrices = segments.matrices(**{**p, name: rows_of_input})
        row_matrices = segments.matrices(**{**p, name: rows_of_input[2]})
        for row, row_matrix in zip(matrices, row_matrices, strict=True):
            same(row[2] if row.ndim > row_matrix.ndim else row, row_matrix, 1e-11)

    def test_frames_that_do_not_fit(self) -> None:
        with pytest.raises(InvalidArgumentError, match="do not broadcast"):
            segments.inverse_dynamics(**{**arbitrary(2, (4,)), "ground_force": np.zeros((3, 3))})


def arbitrary(n: int, lead: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Segments in arbitrary motion."""
    rng = np.random.default_rng(n)
    rotation, _ = np.linalg.qr(rng.normal(size=(*lead, n, 3, 3)))
    rotation *= np.sign(np.linalg.det(rotation))[..., None, None]
    half = rng.normal(size=(n, 3, 3))
    vectors = ("acceleration", "omega", "omega_dot", "proximal", "distal")
    return {
        "mass": rng.uniform(1.0, 9.0, n),
        "inertia": half @ np.swapaxes(half, -1, -2),
        "rotation": rotation,
        **{name: rng.normal(size=(*lead, n, 3)) for name in vectors},
        "ground_force": rng.normal(size=(*lead, 3)) * 100.0,
        "gravity": np.array([0.0, -9.81, 0.0]),
    }
