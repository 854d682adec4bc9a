"""Trees whose joints have one axis each, as plain lists per body; and joints by their types alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyn_service.model.configuration import Configuration
from dyn_service.model.joints import JOINT_TYPES
from dyn_service.model.tree import Tree


def motions(tree: Tree) -> list[str]:
    """`fixed`, `revolute` or `prismatic`: how each body moves, continuous joints being revolute."""
    return ["revolute" if joint.type == "continuous" else joint.type for joint in tree.inboard]


def dofs(tree: Tree) -> list[int]:
    """The entry of v of each body's joint, -1 where it is fixed."""
    assert all(joint.nv <= 1 for joint in tree.inboard)
    return [part.start if joint.nv else -1 for joint, part in zip(tree.inboard, tree.in_v, strict=True)]


def motion_subspaces(tree: Tree) -> np.ndarray:
    """(N, 6): [axis; 0] of a body that turns, [0; axis] of one that slides, zero at fixed joints; in its own axes."""
    subspaces = np.zeros((len(tree), 6))
    for G, motion, joint in zip(subspaces, motions(tree), tree.inboard, strict=True):
        if motion != "fixed":
            G[{"revolute": slice(3), "prismatic": slice(3, 6)}[motion]] = joint.axis
    return subspaces


def columns(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """(N, 6): the one column of each block (6, 1), zero where a fixed joint has none, (6, 0)."""
    assert all(block.shape in ((6, 0), (6, 1)) for block in blocks)
    return np.array([block[:, 0] if block.shape[1] else np.zeros(6) for block in blocks])


def configuration(names: Sequence[str], types: Sequence[str]) -> Configuration:
    """Joints of these types, each along z."""
    return Configuration(tuple(names), tuple(JOINT_TYPES[kind](np.array([0.0, 0.0, 1.0]), 0.0) for kind in types))
