"""XML output; numbers are read back to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from dyn_service.model.arrays import Matrix
from dyn_service.model.description import Joint, Shape


@dataclass
class Tag:
    """An element: its attributes (None is omitted), its children or its text."""

    name: str
    attributes: Mapping[str, str | None] = field(default_factory=dict)
    children: list[Tag] = field(default_factory=list)
    text: str = ""

    def add(self, tag: str, /, *children: Tag, text: str = "", **attributes: str | None) -> Tag:
        """Adds a child."""
        self.children.append(Tag(tag, attributes, list(children), text))
        return self.children[-1]

    def add_texts(self, tag: str, texts: Mapping[str, str], /, **attributes: str | None) -> None:
        """Adds a child whose own children have one text each."""
        self.children.append(Tag(tag, attributes, [Tag(name, text=text) for name, text in texts.items()]))

    def lines(self) -> list[str]:
        """Returns the lines, indented by two spaces. Not recursive, because bodies may be nested hundreds deep."""
        found: list[str] = []
        pending: list[tuple[Tag | str, int]] = [(self, 0)]
        while pending:
            tag, level = pending.pop()
            blanks = "  " * level
            if isinstance(tag, str):
                found.append(f"{blanks}</{tag}>")
                continue
            said = (f" {key}={quoteattr(value)}" for key, value in tag.attributes.items() if value is not None)
            head = f"{blanks}<{tag.name}{''.join(said)}"
            if tag.children:
                found.append(f"{head}>")
                pending += [(tag.name, level), *((child, level + 1) for child in reversed(tag.children))]
            else:
                found.append(f"{head}>{escape(tag.text)}</{tag.name}>" if tag.text else f"{head}/>")
        return found


def document(root: Tag) -> str:
    """Returns the whole text."""
    return "\n".join(['<?xml version="1.0"?>', *root.lines(), ""])


def number(value: float) -> str:
    """Returns a number with enough digits to read it back exactly."""
    text = repr(float(value) + 0.0)
    return text.removesuffix(".0")


def numbers(values: Sequence[float] | Any) -> str:
    """Returns numbers separated by spaces."""
    return " ".join(number(value) for value in values)


def moments(inertia: Matrix) -> dict[str, str]:
    """Returns the moments and products of an inertia (3, 3) by their names in URDF and SDFormat."""
    entries = {"ixx": (0, 0), "ixy": (0, 1), "ixz": (0, 2), "iyy": (1, 1), "iyz": (1, 2), "izz": (2, 2)}
    return {name: number(inertia[at]) for name, at in entries.items()}


RATES = ("acceleration", "deceleration", "jerk")
"""Limits that only URDF has."""


def limits(joint: Joint, names: Sequence[str] = ("lower", "upper", "effort", "velocity")) -> dict[str, str]:
    """Returns the limits of a joint by their names in URDF and SDFormat."""
    values = ((name, getattr(joint.limit, name, None)) for name in names)
    return {name: number(value) for name, value in values if value is not None}


def lost_limits(joint: Joint) -> list[str]:
    """Returns a text for each limit of a joint that only URDF has."""
    return [f"its {name} limit {value}" for name, value in limits(joint, RATES).items()]


def roles(shape: Shape) -> list[str]:
    """Returns the elements of URDF and SDFormat for a shape: `visual`, `collision` or both."""
    return [role for role in ("visual", "collision") if getattr(shape, role)]


def sizes(shape: Shape) -> Mapping[str, Sequence[float]]:
    """Returns the sizes of a shape by their names in URDF and SDFormat."""
    one = {"box": "size", "ellipsoid": "radii", "mesh": "scale"}.get(shape.kind)
    return {one: shape.size} if one else dict(zip(("radius", "length"), ([x] for x in shape.size), strict=False))
