"""The description of a robot: links and joints as its file gives them, nothing computed, nothing merged.

Readers of robot files return a `Description`; `building.py` makes a tree from it. SI units. A pose is `xyz` (m) and the
rotation matrix of the frame's axes in its parent's axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from dyn_service.api.arguments import DEFAULT_GRAVITY
from dyn_service.errors import InvalidArgumentError, UrdfError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.joints import FIXED, JOINT_TYPES
from dyn_service.model.joints import Joint as JointModel
from dyn_service.model.motors import Motor
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
"""One of `JOINT_TYPES`."""


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
    driven: whether a motor moves it; None: the file says of no joint that it is driven. motor: of the robot's file or
    a joint file.
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
    driven: bool | None = None
    motor: Motor | None = None

    @cached_property
    def moves(self) -> JointModel:
        """The joint type with its axis and pitch."""
        return JOINT_TYPES[self.type](self.axis, self.pitch)


@dataclass(frozen=True, eq=False)
class LoopJoint:
    """A joint that closes a loop: it connects two links of the tree and blocks what its type does not allow.

    type: one of `JOINT_TYPES`; `fixed` is a weld. The joint frame in the parent link's frame: parent_xyz (3,) m,
    parent_rotation (3, 3); in the child link's: child_xyz, child_rotation. Both coincide where the joint is at
    its zero. axis: (3,), unit length, in the joint frame; (1, 0, 0) for types without an axis. pitch: m per turn,
    of screws.
    """

    name: str
    type: JointType
    parent: str
    child: str
    parent_xyz: Vector
    parent_rotation: Matrix
    child_xyz: Vector
    child_rotation: Matrix
    axis: Vector
    pitch: float = 0.0
    line: int = 0

    @cached_property
    def moves(self) -> JointModel:
        """The joint type with its axis and pitch."""
        return JOINT_TYPES[self.type](self.axis, self.pitch)

    @property
    def frames(self) -> tuple[tuple[str, Vector, Matrix], tuple[str, Vector, Matrix]]:
        """The joint frame on each link: "parent" or "child", position and rotation."""
        return ("parent", self.parent_xyz, self.parent_rotation), ("child", self.child_xyz, self.child_rotation)


@dataclass(frozen=True)
class Edit:
    """A change of numbers in a robot's file.

    kind, name: of the link or joint. quantity: `mass`, `inertia`, one moment such as `ixx`, `range`, `rpy`. factor: by
    which the numbers are multiplied.
    """

    kind: Literal["link", "joint"]
    name: str
    quantity: str
    factor: float


@dataclass(frozen=True)
class Note:
    """A note of the import.

    kind: `defaulted` (absent, a default was used), `changed` (normalised, rounded), `dropped` (in the file, not used),
    `warning` (kept as written, probably a mistake), `reported` (read, without effect), `acting` (passive forces of a
    joint), `following` (a mimic joint), `merged` (a link merged with its parent's body by a fixed joint), `loop` (it
    closes a loop and is no loop joint).
    rule: of a warning, its name in `parsing/rules.py`. repair: what to write instead, "" if the rule's own repair is
    all that is known. edits: the same for `dyn check --fix`, only where the repair is unambiguous.
    """

    kind: NoteKind
    element: str
    text: str
    line: int = 0
    rule: str = field(default="", compare=False)
    repair: str = field(default="", compare=False)
    edits: tuple[Edit, ...] = field(default=(), compare=False)


@dataclass(frozen=True, eq=False)
class Description:
    """A robot as its file describes it, with the notes of the import. `source` names the file or other origin.

    root: how the root link moves in the world. gravity: m/s^2, world axes, for calls that do not specify one.
    loop_joints: what closes loops of the tree.
    """

    name: str
    links: tuple[Link, ...]
    joints: tuple[Joint, ...]
    source: str = "<text>"
    notes: tuple[Note, ...] = field(default=())
    root: RootType = "fixed"
    gravity: tuple[float, float, float] = DEFAULT_GRAVITY
    loop_joints: tuple[LoopJoint, ...] = ()

    @cached_property
    def loops(self) -> tuple[Note, ...]:
        """The notes on what joins links or joints in a loop and is not in the tree; none if loops are cut."""
        closing = (closing_note(joint, "loop") for joint in self.loop_joints)
        return (*self.unread_loops, *closing)

    @property
    def unread_loops(self) -> tuple[Note, ...]:
        """The notes on what closes a loop and is no loop joint, because none is equivalent; none if loops are cut."""
        return tuple(note for note in self.notes if note.kind == "loop")

    @property
    def loop_refusal(self) -> str:
        """Why there are no efforts, and what to do; "" for a robot whose loops are all closed by loop joints."""
        if not self.unread_loops:
            return ""
        note, *rest = self.unread_loops
        return (
            f"{note.element} {note.text}{f' ({len(rest)} more)' if rest else ''}, and what it carries is not computed; "
            'loops="cut" (--loops cut, loops: cut) takes the tree that is left'
        )


def closing_note(joint: LoopJoint, kind: NoteKind) -> Note:
    """Returns a note on a loop joint where the tree alone is used."""
    text = f"closes a loop of links, from '{joint.parent}' to '{joint.child}': it is ignored"
    return Note(kind, f"joint '{joint.name}'", text, joint.line)


def rooted(description: Description, root: RootType) -> Description:
    """Returns the robot with its root link moving in the world as `root` specifies. For a moving root, the link and the
    joint by which an importer placed the root in the world are removed.

    Raises:
        InvalidArgumentError: Unknown kind of root, or a joint of the file already moves the robot in the world, or a
            loop joint holds it there.
        UrdfError: A joint of the robot has the name of the root joint.
    """
    root_types = get_args(RootType)
    if root not in root_types:
        suggestion = did_you_mean(root, root_types)
        raise InvalidArgumentError(
            f"root must be one of {', '.join(root_types)}, found {root!r}{suggestion}", path="root"
        )
    if root == FIXED.type:
        return description
    joints_of_file: tuple[Joint | LoopJoint, ...] = (*description.joints, *description.loop_joints)
    namesake = next((joint for joint in joints_of_file if joint.name == ROOT_JOINT), None)
    if namesake is not None:
        text = f"the name is reserved for the joint between the world and a {root} root; rename it"
        raise UrdfError(text, line=namesake.line or None, element=f"joint '{namesake.name}'")
    children = {joint.child for joint in description.joints}
    added_links = {link.name for link in description.links if link.added} - children
    if added_links:
        holding = next((x for x in description.loop_joints if {x.parent, x.child} & added_links), None)
        if holding is not None:
            raise InvalidArgumentError(
                f"root '{root}' conflicts with joint '{holding.name}', which closes a loop with the world; omit root",
                path="root",
            )
        links = tuple(link for link in description.links if link.name not in added_links)
        joints = tuple(joint for joint in description.joints if joint.parent not in added_links)
        description = replace(description, links=links, joints=joints)
        children = {joint.child for joint in joints}
    (link,) = {link.name for link in description.links} - children
    has_inertia = any(body.name == link and body.inertial is not None for body in description.links)
    movable = (joint for joint in description.joints if joint.parent == link and joint.moves.nv)
    moving = next((joint for joint in movable if joint.type in root_types), None)
    if moving is not None and not has_inertia:
        raise InvalidArgumentError(
            f"root '{root}' conflicts with joint '{moving.name}' of type {moving.type}, by which the file "
            "already moves the robot in the world; omit root",
            path="root",
        )
    # They describe a fixed root, which this robot does not have.
    notes = tuple(note for note in description.notes if FIXED_ROOT not in note.text)
    return replace(description, root=root, notes=notes)


def with_loops(description: Description, loops: LoopHandling) -> Description:
    """Returns the robot with its loops as they are, or cut.

    Raises:
        InvalidArgumentError: `loops` is not one of the choices.
    """
    choices = get_args(LoopHandling)
    if loops not in choices:
        raise InvalidArgumentError(f"loops must be {' or '.join(choices)}, found {loops!r}", path="loops")
    if loops == "closed":
        return description
    notes = (replace(note, kind="reported") if note.kind == "loop" else note for note in description.notes)
    cut = (closing_note(joint, "reported") for joint in description.loop_joints)
    return replace(description, notes=(*notes, *cut), loop_joints=())


def without_passive(description: Description) -> Description:
    """Returns the robot without passive forces of its joints."""
    joints = (replace(x, damping=0.0, friction=0.0, armature=0.0, stiffness=0.0) for x in description.joints)
    return replace(description, joints=tuple(joints))


def motors_by_entry(description: Description, names: Sequence[str]) -> dict[int, Motor]:
    """Returns the motors of a robot by index in v. names: the joint of each entry of v.

    Raises:
        InvalidArgumentError: A joint with a motor follows another one.
    """
    motors = {}
    for joint in description.joints:
        if joint.motor is not None:
            if joint.name not in names:
                text = "follows another one: expected the motor at the joint that it follows, or mimic: false"
                raise InvalidArgumentError(f"motors: joint '{joint.name}' {text}", path="joints")
            motors[names.index(joint.name)] = joint.motor
    return motors


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
