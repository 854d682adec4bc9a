"""Identities that dynamics obeys whatever the robot: they need no other engine, and each falls with any lost term."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyn_service.api.queries import Wrench
from dyn_service.engine.robot import Robot
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.trees import motion_subspaces
from tests.wide import wide

TREES = 5
"""Kernels are traced per tree, so a handful of trees and many states; `-m wide` has `ALL_TREES`."""

ALL_TREES = 12

_TREES_OF_SUITE = TREES

ROUNDING = 1e-11
"""Relative; rounding is 1e-16 times the condition number of the mass matrix, at most 1e4 on these trees."""

_robots: dict[int, Robot] = {}


def text_of(seed: int, shuffle: int | None = None) -> str:
    """The trees of the suite have 3 to 7 joints that move, the others 2 to 12."""
    return random_urdf(1000 + seed, movable=3 + seed if seed < TREES else None, shuffle=shuffle)


def robot_of(seed: int) -> Robot:
    if seed not in _robots:
        _robots[seed] = interpreting(text_of(seed))
    return _robots[seed]


@st.composite
def states(draw: st.DrawFn, batch: int = 4) -> tuple[Robot, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A robot, then q, v, a (batch, nv) and a gravity."""
    robot = robot_of(draw(st.integers(0, _TREES_OF_SUITE - 1)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    speed = draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0]))
    q = rng.uniform(-np.pi, np.pi, (batch, robot.nq)) * draw(st.sampled_from([0.0, 1.0, 50.0]))
    v, a = speed * rng.normal(size=(2, batch, robot.nv))
    return robot, q, v, a, rng.normal(size=3) * draw(st.sampled_from([0.0, 9.81]))


forty_examples = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def close(x: np.ndarray, y: np.ndarray, scale: np.ndarray | float = 0.0, tolerance: float = ROUNDING) -> None:
    size = np.max([np.max(np.abs(x)), np.max(np.abs(y)), np.max(np.abs(scale)), 1e-9])
    np.testing.assert_allclose(x / size, y / size, rtol=0, atol=tolerance)


@forty_examples
@given(states())
def test_forward_undoes_inverse(state: tuple) -> None:
    robot, q, v, a, gravity = state
    tau = robot.inverse_dynamics(q, v, a, gravity=gravity)
    bias = robot.bias_forces(q, v, gravity=gravity)
    # The largest effort the solution subtracts, seen as an acceleration, is what rounding is relative to.
    scale = np.linalg.solve(robot.mass_matrix(q), np.stack([tau, bias], axis=-1))
    for method in ("articulated", "mass_matrix"):
        close(robot.forward_dynamics(q, v, tau, gravity=gravity, method=method), a, scale, 1e-9)


@forty_examples
@given(states())
def test_mass_matrix_is_symmetric_and_positive_definite(state: tuple) -> None:
    robot, q, *_ = state
    M = robot.mass_matrix(q)
    np.testing.assert_array_equal(M, np.swapaxes(M, -1, -2))
    assert np.all(np.linalg.eigvalsh(M) > 0.0)


@forty_examples
@given(states())
def test_effort_is_mass_times_acceleration_plus_bias(state: tuple) -> None:
    robot, q, v, a, gravity = state
    bias = robot.bias_forces(q, v, gravity=gravity)
    tau = robot.inverse_dynamics(q, v, a, gravity=gravity)
    close(tau, np.einsum("...ij,...j->...i", robot.mass_matrix(q), a) + bias, bias)


@forty_examples
@given(states())
def test_bias_is_gravity_at_rest(state: tuple) -> None:
    robot, q, v, _, gravity = state
    at_rest = robot.bias_forces(q, 0.0 * v, gravity=gravity)
    close(at_rest, robot.gravity_forces(q, gravity=gravity), at_rest)


@forty_examples
@given(states())
def test_power_balance(state: tuple) -> None:
    """Effort's power is the rate of kinetic energy and of potential energy: v.tau = d/dt (v.M v / 2) + v.g."""
    robot, q, v, a, gravity = state
    tau = robot.inverse_dynamics(q, v, a, gravity=gravity)
    M = robot.mass_matrix
    h = 1e-5 / max(1.0, float(np.abs(v).max()))
    # Central difference of M along the motion, fourth order: its own error is below 1e-8 of the terms.
    slope = (8 * (M(q + h * v) - M(q - h * v)) - (M(q + 2 * h * v) - M(q - 2 * h * v))) / (12 * h)
    kinetic = np.einsum("...i,...ij,...j->...", v, M(q), a) + 0.5 * np.einsum("...i,...ij,...j->...", v, slope, v)
    potential = np.sum(v * robot.gravity_forces(q, gravity=gravity), axis=-1)
    scale = np.abs(v) * np.abs(tau)
    close(np.sum(v * tau, axis=-1), kinetic + potential, scale.sum(axis=-1), 1e-6)


@forty_examples
@given(states())
def test_gravity_is_an_acceleration_of_the_world(state: tuple) -> None:
    """Efforts are linear in gravity, and reversing it reverses its part."""
    robot, q, v, a, gravity = state
    tau_gravity, tau_free, tau_reversed = (
        robot.inverse_dynamics(q, v, a, gravity=k * gravity) for k in (1.0, 0.0, -1.0)
    )
    close(tau_gravity - tau_free, tau_free - tau_reversed, tau_gravity)


@forty_examples
@given(states())
def test_constraint_is_orthogonal_to_the_axis_and_actuation_is_effort(state: tuple) -> None:
    robot, q, v, a, gravity = state
    tau = robot.inverse_dynamics(q, v, a, gravity=gravity)
    loads = robot.constraint_forces(q, v, tau, joints=robot.joint_names, gravity=gravity)
    close(loads.actuation, tau, loads.wrench, 1e-9)
    tree = robot.tree
    for row, name in enumerate(loads.joints):
        i = tree.joints.index(name)
        axis = motion_subspaces(tree)[i]
        close(loads.constraint[:, row] @ axis, np.zeros(len(q)), loads.wrench)
        close(loads.constraint[:, row] + loads.actuation[:, row, None] * axis, loads.wrench[:, row])


@forty_examples
@given(states())
def test_wrenches_balance_weight_at_rest(state: tuple) -> None:
    """What the root link's joints carry, at rest, is the weight of all that hangs on them, moment included."""
    robot, q, v, _, gravity = state
    tau = robot.gravity_forces(q, gravity=gravity)
    loads = robot.constraint_forces(q, 0.0 * v, tau, frame="world", gravity=gravity)
    poses = robot.link_poses(q)
    tree = robot.tree
    force = np.zeros((len(q), 3))
    moment = np.zeros((len(q), 3))
    for row, name in enumerate(loads.joints):
        i = tree.joints.index(name)
        if tree.parent[i] == 0:
            force += loads.wrench[:, row, 3:]
            moment += loads.wrench[:, row, :3] + np.cross(poses.position[:, i], loads.wrench[:, row, 3:])
    bodies = range(1, len(tree))
    weight = sum(tree.inertia[i].mass for i in bodies) * gravity
    com = [poses.position[:, i] + poses.rotation[:, i] @ tree.inertia[i].com for i in bodies]
    weight_moment = sum(np.cross(c, tree.inertia[i].mass * gravity) for i, c in zip(bodies, com, strict=True))
    close(force, np.broadcast_to(-weight, force.shape), weight, 1e-9)
    close(moment, -np.asarray(weight_moment), moment, 1e-9)


@forty_examples
@given(states(), st.integers(0, 2**32 - 1), st.sampled_from(["world", "own", "other"]))
def test_external_wrench_does_its_power(state: tuple, seed: int, axes: str) -> None:
    """A wrench's effect on the efforts is minus J^T F: its power through any joint velocity is force times velocity."""
    robot, q, v, a, gravity = state
    rng = np.random.default_rng(seed)
    link = str(rng.choice(robot.link_names))
    frame = {"world": "world", "own": link, "other": str(rng.choice(robot.link_names))}[axes]
    torque, force, point = rng.normal(size=(3, 3))
    wrench = Wrench(link, torque=torque, force=force, point=point, frame=frame)
    tau = robot.inverse_dynamics(q, v, a, gravity=gravity)
    effect = tau - robot.inverse_dynamics(q, v, a, gravity=gravity, wrenches=wrench)

    h = 1e-6
    rate = rng.normal(size=robot.nv)
    index = robot.link_names.index(link)
    poses_plus, poses_minus, poses_now = (robot.link_poses(q + s * h * rate) for s in (1.0, -1.0, 0.0))

    def place(poses: object) -> np.ndarray:
        return poses.position[:, index] + poses.rotation[:, index] @ point

    velocity = (place(poses_plus) - place(poses_minus)) / (2 * h)
    spin = (
        (poses_plus.rotation[:, index] - poses_minus.rotation[:, index])
        @ np.swapaxes(poses_now.rotation[:, index], -1, -2)
        / (2 * h)
    )
    omega = np.stack([spin[:, 2, 1], spin[:, 0, 2], spin[:, 1, 0]], axis=-1)
    R = np.eye(3) if frame == "world" else poses_now.rotation[:, robot.link_names.index(frame)]
    power = np.sum((R @ force) * velocity, axis=-1) + np.sum((R @ torque) * omega, axis=-1)
    # Central differences at h = 1e-6: truncation 1e-12, rounding 1e-16 / 1e-6 of positions up to the prismatic stroke.
    close(effect @ rate, power, np.abs(q).max() + 1.0 + np.abs(tau).max() * 1e-4, 1e-7)


@forty_examples
@given(states(), st.integers(0, 2**32 - 1))
def test_forward_dynamics_takes_the_same_wrenches(state: tuple, seed: int) -> None:
    robot, q, v, a, gravity = state
    rng = np.random.default_rng(seed)
    wrenches = [
        Wrench(str(rng.choice(robot.link_names)), *rng.normal(size=(3, len(q), 3)), frame="world") for _ in range(3)
    ]
    tau = robot.inverse_dynamics(q, v, a, gravity=gravity, wrenches=wrenches)
    bias = robot.bias_forces(q, v, gravity=gravity)
    scale = np.linalg.solve(robot.mass_matrix(q), np.stack([tau, bias], axis=-1))
    for method in ("articulated", "mass_matrix"):
        acceleration = robot.forward_dynamics(q, v, tau, gravity=gravity, wrenches=wrenches, method=method)
        close(acceleration, a, scale, 1e-9)
    loads = robot.constraint_forces(q, v, tau, gravity=gravity, wrenches=wrenches, joints=robot.joint_names)
    close(loads.actuation, tau, loads.wrench, 1e-9)


@forty_examples
@given(states(), st.floats(0.0, 200.0), st.floats(0.0, 30.0))
def test_computed_torque_shapes_the_error(state: tuple, kp: float, kd: float) -> None:
    robot, q, v, a, gravity = state
    q_ref, v_ref = q + 0.1, v - 0.2
    tau = robot.computed_torque(q, v, q_ref, v_ref, a, kp=kp, kd=np.full(robot.nv, kd), gravity=gravity)
    acceleration = a + kd * (v_ref - v) + kp * (q_ref - q)
    close(tau, robot.inverse_dynamics(q, v, acceleration, gravity=gravity), tau)


@pytest.mark.parametrize("seed", wide(range(ALL_TREES), range(TREES).__contains__))
def test_link_order_in_the_file_does_not_matter(seed: int) -> None:
    """Same names, same order of q, same bits."""
    robot, shuffled = (interpreting(text_of(seed, shuffle)) for shuffle in (None, 7))
    assert robot.joint_names == shuffled.joint_names
    assert robot.fingerprint == shuffled.fingerprint
    rng = np.random.default_rng(seed)
    q, v, a = rng.normal(size=(3, 5, robot.nv))
    np.testing.assert_array_equal(robot.inverse_dynamics(q, v, a), shuffled.inverse_dynamics(q, v, a))
    np.testing.assert_array_equal(robot.mass_matrix(q), shuffled.mass_matrix(q))
    np.testing.assert_array_equal(robot.constraint_forces(q, v, a).wrench, shuffled.constraint_forces(q, v, a).wrench)


PROPERTIES = [name for name, value in list(globals().items()) if hasattr(value, "hypothesis")]
"""All of the above that draw their states."""


@pytest.mark.wide
@pytest.mark.parametrize("name", PROPERTIES)
def test_on_more_trees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "_TREES_OF_SUITE", ALL_TREES)
    globals()[name]()
