"""Integrators: order of convergence, energy, batches."""

import numpy as np
import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.model.steps import STEPS
from dyn_service.simulation import advance, integrator
from tests.phrases import naming, unnamed
from tests.trees import configuration


def pendulum(q: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A pendulum with drag, so that the acceleration depends on the velocity too."""
    return -np.sin(q) - 0.1 * v * np.abs(v)


def end(method: str, steps: int) -> float:
    """Where a swing from 1 rad is after 2 s; it does not stand still before, so the drag is smooth on its way."""
    q, _ = advance(integrator(method), pendulum, np.array([1.0]), np.array([-0.1]), 2.0, steps)
    return float(q[0])


@pytest.mark.parametrize(("method", "order"), [("explicit_euler", 1), ("semi_implicit_euler", 1), ("rk4", 4)])
def test_order_of_convergence(method: str, order: int) -> None:
    exact = end("rk4", 4096)
    errors = np.abs([end(method, steps) - exact for steps in (32, 64, 128)])
    measured_order = np.log2(errors[:-1] / errors[1:])
    np.testing.assert_allclose(measured_order, order, atol=0.15)  # higher terms of the error are still a few percent


def test_semi_implicit_euler_keeps_the_energy_of_an_oscillator_bounded() -> None:
    q, v = np.array([1.0]), np.array([0.0])
    for _ in range(200):
        q, v = advance(STEPS["semi_implicit_euler"], lambda x, _: -x, q, v, 5.0, 50)
    # the step keeps q^2 + v^2 - dt q v exactly, so the energy stays within dt/2 of it: 5 %
    assert float(q[0] ** 2 + v[0] ** 2) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("method", sorted(STEPS))
def test_a_batch_is_its_members(method: str) -> None:
    q, v = np.linspace(-1.0, 1.0, 5)[:, None], np.linspace(0.0, 2.0, 5)[:, None]
    batch = advance(integrator(method), pendulum, q, v, 0.5, 10)
    for k in range(5):
        single = advance(integrator(method), pendulum, q[k], v[k], 0.5, 10)
        assert np.array_equal(batch[0][k], single[0])
        assert np.array_equal(batch[1][k], single[1])


def test_unknown_integrator() -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        integrator("euler")
    assert unnamed(refusal.value, "'euler'", "explicit_euler, rk4, semi_implicit_euler") == []


def test_a_misspelt_integrator_is_told_the_nearest() -> None:
    with pytest.raises(InvalidArgumentError, match=naming("explicit_euler, rk4, semi_implicit_euler", "'rk4'")):
        integrator("rk45")


def test_the_whole_time_is_one_step_where_nothing_is_said() -> None:
    q, v = np.array([1.0]), np.array([-0.1])
    for name, step in STEPS.items():
        assert advance(integrator(name), pendulum, q, v, 0.5) == step(pendulum, q, v, 0.5)


@pytest.mark.parametrize("method", sorted(STEPS))
def test_quaternions_move_as_quaternions(method: str) -> None:
    """A quarter turn at constant speed: Euler's steps go along it exactly, RK4 to its fourth order."""
    ball = configuration(["ball"], ["spherical"])
    rate = np.array([0.0, 0.0, np.pi / 2])
    q, v = advance(integrator(method), lambda q, v: 0.0 * v, ball.neutral, rate, 1.0, 20, on=ball)
    # (h w / 2)^5 / 120 a step for RK4, twenty of them: 2e-8.
    np.testing.assert_allclose(q, [0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5)], rtol=0, atol=2e-8)
    np.testing.assert_array_equal(v, rate)
