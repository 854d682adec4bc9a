"""Messages of topics, with ROS 2's names, fields and order. See `docs/messages.md`.

    from dyn_service.messages import decode, encode
    from dyn_service.messages.sensor_msgs import JointState

A struct's annotations are the one source of its frames (MessagePack), its `.msg` definition and its place in bags.
"""

from dyn_service.messages.codec import MAX_BYTES, all_types, by_type, decode, encode, from_builtins
from dyn_service.messages.fields import Message, definition, fields_of, ros_type, schema

__all__ = [
    "MAX_BYTES",
    "Message",
    "all_types",
    "by_type",
    "decode",
    "definition",
    "encode",
    "fields_of",
    "from_builtins",
    "ros_type",
    "schema",
]
