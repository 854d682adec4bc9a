"""Targets of inverse kinematics as tasks of pink and mink, and positions as Pinocchio's and MuJoCo's.

    task = pink_task(Target(link="hand", position=p, rotation=R))
    pink.Configuration(model, data, to_pinocchio(robot.configuration, q, model))

Both need models with the robot's names of links and joints, such as those of the same URDF file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import vectors
from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.model.configuration import Configuration
from dyn_service.model.conventions import from_mujoco, to_mujoco
from dyn_service.simulation.inverse_kinematics import Goal, Target
from dyn_service.support.optional import load


def pink_task(target: Target, **options: float) -> Any:
    """Returns a pink `FrameTask`, whose costs are the target's weights.

    Args:
        target: Of one problem.
        options: `gain` and `lm_damping` of the task.

    Raises:
        MissingLibraryError: pink is not installed.
        InvalidArgumentError: A part of the target has the wrong shape or value, or leading axes.
        UnimplementedError: It has no task for a direction, or for the position of a point with a free rotation.
    """
    tasks, pin = load("pink_task", "pink.tasks"), load("pink_task", "pinocchio")
    goal = _goal(target)
    if goal.direction is not None:
        raise UnimplementedError("pink has no task for a direction: use mink_task or inverse_kinematics")
    task = tasks.FrameTask(goal.link, *_costs(goal), **options)
    task.set_target(pin.SE3(*_pose(goal)))
    return task


def mink_task(target: Target, *, frame_type: str = "body", **options: float) -> Any:
    """Returns a mink `FrameTask`, or an `AxisAlignTask` for a direction; see `pink_task` for arguments and errors.

    frame_type: "body", "site" or "geom": what the target's link is in MuJoCo's model.
    """
    mink, goal = load("mink_task", "mink"), _goal(target)
    if goal.direction is not None:
        if goal.position is not None:
            raise UnimplementedError("mink has a task for a direction and one for a position: use a target for each")
        task = mink.AxisAlignTask(goal.link, frame_type, goal.axis, goal.weights[1], **options)
        task.set_target(goal.direction)
        return task
    task = mink.FrameTask(goal.link, frame_type, *_costs(goal), **options)
    R, p = _pose(goal)
    task.set_target(mink.SE3.from_rotation_and_translation(mink.SO3.from_matrix(R), p))
    return task


def to_pinocchio(configuration: Configuration, q: ArrayLike, model: Any) -> Array:
    """Returns positions (..., nq) in the order and convention of a Pinocchio model, which writes some angles as
    cosine and sine.

    Joints that the robot does not have are neutral. So are followers of mimic joints, which have no entries in q and
    whose relation is not part of `Configuration`: load the robot with `mimic=False` to set them.
    """
    robot_q, neutral = vectors("q", q, configuration.nq), load("to_pinocchio", "pinocchio").neutral(model)
    model_q = np.broadcast_to(neutral, (*robot_q.shape[:-1], model.nq)).copy()
    for robot_entries, model_entries in _joints(configuration, model):
        x = robot_q[..., robot_entries]
        if model_entries.stop - model_entries.start > x.shape[-1]:  # continuous, planar
            x = np.concatenate([x[..., :-1], np.cos(x[..., -1:]), np.sin(x[..., -1:])], axis=-1)
        model_q[..., model_entries] = x
    return model_q


def from_pinocchio(configuration: Configuration, q: ArrayLike, model: Any) -> Array:
    """The inverse of `to_pinocchio`, without the turns of continuous joints: their angles are within pi."""
    model_q = vectors("q", q, model.nq)
    robot_q = np.empty((*model_q.shape[:-1], configuration.nq))
    for robot_entries, model_entries in _joints(configuration, model):
        x = model_q[..., model_entries]
        if x.shape[-1] > robot_entries.stop - robot_entries.start:
            x = np.concatenate([x[..., :-2], np.arctan2(x[..., -1:], x[..., -2:-1])], axis=-1)
        robot_q[..., robot_entries] = x
    return robot_q


def to_qpos(configuration: Configuration, q: ArrayLike, model: Any) -> Array:
    """Returns positions (..., nq) as `qpos` of a MuJoCo model; joints that the robot does not have are at `qpos0`.

    So are followers of mimic joints, as in `to_pinocchio`.
    """
    robot_qpos = to_mujoco(configuration, vectors("q", q, configuration.nq)).qpos
    model_qpos = np.broadcast_to(model.qpos0, (*robot_qpos.shape[:-1], model.nq)).copy()
    model_qpos[..., _qpos_indices(configuration, model)] = robot_qpos
    return model_qpos


def from_qpos(configuration: Configuration, qpos: ArrayLike, model: Any) -> Array:
    """The inverse of `to_qpos`."""
    return from_mujoco(configuration, vectors("qpos", qpos, model.nq)[..., _qpos_indices(configuration, model)]).q


def _goal(target: Target) -> Goal:
    """Returns the target of one problem, checked."""
    goal = Goal.read(target, "target")
    if goal.lead:
        raise InvalidArgumentError(f"target must be of one problem, found leading axes {goal.lead}", path="target")
    return goal


def _costs(goal: Goal) -> tuple[float, float]:
    parts = zip((goal.position, goal.rotation), goal.weights, strict=True)
    position, rotation = (0.0 if value is None else weight for value, weight in parts)
    return position, rotation


def _pose(goal: Goal) -> tuple[Array, Array]:
    """Returns R_WL and p_WL of the link's origin."""
    if goal.rotation is None and goal.point.any():
        raise UnimplementedError("tasks are of the link's origin: a target with a point needs a rotation")
    R = np.eye(3) if goal.rotation is None else goal.rotation
    return R, (np.zeros(3) if goal.position is None else goal.position) - R @ goal.point


def _joints(configuration: Configuration, model: Any) -> list[tuple[slice, slice]]:
    """Returns where each joint is in q here and there."""
    for name in configuration.names:
        if not model.existJointName(name):
            raise NotFoundError(f"Pinocchio's model has no joint '{name}'; its joints are {', '.join(model.names)}")
    joints = [model.joints[model.getJointId(name)] for name in configuration.names]
    model_slices = [slice(joint.idx_q, joint.idx_q + joint.nq) for joint in joints]
    return list(zip(configuration.q_slices, model_slices, strict=True))


def _qpos_indices(configuration: Configuration, model: Any) -> list[int]:
    """Returns the index in MuJoCo's qpos of each entry of q."""
    model_joints = {model.joint(k).name: model.joint(k) for k in range(model.njnt)}
    indices: list[int] = []
    for joint, joint_name in zip(configuration.joints, configuration.names, strict=True):
        for name in (mujoco_names := joint.mujoco_names(joint_name)):
            if name not in model_joints:
                raise NotFoundError(f"MuJoCo's model has no joint '{name}'; its joints are {', '.join(model_joints)}")
            first = int(model_joints[name].qposadr[0])
            indices += range(first, first + joint.nq // len(mujoco_names))
    return indices
