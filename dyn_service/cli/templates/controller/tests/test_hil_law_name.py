"""The controller with its plant in lockstep; with `--hil real_time` the same with all processes of the launch file."""

import numpy as np
import pytest

from dyn_service.hil import Delay


@pytest.fixture
def loaded(robot, pytestconfig):
    """The plant in a pose in which gravity moves joints the most, of those in which half of the efforts carry it."""
    if pytestconfig.getoption("hil") == "hardware":
        return {}  # the pose in which it stands
    q = np.array([robot.random_configuration(seed=seed) for seed in range(64)])
    weight = robot.gravity_forces(q)
    fall = np.abs(np.linalg.solve(robot.mass_matrix(q), weight[..., None])).max(axis=(1, 2))
    fall[(np.abs(weight) > 0.5 * robot.limits.efforts).any(axis=1)] = 0.0
    if fall.max() < 1e-6:
        pytest.skip("the robot carries no weight in any of 64 poses")
    return {"initial_position": q[fall.argmax()].tolist()}


def test_it_follows_its_reference(run):
    check = run(2.0).check
    check.stops().at_most(0)
    check.velocity().within_limits()
    check.effort().within_limits()
    # springs alone lag by a / w^2 at an acceleration a, and by friction; with both in the law, `check.clean()` holds
    check.tracking().below(0.5)


@pytest.mark.hil(arguments={"trajectory": "hold"})
def test_it_carries_its_weight(run, loaded):
    run(1.0, plant=loaded).check.tracking().below(1e-3)


def test_a_late_controller_is_stopped(run):
    run(2.0, faults=[Delay(0.5, from_s=1.0)]).check.safe_stop(after_s=1.0).below(0.4)  # 0.1 s to notice, 0.1 s to brake
