"""Values of SDFormat elements, which have text where URDF has attributes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dyn_service.model.arrays import Vector
from dyn_service.model.description import Note
from dyn_service.parsing import quantities
from dyn_service.parsing.includes import place_of
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.quantities import Place, quoted
from dyn_service.parsing.xml_elements import LONGEST_TEXT, Element

INFINITE = 1e16
"""Limits from this value on mean no limit; the format's default is 1e16."""


def one(parent: Element, tag: str, place: Place) -> Element | None:
    """Returns the child with that tag, or None.

    Raises:
        UrdfError: There are several.
    """
    found = parent.all(tag)
    if len(found) > 1:
        message = f"there are {len(found)} <{tag}> elements, the first on line {found[0].line}, expected one"
        raise place_of(found[1], place.element or "", place.file).fault(message)
    return found[0] if found else None


def text_of(element: Element, place: Place) -> str:
    """Returns the text of an element.

    Raises:
        UrdfError: It is too long.
    """
    if len(element.text) >= LONGEST_TEXT:
        raise place.fault(f"<{element.tag}> has {LONGEST_TEXT} characters or more, expected numbers or a word")
    return element.text.strip()


def word(parent: Element, tag: str, default: str, place: Place) -> str:
    """Returns the text of a child, or the default."""
    element = one(parent, tag, place)
    return default if element is None else text_of(element, _at(element, tag, place))


def flag(parent: Element, tag: str, default: bool, place: Place) -> bool:
    """Returns the boolean of a child: true, false, 1 or 0."""
    said = word(parent, tag, str(default).lower(), place).lower()
    if said not in ("true", "false", "1", "0"):
        raise place.fault(f"<{tag}>: expected true or false, found {quoted(said)}")
    return said in ("true", "1")


def numbers(parent: Element, tag: str, default: Iterable[float], place: Place) -> Vector:
    """Returns the numbers of a child, as many as the default has."""
    expected = np.array(list(default), dtype=np.float64)
    element = one(parent, tag, place)
    if element is None:
        return expected
    inside = _at(element, tag, place)
    return quantities.decimals(text_of(element, inside), len(expected), tag, inside)


def number(parent: Element | None, tag: str, default: float, place: Place) -> float:
    """Returns the number of a child; the default also if the parent is None."""
    return default if parent is None else float(numbers(parent, tag, (default,), place)[0])


def bound(parent: Element, tag: str, place: Place) -> float | None:
    """Returns a limit; None if it is missing or infinite."""
    said = word(parent, tag, "inf", place)
    if said.lower().lstrip("+-") in ("inf", "infinity"):
        return None
    value = number(parent, tag, math.inf, place)
    return value if abs(value) < INFINITE else None


def pose(parent: Element, place: Place, notes: list[Note]) -> Pose:
    """Returns the `<pose>` of an element in the frame that it names.

    Raises:
        UrdfError: The number of values is wrong, or the rotation format is unknown.
    """
    element = one(parent, "pose", place)
    if element is None:
        return Pose()
    inside = _at(element, "pose", place)
    text = text_of(element, inside)
    if not text:
        return Pose()
    way = element.attributes.get("rotation_format", "euler_rpy")
    if way == "quat_xyzw":
        values = quantities.decimals(text, 7, "pose", inside)
        return Pose(quantities.rotation_of_quaternion(values[3:], inside, notes), values[:3])
    if way != "euler_rpy":
        raise inside.fault(f"attribute 'rotation_format': expected euler_rpy or quat_xyzw, found {quoted(way)}")
    values = quantities.decimals(text, 6, "pose", inside)
    if element.attributes.get("degrees", "false") in ("true", "1"):
        return Pose(quantities.rotation_of_rpy(np.radians(values[3:])), values[:3])
    notes += quantities.degree_note(values[3:], inside)
    return Pose(quantities.rotation_of_rpy(values[3:]), values[:3])


def said_in(parent: Element, place: Place) -> str:
    """Returns the frame that the `<pose>` of an element is relative to, "" if it names none."""
    element = one(parent, "pose", place)
    if element is None:
        return ""
    return element.attributes.get("relative_to", element.attributes.get("frame", ""))


def _at(element: Element, tag: str, place: Place) -> Place:
    return place.inside(tag, element.line)
