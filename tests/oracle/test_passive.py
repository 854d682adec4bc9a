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
from tests.oracle.example_robots import EACH, FIRST, SUPPORTED, path_of
from tests.oracle.test_many_types import PARTS, mjcf
from tests.oracle.test_pinocchio import ROUNDING_OF_A_SOLUTION, TOLERANCE, relative_errors
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


@pytest.mark.parametrize("name", EACH)
def test_example_robot(name: str) -> None:
    robot = interpreted_robot(restless(free(name), 1, PARTS))
    model = modelled(robot) if robot.nv else None
    if model is None:
        pytest.skip("nothing moves, or MuJoCo does not take its inertias")
    data = mujoco.MjData(model)
    at = np.array([model.joint(joint).dofadr[0] for joint in robot.joint_names])
    own = robot.tree.passive
    for numbers, ours in ((model.dof_damping, own.damping), (model.dof_armature, own.armature)):
        assert np.array_equal(numbers[at], ours)
    assert np.array_equal(model.jnt_stiffness[at], own.stiffness)
    assert np.array_equal(model.qpos_spring[at], own.rest)
    rng = np.random.default_rng(2)
    q = rng.uniform(-3.0, 3.0, (STATES, robot.nq))
    v, a = rng.uniform(-2.0, 2.0, (2, STATES, robot.nv))
    tau, biases, passive, accelerations = (np.empty((STATES, robot.nv)) for _ in range(4))
    matrices, energies, full = np.empty((STATES, robot.nv, robot.nv)), np.empty((STATES, 2)), np.zeros((model.nv,) * 2)
    for k in range(STATES):
        data.qpos[at], data.qvel[at], data.qacc[at] = q[k], v[k], a[k]
        mujoco.mj_inverse(model, data)
        tau[k], passive[k] = data.qfrc_inverse[at], data.qfrc_passive[at]
        biases[k] = data.qfrc_bias[at] - passive[k]
        mujoco.mj_fullM(model, data, full)
        matrices[k] = full[np.ix_(at, at)]
        mujoco.mj_energyPos(model, data)
        mujoco.mj_energyVel(model, data)
        energies[k] = data.energy
        data.qfrc_applied[at] = tau[k]
        mujoco.mj_forward(model, data)
        accelerations[k] = data.qacc[at]
    found = robot.passive_forces(q, v)
    energy = robot.energy(q, v)
    for ours, theirs in (
        (robot.inverse_dynamics(q, v, a), tau),
        (robot.mass_matrix(q), matrices),
        (robot.bias_forces(q, v), biases),
        (-found.damping - found.springs, passive),
        (energy.kinetic[:, None], energies[:, 1:]),
        (robot.computed_torque(q, v, q, v, a, kp=3.0, kd=5.0), tau),
        (robot.body_recursion(q, v, a).tau, tau),
    ):
        assert relative_errors(ours, theirs).max() <= TOLERANCE
    # Potential energies are zero at places of their own.
    assert relative_errors(np.diff(energy.potential)[:, None], np.diff(energies[:, :1], axis=0)).max() <= TOLERANCE
    allowed = np.maximum(TOLERANCE, ROUNDING_OF_A_SOLUTION * np.linalg.cond(matrices))
    for method in ("articulated", "mass_matrix"):
        try:
            solved = robot.forward_dynamics(q, v, tau, method=method)  # type: ignore[arg-type]
        except FailedPreconditionError:
            pytest.fail("armature leaves no joint without inertia")
        assert np.all(relative_errors(solved, accelerations) <= allowed)


@pytest.mark.parametrize(("names", "least"), [(FIRST, 20), pytest.param(SUPPORTED, 40, marks=pytest.mark.wide)])
def test_on_enough_robots(names: Sequence[str], least: int) -> None:
    """How many of them MuJoCo takes: the promise is twenty."""
    robots = (restless(free(name), 1, PARTS) for name in names)
    taken = (robot for robot in robots if robot.nv > 0 and modelled(robot) is not None)
    assert len(list(islice(taken, least))) == least
