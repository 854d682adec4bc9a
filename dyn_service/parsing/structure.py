"""Checks that links and joints form one tree, and returns a `Description`.

Invariants of a description:

    names       link names are unique, joint names are unique
    joints      parent and child name two different links of the robot
    one parent  no link is the child of two joints
    no loops    following parents from any link ends
    one root    exactly one link is no joint's child
    mimic       does not name its own joint; following it ends
    loop joints have names that no joint has, join two different links of the robot, and are finite

They are checked in this order, so that the first fault is the cause of others. Cost: linear in links and joints.

Many files use a parent called `world` without declaring it, and other engines accept that. If it makes the links one
tree, it is added as a link without mass, with a note.

**Warnings** of content of a robot description that is probably a mistake. It is kept as written.

Warnings never refuse a robot: half of the robots of example-robot-data have links without mass, a quarter have inertias
that no rigid body can have, and they are simulated every day.

Inertias. Principal moments a <= b <= c about the centre of mass satisfy a >= 0 and a + b >= c.

Units. URDF uses m, kg and rad; CAD programs often do not. A unit mistake is a factor of 57 (degrees), 1e3 (millimetres,
grams) or 1e3 to 1e9 (moments), which is larger than the variety of real robots:

    density      A body of mass m has at least the trace of inertia of a ball of osmium, the densest matter:
                 tr I = 6/5 m r^2 with m = rho 4/3 pi r^3.
    lengths      A link with joints or centres of mass d apart is about d long. If most of a robot's mass is in links
                 with a hundredth of the density of air in cubes of that size, d is in millimetres; if most is in links
                 denser than solid steel, masses are in grams.
    gyration     A link's radius of gyration k = sqrt(largest moment / mass) is at most about half its length. For the
                 robots of example-robot-data it is up to 3 times the largest distance between joints and centres of
                 mass of its body; a unit mistake in the moments makes k at least 31 times as large.

The thresholds separate those robots from the same robots with each mistake applied.

Fixed base. URDF files of humanoids and quadrupeds mostly start with the trunk and leave it to the simulator to free it.
Read as written, the trunk is fixed in the world. Such robots are recognised by link names (foot, ankle, shank, ..) at
the ends of two or more chains of two or more revolute joints.

Cost: linear in links.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from dyn_service.errors import UrdfError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import (
    FIXED_ROOT,
    Description,
    Edit,
    Inertial,
    Joint,
    Link,
    LoopJoint,
    Mimic,
    Note,
    outward,
)
from dyn_service.model.inertia import principal_moments
from dyn_service.model.joints import Joint as Moves
from dyn_service.model.joints.multi_dof import Spherical
from dyn_service.parsing.quantities import TURN, X_AXIS, Faults, Place, counted, listed, named, quoted
from dyn_service.parsing.shapes import SOLIDS, filled
from dyn_service.support.suggestions import closest, did_you_mean

WORLD = "world"
"""The name of the link that may be undeclared."""

LONGEST_CYCLE = 8
"""Maximum number of links of a loop that a message names."""

Named = TypeVar("Named", Link, Joint)


def assemble(
    name: str,
    links: Sequence[Link],
    joints: Sequence[Joint],
    notes: Iterable[Note],
    robot: Place,
    loop_joints: Sequence[LoopJoint] = (),
) -> Description:
    """Returns the checked robot, with the reader's notes and warnings. `robot`: the place of the robot element.

    Raises:
        UrdfError: An invariant of this module does not hold; names the element and its line.
    """
    if not links:
        raise robot.fault("there are no links, expected at least one")
    faults = Faults()
    by_name = _unique(links, "link", robot, faults)
    joint_by_name = _unique(joints, "joint", robot, faults)
    faults.check()
    try:
        _check_tree(by_name, joints, robot)
    except UrdfError as fault:
        # On the line of the first joint that uses it.
        # Real files use a link `world` without declaring it.
        world = next((Link(WORLD, line=joint.line) for joint in joints if joint.parent == WORLD), None)
        if world is None or WORLD in by_name:
            raise
        by_name[WORLD] = world
        try:
            _check_tree(by_name, joints, robot)
        except UrdfError:
            # The error of the file as it is, not of the tree with a link that it does not have.
            raise fault from None
        text = "is the parent of a joint but not declared: added as the root link, without mass"
        notes = [*notes, _place(world, robot.file).note("defaulted", text)]
    _check_mimic(joint_by_name, robot)
    described = Description(name, tuple(by_name.values()), tuple(joints), robot.file)
    for loop_joint in loop_joints:
        with faults.kept():
            if fault_text := loop_fault(described, loop_joint):
                raise _place(loop_joint, robot.file).fault(fault_text)
            described = replace(described, loop_joints=(*described.loop_joints, loop_joint))
    faults.check()
    notes = [*notes, *follower_notes(described)]
    described = replace(described, notes=tuple(notes))  # some warnings depend on the reader's notes
    return replace(described, notes=(*described.notes, *warnings_of(described)))


def with_drives(joints: Iterable[Joint], driven_names: Collection[str]) -> list[Joint]:
    """Returns the joints: those that move are driven if they are named, else passive. If no joint that moves is named,
    they are unchanged.
    """
    unchanged = list(joints)
    if not any(joint.name in driven_names and joint.moves.nv for joint in unchanged):
        return unchanged
    return [replace(x, driven=x.name in driven_names) if x.moves.nv else x for x in unchanged]


def loop_fault(description: Description, joint: LoopJoint) -> str:
    """Returns why a joint cannot close a loop of the robot, "" if it can."""
    links = {link.name for link in description.links}
    for end, link in (("parent", joint.parent), ("child", joint.child)):
        if link not in links:
            return f"the {end} {quoted(link)} is not a link of the robot{did_you_mean(link, links)}"
    if joint.parent == joint.child:
        return f"the parent and the child are the same link {quoted(joint.parent)}, expected two links"
    if joint.moves.free:
        return f"a joint of type {joint.type} blocks no motion, expected one that closes the loop"
    joints: tuple[Joint | LoopJoint, ...] = (*description.joints, *description.loop_joints)
    namesake = next((other for other in joints if other.name == joint.name), None)
    if namesake is not None:
        return f"a joint of this name is already defined{_on_line(namesake)}, expected unique names"
    frames = (joint.parent_xyz, joint.parent_rotation, joint.child_xyz, joint.child_rotation, joint.axis, joint.pitch)
    if not all(np.isfinite(x).all() for x in frames):
        return "its frames are too large for a double"
    return ""


def ball_joint(name: str, parent: str, child: str, points: Sequence[Vector], place: Place) -> LoopJoint:
    """Returns the joint by which a point of the parent link and one of the child, (3,) m in their frames, coincide."""
    R, axis = np.eye(3), np.array(X_AXIS)
    return LoopJoint(name, Spherical.type, parent, child, points[0], R, points[1], R, axis, line=place.main_line)


def follower_notes(description: Description) -> Iterator[Note]:
    """Returns a note on each joint that follows a loop joint, whose position the tree does not have."""
    names = {joint.name for joint in description.loop_joints}
    for joint in description.joints:
        if joint.mimic is not None and joint.mimic.joint in names:
            text = f"follows {quoted(joint.mimic.joint)}, which closes a loop: it is ignored"
            yield _place(joint, description.source).note("loop", text)


def _check_tree(links: Mapping[str, Link], joints: Sequence[Joint], robot: Place) -> None:
    faults = Faults()
    for joint in joints:
        with faults.kept():
            _check_ends(joint, links, robot)
    faults.check()
    inboard = _inboard(joints, robot)
    _check_loops(links.values(), inboard, robot)
    _check_root(links.values(), inboard, robot)


def _place(element: Link | Joint | LoopJoint, source: str) -> Place:
    return Place(source, named("link" if isinstance(element, Link) else "joint", element.name), element.line)


def _on_line(element: Link | Joint | LoopJoint) -> str:
    return f" on line {element.line}" if element.line else ""


def _unique(elements: Sequence[Named], kind: str, robot: Place, faults: Faults) -> dict[str, Named]:
    unique: dict[str, Named] = {}
    for element in elements:
        first = unique.setdefault(element.name, element)
        if first is not element:
            message = f"a {kind} of this name is already defined{_on_line(first)}, expected unique names"
            with faults.kept():
                raise _place(element, robot.file).fault(message)
    return unique


def _check_ends(joint: Joint, links: Mapping[str, Link], robot: Place) -> None:
    place = _place(joint, robot.file)
    for end, link in (("parent", joint.parent), ("child", joint.child)):
        if link not in links:
            raise place.fault(f"the {end} {quoted(link)} is not a link of the robot{did_you_mean(link, links)}")
    if joint.parent == joint.child:
        raise place.fault(f"the parent and the child are the same link {quoted(joint.parent)}, expected two links")


def _inboard(joints: Iterable[Joint], robot: Place) -> dict[str, Joint]:
    inboard: dict[str, Joint] = {}
    for joint in joints:
        first = inboard.setdefault(joint.child, joint)
        if first is not joint:
            parent = f"joint {quoted(first.name)}{_on_line(first)}, expected one parent per link"
            text = f"the link {quoted(joint.child)} already is the child of {parent}"
            raise _place(joint, robot.file).fault(text)
    return inboard


def loop_of(names: Iterable[str], following: Callable[[str], str | None]) -> list[str]:
    """Returns the names of the first loop that `following`, applied to one of the names again and again, ends in, or
    [] if it always ends with None.
    """
    safe: set[str] = set()
    for name in names:
        walked: dict[str, None] = {}
        current: str | None = name
        while current is not None and current not in safe:
            if current in walked:
                return list(walked)[list(walked).index(current) :]
            walked[current] = None
            current = following(current)
        # Each name is walked once, so that a chain of thousands takes linear time.
        safe.update(walked)
    return []


def _check_loops(links: Iterable[Link], inboard: Mapping[str, Joint], robot: Place) -> None:
    names = (link.name for link in links)
    cycle = loop_of(names, lambda name: inboard[name].parent if name in inboard else None)
    if not cycle:
        return
    # Parent to child, starting at the first link in the source, independent of the search.
    cycle.reverse()
    first = min(range(len(cycle)), key=lambda i: (inboard[cycle[i]].line, cycle[i]))
    cycle = cycle[first:] + cycle[:first]
    message = f"the links form a loop, {_cycle_path(cycle)}, expected a tree"
    raise _place(inboard[cycle[0]], robot.file).fault(message)


def _check_root(links: Iterable[Link], inboard: Mapping[str, Joint], robot: Place) -> None:
    # Without loops there is at least one root.
    roots = [link for link in links if link.name not in inboard]
    if len(roots) > 1:
        roots_text = f"{counted(len(roots), 'root link')} ({listed([link.name for link in roots])})"
        text = f"this link is not the child of a joint: found {roots_text}, expected one"
        raise _place(roots[1], robot.file).fault(text)


def _check_mimic(joints: Mapping[str, Joint], robot: Place) -> None:
    for joint in joints.values():
        if joint.mimic is None:
            continue
        place = _place(joint, robot.file).inside("mimic")
        if joint.mimic.joint == joint.name:
            raise place.fault("the joint follows itself, expected another joint")

    def leader(name: str) -> str | None:
        mimic = joints[name].mimic
        # A leader that does not exist is a warning: real files have it, and the joint is independent.
        return None if mimic is None or mimic.joint not in joints else mimic.joint

    cycle = loop_of(joints, leader)
    if cycle:
        message = f"the joints follow each other in a loop, {_cycle_path(cycle)}, expected one that follows no other"
        raise _place(joints[cycle[0]], robot.file).inside("mimic").fault(message)


def _cycle_path(names: list[str]) -> str:
    steps = [quoted(name) for name in names[:LONGEST_CYCLE]]
    if len(names) > LONGEST_CYCLE:
        steps.append(f"({len(names) - LONGEST_CYCLE} more)")
    return " -> ".join([*steps, quoted(names[0])])


MOMENTS = 1e-3
"""Tolerance of the inertia conditions relative to the largest principal moment: files have moments with 3 digits."""
LIGHTEST_KG = 1e-6
HEAVIEST_LINK_KG = 1e5
FARTHEST_COM_M = 10.0


def warnings_of(description: Description) -> list[Note]:
    """Returns the warnings: inertias by link, moving links without mass, fixed base, units, joints."""
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = _measured(description)
    units = [*_lengths(description, sizes), *_masses(description, sizes)]
    return [
        *_inertials(description, plausible=not units),
        *_massless(description),
        *_legs(description),
        *units,
        # One unit mistake is one note, not one per link.
        *([] if units else _gyrations(description, sizes)),
        *([] if units else _far_joints(description)),
        *_joints(description),
        *_limits(description, sizes),
    ]


class Doubt(NamedTuple):
    """What is doubtful in an element; the fields are those of `Note`."""

    rule: str
    text: str
    repair: str = ""
    edits: tuple[Edit, ...] = ()


def _warning(description: Description, element: Link | Joint, doubt: Doubt) -> Note:
    return _place(element, description.source).warning(*doubt)


def _inertials(description: Description, *, plausible: bool) -> Iterator[Note]:
    """Warns about inertias. plausible: the robot's units are plausible, so that single links can be checked."""
    default_elements = {note.element for note in description.notes if note.kind == "defaulted"}
    links = {link.name: link for link in description.links}
    for link in description.links:
        by_default = (
            named("link", link.name) in default_elements and link.inertial is not None and is_stand_in(link.inertial)
        )
        if link.inertial is not None and not by_default:  # the reader has a note on it
            contrast = _contrast(link, links.get(other_side(link.name), link))
            for doubt in _inertial(link.inertial, plausible=plausible):
                yield _warning(description, link, doubt._replace(text=doubt.text + contrast))


_OTHER_SIDE = {"left": "right", "Left": "Right", "LEFT": "RIGHT", "l": "r", "L": "R"}
_OTHER_SIDE |= {other: side for side, other in _OTHER_SIDE.items()}
_SIDE = re.compile("left|right|Left|Right|LEFT|RIGHT|(?<![A-Za-z])[lrLR](?![A-Za-z])")


def other_side(name: str) -> str:
    """Returns the name of the link on the other side: `right_hand` for `left_hand`; the same name if it has no side."""
    return _SIDE.sub(lambda side: _OTHER_SIDE[side[0]], name)


def is_left(name: str) -> bool:
    """Whether the first side in a name is the left one."""
    side = _SIDE.search(name)
    return side is not None and side[0][0].lower() == "l"


def _contrast(link: Link, twin: Link) -> str:
    """Returns the moments of the link on the other side, if it has the same mass and the moments of a body."""
    inertial = twin.inertial
    if twin is link or link.inertial is None or inertial is None or inertial.mass != link.inertial.mass:
        return ""
    # A twin with a fault of its own proves nothing.
    if any(_inertial(inertial, plausible=False)):
        return ""
    moments = ", ".join(f"{moment:.4g}" for moment in principal_moments(inertial.inertia).tolist())
    return f"; {quoted(twin.name)}, with the same mass, has principal moments {moments} kg m^2"


def _inertial(inertial: Inertial, *, plausible: bool) -> Iterator[Doubt]:
    mass, inertia = inertial.mass, inertial.inertia
    scale = float(np.abs(inertia).max())
    if is_stand_in(inertial):
        text = (
            "mass 1 kg and unit inertia at the link's origin are what urdfpy and urchin write for a link without "
            "<inertial>; if it has none, remove them"
        )
        yield Doubt("stand-in-inertial", text)
        return
    if 0.0 < mass < LIGHTEST_KG:
        yield Doubt("implausible-mass", f"mass {mass:g} kg is less than {LIGHTEST_KG:g} kg")
    if plausible and mass > HEAVIEST_LINK_KG:
        yield Doubt("implausible-mass", f"mass {mass:g} kg is more than {HEAVIEST_LINK_KG:g} kg")
    distance = math.hypot(*inertial.com)
    if plausible and mass > 0.0 and distance > FARTHEST_COM_M:
        yield Doubt("far-centre", f"the centre of mass is {distance:g} m from the link's origin")
    gyration = math.sqrt(scale) / math.sqrt(mass) if mass > 0.0 else math.inf
    if mass >= LIGHTEST_KG and gyration < FAINT_GYRATION_M:  # a lighter one has its finding
        yield Doubt("point-mass", f"mass {mass:g} kg and no inertia: a point mass")
    elif scale > 0.0:
        yield from _moments(inertial, scale)
        if mass == 0.0:
            yield Doubt("inertia-without-mass", "inertia without mass")
        elif plausible and gyration > WIDEST_GYRATION_M:
            text = f"the radius of gyration is {gyration:.3g} m: too much inertia for {mass:g} kg"
            yield Doubt("too-much-inertia", text)


def _moments(inertial: Inertial, scale: float) -> Iterator[Doubt]:
    # Scaled, so that nothing overflows.
    a, b, c = principal_moments(inertial.inertia / scale).tolist()
    moments = ", ".join(f"{moment * scale:.4g}" for moment in (a, b, c))
    if a < -MOMENTS * c:
        text = f"no body has these principal moments: one of {moments} kg m^2 is negative"
        yield Doubt("impossible-inertia", text)
    elif a + b < c * (1.0 - MOMENTS):
        text = f"no body has these principal moments: of {moments} kg m^2 the largest exceeds the others' sum"
        repair = f"a largest moment of at most {(a + b) * scale:.4g} kg m^2 fits" if a > 0.0 else ""
        yield Doubt("impossible-inertia", text, repair)


def _massless(description: Description) -> Iterator[Note]:
    """Warns about movable joints whose body (the child link and links fixed to it) has no mass."""
    inboard = {joint.child: joint for joint in description.joints}
    order = outward(description)
    welded = {link.name: link.inertial.mass if link.inertial else 0.0 for link in description.links}
    carried_mass = _carried(description)
    for name in reversed(order):
        if name in inboard and not inboard[name].moves.nv:
            welded[inboard[name].parent] += welded[name]
    links = {link.name: link for link in description.links}
    for name in order:
        if links[name].added and carried_mass[name]:
            continue  # the importer added it
        if name in inboard and inboard[name].moves.nv and welded[name] == 0.0:
            mover = quoted(inboard[name].name)
            if carried_mass[name] == 0.0:
                text = f"joint {mover} moves no mass: forward dynamics is undefined"
            else:
                text = f"joint {mover} moves this link, and neither it nor the links welded to it have mass"
            yield _warning(description, links[name], Doubt("massless-link", text))


def _joints(description: Description) -> Iterator[Note]:
    moves = {joint.name: joint.moves for joint in description.joints}
    loop_joints = {joint.name for joint in description.loop_joints}
    for joint in description.joints:
        if joint.moves.nv:
            mimic = None if joint.mimic is None or joint.mimic.joint in loop_joints else joint.mimic
            for doubt in (*_joint(joint), *(_followed(joint.name, mimic, moves) if mimic else ())):
                yield _warning(description, joint, doubt)


def _followed(name: str, mimic: Mimic, moves: Mapping[str, Moves]) -> Iterator[Doubt]:
    leader = moves.get(mimic.joint)
    if leader is None or not leader.nv:
        why = "which the robot does not have" if leader is None else "which is fixed"
        movable = [other for other, joint in moves.items() if joint.nv and other != name]
        # A macro may have left out the prefix of a hand, which the following joint has.
        prefixed = [other for other in movable if other.endswith(mimic.joint)]
        nearest = closest(name, prefixed) or closest(mimic.joint, movable)
        repair = f"follow {quoted(nearest)}" if nearest else ""
        text = f"mimics joint {quoted(mimic.joint)}, {why}: the mimic is ignored"
        yield Doubt("unfollowed-mimic", text, repair)
    elif mimic.multiplier == 0.0:
        text = f"mimics joint {quoted(mimic.joint)} with multiplier 0: it does not move"
        yield Doubt("still-mimic", text)


def _joint(joint: Joint) -> Iterator[Doubt]:
    limit = joint.limit
    if joint.damping < 0.0:
        text = f"damping {joint.damping:g} is negative: it adds energy to the joint"
        yield Doubt("negative-friction", text, f"write {-joint.damping:g}")
    if joint.friction < 0.0:
        text = f"friction {joint.friction:g} is negative: it adds energy to the joint"
        yield Doubt("negative-friction", text, f"write {-joint.friction:g}")
    if limit is None:
        return
    if limit.lower is not None and limit.upper is not None:
        if limit.lower > limit.upper:
            text = f"lower limit {limit.lower:g} is above upper limit {limit.upper:g}"
            yield Doubt("crossed-limits", text, f"write lower {limit.upper:g} and upper {limit.lower:g}")
        elif limit.lower == limit.upper:
            yield Doubt("locked-joint", f"lower and upper limit are both {limit.lower:g}: the joint cannot move")
    bounds = {name: getattr(limit, name) for name in ("effort", "velocity", "acceleration", "deceleration", "jerk")}
    for quantity, value in bounds.items():
        if value is not None and value < 0.0:
            yield Doubt("negative-limit", f"{quantity} limit {value:g} is negative", f"write {-value:g}, or no limit")
    zero = [quantity for quantity, value in bounds.items() if value == 0.0]
    if limit.lower is not None and limit.lower == limit.upper:  # a locked joint, which is a finding, has no velocity
        zero = [quantity for quantity in zero if quantity == "effort"]
    if joint.driven is False and "effort" in zero:  # of a robot whose motors are stated, so this joint has none
        zero.remove("effort")
    if zero and joint.mimic is None:  # limits of mimic joints are ignored
        meanings = [f"{quantity} limit 0 means no {'motor' if quantity == 'effort' else 'limit'}" for quantity in zero]
        yield Doubt("zero-limit", f"{', '.join(meanings)}; remove limits that are unknown")
    if limit.effort is not None and joint.friction >= limit.effort > 0.0:
        text = f"friction {joint.friction:g} is not below the effort limit {limit.effort:g}: no motor moves the joint"
        yield Doubt("friction-beyond-effort", text)


TWO_TURNS = 4.0 * math.pi
"""rad; largest range of joints with stops: +-2 pi for wrists, twice that with a cable drum."""
WHOLE_TURNS = 5e-3
"""rad; a limit this close to a multiple of pi is in rad. Of whole degrees, only 355 is this close."""
MAX_DEGREES = 720.0
"""Beyond two turns in degrees, limits are placeholders for unlimited (1e3, 1e16)."""
LONG_M = 10.0
"""A distance that lengths in millimetres exceed in any machine, and lengths in metres in few."""
FAR_JOINT = 100.0
"""Distance of a joint relative to the median one from which it is in mm."""
FASTEST = (90.0, 720.0)
"""rad/s; velocity limits in degrees. The fastest joints with stops have up to 52; higher ones are placeholders."""
MOST_EQUAL = 7
"""Joints of one velocity limit, those of an arm; a number at more of them is a placeholder (ergoCub: 120 at 57)."""
FAR_TRAVEL = 10.0
"""Plausible travel of a prismatic joint relative to the robot's longest distance; a unit mistake gives 1e3."""
FARTHEST_TRAVEL_M = 1e4
"""Travel from which a limit is a placeholder for unlimited."""
THIN_KG_M3 = 1e-2
"""kg/m^3, a hundredth of air. Real links have 1 to 1e4 in cubes of their length; in millimetres and kg 1e-9 of that, in
millimetres and grams 1e-6. A crane boom of 40 m and 1 t has 0.016."""
HEAVY_KG = 100.0
HEAVIEST_ROBOT_KG = 1e8
"""Range of total masses of robots of 0.1 kg to 100 t, if given in grams."""
STEEL_KG_M3 = 7850.0
OSMIUM_KG_M3 = 22590.0
BALL = 1.6
"""Radius of a ball relative to its radius of gyration, sqrt(5/2)."""
WIDE = 5.0
"""Threshold of radii of gyration relative to distances: geometric mean of 2.5 (plausible) and 10 (a third of 31)."""
WIDEST_GYRATION_M = 10.0
"""Above this, moments are not in kg m^2, independent of distances."""
SMALLEST_SHARE = 0.1
"""Relative to the robot's largest distance; smaller distances say nothing about a body's size."""
FAINT_GYRATION_M = 1e-6
"""Below this, moments are those of a point mass."""
EVEN_MOMENTS, MOST_MOMENTS = 1.98, 9.9
"""Moments of inertia relative to those of an evenly filled shape, from which they are doubted, 1 % below 2 and 10. A
hollow body has up to 5/3, a box with all mass at its corners 3; 10 is for a link with meshes, which are not opened
here: its other shapes may be half as long as the link."""
SMALLEST_M = 0.02
"""Diagonal of a box below which shapes only show where a frame is."""
CENTRED = 0.2
"""Distance of the centres of mass of link and shapes, relative to the shapes' radius of gyration, up to which the
shapes are taken for the body. The Panda's identified inertias are 0.25 to 1.3 away."""
LIGHT_SHARE = 0.01
"""Relative to the robot's mass; inertias of lighter links are often placeholders, as their shapes are."""
FAINT_SHARE = 1e-6
"""Relative to the robot's mass; lighter links have placeholder masses."""


@dataclass
class _Body:
    """Links connected by fixed joints: the distance to the parent body, joints and centres of mass in its frame."""

    inboard: float
    joints: list[Vector]
    centres: list[Vector] = field(default_factory=list)

    def span(self) -> float:
        """The longest distance between joints."""
        return max(self.inboard, _spread(self.joints))

    def extent(self) -> float:
        """The longest distance between joints and centres of mass."""
        return max(self.inboard, _spread([np.zeros(3), *self.joints, *self.centres]))


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a robot estimated from distances, m.

    link: per link with mass, the longest distance between its frame, its joints and its centre of mass. longest: the
    longest of these. body: per link, the extent of its body. span: the longest distance between two joints.
    """

    link: dict[str, float]
    body: dict[str, float]
    longest: float
    span: float


def _measured(description: Description) -> _Sizes:
    inboard = {joint.child: joint for joint in description.joints}
    outboard: dict[str, list[Joint]] = {link.name: [] for link in description.links}
    for joint in description.joints:
        outboard[joint.parent].append(joint)
    links = {link.name: link for link in description.links}
    link_sizes: dict[str, float] = {}
    frames: dict[str, tuple[_Body, Matrix, Vector]] = {}
    for name in outward(description):
        inbound = inboard.get(name)
        if inbound is None:
            body, rotation, origin = _Body(0.0, []), np.eye(3), np.zeros(3)
        elif not inbound.moves.nv:
            body, R, p = frames[inbound.parent]
            rotation, origin = R @ inbound.rotation, p + R @ inbound.xyz
        else:
            # The distance from the world says nothing about a robot's size.
            places_root = inbound.parent not in inboard and inbound.parent not in link_sizes
            distance = 0.0 if places_root else _length(inbound.xyz)
            body, rotation, origin = _Body(distance, [np.zeros(3)]), np.eye(3), np.zeros(3)
        frames[name] = (body, rotation, origin)
        points = [joint.xyz for joint in outboard[name]]
        body.joints += [origin + rotation @ joint.xyz for joint in outboard[name] if joint.moves.nv]
        inertial = links[name].inertial
        if inertial is not None and inertial.mass > 0.0:
            body.centres.append(origin + rotation @ inertial.com)
            link_sizes[name] = max(map(_length, [*points, inertial.com]))
    bodies = {name: body.extent() for name, (body, _, _) in frames.items()}
    span = max(body.span() for body, _, _ in frames.values())
    return _Sizes(link_sizes, bodies, max(link_sizes.values(), default=0.0), span)


def _lengths(description: Description, sizes: _Sizes) -> Iterator[Note]:
    if not LONG_M < sizes.span < math.inf:
        return
    massive = _massive(description)
    total = sum(inertial.mass for _, inertial in massive)
    thin = sum(inertial.mass for link, inertial in massive if inertial.mass < THIN_KG_M3 * _cube(link, inertial, sizes))
    if thin > total / 2.0:
        link, _ = max(massive, key=lambda entry: sizes.link[entry[0].name])
        text = (
            f"its joints or centre of mass are up to {sizes.link[link.name]:g} m away, probably given in millimetres: "
            f"at such lengths most of the robot's {total:g} kg would be thinner than air"
        )
        yield _warning(description, link, Doubt("lengths-in-millimetres", text))


def _far_joints(description: Description) -> Iterator[Note]:
    """Warns about joints whose distance from the parent is probably in mm among others in m."""
    masses = {link.name: link.inertial for link in description.links}
    children = {joint.child for joint in description.joints}
    # The distance from the world says nothing about a robot's size.
    joints = [x for x in description.joints if x.parent in children or masses[x.parent] is not None]
    lengths = sorted(filter(None, (_length(joint.xyz) for joint in joints)))
    usual = lengths[(len(lengths) - 1) // 2] if lengths else 0.0
    for joint in joints:
        if _length(joint.xyz) > max(LONG_M, FAR_JOINT * usual):
            text = (
                f"its origin is {_length(joint.xyz):g} m from its parent's, and half of the others up to {usual:.3g} m"
            )
            yield _warning(description, joint, Doubt("far-joint", text))


def _scenery(description: Description) -> set[str]:
    """Returns the links that stand in the world alone, such as a table of 2 t that nothing shall push; none if the root
    has mass, because a robot's base is then the root.
    """
    links = {link.name: link for link in description.links}
    root = outward(description)[0]
    carrying = {joint.parent for joint in description.joints}
    welded = {x.child for x in description.joints if x.parent == root and not x.moves.nv and x.child not in carrying}
    return welded if links[root].inertial is None else set()


def _masses(description: Description, sizes: _Sizes) -> Iterator[Note]:
    scenery = _scenery(description)
    massive = [entry for entry in _massive(description) if entry[0].name not in scenery]
    total = sum(inertial.mass for _, inertial in massive)
    dense = sum(body.mass for link, body in massive if body.mass > STEEL_KG_M3 * _cube(link, body, sizes))
    if HEAVY_KG <= total <= HEAVIEST_ROBOT_KG and dense > total / 2.0:
        link, inertial = max(massive, key=lambda entry: entry[1].mass)
        links = f"most of the robot's {total:g} kg is in links that would be denser than solid steel"
        text = f"mass {inertial.mass:g} kg is probably given in grams: {links}"
        # One link in grams among others in kg leaves no unit for all: only if each mass is implausible.
        all_dense = all(body.mass > STEEL_KG_M3 * _cube(link, body, sizes) for link, body in _massive(description))
        edits = _grams(massive, sizes) if all_dense else ()
        repair = f"masses times 0.001 make {total / 1e3:.3g} kg" if all_dense else "other masses may be in kg already"
        yield _warning(description, link, Doubt("masses-in-grams", text, repair, edits))


GYRATION_SHARES = (0.1, 1.0)
"""Radii of gyration relative to the links' lengths; those of most real links are between."""


def _grams(massive: Sequence[tuple[Link, Inertial]], sizes: _Sizes) -> tuple[Edit, ...]:
    """Returns the edits from g to kg: of masses and moments, or of masses alone if the moments are in kg m^2; none if
    the radii of gyration do not tell which.
    """
    shares = [_gyration(x) / sizes.link[link.name] for link, x in massive if sizes.link[link.name] > 0.0]
    share, (smallest, largest) = float(np.median(shares)) if shares else 0.0, GYRATION_SHARES
    # With the moments in g m^2 too, radii of gyration are right; else they are too small by sqrt(1000).
    in_grams = smallest < share < largest
    if not in_grams and not smallest < share * math.sqrt(1e3) < largest:
        return ()
    quantities = ("mass", "inertia") if in_grams else ("mass",)
    return tuple(Edit("link", link.name, quantity, 1e-3) for link, _ in massive for quantity in quantities)


def _gyrations(description: Description, sizes: _Sizes) -> Iterator[Note]:
    """Warns about moments of inertia that are impossible for the mass or the size."""
    massive = _massive(description)
    total = sum(inertial.mass for _, inertial in massive)
    for link, inertial in massive:
        k = _gyration(inertial)
        size = max(sizes.body[link.name], SMALLEST_SHARE * (sizes.longest or sizes.span))
        # A centre of mass may be close to its link's frame: without distances between joints, the size is unknown.
        has_distances = sizes.span > 0.0
        if k < FAINT_GYRATION_M or inertial.mass < FAINT_SHARE * total or is_stand_in(inertial):
            continue
        if has_distances and WIDE * size < k <= WIDEST_GYRATION_M:
            text = (
                f"the radius of gyration is {k:.3g} m, {k / size:.3g} times the {size:.3g} m between the joints and "
                f"centres of mass about it: too much inertia for {inertial.mass:g} kg"
            )
            fitting = inertial.mass * size * size / 12.0
            repair = f"moments near those of a rod of this length, {fitting:.2g} kg m^2, fit"
            yield _warning(description, link, Doubt("too-much-inertia", text, repair))
        elif inertial.mass > LIGHT_SHARE * total and k <= WIDEST_GYRATION_M:
            yield from (_warning(description, link, doubt) for doubt in _beyond_shapes(link, inertial))
        density = _least_density(inertial)
        if density > OSMIUM_KG_M3:
            ball = f"even a ball would need {density:.3g} kg/m^3, and the densest matter has {OSMIUM_KG_M3:g}"
            text = f"too little inertia for {inertial.mass:g} kg: {ball}"
            yield _warning(description, link, Doubt("too-little-inertia", text))


def _beyond_shapes(link: Link, inertial: Inertial) -> Iterator[Doubt]:
    """Warns about moments that the link's own boxes, cylinders, .. show to be too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        uniform = filled(link.shapes)
        trace_per_mass = 0.0 if uniform is None else float(np.trace(uniform.inertia)) / uniform.mass
        if uniform is None or trace_per_mass < SMALLEST_M * SMALLEST_M / 6.0:
            return
        ratio = float(np.trace(inertial.inertia)) / inertial.mass / trace_per_mass
        is_centred = _length(inertial.com - uniform.com) < CENTRED * math.sqrt(trace_per_mass / 2.0)
    whole = all(shape.kind in SOLIDS and not shape.unread for shape in link.shapes)
    if is_centred and ratio >= (EVEN_MOMENTS if whole else MOST_MOMENTS):
        kinds = " and ".join(sorted({shape.kind for shape in link.shapes if shape.kind in SOLIDS}))
        uniform_text = f"those of {inertial.mass:g} kg that fill its {kinds} evenly"
        text = f"its moments of inertia are {ratio:.3g} times {uniform_text}: probably too much inertia"
        moments = principal_moments(uniform.inertia) * (inertial.mass / uniform.mass)
        repair = f"principal moments {', '.join(f'{x:.3g}' for x in moments.tolist())} kg m^2 fit the shapes"
        yield Doubt("inertia-beyond-shapes", text, repair)


def _limits(description: Description, sizes: _Sizes) -> Iterator[Note]:
    carried_mass = _carried(description)
    total = sum(inertial.mass for _, inertial in _massive(description))
    velocities = Counter(joint.limit.velocity for joint in description.joints if joint.limit is not None)
    for joint in description.joints:
        bounds = [] if joint.limit is None else [x for x in (joint.limit.lower, joint.limit.upper) if x is not None]
        is_ranged = joint.moves.ranged
        if is_ranged and all(joint.moves.angles) and any(map(_reads_like_degrees, bounds)):
            turns = max(map(abs, bounds)) / (2.0 * math.pi)
            bounds_text = " and ".join(f"{limit:g}" for limit in bounds)
            text = f"limits {bounds_text} rad are" if len(bounds) > 1 else f"limit {bounds_text} rad is"
            radians = " and ".join(f"{math.radians(limit):.4g}" for limit in bounds)
            # A bound such as -3.14 or -2 beside 180 may be in rad already.
            in_degrees = all(limit == round(limit) and not 0.0 < abs(limit) < TURN for limit in bounds)
            edits = (Edit("joint", joint.name, "range", math.radians(1.0)),) if in_degrees else ()
            text = f"{text} probably in degrees: {turns:.3g} turns"
            yield _warning(description, joint, Doubt("limits-in-degrees", text, f"write {radians} rad", edits))
        velocity = None if joint.limit is None else joint.limit.velocity
        is_turning = is_ranged and all(joint.moves.angles) and len(bounds) > 1
        if is_turning and velocity and velocities[velocity] <= MOST_EQUAL and _is_fast(bounds, velocity):
            text = f"velocity limit {velocity:g} rad/s is {velocity / TURN:.3g} turns a second, probably in degrees"
            repair = f"write {math.radians(velocity):.4g} rad/s"
            yield _warning(description, joint, Doubt("velocity-in-degrees", text, repair))
        if is_ranged and all(joint.moves.shifts) and bounds and sizes.longest > 0.0:
            travel = max(map(abs, bounds))
            # A sliding base carries most of the robot and may travel far; a link of an arm does not.
            slides = carried_mass[joint.child] < total / 2.0
            if slides and LONG_M < travel < FARTHEST_TRAVEL_M and travel > FAR_TRAVEL * sizes.longest:
                longest = f"no distance within a link is more than {sizes.longest:.3g} m"
                text = f"travels up to {travel:g} m, probably given in millimetres: {longest}"
                metres = " and ".join(f"{1e-3 * limit:.4g}" for limit in bounds)
                in_mm = all(limit == 0.0 or abs(limit) > LONG_M for limit in bounds)
                edits = (Edit("joint", joint.name, "range", 1e-3),) if in_mm else ()
                yield _warning(description, joint, Doubt("travel-in-millimetres", text, f"write {metres} m", edits))


def _is_fast(bounds: Sequence[float], velocity: float) -> bool:
    """Whether a velocity limit, rad/s, of a joint with stops is probably in degrees; 100 is a usual placeholder."""
    slowest, fastest = FASTEST
    is_stopped = max(map(abs, bounds)) <= TWO_TURNS or any(map(_reads_like_degrees, bounds))
    return is_stopped and slowest <= velocity <= fastest and velocity == round(velocity) and velocity != 100.0


def _reads_like_degrees(limit: float) -> bool:
    size = abs(limit)
    if not TWO_TURNS * 1.001 < size <= MAX_DEGREES:
        return False
    # 100 is a common placeholder for unlimited.
    return size != 100.0 and abs(size - math.pi * round(size / math.pi)) > WHOLE_TURNS


def _carried(description: Description) -> dict[str, float]:
    """Returns the mass of each link with its branch, kg."""
    inboard = {joint.child: joint for joint in description.joints}
    mass = {link.name: link.inertial.mass if link.inertial else 0.0 for link in description.links}
    for name in reversed(outward(description)):
        if name in inboard:
            mass[inboard[name].parent] += mass[name]
    return mass


def _massive(description: Description) -> list[tuple[Link, Inertial]]:
    with_inertial = ((link, link.inertial) for link in description.links if link.inertial is not None)
    return [(link, inertial) for link, inertial in with_inertial if inertial.mass > 0.0]


def _cube(link: Link, inertial: Inertial, sizes: _Sizes) -> float:
    """Returns the volume of a cube with the link's length, m^3."""
    # A link whose frame is at its centre of mass has no length, but its inertia has.
    length = max(sizes.link[link.name], BALL * _gyration(inertial))
    return length * length * length


def is_stand_in(inertial: Inertial) -> bool:
    """Returns whether the inertial is the default of urdfpy and urchin for a missing `<inertial>`."""
    return (
        inertial.mass == 1.0
        and not inertial.com.any()
        and np.array_equal(inertial.inertia, np.eye(3))
        and np.array_equal(inertial.rotation, np.eye(3))
    )


def _gyration(inertial: Inertial) -> float:
    """Returns the radius of gyration for the largest moment, m, within a factor of 3, from matrix entries."""
    # Two roots, because the quotient of moment and mass may overflow.
    return math.sqrt(float(np.abs(inertial.inertia).max())) / math.sqrt(inertial.mass)


def _least_density(inertial: Inertial) -> float:
    """Returns the least possible maximum density, kg/m^3: that of the ball with this mass and trace of inertia."""
    trace = sum(np.diag(inertial.inertia).tolist())
    if trace <= 0.0:
        return 0.0
    radius = math.sqrt(trace / 1.2) / math.sqrt(inertial.mass)
    volume = 4.0 / 3.0 * math.pi * radius * radius * radius
    return inertial.mass / volume if volume > 0.0 else math.inf


def _spread(points: list[Vector]) -> float:
    """Returns the diagonal of the bounding box of the points, m."""
    return _length(np.ptp(np.array(points), axis=0)) if points else 0.0


def _length(vector: Vector) -> float:
    return math.hypot(*vector)


FEWEST_LEGS = 2
FEWEST_TURNS = 2
"""Minimum number of revolute joints between trunk and foot: hip and knee."""
# Whole words: `sole` is in TorsoLeft, `foot` in base_footprint. Not `leg`, which tables have, nor `hip`.
_WORDS = frozenset(
    {"foot", "feet", "ankle", "sole", "toe", "toes", "heel", "shank", "shin", "calf", "tibia", "paw", "hoof", "knee"}
)
_ENDINGS = ("foot", "ankle", "shank", "tibia", "knee", "lowerleg")
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def _legs(description: Description) -> Iterator[Note]:
    """Warns if the robot has legs and its base is fixed; the place is the root link."""
    inboard = {joint.child: joint for joint in description.joints}
    order = outward(description)
    # For each link, the last revolute joint on its path, by child link, and their number.
    last_hinge: dict[str, str] = {order[0]: ""}
    turns: dict[str, float] = {order[0]: 0}
    feet: dict[str, str] = {}
    for name in order[1:]:
        joint = inboard[name]
        turning = joint.moves.angles == (True,)
        last_hinge[name] = name if turning else last_hinge[joint.parent]
        trunk_moves = any(joint.moves.shifts) and not turns[joint.parent]  # the trunk's own joint, in the file
        # A trunk that moves by a joint of the file needs no floating root: nothing beyond that joint counts as a leg.
        turns[name] = -math.inf if trunk_moves else turns[joint.parent] + turning
        if turns[name] >= FEWEST_TURNS and _is_of_a_leg(name):
            feet.setdefault(last_hinge[name], name)
    # Knee, ankle and foot belong to one leg: only the outermost counts.
    ancestors: set[str] = set()
    for name in reversed(order[1:]):
        if name in feet or name in ancestors:
            ancestors.add(inboard[name].parent)
    legs = [link for link in feet if link not in ancestors]
    if len(legs) < FEWEST_LEGS:
        return
    ends = listed([feet[link] for link in legs], 4)
    text = (
        f"the robot has {counted(len(legs), 'leg')} ({ends}), and this link, its root, {FIXED_ROOT}: "
        'if the robot moves freely, read it with root="floating"'
    )
    root = next(link for link in description.links if link.name == order[0])
    yield _warning(description, root, Doubt("fixed-legged-base", text))


def _is_of_a_leg(link: str) -> bool:
    words = [word.lower() for word in _WORD.findall(link)]
    pairs = [word + next_word for word, next_word in pairwise(words)]
    return any(word in _WORDS or word.endswith(_ENDINGS) for word in (*words, *pairs))
