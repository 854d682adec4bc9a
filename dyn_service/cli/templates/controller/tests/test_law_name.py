"""The law by itself, on the robot of the launch file. No processes."""

import numpy as np
import pytest
from law_name.controller import LawName, LawNameParameters

from dyn_service import InvalidArgumentError, Robot
from dyn_service.control import Reference, RobotState


@pytest.fixture
def law(robot: Robot) -> LawName:
    return LawName(LawNameParameters(natural_frequency=10.0, damping_ratio=0.7), robot)


@pytest.fixture
def q(robot: Robot) -> np.ndarray:
    middle = robot.limits.middle(otherwise=robot.configuration.neutral)
    return robot.configuration.integrate(middle, np.full(robot.nv, 0.01))


def test_each_term_of_the_law(robot: Robot, law: LawName, q: np.ndarray) -> None:
    v, error = np.linspace(0.5, 0.2, robot.nv), np.linspace(0.1, 0.05, robot.nv)
    state = RobotState(t=0.0, q=q, v=v, effort=np.zeros(robot.nv))
    reference = Reference(q=robot.configuration.integrate(q, error), v=v - 0.2, a=np.zeros(robot.nv))
    efforts = law.update(state, reference, 0.002)
    pull = 100.0 * error - 2.0 * 0.7 * 10.0 * 0.2
    expected = robot.gravity_forces(q) + robot.mass_matrix(q) @ pull
    np.testing.assert_allclose(efforts, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_each_joint_is_pulled_to_its_reference(robot: Robot, law: LawName, q: np.ndarray) -> None:
    """At rest the law accelerates each joint by w^2 times its own error: not by another's, and not away from it."""
    zero, error = np.zeros(robot.nv), 0.01 * np.arange(1, robot.nv + 1)
    state = RobotState(t=0.0, q=q, v=zero, effort=zero)
    reference = Reference(q=robot.configuration.integrate(q, error), v=zero, a=zero)
    acceleration = robot.forward_dynamics(q, zero, law.update(state, reference, 0.002))
    # the rounding of M^-1 M is 1e-16 times its condition number, 1e5 of an arm with light fingers
    np.testing.assert_allclose(acceleration, 100.0 * error, rtol=1e-6)


def test_parameters_out_of_range_are_refused(robot: Robot) -> None:
    with pytest.raises(InvalidArgumentError, match="natural_frequency must be positive"):
        LawName(LawNameParameters(natural_frequency=-1.0), robot)
