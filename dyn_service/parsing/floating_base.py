"""A robot that walks and whose base nothing sets free: its dynamics are those of a robot hung up by its base.

URDF files of humanoids and quadrupeds mostly begin with the trunk and leave it to a simulator to let go of it. Taken as
they are, they stand fixed in the world, and no leg bears another's load. They are known by names as people give them:
links called foot, ankle, shank and the like, at the ends of two or more chains of two or more joints that turn.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise

from dyn_service.model.description import FIXED_ROOT, Description, Note, outward
from dyn_service.parsing.places import Place, counted, listed, named

FEWEST_LEGS = 2
FEWEST_TURNS = 2
"""Joints that turn between trunk and foot: hip and knee."""
# Whole words: `sole` is in TorsoLeft, `foot` in base_footprint. Not `leg`, which tables have, nor `hip`.
_WORDS = frozenset(
    {"foot", "feet", "ankle", "sole", "toe", "toes", "heel", "shank", "shin", "calf", "tibia", "paw", "hoof", "knee"}
)
_ENDINGS = ("foot", "ankle", "shank", "tibia", "knee", "lowerleg")
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def walking_notes(description: Description) -> list[Note]:
    """One doubt where the robot seems to walk; its place is the root link."""
    inboard = {joint.child: joint for joint in description.joints}
    order = outward(description)
    # Of each link the joint that last turned on the way to it, by its child link, and how many have.
    turned: dict[str, str] = {order[0]: ""}
    turns: dict[str, float] = {order[0]: 0}
    feet: dict[str, str] = {}
    for name in order[1:]:
        joint = inboard[name]
        turning = joint.moves.angles == (True,)
        turned[name] = name if turning else turned[joint.parent]
        lets_go = any(joint.moves.shifts) and not turns[joint.parent]  # the trunk's own joint, in the file
        turns[name] = -math.inf if lets_go else turns[joint.parent] + turning
        if turns[name] >= FEWEST_TURNS and _is_of_a_leg(name):
            feet.setdefault(turned[name], name)
    # Knee, ankle and foot are of one leg: the outermost of them stands for it.
    above: set[str] = set()
    for name in reversed(order[1:]):
        if name in feet or name in above:
            above.add(inboard[name].parent)
    legs = [link for link in feet if link not in above]
    if len(legs) < FEWEST_LEGS:
        return []
    ends = listed([feet[link] for link in legs], 4)
    text = (
        f"the robot seems to walk ({counted(len(legs), 'leg')}: {ends}), and this link, its root, {FIXED_ROOT}: "
        'the robot hangs by it, where it is not given root="floating"'
    )
    line = next(link.line for link in description.links if link.name == order[0])
    return [Place(description.source, named("link", order[0]), line).note("doubted", text)]


def _is_of_a_leg(link: str) -> bool:
    words = [word.lower() for word in _WORD.findall(link)]
    pairs = [one + other for one, other in pairwise(words)]
    return any(word in _WORDS or word.endswith(_ENDINGS) for word in (*words, *pairs))
