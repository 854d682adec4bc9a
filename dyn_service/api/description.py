"""The description of a robot: one struct, made by the robot, sent by `describe_robot`, read by every client.

`RobotProperties` has the properties of any robot, local or remote, blocking or awaited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dyn_service.api.whole_body import WholeBodyConstants
from dyn_service.api.whole_body import whole_body_constants as constants

if TYPE_CHECKING:
    from dyn_service.api.arguments import Contact
    from dyn_service.model.configuration import Configuration, Limits

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


class RobotProperties:
    """A robot's names, sizes, joints and limits.

    Args:
        description: The robot's properties other than its dynamics.
        configuration: Its movable joints.
        limits: Theirs.
    """

    def __init__(self, description: RobotDescription, configuration: Configuration, limits: Limits) -> None:
        self._about = description
        self._configuration = configuration
        self._limits = limits

    def __repr__(self) -> str:
        mimic = sum(joint.mimic is not None for joint in self.description.joints)
        joints = f"{len(self.joint_names) + mimic} movable joints" + (f", {mimic} mimic" if mimic else "")
        return f"<{type(self).__name__} '{self.name}': {len(self.link_names)} links, {joints}>"

    @property
    def description(self) -> RobotDescription:
        """Properties of the robot other than its dynamics: sizes, joints, topology, limits, conventions."""
        return self._about

    @property
    def name(self) -> str:
        """The robot's name in its file."""
        return self._about.name

    @property
    def fingerprint(self) -> str:
        """Hash of the robot, 32 hexadecimal digits; changes with any of its numbers."""
        return self._about.fingerprint

    @property
    def nq(self) -> int:
        """Length of `q`."""
        return self._about.nq

    @property
    def nv(self) -> int:
        """Length of `v`, `a`, `tau`."""
        return self._about.nv

    @property
    def configuration(self) -> Configuration:
        """The joints' entries in q and v, and functions of positions: `integrate`, `difference`, `neutral`."""
        return self._configuration

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Movable joints in the order of `q`: depth first, siblings by joint name, as in Pinocchio."""
        return self._about.joint_names

    @property
    def free(self) -> NDArray[np.float64]:
        """(nv,): 0 where a joint is locked by an overlay, else 1."""
        return np.ones(self.nv)

    @property
    def gravity(self) -> NDArray[np.float64]:
        """(3,) m/s^2 in world axes, used by calls without a gravity."""
        return np.array(self._about.gravity)

    @property
    def all_joint_names(self) -> tuple[str, ...]:
        """Every URDF joint, including fixed ones, then those that close loops: the rows of `constraint_forces`."""
        return self._about.all_joint_names

    @property
    def link_names(self) -> tuple[str, ...]:
        """Every link, parent before child: the rows of `link_poses`."""
        return self._about.link_names

    @property
    def limits(self) -> Limits:
        """Limits of the movable joints: lower, upper (nq,), velocity, effort (nv,); infinite if absent."""
        return self._limits

    def whole_body_constants(
        self, contacts: Contact | Sequence[Contact] = (), *, undriven: Sequence[str] | None = None, facets: int = 4
    ) -> WholeBodyConstants:
        """Returns S, the limits and the friction cones of a whole-body problem, without a request.

        Args:
            contacts: The contact points; `link`, `point`, `normal`, `friction` and `rigid` are used.
            undriven: The joints without an actuator; None: planar and floating joints.
            facets: Sides of the friction pyramid inside each friction cone, 3 to 64.

        Raises:
            NotFoundError: The robot has no link or movable joint of that name.
            InvalidArgumentError: A contact or `facets` is invalid; `path` names it.
        """
        return constants(self, contacts, undriven, facets)
