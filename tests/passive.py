"""Robots whose joints do everything a joint can do by itself."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from dyn_service.api.spec import PASSIVE_PARTS, PassivePart
from dyn_service.engine.robot import Robot
from dyn_service.model import composite
from dyn_service.model.building import tree_of
from dyn_service.model.description import Description, RootType, rooted, without_passive
from dyn_service.model.mimic import without_mimics
from dyn_service.parsing.urdf.reader import read
from tests.conftest import URDF


def restless(
    source: str | os.PathLike[str] | Description,
    seed: int = 0,
    parts: Collection[PassivePart] = PASSIVE_PARTS,
    root: RootType = "fixed",
) -> Robot:
    """The robot with those parts at each of its joints, of sizes like what the joint moves; and nothing else that they
    do by themselves, whatever the file says. Springs only of joints with one way to move, armatures of those that turn
    or shift, and none at the root.
    """
    described = without_passive(source if isinstance(source, Description) else read(source))
    tree = tree_of(without_mimics(described))
    rng = np.random.default_rng(seed)
    moved_inertia = np.maximum(np.diag(composite.mass_matrix(tree, tree.configuration.neutral)), 1e-3)
    size_of = {joint: float(moved_inertia[k]) for k, joint in enumerate(tree.configuration.velocity_joints)}
    joints = []
    for joint in described.joints:
        size = size_of.get(joint.name, 1.0)
        damping, friction, width, armature, stiffness = size * rng.uniform(0.2, 2.0, 5) * (1.0, 1.0, 0.2 / size, 1, 10)
        rest = float(rng.uniform(-1.0, 1.0))
        changed_joint = replace(joint, friction_width=float(width), rest=rest)
        if "damping" in parts:
            changed_joint = replace(changed_joint, damping=float(damping))
        if "friction" in parts:
            changed_joint = replace(changed_joint, friction=float(friction))
        if "armature" in parts and joint.moves.refused("armature") is None:
            changed_joint = replace(changed_joint, armature=float(armature))
        if "springs" in parts and joint.moves.nv == 1:
            changed_joint = replace(changed_joint, stiffness=float(stiffness))
        joints.append(changed_joint)
    return Robot(rooted(replace(described, joints=tuple(joints)), root))


def small() -> Robot:
    """The pendulum on a cart, with every part at both joints, for tests of every row and option: tests of several
    folders share its kernels. One joint slides, one turns.
    """
    return restless(URDF / "cart_pendulum.urdf", 1)
