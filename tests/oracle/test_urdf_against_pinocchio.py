"""Every real robot has the poses and inertias that Pinocchio computes."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
import pytest

from dyn_service.errors import UrdfError
from dyn_service.model.description import Description, Inertial
from dyn_service.parsing.urdf.reader import read

pin = pytest.importorskip("pinocchio")

SHARE = importlib.metadata.distribution("example-robot-data").locate_file(
    "cmeel.prefix/share/example-robot-data/robots"
)
FILES = sorted(Path(str(SHARE)).rglob("*.urdf"))
# Ours takes rotation entries below 1e-12 for the zeros that were meant; a few joints add this up over metres.
ROUNDING = 5e-12


def poses(robot: Description) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """R_WL and p_WL of every link at q = 0, by walking the joints."""
    inboard = {joint.child: joint for joint in robot.joints}
    poses_of_links: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def pose(link: str) -> tuple[np.ndarray, np.ndarray]:
        if link not in poses_of_links:
            joint = inboard.get(link)
            if joint is None:
                poses_of_links[link] = np.eye(3), np.zeros(3)
            else:
                rotation, origin = pose(joint.parent)
                poses_of_links[link] = rotation @ joint.rotation, origin + rotation @ joint.xyz
        return poses_of_links[link]

    for link in robot.links:
        pose(link.name)
    return poses_of_links


def spatial(inertial: Inertial, rotation: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """(6, 6) inertia of a link at R_WL, p_WL, in world axes; Pinocchio's order: force, then torque.

    By hand, since Pinocchio's own class refuses inertias that no body can have, and some robots have them.
    """
    x, y, z = origin + rotation @ inertial.com
    skew = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    turn = rotation @ inertial.rotation
    I_origin = turn @ inertial.inertia @ turn.T - inertial.mass * skew @ skew
    return np.block([[inertial.mass * np.eye(3), -inertial.mass * skew], [inertial.mass * skew, I_origin]])


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_placements_and_inertias(path: Path) -> None:
    try:
        robot = read(path)
    except UrdfError:
        pytest.skip("refused; tests/parsing/urdf/test_reading.py says which and why")
    model = pin.buildModelFromUrdf(str(path))
    data = model.createData()
    pin.framesForwardKinematics(model, data, pin.neutral(model))
    movable = [joint for joint in robot.joints if joint.type != "fixed"]
    assert sorted(joint.name for joint in movable) == sorted(list(model.names)[1:])
    inertias = [np.zeros((6, 6)) for _ in model.joints]
    link_poses = poses(robot)
    for link in robot.links:
        rotation, origin = link_poses[link.name]
        frame = model.frames[model.getFrameId(link.name, pin.FrameType.BODY)]
        pinocchio_pose = data.oMi[frame.parentJoint] * frame.placement
        assert np.abs(pinocchio_pose.rotation - rotation).max() < ROUNDING, f"rotation of link '{link.name}'"
        assert np.abs(pinocchio_pose.translation - origin).max() < ROUNDING, f"origin of link '{link.name}'"
        if link.inertial is not None:
            inertias[frame.parentJoint] += spatial(link.inertial, rotation, origin)
    # Per body of Pinocchio, seen from the world: links behind fixed joints have been added there.
    for name, ours, pose, inertia in zip(model.names, inertias, data.oMi, model.inertias, strict=True):
        expected = pose.act(inertia).matrix()
        limit = 10 * ROUNDING * max(1.0, np.abs(expected).max())
        assert np.abs(ours - expected).max() <= limit, f"inertia of the links behind joint '{name}'"
    for joint in movable:
        limit = joint.limit
        if joint.type in ("revolute", "prismatic") and limit and limit.lower is not None and limit.upper is not None:
            q_index = model.joints[model.getJointId(joint.name)].idx_q
            assert (model.lowerPositionLimit[q_index], model.upperPositionLimit[q_index]) == (limit.lower, limit.upper)
