"""XML output; numbers are read back to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

from dyn_service.errors import UnimplementedError
from dyn_service.model.arrays import Matrix
from dyn_service.model.description import Joint, LoopJoint, Shape
from dyn_service.model.joints import JOINT_TYPES, joint_of


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
        lines: list[str] = []
        pending: list[tuple[Tag | str, int]] = [(self, 0)]
        while pending:
            tag, level = pending.pop()
            blanks = "  " * level
            if isinstance(tag, str):
                lines.append(f"{blanks}</{tag}>")
                continue
            attributes = (f" {key}={quoteattr(value)}" for key, value in tag.attributes.items() if value is not None)
            head = f"{blanks}<{tag.name}{''.join(attributes)}"
            if tag.children:
                lines.append(f"{head}>")
                pending += [(tag.name, level), *((child, level + 1) for child in reversed(tag.children))]
            else:
                lines.append(f"{head}>{escape(tag.text)}</{tag.name}>" if tag.text else f"{head}/>")
        return lines


def document(root: Tag) -> str:
    """Returns the whole text."""
    return "\n".join(['<?xml version="1.0"?>', *root.lines(), ""])


def number(value: float) -> str:
    """Returns a number with enough digits to read it back exactly."""
    # `repr` has the fewest digits that are read back exactly; + 0.0 writes -0.0 as 0.
    text = repr(float(value) + 0.0)
    return text.removesuffix(".0")


def numbers(values: Sequence[float] | Any) -> str:
    """Returns numbers separated by spaces."""
    return " ".join(number(value) for value in values)


def moments(inertia: Matrix) -> dict[str, str]:
    """Returns the moments and products of an inertia (3, 3) by their names in URDF and SDFormat."""
    entries = {"ixx": (0, 0), "ixy": (0, 1), "ixz": (0, 2), "iyy": (1, 1), "iyz": (1, 2), "izz": (2, 2)}
    return {name: number(inertia[index]) for name, index in entries.items()}


RATES = ("acceleration", "deceleration", "jerk")
"""Limits that only URDF has."""


def limits(joint: Joint, names: Sequence[str] = ("lower", "upper", "effort", "velocity")) -> dict[str, str]:
    """Returns the limits of a joint by their names in URDF and SDFormat."""
    values = ((name, getattr(joint.limit, name, None)) for name in names)
    return {name: number(value) for name, value in values if value is not None}


def lost_limits(joint: Joint) -> list[str]:
    """Returns a text for each limit of a joint that only URDF has."""
    return [f"its {name} limit {value}" for name, value in limits(joint, RATES).items()]


def refusal(joint: Joint | LoopJoint, format: str, attribute: Literal["urdf", "sdf", "mujoco"]) -> UnimplementedError:
    """Returns the error for a joint of a type that a format lacks; attribute: of `model.joints.Joint`."""
    supported = (kind for kind in JOINT_TYPES if getattr(joint_of(kind), attribute))
    return UnimplementedError(
        f"joint '{joint.name}': {format} has no joints of type {joint.type}, expected one of {', '.join(supported)}"
    )


def roles(shape: Shape) -> list[str]:
    """Returns the elements of URDF and SDFormat for a shape: `visual`, `collision` or both."""
    return [role for role in ("visual", "collision") if getattr(shape, role)]


def sizes(shape: Shape) -> Mapping[str, Sequence[float]]:
    """Returns the sizes of a shape by their names in URDF and SDFormat."""
    attribute = {"box": "size", "ellipsoid": "radii", "mesh": "scale"}.get(shape.kind)
    if attribute:
        return {attribute: shape.size}
    # Not strict, because a sphere has a radius only.
    return dict(zip(("radius", "length"), ([x] for x in shape.size), strict=False))
