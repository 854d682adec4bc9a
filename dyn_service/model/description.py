"""The description of a robot: links and joints as its file gives them, nothing computed, nothing merged.

Readers of robot files return a `Description`; `building.py` makes a tree from it. SI units. A pose is `xyz` (m) and the
rotation matrix of the frame's axes in its parent's axes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from dyn_service.api.arguments import DEFAULT_GRAVITY
from dyn_service.errors import InvalidArgumentError, UrdfError
from dyn_service.model import joints
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.support.suggestions import did_you_mean

RootType = Literal["fixed", "planar", "floating"]
"""Ways in which a robot's root link can move in the world."""

LoopHandling = Literal["closed", "cut"]
"""What loops of a file mean: they are closed, so that efforts and accelerations, which need what the closing joints
carry, are refused as long as these are not computed; or they are cut, and the robot is the tree that is left.
"""

ROOT_JOINT = "root_joint"
"""Name of the joint between the world and a root link that moves."""

FIXED_ROOT = "is fixed in the world"
"""Text of warnings that do not apply to a robot whose root moves."""

UNUSED_SHAPES = "is not used in dynamics"
"""Text of the note that a robot has visual or collision shapes."""

NoteKind = Literal["defaulted", "changed", "dropped", "warning", "reported", "acting", "following", "merged", "loop"]

JointType = str
"""One of `joints.JOINT_TYPES`."""


@dataclass(frozen=True, eq=False)
class Inertial:
    """`<inertial>`: mass, centre of mass, inertia.

    mass: kg. com: (3,) m, in link axes. rotation: (3, 3), R_LI. inertia: (3, 3) kg m^2, about the centre of mass, in
    the axes of the inertial frame (before `rotation` is applied).
    """

    mass: float
    com: Vector
    rotation: Matrix
    inertia: Matrix


ShapeKind = Literal["box", "cylinder", "capsule", "sphere", "ellipsoid", "plane", "mesh"]


@dataclass(frozen=True, eq=False)
class Shape:
    """A visual or collision shape of a link.

    size: m; box: edges; cylinder and capsule: radius and length along z; sphere: radius; ellipsoid: semi-axes; plane:
    none, its normal is z; mesh: scales. xyz (3,) m, rotation (3, 3): pose in the link's frame. visual, collision: its
    roles. rgba: in [0, 1]; None: not specified. mesh: path relative to the robot's file, or URI. unread: why the shape
    could not be read; its other fields have no meaning then.
    """

    kind: ShapeKind = "sphere"
    size: tuple[float, ...] = ()
    xyz: Vector = field(default_factory=lambda: np.zeros(3))
    rotation: Matrix = field(default_factory=lambda: np.eye(3))
    visual: bool = True
    collision: bool = True
    rgba: tuple[float, ...] | None = None
    mesh: str = ""
    unread: str = ""


@dataclass(frozen=True, eq=False)
class Link:
    """`<link>`. inertial: None if the file gives none. line: 0 if the source has no lines. added: the importer added
    the link, between two joints of one body or as the world in which the root is placed.
    """

    name: str
    inertial: Inertial | None = None
    line: int = 0
    added: bool = False
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True)
class Limit:
    """`<limit>`; None for absent attributes (URDF's defaults: lower = upper = 0). The last three are of URDF 1.2."""

    lower: float | None = None
    upper: float | None = None
    effort: float | None = None
    velocity: float | None = None
    acceleration: float | None = None
    deceleration: float | None = None
    jerk: float | None = None


@dataclass(frozen=True)
class Mimic:
    """`<mimic>`: q = multiplier * q(joint) + offset."""

    joint: str
    multiplier: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, eq=False)
class Joint:
    """`<joint>`. `xyz` (3,) and `rotation` (3, 3) place the joint frame in the parent link's frame.

    axis: (3,), unit length, in the joint frame; (1, 0, 0) and unused for fixed joints. damping and the other passive
    parameters: as in `passive.Passive`, one number for all degrees of freedom. friction_width: None is the joint type's
    default. reduction: turns of the motor per turn of the joint, if the file gives it.
    """

    name: str
    type: JointType
    parent: str
    child: str
    xyz: Vector
    rotation: Matrix
    axis: Vector
    limit: Limit | None = None
    damping: float = 0.0
    friction: float = 0.0
    mimic: Mimic | None = None
    line: int = 0
    pitch: float = 0.0
    friction_width: float | None = None
    armature: float = 0.0
    stiffness: float = 0.0
    rest: float = 0.0
    reduction: float | None = None

    @cached_property
    def moves(self) -> joints.Joint:
        """The joint type with its axis and pitch."""
        return joints.JOINT_TYPES[self.type](self.axis, self.pitch)


@dataclass(frozen=True)
class Note:
    """A note of the import.

    kind: `defaulted` (absent, a default was used), `changed` (normalised, rounded), `dropped` (in the file, not used),
    `warning` (kept as written, probably a mistake), `reported` (read, without effect), `acting` (passive forces of a
    joint), `following` (a mimic joint), `merged` (a link merged with its parent's body by a fixed joint), `loop` (it
    closes a loop that the tree lacks).
    """

    kind: NoteKind
    element: str
    text: str
    line: int = 0


@dataclass(frozen=True, eq=False)
class Description:
    """A robot as its file describes it, with the notes of the import. `source` names the file or other origin.

    root: how the root link moves in the world. gravity: m/s^2, world axes, for calls that do not specify one.
    """

    name: str
    links: tuple[Link, ...]
    joints: tuple[Joint, ...]
    source: str = "<text>"
    notes: tuple[Note, ...] = field(default=())
    root: RootType = "fixed"
    gravity: tuple[float, float, float] = DEFAULT_GRAVITY

    @cached_property
    def loops(self) -> tuple[Note, ...]:
        """The notes on what joins links or joints in a loop and is not in the tree; none if loops are cut."""
        return tuple(note for note in self.notes if note.kind == "loop")

    @property
    def loop_refusal(self) -> str:
        """Why there are no efforts, and what to do; "" for a robot without closed loops."""
        if not self.loops:
            return ""
        note, *rest = self.loops
        return (
            f"{note.element} {note.text}{f' ({len(rest)} more)' if rest else ''}, and what it carries is not computed; "
            'loops="cut" (--loops cut, loops: cut) takes the tree that is left'
        )


def rooted(description: Description, root: RootType) -> Description:
    """Returns the robot with its root link moving in the world as `root` specifies. For a moving root, the link and the
    joint by which an importer placed the root in the world are removed.

    Raises:
        InvalidArgumentError: Unknown kind of root, or a joint of the file already moves the robot in the world.
        UrdfError: A joint of the robot has the name of the root joint.
    """
    if root not in get_args(RootType):
        known = ", ".join(get_args(RootType))
        near = did_you_mean(root, get_args(RootType))
        raise InvalidArgumentError(f"root must be one of {known}, found {root!r}{near}", path="root")
    if root == "fixed":
        return description
    taken = next((joint for joint in description.joints if joint.name == ROOT_JOINT), None)
    if taken is not None:
        text = f"the name is reserved for the joint between the world and a {root} root; rename it"
        raise UrdfError(text, line=taken.line or None, element=f"joint '{taken.name}'")
    children = {joint.child for joint in description.joints}
    added = {link.name for link in description.links if link.added} - children
    if added:
        links = tuple(link for link in description.links if link.name not in added)
        joints = tuple(joint for joint in description.joints if joint.parent not in added)
        description = replace(description, links=links, joints=joints)
        children = {joint.child for joint in joints}
    (link,) = {link.name for link in description.links} - children
    weighs = any(each.name == link and each.inertial is not None for each in description.links)
    moving = next((j for j in description.joints if j.parent == link and j.type in ("floating", "planar")), None)
    if moving is not None and not weighs:
        raise InvalidArgumentError(
            f"root '{root}' conflicts with joint '{moving.name}' of type {moving.type}, by which the file "
            "already moves the robot in the world; omit root",
            path="root",
        )
    notes = tuple(note for note in description.notes if FIXED_ROOT not in note.text)
    return replace(description, root=root, notes=notes)


def with_loops(description: Description, loops: LoopHandling) -> Description:
    """Returns the robot with its loops as they are, or cut.

    Raises:
        InvalidArgumentError: `loops` is none of these.
    """
    choices = get_args(LoopHandling)
    if loops not in choices:
        raise InvalidArgumentError(f"loops must be {' or '.join(choices)}, found {loops!r}", path="loops")
    if loops == "closed":
        return description
    notes = (replace(note, kind="reported") if note.kind == "loop" else note for note in description.notes)
    return replace(description, notes=tuple(notes))


def without_passive(description: Description) -> Description:
    """Returns the robot without passive forces of its joints."""
    joints = (replace(x, damping=0.0, friction=0.0, armature=0.0, stiffness=0.0) for x in description.joints)
    return replace(description, joints=tuple(joints))


def outward(description: Description) -> list[str]:
    """Returns the names of the links of a tree, parents first, otherwise in the order of the source."""
    children: dict[str, list[str]] = {link.name: [] for link in description.links}
    for joint in description.joints:
        children[joint.parent].append(joint.child)
    is_child = {joint.child for joint in description.joints}
    order = [link.name for link in description.links if link.name not in is_child]
    for name in order:  # The list grows during the iteration.
        order += children[name]
    return order
