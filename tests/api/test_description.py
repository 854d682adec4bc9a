"""A robot's description gives a client the robot's joints, limits, topology and sizes."""

from __future__ import annotations

import json
from itertools import cycle

import msgspec
import numpy as np
import pytest

from dyn_service import QUERIES, Robot
from dyn_service.api.description import RobotDescription
from dyn_service.model import conventions
from dyn_service.service.client.flows import RemoteRobotProperties
from tests.conftest import ROBOTS as FILES
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreting

ROBOTS = {
    **{path.stem: (str(path), root) for path, root in zip(FILES, cycle(("fixed", "planar")), strict=False)},
    **{f"tree {seed}": (random_urdf(seed, types=MANY_TYPES), "floating") for seed in range(6)},
}


@pytest.fixture(params=ROBOTS, scope="module")
def pair(request: pytest.FixtureRequest) -> tuple[Robot, RemoteRobotProperties]:
    """A robot, and a client's view of it from its description as JSON."""
    source, root = ROBOTS[request.param]
    robot = interpreting(source, root=root)  # type: ignore[arg-type]
    document = json.loads(json.dumps(robot.description.to_dict()))
    return robot, RemoteRobotProperties(msgspec.convert(document, RobotDescription))


def test_joints_are_the_same(pair: tuple[Robot, RemoteRobotProperties]) -> None:
    """Planes, axes and pitches too: positions are converted and integrated with the same bits."""
    local, remote = (side.configuration for side in pair)
    assert local.names == remote.names
    for local_joint, remote_joint in zip(local.joints, remote.joints, strict=True):
        assert type(local_joint) is type(remote_joint)
        assert all((x == y).all() for x, y in zip(local_joint.numbers, remote_joint.numbers, strict=True))
    q, v = pair[0].random_configuration(seed=1), np.linspace(-1.0, 1.0, local.nv)
    assert (local.integrate(q, v) == remote.integrate(q, v)).all()
    assert conventions.to_ros(local, q, v) == conventions.to_ros(remote, q, v)


def test_limits_and_names_are_the_same(pair: tuple[Robot, RemoteRobotProperties]) -> None:
    local, remote = pair
    for name in ("lower", "upper", "velocity", "effort"):
        assert (getattr(local.limits, name) == getattr(remote.limits, name)).all()
    for name in ("name", "nq", "nv", "joint_names", "all_joint_names", "link_names", "fingerprint", "description"):
        assert getattr(local, name) == getattr(remote, name)


def test_joints_are_the_topology(pair: tuple[Robot, RemoteRobotProperties]) -> None:
    robot, described = pair
    tree, joints = robot.tree, {joint.child: joint for joint in described.description.joints}
    for k, link in enumerate(tree.links):
        if tree.joints[k]:
            assert joints[link].name == tree.joints[k]
            assert joints[link].parent == (tree.links[tree.parent[k]] if tree.parent[k] >= 0 else None)
            assert joints[link].type == tree.inboard[k].type
        else:
            assert link not in joints
    assert tuple(joint.name for joint in described.description.joints) == robot.all_joint_names


def test_sizes_are_those_of_the_answers(pair: tuple[Robot, RemoteRobotProperties]) -> None:
    """Every symbol of the table is the name of a size."""
    robot, described = pair
    sizes = described.description.sizes
    assert {
        s for row in QUERIES.values() for spec in row.outputs.values() for s in spec.shape if isinstance(s, str)
    } <= {*sizes.__struct_fields__}
    with pytest.raises(KeyError):
        sizes["nothing"]
    assert robot.link_poses(robot.neutral()).position.shape == (sizes["nl"], 3)
    assert len(robot.all_joint_names) == sizes["nj"]
    assert len(robot.tree.moving_joints) == sizes["nm"]
    assert robot.tree.nr == sizes["nr"]
