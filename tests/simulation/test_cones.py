"""The minimisation behind a step with contacts: its answer obeys every law, and no other does."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.simulation.contact.steps import FrictionPairs, HeldRows, OneSided, Solution, velocities
from dyn_service.simulation.integrators import stick_slip
from tests.wide import one_in, wide

NOTHING = HeldRows(np.zeros((0, 1)), np.zeros(0))


def problem(seed: int) -> tuple[np.ndarray, np.ndarray, OneSided, FrictionPairs, HeldRows]:
    """Points that push and rub, some of them twice the same, so that forces are not determined; and held rows."""
    rng = np.random.default_rng(seed)
    n, points, rows = int(rng.integers(3, 25)), int(rng.integers(0, 9)), int(rng.integers(0, 3))
    root = rng.normal(size=(n, n)) * 10.0 ** rng.uniform(-1.0, 0.5, size=(n, 1))
    A = root @ root.T + 1e-3 * np.eye(n)
    J = rng.normal(size=(points, 3, n))
    J[points // 2 :] = J[: points - points // 2]
    push = OneSided(J[:, 0], rng.normal(size=points), 10.0 ** rng.uniform(-1.0, 4.0, points))
    rub = FrictionPairs(J[:, 1:], rng.uniform(0.0, 2.0, points) * (rng.random(points) < 0.8))
    return A, rng.normal(size=n), push, rub, HeldRows(rng.normal(size=(rows, n)), rng.normal(size=rows))


def solved(seed: int, start: float = 0.0) -> Solution:
    A, r, push, rub, held_rows = problem(seed)
    solution = velocities(A, r, np.full(len(r), start), push, rub, held_rows)
    assert solution is not None
    return solution


@pytest.mark.parametrize("seed", wide(range(150), one_in(3)))
def test_impulses_balance_and_obey_their_laws(seed: int) -> None:
    A, r, push, rub, held_rows = problem(seed)
    solution = solved(seed)
    v = solution.v
    impulses = (
        solution.normal @ push.rows
        + np.einsum("pi,pin->n", solution.friction, rub.rows)
        + solution.rigid @ held_rows.rows
    )
    assert np.abs(A @ v - r - impulses).max() < 1e-7 * np.abs(r).max()
    x = push.rows @ v
    assert np.all(solution.normal >= 0.0)
    law, size = np.maximum(push.at_rest - push.slope * x, 0.0), np.abs(push.at_rest) + np.abs(push.slope * x)
    assert np.all(np.abs(solution.normal - law) <= 1e-11 * size)
    size, X = np.linalg.norm(solution.friction, axis=1), rub.rows @ v
    assert np.all(size <= rub.limit * (1 + 1e-12))
    assert np.all(np.sum(solution.friction * X, axis=1) <= 0.0)
    loose = ~solution.sticks & (rub.limit > 0.0)
    assert np.allclose(size[loose], rub.limit[loose], rtol=1e-12)
    # What holds gives way by a millionth of what its impulse would move it by alone.
    inverse = np.linalg.inv(A)
    ease = np.einsum("pin,nm,pim->p", rub.rows, inverse, rub.rows) / 2
    creeps = np.linalg.norm(X, axis=1)
    assert np.allclose(creeps[solution.sticks], 1e-6 * (ease * size)[solution.sticks], rtol=1e-6, atol=1e-15)
    held_mobility = np.einsum("sn,nm,sm->s", held_rows.rows, inverse, held_rows.rows)
    assert np.allclose(
        held_rows.rows @ v - held_rows.target, -1e-6 * held_mobility * solution.rigid, rtol=1e-6, atol=1e-15
    )


@pytest.mark.parametrize("seed", range(0, 150, 5))
def test_there_is_one_answer_wherever_it_is_looked_for(seed: int) -> None:
    from_rest, from_elsewhere = solved(seed), solved(seed, start=3.0)
    assert np.allclose(from_rest.v, from_elsewhere.v, rtol=0, atol=1e-7 * np.abs(from_rest.v).max())


@pytest.mark.parametrize("seed", range(60))
def test_joints_alone_are_those_of_the_exact_tries(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 20))
    root = rng.normal(size=(n, n))
    A, r = root @ root.T + 1e-2 * np.eye(n), rng.normal(size=n)
    limit = rng.uniform(0.0, 2.0, n)
    pairs = np.zeros((n, 2, n))
    pairs[np.arange(n), 0, np.arange(n)] = 1.0
    without_supports = OneSided(np.zeros((0, n)), np.zeros(0), np.zeros(0))
    solution = velocities(
        A, r, np.zeros(n), without_supports, FrictionPairs(pairs, limit), HeldRows(np.zeros((0, n)), np.zeros(0))
    )
    exact = stick_slip.velocities(A, r, limit)
    assert solution is not None
    assert exact is not None
    difference, free = solution.v - exact, np.linalg.solve(A, r)
    assert difference @ A @ difference < (3e-5) ** 2 * (free @ r)


def test_what_is_not_finite_stays_so_and_a_singular_matrix_is_told() -> None:
    A, r, push, rub, held_rows = problem(1)
    assert all(len(part.rows) for part in (push, rub, held_rows))
    solution = velocities(A, np.full_like(r, np.nan), r, push, rub, held_rows)
    assert solution is not None
    assert [part.shape for part in solution] == [part.shape for part in solved(1)]
    assert all(np.isnan(part).all() for part in solution[:-1])
    assert not solution.sticks.any()
    with pytest.raises(np.linalg.LinAlgError):
        velocities(np.zeros_like(A), r, r, push, rub, held_rows)
