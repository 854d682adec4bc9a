"""From what a file describes to the robot that is asked for, and the receipt that says what became of it."""

from __future__ import annotations

import os

from dyn_service.model import composite
from dyn_service.model.description import Description, RootType, rooted
from dyn_service.model.inertia import combine
from dyn_service.model.mimic import unled
from dyn_service.model.tree import Tree
from dyn_service.model.welding import Weld, welding_notes
from dyn_service.urdf.joint_files import with_joint_file
from dyn_service.urdf.receipt import MassSummary, Receipt, build_receipt


def completed(
    description: Description, root: RootType, joints: str | os.PathLike[str] | None, mimic: bool
) -> Description:
    """The robot with what a joint file says, each joint by itself unless `mimic`, its root moving as `root` says."""
    description = description if joints is None else with_joint_file(description, joints)
    return rooted(description if mimic else unled(description), root)


def import_receipt(description: Description, tree: Tree, weld: Weld) -> Receipt:
    """What the import kept, merged, defaulted, dropped and doubted; with the masses before and after welding, so that
    none is lost.
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
        fingerprint=tree.fingerprint,
    )
