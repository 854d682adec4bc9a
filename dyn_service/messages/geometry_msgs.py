"""Poses, velocities and forces in three dimensions: m, rad, N and their products, in the axes of a header's frame."""

from typing import Annotated

from msgspec import Meta, field

from dyn_service.messages.fields import Message
from dyn_service.messages.std_msgs import Header

Covariance = Annotated[list[float], Meta(min_length=36, max_length=36)]
"""A matrix of six rows, x, y, z, then rotations about these, row after row; all zero means unknown."""


def _unknown() -> list[float]:
    return [0.0] * 36


class Vector3(Message, frozen=True):
    """A vector."""

    x: float = 0.0
    y: float = 0.0
    z: float = 0.0


class Point(Message, frozen=True):
    """A position (m)."""

    x: float = 0.0
    y: float = 0.0
    z: float = 0.0


class Quaternion(Message, frozen=True):
    """A rotation; w, the scalar part, is last."""

    x: float = 0.0
    y: float = 0.0
    z: float = 0.0
    w: float = 1.0


class Pose(Message, frozen=True):
    """A position and a rotation."""

    position: Point = Point()
    orientation: Quaternion = Quaternion()


class PoseStamped(Message, frozen=True):
    """A pose in the frame of its header."""

    header: Header = Header()
    pose: Pose = Pose()


class PoseWithCovariance(Message, frozen=True):
    """A pose with its covariance."""

    pose: Pose = Pose()
    covariance: Covariance = field(default_factory=_unknown)


class Transform(Message, frozen=True):
    """From a child frame's axes to its parent's."""

    translation: Vector3 = Vector3()
    rotation: Quaternion = Quaternion()


class TransformStamped(Message, frozen=True):
    """Where the frame `child_frame_id` is in the frame of the header."""

    header: Header = Header()
    child_frame_id: str = ""
    transform: Transform = Transform()


class Twist(Message, frozen=True):
    """A velocity (m/s) and an angular velocity (rad/s)."""

    linear: Vector3 = Vector3()
    angular: Vector3 = Vector3()


class TwistStamped(Message, frozen=True):
    """A twist in the frame of its header."""

    header: Header = Header()
    twist: Twist = Twist()


class TwistWithCovariance(Message, frozen=True):
    """A twist with its covariance."""

    twist: Twist = Twist()
    covariance: Covariance = field(default_factory=_unknown)


class Wrench(Message, frozen=True):
    """A force (N) and a moment (N m)."""

    force: Vector3 = Vector3()
    torque: Vector3 = Vector3()


class WrenchStamped(Message, frozen=True):
    """A wrench in the frame of its header."""

    header: Header = Header()
    wrench: Wrench = Wrench()
