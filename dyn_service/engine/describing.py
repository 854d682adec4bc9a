"""The description of a robot that clients receive."""

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
from dyn_service.model.description import Mimic
from dyn_service.model.tree import Tree


def fingerprint_of(tree: Tree, gravity: tuple[float, float, float]) -> str:
    """Returns 32 hexadecimal digits that identify the tree and, unless it has the default value, gravity."""
    if gravity == DEFAULT_GRAVITY:
        return tree.fingerprint
    numbers = np.array(gravity, dtype="<f8") + 0.0
    return hashlib.sha256(f"{tree.fingerprint} gravity ".encode() + numbers.tobytes()).hexdigest()[:32]


def described(tree: Tree, sizes: Sizes, gravity: tuple[float, float, float]) -> RobotDescription:
    """Returns the description of a robot, without the certificates of its kernels."""
    limits = tree.limits
    led = dict(zip(tree.moving_joints, tree.mimic, strict=True))
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
                mimic=_followed(led.get(name)),
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
