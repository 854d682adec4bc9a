"""Writes SDFormat 1.11: poses of joints relative to their parents, of links relative to their joints, so that only
quaternions are converted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dyn_service.api.arguments import DEFAULT_GRAVITY
from dyn_service.errors import UnimplementedError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import ROOT_JOINT, Description, Inertial, Joint, Link, Note, Shape, outward
from dyn_service.parsing.joint_chains import Names
from dyn_service.parsing.pose import quaternion_of
from dyn_service.parsing.quantities import X_AXIS
from dyn_service.parsing.structure import WORLD
from dyn_service.parsing.transmissions import RATIO, ROTOR
from dyn_service.parsing.writing.text import Tag, document, limits, lost_limits, moments, number, numbers, roles, sizes

VERSION = "1.11"

_TYPES = {
    "fixed": "fixed", "revolute": "revolute", "continuous": "continuous", "prismatic": "prismatic", "spherical": "ball",
    "ball": "ball", "screw": "screw",
}  # fmt: skip


def write(description: Description) -> tuple[str, list[Note]]:
    """Returns the text, and a note on each thing that SDFormat cannot express.

    Raises:
        UnimplementedError: SDFormat lacks a joint type (planar, floating).
    """
    description, notes = _floating_by_itself(description)
    description = _held(description, notes)
    description = _renamed(description, notes)
    drakes = any(map(_rotor, description.joints))
    root = Tag("sdf", {"version": VERSION, "xmlns:drake": "drake.mit.edu" if drakes else None})
    holder = root
    if description.gravity != DEFAULT_GRAVITY:
        holder = root.add("world", name="default")
        holder.add("gravity", text=numbers(description.gravity))
    model = holder.add("model", name=description.name)
    inboard = {joint.child: joint for joint in description.joints}
    for link in description.links:
        if link.name == WORLD and link.name not in inboard:
            if link.inertial is not None:
                text = "the inertia of link 'world' is not written: SDFormat's world has none"
                notes.append(Note("dropped", "link 'world'", text))
            if link.shapes:
                notes.append(Note("dropped", "link 'world'", "its shapes are not written: SDFormat's world has none"))
            continue
        model.children.append(_link(link, inboard.get(link.name)))
        if link.inertial is None or link.inertial.mass == 0.0:
            notes.append(Note("warning", f"link '{link.name}'", "has no mass, which Gazebo rejects"))
    for joint in description.joints:
        model.children.append(_joint(joint))
        notes += _unsaid(joint)
    return document(root), notes


def _floating_by_itself(description: Description) -> tuple[Description, list[Note]]:
    """Removes the floating root joint: in SDFormat a model without a joint to the world floats."""
    at_root = [joint for joint in description.joints if joint.parent == WORLD]
    if len(at_root) != 1 or at_root[0].type != "floating":
        return description, []
    (free,) = at_root
    links = tuple(link for link in description.links if link.name != WORLD)
    joints = tuple(joint for joint in description.joints if joint is not free)
    text = (
        f"is not in it: there the model floats by itself; read here it wants root=\"floating\", by joint '{ROOT_JOINT}'"
    )
    note = Note("changed", f"joint '{free.name}'", text)
    return replace(description, links=links, joints=joints, root="floating"), [note]


def _held(description: Description, notes: list[Note]) -> Description:
    """Adds a joint between the world and a fixed root: in SDFormat a model without one floats."""
    if description.root != "fixed" or any(joint.parent == WORLD for joint in description.joints):
        return description
    root = outward(description)[0]
    name = Names(joint.name for joint in description.joints).new(f"{root}_fixed")
    text = f"its fixed root is written as joint '{name}' between the link '{WORLD}', which is new, and '{root}'"
    notes.append(Note("changed", f"robot '{description.name}'", text))
    joint = Joint(name, "fixed", WORLD, root, np.zeros(3), np.eye(3), np.array(X_AXIS))
    return replace(description, joints=(joint, *description.joints))


def _renamed(description: Description, notes: list[Note]) -> Description:
    """Renames joints with the name of a link: in SDFormat, links and joints share a namespace."""
    links = {link.name for link in description.links}
    both = [joint.name for joint in description.joints if joint.name in links]
    if not both:
        return description
    names = Names(links | {joint.name for joint in description.joints})
    new = {name: names.new(f"{name}_joint") for name in both}
    for name, other in new.items():
        text = f"is renamed to '{other}': a link has its name, and SDFormat requires unique names"
        notes.append(Note("changed", f"joint '{name}'", text))
    joints = []
    for joint in description.joints:
        mimic = joint.mimic and replace(joint.mimic, joint=new.get(joint.mimic.joint, joint.mimic.joint))
        joints.append(replace(joint, name=new.get(joint.name, joint.name), mimic=mimic))
    return replace(description, joints=tuple(joints))


def _pose(xyz: Vector, rotation: Matrix, within: str | None = None) -> Tag:
    w, x, y, z = quaternion_of(rotation)
    text = numbers([*xyz, x, y, z, w])
    return Tag("pose", {"relative_to": within, "rotation_format": "quat_xyzw"}, text=text)


def _link(link: Link, inboard: Joint | None) -> Tag:
    tag = Tag("link", {"name": link.name})
    if inboard is not None:
        tag.add("pose", relative_to=inboard.name)
    tag.children.append(_inertial(link.inertial))
    for shape in link.shapes:
        for role in roles(shape):
            within = tag.add(role, _pose(shape.xyz, shape.rotation), name=f"{link.name}_{role}_{len(tag.children)}")
            within.add("geometry").children.append(_geometry(shape))
            if role == "visual" and shape.rgba is not None:
                colours = [Tag(name, text=numbers(shape.rgba)) for name in ("ambient", "diffuse")]
                within.add("material", *colours)
    return tag


def _geometry(shape: Shape) -> Tag:
    tag = Tag(shape.kind)
    if shape.kind == "plane":
        tag.add("normal", text="0 0 1")
    if shape.kind == "mesh":
        tag.add("uri", text=shape.mesh)
    for name, value in sizes(shape).items():
        tag.add(name, text=numbers(value))
    return tag


def _inertial(inertial: Inertial | None) -> Tag:
    tag = Tag("inertial", children=[] if inertial is None else [_pose(inertial.com, inertial.rotation)])
    tag.add("mass", text=number(0.0 if inertial is None else inertial.mass))
    tag.add_texts("inertia", moments(np.zeros((3, 3)) if inertial is None else inertial.inertia))
    return tag


def _joint(joint: Joint) -> Tag:
    kind = _TYPES.get(joint.type)
    if kind is None:
        raise UnimplementedError(
            f"joint '{joint.name}': SDFormat has no joints of type {joint.type}, expected one of {', '.join(_TYPES)}"
        )
    tag = Tag("joint", {"name": joint.name, "type": kind})
    tag.children.append(_pose(joint.xyz, joint.rotation, joint.parent))
    tag.add("parent", text=joint.parent)
    tag.add("child", text=joint.child)
    if "axis" in joint.moves.parameters:
        tag.children.append(_axis(joint))
    if joint.moves.threaded:
        tag.add("screw_thread_pitch", text=number(joint.pitch))
    if rotor := _rotor(joint):
        tag.add(ROTOR, text=number(rotor))
        tag.add(RATIO, text="1")
    return tag


def _rotor(joint: Joint) -> float:
    """Returns the armature as Drake writes it, which has rotors only on axes with an effort limit above 0."""
    idle = joint.limit is not None and joint.limit.effort == 0.0
    return 0.0 if idle or "axis" not in joint.moves.parameters else joint.armature


def _axis(joint: Joint) -> Tag:
    axis = Tag("axis")
    axis.add("xyz", text=numbers(joint.axis))
    if joint.limit is not None:
        axis.add_texts("limit", limits(joint))
    if joint.damping or joint.friction or joint.stiffness:
        passive = {"damping": joint.damping, "friction": joint.friction}
        passive |= {"spring_reference": joint.rest, "spring_stiffness": joint.stiffness}
        axis.add_texts("dynamics", {name: number(value) for name, value in passive.items()})
    if (mimic := joint.mimic) is not None:
        rule = {"multiplier": number(mimic.multiplier), "offset": number(mimic.offset), "reference": "0"}
        axis.add_texts("mimic", rule, joint=mimic.joint)
    return axis


def _unsaid(joint: Joint) -> list[Note]:
    said = []
    if joint.armature and not _rotor(joint):
        said.append(f"its armature {joint.armature:g}")
    if joint.friction and joint.friction_width is not None:
        said.append(f"its friction width {joint.friction_width:g}")
    if "axis" not in joint.moves.parameters and (joint.damping or joint.friction):
        said.append("damping or friction of a ball joint")
    notes = [Note("dropped", f"joint '{joint.name}'", f"{text} is not written: use a joint file") for text in said]
    return [
        *notes,
        *(Note("dropped", f"joint '{joint.name}'", f"{text} is not written") for text in lost_limits(joint)),
    ]
