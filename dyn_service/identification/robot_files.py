"""Writes an identified robot: a robot file, and a joint file next to it with the passive parameters of joints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.description import Description, Inertial, Note
from dyn_service.model.inertia import BodyInertia
from dyn_service.model.parameters import COLUMNS, INERTIAL, LINEAR, ROWS, symmetric
from dyn_service.parsing.conversion import write_files
from dyn_service.parsing.joint_files import JOINTS_SUFFIX
from dyn_service.support.logs import printable


def with_parameters(
    description: Description, theta: Array, friction_widths: Mapping[str, float] | None = None
) -> Description:
    """Returns the robot with other dynamic parameters.

    theta: (nt,), those of `dynamic_parameters`; all velocities of a joint must have the same damping, friction and
    armature. friction_widths: rad/s | m/s, by joint; joints that are left out keep theirs.

    Raises:
        InvalidArgumentError: theta has a wrong shape or different values for one joint, or an unknown joint is named.
    """
    tree = Robot(description).evaluator.model.tree
    theta = np.asarray(theta, dtype=np.float64)
    width = len(INERTIAL)
    if theta.shape != (width * len(tree) + len(LINEAR) * tree.nr,):
        raise InvalidArgumentError(
            f"theta must have {width * len(tree) + len(LINEAR) * tree.nr} numbers, found the shape {theta.shape}",
            path="theta",
        )
    inertials = {}
    for i, (name, body) in enumerate(zip(tree.links, tree.inertia, strict=True)):
        numbers = theta[width * i : width * (i + 1)]
        if not np.array_equal(numbers, [body.mass, *body.moment, *body.about_origin[ROWS, COLUMNS]]):
            inertials[name] = _inertial(numbers)
    joints = {joint.name: joint for joint in description.joints}
    passive = theta[width * len(tree) :].reshape(len(LINEAR), tree.nr)
    for i in tree.movable:
        joint = tree.joints[i]
        values = passive[:, tree.in_rates[i]]
        if np.ptp(values, axis=1).any():
            raise InvalidArgumentError(
                f"joint '{joint}': the passive parameters of all its velocities must be equal, found {values.tolist()}",
                path="theta",
            )
        if joint in joints:  # not the joint of a root that moves, which has no passive parameters
            numbers_of_joint = dict(zip(LINEAR, map(float, values[:, 0]), strict=True))
            joints[joint] = replace(joints[joint], **numbers_of_joint)  # type: ignore[arg-type]  # the fields named in LINEAR
    for joint, friction_width in (friction_widths or {}).items():
        if joint not in joints:
            raise InvalidArgumentError(f"the robot has no joint '{joint}'", path="friction_widths")
        joints[joint] = replace(joints[joint], friction_width=float(friction_width))
    links = tuple(
        replace(link, inertial=inertials[link.name]) if link.name in inertials else link for link in description.links
    )
    return replace(description, links=links, joints=tuple(joints.values()))


def _inertial(numbers: Array) -> Inertial | None:
    """Returns the inertial element of parameters (10,), in the axes of the link; None for a link without mass."""
    if not numbers[0]:
        return None
    body = BodyInertia(float(numbers[0]), numbers[1:4], symmetric(numbers[4:]))
    return Inertial(body.mass, body.com, np.eye(3), body.about_com)


def write_robot(
    robot: Robot,
    theta: Array,
    target: str | os.PathLike[str],
    *,
    recording: str,
    source: str | os.PathLike[str] | None = None,
    friction_widths: Mapping[str, float] | None = None,
    remarks: str = "",
    force: bool = False,
) -> tuple[list[Path], list[Note]]:
    """Writes the robot with other dynamic parameters to `target` and its joint file, and returns both paths and notes.

    Shapes, limits, mimic joints and loops stay; a note names each thing of the robot's file that is not in the new
    files. theta, friction_widths: as for `with_parameters`. recording: its name, which comments of both files contain.
    source: the robot's file, by which its meshes are found; None: the one that its description names. remarks: further
    lines of the comments.

    Raises:
        InvalidArgumentError: theta is wrong, or the target has an unknown suffix, exists or cannot be written.
        UnimplementedError, FailedPreconditionError: The format cannot express the robot.
    """
    description = with_parameters(robot.as_described, theta, friction_widths)
    if source is None and Path(description.source).is_file():
        source = description.source
    first_line = (
        f"Robot {description.name}: parameters identified from {recording}, starting from {description.source}."
    )
    joint_file = Path(target).with_suffix(JOINTS_SUFFIX)
    second_line = f"Passive parameters of its joints are in this joint file: {joint_file.name}"
    comment = printable("\n".join([first_line, second_line, *remarks.splitlines()]))
    notes = write_files(description, target, source=source, force=force, comment=comment, joint_file=True)
    if source is None and any(link.shapes for link in description.links):
        text = "its shapes are not written: it was read from a text"
        notes.append(Note("dropped", f"robot '{description.name}'", text))
    if source is not None and "<!--" in Path(source).read_text(encoding="utf-8", errors="replace"):
        text = "the comments of its file are not copied, among them its sources and its license"
        notes.append(Note("dropped", f"robot '{description.name}'", text))
    return [Path(target), joint_file], notes
