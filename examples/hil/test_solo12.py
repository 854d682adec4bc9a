"""A Solo12 on its feet: it stands, and it walks in place. Its base has no motor; the ground supports it."""

from pathlib import Path

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.hil import Delay

SOLO12 = Path(__file__).parents[2] / "urdf" / "solo12.urdf"
LEGS = ("FL", "FR", "HL", "HR")


@pytest.mark.hil(launch="solo12")
@pytest.mark.parametrize("by_s", [0.0, 0.005, 0.02])
def test_it_stands_where_it_was_put(run, by_s):
    """No stop, although commands are late. It sinks by 12 mm, and by 20 mm while it settles."""
    completed = run(1.0, faults=[Delay(by_s)] if by_s else [])
    completed.check.stops().at_most(0)
    completed.check.effort().within_limits(share=0.9)
    z = completed.record.signal("position", "root_joint.z").values
    assert z.min() > 0.2389 - 0.024
    assert z[-1] == pytest.approx(0.2389 - 0.012, abs=2e-3)


@pytest.mark.hil(launch="solo12", arguments={"motion": "walk"})
def test_it_walks_in_place(run):
    """No stop, within two centimetres; it sinks by 38 mm while it stands on two feet."""
    completed = run(1.5)
    completed.check.stops().at_most(0)
    robot = Robot.from_urdf(SOLO12, root="floating")
    poses = robot.link_poses(completed.record.groups["position"].values)
    heights = {leg: poses.position[:, robot.link_names.index(f"{leg}_foot"), 2] - 0.016 for leg in LEGS}
    lifted = {leg: heights[leg] > 0.015 for leg in LEGS}
    for leg in LEGS:
        assert np.count_nonzero(np.diff(lifted[leg].astype(int)) == 1) >= 2, leg
    assert not (lifted["FL"] & lifted["FR"]).any()  # a foot and the one across from it, in turn
    assert (lifted["FL"] & lifted["HR"]).any()
    assert completed.record.signal("position", "root_joint.z").values.min() > 0.195
    assert abs(completed.record.signal("position", "root_joint.x").values).max() < 0.02


@pytest.mark.hil(launch="solo12", arguments={"motion": "walk"})
@pytest.mark.parametrize("force", [(20.0, 0.0, 0.0), (0.0, -20.0, 0.0)])
def test_it_walks_on_after_a_push(clock, plant, force):
    """20 N for 0.1 s at the trunk, 2 N s: it steps aside by 9 cm, and walks on as high as before, without a stop."""
    clock.run(0.52)
    plant.push("base_link", force, 0.1)
    clock.run(2.0)
    plant.check.stops().at_most(0)
    x, y, z = (plant.record.signal("position", f"root_joint.{axis}").values for axis in "xyz")
    assert 0.05 < np.hypot(x, y).max() < 0.15
    assert z.min() > 0.195
    assert np.hypot(x, y)[-200:].max() < 0.15
