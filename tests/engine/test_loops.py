"""Robots with closed loops: closed forms, random mechanisms in fifty digits, other cuts of the same loops, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

from dyn_service import AsyncClient, Client, Inertial, Overlay, Robot, Server, Wrench
from dyn_service.engine.loops.joints import CLOSED
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.model.description import Limit, LoopJoint
from tests.loops import Array, Exact, Mechanism, closed, four_bar, random_mechanism, slider_crank, with_drives
from tests.random_robots import random_urdf
from tests.service.conftest import WAIT_MS

SEEDS = range(8)
FIXED = [seed for seed in SEEDS if seed % 3]
WRENCH = Wrench("slider", torque=(0.0, 0.3, 0.0), force=(2.0, 0.0, -1.0), point=(0.1, 0.0, 0.0))


@cache
def mechanism(seed: int) -> Mechanism:
    return random_mechanism(seed)


@cache
def exact_equations(seed: int) -> Exact:
    return Exact(mechanism(seed), mechanism(seed).motion(seed)[0])


def efforts(m: Mechanism, seed: int) -> Array:
    tau = np.random.default_rng(seed).normal(size=m.robot.nv)
    if m.description.root == "floating":
        tau[:6] = 0.0
    return tau


def relative(x: Array, y: Array) -> float:
    return float(np.abs(x - y).max() / np.abs(y).max())


# Closed forms of one degree of freedom: M(th) th-ddot + M'(th) th-dot^2 / 2 + V'(th) = tau.


def crank_bodies(th: Any) -> list[tuple[Any, Any, Any, Any, Any]]:
    """Mass, inertia, x, z and angle of each body of the slider crank, in mpmath."""
    phi = mp.asin(-mpf(2) / 5 * mp.sin(th))
    x = mp.cos(th) / 5 + mp.cos(phi) / 2
    return [
        (mpf(1), mpf("0.04") / 12, mp.cos(th) / 10, mp.sin(th) / 10, th),
        (mpf("0.8"), mpf("0.8") / 4 / 12, mp.cos(th) / 5 + mp.cos(phi) / 4, mp.sin(th) / 5 + mp.sin(phi) / 4, phi),
        (mpf("0.5"), mpf(0), x, mpf(0), mpf(0)),
    ]


def bar_bodies(th: Any) -> list[tuple[Any, Any, Any, Any, Any]]:
    """The same of the four-bar, by the intersection of two circles."""
    a, b, c, g = mpf("0.2"), mpf("0.5"), mpf("0.4"), mpf("0.6")
    x, z = a * mp.cos(th), a * mp.sin(th)
    d = mp.sqrt((g - x) ** 2 + z**2)
    to_ground = mp.atan2(-z, g - x)
    at_coupler = mp.acos((b**2 + d**2 - c**2) / (2 * b * d))
    phi = to_ground + at_coupler
    end_x, end_z = x + b * mp.cos(phi), z + b * mp.sin(phi)
    psi = mp.atan2(end_z, end_x - g)
    return [
        (mpf(1), mpf("0.02"), x / 2, z / 2, th),
        (mpf(1.3), mpf(0.03), x + b / 2 * mp.cos(phi), z + b / 2 * mp.sin(phi), phi),
        (mpf(1.6), mpf("0.04"), g + c / 2 * mp.cos(psi), c / 2 * mp.sin(psi), psi),
    ]


def closed_form(bodies: Callable[[Any], list[Any]], th: float, rate: float) -> tuple[float, float, float]:
    """Effective inertia, weight V' and acceleration without torque at th and its rate, in fifty digits."""

    def inertia(x: Any) -> Any:
        count = range(len(bodies(x)))
        slopes = [[mp.diff(lambda y, k=k, i=i: bodies(y)[k][i], x) for i in (2, 3, 4)] for k in count]
        return sum(
            body[0] * (slope[0] ** 2 + slope[1] ** 2) + body[1] * slope[2] ** 2
            for body, slope in zip(bodies(x), slopes, strict=True)
        )

    with mp.workdps(50):
        x = mpf(th)
        M = inertia(x)
        weight = mp.diff(lambda y: sum(mpf(9.81) * body[0] * body[3] for body in bodies(y)), x)
        a = -(mp.diff(inertia, x) * mpf(rate) ** 2 / 2 + weight) / M
        return float(M), float(weight), float(a)


@pytest.mark.parametrize("rate", [0.0, 2.0])
@pytest.mark.parametrize(("make", "bodies"), [(slider_crank, crank_bodies), (four_bar, bar_bodies)])
def test_against_the_closed_form(make: Callable[[], Mechanism], bodies: Any, rate: float) -> None:
    m = make()
    robot, q = m.robot, m.q
    M, weight, a = closed_form(bodies, float(q[0]), rate)
    motion = robot.independent_motion(q, np.zeros(3))
    assert motion.mass_matrix == pytest.approx(M, rel=1e-12)
    assert robot.gravity_forces(q) == pytest.approx([weight, 0.0, 0.0], rel=1e-12, abs=1e-12)
    v = rate * motion.jacobian[:, 0]
    assert robot.forward_dynamics(q, v, np.zeros(3))[0] == pytest.approx(a, rel=1e-12)
    holding_tau = robot.bias_forces(q, v)
    assert holding_tau == pytest.approx([-a * M, 0.0, 0.0], rel=1e-12, abs=1e-12)
    moving = robot.independent_motion(q, v)
    assert robot.inverse_dynamics(q, v, moving.bias_accelerations) == pytest.approx(holding_tau, rel=1e-12)
    assert moving.bias_forces == pytest.approx(holding_tau[:1], rel=1e-12)
    tracked = {"kp": 9.0, "kd": 4.0}
    tau = robot.computed_torque(q, v, q, 0 * v, 0 * v, **tracked)
    assert tau[0] == pytest.approx(holding_tau[0] - 4.0 * rate * M, rel=1e-12)


def test_the_figures_of_the_slider_crank() -> None:
    """Worked by hand, with ten digits: g r cos(th) (m1 + m2) / 2 holds the crank."""
    m = slider_crank()
    G = m.robot.independent_motion(m.q, np.zeros(3)).jacobian[:, 0]
    still, zeros = m.robot.forward_dynamics(m.q, 0 * G, 0 * G), np.zeros(3)
    assert m.robot.independent_motion(m.q, zeros).mass_matrix[0, 0] == pytest.approx(0.06755829322, abs=1e-11)
    assert m.robot.inverse_dynamics(m.q, zeros, zeros) == pytest.approx([0.8829, 0.0, 0.0], abs=1e-13)
    assert still[0] == pytest.approx(-13.0687138159, rel=2e-10)
    assert m.robot.forward_dynamics(m.q, 2.0 * G, zeros)[0] == pytest.approx(-13.8918682666, rel=1e-7)  # by differences


# Random mechanisms.


@pytest.mark.parametrize("seed", SEEDS)
def test_forward_and_inverse_dynamics_in_fifty_digits(seed: int) -> None:
    m = mechanism(seed)
    robot, q = m.robot, m.q
    v, a = m.motion(seed)
    tau, exact = efforts(m, seed), exact_equations(seed)
    assert np.abs(robot.loop_error(q)).max() < 1e-14
    assert relative(robot.forward_dynamics(q, v, tau), exact.forward(tau)) < 1e-12
    motion = robot.independent_motion(q, v)
    assert motion.jacobian.shape == (robot.nv, motion.freedom)
    assert np.allclose(motion.selection @ motion.jacobian, np.eye(int(motion.freedom)), atol=1e-12)
    rate = motion.selection @ robot.forward_dynamics(q, v, tau)
    power = motion.mass_matrix @ rate + motion.bias_forces
    assert relative(power, motion.jacobian.T @ tau) < 1e-11
    if m.description.root == "fixed":
        assert relative(exact.forward(robot.inverse_dynamics(q, v, a)), a) < 1e-12
        # of all efforts with this motion those with the least squares
        N = np.linalg.svd(motion.jacobian.T)[2][int(motion.freedom) :]
        assert np.abs(N @ robot.inverse_dynamics(q, v, a)).max() < 1e-10


@pytest.mark.parametrize("seed", SEEDS)
def test_loads_balance_every_link(seed: int) -> None:
    """Loads of inboard, outboard and loop joints, weight and wrench on each link are what its motion needs."""
    m = mechanism(seed)
    robot, q = m.robot, m.q
    v, _ = m.motion(seed)
    tau = efforts(m, seed)
    link = m.description.links[-1].name
    wrench = Wrench(link, torque=(1.0, 2.0, -1.0), force=(3.0, 1.0, 2.0), point=(0.1, 0.2, 0.3))
    a = robot.forward_dynamics(q, v, tau, wrenches=wrench)
    loads = robot.constraint_forces(q, v, tau, wrenches=wrench, frame="world")
    assert loads.joints == robot.all_joint_names
    poses = robot.link_poses(q)
    place = dict(zip(poses.links, zip(poses.rotation, poses.position, strict=True), strict=True))
    inertial_forces = exact_equations(seed).body_forces(v, a)
    force, moment = ({name: np.zeros(3) for name in place} for _ in range(2))

    def push(name: str, at: Array, f: Array, n: Array) -> None:
        force[name] += f
        moment[name] += n + np.cross(at, f)

    for joint in (*m.description.joints, *m.description.loop_joints):
        n, f = np.split(loads.wrench[loads.joints.index(joint.name)], 2)
        R, p = place[joint.child]
        at = p + R @ joint.child_xyz if isinstance(joint, LoopJoint) else p
        push(joint.child, at, f, n)
        push(joint.parent, at, -f, -n)
    R, p = place[link]
    push(link, p + R @ np.array(wrench.point), np.array(wrench.force), np.array(wrench.torque))
    root = poses.links[0]
    for name in place:
        f, n = np.zeros(3), np.zeros(3)
        if name in inertial_forces:
            c, f, n = inertial_forces[name]
            n = n + np.cross(c, f)
        if name != root or m.description.root == "floating":
            scale = np.abs(loads.wrench).max()
            assert np.abs(force[name] - f).max() < 1e-11 * scale
            assert np.abs(moment[name] - n).max() < 1e-11 * scale


@pytest.mark.parametrize("seed", SEEDS)
def test_loads_do_no_work_and_are_the_least(seed: int) -> None:
    m = mechanism(seed)
    robot, q = m.robot, m.q
    v, a = m.motion(seed)
    tau = efforts(m, seed)
    acceleration = robot.forward_dynamics(q, v, tau)
    tree_tau = Robot(replace(m.description, loop_joints=())).inverse_dynamics(q, v, acceleration)
    assert abs((tree_tau - tau) @ v) < 1e-11 * np.abs(tree_tau).max() * np.abs(v).max()
    if m.description.root == "fixed":
        loads = robot.force_torque(q, v, a)
        tau = robot.inverse_dynamics(q, v, a)
        forces = robot.constraint_forces(q, v, tau)
        assert np.allclose(loads.force, forces.wrench[..., 3:], rtol=0, atol=1e-10 * np.abs(forces.wrench).max())
        assert np.allclose(loads.torque, forces.wrench[..., :3], rtol=0, atol=1e-10 * np.abs(forces.wrench).max())


# Other cuts of the same loops.


def other_cut(m: Mechanism, leaf: str) -> Mechanism:
    """The mechanism in which the loop joint at a leaf's frame carries the leaf, and its inboard joint closes the loop.

    At m.q the loop joint is at its zero.
    """
    description = m.description
    (closing,) = description.loop_joints
    inboard = next(joint for joint in description.joints if joint.child == leaf)
    assert closing.child == leaf
    assert not any(joint.parent == leaf for joint in description.joints)
    R, p = closing.child_rotation, closing.child_xyz
    link = next(link for link in description.links if link.name == leaf)
    assert link.inertial is not None
    moved = replace(link.inertial, com=R.T @ (link.inertial.com - p), rotation=R.T @ link.inertial.rotation)
    carrying = replace(
        inboard,
        name=closing.name,
        type=closing.type,
        parent=closing.parent,
        xyz=closing.parent_xyz,
        rotation=closing.parent_rotation,
        axis=closing.axis,
        driven=False,
    )
    now_closing = LoopJoint(
        inboard.name, inboard.type, inboard.parent, leaf, inboard.xyz, inboard.rotation, -R.T @ p, R.T, inboard.axis
    )
    joints = tuple(carrying if joint is inboard else joint for joint in description.joints)
    links = tuple(replace(x, inertial=moved) if x is link else x for x in description.links)
    robot = Robot(replace(description, links=links, joints=joints, loop_joints=(now_closing,)))
    q_of = dict(zip(m.robot.joint_names, m.q, strict=True))
    return Mechanism(robot, np.array([q_of.get(name, 0.0) for name in robot.joint_names]))


def zeroed(m: Mechanism) -> Mechanism:
    """The mechanism with the zero of its loop joint at q."""
    (joint,) = m.description.loop_joints
    poses = m.robot.link_poses(m.q)
    R_P, R_C = (poses.rotation[poses.links.index(link)] for link in (joint.parent, joint.child))
    turned = replace(joint, parent_rotation=R_P.T @ R_C @ joint.child_rotation)
    return Mechanism(Robot(replace(m.description, loop_joints=(turned,))), m.q)


def closed_chain(seed: int) -> Mechanism:
    """A random spatial chain of seven bars from the ground, the last of which is on a second joint to the ground."""
    rng = np.random.default_rng(seed)
    description = Robot.from_urdf(
        random_urdf(seed, movable=7, types=("revolute",), bushy=0.0)
    ).evaluator.model.description
    joints = tuple(replace(joint, limit=None) for joint in description.joints)
    *chain, last = (joint for joint in joints if joint.moves.nv)
    tip = chain[-1].child
    joints = tuple(replace(joint, parent=description.links[0].name) if joint is last else joint for joint in joints)
    leaves = {link.name for link in description.links} - {joint.parent for joint in joints}
    description = replace(description, joints=joints)
    robot = Robot(description)
    q = robot.random_configuration(seed=seed)
    leaf = last.child
    while leaf not in leaves:
        leaf = next(joint.child for joint in joints if joint.parent == leaf)
    poses = robot.link_poses(q)
    place = dict(zip(poses.links, zip(poses.rotation, poses.position, strict=True), strict=True))
    (R_P, p_P), (R_C, p_C) = place[tip], place[leaf]
    p_JC, R_JC = rng.uniform(-0.3, 0.3, 3), np.linalg.qr(rng.normal(size=(3, 3)))[0]
    R_JC *= np.linalg.det(R_JC)
    joint = LoopJoint(
        "closing", "revolute", tip, leaf, R_P.T @ (p_C + R_C @ p_JC - p_P), R_P.T @ R_C @ R_JC, p_JC, R_JC,
        np.array([0.0, 0.6, 0.8]),
    )  # fmt: skip
    return Mechanism(Robot(with_drives(replace(description, loop_joints=(joint,)), [chain[0].name, chain[1].name])), q)


CUTS: dict[str, Callable[[], Mechanism]] = {
    "four-bar": lambda: zeroed(four_bar()),
    "slider crank": lambda: zeroed(slider_crank()),
    "spatial 3": lambda: closed_chain(3),
    "spatial 5": lambda: closed_chain(5),
}


@pytest.mark.parametrize("name", CUTS)
def test_the_choice_of_the_cut_does_not_matter(name: str) -> None:
    m = CUTS[name]()
    other = other_cut(m, m.description.loop_joints[0].child)
    robots, states = (m.robot, other.robot), []
    names = [name for name in m.robot.joint_names if name in other.robot.joint_names]
    u = np.random.default_rng(0).normal(size=8)
    # Across the plane of planar ones, where the loads are not unique.
    off_plane = Wrench(m.description.loop_joints[0].parent, torque=(1.0, 0.5, -2.0), force=(0.5, 3.0, 1.0))
    for robot, q in zip(robots, (m.q, other.q), strict=True):
        assert np.abs(robot.loop_error(q)).max() < 1e-13
        first = [name for name in names if name in robot.joint_names][
            : int(robot.independent_motion(q, np.zeros(robot.nv)).freedom)
        ]
        motion = robot.independent_motion(q, np.zeros(robot.nv), independent=first)
        v = motion.jacobian @ u[: len(first)]
        moving = robot.independent_motion(q, v, independent=first)
        a = moving.jacobian @ u[-len(first) :] + moving.bias_accelerations
        tau = robot.inverse_dynamics(q, v, a)
        common = [robot.joint_names.index(name) for name in names]
        drives = 2.0 * robot.evaluator.closed_loops.driven
        forward = robot.forward_dynamics(q, v, drives)
        loads = robot.constraint_forces(q, v, drives, frame="world", wrenches=off_plane)
        order = np.argsort(loads.joints)
        energy = robot.energy(q, v)
        states.append(
            {
                "motion": np.concatenate([v[common], a[common], tau[common], forward[common]]),
                "inertia": moving.mass_matrix,
                "bias": moving.bias_forces,
                "gravity": robot.gravity_forces(q)[common],
                "loads": loads.wrench[order],
                "energy": np.array([energy.kinetic, energy.potential]),
                "momentum": robot.link_motion(q, v, a, frame="world").load[:1],
            }
        )
    for part, value in states[0].items():
        assert relative(states[1][part], value) < 1e-11, part


def test_loads_that_are_not_unique_have_the_least_squares() -> None:
    """A torque about x or z or a force along y passes through all pins of a four-bar without moving it."""
    m = four_bar()
    off_plane = Wrench("bar_1", torque=(1.0, 0.5, -2.0), force=(0.5, 3.0, 1.0))
    zeros = np.zeros(3)
    loads = m.robot.constraint_forces(m.q, zeros, zeros, frame="world", wrenches=off_plane)
    poses = m.robot.link_poses(m.q)
    origins = {f"pin_{k}": poses.position[poses.links.index(f"bar_{k}")] for k in range(3)}
    end = poses.links.index("bar_2")
    origins["pin_3"] = poses.position[end] + poses.rotation[end] @ m.description.loop_joints[0].child_xyz
    for unit in (np.eye(6)[0], np.eye(6)[2], np.eye(6)[4]):
        torque, force = np.split(unit, 2)
        work = 0.0
        for name, load in zip(loads.joints, loads.wrench, strict=True):
            idle = np.concatenate([torque + np.cross(origins["pin_3"] - origins[name], force), force])
            work += (-1.0 if name == "pin_2" else 1.0) * load @ idle
        assert abs(work) < 1e-11 * np.abs(loads.wrench).max()
    assert np.abs(loads.wrench[:, [0, 2, 4]]).min(axis=0).max() > 0.1  # and these are not zero


# Other engines.


@pytest.mark.parametrize("kind", ["spherical", "fixed"])
def test_against_pinocchio(kind: str) -> None:
    pin = pytest.importorskip("pinocchio")
    text = random_urdf(4, movable=9, bushy=0.2)
    description = Robot.from_urdf(text).evaluator.model.description
    robot = Robot(description)
    q = robot.random_configuration(seed=4)
    m = Mechanism(Robot(closed(description, q, [(kind, description.links[0].name, description.links[-1].name)], 4)), q)
    (loop,) = m.description.loop_joints
    v = m.motion(4)[0]
    tau = np.random.default_rng(4).normal(size=robot.nv)
    model = pin.buildModelFromXML(text)
    frame = model.frames[model.getFrameId(loop.child)]
    parent = model.frames[model.getFrameId(loop.parent)]
    sides = [
        (parent.parentJoint, parent.placement * pin.SE3(loop.parent_rotation, loop.parent_xyz)),
        (frame.parentJoint, frame.placement * pin.SE3(loop.child_rotation, loop.child_xyz)),
    ]
    kind_there = pin.ContactType.CONTACT_3D if kind == "spherical" else pin.ContactType.CONTACT_6D
    (j1, M1), (j2, M2) = sides
    constraint = pin.RigidConstraintModel(kind_there, model, j1, M1, j2, M2, pin.ReferenceFrame.LOCAL)
    data, q_there, order = model.createData(), pin.neutral(model), []
    for name, value in zip(robot.joint_names, q, strict=True):
        joint = model.joints[model.getJointId(name)]
        q_there[joint.idx_q : joint.idx_q + joint.nq] = value if joint.nq == 1 else [np.cos(value), np.sin(value)]
        order.append(joint.idx_v)
    v_there, tau_there = np.zeros(model.nv), np.zeros(model.nv)
    v_there[order], tau_there[order] = v, tau
    models, states = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
    models.append(constraint)
    states.append(constraint.createData())
    pin.initConstraintDynamics(model, data, models, states)
    settings = pin.ProximalSettings(1e-14, 1e-10, 100)
    a = pin.constraintDynamics(model, data, q_there, v_there, tau_there, models, states, settings)
    assert relative(m.robot.forward_dynamics(q, v, tau), np.array(a)[order]) < 1e-8


@pytest.mark.parametrize("impedance", [0.999, 0.99999])
def test_against_mujoco_in_the_stiff_limit(impedance: float) -> None:
    """At rest: MuJoCo's constraints lack J-dot v. Their softness is some times 1 - impedance."""
    mujoco = pytest.importorskip("mujoco")
    bar = '<geom type="capsule" fromto="0 0 0 {0} 0 0" size="0.02"/>'
    text = f"""<mujoco model="bars"><option gravity="0 0 -9.81"/><worldbody>
      <body name="a"><joint name="a" axis="0 -1 0"/>{bar.format(0.4)}
        <body name="b" pos="0.4 0 0"><joint name="b" axis="0 -1 0"/>{bar.format(0.5)}</body></body>
      <body name="c" pos="0.6 0 0"><joint name="c" axis="0 -1 0"/>{bar.format(0.3)}</body></worldbody>
      <equality><connect body1="b" body2="c" anchor="0.5 0 0" solimp="{impedance} {impedance} 1"/></equality>
      </mujoco>"""
    robot = Robot.from_text(text)
    q = robot.assemble([0.9, -0.8, 0.8])
    tau = np.array([0.3, 0.0, -0.2])
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    data.qpos[:], data.qfrc_applied[:] = q, tau
    mujoco.mj_forward(model, data)
    assert relative(data.qacc, robot.forward_dynamics(q, np.zeros(3), tau)) < 10.0 * (1.0 - impedance)


# Positions.


def test_assemble() -> None:
    m = slider_crank()
    robot = m.robot
    q = robot.assemble([1.0, -1.2, 0.4])
    assert np.abs(robot.loop_error(q)).max() < 1e-14
    # nearest: the difference to the start is across the motion that keeps the loop closed
    G = robot.independent_motion(q, np.zeros(3)).jacobian[:, 0]
    unit = robot.evaluator.closed_loops.unit
    assert abs(((q - [1.0, -1.2, 0.4]) / unit**2) @ G) < 1e-7
    batch = robot.assemble(np.stack([m.q + 0.1, m.q - 0.05, m.q]).reshape(3, 1, 3), fixed=["crank_joint"])
    assert batch.shape == (3, 1, 3)
    assert np.allclose(batch[:, 0, 0], m.q[0] + [0.1, -0.05, 0.0], rtol=0, atol=0)
    assert np.abs(robot.loop_error(batch)).max() < 1e-14
    assert np.allclose(batch[2, 0], m.q, rtol=0, atol=1e-15)
    with pytest.raises(FailedPreconditionError, match=r"at state \[1\].*'wrist_pin' has a gap of \d\.\d+ m and"):
        robot.assemble([m.q, [1.0, 0.0, 2.0]], fixed=["crank_joint", "slide"])
    with pytest.raises(NotFoundError, match="no movable joint 'crank'") as error:
        robot.assemble(m.q, fixed=["crank"])
    assert error.value.path == "fixed[0]"
    *others, slide = m.description.joints
    narrow = replace(slide, limit=Limit(lower=0.45, upper=0.5))
    limited = Robot(replace(m.description, joints=(*others, narrow))).assemble(m.q)
    assert limited[2] <= 0.5
    assert np.abs(robot.loop_error(limited)).max() < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_assemble_random_mechanisms(seed: int) -> None:
    m = mechanism(seed)
    start = m.robot.configuration.integrate(m.q, 0.02 * np.random.default_rng(seed).normal(size=(5, m.robot.nv)))
    q = m.robot.assemble(start)
    assert np.abs(m.robot.loop_error(q)).max() < 1e-12
    assert np.abs(m.robot.configuration.difference(start, q)).max() < 0.2


def test_robots_without_loops_have_only_independent_velocities() -> None:
    robot = Robot.from_urdf(random_urdf(4, movable=5))
    q, v = robot.random_configuration(seed=1), np.ones((2, 5))
    assert robot.loop_error(q).shape == (0, 6)
    assert (robot.assemble(q) == q).all()
    names = robot.joint_names[::-1]
    motion = robot.independent_motion(q, v, independent=names)
    assert motion.jacobian.shape == motion.mass_matrix.shape == (2, 5, 5)
    assert np.allclose(motion.mass_matrix[0], robot.mass_matrix(q)[::-1, ::-1], rtol=1e-15)
    assert (motion.bias_forces == robot.bias_forces(q, v)[:, ::-1]).all()
    with pytest.raises(InvalidArgumentError, match="independent has 1 velocities, expected 5"):
        robot.independent_motion(q, v, independent=names[:1])


# Refusals.


def test_open_loops_and_motions_that_open_them_are_refused() -> None:
    m = slider_crank()
    robot, q, zeros = m.robot, m.q, np.zeros(3)
    G = robot.independent_motion(q, zeros).jacobian[:, 0]
    open_q = q + np.array([0.0, 0.0, 0.01])
    for query, arguments in (
        ("inverse_dynamics", (zeros, zeros)), ("forward_dynamics", (zeros, zeros)), ("mass_matrix", ()),
        ("link_poses", ()), ("energy", (zeros,)), ("constraint_forces", (zeros, zeros)), ("gravity_forces", ()),
    ):  # fmt: skip
        with pytest.raises(
            InvalidArgumentError, match=r"q leaves the loop of joint 'wrist_pin' open.* gap is 0\.01 m"
        ) as e:
            getattr(robot, query)(open_q, *arguments)
        assert e.value.path == "inputs.q"
    with pytest.raises(InvalidArgumentError, match=r"open at state \[1\]"):
        robot.mass_matrix([q, open_q])
    robot.mass_matrix(q + np.array([0.0, 0.0, 0.9 * CLOSED * robot.evaluator.closed_loops.joints.sizes[0]]))
    torn = [1.0, 0.0, 0.0]
    for query, arguments in (
        ("inverse_dynamics", (torn, zeros)),
        ("forward_dynamics", (torn, zeros)),
        ("energy", (torn,)),
    ):
        with pytest.raises(InvalidArgumentError, match="v opens the loop of joint 'wrist_pin'") as e:
            getattr(robot, query)(q, *arguments)
        assert e.value.path == "inputs.v"
    with pytest.raises(InvalidArgumentError, match="a opens the loop"):
        robot.inverse_dynamics(q, 2.0 * G, zeros)  # J-dot v is not 0
    with pytest.raises(InvalidArgumentError, match="tau of joint 'slide', which has no drive, must be 0, found 3"):
        robot.forward_dynamics(q, zeros, [0.0, 0.0, 3.0])
    with pytest.raises(InvalidArgumentError, match="frame must be"):
        robot.constraint_forces(q, zeros, zeros, frame="x")  # type: ignore[arg-type]
    with pytest.raises(FailedPreconditionError, match="an overlay locks joints"):
        robot.mass_matrix(q, overlay=Overlay(locked=["slide"]))
    refusals: dict[str, Callable[[], Any]] = {
        "equation_terms": lambda: robot.equation_terms(q, zeros, zeros),
        "inverse_dynamics_hessian": lambda: robot.inverse_dynamics_hessian(q, zeros, zeros, zeros),
        "step_derivatives": lambda: robot.step_derivatives(q, zeros, zeros, 1e-3),
        "studies": lambda: robot.study({}, {}),
    }
    for query, call in refusals.items():
        with pytest.raises(FailedPreconditionError, match=f"^{query} has no answer for robot 'slider_crank'"):
            call()


def test_drives() -> None:
    """More drives than freedoms share the effort; without enough, or none stated, there is a reason."""
    m = slider_crank(driven=("crank_joint", "slide"))
    zeros = np.zeros(3)
    tau = m.robot.inverse_dynamics(m.q, zeros, zeros)
    G = m.robot.independent_motion(m.q, zeros).jacobian[:, 0]
    assert tau == pytest.approx(0.8829 * G * [1, 0, 1] / (G[0] ** 2 + G[2] ** 2), rel=1e-12)
    unstated = Robot(replace(m.description, joints=tuple(replace(j, driven=None) for j in m.description.joints)))
    with pytest.raises(FailedPreconditionError, match="no joint of its file is driven"):
        unstated.inverse_dynamics(m.q, zeros, zeros)
    assert np.isfinite(unstated.forward_dynamics(m.q, zeros, [0.0, 1.0, 0.0])).all()
    two = random_mechanism(2)
    weak = Robot(with_drives(two.description, two.robot.joint_names[:1]))
    v, a = two.motion(2)
    with pytest.raises(FailedPreconditionError, match="the drives cannot cause this motion of joint 'joint_"):
        weak.inverse_dynamics(two.q, v, a)
    free_fall = weak.forward_dynamics(two.q, v, 0 * v)
    assert np.abs(weak.inverse_dynamics(two.q, v, free_fall)).max() < 1e-9


def test_links_without_mass_between_others() -> None:
    """The mass matrix of the tree is singular; that of the motions that keep the loop closed is not."""
    m = four_bar()

    def with_coupler(mass: float) -> Robot:
        links = tuple(
            replace(link, inertial=None if not mass else replace(link.inertial, mass=mass, inertia=mass * np.eye(3)))
            if link.name == "bar_1" and link.inertial is not None
            else link
            for link in m.description.links
        )
        return Robot(replace(m.description, links=links))

    v = 2.0 * m.robot.independent_motion(m.q, np.zeros(3)).jacobian[:, 0]
    tau = np.array([0.3, 0.0, 0.0])
    a = with_coupler(0.0).forward_dynamics(m.q, v, tau)
    assert relative(a, with_coupler(1e-9).forward_dynamics(m.q, v, tau)) < 1e-7
    assert np.allclose(with_coupler(0.0).inverse_dynamics(m.q, v, a), tau, rtol=0, atol=1e-12)
    with_coupler(0.0).prepare()


def test_singular_positions_are_reported() -> None:
    """A parallelogram that is flat can also leave as an antiparallelogram: two freedoms at one position."""
    m = four_bar()
    joints = tuple(
        replace(joint, xyz=np.array([0.5, 0.0, 0.0])) if joint.name == "pin_2" else joint
        for joint in m.description.joints
    )
    (pin,) = m.description.loop_joints
    pin = replace(pin, child_xyz=np.array([0.2, 0.0, 0.0]))
    robot = Robot(replace(m.description, joints=joints, loop_joints=(pin,)))
    flat, zeros = np.zeros(3), np.zeros(3)
    assert robot.independent_motion([0.7, -0.7, 0.7], zeros).freedom == 1
    motion = robot.independent_motion(flat, zeros)
    assert motion.freedom == 2
    assert motion.jacobian.shape == (3, 1)
    a = robot.forward_dynamics(flat, zeros, zeros)
    state = robot.evaluator.closed_loops.joints.state(flat, zeros)
    assert np.isfinite(a).all()
    assert np.abs(state.rows @ a + state.bias).max() < 1e-12
    v = np.array([1.0, -1.0, 3.0])  # along neither branch: the second order cannot be closed
    v = v - np.linalg.pinv(state.rows) @ (state.rows @ v)
    with pytest.raises(FailedPreconditionError, match="cannot stay closed at this velocity: J_c is singular"):
        robot.forward_dynamics(flat, v, zeros)


# Calls of all forms.


def test_batches_outputs_lists_overlays_and_nan() -> None:
    m = slider_crank()
    robot = m.robot
    q = robot.assemble(m.q + np.linspace(-0.2, 0.2, 7)[:, None], fixed=["crank_joint"])
    G = robot.independent_motion(q, np.zeros(3)).jacobian[..., 0]
    v, tau = 2.0 * G, np.array([1.0, 0.0, 0.0])
    a = robot.forward_dynamics(q, v, tau, workers=2)
    for k in range(7):
        assert np.allclose(robot.forward_dynamics(q[k], v[k], tau), a[k], rtol=1e-13, atol=1e-13)
    assert np.allclose(robot.inverse_dynamics(q, v, a), tau, rtol=0, atol=1e-12)
    out = np.empty((7, 3))
    assert robot.forward_dynamics(q, v, tau, out=out) is out
    assert (out == a).all()
    answers = robot.evaluate(["forward_dynamics", "mass_matrix", "energy"], q=q, v=v, tau=tau)
    assert (answers["forward_dynamics"] == a).all()
    assert answers["mass_matrix"].shape == (7, 3, 3)
    heavy = Overlay(links={"slider": Inertial(mass=np.array([0.5, 1.0, 2.0]))})
    lead = robot.forward_dynamics(q[0], v[0], tau, overlay=heavy)
    assert lead.shape == (3, 3)
    assert np.allclose(lead[0], a[0], rtol=1e-12)
    assert np.allclose(robot.overlaid(heavy).forward_dynamics(q[0], v[0], tau), lead, rtol=1e-13)
    loads = robot.constraint_forces(q[0], v[0], tau, overlay=heavy)
    assert loads.wrench.shape == (3, 4, 6)
    assert np.allclose(loads.wrench[0], robot.constraint_forces(q[0], v[0], tau).wrench, rtol=0, atol=1e-11)
    pushed = robot.forward_dynamics(q, v, tau, wrenches=WRENCH, gravity=(0.0, 0.0, 0.0))
    assert np.allclose(robot.inverse_dynamics(q, v, pushed, wrenches=WRENCH, gravity=np.zeros(3)), tau, atol=1e-12)
    nan = q.copy()
    nan[3, 0] = np.nan
    with_nan = robot.forward_dynamics(nan, v, tau)
    assert np.isnan(with_nan[3]).all()
    assert (with_nan[[0, 6]] == a[[0, 6]]).all()
    loads = robot.constraint_forces(q, v, tau, joints=["wrist_pin", "pin"])
    assert loads.joints == ("wrist_pin", "pin")
    assert loads.wrench.shape == (7, 2, 6)
    assert robot.constraint_forces(q[:0], v[:0], tau).wrench.shape == (0, 4, 6)
    damped = Robot(replace(m.description, joints=tuple(replace(j, damping=0.5) for j in m.description.joints)))
    assert not np.allclose(damped.forward_dynamics(q, v, tau), a)
    assert np.allclose(damped.forward_dynamics(q, v, tau, passive=False), a, rtol=1e-13)


def test_over_the_wire() -> None:
    m = slider_crank()
    robot, q = m.robot, m.q
    v = 2.0 * robot.independent_motion(q, np.zeros(3)).jacobian[:, 0]
    tau = np.array([1.0, 0.0, 0.0])
    calls: Sequence[tuple[str, tuple[Any, ...]]] = (
        ("forward_dynamics", (q, v, tau)), ("inverse_dynamics", (q, v, robot.forward_dynamics(q, v, tau))),
        ("constraint_forces", (q, v, tau)), ("loop_error", (q,)), ("assemble", (q + 0.01,)), ("link_poses", (q,)),
        ("independent_motion", (q, v)),
    )  # fmt: skip
    with Server([robot], endpoints=["tcp://127.0.0.1:0"], workers=1) as server:
        with Client(server.endpoints[0], timeout_s=WAIT_MS / 1e3) as client:
            remote = client.robot("slider_crank")
            assert remote.description.loop_joints == robot.description.loop_joints
            assert remote.all_joint_names == robot.all_joint_names
            for query, arguments in calls * 2:
                here, there = getattr(robot, query)(*arguments), getattr(remote, query)(*arguments)
                fields = [""] if isinstance(here, np.ndarray) else list(vars(here))
                for field in fields:
                    x, y = ((getattr(z, field) if field else z) for z in (here, there))
                    assert x == y if isinstance(x, tuple) else np.array_equal(x, y), (query, field)
            with pytest.raises(InvalidArgumentError) as there_error:
                remote.mass_matrix(q + 0.1)
            with pytest.raises(InvalidArgumentError) as here_error:
                robot.mass_matrix(q + 0.1)
            assert str(there_error.value) == str(here_error.value)

        async def ask() -> Any:
            async with AsyncClient(server.endpoints[0], timeout_s=WAIT_MS / 1e3) as client:
                remote = await client.robot("slider_crank")
                return await remote.assemble(q), await remote.forward_dynamics(q, v, tau)

        position, a = asyncio.run(ask())
        assert np.array_equal(position, robot.assemble(q))
        assert np.array_equal(a, robot.forward_dynamics(q, v, tau))


def wire_batches(m: Mechanism) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Calls of everything new for loops, with leading axes of states, gravity and overlays, and with none."""
    robot, theta = m.robot, np.linspace(0.2, 1.2, 6)
    q = robot.assemble(np.stack([theta, -1.3 + 0 * theta, -0.1 + 0 * theta], -1), fixed=["crank_joint"])
    q = q.reshape(2, 3, 3)
    v, tau = 2.0 * robot.independent_motion(q, 0.0 * q).jacobian[..., 0], np.array([1.0, 0.0, 0.0])
    a, rest = robot.forward_dynamics(q, v, tau), np.zeros(3)
    gravities, masses = np.ones((4, 3)), Overlay(links={"slider": Inertial(mass=np.array([0.5, 1.0, 2.0]))})
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("independent_motion", (q[0, 0], rest), {"gravity": gravities}),
        ("independent_motion", (q[0, 0], rest), {"overlay": masses}),
        ("independent_motion", (q, v), {"independent": ["slide"], "passive": False}),
        ("assemble", (q + 0.01,), {"fixed": ["crank_joint"]}),
        ("constraint_forces", (q, v, tau), {"joints": ["wrist_pin", "crank_joint"], "frame": "world"}),
        ("constraint_forces", (q[0, 0], rest, tau), {"overlay": masses}),
        ("force_torque", (q, v, a), {"joints": ["wrist_pin"], "xyz": np.ones(3)}),
        ("force_torque", (q, v, a), {"rpy": gravities[:3]}),
    ]
    for lead in (np.s_[:], np.s_[0], np.s_[0, :1], np.s_[0, :0]):
        motions = (q[lead], v[lead], a[lead])
        calls += [
            ("loop_error", motions[:1], {}), ("assemble", motions[:1], {}), ("independent_motion", motions[:2], {}),
            ("constraint_forces", (*motions[:2], tau), {}), ("force_torque", motions, {}), ("link_motion", motions, {}),
        ]  # fmt: skip
    return calls


def test_batches_over_the_wire() -> None:
    robot = slider_crank().robot
    with (
        Server([robot], endpoints=["tcp://127.0.0.1:0"], workers=1) as server,
        Client(server.endpoints[0], timeout_s=WAIT_MS / 1e3) as client,
    ):
        remote = client.robot("slider_crank")
        for query, arguments, options in wire_batches(slider_crank()):
            here, there = (getattr(x, query)(*arguments, **options) for x in (robot, remote))
            for field in [""] if isinstance(here, np.ndarray) else list(vars(here)):
                x, y = ((getattr(z, field) if field else z) for z in (here, there))
                assert x == y if isinstance(x, tuple) else np.array_equal(x, y), (query, field, options)


def test_all_parts_of_an_independent_motion_have_the_axes_of_the_states() -> None:
    free = Robot.from_text(random_urdf(3))
    for robot, q in ((slider_crank().robot, slider_crank().q), (free, free.neutral())):
        motion = robot.independent_motion(np.tile(q, (5, 1)), np.zeros((5, robot.nv)))
        assert {getattr(motion, name).shape[0] for name in vars(motion)} == {5}
        assert motion.selection.shape == (5, *robot.independent_motion(q, np.zeros(robot.nv)).selection.shape)
