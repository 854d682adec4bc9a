"""`<replicate>` of MJCF: the elements inside it, `count` times, each copy in a frame that is one step further.

frame k       R_k of k times the Euler angles, p_k = p_(k - 1) + R_(k - 1) offset, as MuJoCo has them
names         end in `sep` and the number of the copy, with as many digits as the count has; inner copies first
outside       actuators and equalities of joints that are copied are copied with them
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from dyn_service.errors import ResourceExhaustedError
from dyn_service.parsing.includes import place_of
from dyn_service.parsing.mjcf.values import Settings, Values
from dyn_service.parsing.writing.text import numbers
from dyn_service.parsing.xml_elements import Element

TAG = "replicate"
_REFERRING = ("joint", "joint1", "joint2")


def expand(root: Element, settings: Settings, source: str, most: int) -> None:
    """Puts frames with copies in the place of all `<replicate>` elements.

    Args:
        root: The file, which is changed.
        settings: Of its compiler.
        source: What the file is called.
        most: How many elements the file may have in the end.

    Raises:
        UrdfError: A count is not a whole number of at least 1.
        ResourceExhaustedError: There would be more elements; raised before any is copied.
    """
    holders = [holder for holder in _within(root) if any(child.tag == TAG for child in holder.children)]
    count = len(_within(root)) if holders else 0
    for holder in reversed(holders):  # inner ones first
        children: list[Element] = []
        for child in holder.children:
            if child.tag != TAG:
                children.append(child)
                continue
            place = place_of(child, f"<{TAG}>", source)
            values = Values(child.attributes, {}, place, settings)
            number = values.number("count", 0.0)
            if number < 1.0 or number % 1.0:
                raise place.fault(f"attribute 'count': expected a whole number of at least 1, found {number:g}")
            within = _within(child)
            count += int(number) * len(within)
            if count > most:
                raise ResourceExhaustedError(f"{place.file}:{place.line}: the robot has more than {most} elements")
            digits, separator = len(str(int(number))), child.attributes.get("sep", "")
            ends = [f"{separator}{k:0{digits}d}" for k in range(int(number))]
            children += _copies(child, values, ends)
            joints = {each.attributes.get("name", "") for each in within if each.tag in ("joint", "freejoint")}
            for section in (*root.all("actuator"), *root.all("equality")):
                section.children = [copy for each in section.children for copy in _referring(each, joints, ends)]
                count += len(section.children)
                if count > most:
                    raise ResourceExhaustedError(f"{place.file}:{place.line}: the robot has more than {most} elements")
        holder.children = children


def _copies(element: Element, values: Values, ends: list[str]) -> list[Element]:
    offset, angles = (values.vector(name, (0.0, 0.0, 0.0)) for name in ("offset", "euler"))
    around = {key: text for key, text in element.attributes.items() if key == "childclass"}
    copies, origin = [], np.zeros(3)
    for k, end in enumerate(ends):
        said = {"pos": numbers(origin), "euler": numbers(k * angles)}
        inside = [_named(child, end) for child in element.children]
        copies.append(replace(element, tag="frame", attributes={**around, **said}, children=inside))
        origin = origin + replace(values, own=said).pose().rotation @ offset
    return copies


def _named(element: Element, end: str) -> Element:
    """A copy whose names, and those in it, have that end."""
    made = replace(element, children=[element])
    pending = [made]
    while pending:
        holder = pending.pop()
        holder.children = [replace(each, attributes=_ending(each, ("name",), end)) for each in holder.children]
        pending += holder.children
    return made.children[0]


def _referring(element: Element, joints: Collection[str], ends: list[str]) -> list[Element]:
    """An actuator or an equality, for each copy of the joints that it names; MuJoCo drops it where one is no copy."""
    named = [key for key in _REFERRING if key in element.attributes]
    copied = [element.attributes[key] in joints for key in named]
    if not any(copied):
        return [element]
    ends = ends if all(copied) else []
    return [replace(element, attributes=_ending(element, ("name", *named), end)) for end in ends]


def _ending(element: Element, which: Collection[str], end: str) -> dict[str, str]:
    return {key: text + end if key in which else text for key, text in element.attributes.items()}


def _within(element: Element) -> list[Element]:
    """An element and all in it, those that hold others first."""
    found = [element]
    for each in found:
        found += each.children
    return found
