"""The receipt of an import: how the links and joints of a file became moving bodies."""

from __future__ import annotations

from dyn_service.engine.describing import fingerprint_of
from dyn_service.model import composite
from dyn_service.model.description import Description
from dyn_service.model.inertia import combine
from dyn_service.model.tree import Tree
from dyn_service.model.welding import Weld, welding_notes
from dyn_service.parsing.report import MassSummary, Receipt, build_receipt


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
