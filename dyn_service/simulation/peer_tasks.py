"""Targets of inverse kinematics as tasks of pink and mink, and positions as Pinocchio's and MuJoCo's.

    task = pink_task(Target(link="hand", position=p, rotation=R))
    pink.Configuration(model, data, to_pinocchio(robot.configuration, q, model))

Both need models with the robot's names of links and joints, such as those of the same URDF file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.queries import Array
from dyn_service.errors import NotFoundError, UnimplementedError
from dyn_service.model.configuration import Configuration
from dyn_service.model.conventions import from_mujoco, to_mujoco
from dyn_service.simulation.inverse_kinematics import Target
from dyn_service.support.optional import load


def pink_task(target: Target, **options: float) -> Any:
    """Returns a pink `FrameTask`, whose costs are the target's weights.

    Args:
        target: Of one problem.
        options: `gain` and `lm_damping` of the task.

    Raises:
        MissingLibraryError: pink is not installed.
        UnimplementedError: It has no task for a direction, or for the position of a point with a free rotation.
    """
    tasks, pin = load("pink_task", "pink.tasks"), load("pink_task", "pinocchio")
    if target.direction is not None:
        raise UnimplementedError("pink has no task for a direction: use mink_task or inverse_kinematics")
    task = tasks.FrameTask(target.link, *_costs(target), **options)
    task.set_target(pin.SE3(*_pose(target)))
    return task


def mink_task(target: Target, *, frame_type: str = "body", **options: float) -> Any:
    """Returns a mink `FrameTask`, or an `AxisAlignTask` for a direction; see `pink_task` for arguments and errors.

    frame_type: "body", "site" or "geom": what the target's link is in MuJoCo's model.
    """
    mink = load("mink_task", "mink")
    if target.direction is not None:
        if target.position is not None:
            raise UnimplementedError("mink has a task for a direction and one for a position: use a target for each")
        task = mink.AxisAlignTask(target.link, frame_type, target.axis, target.rotation_weight, **options)
        task.set_target(np.asarray(target.direction, float))
        return task
    task = mink.FrameTask(target.link, frame_type, *_costs(target), **options)
    R, p = _pose(target)
    task.set_target(mink.SE3.from_rotation_and_translation(mink.SO3.from_matrix(R), p))
    return task


def to_pinocchio(at: Configuration, q: ArrayLike, model: Any) -> Array:
    """Returns positions (..., nq) in the order and convention of a Pinocchio model, which writes some angles as
    cosine and sine.

    Joints that the robot does not have are neutral. So are followers of mimic joints, which have no entries in q and
    whose relation is not part of `Configuration`: load the robot with `mimic=False` to set them.
    """
    given, neutral = np.asarray(q, float), load("to_pinocchio", "pinocchio").neutral(model)
    found = np.broadcast_to(neutral, (*given.shape[:-1], model.nq)).copy()
    for own, place in _joints(at, model):
        x = given[..., own]
        if place.stop - place.start > x.shape[-1]:  # continuous, planar
            x = np.concatenate([x[..., :-1], np.cos(x[..., -1:]), np.sin(x[..., -1:])], axis=-1)
        found[..., place] = x
    return found


def from_pinocchio(at: Configuration, q: ArrayLike, model: Any) -> Array:
    """The inverse of `to_pinocchio`, without the turns of continuous joints: their angles are within pi."""
    given = np.asarray(q, float)
    found = np.empty((*given.shape[:-1], at.nq))
    for own, place in _joints(at, model):
        x = given[..., place]
        if x.shape[-1] > own.stop - own.start:
            x = np.concatenate([x[..., :-2], np.arctan2(x[..., -1:], x[..., -2:-1])], axis=-1)
        found[..., own] = x
    return found


def to_qpos(at: Configuration, q: ArrayLike, model: Any) -> Array:
    """Returns positions (..., nq) as `qpos` of a MuJoCo model; joints that the robot does not have are at `qpos0`.

    So are followers of mimic joints, as in `to_pinocchio`.
    """
    theirs = to_mujoco(at, q).qpos
    found = np.broadcast_to(model.qpos0, (*theirs.shape[:-1], model.nq)).copy()
    found[..., _places(at, model)] = theirs
    return found


def from_qpos(at: Configuration, qpos: ArrayLike, model: Any) -> Array:
    """The inverse of `to_qpos`."""
    return from_mujoco(at, np.asarray(qpos, float)[..., _places(at, model)]).q


def _costs(target: Target) -> tuple[float, float]:
    weights = (target.position, target.position_weight), (target.rotation, target.rotation_weight)
    position, rotation = (0.0 if given is None else float(weight) for given, weight in weights)
    return position, rotation


def _pose(target: Target) -> tuple[Array, Array]:
    """Returns R_WL and p_WL of the link's origin."""
    point = np.asarray(target.point, float)
    if target.rotation is None and point.any():
        raise UnimplementedError("tasks are of the link's origin: a target with a point needs a rotation")
    R = np.eye(3) if target.rotation is None else np.asarray(target.rotation, float)
    return R, (np.zeros(3) if target.position is None else np.asarray(target.position, float)) - R @ point


def _joints(at: Configuration, model: Any) -> list[tuple[slice, slice]]:
    """Returns where each joint is in q here and there."""
    for name in at.names:
        if not model.existJointName(name):
            raise NotFoundError(f"Pinocchio's model has no joint '{name}'; its joints are {', '.join(model.names)}")
    joints = [model.joints[model.getJointId(name)] for name in at.names]
    return [(own, slice(of.idx_q, of.idx_q + of.nq)) for own, of in zip(at.q_slices, joints, strict=True)]


def _places(at: Configuration, model: Any) -> list[int]:
    """Returns the index in MuJoCo's qpos of each entry of q."""
    theirs = {model.joint(k).name: model.joint(k) for k in range(model.njnt)}
    places: list[int] = []
    for joint, own in zip(at.joints, at.names, strict=True):
        for name in (called := joint.mujoco_names(own)):
            if name not in theirs:
                raise NotFoundError(f"MuJoCo's model has no joint '{name}'; its joints are {', '.join(theirs)}")
            first = int(theirs[name].qposadr[0])
            places += range(first, first + joint.nq // len(called))
    return places
