"""The description of a robot that clients receive, and the receipt of its import."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict

import numpy as np

from dyn_service.api.description import (
    JointDescription,
    LimitsDescription,
    MimicDescription,
    RobotDescription,
    Sizes,
)
from dyn_service.api.queries import DEFAULT_GRAVITY, Array
from dyn_service.api.spec import EVERY_PART
from dyn_service.model import composite
from dyn_service.model.composite import Weld, welding_notes
from dyn_service.model.description import Description, Mimic
from dyn_service.model.inertia import combine
from dyn_service.model.tree import Tree
from dyn_service.parsing.report import MassSummary, Receipt, build_receipt


def fingerprint_of(tree: Tree, gravity: tuple[float, float, float]) -> str:
    """Returns 32 hexadecimal digits that identify the tree and, unless it has the default value, gravity."""
    if gravity == DEFAULT_GRAVITY:
        return tree.fingerprint
    numbers = np.array(gravity, dtype="<f8") + 0.0
    return hashlib.sha256(f"{tree.fingerprint} gravity ".encode() + numbers.tobytes()).hexdigest()[:32]


def described(tree: Tree, sizes: Sizes, gravity: tuple[float, float, float]) -> RobotDescription:
    """Returns the description of a robot, without the certificates of its kernels."""
    limits = tree.limits
    mimics = dict(zip(tree.moving_joints, tree.mimic, strict=True))
    return RobotDescription(
        name=tree.name,
        fingerprint=fingerprint_of(tree, gravity),
        nq=tree.nq,
        nv=tree.nv,
        sizes=sizes,
        joint_names=tree.movable_joints,
        joint_types=tuple(joint.type for joint in tree.configuration.joints),
        all_joint_names=tree.named_joints,
        link_names=tree.links,
        joints=tuple(
            JointDescription(
                name=name,
                type=joint.type,
                parent=tree.links[parent] if parent >= 0 else None,
                child=child,
                mimic=_followed(mimics.get(name)),
                **joint.figures,
            )
            for name, joint, parent, child in zip(tree.joints, tree.inboard, tree.parent, tree.links, strict=True)
            if name
        ),
        limits=LimitsDescription(
            lower=_finite(limits.lower),
            upper=_finite(limits.upper),
            velocity=_finite(limits.velocity),
            effort=_finite(limits.effort),
        ),
        gravity=gravity,
        passive=tuple(part for part in EVERY_PART if part in tree.passive.acts),
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
    before = composite.total_inertia(tree)
    still = [i for i, body in enumerate(weld.body) if body < 0]
    poses = composite.poses_at_zero(tree)
    parts = [tree.inertia[i].placed(*poses[i]) for i in still]
    poses = composite.poses_at_zero(weld.tree)
    parts += [body.placed(*pose) for body, pose in zip(weld.tree.inertia, poses, strict=True)]
    after = combine(parts)
    return build_receipt(
        description,
        before=MassSummary(before.mass, before.com),
        after=MassSummary(after.mass, after.com),
        movable=tree.movable_joints,
        bodies=len(weld.tree),
        merged=welding_notes(tree, weld),
        fingerprint=fingerprint_of(tree, description.gravity),
    )
