"""The laws that come along, each in a closed loop with a simulated robot: what its page says of it is what it does."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.control.gains import modal_damping, per_joint
from dyn_service.control.gravity_compensation import GravityCompensation
from dyn_service.control.joint_impedance import JointImpedance
from dyn_service.control.rehearsal import rehearse
from dyn_service.control.trajectory import MultiSine
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from tests.conftest import URDF


@pytest.fixture(scope="module")
def arm() -> Robot:
    """Two links that swing in a plane: coupled, and Coriolis forces act."""
    return Robot.from_urdf(URDF / "double_pendulum.urdf")


@pytest.fixture(scope="module")
def sine() -> MultiSine:
    """0.4 rad at some 1 Hz, the second joint half a turn of phase away."""
    amplitude, zero = np.array([[0.4, 0.4]]), np.zeros(2)
    return MultiSine(zero, zero, zero, amplitude, np.array([6.0]), np.array([[0.0, 1.5]]), 0.4)


def test_gravity_compensation_floats_and_slows_down_as_it_says(arm: Robot) -> None:
    """Kinetic energy falls as exp(-2 c t) whatever the motion: weight, inertia and speed are each in it."""
    law, c = GravityCompensation(arm, 1.5), 1.5
    run = rehearse(law, arm, 0.6, q=[0.9, -1.3], v=[1.2, -2.0])
    energy = arm.energy(run.q, run.v).kinetic
    # the state is foretold for 2 ms as if nothing accelerated, and the arm does, at some 10 rad/s^2
    np.testing.assert_allclose(energy[::50], energy[0] * np.exp(-2.0 * c * run.t[::50]), rtol=1.5e-2)
    assert np.abs(run.q[-1] - run.q[0]).max() > 0.3
    still = rehearse(GravityCompensation(arm, 0.0), arm, 0.2, q=[0.9, -1.3])
    assert np.abs(still.q - still.q[0]).max() < 1e-9  # rounding, integrated twice


def test_modes_have_the_damping_ratio_they_should(arm: Robot) -> None:
    mass, stiffness = arm.mass_matrix([0.3, 0.8]), np.diag([40.0, 9.0])
    damping = modal_damping(mass, stiffness, 0.6)
    np.testing.assert_allclose(damping, damping.T, rtol=1e-12)
    system = np.block(
        [[np.zeros((2, 2)), np.eye(2)], [-np.linalg.solve(mass, stiffness), -np.linalg.solve(mass, damping)]]
    )
    poles = np.linalg.eigvals(system)
    np.testing.assert_allclose(-poles.real / np.abs(poles), 0.6, rtol=1e-9)


def test_joint_impedance_is_the_spring_that_was_asked_for(arm: Robot) -> None:
    law = JointImpedance(arm, [30.0, 12.0], 1.0)
    run = rehearse(law, arm, 3.0, q=[0.9, -0.4], push=lambda t, q, v: [1.5, -0.6])
    # the slower mode is at some 4/s and critical: 1e-4 of the way is left
    np.testing.assert_allclose(-run.error[-1], [1.5 / 30.0, -0.6 / 12.0], rtol=2e-4)
    np.testing.assert_allclose(run.signals["spring"][-1], [-1.5, 0.6], rtol=2e-4)


def test_joint_impedance_comes_back_critically_damped(arm: Robot) -> None:
    """Let go off its place by little, each mode goes as (1 + w t) exp(-w t)."""
    stiffness, there = np.array([30.0, 12.0]), np.array([0.9, -0.4])
    off = np.array([1e-4, -1e-4])
    place = MultiSine(there, 0.0 * there, there, np.zeros((1, 2)), np.ones(1), np.zeros((1, 2)), 1.0)
    run = rehearse(JointImpedance(arm, stiffness, 1.0), arm, 0.5, q=there + off, motion=place)
    squares, modes = np.linalg.eig(np.linalg.solve(arm.mass_matrix(there), np.diag(stiffness)))
    w = np.sqrt(squares)
    expected = [modes @ ((1.0 + w * t) * np.exp(-w * t) * np.linalg.solve(modes, off)) for t in run.t[::100]]
    # foretold as if at the reference's acceleration, it is some ms late: of the faster mode's 30/s a percent
    np.testing.assert_allclose(-run.error[::100], expected, atol=1.5e-2 * 1e-4)


def test_joint_impedance_tracks_without_error(arm: Robot, sine: MultiSine) -> None:
    """Inertia, Coriolis forces, weight and the reference's speed: without one of them it is off by 1e-2 and more."""
    run = rehearse(JointImpedance(arm, [30.0, 12.0], 1.0), arm, 1.5, q=[0.0, 0.0], motion=sine)
    # efforts held through 2 ms, second order in it; soft springs let more of it through than a stiff loop
    assert np.abs(run.error).max() < 5e-5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1.0, 2.0, 3.0], "stiffness must be one number or 2, not negative and finite, found 3 numbers"),
        ([1.0, -2.0], "stiffness must be one number or 2, not negative and finite, found -2"),
        (float("nan"), "stiffness must be one number or 2, not negative and finite, found nan"),
    ],
)
def test_numbers_of_a_law_that_are_none(given, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        per_joint("stiffness", given, 2)
    assert str(caught.value) == said
