"""Joints of every type, and robots whose root moves, against Pinocchio and MuJoCo."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pinocchio as pin
import pytest

from dyn_service.api.spec import PassivePart
from dyn_service.engine.robot import Robot
from dyn_service.formulations.verification import residuals
from dyn_service.model.conventions import from_mujoco, to_mujoco
from dyn_service.model.joints import joint_of
from dyn_service.model.mimic import without_mimics
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read
from tests.comparing import assert_close
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.oracle.many_types import MODELS, ManyTypes
from tests.oracle.test_pinocchio import ROUNDING_OF_A_SOLUTION, TOLERANCE
from tests.passive import restless
from tests.random_robots import MANY_TYPES, random_urdf
from tests.tables import assert_complete
from tests.terms.interpreting import interpreted_robot, interpreting
from tests.wide import one_in, wide

TREES = 100
COMPILED = (72,)
STATES = 10

WALKING = (
    "anymal_b_simple_description/robots/anymal.urdf",
    "go1_description/urdf/go1.urdf",
    "solo_description/robots/solo12.urdf",
    "b1_description/urdf/b1.urdf",
    "g1_description/urdf/g1_29dof_rev_1_0.urdf",
    "talos_data/robots/talos_reduced.urdf",
    "hyq_description/robots/hyq_no_sensors.urdf",
)
"""Quadrupeds and humanoids."""


def states(robot: Robot, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    limits = robot.limits
    q = np.array([robot.configuration.random(rng, limits.lower, limits.upper) for _ in range(STATES)])
    return q, *rng.normal(size=(2, STATES, robot.nv))


def assert_agrees(robot: Robot, oracle: ManyTypes, seed: int) -> None:
    q, v, a = states(robot, seed)
    state_indices = range(STATES)
    tau = np.array([oracle.inverse_dynamics(q[k], v[k], a[k]) for k in state_indices])
    M = np.array([oracle.mass_matrix(q[k]) for k in state_indices])
    tolerance_of_solution = max(TOLERANCE, ROUNDING_OF_A_SOLUTION * float(np.linalg.cond(M).max()))
    state = (robot, q, v, a)
    assert_close("inverse_dynamics", robot.inverse_dynamics(q, v, a), tau, TOLERANCE, *state)
    assert_close("mass_matrix", robot.mass_matrix(q), M, TOLERANCE, *state)
    zero_rates = np.zeros_like(v)
    bias = np.array([oracle.inverse_dynamics(q[k], v[k], zero_rates[k]) for k in state_indices])
    assert_close("bias_forces", robot.bias_forces(q, v), bias, TOLERANCE, *state)
    gravity_efforts = np.array([oracle.inverse_dynamics(q[k], zero_rates[k], zero_rates[k]) for k in state_indices])
    assert_close("gravity_forces", robot.gravity_forces(q), gravity_efforts, TOLERANCE, *state)
    accelerations = np.array([oracle.forward_dynamics(q[k], v[k], tau[k]) for k in state_indices])
    for method in ("articulated", "mass_matrix"):
        solved = robot.forward_dynamics(q, v, tau, method=method)
        assert_close(f"forward_dynamics, {method}", solved, accelerations, tolerance_of_solution, *state)
    poses = robot.link_poses(q)
    for k in state_indices:
        rotation, position = oracle.link_poses(q[k])
        # Absolute: rotations have entries of size 1, positions some metres.
        assert np.abs(poses.rotation[k] - rotation).max() < 1e-12, f"link_poses.rotation, state {k}"
        assert np.abs(poses.position[k] - position).max() < 1e-11, f"link_poses.position, state {k}"
    loads = robot.constraint_forces(q, v, tau, joints=robot.joint_names)
    wrenches = [[oracle.joint_wrench(name, q[k], v[k], a[k]) for name in robot.joint_names] for k in state_indices]
    assert_close("constraint_forces.wrench", loads.wrench, wrenches, tolerance_of_solution, *state)
    for joint, k in zip(robot.configuration.joints, range(len(robot.joint_names)), strict=True):
        axial = joint.subspace.T @ loads.constraint[:, k, :, None]
        size = max(1.0, np.abs(loads.wrench[:, k]).max())
        assert np.abs(axial).max(initial=0.0) < 1e-9 * size, f"constraint of joint '{robot.joint_names[k]}' along it"
    q_moved = np.array([pin.integrate(oracle.model, oracle.position(q[k]), 0.3 * v[k]) for k in state_indices])
    q_integrated = robot.integrate(q, v, [0.3])
    integrated = np.array([oracle.position(x) for x in q_integrated])
    integrate_error = np.abs(_signed(oracle, integrated) - _signed(oracle, q_moved)).max()
    assert integrate_error < 1e-12, f"integrate of '{robot.name}'"
    other = q[::-1]
    differences = [
        pin.difference(oracle.model, oracle.position(q[k]), oracle.position(other[k])) for k in state_indices
    ]
    # The logarithm of a turn near pi loses half of the digits.
    assert np.abs(robot.difference(q, other) - np.array(differences)).max() < 1e-9, f"difference of '{robot.name}'"
    worst = {name: float(np.max(r)) for name, r in residuals(robot, q, v, a).items()}
    # The bound of `dyn check`.
    assert max(worst.values()) < 1e-9, worst


def _signed(oracle: ManyTypes, q: np.ndarray) -> np.ndarray:
    """Quaternions with a positive real part: both signs are one rotation."""
    q = q.copy()
    for joint in oracle.model.joints:
        if joint.shortname() in ("JointModelSpherical", "JointModelFreeFlyer"):
            end = joint.idx_q + joint.nq
            q[:, end - 4 : end] *= np.sign(q[:, end - 1 : end])
    return q


def many_types_urdf(seed: int) -> str:
    return random_urdf(seed, movable=1 + seed % 7, types=MANY_TYPES)


def test_pinocchio_has_every_type() -> None:
    instruction = "add its joint in Pinocchio, as a function of ours"
    assert_complete(MODELS, MANY_TYPES, "MODELS in tests/oracle/many_types.py", instruction)


@pytest.mark.parametrize("seed", wide(range(0, TREES, 2), one_in(24)))
def test_random_trees(seed: int) -> None:
    """One is compiled, the others interpreted; `python -m tests.oracle` compiles all hundred."""
    make = Robot.from_urdf if seed in COMPILED else interpreting
    robot = make(many_types_urdf(seed))
    assert_agrees(robot, ManyTypes(robot.tree), seed)


FLYING = [*((name, "floating") for name in WALKING), (WALKING[0], "planar")]


@pytest.mark.parametrize(("name", "root"), wide(FLYING, FLYING[2:3].__contains__))
def test_walking_robots(name: str, root: str) -> None:
    robot = interpreting(path_of(name), root=root, mimic=False).without_passive
    assert robot.joint_names[0] == "root_joint"
    assert_agrees(robot, ManyTypes(robot.tree), 0)


@pytest.mark.parametrize("name", WALKING)
def test_a_free_flyer_of_pinocchio(name: str) -> None:
    """Its own reading of the file, under its own root joint."""
    robot = interpreting(path_of(name), root="floating", mimic=False).without_passive
    model = pin.buildModelFromUrdf(str(path_of(name)), pin.JointModelFreeFlyer())
    data = model.createData()
    assert tuple(model.names)[1:] == robot.joint_names
    assert (model.nq, model.nv) == (robot.nq, robot.nv)
    for q, v, a in zip(*states(robot, 1), strict=True):
        tau = pin.rnea(model, data, q, v, a)
        assert_close("inverse_dynamics", robot.inverse_dynamics(q, v, a), tau, TOLERANCE, robot, q, v, a)


PARTS: tuple[PassivePart, ...] = ("damping", "armature", "springs")
"""What joints do by themselves in MuJoCo as here; its friction has no width."""


def mjcf(tree: Tree) -> str:
    """A tree of moving bodies as MuJoCo writes it, with all that its joints do by themselves but friction; joints with
    several degrees of freedom do the same in each of them.
    """
    passive = tree.passive

    def numbers(x: Any) -> str:
        return " ".join(repr(float(n)) for n in np.ravel(x))

    def element(i: int) -> str:
        body, joint, I = tree.inertia[i], tree.inboard[i], tree.inertia[i].about_com
        k = tree.in_v[i].start
        does = f'damping="{float(passive.damping[k])!r}" armature="{float(passive.armature[k])!r}"'
        if joint.nv == 1:
            does += f' stiffness="{float(passive.stiffness[k])!r}" springref="{float(passive.rest[k])!r}"'
        axes = [column[:3] if column[:3].any() else column[3:] for column in joint.subspace.T]
        elements = zip(joint.mujoco_names(tree.joints[i]), joint.mujoco_types, axes, strict=False)
        joints = "".join(
            f'<joint name="{name}" type="{kind}" axis="{numbers(axis)}" {does}/>' for name, kind, axis in elements
        )
        child_elements = "".join(element(k) for k in tree.children[i])
        quaternion = pin.Quaternion(tree.rotation[i]).coeffs()
        six = numbers([I[0, 0], I[1, 1], I[2, 2], I[0, 1], I[0, 2], I[1, 2]])
        return (
            f'<body pos="{numbers(tree.origin[i])}" quat="{numbers(np.roll(quaternion, 1))}">'
            f"{joints}"
            f'<inertial pos="{numbers(body.com)}" mass="{body.mass!r}" fullinertia="{six}"/>{child_elements}</body>'
        )

    roots = "".join(element(i) for i, parent in enumerate(tree.parent) if parent < 0)
    return f"<mujoco><compiler angle='radian'/><worldbody>{roots}</worldbody></mujoco>"


def assert_agrees_with_mujoco(robot: Robot, seed: int) -> None:
    model = mujoco.MjModel.from_xml_string(mjcf(robot.bodies.tree))
    data, configuration = mujoco.MjData(model), robot.configuration
    joints = list(zip(configuration.names, configuration.joints, strict=True))
    # The entries of one of our joints are next to each other in MuJoCo too, also if it is several joints there.
    first = [model.joint(joint.mujoco_names(name)[0]).id for name, joint in joints]
    order_q = np.concatenate([model.jnt_qposadr[k] + np.arange(j.nq) for k, (_, j) in zip(first, joints, strict=True)])
    order_v = np.concatenate([model.jnt_dofadr[k] + np.arange(j.nv) for k, (_, j) in zip(first, joints, strict=True)])
    for q, v, a in zip(*states(robot, seed), strict=True):
        state = to_mujoco(configuration, q, v, a)
        data.qpos[order_q], data.qvel[order_v], data.qacc[order_v] = state.qpos, state.qvel, state.qacc
        mujoco.mj_inverse(model, data)
        tau = from_mujoco(configuration, state.qpos, force=data.qfrc_inverse[order_v]).tau
        assert_close("inverse_dynamics", robot.inverse_dynamics(q, v, a), tau, TOLERANCE, robot, q, v, a)
        converted = from_mujoco(configuration, state.qpos, state.qvel, state.qacc)[:3]
        for name, ours, vector in zip("qva", converted, (q, v, a), strict=True):
            assert np.abs(ours - vector).max() < 1e-12, f"from_mujoco of to_mujoco, {name} of '{robot.name}'"


@pytest.mark.parametrize("name", WALKING)
def test_walking_robots_in_mujoco(name: str) -> None:
    """Their joints damped, sprung and driven through gears, the root's alone free."""
    assert_agrees_with_mujoco(
        interpreted_robot(restless(without_mimics(read(path_of(name))), 2, PARTS, root="floating")), 2
    )


@pytest.mark.parametrize("seed", wide(range(0, 100, 5), one_in(20)))
def test_random_trees_in_mujoco(seed: int) -> None:
    """Every type that MuJoCo has; a floating joint must be its tree's first, so the root's."""
    kinds = [kind for kind in MANY_TYPES if joint_of(kind).mujoco and not joint_of(kind).free]
    robot = restless(random_urdf(seed, types=kinds), seed, PARTS, root="floating")
    assert_agrees_with_mujoco(interpreted_robot(robot), seed)


def test_momentum_of_a_free_flying_robot_stays() -> None:
    """10^5 steps of the symplectic integrator; the gate makes a thousandth of them. `python -m qa.soak.flying`."""
    from qa.soak.flying import momentum_lost

    momentum_error, length, energy = momentum_lost(URDF / "ur5e.urdf", steps=100)
    # Momentum is kept by the method: what is left is the rounding of a hundred steps; energy only oscillates.
    assert momentum_error < 1e-13
    assert length < 1e-15
    assert energy < 1e-6
