"""The law by itself, and in a closed loop in simulated time. No processes."""

import numpy as np
import pytest
from law_name.controller import LawName, LawNameParameters

from dyn_service import Robot
from dyn_service.control.dry_run import dry_run
from dyn_service.control.law import RobotState
from dyn_service.control.trajectory import Reference
from dyn_service.errors import InvalidArgumentError
from dyn_service.support.shipped import find_robot


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_file(find_robot("pendulum"))


@pytest.fixture
def law(robot: Robot) -> LawName:
    return LawName(LawNameParameters(natural_frequency=10.0, damping_ratio=0.7), robot)


def test_each_term_of_the_law(robot: Robot, law: LawName) -> None:
    q, v = np.array([0.3]), np.array([0.5])
    state = RobotState(t=0.0, q=q, v=v, effort=np.zeros(1))
    there = Reference(q=q + 0.1, v=v - 0.2, a=np.zeros(1))
    found = law.update(state, there, 0.002)
    pull = robot.mass_matrix(q)[0] * (100.0 * 0.1 - 2.0 * 0.7 * 10.0 * 0.2)
    np.testing.assert_allclose(found, robot.gravity_forces(q) + pull, rtol=1e-12)


def test_a_push_stretches_the_spring(robot: Robot, law: LawName) -> None:
    run = dry_run(law, robot, 2.0, q=[0.4], push=lambda t, q, v: [1.0])
    # what swings dies out as exp(-0.7 * 10 t), to 1e-6 of itself at 2 s
    np.testing.assert_allclose(run.error[-1], -1.0 / (robot.mass_matrix(run.q[-1])[0] * 100.0), rtol=1e-5)
    np.testing.assert_allclose(run.signals["stretch"][-1], run.error[-1], rtol=1e-5)


def test_parameters_out_of_range_are_refused(robot: Robot) -> None:
    with pytest.raises(InvalidArgumentError, match="natural_frequency must be positive"):
        LawName(LawNameParameters(natural_frequency=-1.0), robot)
