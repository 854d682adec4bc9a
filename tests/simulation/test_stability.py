"""Steps too long for damping and friction are predicted: exactly those with which a speed grows."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.model.steps import STEPS
from dyn_service.simulation.engines import LIMITS, OwnEngine, unstable
from tests.trees import configuration

JOINTS = configuration(("a", "b"), ["revolute", "revolute"])


def test_each_step_of_a_plant_has_its_limit() -> None:
    assert {*LIMITS} == {*STEPS}


@pytest.mark.parametrize("integrator", LIMITS)
def test_what_is_foretold_grows_and_nothing_else(integrator: str) -> None:
    """Two coupled speeds, a hair within the limit and a hair beyond it, and what the engine makes of them."""
    mass, damping = np.array([[2.0, 0.1], [0.1, 0.01]]), np.diag([1.0, 3.0])
    matrix = np.linalg.solve(mass, damping)
    largest = np.linalg.eigvals(matrix).max()
    engine = OwnEngine(lambda q, v, tau: -matrix @ v, JOINTS, integrator)
    for share in (0.99, 1.01):
        step_s = share * LIMITS[integrator] / largest
        found = unstable(lambda v: -matrix @ v, np.ones(2), step_s, integrator)
        q, v = np.zeros(2), np.array([0.0, 1.0])
        for _ in range(400):
            q, v = engine.step(q, v, np.zeros(2), step_s)
        assert (found is not None) == (np.abs(v).max() > 1.0) == (share > 1.0)
    assert found is not None
    assert (found.joints, found.least) == ((1,), 2)
    assert found.rate == pytest.approx(largest, rel=1e-6)  # differences over 1e-6 leave rounding of 1e-10


def test_weight_and_what_grows_with_the_square_of_a_speed_are_no_damping() -> None:
    assert unstable(lambda v: np.array([9.81, -3.0]) - 100.0 * v * v[::-1], np.ones(2), 0.001, "rk4") is None
    assert unstable(lambda v: np.full(2, np.nan), np.ones(2), 0.001, "rk4") is None
    assert unstable(lambda v: v, np.ones(0), 0.001, "rk4") is None


def test_a_locked_joint_is_not_asked() -> None:
    def acceleration(v: np.ndarray) -> np.ndarray:
        assert v[0] == 0.0
        return np.array([0.0, -4000.0]) * v

    found = unstable(acceleration, np.array([0.0, 1.0]), 0.001, "rk4")
    assert found is not None
    assert found.joints == (1,)
