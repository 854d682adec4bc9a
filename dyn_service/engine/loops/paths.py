"""The joints between the links of a loop joint, and their length."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dyn_service.model.arrays import Vector
from dyn_service.model.description import Description, Joint, LoopJoint

_ROUNDED = 1e-9
"""Largest length of a loop relative to the offsets from its common ancestor, that is a rounding error."""


class LoopPath(NamedTuple):
    """The joints that move one link of a loop joint relative to the other: those between them and their nearest common
    ancestor.

    joints: the names of independent joints; a mimic joint counts as the one that it mimics. length: m, the largest
    offset, between the frames of joints that follow each other, through the common ancestor too; 1 if all are zero.
    travel: m, the largest distance between the limits of a prismatic joint; 0 without one.
    """

    joints: frozenset[str]
    length: float
    travel: float

    @classmethod
    def of(cls, description: Description, loop: LoopJoint) -> LoopPath:
        """Returns the path of a loop joint."""
        by_child = {joint.child: joint for joint in description.joints}
        sides = [_chain(by_child, link) for link in (loop.parent, loop.child)]
        common = {joint.name for joint in sides[0]} & {joint.name for joint in sides[1]}
        sides = [[joint for joint in side if joint.name not in common] for side in sides]
        starts, offsets = zip(
            *(_offsets(side, end) for side, end in zip(sides, (loop.parent_xyz, loop.child_xyz), strict=True)),
            strict=True,
        )
        length = max([float(np.linalg.norm(starts[0] - starts[1])), *offsets[0], *offsets[1]])
        rounded = _ROUNDED * max(float(np.linalg.norm(start)) for start in starts)
        moving = [joint for side in sides for joint in side if joint.moves.nv]
        slides = [joint.limit for joint in moving if joint.moves.shifts == (True,)]
        ranges = [(limit.lower, limit.upper) for limit in slides if limit is not None]
        travels = [upper - lower for lower, upper in ranges if lower is not None and upper is not None]
        return cls(
            frozenset(_leader(description, joint) for joint in moving),
            length if length > rounded else 1.0,
            max((travel for travel in travels if np.isfinite(travel)), default=0.0),
        )


def _chain(by_child: dict[str, Joint], link: str) -> list[Joint]:
    """Returns the joints from the root to a link."""
    chain = []
    while link in by_child:
        chain.append(by_child[link])
        link = by_child[link].parent
    return chain[::-1]


def _offsets(chain: list[Joint], end: Vector) -> tuple[Vector, list[float]]:
    """Returns the first frame that moves, in the axes of the chain's first link, and the lengths of later offsets.

    end: the loop joint's frame on the last link.
    """
    start, R = np.zeros(3), np.eye(3)
    for k, joint in enumerate(chain):
        start, R = start + R @ joint.xyz, R @ joint.rotation
        if joint.moves.nv:
            return start, [float(np.linalg.norm(xyz)) for xyz in (*(outboard.xyz for outboard in chain[k + 1 :]), end)]
    return start + R @ end, []


def _leader(description: Description, joint: Joint) -> str:
    """Returns the independent joint that moves a joint."""
    by_name = {other.name: other for other in description.joints}
    while joint.mimic is not None and joint.mimic.joint in by_name:
        joint = by_name[joint.mimic.joint]
    return joint.name
