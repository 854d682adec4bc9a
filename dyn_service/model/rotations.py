"""Rotation vectors of rotation matrices, for arrays of them.

    log(R) = angle * axis,    R - R^T = 2 sin(angle) [axis]x,    tr R = 1 + 2 cos(angle)

Rotations in any arithmetic, for expressions, are in `joints/rotations.py`. Checked by
tests/simulation/test_inverse_kinematics.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def rotation_vector(R: ArrayLike) -> NDArray[np.float64]:
    """Returns the rotation vectors (..., 3), rad, of rotation matrices (..., 3, 3); their lengths are at most pi.

    At pi, where both signs are the same rotation, the sign is arbitrary.
    """
    R = np.asarray(R, float)
    imaginary = np.stack([R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]], -1)
    sine, cosine = 0.5 * np.linalg.norm(imaginary, axis=-1), 0.5 * (np.trace(R, axis1=-2, axis2=-1) - 1.0)
    angle = np.arctan2(sine, cosine)
    vector = np.asarray(imaginary * (0.5 * angle / np.where(sine > 0.0, sine, 1.0) + 0.5 * (sine == 0.0))[..., None])
    # The sine is small near pi, where the axis a is a column of (R + R^T)/2 - cos 1 = (1 - cos) a a^T.
    nearly_pi = cosine < -0.9
    if nearly_pi.any():
        outer = 0.5 * (R[nearly_pi] + np.swapaxes(R[nearly_pi], -1, -2)) - cosine[nearly_pi][:, None, None] * np.eye(3)
        largest = np.argmax(np.einsum("nii->ni", outer), axis=-1)
        axis = np.take_along_axis(outer, largest[:, None, None], axis=-1)[..., 0]
        axis /= np.linalg.norm(axis, axis=-1, keepdims=True)
        sign = np.where(np.einsum("ni,ni->n", axis, imaginary[nearly_pi]) < 0.0, -1.0, 1.0)
        vector[nearly_pi] = axis * (sign * angle[nearly_pi])[:, None]
    return vector
