"""States in ROS's messages and back; those of MuJoCo are held against it in tests/oracle/test_many_types.py."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.model.conventions import from_mujoco, from_ros, to_mujoco, to_ros
from tests.phrases import naming, unnamed
from tests.random_robots import MANY_TYPES
from tests.trees import configuration

TYPES = ["floating", "revolute", "planar", "spherical", "prismatic", "continuous"]
NAMES = [f"j{k}" for k in range(len(TYPES))]
AT = configuration(NAMES, TYPES)


EVERY_TYPE = configuration(MANY_TYPES, MANY_TYPES)


def state(seed: int, joints: Configuration = AT) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    free = np.full(joints.nq, np.inf)
    return joints.random(rng, -free, free), *rng.normal(size=(2, joints.nv))


@pytest.mark.parametrize("seed", range(8))
def test_to_ros_and_back(seed: int) -> None:
    joints = EVERY_TYPE
    q, v, tau = state(seed, joints)
    messages = to_ros(joints, q, v, tau)
    state_back = from_ros(joints, messages["joint_state"], messages["multi_dof_joint_state"])
    assert np.abs(joints.difference(q, state_back.q)).max() < 1e-14
    assert np.abs(state_back.v - v).max() < 1e-14
    single = [k for k, name in enumerate(joints.velocity_names) if "." not in name]
    assert (state_back.tau[single] == tau[single]).all()


def test_fields_are_those_of_the_messages() -> None:
    q, v, _ = state(1)
    messages = to_ros(AT, q, v)
    assert messages["joint_state"].keys() == {"name", "position", "velocity", "effort"}
    assert messages["joint_state"]["name"] == ["j1", "j4", "j5"]
    multi_dof = messages["multi_dof_joint_state"]
    assert multi_dof["joint_names"] == ["j0", "j2", "j3"]
    assert multi_dof["transforms"][0]["translation"] == dict(zip("xyz", q[:3], strict=True))
    assert multi_dof["twist"][0]["linear"] == dict(zip("xyz", v[:3], strict=True))
    rotation = multi_dof["transforms"][0]["rotation"]
    assert [rotation[axis] for axis in "xyzw"] == pytest.approx(q[3:7] * np.sign(q[6]), abs=1e-15)


def test_joints_stand_in_any_order() -> None:
    q, v, _ = state(2)
    messages = to_ros(AT, q, v)
    shuffled = {field: values[::-1] for field, values in messages["joint_state"].items()}
    multi_dof = {field: values[::-1] for field, values in messages["multi_dof_joint_state"].items()}
    assert np.abs(AT.difference(q, from_ros(AT, shuffled, multi_dof).q)).max() < 1e-14
    with pytest.raises(InvalidArgumentError, match="the messages have no joint 'j0'"):
        from_ros(AT, shuffled)


@pytest.mark.parametrize("seed", range(20))
def test_rotations_have_a_real_part_that_is_not_negative(seed: int) -> None:
    """Of the two quaternions of one rotation, whichever the state has."""
    joints = configuration(["ball"], ["spherical"])
    q = joints.random(np.random.default_rng(seed), np.zeros(4), np.zeros(4))
    for sign in (1.0, -1.0):
        (transform,) = to_ros(joints, sign * q, np.zeros(3))["multi_dof_joint_state"]["transforms"]
        quaternion = [transform["rotation"][axis] for axis in "xyzw"]
        np.testing.assert_allclose(quaternion, q * np.sign(q[3]), rtol=0, atol=1e-15)


def test_fields_may_be_arrays_of_any_kind() -> None:
    q, v, tau = state(5)
    messages = to_ros(AT, q, v, tau)
    joint_state = messages["joint_state"]
    for kind in (np.array, tuple, lambda values: array("d", values)):
        fields = {field: kind(joint_state[field]) for field in ("position", "velocity", "effort")}
        state_back = from_ros(AT, {**joint_state, **fields}, messages["multi_dof_joint_state"])
        for vector, other in zip(state_back, from_ros(AT, joint_state, messages["multi_dof_joint_state"]), strict=True):
            np.testing.assert_array_equal(vector, other)
    state_back = from_ros(AT, {**joint_state, "name": np.array(joint_state["name"])}, messages["multi_dof_joint_state"])
    assert np.abs(AT.difference(q, state_back.q)).max() < 1e-14


def test_what_the_messages_do_not_give_is_none() -> None:
    q, v, tau = state(6)
    messages = to_ros(AT, q, v, tau)
    single, multi_dof = messages["joint_state"], messages["multi_dof_joint_state"]
    assert from_ros(AT, {**single, "effort": []}, multi_dof).tau is None
    assert from_ros(AT, {**single, "velocity": np.zeros(0)}, multi_dof).v is None
    assert from_ros(AT, single, {**multi_dof, "twist": []}).v is None
    assert from_ros(AT, single, {name: multi_dof[name] for name in ("joint_names", "transforms")}).v is None
    assert from_ros(AT, single, multi_dof).a is None


@pytest.mark.parametrize("count", [1, 3])
def test_entries_of_nan_are_not_given(count: int) -> None:
    """A joint without an encoder has velocity NaN: neither NaN nor 0 may be computed with."""
    q, v, tau = state(6)
    messages = to_ros(AT, q, v, tau)
    single, multi = messages["joint_state"], messages["multi_dof_joint_state"]
    nans = [math.nan] * count
    without_v = from_ros(AT, {**single, "velocity": nans + single["velocity"][count:]}, multi)
    assert without_v.v is None
    assert without_v.tau is not None
    without_tau = from_ros(AT, {**single, "effort": nans + single["effort"][count:]}, multi)
    assert without_tau.tau is None
    assert without_tau.v is not None
    twists = [{"angular": dict.fromkeys("xyz", math.nan), "linear": dict.fromkeys("xyz", 0.0)}, *multi["twist"][1:]]
    assert from_ros(AT, single, {**multi, "twist": twists}).v is None
    with_gripper = {**single, "name": [*single["name"], "gripper"]}
    with_gripper |= {field: [*single[field], math.nan] for field in ("position", "velocity", "effort")}
    np.testing.assert_array_equal(from_ros(AT, with_gripper, multi).v, from_ros(AT, single, multi).v)


MISSING: list[tuple[str, Any, str, list[str]]] = [
    ("position", [0.1, 0.2], "position", ["position", "3", "[0.1", "0.2"]),
    ("position", [], "position", ["'j1'"]),
    ("position", None, "position", ["'j1'"]),
    ("position", [math.nan, 0.1, 0.2], "position", ["'j1'"]),
    ("position", [math.inf, 0.1, 0.2], "position", ["'j1'", "inf"]),
    ("velocity", [-math.inf, 0.1, 0.2], "velocity", ["'j1'", "-inf"]),
    ("position", ["a", "b", "c"], "position", ["position", "3"]),
    ("velocity", [0.1], "velocity", ["velocity", "3", "[0.1]"]),
    ("effort", np.zeros(4), "effort", ["effort", "3", "(4,)"]),
    ("transforms", [], "transforms", ["'j0'"]),
    ("transforms", [{}], "transforms", ["transforms", "3", "joint_names", "1"]),
    ("transforms", [{}] * 3, "transforms[0].translation", ["transforms[0].translation"]),
    ("twist", [{}] * 3, "twist[0].angular", ["twist[0].angular", "{}"]),
    ("twist", [{}] * 4, "twist", ["twist", "3", "joint_names", "4"]),
]


@pytest.mark.parametrize(("field", "value", "path", "values"), MISSING, ids=range(len(MISSING)))
def test_messages_that_are_none_are_refused(field: str, value: Any, path: str, values: list[str]) -> None:
    messages = to_ros(AT, *state(7)[:2])
    message = messages["joint_state" if field in messages["joint_state"] else "multi_dof_joint_state"]
    message[field] = value
    with pytest.raises(InvalidArgumentError) as excinfo:
        from_ros(AT, messages["joint_state"], messages["multi_dof_joint_state"])
    assert excinfo.value.path == path
    assert unnamed(excinfo.value, *values) == []


@pytest.mark.parametrize("length", [0.0, 0.5, 1.0 + 1e-5, np.nan])
@pytest.mark.parametrize("k", range(3))
def test_a_quaternion_of_a_message_has_unit_length(k: int, length: float) -> None:
    messages = to_ros(AT, *state(8)[:2])
    multi_dof = messages["multi_dof_joint_state"]
    multi_dof["transforms"][k]["rotation"] = {"x": 0.0, "y": 0.0, "z": 0.0, "w": length}
    name = multi_dof["joint_names"][k]
    with pytest.raises(InvalidArgumentError, match=naming(f"'{name}'", "quaternion")):
        from_ros(AT, messages["joint_state"], multi_dof)


def test_a_state_for_messages_is_one() -> None:
    q, v, tau = state(9)
    for arguments, path in (((q[None], v), "q"), ((q, v[1:]), "v"), ((q, v, tau[:-1]), "tau"), ((q, "fast"), "v")):
        with pytest.raises(InvalidArgumentError, match=rf"^{path} must be \(\d+,\) numbers, found") as excinfo:
            to_ros(AT, *arguments)
        assert excinfo.value.path == path


FREE = configuration(["root_joint", "hinge", "ball"], ["floating", "revolute", "spherical"])


def free_state(seed: int, *lead: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    reach = np.full(FREE.nq, np.inf)
    q = np.array([FREE.random(rng, -reach, reach) for _ in range(int(np.prod(lead)))]).reshape(*lead, FREE.nq)
    return q, *rng.normal(size=(3, *lead, FREE.nv))


def test_accelerations_are_those_of_the_velocities_in_world_axes() -> None:
    """At constant body velocities: MuJoCo's linear velocity turns with the body, by what its differences say."""
    q, v, _, _ = free_state(1)
    h = 1e-4
    at_plus_h, at_minus_h = (to_mujoco(FREE, FREE.integrate(q, v, t), v).qvel for t in (h, -h))
    state = to_mujoco(FREE, q, v, np.zeros(FREE.nv))
    # Central differences of numbers of some 10 m/s^2: h^2 / 6 of a third derivative of some 100, and roundings over h.
    np.testing.assert_allclose(state.qacc, (at_plus_h - at_minus_h) / (2 * h), rtol=0, atol=1e-5)
    assert np.abs(state.qacc[:3]).max() > 0.1
    back = from_mujoco(FREE, state.qpos, state.qvel, state.qacc)
    np.testing.assert_allclose(back.a, 0.0, rtol=0, atol=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_to_mujoco_and_back(seed: int) -> None:
    arrays = free_state(seed, 4)
    for vector, other in zip(from_mujoco(FREE, *to_mujoco(FREE, *arrays)), arrays, strict=True):
        np.testing.assert_allclose(vector, other, rtol=0, atol=1e-14)


def test_leading_axes_broadcast() -> None:
    """Each member as if alone, whichever argument has the axes; what comes back has all of them."""
    q, v, a, tau = free_state(2, 3)
    for function in (to_mujoco, from_mujoco):
        for batched in range(4):
            arguments = [x if k == batched else x[0] for k, x in enumerate((q, v, a, tau))]
            batch = function(FREE, *arguments)
            for member in range(3):
                single_state = function(FREE, *(x[member] if k == batched else x for k, x in enumerate(arguments)))
                for rows, single in zip(batch, single_state, strict=True):
                    assert rows.shape[:-1] == (3,)
                    np.testing.assert_allclose(rows[member], single, rtol=0, atol=1e-15)
    assert to_mujoco(FREE, q[0]).qvel is None


def test_arguments_of_another_shape_are_refused_by_name() -> None:
    q, v, a, tau = free_state(3)
    our_names, mujoco_names = ("q", "v", "a", "tau"), ("qpos", "qvel", "qacc", "force")
    for function, names in ((to_mujoco, our_names), (from_mujoco, mujoco_names)):
        for k, name in enumerate(names):
            for wrong in (np.zeros(3), 0.0, "fast"):
                arguments = [wrong if k == j else x for j, x in enumerate((q, v, a, tau))]
                with pytest.raises(InvalidArgumentError, match=rf"^{name} must be \(..., 1[012]\) numbers") as excinfo:
                    function(FREE, *arguments)
                assert excinfo.value.path == name
        with pytest.raises(InvalidArgumentError, match=naming(f"{names[0]} (2,)", f"{names[1]} (3,)")):
            function(FREE, np.tile(q, (2, 1)), np.tile(v, (3, 1)))


def test_of_a_planar_joint_mujoco_has_what_moves_in_the_joints_axes() -> None:
    """By hand, a quarter turn: what is ahead of the body is y of the joint; axes that turn add omega x v."""
    joints = configuration(["base"], ["planar"])
    q, v, a, tau = [3.0, 4.0, np.pi / 2], [2.0, 1.0, 0.5], [10.0, 20.0, 30.0], [5.0, 6.0, 7.0]
    mujoco_state = to_mujoco(joints, q, v, a, tau)
    np.testing.assert_array_equal(mujoco_state.qpos, q)
    np.testing.assert_allclose(mujoco_state.qvel, [-1.0, 2.0, 0.5], atol=1e-15)
    np.testing.assert_allclose(mujoco_state.force, [-6.0, 5.0, 7.0], atol=1e-15)
    # in body axes a + omega x v = (10 - 0.5, 20 + 1)
    np.testing.assert_allclose(mujoco_state.qacc, [-21.0, 9.5, 30.0], atol=1e-14)
    for vector, expected in zip(from_mujoco(joints, *mujoco_state), (q, v, a, tau), strict=True):
        np.testing.assert_allclose(vector, expected, atol=1e-14)
    with pytest.raises(InvalidArgumentError, match=naming("accelerations", "planar", "velocities")):
        to_mujoco(joints, q, a=a)


def test_mujoco_has_no_screw() -> None:
    joints = configuration(["thread"], ["screw"])
    with pytest.raises(InvalidArgumentError, match="joint 'thread' is screw"):
        to_mujoco(joints, joints.neutral)


def test_accelerations_need_velocities() -> None:
    joints = configuration(["root_joint"], ["floating"])
    q = joints.neutral
    with pytest.raises(InvalidArgumentError, match="need its velocities"):
        to_mujoco(joints, q, a=np.ones(6))
    with pytest.raises(InvalidArgumentError, match="need its velocities"):
        from_mujoco(joints, [0, 0, 0, 1, 0, 0, 0], qacc=np.ones(6))
