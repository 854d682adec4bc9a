"""Our messages as ROS 2 puts them on DDS: types with ROS's names for DDS, in CDR.

    sensor_msgs/msg/JointState  <->  sensor_msgs::msg::dds_::JointState_
    topic /arm/joint_states     <->  rt/arm/joint_states

A DDS type is made from the message struct's own annotations, so there is one definition. Source of the names:
design.ros2.org, "Topic and Service name mapping to DDS".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cyclonedds.idl import IdlStruct, make_idl_struct
from cyclonedds.idl import types as idl

from dyn_service.errors import InvalidArgumentError
from dyn_service.messages import Message, fields_of, ros_type
from dyn_service.messages.fields import Field

_SCALARS: dict[str, Any] = {
    "bool": bool,
    "string": str,
    "byte": idl.uint8,
    "int8": idl.int8,
    "uint8": idl.uint8,
    "int16": idl.int16,
    "uint16": idl.uint16,
    "int32": idl.int32,
    "uint32": idl.uint32,
    "int64": idl.int64,
    "uint64": idl.uint64,
    "float32": idl.float32,
    "float64": idl.float64,
}

_FULL_NAME = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+", re.ASCII)
_LONGEST = 247
"""ROS 2's own, `RMW_TOPIC_MAX_NAME_LENGTH`."""


@dataclass(frozen=True)
class DdsType:
    """A message type on DDS. kind: ours. idl: Cyclone's. to_dds, from_dds: a message from one to the other."""

    kind: type[Message]
    idl: type[IdlStruct]
    to_dds: Callable[[Message], IdlStruct]
    from_dds: Callable[[IdlStruct], Message]


def dds_topic(name: str) -> str:
    """The topic's name on DDS: `rt/arm/joint_states` for `/arm/joint_states`.

    Raises:
        InvalidArgumentError: It is no full name of a topic in ROS 2, whose nodes could not ask for it.
    """
    if not _FULL_NAME.fullmatch(name) or len(name) > _LONGEST:
        raise InvalidArgumentError(
            f"topic {name!r} cannot be one of ROS 2: expected parts of letters, digits and _, each after a / and not "
            f"beginning with a digit, at most {_LONGEST} characters in all"
        )
    return "rt" + name


@lru_cache(maxsize=256)
def dds_type(kind: type[Message]) -> DdsType:
    """The message type on DDS."""
    package, _, name = ros_type(kind).split("/")
    fields = fields_of(kind)
    made = make_idl_struct(f"{name}_", f"{package}.msg.dds_.{name}_", {each.name: _idl(each) for each in fields})

    def to_dds(message: Message) -> IdlStruct:
        return made(**{name: give(getattr(message, name)) for name, give, _ in steps})

    def from_dds(sample: IdlStruct) -> Message:
        return kind(**{name: take(getattr(sample, name)) for name, _, take in steps})

    steps = [(each.name, *_steps(each)) for each in fields]
    return DdsType(kind, made, to_dds, from_dds)


def _idl(field: Field) -> Any:
    one = _SCALARS[field.kind] if isinstance(field.kind, str) else dds_type(field.kind).idl
    if field.length is None:
        return one
    return idl.array[one, field.length] if field.length else idl.sequence[one]


def _steps(field: Field) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """How the field's value goes to DDS, and comes from it."""
    if isinstance(field.kind, str):
        return (list, list) if field.length is not None else (_same, _same)
    inner = dds_type(field.kind)
    if field.length is None:
        return inner.to_dds, inner.from_dds
    return lambda items: list(map(inner.to_dds, items)), lambda items: list(map(inner.from_dds, items))


def _same(value: Any) -> Any:
    return value
