"""The touched link and its wrench, from efforts and loads of known wrenches."""

import numpy as np
import pytest

from dyn_service import Robot, Wrench
from dyn_service.control.law import RobotState
from dyn_service.control.laws.touch import BranchObserver, TouchFinder
from dyn_service.errors import FailedPreconditionError, NotFoundError
from tests.conftest import URDF

POSE = np.array([0.0, -0.3, 0.0, -1.8, 0.0, 1.6, 0.5, 0.02])


@pytest.fixture(scope="module")
def panda() -> Robot:
    return Robot.from_urdf(URDF / "panda.urdf")


def test_each_link_of_an_arm_and_its_wrench(panda: Robot) -> None:
    finder, rng = TouchFinder(panda), np.random.default_rng(0)
    poses = panda.link_poses(POSE)
    for link in panda.link_names:
        wrench = 10.0 * rng.normal(size=6)
        push = Wrench(link, torque=wrench[:3], force=wrench[3:])
        zero, g = np.zeros(panda.nv), (0.0, 0.0, 0.0)
        residual = -panda.inverse_dynamics(POSE, zero, zero, gravity=g, passive=False, wrenches=push)
        touch = finder.touch(POSE, residual, np.full(panda.nv, 0.01))
        if link == "panda_link0":
            assert touch is None
            continue
        assert touch is not None
        # both fingers move by one velocity
        assert link in (touch.link, *touch.same_joints)
        assert touch.rank == min(6, np.count_nonzero(np.abs(residual) > 0.01))
        if touch.rank == 6 and "finger" not in link:
            arm = poses.position[panda.link_names.index(link)] - poses.position[panda.link_names.index(touch.link)]
            at_link = np.concatenate([wrench[:3] + np.cross(arm, wrench[3:]), wrench[3:]])
            np.testing.assert_allclose(touch.wrench, at_link, atol=1e-9)
    assert finder.touch(POSE, np.full(panda.nv, np.nan), np.ones(panda.nv)) is None


def observed(panda: Robot, joint: str, push: Wrench, gain: float = 400.0) -> np.ndarray:
    """The estimates (600, 6) of a sensor at the joint of a moving arm, which is pushed from 0.3 s on."""
    observer, rows = BranchObserver(panda, joint, gain), []
    w, size = np.pi, np.array([0.4] * 7 + [0.0])
    for t in np.arange(600) * 1e-3:
        phase = w * t + np.arange(8)
        q, v, a = POSE + size * np.sin(phase), size * w * np.cos(phase), -size * w * w * np.sin(phase)
        wrenches = [push] if t >= 0.3 else []
        tau = panda.inverse_dynamics(q, v, a, wrenches=wrenches)
        load = panda.constraint_forces(q, v, tau, joints=[joint], wrenches=wrenches).wrench[0]
        rows.append(observer.update(RobotState(t, q, v, tau), load, 1e-3))
    return np.array(rows)


def test_a_sensor_knows_the_whole_wrench_on_the_branch_beyond_it(panda: Robot) -> None:
    push = Wrench("panda_link6", force=(5.0, -3.0, 8.0), torque=(0.5, 0.2, -0.1))
    estimate = observed(panda, "panda_joint4", push)
    # The trapezoidal rule in 1 ms at 0.5 Hz: some 1e-5 N; any term of (P.1g) left out is some 0.01 N m.
    np.testing.assert_allclose(estimate[:300], 0.0, atol=1e-4)
    t = 0.599
    q = POSE + np.array([0.4] * 7 + [0.0]) * np.sin(np.pi * t + np.arange(8))
    position = panda.link_poses(q).position
    arm = position[panda.link_names.index("panda_link6")] - position[panda.link_names.index("panda_link4")]
    np.testing.assert_allclose(estimate[-1, 3:], push.force, atol=1e-3)
    # The arm moves by some mm in the filter's 2.5 ms.
    np.testing.assert_allclose(estimate[-1, :3], np.cross(arm, push.force) + push.torque, atol=0.03)
    distal = observed(panda, "panda_joint7", push)
    np.testing.assert_allclose(distal, 0.0, atol=1e-4)


def test_the_observer_is_a_trapezoidal_filter(panda: Robot) -> None:
    """(1 + k dt / 2) R' = (1 - k dt / 2) R + k dt F: with k dt = 2 a push is half known in the step in which it begins,
    by the trapezoidal mean of its ends, and whole in the next.
    """
    push = Wrench("panda_link7", force=(5.0, -3.0, 8.0))
    observer, zero = BranchObserver(panda, "panda_joint7", 400.0), np.zeros(8)
    loads = []
    for wrenches in ([], [push]):
        tau = panda.inverse_dynamics(POSE, zero, zero, wrenches=wrenches)
        loads.append(panda.constraint_forces(POSE, zero, tau, joints=["panda_joint7"], wrenches=wrenches).wrench[0])
    rows = [observer.update(RobotState(0.0, POSE, zero, zero), loads[k], 5e-3).copy() for k in (0, 0, 1, 1, 1)]
    np.testing.assert_allclose(np.array(rows)[:, 3:], np.outer([0.0, 0.0, 0.5, 1.0, 1.0], push.force), atol=1e-9)


def test_a_follower_in_the_same_chain_feels_no_more_than_its_leader() -> None:
    body = '<inertial><mass value="1"/><inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial>'
    rest = '<axis xyz="0 1 0"/><limit lower="-2" upper="2" velocity="2" effort="9"/>'
    robot = Robot.from_text(
        f'<robot name="r"><link name="base"/><link name="near">{body}</link><link name="far">{body}</link>'
        f'<joint name="a" type="revolute"><parent link="base"/><child link="near"/>{rest}</joint>'
        '<joint name="b" type="revolute"><parent link="near"/><child link="far"/><origin xyz="0 0 1"/>'
        f'{rest}<mimic joint="a"/></joint></robot>'
    )
    touch = TouchFinder(robot).touch(np.zeros(1), np.ones(1), np.zeros(1))
    assert touch is not None
    assert (touch.link, touch.same_joints) == ("near", ("far",))


def test_refusals(panda: Robot) -> None:
    delta = Robot.from_urdf(URDF / "delta.urdf")
    with pytest.raises(FailedPreconditionError, match="closed loops"):
        TouchFinder(delta)
    with pytest.raises(FailedPreconditionError, match="closed loops"):
        BranchObserver(delta, delta.joint_names[0], 50.0)
    with pytest.raises(NotFoundError, match="nose"):
        BranchObserver(panda, "nose", 50.0)
