"""Joints that follow others: whom each follows in the end, and what of their limits its leader has to keep.

    q_follower = multiplier q_leader + offset

A chain, a follows b and b follows c, is resolved to the joint that leads it and follows none. Only joints with one way
to move lead and follow; a turning one may follow a sliding one, the multiplier being in rad/m then. What they do
together is the tree's (`tree.py`): q, v and tau hold leaders only.

A joint that follows one that is not there, or that does not move, moves by itself: real files have that, and the
importer doubts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from dyn_service.errors import UrdfError
from dyn_service.model.description import Description, Joint, Mimic, Note

_LARGEST = 1e9
"""Multipliers and offsets beyond it, of a whole chain, are no gear's: squared, they would drown all else."""


class Bounds(NamedTuple):
    """Of a joint with one way to move: rad | m, rad/s | m/s, N m | N; infinite where absent."""

    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    effort: float = math.inf


@dataclass(frozen=True)
class Kept:
    """What a leader has to keep. own: its own bounds. bounds: so that each follower keeps its own too. narrowed_by: the
    followers that made a difference. apart: those whose range has nothing in common with the others', and is left out.
    """

    own: Bounds
    bounds: Bounds
    narrowed_by: tuple[str, ...]
    apart: tuple[str, ...]


def followers(joints: Iterable[Joint]) -> dict[str, Mimic]:
    """Whom each follower follows in the end, and how: its name to what is left of its chain.

    Args:
        joints: Of one robot; the importer has checked that following them ends.

    Raises:
        UrdfError: A joint with several ways to move follows or leads, or a chain's numbers are out of all measure.
    """
    of = {joint.name: joint for joint in joints}
    found: dict[str, Mimic] = {}
    for joint in of.values():
        chain, at = [], joint
        while at.name not in found and (said := followed(at, of)) is not None:
            chain.append((at, said))
            at = of[said.joint]
        inner = found.get(at.name, Mimic(at.name))
        for each, said in reversed(chain):
            inner = Mimic(inner.joint, said.multiplier * inner.multiplier, said.multiplier * inner.offset + said.offset)
            if not max(abs(inner.multiplier), abs(inner.offset)) <= _LARGEST:
                raise _fault(each, f"it follows as {rule(inner)}, expected numbers of at most {_LARGEST:g}")
            found[each.name] = inner
    return found


def followed(joint: Joint, of: Mapping[str, Joint]) -> Mimic | None:
    """What it follows, if it moves and that does too. `of`: the robot's joints by name.

    Raises:
        UrdfError: One of the two has several ways to move.
    """
    leader = None if joint.mimic is None else of.get(joint.mimic.joint)
    if leader is None or not (joint.moves.nv and leader.moves.nv):
        return None
    for what, each in (("it", joint), (f"joint '{leader.name}', which it follows,", leader)):
        if each.moves.nv != 1:
            ways = f"of type {each.moves.type}, with {each.moves.nv} ways to move"
            raise _fault(joint, f"{what} is {ways}, expected one with one")
    return joint.mimic


def by_leader(joints: Iterable[Joint], led: Mapping[str, Mimic]) -> dict[str, list[tuple[Joint, Mimic]]]:
    """Of each leader, its followers and how they follow. led: of `followers`."""
    found: dict[str, list[tuple[Joint, Mimic]]] = {}
    for joint in joints:
        if joint.name in led:
            found.setdefault(led[joint.name].joint, []).append((joint, led[joint.name]))
    return found


def _fault(joint: Joint, message: str) -> UrdfError:
    return UrdfError(
        f"{message}; without mimic each joint moves by itself",
        line=joint.line or None,
        element=f"joint '{joint.name}' mimic",
    )


def unled(description: Description) -> Description:
    """The same robot, each of its joints moving by itself, with a note on each that followed another."""
    names = {joint.name for joint in description.joints if joint.moves.nv}
    notes = []
    for joint in description.joints:
        if joint.mimic is not None and {joint.name, joint.mimic.joint} <= names:
            text = f"mimics {rule(joint.mimic)} in the source; here it is a joint of its own, with its own q and tau"
            notes.append(Note("reported", f"joint '{joint.name}'", text, joint.line))
    joints = tuple(replace(joint, mimic=None) for joint in description.joints)
    return replace(description, joints=joints, notes=(*description.notes, *notes))


def rule(mimic: Mimic) -> str:
    """`multiplier * 'leader' + offset`."""
    return f"{mimic.multiplier:g} * '{mimic.joint}' + {mimic.offset:g}"


def bounds(joint: Joint) -> Bounds:
    """A joint's own, as its file says; none where the one range of a file says nothing of its several ways to move."""
    limit = joint.limit
    if limit is None or joint.moves.nv != 1:
        return Bounds()
    said = Bounds(
        *(
            absent if value is None else value
            for value, absent in zip((limit.lower, limit.upper, limit.velocity, limit.effort), Bounds(), strict=True)
        )
    )
    return said if joint.moves.ranged else said._replace(lower=-math.inf, upper=math.inf)


def kept(leader: Joint, led: Iterable[tuple[Joint, Mimic]]) -> Kept:
    """What a leader has to keep for itself and for its followers.

    Of a follower's limits those of effort and velocity that are 0 are none, since it has no motor, and exporters write
    0; nor is a range without room. Its effort limit holds were it to take all of the leader's effort by itself.

    Args:
        leader: As described.
        led: Those that follow it in the end, and how.
    """
    own = found = bounds(leader)
    narrowed_by, apart = [], []
    for joint, mimic in led:
        said, m = bounds(joint), mimic.multiplier
        if m == 0.0:
            continue
        narrower = found
        if said.lower < said.upper:
            ends = sorted(((said.lower - mimic.offset) / m, (said.upper - mimic.offset) / m))
            narrower = found._replace(lower=max(found.lower, ends[0]), upper=min(found.upper, ends[1]))
            if narrower != found and not narrower.lower < narrower.upper:
                apart.append(joint.name)
                narrower = found
        if said.velocity > 0.0:
            narrower = narrower._replace(velocity=min(narrower.velocity, said.velocity / abs(m)))
        if said.effort > 0.0:
            narrower = narrower._replace(effort=min(narrower.effort, said.effort * abs(m)))
        if narrower != found:
            narrowed_by.append(joint.name)
        found = narrower
    return Kept(own, found, tuple(narrowed_by), tuple(apart))
