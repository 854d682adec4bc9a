"""Cartesian impedance of a UR5e, and of a planar arm that cannot move in most directions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dyn_service.control.dry_runs import dry_run
from dyn_service.control.law import RobotState
from dyn_service.control.laws.cartesian_impedance import CartesianImpedance, rotation_vector
from dyn_service.control.trajectory import MultiSine, Reference
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, NotFoundError
from tests.conftest import URDF
from tests.phrases import naming

POINT = (0.05, 0.02, 0.1)
STIFFNESS = (5.0, 6.0, 4.0, 4000.0, 5000.0, 6000.0)
PLACE = np.array([0.3, -1.2, 1.4, -0.9, -1.3, 0.2])


@pytest.fixture(scope="module")
def arm() -> Robot:
    return Robot.from_urdf(URDF / "ur5e.urdf")


def spring(arm: Robot, *, posture: float = 0.0, ratio: float = 1.0) -> CartesianImpedance:
    return CartesianImpedance(arm, arm.link_names[-1], POINT, STIFFNESS, ratio, posture)


def efforts_of(law: CartesianImpedance, q, v, q_ref) -> np.ndarray:
    return law.update(RobotState(0.0, q, v, 0.0 * v), Reference(q_ref, 0.0 * v, 0.0 * v), 0.002)


def test_the_spring_is_about_and_along_the_axes_of_the_world(arm: Robot) -> None:
    """By the poses of the link, and SciPy's rotation vectors: a turn and a shift, K of them, as efforts by J^T."""
    law, link = spring(arm), arm.link_names[-1]
    q, q_ref = PLACE + np.array([0.2, -0.1, 0.15, 0.3, -0.2, 0.4]), PLACE
    tau = efforts_of(law, q, np.zeros(6), q_ref)
    poses = arm.link_poses(np.stack([q, q_ref]))
    k = poses.links.index(link)
    R, p = poses.rotation[:, k], poses.position[:, k] + poses.rotation[:, k] @ POINT
    error = np.concatenate([Rotation.from_matrix(R[1] @ R[0].T).as_rotvec(), p[1] - p[0]])
    np.testing.assert_allclose(law.signals()["off"], error, atol=1e-12)
    wrench = np.array(STIFFNESS) * error
    np.testing.assert_allclose(law.signals()["wrench"], wrench, atol=1e-9)
    J = arm.point_motion(q, np.zeros(6), link, point=POINT).jacobian
    np.testing.assert_allclose(tau, arm.gravity_forces(q) + J.T @ wrench, atol=1e-9)


def test_it_tracks_without_error(arm: Robot) -> None:
    """Efforts along the reference, and its velocity at the point, are in it: without one of them it is off by 1e-3."""
    zero = np.zeros(6)
    sine = MultiSine(PLACE, zero, PLACE, np.full((1, 6), 0.15), np.array([5.0]), np.arange(6.0)[None], 0.4)
    run = dry_run(spring(arm), arm, 0.8, q=PLACE, motion=sine)
    # efforts held through 2 ms against soft springs: second order
    assert np.abs(run.signals["off"]).max() < 1e-4


def test_the_point_comes_back_critically_damped(arm: Robot) -> None:
    """Modes of Lambda and K, each as (1 + w t) exp(-w t), for a small way."""
    law, link, offset = spring(arm), arm.link_names[-1], 1e-4 * np.array([1.0, -1.0, 0.5, 0.7, -0.4, 1.0])
    place = MultiSine(PLACE, 0.0 * PLACE, PLACE, np.zeros((1, 6)), np.ones(1), np.zeros((1, 6)), 1.0)
    run = dry_run(law, arm, 0.1, q=PLACE + offset, motion=place, rate_hz=2000.0, plant_rate_hz=4000.0)
    inertia = arm.operational_space(PLACE, link, point=POINT).inertia
    squares, modes = np.linalg.eig(np.linalg.solve(inertia, np.diag(STIFFNESS)))
    w, errors = np.sqrt(squares), run.signals["off"]
    times = 0.0005 * np.arange(len(errors))
    expected = np.array([modes @ ((1.0 + w * t) * np.exp(-w * t) * np.linalg.solve(modes, errors[0])) for t in times])
    # a command some 0.5 ms late, of modes of up to 100/s
    np.testing.assert_allclose(errors[::40], expected[::40], atol=0.06 * np.abs(expected).max())


def test_the_whole_point_is_held_where_the_arm_is_not_nearly_singular(arm: Robot) -> None:
    """Six joints and six directions leave a posture nothing of its own: its spring accelerates the point nowhere but
    near singular places. Turns are much easier than shifts: with a floor for rad and m alike it did at two of five.
    """
    law, law_without_posture, link, rng = (
        spring(arm, posture=6.0),
        spring(arm),
        arm.link_names[-1],
        np.random.default_rng(3),
    )
    at_rest = []
    for q in rng.uniform(-2.5, 2.5, (60, 6)):
        zero, q_ref = np.zeros(6), q + 1e-3 * rng.normal(size=6)
        J = arm.point_motion(q, zero, link, point=POINT).jacobian
        point_acceleration = J @ np.linalg.solve(
            arm.mass_matrix(q), efforts_of(law, q, zero, q_ref) - efforts_of(law_without_posture, q, zero, q_ref)
        )
        at_rest.append(
            np.abs(point_acceleration).max() < 1e-8
        )  # rounding through a condition of 1e5; else 1e-4 and more
    assert np.mean(at_rest) > 0.85


def test_the_posture_is_held_by_what_the_point_does_not_feel() -> None:
    """A point of the first of two links: the posture accelerates the second alone, as far as it can."""
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf")
    law = CartesianImpedance(robot, robot.link_names[1], (0.0, 0.0, -0.5), [0.0] * 6, 1.0, 6.0)
    q, v, home = np.array([0.5, -0.9]), np.array([0.0, 0.4]), np.array([0.2, 0.1])
    tau = efforts_of(law, q, v, home)
    posture_acceleration = 36.0 * (home - q) - 12.0 * v
    # the mass matrix, less its part that the first joint's acceleration is
    mobility = np.linalg.inv(robot.mass_matrix(q))
    expected = [0.0, posture_acceleration[1] - mobility[1, 0] / mobility[0, 0] * posture_acceleration[0]]
    acceleration = robot.forward_dynamics(q, v, tau + robot.bias_forces(q, v) - robot.gravity_forces(q))
    np.testing.assert_allclose(acceleration, expected, atol=1e-9)


def test_turns_of_any_size() -> None:
    for angle in (0.0, 1e-9, 0.4, 3.0, np.pi - 1e-9, np.pi):
        axis = np.array([2.0, -1.0, 2.0]) / 3.0
        S = np.cross(np.eye(3), axis)
        R = np.eye(3) + np.sin(angle) * S + (1.0 - np.cos(angle)) * S @ S
        vector = rotation_vector(R)
        aligned = vector if angle < 3.1 else vector * np.sign(vector @ axis)  # of half a turn either axis
        np.testing.assert_allclose(aligned, angle * axis, atol=2e-6)


def test_what_does_not_fit_is_refused(arm: Robot) -> None:
    with pytest.raises(NotFoundError, match=naming("'ur5e'", "'tol0'", "'tool0'")):
        CartesianImpedance(arm, "tol0", POINT, STIFFNESS, 1.0, 0.0)
    with pytest.raises(InvalidArgumentError, match=naming("stiffness", "6 numbers", "5 and 3")):
        CartesianImpedance(arm, arm.link_names[-1], POINT, STIFFNESS[:5], 1.0, 0.0)
