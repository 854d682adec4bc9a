"""Rows rotated to world axes have the bits of the same products in NumPy, for any strides and leading axes."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.engine.wrenches import turn
from dyn_service.kernels.row_rotation import rotation_ufunc


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
@pytest.mark.parametrize("vectors", [1, 2])
def test_rows_are_rotated_by_the_matrix_of_their_link(lead: tuple[int, ...], vectors: int) -> None:
    rng, links = np.random.default_rng(0), [2, 0, 0, 3]
    x, R = rng.normal(size=(*lead, len(links), 3 * vectors)), rng.normal(size=(*lead, 4, 3, 3))
    split = x.reshape(*lead, len(links), vectors, 3)
    expected = turn(R.take(links, -3)[..., None, :, :], split).reshape(x.shape)
    found = rotation_ufunc(links)(x, R)
    np.testing.assert_array_equal(found, expected)
    strided = np.repeat(x, 2, axis=-1)[..., ::2]
    np.testing.assert_array_equal(rotation_ufunc(links)(strided, np.asfortranarray(R)), expected)


def test_rotations_without_an_axis_of_states_serve_all_states() -> None:
    rng = np.random.default_rng(1)
    x, R = rng.normal(size=(6, 2, 3)), rng.normal(size=(3, 3, 3))
    found = rotation_ufunc([1, 2])(x, R)
    for k in range(len(x)):
        np.testing.assert_array_equal(found[k], rotation_ufunc([1, 2])(x[k], R))
