"""Regressors and the Coriolis matrix against the equations that they factor, evaluated on trees without a kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.dynamics import coriolis, hamilton, mass_matrix, newton_euler, passive, regressors, sensors
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.kinematics import integrate
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.formulations.identifiability import _independent, base_parameters
from dyn_service.model.description import rooted
from dyn_service.model.tree import Tree
from dyn_service.parsing.files import read_file, read_text
from tests.conftest import ROBOTS as OURS
from tests.conftest import URDF
from tests.mimics import drawn
from tests.random_robots import MANY_TYPES, random_urdf
from tests.wide import wide

FILES = [path.stem for path in OURS]
ROBOTS = (*FILES, "solo12 floating", "mimic 4", *(f"random {seed}" for seed in range(8)))
SUMMED = 400 * np.finfo(float).eps
"""Some 200 terms of a column sum, and as many in the recursion."""


@lru_cache
def _tree(name: str) -> Tree:
    """A tree with one body per link, and passive parameters at all joints that can have them."""
    kind, _, number = name.partition(" ")
    if kind == "random":
        description = read_text(random_urdf(int(number), movable=7, types=MANY_TYPES))
    elif kind == "mimic":  # with ratios other than 1
        description = drawn(read_text(random_urdf(int(number), movable=4)), 1)
    else:
        description = read_file(URDF / f"{kind}.urdf")
    tree = Robot(rooted(description, "floating") if number == "floating" else description).tree
    rng = np.random.default_rng(1)
    single = np.array([float(joint.nv == 1) for joint in tree.inboard for _ in range(joint.nv)])
    parts = ("damping", "friction", "armature", "stiffness", "rest")
    numbers = {part: rng.uniform(0.1, 1.0, tree.nr) * single for part in parts}
    return replace(tree, passive=replace(tree.passive, width=np.full(tree.nr, 0.2), **numbers))


def _number(expression: Any) -> np.ndarray:
    return ex.matrix(expression).array()


@pytest.fixture(params=wide(ROBOTS, {"panda", "solo12 floating", "mimic 4", "random 0", "random 3"}.__contains__))
def tree(request: pytest.FixtureRequest) -> Tree:
    return _tree(request.param)


def _state(tree: Tree) -> tuple[ex.Matrix, ex.Matrix, ex.Matrix, ex.Matrix]:
    rng = np.random.default_rng(7)
    q = tree.configuration.normalised(rng.normal(size=tree.nq))
    return (
        ex.matrix(q),
        ex.matrix(rng.normal(size=tree.nv)),
        ex.matrix(rng.normal(size=tree.nv)),
        ex.matrix([1.0, -2.0, -9.0]),
    )


def _close(actual: Any, expected: Any, tolerance: float = SUMMED) -> None:
    actual, expected = _number(actual), _number(expected)
    assert np.abs(actual - expected).max(initial=0.0) <= tolerance * max(np.abs(expected).max(initial=0.0), 1.0)


def test_efforts_are_linear_in_theta(tree: Tree) -> None:
    q, v, a, g = _state(tree)
    theta = regressors.parameters(tree)["theta"]
    _close(regressors.inverse_dynamics(tree, q, v, a, g) @ theta, newton_euler.inverse_dynamics(tree, q, v, a, g))


def test_momenta_and_energies_are_linear_in_theta(tree: Tree) -> None:
    q, v, _, g = _state(tree)
    theta = regressors.parameters(tree)["theta"]
    _close(regressors.momentum(tree, q, v) @ theta, hamilton.momentum(tree, q, v))
    regressor, energy = regressors.energy(tree, q, v, g), hamilton.energy(tree, q, v, g)
    for part in ("kinetic", "potential"):
        _close(regressor[part].T @ theta, energy[part])


def test_loads_of_joints_are_linear_in_theta(tree: Tree) -> None:
    q, v, a, g = _state(tree)
    theta = regressors.parameters(tree)["theta"][: 10 * len(tree)]
    load = _number(regressors.joint_wrench(tree, q, v, a, g) @ theta).reshape(-1, 6)
    reading = sensors.force_torque(tree, q, v, a, ex.zeros(3, 1), ex.zeros(3, 1), g)
    for load_part, part in ((load[:, 3:], "force"), (load[:, :3], "torque")):
        _close(load_part.reshape(-1, 1), reading[part])


def test_locked_joints_take_no_effort() -> None:
    tree = _tree("panda").locked(["panda_joint2"])
    q, v, a, g = _state(tree)
    k = tree.configuration.velocity_joints.index("panda_joint2")
    matrices = [regressors.inverse_dynamics(tree, q, v, a, g), regressors.momentum(tree, q, v)]
    for matrix in (*matrices, coriolis.coriolis_matrix(tree, q, v)["matrix"]):
        assert not _number(matrix)[k].any()
    assert _number(matrices[0]).any(axis=1).sum() == tree.nv - 1


def test_coriolis_matrix_gives_the_bias_and_half_the_rate_of_the_mass_matrix(tree: Tree) -> None:
    q, v, _, _ = _state(tree)
    coriolis_answer = coriolis.coriolis_matrix(tree, q, v)
    C = _number(coriolis_answer["matrix"])
    bias = newton_euler.bias_forces(tree, q, v, ex.zeros(3, 1)) - passive.efforts(tree, q, v)
    _close(C @ v.array(), bias)
    _close(coriolis_answer["forces"], bias)
    _close(coriolis_answer["transposed_forces"], C.T @ v.array())
    step = 1e-5  # the error of the difference is step^2 and eps / step, 1e-10 each
    M_after, M_before = (_number(mass_matrix.mass_matrix(tree, integrate(tree, q, v, h))) for h in (step, -step))
    _close(C + C.T, (M_after - M_before) / (2 * step), 1e-8)


def test_operations_of_the_panda() -> None:
    """They grow with the pairs of a link and an ancestor: both matrices take some 3,400."""
    tree = _tree("panda")
    q, v, a = (ex.sym(name, n) for name, n in (("q", tree.nq), ("v", tree.nv), ("a", tree.nv)))
    C = coriolis.coriolis_matrix(tree, q, v)["matrix"]
    Y = regressors.inverse_dynamics(tree, q, v, a, ex.matrix([0.0, 0.0, -9.81]))
    assert ex.Program.of([q, v], [C]).operations < 4000
    assert ex.Program.of([q, v, a], [Y]).operations < 4000


@pytest.mark.parametrize(("name", "rank"), [("pendulum", 6), ("scara", 23), ("panda", 78)])
def test_base_parameters_span_all_efforts(name: str, rank: int) -> None:
    """Their number is the rank of Y at 200 random states; they alone give the efforts.

    A pendulum has h_x, h_y of its link and the sum of inertia and armature about its axis, and damping, friction and
    stiffness.
    """
    robot = Robot.from_urdf(URDF / f"{name}.urdf")
    base = base_parameters(robot)
    rng = np.random.default_rng(2)
    q = np.stack([robot.random_configuration(seed=1000 + k) for k in range(200)])
    v, a = rng.normal(size=(2, 200, robot.nv))
    Y_answer = robot.inverse_dynamics_regressor(q, v, a)
    Y = Y_answer.regressor.reshape(-1, len(Y_answer.parameters))
    size = np.linalg.norm(Y, axis=0)
    assert len(base) == np.linalg.matrix_rank(Y / np.where(size > 1e-9, size, np.inf), tol=1e-9) == rank
    # The rank is decided by a gap of nine decades, so that no threshold within it changes the result.
    assert base.largest < 1e-12 < 1e-3 < base.smallest
    theta = robot.dynamic_parameters().theta
    _close(Y_answer.regressor[..., base.columns] @ (base.combinations @ theta), robot.inverse_dynamics(q, v, a), 1e-12)
    assert all(text.startswith(base.parameters[k]) for text, k in zip(base.names, base.columns, strict=True))


def test_rounding_is_no_parameter_and_a_nearly_dependent_one_is_refused() -> None:
    """The axis of the second link is tilted by the rounding of a rotation, and by 2e-9 rad."""
    first, second, last = (URDF / "double_pendulum.urdf").read_text().split('<axis xyz="0 -1 0"/>')
    tilted = '{}<axis xyz="0 -1 0"/>{}<axis xyz="{} -1 0"/>{}'
    assert len(base_parameters(Robot.from_urdf(tilted.format(first, second, 6e-17, last)))) == 13
    nearly = Robot.from_urdf(tilted.format(first, second, 2e-9, last))
    with pytest.raises(FailedPreconditionError, match=r"parameter '.*' of robot '.*' is nearly without effect"):
        base_parameters(nearly)
    decided, fine = (base_parameters(nearly, threshold=threshold) for threshold in (1e-6, 1e-10))
    assert len(decided) == 13 < len(fine)
    assert max(decided.largest, fine.smallest) < 1e-6 < 1e-3 < decided.smallest
    with pytest.raises(InvalidArgumentError, match="threshold must be a number from 1e-10 to 1"):
        base_parameters(nearly, threshold=0.0)


def test_columns_that_are_nearly_parallel_are_measured_across_all_before() -> None:
    """Läuchli's columns: one pass of Gram and Schmidt leaves a basis that is not orthogonal, and gives e sqrt(2)."""
    e = 1e-7
    columns = np.vstack([np.ones(3), e * np.eye(3)])
    independent, lengths = _independent(columns, np.ones(3), 1e-10)
    assert independent == [0, 1, 2]
    np.testing.assert_allclose(lengths, [1.0, e * math.sqrt(2.0), e * math.sqrt(1.5)], rtol=1e-6)  # 1e-16 / e
