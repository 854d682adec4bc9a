"""Measurements of joints and sensors."""

from typing import Annotated

from msgspec import Meta, field

from dyn_service.messages.fields import Message
from dyn_service.messages.geometry_msgs import Quaternion, Transform, Twist, Vector3, Wrench
from dyn_service.messages.std_msgs import Header

Covariance = Annotated[list[float], Meta(min_length=9, max_length=9)]
"""A matrix of three rows, row after row; all zero means unknown; -1 first means that the value is missing."""


def _unknown() -> list[float]:
    return [0.0] * 9


class JointState(Message, frozen=True):
    """Joints with one degree of freedom: rad, rad/s, N m, or m, m/s, N. A list is empty if its values are unknown."""

    header: Header = Header()
    name: list[str] = []
    position: list[float] = []
    velocity: list[float] = []
    effort: list[float] = []


class MultiDOFJointState(Message, frozen=True):
    """Joints with several degrees of freedom, the pose of each as a transform; see `dyn_service.model.conventions`."""

    header: Header = Header()
    joint_names: list[str] = []
    transforms: list[Transform] = []
    twist: list[Twist] = []
    wrench: list[Wrench] = []


class Imu(Message, frozen=True):
    """An inertial measurement unit: rad/s, and m/s^2 of acceleration less gravity, in its own axes."""

    header: Header = Header()
    orientation: Quaternion = Quaternion()
    orientation_covariance: Covariance = field(default_factory=_unknown)
    angular_velocity: Vector3 = Vector3()
    angular_velocity_covariance: Covariance = field(default_factory=_unknown)
    linear_acceleration: Vector3 = Vector3()
    linear_acceleration_covariance: Covariance = field(default_factory=_unknown)
