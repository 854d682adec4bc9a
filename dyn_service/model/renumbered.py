"""Converts a tree with changed numbers, as an overlay makes it, back to a description."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dyn_service.errors import UnimplementedError
from dyn_service.model.description import Description, Inertial, Joint, Link
from dyn_service.model.tree import Tree


def renumbered(description: Description, own: Tree, tree: Tree) -> Description:
    """Returns the description of `tree`.

    Args:
        description: The description from which `own` was built.
        own: The original tree, one body per link.
        tree: The tree with other inertias and passive parameters.

    Raises:
        UnimplementedError: A joint is locked, or the tree has leading axes; a robot file cannot express that.
    """
    if tree.lead or tree.locked_joints != own.locked_joints:
        what = "many robots" if tree.lead else f"joint '{min(tree.locked_joints - own.locked_joints)}' locked"
        raise UnimplementedError(f"robot '{tree.name}' with {what} cannot be written to a robot file")
    bodies = dict(zip(tree.links, zip(own.inertia, tree.inertia, strict=True), strict=True))
    links = tuple(_link(link, *bodies[link.name]) for link in description.links)
    places = {tree.joints[i]: i for i in tree.movable}
    joints = tuple(
        _joint(joint, own, tree, places[joint.name]) if joint.name in places else joint for joint in description.joints
    )
    return replace(description, links=links, joints=joints)


def _link(link: Link, own: Any, body: Any) -> Link:
    if body is own:
        return link
    return replace(link, inertial=Inertial(float(body.mass), np.array(body.com), np.eye(3), np.array(body.about_com)))


def _joint(joint: Joint, own: Tree, tree: Tree, place: int) -> Joint:
    """Returns the joint with its changed numbers; a joint has one of each for all its degrees of freedom."""
    part = tree.in_rates[place].start
    before, after = ({name: float(getattr(t.passive, name)[part]) for name in _NUMBERS} for t in (own, tree))
    said: dict[str, Any] = {_NUMBERS[name]: value for name, value in after.items() if value != before[name]}
    mimic = tree.mimic[tree.movable.index(place)]
    if "rest" in said and mimic is not None:
        said["rest"] += (
            mimic.offset
        )  # a follower's rest position in the tree is relative to its position with the leader at zero
    return replace(joint, **said)


_NUMBERS = {
    "damping": "damping",
    "friction": "friction",
    "width": "friction_width",
    "armature": "armature",
    "stiffness": "stiffness",
    "rest": "rest",
}
"""Fields of `Passive` and their names in a description."""
