"""Each law's equation at one state: every term by another query of the model, so that each occurs once with its sign.

The state is predicted, and differs from the measured one; the reference moves. Robots whose joints have several ways to
move are among them: there the difference of positions is no subtraction.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import eigh

from dyn_service.control.law import Law, RobotState, modal_damping, per_joint
from dyn_service.control.laws.admittance import Admittance
from dyn_service.control.laws.cartesian_impedance import CartesianImpedance
from dyn_service.control.laws.collision_stop import CollisionError, CollisionStop, thresholds
from dyn_service.control.laws.computed_torque import ComputedTorque, GravityCompensation, gains
from dyn_service.control.laws.joint_impedance import JointImpedance
from dyn_service.control.laws.momentum_observer import MomentumObserver
from dyn_service.control.laws.trajectory_following import ReferenceCommand
from dyn_service.control.trajectory import Reference
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from tests.conftest import URDF
from tests.graph.many_ways import MANY_WAYS
from tests.phrases import naming
from tests.terms.interpreting import interpreting

ROUNDING = {"rtol": 1e-9, "atol": 1e-9}
"""Both sides are sums of efforts of up to 1e3, solved with mass matrices of condition numbers up to 1e3."""


@pytest.fixture(scope="module")
def hull() -> Robot:
    return interpreting(MANY_WAYS, root="floating")


def random_state_and_reference(robot: Robot) -> tuple[RobotState, Reference]:
    """A state, predicted from another one, and a reference near it."""
    configuration, rng = robot.configuration, np.random.default_rng(4)
    q = robot.random_configuration(seed=4)
    draw = lambda size: size * rng.normal(size=configuration.nv)
    measured_state = RobotState(0.5, configuration.integrate(q, draw(0.1)), draw(1.0), draw(2.0))
    state = RobotState(0.51, q, draw(1.0), measured_state.effort, measured_state)
    return state, Reference(configuration.integrate(q, draw(0.3)), draw(1.0), draw(2.0))


def damped(mass: np.ndarray, stiffness: np.ndarray, ratio: float) -> np.ndarray:
    """D = A (2 ratio S^1/2) A^T of M = A A^T, K = A S A^T, by SciPy's generalised eigenvectors U = A^-T."""
    squares, U = eigh(stiffness, mass)
    A = mass @ U
    return A @ np.diag(2.0 * ratio * np.sqrt(squares)) @ A.T


@pytest.mark.parametrize("name", ["arm", "hull"])
def test_gravity_compensation(name: str, request: pytest.FixtureRequest) -> None:
    robot: Robot = request.getfixturevalue(name)
    state, reference = random_state_and_reference(robot)
    tau = GravityCompensation(robot, 1.7).update(state, reference, 0.002)
    expected = robot.gravity_forces(state.q) - 1.7 * robot.mass_matrix(state.q) @ state.v
    np.testing.assert_allclose(tau, expected, **ROUNDING)


@pytest.mark.parametrize("name", ["arm", "hull"])
def test_joint_impedance(name: str, request: pytest.FixtureRequest) -> None:
    robot: Robot = request.getfixturevalue(name)
    state, reference = random_state_and_reference(robot)
    stiffness = np.linspace(20.0, 60.0, robot.nv)
    law = JointImpedance(robot, stiffness, 0.6)
    tau = law.update(state, reference, 0.002)
    mass, spring = robot.mass_matrix(state.q), stiffness * robot.configuration.difference(state.q, reference.q)
    forward = mass @ reference.a + robot.bias_forces(state.q, reference.v)
    damping = damped(mass, np.diag(stiffness), 0.6) @ (reference.v - state.v)
    np.testing.assert_allclose(tau, forward + spring + damping, **ROUNDING)
    np.testing.assert_allclose(law.signals()["spring"], spring, **ROUNDING)


def test_computed_torque(hull: Robot) -> None:
    state, reference = random_state_and_reference(hull)
    kp, kd = gains(np.linspace(5.0, 9.0, hull.nv), 0.8, hull.nv)
    tau = ComputedTorque(hull, kp, kd).update(state, reference, 0.002)
    a = reference.a + kd * (reference.v - state.v) + kp * hull.configuration.difference(state.q, reference.q)
    np.testing.assert_allclose(tau, hull.mass_matrix(state.q) @ a + hull.bias_forces(state.q, state.v), **ROUNDING)
    assert gains(5.0, 0.8, 2)[1].tolist() == [8.0, 8.0]
    for natural_frequency, ratio in ((0.0, 1.0), ([1.0, -1.0], 1.0), ([1.0, 1.0, 1.0], 1.0), (5.0, 0.0)):
        with pytest.raises(InvalidArgumentError, match=naming("natural_frequency", "2", "damping_ratio")):
            gains(natural_frequency, ratio, 2)


def test_what_is_commanded_beside_positions_and_velocities(arm: Robot) -> None:
    state, reference = random_state_and_reference(arm)
    dynamics = arm.mass_matrix(state.q) @ reference.a + arm.bias_forces(state.q, state.v)
    efforts = {"none": None, "acceleration": arm.mass_matrix(state.q) @ reference.a, "inverse_dynamics": dynamics}
    for interface in ("position", "velocity"):
        for feed_forward, effort in efforts.items():
            command = ReferenceCommand(arm, interface, 4.0, feed_forward).update(state, reference, 0.002)
            rate = reference.v + 4.0 * arm.configuration.difference(state.q, reference.q)
            np.testing.assert_allclose(command.value, reference.q if interface == "position" else rate, **ROUNDING)
            if effort is None:
                assert command.effort is None
            else:
                np.testing.assert_allclose(command.effort, effort, **ROUNDING)


@pytest.mark.parametrize(("wrist", "excluded"), [(-1.3, 0), (0.002, 1)])
def test_cartesian_impedance(wrist: float, excluded: int) -> None:
    """A UR5e's tool; all terms of the page, including the posture's spring. Where its wrist is all but stretched, the
    one direction in which the tool hardly moves is inverted as far as the floor says: a share of the largest, turns and
    shifts each by the measure of their kind.
    """
    robot = interpreting(URDF / "ur5e.urdf")
    (state, reference), link, point = (
        random_state_and_reference(robot),
        robot.link_names[-1],
        np.array([0.05, 0.02, 0.1]),
    )
    q = np.array([0.3, -1.2, 1.4, -0.9, wrist, 0.2])
    state, reference = replace(state, q=q), reference._replace(q=q + 0.1 * reference.v)
    stiffness, w = np.array([5.0, 6.0, 4.0, 400.0, 500.0, 600.0]), 3.0
    law = CartesianImpedance(robot, link, point.tolist(), stiffness.tolist(), 0.7, w)
    tau = law.update(state, reference, 0.002)
    robot_motion, reference_motion = (
        robot.point_motion(q, v, link, point=point) for q, v in ((state.q, state.v), (reference.q, reference.v))
    )
    J, mass = robot_motion.jacobian, robot.mass_matrix(q)
    mobility = J @ np.linalg.solve(mass, J.T)
    turns, shifts = np.trace(mobility[:3, :3]) / 3.0, np.trace(mobility[3:, 3:]) / 3.0
    measure = np.diag([turns**-0.5] * 3 + [shifts**-0.5] * 3)
    values, U = np.linalg.eigh(measure @ mobility @ measure)
    floor = 1e-5 * values[-1]
    assert np.sum(values < floor) == excluded
    Lambda = measure @ U @ np.diag(1.0 / np.maximum(values, floor)) @ U.T @ measure
    wrench = stiffness * law.signals()["off"]  # the way itself is held in test_cartesian_impedance.py
    wrench = wrench + damped(Lambda, np.diag(stiffness), 0.7) @ (reference_motion.velocity - robot_motion.velocity)
    posture = w * w * (reference.q - q) + 2.0 * w * (reference.v - state.v)
    null_space = mass @ posture - J.T @ Lambda @ J @ posture
    forward = mass @ reference.a + robot.bias_forces(q, reference.v)
    # efforts of 1e2, by mobilities of a condition number of 1e5
    np.testing.assert_allclose(tau, forward + J.T @ wrench + null_space, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(law.signals()["wrench"], wrench, rtol=1e-7, atol=1e-7)


class Seen(ComputedTorque):
    """Keeps the references that it was given, and adds nothing."""

    def __init__(self, model: Robot) -> None:
        super().__init__(model, np.ones(model.nv), np.ones(model.nv))
        self.references: list[Reference] = []

    def update(self, state: RobotState, reference: Reference, dt: float) -> np.ndarray:
        self.references.append(reference)
        return np.zeros_like(state.v)


def test_admittance(arm: Robot) -> None:
    """M x'' + D x' + K x = r at the end of every step, to rounding: the backward Euler method, K in it too."""
    M, D, K = np.array([0.8, 0.5]), np.array([4.0, 2.0]), np.array([900.0, 2000.0])
    inner_law = Seen(arm)
    law = Admittance(inner_law, MomentumObserver(arm, 25.0), M, D, K)
    (state, reference), zero = random_state_and_reference(arm), np.zeros(2)
    law.reset(state)
    for k in range(5):
        tau = law.update(state, Reference(reference.q, zero, zero), 0.002)
        x = inner_law.references[-1].q - reference.q
        residual = law.signals()["residual"]
        left_side = M * inner_law.references[-1].a + D * inner_law.references[-1].v + K * x
        np.testing.assert_allclose(left_side, residual, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(law.signals()["given_way"], x, atol=1e-12)
        np.testing.assert_allclose(tau, -residual, atol=1e-12)
        assert (k == 0) == (not residual.any())


def test_the_observer(arm: Robot) -> None:
    """r = K (p - p_0 - integral of (tau + C^T v - g + r)) by trapezes, tau by what acted until each measured state."""
    observer, dt, K = MomentumObserver(arm, 25.0), 0.004, 25.0
    configuration, rng = arm.configuration, np.random.default_rng(1)
    q, v, effort = arm.random_configuration(seed=1), rng.normal(size=2), rng.normal(size=2)
    p0, integral, last, r = None, np.zeros(2), None, np.zeros(2)
    for _ in range(4):
        measured_state = RobotState(0.0, q, v, effort)
        residual = observer.update(RobotState(0.01, q + 0.1, v + 1.0, effort, measured_state), dt)
        p = arm.mass_matrix(q) @ v
        # C^T v - g = M-dot v - (C v + g), and M-dot v by central differences: to 1e-9
        M_after, M_before = (arm.mass_matrix(configuration.integrate(q, v, s * 1e-5)) for s in (1.0, -1.0))
        rate = (M_after - M_before) @ v / 2e-5 - arm.bias_forces(q, v)
        if p0 is None:
            p0 = p
        else:
            # r is on both sides: r (1 + K dt / 2) = ...
            integral = integral + dt * effort + 0.5 * dt * (rate + last + r)
            r = K * (p - p0 - integral) / (1.0 + 0.5 * K * dt)
            integral = integral + 0.5 * dt * r
        last = rate
        np.testing.assert_allclose(residual, r, atol=1e-7)
        np.testing.assert_allclose(observer.residual, r, atol=1e-7)
        q, v, effort = configuration.integrate(q, v, dt), v + 0.1 * rng.normal(size=2), effort + rng.normal(size=2)
    assert np.abs(r).max() > 0.1


def test_a_collision_is_at_the_joint_that_is_farthest_beyond_its_threshold(arm: Robot) -> None:
    """Not where most acts; and at the time at which it was measured."""
    states = []
    for k, v in enumerate(([0.0, 0.0], [3.0, 0.6])):
        measured_state = RobotState(0.25 + 0.002 * k, np.array([0.9, -0.4]), np.array(v), np.zeros(2))
        states.append(RobotState(0.5, measured_state.q, measured_state.v, measured_state.effort, measured_state))
    observer = MomentumObserver(arm, 25.0)
    for state in states:
        residual = np.abs(observer.update(state, 0.002))
    assert residual[0] > residual[1] > 0.1
    law = CollisionStop(GravityCompensation(arm, 1.0), MomentumObserver(arm, 25.0), residual * [0.99, 0.5], None)
    hold = Reference(states[0].q, np.zeros(2), np.zeros(2))
    law.update(states[0], hold, 0.002)
    with pytest.raises(CollisionError, match=naming("0.252 s", f"'{arm.joint_names[1]}'")):
        law.update(states[1], hold, 0.002)


def test_thresholds() -> None:
    efforts, names = np.array([10.0, 20.0]), ("a", "b")
    assert thresholds([3.0, 4.0], 0.1, efforts, names).tolist() == [3.0, 4.0]
    assert thresholds([], 0.1, efforts, names).tolist() == [1.0, 2.0]
    for absolute in ([1.0, np.nan], [-1.0, 1.0]):
        with pytest.raises(InvalidArgumentError, match="threshold must be 2 positive numbers"):
            thresholds(absolute, 0.1, efforts, names)
    for share in (-0.1, 0.0, np.inf, np.nan):
        with pytest.raises(InvalidArgumentError, match=naming("threshold_share")) as excinfo:
            thresholds([], share, efforts, names)
        assert excinfo.value.path == "threshold_share"


def test_numbers_per_joint() -> None:
    values = per_joint("c", 2.0, 3)
    values[0] = 5.0  # of its own
    assert values.tolist() == [5.0, 2.0, 2.0]
    assert per_joint("c", [0.0, 1.0], 2).tolist() == [0.0, 1.0]
    with pytest.raises(InvalidArgumentError, match=naming("c", "1", "0")):
        per_joint("c", 0.0, 1, positive=True)


def test_damping_of_springs_that_are_not_everywhere() -> None:
    """A stiffness of rank one: what rounding makes of its zeros is no number's root."""
    rng = np.random.default_rng(0)
    half, way = rng.normal(size=(6, 6)), rng.normal(size=6)
    mass = half @ half.T + np.eye(6)
    damping = modal_damping(mass, np.outer(way, way), 0.7)
    # along the one direction that K has: D = 2 d K / w with w^2 the only square that is not 0
    w = np.sqrt(way @ np.linalg.solve(mass, way))
    np.testing.assert_allclose(damping, 1.4 * np.outer(way, way) / w, atol=1e-6)  # roots of 1e-16 are left


@pytest.mark.parametrize(
    "make",
    [
        lambda arm: GravityCompensation(arm, [1.0, 2.0]),
        lambda arm: GravityCompensation(arm, -1.0),
        lambda arm: JointImpedance(arm, 10.0, [1.0, 1.0]),
        lambda arm: JointImpedance(arm, 10.0, -1.0),
        lambda arm: JointImpedance(arm, [1.0, 1.0, 1.0], 1.0),
        lambda arm: MomentumObserver(arm, 0.0),
        lambda arm: MomentumObserver(arm, [1.0, 1.0]),
        lambda arm: CartesianImpedance(arm, arm.link_names[1], (0, 0, 0), [1.0] * 6, [1.0, 1.0], 0.0),
        lambda arm: CartesianImpedance(arm, arm.link_names[1], (0, 0, 0), [1.0] * 6, 1.0, [1.0, 1.0]),
        lambda arm: CartesianImpedance(arm, arm.link_names[1], (0, 0), [1.0] * 6, 1.0, 1.0),
    ],
)
def test_numbers_that_no_law_takes(arm: Robot, make) -> None:
    with pytest.raises(InvalidArgumentError, match="must be"):
        make(arm)


def test_before_it_was_asked_a_law_shows_nothing(arm: Robot) -> None:
    unit = np.ones(2)
    inner_law: Law = JointImpedance(arm, 10.0, 1.0)
    for law in (
        inner_law,
        CartesianImpedance(arm, arm.link_names[1], (0, 0, 0), [1.0] * 6, 1.0, 0.0),
        Admittance(inner_law, MomentumObserver(arm, 25.0), unit, unit, unit),
        CollisionStop(inner_law, MomentumObserver(arm, 25.0), unit, None),
    ):
        assert law.signals()
        assert not any(np.any(value) for value in law.signals().values())


def test_springs_may_be_left_out(arm: Robot) -> None:
    """A joint of stiffness 0 is not held, and not damped as far as it moves alone."""
    law = JointImpedance(arm, [30.0, 0.0], 1.0)
    state, reference = random_state_and_reference(arm)
    tau = law.update(state, reference, 0.002)
    mass = arm.mass_matrix(state.q)
    forward = mass @ reference.a + arm.bias_forces(state.q, reference.v)
    # K of rank one: D = 2 K / w with w^2 = K_00 (M^-1)_00
    w = np.sqrt(30.0 * np.linalg.inv(mass)[0, 0])
    first = 30.0 * (reference.q - state.q)[0] + 60.0 / w * (reference.v - state.v)[0]
    np.testing.assert_allclose(tau - forward, [first, 0.0], atol=1e-6)
