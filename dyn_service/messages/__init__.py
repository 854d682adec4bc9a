"""Messages of topics, with ROS 2's names, fields and order. See `docs/messages.md`.

    from dyn_service.messages import decode, encode
    from dyn_service.messages.sensor_msgs import JointState

A struct's annotations are the one source of its frames (MessagePack), its `.msg` definition and its place in bags.

fields              `Message`: structs defined by their annotations, and their `.msg` definitions
codec               messages as MessagePack and back
cdr                 messages as CDR, ROS 2's encoding, and back
builtin_interfaces  times and durations
control_msgs        states of controllers, as in ros2_control
diagnostic_msgs     diagnostics of the parts of a machine
dyn_service_msgs    messages between a plant and its controller, and requests of servers
geometry_msgs       poses, velocities and forces
nav_msgs            odometry
rcl_interfaces      log lines of nodes
rosgraph_msgs       simulated time
sensor_msgs         measurements of joints and sensors
std_msgs            headers, texts and arrays of numbers
tf2_msgs            transforms of frames
trajectory_msgs     joint trajectories
"""

from dyn_service.messages.codec import MAX_BYTES, all_types, by_type, decode, encode, from_builtins
from dyn_service.messages.fields import (
    Byte,
    Float32,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    UInt8,
    UInt16,
    UInt32,
    definition,
    fields_of,
    ros_type,
    schema,
)

__all__ = [
    "MAX_BYTES",
    "Byte",
    "Float32",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "UInt8",
    "UInt16",
    "UInt32",
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
