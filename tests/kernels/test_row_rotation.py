"""Rows rotated to world axes have the bits of the same products in NumPy, for any strides and leading axes."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.kernels.row_rotation import move, rotation_ufunc, turn


def in_numpy(R: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns R x by products and sums in a fixed order: BLAS may round one state and a batch differently."""
    return R[..., :, 0] * x[..., 0:1] + R[..., :, 1] * x[..., 1:2] + R[..., :, 2] * x[..., 2:3]


@pytest.mark.parametrize("leads", [((), ()), ((5,), (5,)), ((5,), ()), ((), (4,)), ((2, 1), (1, 3))])
def test_single_vectors(leads: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(2)
    R, x = rng.normal(size=(*leads[0], 3, 3)), rng.normal(size=(*leads[1], 3))
    np.testing.assert_array_equal(turn(R, x), in_numpy(R, x))
    np.testing.assert_array_equal(turn(np.swapaxes(R, -1, -2), x), in_numpy(np.swapaxes(R, -1, -2), x))


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
@pytest.mark.parametrize("vectors", [1, 2])
def test_rows_are_rotated_by_the_matrix_of_their_link(lead: tuple[int, ...], vectors: int) -> None:
    rng, links = np.random.default_rng(0), [2, 0, 0, 3]
    x, R = rng.normal(size=(*lead, len(links), 3 * vectors)), rng.normal(size=(*lead, 4, 3, 3))
    split = x.reshape(*lead, len(links), vectors, 3)
    expected = in_numpy(R.take(links, -3)[..., None, :, :], split).reshape(x.shape)
    rotated = rotation_ufunc(links)(x, R)
    np.testing.assert_array_equal(rotated, expected)
    strided = np.repeat(x, 2, axis=-1)[..., ::2]
    np.testing.assert_array_equal(rotation_ufunc(links)(strided, np.asfortranarray(R)), expected)


def test_rotations_without_an_axis_of_states_serve_all_states() -> None:
    rng = np.random.default_rng(1)
    x, R = rng.normal(size=(6, 2, 3)), rng.normal(size=(3, 3, 3))
    rotated = rotation_ufunc([1, 2])(x, R)
    for k in range(len(x)):
        np.testing.assert_array_equal(rotated[k], rotation_ufunc([1, 2])(x[k], R))


@pytest.mark.parametrize("leads", [((), (), ()), ((5,), (5,), (5,)), ((5,), (), (1,)), ((), (4,), (3, 1))])
def test_moved_torques(leads: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(3)
    torque, p, force = (rng.normal(size=(*lead, 3)) for lead in leads)
    np.testing.assert_array_equal(move(torque, p, force), torque + np.cross(p, force))
    strided = (np.repeat(x, 2, axis=-1)[..., ::2] for x in (torque, p, force))
    np.testing.assert_array_equal(move(*strided), torque + np.cross(p, force))
