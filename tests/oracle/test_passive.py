"""What joints do by themselves against MuJoCo, which has damping, armature and springs of its own.

Its friction is Coulomb's without a width, found by its solver; ours, smoothed, is held by identities (tests/theory).
Random numbers are added to those of the files, so that every joint has passive efforts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import mujoco
import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.description import Description
from dyn_service.model.mimic import without_mimics
from dyn_service.parsing.urdf.reader import read
from tests.comparing import assert_close
from tests.oracle.example_robots import ALL_CASES, ONE_PER_FAMILY, SUPPORTED, path_of
from tests.oracle.test_many_types import PARTS, mjcf
from tests.oracle.test_pinocchio import ROUNDING_OF_A_SOLUTION, TOLERANCE
from tests.passive import restless
from tests.terms.interpreting import interpreted_robot

STATES = 10


def free(name: str) -> Description:
    """Each joint by itself; those that follow others are in test_mimic.py."""
    return without_mimics(read(path_of(name)))


def modelled(robot: Robot) -> mujoco.MjModel | None:
    """The robot in MuJoCo; None where a body has no inertia, or one that no body can have, which MuJoCo refuses."""
    try:
        return mujoco.MjModel.from_xml_string(mjcf(robot.bodies.tree))
    except ValueError as fault:
        if "inertia" not in str(fault):
            raise
        return None


@pytest.mark.parametrize("name", ALL_CASES)
def test_example_robot(name: str) -> None:
    robot = interpreted_robot(restless(free(name), 1, PARTS))
    model = modelled(robot) if robot.nv else None
    if model is None:
        pytest.skip("nothing moves, or MuJoCo does not take its inertias")
    data = mujoco.MjData(model)
    dofs = np.array([model.joint(joint).dofadr[0] for joint in robot.joint_names])
    passive_parameters = robot.tree.passive
    for numbers, ours in (
        (model.dof_damping, passive_parameters.damping),
        (model.dof_armature, passive_parameters.armature),
    ):
        assert np.array_equal(numbers[dofs], ours)
    assert np.array_equal(model.jnt_stiffness[dofs], passive_parameters.stiffness)
    assert np.array_equal(model.qpos_spring[dofs], passive_parameters.rest)
    rng = np.random.default_rng(2)
    q = rng.uniform(-3.0, 3.0, (STATES, robot.nq))
    v, a = rng.uniform(-2.0, 2.0, (2, STATES, robot.nv))
    tau, biases, passive, accelerations = (np.empty((STATES, robot.nv)) for _ in range(4))
    matrices, energies, full = np.empty((STATES, robot.nv, robot.nv)), np.empty((STATES, 2)), np.zeros((model.nv,) * 2)
    for k in range(STATES):
        data.qpos[dofs], data.qvel[dofs], data.qacc[dofs] = q[k], v[k], a[k]
        mujoco.mj_inverse(model, data)
        tau[k], passive[k] = data.qfrc_inverse[dofs], data.qfrc_passive[dofs]
        biases[k] = data.qfrc_bias[dofs] - passive[k]
        mujoco.mj_fullM(model, data, full)
        matrices[k] = full[np.ix_(dofs, dofs)]
        mujoco.mj_energyPos(model, data)
        mujoco.mj_energyVel(model, data)
        energies[k] = data.energy
        data.qfrc_applied[dofs] = tau[k]
        mujoco.mj_forward(model, data)
        accelerations[k] = data.qacc[dofs]
    efforts = robot.passive_forces(q, v)
    energy = robot.energy(q, v)
    for term, ours, mujoco_answer in (
        ("inverse_dynamics", robot.inverse_dynamics(q, v, a), tau),
        ("mass_matrix", robot.mass_matrix(q), matrices),
        ("bias_forces", robot.bias_forces(q, v), biases),
        ("passive_forces.damping, with springs", -efforts.damping - efforts.springs, passive),
        ("energy.kinetic", energy.kinetic, energies[:, 1]),
        ("computed_torque", robot.computed_torque(q, v, q, v, a, kp=3.0, kd=5.0), tau),
        ("body_recursion.tau", robot.body_recursion(q, v, a).tau, tau),
    ):
        assert_close(term, ours, mujoco_answer, TOLERANCE, robot, q, v, a)
    # Potential energies are zero at places of their own.
    potential, expected = np.diff(energy.potential)[:, None], np.diff(energies[:, :1], axis=0)
    assert_close("energy.potential, differences", potential, expected, TOLERANCE, robot, q[1:], v[1:], a[1:])
    tolerance_of_solution = np.maximum(TOLERANCE, ROUNDING_OF_A_SOLUTION * np.linalg.cond(matrices))
    for method in ("articulated", "mass_matrix"):
        try:
            solved = robot.forward_dynamics(q, v, tau, method=method)  # type: ignore[arg-type]
        except FailedPreconditionError:
            pytest.fail("armature leaves no joint without inertia")
        assert_close(f"forward_dynamics, {method}", solved, accelerations, tolerance_of_solution, robot, q, v, a)


@pytest.mark.parametrize(
    ("names", "min_count"), [(ONE_PER_FAMILY, 20), pytest.param(SUPPORTED, 40, marks=pytest.mark.wide)]
)
def test_on_enough_robots(names: Sequence[str], min_count: int) -> None:
    """How many of them MuJoCo takes: the promise is twenty."""
    robots = (restless(free(name), 1, PARTS) for name in names)
    accepted = (robot for robot in robots if robot.nv > 0 and modelled(robot) is not None)
    assert len(list(islice(accepted, min_count))) == min_count
