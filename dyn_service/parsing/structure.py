"""Checks that links and joints form one tree, and returns a `Description`.

Invariants of a description:

    names       link names are unique, joint names are unique
    joints      parent and child name two different links of the robot
    one parent  no link is the child of two joints
    no loops    following parents from any link ends
    one root    exactly one link is no joint's child
    mimic       does not name its own joint; following it ends

They are checked in this order, so that the first fault is the cause of others. Cost: linear in links and joints.

Many files use a parent called `world` without declaring it, and other engines accept that. If it makes the links one
tree, it is added as a link without mass, with a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from dyn_service.errors import UrdfError
from dyn_service.model.description import Description, Joint, Link, Note
from dyn_service.parsing.places import Faults, Place, counted, listed, named, quoted
from dyn_service.parsing.warnings import doubts
from dyn_service.support.suggestions import did_you_mean

WORLD = "world"
"""The name of the link that may be undeclared."""

LONGEST_CYCLE = 8
"""Maximum number of links of a loop that a message names."""

Named = TypeVar("Named", Link, Joint)


def assemble(
    name: str, links: Sequence[Link], joints: Sequence[Joint], notes: Iterable[Note], robot: Place
) -> Description:
    """Returns the checked robot, with the reader's notes and warnings.

    Args:
        name: The robot's name.
        links: In the order of the source.
        joints: In the order of the source.
        notes: The reader's notes.
        robot: The place of the robot element; its file is the source.

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
    except UrdfError:
        world = _undeclared_world(by_name, joints)
        if world is None or not _is_tree(by_name | {WORLD: world}, joints, robot):
            raise
        by_name[WORLD] = world
        text = "is the parent of a joint but not declared: added as the root link, without mass"
        notes = [*notes, _place("link", world, robot).note("defaulted", text)]
    _check_mimic(joint_by_name, robot)
    described = Description(name, tuple(by_name.values()), tuple(joints), robot.file)
    return replace(described, notes=(*notes, *doubts(described)))


def _check_tree(links: Mapping[str, Link], joints: Sequence[Joint], robot: Place) -> None:
    faults = Faults()
    for joint in joints:
        with faults.kept():
            _check_ends(joint, links, robot)
    faults.check()
    inboard = _inboard(joints, robot)
    _check_loops(links.values(), inboard, robot)
    _check_root(links.values(), inboard, robot)


def _is_tree(links: Mapping[str, Link], joints: Sequence[Joint], robot: Place) -> bool:
    try:
        _check_tree(links, joints, robot)
    except UrdfError:
        return False
    return True


def _undeclared_world(links: Mapping[str, Link], joints: Iterable[Joint]) -> Link | None:
    """Returns the undeclared `world` link, on the line of the first joint that uses it."""
    if WORLD in links:
        return None
    return next((Link(WORLD, line=joint.line) for joint in joints if joint.parent == WORLD), None)


def _place(what: str, element: Link | Joint, robot: Place) -> Place:
    return Place(robot.file, named(what, element.name), element.line)


def _on_line(element: Link | Joint) -> str:
    return f" on line {element.line}" if element.line else ""


def _unique(elements: Sequence[Named], what: str, robot: Place, faults: Faults) -> dict[str, Named]:
    found: dict[str, Named] = {}
    for element in elements:
        first = found.setdefault(element.name, element)
        if first is not element:
            message = f"a {what} of this name is already defined{_on_line(first)}, expected unique names"
            with faults.kept():
                raise _place(what, element, robot).fault(message)
    return found


def _check_ends(joint: Joint, links: Mapping[str, Link], robot: Place) -> None:
    place = _place("joint", joint, robot)
    for end, link in (("parent", joint.parent), ("child", joint.child)):
        if link not in links:
            raise place.fault(f"the {end} {quoted(link)} is not a link of the robot{did_you_mean(link, links)}")
    if joint.parent == joint.child:
        raise place.fault(f"the parent and the child are the same link {quoted(joint.parent)}, expected two links")


def _inboard(joints: Iterable[Joint], robot: Place) -> dict[str, Joint]:
    """Returns the inboard joint of each link, by the link's name."""
    inboard: dict[str, Joint] = {}
    for joint in joints:
        first = inboard.setdefault(joint.child, joint)
        if first is not joint:
            message = (
                f"the link {quoted(joint.child)} already is the child of joint {quoted(first.name)}{_on_line(first)}, "
                "expected one parent per link"
            )
            raise _place("joint", joint, robot).fault(message)
    return inboard


def _check_loops(links: Iterable[Link], inboard: Mapping[str, Joint], robot: Place) -> None:
    safe: set[str] = set()
    for link in links:
        walked: dict[str, None] = {}
        at = link.name
        while at in inboard and at not in safe:
            if at in walked:
                raise _loop(at, inboard, robot)
            walked[at] = None
            at = inboard[at].parent
        safe.update(walked)


def _loop(start: str, inboard: Mapping[str, Joint], robot: Place) -> Exception:
    cycle = [start]
    while (parent := inboard[cycle[-1]].parent) != start:
        cycle.append(parent)
    # Parent to child, starting at the first link in the source, independent of the search.
    cycle.reverse()
    first = min(range(len(cycle)), key=lambda i: (inboard[cycle[i]].line, cycle[i]))
    cycle = cycle[first:] + cycle[:first]
    message = f"the links form a loop, {_cycle_path(cycle)}, expected a tree"
    return _place("joint", inboard[cycle[0]], robot).fault(message)


def _check_root(links: Iterable[Link], inboard: Mapping[str, Joint], robot: Place) -> None:
    # Without loops there is at least one root.
    roots = [link for link in links if link.name not in inboard]
    if len(roots) > 1:
        names = listed([link.name for link in roots])
        message = (
            f"this link is not the child of a joint: found {counted(len(roots), 'root link')} ({names}), expected one"
        )
        raise _place("link", roots[1], robot).fault(message)


def _check_mimic(joints: Mapping[str, Joint], robot: Place) -> None:
    for joint in joints.values():
        if joint.mimic is None:
            continue
        place = _place("joint", joint, robot).inside("mimic")
        if joint.mimic.joint == joint.name:
            raise place.fault("the joint follows itself, expected another joint")
    safe: set[str] = set()
    for joint in joints.values():
        walked: dict[str, None] = {}
        at = joint
        while at.mimic is not None and at.name not in safe:
            if at.name in walked:
                names = list(walked)
                path = _cycle_path(names[names.index(at.name) :])
                message = f"the joints follow each other in a loop, {path}, expected one that follows no other"
                raise _place("joint", at, robot).inside("mimic").fault(message)
            walked[at.name] = None
            if at.mimic.joint not in joints:
                break  # a warning, not an error: real files have it, and the joint is independent
            at = joints[at.mimic.joint]
        safe.update(walked)


def _cycle_path(names: list[str]) -> str:
    shown = [quoted(name) for name in names[:LONGEST_CYCLE]]
    if len(names) > LONGEST_CYCLE:
        shown.append(f"({len(names) - LONGEST_CYCLE} more)")
    return " -> ".join([*shown, quoted(names[0])])
