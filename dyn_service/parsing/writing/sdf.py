"""Writes SDFormat 1.11: poses of joints relative to their parents, of links relative to their joints, so that only
quaternions are converted.

A joint of SDFormat has one frame, the same on both links where all joints are at zero: loop joints are written if they
are closed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dyn_service.api.arguments import DEFAULT_GRAVITY
from dyn_service.errors import UnimplementedError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import (
    ROOT_JOINT,
    Description,
    Inertial,
    Joint,
    Link,
    LoopJoint,
    Note,
    Shape,
    outward,
)
from dyn_service.model.joints import FIXED
from dyn_service.parsing.joint_chains import Names
from dyn_service.parsing.pose import Pose, about, quaternion_of
from dyn_service.parsing.quantities import UNIT, X_AXIS
from dyn_service.parsing.structure import WORLD
from dyn_service.parsing.transmissions import RATIO, ROTOR
from dyn_service.parsing.writing.text import (
    Tag,
    document,
    limits,
    lost_limits,
    moments,
    number,
    numbers,
    refusal,
    roles,
    sizes,
)

VERSION = "1.11"


def write(description: Description) -> tuple[str, list[Note]]:
    """Returns the text, and a note on each thing that SDFormat cannot express.

    Raises:
        UnimplementedError: SDFormat lacks a joint type (planar, cylindrical, floating), or a loop is open at zero.
    """
    _check_closed(description)
    description, notes = _without_floating_joint(description)
    description = _with_world_joint(description, notes)
    description, free_links = _without_floating_links(description, notes)
    description = _renamed(description, notes)
    drakes = any(map(_rotor, description.joints))
    root = Tag("sdf", {"version": VERSION, "xmlns:drake": "drake.mit.edu" if drakes else None})
    holder = root
    # Gravity belongs to a world, and a model in a world is not included by others: only where it is needed.
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
        free = free_links.get(link.name)
        pose = None if free is None else _pose(free.xyz, free.rotation, free.parent if free.parent != WORLD else None)
        model.children.append(_link(link, inboard.get(link.name), pose))
        if link.inertial is None or link.inertial.mass == 0.0:
            notes.append(Note("warning", f"link '{link.name}'", "has no mass, which Gazebo rejects"))
    for joint in description.joints:
        model.children.append(_joint(joint))
        notes += _losses(joint)
    # Last, because a reader cuts the loop at the joint that comes last.
    model.children += map(_loop_joint, description.loop_joints)
    if description.loop_joints and any(joint.driven is not None for joint in description.joints):
        text = "which joints are driven is not written: use a joint file"
        notes.append(Note("dropped", f"robot '{description.name}'", text))
    return document(root), notes


def _check_closed(description: Description) -> None:
    """Refuses loop joints that SDFormat lacks, or that are open where all joints are at zero."""
    poses: dict[str, Pose] = {}
    inboard = {joint.child: joint for joint in description.joints}
    for name in outward(description) if description.loop_joints else ():
        joint = inboard.get(name)
        poses[name] = Pose() if joint is None else poses[joint.parent] @ Pose(joint.rotation, joint.xyz)
    for closing in description.loop_joints:
        if closing.moves.sdf is None:
            raise refusal(closing, "SDFormat", "sdf")
        parent = poses[closing.parent] @ Pose(closing.parent_rotation, closing.parent_xyz)
        child = poses[closing.child] @ Pose(closing.child_rotation, closing.child_xyz)
        gap = _gap(closing, parent.inverse @ child)
        if gap > UNIT:
            raise UnimplementedError(
                f"joint '{closing.name}': it closes a loop that is open by {gap:.3g} m | rad where all joints are at "
                "zero, and SDFormat only has loops that are closed there: write MJCF, or URDF with a joint file"
            )


def _gap(joint: LoopJoint, pose: Pose) -> float:
    """Returns the largest part of a displacement of the child's joint frame that the joint blocks, m and rad."""
    moves, axis = joint.moves, joint.axis
    turns = moves.subspace[:3].any()
    if turns and moves.single_dof:
        w, x, y, z = quaternion_of(pose.rotation)
        angle = 2.0 * np.arctan2(np.array([x, y, z]) @ axis, w)
        turn, shift = about(axis, angle), axis * joint.pitch * angle / (2.0 * np.pi)
    else:
        turn, shift = (pose.rotation if turns else np.eye(3)), np.zeros(3)
    translation = pose.origin - shift
    if moves.translates and not turns:
        translation = translation - axis * (axis @ translation)
    return float(max(np.abs(translation).max(), np.abs(pose.rotation - turn).max()))


def _without_floating_joint(description: Description) -> tuple[Description, list[Note]]:
    """Removes the floating root joint: in SDFormat a model without a joint to the world floats."""
    at_root = [joint for joint in description.joints if joint.parent == WORLD]
    if len(at_root) != 1 or not at_root[0].moves.free:
        return description, []
    for closing in description.loop_joints:
        if WORLD in (closing.parent, closing.child):
            raise UnimplementedError(
                f"joint '{closing.name}': it closes a loop with the world, and in SDFormat a model that a joint holds "
                "to the world does not float"
            )
    (free,) = at_root
    links = tuple(link for link in description.links if link.name != WORLD)
    joints = tuple(joint for joint in description.joints if joint is not free)
    text = (
        "is not written: a model of SDFormat without a joint to the world floats; Robot.from_file reads it with "
        f"root=\"floating\", as joint '{ROOT_JOINT}'"
    )
    note = Note("changed", f"joint '{free.name}'", text)
    return replace(description, links=links, joints=joints, root="floating"), [note]


def _without_floating_links(description: Description, notes: list[Note]) -> tuple[Description, dict[str, Joint]]:
    """Removes floating joints whose links loop joints connect to the rest: SDFormat has links without a joint.

    Returns:
        The description and the removed joints by their links. A reader takes the first loop joint of such a link as a
        joint of the tree, so that one comes first.

    Raises:
        UnimplementedError: No loop joint has the link as its child.
    """
    removed: dict[str, Joint] = {}
    for free in (joint for joint in description.joints if joint.moves.free):
        parents = {joint.child: joint.parent for joint in description.joints}
        candidates = (closing for closing in description.loop_joints if closing.child == free.child)
        carrier = next((x for x in candidates if not _is_carried(x.parent, free.child, parents)), None)
        if carrier is None:
            raise UnimplementedError(
                f"joint '{free.name}': in SDFormat only the root of a robot floats, or a link that is the child of a "
                f"joint that closes a loop; link '{free.child}' is neither: write MJCF, or a joint of another type"
            )
        others = (joint for joint in description.loop_joints if joint is not carrier)
        joints = tuple(joint for joint in description.joints if joint is not free)
        description = replace(description, joints=joints, loop_joints=(carrier, *others))
        removed[free.child] = free
        text = f"is not written: joint '{carrier.name}' carries link '{free.child}' in SDFormat"
        notes.append(Note("changed", f"joint '{free.name}'", text))
    return description, removed


def _is_carried(link: str | None, carrier: str, parents: Mapping[str, str]) -> bool:
    """Returns whether a link is another one or follows it in the tree."""
    while link is not None and link != carrier:
        link = parents.get(link)
    return link is not None


def _with_world_joint(description: Description, notes: list[Note]) -> Description:
    """Adds a joint between the world and a fixed root: in SDFormat a model without one floats."""
    if description.root != FIXED.type or any(joint.parent == WORLD for joint in description.joints):
        return description
    root = outward(description)[0]
    name = Names(joint.name for joint in description.joints).new(f"{root}_fixed")
    text = f"its fixed root is written as joint '{name}' between the link '{WORLD}', which is new, and '{root}'"
    notes.append(Note("changed", f"robot '{description.name}'", text))
    joint = Joint(name, FIXED.type, WORLD, root, np.zeros(3), np.eye(3), np.array(X_AXIS))
    return replace(description, joints=(joint, *description.joints))


def _renamed(description: Description, notes: list[Note]) -> Description:
    """Renames joints with the name of a link: in SDFormat, links and joints share a namespace."""
    links = {link.name for link in description.links}
    named_joints: tuple[Joint | LoopJoint, ...] = (*description.joints, *description.loop_joints)
    clashing = [joint.name for joint in named_joints if joint.name in links]
    if not clashing:
        return description
    names = Names(links | {joint.name for joint in named_joints})
    new = {name: names.new(f"{name}_joint") for name in clashing}
    for name, other in new.items():
        text = f"is renamed to '{other}': a link has its name, and SDFormat requires unique names"
        notes.append(Note("changed", f"joint '{name}'", text))
    joints = []
    for joint in description.joints:
        mimic = joint.mimic and replace(joint.mimic, joint=new.get(joint.mimic.joint, joint.mimic.joint))
        joints.append(replace(joint, name=new.get(joint.name, joint.name), mimic=mimic))
    closing = (replace(joint, name=new.get(joint.name, joint.name)) for joint in description.loop_joints)
    return replace(description, joints=tuple(joints), loop_joints=tuple(closing))


def _pose(xyz: Vector, rotation: Matrix, reference: str | None = None) -> Tag:
    w, x, y, z = quaternion_of(rotation)
    text = numbers([*xyz, x, y, z, w])
    return Tag("pose", {"relative_to": reference, "rotation_format": "quat_xyzw"}, text=text)


def _link(link: Link, inboard: Joint | None, pose: Tag | None) -> Tag:
    tag = Tag("link", {"name": link.name})
    if pose is not None:
        tag.children.append(pose)
    elif inboard is not None:
        tag.add("pose", relative_to=inboard.name)
    tag.children.append(_inertial(link.inertial))
    for shape in link.shapes:
        for role in roles(shape):
            shape_tag = tag.add(role, _pose(shape.xyz, shape.rotation), name=f"{link.name}_{role}_{len(tag.children)}")
            shape_tag.add("geometry").children.append(_geometry(shape))
            if role == "visual" and shape.rgba is not None:
                colours = [Tag(name, text=numbers(shape.rgba)) for name in ("ambient", "diffuse")]
                shape_tag.add("material", *colours)
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
    if joint.moves.sdf is None:
        raise refusal(joint, "SDFormat", "sdf")
    tag = Tag("joint", {"name": joint.name, "type": joint.moves.sdf})
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


def _loop_joint(joint: LoopJoint) -> Tag:
    tag = Tag("joint", {"name": joint.name, "type": joint.moves.sdf})
    tag.children.append(_pose(joint.parent_xyz, joint.parent_rotation, joint.parent))
    tag.add("parent", text=joint.parent)
    tag.add("child", text=joint.child)
    if "axis" in joint.moves.parameters:
        tag.add("axis").add("xyz", text=numbers(joint.axis))
    if joint.moves.threaded:
        tag.add("screw_thread_pitch", text=number(joint.pitch))
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


def _losses(joint: Joint) -> list[Note]:
    """Returns a note on each value of a joint that is lost."""
    losses = []
    if joint.armature and not _rotor(joint):
        losses.append(f"its armature {joint.armature:g}")
    if joint.friction and joint.friction_width is not None:
        losses.append(f"its friction width {joint.friction_width:g}")
    if "axis" not in joint.moves.parameters and (joint.damping or joint.friction):
        losses.append("damping or friction of a ball joint")
    notes = [Note("dropped", f"joint '{joint.name}'", f"{text} is not written: use a joint file") for text in losses]
    return [
        *notes,
        *(Note("dropped", f"joint '{joint.name}'", f"{text} is not written") for text in lost_limits(joint)),
    ]
