"""What a client must know of a robot: one struct, made by the robot, sent by `describe_robot`, read by every client."""

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
"""What numbers mean where users differ; docs/conventions.md has them with the converters."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The dimensions that the shapes in the table speak of, by their symbols."""

    nq: int
    """Length of `q`."""
    nv: int
    """Length of `v`, `a`, `tau`."""
    nr: int = 0
    """Rates of all joints that move: those of `v`, and of joints that follow others."""
    nm: int
    """Joints that move, those that follow others too."""
    nl: int
    """Links."""
    nj: int
    """URDF joints, fixed ones too."""
    nb: int
    """Bodies of the tree that a query's kernels are made for: links, or moving bodies."""
    na: int
    """Pairs of moving bodies of which one is the other or carries it."""

    def __getitem__(self, symbol: str) -> int:
        if symbol not in self.__struct_fields__:
            raise KeyError(symbol)
        size: int = getattr(self, symbol)
        return size


class JointDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One joint, fixed ones too: so all of them are the robot's topology."""

    name: str
    type: str
    """As in URDF: `revolute`, `continuous`, `prismatic`, `fixed`, `planar`, `floating`; `screw`, `spherical`."""
    parent: str | None
    """The link that carries it; None is the world."""
    child: str
    """The link that it moves."""
    axis: tuple[float, float, float] | None = None
    """Unit vector in the joint frame, of types that have one; across the plane of a planar joint."""
    pitch: float | None = None
    """m per turn, of a screw."""
    mimic: MimicDescription | None = None
    """Of a joint that follows another, and has no entry in `q`, `v` and `tau`."""


class MimicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """How a joint follows another: its position is `multiplier` times that of `joint`, plus `offset`."""

    joint: str
    """The joint that leads it, which follows none and has an entry in `q`."""
    multiplier: float
    """And its velocity is `multiplier` times that of the leader."""
    offset: float
    """rad or m."""


class LimitsDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the movable joints, in the order of `q` and `v`; None if absent."""

    lower: list[float | None]
    upper: list[float | None]
    velocity: list[float | None]
    effort: list[float | None]


class RobotDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of a robot, ready for MessagePack or JSON."""

    name: str
    """The robot's name."""
    fingerprint: str
    """Changes whenever anything that an answer depends on changes: send it as `model`."""
    nq: int
    """Length of `q`."""
    nv: int
    """Length of `v`, `a`, `tau`."""
    sizes: Sizes
    """All dimensions that the shapes in the table speak of."""
    joint_names: tuple[str, ...]
    """The joints with entries in `q`, in order: movable joints without mimic joints."""
    joint_types: tuple[str, ...]
    """Of these, in the order of `joint_names`."""
    all_joint_names: tuple[str, ...]
    """Every URDF joint, fixed ones too: the rows of `constraint_forces`."""
    link_names: tuple[str, ...]
    """Every link, parent before child."""
    joints: tuple[JointDescription, ...]
    """Every joint with its type, axis, parent and child link, in the order of `all_joint_names`."""
    limits: LimitsDescription
    """`lower`, `upper` in the order of `q`, `velocity`, `effort` in that of `v`, nil if absent."""
    gravity: tuple[float, float, float]
    """m/s^2, world axes: what a request without `gravity` means."""
    passive: tuple[str, ...] = ()
    """What its joints do by themselves: of `damping`, `friction`, `armature`, `springs`."""
    conventions: Mapping[str, str] = msgspec.field(default_factory=lambda: dict(CONVENTIONS))
    """What numbers mean where users differ: quaternions, axes of velocities, order of spatial vectors."""
    certificates: Mapping[str, Mapping[str, Any]] = {}
    """By kernel made so far, the fields of its `Certificate` but the name."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(self))
        return found
