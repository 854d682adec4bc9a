"""Mimic joints: the independent joint behind each follower, and the limits that followers impose on it.

    q_follower = multiplier q_leader + offset

A chain (a follows b, b follows c) is resolved to the independent joint at its end, the leader. Leaders and followers
have one degree of freedom; a revolute joint may follow a prismatic one, with a multiplier in rad/m. q, v and tau have
entries for leaders only; see `tree.py`.

A continuous leader is read as revolute if a whole turn changes the pose of a follower: a control law may not take the
shorter way round.

A joint that mimics a joint that does not exist or does not move is independent, with a warning: real files contain
this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from dyn_service.errors import UrdfError
from dyn_service.model.description import Description, Joint, Mimic, Note

_LARGEST = 1e9
"""Largest multiplier and offset of a whole chain. Squares of larger numbers would make all other inertias
negligible."""


class Bounds(NamedTuple):
    """Limits of a joint with one degree of freedom: rad | m, rad/s | m/s, N m | N, rad/s^2 | m/s^2, rad/s^3 | m/s^3;
    infinite if absent. acceleration: also of decelerations.
    """

    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    effort: float = math.inf
    acceleration: float = math.inf
    jerk: float = math.inf


@dataclass(frozen=True)
class NarrowedLimits:
    """The limits of a leader.

    own_bounds: its own limits. bounds: its limits such that followers keep theirs too. narrowed_by: the followers that
    narrowed them. disjoint: followers whose range does not overlap with the others' and is ignored.
    """

    own_bounds: Bounds
    bounds: Bounds
    narrowed_by: tuple[str, ...]
    disjoint: tuple[str, ...]


def resolved_mimics(joints: Iterable[Joint]) -> dict[str, Mimic]:
    """Returns, by name of the follower, its leader with the multiplier and offset of the whole chain.

    Raises:
        UrdfError: A leader or follower has several degrees of freedom, or the numbers of a chain are too large.
    """
    joint_by_name = {joint.name: joint for joint in joints}
    mimics: dict[str, Mimic] = {}
    for joint in joint_by_name.values():
        chain, link = [], joint
        while link.name not in mimics and (mimic := mimic_of(link, joint_by_name)) is not None:
            chain.append((link, mimic))
            link = joint_by_name[mimic.joint]
        inner = mimics.get(link.name, Mimic(link.name))
        # From the leader outward, since each rule applies to the position that the one before gives.
        for follower, mimic in reversed(chain):
            m = mimic.multiplier
            inner = Mimic(inner.joint, m * inner.multiplier, m * inner.offset + mimic.offset)
            if not max(abs(inner.multiplier), abs(inner.offset)) <= _LARGEST:
                raise _fault(follower, f"its mimic chain is {rule(inner)}, expected numbers of at most {_LARGEST:g}")
            mimics[follower.name] = inner
    return mimics


def mimic_of(joint: Joint, joint_by_name: Mapping[str, Joint]) -> Mimic | None:
    """Returns the mimic rule of a joint if it and the mimicked joint move. joint_by_name: the robot's joints.

    Raises:
        UrdfError: One of the two has several degrees of freedom.
    """
    leader = None if joint.mimic is None else joint_by_name.get(joint.mimic.joint)
    if leader is None or not (joint.moves.nv and leader.moves.nv):
        return None
    for role, member in (("the joint", joint), (f"the mimicked joint '{leader.name}'", leader)):
        if member.moves.nv != 1:
            ways = f"of type {member.moves.type}, with {member.moves.nv} degrees of freedom"
            raise _fault(joint, f"{role} is {ways}, expected 1")
    return joint.mimic


def followers_by_leader(joints: Iterable[Joint], mimics: Mapping[str, Mimic]) -> dict[str, list[tuple[Joint, Mimic]]]:
    """Returns, for each leader, its followers and their rules. mimics: from `resolved_mimics`."""
    followers: dict[str, list[tuple[Joint, Mimic]]] = {}
    for joint in joints:
        if joint.name in mimics:
            followers.setdefault(mimics[joint.name].joint, []).append((joint, mimics[joint.name]))
    return followers


def moved_by_a_turn(leader: Joint, mimics: Iterable[tuple[Joint, Mimic]]) -> list[str]:
    """Returns the followers of a continuous leader whose pose a whole turn changes; none for other types of leaders.

    A whole chain's multiplier is rounded: 3 times 1/3 counts as 1.
    """

    def repeats(joint: Joint, m: float) -> bool:
        return math.isclose(m, round(m), rel_tol=1e-15) and not (m * joint.moves.subspace[3:]).any()

    return [joint.name for joint, mimic in mimics if leader.moves.wraps and not repeats(joint, mimic.multiplier)]


def _fault(joint: Joint, message: str) -> UrdfError:
    text = f"{message}; remove the mimic to let each joint move independently"
    return UrdfError(text, line=joint.line or None, element=f"joint '{joint.name}' mimic")


def without_mimics(description: Description) -> Description:
    """Returns the robot with all joints independent, with a note on each that was a follower."""
    names = {joint.name for joint in description.joints if joint.moves.nv}
    notes = []
    for joint in description.joints:
        if joint.mimic is not None and {joint.name, joint.mimic.joint} <= names:
            text = f"mimics {rule(joint.mimic)} in the source; here it is independent, with its own q and tau"
            notes.append(Note("reported", f"joint '{joint.name}'", text, joint.line))
    # Followers of loop joints are refused by notes that no longer hold.
    closing = {joint.name for joint in description.loop_joints}
    led = {f"joint {x.name!r}" for x in description.joints if x.mimic is not None and x.mimic.joint in closing}
    earlier = (replace(x, kind="reported") if x.kind == "loop" and x.element in led else x for x in description.notes)
    joints = tuple(replace(joint, mimic=None) for joint in description.joints)
    return replace(description, joints=joints, notes=(*earlier, *notes))


def rule(mimic: Mimic) -> str:
    """`multiplier * 'leader' + offset`."""
    return f"{mimic.multiplier:g} * '{mimic.joint}' + {mimic.offset:g}"


def bounds(joint: Joint) -> Bounds:
    """Returns the limits of a joint from its file; infinite for joints with several degrees of freedom."""
    limit = joint.limit
    if limit is None or joint.moves.nv != 1:
        return Bounds()
    entries = zip((limit.lower, limit.upper, limit.velocity, limit.effort), Bounds(), strict=False)
    limits = Bounds(*(absent if value is None else value for value, absent in entries))
    rates = (limit.acceleration, limit.deceleration, limit.jerk)
    acceleration, deceleration, jerk = (math.inf if not value or value < 0.0 else value for value in rates)
    limits = limits._replace(acceleration=min(acceleration, deceleration), jerk=jerk)
    return limits if joint.moves.ranged else limits._replace(lower=-math.inf, upper=math.inf)


def narrowed_limits(leader: Joint, mimics: Iterable[tuple[Joint, Mimic]]) -> NarrowedLimits:
    """Returns the limits of a leader that respect its own and its followers' limits.

    Effort and velocity limits of 0 of a follower, and empty ranges, are ignored: a follower has no motor, and exporters
    write 0. The effort limit of a follower applies as if it took all of the leader's effort.
    """
    own_bounds = narrowed = bounds(leader)
    narrowed_by, disjoint = [], []
    for joint, mimic in mimics:
        limits, m = bounds(joint), mimic.multiplier
        if m == 0.0:
            continue
        narrower = narrowed
        if limits.lower < limits.upper:
            ends = sorted(((limits.lower - mimic.offset) / m, (limits.upper - mimic.offset) / m))
            narrower = narrowed._replace(lower=max(narrowed.lower, ends[0]), upper=min(narrowed.upper, ends[1]))
            if narrower != narrowed and not narrower.lower < narrower.upper:
                disjoint.append(joint.name)
                narrower = narrowed
        for name in ("velocity", "acceleration", "jerk"):
            # A follower has no motor, and exporters write 0 for it, which is no limit.
            if getattr(limits, name) > 0.0:
                rate = min(getattr(narrower, name), getattr(limits, name) / abs(m))
                narrower = narrower._replace(**{name: rate})
        if limits.effort > 0.0:
            narrower = narrower._replace(effort=min(narrower.effort, limits.effort * abs(m)))
        if narrower != narrowed:
            narrowed_by.append(joint.name)
        narrowed = narrower
    return NarrowedLimits(own_bounds, narrowed, tuple(narrowed_by), tuple(disjoint))
