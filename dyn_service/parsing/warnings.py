"""What a robot description says but can hardly mean: kept as written, and noted.

Doubts never refuse a robot. Of the real robots at hand half have links without mass and a quarter have inertias that no
rigid body can have, and they are simulated every day; their users should know it, not lose the robot.

A rigid body's principal moments a <= b <= c about its centre of mass, being second moments of a positive mass, satisfy

    a >= 0   and   a + b >= c

Cost: linear in links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from dyn_service.model.description import Description, Inertial, Joint, Link, Mimic, Note, outward
from dyn_service.model.inertia import principal_moments
from dyn_service.model.joints import Joint as Moves
from dyn_service.parsing.floating_base import walking_notes
from dyn_service.parsing.places import Place, named, quoted
from dyn_service.parsing.unit_checks import (
    FAINT_GYRATION_M,
    WIDEST_GYRATION_M,
    is_stand_in,
    limit_notes,
    measure,
    size_notes,
    unit_notes,
)

MOMENTS = 1e-3
"""Share of the largest principal moment by which the conditions above may fail: files print moments with 3 digits."""
LIGHTEST_KG = 1e-6
HEAVIEST_KG = 1e5
FARTHEST_COM_M = 10.0


def doubts(description: Description) -> list[Note]:
    """One note per doubt: inertials in the order of links, moving links without mass, a fixed base, units, joints."""
    sizes = measure(description)
    units = unit_notes(description, sizes)
    # One slip of units is one note, not one more for every link.
    links = [] if units else size_notes(description, sizes)
    return [
        *_inertials(description, plausible=not units),
        *_massless(description),
        *walking_notes(description),
        *units,
        *links,
        *_joints(description),
        *limit_notes(description, sizes),
    ]


def _link(description: Description, link: Link) -> Place:
    return Place(description.source, named("link", link.name), link.line)


def _inertials(description: Description, *, plausible: bool) -> Iterator[Note]:
    """`plausible`: the robot's units are not in doubt, so that a link that is out of scale is news."""
    told = {note.line for note in description.notes if note.kind == "defaulted" and note.line}
    for link in description.links:
        by_default = link.line in told and link.inertial is not None and is_stand_in(link.inertial)
        if link.inertial is not None and not by_default:  # which a note of the reader says
            for text in _inertial(link.inertial, plausible=plausible):
                yield _link(description, link).note("doubted", text)


def _inertial(inertial: Inertial, *, plausible: bool) -> Iterator[str]:
    mass, inertia = inertial.mass, inertial.inertia
    scale = float(np.abs(inertia).max())
    if is_stand_in(inertial):
        yield (
            "mass 1 kg and unit inertia at the link's origin is what urdfpy and urchin put where a file has no "
            "<inertial>; if that is so here, load the file itself"
        )
        return
    if 0.0 < mass < LIGHTEST_KG:
        yield f"mass {mass:g} kg is less than {LIGHTEST_KG:g} kg"
    if plausible and mass > HEAVIEST_KG:
        yield f"mass {mass:g} kg is more than {HEAVIEST_KG:g} kg"
    distance = math.hypot(*inertial.com)
    if plausible and mass > 0.0 and distance > FARTHEST_COM_M:
        yield f"the centre of mass is {distance:g} m from the link's origin"
    gyration = math.sqrt(scale) / math.sqrt(mass) if mass > 0.0 else math.inf
    if mass > 0.0 and gyration < FAINT_GYRATION_M:
        yield f"mass {mass:g} kg and no inertia: a point mass"
    elif scale > 0.0:
        yield from _moments(inertial, scale)
        if mass == 0.0:
            yield "inertia without mass"
        elif plausible and gyration > WIDEST_GYRATION_M:
            yield f"the radius of gyration is {gyration:.3g} m: too much inertia for {mass:g} kg"


def _moments(inertial: Inertial, scale: float) -> Iterator[str]:
    # Scaled, so that no intermediate leaves the range of doubles.
    a, b, c = principal_moments(inertial.inertia / scale).tolist()
    moments = ", ".join(f"{moment * scale:.4g}" for moment in (a, b, c))
    if a < -MOMENTS * c:
        yield f"no body has these principal moments: one of {moments} kg m^2 is negative"
    elif a + b < c * (1.0 - MOMENTS):
        yield f"no body has these principal moments: of {moments} kg m^2 the largest exceeds the others' sum"


def _massless(description: Description) -> Iterator[Note]:
    """Movable joints that move a body of no mass: the child link and the links that fixed joints weld to it."""
    inboard = {joint.child: joint for joint in description.joints}
    order = outward(description)
    welded = {link.name: link.inertial.mass if link.inertial else 0.0 for link in description.links}
    beyond = dict(welded)
    for name in reversed(order):
        if name in inboard:
            joint = inboard[name]
            beyond[joint.parent] += beyond[name]
            if not joint.moves.nv:
                welded[joint.parent] += welded[name]
    links = {link.name: link for link in description.links}
    for name in order:
        if links[name].between and beyond[name]:
            continue  # nobody wrote it
        if name in inboard and inboard[name].moves.nv and welded[name] == 0.0:
            mover = quoted(inboard[name].name)
            if beyond[name] == 0.0:
                text = f"joint {mover} moves no mass at all: forward dynamics has no answer for it"
            else:
                text = f"joint {mover} moves this link, which has no mass of its own nor welded to it"
            yield _link(description, links[name]).note("doubted", text)


def _joints(description: Description) -> Iterator[Note]:
    moves = {joint.name: joint.moves for joint in description.joints}
    for joint in description.joints:
        if joint.moves.nv:
            place = Place(description.source, named("joint", joint.name), joint.line)
            for text in _joint(joint):
                yield place.note("doubted", text)
            if joint.mimic is not None:
                for text in _followed(joint.mimic, moves):
                    yield place.note("doubted", text)


def _followed(mimic: Mimic, moves: Mapping[str, Moves]) -> Iterator[str]:
    leader = moves.get(mimic.joint)
    if leader is None or not leader.nv:
        why = "which the robot does not have" if leader is None else "which is fixed"
        yield f"follows joint {quoted(mimic.joint)}, {why}: it moves by itself"
    elif mimic.multiplier == 0.0:
        yield f"follows joint {quoted(mimic.joint)} with multiplier 0: it stands still"


def _joint(joint: Joint) -> Iterator[str]:
    limit = joint.limit
    if joint.damping < 0.0:
        yield f"damping {joint.damping:g} is negative: it drives the joint"
    if joint.friction < 0.0:
        yield f"friction {joint.friction:g} is negative: it drives the joint"
    if limit is None:
        return
    turns_on = joint.moves.nv == 1 and not joint.moves.ranged
    if limit.lower is not None and limit.upper is not None and not turns_on:
        if limit.lower > limit.upper:
            yield f"lower limit {limit.lower:g} is above upper limit {limit.upper:g}"
        elif limit.lower == limit.upper:
            yield f"lower and upper limit are both {limit.lower:g}: no room to move"
    bounds = {"effort": limit.effort, "velocity": limit.velocity}
    for what, value in bounds.items():
        if value is not None and value < 0.0:
            yield f"{what} limit {value:g} is negative"
    zero = [what for what, value in bounds.items() if value == 0.0]
    if zero and joint.mimic is None:  # of one that follows another none counts
        yield f"{' and '.join(zero)} limit 0: taken at its word the joint may not move; exporters write it for none"
