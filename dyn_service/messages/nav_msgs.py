"""Odometry: pose and velocity of a robot's base."""

from dyn_service.messages.fields import Message
from dyn_service.messages.geometry_msgs import PoseWithCovariance, TwistWithCovariance
from dyn_service.messages.std_msgs import Header


class Odometry(Message, frozen=True):
    """The pose of the frame `child_frame_id` in the frame of the header; its twist is written in the child's axes."""

    header: Header = Header()
    child_frame_id: str = ""
    pose: PoseWithCovariance = PoseWithCovariance()
    twist: TwistWithCovariance = TwistWithCovariance()
