"""Loads by cause against the dense matrices of (15), (18c), (19a), and over a socket."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from dyn_service import Client, Overlay, Payload, Robot, Wrench
from dyn_service.api.results import ConstraintForceCauses
from dyn_service.errors import FailedPreconditionError, NotFoundError
from dyn_service.service.server.app import Server
from tests.conftest import URDF
from tests.passive import restless

OUTPUTS = ("motors", "passive", "weights", "rates", "external")


def total(causes: ConstraintForceCauses) -> np.ndarray:
    one_axis = causes.motors.sum(-1) + causes.passive.sum(-1) + causes.weights.sum(-1) + causes.external.sum(-1)
    return np.asarray(one_axis + causes.rates.sum((-2, -1)))


@pytest.fixture(scope="module")
def tree() -> Robot:
    """Ten bodies with branches, one per link, with damping, friction, armature and springs."""
    return restless(URDF / "ten_body_tree.urdf", 3)


def dense(robot: Robot, q: np.ndarray) -> tuple[np.ndarray, ...]:
    """Psi_D^T, G, L and e - L G^T over all moving bodies."""
    operators, blocks = robot.influence_operators(q), robot.newton_euler_blocks(q, np.zeros(robot.nv))
    n, names = len(blocks.joints), list(blocks.joints)
    psi, G, M = np.zeros((n, 6, n, 6)), np.zeros((6 * n, robot.nv)), np.zeros((n, 6, n, 6))
    for block, row, column in zip(operators.psi, operators.rows, operators.columns, strict=True):
        psi[names.index(row), :, names.index(column)] = block
    for k in range(n):  # one degree of freedom each
        G[6 * k : 6 * k + 6, k], M[k, :, k] = blocks.free_axis[k], blocks.inertia[k]
    psi, M = psi.reshape(6 * n, 6 * n), M.reshape(6 * n, 6 * n)
    L = psi.T @ M @ psi @ G @ np.linalg.inv(robot.mass_matrix(q))
    return psi, M, L, np.eye(6 * n) - L @ G.T


def test_each_cause_by_dense_matrices(tree: Robot) -> None:
    rng = np.random.default_rng(5)
    q, v, tau = rng.uniform(-1.0, 1.0, (3, tree.nv))
    push = [
        Wrench("body_7", force=(3.0, -1.0, 2.0), torque=(0.1, 0.2, 0.3), point=(0.1, 0.0, 0.2)),
        Wrench("body_5", force=(1.0, 2.0, 0.0)),
    ]
    psi, M, L, rest = dense(tree, q)
    joints = tree.newton_euler_blocks(q, v).joints
    causes = tree.constraint_force_causes(q, v, tau, joints=joints, wrenches=push)
    forces = tree.passive_forces(q, v)
    p = forces.damping + forces.friction + forces.springs

    def stacked(columns: np.ndarray) -> np.ndarray:
        return columns.reshape(-1, *columns.shape[2:])

    def of_loads(load: np.ndarray) -> np.ndarray:
        return np.asarray(rest @ psi.T @ load)

    def of_rates(v: np.ndarray) -> np.ndarray:
        blocks = tree.newton_euler_blocks(q, v)
        return of_loads(M @ psi @ blocks.velocity_products.ravel() + blocks.velocity_loads.ravel())

    def external(**options: Any) -> np.ndarray:
        """- Y^T F-bar of each body, in its own column."""
        blocks = tree.newton_euler_blocks(q, v, **options)
        loads = -np.swapaxes(blocks.external_lever, -1, -2) @ blocks.external_loads[..., None]
        return np.asarray([np.eye(len(joints))[k].repeat(6) * loads.ravel() for k in range(len(joints))]).T

    scale = {"rtol": 0.0, "atol": 1e-11 * np.abs(total(causes)).max()}  # the inverse of the mass matrix, condition 1e4
    np.testing.assert_allclose(stacked(causes.motors), L * tau, **scale)
    np.testing.assert_allclose(stacked(causes.passive), -L * p, **scale)
    order = [tree.link_names.index(tree.description.joints[tree.joint_names.index(name)].child) for name in joints]
    np.testing.assert_allclose(stacked(causes.weights)[:, order], of_loads(external()), **scale)
    pushes = of_loads(external(wrenches=push, gravity=(0.0, 0.0, 0.0)))
    np.testing.assert_allclose(stacked(causes.external)[:, order], pushes, **scale)
    for k in range(tree.nv):
        for m in range(tree.nv):
            x, y = np.eye(tree.nv)[k] * v, np.eye(tree.nv)[m] * v
            expected_load = of_rates(x) if k == m else (of_rates(x + y) - of_rates(x - y)) / 4.0
            np.testing.assert_allclose(stacked(causes.rates)[:, k, m], expected_load, **scale)
    assert np.abs(causes.rates[..., 0, 1]).max() > 1e-3


CASES: dict[str, dict[str, Any]] = {
    "alone": {},
    "pushed": {
        "wrenches": [Wrench("panda_hand", force=(3.0, 0.0, -20.0)), Wrench("panda_link4", torque=(1.0, 2.0, 3.0))]
    },
    "loaded": {
        "overlay": Overlay(Payload("panda_hand", np.arange(1.0, 4.0))),
        "frame": "world",
        "gravity": (0.0, 3.0, -9.0),
    },
    "some": {"passive": False, "joints": ["panda_joint2", "panda_hand_joint"]},
}


@pytest.mark.parametrize("name", CASES)
def test_causes_sum_to_the_loads_and_are_the_same_over_a_socket(name: str) -> None:
    """Batches, axes, overlays, gravity; to 1e-12 of the largest load."""
    panda = Robot.from_urdf(URDF / "panda.urdf", joints=URDF.parent / "config" / "panda_joints.yaml")
    q, v, tau = np.random.default_rng(1).uniform(-1.0, 1.0, (3, 3, panda.nv))
    causes = panda.constraint_force_causes(q, v, 10.0 * tau, **CASES[name])
    wrench = panda.constraint_forces(q, v, 10.0 * tau, **CASES[name]).wrench
    np.testing.assert_allclose(total(causes), wrench, rtol=0.0, atol=1e-12 * np.abs(wrench).max())
    assert causes.motors.shape == (3, len(causes.joints), 6, panda.nv)
    with Server([panda], endpoints=["tcp://127.0.0.1:0"], workers=0) as server, Client(server.endpoints[0]) as client:
        remote = client.robot("panda").constraint_force_causes(q, v, 10.0 * tau, **CASES[name])
    assert (remote.joints, remote.links) == (causes.joints, causes.links)
    for output in OUTPUTS:
        np.testing.assert_array_equal(getattr(remote, output), getattr(causes, output))
    assert {field.name for field in fields(causes)} == {"joints", "links", *OUTPUTS}


def test_refusals() -> None:
    delta, pendulum = Robot.from_urdf(URDF / "delta.urdf"), Robot.from_urdf(URDF / "pendulum.urdf")
    with pytest.raises(FailedPreconditionError, match="closed loops"):
        delta.constraint_force_causes(*np.zeros((3, delta.nv)))
    with pytest.raises(NotFoundError, match="nose"):
        pendulum.constraint_force_causes([0.0], [0.0], [0.0], joints=["nose"])
