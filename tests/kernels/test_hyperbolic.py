"""The kernels' hyperbolic tangent: accuracy over all doubles, NaN for NaN, no warnings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.kernels.trig import TANH_ERROR
from dyn_service.parsing.urdf.reader import read
from tests.conftest import URDF

flint = pytest.importorskip("flint")


@pytest.fixture(scope="module")
def pendulum() -> Robot:
    """A joint whose friction is tanh v."""
    description = read(URDF / "pendulum.urdf")
    (joint,) = [joint for joint in description.joints if joint.moves.nv]
    other_joints = [other_joint for other_joint in description.joints if other_joint is not joint]
    return Robot(replace(description, joints=(*other_joints, replace(joint, friction=1.0, friction_width=1.0))))


def tanh(robot: Robot, x: np.ndarray) -> np.ndarray:
    return robot.passive_forces(np.zeros(1), x[:, None]).friction[:, 0]


def numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    size = 4000
    halves = np.log(2) / 4 * np.arange(1, 120, 2)  # boundaries of the argument reduction
    return {
        "ordinary": rng.uniform(-3, 3, size),
        "small": 10.0 ** rng.uniform(-300, -1, size) * rng.choice([-1.0, 1.0], size),
        "large": rng.uniform(-25, 25, size),
        "at the seams": (halves[:, None] * (1 + 2e-16 * np.arange(-3, 4))).ravel(),
        "subnormal": np.array([5e-324, -5e-324, 1e-310, 2.2250738585072014e-308]),
        "ends": np.array([0.0, 19.0, 19.06, 19.07, 20.0, 20.1, 1e10, 1e300, np.inf, -np.inf]),
    }


@pytest.mark.parametrize("x", numbers().values(), ids=numbers())
def test_tanh_against_200_bits(pendulum: Robot, x: np.ndarray) -> None:
    results = tanh(pendulum, x)
    with flint.ctx.workprec(200):
        for result, argument in zip(results.tolist(), x.tolist(), strict=True):
            exact = flint.arb(argument).tanh() if np.isfinite(argument) else flint.arb(np.sign(argument))
            error = abs(float((flint.arb(result) - exact).mid()))
            assert error <= TANH_ERROR * np.spacing(abs(float(exact.mid()))), argument
    assert np.all(np.abs(results) <= 1.0)


def test_tanh_is_odd_and_keeps_the_sign_of_zero(pendulum: Robot) -> None:
    x = np.concatenate(list(numbers().values()))
    assert np.array_equal(tanh(pendulum, -x), -tanh(pendulum, x))


def test_nan_gives_nan_without_a_warning(pendulum: Robot) -> None:
    """Warnings are errors in this test, so a kernel that raised the invalid flag would fail."""
    results = tanh(pendulum, np.array([np.nan, 0.5, -np.nan]))
    assert np.isnan(results[[0, 2]]).all()
    assert results[1] == pytest.approx(np.tanh(0.5), rel=1e-15)


def test_one_state_and_batch_agree_to_the_last_bit(pendulum: Robot) -> None:
    x = numbers()["ordinary"][:50]
    single = [pendulum.passive_forces([0.0], [speed]).friction[0] for speed in x]
    assert np.array_equal(single, tanh(pendulum, x))
