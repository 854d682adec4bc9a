"""Derivatives, regressor, operational-space inertia and other queries of robots with closed loops."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

from dyn_service import Client, Inertial, Overlay, Robot, Server, Wrench
from dyn_service.api.queries import QUERIES
from dyn_service.engine.loops.answers import ANSWERS, answer_of, refusal_of
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.formulations.identifiability import base_parameters
from tests.loops import DIGITS, Array, Exact, Mechanism, four_bar, random_mechanism, slider_crank, with_drives
from tests.service.conftest import WAIT_MS
from tests.wide import wide

SEEDS = range(8)
FIXED = [seed for seed in SEEDS if seed % 3]
WRENCH = Wrench("slider", torque=(0.0, 0.3, 0.0), force=(2.0, 0.0, -1.0), point=(0.1, 0.0, 0.0))


@cache
def mechanism(seed: int) -> Mechanism:
    return random_mechanism(seed)


def relative(x: Array, y: Array) -> float:
    return float(np.abs(x - y).max() / np.abs(y).max())


class Difference:
    """Central differences in fifty digits along changes of position, velocity and acceleration or effort."""

    step = mpf("1e-15")

    def __init__(self, m: Mechanism, v: Array) -> None:
        self.exact = Exact(m, v)
        self.entries = [int(k) for k in np.argmax(m.robot.independent_motion(m.q, v).selection, axis=-1)]
        self.v = [float(v[k]) for k in self.entries]

    def of(self, dq: Array, dv: Array, answer: Callable[[Exact, Any], list[Any]]) -> Array:
        """The derivative of an answer of the equations and the step's sign times its size."""
        with mp.workdps(DIGITS):
            sides = []
            for h in (self.step, -self.step):
                m = self.exact.near(self.entries, [h * mpf(float(x)) for x in dq])
                u = [mpf(x) + h * mpf(float(y)) for x, y in zip(self.v, dv, strict=True)]
                sides.append(answer(Exact(m, u, entries=self.entries), h))
            return np.array([float((x - y) / (2 * self.step)) for x, y in zip(*sides, strict=True)])


@pytest.mark.parametrize("seed", wide(FIXED, [1, 4].__contains__))
def test_inverse_dynamics_derivatives_in_fifty_digits(seed: int) -> None:
    m = mechanism(seed)
    v, a = m.motion(seed)
    S = m.robot.independent_motion(m.q, v).selection
    derivatives = m.robot.inverse_dynamics_derivatives(m.q, v, a)
    assert relative(derivatives.tau, m.robot.inverse_dynamics(m.q, v, a)) < 1e-13
    difference = Difference(m, v)
    dq, dv, da = np.random.default_rng(seed).normal(size=(3, len(S)))

    def efforts(exact: Exact, h: Any) -> list[Any]:
        u = [mpf(float(x)) + h * mpf(float(y)) for x, y in zip(S @ a, da, strict=True)]
        acceleration = exact.solved([-x for x in exact.bias], difference.entries, u)
        return exact.drive_efforts(acceleration, difference.entries)

    change = derivatives.dtau_dq @ S.T @ dq + derivatives.dtau_dv @ S.T @ dv + derivatives.dtau_da @ S.T @ da
    assert relative(change, difference.of(dq, dv, efforts)) < 1e-10
    dependent = S.sum(axis=0) == 0.0
    for matrix in (derivatives.dtau_dq, derivatives.dtau_dv, derivatives.dtau_da):
        assert not matrix[:, dependent].any()


@pytest.mark.parametrize("seed", wide(range(4), [1, 2].__contains__))
def test_forward_dynamics_derivatives_in_fifty_digits(seed: int) -> None:
    m = mechanism(seed)
    v, _ = m.motion(seed)
    rng = np.random.default_rng(seed)
    driven = m.robot.evaluator.closed_loops.driven
    tau = driven * rng.normal(size=m.robot.nv)
    S = m.robot.independent_motion(m.q, v).selection
    derivatives = m.robot.forward_dynamics_derivatives(m.q, v, tau)
    assert relative(derivatives.a, m.robot.forward_dynamics(m.q, v, tau)) < 1e-13
    difference = Difference(m, v)
    dq, dv = rng.normal(size=(2, len(S)))
    dtau = driven * rng.normal(size=m.robot.nv)

    def accelerations(exact: Exact, h: Any) -> list[Any]:
        return exact.accelerations([mpf(float(x)) + h * mpf(float(y)) for x, y in zip(tau, dtau, strict=True)])

    change = derivatives.da_dq @ S.T @ dq + derivatives.da_dv @ S.T @ dv + derivatives.da_dtau @ dtau
    assert relative(change, difference.of(dq, dv, accelerations)) < 1e-10


def four_bar_with_everything() -> Mechanism:
    """A four-bar with damping, friction, springs and armature, and drives at two of its joints."""
    m = four_bar()
    joints = tuple(
        replace(joint, damping=0.3 + k, friction=0.2, stiffness=0.4 * k, armature=0.02) if joint.moves.nv else joint
        for k, joint in enumerate(m.description.joints)
    )
    robot = Robot(with_drives(replace(m.description, joints=joints), ("pin_0", "pin_2")))
    return Mechanism(robot, m.q)


def moved(m: Mechanism, v: Array, a: Array, h: float, change: Array) -> tuple[Array, Array, Array]:
    """The position, velocity and acceleration after h times a change (3, nu) of those of the independent joints."""
    robot = m.robot
    motion = robot.independent_motion(m.q, v)
    S, dq, dv, da = motion.selection, *change
    names = [robot.configuration.velocity_joints[k] for k in np.argmax(S, axis=-1)]
    q = robot.assemble(m.q + h * motion.jacobian @ dq, fixed=names)
    v = robot.independent_motion(q, 0.0 * v).jacobian @ (S @ v + h * dv)
    motion = robot.independent_motion(q, v)
    return q, v, motion.jacobian @ (S @ a + h * da) + motion.bias_accelerations


def difference(m: Mechanism, v: Array, a: Array, change: Array, answer: Callable[..., Any]) -> Any:
    """The central difference of an answer, by doubles."""
    h = 1e-5
    return (answer(*moved(m, v, a, h, change)) - answer(*moved(m, v, a, -h, change))) / (2 * h)


def state(m: Mechanism, rate: float = 2.0) -> tuple[Array, Array]:
    """v and a of a mechanism with one degree of freedom."""
    v = rate * m.robot.independent_motion(m.q, np.zeros(3)).jacobian[:, 0]
    motion = m.robot.independent_motion(m.q, v)
    return v, 3.0 * motion.jacobian[:, 0] + motion.bias_accelerations


@pytest.mark.parametrize("passive", [True, False])
def test_derivatives_with_passive_forces_wrenches_gravity_overlays_and_redundant_drives(passive: bool) -> None:
    m = four_bar_with_everything()
    v, a = state(m)
    options: dict[str, Any] = {
        "gravity": (0.0, 2.0, -5.0),
        "wrenches": Wrench(
            "bar_2", torque=(0.0, 0.3, 0.0), force=(2.0, 0.0, -1.0), point=(0.1, 0.0, 0.0), frame="bar_2"
        ),
        "overlay": Overlay(links={"bar_1": Inertial(mass=3.0)}),
        "passive": passive,
    }
    S = m.robot.independent_motion(m.q, v).selection
    tau = m.robot.inverse_dynamics(m.q, v, a, **options)
    inverse = m.robot.inverse_dynamics_derivatives(m.q, v, a, **options)
    forward = m.robot.forward_dynamics_derivatives(m.q, v, tau, **options)
    assert np.allclose(inverse.tau, tau, rtol=1e-13, atol=0)
    assert np.allclose(forward.a, a, rtol=1e-12, atol=1e-12)
    for change in (*np.eye(3)[:, :, None], np.ones((3, 1))):
        columns = S.T @ change[..., None]
        by_state = inverse.dtau_dq @ columns[0] + inverse.dtau_dv @ columns[1] + inverse.dtau_da @ columns[2]
        by_hand = difference(m, v, a, change, lambda q, v, a: m.robot.inverse_dynamics(q, v, a, **options))
        assert relative(by_state[:, 0], by_hand) < 1e-7
        if change[0].any() or change[1].any():
            by_state = forward.da_dq @ columns[0] + forward.da_dv @ columns[1]
            by_hand = difference(m, v, a, change, lambda q, v, a: m.robot.forward_dynamics(q, v, tau, **options))
            assert relative(by_state[:, 0], by_hand) < 1e-7
    torque = np.array([0.2, 0.0, -0.5])
    more = m.robot.forward_dynamics(m.q, v, tau + torque, **options)
    assert np.allclose(forward.da_dtau @ torque, more - a, rtol=1e-10, atol=1e-10)


def test_derivatives_of_energy_momentum_and_the_regressor() -> None:
    m = four_bar_with_everything()
    v, a = state(m)
    S, change = m.robot.independent_motion(m.q, v).selection, np.array([[0.4], [-1.3], [0.7]])
    G = m.robot.independent_motion(m.q, v).jacobian
    h = 1e-5
    (q_1, v_1, _), (q_0, v_0, _) = (moved(m, v, a, s, change) for s in (h, -h))
    dq, dv = (q_1 - q_0) / (2 * h), (v_1 - v_0) / (2 * h)
    energy = m.robot.energy_derivatives(m.q, v)
    by_hand = difference(m, v, a, change, lambda q, v, a: m.robot.energy(q, v).total)
    assert (energy.dkinetic_dq + energy.dpotential_dq) @ dq + energy.dkinetic_dv @ dv == pytest.approx(
        by_hand, rel=1e-7
    )
    momentum = m.robot.momentum_derivatives(m.q, v)
    by_hand = difference(m, v, a, change, lambda q, v, a: m.robot.momentum(q, v))
    assert relative(momentum.dp_dq @ dq + momentum.dp_dv @ dv, by_hand) < 1e-7
    assert np.allclose(G @ S @ dq, dq, rtol=0, atol=1e-8)
    theta = m.robot.dynamic_parameters().theta
    Y = m.robot.inverse_dynamics_regressor(m.q, v, a)
    assert relative(Y.regressor @ theta, m.robot.inverse_dynamics(m.q, v, a)) < 1e-12
    batch = m.robot.inverse_dynamics_regressor(m.q, [v, 0 * v], [a, 0 * a]).regressor
    assert batch.shape == (2, *Y.regressor.shape)
    assert relative(batch[1] @ theta, m.robot.gravity_forces(m.q)) < 1e-12


@pytest.mark.parametrize("seed", FIXED)
def test_the_regressor_of_random_mechanisms(seed: int) -> None:
    m = mechanism(seed)
    v, a = m.motion(seed)
    Y = m.robot.inverse_dynamics_regressor(m.q, v, a).regressor
    assert relative(Y @ m.robot.dynamic_parameters().theta, m.robot.inverse_dynamics(m.q, v, a)) < 1e-11


@pytest.mark.parametrize("frame", ["world_aligned", "local", "world"])
def test_operational_space_is_what_a_wrench_on_the_point_accelerates(frame: str) -> None:
    m = mechanism(2)
    robot, zeros = m.robot, np.zeros(m.robot.nv)
    link, point = m.description.links[-1].name, np.array([0.1, -0.2, 0.3])
    answer = robot.operational_space(m.q, link, point=point, frame=frame)
    motion = robot.point_motion(m.q, zeros, link, point=point, frame=frame)
    world = robot.point_motion(m.q, zeros, link, point=point)
    for k, unit in enumerate(np.eye(6)):
        torque, force = np.split(unit, 2)
        if frame == "local":
            torque, force = world.rotation @ torque, world.rotation @ force
        if frame == "world":  # the same wrench about the point
            torque = torque - np.cross(world.position, force)
        wrench = Wrench(link, torque, force, point, "world")
        pushed = robot.forward_dynamics(m.q, zeros, zeros, wrenches=wrench)
        caused = motion.jacobian @ (pushed - robot.forward_dynamics(m.q, zeros, zeros))
        assert np.abs(answer.mobility[:, k] - caused).max() < 1e-9 * np.abs(answer.mobility).max()
    freedom = np.linalg.matrix_rank(answer.mobility, tol=1e-9 * np.abs(answer.mobility).max())
    few = robot.operational_space(m.q, link, point=point, frame=frame, directions=["x", "rz"])
    assert freedom >= 2
    part = np.ix_([2, 3], [2, 3])
    assert np.allclose(few.inertia[part] @ answer.mobility[part], np.eye(2), atol=1e-10)
    rest = few.inertia.copy()
    rest[part] = 0.0
    assert not rest.any()


def test_operational_space_of_a_slider_crank() -> None:
    """The slider's inertia along the rail is that of the crank, divided by the square of its lever."""
    m = slider_crank()
    robot = m.robot
    motion = robot.independent_motion(m.q, np.zeros(3))
    expected = motion.mass_matrix[0, 0] / motion.jacobian[2, 0] ** 2
    answer = robot.operational_space(m.q, "slider", directions=["x"])
    assert answer.inertia[3, 3] == pytest.approx(expected, rel=1e-12)
    assert np.isnan(robot.operational_space(m.q, "slider").inertia).all()
    assert np.isnan(robot.operational_space(m.q, "slider", directions=["x", "z"]).inertia).all()
    assert np.isnan(robot.operational_space(m.q, "slider", directions=["ry"]).inertia).all()
    heavy = Overlay(links={"slider": Inertial(mass=np.array([0.5, 5.5]))})
    batch = robot.operational_space(m.q, "slider", directions=["x"], overlay=heavy)
    assert batch.inertia[:, 3, 3] == pytest.approx([expected, expected + 5.0], rel=1e-12)
    links = robot.operational_space(m.q, ["slider", "crank"], directions=["x"])
    assert links.mobility.shape == (2, 6, 6)
    with pytest.raises(InvalidArgumentError, match="directions must be a list of"):
        robot.operational_space(m.q, "slider", directions=["w"])


def test_constraint_bases_have_rows_of_loop_joints() -> None:
    m = mechanism(2)
    bases = m.robot.constraint_bases()
    assert bases.joints == m.robot.all_joint_names
    assert len(bases.basis) == len(bases.directions) == m.robot.description.sizes.nj
    v, _ = m.motion(2)
    forces = m.robot.constraint_forces(m.q, v, np.zeros(m.robot.nv))
    for joint, load in zip(
        m.description.loop_joints, forces.constraint[-len(m.description.loop_joints) :], strict=True
    ):
        basis = m.robot.constraint_basis(joint.name)
        assert basis.shape == (6, 6 - joint.moves.nv)
        assert np.allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-14)
        assert np.abs(basis.T @ joint.moves.subspace).max(initial=0.0) < 1e-14
        assert np.allclose(basis @ (basis.T @ load), load, rtol=0, atol=1e-11 * np.abs(load).max())
    first, last = m.robot.all_joint_names[0], m.robot.all_joint_names[-1]
    two = m.robot.constraint_bases(joints=[last, first])
    assert two.joints == (last, first)
    assert np.array_equal(two.basis, bases.basis[[-1, 0]])
    with pytest.raises(NotFoundError, match="has no joint 'x'"):
        m.robot.constraint_bases(joints=["x"])


# Momenta.


@pytest.mark.parametrize("make", [slider_crank, four_bar_with_everything])
def test_hamiltonian_queries(make: Callable[[], Mechanism]) -> None:
    m = make()
    robot, q = m.robot, m.q
    v, _ = state(m)
    tau = robot.evaluator.closed_loops.driven * [0.4, 0.0, -0.3]
    p = robot.momentum(q, v)
    assert relative(robot.velocity_from_momentum(q, p), v) < 1e-13
    energy, hamiltonian = robot.energy(q, v), robot.hamiltonian(q, p)
    assert hamiltonian.kinetic == pytest.approx(energy.kinetic, rel=1e-13)
    assert hamiltonian.potential == pytest.approx(energy.potential, rel=1e-13)
    assert hamiltonian.hamiltonian == pytest.approx(energy.total, rel=1e-13)
    a = robot.forward_dynamics(q, v, tau)
    along = np.array([(robot.independent_motion(q, v).selection @ x) for x in (v, a, 0 * a)])
    rate = difference(m, v, a, along, lambda q, v, a: robot.momentum(q, v))
    flow = robot.hamiltonian_flow(q, p, tau)
    assert relative(flow.v, v) < 1e-13
    assert relative(flow.p_dot, rate) < 1e-7
    assert (robot.momentum_rate(q, p, tau) == flow.p_dot).all()
    assert relative(robot.momentum_derivative(q, v, a), rate) < 1e-7
    power = difference(m, v, a, along, lambda q, v, a: robot.energy(q, v).total)
    dissipated = robot.passive_forces(q, v).dissipated
    assert power == pytest.approx(tau @ v - dissipated, rel=1e-6)
    with pytest.raises(InvalidArgumentError, match="p is not M") as e:
        robot.velocity_from_momentum(q, p + np.array([0.0, 0.1, 0.0]))
    assert e.value.path == "inputs.p"
    for query in ("momentum_rate", "hamiltonian_flow"):
        with pytest.raises(InvalidArgumentError, match="which has no drive, must be 0"):
            getattr(robot, query)(q, p, [0.0, 1.0, 0.0])


def test_rates_and_recursion_have_the_loads_of_loop_joints() -> None:
    m = slider_crank()
    v, a = state(m)
    motion = m.robot.link_motion(m.q, v, a, wrenches=WRENCH, frame="world")
    momentum = m.robot.system_momentum(m.q, v, frame="world").momentum
    rates = m.robot.system_momentum_rate(m.q, v, a, wrenches=WRENCH, frame="world")
    assert np.allclose(rates.load, motion.load, rtol=0, atol=1e-12)
    cause = rates.load + rates.external
    cause[:, :3] -= np.cross(motion.velocity[:, 3:], momentum[:, 3:])  # the links' origins move
    assert np.allclose(rates.rate, cause, rtol=0, atol=1e-12)
    body = m.robot.body_recursion(m.q, v, a, wrenches=WRENCH)
    load = m.robot.link_motion(m.q, v, a, wrenches=WRENCH).load
    assert np.allclose(np.concatenate([body.moment, body.force], axis=-1), load, rtol=0, atol=1e-12)
    assert (body.tau == m.robot.inverse_dynamics(m.q, v, a, wrenches=WRENCH)).all()


# Redundant drives.


def test_idle_efforts_cause_no_motion_and_share_efforts_by_weights() -> None:
    m = mechanism(2)
    robot, q = m.robot, m.q
    v, a = m.motion(2)
    P = robot.independent_motion(q, v).idle_efforts
    tau = robot.inverse_dynamics(q, v, a)
    assert np.allclose(P @ P, P, atol=1e-12)
    assert np.abs(P @ tau).max() < 1e-9 * np.abs(tau).max()
    x = 10.0 * np.random.default_rng(1).normal(size=robot.nv)
    assert np.abs(P @ x).max() > 1.0
    assert relative(robot.forward_dynamics(q, v, tau + P @ x), robot.forward_dynamics(q, v, tau)) < 1e-9
    freedom = int(robot.independent_motion(q, v).freedom)
    assert np.trace(P) == pytest.approx(robot.nv - freedom)
    W = np.diag(np.linspace(1.0, 3.0, robot.nv))
    weighted = tau - P @ np.linalg.pinv(P @ W @ P) @ P @ W @ tau
    assert weighted @ W @ weighted < 0.99 * tau @ W @ tau
    G = robot.independent_motion(q, v).jacobian
    B = np.linalg.inv(W) @ G
    assert np.allclose(weighted, B @ np.linalg.solve(G.T @ B, G.T @ tau), rtol=0, atol=1e-8 * np.abs(tau).max())
    one = slider_crank()
    assert np.abs(one.robot.independent_motion(one.q, np.zeros(3)).idle_efforts).max() < 1e-15
    tree = Robot(replace(one.description, loop_joints=()))
    assert not tree.independent_motion([one.q, one.q], np.zeros(3)).idle_efforts.any()


# Refusals, and the service.


def test_positions_and_drives_without_derivatives_are_refused() -> None:
    m = four_bar()
    joints = tuple(
        replace(joint, xyz=np.array([0.5, 0.0, 0.0])) if joint.name == "pin_2" else joint
        for joint in m.description.joints
    )
    (pin,) = m.description.loop_joints
    robot = Robot(replace(m.description, joints=joints, loop_joints=(replace(pin, child_xyz=np.array([0.2, 0, 0])),)))
    zeros = np.zeros(3)
    regular = np.array([0.7, -0.7, 0.7])
    assert np.isfinite(robot.forward_dynamics_derivatives(regular, zeros, zeros).da_dq).all()
    with pytest.raises(FailedPreconditionError, match=r"no answer at state \[1\]: J_c is singular at this position"):
        robot.forward_dynamics_derivatives([regular, zeros], zeros, zeros)
    two = mechanism(2)
    v, _ = two.motion(2)
    weak = Robot(with_drives(two.description, two.robot.joint_names[:1]))
    free_fall = weak.forward_dynamics(two.q, v, 0 * v)
    for query in ("inverse_dynamics_derivatives", "inverse_dynamics_regressor"):
        with pytest.raises(FailedPreconditionError, match="the drives cannot cause all motions"):
            getattr(weak, query)(two.q, v, free_fall)
    assert np.isfinite(weak.forward_dynamics_derivatives(two.q, v, 0 * v).da_dv).all()


def test_without_freedom_derivatives_are_zero_and_random_states_are_refused() -> None:
    m = four_bar()
    (pin,) = m.description.loop_joints
    poses = m.robot.link_poses(m.q)
    origin = poses.position[poses.links.index("bar_1")]
    brace = replace(pin, name="brace", parent="ground", child="bar_1", parent_xyz=origin, child_xyz=np.zeros(3))
    rigid = Robot(replace(m.description, loop_joints=(pin, brace)))
    zeros = np.zeros(3)
    assert rigid.independent_motion(m.q, zeros).freedom == 0.0
    assert not rigid.inverse_dynamics_derivatives(m.q, zeros, zeros).dtau_dq.any()
    assert not rigid.forward_dynamics_derivatives(m.q, zeros, zeros).da_dtau.any()
    assert np.isnan(rigid.operational_space(m.q, "bar_1", directions=["x"]).inertia).all()
    with pytest.raises(FailedPreconditionError, match=r"base_parameters has no answer .* loops are open"):
        base_parameters(m.robot)


def test_batches_lists_and_numbers_that_are_not_finite() -> None:
    m = slider_crank()
    v, a = state(m)
    one = m.robot.inverse_dynamics_derivatives(m.q, v, a)
    batch = m.robot.inverse_dynamics_derivatives([m.q, m.q * [np.nan, 1, 1]], v, a)
    assert batch.dtau_dq.shape == batch.dtau_dv.shape == batch.dtau_da.shape == (2, 3, 3)
    assert batch.tau.shape == (2, 3)
    assert np.allclose(batch.dtau_dq[0], one.dtau_dq, rtol=1e-13)
    assert np.isnan(batch.dtau_dq[1]).any()
    tau = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    forward = m.robot.forward_dynamics_derivatives(m.q, v, tau)
    assert forward.a.shape == (2, 3)
    assert forward.da_dtau.shape == forward.da_dq.shape == (2, 3, 3)
    both = m.robot.evaluate(["forward_dynamics", "forward_dynamics_derivatives"], q=m.q, v=v, tau=tau[0])
    assert np.allclose(both["forward_dynamics_derivatives"].da_dq, forward.da_dq[0], rtol=1e-13)


def test_over_the_wire() -> None:
    m = slider_crank()
    robot, q = m.robot, m.q
    v, a = state(m)
    tau, p = robot.inverse_dynamics(q, v, a), robot.momentum(q, v)
    calls: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
        ("constraint_bases", (), {}),
        ("constraint_bases", (), {"joints": ["wrist_pin", "pin"]}),
        ("inverse_dynamics_derivatives", (q, v, a), {}),
        ("forward_dynamics_derivatives", (q, v, tau), {}),
        ("inverse_dynamics_regressor", (q, v, a), {}),
        ("operational_space", (q, "slider"), {"directions": ["x"]}),
        ("independent_motion", (q, v), {}),
        ("hamiltonian_flow", (q, p, tau), {}),
        ("system_momentum_rate", (q, v, a), {}),
        ("body_recursion", (q, v, a), {}),
        ("passive_forces", (q, v), {}),
    )
    with (
        Server([robot], endpoints=["tcp://127.0.0.1:0"], workers=1) as server,
        Client(server.endpoints[0], timeout_s=WAIT_MS / 1e3) as client,
    ):
        remote = client.robot("slider_crank")
        for query, arguments, options in calls:
            here, there = (getattr(x, query)(*arguments, **options) for x in (robot, remote))
            for field, value in vars(here).items():
                other = getattr(there, field)
                assert value == other if isinstance(value, tuple) else np.array_equal(value, other), (query, field)
        assert remote.constraint_basis("wrist_pin").shape == (6, 5)
        with pytest.raises(FailedPreconditionError, match="cannot move in all of the selected directions"):
            remote.operational_space(q, "slider")


@pytest.mark.parametrize("query", [query for query, answer in ANSWERS.items() if answer.function])
def test_a_prepared_query_compiles_no_kernel_when_it_is_called(query: str) -> None:
    m = slider_crank()
    v, a = state(m)
    q, tau, p = m.q, m.robot.inverse_dynamics(m.q, v, a), m.robot.momentum(m.q, v)
    inputs = {"q": q, "v": v, "a": a, "tau": tau, "p": p, "link": "slider", "kp": 1.0, "kd": 1.0}
    inputs |= {"q_ref": q, "v_ref": v, "a_ref": a, "dt": 1e-3}
    robot = Robot(m.description)
    robot.prepare([query])
    kernels = set(robot.evaluator.certificates)
    row = QUERIES[query]
    robot.evaluate(query, **{name: inputs[name] for name in row.required})
    assert set(robot.evaluator.certificates) == kernels


def test_the_page_lists_each_query_where_it_belongs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "closed-loops.md").read_text(encoding="utf-8")
    section = page.split("## Queries")[1].split("\n## ")[0]
    parts = re.split(r"^(?:Answered with|Of the tree|Refused).*:$", section, flags=re.MULTILINE)[1:]
    listed = [
        {name for row in re.findall(r"^\|(.*?)\|", part, re.MULTILINE) for name in re.findall(r"`(\w+)", row)}
        for part in parts
    ]
    for row in QUERIES.values():
        refused = {bool(refusal_of(row, method)) for method in row.kernels}
        places = {0} if answer_of(row).function or row.name == "constraint_bases" else {2 if x else 1 for x in refused}
        assert {k for k, names in enumerate(listed) if row.name in names} == places, row.name
