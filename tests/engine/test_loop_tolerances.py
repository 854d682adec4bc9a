"""Closed loops at the edges of what is computed: positions where drives cannot act, tolerances, sizes far apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dyn_service import Overlay, Robot
from dyn_service.engine.loops.closed_loops import ClosedLoops
from dyn_service.engine.loops.computations import cost
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.model.description import Description, LoopJoint
from tests.loops import Array, Mechanism, four_bar, random_mechanism, slider_crank, with_drives
from tests.random_robots import random_urdf


def mounted(m: Mechanism, xyz: Sequence[float], *, kind: str = "fixed", scale: float = 1.0) -> Robot:
    """The mechanism with its lengths scaled, on a joint at xyz of a further link."""
    d = m.description
    joints = tuple(replace(joint, xyz=scale * joint.xyz) for joint in d.joints)
    loops = tuple(
        replace(loop, parent_xyz=scale * loop.parent_xyz, child_xyz=scale * loop.child_xyz) for loop in d.loop_joints
    )
    mount = replace(d.joints[0], name="mount", type=kind, parent="earth", child=d.links[0].name, xyz=np.array(xyz))
    earth = replace(d.links[0], name="earth", inertial=None)
    return Robot(replace(d, links=(earth, *d.links), joints=(mount, *joints), loop_joints=loops))


def loops_of(robot: Robot) -> ClosedLoops:
    loops = robot.evaluator.closed_loops
    assert loops is not None
    return loops


@pytest.mark.parametrize("angle", [0.0, np.pi])
def test_drives_that_cannot_move_the_robot(angle: float) -> None:
    """In line, the slide cannot turn the crank: rounding in J_c is no transmission."""
    m = slider_crank(angle, driven=("slide",))
    robot, zeros = m.robot, np.zeros(3)
    for query, arguments in (("gravity_forces", ()), ("inverse_dynamics", (zeros, zeros))):
        with pytest.raises(FailedPreconditionError, match="drives cannot cause"):
            getattr(robot, query)(m.q, *arguments)
    with pytest.raises(FailedPreconditionError, match="'slide' do not determine"):
        robot.independent_motion(m.q, zeros, independent=["slide"])
    idle = robot.independent_motion(m.q, zeros, independent=["crank_joint"]).idle_efforts
    assert np.allclose(idle, np.diag([0.0, 0.0, 1.0]), rtol=0, atol=1e-15)
    with pytest.raises(FailedPreconditionError):
        robot.inverse_dynamics_derivatives(m.q, zeros, zeros)
    floating = Robot(replace(m.description, root="floating"))
    q, v = np.concatenate([[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], m.q]), np.zeros(9)
    falling = floating.forward_dynamics(q, v, v)
    assert np.allclose(falling[:3], [0.0, 0.0, -9.81], rtol=0, atol=1e-9)
    assert np.abs(floating.inverse_dynamics(q, v, falling)).max() < 1e-9


def test_transmissions_near_singular_positions() -> None:
    """At 1e-6 rad from the position in line the slide's effort is large, and right."""
    angle = np.pi - 1e-6
    m = slider_crank(angle, driven=("slide",))
    by_crank = slider_crank(angle)
    transmission = by_crank.robot.independent_motion(m.q, np.zeros(3), independent=["crank_joint"]).jacobian[2, 0]
    tau = by_crank.robot.gravity_forces(m.q)[0]
    assert m.robot.gravity_forces(m.q)[2] == pytest.approx(tau / transmission, rel=1e-8)


def test_positions_that_are_nan() -> None:
    m = slider_crank()
    motion = m.robot.independent_motion([m.q, [np.nan] * 3], np.zeros(3), independent=["slide"])
    assert np.isfinite(motion.jacobian[0]).all()
    for x in (motion.jacobian, motion.bias_accelerations, motion.mass_matrix, motion.bias_forces, motion.freedom):
        assert np.isnan(x[1]).all()


# Lengths of loops.


@pytest.mark.parametrize(("xyz", "scale"), [([5e5, 4e6, 0.0], 1.0), ([100.0, 0.0, 0.0], 0.01)])
def test_mounts_with_large_offsets(xyz: list[float], scale: float) -> None:
    m = four_bar()
    robot = mounted(m, xyz, scale=scale)
    q = robot.assemble([0.7, 0.1, 1.4])
    rounding = 4.0 * np.spacing(np.linalg.norm(xyz)) / (0.2 * scale)
    assert np.allclose(q, m.robot.assemble([0.7, 0.1, 1.4]), rtol=0, atol=1e3 * rounding)
    motion, reference = (r.independent_motion(q, np.zeros(3), independent=["pin_0"]) for r in (robot, m.robot))
    assert motion.freedom == 1.0
    assert np.allclose(motion.jacobian, reference.jacobian, rtol=0, atol=1e3 * rounding)
    with pytest.raises(InvalidArgumentError, match="q leaves the loop of joint 'pin_3' open"):
        robot.mass_matrix(q + np.array([0.0, 0.0, 1e-4]))


def test_a_small_loop_on_a_large_robot() -> None:
    m = four_bar()
    robot = mounted(m, [20.0, 0.0, 0.0], kind="continuous", scale=0.002)
    q = robot.assemble([0.3, 0.7, 0.1, 1.4])
    assert np.allclose(q, [0.3, *m.robot.assemble([0.7, 0.1, 1.4])], rtol=0, atol=1e-7)
    with pytest.raises(InvalidArgumentError, match="open"):
        robot.mass_matrix(q + np.array([0.0, 0.0, 0.0, 1e-4]))
    # The crane's rotation does not loosen the check of the gripper's velocities.
    with pytest.raises(InvalidArgumentError, match="v opens the loop of joint 'pin_3'"):
        robot.energy(q, [1e3, 0.0, 0.0, 1e-4])
    v = robot.independent_motion(q, np.zeros(4)).jacobian @ [1e3, 1e-4]
    robot.forward_dynamics(q, v, np.zeros(4))


def test_travel_longer_than_the_offsets() -> None:
    """Slides of 10 m with offsets of 1 mm, whose ends are pinned."""
    joints, limit = "", '<limit lower="0" upper="10" effort="1" velocity="1"/>'
    links = '<link name="ground"/>'
    inertia = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
    for name, parent, kind, axis in (
        ("x", "ground", "prismatic", "1 0 0"), ("z", "x", "prismatic", "0 0 1"), ("tool", "z", "revolute", "0 -1 0"),
        ("x2", "ground", "prismatic", "1 0 0"), ("z2", "x2", "prismatic", "0 0 1"),
    ):  # fmt: skip
        links += f'<link name="{name}">{inertia}</link>'
        joints += (
            f'<joint name="to_{name}" type="{kind}"><parent link="{parent}"/><child link="{name}"/>'
            f'<origin xyz="0.001 0 0"/><axis xyz="{axis}"/>{limit}</joint>'
        )
    description = Robot.from_urdf(f'<robot name="gantry">{links}{joints}</robot>').evaluator.model.description
    pin = LoopJoint(
        "pin", "revolute", "tool", "z2", np.array([1e-3, 0.0, 0.0]), np.eye(3), np.zeros(3), np.eye(3),
        np.array([0.0, -1.0, 0.0]),
    )  # fmt: skip
    robot = Robot(replace(description, loop_joints=(pin,)))
    q = robot.assemble([robot.random_configuration(seed=seed) for seed in range(10)])
    assert np.abs(robot.loop_error(q)).max() < 1e-12
    with pytest.raises(InvalidArgumentError, match=r"closed are at most 1e-09 m"):
        robot.mass_matrix(q[0] + 1e-6 * np.eye(5)[0])


def test_unrelated_joints_do_not_loosen_checks() -> None:
    d = slider_crank().description
    fan = replace(d.joints[0], name="fan_joint", child="fan")
    robot = Robot(replace(d, links=(*d.links, replace(d.links[1], name="fan")), joints=(*d.joints, fan)))
    q = np.zeros(4)
    for name, x in zip(slider_crank().robot.joint_names, slider_crank().q, strict=True):
        q[robot.joint_names.index(name)] = x
    v = np.zeros(4)
    v[robot.joint_names.index("fan_joint")] = 1e6
    robot.energy(q, v)
    v[robot.joint_names.index("crank_joint")] = 1e-2
    with pytest.raises(InvalidArgumentError, match="v opens the loop"):
        robot.energy(q, v)


# Tolerances, from both sides; they are numbers here, so that a change of the constants fails.


@pytest.mark.parametrize(("share", "refused"), [(0.9, False), (1.1, True)])
def test_tolerances_of_states(share: float, refused: bool) -> None:
    m = slider_crank()
    robot, loops, zeros = m.robot, loops_of(m.robot), np.zeros(3)
    v = robot.independent_motion(m.q, zeros).jacobian[:, 0]
    state, length = loops.joints.state(m.q, v), 0.5
    a = robot.independent_motion(m.q, v).bias_accelerations + v
    slide = share * 1e-6 * length * np.array([0.0, 0.0, 1.0])
    motion = float(loops.moved(state, v)[0])
    acceleration = float((loops.moved(state, a) + state.bias_size + loops.moved(state, v, 2))[0])
    for query, arguments in (
        ("mass_matrix", (m.q + slide,)),
        ("energy", (m.q, v + motion * slide)),
        ("inverse_dynamics", (m.q, v, a + acceleration * slide)),
    ):
        if refused:
            with pytest.raises(InvalidArgumentError, match="opens the loop|leaves the loop"):  # noqa: RUF043
                getattr(robot, query)(*arguments)
        else:
            getattr(robot, query)(*arguments)


@pytest.mark.parametrize(("share", "refused"), [(0.5e-8, False), (2e-8, True)])
def test_tolerance_of_efforts(share: float, refused: bool) -> None:
    m = random_mechanism(2)
    robot = Robot(with_drives(m.description, m.robot.joint_names[:1]))
    loops, zeros = loops_of(robot), np.zeros(robot.nv)
    falling = robot.forward_dynamics(m.q, zeros, zeros)
    G = robot.independent_motion(m.q, zeros).jacobian
    change = G @ np.random.default_rng(1).normal(size=G.shape[1])
    N_T = loops.simulation.basis(m.q).T
    B = N_T * loops.driven
    M, static = loops.simulation.tree_inertia(m.q), tree_efforts(robot, m.q, zeros)
    h = M @ falling + static
    sizes = np.abs(N_T) @ (np.abs(h) + np.abs(static) + np.abs(M) @ np.abs(falling))
    required = N_T @ M @ change
    missing = np.abs(required - B @ np.linalg.pinv(B) @ required).max() / sizes.max()
    a = falling + share / missing * change
    if refused:
        with pytest.raises(FailedPreconditionError, match="the drives cannot cause this motion"):
            robot.inverse_dynamics(m.q, zeros, a)
    else:
        robot.inverse_dynamics(m.q, zeros, a)


def tree_efforts(robot: Robot, q: Array, a: Array) -> Array:
    """Efforts of the tree at rest without its loops."""
    tree: Description = replace(robot.evaluator.model.description, loop_joints=())
    return Robot(tree).inverse_dynamics(q, a, a)


# Answers.


def test_locked_joints() -> None:
    m = slider_crank()
    locked = m.robot.overlaid(Overlay(locked=["slide"]))
    for query, arguments in (("loop_error", ()), ("assemble", ()), ("independent_motion", (np.zeros(3),))):
        with pytest.raises(FailedPreconditionError, match=f"{query} has no answer .* an overlay locks joints"):
            getattr(locked, query)(m.q, *arguments)
    chain = Robot.from_urdf(random_urdf(4, movable=5))
    q, name = chain.random_configuration(seed=1), chain.joint_names[1]
    still = chain.overlaid(Overlay(locked=[name]))
    motion = still.independent_motion(q, np.zeros(5))
    assert motion.freedom == 4.0
    assert motion.jacobian.shape == (5, 4)
    assert (motion.jacobian[1] == 0.0).all()
    with pytest.raises(InvalidArgumentError, match=f"'{name}', which an overlay locks"):
        still.independent_motion(q, np.zeros(5), independent=chain.joint_names[:4])


def test_sensors_of_loop_joints_at_other_points() -> None:
    m = slider_crank()
    v, a = m.motion(1)
    at_origin = m.robot.force_torque(m.q, v, a)
    xyz = np.array([0.1, -0.2, 0.3])
    reading = m.robot.force_torque(m.q, v, a, xyz=xyz)
    assert np.allclose(reading.force, at_origin.force, rtol=0, atol=1e-12)
    assert np.allclose(reading.torque, at_origin.torque - np.cross(xyz, at_origin.force), rtol=0, atol=1e-12)
    assert np.abs(reading.torque - at_origin.torque)[-1].max() > 1e-2
    assert m.robot.force_torque(m.q, v, a, xyz=np.ones((0, 3)), rpy=np.ones((0, 3))).force.shape == (0, 4, 3)


@pytest.mark.parametrize("driven", [("crank_joint",), ("crank_joint", "slide")])
def test_position_errors_in_computed_torque(driven: tuple[str, ...]) -> None:
    m = slider_crank(driven=driven)
    v, a_ref = m.motion(1)
    q_ref = m.robot.assemble(m.q + np.array([0.1, 0.0, 0.0]), fixed=["crank_joint"])
    kp, kd = np.full(3, 100.0), np.full(3, 20.0)
    tau = m.robot.computed_torque(m.q, v, q_ref, 0.5 * v, a_ref, kp=kp, kd=kd)
    a = m.robot.forward_dynamics(m.q, v, tau)
    assert a[0] == pytest.approx(a_ref[0] - 0.5 * 20.0 * v[0] + 100.0 * 0.1, rel=1e-10)


def test_screws_after_several_turns() -> None:
    m = slider_crank()
    (wrist,) = m.description.loop_joints
    nut = replace(wrist, name="nut", type="screw", parent="rail", child="crank", parent_xyz=np.zeros(3), pitch=0.02)
    crank = replace(m.description.joints[0], type="cylindrical")
    links = tuple(link for link in m.description.links if link.name in ("rail", "crank"))
    robot = Robot(replace(m.description, links=links, joints=(crank,), loop_joints=(nut,)))
    turns = np.array([-7.3, -0.4, 0.0, 0.7, 3.4])
    angle, shift = 2.0 * np.pi * turns, 0.02 * turns
    q = np.stack([angle, shift] if robot.configuration.joints[0].shifts[1] else [shift, angle], axis=-1)
    assert np.abs(robot.loop_error(q)).max() < 1e-12


def test_numbers_too_large_to_assemble() -> None:
    with pytest.raises(InvalidArgumentError, match="q has a number too large"):
        slider_crank().robot.assemble([1e300] * 3)


def test_the_cost_of_assembly() -> None:
    """Predicted within a factor of four of the processor's time, for a batch whose starts are 0.3 from closed."""
    m = four_bar()
    start = m.q + 0.3 * np.random.default_rng(0).normal(size=(300, 3))
    robot, loops = m.robot, loops_of(m.robot)
    robot.assemble(m.q)
    began = time.thread_time()
    loops.assembly(()).nearest(start)
    duration = time.thread_time() - began
    sizes = {"nv": 3, "nk": 1, "nl": 4}
    predicted = cost(sizes, {"q": start}, {"fixed": None}).work_s
    assert 0.25 * duration < predicted


def test_rounding_of_a_fast_loop_in_a_loop_at_rest() -> None:
    """v and a of `independent_motion` are accepted, although entries of the loop at rest are rounding errors."""
    m = four_bar()
    d, (pin,) = m.description, m.description.loop_joints
    names = {link.name: f"other_{link.name}" for link in d.links[1:]}
    links = (*d.links, *(replace(link, name=names[link.name]) for link in d.links[1:]))
    others = tuple(
        replace(
            joint, name=f"other_{joint.name}", parent=names.get(joint.parent, joint.parent), child=names[joint.child]
        )
        for joint in d.joints
    )
    other_pin = replace(pin, name="other_pin_3", parent=names[pin.parent], child=names[pin.child])
    robot = Robot(replace(d, links=links, joints=(*d.joints, *others), loop_joints=(pin, other_pin)))
    q = robot.assemble([*m.q, *(m.q + 0.3)], fixed=["pin_0", "other_pin_0"])
    for rates in ([1e6, 0.0], [0.0, 1e6]):
        v = robot.independent_motion(q, np.zeros(6)).jacobian @ rates
        a = robot.independent_motion(q, v).bias_accelerations
        robot.energy(q, v)
        assert np.isfinite(robot.inverse_dynamics(q, v, a)).all()
        assert np.isfinite(robot.inverse_dynamics(q, v, robot.forward_dynamics(q, v, np.zeros(6)))).all()
