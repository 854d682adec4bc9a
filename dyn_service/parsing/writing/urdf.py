"""Writes URDF. Ball and screw joints, and rotors in transmissions, use Drake's elements."""

from __future__ import annotations

import numpy as np

from dyn_service.api.arguments import DEFAULT_GRAVITY
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Description, Inertial, Joint, Note, Shape
from dyn_service.model.joints import FIXED
from dyn_service.parsing.pose import rpy_of
from dyn_service.parsing.transmissions import RATIO, ROTOR
from dyn_service.parsing.transmissions import TAG as TRANSMISSION
from dyn_service.parsing.urdf.reader import PITCH
from dyn_service.parsing.writing.text import (
    RATES,
    Tag,
    document,
    limits,
    moments,
    number,
    numbers,
    refusal,
    roles,
    sizes,
)

USE_JOINT_FILE = ": use a joint file"
"""End of notes on values that a joint file can hold."""


def write(description: Description) -> tuple[str, list[Note]]:
    """Returns the text, and a note on each thing that URDF cannot express.

    Raises:
        UnimplementedError: URDF and Drake lack a joint type (cylindrical).
    """
    root = Tag("robot", {"name": description.name})
    notes: list[Note] = []
    if description.root != FIXED.type:
        text = f'the {description.root} root is not written: read the file with root="{description.root}"'
        notes.append(Note("dropped", f"robot '{description.name}'", text))
    if description.gravity != DEFAULT_GRAVITY:
        gravity = ", ".join(map(number, description.gravity))
        text = f"its gravity, ({gravity}) m/s^2, is not written: pass it to each call"
        notes.append(Note("dropped", f"robot '{description.name}'", text))
    for link in description.links:
        children = [] if link.inertial is None else [_inertial(link.inertial)]
        for shape in link.shapes:
            children += [_shape(role, shape, f"{link.name}_{len(children)}") for role in roles(shape)]
        root.add("link", *children, name=link.name)
    for joint in description.joints:
        root.children.append(_joint(joint))
        notes += _losses(joint)
    for joint in description.joints:
        if joint.armature:
            root.children.append(_rotor(joint))
    return document(root), notes


def _shape(role: str, shape: Shape, material: str) -> Tag:
    tag = Tag(role, children=[_origin(shape.xyz, shape.rotation)])
    size_attributes = {name: numbers(value) for name, value in sizes(shape).items()}
    tag.add(
        "geometry",
        Tag(shape.kind, size_attributes if shape.kind != "mesh" else {"filename": shape.mesh, **size_attributes}),
    )
    if role == "visual" and shape.rgba is not None:
        tag.add("material", Tag("color", {"rgba": numbers(shape.rgba)}), name=material)
    return tag


def _inertial(inertial: Inertial) -> Tag:
    tag = Tag("inertial", children=[_origin(inertial.com, inertial.rotation)])
    tag.add("mass", value=number(inertial.mass))
    tag.add("inertia", **moments(inertial.inertia))
    return tag


def _origin(xyz: Vector, rotation: Matrix) -> Tag:
    is_turned = not np.array_equal(rotation, np.eye(3))
    return Tag("origin", {"xyz": numbers(xyz), "rpy": numbers(rpy_of(rotation)) if is_turned else "0 0 0"})


def _joint(joint: Joint) -> Tag:
    drake = joint.moves.drake
    if not (drake or joint.moves.urdf):
        raise refusal(joint, "URDF", "urdf")
    tag = Tag("drake:joint" if drake else "joint", {"name": joint.name, "type": drake or joint.moves.urdf})
    tag.children.append(_origin(joint.xyz, joint.rotation))
    tag.add("parent", link=joint.parent)
    tag.add("child", link=joint.child)
    if "axis" in joint.moves.parameters:
        tag.add("axis", xyz=numbers(joint.axis))
    if joint.limit is not None:
        tag.add("limit", **limits(joint), **limits(joint, RATES))
    if joint.damping or joint.friction:
        tag.add("dynamics", damping=number(joint.damping), friction=number(joint.friction))
    if joint.mimic is not None:
        mimic = joint.mimic
        tag.add("mimic", joint=mimic.joint, multiplier=number(mimic.multiplier), offset=number(mimic.offset))
    if joint.moves.threaded:
        tag.children.append(Tag(PITCH, {"value": number(joint.pitch)}))
    return tag


def _rotor(joint: Joint) -> Tag:
    """Returns a transmission of ratio 1 whose rotor inertia is the joint's armature."""
    tag = Tag(TRANSMISSION, {"name": f"{joint.name}_transmission"})
    tag.add("type", text="transmission_interface/SimpleTransmission")
    tag.add("joint", name=joint.name)
    rotor = tag.add("actuator", name=f"{joint.name}_motor")
    rotor.children.append(Tag(ROTOR, {"value": number(joint.armature)}))
    rotor.children.append(Tag(RATIO, {"value": "1"}))
    return tag


def _losses(joint: Joint) -> list[Note]:
    """Returns a note on each value of a joint that is lost or changed."""
    losses = []
    if joint.stiffness:
        losses.append(f"its spring, stiffness {joint.stiffness:g}, rest position {joint.rest:g}")
    if joint.friction and joint.friction_width is not None:
        losses.append(f"its friction width {joint.friction_width:g}")
    notes = [Note("dropped", f"joint '{joint.name}'", f"{text}, is not written{USE_JOINT_FILE}") for text in losses]
    if joint.moves.drake:
        text = f"a joint of type {joint.type}, which URDF does not have: written with Drake's element"
        notes.append(Note("changed", f"joint '{joint.name}'", text))
    return notes
