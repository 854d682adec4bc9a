"""Every query against Pinocchio: random trees, our robots, and every robot of example-robot-data that we support.

Here the kernels of most of them are interpreted, and those of some compiled; `python -m tests.oracle` compiles all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dyn_service import errors
from dyn_service.engine.robot import Robot
from tests.comparing import assert_close, relative_errors
from tests.conftest import ROBOTS
from tests.oracle.example_robots import ONE_PER_FAMILY, REFUSED, SOME, SUPPORTED, path_of
from tests.oracle.pinocchio_oracle import Oracle, with_fixed_joints_turning
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.wide import one_in, wide

TREES = 200
STATES = 100
COMPILED_TREE = 160
"""The tree that is compiled, a small one; of our robots those are that the suite compiles anyway."""

COMPILED_ROBOTS = ("a1_description/urdf/a1.urdf", "z1_description/urdf/z1.urdf")
OF_OURS = ("double_pendulum", "scara", "panda")
"""Compiled here; the rest are by `python -m tests.oracle`, and the large ones take the longest of all."""

Maker = Callable[[str | os.PathLike[str]], Robot]
TOLERANCE = 1e-10
"""Relative to the largest entry of a state's answer. Both sides round at 1e-16 of their intermediate results."""

ROUNDING_OF_A_SOLUTION = 64 * np.finfo(float).eps
"""Forward dynamics solves with the mass matrix, and two engines' solutions part by rounding times its condition number.
That stays far below TOLERANCE but where a mass matrix is nearly singular: at the gimbal locks of shoulders and hips
whose intermediate links have no inertia (iCub, human), it reaches 1e10."""


Comparison = tuple[str, np.ndarray, np.ndarray, float | np.ndarray]
"""What is compared, our answer and Pinocchio's at each state, and the relative error that is allowed."""


def drawn_states(robot: Robot, states: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, v, a."""
    rng = np.random.default_rng(seed)
    q = rng.uniform(-3.0, 3.0, (states, robot.nq))
    v, a = rng.uniform(-2.0, 2.0, (2, states, robot.nv))
    return q, v, a


def comparisons(robot: Robot, oracle: Oracle, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> Iterator[Comparison]:
    """Every query of the bare tree: Pinocchio reads damping and friction, and none of it acts there."""
    assert robot.joint_names == oracle.joint_names
    states = range(len(q))
    tau = np.array([oracle.inverse_dynamics(q[k], v[k], a[k]) for k in states])
    masses = np.array([oracle.mass_matrix(q[k]) for k in states])
    bias = np.array([oracle.bias_forces(q[k], v[k]) for k in states])
    weight = np.array([oracle.gravity_forces(q[k]) for k in states])
    yield "inverse_dynamics", robot.inverse_dynamics(q, v, a, passive=False), tau, TOLERANCE
    yield "mass_matrix", robot.mass_matrix(q, passive=False), masses, TOLERANCE
    yield "bias_forces", robot.bias_forces(q, v, passive=False), bias, TOLERANCE
    yield "gravity_forces", robot.gravity_forces(q, passive=False), weight, TOLERANCE
    try:
        articulated = robot.forward_dynamics(q, v, tau, passive=False)
    except errors.FailedPreconditionError:
        # The refusal must be right: no configuration has a regular mass matrix.
        assert all(np.linalg.eigvalsh(M)[0] < 1e-13 * np.linalg.eigvalsh(M)[-1] for M in masses)
        return
    condition = np.array([np.linalg.cond(M) if M.size else 1.0 for M in masses])
    solved = np.maximum(TOLERANCE, ROUNDING_OF_A_SOLUTION * condition)
    accelerations = np.array([oracle.forward_dynamics(q[k], v[k], tau[k]) for k in states])
    yield "forward_dynamics", articulated, accelerations, solved
    by_mass_matrix = robot.forward_dynamics(q, v, tau, method="mass_matrix", passive=False)
    yield "forward_dynamics, mass_matrix", by_mass_matrix, accelerations, solved
    # From the accelerations this very query finds, so that it is held to account at singular states too.
    loads = robot.constraint_forces(q, v, tau, joints=robot.joint_names, passive=False)
    wrenches = [oracle.joint_wrenches(q[k], v[k], articulated[k]) for k in states]
    expected = np.array([[wrench[name] for name in robot.joint_names] for wrench in wrenches])
    yield "constraint_forces.wrench", loads.wrench, expected.reshape(loads.wrench.shape), solved


def worst_errors(xml: str, make: Maker, states: int = STATES, seed: int = 0) -> dict[str, float]:
    """Each query's worst relative error over random states, as a share of what is allowed."""
    robot = make(xml)
    compared = comparisons(robot, Oracle(xml), *drawn_states(robot, states, seed))
    return {
        term: float(np.max(relative_errors(ours, reference) / tolerance))
        for term, ours, reference, tolerance in compared
    }


def assert_agrees(xml: str, make: Maker, seed: int = 0) -> None:
    """At some states; `python -m tests.oracle` takes all."""
    robot = make(xml)
    q, v, a = drawn_states(robot, STATES // 4, seed)
    for comparison in comparisons(robot, Oracle(xml), q, v, a):
        assert_close(*comparison, robot, q, v, a)


@pytest.mark.parametrize("seed", wide(range(TREES), one_in(40)))
def test_random_tree(seed: int) -> None:
    assert_agrees(random_urdf(seed), Robot.from_urdf if seed == COMPILED_TREE else interpreting, seed)


FREE = partial(Robot.from_urdf, mimic=False)
"""As Pinocchio reads robots: each joint moves by itself. Those that follow others are in test_mimic.py."""


@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
def test_our_robot(path: Path) -> None:
    assert_agrees(path.read_text(), FREE if path.stem in OF_OURS else partial(interpreting, mimic=False))


@pytest.mark.parametrize("name", wide(SUPPORTED, {*SOME, COMPILED_ROBOTS[-1]}.__contains__))
def test_example_robot(name: str) -> None:
    make = FREE if name in COMPILED_ROBOTS else partial(interpreting, certifying=name in ONE_PER_FAMILY, mimic=False)
    assert_agrees(path_of(name).read_text(), make)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_example_robot(name: str) -> None:
    with pytest.raises(errors.DynError) as error:
        Robot.from_urdf(path_of(name))
    assert REFUSED[name] in str(error.value)


@pytest.mark.parametrize("seed", range(0, TREES, 10))
def test_wrench_at_fixed_joints(seed: int) -> None:
    """A fixed joint carries the load of a revolute joint at rest."""
    xml = random_urdf(seed)
    robot, turning = interpreting(xml), Oracle(with_fixed_joints_turning(xml))
    rng = np.random.default_rng(seed)
    q, v, a = rng.uniform(-2.0, 2.0, (3, robot.nv))
    place = [turning.joint_names.index(name) for name in robot.joint_names]
    turning_state = np.zeros((3, len(turning.joint_names)))
    turning_state[:, place] = q, v, a
    loads = robot.constraint_forces(q, v, robot.inverse_dynamics(q, v, a))
    wrenches = turning.joint_wrenches(*turning_state)
    expected = np.array([wrenches[name] for name in loads.joints])
    assert set(loads.joints) == set(turning.joint_names)
    assert_close("constraint_forces.wrench", loads.wrench, expected, TOLERANCE, robot, q, v, a)
