"""Joints of every type, and robots whose root moves, against Pinocchio and MuJoCo."""

from __future__ import annotations

import mujoco
import numpy as np
import pinocchio as pin
import pytest

from dyn_service.conventions import from_mujoco, to_mujoco
from dyn_service.robot import Robot
from dyn_service.verification import residuals
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.oracle.interpreting import interpreting
from tests.oracle.many_types import ManyTypes
from tests.oracle.test_pinocchio import ROUNDING_OF_A_SOLUTION, TOLERANCE, relative_error
from tests.random_robots import MANY_TYPES, random_urdf

STATES = 10

WALKING = (
    "anymal_b_simple_description/robots/anymal.urdf",
    "go1_description/urdf/go1.urdf",
    "solo_description/robots/solo12.urdf",
    "b1_description/urdf/b1.urdf",
    "g1_description/urdf/g1_29dof_rev_1_0.urdf",
    "talos_data/robots/talos_reduced.urdf",
    "icub_description/robots/icub_reduced.urdf",
)
"""Quadrupeds and humanoids."""


def states(robot: Robot, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    limits = robot.limits
    q = np.array([robot.configuration.random(rng, limits.lower, limits.upper) for _ in range(STATES)])
    return q, *rng.normal(size=(2, STATES, robot.nv))


def assert_agrees(robot: Robot, oracle: ManyTypes, seed: int) -> None:
    q, v, a = states(robot, seed)
    each = range(STATES)
    tau = np.array([oracle.inverse_dynamics(q[k], v[k], a[k]) for k in each])
    M = np.array([oracle.mass_matrix(q[k]) for k in each])
    allowed = max(TOLERANCE, ROUNDING_OF_A_SOLUTION * float(np.linalg.cond(M).max()))
    assert relative_error(robot.inverse_dynamics(q, v, a), tau) < TOLERANCE
    assert relative_error(robot.mass_matrix(q), M) < TOLERANCE
    still = np.zeros_like(v)
    bias = np.array([oracle.inverse_dynamics(q[k], v[k], still[k]) for k in each])
    assert relative_error(robot.bias_forces(q, v), bias) < TOLERANCE
    held = np.array([oracle.inverse_dynamics(q[k], still[k], still[k]) for k in each])
    assert relative_error(robot.gravity_forces(q), held) < TOLERANCE
    accelerations = np.array([oracle.forward_dynamics(q[k], v[k], tau[k]) for k in each])
    for method in ("articulated", "mass_matrix"):
        assert relative_error(robot.forward_dynamics(q, v, tau, method=method), accelerations) < allowed
    poses = robot.link_poses(q)
    for k in each:
        rotation, position = oracle.link_poses(q[k])
        assert np.abs(poses.rotation[k] - rotation).max() < 1e-12
        assert np.abs(poses.position[k] - position).max() < 1e-11
    loads = robot.constraint_forces(q, v, tau, joints=robot.joint_names)
    theirs = [[oracle.joint_wrench(name, q[k], v[k], a[k]) for name in robot.joint_names] for k in each]
    assert relative_error(loads.wrench, np.array(theirs)) < allowed
    for joint, k in zip(robot.configuration.joints, range(len(robot.joint_names)), strict=True):
        along = joint.subspace.T @ loads.constraint[:, k, :, None]
        assert np.abs(along).max(initial=0.0) < 1e-9 * max(1.0, np.abs(loads.wrench[:, k]).max())
    moved = np.array([pin.integrate(oracle.model, oracle.position(q[k]), 0.3 * v[k]) for k in each])
    reached = robot.integrate(q, v, [0.3])
    assert (
        np.abs(_signed(oracle, np.array([oracle.position(x) for x in reached])) - _signed(oracle, moved)).max() < 1e-12
    )
    other = q[::-1]
    apart = [pin.difference(oracle.model, oracle.position(q[k]), oracle.position(other[k])) for k in each]
    assert np.abs(robot.difference(q, other) - np.array(apart)).max() < 1e-9
    worst = {name: float(np.max(r)) for name, r in residuals(robot, q, v, a).items()}
    assert max(worst.values()) < 1e-9, worst


def _signed(oracle: ManyTypes, q: np.ndarray) -> np.ndarray:
    """Quaternions with a positive real part: both signs are one rotation."""
    q = q.copy()
    for joint in oracle.model.joints:
        if joint.shortname() in ("JointModelSpherical", "JointModelFreeFlyer"):
            end = joint.idx_q + joint.nq
            q[:, end - 4 : end] *= np.sign(q[:, end - 1 : end])
    return q


@pytest.mark.parametrize("seed", range(100))
def test_random_trees(seed: int) -> None:
    """Every eighth is compiled, the others interpreted."""
    make = interpreting if seed % 8 else Robot.from_urdf
    robot = make(random_urdf(seed, movable=1 + seed % 7, types=MANY_TYPES))
    assert_agrees(robot, ManyTypes(robot.tree), seed)


@pytest.mark.parametrize("root", ["floating", "planar"])
@pytest.mark.parametrize("name", WALKING)
def test_walking_robots(name: str, root: str) -> None:
    robot = interpreting(path_of(name), root=root)
    assert robot.joint_names[0] == "root_joint"
    assert_agrees(robot, ManyTypes(robot.tree), 0)


@pytest.mark.parametrize("name", WALKING)
def test_a_free_flyer_of_pinocchio(name: str) -> None:
    """Its own reading of the file, under its own root joint."""
    robot = interpreting(path_of(name), root="floating")
    model = pin.buildModelFromUrdf(str(path_of(name)), pin.JointModelFreeFlyer())
    data = model.createData()
    assert tuple(model.names)[1:] == robot.joint_names
    assert (model.nq, model.nv) == (robot.nq, robot.nv)
    for q, v, a in zip(*states(robot, 1), strict=True):
        tau = pin.rnea(model, data, q, v, a)
        assert relative_error(robot.inverse_dynamics(q, v, a)[None], tau[None]) < TOLERANCE


@pytest.mark.parametrize("name", WALKING)
def test_mujoco(name: str) -> None:
    """Its root is a joint of type floating from a link of no weight; its conventions are other ones."""
    text = path_of(name).read_text()
    floating = interpreting(text, root="floating")
    base = floating.link_names[0]
    rooted = '<link name="ground"/><joint name="root_joint" type="floating"><parent link="ground"/>'
    rooted += f'<child link="{base}"/></joint></robot>'
    settings = (
        '<mujoco><compiler fusestatic="false" balanceinertia="false" discardvisual="true" strippath="true"/></mujoco>'
    )
    robot = interpreting(text.replace("</robot>", rooted))
    assert robot.configuration.names == floating.configuration.names
    try:
        model = mujoco.MjModel.from_xml_string(text.replace("</robot>", settings + rooted))
    except ValueError as fault:
        pytest.skip(f"MuJoCo does not read it: {fault}")
    data = mujoco.MjData(model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    order_q = np.concatenate([_entries(model, name, model.jnt_qposadr, 7) for name in robot.joint_names])
    order_v = np.concatenate([_entries(model, name, model.jnt_dofadr, 6) for name in robot.joint_names])
    for q, v, a in zip(*states(floating, 2), strict=True):
        state = to_mujoco(robot.configuration, q, v, a)
        data.qpos[order_q], data.qvel[order_v], data.qacc[order_v] = state.qpos, state.qvel, state.qacc
        mujoco.mj_inverse(model, data)
        tau = from_mujoco(robot.configuration, state.qpos, force=data.qfrc_inverse[order_v]).tau
        ours = floating.inverse_dynamics(q, v, a)
        assert relative_error(ours[None], tau[None]) < TOLERANCE
        assert relative_error(robot.inverse_dynamics(q, v, a)[None], ours[None]) < 1e-13


def _entries(model: mujoco.MjModel, name: str, address: np.ndarray, free: int) -> np.ndarray:
    joint = model.joint(name).id
    size = free if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE else 1
    return np.arange(address[joint], address[joint] + size)


def test_momentum_of_a_free_flying_robot_stays() -> None:
    """10^5 steps of the symplectic integrator; the gate makes a thousandth of them. `python -m tests.oracle.flying`."""
    from tests.oracle.flying import momentum_lost

    lost, length, energy = momentum_lost(URDF / "ur5e.urdf", steps=100)
    assert lost < 1e-13
    assert length < 1e-15
    assert energy < 1e-6
