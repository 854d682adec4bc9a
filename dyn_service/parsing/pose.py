"""Poses, and the representations of rotations in robot files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.building import snapped
from dyn_service.parsing import quantities
from dyn_service.parsing.quantities import Place


@dataclass(frozen=True, eq=False)
class Pose:
    """The pose of a frame B in a frame A: rotation R_AB (3, 3), origin p_AB (3,) m."""

    rotation: Matrix = field(default_factory=lambda: np.eye(3))
    origin: Vector = field(default_factory=lambda: np.zeros(3))

    def __matmul__(self, other: Pose) -> Pose:
        """Returns X_AC = X_AB X_BC. If one is the identity, the result is the other to the last bit."""
        return Pose(self.rotation @ other.rotation, self.origin + self.rotation @ other.origin)

    @property
    def inverse(self) -> Pose:
        """Returns X_BA."""
        return Pose(self.rotation.T, -(self.rotation.T @ self.origin))

    @property
    def is_turned(self) -> bool:
        """Whether B's axes differ from A's."""
        return not np.array_equal(self.rotation, np.eye(3))


def about(axis: Vector, angle: float) -> Matrix:
    """Returns the rotation (3, 3) by an angle, rad, about a unit vector (3,)."""
    x, y, z = axis
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return snapped(np.eye(3) + math.sin(angle) * cross + (1.0 - math.cos(angle)) * (cross @ cross))


def turning_z_to(axis: Vector) -> Matrix:
    """Returns the shortest rotation from z to a unit vector (3,)."""
    cross = np.array([-axis[1], axis[0], 0.0])
    sine = float(np.linalg.norm(cross))
    if sine < quantities.SHORTEST_AXIS:
        return np.eye(3) if axis[2] > 0.0 else np.diag([1.0, -1.0, -1.0])
    return about(cross / sine, math.atan2(sine, axis[2]))


def of_quaternion(wxyz: Vector, name: str, place: Place) -> Matrix:
    """Returns the rotation (3, 3) of a quaternion (w, x, y, z), normalised."""
    if not np.abs(wxyz).max() >= quantities.SHORTEST_AXIS:
        raise place.fault(f"attribute '{name}': the quaternion is zero, expected a rotation")
    return quantities.rotation_of_quaternion(np.asarray(wxyz)[[1, 2, 3, 0]], place, [])


def quaternion_of(rotation: Matrix) -> Vector:
    """Returns (w, x, y, z) of a rotation (3, 3), w >= 0, computed from the largest entry to keep all digits."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation
    products = np.array(  # four times those of the quaternion's entries
        [
            [1.0 + xx + yy + zz, zy - yz, xz - zx, yx - xy],
            [zy - yz, 1.0 + xx - yy - zz, xy + yx, xz + zx],
            [xz - zx, xy + yx, 1.0 - xx + yy - zz, yz + zy],
            [yx - xy, xz + zx, yz + zy, 1.0 - xx - yy + zz],
        ]
    )
    quaternion = products[int(np.argmax(np.diag(products)))]
    quaternion = quaternion / np.linalg.norm(quaternion)
    return np.asarray(-quaternion if quaternion[0] < 0.0 else quaternion) + 0.0


def rpy_of(rotation: Matrix) -> Vector:
    """Returns (roll, pitch, yaw), rad, with R = Rz(yaw) Ry(pitch) Rx(roll); roll is 0 in gimbal lock."""
    R = rotation
    level = math.hypot(R[0, 0], R[1, 0])
    pitch = math.atan2(-R[2, 0], level)
    if level < 1e-12:
        return np.array([0.0, pitch, math.atan2(-R[0, 1], R[1, 1])])
    return np.array([math.atan2(R[2, 1], R[2, 2]), pitch, math.atan2(R[1, 0], R[0, 0])])
