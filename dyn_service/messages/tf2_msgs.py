"""Transforms of frames."""

from dyn_service.messages.fields import Message
from dyn_service.messages.geometry_msgs import TransformStamped


class TFMessage(Message, frozen=True):
    """Transforms from frames to their parents, as on the topics `tf` and `tf_static`."""

    transforms: list[TransformStamped] = []
