"""Rotations as the files of robots write them, there and back."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.parsing.pose import Pose, about, of_quaternion, quaternion_of, rpy_of
from dyn_service.parsing.quantities import Place, rotation_of_rpy

RPY = [*np.random.default_rng(0).uniform(-np.pi, np.pi, (200, 3)) * [1.0, 0.5, 1.0], *np.eye(3) * np.pi, np.zeros(3)]
LOCKED = [np.array([roll, np.pi / 2 * side, yaw]) for roll in (0.0, 0.7) for yaw in (0.0, -1.9) for side in (1, -1)]


@pytest.mark.parametrize("rpy", [*RPY, *LOCKED])
def test_there_and_back(rpy: np.ndarray) -> None:
    R = rotation_of_rpy(rpy)
    assert np.abs(rotation_of_rpy(rpy_of(R)) - R).max() < 4e-16 * 4
    wxyz = quaternion_of(R)
    assert wxyz[0] >= 0.0
    assert abs(np.linalg.norm(wxyz) - 1.0) < 4e-16
    assert np.abs(of_quaternion(wxyz, "quat", Place("file")) - R).max() < 4e-16 * 4


def test_where_pitch_is_a_right_angle_the_roll_is_nothing() -> None:
    for rpy in LOCKED:
        assert rpy_of(rotation_of_rpy(rpy))[0] == 0.0


def test_poses() -> None:
    pose = Pose(about(np.array([0.0, 0.6, 0.8]), 0.4), np.array([1.0, 2.0, 3.0]))
    back = pose @ pose.inverse
    assert np.abs(back.rotation - np.eye(3)).max() < 1e-15
    assert np.abs(back.origin).max() < 1e-15
    assert np.array_equal((Pose() @ pose @ Pose()).rotation, pose.rotation)
    assert pose.is_turned
    assert not Pose().is_turned
