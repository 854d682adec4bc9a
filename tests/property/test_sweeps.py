"""Sweeps equal the operators, (P1)-(P4), on random trees, with blocks of any width and several columns.

Numbers, not symbols: the sweeps work on CasADi matrices, and DM is one of them.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.articulated import branches
from dyn_service.dynamics.kinematics import influences, motion_subspaces
from dyn_service.dynamics.newton_euler import inertias
from dyn_service.dynamics.sweeps import PerBody, from_children, inward, outward
from dyn_service.formulations.world_equations import phi, psi
from dyn_service.model.building import tree_of
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read_text
from tests.random_robots import random_urdf

ROUNDING = 1e-12
"""Relative to the largest number on either side: sums of at most some hundred products, in another order."""


def random_tree(seed: int) -> Tree:
    return tree_of(read_text(random_urdf(seed, movable=1 + seed % 9, bushy=0.7)))


def stack(rng: np.random.Generator, rows: list[int], columns: int) -> list[np.ndarray]:
    return [rng.normal(size=(k, columns)) for k in rows]


def swept(z: PerBody) -> np.ndarray:
    return np.vstack([ex.matrix(z_i).array() for z_i in z])


def close(actual: np.ndarray, expected: np.ndarray, scale: float = 0.0) -> None:
    assert actual.shape == expected.shape
    largest = max(scale, np.abs(expected).max(initial=0.0), np.abs(actual).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=ROUNDING * max(1.0, largest))


def from_parent(tree: Tree, A: list[ex.Matrix], x: list[ex.Matrix]) -> list[ex.Matrix]:
    """z = Phi_A x, (P1): A_i times what the parent of body i has, of the shape of x_i."""
    inherited = tree.of_parent(x, ex.zeros(0, 0))
    return [
        ex.zeros(*x_i.shape) if parent < 0 else A_i @ x_p
        for parent, A_i, x_i, x_p in zip(tree.parent, A, x, inherited, strict=True)
    ]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 8), columns=st.integers(1, 5))
def test_sweeps_are_the_explicit_operators(seed: int, width: int, columns: int) -> None:
    """Psi_A x, Psi_A^T x, Phi_A x and Phi_A^T x for blocks (width, width) and x of several columns."""
    tree, rng = random_tree(seed), np.random.default_rng(seed)
    A = stack(rng, [width] * len(tree), width)
    x = stack(rng, [width] * len(tree), columns)
    given_A, given_x = [ex.matrix(block) for block in A], [ex.matrix(block) for block in x]
    whole = np.vstack(x)
    close(swept(outward(tree, given_A, given_x)), psi(tree, A) @ whole)  # (P3)
    close(swept(inward(tree, given_A, given_x)), psi(tree, A).T @ whole)  # (P4): the transpose, not another operator
    close(swept(from_parent(tree, given_A, given_x)), phi(tree, A) @ whole)  # (P1)
    close(swept(from_children(tree, given_A, given_x)), phi(tree, A).T @ whole)  # (P2)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), columns=st.integers(1, 4))
def test_adjointness_where_each_body_has_its_own_width(seed: int, columns: int) -> None:
    """<Psi x, y> = <x, Psi^T y> and <Phi x, y> = <x, Phi^T y> with A_i (k_i, k_ip), bodies of different lengths."""
    tree, rng = random_tree(seed), np.random.default_rng(seed)
    width = [int(k) for k in rng.integers(1, 7, len(tree))]
    A = [
        ex.matrix(rng.normal(size=(k, width[parent] if parent >= 0 else k)))
        for k, parent in zip(width, tree.parent, strict=True)
    ]
    x, y = ([ex.matrix(block) for block in stack(rng, width, columns)] for _ in range(2))
    for forward, backward in ((outward, inward), (from_parent, from_children)):
        image, adjoint_image = swept(forward(tree, A, x)), swept(backward(tree, A, y))
        size = float(np.linalg.norm(image) * np.linalg.norm(swept(PerBody(y))) + 1.0)
        close(np.sum(image * swept(PerBody(y))), np.sum(swept(PerBody(x)) * adjoint_image), size)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), columns=st.integers(0, 4))
def test_influence_inertia_and_yielding_act_on_columns(seed: int, columns: int) -> None:
    """The robot's own operators on (6, k) are their action on each column, and transposed they are adjoint."""
    tree, rng = random_tree(seed), np.random.default_rng(seed)
    D, G, M = influences(tree, ex.matrix(rng.normal(size=tree.nv))), motion_subspaces(tree), inertias(tree)
    x, y = ([ex.matrix(block) for block in stack(rng, [6] * len(tree), columns)] for _ in range(2))
    for A in (D, branches(tree, D, G, M).beta):
        image, adjoint_image = swept(outward(tree, A, x)), swept(inward(tree, A, y))
        one_by_one = [swept(outward(tree, A, [x_i[:, k] for x_i in x])) for k in range(columns)]
        close(image, np.hstack(one_by_one) if columns else np.zeros((6 * len(tree), 0)))
        size = float(np.linalg.norm(image) * np.linalg.norm(swept(PerBody(y))) + 1.0)
        close(np.sum(image * swept(PerBody(y))), np.sum(swept(PerBody(x)) * adjoint_image), size)
    close(
        swept(M @ PerBody(x)),
        np.hstack([swept(M @ PerBody(x_i[:, k] for x_i in x)) for k in range(columns)])
        if columns
        else np.zeros((6 * len(tree), 0)),
    )
