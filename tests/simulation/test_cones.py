"""The minimisation behind a step with contacts: its answer obeys every law, and no other does."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.simulation.contact.steps import Found, HeldRows, Pushers, Rubbing, velocities
from dyn_service.simulation.integrators import stick_slip
from tests.wide import one_in, wide

NOTHING = HeldRows(np.zeros((0, 1)), np.zeros(0))


def problem(seed: int) -> tuple[np.ndarray, np.ndarray, Pushers, Rubbing, HeldRows]:
    """Points that push and rub, some of them twice the same, so that forces are not determined; and held rows."""
    rng = np.random.default_rng(seed)
    n, points, rows = int(rng.integers(3, 25)), int(rng.integers(0, 9)), int(rng.integers(0, 3))
    root = rng.normal(size=(n, n)) * 10.0 ** rng.uniform(-1.0, 0.5, size=(n, 1))
    A = root @ root.T + 1e-3 * np.eye(n)
    J = rng.normal(size=(points, 3, n))
    J[points // 2 :] = J[: points - points // 2]
    push = Pushers(J[:, 0], rng.normal(size=points), 10.0 ** rng.uniform(-1.0, 4.0, points))
    rub = Rubbing(J[:, 1:], rng.uniform(0.0, 2.0, points) * (rng.random(points) < 0.8))
    return A, rng.normal(size=n), push, rub, HeldRows(rng.normal(size=(rows, n)), rng.normal(size=rows))


def solved(seed: int, start: float = 0.0) -> Found:
    A, r, push, rub, held = problem(seed)
    found = velocities(A, r, np.full(len(r), start), push, rub, held)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", wide(range(150), one_in(3)))
def test_impulses_balance_and_obey_their_laws(seed: int) -> None:
    A, r, push, rub, held = problem(seed)
    found = solved(seed)
    v = found.v
    acting = found.pushing @ push.rows + np.einsum("pi,pin->n", found.rubbing, rub.rows) + found.held @ held.rows
    assert np.abs(A @ v - r - acting).max() < 1e-7 * np.abs(r).max()
    x = push.rows @ v
    assert np.all(found.pushing >= 0.0)
    law, size = np.maximum(push.most - push.slope * x, 0.0), np.abs(push.most) + np.abs(push.slope * x)
    assert np.all(np.abs(found.pushing - law) <= 1e-11 * size)
    size, X = np.linalg.norm(found.rubbing, axis=1), rub.rows @ v
    assert np.all(size <= rub.bound * (1 + 1e-12))
    assert np.all(np.sum(found.rubbing * X, axis=1) <= 0.0)
    loose = ~found.sticks & (rub.bound > 0.0)
    assert np.allclose(size[loose], rub.bound[loose], rtol=1e-12)
    # What holds gives way by a millionth of what its impulse would move it by alone.
    inverse = np.linalg.inv(A)
    ease = np.einsum("pin,nm,pim->p", rub.rows, inverse, rub.rows) / 2
    creeps = np.linalg.norm(X, axis=1)
    assert np.allclose(creeps[found.sticks], 1e-6 * (ease * size)[found.sticks], rtol=1e-6, atol=1e-15)
    of_held = np.einsum("sn,nm,sm->s", held.rows, inverse, held.rows)
    assert np.allclose(held.rows @ v - held.target, -1e-6 * of_held * found.held, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("seed", range(0, 150, 5))
def test_there_is_one_answer_wherever_it_is_looked_for(seed: int) -> None:
    here, there = solved(seed), solved(seed, start=3.0)
    assert np.allclose(here.v, there.v, rtol=0, atol=1e-7 * np.abs(here.v).max())


@pytest.mark.parametrize("seed", range(60))
def test_joints_alone_are_those_of_the_exact_tries(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 20))
    root = rng.normal(size=(n, n))
    A, r = root @ root.T + 1e-2 * np.eye(n), rng.normal(size=n)
    limit = rng.uniform(0.0, 2.0, n)
    pairs = np.zeros((n, 2, n))
    pairs[np.arange(n), 0, np.arange(n)] = 1.0
    none = Pushers(np.zeros((0, n)), np.zeros(0), np.zeros(0))
    found = velocities(A, r, np.zeros(n), none, Rubbing(pairs, limit), HeldRows(np.zeros((0, n)), np.zeros(0)))
    exact = stick_slip.velocities(A, r, limit)
    assert found is not None
    assert exact is not None
    apart, free = found.v - exact, np.linalg.solve(A, r)
    assert apart @ A @ apart < (3e-5) ** 2 * (free @ r)


def test_what_is_not_finite_stays_so_and_a_singular_matrix_is_told() -> None:
    A, r, push, rub, held = problem(1)
    assert all(len(part.rows) for part in (push, rub, held))
    found = velocities(A, np.full_like(r, np.nan), r, push, rub, held)
    assert found is not None
    assert [part.shape for part in found] == [part.shape for part in solved(1)]
    assert all(np.isnan(part).all() for part in found[:-1])
    assert not found.sticks.any()
    with pytest.raises(np.linalg.LinAlgError):
        velocities(np.zeros_like(A), r, r, push, rub, held)
