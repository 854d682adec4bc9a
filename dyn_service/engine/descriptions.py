"""Descriptions of a robot: for clients, of its import, and of a robot with changed numbers as that of a file."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, replace
from typing import Any

import msgspec
import numpy as np

from dyn_service.api.description import (
    JointDescription,
    LimitsDescription,
    LoopJointDescription,
    MimicDescription,
    NoteDescription,
    RobotDescription,
    Sizes,
)
from dyn_service.api.queries import DEFAULT_GRAVITY, Array
from dyn_service.api.spec import PASSIVE_PARTS
from dyn_service.engine.altered_trees import COLUMNS
from dyn_service.errors import UnimplementedError
from dyn_service.model import composite
from dyn_service.model.composite import Weld, welding_notes
from dyn_service.model.description import Description, Inertial, Joint, Link, LoopJoint, Mimic, Note
from dyn_service.model.inertia import combine
from dyn_service.model.tree import Tree
from dyn_service.parsing.report import MassSummary, Receipt, build_receipt
from dyn_service.parsing.rules import rule_of

_NUMBERS = {column: name for name, column in COLUMNS.items()}
"""Fields of `Passive` and their names in a description."""


def fingerprint_of(tree: Tree, description: Description) -> str:
    """Returns 32 hexadecimal digits that identify the tree, gravity and loops; those of the tree by default."""
    text = "".join(f" loop {note.element}" for note in description.unread_loops).encode()
    text += b"".join(map(_bytes_of, description.loop_joints))
    if driven := [joint.name for joint in description.joints if joint.driven]:
        text += f" driven {driven}".encode() if description.loop_joints else b""
    if description.gravity != DEFAULT_GRAVITY:
        # + 0.0, because -0.0 equals 0.0 and has other bytes.
        text = b" gravity " + (np.array(description.gravity, dtype="<f8") + 0.0).tobytes() + text
    return hashlib.sha256(tree.fingerprint.encode() + text).hexdigest()[:32] if text else tree.fingerprint


def _bytes_of(joint: LoopJoint) -> bytes:
    """Returns what identifies a loop joint."""
    names = f" loop joint {joint.name} {joint.type} {joint.parent} {joint.child}".encode()
    frames = (joint.parent_xyz, joint.parent_rotation, joint.child_xyz, joint.child_rotation, joint.axis, joint.pitch)
    return names + b"".join((np.asarray(x, dtype="<f8") + 0.0).tobytes() for x in frames)


def described(tree: Tree, sizes: Sizes, description: Description) -> RobotDescription:
    """Returns the description of a robot, without the certificates of its kernels."""
    limits = tree.limits
    driven = {joint.name: joint.driven for joint in description.joints}
    mimics = dict(zip(tree.moving_joints, tree.mimic, strict=True))
    return RobotDescription(
        name=tree.name,
        fingerprint=fingerprint_of(tree, description),
        nq=tree.nq,
        nv=tree.nv,
        sizes=msgspec.structs.replace(
            sizes, nj=sizes.nj + len(description.loop_joints), nk=len(description.loop_joints)
        ),
        joint_names=tree.movable_joints,
        joint_types=tuple(joint.type for joint in tree.configuration.joints),
        all_joint_names=(*tree.named_joints, *(joint.name for joint in description.loop_joints)),
        link_names=tree.links,
        joints=tuple(
            JointDescription(
                name=name,
                type=joint.type,
                parent=tree.links[parent] if parent >= 0 else None,
                child=child,
                mimic=_followed(mimics.get(name)),
                driven=driven.get(name),
                **joint.parameters,
            )
            for name, joint, parent, child in zip(tree.joints, tree.inboard, tree.parent, tree.links, strict=True)
            if name
        ),
        limits=LimitsDescription(
            lower=_finite(limits.lower),
            upper=_finite(limits.upper),
            velocity=_finite(limits.velocity),
            effort=_finite(limits.effort),
            acceleration=_finite(limits.acceleration) if np.isfinite(limits.acceleration).any() else [],
            jerk=_finite(limits.jerk) if np.isfinite(limits.jerk).any() else [],
        ),
        gravity=description.gravity,
        loop_joints=tuple(map(_described_loop_joint, description.loop_joints)),
        passive=tuple(part for part in PASSIVE_PARTS if part in tree.passive.acts),
        notes=tuple(map(_described_note, description.notes)),
    )


def _described_note(note: Note) -> NoteDescription:
    rule = rule_of(note)
    return NoteDescription(note.kind, note.element, note.text, note.line, "" if rule is None else rule.number)


def _described_loop_joint(joint: LoopJoint) -> LoopJointDescription:
    frames = ("parent_xyz", "parent_rotation", "child_xyz", "child_rotation")
    return msgspec.convert(
        {
            **{name: getattr(joint, name) for name in ("name", "type", "parent", "child")},
            **{name: getattr(joint, name).tolist() for name in frames},
            **joint.moves.parameters,
        },
        LoopJointDescription,
    )


def _followed(mimic: Mimic | None) -> MimicDescription | None:
    return None if mimic is None else MimicDescription(**asdict(mimic))


def _finite(values: Array) -> list[float | None]:
    """Returns values with infinities replaced by None."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def import_receipt(description: Description, tree: Tree, weld: Weld) -> Receipt:
    """Returns the receipt of an import: what was kept, merged, set to defaults, dropped and reported as uncertain.

    It contains the masses before and after welding, which must agree.
    """
    inertia_before = composite.total_inertia(tree)
    fixed_links = [i for i, body in enumerate(weld.body) if body < 0]
    poses = composite.poses_at_zero(tree)
    parts = [tree.inertia[i].transformed(*poses[i]) for i in fixed_links]
    poses = composite.poses_at_zero(weld.tree)
    parts += [body.transformed(*pose) for body, pose in zip(weld.tree.inertia, poses, strict=True)]
    inertia_after = combine(parts)
    return build_receipt(
        description,
        before=MassSummary(inertia_before.mass, inertia_before.com),
        after=MassSummary(inertia_after.mass, inertia_after.com),
        movable=tree.movable_joints,
        bodies=len(weld.tree),
        merged=welding_notes(tree, weld),
        fingerprint=fingerprint_of(tree, description),
    )


def renumbered(description: Description, loaded: Tree, tree: Tree) -> Description:
    """Returns the description of `tree`.

    Args:
        description: The description from which `loaded` was built.
        loaded: The original tree, one body per link.
        tree: The tree with other inertias and passive parameters.

    Raises:
        UnimplementedError: A joint is locked, or the tree has leading axes; a robot file cannot express that.
    """
    if tree.lead or tree.locked_joints != loaded.locked_joints:
        reason = "many robots" if tree.lead else f"joint '{min(tree.locked_joints - loaded.locked_joints)}' locked"
        raise UnimplementedError(f"robot '{tree.name}' with {reason} cannot be written to a robot file")
    bodies = dict(zip(tree.links, zip(loaded.inertia, tree.inertia, strict=True), strict=True))
    links = tuple(_link(link, *bodies[link.name]) for link in description.links)
    places = {tree.joints[i]: i for i in tree.movable}
    joints = tuple(
        _joint(joint, loaded, tree, places[joint.name]) if joint.name in places else joint
        for joint in description.joints
    )
    return replace(description, links=links, joints=joints)


def _link(link: Link, loaded_inertia: Any, inertia: Any) -> Link:
    # Unchanged links keep the numbers and axes of their file; the tree has them rotated, which rounds.
    if inertia is loaded_inertia:
        return link
    return replace(
        link, inertial=Inertial(float(inertia.mass), np.array(inertia.com), np.eye(3), np.array(inertia.about_com))
    )


def _joint(joint: Joint, loaded: Tree, tree: Tree, place: int) -> Joint:
    """Returns the joint with its changed numbers; a joint has one of each for all its degrees of freedom."""
    part = tree.in_rates[place].start
    loaded_numbers, numbers = (
        {name: float(getattr(t.passive, name)[part]) for name in _NUMBERS} for t in (loaded, tree)
    )
    changed_numbers: dict[str, Any] = {
        _NUMBERS[name]: value for name, value in numbers.items() if value != loaded_numbers[name]
    }
    mimic = tree.mimic[tree.movable.index(place)]
    if "rest" in changed_numbers and mimic is not None:
        # A follower's rest position in the tree is relative to its position with the leader at zero.
        changed_numbers["rest"] += mimic.offset
    return replace(joint, **changed_numbers)
