"""Poses, velocities, Jacobians, biases and operational-space inertias of points, against Pinocchio and MuJoCo.

Pinocchio has no operational-space inertia for open chains; what ours is held against is J M^-1 J^T of its own J and M.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import mujoco
import numpy as np
import pinocchio as pin
import pytest

from dyn_service.api.spec import DIRECTIONS
from dyn_service.engine.robot import Robot
from dyn_service.model.description import RootType
from tests.conftest import URDF
from tests.oracle.example_robots import SUPPORTED, path_of
from tests.oracle.pinocchio_oracle import Oracle
from tests.oracle.test_mujoco import mujoco_model
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.wide import wide

STATES = 4
FRAMES = {
    "world_aligned": pin.LOCAL_WORLD_ALIGNED,
    "local": pin.LOCAL,
    "world": pin.WORLD,
}
TOLERANCE = 1e-11
"""Relative to the largest entry. Both sides round at 1e-16 of their intermediate results; in links far out on the
random trees, and about the world's origin, these are some thousand times what is left.
"""
SOLVED = 64 * np.finfo(float).eps
"""What is solved with M, or with Omega, parts by rounding times its condition number, as in test_pinocchio.py."""


class Case(NamedTuple):
    """A robot, and Pinocchio's model of it."""

    robot: Robot
    oracle: Oracle


@cache
def case(name: str, root: RootType = "fixed") -> Case:
    xml = random_urdf(int(name)) if name.isdigit() else (URDF / f"{name}.urdf" if "/" not in name else path_of(name))
    text = xml if isinstance(xml, str) else xml.read_text(encoding="utf-8")
    robot = interpreting(text, root=root, mimic=False)
    free = (pin.JointModelFreeFlyer(),) if root == "floating" else ()
    oracle = Oracle.of_model(pin.buildModelFromXML(text, *free))
    assert robot.joint_names[len(free) :] == oracle.joint_names[len(free) :]
    return Case(robot, oracle)


class Points:
    """Random states of a robot, each with a link and a point on it."""

    def __init__(self, name: str, root: RootType = "fixed") -> None:
        self.robot, self.oracle = case(name, root)
        rng = np.random.default_rng(1)
        seeds = range(STATES)
        self.q = np.array([self.robot.random_configuration(seed=k) for k in seeds]).reshape(STATES, -1)
        self.v = rng.normal(size=(STATES, self.robot.nv))
        links = self.robot.link_names[1:] or self.robot.link_names
        self.links = [links[-1], *(str(name) for name in rng.choice(links, STATES - 1))]
        self.points = rng.uniform(-0.5, 0.5, (STATES, 3))

    def position(self, k: int) -> np.ndarray:
        """As Pinocchio takes it; of a floating root both have position and quaternion first."""
        q = self.q[k]
        if self.robot.nq == self.robot.nv:
            return self.oracle.position(q)
        joints = zip(self.oracle.model.joints[2:], q[7:], strict=True)
        rest = [[x] if joint.nq == 1 else [np.cos(x), np.sin(x)] for joint, x in joints]
        return np.concatenate([q[:7], *rest])

    def theirs(self, k: int, frame: str) -> dict[str, np.ndarray]:
        """Pinocchio's answer at one state, angular parts first."""
        model = self.oracle.model.copy()
        of_link = model.frames[model.getFrameId(self.links[k], pin.FrameType.BODY)]
        placed = of_link.placement * pin.SE3(np.eye(3), self.points[k])
        at = model.addFrame(pin.Frame("the point", of_link.parentJoint, placed, pin.FrameType.OP_FRAME))
        data, seen, q = model.createData(), FRAMES[frame], self.position(k)
        pin.forwardKinematics(model, data, q, self.v[k], np.zeros(model.nv))
        pin.computeJointJacobians(model, data, q)
        pin.updateFramePlacements(model, data)
        # The acceleration: of the point itself if the axes are fixed in the world, otherwise a spatial one.
        rate = pin.getFrameClassicalAcceleration if frame == "world_aligned" else pin.getFrameAcceleration
        J = pin.getFrameJacobian(model, data, at, seen)
        upper = np.triu(pin.crba(model, data, q))
        M = upper + np.triu(upper, 1).T
        return {
            "rotation": data.oMf[at].rotation,
            "position": data.oMf[at].translation,
            "velocity": _angular_first(pin.getFrameVelocity(model, data, at, seen).vector),
            "jacobian": _angular_first(J),
            "bias": _angular_first(rate(model, data, at, seen).vector),
            "mass matrix": M,
        }


def _angular_first(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[3:], x[:3]])


def close(ours: Any, theirs: np.ndarray, tolerance: float = TOLERANCE) -> bool:
    assert np.shape(ours) == theirs.shape
    return bool(np.abs(ours - theirs).max(initial=0.0) <= tolerance * max(np.abs(theirs).max(initial=0.0), 1e-3))


HERE = [("0", "fixed"), ("7", "floating"), ("12", "fixed"), ("panda", "fixed"), ("solo12", "floating")]
TREES = [(str(seed), root) for seed in range(1, 60, 4) for root in ("fixed", "floating")]
MACHINES = [(name, root) for name in SUPPORTED[::4] if "iris" not in name for root in ("fixed", "floating")]
"""But a robot without joints, of which Pinocchio makes no data."""
CASES = wide([*HERE, *TREES, *MACHINES], HERE.__contains__)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(("name", "root"), CASES)
def test_motion_of_points(name: str, root: RootType, frame: Any) -> None:
    """All states in one call, each with its own link."""
    of = Points(name, root)
    ours = of.robot.point_motion(of.q, of.v, of.links, point=of.points, frame=frame)
    for k in range(STATES):
        theirs = of.theirs(k, frame)
        for output in ("rotation", "position", "velocity", "jacobian", "bias"):
            assert close(getattr(ours, output)[k], theirs[output]), (output, of.links[k])
        assert close(ours.jacobian[k] @ of.v[k], theirs["velocity"])


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(("name", "root"), CASES)
def test_operational_space(name: str, root: RootType, frame: Any) -> None:
    """J M^-1 J^T of all directions, and its inverse in those in which the link can move."""
    of = Points(name, root)
    answered = singular = 0
    for k in range(STATES):
        theirs = of.theirs(k, frame)
        J, M = theirs["jacobian"], theirs["mass matrix"]
        if np.linalg.cond(M) > 1e12:
            singular += 1  # shoulders whose links between have no inertia
            continue
        Omega = J @ np.linalg.solve(M, J.T)
        allowed = max(TOLERANCE, SOLVED * np.linalg.cond(M))
        for few in (None, ["x", "y", "z"], ["rz"], ["y", "rx"]):
            chosen = [DIRECTIONS.index(each) for each in few or DIRECTIONS]
            part = Omega[np.ix_(chosen, chosen)]
            found = of.robot.operational_space(
                of.q[k], of.links[k], point=of.points[k], directions=few, frame=frame, passive=False
            )
            assert close(found.mobility, Omega, allowed)
            kinds = np.repeat([np.trace(Omega[:3, :3]), np.trace(Omega[3:, 3:])], 3)[chosen]
            scaled = part / np.sqrt(np.outer(kinds, kinds) + 1e-300)
            least = np.linalg.eigvalsh(scaled)[0]  # relative to the mobility of rotation or translation
            if least < 1e-15:
                assert np.isnan(found.inertia).all()
            elif least > 1e-8:
                answered += 1
                inside = np.zeros((6, 6))
                inside[np.ix_(chosen, chosen)] = np.linalg.inv(part)
                assert close(found.inertia, inside, max(allowed, SOLVED * np.linalg.cond(part)))
    assert answered or singular == STATES


@pytest.mark.parametrize("seed", wide(range(2, 40, 4), {2, 6}.__contains__))
def test_jacobians_of_mujoco(seed: int) -> None:
    """mj_jac, and the velocity of the point from its differences of angles; a third code."""
    xml = random_urdf(seed)
    robot, model = interpreting(xml), mujoco_model(xml)
    data = mujoco.MjData(model)
    place = [model.joint(name).dofadr[0] for name in robot.joint_names]
    rng = np.random.default_rng(seed)
    for link in robot.link_names[1:]:
        q, v = rng.uniform(-3.0, 3.0, (2, robot.nq))
        point = rng.uniform(-0.5, 0.5, 3)
        data.qpos[place], data.qvel[place] = q, v
        mujoco.mj_forward(model, data)
        ours = robot.point_motion(q, v, link, point=point)
        turns, shifts = np.zeros((2, 3, model.nv))
        mujoco.mj_jac(model, data, shifts, turns, ours.position, model.body(link).id)
        assert close(ours.jacobian, np.concatenate([turns, shifts])[:, place], 1e-10)
        mujoco.mj_jacDot(model, data, shifts, turns, ours.position, model.body(link).id)
        assert close(ours.bias, np.concatenate([turns, shifts])[:, place] @ v, 1e-10)
