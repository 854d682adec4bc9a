"""States in ROS's messages and back; those of MuJoCo are held against it in tests/oracle/test_many_types.py."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.conventions import from_mujoco, from_ros, to_mujoco, to_ros
from dyn_service.errors import InvalidArgumentError
from tests.trees import configuration

TYPES = ["floating", "revolute", "planar", "spherical", "prismatic", "continuous"]
NAMES = [f"j{k}" for k in range(len(TYPES))]
AT = configuration(NAMES, TYPES)


def state(seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    free = np.full(AT.nq, np.inf)
    return AT.random(rng, -free, free), *rng.normal(size=(2, AT.nv))


@pytest.mark.parametrize("seed", range(8))
def test_to_ros_and_back(seed: int) -> None:
    q, v, tau = state(seed)
    messages = to_ros(AT, q, v, tau)
    found = from_ros(AT, messages["joint_state"], messages["multi_dof_joint_state"])
    assert np.abs(AT.difference(q, found.q)).max() < 1e-14
    assert np.abs(found.v - v).max() < 1e-14
    single = [k for k, name in enumerate(AT.velocity_names) if "." not in name]
    assert (found.tau[single] == tau[single]).all()


def test_fields_are_those_of_the_messages() -> None:
    q, v, _ = state(1)
    messages = to_ros(AT, q, v)
    assert messages["joint_state"].keys() == {"name", "position", "velocity", "effort"}
    assert messages["joint_state"]["name"] == ["j1", "j4", "j5"]
    several = messages["multi_dof_joint_state"]
    assert several["joint_names"] == ["j0", "j2", "j3"]
    assert several["transforms"][0]["translation"] == dict(zip("xyz", q[:3], strict=True))
    assert several["twist"][0]["linear"] == dict(zip("xyz", v[:3], strict=True))
    rotation = several["transforms"][0]["rotation"]
    assert [rotation[axis] for axis in "xyzw"] == pytest.approx(q[3:7] * np.sign(q[6]), abs=1e-15)


def test_joints_stand_in_any_order() -> None:
    q, v, _ = state(2)
    messages = to_ros(AT, q, v)
    shuffled = {field: values[::-1] for field, values in messages["joint_state"].items()}
    several = {field: values[::-1] for field, values in messages["multi_dof_joint_state"].items()}
    assert np.abs(AT.difference(q, from_ros(AT, shuffled, several).q)).max() < 1e-14
    with pytest.raises(InvalidArgumentError, match="the messages have no joint 'j0'"):
        from_ros(AT, shuffled)


def test_mujoco_has_no_planar_joint() -> None:
    q, v, a = state(3)
    with pytest.raises(InvalidArgumentError, match="joint 'j2' is planar, which MuJoCo has not"):
        to_mujoco(AT, q, v, a)
    with pytest.raises(InvalidArgumentError, match="joint 'j2' is planar"):
        from_mujoco(AT, q)


def test_accelerations_need_velocities() -> None:
    at = configuration(["root_joint"], ["floating"])
    q = at.neutral
    with pytest.raises(InvalidArgumentError, match="need its velocities"):
        to_mujoco(at, q, a=np.ones(6))
    with pytest.raises(InvalidArgumentError, match="need its velocities"):
        from_mujoco(at, [0, 0, 0, 1, 0, 0, 0], qacc=np.ones(6))
