"""Newton/Euler document: the functions on one body, `formulations/bodies.py`; the sum of 5.4 is in test_projected.py.

The expected accelerations and loads are rates of places and momenta in inertial axes, by differences.
"""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.formulations.bodies import point_acceleration, wrench
from tests.theory.test_newton_euler import same

H = 1e-3
FIRST_DERIVATIVE = np.array([1.0, -8.0, 0.0, 8.0, -1.0]) / (12 * H)
SECOND_DERIVATIVE = np.array([-1.0, 16.0, -30.0, 16.0, -1.0]) / (12 * H * H)
"""Of samples at -2H .. 2H: derivatives with an error of H^4."""


class Motion:
    """A frame that turns and flies, and a point that moves in it, both smooth in time."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.axis, self.flight, self.path = rng.normal(size=(3, 3, 3))
        self.first, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        self.first *= np.linalg.det(self.first)

    def rotation(self, t: float) -> np.ndarray:
        """R_WF: turned about a fixed axis and then about another, so that omega turns too."""
        first_turn, second_turn = (turn(axis, t + t * t / 2) for axis in self.axis[:2])
        return first_turn @ second_turn @ self.first

    def origin(self, t: float) -> np.ndarray:
        return self.flight @ [t, t * t, t**3]

    def point(self, t: float) -> np.ndarray:
        return self.path @ [1.0 + t, t * t, t**3]

    def spin(self, t: float) -> np.ndarray:
        """omega in the axes of the frame, from R^T R-dot."""
        samples = np.array([self.rotation(t + k * H) for k in range(-2, 3)])
        S = self.rotation(t).T @ np.tensordot(FIRST_DERIVATIVE, samples, 1)
        return np.array([S[2, 1] - S[1, 2], S[0, 2] - S[2, 0], S[1, 0] - S[0, 1]]) / 2


def turn(axis: np.ndarray, angle: float) -> np.ndarray:
    """Rodrigues."""
    n = axis / np.linalg.norm(axis)
    K = np.array([[0, -n[2], n[1]], [n[2], 0, -n[0]], [-n[1], n[0], 0]])
    return np.eye(3) + np.sin(angle) * K + (1 - np.cos(angle)) * K @ K


def time_derivative(function: object, weights: np.ndarray) -> np.ndarray:
    """A derivative at t = 0."""
    return np.tensordot(weights, np.array([function(k * H) for k in range(-2, 3)]), 1)


@pytest.mark.parametrize("seed", range(5))
def test_acceleration_of_a_point_in_a_moving_frame(seed: int) -> None:
    """Its position in the world, differentiated twice; no term is negligible."""
    motion = Motion(seed)
    R = motion.rotation(0.0)
    expected = time_derivative(lambda t: motion.origin(t) + motion.rotation(t) @ motion.point(t), SECOND_DERIVATIVE)
    p = motion.point(0.0)
    p_dot, p_ddot = (time_derivative(motion.point, weights) for weights in (FIRST_DERIVATIVE, SECOND_DERIVATIVE))
    omega, omega_dot = motion.spin(0.0), time_derivative(motion.spin, FIRST_DERIVATIVE)
    v_dot = R.T @ time_derivative(motion.origin, SECOND_DERIVATIVE)
    acceleration = point_acceleration(p, p_dot, p_ddot, omega, omega_dot, v_dot)
    # Second differences of fourth order: their rounding is eps / h^2.
    same(R @ acceleration, expected, 1e-6)
    terms = (p_ddot, np.cross(omega, p_dot), np.cross(omega_dot, p), np.cross(omega, np.cross(omega, p)), v_dot)
    # Far above the tolerance: each of the five terms is seen.
    assert min(np.abs(term).max() for term in terms) > 1e-2
    rows = point_acceleration(np.stack([p, 0 * p]), p_dot, p_ddot, omega, omega_dot, v_dot)
    same(rows[0], acceleration)


@pytest.mark.parametrize("seed", range(5))
def test_wrench_is_the_rate_of_momentum(seed: int) -> None:
    """F = d/dt (m R v), N = d/dt (R M omega), turned into the body's axes."""
    motion = Motion(seed)
    rng = np.random.default_rng(seed)
    mass, half = rng.uniform(1.0, 3.0), rng.normal(size=(3, 3))
    M, R = half @ half.T, motion.rotation(0.0)

    def velocity(t: float) -> np.ndarray:
        """v of the frame's origin in the axes of the frame."""
        rate = np.tensordot(FIRST_DERIVATIVE, np.array([motion.origin(t + k * H) for k in range(-2, 3)]), 1)
        return motion.rotation(t).T @ rate

    omega, omega_dot = motion.spin(0.0), time_derivative(motion.spin, FIRST_DERIVATIVE)
    body_wrench = wrench(mass, M, omega, omega_dot, velocity(0.0), time_derivative(velocity, FIRST_DERIVATIVE))
    expected_N = R.T @ time_derivative(lambda t: motion.rotation(t) @ M @ motion.spin(t), FIRST_DERIVATIVE)
    expected_F = R.T @ time_derivative(lambda t: mass * motion.rotation(t) @ velocity(t), FIRST_DERIVATIVE)
    # As above, and velocities are differences themselves.
    same(body_wrench, np.concatenate([expected_N, expected_F]), 1e-6)
    for term in (np.cross(omega, M @ omega), mass * np.cross(omega, velocity(0.0))):
        assert np.abs(term).max() > 1e-2
    rows = wrench([mass, 2 * mass], M, omega, omega_dot, velocity(0.0), time_derivative(velocity, FIRST_DERIVATIVE))
    same(rows[0], body_wrench)
    same(rows[1], body_wrench * [1, 1, 1, 2, 2, 2])
