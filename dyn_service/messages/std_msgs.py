"""Headers, texts and arrays of numbers."""

from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.fields import Message, UInt32


class Header(Message, frozen=True):
    """Time of a measurement, and the frame in whose axes it is expressed."""

    stamp: Time = Time()
    frame_id: str = ""


class String(Message, frozen=True):
    """A text, such as the robot's description on `robot_description`."""

    data: str = ""


class MultiArrayDimension(Message, frozen=True):
    """One dimension of an array: its name, its length, and how many numbers lie from its begin to its end."""

    label: str = ""
    size: UInt32 = 0
    stride: UInt32 = 0


class MultiArrayLayout(Message, frozen=True):
    """Layout of an array in a flat list."""

    dim: list[MultiArrayDimension] = []
    data_offset: UInt32 = 0


class Float64MultiArray(Message, frozen=True):
    """A flat list of numbers, such as commands for ROS 2's forward command controllers."""

    layout: MultiArrayLayout = MultiArrayLayout()
    data: list[float] = []
