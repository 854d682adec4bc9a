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
    """URDF joints, including fixed ones."""
    nb: int
    """Bodies of the tree of a query's kernels: links, or moving bodies."""
    na: int
    """Pairs of a moving body and itself or one of its ancestors."""

    def __getitem__(self, symbol: str) -> int:
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


class MimicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The relation of a mimic joint: its position is `multiplier` times that of `joint`, plus `offset`."""

    joint: str
    """The mimicked joint, which has an entry in `q`."""
    multiplier: float
    """Ratio of the velocities."""
    offset: float
    """rad or m."""


class LimitsDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the movable joints, in the order of `q` and `v`; None if absent."""

    lower: list[float | None]
    upper: list[float | None]
    velocity: list[float | None]
    effort: list[float | None]


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
    """Every URDF joint, including fixed ones: the rows of `constraint_forces`."""
    link_names: tuple[str, ...]
    """Every link, parent before child."""
    joints: tuple[JointDescription, ...]
    """Every joint with its type, axis, parent and child link, in the order of `all_joint_names`."""
    limits: LimitsDescription
    """`lower`, `upper` in the order of `q`, `velocity`, `effort` in that of `v`, nil if absent."""
    gravity: tuple[float, float, float]
    """Default gravity of requests, m/s^2, world axes."""
    passive: tuple[str, ...] = ()
    """Passive properties of its joints: some of `damping`, `friction`, `armature`, `springs`."""
    conventions: Mapping[str, str] = msgspec.field(default_factory=lambda: dict(CONVENTIONS))
    """Conventions: quaternions, axes of velocities, order of spatial vectors."""
    certificates: Mapping[str, Mapping[str, Any]] = {}
    """By compiled kernel, the fields of its `Certificate` except the name."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(self))
        return found
