"""A description with the numbers that a tree of it has: what is laid over a robot, back in the words of its file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dyn_service.errors import UnimplementedError
from dyn_service.model.description import Description, Inertial, Joint, Link
from dyn_service.model.tree import Tree


def renumbered(description: Description, own: Tree, tree: Tree) -> Description:
    """The robot of `tree`, described.

    Args:
        description: The robot that `own` was made of.
        own: One body per link.
        tree: Of the same links and joints, with other inertias and other numbers of what joints do by themselves.

    Raises:
        UnimplementedError: A joint is locked, or the tree is that of many robots: no file says so.
    """
    if tree.lead or tree.locked_joints != own.locked_joints:
        what = "many robots" if tree.lead else f"joint '{min(tree.locked_joints - own.locked_joints)}' locked"
        raise UnimplementedError(f"robot '{tree.name}' with {what} is in the words of no file")
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
    """With what of its own numbers is otherwise; a joint has one of each for all its ways to move."""
    part = tree.in_rates[place].start
    before, after = ({name: float(getattr(t.passive, name)[part]) for name in _NUMBERS} for t in (own, tree))
    said: dict[str, Any] = {_NUMBERS[name]: value for name, value in after.items() if value != before[name]}
    mimic = tree.mimic[tree.movable.index(place)]
    if "rest" in said and mimic is not None:
        said["rest"] += mimic.offset  # of a follower the tree has it where its leader is at zero
    return replace(joint, **said)


_NUMBERS = {
    "damping": "damping",
    "friction": "friction",
    "width": "friction_width",
    "armature": "armature",
    "stiffness": "stiffness",
    "rest": "rest",
}
"""Of `Passive`, and what a description calls them."""
