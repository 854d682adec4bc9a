"""Our messages as ROS 2's own Python classes, and back: field by field."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from dyn_service.messages import Message, all_types, fields_of, ros_type


def ros_class(kind: type[Message]) -> Any:
    """ROS 2's class of that type; None where its package is in no wheel."""
    package, _, name = ros_type(kind).split("/")
    try:
        return getattr(import_module(f"{package}.msg"), name)
    except ImportError:
        return None


KINDS = {ros_type(kind): kind for kind in all_types() if ros_class(kind)}
"""Those that there are, by ROS's names."""


def as_ros(message: Message) -> Any:
    """The same message, as ROS 2 has it."""
    ros_message = ros_class(type(message))()
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if not isinstance(field.kind, str):
            value = as_ros(value) if field.length is None else [as_ros(item) for item in value]
        # rclpy has a single byte as bytes of length one, and a list of them as a list.
        elif field.kind == "byte" and field.length is None:
            value = bytes([value])
        elif field.length is not None:
            value = list(value)
        setattr(ros_message, field.name, value)
    return ros_message


def plain(value: Any) -> Any:
    """A message of either side as dictionaries, lists and numbers."""
    if isinstance(value, Message):
        return {field.name: plain(getattr(value, field.name)) for field in fields_of(type(value))}
    if hasattr(value, "get_fields_and_field_types"):
        return {name: plain(getattr(value, name)) for name in value.get_fields_and_field_types()}
    if isinstance(value, bytes) and len(value) == 1:
        return value[0]
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value]
