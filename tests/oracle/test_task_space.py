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
from tests.comparing import assert_close
from tests.conftest import URDF
from tests.oracle.example_robots import SUPPORTED, path_of
from tests.oracle.pinocchio_oracle import Oracle
from tests.oracle.test_mujoco import mujoco_model
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.wide import wide

STATES = 4
FRAMES = {"world_aligned": pin.LOCAL_WORLD_ALIGNED, "local": pin.LOCAL, "world": pin.WORLD}
TOLERANCE = 1e-11
"""Relative to the largest entry. Both sides round at 1e-16 of their intermediate results; in links far out on the
random trees, and about the world's origin, these are some thousand times what is left.
"""
ROUNDING_OF_A_SOLUTION = 64 * np.finfo(float).eps
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
        placement = of_link.placement * pin.SE3(np.eye(3), self.points[k])
        frame_id = model.addFrame(pin.Frame("the point", of_link.parentJoint, placement, pin.FrameType.OP_FRAME))
        data, seen, q = model.createData(), FRAMES[frame], self.position(k)
        pin.forwardKinematics(model, data, q, self.v[k], np.zeros(model.nv))
        pin.computeJointJacobians(model, data, q)
        pin.updateFramePlacements(model, data)
        # The acceleration: of the point itself if the axes are fixed in the world, otherwise a spatial one.
        rate = pin.getFrameClassicalAcceleration if frame == "world_aligned" else pin.getFrameAcceleration
        J = pin.getFrameJacobian(model, data, frame_id, seen)
        upper = np.triu(pin.crba(model, data, q))
        M = upper + np.triu(upper, 1).T
        return {
            "rotation": data.oMf[frame_id].rotation,
            "position": data.oMf[frame_id].translation,
            "velocity": _angular_first(pin.getFrameVelocity(model, data, frame_id, seen).vector),
            "jacobian": _angular_first(J),
            "bias": _angular_first(rate(model, data, frame_id, seen).vector),
            "mass matrix": M,
        }


def _angular_first(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[3:], x[:3]])


SMALL = 1e-3
"""Errors of answers whose largest entry is smaller are relative to this."""


DEFAULT_CASES = [("0", "fixed"), ("7", "floating"), ("12", "fixed"), ("panda", "fixed"), ("solo12", "floating")]
TREES = [(str(seed), root) for seed in range(1, 60, 4) for root in ("fixed", "floating")]
ROBOTS = [(name, root) for name in SUPPORTED[::4] if "iris" not in name for root in ("fixed", "floating")]
"""But a robot without joints, of which Pinocchio makes no data."""
CASES = wide([*DEFAULT_CASES, *TREES, *ROBOTS], DEFAULT_CASES.__contains__)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(("name", "root"), CASES)
def test_motion_of_points(name: str, root: RootType, frame: Any) -> None:
    """All states in one call, each with its own link."""
    points = Points(name, root)
    ours = points.robot.point_motion(points.q, points.v, points.links, point=points.points, frame=frame)
    for k in range(STATES):
        reference, state = points.theirs(k, frame), (points.robot, points.q[k], points.v[k])
        answers = {
            output: getattr(ours, output)[k] for output in ("rotation", "position", "velocity", "jacobian", "bias")
        }
        for output, answer in answers.items():
            term = f"point_motion.{output}, {frame}, link '{points.links[k]}'"
            assert_close(term, answer, reference[output], TOLERANCE, *state, min_scale=SMALL)
        term = f"point_motion.velocity, J v, {frame}"
        assert_close(term, answers["jacobian"] @ points.v[k], reference["velocity"], TOLERANCE, *state, min_scale=SMALL)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(("name", "root"), CASES)
def test_operational_space(name: str, root: RootType, frame: Any) -> None:
    """J M^-1 J^T of all directions, and its inverse in those in which the link can move."""
    points = Points(name, root)
    regular = singular = 0
    for k in range(STATES):
        reference, state = points.theirs(k, frame), (points.robot, points.q[k], points.v[k])
        J, M = reference["jacobian"], reference["mass matrix"]
        if np.linalg.cond(M) > 1e12:
            singular += 1  # shoulders whose links between have no inertia
            continue
        Omega = J @ np.linalg.solve(M, J.T)
        tolerance_of_solution = max(TOLERANCE, ROUNDING_OF_A_SOLUTION * np.linalg.cond(M))
        for directions in (None, ["x", "y", "z"], ["rz"], ["y", "rx"]):
            rows = [DIRECTIONS.index(direction) for direction in directions or DIRECTIONS]
            part = Omega[np.ix_(rows, rows)]
            answer = points.robot.operational_space(
                points.q[k], points.links[k], point=points.points[k], directions=directions, frame=frame, passive=False
            )
            term = f"operational_space.mobility, {directions}, {frame}, link '{points.links[k]}'"
            assert_close(term, answer.mobility, Omega, tolerance_of_solution, *state, min_scale=SMALL)
            kinds = np.repeat([np.trace(Omega[:3, :3]), np.trace(Omega[3:, 3:])], 3)[rows]
            normalised = part / np.sqrt(np.outer(kinds, kinds) + 1e-300)
            smallest = np.linalg.eigvalsh(normalised)[0]  # relative to the mobility of rotation or translation
            if smallest < 1e-15:
                assert np.isnan(answer.inertia).all()
            elif smallest > 1e-8:
                regular += 1
                inertia = np.zeros((6, 6))
                inertia[np.ix_(rows, rows)] = np.linalg.inv(part)
                term = term.replace("mobility", "inertia")
                tolerance = max(tolerance_of_solution, ROUNDING_OF_A_SOLUTION * np.linalg.cond(part))
                assert_close(term, answer.inertia, inertia, tolerance, *state, min_scale=SMALL)
    assert regular or singular == STATES


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
        jacobian, state = np.concatenate([turns, shifts])[:, place], (robot, q, v)
        assert_close(f"point_motion.jacobian, link '{link}'", ours.jacobian, jacobian, 1e-10, *state, min_scale=SMALL)
        mujoco.mj_jacDot(model, data, shifts, turns, ours.position, model.body(link).id)
        bias = np.concatenate([turns, shifts])[:, place] @ v
        assert_close(f"point_motion.bias, link '{link}'", ours.bias, bias, 1e-10, *state, min_scale=SMALL)
