"""The description of a robot: one struct, made by the robot, sent by `describe_robot`, read by every client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

CONVENTIONS: Mapping[str, str] = {
    "gravity": "world axes",
    "quaternion": "x, y, z, w",
    "spatial vectors": "angular part first",
    "velocity of floating, planar and spherical joints": "body axes, linear part first",
}
"""Conventions of numbers; docs/conventions.md explains them, with converters."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the dimensions in shapes of the table, by symbol."""

    nq: int
    """Length of `q`."""
    nv: int
    """Length of `v`, `a`, `tau`."""
    nr: int = 0
    """Velocities of all movable joints: those in `v` and those of mimic joints."""
    nm: int
    """Movable joints, including mimic joints."""
    nl: int
    """Links."""
    nj: int
    """URDF joints, including fixed ones and those that close loops."""
    nk: int = 0
    """Joints that close loops."""
    nb: int
    """Bodies of the tree of a query's kernels: links, or moving bodies."""
    na: int
    """Pairs of a moving body and itself or one of its ancestors."""
    nt: int = 0
    """Dynamic parameters: 10 for each link, then 4 for each of the velocities `nr`."""

    def __getitem__(self, symbol: str) -> int:
        # getattr alone would find methods of the struct, too.
        if symbol not in self.__struct_fields__:
            raise KeyError(symbol)
        size: int = getattr(self, symbol)
        return size


class JointDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One joint, movable or fixed. All joints together are the robot's topology."""

    name: str
    type: str
    """As in URDF: `revolute`, `continuous`, `prismatic`, `fixed`, `planar`, `floating`; `screw`, `spherical`."""
    parent: str | None
    """The parent link; None: the world."""
    child: str
    """The child link."""
    axis: tuple[float, float, float] | None = None
    """Unit vector in the joint frame, for joint types with an axis; the normal of a planar joint."""
    pitch: float | None = None
    """Pitch of a screw joint, m per turn."""
    mimic: MimicDescription | None = None
    """For a mimic joint, which has no entry in `q`, `v` and `tau`."""
    driven: bool | None = None
    """Whether a motor moves it; None: the robot's file does not say."""


class MimicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The relation of a mimic joint: its position is `multiplier` times that of `joint`, plus `offset`."""

    joint: str
    """The mimicked joint, which has an entry in `q`."""
    multiplier: float
    """Ratio of the velocities."""
    offset: float
    """rad or m."""


class LoopJointDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A joint that closes a loop of links. It has no entries in `q`."""

    name: str
    type: str
    """As for `JointDescription`."""
    parent: str
    child: str
    """Links of the tree."""
    parent_xyz: tuple[float, float, float]
    parent_rotation: tuple[tuple[float, float, float], tuple[float, float, float], tuple[float, float, float]]
    """Joint frame in the parent link's frame: origin in m, and the rotation matrix by rows."""
    child_xyz: tuple[float, float, float]
    child_rotation: tuple[tuple[float, float, float], tuple[float, float, float], tuple[float, float, float]]
    """Joint frame in the child link's frame; both frames coincide where the joint is at zero."""
    axis: tuple[float, float, float] | None = None
    pitch: float | None = None
    """As for `JointDescription`."""


class LoopFreedom(msgspec.Struct, frozen=True, kw_only=True):
    """What closed loops leave free, from random configurations in which they are closed."""

    freedom: int
    """Degrees of freedom: velocities that are independent."""
    rank: int
    """Independent directions that the loop joints block."""
    redundant: int
    """Blocked directions that depend on others, so that loads of joints are not unique."""
    independent: tuple[str, ...]
    """Names of the independent velocities: those of driven joints first."""
    undetermined: tuple[str, ...] = ()
    """Names of velocities of passive joints that move while all motors stand still; empty if the files name no motors.
    """


class LimitsDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the movable joints, in the order of `q` and `v`; None if absent. acceleration, jerk: [] if no joint has
    one.
    """

    lower: list[float | None]
    upper: list[float | None]
    velocity: list[float | None]
    effort: list[float | None]
    acceleration: list[float | None] = []
    jerk: list[float | None] = []


class NoteDescription(msgspec.Struct, frozen=True):
    """A note of the import, see docs/urdf.md. line: in the robot's file; 0 if it has no line. rule: the number of its
    rule in docs/rules.md, such as DYN101; empty if it is no finding.
    """

    kind: str
    element: str
    text: str
    line: int = 0
    rule: str = ""


class RobotDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a robot, for MessagePack or JSON."""

    name: str
    """The robot's name."""
    fingerprint: str
    """Hash of everything that answers depend on; requests carry it as `model`."""
    nq: int
    """Length of `q`."""
    nv: int
    """Length of `v`, `a`, `tau`."""
    sizes: Sizes
    """Sizes of all dimensions in shapes of the table."""
    joint_names: tuple[str, ...]
    """The joints with entries in `q`, in order: movable joints without mimic joints."""
    joint_types: tuple[str, ...]
    """Their types, in the order of `joint_names`."""
    all_joint_names: tuple[str, ...]
    """Every URDF joint, including fixed ones, then those that close loops: the rows of `constraint_forces`."""
    link_names: tuple[str, ...]
    """Every link, parent before child."""
    joints: tuple[JointDescription, ...]
    """Every joint of the tree with its type, axis, parent and child link, in the order of `all_joint_names`."""
    limits: LimitsDescription
    """`lower`, `upper` in the order of `q`, `velocity`, `effort` in that of `v`, nil if absent."""
    gravity: tuple[float, float, float]
    """Default gravity of requests, m/s^2, world axes."""
    loop_joints: tuple[LoopJointDescription, ...] = ()
    """Joints that close loops, in the order of the rows of `loop_error`."""
    freedom: LoopFreedom | None = None
    """What the loops leave free; None before `prepare` or a query needs it, where they close in no random
    configuration, and for robots without loops."""
    passive: tuple[str, ...] = ()
    """Passive properties of its joints: some of `damping`, `friction`, `armature`, `springs`."""
    conventions: Mapping[str, str] = msgspec.field(default_factory=lambda: dict(CONVENTIONS))
    """Conventions: quaternions, axes of velocities, order of spatial vectors."""
    certificates: Mapping[str, Mapping[str, Any]] = {}
    """By compiled kernel, the fields of its `Certificate` except the name."""
    notes: tuple[NoteDescription, ...] = ()
    """What the importer noted: defaults, changes, warnings, and what it does not use."""

    @property
    def loops(self) -> tuple[str, ...]:
        """What closes loops and is no loop joint, which leaves efforts and accelerations without an answer."""
        return tuple(f"{note.element}: {note.text}" for note in self.notes if note.kind == "loop")

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        # Through the encoding, so that it equals what a client gets, with lists instead of tuples.
        fields: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(self))
        return fields
