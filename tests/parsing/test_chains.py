"""Joints that stand, at a position other than 0, where a file draws their bodies."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.model.description import Joint
from dyn_service.parsing.joint_chains import Names, with_frame
from dyn_service.parsing.pose import Pose, about
from dyn_service.parsing.quantities import rotation_of_rpy

AXIS = np.array([2.0, -1.0, 2.0]) / 3.0
DRAWN = Pose(rotation_of_rpy(np.array([0.4, -0.3, 1.2])), np.array([0.1, -0.2, 0.5]))


@pytest.mark.parametrize("kind", ["revolute", "prismatic"])
def test_at_its_zero_position_the_body_is_where_it_is_drawn(kind: str) -> None:
    """Turned and slid along an axis of the frame itself, so that the order of both turns and whose axis it is count."""
    zero = 0.7
    joint = with_frame(Joint("j", kind, "a", "b", np.zeros(3), np.eye(3), AXIS), DRAWN, zero)
    frame = Pose(joint.rotation, joint.xyz)
    body_pose = frame @ (Pose(about(AXIS, zero)) if kind == "revolute" else Pose(origin=AXIS * zero))
    np.testing.assert_allclose(body_pose.rotation, DRAWN.rotation, atol=1e-15)
    np.testing.assert_allclose(body_pose.origin, DRAWN.origin, atol=1e-15)
    distance = np.abs(frame.rotation - DRAWN.rotation).max() + np.abs(frame.origin - DRAWN.origin).max()
    assert distance > 0.1


def test_a_name_that_is_taken_gets_the_next_free_number() -> None:
    names = Names(["a", "a_4"])
    assert [names.new(name) for name in ("a", "a", "a", "b", "b")] == ["a_2", "a_3", "a_5", "b", "b_2"]
